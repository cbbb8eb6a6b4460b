//! The lab's verbs: `demo`, `attack`, `bench`, `lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluicegate_experiments::{
    bench,
    demo::threats,
    longlife, rsoca, sipattack, sipflood, sipload, transports,
    tva::{self, paths},
};
use sluicegate_sim::claims::Paper;

#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    /// Attack a real service behind a real gate in network namespaces, and judge what survives.
    Demo(Demo),
    /// Send a flood; refuses to run outside a lab namespace.
    Attack {
        /// Flood description as JSON (`sluicegate attack --example` prints one).
        #[arg(required_unless_present = "example")]
        spec: Option<String>,
        /// Print an example description.
        #[arg(long)]
        example: bool,
    },
    /// Measure this build against its peers on this machine.
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
    /// Check the papers' claims, and run the published experiments.
    Lab {
        #[command(subcommand)]
        action: LabAction,
    },
    /// A worker process of the lab.
    #[command(hide = true)]
    LabWorker {
        /// What the worker is.
        role: String,
        /// Its description as JSON.
        spec: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// No terminal view.
    #[arg(long)]
    pub(crate) headless: bool,
    /// Write the result as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the time series as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the whole report as one HTML page.
    #[arg(long, value_name = "FILE", default_value = "sluicegate-demo.html")]
    pub(crate) report: PathBuf,
    /// Seed of everything random in the lab.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Packets through a gate: each back end against kernel forwarding and nftables masquerade.
    Gate {
        /// Packets of six kinds through a router at rising rates instead: TVA's Figure 10.
        #[arg(long)]
        types: bool,
        #[command(flatten)]
        measure: Measure,
    },
    /// Packets through the capability router in memory: the rows of TVA's Table I, and the machine's floors.
    Capability(Measure),
    /// Packets through whole nodes in memory, by role and kind.
    Node(Measure),
    /// Sign-ins at a frontend on loopback: its processor time for each, of phones and agents.
    Signin {
        #[command(flatten)]
        measure: Measure,
        /// Measure the frontend of this `sluicegate` instead, to compare two builds.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// Calls through a frontend and through Kamailio in network namespaces: how many a second, and what each costs.
    Sip(Measure),
    /// The longest turns of a gate's packet thread when all its tables are full: how long a packet may wait for them.
    Turns {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
}

/// What benches of many rows have in common.
#[derive(Debug, Args)]
pub(crate) struct Measure {
    #[command(flatten)]
    pub(crate) options: bench::Options,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabAction {
    /// Check what the papers state against what this build does; exit status 1 on a miss.
    Check(LabCheck),
    /// Run an experiment on real nodes in network namespaces; exit status 1 if a threshold does not hold.
    #[command(subcommand)]
    Run(Experiment),
}

/// Experiments of `lab run`.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// 20 KB transfers through routers, a gate and a bottleneck under attack, against plain forwarding in the same run.
    TvaLive(TvaLive),
    /// Flows whose path changes under them: to other routers and back, again and again, one way only, over clocks that
    /// differ; and a soak.
    TvaPaths(Play<paths::Options>),
    /// Forged addresses, sniffers, greedy users and broken parts, one after the other, under ten times the link.
    Threats(Play<threats::Options>),
    /// Large transfers, long sessions, clients that move and clocks that are wrong, through each way to a service; and how
    /// fast each is.
    LongLife(Play<longlife::Options>),
    /// UDP-Lite, DCCP, GRE, IPsec, WireGuard and a protocol without a name: opened, answered and closed, by address
    /// translation and without.
    Transports(Play<transports::Options>),
    /// Calls with media through a front end and a gate, under floods of SIP of every kind, one after the other.
    SipFlood(Play<sipflood::FloodOptions>),
    /// The same with all floods at once, stolen accounts that call more than can be served, and two front ends of which one is
    /// killed.
    SipAttack(Play<sipattack::AttackOptions>),
    /// Calls completed at 0.2 to 5 times what a server can serve, by this front end and by Kamailio: Figures 2 to 7 of the
    /// NUTSS paper, and whether overload control keeps calls going.
    SipSweep(Play<sipload::SweepOptions>),
    /// Calls through forwarding proxies to a front end that gets more than it is engineered for: R-SOCA's figures and tables.
    RsocaLive(RsocaLive),
}

/// An experiment's own options, and those of all.
#[derive(Debug, Args)]
pub(crate) struct Play<O: Args> {
    #[command(flatten)]
    pub(crate) options: O,
    /// Consecutive runs; every threshold has to hold in each of them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) runs: u64,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TvaLive {
    #[command(flatten)]
    pub(crate) play: Play<tva::Options>,
    /// Where to draw the distribution of transfer times, of the last run.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RsocaLive {
    #[command(flatten)]
    pub(crate) play: Play<rsoca::RsocaOptions>,
    /// Where to draw each scenario, of the last run: a directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LabCheck {
    /// Only the claims of this paper, such as `tva`, `r-soca` or `nutss`.
    #[arg(long)]
    pub(crate) paper: Option<Paper>,
    /// Only these claims, such as `TVA-13,TVA-16`.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Fewer repetitions, for smoke tests.
    #[arg(long)]
    pub(crate) short: bool,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}
