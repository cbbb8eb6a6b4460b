//! The demo as a person watches it.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    time::Instant,
};

use ratatui::{
    DefaultTerminal, Frame,
    layout::{Constraint, Layout},
    style::{Color, Style, Stylize},
    text::Line,
    widgets::{Block, Paragraph, Sparkline},
};
use sluicegate_netlab::{
    demo::Event,
    report::{Figure, Second},
};

use crate::out;

/// Seconds that the curves show.
const SHOWN_S: usize = 180;

/// Shows what the demo tells: a live view on a terminal, or lines.
pub(crate) enum View {
    Terminal(Box<Live>),
    Lines(Instant),
}

impl View {
    /// A live view unless `headless` or not at a terminal.
    pub(crate) fn open(headless: bool) -> Self {
        if headless || !io::stdout().is_terminal() {
            return Self::Lines(Instant::now());
        }
        Self::Terminal(Box::new(Live::open()))
    }

    pub(crate) fn tell(&mut self, event: &Event) {
        match self {
            Self::Terminal(live) => live.tell(event),
            Self::Lines(started) => lines(*started, event),
        }
    }

    /// Gives the terminal back.
    pub(crate) fn close(&self) {
        if matches!(self, Self::Terminal(_)) {
            ratatui::restore();
        }
    }
}

fn lines(started: Instant, event: &Event) {
    match event {
        Event::Step(text) => out::line(format_args!("{:6.1} s  {text}", started.elapsed().as_secs_f32())),
        Event::Phase(name) => out::line(format_args!("{:6.1} s  -- {name}", started.elapsed().as_secs_f32())),
        Event::Second(second) if second.at_s % 5 == 0 => out::line(format_args!("            {}", summary(second))),
        Event::Second(_) | Event::Figure(_) => {}
    }
}

fn summary(second: &Second) -> String {
    let number = |value: Option<f64>, scale: f64, unit: &str| match value {
        Some(value) => format!("{:.1} {unit}", value * scale),
        None => format!("- {unit}"),
    };
    format!(
        "offered {}  goodput {}  call loss {}  p99 {}  set-ups {}",
        number(second.offered_bps, 1e-6, "Mbit/s"),
        number(second.goodput_bps, 1e-6, "Mbit/s"),
        number(second.loss, 100.0, "%"),
        number(second.delay_p99_ms, 1.0, "ms"),
        number(second.setups, 1.0, "/s"),
    )
}

/// One figure as a line of the verdict.
pub(crate) fn figure(figure: &Figure) -> String {
    let verdict = match figure.pass {
        Some(true) => "pass",
        Some(false) => "FAIL",
        None => "    ",
    };
    let threshold = figure.threshold.map(|threshold| threshold.to_string()).unwrap_or_default();
    format!("{verdict}  {:<10} {:<44} {:>14.3}  {threshold}", figure.phase, figure.metric, figure.value)
}

/// The live view's state.
pub(crate) struct Live {
    terminal: DefaultTerminal,
    phase: String,
    step: String,
    seconds: VecDeque<Second>,
    figures: Vec<Figure>,
}

impl Live {
    fn open() -> Self {
        Self {
            terminal: ratatui::init(),
            phase: "building the lab".to_owned(),
            step: String::new(),
            seconds: VecDeque::new(),
            figures: Vec::new(),
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Step(text) => self.step.clone_from(text),
            Event::Phase(name) => self.phase.clone_from(name),
            Event::Second(second) => {
                if self.seconds.len() >= SHOWN_S {
                    self.seconds.pop_front();
                }
                self.seconds.push_back(second.clone());
            }
            Event::Figure(figure) => self.figures.push(figure.clone()),
        }
        let (phase, step, seconds, figures) = (&self.phase, &self.step, &self.seconds, &self.figures);
        // A terminal that cannot be drawn to is no reason to end the run.
        let _ = self.terminal.draw(|frame| draw(frame, phase, step, seconds, figures));
    }
}

fn draw(frame: &mut Frame<'_>, phase: &str, step: &str, seconds: &VecDeque<Second>, figures: &[Figure]) {
    let rows = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Min(4),
    ])
    .split(frame.area());
    let title =
        Line::from(vec!["sluicegate demo  ".bold(), phase.to_owned().yellow().bold(), format!("  {step}").into()]);
    frame.render_widget(Paragraph::new(title).block(Block::bordered()), rows[0]);
    let last = seconds.back().cloned().unwrap_or_default();
    let curve = |of: fn(&Second) -> Option<f64>, scale: f64| -> Vec<u64> {
        seconds.iter().map(|second| (of(second).unwrap_or(0.0) * scale) as u64).collect()
    };
    let curves = [
        (
            "flood at the gate's outside port",
            curve(|s| s.offered_bps, 1e-3),
            Color::Red,
            last.offered_bps,
            1e-6,
            "Mbit/s",
        ),
        (
            "honest traffic reaching the services",
            curve(|s| s.goodput_bps, 1e-3),
            Color::Green,
            last.goodput_bps,
            1e-6,
            "Mbit/s",
        ),
        ("call packets lost", curve(|s| s.loss, 1e3), Color::Magenta, last.loss, 100.0, "%"),
        ("call delay, 99th percentile", curve(|s| s.delay_p99_ms, 1e3), Color::Cyan, last.delay_p99_ms, 1.0, "ms"),
    ];
    for ((title, data, colour, value, scale, unit), area) in curves.iter().zip(rows.iter().skip(1)) {
        let now = value.map_or_else(|| "-".to_owned(), |value| format!("{:.2} {unit}", value * scale));
        let block = Block::bordered().title(format!(" {title}: {now} "));
        frame.render_widget(Sparkline::default().block(block).data(data).style(Style::default().fg(*colour)), *area);
    }
    let mut text: Vec<Line<'_>> = Vec::new();
    if figures.is_empty() {
        let mut drops: Vec<_> = last.drops.iter().collect();
        drops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        text.extend(drops.into_iter().take(8).map(|(reason, count)| format!("{count:>10}  {reason}").into()));
    } else {
        text.extend(figures.iter().rev().take(rows[5].height.into()).rev().map(|f| Line::from(figure(f))));
    }
    let title = if figures.is_empty() { " packets dropped in this second, by reason " } else { " verdict " };
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), rows[5]);
}
