//! The kernel program that leaves a frontend's datagrams to its AF_XDP sockets, and refuses requests in its place. Nothing of it
//! is pinned: with the process it goes, and the kernel has all packets again.

use std::{net::SocketAddr, os::fd::AsRawFd};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, XskMap},
    programs::xdp::XdpLink,
};
use sluicegate_wire::ip::octets;

use super::{LISTENERS_MAX, sieve};
use crate::{
    Interface, OpenError,
    xdp::{
        program::{attach, attach_generic, program, refused, take},
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

impl Listener {
    fn at(address: SocketAddr) -> Self {
        Self { address: octets(address.ip()), port: address.port().to_be_bytes(), pad: [0; 6] }
    }
}

/// All that the program knows: the mirror of what stands in `bpf/sip.c`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Config {
    mac: [u8; 8],
    frame_bytes_max: u32,
    count: u32,
    listeners: [Listener; LISTENERS_MAX],
    streams: [Listener; LISTENERS_MAX],
    streams_count: u32,
    takes_frames: u32,
    sieve: sieve::Told,
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
    /// Has `interface` leave to these sockets, by queue, what is for one of `listeners`, in frames of at most so many bytes, and
    /// refuse as the sieve says.
    pub(super) fn new(
        interface: &Interface,
        (listeners, streams): (&[(u8, SocketAddr)], &[SocketAddr]),
        frame_bytes_max: usize,
        sockets: &[&Socket],
        sieve: Option<&sieve::Sieve>,
    ) -> Result<(Self, Option<sieve::Maps>), OpenError> {
        let mut config = Config {
            frame_bytes_max: frame_bytes_max as u32,
            count: listeners.len().min(LISTENERS_MAX) as u32,
            streams_count: streams.len().min(LISTENERS_MAX) as u32,
            takes_frames: u32::from(!sockets.is_empty()),
            sieve: sieve.map_or_else(sieve::Told::default, sieve::Told::new),
            ..Config::default()
        };
        config.mac[..6].copy_from_slice(&interface.mac);
        for (slot, (_, address)) in config.listeners.iter_mut().zip(listeners) {
            *slot = Listener::at(*address);
        }
        for (slot, address) in config.streams.iter_mut().zip(streams) {
            *slot = Listener::at(*address);
        }
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|error| refused(&error))?;
        program(&mut ebpf, "sip")?.load().map_err(|error| refused(&error))?;
        let mut map: Array<MapData, Config> = take(&mut ebpf, "config")?;
        map.set(0, config, 0).map_err(|error| refused(&error))?;
        let mut map: XskMap<MapData> = take(&mut ebpf, "sockets")?;
        for (queue, socket) in (0..).zip(sockets) {
            map.set(queue, socket.as_raw_fd(), 0).map_err(|error| refused(&error))?;
        }
        let maps = sieve.map(|_| sieve::Maps::take(&mut ebpf)).transpose()?;
        let sip = program(&mut ebpf, "sip")?;
        // A veth pair's driver loses what the program sends unless the other end, which may be another's, receives by NAPI.
        let (link, mode) = match maps.is_some() && interface.kind == "veth" {
            true => attach_generic(sip, interface)?,
            false => attach(sip, interface)?,
        };
        Ok((Self { _link: link, _ebpf: ebpf, mode }, maps))
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
        let size = 16 + 2 * 24 * LISTENERS_MAX + 8 + size_of::<sieve::Told>();
        assert_eq!((size_of::<Listener>(), size_of::<Config>()), (24, size));
    }
}
