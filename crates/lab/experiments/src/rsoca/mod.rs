//! R-SOCA's experiment on a real front end: senders call through two forwarding proxies, while more comes than it is engineered
//! for, somebody floods it with BYEs, or nobody answers (Sisalem, Floroiu: section IV).

mod judge;
mod load;
mod play;
mod plot;
mod sample;
mod scenes;
mod site;

use clap::{Args, ValueEnum};
use strum::IntoStaticStr;

pub use play::run;
pub use plot::Picture;

/// The name of the run.
pub const NAME: &str = "rsoca-live";

/// How the target meets more than it can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    /// As R-SOCA does.
    Paper,
    /// With 503 while it is used up, which the paper compares R-SOCA with.
    #[value(name = "503")]
    #[strum(serialize = "503")]
    Unavailable,
    /// By what it is measured to do, as an operator would have it.
    Default,
}

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// The target refuses nothing.
    Off,
    /// Nobody attacks.
    NoFlood,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct RsocaOptions {
    /// How the target meets more than it can serve: paper, 503 or default.
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// Only the scenarios whose name contains this, such as `byes`.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Shorter scenarios.
    #[arg(long)]
    pub short: bool,
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

impl Mode {
    /// The name in commands and reports.
    fn label(self) -> &'static str {
        self.into()
    }
}
