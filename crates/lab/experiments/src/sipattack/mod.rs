//! The experiment with an attack on everything at once: two front ends under floods of each kind, over each transport, of
//! strangers and of a stolen account, while telephones call; and one of the front ends is killed.

mod attack;
mod judge;
mod play;

use clap::{Args, ValueEnum};

pub use play::run;

/// The name of the run.
pub const NAME: &str = "sip-attack";

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody attacks.
    NoFlood,
    /// Overload is not controlled.
    NoOverload,
    /// No user, no network and no source of connections has a share of its own.
    Unbounded,
    /// Telephones know of one front end alone.
    NoReplica,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct AttackOptions {
    /// A minute and a half instead of ten.
    #[arg(long)]
    pub short: bool,
    /// Messages a second of the strangers' flood.
    #[arg(long, default_value_t = 30_000)]
    pub per_s: u64,
    /// The gate's packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}

impl AttackOptions {
    /// How long each part of it lasts, in seconds: both front ends live; one is dead; it lives again; all call at once.
    const fn parts_s(&self) -> [u32; 4] {
        if self.short { [40, 15, 15, 20] } else { [420, 60, 60, 60] }
    }
}
