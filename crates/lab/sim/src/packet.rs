//! Packets of the world.

use std::net::IpAddr;

use sluicegate_wire::{
    FrameBuf,
    build::{self, Body},
    capability::{Packet, shim},
    ip::Summary,
};

/// An IP packet that carries this, with all its headroom.
///
/// # Panics
/// If the addresses are of different versions.
#[must_use]
pub fn ip(src: IpAddr, dst: IpAddr, body: &impl Body) -> FrameBuf {
    FrameBuf::from_bytes(&build::packet(src, dst, body))
}

/// The capability header of an IP packet, if it has one.
pub(crate) fn header(bytes: &[u8]) -> Option<Packet<&[u8]>> {
    let summary = Summary::parse(bytes).ok()?;
    let found = shim::find(&summary, bytes).ok()??;
    Some(found.packet(bytes))
}
