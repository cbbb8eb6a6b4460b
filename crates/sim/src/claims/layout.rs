//! Where things lie in packets.

use sluicegate_wire::{
    IpProtocol,
    capability::{Algorithm, CAPABILITIES_MAX, Capability, ClientId, Packet, PathId, Repr, Slot, SlotList},
};

use super::{Claim, Level, Outcome, Paper, Setting};

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
    Outcome::new(first_at >= QUOTED, format!("the first byte of a pre-capability is byte {first_at} of the IP payload"))
}

fn request(slots: usize, capability: Capability) -> Vec<u8> {
    let entries: SlotList = (0..slots).map(|_| Slot { path_id: PathId::NONE, capability }).collect();
    let blank = Repr::request(Algorithm::SipHash, ClientId::NONE, slots as u8, IpProtocol::TCP);
    let repr = match blank {
        Repr::Request { algorithm, client_id, slots, demoted, upper, ret, .. } => {
            Repr::Request { algorithm, client_id, slots, entries, demoted, upper, ret }
        }
        regular @ Repr::Regular { .. } => regular,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    bytes
}
