//! The live experiment: TVA's attacks on real routers, against plain forwarding in the same lab and run.
//!
//! Clients send 20 KB files to a service through two routers, a gate and a bottleneck. First the kernels forward, as a
//! network without capabilities does; then edge boxes, routers and the gate of this build take their place. Everything
//! that is judged is measured at the clients and on the wires (TVA V).

mod attackers;
mod family;
mod judge;
mod nodes;
pub mod paths;
mod play;
pub(crate) mod site;

use std::path::PathBuf;

pub use family::Family;

use crate::report::rows::Report;
use sluicegate_site::LabError;

/// The name of the run.
pub const NAME: &str = "tva-live";

/// Who attacks how (TVA V-B to V-E).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// A flood of packets without capabilities to the service.
    Legacy,
    /// A flood of requests with forged path identifiers from two of three neighbours.
    Request,
    /// A flood that another destination behind the same bottleneck authorises.
    Authorized,
    /// Attackers that the service authorises once and never again; all at once, then group after group.
    Imprecise,
    /// The same attackers, who ask again the moment that they are refused or have spent what they got.
    Reasking,
}

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody attacks.
    NoFlood,
    /// Attackers stop by themselves at what they were granted.
    SelfLimiting,
    /// The service renews for everybody, however fast.
    Renews,
}

impl Attack {
    /// The name in commands and reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Request => "request",
            Self::Authorized => "authorized",
            Self::Imprecise => "imprecise",
            Self::Reasking => "reasking",
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
    /// The attack.
    pub attack: Attack,
    /// The flood's rate in multiples of the bottleneck's.
    pub ratio: f64,
    /// Seed of everything random in the lab.
    pub seed: u64,
    /// What is wrong with the run on purpose.
    pub mutant: Mutant,
    /// The nodes' back end as the configuration names it: `auto`, `xdp` or `packet`.
    pub datapath: String,
    /// The IP version of every address.
    pub family: Family,
    /// Whether capability headers travel in UDP, the attackers' too; natively otherwise.
    pub encapsulated: bool,
}

/// Runs one attack and returns what was measured; `tell` hears each step.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    if !(0.1..=50.0).contains(&options.ratio) {
        return Err(LabError::Plan(format!("a flood of {} times the bottleneck: use 0.1 to 50", options.ratio)));
    }
    play::play(options, tell)
}
