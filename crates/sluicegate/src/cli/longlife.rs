//! Arguments of `lab run long-life`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct LongLife {
    /// Only this row.
    #[arg(long, value_name = "ROW")]
    pub(crate) only: Option<LongLifeRow>,
    /// Fewer bytes, fewer moves, a shorter session.
    #[arg(long)]
    pub(crate) short: bool,
    /// The gate's packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub(crate) datapath: String,
    /// Consecutive runs; every threshold has to hold in each of them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) runs: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) mutant: LongLifeMutant,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rows of `lab run long-life`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LongLifeRow {
    /// A gigabyte each way, with default settings.
    Volume,
    /// Two hours, thirty times as fast.
    Session,
    /// Clients that get other addresses.
    Roaming,
    /// Clients whose clocks are two days off.
    Clocks,
    /// How fast each way is.
    Throughput,
}

/// What is wrong with a run on purpose, to see that its judge says so.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum LongLifeMutant {
    /// Nothing.
    #[default]
    None,
    /// Nobody moves, and all clocks are right.
    Still,
    /// Agents end while they carry something.
    Dead,
}
