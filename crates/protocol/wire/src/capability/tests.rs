use core::ops::Range;
use std::{format, vec, vec::Vec};

use proptest::prelude::*;

use super::*;

const CLIENT: ClientId = ClientId(0x0a0b_0c0d);
const NONCE: FlowNonce = FlowNonce(0x1122_3344_5566);
const FIRST: Capability = Capability(0x81a1_a2a3_a4a5_a6a7);
const SECOND: Capability = Capability(0x07b1_b2b3_b4b5_b6b7);

fn list(items: &[Capability]) -> CapabilityList {
    items.iter().copied().collect()
}

fn limits() -> Limits {
    Limits::new(100, 10).unwrap()
}

/// A request with one of three slots filled, in a TCP packet.
const REQUEST: [u8; 42] = [
    0x10, 6, 3, 1, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, // common, num, ptr, reserved, client id
    0x12, 0x34, 0x81, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, // path identifier, pre-capability
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // blank
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // blank
];

fn request() -> Repr {
    let entries = [Slot { path_id: PathId(0x1234), capability: FIRST }].into_iter().collect();
    let (client_id, upper) = (CLIENT, IpProtocol::TCP);
    Repr::Request { algorithm: Algorithm::SipHash, client_id, slots: 3, entries, demoted: false, upper, ret: None }
}

/// A UDP packet with only the flow nonce, hashed by AES, demoted, that notifies of a demotion.
const NONCE_ONLY: [u8; 13] = [0x2e, 17, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x0a, 0x0b, 0x0c, 0x0d, 1];

fn nonce_only() -> Repr {
    let mut repr = Repr::nonce_only(Algorithm::Aes, CLIENT, NONCE, IpProtocol::UDP);
    if let Repr::Regular { demoted, .. } = &mut repr {
        *demoted = true;
    }
    repr.with_return(Some(Return::demotion()))
}

/// A packet with two capabilities for 100 KB in 10 s, the second to be checked next.
const CAPABILITIES: [u8; 32] = [
    0x11, 6, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x0a, 0x0b, 0x0c, 0x0d, // common, flow nonce, client id
    2, 1, 0x19, 0x0a, // num, ptr, N = 100 in the upper 10 bits, T = 10
    0x81, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0x07, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7,
];

fn regular(kind: Kind, ret: Option<Return>) -> Repr {
    Repr::Regular {
        algorithm: Algorithm::SipHash,
        kind,
        nonce: NONCE,
        client_id: CLIENT,
        limits: Some(limits()),
        list: list(&[FIRST, SECOND]),
        pointer: 1,
        demoted: false,
        upper: IpProtocol::TCP,
        ret,
    }
}

/// Return information that grants one capability for 100 KB in 10 s, and notifies of a demotion.
const RETURN: [u8; 12] = [3, 1, 0x19, 0x0a, 0x07, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7];

fn returned() -> Return {
    Return { demoted: true, list: Some((Some(limits()), list(&[SECOND]))) }
}

/// A renewal with return information.
fn renewal_bytes() -> Vec<u8> {
    let mut bytes = [&CAPABILITIES[..], &RETURN[..]].concat();
    bytes[0] = 0x17;
    bytes
}

/// Every form of the header, as bytes and as value.
fn examples() -> Vec<(Vec<u8>, Repr)> {
    let mut refusal = NONCE_ONLY[..12].to_vec();
    refusal[0] = 0x26;
    refusal.extend([2, 0, 0, 0]);
    let refused = Repr::nonce_only(Algorithm::Aes, CLIENT, NONCE, IpProtocol::UDP).with_return(Some(Return::refused()));
    vec![
        (REQUEST.to_vec(), request()),
        (NONCE_ONLY.to_vec(), nonce_only()),
        (CAPABILITIES.to_vec(), regular(Kind::Capabilities, None)),
        (renewal_bytes(), regular(Kind::Renewal, Some(returned()))),
        (refusal, refused),
    ]
}

#[test]
fn deconstruct_request() {
    let packet = Packet::new_checked(&REQUEST[..]).unwrap();
    assert_eq!((packet.algorithm(), packet.kind()), (Algorithm::SipHash, Kind::Request));
    assert_eq!((packet.upper_protocol(), packet.client_id()), (IpProtocol::TCP, CLIENT));
    assert_eq!((packet.count(), packet.pointer(), packet.header_len()), (3, 1, 42));
    assert_eq!((packet.path_id(0), packet.capability(0)), (Some(PathId(0x1234)), Some(FIRST)));
    assert_eq!((packet.path_id(2), packet.capability(2)), (Some(PathId::NONE), Some(Capability::BLANK)));
    assert_eq!((packet.path_id(3), packet.capability(3)), (None, None));
    assert!(!packet.is_demoted() && !packet.has_return_info());
    assert_eq!((packet.limits(), packet.return_info(), packet.nonce()), (None, None, FlowNonce(0)));
}

#[test]
fn deconstruct_regular() {
    let packet = Packet::new_checked(&CAPABILITIES[..]).unwrap();
    assert_eq!((packet.algorithm(), packet.kind()), (Algorithm::SipHash, Kind::Capabilities));
    assert_eq!((packet.upper_protocol(), packet.client_id()), (IpProtocol::TCP, CLIENT));
    assert_eq!((packet.nonce(), packet.limits()), (NONCE, Some(limits())));
    assert_eq!((packet.count(), packet.pointer(), packet.header_len()), (2, 1, 32));
    assert_eq!((packet.capability(0), packet.capability(1), packet.capability(2)), (Some(FIRST), Some(SECOND), None));
    assert_eq!(packet.path_id(0), None);
}

#[test]
fn deconstruct_nonce_only() {
    let packet = Packet::new_checked(&NONCE_ONLY[..]).unwrap();
    assert_eq!((packet.algorithm(), packet.kind()), (Algorithm::Aes, Kind::Nonce));
    assert_eq!((packet.nonce(), packet.client_id()), (NONCE, CLIENT));
    assert!(packet.is_demoted());
    assert_eq!((packet.count(), packet.pointer(), packet.limits(), packet.capability(0)), (0, 0, None, None));
    assert_eq!((packet.return_info(), packet.header_len()), (Some(Return::demotion()), 13));
}

#[test]
fn deconstruct_return_information() {
    let bytes = renewal_bytes();
    let packet = Packet::new_checked(&bytes[..]).unwrap();
    assert_eq!((packet.kind(), packet.header_len()), (Kind::Renewal, 44));
    assert_eq!(packet.return_info(), Some(returned()));
}

#[test]
fn construct_request() {
    let mut packet = Packet::new_unchecked(REQUEST);
    packet.set_pointer(2);
    packet.set_capability(1, SECOND);
    packet.set_path_id(1, PathId(0xfffe));
    packet.set_demoted(true);
    let bytes = packet.into_inner();
    assert_eq!(bytes[..4], [0x18, 6, 3, 2]);
    assert_eq!(bytes[4..22], REQUEST[4..22]);
    assert_eq!(bytes[22..32], [0xff, 0xfe, 0x07, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7]);
    assert_eq!(bytes[32..], REQUEST[32..]);
}

#[test]
fn construct_regular() {
    let mut packet = Packet::new_unchecked(CAPABILITIES);
    packet.set_pointer(2);
    packet.set_capability(1, FIRST);
    packet.set_path_id(0, PathId(7));
    packet.set_demoted(true);
    packet.set_demoted(false);
    let bytes = packet.into_inner();
    assert_eq!((&bytes[..13], bytes[13]), (&CAPABILITIES[..13], 2));
    assert_eq!((&bytes[14..24], &bytes[24..]), (&CAPABILITIES[14..24], &CAPABILITIES[16..24]));
}

#[test]
fn what_the_list_has_no_place_for_is_not_written() {
    let mut packet = Packet::new_unchecked(REQUEST);
    packet.set_capability(3, SECOND);
    packet.set_path_id(3, PathId(7));
    assert_eq!(packet.into_inner(), REQUEST);
    packet.set_pointer(200);
    assert_eq!(packet.pointer(), 3);
    let mut packet = Packet::new_unchecked(NONCE_ONLY);
    packet.set_pointer(1);
    packet.set_capability(0, SECOND);
    assert_eq!(packet.into_inner(), NONCE_ONLY);
}

#[test]
fn parse() {
    for (bytes, repr) in examples() {
        assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Ok(repr));
    }
}

#[test]
fn emit() {
    for (bytes, repr) in examples() {
        let mut emitted = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut Packet::new_unchecked(&mut emitted[..]));
        assert_eq!(emitted, bytes);
    }
}

#[test]
fn impossible_length() {
    for (bytes, repr) in examples() {
        for len in 0..bytes.len() {
            assert_eq!(Packet::new_checked(&bytes[..len]), Err(Reason::CapabilityHeader), "{repr:?} cut at {len}");
        }
    }
}

#[test]
fn the_longest_headers_cost_what_is_documented() {
    assert_eq!((NONCE_LEN, regular_len(1), regular_len(8)), (12, 24, 80));
    assert_eq!((request_len(1), request_len(8)), (22, 92));
    assert_eq!((NOTICE_LEN, return_len(0), return_len(8)), (1, 4, 68));
    assert_eq!(HEADER_LEN_MAX, 120);
}

/// `bytes` with the one at `at` changed.
fn with(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = value;
    bytes
}

fn refuses(bytes: &[u8]) -> bool {
    Packet::new_checked(bytes) == Err(Reason::CapabilityHeader)
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    for version in (0..16).filter(|version| !matches!(version, 1 | 2)) {
        assert!(refuses(&with(&REQUEST, 0, version << 4)), "version {version}");
    }
    assert!(refuses(&with(&REQUEST, 3, 4)), "a pointer behind the slots");
    assert!(refuses(&with(&CAPABILITIES, 13, 3)), "a pointer behind the capabilities");
    assert!(refuses(&with(&[&CAPABILITIES[..], &[0; 80]].concat(), 12, 9)), "nine capabilities");
    assert!(refuses(&with(&[&REQUEST[..], &[0; 80]].concat(), 2, 9)), "nine slots");
    assert!(refuses(&with(&with(&CAPABILITIES, 12, 0), 13, 0)), "no capability");
    assert!(refuses(&with(&CAPABILITIES, 15, 0)), "T = 0");
    assert!(refuses(&with(&with(&CAPABILITIES, 14, 0), 15, 0x0a)), "N = 0");
    for kind in (0..=255).filter(|kind| !(1..=3).contains(kind)) {
        assert!(refuses(&with(&renewal_bytes(), 32, kind)), "return information {kind}");
    }
    assert!(refuses(&with(&renewal_bytes(), 35, 0)), "granted with T = 0");
    assert!(refuses(&with(&[&renewal_bytes()[..], &[0; 80]].concat(), 33, 9)), "nine capabilities granted");
}

#[test]
fn neither_a_second_header_nor_an_ipv6_extension_header_may_follow() {
    for upper in [0, 43, 44, 51, 60, 253] {
        assert!(refuses(&with(&REQUEST, 1, upper)), "upper protocol {upper}");
    }
    for upper in [1, 6, 17, 58, 59, 132] {
        assert!(!refuses(&with(&REQUEST, 1, upper)), "upper protocol {upper}");
    }
}

#[test]
fn values_that_no_header_can_hold_are_told() {
    let limit = |repr: &mut Repr, new| {
        if let Repr::Regular { limits, .. } = repr {
            *limits = new;
        }
    };
    let mut without_limits = regular(Kind::Capabilities, None);
    limit(&mut without_limits, None);
    let mut with_limits = nonce_only();
    limit(&mut with_limits, Some(limits()));
    let silent = nonce_only().with_return(Some(Return { demoted: false, list: None }));
    let unlimited = nonce_only().with_return(Some(Return { demoted: false, list: Some((None, list(&[FIRST]))) }));
    let crowded = Repr::request(Algorithm::Aes, CLIENT, 9, IpProtocol::TCP);
    for impossible in [without_limits, with_limits, silent, unlimited, crowded, regular(Kind::Request, None)] {
        assert_eq!(impossible.check(), Err(Reason::CapabilityHeader), "{impossible:?}");
    }
    for (_, possible) in examples() {
        assert_eq!(possible.check(), Ok(()));
    }
}

#[test]
fn no_debug_output_shows_a_capability_or_a_nonce() {
    let mut shown = vec![];
    for (bytes, repr) in examples() {
        shown.push(format!("{repr:?} {:?}", Packet::new_checked(&bytes[..])));
    }
    let all = shown.concat().to_lowercase();
    for secret in [FIRST.0, SECOND.0, FIRST.hash(), SECOND.hash(), NONCE.0] {
        assert!(!all.contains(&format!("{secret:x}")) && !all.contains(&format!("{secret}")));
    }
}

#[test]
fn every_n_and_t_keeps_its_bits() {
    for bits in 0..=u16::MAX {
        let limits = Limits::from_bits(bits);
        assert_eq!(limits.is_some(), bits >> 6 != 0 && bits & 63 != 0);
        assert!(limits.is_none_or(|limits| limits.bits() == bits));
    }
    assert_eq!(
        (Limits::new(0, 1), Limits::new(1, 0), Limits::new(1024, 1), Limits::new(1, 64)),
        (None, None, None, None)
    );
    assert_eq!(Limits::new(1023, 63).map(Limits::bytes), Some(1_023_000));
}

#[test]
fn a_full_list_takes_no_more() {
    let mut list = CapabilityList::new();
    for index in 0..CAPABILITIES_MAX {
        assert_eq!((list.len(), list.push(Capability(index as u64))), (index, Some(())));
    }
    assert_eq!(list.push(FIRST), None);
    assert_eq!(list.iter().map(|capability| capability.0).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
}

/// Where each capability or pre-capability of a header lies, from the header's first byte.
fn capabilities_at(repr: &Repr) -> Vec<Range<usize>> {
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    let mut packet = Packet::new_unchecked(bytes.clone());
    (0..usize::from(packet.count()))
        .map(|index| {
            packet.set_capability(index, Capability(!packet.capability(index).unwrap().0));
            let changed = packet.clone().into_inner();
            let at = changed.iter().zip(&bytes).position(|(new, old)| new != old).unwrap();
            bytes.clone_from(&changed);
            at..at + 8
        })
        .collect()
}

#[test]
fn tva_21_no_pre_capability_lies_in_what_the_shortest_icmp_error_quotes() {
    const QUOTED_LEN: usize = 8;
    for carriage in [shim::Carriage::Native, shim::Carriage::Encapsulated { src_port: 5 }] {
        for (_, repr) in examples() {
            for place in capabilities_at(&repr) {
                assert!(place.start + carriage.outer_len() >= QUOTED_LEN, "{carriage:?} {repr:?}: {place:?}");
                assert!(place.start >= 12, "not even behind an encapsulating header's first 8 bytes");
            }
        }
    }
    assert_eq!(capabilities_at(&request()), [14..22, 24..32, 34..42]);
    assert_eq!(capabilities_at(&regular(Kind::Renewal, None)), [16..24, 24..32]);
}

pub(super) mod arbitrary {
    use super::*;

    fn capability() -> impl Strategy<Value = Capability> {
        any::<u64>().prop_map(Capability)
    }

    fn capabilities(count: Range<usize>) -> impl Strategy<Value = CapabilityList> {
        proptest::collection::vec(capability(), count).prop_map(|items| list(&items))
    }

    fn some_limits() -> impl Strategy<Value = Limits> {
        (1u16..1024, 1u8..64).prop_map(|(kilobytes, seconds)| Limits::new(kilobytes, seconds).unwrap())
    }

    fn ret() -> impl Strategy<Value = Option<Return>> {
        let granted = (any::<bool>(), some_limits(), capabilities(1..9))
            .prop_map(|(demoted, limits, list)| Return { demoted, list: Some((Some(limits), list)) });
        prop_oneof![Just(None), Just(Some(Return::demotion())), Just(Some(Return::refused())), granted.prop_map(Some)]
    }

    fn algorithm() -> impl Strategy<Value = Algorithm> {
        prop_oneof![Just(Algorithm::SipHash), Just(Algorithm::Aes)]
    }

    fn a_request() -> impl Strategy<Value = Repr> {
        let slot = (any::<u16>(), capability());
        let slot = slot.prop_map(|(path_id, capability)| Slot { path_id: PathId(path_id), capability });
        (algorithm(), any::<u32>(), 0u8..9, proptest::collection::vec(slot, 0..9), any::<bool>(), ret()).prop_map(
            |(algorithm, client_id, slots, entries, demoted, ret)| Repr::Request {
                algorithm,
                client_id: ClientId(client_id),
                slots,
                entries: entries.into_iter().take(usize::from(slots)).collect(),
                demoted,
                upper: IpProtocol::TCP,
                ret,
            },
        )
    }

    fn a_regular() -> impl Strategy<Value = Repr> {
        let kind = prop_oneof![Just(Kind::Capabilities), Just(Kind::Renewal)];
        let listed = (kind, some_limits(), capabilities(1..9), any::<prop::sample::Index>());
        (algorithm(), any::<(u64, u32, bool)>(), proptest::option::of(listed), ret()).prop_map(
            |(algorithm, (nonce, client_id, demoted), listed, ret)| {
                let (kind, limits, list, pointer) = match listed {
                    Some((kind, limits, list, pointer)) => (kind, Some(limits), list, pointer.index(list.len() + 1)),
                    None => (Kind::Nonce, None, CapabilityList::new(), 0),
                };
                Repr::Regular {
                    algorithm,
                    kind,
                    nonce: FlowNonce::from_low_bits(nonce),
                    client_id: ClientId(client_id),
                    limits,
                    list,
                    pointer: pointer as u8,
                    demoted,
                    upper: IpProtocol::TCP,
                    ret,
                }
            },
        )
    }

    /// Any valid header.
    pub(crate) fn repr() -> impl Strategy<Value = Repr> {
        prop_oneof![a_request(), a_regular()]
    }
}

proptest! {
    #[test]
    fn emitted_headers_parse_to_the_same(repr in arbitrary::repr(), behind in proptest::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(repr.check(), Ok(()));
        let mut bytes = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
        prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Ok(repr));
        for len in 0..bytes.len() {
            prop_assert!(refuses(&bytes[..len]));
        }
        bytes.extend(&behind);
        prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Ok(repr));
        prop_assert_eq!(Packet::new_checked(&bytes[..]).unwrap().header_len(), repr.buffer_len());
    }

    #[test]
    fn what_parses_is_written_back_as_it_was(bytes in proptest::collection::vec(any::<u8>(), 12..180), first in 0x10u8..0x30, count in 0u8..9) {
        let mut bytes = with(&with(&bytes, 0, first), 1, 6);
        let count_at = if first & 3 == 0 { 2 } else { bytes.len().min(13) - 1 };
        bytes[count_at] = count;
        if let Ok(repr) = Repr::parse(&Packet::new_unchecked(&bytes[..])) {
            prop_assert_eq!(repr.check(), Ok(()));
            let mut emitted = vec![0; repr.buffer_len()];
            repr.emit(&mut Packet::new_unchecked(&mut emitted[..]));
            prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&emitted[..])), Ok(repr));
            if first & 3 != 0 {
                prop_assert_eq!(&emitted[..], &bytes[..emitted.len()]);
            }
        }
    }
}
