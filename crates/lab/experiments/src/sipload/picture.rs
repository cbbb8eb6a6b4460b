//! Goodput and set-up times over the offered load.

use plotters::{
    chart::ChartBuilder,
    drawing::IntoDrawingArea,
    element::{Circle, PathElement},
    prelude::{DashedLineSeries, IntoLogRange, LineSeries, SVGBackend},
    style::{Color, WHITE},
};
use sluicegate_site::LabError;

use super::sweep::Curve;
use crate::report::{COLOURS, GREY};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 720;
const LOAD_MAX: f64 = 5.2;
const MS: (f64, f64) = (0.1, 40_000.0);

pub(super) fn draw(curves: &[Curve], transport: &str) -> Result<String, LabError> {
    let mut svg = String::new();
    draw_into(curves, transport, &mut svg).map_err(|error| LabError::Report(error.to_string()))?;
    Ok(svg)
}

fn draw_into(curves: &[Curve], transport: &str, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(HEIGHT / 2);
    let mut chart = ChartBuilder::on(&above)
        .caption(format!("Calls completed over {transport}, in capacities of the same server"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..LOAD_MAX, 0.0..1.2)?;
    chart.configure_mesh().x_desc("offered, in capacities").y_desc("completed, in capacities").draw()?;
    let ideal = [(0.0, 0.0), (1.0, 1.0), (LOAD_MAX, 1.0)];
    chart.draw_series(DashedLineSeries::new(ideal, 6, 4, GREY.stroke_width(1)))?;
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let points: Vec<_> = curve.points.iter().map(|point| (point.load, point.goodput().min(1.2))).collect();
        chart.draw_series(points.iter().map(|place| Circle::new(*place, 3, colour.filled())))?;
        let label = match curve.points.first() {
            Some(point) => format!("{}, {:.0} calls/s", curve.scheme.name(), point.capacity),
            None => curve.scheme.name().to_owned(),
        };
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?.label(label).legend(legend);
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GREY).draw()?;
    let mut chart = ChartBuilder::on(&below)
        .caption("Set-up of those that were: median, and 99th percentile dashed", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..LOAD_MAX, (MS.0..MS.1).log_scale())?;
    chart.configure_mesh().x_desc("offered, in capacities").y_desc("ms").draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let times = |of: fn(&super::judge::Point) -> u64| {
            let ms = move |point| (of(point) as f64 / 1e3).clamp(MS.0, MS.1);
            curve.points.iter().map(move |point| (point.load, ms(point))).collect::<Vec<_>>()
        };
        let p50 = times(|point| point.trial.first().setup_us.p50);
        let p99 = times(|point| point.trial.first().setup_us.p99);
        chart.draw_series(LineSeries::new(p50, colour.stroke_width(2)))?;
        chart.draw_series(DashedLineSeries::new(p99, 6, 4, colour.stroke_width(2)))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{judge::Point, rig::Trial, server::Scheme},
        *,
    };

    #[test]
    fn the_picture_names_each_server_and_its_capacity() {
        let trial = Trial { seconds: 1.0, ..Trial::default() };
        let point = |load| Point { load, capacity: 9_000.0, under_ms: 0, trial: trial.clone(), has_moved: false };
        let curve = |scheme| Curve { scheme, points: vec![point(0.5), point(5.0)] };
        let svg = draw(&[curve(Scheme::Sluicegate), curve(Scheme::Kamailio)], "udp").unwrap();
        for text in ["sluicegate, 9000 calls/s", "kamailio, 9000 calls/s", "over udp"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
