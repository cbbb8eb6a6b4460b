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

use clap::{Args, ValueEnum};
use strum::IntoStaticStr;

pub use family::Family;
pub use play::run;

use crate::report::rows::Report;

/// The name of the run.
pub const NAME: &str = "tva-live";

/// Who attacks how (TVA V-B to V-E).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
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

/// How capability headers travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Carriage {
    /// As IP protocol 253.
    #[default]
    Native,
    /// In UDP to port 7253.
    Udp,
}

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
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
    fn label(self) -> &'static str {
        self.into()
    }
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// What attacks.
    #[arg(long)]
    pub attack: Attack,
    /// The flood's rate in multiples of the bottleneck's.
    #[arg(long, default_value_t = 10.0)]
    pub ratio: f64,
    /// The nodes' packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// The IP version of every address in the lab.
    #[arg(long, value_enum, default_value_t)]
    pub family: Family,
    /// How capability headers travel, the attackers' too.
    #[arg(long, value_enum, default_value_t)]
    pub carriage: Carriage,
    /// Seed of everything random; one more in each further run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}
