//! The experiment with paths: what changes under a flow on its way, and what that costs it.
//!
//! Two hosts talk in both directions, at a constant rate, through edge boxes, two chains of routers that share nothing
//! and a gate (TVA III-H, III-D). In every row nothing may be lost, nothing may be late, and capabilities hold again
//! afterwards.

mod judge;
mod play;
mod site;
mod soak;
mod talk;

use std::path::PathBuf;

use super::Report;
use sluicegate_site::LabError;

/// The name of the run.
pub const NAME: &str = "tva-paths";

/// What happens to the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// Both directions move to a chain that shares no router with the old one, and back.
    Switch,
    /// Both directions change between the chains several times a second.
    Flap,
    /// Answers take the other chain.
    Asymmetric,
    /// Three routers in a row whose clocks are 90 s apart, over two lives of each one's secret.
    Clocks,
    /// The same for long, with transfers: memory and demotions.
    Soak,
}

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// No path ever changes, and all clocks agree.
    Still,
    /// Whenever the path changes, some packets are lost.
    Hole,
}

impl Row {
    /// All, in the order in which they are played.
    pub const ALL: [Self; 5] = [Self::Switch, Self::Flap, Self::Asymmetric, Self::Clocks, Self::Soak];

    /// The name in commands and reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Flap => "flap",
            Self::Asymmetric => "asymmetric",
            Self::Clocks => "clocks",
            Self::Soak => "soak",
        }
    }
}

/// How to run it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `sluicegate` binary: daemons and workers are processes of it.
    pub program: PathBuf,
    /// An empty directory, of this user alone, for configuration, state and logs.
    pub directory: PathBuf,
    /// The rows to play.
    pub rows: Vec<Row>,
    /// How long [`Row::Soak`] lasts, in seconds.
    pub soak_s: u32,
    /// What is wrong with the run on purpose.
    pub mutant: Mutant,
    /// The nodes' back end as the configuration names it: `auto`, `xdp` or `packet`.
    pub datapath: String,
}

/// Plays the rows one after the other and returns what was measured; `tell` hears each step.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    if options.rows.contains(&Row::Soak) && options.soak_s < soak::LEAST_S {
        return Err(LabError::Plan(format!(
            "a soak of {} s shows nothing: use {} s or more",
            options.soak_s,
            soak::LEAST_S
        )));
    }
    play::play(options, tell)
}
