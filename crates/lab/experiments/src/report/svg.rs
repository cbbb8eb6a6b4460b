use std::{cmp::Reverse, collections::BTreeMap, ops::Range};

use plotters::{
    chart::{ChartBuilder, ChartContext, LabelAreaPosition},
    coord::{
        Shift,
        ranged1d::{Ranged, ValueFormatter},
        types::RangedCoordf64,
    },
    drawing::{DrawingArea, IntoDrawingArea},
    element::{PathElement, Rectangle, Text},
    prelude::{Cartesian2d, DashedLineSeries, IntoLogRange, LineSeries, SVGBackend},
    style::{Color, FontTransform, IntoFont, RGBColor, WHITE},
};

use super::{Report, Second};
use sluicegate_site::LabError;

const WIDTH: u32 = 1_000;
const PANEL_HEIGHT: u32 = 210;
/// Of a line of text above or below the panels.
const LINE_HEIGHT: u32 = 20;
const PANELS: u32 = 4;
/// Space beside the panels for the names of their lines.
const LEGEND_WIDTH: u32 = 190;
const AXIS_WIDTH: u32 = 70;
const MARGIN: u32 = 8;
/// Lowest value of logarithmic axes: what is below is drawn there.
const BITS_MIN: f64 = 1.0e3;
const PACKETS_MIN: f64 = 1.0;

const BLUE: RGBColor = RGBColor(0, 94, 162);
const RED: RGBColor = RGBColor(198, 40, 40);
pub(crate) const GREY: RGBColor = RGBColor(110, 110, 110);
/// Told apart also by people who confuse red and green (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(180, 170, 20),
];

/// Programs that know no style sheets draw the colours in the file, which are those for light paper.
const STYLE: &str = "<style>text{font-family:system-ui,sans-serif}@media (prefers-color-scheme:dark){\
[fill=\"#FFFFFF\"]{fill:#16191d}text{fill:#dfe4ea}[fill=\"#6E6E6E\"]{fill:#aab2bb}[stroke=\"#6E6E6E\"]{stroke:#aab2bb}\
[stroke=\"#000000\"]{stroke:#6c757f}[stroke=\"#005EA2\"]{stroke:#5ab0f0}[stroke=\"#C62828\"]{stroke:#ff7a70}\
[stroke=\"#0072B2\"]{stroke:#3d7be0}[stroke=\"#5A5A5A\"]{stroke:#c4c9cf}}</style>";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Line = (String, RGBColor, Vec<(f64, f64)>);

/// With what came out above and what the phases are below, or without these `words`.
pub(super) fn draw(report: &Report, words: bool) -> Result<String, LabError> {
    let mut svg = String::new();
    draw_into(report, words, &mut svg).map_err(|error| LabError::Report(error.to_string()))?;
    // Behind the opening tag.
    let start = svg.find("<svg").and_then(|tag| Some(tag + svg.get(tag..)?.find('>')? + 1));
    svg.insert_str(start.unwrap_or(0), STYLE);
    Ok(svg)
}

fn draw_into(report: &Report, words: bool, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let (above, below) = if words { words_of(report) } else { (Vec::new(), Vec::new()) };
    let height = |lines: &[String]| u32::try_from(lines.len()).map_or(0, |count| (count + 1) * LINE_HEIGHT);
    let (head, foot) = (height(&above), height(&below));
    let root = SVGBackend::with_string(svg, (WIDTH, head + PANELS * PANEL_HEIGHT + foot)).into_drawing_area();
    root.fill(&WHITE)?;
    let (top, body) = root.split_vertically(head);
    let (body, bottom) = body.split_vertically(PANELS * PANEL_HEIGHT);
    for (line, y) in above.iter().zip((10..).step_by(LINE_HEIGHT as usize)) {
        top.draw(&Text::new(line.as_str(), (12, y), ("sans-serif", 15).into_font()))?;
    }
    for (line, y) in below.iter().zip((4..).step_by(LINE_HEIGHT as usize)) {
        bottom.draw(&Text::new(line.as_str(), (12, y), ("sans-serif", 12).into_font().color(&GREY)))?;
    }
    let panels = body.split_evenly((PANELS as usize, 1));
    let [traffic, loss, delay, drops] = panels.as_slice() else { return Ok(()) };

    let pick = |value: fn(&Second) -> Option<f64>, scale: f64| -> Vec<(f64, f64)> {
        let points = report.seconds.iter().filter_map(|second| Some((f64::from(second.at_s), value(second)? * scale)));
        points.collect()
    };
    let traffic_lines: [Line; 2] = [
        ("goodput".to_owned(), BLUE, pick(|second| second.goodput_bps, 1.0)),
        ("arriving at the gate".to_owned(), RED, pick(|second| second.offered_bps, 1.0)),
    ];
    logarithmic(report, traffic, "bit/s", BITS_MIN, &traffic_lines, Some(("the link", report.link_rate_bps as f64)))?;
    let loss_lines = [("call loss, %".to_owned(), BLUE, pick(|second| second.loss, 100.0))];
    linear(report, loss, "call loss, %", 0.0..100.0, &loss_lines)?;
    let delays = pick(|second| second.delay_p99_ms, 1.0);
    let highest = delays.iter().map(|(_, ms)| *ms).fold(1.0, f64::max) * 1.1;
    linear(report, delay, "call delay p99, ms", 0.0..highest, &[("call delay p99, ms".to_owned(), BLUE, delays)])?;
    logarithmic(report, drops, "drops, packets/s", PACKETS_MIN, &drop_lines(report), None)?;
    root.present()?;
    Ok(())
}

/// What stands above the panels, and what below.
fn words_of(report: &Report) -> (Vec<String>, Vec<String>) {
    let (link, seed) = (short(report.link_rate_bps as f64), report.seed);
    let title = format!("{}: {}; link {link}bit/s, seed {seed}", report.title, report.figures.verdict().word());
    let phases = report.phases.iter().map(|phase| format!("{}: {}", phase.name, phase.about));
    ([title].into_iter().chain(report.story.iter().cloned()).collect(), phases.collect())
}

/// The reasons with the most drops; a picture with all of them could not be read.
fn drop_lines(report: &Report) -> Vec<Line> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in report.seconds.iter().flat_map(|second| &second.drops) {
        *totals.entry(reason).or_insert(0) += count;
    }
    let mut reasons: Vec<_> = totals.into_iter().collect();
    reasons.sort_unstable_by_key(|(_, total)| Reverse(*total));
    let colours = COLOURS.iter().cycle();
    let line = |(reason, colour): (&str, &RGBColor)| {
        let packets = |second: &Second| Some((f64::from(second.at_s), *second.drops.get(reason)? as f64));
        (reason.to_owned(), *colour, report.seconds.iter().filter_map(packets).collect())
    };
    reasons.into_iter().map(|(reason, _)| reason).zip(colours).take(COLOURS.len()).map(line).collect()
}

fn span(report: &Report) -> Range<f64> {
    let end = report.seconds.last().map_or(0, |second| second.at_s);
    let end = report.phases.iter().map(|phase| phase.to_s).fold(end, u32::max);
    0.0..f64::from(end.max(1))
}

fn linear(
    report: &Report,
    area: &Area<'_>,
    label: &str,
    range: Range<f64>,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let (bottom, top) = (range.start, range.end);
    let mut chart = builder(area).build_cartesian_2d(span(report), range)?;
    finish(report, &mut chart, label, (bottom, top), lines)?;
    name_lines(area, label, lines)
}

fn logarithmic(
    report: &Report,
    area: &Area<'_>,
    label: &str,
    bottom: f64,
    lines: &[Line],
    mark: Option<(&str, f64)>,
) -> Result<(), Box<dyn std::error::Error>> {
    let highest = lines.iter().flat_map(|line| &line.2).map(|(_, value)| *value).fold(bottom * 10.0, f64::max);
    let top = highest * 2.0;
    let mut chart = builder(area).build_cartesian_2d(span(report), (bottom..top).log_scale())?;
    if let Some((name, value)) = mark.filter(|(_, value)| (bottom..top).contains(value)) {
        let span = span(report);
        let dashes = DashedLineSeries::new([(span.start, value), (span.end, value)], 6, 4, GREY.stroke_width(1));
        chart.draw_series(dashes)?;
        let font = ("sans-serif", 11).into_font().color(&GREY);
        chart.draw_series([Text::new(name.to_owned(), (span.end * 0.94, value), font)])?;
    }
    finish(report, &mut chart, label, (bottom, top), lines)?;
    name_lines(area, label, lines)
}

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(MARGIN)
        .margin_right(LEGEND_WIDTH)
        .set_label_area_size(LabelAreaPosition::Left, AXIS_WIDTH)
        .set_label_area_size(LabelAreaPosition::Bottom, 24);
    builder
}

fn finish<'a, 'b: 'a, Y>(
    report: &Report,
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>,
    label: &str,
    (bottom, top): (f64, f64),
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64> + 'a,
{
    for (index, phase) in report.phases.iter().enumerate() {
        let (from, to) = (f64::from(phase.from_s), f64::from(phase.to_s));
        let shade = GREY.mix(if index % 2 == 0 { 0.04 } else { 0.12 }).filled();
        chart.draw_series([Rectangle::new([(from, bottom), (to, top)], shade)])?;
    }
    chart
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GREY.mix(0.2))
        .x_label_formatter(&|at| format!("{at:.0}"))
        .y_desc(label)
        .y_labels(6)
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (_, colour, points) in lines {
        // What was not measured is a gap.
        for unbroken in points.chunk_by(|one, next| next.0 - one.0 <= 1.0) {
            let raised = unbroken.iter().map(|(at, value)| (*at, value.clamp(bottom, top)));
            chart.draw_series(LineSeries::new(raised, colour.stroke_width(2)))?;
        }
    }
    let font = ("sans-serif", 11).into_font().transform(FontTransform::None).color(&GREY);
    for phase in &report.phases {
        let place = (f64::from(phase.from_s), top);
        chart.draw_series([Text::new(format!(" {}", phase.name), place, font.clone())])?;
    }
    Ok(())
}

/// Writes the lines' names beside the panel. A line whose name is the axis's needs none.
fn name_lines(area: &Area<'_>, label: &str, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let x = i32::try_from(WIDTH - LEGEND_WIDTH).unwrap_or(0) + 12;
    for (row, (name, colour, _)) in (0..).zip(lines.iter().filter(|(name, ..)| name != label)) {
        let y = 20 + row * 18;
        area.draw(&PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)))?;
        area.draw(&Text::new(name.as_str(), (x + 22, y - 6), ("sans-serif", 12).into_font()))?;
    }
    Ok(())
}

/// A number with the usual letter for thousands and millions.
pub(super) fn short(value: f64) -> String {
    match value {
        value if value >= 1.0e9 => format!("{}G", value / 1.0e9),
        value if value >= 1.0e6 => format!("{}M", value / 1.0e6),
        value if value >= 1.0e3 => format!("{}k", value / 1.0e3),
        value => format!("{}", (value * 100.0).round() / 100.0),
    }
}
