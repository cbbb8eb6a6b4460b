//! The experiment with SIP floods: telephones call a SIP server through a real front end and gate, with media, while attackers
//! send the front end all that they can think of, one kind after the other.

mod cases;
mod judge;
mod memory;
mod play;
mod recorded;
mod site;

use clap::{Args, ValueEnum};

pub use play::run;

/// The name of the run.
pub const NAME: &str = "sip-flood";

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody attacks.
    NoFlood,
    /// No user and no network has a share of its own: one may take everything.
    Unbounded,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct FloodOptions {
    /// Only the floods whose name contains this, such as `bye`.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Some of the floods, for a few seconds each.
    #[arg(long)]
    pub short: bool,
    /// Messages a second of each flood; less where one processor cannot make so many.
    #[arg(long, default_value_t = 100_000)]
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

impl FloodOptions {
    /// How long each flood lasts, in seconds.
    const fn flood_s(&self) -> u32 {
        if self.short { 4 } else { 11 }
    }
}
