//! The kernel program that leaves a frontend's datagrams to its AF_XDP sockets. Nothing of it is pinned: with the process it
//! goes, and the kernel has all packets again.

use std::{net::SocketAddr, os::fd::AsRawFd};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, XskMap},
    programs::xdp::XdpLink,
};
use sluicegate_wire::ip::octets;

use super::LISTENERS_MAX;
use crate::{
    Interface, OpenError,
    xdp::{
        program::{attach, program, refused, take},
        socket::Socket,
    },
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/sip.bpf.o"));
/// Queues of an interface that the program can tell apart.
pub(super) const QUEUES_MAX: u32 = 64;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Listener {
    address: [u8; 16],
    /// As it lies in the packet.
    port: [u8; 2],
    pad: [u8; 6],
}

/// All that the program knows: the mirror of what stands in `bpf/sip.c`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Config {
    mac: [u8; 8],
    frame_bytes_max: u32,
    count: u32,
    listeners: [Listener; LISTENERS_MAX],
}

// SAFETY: `repr(C)` structures of integers without implicit padding (checked by the size test below).
unsafe impl aya::Pod for Config {}

/// The program at work on one interface; it is detached when this is dropped.
pub(super) struct Attached {
    _link: XdpLink,
    _ebpf: Ebpf,
    /// How it runs there.
    pub(super) mode: &'static str,
}

impl Attached {
    /// Has `interface` leave to these sockets, by queue, what is for one of `listeners`, in frames of at most so many bytes.
    pub(super) fn new<'s>(
        interface: &Interface,
        listeners: &[(u8, SocketAddr)],
        frame_bytes_max: usize,
        sockets: impl Iterator<Item = &'s Socket>,
    ) -> Result<Self, OpenError> {
        let mut config = Config {
            frame_bytes_max: frame_bytes_max as u32,
            count: listeners.len().min(LISTENERS_MAX) as u32,
            ..Config::default()
        };
        config.mac[..6].copy_from_slice(&interface.mac);
        for (slot, (_, address)) in config.listeners.iter_mut().zip(listeners) {
            *slot = Listener { address: octets(address.ip()), port: address.port().to_be_bytes(), pad: [0; 6] };
        }
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|error| refused(&error))?;
        program(&mut ebpf, "sip")?.load().map_err(|error| refused(&error))?;
        let mut map: Array<MapData, Config> = take(&mut ebpf, "config")?;
        map.set(0, config, 0).map_err(|error| refused(&error))?;
        let mut map: XskMap<MapData> = take(&mut ebpf, "sockets")?;
        for (queue, socket) in (0..).zip(sockets) {
            map.set(queue, socket.as_raw_fd(), 0).map_err(|error| refused(&error))?;
        }
        let (link, mode) = attach(program(&mut ebpf, "sip")?, interface)?;
        Ok(Self { _link: link, _ebpf: ebpf, mode })
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("mode", &self.mode).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_mirror_have_the_same_numbers_and_no_hidden_padding() {
        let source = include_str!("../../../bpf/sip.c");
        for (name, value) in [("LISTENERS_MAX", LISTENERS_MAX as u32), ("QUEUES_MAX", QUEUES_MAX)] {
            assert!(source.contains(&format!("#define {name} {value}\n")), "{name}");
        }
        assert_eq!((size_of::<Listener>(), size_of::<Config>()), (24, 16 + 24 * LISTENERS_MAX));
    }
}
