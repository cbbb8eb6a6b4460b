//! Kernel timestamps of UDP datagrams, sent and received.
//!
//! A delay measured by the processes themselves would contain the time that they waited for a processor, which under a
//! flood on a small machine is longer than the network's.

use std::{
    io::{self, IoSliceMut},
    net::UdpSocket,
    os::fd::AsRawFd,
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, TimestampingFlag, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
};

/// Longest datagram that is looked at, in bytes.
pub(crate) const DATAGRAM_MAX: usize = 2_048;

/// Asks the kernel to stamp received datagrams.
pub(crate) fn stamp_received(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::ReceiveTimestampns, &true)?)
}

/// Asks the kernel to stamp datagrams when it hands them to the interface; read by [`sent_stamp`].
pub(crate) fn stamp_sent(socket: &UdpSocket) -> io::Result<()> {
    let flags = TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// A datagram with the time at which the kernel saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamped {
    /// Bytes in the buffer.
    pub len: usize,
    /// Nanoseconds since 1970; `None` if the kernel gave no stamp.
    pub at_ns: Option<u64>,
}

/// The next received datagram, without waiting; `None` if there is none.
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<Stamped>> {
    read(socket, buffer, MsgFlags::MSG_DONTWAIT)
}

/// The next of our own datagrams that the kernel has sent (whole frame; the payload is its end), without waiting.
pub(crate) fn sent_stamp(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<Stamped>> {
    read(socket, buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_ERRQUEUE)
}

fn read(socket: &UdpSocket, buffer: &mut [u8], flags: MsgFlags) -> io::Result<Option<Stamped>> {
    // Room for a time stamp and for the extended error with which the kernel returns our own datagrams.
    let mut control = cmsg_space!([TimeSpec; 3], [u8; 64], [u8; 64]);
    let mut vectors = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut vectors, Some(&mut control), flags) {
        Ok(message) => message,
        Err(Errno::EAGAIN) => return Ok(None),
        // An ICMP error about an earlier datagram: no datagram, and no reason to stop.
        Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {
            return Ok(Some(Stamped { len: 0, at_ns: None }));
        }
        Err(error) => return Err(error.into()),
    };
    let at_ns = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(stamp) => nanos(stamp),
        ControlMessageOwned::ScmTimestampsns(stamps) => nanos(stamps.system),
        _ => None,
    });
    Ok(Some(Stamped { len: message.bytes, at_ns }))
}

fn nanos(stamp: TimeSpec) -> Option<u64> {
    let nanos = u64::try_from(stamp.tv_sec()).ok()? * 1_000_000_000 + u64::try_from(stamp.tv_nsec()).ok()?;
    (nanos > 0).then_some(nanos)
}
