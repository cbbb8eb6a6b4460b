//! One UDP socket of one shard: many shards share a port, and datagrams move in batches, so that a flood costs one
//! system call per 64 datagrams and is spread over the cores by the kernel.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{
            ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg, sendmmsg, setsockopt,
            sockopt::{RcvBufForce, ReceiveTimestampns},
        },
        time::TimeSpec,
    },
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Protocol, Socket, Type};

/// Most datagrams moved by one system call.
pub(crate) const BATCH: usize = 64;
/// Longest datagram received, in bytes. A longer one is cut and then refused as malformed.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Receive buffer asked for, in bytes: about 100 ms of a gigabit of small datagrams. More would only let requests grow
/// older than their senders' retransmission timer before they are read.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Send buffer asked for, in bytes.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Longer than this nothing waits in a socket's buffer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A non-blocking UDP socket that shares its port with the other shards' sockets.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: UdpSocket,
}

impl Udp {
    /// Binds to `address`. With `shared`, other sockets of this user may bind to the same port and the kernel spreads
    /// datagrams over them by their addresses and ports.
    pub(crate) fn bind(address: SocketAddr, shared: bool) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if shared {
            socket.set_reuse_port(true)?;
        }
        // How long what is read has waited. Without it nothing is known of that.
        let _ = setsockopt(&socket, ReceiveTimestampns, &true);
        // Above the kernel's own limit only with CAP_NET_ADMIN; a smaller buffer is worse but works.
        if setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        }
        let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(Self { socket: socket.into() })
    }

    /// The address bound to.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Receive memory of one thread.
#[derive(Debug)]
pub(crate) struct Inbox {
    memory: Vec<u8>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { memory: vec![0; BATCH * DATAGRAM_BYTES_MAX] }
    }

    /// Receives at most [`BATCH`] datagrams and hands each to `handle`, with the time that it has waited if that is known;
    /// returns how many there were, 0 if none waited.
    pub(crate) fn receive(
        &mut self,
        udp: &Udp,
        mut handle: impl FnMut(SocketAddr, Option<Duration>, &[u8]),
    ) -> io::Result<usize> {
        let mut lengths = [(0_usize, None, None); BATCH];
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, Some(cmsg_space!(TimeSpec)));
        let count = {
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                self.memory.chunks_exact_mut(DATAGRAM_BYTES_MAX).map(|chunk| [IoSliceMut::new(chunk)]).collect();
            let fd = udp.socket.as_raw_fd();
            let received = match recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
                Ok(received) => received,
                // A refused port of an earlier answer's receiver is reported here; it says nothing about this socket.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(0),
                Err(errno) => return Err(errno.into()),
            };
            let mut count = 0;
            let now = clock_gettime(ClockId::CLOCK_REALTIME).ok();
            for (slot, message) in lengths.iter_mut().zip(received) {
                *slot = (message.bytes, message.address.as_ref().and_then(address_of), waited(now, &message));
                count += 1;
            }
            count
        };
        for ((len, source, waited), chunk) in
            lengths.iter().take(count).zip(self.memory.chunks_exact(DATAGRAM_BYTES_MAX))
        {
            if let (Some(source), Some(bytes)) = (source, chunk.get(..*len)) {
                handle(*source, *waited, bytes);
            }
        }
        Ok(count)
    }
}

/// How long a datagram has waited since the kernel took it. Both times are of the wall clock: one that is set in between makes
/// a wait of what was none, so that one longer than [`WAIT_MAX`] is not believed.
fn waited(now: Option<TimeSpec>, message: &RecvMsg<'_, '_, SockaddrStorage>) -> Option<Duration> {
    let came = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(at) => Some(at),
        _ => None,
    })?;
    // One from before it came is longer than anything.
    let waited = Duration::from(now? - came);
    (waited <= WAIT_MAX).then_some(waited)
}

/// Sends these datagrams in batches; returns how many the kernel did not take.
pub(crate) fn send_all<'a>(udp: &Udp, datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>) -> u64 {
    let (mut slices, mut addresses): (Vec<[IoSlice<'a>; 1]>, Vec<Option<SockaddrStorage>>) = (Vec::new(), Vec::new());
    for (to, bytes) in datagrams {
        slices.push([IoSlice::new(bytes)]);
        addresses.push(Some(SockaddrStorage::from(to)));
    }
    let mut dropped = 0;
    let mut at = 0;
    while let (Some(batch), Some(to)) = (slices.get(at..), addresses.get(at..)) {
        let len = batch.len().min(BATCH);
        if len == 0 {
            break;
        }
        match send_batch(udp, batch.get(..len).unwrap_or_default(), to.get(..len).unwrap_or_default()) {
            // One datagram that cannot be sent (no route, refused, too long, full buffer) must not hold up the rest.
            0 => {
                dropped += 1;
                at += 1;
            }
            sent => at += sent,
        }
    }
    dropped
}

fn send_batch(udp: &Udp, slices: &[[IoSlice<'_>; 1]], addresses: &[Option<SockaddrStorage>]) -> usize {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(slices.len(), None);
    let fd = udp.socket.as_raw_fd();
    sendmmsg(fd, &mut headers, slices.iter(), addresses, [], MsgFlags::MSG_DONTWAIT).map_or(0, Iterator::count)
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_with_their_source_and_go_where_they_should() {
        let (a, b) =
            (Udp::bind("127.0.0.1:0".parse().unwrap(), true).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let (a_addr, b_addr) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        for text in ["one", "two", "three"] {
            b.send_to(text.as_bytes(), a_addr).unwrap();
        }
        let mut inbox = Inbox::new();
        let mut got = Vec::new();
        assert_eq!(
            inbox.receive(&a, |from, waited, bytes| got.push((from, waited.is_some(), bytes.to_vec()))).unwrap(),
            3
        );
        assert_eq!(
            got.iter().map(|(_, _, bytes)| bytes.as_slice()).collect::<Vec<_>>(),
            [&b"one"[..], b"two", b"three"]
        );
        assert!(got.iter().all(|(from, is_timed, _)| *from == b_addr && *is_timed));
        assert_eq!(inbox.receive(&a, |_, _, _| unreachable!()).unwrap(), 0);

        let many: Vec<Vec<u8>> = (0..BATCH + 7).map(|i| vec![u8::try_from(i).unwrap(); 5]).collect();
        assert_eq!(send_all(&a, many.iter().map(|bytes| (b_addr, bytes.as_slice()))), 0);
        let mut buffer = [0; 16];
        for expected in &many {
            let (len, from) = b.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (expected.as_slice(), a_addr));
        }
    }

    #[test]
    fn one_unsendable_datagram_does_not_hold_up_the_others() {
        let (a, b) =
            (Udp::bind("127.0.0.1:0".parse().unwrap(), true).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = b.local_addr().unwrap();
        let too_long = vec![0; 65_520];
        let dropped = send_all(&a, [(to, too_long.as_slice()), (to, b"fits")].into_iter());
        assert_eq!(dropped, 1);
        let mut buffer = [0; 16];
        assert_eq!(b.recv_from(&mut buffer).unwrap().0, 4);
    }
}
