use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use super::{
    attacks,
    daemons::{Daemons, wait_for},
    files::{REALM, SERVICE_SIP_PORT, SERVICES, Service},
    ledger::Origin,
};
use sluicegate_site::{LabError, Process, binary::connect, topology::Site};
use sluicegate_traffic::{
    client::{
        answer::AnswerSpec,
        call::SinkSpec,
        haul::ServeSpec,
        setup::{SetupSpec, opened},
    },
    count::CountSpec,
};

/// Longer than any run; the workers end when they are told to.
pub(super) const FOREVER_S: u32 = 3_600;
const READY_MAX: Duration = Duration::from_secs(10);
/// Calls that alice holds with each service.
pub(super) const CALLS_PER_SERVICE: usize = 2;
/// First local ports of bob's forwards, TCP and UDP; one of each for each service.
const FORWARD_PORT: u16 = 8_080;
const FORWARD_UDP_PORT: u16 = 8_180;

/// Who is on stage from beginning to end: services, their counters, alice's open calls, bob's agents.
#[derive(Debug)]
pub(super) struct Cast {
    /// Sinks and counters, whose lines count from the beginning.
    pub counting: Vec<(Origin, Process)>,
    /// Where alice's calls may send: for each service, gate addresses and ports.
    pub call_targets: [Vec<SocketAddr>; SERVICES.len()],
    /// Local ports of those calls, in the order of the targets.
    pub call_ports: [Vec<u16>; SERVICES.len()],
    /// An authorised INVITE of alice's, and where it came from, for attackers that replay it.
    pub recorded: Vec<(SocketAddr, String)>,
    _servers: Vec<Process>,
    /// The exchange of kind `sip` and the agent of kind `agent`.
    _answering: Vec<Process>,
    _phones: Vec<Process>,
    _agents: Vec<Process>,
}

impl Cast {
    pub(super) fn start(daemons: &Daemons) -> Result<Self, LabError> {
        let any = |port| vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
        let (mut servers, mut counting) = (Vec::new(), Vec::new());
        for service in SERVICES {
            let sink = SinkSpec { listen: any(service.udp), seconds: FOREVER_S };
            counting.push((Origin::Sink, daemons.worker(service.host, "sink", &sink)?));
            if let Some(port) = service.tcp {
                let serve = ServeSpec { listen: any(port), silence_s: 10, seconds: FOREVER_S };
                servers.push(daemons.worker(service.host, "serve", &serve)?);
            }
        }
        for (service, host) in COUNTED.into_iter().enumerate() {
            counting.push((Origin::Count(service), daemons.worker(host, "count", &classes()?)?));
        }
        wait_for("the gate's feed", || call_once(daemons, SERVICES[0]).is_ok())?;
        let answering = start_answering(daemons)?;
        for service in SERVICES.into_iter().filter(|service| !service.is_declared()) {
            wait_for(&format!("calls to {}", service.name), || call_once(daemons, service).is_ok())?;
        }
        let mut cast = Self {
            counting,
            call_targets: Default::default(),
            call_ports: Default::default(),
            recorded: Vec::new(),
            _servers: servers,
            _answering: answering,
            _phones: Vec::new(),
            _agents: Vec::new(),
        };
        cast.open_calls(daemons)?;
        cast.start_agents(daemons)?;
        Ok(cast)
    }

    /// Alice calls each service as often as needed and holds the calls.
    fn open_calls(&mut self, daemons: &Daemons) -> Result<(), LabError> {
        for (index, service) in SERVICES.iter().enumerate() {
            for call in 0..CALLS_PER_SERVICE {
                let media_port = 40_000 + u16::try_from(index * 100 + call * 2).unwrap_or(0);
                let mut spec = calling(daemons, "alice", *service, media_port)?;
                spec.record = 1;
                let phone = daemons.worker("alice", "setup", &spec)?;
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

    /// Bob forwards local ports to each service's web server and to its UDP port.
    fn start_agents(&mut self, daemons: &Daemons) -> Result<(), LabError> {
        let user = daemons.files.user("bob")?;
        for (index, service) in SERVICES.iter().enumerate() {
            let udp = format!("{}:{}/udp", forward(index, FORWARD_UDP_PORT), service.udp);
            let tcp = service.tcp.map(|port| format!("{}:{port}", forward(index, FORWARD_PORT)));
            let more: Vec<_> = ["-L", &udp].into_iter().chain(tcp.iter().flat_map(|tcp| ["-L", tcp])).collect();
            let to = format!("bob@{}", service.name);
            let arguments = connect(&to, (&daemons.frontend.to_string(), REALM), &user.password_file, &more);
            let bob = daemons.site.lab.host("bob")?;
            self._agents.push(bob.spawn("connect on bob", daemons.options.binary.command(&arguments))?);
            if tcp.is_some() {
                let listens = forward(index, FORWARD_PORT);
                let answers = || bob.run_in(|| TcpStream::connect(listens)).is_ok_and(|stream| stream.is_ok());
                wait_for("bob's agent", answers)?;
            }
        }
        Ok(())
    }

    /// Where bob's transfers with a service go: to his agent, or straight to the service while the gate is off. `None` if
    /// it has no TCP port.
    pub(super) fn transfer_target(service: usize, through_gate: bool) -> Option<SocketAddr> {
        let port = SERVICES[service].tcp?;
        Some(if through_gate { forward(service, FORWARD_PORT) } else { (SERVICES[service].public(), port).into() })
    }

    /// Where bob's datagrams to a service go.
    pub(super) fn datagram_target(service: usize, through_gate: bool) -> SocketAddr {
        let what = SERVICES[service];
        if through_gate { forward(service, FORWARD_UDP_PORT) } else { (what.public(), what.udp).into() }
    }
}

fn forward(service: usize, first_port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, first_port + u16::try_from(service).unwrap_or(0)).into()
}

/// Starts the exchange on the host of the service of kind `sip`, and the agent beside that of kind `agent`.
fn start_answering(daemons: &Daemons) -> Result<Vec<Process>, LabError> {
    let mut processes = Vec::new();
    for service in SERVICES.iter().filter(|service| !service.is_declared()) {
        let address = service.address();
        processes.push(if service.kind == "sip" {
            let (listen, media) = ((address, SERVICE_SIP_PORT).into(), (address, service.udp).into());
            let spec = AnswerSpec { listen, media, rings: false, record: 0, seconds: FOREVER_S };
            daemons.worker(service.host, "answer", &spec)?
        } else {
            daemons.serve(service.host)?
        });
    }
    Ok(processes)
}

/// Hosts on which services are; each has a counter.
pub(super) const COUNTED: [&str; 2] = ["pbx", "web"];

/// Counts what reaches a host of services: each class of forged packets, clients, the frontend that relays, the host's
/// own wire, the insider, everybody else.
fn classes() -> Result<CountSpec, LabError> {
    let one = |host| {
        Ok::<_, LabError>(vec![IpAddr::from(Site::address(host)?).into(), IpAddr::from(Site::address_v6(host)?).into()])
    };
    let mut clients = one("alice")?;
    clients.extend(one("bob")?);
    clients.extend(one("phones")?);
    let classes = vec![
        ("clients".to_owned(), clients),
        ("frontend".to_owned(), one("frontend")?),
        ("insider".to_owned(), one("mallory")?),
        ("wire".to_owned(), Site::own_wire()),
    ];
    Ok(CountSpec { interface: "eth0".to_owned(), classes, marks: attacks::marks(), seconds: FOREVER_S })
}

/// One call of one user, held until the worker is told to stop.
pub(super) fn calling(daemons: &Daemons, user: &str, service: Service, media_port: u16) -> Result<SetupSpec, LabError> {
    let user = daemons.files.user(user)?;
    Ok(SetupSpec {
        to: vec![daemons.frontend],
        sockets: 1,
        realm: REALM.to_owned(),
        service: service.name.to_owned(),
        users: vec![(user.name.clone(), user.password.clone())],
        per_s: 100,
        calls: 1,
        seconds: FOREVER_S,
        give_up_ms: 5_000,
        media_port,
        // The agent offers its service's ports; an exchange and a declared service take audio.
        service_port: if service.kind == "agent" { service.udp } else { 0 },
        seed: daemons.options.seed ^ u64::from(media_port),
        ..SetupSpec::default()
    })
}

/// A call that ends at once: it is let in when the gate has dialled the front end, and the service has registered.
pub(super) fn call_once(daemons: &Daemons, service: Service) -> Result<(), LabError> {
    let mut spec = calling(daemons, "alice", service, 39_998)?;
    spec.talk_ms = Some(0);
    let phone = daemons.worker("alice", "setup", &spec)?;
    opened(&phone).map(drop)
}
