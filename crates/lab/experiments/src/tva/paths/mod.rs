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

use clap::{Args, ValueEnum};
use strum::IntoStaticStr;

pub use play::run;

/// The name of the run.
pub const NAME: &str = "tva-paths";

/// What happens to the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
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
    /// The name in commands and reports.
    fn label(self) -> &'static str {
        self.into()
    }
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only this row; without it, all but `soak`.
    #[arg(long, value_name = "ROW")]
    pub only: Option<Row>,
    /// Also the row `soak`, for so many seconds, at least 270: memory of each node, and demotions.
    #[arg(long = "soak", value_name = "SECONDS", default_value_t = 0)]
    pub soak_s: u32,
    /// The nodes' packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}

impl Options {
    /// The rows to play.
    fn rows(&self) -> impl Iterator<Item = Row> {
        Row::value_variants()
            .iter()
            .copied()
            .filter(|row| self.only.map_or(*row != Row::Soak || self.soak_s > 0, |only| only == *row))
    }
}
