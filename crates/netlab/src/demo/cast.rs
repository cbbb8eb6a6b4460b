use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use serde::Serialize;

use super::{
    Options,
    daemons::{Daemons, wait_for},
    files::{REALM, SERVICES, Service, TCP_PORT, UDP_PORT},
};
use crate::{
    LabError, Process,
    client::{
        call::SinkSpec,
        setup::{self, Setup, SetupSpec},
        transfer::ServeSpec,
    },
    count::CountSpec,
    rtnetlink::Prefix,
    topology::Site,
};

/// Longer than any run; the workers end when they are told to.
pub(super) const FOREVER_S: u32 = 3_600;
const READY_MAX: Duration = Duration::from_secs(10);
/// Calls that alice holds with each service.
pub(super) const CALLS_PER_SERVICE: usize = 2;
/// First local port of bob's forwards; one for each service.
const FORWARD_PORT: u16 = 8_080;

/// Who is on stage from beginning to end: services, their counters, alice's open calls, bob's agents.
#[derive(Debug)]
pub(super) struct Cast {
    pub sinks: Vec<Process>,
    pub counters: Vec<Process>,
    /// Where alice's calls may send: for each service, gate addresses and ports.
    pub call_targets: [Vec<SocketAddr>; 2],
    /// Local ports of those calls, in the order of the targets.
    pub call_ports: [Vec<u16>; 2],
    /// An authorised INVITE of alice's, and where it came from, for attackers that replay it.
    pub recorded: Vec<(SocketAddr, String)>,
    _servers: Vec<Process>,
    _phones: Vec<Process>,
    _agents: Vec<Process>,
}

impl Cast {
    pub(super) fn start(options: &Options, site: &Site, daemons: &Daemons) -> Result<Self, LabError> {
        let any = |port| vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
        let (mut sinks, mut servers, mut counters) = (Vec::new(), Vec::new(), Vec::new());
        for service in SERVICES {
            let sink = SinkSpec { listen: any(UDP_PORT), echo: false, seconds: FOREVER_S };
            sinks.push(start(site, daemons, service.host, "sink", &sink)?);
            let serve = ServeSpec { listen: any(TCP_PORT), seconds: FOREVER_S };
            servers.push(start(site, daemons, service.host, "serve", &serve)?);
            counters.push(start(site, daemons, service.host, "count", &counting(service)?)?);
        }
        wait_for("the gate's feed", || first_call(options, site, daemons).is_ok())?;
        let mut cast = Self {
            sinks,
            counters,
            call_targets: [Vec::new(), Vec::new()],
            call_ports: [Vec::new(), Vec::new()],
            recorded: Vec::new(),
            _servers: servers,
            _phones: Vec::new(),
            _agents: Vec::new(),
        };
        cast.open_calls(options, site, daemons)?;
        cast.start_agents(site, daemons)?;
        Ok(cast)
    }

    /// Alice calls each service as often as needed and holds the calls.
    fn open_calls(&mut self, options: &Options, site: &Site, daemons: &Daemons) -> Result<(), LabError> {
        for (index, service) in SERVICES.iter().enumerate() {
            for call in 0..CALLS_PER_SERVICE {
                let media_port = 40_000 + u16::try_from(index * 100 + call * 2).unwrap_or(0);
                let mut spec = calling(options, daemons, "alice", service.name, media_port)?;
                spec.record = 1;
                let phone = start(site, daemons, "alice", "setup", &spec)?;
                let recorded = phone.event("authorised", READY_MAX)?;
                if let (Some(from), Some(message)) = (recorded["from"].as_str(), recorded["message"].as_str()) {
                    self.recorded.extend(from.parse().ok().map(|from| (from, message.to_owned())));
                }
                let target = opened(&phone)?;
                self.call_targets[index].push(target);
                self.call_ports[index].push(media_port);
                self._phones.push(phone);
            }
        }
        Ok(())
    }

    /// Bob forwards a local port to each service's web server.
    fn start_agents(&mut self, site: &Site, daemons: &Daemons) -> Result<(), LabError> {
        let user = daemons.files.user("bob")?;
        for (index, service) in SERVICES.iter().enumerate() {
            let forward = forward(index);
            let arguments = [
                "connect",
                &format!("bob@{}", service.name),
                "--frontend",
                &daemons.frontend.to_string(),
                "--realm",
                REALM,
                "--password-file",
                &user.password_file.to_string_lossy(),
                "-L",
                &format!("{forward}:{TCP_PORT}"),
            ]
            .map(str::to_owned);
            let bob = site.lab.host("bob")?;
            self._agents.push(bob.spawn("connect on bob", daemons.client(&arguments))?);
            let answers = || bob.run_in(|| TcpStream::connect(forward)).is_ok_and(|stream| stream.is_ok());
            wait_for("bob's agent", answers)?;
        }
        Ok(())
    }

    /// Where bob's transfers to a service go: to his agent, or straight to the service while the gate is off.
    pub(super) fn transfer_target(service: usize, through_gate: bool) -> SocketAddr {
        if through_gate { forward(service) } else { (SERVICES[service].public(), TCP_PORT).into() }
    }
}

fn forward(service: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, FORWARD_PORT + u16::try_from(service).unwrap_or(0)).into()
}

/// Starts a worker on a host and waits until it is ready.
pub(super) fn start<S: Serialize>(
    site: &Site,
    daemons: &Daemons,
    host: &str,
    role: &str,
    spec: &S,
) -> Result<Process, LabError> {
    let process = site.lab.host(host)?.spawn(&format!("{role} on {host}"), daemons.worker(role, spec))?;
    process.event("ready", READY_MAX)?;
    Ok(process)
}

/// Counts what reaches a service: its clients, its own wire, the insider, everybody else.
fn counting(service: Service) -> Result<CountSpec, LabError> {
    let one = |host| {
        Ok::<_, LabError>(vec![Prefix::host(Site::address(host)?.into()), Prefix::host(Site::address_v6(host)?.into())])
    };
    let mut clients = one("alice")?;
    clients.extend(one("bob")?);
    clients.extend(one("phones")?);
    let classes = vec![
        ("clients".to_owned(), clients),
        ("insider".to_owned(), one("mallory")?),
        ("wire".to_owned(), Site::own_wire()),
    ];
    debug_assert!(service.host.len() < 16);
    Ok(CountSpec { interface: "eth0".to_owned(), classes, seconds: FOREVER_S })
}

/// One call of one user, held until the worker is told to stop.
pub(super) fn calling(
    options: &Options,
    daemons: &Daemons,
    user: &str,
    service: &str,
    media_port: u16,
) -> Result<SetupSpec, LabError> {
    let user = daemons.files.user(user)?;
    Ok(SetupSpec {
        to: vec![daemons.frontend],
        from: None,
        sockets: 1,
        realm: REALM.to_owned(),
        service: service.to_owned(),
        more_services: Vec::new(),
        users: vec![(user.name.clone(), user.password.clone())],
        per_s: 100,
        calls: 1,
        seconds: FOREVER_S,
        talk_ms: None,
        give_up_ms: 5_000,
        media_port,
        record: 0,
        seed: options.seed ^ u64::from(media_port),
    })
}

/// Where the call that a `setup` worker just made may send.
pub(super) fn opened(phone: &Process) -> Result<SocketAddr, LabError> {
    let refused = |reason: String| LabError::Process { name: phone.name().to_owned(), reason };
    let event = phone.event("setup", READY_MAX)?;
    let setup: Setup = setup::parse_line(&event.to_string()).ok_or_else(|| refused(event.to_string()))?;
    setup.media.ok_or_else(|| refused(format!("the call was refused: status {}", setup.status)))
}

/// The gate has dialled the front end when a call is let in.
fn first_call(options: &Options, site: &Site, daemons: &Daemons) -> Result<(), LabError> {
    let mut spec = calling(options, daemons, "alice", SERVICES[0].name, 39_998)?;
    spec.talk_ms = Some(0);
    let phone = start(site, daemons, "alice", "setup", &spec)?;
    opened(&phone).map(drop)
}
