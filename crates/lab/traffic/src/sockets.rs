//! UDP sockets of workers, and waiting for these and others.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// Any address of the same version as `like`.
pub(crate) const fn any_like(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

/// A socket that sends to `to` from this port; 0: any.
pub(crate) fn connected(to: SocketAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((any_like(to.ip()), port))?;
    socket.connect(to)?;
    Ok(socket)
}

/// Waits for a datagram at any of these sockets; which of them have one.
pub(crate) fn wait_any(sockets: &[UdpSocket], timeout: Duration) -> io::Result<Vec<bool>> {
    wait_ready(sockets.iter().map(|socket| (socket.as_fd(), false)), timeout)
}

/// Waits until something has come at any of these, or one that has more to send than was taken can take it; which of them.
pub(crate) fn wait_ready<'s>(
    all: impl Iterator<Item = (BorrowedFd<'s>, bool)>,
    timeout: Duration,
) -> io::Result<Vec<bool>> {
    let flags = |sends| if sends { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut ends: Vec<_> = all.map(|(socket, sends)| PollFd::new(socket, flags(sends))).collect();
    match poll(&mut ends, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => Ok(ends.iter().map(|end| end.any().unwrap_or(false)).collect()),
        Err(error) => Err(error.into()),
    }
}
