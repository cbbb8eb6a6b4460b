//! Our side: the real binary as gate and frontend in one, opened by a telephone's calls.
//!
//! A telephone's datagrams are in pinhole mode: they are what its program sends, as with the peers. An agent's would
//! carry packet MACs, under keys that the generator does not have.

use std::{
    fs,
    net::{SocketAddr, SocketAddrV4},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Options,
    lab::{BenchLab, FIRST_PORT, OUTSIDE, PORTS, SINK, SIP_PORT},
};
use sluicegate_site::{
    During, LabError, Process,
    binary::{Binary, text},
    clock::{Random, unix_ns},
    scratch::write_private,
    worker,
};
use sluicegate_traffic::client::setup::{SetupSpec, parse_line};

const REALM: &str = "bench.example";
const USER: &str = "bench";
/// One socket may have 64 SIP requests under way, and a call takes two: one is challenged, one answered.
const PHONE_SOCKETS: u16 = 4;
/// How long a call may take to be set up.
const READY_MAX: Duration = Duration::from_secs(10);
/// Longer than any bench.
const FOREVER_S: u32 = 3_600;

/// A lab with our gate, whose grants are open.
pub(super) fn start(options: &Options, backend: &str) -> Result<BenchLab, LabError> {
    let mut lab = BenchLab::build(backend, false)?;
    lab.targets.clear();
    let files = Files::write(&options.directory.join(backend), backend)?;
    let binary = Binary { program: options.program.clone(), directory: files.directory.clone() };
    let (password, config) = (text(&files.password), text(&files.site));
    binary.run(&["user", "add", USER, "--no-agent", "--password-file", &password, "--config", &config])?;
    let up = ["up".to_owned(), text(&files.site)];
    lab.keep(binary.spawn(&lab.lab, "gate", "up", &up)?);
    binary.wait_for("up", || is_ready(&binary, &files.site).then_some(()))?;
    let phone = lab.lab.host("gen")?.spawn("phone", worker::command(&options.program, "setup", &files.calls()?))?;
    for _ in services() {
        lab.targets.push(opened(&phone)?);
    }
    lab.keep(phone);
    Ok(lab)
}

/// One service for each port: a grant is for one port, and a telephone that calls is let in to a service.
fn services() -> impl Iterator<Item = (String, u16)> {
    (FIRST_PORT..FIRST_PORT + PORTS).map(|port| (format!("sink{port}"), port))
}

/// Where the gate lets the next of the phone's calls send.
fn opened(phone: &Process) -> Result<SocketAddrV4, LabError> {
    let event = phone.event("setup", READY_MAX)?;
    match parse_line(&event.to_string()).and_then(|setup| setup.media) {
        Some(SocketAddr::V4(media)) => Ok(media),
        _ => Err(LabError::Process { name: phone.name().to_owned(), reason: format!("no call: {event}") }),
    }
}

struct Files {
    directory: PathBuf,
    site: PathBuf,
    password: PathBuf,
}

impl Files {
    fn write(directory: &Path, backend: &str) -> Result<Self, LabError> {
        let files = Self {
            directory: directory.to_owned(),
            site: directory.join("site.toml"),
            password: directory.join("password"),
        };
        let password = format!("{:016x}", Random::new(unix_ns()).next());
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&files.site, site_toml(&directory.join("state"), backend)))
            .and_then(|()| write_private(&files.password, &password))
            .during(|| format!("writing into {}", directory.display()))?;
        Ok(files)
    }

    /// A call to each service, all held until the phone is told to stop.
    fn calls(&self) -> Result<SetupSpec, LabError> {
        let password = fs::read_to_string(&self.password).during(|| "reading the password".to_owned())?;
        let mut services = services().map(|(name, _)| name);
        Ok(SetupSpec {
            to: vec![SocketAddr::from((OUTSIDE, SIP_PORT))],
            from: None,
            sockets: PHONE_SOCKETS,
            realm: REALM.to_owned(),
            service: services.next().unwrap_or_default(),
            more_services: services.collect(),
            users: vec![(USER.to_owned(), password)],
            per_s: 50,
            calls: u32::from(PORTS),
            seconds: FOREVER_S,
            talk_ms: None,
            give_up_ms: 5_000,
            // Discard: the generator sends from any port, and so may who names none.
            media_port: 9,
            service_port: 0,
            record: 0,
            seed: 1,
        })
    }
}

fn site_toml(state: &Path, backend: &str) -> String {
    let node = format!(
        "[node]\nname = \"bench\"\nstate = {state:?}\n\
         [frontend]\nlisten = [\"udp/{OUTSIDE}:{SIP_PORT}\"]\nrealm = \"{REALM}\"\n\
         per_user = {{ flows_max = 4194304, rate = \"none\" }}\n\
         [gate]\noutside = \"outside\"\ninside = \"inside\"\nlocal = [\"udp/{SIP_PORT}\"]\ndatapath = \"{backend}\"\n\
         flows_max = 131072\nper_user = {{ flows_max = 131072, rate = \"none\" }}\n"
    );
    let service = |(name, port)| {
        format!(
            "[[service]]\nname = \"{name}\"\naddress = \"{SINK}\"\nports = [\"udp/{port}\"]\n\
             grant = {{ bytes_max = \"1TB\", lifetime_s = 3600, rate = \"none\", flows_max = 65535 }}\n\
             allow = [\"user:{USER}\"]\n"
        )
    };
    services().map(service).fold(node, |toml, service| toml + &service)
}

/// Whether the node answers and its gate holds its feed.
fn is_ready(binary: &Binary, config: &Path) -> bool {
    let status = binary.status(config).unwrap_or_default();
    let feeds = status["gate"]["feeds"].as_array().cloned().unwrap_or_default();
    !feeds.is_empty() && feeds.iter().all(|feed| feed["state"] == "connected")
}
