//! Pictures of scenarios, as the paper draws them: calls, processor and memory, second by second.

use std::ops::Range;

use plotters::{
    chart::ChartBuilder,
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea},
    element::PathElement,
    prelude::{DashedLineSeries, LineSeries, SVGBackend},
    style::{Color, RGBColor, WHITE},
};

use super::{
    Mode,
    judge::memory,
    play::{CPU, Played},
    sample::Second,
    site::Callee,
};
use crate::report::{COLOURS, GREY};
use sluicegate_site::LabError;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 300;

/// One picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Of its file, without an ending.
    pub name: String,
    /// What is in it.
    pub svg: String,
}

struct Panel {
    title: String,
    axis: &'static str,
    lines: Vec<(&'static str, Vec<(f64, f64)>)>,
    /// Thresholds.
    marks: Vec<(&'static str, f64)>,
}

/// Draws a scenario of a target that is engineered for so many calls a second.
pub(super) fn draw(played: &Played, load: f64) -> Result<Picture, LabError> {
    let Played { scene, by, seconds, .. } = played;
    let line = |value: fn(&Second) -> f64| seconds.iter().map(|second| (second.at_s, value(second))).collect();
    let figures = match by {
        Mode::Paper | Mode::Default => scene.figures[0],
        Mode::Unavailable => scene.figures[1],
    };
    let mut panels = vec![
        Panel {
            title: format!("{} ({}): {}", scene.name, by.label(), scene.about),
            axis: "calls/s",
            lines: vec![
                ("offered", line(|second| second.offered as f64 / second.span_s)),
                ("accepted", line(|second| second.accepted as f64 / second.span_s)),
                ("refused", line(|second| second.refused as f64 / second.span_s)),
            ],
            marks: vec![("E_I", load), ("1.7 E_I", 1.7 * load)],
        },
        Panel {
            title: "The target's SIP thread".to_owned(),
            axis: "share of its time",
            lines: vec![("CPU", line(|second| second.cpu))],
            marks: vec![("C_min", CPU.0), ("C_max", CPU.1)],
        },
    ];
    if scene.callee == Callee::Silent {
        let sizes = memory(load);
        panels.push(Panel {
            title: "INVITEs that are being set up".to_owned(),
            axis: "MB",
            lines: vec![("memory", line(|second| second.memory_bytes / 1e6))],
            marks: vec![("M_min", sizes.start / 1e6), ("M_max", sizes.end / 1e6)],
        });
    }
    let mut svg = String::new();
    draw_into(&panels, f64::from(played.calls_s + scene.ends_s), &mut svg)
        .map_err(|error| LabError::Report(error.to_string()))?;
    let name = [figures, by.label(), scene.name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    Ok(Picture { name: name.join("-"), svg })
}

fn draw_into(panels: &[Panel], seconds: f64, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows = panels.len();
    let height = u32::try_from(rows).unwrap_or(1) * PANEL_HEIGHT;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(root.split_evenly((rows, 1))) {
        draw_panel(panel, 0.0..seconds, &area)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    panel: &Panel,
    span: Range<f64>,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let values = panel.lines.iter().flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
    let top = values.chain(panel.marks.iter().map(|(_, value)| *value)).fold(0.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(span.clone(), 0.0..top.max(f64::MIN_POSITIVE))?;
    chart.configure_mesh().x_desc("seconds").y_desc(panel.axis).draw()?;
    for ((name, points), colour) in panel.lines.iter().zip(COLOURS) {
        legend(chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?, name, colour);
    }
    for (name, value) in &panel.marks {
        let dashes = DashedLineSeries::new([(span.start, *value), (span.end, *value)], 6, 4, GREY.stroke_width(1));
        legend(chart.draw_series(dashes)?, &format!("{name} = {value:.3}"), GREY);
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GREY).draw()?;
    Ok(())
}

fn legend(line: &mut plotters::chart::SeriesAnno<'_, SVGBackend<'_>>, name: &str, colour: RGBColor) {
    line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
}
