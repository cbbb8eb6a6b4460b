use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const WANTED: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x12, 0x3456);
const GROUP: Ipv6Addr = solicited_node(WANTED);
const ENVELOPE: Envelope = Envelope { src: HOST, dst: GROUP, hop_limit: 255 };
// Neighbour solicitation for fe80::12:3456 with the sender's hardware address.
#[rustfmt::skip]
const BYTES: [u8; 32] = [
    135, 0, 0x11, 0xcb, 0, 0, 0, 0,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56,
    1, 1, 2, 0, 0, 0, 0, 1,
];

fn repr() -> Repr {
    Repr::NeighborSolicitation { target: Target::new(WANTED).unwrap(), link_layer: Some([2, 0, 0, 0, 0, 1]) }
}

fn emitted(repr: &Repr, envelope: &Envelope) -> Vec<u8> {
    let mut bytes = vec![0xa5; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), envelope);
    bytes
}

fn parsed(bytes: &[u8], envelope: &Envelope) -> Result<Repr, Reason> {
    Repr::parse(&Packet::new_unchecked(bytes), envelope)
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.kind(), packet.code()), (Type::NEIGHBOR_SOLICITATION, 0));
    assert_eq!((packet.target(), packet.flags(), packet.router()), (Some(WANTED), None, None));
    let options: Vec<_> = packet.options().collect();
    assert_eq!(options, [Ok(NdpOption::SourceLinkLayer([2, 0, 0, 0, 0, 1]))]);
    assert!(packet.verify_checksum(&ENVELOPE));
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xa5; 32]);
    packet.set_kind(Type::NEIGHBOR_SOLICITATION);
    packet.set_target(WANTED);
    packet.options_mut().copy_from_slice(&BYTES[24..]);
    packet.fill_checksum(&ENVELOPE);
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn parse() {
    assert_eq!(parsed(&BYTES, &ENVELOPE), Ok(repr()));
    let mut wrong = BYTES;
    wrong[23] ^= 1;
    assert_eq!(parsed(&wrong, &ENVELOPE), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn emit() {
    assert_eq!(emitted(&repr(), &ENVELOPE), BYTES);
}

#[test]
fn impossible_length() {
    for (kind, fixed_len) in [(133, 8), (134, 16), (135, 24), (136, 24), (137, 40)] {
        let mut bytes = vec![0; fixed_len];
        bytes[0] = kind;
        assert!(Packet::new_checked(&bytes[..]).is_ok());
        for len in 0..fixed_len {
            assert_eq!(Packet::new_checked(&bytes[..len]), Err(Reason::TransportHeaderInvalid), "type {kind}");
        }
    }
    assert_eq!(Packet::new_checked([128, 0, 0, 0, 0, 0, 0, 0]), Err(Reason::IcmpType));
}

#[test]
fn solicitations_for_an_address_go_to_its_group() {
    assert_eq!(GROUP, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn a_message_that_may_have_crossed_a_router_is_invalid() {
    let envelope = Envelope { hop_limit: 254, ..ENVELOPE };
    assert_eq!(parsed(&BYTES, &envelope), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn an_anonymous_solicitation_names_no_hardware_and_goes_to_the_group() {
    let target = Target::new(WANTED).unwrap();
    let probe = Repr::NeighborSolicitation { target, link_layer: None };
    let refused = |repr: &Repr, envelope: &Envelope| {
        assert_eq!(parsed(&emitted(repr, envelope), envelope), Err(Reason::TransportHeaderInvalid), "{repr:?}");
    };
    let anonymous = Envelope { src: Ipv6Addr::UNSPECIFIED, ..ENVELOPE };
    assert_eq!(parsed(&emitted(&probe, &anonymous), &anonymous), Ok(probe));
    refused(&probe, &Envelope { dst: WANTED, ..anonymous });
    refused(&repr(), &anonymous);
    refused(&Repr::RouterSolicitation { link_layer: Some([2, 0, 0, 0, 0, 1]) }, &anonymous);
}

#[test]
fn an_answer_to_a_group_cannot_be_solicited() {
    let target = Target::new(WANTED).unwrap();
    let flags = Flags { router: false, solicited: true, override_cache: true };
    let answer = Repr::NeighborAdvertisement { target, flags, link_layer: Some([2, 0, 0, 0, 0, 2]) };
    let to_host = Envelope { src: WANTED, dst: HOST, hop_limit: 255 };
    assert_eq!(parsed(&emitted(&answer, &to_host), &to_host), Ok(answer));
    let to_group = Envelope { dst: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), ..to_host };
    assert_eq!(parsed(&emitted(&answer, &to_group), &to_group), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn multicast_addresses_are_no_targets() {
    assert_eq!(Target::new(GROUP), None);
    let mut bytes = BYTES;
    let mut packet = Packet::new_unchecked(&mut bytes[..]);
    packet.set_target(GROUP);
    packet.fill_checksum(&ENVELOPE);
    assert_eq!(parsed(&bytes, &ENVELOPE), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn an_option_of_no_or_wrong_length_makes_the_message_invalid() {
    for option in [&[1, 0, 2, 0, 0, 0, 0, 1][..], &[1, 2, 2, 0, 0, 0, 0, 1], &[3, 1, 0, 0, 0, 0, 0, 0], &[1]] {
        let mut bytes = BYTES[..24].to_vec();
        bytes.extend_from_slice(option);
        let mut packet = Packet::new_unchecked(&mut bytes[..]);
        packet.fill_checksum(&ENVELOPE);
        assert_eq!(packet.options().count(), 1);
        assert_eq!(parsed(&bytes, &ENVELOPE), Err(Reason::TransportHeaderInvalid), "{option:?}");
    }
}

#[test]
fn unknown_options_are_ignored() {
    let mut bytes = BYTES.to_vec();
    bytes.extend_from_slice(&[14, 1, 1, 2, 3, 4, 5, 6]);
    Packet::new_unchecked(&mut bytes[..]).fill_checksum(&ENVELOPE);
    assert_eq!(parsed(&bytes, &ENVELOPE), Ok(repr()));
}

#[test]
fn router_advertisements_come_from_link_local_addresses() {
    let router = Repr::RouterAdvertisement(RouterAdvertisement {
        hop_limit: 64,
        managed: true,
        other_configuration: false,
        lifetime_s: 1800,
        reachable_ms: 1,
        retransmit_ms: 2,
        link_layer: None,
        mtu: None,
        prefix: None,
    });
    let envelope = Envelope { src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), ..ENVELOPE };
    assert_eq!(parsed(&emitted(&router, &ENVELOPE), &ENVELOPE), Ok(router));
    assert_eq!(parsed(&emitted(&router, &envelope), &envelope), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn redirects_are_viewed_but_never_believed() {
    let mut bytes = vec![0; 40];
    let mut packet = Packet::new_unchecked(&mut bytes[..]);
    packet.set_kind(Type::REDIRECT);
    packet.set_target(WANTED);
    packet.fill_checksum(&ENVELOPE);
    assert_eq!(packet.target(), Some(WANTED));
    assert_eq!(parsed(&bytes, &ENVELOPE), Err(Reason::IcmpType));
}

#[test]
fn prefixes_have_zeros_behind_their_bits() {
    let all = Ipv6Addr::from_bits(u128::MAX);
    assert_eq!(Prefix::new(all, 0).unwrap().address(), Ipv6Addr::UNSPECIFIED);
    assert_eq!(Prefix::new(all, 16).unwrap().address(), Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 0));
    assert_eq!(Prefix::new(all, 128).unwrap().address(), all);
    assert_eq!(Prefix::new(all, 129), None);
}

prop_compose! {
    fn any_router()(
        hop_limit: u8, flags: (bool, bool, bool, bool), lifetime_s: u16, times: (u32, u32, u32, u32),
        link_layer: Option<[u8; 6]>, mtu: Option<u32>, prefix in proptest::option::of((any::<u128>(), 0u8..=128)),
    ) -> RouterAdvertisement {
        let prefix = prefix.map(|(address, len)| PrefixInformation {
            prefix: Prefix::new(Ipv6Addr::from_bits(address), len).unwrap(),
            on_link: flags.2, autonomous: flags.3, valid_lifetime_s: times.2, preferred_lifetime_s: times.3,
        });
        RouterAdvertisement {
            hop_limit, managed: flags.0, other_configuration: flags.1, lifetime_s,
            reachable_ms: times.0, retransmit_ms: times.1, link_layer, mtu, prefix,
        }
    }
}

proptest! {
    #[test]
    fn emitted_messages_parse_to_the_same(
        kind in 0usize..4, router in any_router(), link_layer: Option<[u8; 6]>, low: u64, flags: (bool, bool, bool),
    ) {
        let target = Target::new(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(low))).unwrap();
        let flags = Flags { router: flags.0, solicited: flags.1, override_cache: flags.2 };
        let repr = match kind {
            0 => Repr::RouterSolicitation { link_layer },
            1 => Repr::RouterAdvertisement(router),
            2 => Repr::NeighborSolicitation { target, link_layer },
            _ => Repr::NeighborAdvertisement { target, flags, link_layer },
        };
        let envelope = Envelope { dst: WANTED, ..ENVELOPE };
        prop_assert_eq!(parsed(&emitted(&repr, &envelope), &envelope), Ok(repr));
    }
}
