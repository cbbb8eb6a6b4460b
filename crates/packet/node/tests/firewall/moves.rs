//! A client that proves another address keeps its connections, and the service keeps the address that it knows.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::End, *};
use sluicegate_grant::{
    FLAG_PROVES_ADDRESS, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_pinhole::PinholeSpec;
use sluicegate_wire::{
    Reason, Verdict,
    ip::Summary,
    tcp::{Control, Repr},
};

const CLIENT_ID: u32 = 0x00c0_ffee;
const PORT: u16 = 22;
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 78));
const THIRD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 79));

fn keys() -> SessionKeys {
    SessionKeys::from_bytes([[0x42; 16], [0x43; 16]])
}

fn agent(site: &mut Site, target: IpAddr) -> (PinholeSpec, End) {
    let grant = Grant { flags: FLAG_PROVES_ADDRESS, client_id: CLIENT_ID, ..site.grant(TCP, CLIENT) };
    let spec = PinholeSpec { keys: Some(keys()), ..spec(grant, target, (PORT, PORT)) };
    let opened = site.gate.translator.install(site.now, site.unix, spec.clone()).unwrap();
    (spec, (opened.address, opened.ports.0))
}

/// A proof from `address` that repeats a challenge, or nothing; the challenge in its acknowledgement.
fn proves(site: &mut Site, gate: End, address: IpAddr, number: u64, challenge: &[u8]) -> [u8; 8] {
    let from = (address, 40_000);
    let ends = Ends { client: from, gate_port: gate.1 };
    let trailer = keys().to_service.trailer(CLIENT_ID, Purpose::Proof, number, &ends, challenge);
    let answer = site.outside_sends(&packets::udp(from, gate, &[challenge, &trailer].concat()));
    assert_eq!(answer.verdict, Verdict::Reply);
    answer.packet[20 + 8 + 34..][..8].try_into().unwrap()
}

/// The client proves that it is at `address`, and that it hears there.
fn prove(site: &mut Site, gate: End, address: IpAddr, number: u64) {
    site.wait(Duration::from_secs(1));
    let challenge = proves(site, gate, address, number * 10, b"");
    if challenge != [0; 8] {
        assert_eq!(proves(site, gate, address, number * 10 + 1, &challenge), [0; 8], "nothing is left to follow");
    }
}

/// Opens a connection from [`CLIENT`]'s port 9,000.
fn connect(site: &mut Site, gate: End, target: IpAddr) {
    let (client, service) = ((CLIENT, 9_000), (target, PORT));
    site.outside_sends(&packets::tcp(client, gate, segment(Control::Syn, 100, None))).inside();
    site.inside_sends(&packets::tcp(service, client, segment(Control::Syn, 900, Some(101)))).outside();
    site.outside_sends(&packets::tcp(client, gate, segment(Control::None, 101, Some(901)))).inside();
}

fn segment(control: Control, seq: u32, ack: Option<u32>) -> Repr<'static> {
    Repr { ack, ..Repr::new(0, 0, control, seq) }
}

fn data(seq: u32, ack: u32, payload: &[u8]) -> Repr<'_> {
    Repr { payload, ..segment(Control::None, seq, Some(ack)) }
}

#[test]
fn a_connection_goes_on_from_each_address_that_is_proved_and_the_service_sees_the_first() {
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let (_, gate) = agent(&mut site, target);
        prove(&mut site, gate, CLIENT, 1);
        connect(&mut site, gate, target);
        let (mut sent, known) = (101, (CLIENT, 9_000));
        for (number, address) in [(2, ELSEWHERE), (3, THIRD), (4, CLIENT), (5, ELSEWHERE)] {
            prove(&mut site, gate, address, number);
            // What is under way to the client goes where it is, before it has said a word from there.
            let back = site.inside_sends(&packets::tcp((target, PORT), known, data(901, sent, b"down"))).outside();
            assert_eq!(ends(&back), (gate, (address, 9_000)));
            let there = site.outside_sends(&packets::tcp((address, 9_000), gate, data(sent, 905, b"up"))).inside();
            assert_eq!(ends(&there), (known, (target, PORT)));
            sent += 2;
            for other in [CLIENT, ELSEWHERE, THIRD, STRANGER].into_iter().filter(|other| *other != address) {
                let stranger = packets::tcp((other, 9_000), gate, data(sent, 905, b"mine"));
                assert!(matches!(site.outside_sends(&stranger).verdict, Verdict::Drop(_)), "{other}");
            }
            assert_eq!(site.used("flows"), 1);
        }
        // The window holds as before.
        let wild = packets::tcp((ELSEWHERE, 9_000), gate, data(sent.wrapping_add(1 << 30), 905, b"wild"));
        assert_eq!(site.outside_sends(&wild).dropped(), Reason::TcpWindow);
        // A new connection is seen from where the client is.
        let new = packets::tcp((ELSEWHERE, 9_001), gate, segment(Control::Syn, 1, None));
        assert_eq!(ends(&site.outside_sends(&new).inside()), ((ELSEWHERE, 9_001), (target, PORT)));
    }
}

#[test]
fn who_does_not_hear_where_it_says_that_it_is_has_nothing_sent_there() {
    let mut site = Site::new();
    let (_, gate) = agent(&mut site, TARGET);
    prove(&mut site, gate, CLIENT, 1);
    connect(&mut site, gate, TARGET);
    let of_client = site.now;
    // The client forges its source address: it cannot know what the victim is asked.
    let asked = proves(&mut site, gate, ELSEWHERE, 20, b"");
    let elsewhere = proves(&mut site, gate, THIRD, 21, b"");
    for (number, guess) in [(22, elsewhere), (23, [0; 8]), (24, [0xff; 8])] {
        assert_ne!(guess, asked);
        proves(&mut site, gate, ELSEWHERE, number, &guess);
        let down = packets::tcp((TARGET, PORT), (CLIENT, 9_000), data(901, 101, b"down"));
        assert_eq!(ends(&site.inside_sends(&down).outside()), (gate, (CLIENT, 9_000)));
    }
    // Nor does it help to have been there long ago.
    site.wait(Duration::from_secs(30));
    assert!(site.now > of_client);
    proves(&mut site, gate, ELSEWHERE, 25, &asked);
    let down = packets::tcp((TARGET, PORT), (CLIENT, 9_000), data(901, 101, b"down"));
    assert_eq!(ends(&site.inside_sends(&down).outside()), (gate, (CLIENT, 9_000)));
}

#[test]
fn errors_about_a_connection_that_moved_are_translated_both_ways() {
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let (_, gate) = agent(&mut site, target);
        prove(&mut site, gate, CLIENT, 1);
        connect(&mut site, gate, target);
        prove(&mut site, gate, ELSEWHERE, 2);
        let quoted = |packet: &[u8]| {
            let quoted = packets::message(packet).quoted().to_vec();
            let ip = Summary::parse_quoted(&quoted).unwrap();
            let port = |at: usize| u16::from_be_bytes(ip.transport(&quoted)[at..at + 2].try_into().unwrap());
            ((ip.src, port(0)), (ip.dst, port(2)))
        };
        let too_big = |src, dst, packet: &[u8]| packets::too_big(src, dst, 1_400, packet);
        let down = packets::tcp((target, PORT), (CLIENT, 9_000), data(901, 101, b"down"));
        let sent = site.inside_sends(&down).outside();
        for router in [STRANGER, ELSEWHERE] {
            site.wait(Duration::from_secs(2));
            let error = site.outside_sends(&too_big(router, gate.0, &sent)).inside();
            let outer = Summary::parse(&error).unwrap();
            let seen = if router == ELSEWHERE { CLIENT } else { router };
            assert_eq!((outer.src, outer.dst), (seen, target));
            assert_eq!(quoted(&error), ((target, PORT), (CLIENT, 9_000)));
        }
        let up = packets::tcp((ELSEWHERE, 9_000), gate, data(101, 901, b"up"));
        let arrived = site.outside_sends(&up).inside();
        let error = site.inside_sends(&too_big(target, CLIENT, &arrived)).outside();
        let outer = Summary::parse(&error).unwrap();
        assert_eq!((outer.src, outer.dst), (gate.0, ELSEWHERE));
        assert_eq!(quoted(&error), ((ELSEWHERE, 9_000), gate));
    }
}

#[test]
fn a_connection_that_moved_survives_a_restart_and_moves_again() {
    let mut site = Site::new();
    let (spec, gate) = agent(&mut site, TARGET);
    prove(&mut site, gate, CLIENT, 1);
    connect(&mut site, gate, TARGET);
    prove(&mut site, gate, ELSEWHERE, 2);
    let mut bytes = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    let mut again = Site::new();
    again.gate = firewall(config(), [200; 16], 99);
    again.gate.translator.set_services(&services()).unwrap();
    assert_eq!(sluicegate_nat::import(&mut again.gate.translator, again.now, again.unix, &bytes).unwrap().flows, 1);
    again.gate.translator.install(again.now, again.unix, spec).unwrap();
    for (number, address) in [(3, ELSEWHERE), (4, THIRD)] {
        prove(&mut again, gate, address, number);
        let down = packets::tcp((TARGET, PORT), (CLIENT, 9_000), data(901, 101, b"down"));
        assert_eq!(ends(&again.inside_sends(&down).outside()), (gate, (address, 9_000)));
    }
}

#[test]
fn a_translator_that_does_not_know_the_connection_yet_cannot_reset_it() {
    let mut site = Site::new();
    let (_, gate) = agent(&mut site, TARGET);
    prove(&mut site, gate, CLIENT, 1);
    connect(&mut site, gate, TARGET);
    prove(&mut site, gate, ELSEWHERE, 2);
    let reset = packets::tcp((ELSEWHERE, 9_000), gate, segment(Control::Rst, 101, None));
    assert_eq!(site.outside_sends(&reset).dropped(), Reason::TcpState);
    site.outside_sends(&packets::tcp((ELSEWHERE, 9_000), gate, data(101, 901, b"here"))).inside();
    let reset = packets::tcp((ELSEWHERE, 9_000), gate, segment(Control::Rst, 105, None));
    site.outside_sends(&reset).inside();
}

#[test]
fn a_client_that_is_at_two_places_in_turn_moves_its_connections_once_a_second() {
    let mut site = Site::new();
    let (_, gate) = agent(&mut site, TARGET);
    prove(&mut site, gate, CLIENT, 1);
    connect(&mut site, gate, TARGET);
    prove(&mut site, gate, ELSEWHERE, 2);
    let is_at = |site: &mut Site, address| {
        let down = packets::tcp((TARGET, PORT), (CLIENT, 9_000), data(901, 101, b"down"));
        assert_eq!(ends(&site.inside_sends(&down).outside()), (gate, (address, 9_000)));
    };
    for number in 3..100 {
        let challenge = proves(&mut site, gate, THIRD, number * 10, b"");
        assert_ne!(proves(&mut site, gate, THIRD, number * 10 + 1, &challenge), [0; 8], "it may try again");
        is_at(&mut site, ELSEWHERE);
    }
    site.wait(Duration::from_secs(1));
    let challenge = proves(&mut site, gate, THIRD, 1_000, b"");
    assert_eq!(proves(&mut site, gate, THIRD, 1_001, &challenge), [0; 8]);
    is_at(&mut site, THIRD);
}

#[test]
fn who_has_the_same_ends_already_keeps_them_and_nothing_is_left_over() {
    let mut site = Site::new();
    let (_, gate) = agent(&mut site, FILTERED);
    prove(&mut site, gate, CLIENT, 1);
    connect(&mut site, gate, FILTERED);
    // Another client signs in from where the first is going, and uses the same port.
    let other = site.grant(TCP, ELSEWHERE);
    site.install(other, FILTERED, (PORT, PORT));
    let (client, service) = ((ELSEWHERE, 9_000), (FILTERED, PORT));
    site.outside_sends(&packets::tcp(client, gate, segment(Control::Syn, 5, None))).inside();
    site.inside_sends(&packets::tcp(service, client, segment(Control::Syn, 7, Some(6)))).outside();
    site.outside_sends(&packets::tcp(client, gate, segment(Control::None, 6, Some(8)))).inside();
    assert_eq!(site.used("flows"), 2);
    prove(&mut site, gate, ELSEWHERE, 2);
    assert_eq!(site.used("flows"), 1);
    let down = packets::tcp(service, client, data(8, 6, b"still mine"));
    assert_eq!(ends(&site.inside_sends(&down).outside()), (service, client));
    assert!(matches!(
        site.inside_sends(&packets::tcp(service, (CLIENT, 9_000), data(901, 101, b"?"))).verdict,
        Verdict::Drop(_)
    ));
}
