//! Translation that no sender can turn against another.
//!
//! Each finding in short, on the translator itself; `crates/nat/tests` holds the whole of it.

#[path = "../../../nat/tests/site/mod.rs"]
mod site;

use site::{packets::*, *};
use sluicegate_capability::{Grant, Mode, mac::SessionKey};
use sluicegate_nat::PinholeSpec;

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
