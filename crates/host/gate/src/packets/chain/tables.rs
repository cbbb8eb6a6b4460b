//! What a node holds: over a restart, and when others fill its tables.

use super::*;
use sluicegate_capability::secrets::seal;
use sluicegate_nat::Export;
use sluicegate_wire::capability::{
    Algorithm, Capability, FlowNonce, Kind, Repr,
    shim::{self, Carriage},
};

/// A gate from these seeds, in front of a private service with one grant.
fn gate_from(seeds: &Seeds, least_mode: DataMode) -> (Node<Hops>, Grant) {
    let mut config = Config::new("node", "out", "in", "/nowhere");
    config.capabilities = Capabilities { lines_max: Some(1_024), peers_max: 64, ..Capabilities::new(Role::Gate) };
    let (grant, _) = grant_for(CLIENT_ID, least_mode);
    let grants = std::iter::once(&grant);
    let pipeline = assemble::pipeline(&config, seeds, firewall(&[service(false)]), [1_500; 2], grants).unwrap();
    (Node::new(pipeline, [None, None], Hops { known: true }), grant)
}

/// Client, agent, router and a gate whose seeds are known.
fn sealed(seeds: &Seeds, least_mode: DataMode) -> (Chain, End, End) {
    let (mut chain, client, server) = private(CLIENT_ID, least_mode);
    let (mut gate, grant) = gate_from(seeds, least_mode);
    let target_ports = (5_000, 5_000);
    let spec = PinholeSpec {
        grant,
        service: 0,
        target: SERVER.into(),
        target_ports,
        filter: true,
        keys: grant_for(CLIENT_ID, least_mode).1,
    };
    samples::translator(&mut gate).install(START, UnixTime(samples::VALID.0.0 + 10), spec).unwrap();
    chain.nodes[2] = gate;
    (chain, client, server)
}

/// The gate process is killed and comes back with what it has on disk: its seeds, grants and flows.
fn restart(chain: &mut Chain, seeds: &Seeds, least_mode: DataMode) {
    let mut saved = Vec::new();
    Export::whole(samples::translator(&mut chain.nodes[2]), &mut |bytes| saved.extend_from_slice(bytes));
    let (mut gate, _) = gate_from(seeds, least_mode);
    let unix = UnixTime(samples::VALID.0.0 + 10 + chain.now.since(START).as_secs());
    sluicegate_nat::import(samples::translator(&mut gate), chain.now, unix, &saved).unwrap();
    chain.nodes[2] = gate;
}

#[test]
fn a_default_off_gate_that_restarts_loses_no_packet_and_checks_capabilities_that_it_minted_before() {
    let seeds = Seeds::draw((START, samples::VALID.0)).unwrap();
    let (mut chain, client, server) = sealed(&seeds, DataMode::Pinhole);
    converse(&mut chain, (client, server), 30);
    restart(&mut chain, &seeds, DataMode::Pinhole);
    converse(&mut chain, (client, server), 30);
    let reading = chain.nodes[2].published(chain.now, &[]).0;
    let demoted: u64 = reading.demoted.iter().sum();
    assert!((1..=4).contains(&demoted), "until the sender shows its list again: {demoted}");
    assert_eq!(reading.demoted[Reason::CapabilityForged as usize], 0, "the secrets are the same");
    assert!(reading.passed[0] <= 1, "at most one request, in case: {:?}", reading.passed);
    assert!(reading.passed[1] >= 1 && reading.passed[2] > 20, "{:?}", reading.passed);
}

#[test]
fn a_gate_whose_grant_demands_capabilities_takes_them_again_within_two_round_trips_of_a_restart() {
    let seeds = Seeds::draw((START, samples::VALID.0)).unwrap();
    let (mut chain, client, server) = sealed(&seeds, DataMode::Capability);
    chain.send(client, &datagram(CLIENT, SERVER, b"request"));
    chain.wait(Duration::from_millis(50));
    chain.arrived.clear();
    converse(&mut chain, (client, server), 30);
    restart(&mut chain, &seeds, DataMode::Capability);
    let mut lost = 0;
    for number in 0..30 {
        chain.send(client, &datagram(CLIENT, SERVER, &[number; 400]));
        let arrived = std::mem::take(&mut chain.arrived);
        // The lab has no delay: one packet later is one round trip later.
        assert!(!arrived.is_empty() || number < 2, "packet {number}");
        lost += usize::from(arrived.is_empty());
        if !arrived.is_empty() {
            chain.send(server, &datagram(SERVER, CLIENT, &[number; 300]));
            assert_eq!(chain.arrivals(client), [vec![number; 300]]);
        }
        // A demotion notice without a packet to ride on leaves by itself after 20 ms.
        chain.wait(Duration::from_millis(25));
    }
    assert!((1..=2).contains(&lost), "what the line knew by its nonce alone: {lost}");
    let reading = chain.nodes[2].published(chain.now, &[]).0;
    assert_eq!(reading.demoted[Reason::CapabilityForged as usize], 0);
    assert!(reading.passed[2] > 15, "{:?}", reading.passed);
}

/// Frames from other hosts that a router in a chain gets and sends on, outside the chain's own traffic.
fn through(chain: &mut Chain, index: usize, packet: &[u8]) -> Vec<Vec<u8>> {
    let kept = std::mem::take(&mut chain.arrived);
    let cables = std::mem::take(&mut chain.cables);
    chain.send((index, Port::OUTSIDE), packet);
    chain.cables = cables;
    std::mem::replace(&mut chain.arrived, kept).into_iter().map(|(_, packet)| packet).collect()
}

fn with_header(src: Ipv4Addr, dst: Ipv4Addr, repr: &Repr) -> Vec<u8> {
    let mut frame = FrameBuf::from_bytes(&datagram(src, dst, &[0; 64]));
    frame.with(|frame| shim::insert(frame, repr, Carriage::Native)).unwrap();
    frame.bytes().to_vec()
}

/// A stranger and a colluder, who grants: gets a capability for a flow of theirs and shows it. Whether it passed.
fn collude(chain: &mut Chain, index: usize, flow: u32) -> bool {
    let (src, dst) = (Ipv4Addr::from(0x0a64_0000 + flow), Ipv4Addr::new(192, 0, 2, 81));
    let (algorithm, client_id) = (Algorithm::SipHash, ClientId::NONE);
    let request = Repr::request(algorithm, client_id, 4, IpProtocol::UDP);
    let passed = through(chain, index, &with_header(src, dst, &request));
    let [request] = &passed[..] else { return false };
    let ip = Summary::parse(request).unwrap();
    let found = shim::find(&ip, request).unwrap().unwrap();
    let limits = Limits::new(Limits::KILOBYTES_MAX, 60).unwrap();
    let pre: Capability = found.packet(request).capability(0).unwrap();
    let repr = Repr::Regular {
        algorithm,
        kind: Kind::Capabilities,
        nonce: FlowNonce(flow.into()),
        client_id,
        limits: Some(limits),
        list: [seal(algorithm, pre, limits)].into_iter().collect(),
        pointer: 0,
        demoted: false,
        upper: IpProtocol::UDP,
        ret: None,
    };
    let before = chain.passed(index)[1];
    through(chain, index, &with_header(src, dst, &repr));
    chain.passed(index)[1] > before
}

/// Name and size of every table of a node.
fn sizes(chain: &Chain, index: usize) -> Vec<(&'static str, u64)> {
    let gauges = chain.nodes[index].published(chain.now, &[]).1;
    assert!(gauges.iter().all(|gauge| gauge.used <= gauge.max), "{gauges:?}");
    gauges.into_iter().map(|gauge| (gauge.name, gauge.max)).collect()
}

fn used(chain: &Chain, index: usize, name: &str) -> (u64, u64) {
    let gauges = chain.nodes[index].published(chain.now, &[]).1;
    let gauge = gauges.iter().find(|gauge| gauge.name == name).unwrap_or_else(|| panic!("{name}: {gauges:?}"));
    (gauge.used, gauge.max)
}

#[test]
fn a_router_full_of_colluders_flows_keeps_the_flow_that_it_had_and_grows_by_nothing() {
    let (mut chain, client, server) = public();
    converse(&mut chain, (client, server), 20);
    let before = sizes(&chain, 1);
    let refused = (0..5_000).filter(|flow| !collude(&mut chain, 1, *flow)).count();
    assert!(refused > 2_000, "{refused}");
    assert_eq!(sizes(&chain, 1), before);
    let reading = chain.nodes[1].published(chain.now, &[]).0;
    assert_eq!(reading.demoted[Reason::CapabilityTableFull as usize], refused as u64);
    let (lines, max) = used(&chain, 1, "capability_lines");
    assert!(lines * 10 >= max * 9, "{lines} of {max}");
    converse(&mut chain, (client, server), 40);
    let demoted: u64 = chain.nodes[1].published(chain.now, &[]).0.demoted.iter().sum();
    assert_eq!(demoted, refused as u64, "none of the honest flow");
}

#[test]
fn an_edge_asked_by_more_strangers_than_it_can_remember_goes_on_with_those_it_serves() {
    let (mut chain, client, server) = public();
    converse(&mut chain, (client, server), 20);
    let before = sizes(&chain, 3);
    for stranger in 0..2_000_u32 {
        let src = Ipv4Addr::from(0x0a64_0000 + stranger);
        let request = Repr::request(Algorithm::SipHash, ClientId(stranger), 4, IpProtocol::UDP);
        chain.send((1, Port::OUTSIDE), &with_header(src, SERVER, &request));
        chain.arrived.clear();
        if stranger % 100 == 99 {
            chain.wait(Duration::from_millis(5));
            chain.arrived.clear();
        }
    }
    assert_eq!(sizes(&chain, 3), before);
    converse(&mut chain, (client, server), 40);
    for index in [1, 2] {
        let reading = chain.nodes[index].published(chain.now, &[]).0;
        assert_eq!(reading.demoted.iter().sum::<u64>(), 0, "node {index}");
    }
}

#[test]
fn a_link_whose_queues_are_full_of_requests_and_floods_still_carries_the_flow_that_is_wanted() {
    let (mut chain, client, server) = public();
    chain.nodes[1] = node(Role::Router, |told| {
        told.boundary = [true, false];
        told.link_rates_bps = [None, Some(8_000_000)];
        told.request_queues_max = Some(64);
    });
    converse(&mut chain, (client, server), 20);
    let before = sizes(&chain, 1);
    let mut arrived = 0;
    for round in 0..100_u32 {
        // 10 ms of an 8 Mbit/s link are 10 kB; some 40 kB come.
        for number in 0..100_u32 {
            let src = Ipv4Addr::from(0x0a64_0000 + round * 100 + number);
            let request = Repr::request(Algorithm::SipHash, ClientId(number), 8, IpProtocol::UDP);
            chain.send((1, Port::OUTSIDE), &with_header(src, SERVER, &request));
            chain.send((1, Port::OUTSIDE), &datagram(src, SERVER, &[0; 200]));
        }
        chain.send(client, &datagram(CLIENT, SERVER, &[round as u8; 400]));
        for _ in 0..10 {
            chain.wait(Duration::from_millis(1));
        }
        let mine = |(end, packet): &(End, Vec<u8>)| {
            *end == server && Summary::parse(packet).is_ok_and(|ip| ip.src == IpAddr::V4(CLIENT))
        };
        arrived += chain.arrived.iter().filter(|arrival| mine(arrival)).count();
        chain.arrived.clear();
        chain.send(server, &datagram(SERVER, CLIENT, &[round as u8; 40]));
        chain.arrived.clear();
    }
    assert_eq!(sizes(&chain, 1), before);
    let lanes = chain.nodes[1].published(chain.now, &[]).0.lanes[1].unwrap();
    assert!(lanes[1].dropped + lanes[3].dropped > 5_000, "{lanes:?}");
    assert_eq!(lanes[2].dropped, 0, "nothing wanted was dropped: {lanes:?}");
    assert!(arrived >= 99, "{arrived} of 100");
}
