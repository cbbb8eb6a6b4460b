//! UDP datagrams of a server, taken off an interface as frames and answered as frames: a datagram costs the server neither
//! its way through the kernel's network stack nor a system call of its own.
//!
//! Beside ordinary sockets, which go on having what is no whole datagram in one frame, and all that is sent to whoever has
//! not just asked.

mod program;
mod sieve;

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use sluicegate_netlink::Rtnetlink;
use sluicegate_wire::{Frame, Instant, IpProtocol, Reason, checksum, ethernet, ip::Summary, ipv4, ipv6, udp};

use super::{
    FRAMES_PER_SOCKET, open_socket,
    socket::{Place, RING, Socket},
    umem::{HEADROOM, Umem},
};
use crate::{BATCH, Interface, OpenError, sys};
use program::Attached;
pub use sieve::{SHARES, SPARED_MAX, Sieve, SieveCounts, Sieved, UdpPort};

/// Most addresses that an interface's datagrams are taken for.
pub const LISTENERS_MAX: usize = 8;
const FRAME_BYTES: usize = 2048;
/// Longest frame that is taken: the kernel leaves [`HEADROOM`] in front of it.
const TAKEN_BYTES_MAX: usize = FRAME_BYTES - HEADROOM;
/// Peers that can be answered between two flushes.
const HEARD_MAX: usize = 8 * BATCH;
/// Longer than this nothing waits in a ring.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Where the kernel program notes when a frame came: in front of it.
const STAMP_BYTES: usize = 8;

/// Who sent a datagram since the last flush: to which listener, from where, and from which hardware address.
type Heard = (u8, SocketAddr, ethernet::Address);

/// What is taken off an interface, and as whom it is answered there.
#[derive(Debug)]
struct Server {
    /// By the numbers that their owner knows them by.
    listeners: Vec<(u8, SocketAddr)>,
    mac: ethernet::Address,
    mtu: usize,
    /// Whether senders on this machine leave checksums open, which XDP does not tell.
    partial: bool,
    /// Addresses that nobody else may send from, sorted: this host's, and those of all hosts of a network.
    not_senders: Vec<IpAddr>,
}

/// One receive queue of an interface, as far as it carries datagrams for a server.
#[derive(Debug)]
pub struct UdpQueue {
    socket: Socket,
    /// Frames to send from; those to receive into are lent to the kernel, and go back to it as soon as they are read.
    umem: Umem,
    server: Arc<Server>,
    attached: Arc<Attached>,
    /// Sorted unless something came since.
    heard: Vec<Heard>,
    is_sorted: bool,
    counts: UdpCounts,
}

/// What was counted since a queue was opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct UdpCounts {
    /// Datagrams handed out.
    pub received: u64,
    /// Answers queued.
    pub answered: u64,
    malformed: u64,
    checksum: u64,
    address: u64,
    receive_full: u64,
}

impl UdpCounts {
    /// Datagrams dropped, by reason.
    #[must_use]
    pub const fn dropped(&self) -> [(Reason, u64); 4] {
        [
            (Reason::TransportHeaderInvalid, self.malformed),
            (Reason::ChecksumWrong, self.checksum),
            (Reason::AddressInvalid, self.address),
            (Reason::ReceiveFull, self.receive_full),
        ]
    }
}

/// A datagram in its frame.
struct Datagram<'f> {
    listener: u8,
    peer: SocketAddr,
    mac: ethernet::Address,
    payload: &'f [u8],
}

impl UdpQueue {
    /// Takes what comes by `interface` for one of `listeners`, [`LISTENERS_MAX`] addresses at most, each with the number that
    /// its owner knows it by. One for each receive queue; the interface is as before once all of them are dropped.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left attached.
    pub fn open(interface: &Interface, listeners: &[(u8, SocketAddr)]) -> Result<Vec<Self>, OpenError> {
        UdpPort::open(interface, (listeners, &[]), true, None).map(|(_, queues)| queues)
    }

    /// How the program and the socket work.
    #[must_use]
    pub fn describe(&self) -> String {
        let copying = if self.socket.is_zero_copy() { "zero copy" } else { "copy" };
        format!("{} hook, {copying} mode", self.attached.mode)
    }

    /// Hands waiting datagrams to `handle`, [`BATCH`] at most: for which listener, from whom, how long they have waited if the
    /// driver lets that be known, and what they carry. Returns how many frames there were, with those that were dropped.
    pub fn receive(&mut self, mut handle: impl FnMut(u8, SocketAddr, Option<Duration>, &[u8])) -> usize {
        let now = sys::monotonic_now();
        let Self { socket, umem, server, heard, is_sorted, counts, .. } = self;
        let mut count = 0;
        while count < BATCH {
            let Some(descriptor) = socket.receive.pop() else { break };
            count += 1;
            let Some(mut frame) = umem.frame(descriptor.addr, descriptor.len as usize) else { continue };
            let waited = waited(now, &mut frame);
            match server.datagram(frame.bytes()) {
                Ok(Datagram { listener, peer, mac, payload }) => {
                    counts.received += 1;
                    if heard.len() < HEARD_MAX {
                        heard.push((listener, peer, mac));
                        *is_sorted = false;
                    }
                    handle(listener, peer, waited, payload);
                }
                Err(Reason::AddressInvalid) => counts.address += 1,
                Err(Reason::ChecksumWrong) => counts.checksum += 1,
                Err(_) => counts.malformed += 1,
            }
            socket.fill.push(umem.base(descriptor.addr));
        }
        if count > 0 {
            socket.receive.release();
            socket.lend();
        }
        count
    }

    /// Queues an answer from a listener to who sent it something since the last flush, back to where that came from.
    /// `false` if nobody did, if there is no room, or if it is too long for one frame: then it has to go another way.
    pub fn answer(&mut self, listener: u8, peer: SocketAddr, payload: &[u8]) -> bool {
        let Some(&(.., to)) = self.heard_from(listener, peer) else { return false };
        let Some(&(_, from)) = self.server.listeners.iter().find(|(number, _)| *number == listener) else {
            return false;
        };
        let len = ip_header_len(from) + udp::HEADER_LEN + payload.len();
        if len > self.server.mtu {
            return false;
        }
        let len = ethernet::HEADER_LEN + len;
        let Some(base) = self.free_frame() else { return false };
        let start = base + HEADROOM as u64;
        let ends = ((self.server.mac, from), (to, peer));
        let written = self.umem.frame(start, len).is_some_and(|mut frame| write(frame.bytes_mut(), ends, payload));
        if written && self.socket.queue(start, len) {
            self.counts.answered += 1;
            return true;
        }
        self.umem.give(base);
        false
    }

    fn new(socket: Socket, umem: Umem, server: &Arc<Server>, attached: &Arc<Attached>) -> Self {
        Self {
            socket,
            umem,
            server: Arc::clone(server),
            attached: Arc::clone(attached),
            heard: Vec::with_capacity(HEARD_MAX),
            is_sorted: true,
            counts: UdpCounts::default(),
        }
    }

    fn heard_from(&mut self, listener: u8, peer: SocketAddr) -> Option<&Heard> {
        if !self.is_sorted {
            self.heard.sort_unstable();
            self.is_sorted = true;
        }
        let at = self.heard.binary_search_by_key(&(listener, peer), |(listener, peer, _)| (*listener, *peer)).ok()?;
        self.heard.get(at)
    }

    fn free_frame(&mut self) -> Option<u64> {
        self.umem.take().or_else(|| {
            self.socket.kick();
            self.socket.reap(&mut self.umem);
            self.umem.take()
        })
    }

    /// Has the kernel send what was queued, and forgets who sent what. Whether some could not go yet: then this is to be called
    /// again soon.
    pub fn flush(&mut self) -> bool {
        self.heard.clear();
        self.is_sorted = true;
        self.socket.kick()
    }

    /// What was counted.
    pub fn counts(&mut self) -> UdpCounts {
        self.counts.receive_full = self.socket.dropped();
        self.counts
    }
}

impl AsFd for UdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Server {
    fn new(interface: &Interface, listeners: &[(u8, SocketAddr)]) -> Result<Self, OpenError> {
        Ok(Self {
            listeners: listeners.to_vec(),
            mac: interface.mac,
            mtu: interface.mtu as usize,
            partial: interface.kind == "veth",
            not_senders: not_senders()?,
        })
    }

    /// Checks what the kernel would have checked before it gave the datagram to a socket.
    fn datagram<'f>(&self, frame: &'f [u8]) -> Result<Datagram<'f>, Reason> {
        let ethernet = ethernet::Packet::new_checked(frame)?;
        let packet = frame.get(ethernet::HEADER_LEN..).ok_or(Reason::FrameTruncated)?;
        let ip = Summary::parse(packet)?;
        let is_whole = ip.protocol == IpProtocol::UDP && ip.fragment.is_none() && !ip.has_options;
        let bytes =
            packet.get(ip.transport_offset..ip.total_len).filter(|_| is_whole).ok_or(Reason::IpHeaderInvalid)?;
        let udp = udp::Packet::new_checked(bytes)?;
        let is_open = || {
            let pseudo = checksum::pseudo(ip.src, ip.dst, IpProtocol::UDP, udp.total_len() as u32);
            self.partial && udp.checksum() == pseudo
        };
        if !udp.verify_checksum(ip.src, ip.dst) && !is_open() {
            return Err(Reason::ChecksumWrong);
        }
        if !self.may_send(ip.src) || udp.src_port() == 0 {
            return Err(Reason::AddressInvalid);
        }
        let to = SocketAddr::new(ip.dst, udp.dst_port());
        let listener = self.listeners.iter().find(|(_, listener)| *listener == to).ok_or(Reason::NotForService)?.0;
        let peer = SocketAddr::new(ip.src, udp.src_port());
        let payload = bytes.get(udp::HEADER_LEN..udp.total_len()).unwrap_or_default();
        Ok(Datagram { listener, peer, mac: ethernet.src(), payload })
    }

    /// Whether another host may have this address (RFC 1122 section 3.2.1.3, RFC 4291 section 2.7).
    fn may_send(&self, source: IpAddr) -> bool {
        let is_of_a_host = match source {
            IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_broadcast(),
            IpAddr::V6(v6) => !v6.is_unspecified() && v6.to_ipv4_mapped().is_none() && !v6.is_unicast_link_local(),
        };
        let is_own = || self.not_senders.binary_search(&source).is_ok();
        is_of_a_host && !source.is_loopback() && !source.is_multicast() && !is_own()
    }
}

/// A socket of its own for one queue, with the frames that it receives into lent to the kernel.
fn receiver(interface: &Interface, queue: u32) -> Result<(Socket, Umem), OpenError> {
    let mut umem =
        Umem::new(FRAMES_PER_SOCKET, FRAME_BYTES).map_err(|source| OpenError::system("allocate frames", source))?;
    let place = Place { ifindex: interface.index, queue, sharing: None, copy: false };
    let mut socket = open_socket(&umem, interface, place)?;
    // More that wait would only be older than their senders' retransmissions before they are read.
    for base in std::iter::from_fn(|| umem.take()).take(RING as usize) {
        socket.fill.push(base);
    }
    socket.lend();
    Ok((socket, umem))
}

/// This host's addresses, and the broadcast addresses of its networks (RFC 919).
fn not_senders() -> Result<Vec<IpAddr>, OpenError> {
    let mut netlink = Rtnetlink::open()?;
    let mut all = Vec::new();
    for link in netlink.links()? {
        for (address, prefix) in netlink.addresses(link.index)? {
            all.push(address);
            if let IpAddr::V4(v4) = address
                && prefix < 31
            {
                all.push(IpAddr::V4((v4.to_bits() | u32::MAX >> prefix).into()));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// How long a frame has waited since the kernel program saw it. Zeros where the driver has no room for its note.
fn waited(now: Instant, frame: &mut Frame<'_>) -> Option<Duration> {
    let stamp = frame.push_front(STAMP_BYTES)?.first_chunk_mut::<STAMP_BYTES>()?;
    let came = u64::from_ne_bytes(std::mem::take(stamp));
    frame.pull_front(STAMP_BYTES)?;
    // One processor's clock may be a little ahead of another's.
    let waited = now.since(Instant::from_nanos(came));
    (came != 0 && waited <= WAIT_MAX).then_some(waited)
}

fn ip_header_len(address: SocketAddr) -> usize {
    if address.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

type End = (ethernet::Address, SocketAddr);

/// Fills a frame with a datagram; `false` if the addresses are of different versions.
fn write(frame: &mut [u8], ((from_mac, from), (to_mac, to)): (End, End), payload: &[u8]) -> bool {
    let len = (udp::HEADER_LEN + payload.len()) as u16;
    let (header, packet) = frame.split_at_mut(ethernet::HEADER_LEN);
    let ethertype = match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ipv4::Repr::new(src, dst, IpProtocol::UDP, len).emit(&mut ipv4::Packet::new_unchecked(&mut *packet));
            ethernet::EtherType::IPV4
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ipv6::Repr::new(src, dst, IpProtocol::UDP, len).emit(&mut ipv6::Packet::new_unchecked(&mut *packet));
            ethernet::EtherType::IPV6
        }
        _ => return false,
    };
    ethernet::Repr { dst: to_mac, src: from_mac, ethertype }.emit(&mut ethernet::Packet::new_unchecked(header));
    let datagram = udp::Repr { src_port: from.port(), dst_port: to.port(), payload };
    datagram.emit(&mut udp::Packet::new_unchecked(&mut packet[ip_header_len(from)..]), from.ip(), to.ip());
    true
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::build;

    use super::*;

    const PEER: &str = "198.51.100.2:4000";
    const OWN: &str = "198.51.100.1:5060";

    fn server(partial: bool) -> Server {
        let not_senders = vec!["198.51.100.1".parse().unwrap()];
        Server { listeners: vec![(3, OWN.parse().unwrap())], mac: [2; 6], mtu: 1_500, partial, not_senders }
    }

    fn frame() -> Vec<u8> {
        let ends: [SocketAddr; 2] = [PEER, OWN].map(|end| end.parse().unwrap());
        [&[2; 12][..], &[0x08, 0x00], &build::datagram(ends[0], ends[1], b"hello")].concat()
    }

    #[test]
    fn what_was_cut_or_changed_on_the_way_is_no_datagram() {
        let whole = frame();
        let read = server(false).datagram(&whole).map(|datagram| (datagram.listener, datagram.peer, datagram.payload));
        assert_eq!(read, Ok((3, PEER.parse().unwrap(), &b"hello"[..])));
        for cut in 0..whole.len() {
            assert!(server(true).datagram(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for at in ethernet::HEADER_LEN..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            assert!(server(true).datagram(&changed).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn a_checksum_that_a_sender_on_this_machine_left_open_is_none_elsewhere() {
        let mut open = frame();
        let ends = [PEER, OWN].map(|end| end.parse::<SocketAddr>().unwrap().ip());
        let pseudo = checksum::pseudo(ends[0], ends[1], IpProtocol::UDP, 13);
        open[40..42].copy_from_slice(&pseudo.to_be_bytes());
        assert!(server(true).datagram(&open).is_ok());
        assert_eq!(server(false).datagram(&open).err(), Some(Reason::ChecksumWrong));
    }

    #[test]
    fn an_answer_is_a_datagram_the_other_way() {
        for (from, to) in [(OWN, PEER), ("[2001:db8::1]:5060", "[2001:db8::2]:4000")] {
            let ends: [SocketAddr; 2] = [from, to].map(|end| end.parse().unwrap());
            let mut bytes = vec![0; ethernet::HEADER_LEN + ip_header_len(ends[0]) + udp::HEADER_LEN + 2];
            assert!(write(&mut bytes, (([1; 6], ends[0]), ([2; 6], ends[1])), b"ok"));
            assert_eq!(bytes[..12], [[2; 6], [1; 6]].concat());
            let receiver = Server { listeners: vec![(1, ends[1])], ..server(false) };
            let receiver = Server { not_senders: Vec::new(), ..receiver };
            let read = receiver.datagram(&bytes).map(|datagram| (datagram.peer, datagram.payload));
            assert_eq!(read, Ok((ends[0], &b"ok"[..])));
        }
        let ends = [OWN, "[2001:db8::2]:4000"].map(|end| ([0; 6], end.parse().unwrap()));
        assert!(!write(&mut [0; 100], (ends[0], ends[1]), b"no"));
    }
}
