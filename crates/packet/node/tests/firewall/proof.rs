//! Where an agent's packets come from is what it proves to the gate, and nothing else.

use std::net::IpAddr;

use crate::site::{packets::End, *};
use sluicegate_grant::{
    DataMode, FLAG_PROVES_ADDRESS, Grant,
    mac::{Ends, Purpose, Sealed, SessionKeys, TRAILER_LEN},
};
use sluicegate_pinhole::PinholeSpec;
use sluicegate_wire::{Port, Reason, Verdict, tcp, udp};

const CLIENT_ID: u32 = 0x00c0_ffee;
const PORT: u16 = 5_004;
/// Where the client signed in from, which is nothing to the gate.
const SIGNED_IN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 77));
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 78));

fn keys() -> SessionKeys {
    SessionKeys::from_bytes([[0x42; 16], [0x43; 16]])
}

fn agents(site: &mut Site, protocol: u8, target: IpAddr) -> (PinholeSpec, End) {
    let least_mode = if protocol == UDP { DataMode::Mac } else { DataMode::Pinhole };
    let flags = FLAG_PROVES_ADDRESS;
    let grant = Grant { flags, least_mode, client_id: CLIENT_ID, ..site.grant(protocol, SIGNED_IN) };
    let spec = PinholeSpec { keys: Some(keys()), ..spec(grant, target, (PORT, PORT)) };
    let opened = site.gate.translator.install(site.now, site.unix, spec.clone()).unwrap();
    (spec, (opened.address, opened.ports.0))
}

fn sealed(from: End, gate: End, purpose: Purpose, seq: u64, payload: &[u8]) -> Vec<u8> {
    let ends = Ends { client: from, gate_port: gate.1 };
    let trailer = keys().to_service.trailer(CLIENT_ID, purpose, seq, &ends, payload);
    packets::udp(from, gate, &[payload, &trailer].concat())
}

fn proof(from: End, gate: End, seq: u64) -> Vec<u8> {
    sealed(from, gate, Purpose::Proof, seq, b"")
}

fn syn(from: End, gate: End) -> Vec<u8> {
    packets::tcp(from, gate, tcp::Repr::new(0, 0, tcp::Control::Syn, 1))
}

/// What an acknowledgement says: number, address, port.
fn acknowledged(packet: &[u8], client: End, gate: End) -> (u64, Vec<u8>, u16) {
    let (number, address, port, _) = acknowledgement(packet, client, gate);
    (number, address, port)
}

/// As [`acknowledged`], and the bytes left.
fn acknowledgement(packet: &[u8], client: End, gate: End) -> (u64, Vec<u8>, u16, u64) {
    assert_eq!(ends(packet), (gate, client));
    let ip = sluicegate_wire::ip::Summary::parse(packet).unwrap();
    let text = udp::Packet::new_checked(ip.transport(packet)).unwrap().payload().to_vec();
    let checked = keys().to_client.check(CLIENT_ID, &Ends { client, gate_port: gate.1 }, &text);
    assert!(matches!(checked, Ok(Sealed { purpose: Purpose::Proof, .. })), "{checked:?}");
    assert_eq!(text.len(), 42 + TRAILER_LEN);
    let number = |range: std::ops::Range<usize>| u64::from_be_bytes(text[range].try_into().unwrap());
    let port = u16::from_be_bytes(text[24..26].try_into().unwrap());
    (number(0..8), text[8..24].to_vec(), port, number(26..34))
}

#[test]
fn a_sign_in_alone_opens_nothing_not_even_for_the_address_that_signed_in() {
    for (protocol, target) in [(TCP, TARGET), (UDP, TARGET), (TCP, FILTERED), (UDP, FILTERED)] {
        let mut site = Site::new();
        let (_, gate) = agents(&mut site, protocol, target);
        for from in [SIGNED_IN, CLIENT] {
            let packet = if protocol == TCP {
                syn((from, 9_000), gate)
            } else {
                packets::udp((from, 9_000), gate, b"let me in, please, now")
            };
            assert_eq!(site.outside_sends(&packet).dropped(), Reason::NoPinhole);
        }
    }
}

#[test]
fn a_proof_opens_tcp_to_its_sender_alone_and_is_answered_with_what_was_seen() {
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let (_, gate) = agents(&mut site, TCP, target);
        let client = (CLIENT, 40_000);
        let answer = site.outside_sends(&proof(client, gate, 1));
        assert_eq!(answer.verdict, Verdict::Reply);
        let IpAddr::V4(address) = CLIENT else { panic!("IPv4") };
        let seen = address.to_ipv6_mapped().octets().to_vec();
        assert_eq!(acknowledged(&answer.packet, client, gate), (1, seen, 40_000));
        site.outside_sends(&syn((CLIENT, 9_000), gate)).inside();
        assert_eq!(site.outside_sends(&syn((SIGNED_IN, 9_000), gate)).dropped(), Reason::NoPinhole);
    }
}

#[test]
fn a_copy_a_forgery_and_anothers_trailer_move_nothing_and_are_answered_by_nothing() {
    let mut site = Site::new();
    let (_, gate) = agents(&mut site, TCP, TARGET);
    let first = proof((CLIENT, 40_000), gate, 5);
    site.outside_sends(&first);
    for from in [CLIENT, ELSEWHERE] {
        let again = proof((from, 40_000), gate, 5);
        assert_eq!(site.outside_sends(&again).dropped(), Reason::MacReplayed);
        assert_eq!(site.outside_sends(&proof((from, 40_000), gate, 4)).dropped(), Reason::MacReplayed, "it is late");
        let mut forged = proof((from, 40_000), gate, 6);
        let last = forged.len() - 1;
        forged[last] ^= 1;
        forged[26..28].fill(0);
        assert_eq!(site.outside_sends(&forged).dropped(), Reason::MacForged);
        // A datagram's trailer is no proof.
        let datagram = sealed((from, 40_000), gate, Purpose::Translated, 7, b"");
        assert_eq!(site.outside_sends(&datagram).dropped(), Reason::NoPinhole);
        // Nor does it count at another port.
        let elsewhere = proof((from, 40_000), (gate.0, gate.1 + 1), 8);
        assert_eq!(site.outside_sends(&elsewhere).dropped(), Reason::NoPinhole);
    }
    site.outside_sends(&syn((CLIENT, 9_000), gate)).inside();
    assert_eq!(site.outside_sends(&syn((ELSEWHERE, 9_000), gate)).dropped(), Reason::NoPinhole);
}

#[test]
fn the_last_proof_counts() {
    let mut site = Site::new();
    let (_, gate) = agents(&mut site, TCP, TARGET);
    site.outside_sends(&proof((CLIENT, 40_000), gate, 1));
    site.outside_sends(&syn((CLIENT, 9_000), gate)).inside();
    site.outside_sends(&proof((ELSEWHERE, 40_000), gate, 2));
    assert_eq!(site.outside_sends(&syn((CLIENT, 9_001), gate)).dropped(), Reason::NoPinhole);
    site.outside_sends(&syn((ELSEWHERE, 9_001), gate)).inside();
    // Proved again from the same place, nothing changes.
    site.outside_sends(&proof((ELSEWHERE, 40_000), gate, 3));
    assert_eq!(site.used("flows"), 2);
}

#[test]
fn a_udp_datagram_proves_its_sender_by_itself_and_a_copy_from_elsewhere_does_not_take_it_away() {
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let (_, gate) = agents(&mut site, UDP, target);
        site.outside_sends(&sealed((CLIENT, 9_000), gate, Purpose::Translated, 1, b"hello")).inside();
        let copy = sealed((ELSEWHERE, 9_000), gate, Purpose::Translated, 1, b"hello");
        assert_eq!(site.outside_sends(&copy).dropped(), Reason::MacReplayed);
        site.outside_sends(&sealed((CLIENT, 9_000), gate, Purpose::Translated, 3, b"on")).inside();
        // One that came late at its own place is none at another.
        let late = sealed((ELSEWHERE, 9_000), gate, Purpose::Translated, 2, b"late");
        assert_eq!(site.outside_sends(&late).dropped(), Reason::MacReplayed);
        // The client moves.
        let there = site.outside_sends(&sealed((ELSEWHERE, 9_000), gate, Purpose::Translated, 4, b"here now")).inside();
        assert_eq!(ends(&there), ((ELSEWHERE, 9_000), (target, PORT)));
    }
}

#[test]
fn two_agents_behind_one_address_each_have_their_own_grant() {
    let mut site = Site::new();
    let (first, gate) = agents(&mut site, UDP, FILTERED);
    let other = SessionKeys::from_bytes([[7; 16]; 2]);
    let grant = Grant { client_id: 9, id: site.grant(UDP, SIGNED_IN).id, ..first.grant };
    let spec =
        PinholeSpec { grant, keys: Some(other.clone()), ..spec(site.grant(UDP, SIGNED_IN), FILTERED, (PORT, PORT)) };
    site.gate.translator.install(site.now, site.unix, spec).unwrap();
    let ends = Ends { client: (CLIENT, 9_001), gate_port: gate.1 };
    let trailer = other.to_service.trailer(9, Purpose::Datagram, 1, &ends, b"second");
    site.outside_sends(&sealed((CLIENT, 9_000), gate, Purpose::Datagram, 1, b"first")).inside();
    site.outside_sends(&packets::udp((CLIENT, 9_001), gate, &[&b"second"[..], &trailer].concat())).inside();
    site.outside_sends(&sealed((CLIENT, 9_000), gate, Purpose::Datagram, 2, b"first again")).inside();
}

#[test]
fn a_restart_remembers_where_the_client_is_and_lets_it_move_when_the_key_is_back() {
    let mut site = Site::new();
    let (spec, gate) = agents(&mut site, TCP, TARGET);
    site.outside_sends(&proof((CLIENT, 40_000), gate, 5));
    let mut bytes = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    let mut again = Site::new();
    again.gate = firewall(config(), [200; 16], 99);
    again.gate.translator.set_services(&services()).unwrap();
    sluicegate_nat::import(&mut again.gate.translator, again.now, again.unix, &bytes).unwrap();
    again.outside_sends(&syn((CLIENT, 9_000), gate)).inside();
    assert_eq!(again.outside_sends(&proof((ELSEWHERE, 40_000), gate, 6)).dropped(), Reason::ModeTooWeak);
    again.gate.translator.install(again.now, again.unix, spec).unwrap();
    assert_eq!(again.outside_sends(&proof((ELSEWHERE, 40_000), gate, 5)).dropped(), Reason::MacReplayed);
    assert_eq!(again.outside_sends(&proof((ELSEWHERE, 40_000), gate, 6)).verdict, Verdict::Reply);
    assert_eq!(again.outside_sends(&syn((CLIENT, 9_001), gate)).dropped(), Reason::NoPinhole);
}

#[test]
fn the_way_back_leaves_room_for_the_trailer() {
    let mut site = Site::new();
    let (_, gate) = agents(&mut site, UDP, TARGET);
    site.outside_sends(&sealed((CLIENT, 9_000), gate, Purpose::Translated, 1, b"hello")).inside();
    let mtu = usize::from(config().mtu[1]);
    let fits = packets::udp((TARGET, PORT), (CLIENT, 9_000), &vec![7; mtu - 28 - TRAILER_LEN]);
    assert_eq!(site.inside_sends(&fits).outside().len(), mtu);
    let long = |flags: u8| {
        let mut packet = packets::udp((TARGET, PORT), (CLIENT, 9_000), &vec![7; mtu - 28 - TRAILER_LEN + 1]);
        packet[6] = flags;
        sluicegate_wire::ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
        packet
    };
    // Fragments of what is sealed: the client's host puts them together again.
    assert_eq!(site.inside_sends(&long(0)).verdict, Verdict::Forward(Port::OUTSIDE));
    let long = long(0x40);
    let answer = site.inside_sends(&long);
    assert_eq!(answer.verdict, Verdict::Reply);
    assert_eq!(packets::message(&answer.packet).mtu() as usize, mtu - TRAILER_LEN);
}

#[test]
fn an_acknowledgement_says_what_is_left_of_the_budget_also_after_a_renewal() {
    let mut site = Site::new();
    let (spec, gate) = agents(&mut site, UDP, TARGET);
    let left = |site: &mut Site, seq| {
        let answer = site.outside_sends(&proof((CLIENT, 9_000), gate, seq));
        acknowledgement(&answer.packet, (CLIENT, 9_000), gate).3
    };
    assert_eq!(left(&mut site, 1), spec.grant.bytes);
    let datagram = sealed((CLIENT, 9_000), gate, Purpose::Datagram, 2, &[0; 1_000]);
    site.outside_sends(&datagram).inside();
    assert!(left(&mut site, 3) <= spec.grant.bytes - 1_000);
    let not_after = sluicegate_wire::UnixTime(spec.grant.not_after.0 + 100);
    let renewed = PinholeSpec { grant: Grant { not_after, ..spec.grant.clone() }, ..spec };
    site.gate.translator.install(site.now, site.unix, renewed.clone()).unwrap();
    assert_eq!(left(&mut site, 4), renewed.grant.bytes);
}

#[test]
fn what_has_no_ports_is_proved_at_a_port_of_udp() {
    const GRE: u8 = 47;
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let (_, (address, port)) = agents(&mut site, GRE, target);
        let is_nat = target == TARGET;
        assert_eq!(port, if is_nat { 20_000 } else { 9 }, "an external port, or that for discarding");
        let packet = packets::ip(CLIENT, address, sluicegate_wire::IpProtocol(GRE), &[0, 0, 8, 0, 1, 2, 3, 4]);
        assert_eq!(site.outside_sends(&packet).dropped(), Reason::NoPinhole);
        let (client, gate) = ((CLIENT, 40_000), (address, port));
        assert!(matches!(site.outside_sends(&proof(client, (address, port + 1), 1)).verdict, Verdict::Drop(_)));
        let answer = site.outside_sends(&proof(client, gate, 2));
        assert_eq!(answer.verdict, Verdict::Reply);
        assert_eq!(acknowledged(&answer.packet, client, gate).0, 2);
        site.outside_sends(&packet).inside();
        assert_eq!(site.used("external_ports_udp"), 0, "the port is not taken");
    }
}
