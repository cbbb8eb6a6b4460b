//! What the tag of a packet MAC covers besides the payload.

use sluicegate_grant::{
    DataMode, FLAG_PROVES_ADDRESS, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_pinhole::PinholeSpec;
use sluicegate_wire::Reason;

use crate::nat::site::{packets::udp, *};

/// Somebody on the path holds a datagram back and delivers it elsewhere: to another port of the same grant, from another
/// port, from an address of his own.
#[test]
fn security_32_a_sealed_datagram_counts_for_its_own_ports_and_sender_alone() {
    for target in [TARGET, FILTERED] {
        let mut site = Site::new();
        let keys = SessionKeys::from_bytes([[0x42; 16], [0x43; 16]]);
        let grant =
            Grant { flags: FLAG_PROVES_ADDRESS, least_mode: DataMode::Mac, client_id: 7, ..site.grant(UDP, CLIENT) };
        let spec = PinholeSpec { keys: Some(keys.clone()), ..spec(grant.clone(), target, (5_004, 5_011)) };
        let opened = site.gate.translator.install(site.now, site.unix, spec).unwrap();
        let (client, gate) = ((CLIENT, 9_000), (opened.address, opened.ports.0));
        let sealed = |purpose, seq| {
            let trailer = keys.to_service.trailer(7, purpose, seq, &Ends { client, gate_port: gate.1 }, b"pay");
            [&b"pay"[..], &trailer].concat()
        };
        site.outside_sends(&udp(client, gate, &sealed(Purpose::Datagram, 1))).inside();
        let before = site.gate.translator.usage(grant.id).unwrap().bytes_used;

        let held = sealed(Purpose::Datagram, 2);
        let other_port = (gate.0, gate.1 + 1);
        let elsewhere = [
            (client, other_port),
            ((CLIENT, 9_001), gate),
            ((CLIENT, 9_001), other_port),
            ((OTHER_CLIENT, 9_000), gate),
        ];
        for (from, to) in elsewhere {
            assert_eq!(site.outside_sends(&udp(from, to, &held)).dropped(), Reason::MacForged, "{from:?} {to:?}");
        }
        assert_eq!((site.used("flows"), site.gate.translator.usage(grant.id).unwrap().bytes_used), (1, before));
        // It was delivered nowhere, so it is good where it was to go, once.
        site.outside_sends(&udp(client, gate, &held)).inside();
        assert_eq!(site.outside_sends(&udp(client, gate, &held)).dropped(), Reason::MacReplayed);

        // Behind a translator nobody knows the client's own port beforehand; the gate's is covered all the same.
        let translated = sealed(Purpose::Translated, 3);
        assert_eq!(site.outside_sends(&udp(client, other_port, &translated)).dropped(), Reason::MacForged);
        site.outside_sends(&udp((CLIENT, 31_000), gate, &translated)).inside();
        assert_eq!(site.outside_sends(&udp(client, gate, &translated)).dropped(), Reason::MacReplayed);
    }
}
