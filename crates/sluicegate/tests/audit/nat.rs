//! Translation that no sender can turn against another.
//!
//! Each finding in short, on the translator itself; `crates/packet/node/tests/firewall` holds the whole of it.

#[path = "../../../packet/node/tests/firewall/site/mod.rs"]
pub(crate) mod site;

mod errors;

use site::{packets::*, *};
use sluicegate_grant::{
    DataMode, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_pinhole::PinholeSpec;
use sluicegate_wire::{
    Reason, Verdict,
    tcp::{Control, Repr},
};
use std::{net::IpAddr, time::Duration};

/// The `filter` service that two clients behind one address share.
const SERVICE: End = (FILTERED, 5_004);

#[test]
fn nat_01_a_later_sign_in_behind_the_same_address_locks_nobody_out() {
    let mut site = Site::new();
    let key = |client_id: u32| SessionKeys::from_bytes([[client_id as u8; 16]; 2]);
    let grants: Vec<Grant> = (1..=70)
        .map(|client_id| {
            let grant = Grant { least_mode: DataMode::Mac, client_id, ..site.grant(UDP, CLIENT) };
            let spec = PinholeSpec { keys: Some(key(client_id)), ..spec(grant.clone(), FILTERED, (5_004, 5_004)) };
            site.gate.translator.install(site.now, site.unix, spec).unwrap();
            grant
        })
        .collect();
    for grant in &grants {
        let client = (CLIENT, 40_000 + grant.client_id as u16);
        let (ends, keys) = (Ends { client, gate_port: SERVICE.1 }, key(grant.client_id));
        let trailer = keys.to_service.trailer(grant.client_id, Purpose::Datagram, 1, &ends, b"hi");
        site.outside_sends(&udp(client, SERVICE, &[&b"hi"[..], &trailer].concat())).inside();
        assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 50, "each pays for its own");
    }
    // Without a proof: whose bytes are spent stands in nobody's way.
    let phone = site.grant(UDP, CLIENT);
    site.install(phone.clone(), FILTERED, (5_004, 5_004));
    let poor = Grant { bytes: 1, ..site.grant(UDP, CLIENT) };
    site.install(poor, FILTERED, (5_004, 5_004));
    let _ = site.outside_sends(&udp((CLIENT, 50_000), SERVICE, b"x"));
    site.outside_sends(&udp((CLIENT, 50_001), SERVICE, b"x")).inside();
    assert_eq!(site.gate.translator.usage(phone.id).unwrap().bytes_used, 29);
}

/// A TCP connection through the gate, numbers 1,000 and 9,000, and where it is seen.
fn connected(site: &mut Site) -> (End, End, End) {
    let (_, gate) = site.open(TCP, 22);
    let (client, server) = ((CLIENT, 40_000), (TARGET, 22));
    site.outside_sends(&tcp(client, gate, segment(Control::Syn, 1_000, None))).inside();
    site.inside_sends(&tcp(server, client, segment(Control::Syn, 9_000, Some(1_001)))).outside();
    site.outside_sends(&tcp(client, gate, segment(Control::None, 1_001, Some(9_001)))).inside();
    (client, gate, server)
}

fn segment(control: Control, seq: u32, ack: Option<u32>) -> Repr<'static> {
    Repr { ack, ..Repr::new(0, 0, control, seq) }
}

#[test]
fn nat_02_blind_resets_and_syns_do_not_cut_a_connection() {
    let mut site = Site::new();
    let (client, gate, server) = connected(&mut site);
    for seq in (0..=u32::MAX).step_by(1 << 15) {
        let _ = site.outside_sends(&tcp(client, gate, segment(Control::Rst, seq, None)));
        let _ = site.outside_sends(&tcp(client, gate, segment(Control::Syn, seq, None)));
    }
    site.inside_sends(&tcp(server, client, segment(Control::None, 9_001, Some(1_001)))).outside();
    site.outside_sends(&tcp(client, gate, segment(Control::None, 1_001, Some(9_001)))).inside();
    site.wait(Duration::from_secs(600));
    assert_eq!(site.used("flows"), 1, "it counts as established");
}

#[test]
fn nat_03_a_client_that_crashed_connects_again() {
    let mut site = Site::new();
    let (client, gate, server) = connected(&mut site);
    let syn = tcp(client, gate, segment(Control::Syn, 3_000_000_000, None));
    site.outside_sends(&syn).inside();
    site.inside_sends(&tcp(server, client, segment(Control::None, 9_001, Some(1_001)))).outside();
    site.outside_sends(&tcp(client, gate, segment(Control::Rst, 1_001, None))).inside();
    site.outside_sends(&syn).inside();
    site.inside_sends(&tcp(server, client, segment(Control::Syn, 5, Some(3_000_000_001)))).outside();
    site.outside_sends(&tcp(client, gate, segment(Control::None, 3_000_000_001, Some(6)))).inside();
}

/// Also a flood of fragments at a granted tuple, which needs no port: the client's own packets pass throughout.
#[test]
fn nat_04_forged_fragments_do_not_stop_the_clients_own() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let client = (CLIENT, 9_000);
    for round in 0..100u16 {
        for forged in 0..50 {
            let parts = fragments(&udp(client, gate, &payload(3_000)), round * 51 + forged, 1_000);
            let _ = site.outside_sends(&parts[1 + usize::from(forged % 3)]);
        }
        let parts = fragments(&udp(client, gate, &payload(3_000)), round * 51 + 50, 1_000);
        parts.iter().for_each(|part| drop(site.outside_sends(part).inside()));
    }
}

#[test]
fn security_28_buffers_of_fragments_are_shared_by_source() {
    let mut site = Site::new();
    let mut open = |host: u8| {
        let client = IpAddr::from([198, 51, 100, host]);
        let grant = site.grant(UDP, client);
        let opened = site.install(grant, TARGET, (5_004, 5_004));
        ((client, 9_000), (opened.address, opened.ports.0))
    };
    let ends: Vec<(End, End)> = (1..=6).map(&mut open).collect();
    for (client, gate) in &ends[1..] {
        for id in 0..8 {
            let parts = fragments(&udp(*client, *gate, &payload(900)), id, 96);
            parts[1..9].iter().for_each(|part| assert_eq!(site.outside_sends(part).verdict, Verdict::Queue));
        }
    }
    assert_eq!(site.gauge("fragments_held"), (256, 256));
    let (client, gate) = ends[0];
    let parts = fragments(&udp(client, gate, &payload(3_000)), 1, 1_000);
    parts[1..].iter().for_each(|part| assert_eq!(site.outside_sends(part).verdict, Verdict::Queue));
    site.outside_sends(&parts[0]).inside();
    assert_eq!(site.released().len(), 3);
}

/// An error of that length about a UDP packet from `gate` to the client's port 9,000, as anybody may send it.
fn error_about(gate: End, len: usize) -> Vec<u8> {
    unreachable(STRANGER, gate.0, &udp(gate, (CLIENT, 9_000), &payload(len)), 8 + len)
}

#[test]
fn nat_08_errors_about_one_flow_leave_errors_to_others() {
    let mut site = Site::new();
    let mut open = |port| {
        let (_, gate) = site.open(UDP, port);
        exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, port));
        gate
    };
    let (noisy, quiet) = (open(5_004), open(5_006));
    for _ in 0..5_000 {
        let _ = site.outside_sends(&error_about(noisy, 8));
    }
    site.outside_sends(&error_about(quiet, 8)).inside();
    let untouched = error_about(noisy, 8);
    let refused = site.outside_sends(&untouched);
    assert_eq!(refused.packet, untouched, "a dropped packet is left as it came");
    assert_eq!(refused.dropped(), Reason::IcmpRate);
}

#[test]
fn security_03_errors_are_paid_by_the_flow_they_are_about() {
    let mut site = Site::new();
    let grant = Grant { bytes: 2_000, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant.clone(), TARGET, (5_004, 5_004));
    let gate = (opened.address, opened.ports.0);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let mut passed = 0;
    for _ in 0..100 {
        if let Verdict::Forward(_) = site.outside_sends(&error_about(gate, 1_400)).verdict {
            passed += 576;
        }
        site.wait(Duration::from_millis(100));
    }
    assert_eq!(passed, 3 * 576, "cut, charged, and refused when the bytes are spent");
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 32 + passed);
}

#[test]
fn security_03_a_flow_under_a_mac_takes_no_error_but_too_big() {
    let mut site = Site::new();
    let keys = SessionKeys::from_bytes([[7; 16]; 2]);
    let grant = Grant { least_mode: DataMode::Mac, client_id: 7, ..site.grant(UDP, CLIENT) };
    let spec = PinholeSpec { keys: Some(keys.clone()), ..spec(grant, TARGET, (5_004, 5_004)) };
    let opened = site.gate.translator.install(site.now, site.unix, spec).unwrap();
    let gate = (opened.address, opened.ports.0);
    let ends = Ends { client: (CLIENT, 9_000), gate_port: gate.1 };
    let trailer = keys.to_service.trailer(7, Purpose::Datagram, 1, &ends, b"hi");
    site.outside_sends(&udp((CLIENT, 9_000), gate, &[&b"hi"[..], &trailer].concat())).inside();
    for len in [8, 1_000] {
        assert_eq!(site.outside_sends(&error_about(gate, len)).dropped(), Reason::IcmpType);
    }
}

#[test]
fn nat_11_what_a_damaged_segment_says_and_what_did_not_leave_count_for_nothing() {
    let mut site = Site::new();
    let (client, gate, _) = connected(&mut site);
    let mut reset = tcp(client, gate, segment(Control::Rst, 1_001, None));
    reset[30] ^= 0x55;
    assert_eq!(site.outside_sends(&reset).dropped(), Reason::TransportHeaderInvalid);
    site.wait(Duration::from_secs(600));
    assert_eq!(site.used("flows"), 1);
    let (grant, gate) = site.open(UDP, 5_004);
    site.outside_sends(&udp((CLIENT, 9_000), gate, b"hello")).inside();
    // A full lane, or no neighbour: the packet path says so.
    site.gate.translator.refund();
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 0);
}
