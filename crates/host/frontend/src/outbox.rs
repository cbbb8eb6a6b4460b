//! What a SIP thread sends in one turn, with few system calls and few ways through the kernel's network stack.

use std::{
    io::IoSlice,
    net::SocketAddr,
    os::fd::{AsFd as _, AsRawFd as _},
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg},
};
use sluicegate_datapath::UdpQueue;
use sluicegate_proxy::Transmits;

use crate::udp::{BATCH, Udp};

/// Most datagrams that the kernel makes of one message (its `UDP_MAX_SEGMENTS`, when that was least).
const SEGMENTS_MAX: usize = 64;
/// Most datagrams of one system call.
const PIECES_MAX: usize = 4 * SEGMENTS_MAX;

/// Listener and peer of a datagram, and its place among what is sent.
type Item = (u8, SocketAddr, usize);

/// Sends what a turn has left behind. Equally long datagrams to one peer go as one message, which the kernel cuts (UDP
/// segmentation offload): most of what a datagram costs is its way through the kernel.
pub(crate) struct Outbox {
    /// Sorted, so that what goes to one peer stands together, in its order.
    items: Vec<Item>,
    whole: MultiHeaders<SockaddrStorage>,
    cut: MultiHeaders<SockaddrStorage>,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            items: Vec::new(),
            whole: MultiHeaders::preallocate(BATCH, None),
            cut: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(u16))),
        }
    }

    /// Sends what goes out of these sockets, which are known by their listeners' numbers; returns how many datagrams the
    /// kernel did not take. What answers a frame goes back where that came from, and need not be flushed out of its queue until
    /// the end of the turn. Datagrams to one peer that go one way keep their order.
    pub(crate) fn send(&mut self, sockets: &mut [(u8, Udp)], queues: &mut [UdpQueue], out: &Transmits) -> u64 {
        self.items.clear();
        for (at, (flow, bytes)) in out.iter().enumerate() {
            let is_datagram = sockets.iter().any(|(listener, _)| *listener == flow.listener);
            if is_datagram && !queues.iter_mut().any(|queue| queue.answer(flow.listener, flow.peer, bytes)) {
                self.items.push((flow.listener, flow.peer, at));
            }
        }
        self.items.sort_unstable();
        let Self { items, whole, cut } = self;
        let mut dropped = 0;
        for items in items.chunk_by(|a, b| a.0 == b.0) {
            let socket = sockets.iter_mut().find(|(listener, _)| items.first().is_some_and(|item| item.0 == *listener));
            dropped += socket.map_or(0, |(_, udp)| send_from(udp, items, out, (&mut *whole, &mut *cut)));
        }
        dropped
    }
}

type Headers<'h> = &'h mut MultiHeaders<SockaddrStorage>;

fn send_from(udp: &mut Udp, mut items: &[Item], out: &Transmits, (whole, cut): (Headers<'_>, Headers<'_>)) -> u64 {
    let mut dropped = 0;
    // So many of the first were refused as one message.
    let mut apart = 0;
    while !items.is_empty() {
        let batch = Batch::of(items, out, |at| if at < apart { 0 } else { udp.segment_max() });
        let sent = match batch.send(udp, whole, cut) {
            Ok(sent) => sent,
            Err(errno) if batch.segment.is_some() => {
                // Each has its chance alone. A device or a way that can do it with none says so by EIO; all else is of one peer.
                if errno == Errno::EIO {
                    udp.cannot_segment();
                }
                apart = batch.end(1);
                continue;
            }
            // One datagram that cannot be sent (no route, refused, too long, full buffer) must not hold up the rest.
            Err(_) => {
                dropped += 1;
                1
            }
        };
        let sent = batch.end(sent).max(1);
        items = items.get(sent..).unwrap_or_default();
        apart = apart.saturating_sub(sent);
    }
    dropped
}

/// What one system call sends: messages of one datagram each, or such as are cut at the same length.
struct Batch<'a> {
    pieces: [IoSlice<'a>; PIECES_MAX],
    peers: [Option<SockaddrStorage>; BATCH],
    /// Of each message, where its pieces end.
    ends: [usize; BATCH],
    len: usize,
    segment: Option<u16>,
}

impl<'a> Batch<'a> {
    /// As many of the first of `items` as one call can send. `segment_max`: the longest of several datagrams that may go as
    /// one message, of which this is the first.
    fn of(items: &[Item], out: &'a Transmits, segment_max: impl Fn(usize) -> usize) -> Self {
        let mut batch = Self {
            pieces: [IoSlice::new(&[]); PIECES_MAX],
            peers: [None; BATCH],
            ends: [0; BATCH],
            len: 0,
            segment: None,
        };
        let mut at = 0;
        for (peer, end) in batch.peers.iter_mut().zip(&mut batch.ends) {
            let rest = items.get(at..).unwrap_or_default();
            let Some((_, to, first)) = rest.first() else { break };
            let run = run(rest, out, segment_max(at));
            let segment = (run > 1).then(|| bytes(out, *first).len() as u16);
            let Some(pieces) = batch.pieces.get_mut(at..at + run) else { break };
            if batch.len > 0 && segment != batch.segment {
                break;
            }
            pieces.iter_mut().zip(rest).for_each(|(piece, (.., at))| *piece = IoSlice::new(bytes(out, *at)));
            (*peer, batch.segment) = (Some((*to).into()), segment);
            at += run;
            *end = at;
            batch.len += 1;
        }
        batch
    }

    /// How many datagrams the first so many messages are.
    fn end(&self, messages: usize) -> usize {
        messages.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
    }

    /// How many messages the kernel took, if it took the first.
    fn send(&self, udp: &Udp, whole: Headers<'_>, cut: Headers<'_>) -> Result<usize, Errno> {
        let mut messages: [&[IoSlice<'_>]; BATCH] = [&[]; BATCH];
        let mut from = 0;
        for (message, end) in messages.iter_mut().zip(self.ends).take(self.len) {
            *message = self.pieces.get(from..end).unwrap_or_default();
            from = end;
        }
        let messages = messages.iter().take(self.len);
        let peers = self.peers.get(..self.len).unwrap_or_default();
        let (fd, flags) = (udp.as_fd().as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let sent = match &self.segment {
            None => sendmmsg(fd, whole, messages, peers, [], flags),
            Some(segment) => sendmmsg(fd, cut, messages, peers, [ControlMessage::UdpGsoSegments(segment)], flags),
        };
        sent.map(Iterator::count)
    }
}

/// How many of the first of `items` may go as one message: all but the last are equally long, and that is not longer.
fn run(items: &[Item], out: &Transmits, segment_max: usize) -> usize {
    let Some(((_, to, first), others)) = items.split_first() else { return 0 };
    let segment = bytes(out, *first).len();
    if segment == 0 || segment > segment_max {
        return 1;
    }
    let (mut len, mut total) = (1, segment);
    for (_, peer, at) in others.iter().take(SEGMENTS_MAX - 1) {
        let next = bytes(out, *at).len();
        total += next;
        if peer != to || next == 0 || next > segment || total > Transmits::DATAGRAM_BYTES_MAX {
            break;
        }
        len += 1;
        if next < segment {
            break;
        }
    }
    len
}

fn bytes(out: &Transmits, at: usize) -> &[u8] {
    out.get(at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, process::Command, thread, time::Duration};

    use nix::sched::{CloneFlags, unshare};
    use sluicegate_proxy::Flow;

    use super::*;

    /// A socket that takes what is sent to it, and waits for it.
    fn receiver(address: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let at = socket.local_addr().unwrap();
        (socket, at)
    }

    fn sender(address: &str) -> Vec<(u8, Udp)> {
        vec![(3, Udp::bind(address.parse().unwrap(), true).unwrap())]
    }

    fn queue(datagrams: &[(SocketAddr, Vec<u8>)]) -> Transmits {
        let mut out = Transmits::default();
        for (to, bytes) in datagrams {
            assert!(out.push(Flow::datagrams(3, *to), bytes));
        }
        out
    }

    /// All that goes to each of these arrives there, and in its order.
    fn expect(receivers: &[(UdpSocket, SocketAddr)], sent: &[(SocketAddr, Vec<u8>)]) {
        let mut buffer = vec![0; 65_536];
        for (socket, address) in receivers {
            for (_, expected) in sent.iter().filter(|(to, _)| to == address) {
                let len = socket.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == expected[..], "{len} bytes instead of {}", expected.len());
            }
            socket.set_nonblocking(true).unwrap();
            assert!(socket.recv(&mut buffer).is_err(), "more than was sent");
            socket.set_nonblocking(false).unwrap();
        }
    }

    /// Runs of equal lengths, a shorter and a longer one behind each, an empty one, and such as no Ethernet carries whole, to
    /// three peers in turn.
    fn mixed(receivers: &[(UdpSocket, SocketAddr)]) -> Vec<(SocketAddr, Vec<u8>)> {
        let lengths = [448, 448, 448, 100, 448, 512, 0, 512, 512, 1_452, 1_452, 1_472, 1_472, 1_473, 1_473, 9_000, 64];
        let lengths = lengths.into_iter().chain([320; 70]);
        let fill = |nth: usize, peer: usize| u8::try_from((nth * 3 + peer) % 251).unwrap();
        let to_all = |(nth, len): (usize, usize)| {
            let to = receivers.iter().enumerate();
            to.map(move |(peer, (_, address))| (*address, vec![fill(nth, peer); len])).collect::<Vec<_>>()
        };
        lengths.enumerate().flat_map(to_all).collect()
    }

    #[test]
    fn datagrams_of_all_lengths_reach_their_peers_whole_and_in_order() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let (mut sockets, mut outbox) = (sender(local), Outbox::new());
            let receivers = [local; 3].map(receiver);
            let sent = mixed(&receivers);
            for _ in 0..2 {
                assert_eq!(outbox.send(&mut sockets, &mut [], &queue(&sent)), 0);
                expect(&receivers, &sent);
            }
            assert!(sockets[0].1.segment_max() > 0, "this kernel cuts datagrams");
        }
    }

    #[test]
    fn a_flush_allocates_nothing_once_it_was_as_long() {
        let (mut sockets, mut outbox) = (sender("127.0.0.1:0"), Outbox::new());
        let receivers = ["127.0.0.1:0"; 3].map(receiver);
        let out = queue(&mixed(&receivers));
        assert_eq!(outbox.send(&mut sockets, &mut [], &out), 0);
        let allocated = allocation_counter::measure(|| assert_eq!(outbox.send(&mut sockets, &mut [], &out), 0));
        assert_eq!(allocated.count_total, 0);
    }

    #[test]
    fn where_the_kernel_does_not_cut_all_arrives_the_same() {
        let (mut sockets, mut outbox) = (sender("127.0.0.1:0"), Outbox::new());
        let receivers = ["127.0.0.1:0"; 3].map(receiver);
        let sent = mixed(&receivers);
        sockets[0].1.cannot_segment();
        assert_eq!(outbox.send(&mut sockets, &mut [], &queue(&sent)), 0);
        expect(&receivers, &sent);
    }

    /// In a network of its own, whose loopback carries less than Ethernet does.
    fn over_a_narrow_way() {
        let narrow = Command::new("ip").args(["link", "set", "lo", "up", "mtu", "1000"]).status().unwrap();
        assert!(narrow.success());
        let (mut sockets, mut outbox) = (sender("127.0.0.1:0"), Outbox::new());
        let receivers = ["127.0.0.1:0"; 2].map(receiver);
        let sent: Vec<_> = (0..40_u8)
            .flat_map(|nth| receivers.iter().map(move |(_, to)| (*to, vec![nth; if nth < 9 { 1_200 } else { 500 }])))
            .collect();
        assert_eq!(outbox.send(&mut sockets, &mut [], &queue(&sent)), 0);
        expect(&receivers, &sent);
        assert!(sockets[0].1.segment_max() > 0, "one way says nothing about others");
        let out = queue(&sent[..4]);
        let items: Vec<Item> = (0..4).map(|at| (3, sent[at].0, at)).collect();
        let refused = Batch::of(&[items[0], items[2]], &out, |_| 1_472);
        let refused = refused.send(&sockets[0].1, &mut outbox.whole, &mut outbox.cut);
        assert!(matches!(refused, Err(Errno::EINVAL | Errno::EMSGSIZE)), "{refused:?}");
    }

    #[test]
    fn what_the_kernel_refuses_to_cut_goes_whole_and_the_rest_is_cut_all_the_same() {
        let alone = thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET).map(|()| over_a_narrow_way()));
        if alone.join().unwrap().is_err() {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: needs root for network namespaces\n");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_counted_and_does_not_hold_up_the_others() {
        let (mut sockets, mut outbox) = (sender("127.0.0.1:0"), Outbox::new());
        let receivers = ["127.0.0.1:0"; 2].map(receiver);
        // Nobody may send to all hosts without having asked for it.
        let nowhere: SocketAddr = "255.255.255.255:5060".parse().unwrap();
        let mut sent = mixed(&receivers);
        for at in [0, 1, 2, 50, sent.len() - 3] {
            sent.insert(at, (nowhere, vec![1; 448]));
        }
        assert_eq!(outbox.send(&mut sockets, &mut [], &queue(&sent)), 5);
        expect(&receivers, &sent);
    }

    #[test]
    fn what_goes_out_elsewhere_is_left_alone() {
        let (mut sockets, mut outbox) = (sender("127.0.0.1:0"), Outbox::new());
        let receivers = [receiver("127.0.0.1:0")];
        let mut out = Transmits::default();
        for listener in [2, 3, 4, 3] {
            assert!(out.push(Flow::datagrams(listener, receivers[0].1), &[listener]));
        }
        assert_eq!(outbox.send(&mut sockets, &mut [], &out), 0);
        expect(&receivers, &[(receivers[0].1, vec![3]), (receivers[0].1, vec![3])]);
    }

    #[test]
    fn equally_long_datagrams_are_one_message_for_each_peer_and_all_of_them_one_call() {
        let peers: [SocketAddr; 8] =
            ["1", "2", "3", "4", "5", "6", "7", "8"].map(|host| format!("192.0.2.{host}:5060").parse().unwrap());
        let sent: Vec<_> = peers.iter().flat_map(|to| vec![(*to, vec![0; 448]); 10]).collect();
        let items: Vec<Item> = sent.iter().enumerate().map(|(at, (to, _))| (3, *to, at)).collect();
        let out = queue(&sent);
        let batch = Batch::of(&items, &out, |_| 1_472);
        assert_eq!((batch.len, batch.end(8), batch.segment), (8, 80, Some(448)));
        let apart = Batch::of(&items, &out, |at| if at < 10 { 0 } else { 1_472 });
        assert_eq!((apart.len, apart.end(10), apart.segment), (10, 10, None));
    }

    #[test]
    fn a_run_ends_with_a_shorter_datagram_and_with_as_many_as_the_kernel_cuts() {
        let [a, b]: [SocketAddr; 2] = ["192.0.2.1:5060", "192.0.2.2:5060"].map(|peer| peer.parse().unwrap());
        let runs = |lengths: &[(SocketAddr, usize)], segment_max| {
            let out = queue(&lengths.iter().map(|(to, len)| (*to, vec![0; *len])).collect::<Vec<_>>());
            let items: Vec<Item> = lengths.iter().enumerate().map(|(at, (to, _))| (3, *to, at)).collect();
            let mut runs = Vec::new();
            let mut rest = &items[..];
            while !rest.is_empty() {
                runs.push(run(rest, &out, segment_max));
                rest = &rest[runs[runs.len() - 1]..];
            }
            runs
        };
        assert_eq!(runs(&[(a, 5), (a, 5), (a, 4), (a, 4), (a, 5), (b, 5), (b, 5)], 1_472), [3, 1, 1, 2]);
        assert_eq!(runs(&[(a, 5), (a, 0), (a, 0), (a, 5)], 1_472), [1, 1, 1, 1]);
        assert_eq!(runs(&[(a, 6), (a, 6), (a, 5), (a, 5)], 5), [1, 1, 2]);
        assert_eq!(runs(&[(a, 5); 130], 1_472), [64, 64, 2]);
        assert_eq!(runs(&[(a, 1_472); 64], 1_472), [44, 20], "65,507 bytes at most");
        assert_eq!(runs(&[(a, 5); 3], 0), [1, 1, 1]);
    }
}
