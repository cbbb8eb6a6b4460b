//! Standing pinholes: SIP that frontends relay, proved by packet MACs.

use std::net::IpAddr;
use std::time::Duration;

use crate::site::{packets::*, *};
use sluicegate_grant::{
    mac::{Ends, Purpose, SessionKeys},
    relay::RelayKeys,
};
use sluicegate_pinhole::{InstallError, Opened, Relay, StandingSpec};
use sluicegate_wire::{Reason, Verdict};

const SIP: u16 = 5_060;
const FRONTEND: (IpAddr, u16) = (OTHER_CLIENT, SIP);

fn keys(salt: u64) -> RelayKeys {
    RelayKeys::derive(&SessionKeys::from_bytes([[3; 16], [4; 16]]), salt)
}

fn standing(peer: IpAddr, salt: u64, rate: u64) -> StandingSpec {
    let relays = vec![Relay { peers: vec![peer], keys: keys(salt), shards: 2 }];
    let (service, target) = (TARGET_ID, TARGET);
    StandingSpec { service, target, target_port: SIP, peers: vec![peer], rate_bytes_per_s: rate, relays }
}

/// What a frontend's shard sends.
fn sealed(keys: &RelayKeys, (shard, seq): (u8, u64), from: (IpAddr, u16), gate: (IpAddr, u16), text: &[u8]) -> Vec<u8> {
    let ends = Ends { client: from, gate_port: gate.1 };
    let trailer = keys.keys().to_service.trailer(keys.sender(shard), Purpose::Datagram, seq, &ends, text);
    udp(from, gate, &[text, &trailer].concat())
}

fn gate_of(opened: Opened) -> (IpAddr, u16) {
    (opened.address, opened.ports.0)
}

fn text_of(packet: &[u8]) -> &[u8] {
    &packet[packet.len() - 4..]
}

#[test]
fn a_frontends_address_opens_nothing_and_its_key_does() {
    let mut site = Site::new();
    let opened = site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 1, 0)).unwrap();
    assert_eq!(site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 1, 0)).unwrap(), opened);
    let (gate, own) = (gate_of(opened), keys(1));
    let dropped = |site: &mut Site, packet: &[u8]| {
        let reason = site.outside_sends(packet).dropped();
        assert!(!site.gate.translator.pinholes().macs.signalling);
        reason
    };
    assert_eq!(
        dropped(&mut site, &udp(FRONTEND, gate, b"INVITE of a forger, longer than a trailer")),
        Reason::MacMissing
    );
    assert_eq!(dropped(&mut site, &udp(FRONTEND, gate, b"x")), Reason::MacMissing);
    let first = sealed(&own, (0, 1), FRONTEND, gate, b"ping");
    let inside = site.outside_sends(&first).inside();
    assert!(site.gate.translator.pinholes().macs.signalling);
    assert_eq!((ends(&inside), text_of(&inside)), ((FRONTEND, (TARGET, SIP)), &b"ping"[..]));
    assert_eq!(dropped(&mut site, &first), Reason::MacReplayed);
    // Each shard counts for itself, and a frontend has only so many.
    site.outside_sends(&sealed(&own, (1, 1), FRONTEND, gate, b"ping")).inside();
    assert_eq!(dropped(&mut site, &sealed(&own, (2, 1), FRONTEND, gate, b"ping")), Reason::MacMissing);
    let mut forged = sealed(&own, (0, 2), FRONTEND, gate, b"ping");
    let at = forged.len() - 24;
    forged[at] ^= 1;
    let payload = forged[28..].to_vec();
    assert_eq!(dropped(&mut site, &udp(FRONTEND, gate, &payload)), Reason::MacForged);
    // Under the tag are the ports too, and the address is still one of the frontends'.
    let moved = sealed(&own, (0, 3), FRONTEND, gate, b"ping")[28..].to_vec();
    assert_eq!(dropped(&mut site, &udp((OTHER_CLIENT, 4_000), gate, &moved)), Reason::MacForged);
    assert_eq!(dropped(&mut site, &udp((CLIENT, SIP), gate, &moved)), Reason::NoPinhole);
}

#[test]
fn what_the_service_says_to_a_frontend_is_sealed_and_nothing_else_leaves() {
    let mut site = Site::new();
    let gate = gate_of(site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 1, 0)).unwrap());
    let own = keys(1);
    for seq in 1..=3 {
        let out = site.inside_sends(&udp((TARGET, SIP), FRONTEND, b"REGISTER")).outside();
        assert_eq!(ends(&out), (gate, FRONTEND));
        let ends = Ends { client: FRONTEND, gate_port: gate.1 };
        let opened = own.keys().to_client.check(own.sender(0), &ends, &out[28..]).unwrap();
        assert_eq!((opened.purpose, opened.seq), (Purpose::Datagram, seq));
    }
    assert_eq!(site.inside_sends(&udp((TARGET, SIP), (CLIENT, 1), b"x")).dropped(), Reason::OutboundDisabled);
    assert_eq!(site.inside_sends(&udp((TARGET, 33_333), FRONTEND, b"x")).dropped(), Reason::OutboundDisabled);
}

#[test]
fn new_keys_replace_the_old_and_keep_the_port_and_without_keys_nothing_passes() {
    let mut site = Site::new();
    let opened = site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 1, 0)).unwrap();
    let gate = gate_of(opened);
    site.outside_sends(&sealed(&keys(1), (0, 1), FRONTEND, gate, b"ping")).inside();
    // The gate or the frontend has started anew: what was captured before is worth nothing.
    assert_eq!(site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 2, 0)).unwrap(), opened);
    let old = sealed(&keys(1), (0, 2), FRONTEND, gate, b"ping");
    assert_eq!(site.outside_sends(&old).dropped(), Reason::MacMissing);
    site.outside_sends(&sealed(&keys(2), (0, 1), FRONTEND, gate, b"ping")).inside();
    let mute = StandingSpec { relays: Vec::new(), ..standing(OTHER_CLIENT, 2, 0) };
    site.gate.translator.install_standing(site.now, mute).unwrap();
    let late = sealed(&keys(2), (0, 2), FRONTEND, gate, b"ping");
    assert_eq!(site.outside_sends(&late).dropped(), Reason::ModeTooWeak);
    site.gate.translator.set_services(&[]).unwrap();
    assert_eq!(site.used("pinholes"), 0);
}

#[test]
fn all_frontends_together_keep_to_the_rate_and_forgers_take_none_of_it() {
    let mut site = Site::new();
    let gate = gate_of(site.gate.translator.install_standing(site.now, standing(OTHER_CLIENT, 1, 1_000)).unwrap());
    site.wait(Duration::from_secs(90));
    for _ in 0..1_000 {
        assert_eq!(site.outside_sends(&udp(FRONTEND, gate, &payload(972))).dropped(), Reason::MacMissing);
    }
    let passed = (1..=200).filter(|seq| {
        let packet = sealed(&keys(1), (0, *seq), FRONTEND, gate, &payload(952));
        matches!(site.outside_sends(&packet).verdict, Verdict::Forward(_))
    });
    assert_eq!(passed.count(), 65);
}

#[test]
fn frontends_reach_the_sip_port_of_a_filter_service_of_either_version() {
    for (service, peer, stranger) in [(FILTERED, CLIENT, STRANGER), (FILTERED_V6, CLIENT_V6, STRANGER_V6)] {
        let mut site = Site::new();
        let id = services().into_iter().find(|known| known.address == service).unwrap().id;
        let spec = StandingSpec { service: id, target: service, ..standing(peer, 1, 0) };
        let opened = site.gate.translator.install_standing(site.now, spec.clone()).unwrap();
        assert_eq!((opened.address, opened.ports), (service, (SIP, SIP)));
        let (gate, from) = (gate_of(opened), (peer, SIP));
        assert_eq!(site.outside_sends(&udp(from, gate, b"x")).dropped(), Reason::MacMissing);
        site.outside_sends(&sealed(&keys(1), (0, 1), from, gate, b"ping")).inside();
        assert_eq!(site.outside_sends(&udp((stranger, 1), gate, b"x")).dropped(), Reason::NoPinhole);
        let mixed = StandingSpec { peers: vec![CLIENT, CLIENT_V6], ..spec };
        assert_eq!(site.gate.translator.install_standing(site.now, mixed), Err(InstallError::Peers));
    }
}
