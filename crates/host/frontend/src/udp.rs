//! One UDP socket of one shard: many shards share a port, and datagrams move in batches, so that a flood costs one
//! system call per 64 datagrams and is spread over the cores by the kernel.

use std::{
    array,
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{
            ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg, setsockopt,
            sockopt::{RcvBufForce, ReceiveTimestampns, RxqOvfl, UdpGsoSegment},
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

/// Longest datagram that goes whole over Ethernet, in bytes, over IPv4 and IPv6.
const SEGMENT_BYTES_MAX: (usize, usize) = (1_472, 1_452);

/// Longer than this nothing waits in a socket's buffer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A non-blocking UDP socket that shares its port with the other shards' sockets.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: UdpSocket,
    segment_max: usize,
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
        // And how many were lost before it, since the buffer was full.
        let _ = setsockopt(&socket, RxqOvfl, &1);
        // Above the kernel's own limit only with CAP_NET_ADMIN; a smaller buffer is worse but works.
        if setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        }
        let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        // A kernel that does not know it would send several datagrams as one.
        let segment_max = match setsockopt(&socket, UdpGsoSegment, &0) {
            Ok(()) if address.is_ipv4() => SEGMENT_BYTES_MAX.0,
            Ok(()) => SEGMENT_BYTES_MAX.1,
            Err(_) => 0,
        };
        Ok(Self { socket: socket.into(), segment_max })
    }

    /// The longest of several datagrams that the kernel takes as one message and cuts; 0 if it takes none.
    pub(crate) const fn segment_max(&self) -> usize {
        self.segment_max
    }

    /// The kernel cannot cut what goes out here.
    pub(crate) const fn cannot_segment(&mut self) {
        self.segment_max = 0;
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
pub(crate) struct Inbox {
    memory: Vec<u8>,
    /// Of each socket: what the kernel tells of an address and of its times is as long the next time.
    headers: Vec<MultiHeaders<SockaddrStorage>>,
    /// Of each socket: datagrams that the kernel had no room for when the last that was read came, modulo 2^32.
    dropped: Vec<u32>,
    /// Those of all sockets since they were [taken](Self::take_lost).
    lost: u32,
}

impl Inbox {
    /// For so many sockets.
    pub(crate) fn new(sockets: usize) -> Self {
        Self {
            memory: vec![0; BATCH * DATAGRAM_BYTES_MAX],
            headers: std::iter::repeat_with(Self::headers).take(sockets).collect(),
            dropped: vec![0; sockets],
            lost: 0,
        }
    }

    fn headers() -> MultiHeaders<SockaddrStorage> {
        MultiHeaders::preallocate(BATCH, Some(cmsg_space!(TimeSpec, u32)))
    }

    /// Datagrams that sockets had no room for since the last time, as far as what was read tells.
    pub(crate) const fn take_lost(&mut self) -> u32 {
        std::mem::replace(&mut self.lost, 0)
    }

    /// Receives at most [`BATCH`] datagrams from a socket, always the same of this number, and hands each to `handle`, with the
    /// time that it has waited if that is known; returns how many there were, 0 if none waited.
    pub(crate) fn receive(
        &mut self,
        (number, udp): (usize, &Udp),
        mut handle: impl FnMut(SocketAddr, Option<Duration>, &[u8]),
    ) -> io::Result<usize> {
        let (Some(headers), Some(dropped)) = (self.headers.get_mut(number), self.dropped.get_mut(number)) else {
            return Ok(0);
        };
        let mut lengths = [(0_usize, None, None); BATCH];
        let mut is_cut = false;
        let count = {
            let mut chunks = self.memory.chunks_exact_mut(DATAGRAM_BYTES_MAX);
            let mut slices: [_; BATCH] = array::from_fn(|_| [IoSliceMut::new(chunks.next().unwrap_or_default())]);
            let fd = udp.socket.as_raw_fd();
            let received = match recvmmsg(fd, headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
                Ok(received) => received,
                // A refused port of an earlier answer's receiver is reported here; it says nothing about this socket.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(0),
                Err(errno) => return Err(errno.into()),
            };
            let mut count = 0;
            let now = clock_gettime(ClockId::CLOCK_REALTIME).ok();
            for (slot, message) in lengths.iter_mut().zip(received) {
                let told = Told::of(&message);
                is_cut |= told.is_none();
                let told = told.unwrap_or_default();
                *slot = (message.bytes, message.address.as_ref().and_then(address_of), told.waited(now));
                self.lost = self.lost.saturating_add(told.dropped.map_or(0, |now| now.wrapping_sub(*dropped)));
                *dropped = told.dropped.unwrap_or(*dropped);
                count += 1;
            }
            count
        };
        if is_cut {
            // There was room for as much as was told the last time, and now more is, as it is from the first loss on.
            *headers = Self::headers();
        }
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

/// What the kernel tells of a datagram.
#[derive(Debug, Default)]
struct Told {
    came: Option<TimeSpec>,
    /// Datagrams that its socket had no room for until then, if there were any.
    dropped: Option<u32>,
}

impl Told {
    /// `None` if there was no room for it.
    fn of(message: &RecvMsg<'_, '_, SockaddrStorage>) -> Option<Self> {
        let mut told = Self::default();
        for control in message.cmsgs().ok()? {
            match control {
                ControlMessageOwned::ScmTimestampns(at) => told.came = Some(at),
                ControlMessageOwned::RxqOvfl(dropped) => told.dropped = Some(dropped),
                _ => {}
            }
        }
        Some(told)
    }

    /// How long it has waited since the kernel took it. Both times are of the wall clock: one that is set in between makes a wait
    /// of what was none, so that one longer than [`WAIT_MAX`] is not believed.
    fn waited(&self, now: Option<TimeSpec>) -> Option<Duration> {
        // One from before it came is longer than anything.
        let waited = Duration::from(now? - self.came?);
        (waited <= WAIT_MAX).then_some(waited)
    }
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_with_their_source_and_how_long_they_waited() {
        let local = ["127.0.0.1:0", "[::1]:0"];
        let sockets = local.map(|local| Udp::bind(local.parse().unwrap(), true).unwrap());
        let mut inbox = Inbox::new(sockets.len());
        // In turn, and several times: the same memory serves sockets of both families.
        for text in ["one", "two", "three"] {
            for (number, (local, socket)) in local.iter().zip(&sockets).enumerate() {
                let peer = UdpSocket::bind(local).unwrap();
                peer.send_to(text.as_bytes(), socket.local_addr().unwrap()).unwrap();
                peer.send_to(b"and more", socket.local_addr().unwrap()).unwrap();
                let mut got = Vec::new();
                let take = |from, waited: Option<_>, bytes: &[u8]| got.push((from, waited.is_some(), bytes.to_vec()));
                assert_eq!(inbox.receive((number, socket), take).unwrap(), 2);
                peer.send_to(b"and more", socket.local_addr().unwrap()).unwrap();
                let receive = || assert_eq!(inbox.receive((number, socket), |_, _, _| {}).unwrap(), 1);
                assert_eq!(allocation_counter::measure(receive).count_total, 0);
                let from = peer.local_addr().unwrap();
                assert_eq!(got, [(from, true, text.into()), (from, true, b"and more".to_vec())]);
                assert_eq!(inbox.receive((number, socket), |_, _, _| unreachable!()).unwrap(), 0);
            }
        }
    }

    #[test]
    fn datagrams_that_found_no_room_are_told_of_once_when_a_later_one_is_read() {
        let socket = Udp::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let send = |count: usize| {
            for _ in 0..count {
                peer.send_to(&[0; 1_024], socket.local_addr().unwrap()).unwrap();
            }
        };
        let mut inbox = Inbox::new(1);
        let read = |inbox: &mut Inbox| {
            std::iter::from_fn(|| inbox.receive((0, &socket), |_, _, _| {}).ok().filter(|count| *count > 0))
                .sum::<usize>()
        };
        let sent = 2 * RECEIVE_BUFFER_BYTES / 1_024;
        send(sent);
        let got = read(&mut inbox);
        assert!(got < sent && inbox.take_lost() == 0, "{got}");
        for _ in 0..2 {
            send(BATCH);
            assert_eq!(read(&mut inbox), BATCH);
        }
        assert_eq!((inbox.take_lost() as usize, inbox.take_lost()), (sent - got, 0));
    }
}
