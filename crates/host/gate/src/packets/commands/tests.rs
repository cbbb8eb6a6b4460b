use super::*;
use crate::packets::tunnels::Tunnels;
use crate::{
    packets::command::{Commander, EVENTS_MAX},
    samples::{self, Hops, VALID},
};
use sluicegate_api::Role;
use sluicegate_grant::Grant;
use sluicegate_nat::Config;
use sluicegate_pinhole::{EndCause, PinholeSpec, Service, ServiceMode};
use sluicegate_wire::UnixTime;

const NOW: Instant = Instant::from_secs(100);
const UNIX: UnixTime = UnixTime(VALID.0.0 + 10);

fn empty_node() -> Node<Hops> {
    let IpAddr::V4(gate_address) = samples::GATE_ADDRESS else { panic!() };
    let config = Config { gate_address, pinholes_max: 8192, ..Config::default() };
    let service = Service { id: 0, mode: ServiceMode::Nat, address: samples::TARGET, outbound_all: false, open: false };
    let firewall = samples::firewall(config, &[service]);
    Node::new(samples::pipeline(Role::Gate, firewall), [None, None], Hops { known: true })
}

fn spec(id: GrantId) -> Box<PinholeSpec> {
    let grant = Grant { id, ..samples::grant(1) };
    let (target, target_ports) = (samples::TARGET, (5004, 5004));
    Box::new(PinholeSpec { grant, service: 0, target, target_ports, filter: false, keys: None })
}

fn id(number: u32) -> GrantId {
    GrantId::of_call([1; 12], number)
}

#[test]
fn installs_and_ends_are_stamped_in_the_order_in_which_they_happened() {
    let (events, mut ended) = mpsc::channel(EVENTS_MAX);
    let (commander, mut commands) = Commander::new().unwrap();
    let (mut turn, mut node) = (Commands::new(events, 40, Tunnels::none()), empty_node());
    let install = |number| commander.ask(|answer| Command::Install { spec: spec(id(number)), unix: UNIX, answer });
    let revoke = |number| commander.ask(|answer| Command::Revoke { ids: vec![id(number)], answer });
    let mut first = install(1).unwrap();
    let mut revoked = revoke(1).unwrap();
    let mut second = install(2).unwrap();
    let mut nothing = revoke(3).unwrap();
    turn.answer(NOW, &mut node, &mut commands);
    let stamp = |answer: &mut oneshot::Receiver<Result<Installed, _>>| -> u64 {
        answer.try_recv().unwrap().map_err(|error: InstallError| error).unwrap().stamp
    };
    assert_eq!((stamp(&mut first), stamp(&mut second)), (41, 43));
    assert_eq!((revoked.try_recv(), nothing.try_recv()), (Ok(1), Ok(0)));
    let end = ended.try_recv().unwrap();
    assert_eq!((end.id, end.cause, end.stamp), (id(1), EndCause::Revoked, 42));
    assert!(ended.try_recv().is_err());
}

#[test]
fn ends_that_the_full_queue_does_not_take_come_later_and_in_order() {
    const GRANTS: u32 = 5;
    let (events, mut ended) = mpsc::channel(2);
    let (commander, mut commands) = Commander::new().unwrap();
    let (mut turn, mut node) = (Commands::new(events, 0, Tunnels::none()), empty_node());
    for number in 0..GRANTS {
        let _ = commander.ask(|answer| Command::Install { spec: spec(id(number)), unix: UNIX, answer });
    }
    let ids = (0..GRANTS).map(id).collect();
    let _ = commander.ask(|answer| Command::Revoke { ids, answer });
    let mut seen = Vec::new();
    for _ in 0..GRANTS {
        turn.answer(NOW, &mut node, &mut commands);
        while let Ok(end) = ended.try_recv() {
            seen.push(end.id);
        }
    }
    assert_eq!(seen, (0..GRANTS).map(id).collect::<Vec<_>>());
}

/// Turns until `done`, each with what is due before it; none may look at more than it may.
fn turns(
    node: &mut Node<Hops>,
    turn: &mut Commands,
    commands: &mut mpsc::Receiver<Command>,
    done: impl Fn() -> bool,
) -> u32 {
    for count in 1..100_000 {
        if node.poll_timeout().is_some_and(|due| due <= NOW) {
            node.handle_timeout(NOW);
        }
        turn.answer(NOW, node, commands);
        assert!(node.looks() <= TURN_LOOKS_MAX, "{}", node.looks());
        node.end_turn(NOW, NOW);
        if done() {
            return count;
        }
    }
    panic!("it never ends");
}

fn sends(node: &mut Node<Hops>, source: IpAddr, port: u16, gate_port: u16) {
    let end = |address, port| match address {
        IpAddr::V4(v4) => std::net::SocketAddrV4::new(v4, port),
        IpAddr::V6(_) => panic!(),
    };
    let udp = samples::udp_frame(Port::OUTSIDE, end(source, port), end(samples::GATE_ADDRESS, gate_port), b"x");
    let mut frame = sluicegate_wire::FrameBuf::from_bytes(&udp[14..]);
    let verdict = frame.with(|frame| node.pipeline.firewall_mut().unwrap().on_packet(NOW, Port::OUTSIDE, frame));
    assert_eq!(verdict, sluicegate_wire::Verdict::Forward(Port::INSIDE));
}

#[test]
fn a_revoke_of_everything_and_an_export_never_make_a_turn_long() {
    const GRANTS: u32 = 2_000;
    const FLOWS: u16 = 20;
    let (events, mut ended) = mpsc::channel(EVENTS_MAX);
    let (commander, mut commands) = Commander::new().unwrap();
    let (mut turn, mut node) = (Commands::new(events, 0, Tunnels::none()), empty_node());
    for number in 0..GRANTS {
        let mut spec = spec(id(number));
        spec.grant.user_pseudonym = u64::from(number).to_be_bytes();
        spec.grant.client_address = IpAddr::from((0xc633_0000 + number).to_be_bytes());
        spec.grant.flows = 0;
        let opened = samples::translator(&mut node).install(NOW, UNIX, *spec.clone()).unwrap();
        for port in 1..=FLOWS {
            sends(&mut node, spec.grant.client_address, port, opened.ports.0);
        }
    }
    // Filling the tables was no turn.
    samples::translator(&mut node).take_looks();
    let exported = commander.ask(|answer| Command::Export { buffer: Vec::new(), answer }).unwrap();
    let exported = std::cell::RefCell::new(exported);
    let tables = std::cell::RefCell::new(None);
    let saved = || {
        *tables.borrow_mut() = exported.borrow_mut().try_recv().ok();
        tables.borrow().is_some()
    };
    let spread = turns(&mut node, &mut turn, &mut commands, saved);
    assert!(spread > 50, "{spread}");
    let mut again = empty_node();
    let imported =
        sluicegate_nat::import(samples::translator(&mut again), NOW, UNIX, &tables.take().unwrap().tables).unwrap();
    assert_eq!((imported.pinholes, imported.flows), (GRANTS, GRANTS * u32::from(FLOWS)));

    let ids = (0..GRANTS).map(id).collect();
    let revoked = commander.ask(|answer| Command::Revoke { ids, answer }).unwrap();
    let after = commander.ask(|answer| Command::Observe { on: false, answer }).unwrap();
    let (revoked, after) = (std::cell::RefCell::new(revoked), std::cell::RefCell::new(after));
    let spread = turns(&mut node, &mut turn, &mut commands, || after.borrow_mut().try_recv().is_ok());
    assert!(spread > 40, "{spread}");
    assert_eq!(revoked.borrow_mut().try_recv(), Ok(GRANTS as usize), "answered before what was asked after it");
    assert_eq!(std::iter::from_fn(|| ended.try_recv().ok()).count(), GRANTS as usize);
    let [_, looks] = node.published(NOW, &[]).0.turn;
    assert!(looks > 500 && looks <= TURN_LOOKS_MAX.into(), "{looks}");
}

#[test]
fn one_turn_answers_a_bounded_number_of_questions() {
    let (events, _ended) = mpsc::channel(EVENTS_MAX);
    let (commander, mut commands) = Commander::new().unwrap();
    let (mut turn, mut node) = (Commands::new(events, 0, Tunnels::none()), empty_node());
    for _ in 0..COMMANDS_PER_TURN_MAX + 1 {
        let _ = commander.ask(|answer| Command::Observe { on: true, answer });
    }
    turn.answer(NOW, &mut node, &mut commands);
    assert_eq!(commander.waiting(), 1);
    turn.answer(NOW, &mut node, &mut commands);
    assert_eq!(commander.waiting(), 0);
}
