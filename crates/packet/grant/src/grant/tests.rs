use core::net::Ipv4Addr;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

pub(crate) fn example() -> Grant {
    Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol: Protocol::UDP,
        id: GrantId([0xA1; 16]),
        issuer: [0xB2; 8],
        epoch: 20_000,
        not_before: UnixTime(1_750_000_000),
        not_after: UnixTime(1_750_000_300),
        bytes: 10_000_000,
        client_id: 7,
        flows: 64,
        rate_100kbps: 20,
        client_address: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)),
        client_ports: ANY_PORTS,
        gate_address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
        gate_ports: (20_000, 20_096),
        holder: [0; 32],
        user_pseudonym: *b"someuser",
    }
}

#[test]
fn every_field_lies_where_the_format_puts_it() {
    let body = example().encode();
    assert_eq!(body[..4], [1, 0, 0, 17]);
    assert_eq!(body[4..20], [0xA1; 16]);
    assert_eq!(body[20..28], [0xB2; 8]);
    assert_eq!(body[28..32], 20_000u32.to_be_bytes());
    assert_eq!(body[32..36], 1_750_000_000u32.to_be_bytes());
    assert_eq!(body[36..40], 1_750_000_300u32.to_be_bytes());
    assert_eq!(body[40..48], 10_000_000u64.to_be_bytes());
    assert_eq!(body[48..52], 7u32.to_be_bytes());
    assert_eq!(body[52..56], [0, 64, 0, 20]);
    assert_eq!(body[56..72], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 198, 51, 100, 7]);
    assert_eq!(body[72..76], [0, 0, 0xFF, 0xFF]);
    assert_eq!(body[88..92], [203, 0, 113, 1]);
    assert_eq!(body[92..96], [0x4E, 0x20, 0x4E, 0x80]);
    assert_eq!(body[96..128], [0; 32]);
    assert_eq!(body[128..], *b"someuser");
}

#[test]
fn the_impossible_is_refused_with_the_field_that_is_wrong() {
    type Change = fn(&mut Grant);
    let cases: [(Change, GrantError); 12] = [
        (|g| g.flags = 0x80, GrantError::Flags(0x80)),
        (|g| g.protocol = 0, GrantError::Protocol(0)),
        (|g| g.protocol = Protocol::ICMPV6, GrantError::Protocol(58)),
        (|g| g.not_after = g.not_before, GrantError::Validity),
        (|g| g.bytes = 0, GrantError::Budget),
        (|g| g.client_ports = (2, 1), GrantError::Ports),
        (|g| g.gate_ports = (2, 1), GrantError::Ports),
        (|g| g.client_address = IpAddr::V4(Ipv4Addr::UNSPECIFIED), GrantError::ClientAddress),
        (|g| g.client_address = IpAddr::V4(Ipv4Addr::BROADCAST), GrantError::ClientAddress),
        (|g| g.client_address = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)), GrantError::ClientAddress),
        (|g| g.gate_address = IpAddr::V4(Ipv4Addr::new(239, 0, 0, 1)), GrantError::GateAddress),
        (|g| g.client_address = IpAddr::V6(Ipv6Addr::LOCALHOST), GrantError::AddressFamily),
    ];
    for (change, error) in cases {
        let mut grant = example();
        change(&mut grant);
        assert_eq!(Grant::decode(&grant.encode()), Err(error));
    }
}

#[test]
fn another_version_mode_or_length_is_refused() {
    let mut body = example().encode();
    body[2] = 3;
    assert_eq!(Grant::decode(&body), Err(GrantError::Mode(3)));
    body[0] = 2;
    assert_eq!(Grant::decode(&body), Err(GrantError::Version(2)));
    assert_eq!(Grant::decode(&body[1..]), Err(GrantError::Length(135)));
    assert_eq!(Grant::decode(&[]), Err(GrantError::Length(0)));
}

#[test]
fn a_grant_that_no_gate_has_opened_yet_is_valid() {
    let grant = Grant {
        gate_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        gate_ports: (0, 0),
        not_before: UnixTime(9),
        ..example()
    };
    assert_eq!(Grant::decode(&grant.encode()), Ok(grant));
}

#[test]
fn times_past_the_format_become_its_last_second() {
    let grant = Grant { not_after: UnixTime(u64::MAX), ..example() };
    assert_eq!(Grant::decode(&grant.encode()).unwrap().not_after, UnixTime(u32::MAX.into()));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_without_loss(mut body: Vec<u8>, fixed in any::<bool>()) {
        body.resize(if fixed { GRANT_LEN } else { body.len() }, 0x42);
        if fixed {
            body[..3].copy_from_slice(&[1, 0, 0]);
            body[3] = [1, 6, 17, 58, 132][usize::from(body[3] % 5)];
        }
        if let Ok(grant) = Grant::decode(&body) {
            prop_assert_eq!(&grant.encode()[..], &body[..]);
        }
    }
}
