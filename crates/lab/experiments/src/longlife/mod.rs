//! The experiment with connections that last: large transfers, long sessions, clients that move, clocks that are wrong,
//! through each way by which programs reach a service. Every byte is checked, and every pause is noted.

mod judge;
mod play;
mod site;
mod ways;

use clap::{Args, ValueEnum};
use strum::IntoStaticStr;

pub use play::run;

/// The name of the run.
pub const NAME: &str = "long-life";

/// What happens to the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
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
    /// The name in commands and reports.
    fn label(self) -> &'static str {
        self.into()
    }
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only this row.
    #[arg(long, value_name = "ROW")]
    pub only: Option<Row>,
    /// Fewer bytes, fewer moves, a shorter session.
    #[arg(long)]
    pub short: bool,
    /// The gate's packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}

impl Options {
    /// The rows to play.
    fn rows(&self) -> impl Iterator<Item = Row> {
        Row::value_variants().iter().copied().filter(|row| self.only.is_none_or(|only| only == *row))
    }
}
