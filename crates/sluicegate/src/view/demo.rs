//! The demo as a person watches it.

use std::{
    fs::{self, File},
    io::{self, IsTerminal},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use nix::unistd::{dup, dup2_stderr};
use ratatui::{
    DefaultTerminal, Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Paragraph, Sparkline, Wrap},
};
use sluicegate_experiments::{
    demo::Event,
    report::{Figure, InPhase, Second},
};

use crate::out;

/// Seconds of a run that are kept, more than any has.
const SECONDS_MAX: usize = 600;
/// Lines of the log that are shown if the run fails.
const LOG_LINES: usize = 20;

/// Shows what the demo tells: a live view on a terminal, or lines.
pub(crate) enum View {
    Terminal(Box<Live>),
    Lines(Instant),
}

impl View {
    /// A live view unless `headless` or not at a terminal. What anybody logs meanwhile goes to a file in `directory`.
    pub(crate) fn open(headless: bool, directory: &Path) -> Result<Self> {
        if headless || !io::stdout().is_terminal() {
            return Ok(Self::Lines(Instant::now()));
        }
        Ok(Self::Terminal(Box::new(Live::open(directory.join("demo.log"))?)))
    }

    pub(crate) fn tell(&mut self, event: &Event) {
        match self {
            Self::Terminal(live) => live.tell(event),
            Self::Lines(started) => lines(*started, event),
        }
    }

    /// Gives the terminal back, with the end of the log if the run `failed`.
    pub(crate) fn close(self, failed: bool) {
        let Self::Terminal(live) = self else { return };
        ratatui::restore();
        let _ = dup2_stderr(&live.stderr);
        let log = fs::read_to_string(&live.log).unwrap_or_default();
        if failed {
            log.lines().skip(log.lines().count().saturating_sub(LOG_LINES)).for_each(|line| eprintln!("{line}"));
        }
    }
}

fn lines(started: Instant, event: &Event) {
    let elapsed = started.elapsed().as_secs_f32();
    match event {
        Event::Step(text) => out::line(format_args!("{elapsed:6.1} s  {text}")),
        Event::Phase(name, about) => out::line(format_args!("{elapsed:6.1} s  -- {name}: {about}")),
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
pub(crate) fn figure(figure: &Figure<InPhase>) -> String {
    let verdict = figure.verdict.map(|verdict| verdict.to_string()).unwrap_or_default();
    let threshold = figure.threshold.map(|threshold| threshold.to_string()).unwrap_or_default();
    format!("{verdict:<9}  {:<10} {:<44} {:>14.3}  {threshold}", figure.about.phase, figure.metric, figure.value)
}

/// The live view's state.
pub(crate) struct Live {
    terminal: DefaultTerminal,
    /// Standard error as it was: the terminal belongs to the view.
    stderr: OwnedFd,
    log: PathBuf,
    shown: Shown,
}

/// What is on the screen.
#[derive(Default)]
struct Shown {
    phase: Option<(&'static str, &'static str)>,
    step: String,
    seconds: Vec<Second>,
    /// The second in which each phase began.
    marks: Vec<(usize, &'static str)>,
}

impl Live {
    fn open(log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let stderr = dup(io::stderr()).context("cannot keep standard error")?;
        dup2_stderr(&file).context("cannot write the log to a file")?;
        Ok(Self { terminal: ratatui::init(), stderr, log, shown: Shown::default() })
    }

    fn tell(&mut self, event: &Event) {
        self.shown.take(event);
        let shown = &self.shown;
        // A terminal that cannot be drawn to is no reason to end the run.
        let _ = self.terminal.draw(|frame| draw(frame, shown));
    }
}

impl Shown {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Step(text) => self.step.clone_from(text),
            Event::Phase(name, about) => {
                self.phase = Some((name, about));
                self.step.clear();
                // A second is told when two more are over.
                self.marks.push((self.seconds.last().map_or(0, |last| last.at_s as usize + 3), name));
            }
            Event::Second(second) if self.seconds.len() < SECONDS_MAX => self.seconds.push(second.clone()),
            Event::Second(_) => {}
            Event::Figure(_) => {
                self.phase = Some(("verdict", "Everything that was measured is compared with what it has to be."));
            }
        }
    }

    /// The names of the phases below the columns of their first seconds; the first column is second `from`.
    fn ruler(&self, from: usize, width: usize) -> String {
        let mut ruler = String::new();
        for (at, name) in &self.marks {
            let column = at.saturating_sub(from);
            // What began before the first column goes on there.
            if *at < from {
                ruler.clear();
            }
            let gap = column.saturating_sub(ruler.chars().count());
            ruler.extend(std::iter::repeat_n('─', gap));
            ruler = ruler.chars().take(column).chain(['╵']).chain(name.chars()).collect();
        }
        ruler.chars().take(width).collect()
    }
}

/// One curve: what it is, where it comes from, how it is drawn and named.
struct Curve {
    title: &'static str,
    of: fn(&Second) -> Option<f64>,
    colour: Color,
    /// From the value to what is printed.
    scale: f64,
    unit: &'static str,
}

const CURVES: [Curve; 4] = [
    Curve {
        title: "arriving at the gate, mostly flood",
        of: |second| second.offered_bps,
        colour: Color::Red,
        scale: 1e-6,
        unit: "Mbit/s",
    },
    Curve {
        title: "honest traffic that reaches the services",
        of: |second| second.goodput_bps,
        colour: Color::Green,
        scale: 1e-6,
        unit: "Mbit/s",
    },
    Curve { title: "call packets lost", of: |second| second.loss, colour: Color::Magenta, scale: 100.0, unit: "%" },
    Curve {
        title: "call delay, 99th percentile",
        of: |second| second.delay_p99_ms,
        colour: Color::Cyan,
        scale: 1.0,
        unit: "ms",
    },
];

fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let all = frame.area();
    let drops = Constraint::Length((all.height / 5).clamp(4, 10));
    let curves = [Constraint::Fill(1); CURVES.len()];
    let rows = Layout::vertical([Constraint::Length(4)].into_iter().chain(curves).chain([drops])).split(all);
    head(frame, shown, rows[0]);
    for (curve, area) in CURVES.iter().zip(rows.iter().skip(1)) {
        curve.draw(frame, shown, *area);
    }
    let mut reasons: Vec<_> = shown.seconds.last().map(|last| last.drops.iter().collect()).unwrap_or_default();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let lines: Vec<Line<'_>> =
        reasons.into_iter().map(|(reason, count)| format!("{count:>10}  {reason}").into()).collect();
    let block = Block::bordered().title(" packets that the gate dropped in a second, by reason ");
    frame.render_widget(Paragraph::new(lines).block(block), rows[rows.len() - 1]);
}

fn head(frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
    let (name, about) = shown.phase.unwrap_or(("building", &shown.step));
    let text = Line::from(vec![Span::from(format!("{name}: ")).yellow().bold(), about.into()]);
    let step = if shown.phase.is_some() { shown.step.as_str() } else { "" };
    let seconds = shown.seconds.last().map_or(0, |last| last.at_s);
    let block = Block::bordered()
        .title(Line::from(" sluicegate demo ").bold())
        .title(Line::from(format!(" {seconds} s ")).right_aligned())
        .title_bottom(step);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }).block(block), area);
}

impl Curve {
    fn draw(&self, frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
        let width = usize::from(area.width.saturating_sub(2));
        let from = shown.seconds.len().saturating_sub(width);
        let values = shown.seconds.iter().skip(from).map(|second| (self.of)(second));
        // Whole numbers are what a sparkline draws.
        let data: Vec<u64> = values.map(|value| (value.unwrap_or(0.0) * 1e3) as u64).collect();
        let now = shown.seconds.last().and_then(self.of);
        let now = now.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value * self.scale));
        let block = Block::bordered()
            .title(format!(" {}: {now} {} ", self.title, self.unit))
            .title_bottom(Line::from(shown.ruler(from, width)).dim());
        frame
            .render_widget(Sparkline::default().block(block).data(&data).style(Style::default().fg(self.colour)), area);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    fn shown(seconds: u32) -> Shown {
        let mut shown = Shown::default();
        shown.take(&Event::Phase("calm", "Nobody attacks."));
        for at_s in 0..seconds {
            if at_s == 17 {
                shown.take(&Event::Phase("gate off", "The flood begins."));
            }
            shown.take(&Event::Second(Second { at_s, offered_bps: Some(1e8), ..Second::default() }));
        }
        shown
    }

    #[test]
    fn a_phase_stands_below_its_first_second_also_when_the_first_ones_have_left() {
        assert_eq!(shown(20).ruler(0, 40), "╵calm──────────────╵gate off");
        assert_eq!(shown(20).ruler(10, 40), "╵calm────╵gate off");
        assert_eq!(shown(20).ruler(30, 6), "╵gate ");
    }

    #[test]
    fn both_usual_sizes_show_what_happens_every_curve_and_the_drops() {
        for (width, height) in [(80, 24), (100, 30), (20, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &shown(150))).unwrap();
            let screen = terminal.backend().to_string();
            let wanted =
                ["gate off: The flood begins.", "arriving at the gate", "call delay", "by reason", "149 s", "100.00"];
            for text in wanted.into_iter().filter(|_| width >= 80) {
                assert!(screen.contains(text), "{text} at {width} x {height}:\n{screen}");
            }
        }
    }
}
