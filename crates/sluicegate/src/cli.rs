//! The command line, defined once: help, completions and man pages come from here.

#[cfg(feature = "lab")]
mod lab;
mod objects;

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

#[cfg(feature = "lab")]
pub(crate) use self::lab::{Bench, Demo, Experiment, LabAction, LabCheck, LabVerb, Play, RsocaLive, TvaLive};
pub(crate) use self::objects::{
    GateAction, GrantAction, GroupAction, KeyAction, LimitAction, Named, NewUsers, PolicyAction, ServiceAction,
    ServiceFile, UserAction,
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
    Reload(ConfigFile),
    /// Keep the node that `up --confirm` has started.
    Confirm(ConfigFile),
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
    Frontend(ConfigFile),
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
    Connect(Box<Connect>),
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
    /// Explain why a packet, flow, user or call was refused, or would be, and write down what a user's telephones say.
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
    /// List who is refused for sending too much, or for wrong passwords; let one send more, or try again.
    Limit {
        #[command(subcommand)]
        action: LimitAction,
    },
    /// Ask what the policy decides, and why.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Bind a gate to a frontend: print a join token there, use it here.
    GateJoin(GateJoin),
    /// Have the kernel forward nothing in or out of a gate's interfaces, before the gate starts and if it never does.
    GateClose(ConfigFile),
    /// Open the interfaces that a stopped gate left closed, as if there had never been a gate.
    GateOpen(ConfigFile),
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
    /// The lab's verbs; the package for clients comes without them.
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(LabVerb),
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
    FrontendChild(ConfigFile),
    /// Keeps a process that holds users' secrets; its frontend is at the other end of standard input.
    #[command(hide = true)]
    KeyHolder(HolderPlace),
    /// That process.
    #[command(hide = true)]
    KeyHolderChild(HolderPlace),
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentAction {
    /// Carry this host's packets to the file's destinations with capabilities.
    Tun(ConfigFile),
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

/// What a key holder keeps, and for whom.
#[derive(Debug, Args)]
pub(crate) struct HolderPlace {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// The realm.
    pub(crate) realm: String,
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
    /// commas or each with an option of its own.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) frontend: Vec<String>,
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
    /// Where no UDP passes: believe this certificate of a frontend or gate, `sha256:` and its hash, or those that the ones in
    /// this PEM file signed, and sign in by SIP over TLS.
    #[arg(long = "certificate", value_name = "HASH|FILE")]
    pub(crate) certificates: Vec<String>,
    /// The port at which the frontends take SIP over TLS.
    #[arg(long, value_name = "PORT", default_value_t = 5061, requires = "certificates")]
    pub(crate) tls_port: u16,
    /// Where the gate takes packets over TLS when no UDP passes: `tunnel` in its `[gate]`.
    #[arg(long, value_name = "ADDR:PORT", requires = "certificates")]
    pub(crate) tunnel: Option<SocketAddr>,
    /// Forward a local port to a port of the service: `[BIND:]LOCAL:SERVICE[/udp]`.
    #[arg(short = 'L', long = "forward", value_name = "FORWARD")]
    pub(crate) forwards: Vec<String>,
    /// Offer SOCKS5 (CONNECT and UDP ASSOCIATE) at this address; the host name is the service's name.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) socks: Option<SocketAddr>,
    /// Open ports, or a protocol without ports, to programs of this host that send to the gate themselves, such as IPsec:
    /// `esp`, `gre`, `udp/4500`, `ip/89`. Their packets prove nothing but this host's address.
    #[arg(long = "open", value_name = "PORTS")]
    pub(crate) opens: Vec<String>,
    /// Run a command once the gate is open; `{host}` and `{port}` stand for the gate's address and port.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Which recent sign-ins of this user were refused, and by which rule.
    #[arg(long, value_name = "USER", conflicts_with_all = ["flow", "call"], required_unless_present_any = ["flow", "call"])]
    pub(crate) user: Option<String>,
    /// What became of a call: its Call-ID, the id of one of its grants, or the `call` of the call log or of `--user`.
    #[arg(long, value_name = "ID", conflicts_with = "flow")]
    pub(crate) call: Option<String>,
    /// Write this user's SIP messages from now on to a file that Wireshark and sngrep open, or to standard output (`-`).
    #[arg(long, value_name = "FILE", requires = "user", conflicts_with = "json")]
    pub(crate) pcap: Option<PathBuf>,
    /// For how long, unless it is interrupted.
    #[arg(long, value_name = "SECONDS", requires = "pcap", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// What becomes of a packet, such as `tcp 198.51.100.7:40000 > 203.0.113.1:22`; from the outside unless `--inside`.
    #[arg(long, value_name = "FLOW")]
    pub(crate) flow: Option<String>,
    /// The packet arrives at the inside port.
    #[arg(long, requires = "flow")]
    pub(crate) inside: bool,
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
