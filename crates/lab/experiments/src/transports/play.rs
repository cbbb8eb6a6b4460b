//! One case after the other, in one lab.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use sluicegate_wire::IpProtocol;

use super::{
    CASES, Carries, Case, Mutant, NAME, Options,
    site::{self, CLIENT, GATE, REALM, SERVICES, STRANGER, Service},
};
use crate::report::rows::Report;
use sluicegate_site::{
    During, Lab, LabError, Node, Process,
    binary::{Binary, connect, text},
    scratch::write_private,
    worker,
};
use sluicegate_traffic::client::exchange::{ExchangeSpec, MirrorSpec};

const PASSWORD: &str = "correct-horse-battery-staple";
const READY_MAX: Duration = Duration::from_secs(20);
/// Packets that are to be answered, one after the other, and how long each waits at most, in milliseconds.
const PACKETS: u32 = 20;
/// Packets that nobody must answer, and how long each waits, in milliseconds.
const FORBIDDEN: u32 = 5;
const SILENCE_MS: u64 = 60;
const ANSWER_MS: u64 = 500;
/// The ends of the tunnel.
const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const TUNNEL_PORT: u16 = 7;

impl Case {
    /// What signs the addresses is not for where they are rewritten.
    pub(super) fn is_for(&self, service: Service) -> bool {
        !(service.is_translated() && self.protocol == IpProtocol::AUTHENTICATION)
    }
}

struct Stage {
    mutant: Mutant,
    _node: Node,
    password: PathBuf,
    binary: Binary,
    lab: Lab,
}

/// Plays all and returns what was measured; `tell` hears each step. All daemons, agents and
/// workers are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    tell("building the lab: 5 network namespaces, a gate with its frontend, two services");
    let stage = Stage::build(binary.clone(), options)?;
    let mut report = Report::new(NAME);
    for case in CASES {
        for service in SERVICES.into_iter().filter(|service| case.is_for(*service)) {
            tell(&format!("{} to a service with mode = \"{}\"", case.opens, service.name));
            stage.case(case, service, &mut report)?;
        }
    }
    Ok(report)
}

impl Stage {
    fn build(binary: Binary, options: &Options) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let password = binary.directory.join("password");
        write_private(&password, PASSWORD).during(|| format!("writing {}", password.display()))?;
        let node = Node::start(&binary, &lab, "gate", "up", &site::file(&options.datapath, options.mutant))?;
        node.ready()?;
        node.add_users("staff", [("alice".to_owned(), PASSWORD.to_owned())], &[])?;
        Ok(Self { mutant: options.mutant, _node: node, password, binary, lab })
    }

    fn case(&self, case: Case, service: Service, report: &mut Report) -> Result<(), LabError> {
        match case.carries {
            Carries::Mirrored => self.mirrored(case, service, report),
            Carries::WireGuard => self.tunnelled(case, service, report),
        }
    }

    fn mirrored(&self, case: Case, service: Service, report: &mut Report) -> Result<(), LabError> {
        let mut judge = report.of((case.name, service.name));
        let mut mirror = self.mirror(case.protocol, SocketAddrV4::new(service.address, case.port))?;
        let visible = if service.is_translated() { GATE } else { service.address };
        let mut open = SocketAddrV4::new(visible, case.port);
        let before = self.exchange(("client", CLIENT), case.protocol, open, (FORBIDDEN, SILENCE_MS))?;
        judge.at_most("answered_before_sign_in", before, 0.0);
        let mut connect = None;
        if self.mutant != Mutant::Unopened {
            let (process, at) = self.open(case, service)?;
            (connect, open) = (Some(process), at);
        }
        let answered = self.exchange(("client", CLIENT), case.protocol, open, (PACKETS, ANSWER_MS))?;
        judge.at_least("answered", answered, PACKETS.into());
        let strangers = self.exchange(("stranger", STRANGER), case.protocol, open, (FORBIDDEN, SILENCE_MS))?;
        judge.at_most("answered_to_strangers", strangers, 0.0);
        connect.iter_mut().for_each(Process::end);
        let after = self.exchange(("client", CLIENT), case.protocol, open, (FORBIDDEN, SILENCE_MS))?;
        judge.at_most("answered_after_goodbye", after, 0.0);
        // What the service itself has seen, whatever came back.
        mirror.close_input();
        let heard = mirror.event("result", READY_MAX)?["heard"][STRANGER.to_string()].as_u64().unwrap_or(0);
        judge.at_most("packets_of_strangers", heard as f64, 0.0);
        Ok(())
    }

    fn tunnelled(&self, case: Case, service: Service, report: &mut Report) -> Result<(), LabError> {
        let mut judge = report.of((case.name, service.name));
        let visible = if service.is_translated() { GATE } else { service.address };
        let (connect, open) = match self.mutant {
            Mutant::Unopened => (None, SocketAddrV4::new(visible, case.port)),
            _ => self.open(case, service).map(|(process, at)| (Some(process), at))?,
        };
        let tunnel = Tunnel::lay(self, case.port, open)?;
        let inner = SocketAddrV4::new(TUNNEL[1], TUNNEL_PORT);
        let (inside, mirror) = (("client", TUNNEL[0]), self.mirror(IpProtocol::UDP, inner)?);
        let answered = self.exchange(inside, IpProtocol::UDP, inner, (PACKETS, ANSWER_MS))?;
        judge.at_least("answered", answered, PACKETS.into());
        connect.into_iter().for_each(|mut process| process.end());
        let after = self.exchange(inside, IpProtocol::UDP, inner, (FORBIDDEN, SILENCE_MS))?;
        judge.at_most("answered_after_goodbye", after, 0.0);
        drop((tunnel, mirror));
        Ok(())
    }

    fn mirror(&self, protocol: IpProtocol, at: SocketAddrV4) -> Result<Process, LabError> {
        let spec = MirrorSpec { protocol: protocol.0, at: vec![at] };
        self.binary.worker(&self.lab, "service", "mirror", &spec)
    }

    /// How many packets of a host, sent from this address, are answered.
    fn exchange(
        &self,
        (host, from): (&str, Ipv4Addr),
        protocol: IpProtocol,
        to: SocketAddrV4,
        (packets, answer_ms): (u32, u64),
    ) -> Result<f64, LabError> {
        let spec = ExchangeSpec { protocol: protocol.0, from, to, packets, answer_ms: Some(answer_ms) };
        let command = worker::command(&self.binary.program, "exchange", &spec);
        let result = self.lab.host(host)?.spawn("exchange", command)?.event("result", READY_MAX)?;
        Ok(result["answered"].as_f64().unwrap_or(f64::NAN))
    }

    /// Signs in and has this opened: the process that keeps it open, and where it is.
    fn open(&self, case: Case, service: Service) -> Result<(Process, SocketAddrV4), LabError> {
        let name = format!("connect-{}-{}", case.name, service.name);
        let log = self.binary.log(&name);
        let (to, frontend) = (format!("alice@{}", service.name), GATE.to_string());
        let words = connect(&to, (&frontend, REALM), &self.password, &["--open", case.opens]);
        let process = self.binary.spawn(&self.lab, "client", &name, &words)?;
        let at = self.binary.wait_for(&name, || {
            let said = std::fs::read_to_string(&log).ok()?;
            let line = said.lines().find(|line| line.contains("programs may send"))?;
            let at = line.split("gate=").nth(1)?.split_whitespace().next()?;
            at.parse().ok().or_else(|| Some(SocketAddrV4::new(at.parse().ok()?, 0)))
        })?;
        Ok((process, at))
    }
}

/// A tunnel of WireGuard between the client and the service's host, by the program that needs no kernel for it.
struct Tunnel {
    _ends: [Process; 2],
}

impl Tunnel {
    /// Lays it: the service listens at `port`, the client sends to `open`.
    fn lay(stage: &Stage, port: u16, open: SocketAddrV4) -> Result<Self, LabError> {
        let hosts = ["client", "service"];
        // Their control sockets are in one directory.
        let names = [format!("wgc{}", std::process::id() % 10_000), format!("wgs{}", std::process::id() % 10_000)];
        let start = |host: &str, name: &String| {
            let mut command = Command::new("wireguard-go");
            command.args(["--foreground", name]).stderr(Stdio::null());
            stage.lab.host(host)?.spawn(name, command)
        };
        let ends = [start(hosts[0], &names[0])?, start(hosts[1], &names[1])?];
        let keys = [stage.key("client.key")?, stage.key("service.key")?];
        for (at, host) in hosts.into_iter().enumerate() {
            let (own, other) = (&names[at], 1 - at);
            let interface = || stage.lab.run(host, &["wg", "show", own]).ok();
            stage.binary.wait_for("wireguard-go", interface)?;
            let (key, allowed) = (text(&keys[at].0), format!("{}/32", TUNNEL[other]));
            let mut words = vec!["wg", "set", own, "private-key", &key];
            let (listen, endpoint) = (port.to_string(), open.to_string());
            words.extend(if at == 0 { ["listen-port", "40001"] } else { ["listen-port", &listen] });
            words.extend(["peer", &keys[other].1, "allowed-ips", &allowed]);
            if at == 0 {
                words.extend(["endpoint", &endpoint]);
            }
            stage.lab.run(host, &words)?;
            stage.lab.run(host, &["ip", "address", "add", &format!("{}/24", TUNNEL[at]), "dev", own])?;
            stage.lab.run(host, &["ip", "link", "set", own, "up"])?;
        }
        Ok(Self { _ends: ends })
    }
}

impl Stage {
    /// A key of a tunnel: its file and the public part.
    fn key(&self, name: &str) -> Result<(PathBuf, String), LabError> {
        let path = self.binary.directory.join(name);
        let private = self.lab.run("client", &["wg", "genkey"])?;
        write_private(&path, &private).during(|| format!("writing {}", path.display()))?;
        let public = self.lab.run("client", &["sh", "-c", &format!("wg pubkey < {}", path.display())])?;
        Ok((path, public.trim().to_owned()))
    }
}
