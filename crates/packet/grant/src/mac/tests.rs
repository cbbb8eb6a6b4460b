use core::net::Ipv4Addr;
use std::{collections::BTreeSet, format, vec::Vec};

use proptest::prelude::*;

use super::*;

fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    core::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
}

fn counting<const N: usize>(from: u8) -> [u8; N] {
    core::array::from_fn(|at| from + at as u8)
}

fn secret() -> SessionSecret {
    SessionSecret::extract(&counting::<32>(0), (&counting(32), &counting(64)))
}

const GRANT: GrantId =
    GrantId([0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f]);

const ENDS: Ends = Ends { client: (IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)), 40_000), gate_port: 31_000 };

/// `payload` with a trailer.
fn sealed(key: &SessionKey, client_id: u32, purpose: Purpose, seq: u64, payload: &[u8]) -> Vec<u8> {
    [payload, &key.trailer(client_id, purpose, seq, &ENDS, payload)].concat()
}

#[test]
fn keys_client_ids_and_trailers_are_those_of_the_documentation() {
    let SessionKeys { to_service: key, to_client } = secret().keys(GRANT);
    assert_eq!(*key.expose(), bytes("f6ead6705e99a121dfbab6b23f9e4b3a"));
    assert_eq!(*to_client.expose(), bytes("9e8e8c86e25980a41a36b84ff514ecdc"));
    assert_eq!(secret().client_id(GRANT, 0), 0xded1_4afd);
    assert_eq!(secret().client_id(GRANT, 1), 0x1330_78da);
    let trailer = |purpose| key.trailer(0xded1_4afd, purpose, 1, &ENDS, b"hello");
    assert_eq!(trailer(Purpose::Datagram), bytes("ded14afd0000000000000001006ae6702bbe2bb6"));
    assert_eq!(trailer(Purpose::Translated), bytes("ded14afd0100000000000001f645cceb4964e3e0"));
}

#[test]
fn every_input_of_the_derivation_changes_the_key() {
    let key = |hash: u8, first: u8, second: u8, grant: GrantId| {
        let secret = SessionSecret::extract(&[hash; 32], (&[first; 32], &[second; 32]));
        *secret.key(grant, Direction::ToService).expose()
    };
    let base = key(1, 1, 1, GRANT);
    assert_eq!(base, key(1, 1, 1, GRANT));
    for other in [key(2, 1, 1, GRANT), key(1, 2, 1, GRANT), key(1, 1, 2, GRANT), key(1, 1, 1, GrantId([0; 16]))] {
        assert_ne!(base, other);
    }
}

#[test]
fn a_secret_recognises_its_own_client_ids() {
    assert!((0..CLIENT_ID_ATTEMPTS).all(|attempt| secret().is_of(GRANT, secret().client_id(GRANT, attempt))));
    assert!(!secret().is_of(GRANT, 7));
    let other = SessionSecret::extract(&[9; 32], (&[1; 32], &[2; 32]));
    assert!(!other.is_of(GRANT, secret().client_id(GRANT, 0)));
}

#[test]
fn neither_secret_nor_key_is_ever_printed() {
    let key = secret().key(GRANT, Direction::ToService);
    assert_eq!(format!("{:?} {:?}", secret(), key), "SessionSecret(..) SessionKey(..)");
}

#[test]
fn a_datagram_shorter_than_a_trailer_or_of_another_client_has_no_mac() {
    let key = SessionKey::from_bytes([1; 16]);
    let datagram = sealed(&key, 5, Purpose::Datagram, 1, b"payload");
    assert_eq!(client_id_of(&datagram), Some(5));
    assert_eq!(key.check(5, &ENDS, &datagram), Ok(Sealed { purpose: Purpose::Datagram, seq: 1 }));
    assert_eq!(key.check(6, &ENDS, &datagram), Err(Reason::MacMissing));
    assert_eq!(key.check(5, &ENDS, &datagram[8..]), Err(Reason::MacMissing));
    assert_eq!((key.check(5, &ENDS, &[]), client_id_of(&[])), (Err(Reason::MacMissing), None));
    let empty = sealed(&key, 5, Purpose::Proof, 9, b"");
    assert_eq!(key.check(5, &ENDS, &empty), Ok(Sealed { purpose: Purpose::Proof, seq: 9 }));
}

#[test]
fn a_tag_holds_between_its_own_ports_only_and_in_its_own_direction() {
    let SessionKeys { to_service: key, to_client } = secret().keys(GRANT);
    let (address, port) = ENDS.client;
    let elsewhere = [
        Ends { gate_port: ENDS.gate_port + 1, ..ENDS },
        Ends { client: (address, port + 1), ..ENDS },
        Ends { client: (IpAddr::V4(Ipv4Addr::new(198, 51, 100, 3)), port), ..ENDS },
    ];
    let datagram = sealed(&key, 5, Purpose::Datagram, 1, b"x");
    assert_eq!(elsewhere.map(|ends| key.check(5, &ends, &datagram)), [Err(Reason::MacForged); 3]);
    assert_eq!(to_client.check(5, &ENDS, &datagram), Err(Reason::MacForged), "nothing can be sent back to its sender");
    // Behind a translator the gate's port is all that both ends know.
    let translated = sealed(&key, 5, Purpose::Translated, 2, b"x");
    let checked = elsewhere.map(|ends| key.check(5, &ends, &translated).is_ok());
    assert_eq!(checked, [false, true, true]);
}

#[test]
fn nothing_is_fresh_twice_and_zero_never() {
    let mut window = ReplayWindow::default();
    assert!(!window.accept(0));
    assert!(window.accept(1) && !window.accept(1) && !window.is_fresh(0));
    assert!(window.accept(100));
    // 64 numbers end with the highest: 37 ..= 100.
    assert!(!window.is_fresh(36));
    assert!(window.accept(37) && !window.accept(37));
    assert!(window.accept(u64::MAX) && !window.accept(u64::MAX) && window.accept(u64::MAX - 63));
}

#[test]
fn a_resumed_window_takes_only_what_is_above_it() {
    let mut window = ReplayWindow::resumed(500);
    assert!((437..=500).all(|seq| !window.is_fresh(seq)));
    assert!(window.accept(501) && !window.accept(500));
}

proptest! {
    #[test]
    fn whatever_is_changed_in_a_datagram_is_noticed(
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        seq in 0..=SEQ_MAX,
        client_id in any::<u32>(),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let key = SessionKey::from_bytes([7; 16]);
        let mut datagram = sealed(&key, client_id, Purpose::Datagram, seq, &payload);
        prop_assert_eq!(key.check(client_id, &ENDS, &datagram), Ok(Sealed { purpose: Purpose::Datagram, seq }));
        let at = at.index(datagram.len());
        datagram[at] ^= flip;
        let expected = if (payload.len()..payload.len() + 4).contains(&at) { Reason::MacMissing } else { Reason::MacForged };
        prop_assert_eq!(key.check(client_id, &ENDS, &datagram), Err(expected));
    }

    #[test]
    fn payload_and_trailer_cannot_be_shifted_against_each_other(payload in proptest::collection::vec(any::<u8>(), 1..64), seq in any::<u64>()) {
        let key = SessionKey::from_bytes([7; 16]);
        let mut datagram = sealed(&key, 1, Purpose::Datagram, seq, &payload);
        datagram.remove(0);
        prop_assert!(key.check(1, &ENDS, &datagram).is_err());
    }

    #[test]
    fn the_window_is_the_set_of_numbers_not_yet_seen_within_64_of_the_highest(
        steps in proptest::collection::vec((0u64..3, 0u64..140), 1..400),
        start in 1u64..1_000_000,
    ) {
        let mut window = ReplayWindow::default();
        let (mut seen, mut highest) = (BTreeSet::new(), 0u64);
        for (kind, by) in steps {
            let seq = match kind {
                0 => highest.max(start) + by,
                _ => highest.max(start).saturating_sub(by),
            };
            let expected = seq != 0 && !seen.contains(&seq) && (seq > highest || highest - seq < WINDOW);
            prop_assert_eq!(window.is_fresh(seq), expected);
            prop_assert_eq!(window.accept(seq), expected);
            if expected {
                seen.insert(seq);
                highest = highest.max(seq);
            }
            prop_assert_eq!(window.highest(), highest);
        }
    }
}
