//! The demo: real services behind a real gate, attacked in a lab, and judged.
//!
//! Phases: **calm**; **gate off** (a plain router in the gate's place) under a flood; **gate on** under the same flood;
//! **front end** flooded instead; **insider** floods inside its grant; verdict. Two services at once, one translated by
//! the gate (`nat`) and one only filtered (`filter`).
//!
//! Everything that is judged is measured outside the processes under test: calls by kernel timestamps at both ends,
//! strangers' bytes by a raw socket on the service's own interface, the flood by the counters of the wire to the gate.

mod attacks;
mod cast;
mod daemons;
mod files;
mod ledger;
mod phases;
mod story;
pub mod threats;
mod verdict;

use std::{fs, num::NonZero};

use crate::report::{Figure, InPhase, Report, Second};
use sluicegate_site::{
    LabError,
    binary::Binary,
    topology::{Site, SiteOptions},
};

/// How to run the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Daemons and workers are processes of it. Its directory, for configuration, keys and control sockets, is empty and of
    /// this user alone.
    pub binary: Binary,
    /// Seed of everything random in the lab.
    pub seed: u64,
    /// The gate's back end as its configuration names it: `auto`, `xdp` or `packet`.
    pub datapath: String,
    /// The protected link.
    pub site: SiteOptions,
    /// Whether the gate schedules the protected link by lane.
    pub scheduled: bool,
    /// Seconds measured in each of the four phases with calls; fewer than 15 are too few packets for the verdict.
    pub phase_s: u32,
}

impl Options {
    /// The demo that the README shows: a 14 Mbit/s link, phases of 15 s.
    #[must_use]
    pub fn new(binary: Binary) -> Self {
        let site = SiteOptions { link_rate_bps: 14_000_000, ..SiteOptions::default() };
        Self { binary, seed: 1, datapath: "auto".to_owned(), site, scheduled: false, phase_s: 15 }
    }
}

/// What happens, as it happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A step of building the lab, for people.
    Step(String),
    /// A phase begins: its name and, in a sentence, what happens in it.
    Phase(&'static str, &'static str),
    /// A second is over. Loss and delay are those of a second two before, because packets were still under way.
    Second(Second),
    /// A figure was measured.
    Figure(Figure<InPhase>),
}

/// Runs the demo and returns what was measured. What came out is [`Report::verdict`].
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(options: &Options, tell: &mut dyn FnMut(Event)) -> Result<Report, LabError> {
    let load = load_average();
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if load > processors as f64 / 2.0 {
        tell(Event::Step(format!(
            "this machine is busy (load {load} on {processors} processors): delays will be those of other programs too"
        )));
    }
    let (measured, mut report) = on_stage(options, tell, |stage| stage.play())?;
    report.of("verdict").note("load_average_before_start", load);
    verdict::judge(&mut report, &measured);
    report.about = story::about(options);
    report.story = story::tell(&report, &measured);
    report.figures.iter().cloned().for_each(|figure| tell(Event::Figure(figure)));
    Ok(report)
}

/// Builds the lab, starts everything in it, and lets `play` use it.
fn on_stage<T>(
    options: &Options,
    tell: &mut dyn FnMut(Event),
    play: impl FnOnce(&mut phases::Stage<'_>) -> Result<T, LabError>,
) -> Result<(T, Report), LabError> {
    tell(Event::Step("building the lab: 15 network namespaces and the wires between them".to_owned()));
    let site = Site::build(options.site)?;
    tell(Event::Step("starting front end and gate, adding users".to_owned()));
    let mut daemons = daemons::start(options, site)?;
    tell(Event::Step(format!("the gate's back end is {}", daemons.backend)));
    tell(Event::Step("starting services, calling them through the gate".to_owned()));
    let cast = cast::Cast::start(&daemons)?;
    let mut stage = phases::Stage::new(&mut daemons, cast, tell);
    let played = play(&mut stage)?;
    Ok((played, stage.into_report()))
}

/// Runnable programs over the last minute; 0 where the system does not say.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}
