//! How long turns are with tables as full as their defaults let them be: on the packet thread's own objects, in the
//! processor's time of one thread, so that what else the machine does is not measured.

use super::{
    super::command::{Command, Commander, EVENTS_MAX},
    Commands,
};
use crate::packets::tunnels::Tunnels;
use crate::{assemble, config::Config, error::StartError, secrets::Seeds};
use nix::time::{ClockId, clock_gettime};
use sluicegate_bounded::Gauge;
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId, Protocol};
use sluicegate_node::{NextHop, Node};
use sluicegate_pinhole::{PinholeSpec, Service, ServiceMode};
use sluicegate_wire::{FrameBuf, Instant, Port, Reason, UnixTime, build};
use std::net::{IpAddr, Ipv4Addr};
use tokio::sync::{mpsc, oneshot};

const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENTS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const LIFETIME_S: u64 = 3_600;
/// Longer than a UDP flow lives that nobody answers.
const IDLE_S: u64 = 600;
/// Ports that a call asks for which finds none.
const BLOCK: u16 = 200;

/// What one kind of work did to turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Longest {
    /// Which work.
    pub work: &'static str,
    /// Turns that it took.
    pub turns: u32,
    /// The longest of them, in microseconds of processor time.
    pub us: f64,
    /// The most that one of them looked at: lines, words of ports, pinholes.
    pub looks: u32,
}

/// Fills the tables of a gate with default sizes and has them searched, saved, revoked and run out.
///
/// # Errors
/// Without random numbers for the seeds.
pub fn longest_turns() -> Result<Vec<Longest>, StartError> {
    let mut first = Stage::full()?;
    let ports = first.search_ports();
    let export = first.export();
    let revoke = first.revoke();
    let mut second = Stage::full()?;
    let idle = second.pass("idle_flows", IDLE_S);
    let mut third = Stage::full()?;
    let expiry = third.pass("expiry", LIFETIME_S + 1);
    Ok(vec![ports, export, revoke, idle, expiry])
}

struct Nowhere;

impl NextHop for Nowhere {
    fn link_address(&mut self, _: Port, _: IpAddr) -> Result<[u8; 6], Reason> {
        Ok([2; 6])
    }

    fn own_link_address(&self, _: Port) -> [u8; 6] {
        [2; 6]
    }

    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }
}

struct Stage {
    node: Node<Nowhere>,
    turn: Commands,
    commander: Commander,
    commands: mpsc::Receiver<Command>,
    ended: mpsc::Receiver<super::Ended>,
    now: Instant,
    ids: Vec<GrantId>,
}

const START: Instant = Instant::from_secs(100);
const UNIX: UnixTime = UnixTime(1_900_000_000);

impl Stage {
    /// Every pinhole, each with its part of all flows.
    fn full() -> Result<Self, StartError> {
        let mut config = Config::new("longest", "out", "in", "/nowhere");
        config.addresses = vec![GATE.into()];
        let seeds = Seeds::draw((START, UNIX))?;
        let mut firewall = assemble::firewall(&config, [1_500; 2])?;
        let service =
            Service { id: 0, mode: ServiceMode::Nat, address: TARGET.into(), outbound_all: false, open: false };
        // One service fits every table.
        let _ = firewall.translator.set_services(&[service]);
        let pipeline = assemble::pipeline(&config, &seeds, firewall, [1_500; 2], std::iter::empty())?;
        let (events, ended) = mpsc::channel(EVENTS_MAX);
        let (commander, commands) = Commander::new().unwrap();
        let node = Node::new(pipeline, [None, None], Nowhere);
        let turn = Commands::new(events, 0, Tunnels::none());
        let mut stage = Self { node, turn, commander, commands, ended, now: START, ids: Vec::new() };
        stage.fill(config.pinholes_max, config.flows_max);
        Ok(stage)
    }

    fn fill(&mut self, pinholes: u32, flows: u32) {
        for number in 0..pinholes {
            let spec = spec(number, (5_004, 5_004));
            let (id, client) = (spec.grant.id, spec.grant.client_address);
            let Some(firewall) = self.node.pipeline.firewall_mut() else { return };
            let Ok(opened) = firewall.translator.install(self.now, UNIX, spec) else { continue };
            self.ids.push(id);
            for port in 1..=flows / pinholes {
                let mut frame = FrameBuf::from_bytes(&datagram(client, port as u16, opened.ports.0));
                frame.with(|frame| firewall.on_packet(self.now, Port::OUTSIDE, frame));
            }
        }
        // Filling is no turn.
        self.node.looks();
        self.node.end_turn(self.now, self.now);
    }

    /// Turns until `done`, each with what is due before it.
    fn play(&mut self, work: &'static str, mut done: impl FnMut(&Self) -> bool) -> Longest {
        let mut longest = Longest { work, turns: 0, us: 0.0, looks: 0 };
        while !done(self) {
            let began = processor_us();
            if self.is_due() {
                self.node.handle_timeout(self.now);
            }
            self.turn.answer(self.now, &mut self.node, &mut self.commands);
            longest.us = longest.us.max(processor_us() - began);
            longest.looks = longest.looks.max(self.node.looks());
            longest.turns += 1;
            self.node.end_turn(self.now, self.now);
            while self.ended.try_recv().is_ok() {}
        }
        longest
    }

    fn is_due(&self) -> bool {
        self.node.poll_timeout().is_some_and(|due| due <= self.now)
    }

    fn asks<T>(&mut self, work: &'static str, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Longest {
        let Ok(mut answer) = self.commander.ask(command) else {
            return Longest { work, turns: 0, us: 0.0, looks: 0 };
        };
        self.play(work, |_| !matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)))
    }

    /// A call for many ports in a row where few are left: as many searches as there is room for in the queue.
    fn search_ports(&mut self) -> Longest {
        // Makes room for pinholes, not for ports, which rest.
        for id in self.ids.iter().take(64) {
            self.node.pipeline.revoke(self.now, *id);
        }
        self.node.looks();
        self.node.end_turn(self.now, self.now);
        for number in 0..63 {
            let spec = Box::new(spec((1 << 20) + number, (10_000, 10_000 + BLOCK - 1)));
            let _ = self.commander.ask(|answer| Command::Install { spec, unix: UNIX, answer });
        }
        let spec = Box::new(spec(1 << 21, (10_000, 10_000 + BLOCK - 1)));
        self.asks("port_search", |answer| Command::Install { spec, unix: UNIX, answer })
    }

    fn export(&mut self) -> Longest {
        self.asks("export", |answer| Command::Export { buffer: Vec::new(), answer })
    }

    fn revoke(&mut self) -> Longest {
        let ids = std::mem::take(&mut self.ids);
        self.asks("revoke", |answer| Command::Revoke { ids, answer })
    }

    /// Lets so much time pass at once.
    fn pass(&mut self, work: &'static str, seconds: u64) -> Longest {
        self.now = self.now + std::time::Duration::from_secs(seconds);
        self.play(work, |stage| !stage.is_due())
    }
}

/// The grant of a user and client of its own.
fn spec(number: u32, target_ports: (u16, u16)) -> PinholeSpec {
    let grant = Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol: Protocol::UDP,
        id: GrantId::of_call([1; 12], number),
        issuer: [1; 8],
        epoch: 0,
        not_before: UNIX,
        not_after: UNIX.plus_secs(LIFETIME_S),
        bytes: 1 << 20,
        client_id: 0,
        flows: 0,
        rate_100kbps: 0,
        client_address: Ipv4Addr::from_bits(CLIENTS + number).into(),
        client_ports: ANY_PORTS,
        gate_address: Ipv4Addr::UNSPECIFIED.into(),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: u64::from(number).to_be_bytes(),
    };
    PinholeSpec { grant, service: 0, target: TARGET.into(), target_ports, filter: false, keys: None }
}

fn datagram(client: IpAddr, port: u16, gate_port: u16) -> Vec<u8> {
    build::datagram((client, port), (IpAddr::V4(GATE), gate_port), b"x")
}

/// What the processor spent on this thread.
fn processor_us() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0.0, |time| time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::{STEP_LOOKS_MAX, TURN_LOOKS_MAX};

    #[test]
    fn no_turn_looks_at_more_than_it_may_with_full_default_tables() {
        let config = Config::new("longest", "out", "in", "/nowhere");
        let stage = Stage::full().unwrap();
        let gauges: Vec<_> = stage.node.pipeline.firewall().unwrap().gauges().collect();
        let used = |name: &str| gauges.iter().find(|gauge| gauge.name == name).unwrap().used as u32;
        assert!(stage.ids.len() as u32 >= config.pinholes_max * 99 / 100, "{}", stage.ids.len());
        assert!(used("flows") >= config.flows_max * 99 / 100, "{}", used("flows"));
        for longest in longest_turns().unwrap() {
            assert!(longest.looks <= TURN_LOOKS_MAX, "{longest:?}");
            // Each is work for more turns than one, or none of it was done.
            assert!(longest.turns > 1 && longest.looks > STEP_LOOKS_MAX / 4, "{longest:?}");
        }
    }
}
