//! Arguments of `lab run tva-paths`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct TvaPaths {
    /// Only this row; without it, all but `soak`.
    #[arg(long, value_name = "ROW")]
    pub(crate) only: Option<PathsRow>,
    /// Also the row `soak`, for so many seconds, at least 270: memory of each node, and demotions.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) soak: u32,
    /// The nodes' packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub(crate) datapath: String,
    /// Consecutive runs; every threshold has to hold in each of them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) runs: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) mutant: PathsMutant,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rows of `lab run tva-paths`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathsRow {
    /// To a chain of other routers, and back.
    Switch,
    /// Between two chains, five times a second.
    Flap,
    /// Answers by another chain than requests.
    Asymmetric,
    /// Three routers whose clocks are 90 s apart, over two lives of their secrets.
    Clocks,
    /// The same with transfers, for as long as `--soak` says.
    Soak,
}

/// What is wrong with a run on purpose, to see that its judge says so.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum PathsMutant {
    /// Nothing.
    #[default]
    None,
    /// No path changes, and all clocks agree.
    Still,
    /// Packets are lost whenever the path changes.
    Hole,
}
