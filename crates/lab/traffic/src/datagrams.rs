//! Datagrams in batches: one system call for many of them.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use nix::{
    errno::Errno,
    sys::socket::{
        MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt,
        sockopt::{RcvBufForce, SndBufForce},
    },
};

/// Datagrams of one system call.
pub(crate) const BATCH: usize = 32;
/// Longest datagram that is received whole, in bytes.
const DATAGRAM_MAX: usize = 4_096;
/// Bytes of datagrams that may wait at a socket of a generator: what it loses itself says nothing about whom it measures.
const BUFFER_BYTES: usize = 16 << 20;

/// Gives a socket room for what comes while its worker does something else. More than the system allows takes root.
pub(crate) fn make_room(socket: &UdpSocket) -> io::Result<()> {
    setsockopt(socket, RcvBufForce, &BUFFER_BYTES)?;
    Ok(setsockopt(socket, SndBufForce, &BUFFER_BYTES)?)
}

/// Sends datagrams in batches.
pub(crate) struct Batch {
    headers: MultiHeaders<SockaddrStorage>,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { headers: MultiHeaders::preallocate(BATCH, None) }
    }

    /// Sends up to [`BATCH`] payloads over a connected socket and returns how many the kernel took. A full buffer or an ICMP
    /// answer to an earlier datagram is no error: that datagram is lost.
    pub(crate) fn send(&mut self, socket: &UdpSocket, payloads: &[&[u8]]) -> io::Result<usize> {
        self.send_each(socket, payloads.iter().map(|payload| (None, *payload)))
    }

    /// The same for a socket that is not connected, or is.
    pub(crate) fn send_each<'p>(
        &mut self,
        socket: &UdpSocket,
        datagrams: impl Iterator<Item = (Option<SocketAddr>, &'p [u8])>,
    ) -> io::Result<usize> {
        let mut slices: Vec<[IoSlice<'_>; 1]> = Vec::with_capacity(BATCH);
        let mut to = [const { None::<SockaddrStorage> }; BATCH];
        for (place, (address, payload)) in to.iter_mut().zip(datagrams) {
            *place = address.map(SockaddrStorage::from);
            slices.push([IoSlice::new(payload)]);
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter(), &to[..slices.len()], [], flags) {
            Ok(results) => Ok(results.count()),
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Receives datagrams in batches.
pub(crate) struct Inbox {
    headers: MultiHeaders<SockaddrStorage>,
    memory: Vec<u8>,
    lengths: [(usize, Option<SocketAddr>); BATCH],
}

impl Inbox {
    pub(crate) fn new() -> Self {
        let memory = vec![0; BATCH * DATAGRAM_MAX];
        Self { headers: MultiHeaders::preallocate(BATCH, None), memory, lengths: [(0, None); BATCH] }
    }

    /// Gives `take` up to [`BATCH`] datagrams that wait, and who sent each; how many there were.
    pub(crate) fn receive(&mut self, socket: &UdpSocket, mut take: impl FnMut(Option<SocketAddr>, &[u8])) -> usize {
        let mut count = 0;
        {
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                self.memory.chunks_exact_mut(DATAGRAM_MAX).map(|chunk| [IoSliceMut::new(chunk)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let received = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None);
            // An error is the ICMP answer to an earlier datagram, or that nothing waits.
            let Ok(received) = received else { return 0 };
            for (place, message) in self.lengths.iter_mut().zip(received) {
                *place = (message.bytes, message.address.as_ref().and_then(address_of));
                count += 1;
            }
        }
        for ((len, from), bytes) in self.lengths.iter().zip(self.memory.chunks_exact(DATAGRAM_MAX)).take(count) {
            take(*from, bytes.get(..*len).unwrap_or_default());
        }
        count
    }
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}
