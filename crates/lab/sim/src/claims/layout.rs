//! Where things lie in packets.

use std::net::Ipv4Addr;

use sluicegate_capability::router::{Arrival, Class};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Port,
    capability::{Algorithm, CAPABILITIES_MAX, Capability, ClientId, PROTOCOL, Packet, PathId, Repr, Slot, SlotList},
    ipv4::{self, IpOption},
};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::{Rng, router::capability::fresh};

/// What the shortest ICMP error quotes of the payload of an IP packet, in bytes (RFC 792).
const QUOTED: usize = 8;

pub(super) const TVA_21: Claim = Claim {
    id: "TVA-21",
    paper: Paper::Tva,
    source: "VII",
    expected: "no bit of a pre-capability in the first 8 bytes of the IP payload; source-routed packets are legacy",
    tolerance: "exact",
    level: Level::Exact,
    run: quoted_bytes,
};

/// Fills every pre-capability of a request, each with every bit once, and looks where they show.
fn quoted_bytes(_: &Setting) -> Outcome {
    let mut first_at = usize::MAX;
    for slots in 1..=CAPABILITIES_MAX {
        let blank = request(slots, Capability::BLANK);
        let full = request(slots, Capability(u64::MAX));
        let differs = blank.iter().zip(&full).position(|(blank, full)| blank != full);
        first_at = first_at.min(differs.unwrap_or(0));
    }
    let legacy = Some(Class::Legacy { demoted: None });
    let source_routed_is_legacy = [IpOption::LOOSE_SOURCE_ROUTE, IpOption::STRICT_SOURCE_ROUTE]
        .iter()
        .all(|kind| class_of(&[*kind, 7, 4, 192, 0, 2, 1, 0]) == legacy);
    let plain_is_request = matches!(class_of(&[]), Some(Class::Request { .. }));
    Outcome::new(
        first_at >= QUOTED && source_routed_is_legacy && plain_is_request,
        format!(
            "the first byte of a pre-capability is byte {first_at} of the IP payload; loose and strict source routes are \
             legacy: {source_routed_is_legacy}"
        ),
    )
}

fn request(slots: usize, capability: Capability) -> Vec<u8> {
    let entries: SlotList = (0..slots).map(|_| Slot { path_id: PathId::NONE, capability }).collect();
    let (algorithm, client_id, upper) = (Algorithm::SipHash, ClientId::NONE, IpProtocol::TCP);
    let slots = slots as u8;
    let repr = Repr::Request { algorithm, client_id, slots, entries, demoted: false, upper, ret: None };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    bytes
}

/// What the router makes of a request behind these IP options, a multiple of 4 bytes.
fn class_of(options: &[u8]) -> Option<Class> {
    let blank = Repr::request(Algorithm::SipHash, ClientId::NONE, 2, IpProtocol::UDP);
    let mut payload = vec![0; blank.buffer_len()];
    blank.emit(&mut Packet::new_unchecked(&mut payload[..]));
    let header_len = ipv4::HEADER_LEN + options.len();
    let mut bytes = vec![0; header_len + payload.len()];
    bytes[ipv4::HEADER_LEN..header_len].copy_from_slice(options);
    bytes[header_len..].copy_from_slice(&payload);
    let total_len = bytes.len() as u16;
    let mut packet = ipv4::Packet::new_unchecked(&mut bytes[..]);
    packet.set_version_and_header_len(header_len);
    packet.set_total_len(total_len);
    packet.set_ttl(64);
    packet.set_protocol(PROTOCOL);
    packet.set_src(Ipv4Addr::new(198, 51, 100, 1));
    packet.set_dst(Ipv4Addr::new(203, 0, 113, 1));
    packet.fill_checksum();
    let arrival = Arrival { port: Port::OUTSIDE, neighbour: 1, verified_source: false };
    let mut router = fresh(64, &mut Rng::new(1));
    FrameBuf::from_bytes(&bytes).with(|frame| router.on_packet(Instant::ZERO, &arrival, frame)).ok()
}
