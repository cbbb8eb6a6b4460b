//! Translation that no sender can turn against another.
//!
//! Each finding in short, on the translator itself; `crates/nat/tests` holds the whole of it.

#[path = "../../../nat/tests/site/mod.rs"]
mod site;

use site::{packets::*, *};
use sluicegate_capability::{Grant, Mode, mac::SessionKey};
use sluicegate_nat::PinholeSpec;
use sluicegate_wire::tcp::{Control, Repr};
use std::time::Duration;

/// The `filter` service that two clients behind one address share.
const SERVICE: End = (FILTERED, 5_004);

#[test]
fn nat_01_a_later_sign_in_behind_the_same_address_locks_nobody_out() {
    let mut site = Site::new();
    let key = |client_id: u32| SessionKey::from_bytes([client_id as u8; 16]);
    let grants: Vec<Grant> = (1..=70)
        .map(|client_id| {
            let grant = Grant { least_mode: Mode::Mac, client_id, ..site.grant(UDP, CLIENT) };
            let spec = PinholeSpec { key: Some(key(client_id)), ..spec(grant.clone(), FILTERED, (5_004, 5_004)) };
            site.gate.install(site.now, site.unix, spec).unwrap();
            grant
        })
        .collect();
    for grant in &grants {
        let text = [&b"hi"[..], &key(grant.client_id).trailer(grant.client_id, 1, b"hi")].concat();
        site.outside_sends(&udp((CLIENT, 40_000 + grant.client_id as u16), SERVICE, &text)).inside();
        assert_eq!(site.gate.usage(grant.id).unwrap().bytes_used, 50, "each pays for its own");
    }
    // Without a proof: whose bytes are spent stands in nobody's way.
    let phone = site.grant(UDP, CLIENT);
    site.install(phone.clone(), FILTERED, (5_004, 5_004));
    let poor = Grant { bytes: 1, ..site.grant(UDP, CLIENT) };
    site.install(poor, FILTERED, (5_004, 5_004));
    let _ = site.outside_sends(&udp((CLIENT, 50_000), SERVICE, b"x"));
    site.outside_sends(&udp((CLIENT, 50_001), SERVICE, b"x")).inside();
    assert_eq!(site.gate.usage(phone.id).unwrap().bytes_used, 29);
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
