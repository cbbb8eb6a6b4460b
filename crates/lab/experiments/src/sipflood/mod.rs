//! The experiment with SIP floods: telephones call a SIP server through a real front end and gate, with media, while attackers
//! send the front end all that they can think of, one kind after the other.

mod attack;
mod cases;
mod judge;
pub(crate) mod play;
mod recorded;
pub(crate) mod site;

use self::cases::Case;
use clap::{Args, ValueEnum};

pub use play::run;
use sluicegate_traffic::stream::Over;

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
    /// No source of connections has a share of its own.
    Unshared,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct FloodOptions {
    /// Only the floods whose name contains this, such as `bye`.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Only over this: udp, tcp or tls.
    #[arg(long, value_name = "TRANSPORT")]
    pub over: Option<Over>,
    /// Some of the floods, for a few seconds each.
    #[arg(long)]
    pub short: bool,
    /// Play all of them so often, one after the other: what grows from one time to the next is a leak.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
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
    /// How long a flood lasts, in seconds. One call of a thousand takes longer to find than one of a hundred.
    const fn flood_s(&self, case: &Case) -> u32 {
        if case.is_strict() && !self.short { 12 } else { 4 }
    }
}
