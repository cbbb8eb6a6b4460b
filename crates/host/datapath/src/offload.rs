//! Switches off segmentation and checksum offloads, so that packets look the same in memory as on a wire.
//!
//! A local sender on a veth pair leaves checksums half computed and hands over super-packets of up to 64 KiB, trusting a
//! network card that is not there. Whoever reads, counts or rewrites such packets must switch that off: on the
//! *sender's* end for checksums and segmentation (transmit side), on the *receiver's* end for GRO and LRO.

use std::{io, os::fd::AsRawFd};

use libc::c_ulong;

use crate::sys;

// Request numbers of linux/ethtool.h and linux/sockios.h.
const SIOCETHTOOL: c_ulong = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SSG: u32 = 0x19;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

#[repr(C)]
struct Request<T> {
    name: [libc::c_char; libc::IFNAMSIZ],
    data: *mut T,
    rest: [u8; 16],
}

/// # Safety
/// The structure must start with its command and be what the kernel reads and writes for that command.
unsafe trait Argument {}

// SAFETY: `struct ethtool_value`, used with commands that take one.
unsafe impl Argument for Value {}
// SAFETY: `struct ethtool_channels`, used with `ETHTOOL_GCHANNELS` only.
unsafe impl Argument for Channels {}

/// Switches off every offload of `interface` that changes packets: transmit checksums and VLAN tags, scatter/gather, TSO,
/// GSO, GRO, LRO. What a driver cannot switch off, or does not have, is left as it is.
///
/// # Errors
/// If the interface does not exist or the caller lacks `CAP_NET_ADMIN` in its namespace.
pub fn disable(interface: &str) -> io::Result<()> {
    disable_receive(interface)?;
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM, ETHTOOL_SSG] {
        tolerate(ethtool(interface, command, 0))?;
    }
    // A tag that a card would insert travels beside the packet, where a kernel program at the other end does not see it.
    clear_flag(interface, ETH_FLAG_TXVLAN)
}

/// Switches off only what changes packets on receipt: GRO and LRO, which merge them, and the removal of VLAN tags, after
/// which a packet of another network would look like one of this.
///
/// # Errors
/// As [`disable`].
pub fn disable_receive(interface: &str) -> io::Result<()> {
    tolerate(ethtool(interface, ETHTOOL_SGRO, 0))?;
    clear_flag(interface, ETH_FLAG_LRO)?;
    leave_tags_on(interface)
}

/// Switches off only the removal of VLAN tags.
pub(crate) fn leave_tags_on(interface: &str) -> io::Result<()> {
    clear_flag(interface, ETH_FLAG_RXVLAN)
}

/// Whether the interface takes VLAN tags off what it receives, which some drivers always do.
pub(crate) fn takes_tags_off(interface: &str) -> io::Result<bool> {
    match ethtool(interface, ETHTOOL_GFLAGS, 0) {
        Ok(flags) => Ok(flags & ETH_FLAG_RXVLAN != 0),
        other => tolerate(other).map(|()| false),
    }
}

fn clear_flag(interface: &str, flag: u32) -> io::Result<()> {
    match ethtool(interface, ETHTOOL_GFLAGS, 0) {
        Ok(flags) if flags & flag != 0 => tolerate(ethtool(interface, ETHTOOL_SFLAGS, flags & !flag)),
        other => tolerate(other),
    }
}

/// A driver without the feature is no error; a missing interface or right is.
fn tolerate(result: io::Result<u32>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => Ok(()),
        other => other.map(drop),
    }
}

/// The number of receive queues of an interface; one if its driver cannot tell.
pub(crate) fn receive_queues(interface: &str) -> io::Result<u32> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    match request(interface, &mut channels) {
        Ok(()) => Ok((channels.receive + channels.combined).max(1)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(error),
    }
}

fn ethtool(interface: &str, command: u32, data: u32) -> io::Result<u32> {
    let mut value = Value { command, data };
    request(interface, &mut value).map(|()| value.data)
}

fn request<T: Argument>(interface: &str, argument: &mut T) -> io::Result<()> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = Request { name: sys::interface_name(interface)?, data: argument, rest: [0; 16] };
    // SAFETY: `request` is at least as large as `struct ifreq` (16 name + 24 union bytes on 64-bit targets) and starts
    // with the same fields; its data pointer refers to what the command takes, which outlives the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }).map(drop)
}
