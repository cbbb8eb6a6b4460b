use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use super::Options;
use sluicegate_site::{During, LabError, NodeFile, node::SIP_PORT, scratch::write_private, topology::Site};

pub(super) const REALM: &str = "lab.example";
/// Where the front end takes gates' feeds.
pub(super) const FEED_PORT: u16 = 7_443;
/// Where services of kind `agent` and `sip` take SIP.
pub(super) const SERVICE_SIP_PORT: u16 = 5_060;
/// The group of the phones.
pub(super) const PHONES_GROUP: &str = "phones";
/// Phones that set up calls all the time.
pub(super) const PHONES: usize = 48;
/// The most that the insider's grant lets through, in bytes.
pub(super) const INSIDER_BYTES_MAX: u64 = 500_000;

/// What one grant of an honest user lets through, in bit/s; so does all that one user has open at one service.
pub(super) const GRANT_RATE_BPS: u64 = 2_000_000;

/// The services: both modes, all kinds. The declared ones come first.
pub(super) const SERVICES: [Service; 4] = [
    Service { label: "nat", name: "pbx", kind: "declared", mode: "nat", host: "pbx", udp: 5_004, tcp: Some(80) },
    Service { label: "filter", name: "web", kind: "declared", mode: "filter", host: "web", udp: 5_004, tcp: Some(80) },
    Service { label: "agent", name: "desk", kind: "agent", mode: "filter", host: "web", udp: 5_014, tcp: Some(81) },
    Service { label: "sip", name: "office", kind: "sip", mode: "nat", host: "pbx", udp: 5_024, tcp: None },
];
/// How many of them are declared.
pub(super) const DECLARED: usize = 2;
/// Clients that the agent beside the service of kind `agent` lets in at once, and how many of them one user may have: all
/// users together have no more.
const AGENT_PLACES: u32 = 200;
const AGENT_PLACES_PER_USER: u32 = 3;
/// The user as which the agent of the service of kind `agent` registers.
pub(super) const REGISTRAR: &str = "desk-host";

/// One of the demo's services.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    /// What figures about it are called.
    pub label: &'static str,
    pub name: &'static str,
    /// `declared`, `agent` or `sip`.
    pub kind: &'static str,
    /// `nat` or `filter`.
    pub mode: &'static str,
    /// Its host in the lab.
    pub host: &'static str,
    /// Its first UDP port.
    pub udp: u16,
    /// Its TCP port, if it has one.
    pub tcp: Option<u16>,
}

impl Service {
    pub(super) fn address(self) -> Ipv4Addr {
        if self.mode == "nat" { Site::PBX } else { Site::WEB }
    }

    /// Last UDP port.
    pub(super) const fn udp_last(self) -> u16 {
        self.udp + 3
    }

    pub(super) fn is_declared(self) -> bool {
        self.kind == "declared"
    }

    /// The address that clients use.
    pub(super) fn public(self) -> Ipv4Addr {
        if self.mode == "nat" { Site::NAT } else { Site::WEB }
    }
}

/// A user of the demo.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub name: String,
    pub group: &'static str,
    pub password: String,
    pub password_file: PathBuf,
}

/// What was written for the programs beside the nodes, and the files of these.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub frontend: NodeFile,
    pub gate: NodeFile,
    /// Of the agent beside the service of kind `agent`.
    pub agent: PathBuf,
    pub users: Vec<User>,
}

impl Files {
    /// Writes passwords and the agent's file, each readable by this user alone.
    pub(super) fn write(options: &Options) -> Result<Self, LabError> {
        let directory = &options.binary.directory;
        let address = Site::address("frontend")?;
        let files = Self {
            frontend: frontend(address),
            gate: gate(options, &options.datapath),
            agent: directory.join("agent.toml"),
            users: users(directory, options.seed),
        };
        let mut written = vec![(&files.agent, agent_toml(&files, &address.to_string())?)];
        written.extend(files.users.iter().map(|user| (&user.password_file, format!("{}\n", user.password))));
        for (path, text) in written {
            write_private(path, &text).during(|| format!("writing {}", path.display()))?;
        }
        Ok(files)
    }

    /// The user called `name`.
    pub(super) fn user(&self, name: &str) -> Result<&User, LabError> {
        let user = self.users.iter().find(|user| user.name == name);
        user.ok_or_else(|| LabError::Plan(format!("the demo has no user {name}")))
    }

    /// Names and passwords of the users of a group.
    pub(super) fn members(&self, group: &str) -> Vec<(String, String)> {
        let members = self.users.iter().filter(|user| user.group == group);
        members.map(|user| (user.name.clone(), user.password.clone())).collect()
    }
}

fn users(directory: &Path, seed: u64) -> Vec<User> {
    let mut random = fastrand::Rng::with_seed(seed);
    let phones = (0..PHONES).map(|number| (format!("phone{number:02}"), PHONES_GROUP));
    let people = [
        ("alice", "people"),
        ("bob", "people"),
        ("mallory", "insiders"),
        ("trudy", "insiders"),
        (REGISTRAR, "insiders"),
    ];
    let people = people.map(|(name, group)| (name.to_owned(), group));
    phones
        .chain(people)
        .map(|(name, group)| {
            let password = format!("{:016x}{:016x}", random.u64(..), random.u64(..));
            User { password_file: directory.join(format!("{name}.password")), name, group, password }
        })
        .collect()
}

fn frontend(address: Ipv4Addr) -> NodeFile {
    let more = format!(
        "digest = [\"SHA-256\", \"MD5\"]\nfeed = \"{address}:{FEED_PORT}\"\n\
         [[frontend.gate]]\nname = \"gate\"\naddresses = [\"{}\"]\n",
        Site::NAT,
    );
    let mut file = NodeFile::new("frontend").frontend(address.into(), REALM, &more);
    for service in SERVICES {
        let tcp = service.tcp.map(|port| format!(", \"tcp/{port}\"")).unwrap_or_default();
        let registrar = if service.kind == "agent" { format!("registrar = \"{REGISTRAR}\"\n") } else { String::new() };
        let more = format!(
            "kind = \"{}\"\nmode = \"{}\"\nports = [\"udp/{}-{}\"{tcp}]\n{registrar}\
             grant = {{ bytes_max = \"20MB\", lifetime_s = 900, rate = \"{}Mbit\", flows_max = 64 }}\n\
             allow = [\"group:people\", \"group:phones\"]\n",
            service.kind,
            service.mode,
            service.udp,
            service.udp_last(),
            GRANT_RATE_BPS / 1_000_000,
        );
        file = file.service(service.name, service.address(), &more);
    }
    file.with(&format!(
        "[[rule]]\nname = \"insiders\"\nservices = [\"pbx\", \"web\"]\nsubjects = [\"group:insiders\"]\neffect = \"allow\"\n\
         grant = {{ bytes_max = {INSIDER_BYTES_MAX}, lifetime_s = 300, rate = \"2Mbit\", flows_max = 8 }}\n",
    ))
}

/// The file of the gate with this back end.
pub(super) fn gate(options: &Options, datapath: &str) -> NodeFile {
    // A little below what the link carries, so that packets wait at the gate.
    let rate = options.site.link_rate_bps / 100 * 96 / 1_000;
    let rate = if options.scheduled { format!("link_rate = \"{rate}kbit\"\n") } else { String::new() };
    let more = format!("address = \"{}\"\n{rate}", Site::NAT);
    NodeFile::new("gate").gate((Site::OUTSIDE, Site::INSIDE), datapath, &more)
}

fn agent_toml(files: &Files, frontend: &str) -> Result<String, LabError> {
    let service = SERVICES.iter().find(|service| service.kind == "agent");
    let service = service.ok_or_else(|| LabError::Plan("the demo has no service of kind agent".to_owned()))?;
    let tcp = service.tcp.map(|port| format!(", \"tcp/{port}\"")).unwrap_or_default();
    Ok(format!(
        "[agent]\nfrontend = \"{frontend}:{SIP_PORT}\"\nrealm = \"{REALM}\"\nuser = \"{REGISTRAR}\"\n\
         password_file = {:?}\nservice = \"{}\"\naddress = \"{}\"\nsip_port = {SERVICE_SIP_PORT}\nclients_max = {AGENT_PLACES}\n\
         clients_per_user_max = {AGENT_PLACES_PER_USER}\n\
         ports = [\"udp/{}-{}\"{tcp}]\n",
        files.user(REGISTRAR)?.password_file,
        service.name,
        service.address(),
        service.udp,
        service.udp_last(),
    ))
}
