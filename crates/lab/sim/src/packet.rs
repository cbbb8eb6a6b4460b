//! Packets of the world.

use std::net::IpAddr;

use sluicegate_wire::{
    FrameBuf,
    build::{self, Body},
};

/// An IP packet that carries this, with all its headroom.
///
/// # Panics
/// If the addresses are of different versions.
#[must_use]
pub fn ip(src: IpAddr, dst: IpAddr, body: &impl Body) -> FrameBuf {
    FrameBuf::from_bytes(&build::packet(src, dst, body))
}
