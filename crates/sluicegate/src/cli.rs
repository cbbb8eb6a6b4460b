//! The command line, defined once: help, completions and man pages come from here.

mod lab;
mod objects;

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluicegate_sim::claims::Paper;

pub(crate) use self::{
    lab::{LongLife, LongLifeMutant, LongLifeRow, PathsMutant, PathsRow, Threats, TvaPaths},
    objects::{GateAction, GrantAction, GroupAction, KeyAction, NewUsers, PolicyAction, ServiceAction, UserAction},
};

/// Keeps a private service reachable while its link is being flooded.
///
/// A gate at the upstream end of a link drops every packet without permission; clients sign in over SIP and get a
/// grant that opens the gate for them alone.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, arg_required_else_help = true, max_term_width = 110)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,

    /// Log level: error, warn, info, debug or trace.
    #[arg(long, global = true, default_value = "info", value_name = "LEVEL")]
    pub(crate) log: String,

    /// Write log lines as JSON.
    #[arg(long, global = true)]
    pub(crate) log_json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run frontend and gate from one configuration file.
    Up {
        #[command(flatten)]
        config: ConfigFile,
        /// End after so many seconds, with the interfaces open as before, unless `sluicegate confirm` was called: a mistake
        /// in `local` then cuts nobody off for long.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..=3_600))]
        confirm: Option<u64>,
    },
    /// Put in place what was changed in a running node's configuration file.
    Reload {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Keep the node that `up --confirm` has started.
    Confirm {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Run a gate; or, at a frontend, list and remove the gates that have joined.
    #[command(args_conflicts_with_subcommands = true)]
    Gate {
        #[command(flatten)]
        config: ConfigFile,
        /// What else to do.
        #[command(subcommand)]
        action: Option<GateAction>,
    },
    /// Run a frontend.
    Frontend {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Run the agent: serve a service, or carry packets of this host or of one command with capabilities.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Agent {
        #[command(flatten)]
        config: ConfigFile,
        /// Register the service named in the file's `[agent]` section, answer its invitations, end abusive clients.
        #[arg(long, required = true)]
        serve: bool,
        /// What else to do.
        #[command(subcommand)]
        action: Option<AgentAction>,
    },
    /// Sign in to a service and use it: port forwards, SOCKS5, or a command.
    Connect(Connect),
    /// Print what a user hands to `connect`: frontend, realm, site key and service in one line.
    Link {
        /// The service.
        service: String,
        /// Who is to use it.
        #[arg(long)]
        user: String,
        /// By which name or address users reach the frontend, if not by the first that it listens on.
        #[arg(long, value_name = "HOST[:PORT]")]
        frontend: Option<String>,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Validate a configuration file; changes nothing.
    Check {
        #[command(flatten)]
        config: ConfigFile,
        /// Print findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what a running node does.
    Status(Reading),
    /// Explain why a packet, flow or user was refused, or would be.
    Trace(Trace),
    /// Count what would be dropped instead of dropping it.
    Observe {
        /// Switch observe mode on or off.
        state: Switch,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Add, list, change, disable and remove users.
    User {
        #[command(subcommand)]
        action: UserAction,
    },
    /// Hold the keys of agents on a host of its own, for frontends on other hosts.
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Add, list and remove groups.
    Group {
        #[command(subcommand)]
        action: GroupAction,
    },
    /// Add, list, change and remove services.
    Service {
        #[command(subcommand)]
        action: ServiceAction,
    },
    /// List and revoke grants.
    Grant {
        #[command(subcommand)]
        action: GrantAction,
    },
    /// Ask what the policy decides, and why.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Bind a gate to a frontend: print a join token there, use it here.
    GateJoin(GateJoin),
    /// Have the kernel forward nothing in or out of a gate's interfaces, before the gate starts and if it never does.
    GateClose {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Open the interfaces that a stopped gate left closed, as if there had never been a gate.
    GateOpen {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Write keys, users, groups, services and the configuration of a node, which may run, to one file.
    Export {
        /// The file, which must not exist, or `-` for standard output.
        file: PathBuf,
        #[command(flatten)]
        node: NodeAddress,
    },
    /// Put what `export` wrote in the place of a node that does not run.
    Import {
        /// The file, or `-` for standard input.
        file: PathBuf,
        /// Where there is a node already, move its keys and users away.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        node: NodeAddress,
    },
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
    /// Write shell completions to standard output.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man page to standard output, or those of all verbs to a directory.
    Man {
        /// Where the pages of all verbs go.
        #[arg(value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
    /// The process that becomes the command of `agent run`.
    #[command(hide = true)]
    AgentChild {
        /// Process id of the agent.
        agent: i32,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Puts kernel settings back when the agent has ended.
    #[command(hide = true)]
    AgentRestore {
        /// What to put back.
        changes: Vec<String>,
    },
    /// The frontend of `up`, in a process of its own.
    #[command(hide = true)]
    FrontendChild {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Keeps a process that holds users' secrets; its frontend is at the other end of standard input.
    #[command(hide = true)]
    KeyHolder {
        /// Its directory.
        directory: PathBuf,
        /// The realm.
        realm: String,
    },
    /// That process.
    #[command(hide = true)]
    KeyHolderChild {
        /// Its directory.
        directory: PathBuf,
        /// The realm.
        realm: String,
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

#[derive(Debug, Subcommand)]
pub(crate) enum AgentAction {
    /// Carry this host's packets to the file's destinations with capabilities.
    Tun {
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Run a command, and carry its packets to the file's destinations with capabilities.
    Run {
        /// The file that lists the destinations.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The command; its exit status is returned.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ConfigFile {
    /// The configuration file.
    #[arg(value_name = "FILE", default_value = "/etc/sluicegate/sluicegate.toml")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct NodeAddress {
    /// The node's configuration file: says where its state and control socket are.
    #[arg(long, value_name = "FILE", default_value = "/etc/sluicegate/sluicegate.toml")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) node: NodeAddress,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct Password {
    /// Read the password from the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "password_fd")]
    pub(crate) password_file: Option<PathBuf>,
    /// Read the password from the first line of this open file descriptor.
    #[arg(long, value_name = "FD")]
    pub(crate) password_fd: Option<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct Connect {
    /// Who signs in to what: `alice@web`, a service of a site that the profile knows, or what `sluicegate link` printed.
    #[arg(value_name = "[USER@]SERVICE|LINK")]
    pub(crate) target: String,
    /// The frontend: its name or address, and its SIP port unless that is 5060 or its SRV record says so; or several, with
    /// commas.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) frontend: Option<String>,
    /// The realm users belong to.
    #[arg(long)]
    pub(crate) realm: Option<String>,
    /// Where sites are that `--save` has noted; `~/.config/sluicegate/config.toml` unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Note the site in the profile, so that the service's name is enough from now on.
    #[arg(long)]
    pub(crate) save: bool,
    /// Write a systemd user unit that connects at each start, and do not connect now. Needs a password file or a key file.
    #[arg(long, conflicts_with_all = ["password_fd", "command"])]
    pub(crate) install: bool,
    #[command(flatten)]
    pub(crate) password: Password,
    /// Sign in with the key in this file, as `user add --key` wrote it, and not with a password.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["password_file", "password_fd"])]
    pub(crate) key_file: Option<PathBuf>,
    /// The site's key, as `status` shows it there.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) site_key: Option<String>,
    /// Where the keys of sites are that were met before; `~/.config/sluicegate/known_sites` unless given.
    #[arg(long, value_name = "FILE", conflicts_with = "site_key")]
    pub(crate) known_sites: Option<PathBuf>,
    /// Forward a local port to a port of the service: `[BIND:]LOCAL:SERVICE[/udp]`.
    #[arg(short = 'L', long = "forward", value_name = "FORWARD")]
    pub(crate) forwards: Vec<String>,
    /// Offer SOCKS5 (CONNECT and UDP ASSOCIATE) at this address; the host name is the service's name.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) socks: Option<SocketAddr>,
    /// Run a command once the gate is open; `{host}` and `{port}` stand for the gate's address and port.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) node: NodeAddress,
    /// Which recent sign-ins of this user were refused, and by which rule.
    #[arg(long, value_name = "USER", conflicts_with = "flow", required_unless_present = "flow")]
    pub(crate) user: Option<String>,
    /// What becomes of a packet, such as `tcp 198.51.100.7:40000 > 203.0.113.1:22`; from the outside unless `--inside`.
    #[arg(long, value_name = "FLOW")]
    pub(crate) flow: Option<String>,
    /// The packet arrives at the inside port.
    #[arg(long, requires = "flow")]
    pub(crate) inside: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GateJoin {
    /// Print a new one-time token; run this on the frontend's host.
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) new: bool,
    /// Read the token from this file (`-` for standard input); run this on the gate's host.
    #[arg(long, value_name = "FILE", required_unless_present = "new")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) node: NodeAddress,
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
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
        /// Only this row, such as `established_64b`.
        #[arg(long, value_name = "ROW")]
        only: Option<String>,
        /// A shorter run, for smoke tests.
        #[arg(long)]
        short: bool,
    },
    /// Packets through the capability router in memory: the rows of TVA's Table I, and the machine's floors.
    Capability {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
        /// Only this row, such as `regular_cached` or `request.hot`.
        #[arg(long, value_name = "ROW")]
        only: Option<String>,
        /// A tenth of the packets.
        #[arg(long)]
        short: bool,
    },
    /// Sign-ins at a frontend on loopback: its processor time for each, of phones and agents.
    Signin {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
        /// Only this row, such as `agent_cpu`.
        #[arg(long, value_name = "ROW")]
        only: Option<String>,
        /// A twenty-fifth of the sign-ins.
        #[arg(long)]
        short: bool,
        /// Measure the frontend of this `sluicegate` instead, to compare two builds.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// The longest turns of a gate's packet thread when all its tables are full: how long a packet may wait for them.
    Turns {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
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
    TvaPaths(TvaPaths),
    /// Forged addresses, sniffers, greedy users and broken parts, one after the other, under ten times the link.
    Threats(Threats),
    /// Large transfers, long sessions, clients that move and clocks that are wrong, through each way to a service; and how
    /// fast each is.
    LongLife(LongLife),
}

#[derive(Debug, Args)]
pub(crate) struct TvaLive {
    /// What attacks.
    #[arg(long)]
    pub(crate) attack: LabAttack,
    /// The flood's rate in multiples of the bottleneck's.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) ratio: f64,
    /// The nodes' packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub(crate) datapath: String,
    /// The IP version of every address in the lab.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) family: LabFamily,
    /// How capability headers travel, the attackers' too.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) carriage: LabCarriage,
    /// Seed of everything random; one more in each further run.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Consecutive runs; every threshold has to hold in each of them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) runs: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) mutant: LabMutant,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to draw the distribution of transfer times, of the last run.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Attacks of `lab run tva-live`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LabAttack {
    /// A flood of packets without capabilities.
    Legacy,
    /// A flood of requests with forged path identifiers from two of three neighbours.
    Request,
    /// A flood that a colluder behind the same bottleneck authorises.
    Authorized,
    /// Attackers whom the service authorises once.
    Imprecise,
    /// The same attackers, who ask again the moment that they are refused or have spent what they got.
    Reasking,
}

/// IP versions of `lab run tva-live`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum LabFamily {
    /// IPv4.
    #[default]
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

/// How capability headers travel in `lab run tva-live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LabCarriage {
    /// As IP protocol 253.
    #[default]
    Native,
    /// In UDP to port 7253.
    Udp,
}

/// What is wrong with a run on purpose, to see that its judge says so.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum LabMutant {
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

#[derive(Debug, Args)]
pub(crate) struct LabCheck {
    /// Only the claims of this paper, such as `tva`.
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
