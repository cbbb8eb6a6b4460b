use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::Options;
use crate::{LabError, clock::Random, error::During, topology::Site};

pub(super) const REALM: &str = "lab.example";
/// Where the front end takes SIP and gates' feeds.
pub(super) const SIP_PORT: u16 = 5_060;
pub(super) const FEED_PORT: u16 = 7_443;
/// Where the gate's host serves its metrics, on loopback.
pub(super) const METRICS_PORT: u16 = 9_469;
/// The services' UDP and TCP ports.
pub(super) const UDP_PORT: u16 = 5_004;
pub(super) const UDP_PORT_LAST: u16 = 5_007;
pub(super) const TCP_PORT: u16 = 80;
/// Phones that set up calls all the time.
pub(super) const PHONES: usize = 48;
/// The most that the insider's grant lets through, in bytes.
pub(super) const INSIDER_BYTES_MAX: u64 = 500_000;

/// The two services: (name, mode, host of the lab).
pub(super) const SERVICES: [Service; 2] =
    [Service { name: "pbx", mode: "nat", host: "pbx" }, Service { name: "web", mode: "filter", host: "web" }];

/// One of the demo's services.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    pub name: &'static str,
    /// `nat` or `filter`.
    pub mode: &'static str,
    /// Its host in the lab.
    pub host: &'static str,
}

impl Service {
    pub(super) fn address(self) -> std::net::Ipv4Addr {
        if self.mode == "nat" { Site::PBX } else { Site::WEB }
    }

    /// The address that clients use.
    pub(super) fn public(self) -> std::net::Ipv4Addr {
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

/// What was written for the daemons.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub frontend: PathBuf,
    pub gate: PathBuf,
    pub gate_state: PathBuf,
    pub token: PathBuf,
    pub users: Vec<User>,
}

impl Files {
    /// Writes configuration and passwords, each readable by this user alone.
    pub(super) fn write(options: &Options) -> Result<Self, LabError> {
        let directory = &options.directory;
        let frontend_state = directory.join("frontend");
        let gate_state = directory.join("gate");
        for state in [&frontend_state, &gate_state] {
            make_private_directory(state).during(|| format!("making {}", state.display()))?;
        }
        let files = Self {
            frontend: directory.join("frontend.toml"),
            gate: directory.join("gate.toml"),
            token: directory.join("join-token"),
            users: users(directory, options.seed),
            gate_state,
        };
        let address = Site::address("frontend")?;
        let mut written = vec![
            (&files.frontend, frontend_toml(&frontend_state, &address.to_string())),
            (&files.gate, gate_toml(&files.gate_state, &options.datapath)),
        ];
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

    /// Names and passwords of the phones.
    pub(super) fn phones(&self) -> Vec<(String, String)> {
        let phones = self.users.iter().filter(|user| user.group == "phones");
        phones.map(|user| (user.name.clone(), user.password.clone())).collect()
    }
}

fn users(directory: &Path, seed: u64) -> Vec<User> {
    let mut random = Random::new(seed);
    let phones = (0..PHONES).map(|number| (format!("phone{number:02}"), "phones"));
    let people = [("alice", "people"), ("bob", "people"), ("mallory", "insiders")];
    let people = people.map(|(name, group)| (name.to_owned(), group));
    phones
        .chain(people)
        .map(|(name, group)| {
            let password = format!("{:016x}{:016x}", random.next(), random.next());
            User { password_file: directory.join(format!("{name}.password")), name, group, password }
        })
        .collect()
}

fn frontend_toml(state: &Path, address: &str) -> String {
    let mut text = format!(
        "[node]\nname = \"frontend\"\nstate = {state:?}\n\n[frontend]\nlisten = [\"udp/{address}:{SIP_PORT}\"]\n\
         realm = \"{REALM}\"\ndigest = [\"SHA-256\", \"MD5\"]\nfeed = \"{address}:{FEED_PORT}\"\n\n\
         [metrics]\nlisten = \"127.0.0.1:{METRICS_PORT}\"\n",
    );
    for service in SERVICES {
        text += &format!(
            "\n[[service]]\nname = \"{}\"\nkind = \"declared\"\nmode = \"{}\"\naddress = \"{}\"\n\
             ports = [\"udp/{UDP_PORT}-{UDP_PORT_LAST}\", \"tcp/{TCP_PORT}\"]\n\
             grant = {{ bytes_max = \"20MB\", lifetime_s = 300, rate = \"2Mbit\", flows_max = 64 }}\n\
             allow = [\"group:people\", \"group:phones\"]\n",
            service.name,
            service.mode,
            service.address(),
        );
    }
    text += &format!(
        "\n[[rule]]\nname = \"insiders\"\nservices = [\"pbx\", \"web\"]\nsubjects = [\"group:insiders\"]\neffect = \"allow\"\n\
         grant = {{ bytes_max = {INSIDER_BYTES_MAX}, lifetime_s = 300, rate = \"2Mbit\", flows_max = 8 }}\n",
    );
    text
}

fn gate_toml(state: &Path, datapath: &str) -> String {
    format!(
        "[node]\nname = \"gate\"\nstate = {state:?}\n\n[gate]\noutside = \"{}\"\ninside = \"{}\"\naddress = \"{}\"\n\
         datapath = \"{datapath}\"\n\n[metrics]\nlisten = \"127.0.0.1:{METRICS_PORT}\"\n",
        Site::OUTSIDE,
        Site::INSIDE,
        Site::NAT,
    )
}

fn make_private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Writes a file that only this user can read.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
