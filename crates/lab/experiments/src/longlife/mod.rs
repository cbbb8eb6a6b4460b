//! The experiment with connections that last: large transfers, long sessions, clients that move, clocks that are wrong,
//! through each way by which programs reach a service. Every byte is checked, and every pause is noted.

mod judge;
mod play;
mod site;
mod ways;

use std::path::PathBuf;

use crate::report::rows::Report;
use sluicegate_site::LabError;

/// The name of the run.
pub const NAME: &str = "long-life";

/// What happens to the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// A gigabyte each way, with default settings.
    Volume,
    /// Two hours in compressed time: grants end and are renewed as often.
    Session,
    /// The client gets another address again and again.
    Roaming,
    /// The client's clock is two days ahead, or behind.
    Clocks,
    /// How fast each way is. Nothing is judged.
    Throughput,
}

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody moves, and all clocks are right.
    Still,
    /// The agents stop while they carry something.
    Dead,
}

impl Row {
    /// All, in the order in which they are played.
    pub const ALL: [Self; 5] = [Self::Volume, Self::Session, Self::Roaming, Self::Clocks, Self::Throughput];

    /// The name in commands and reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Session => "session",
            Self::Roaming => "roaming",
            Self::Clocks => "clocks",
            Self::Throughput => "throughput",
        }
    }
}

/// How to run it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `sluicegate` binary: daemons, agents and workers are processes of it.
    pub program: PathBuf,
    /// An empty directory, of this user alone, for configuration, state and logs.
    pub directory: PathBuf,
    /// The rows to play.
    pub rows: Vec<Row>,
    /// Less of everything.
    pub short: bool,
    /// What is wrong with the run on purpose.
    pub mutant: Mutant,
    /// The gate's back end as the configuration names it: `auto`, `xdp` or `packet`.
    pub datapath: String,
}

/// Plays the rows one after the other and returns what was measured; `tell` hears each step.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    play::play(options, tell)
}
