//! The servers under load: this build's front end, and Kamailio.

use std::{fs, io, net::SocketAddr, path::Path, thread, time::Duration};

use clap::ValueEnum;
use sluicegate_site::{
    During as _, Lab, LabError, Node, NodeFile, Process,
    binary::{Binary, text},
    node::SIP_PORT,
    scratch::write_private,
    worker::{self, ExecSpec},
};
use sluicegate_traffic::stream::Over;

use super::rig::{CALLEES, GATE, REALM, SERVER, SERVICE};
use crate::{
    certificate::Certificate,
    family::{self, Slowed},
};

/// Users who call.
pub(crate) const USERS: usize = 1_000;
const FEED: &str = "203.0.113.1:7443";
const TLS_PORT: u16 = 5_061;
/// Memory of Kamailio: shared, and of each process, in MB.
const SHARED_MB: u32 = 4_096;
const OWN_MB: u32 = 64;
/// How long Kamailio may take to listen.
const LISTENS_AFTER: Duration = Duration::from_millis(1_500);
/// Before others on the machine, as far as they leave it to us.
pub(super) const PRIORITY: i32 = -15;
/// The entries of our tables, and of a user: a server that is measured holds what a minute of calls leaves.
const TABLE: u32 = 1 << 20;
/// With what the files begin in which a gate saves grants.
const SAVED: [&str; 2] = ["gate.state", "gate.journal."];

/// What serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scheme {
    /// This build's front end.
    Sluicegate,
    /// Kamailio with its faster allocator.
    KamailioTlsf,
    /// Kamailio as it is shipped.
    Kamailio,
}

impl Scheme {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sluicegate => "sluicegate",
            Self::KamailioTlsf => "kamailio_tlsf",
            Self::Kamailio => "kamailio",
        }
    }

    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Sluicegate)
    }
}

/// What a server does with an INVITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// It passes it on. Without a connection that proved itself before, ours asks for the password of each call.
    Relays,
    /// It asks for the password of each call.
    AsksFirst,
    /// It answers 500, or 407, or nothing, without remembering anything.
    Refuses,
    Challenges,
    Drops,
}

/// How datagrams come to a front end of ours and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FrontendDatapath {
    /// Through sockets.
    #[default]
    Socket,
    /// As frames.
    Xdp,
}

/// Where a front end of ours refuses what is too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RefusesAt {
    /// In the process.
    Process,
    /// As it comes by an interface, in the kernel.
    #[default]
    Interface,
}

/// Overload control that refuses nearly all.
pub(crate) const REFUSE: &str = "refuse";

/// A server that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) scheme: Scheme,
    pub(crate) does: Does,
    pub(crate) over: Over,
    /// `mode` of ours: `off`, `adaptive`, or [`REFUSE`].
    pub(crate) overload: &'static str,
    /// `datapath` of ours.
    pub(crate) datapath: FrontendDatapath,
    /// Where ours refuses what is too much, if its `mode` is `adaptive`.
    pub(crate) refuses: RefusesAt,
    /// Whether a gate opens the media of each call of ours.
    pub(crate) grants: bool,
    /// SIP threads of ours, workers of Kamailio.
    pub(crate) workers: usize,
    /// Processors that it may use; it may use all if there are none.
    pub(crate) cpus: Vec<usize>,
    /// Part of a processor that it gets, if not all.
    pub(crate) share: Option<f64>,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server {
    process: Running,
    over: Over,
    /// Ends after the process.
    slowed: Option<Slowed>,
}

#[derive(Debug)]
enum Running {
    Ours(Box<Node>),
    Peer(Process),
}

impl Server {
    /// Starts it and waits until it takes calls.
    pub(crate) fn start(
        (binary, lab): (&Binary, &Lab),
        wanted: &Wanted,
        (certificate, password): (&Certificate, &str),
    ) -> Result<Self, LabError> {
        let process = if wanted.scheme.is_ours() {
            Running::Ours(Box::new(ours((binary, lab), wanted, certificate, password)?))
        } else {
            Running::Peer(kamailio((binary, lab), wanted, certificate, password)?)
        };
        let mut server = Self { process, over: wanted.over, slowed: None };
        if !wanted.cpus.is_empty() {
            family::place(server.pid(), &wanted.cpus, PRIORITY)?;
        }
        server.slowed = wanted.share.map(|share| Slowed::to(server.pid(), share)).transpose()?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        match &self.process {
            Running::Ours(node) => node.process.pid(),
            Running::Peer(process) => process.pid(),
        }
    }

    /// Where it takes SIP.
    pub(crate) fn address(&self) -> SocketAddr {
        address(self.over)
    }

    /// Ours, for what it says of itself.
    pub(crate) const fn node(&self) -> Option<&Node> {
        match &self.process {
            Running::Ours(node) => Some(node),
            Running::Peer(_) => None,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Peer(process) = &mut self.process {
            process.end();
        }
    }
}

/// Where a server takes SIP over this.
pub(crate) fn address(over: Over) -> SocketAddr {
    let port = if over == Over::Tls { TLS_PORT } else { SIP_PORT };
    (SERVER, port).into()
}

/// Names and passwords of all who call.
pub(crate) fn users(password: &str) -> Vec<(String, String)> {
    (0..USERS).map(|number| (format!("phone{number}"), password.to_owned())).collect()
}

fn ours(
    (binary, lab): (&Binary, &Lab),
    wanted: &Wanted,
    certificate: &Certificate,
    password: &str,
) -> Result<Node, LabError> {
    let listen = [Over::Udp, wanted.over].map(|over| format!("\"{}/{}\"", over.name(), address(over)));
    let listen = if wanted.over == Over::Udp { listen[0].clone() } else { listen.join(", ") };
    let workers = wanted.workers;
    let overload = match wanted.overload {
        // What is engineered for next to nothing refuses nearly all.
        REFUSE => "mode = \"paper\", calls_per_s = 1".to_owned(),
        "adaptive" if wanted.refuses == RefusesAt::Interface => {
            "mode = \"adaptive\", refuse = \"interface\"".to_owned()
        }
        mode => format!("mode = \"{mode}\""),
    };
    // All that bounds a single user, source or network is out of the way: there are few of each here.
    let more = format!(
        "shards = {workers}\nrelay_rate = \"1Gbit\"\nunproved_answers_per_s = 1000000\n\
         grants_max = {TABLE}\nper_user = {{ grants_max = {TABLE}, ports_max = {TABLE}, flows_max = {TABLE} }}\n\
         overload = {{ {overload} }}\n\
         tables = {{ transactions_max = {TABLE}, transactions_per_user_max = {TABLE}, exchanges_per_user_max = {TABLE}, \
         replays_max = {TABLE}, replays_per_user_max = {TABLE}, legs_max = {TABLE} }}\n\
         connections = {{ total_max = 16384, unproved_max = 8192, per_source_max = 8192, per_user_max = 8192, \
         per_source_per_s = 1000000 }}\n{}",
        if wanted.over == Over::Tls { certificate.line() } else { String::new() }
    );
    let file = NodeFile::new("server").frontend(SERVER.into(), REALM, &more);
    let file = file.with(&format!("[frontend]\nlisten = [{listen}]\n[audit]\nenabled = false\n"));
    let service = "kind = \"sip\"\nports = [\"udp/10000-65000\"]\nallow = [\"group:phones\"]\n";
    let file = file.service(SERVICE, CALLEES, service);
    // A front end refuses calls to what no gate reaches. The gate is on its own host, unless it is to open media.
    let (verb, file) = if wanted.grants {
        ("frontend", file.with(&format!("[frontend]\nfeed = \"{FEED}\"\n")))
    } else {
        // The gate has the packets of its interfaces. It needs an outside one, by which nothing comes here.
        let (outside, datapath) = match (wanted.datapath, wanted.refuses) {
            (FrontendDatapath::Socket, RefusesAt::Process) => ("left", "socket"),
            (FrontendDatapath::Socket, RefusesAt::Interface) => ("spare", "socket"),
            (FrontendDatapath::Xdp, _) => ("spare", "xdp"),
        };
        let file = file.with(&format!("[frontend]\ndatapath = \"{datapath}\"\n"));
        let more = format!("address = \"{SERVER}\"\nlocal = [\"udp/5060\", \"tcp/5060\", \"tcp/{TLS_PORT}\"]\n");
        ("up", file.gate((outside, "right"), "auto", &more))
    };
    let is_new = !file.state(&binary.directory).exists();
    let node = Node::start(binary, lab, "server", verb, &file)?;
    node.ready()?;
    if is_new {
        // Telephones need no key for agents, and making one takes a quarter of a second.
        node.add_users("phones", users(password), &["--no-agent"])?;
    }
    Ok(node)
}

/// The gate that opens the media of calls.
pub(crate) fn gate((binary, lab): (&Binary, &Lab), server: &Server) -> Result<Option<Node>, LabError> {
    let Some(node) = server.node() else { return Ok(None) };
    let more = "external_ports = \"10000-65000\"\n";
    let file = NodeFile::new("gate")
        .gate(("outside", "inside"), "auto", more)
        .with(&format!("[gate]\naddress = \"{GATE}\"\nper_user = {{ flows_max = {TABLE}, ports_max = {TABLE} }}\n"));
    let state = file.state(&binary.directory).join("gate");
    if state.exists() {
        // Calls that another server left open would have their pinholes for as long as their grants last.
        forget(&state).during(|| format!("emptying {}", state.display()))?;
    } else {
        node.admit(lab, "router", &file)?;
    }
    let gate = Node::start(binary, lab, "router", "gate", &file)?;
    gate.ready()?;
    Ok(Some(gate))
}

/// Removes what a gate saved of grants, and leaves what it is known by.
fn forget(state: &Path) -> io::Result<()> {
    for entry in fs::read_dir(state)? {
        let entry = entry?;
        if SAVED.iter().any(|saved| entry.file_name().to_string_lossy().starts_with(saved)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn kamailio(
    (binary, lab): (&Binary, &Lab),
    wanted: &Wanted,
    certificate: &Certificate,
    password: &str,
) -> Result<Process, LabError> {
    let config = binary.directory.join("kamailio.cfg");
    let callees = SocketAddr::from((CALLEES, SIP_PORT)).to_string();
    let (workers, users) = (wanted.workers.to_string(), USERS.to_string());
    let [shown, key] = certificate.paths().map(text);
    let values = [
        ("@CALLEES@", callees.as_str()),
        ("@REALM@", REALM),
        ("@CHILDREN@", &workers),
        ("@USERS@", &users),
        ("@PASSWORD@", password),
        ("@LIMIT@", "1000000"),
        ("@CERTIFICATE@", &shown),
        ("@KEY@", &key),
    ];
    let template = include_str!("kamailio.cfg").to_owned();
    let written = values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    write_private(&config, &written).during(|| format!("writing {}", config.display()))?;
    let (config, shared, own) = (text(&config), SHARED_MB.to_string(), OWN_MB.to_string());
    let udp = format!("udp:{}", address(Over::Udp));
    let stream = format!("{}:{}", wanted.over.name(), address(wanted.over));
    // Whoever ends the first of these processes ends all of them.
    let mut words = vec!["--pid", "--fork", "--kill-child", "--mount-proc", "kamailio", "-DD", "-E", "-f", &config];
    words.extend(["-m", &shared, "-M", &own, "-l", &udp]);
    match wanted.over {
        Over::Udp => words.push("-T"),
        Over::Tcp => words.extend(["-l", &stream]),
        // Its module is packaged apart.
        Over::Tls => words.extend(["-l", &stream, "-A", "TLS"]),
    }
    if wanted.scheme == Scheme::KamailioTlsf {
        words.extend(["-x", "tlsf", "-X", "tlsf"]);
    }
    let define = match wanted.does {
        Does::Relays => None,
        Does::AsksFirst => Some("DIGEST"),
        Does::Refuses => Some("REFUSE"),
        Does::Challenges => Some("CHALLENGE"),
        Does::Drops => Some("DROP"),
    };
    words.extend(define.into_iter().flat_map(|define| ["-A", define]));
    let arguments = words.into_iter().map(str::to_owned).collect();
    let mut command = worker::command(&binary.program, "exec", &ExecSpec { program: "unshare".to_owned(), arguments });
    let log = binary.log("kamailio");
    command.stderr(fs::File::create(&log).during(|| format!("making {}", log.display()))?);
    let mut process = lab.host("server")?.spawn("kamailio", command)?;
    thread::sleep(LISTENS_AFTER);
    if process.wait(Duration::ZERO).is_ok() {
        return Err(LabError::process("kamailio", format!("has ended; it said:\n{}", binary.last_words("kamailio"))));
    }
    Ok(process)
}

/// Binds who loads a server to these processors, before others.
pub(crate) fn place_load(process: &Process, cpus: &[usize]) -> Result<(), LabError> {
    if cpus.is_empty() { Ok(()) } else { family::place(process.pid(), cpus, PRIORITY) }
}
