//! Packets over TLS between an agent and a gate, where no UDP passes.
//!
//! The agent begins: `grant id 16 ‖ proof 20`. The proof is a packet MAC of purpose [`Purpose::Tunnel`] over what the TLS
//! connection exports (RFC 5705, label [`EXPORT_LABEL`], no context, [`EXPORT_LEN`] bytes), so it is worth nothing on any other
//! connection. The gate answers `1 ‖ IPv4 address 4`, from where the agent's packets are to come, or closes. Then packets go
//! both ways, each `length 2 ‖ IPv4 packet`.
//!
//! [`Purpose::Tunnel`]: crate::mac::Purpose::Tunnel

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use crate::mac::{Ends, TRAILER_LEN};

/// The label and length of what a TLS connection exports.
pub const EXPORT_LABEL: &[u8] = b"EXPORTER-sluicegate-tunnel";
/// In bytes.
pub const EXPORT_LEN: usize = 32;
/// Bytes of a proof.
pub const PROOF_LEN: usize = TRAILER_LEN;
/// Bytes of what an agent begins with.
pub const HELLO_LEN: usize = 16 + PROOF_LEN;
/// Bytes of the gate's answer.
pub const ANSWER_LEN: usize = 5;
/// Longest packet.
pub const PACKET_LEN_MAX: usize = 1_400;

/// What a proof is sealed for besides: nobody's address.
pub const ENDS: Ends = Ends { client: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), gate_port: 0 };

/// The answer that gives this address.
#[must_use]
pub fn answer(address: Ipv4Addr) -> [u8; ANSWER_LEN] {
    let [a, b, c, d] = address.octets();
    [1, a, b, c, d]
}

/// The address that an answer gives.
#[must_use]
pub const fn address(answer: [u8; ANSWER_LEN]) -> Option<Ipv4Addr> {
    match answer {
        [1, a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d)),
        _ => None,
    }
}

/// Appends a packet as it goes through a tunnel.
pub fn put(packet: &[u8], out: &mut Vec<u8>) {
    let len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(packet.get(..usize::from(len)).unwrap_or_default());
}
