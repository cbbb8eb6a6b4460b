//! Real sockets on loopback; what has to happen in time is told the time.

mod tls;

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Instant as HostInstant,
};

use nix::poll::{PollFd, PollFlags, poll};
use sluicegate_proxy::ConnectionId;

use super::*;

const NOW: Instant = Instant::from_secs(1_000);
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of the only listener.
const LISTENER: u8 = 3;
const SHARD: u8 = 5;
const REFUSAL: &[u8] = b"SIP/2.0 400 Bad Request\r\n\r\n";

/// One thread's connections, and what came over them.
struct Thread {
    streams: Streams,
    metrics: Arc<StreamMetrics>,
    address: SocketAddr,
    now: Instant,
    heard: Vec<(Flow, String)>,
    /// Whether connections are taken, and how many before what time.
    takes: bool,
    room: (u32, Instant),
    /// What was proved over the connections of these.
    proofs: Vec<Arc<Proofs>>,
    broken: Vec<(Flow, Option<u16>)>,
}

impl Thread {
    fn new(limits: Connections) -> Self {
        Self::with(limits, None)
    }

    fn with(limits: Connections, tls: Option<Arc<Tls>>) -> Self {
        let listener = StreamListener::bind((Ipv4Addr::LOCALHOST, 0).into(), true, tls).unwrap();
        let (address, metrics) = (listener.local_addr().unwrap(), Arc::default());
        let listeners = HashMap::from([(LISTENER, listener)]);
        let streams = Streams::new(SHARD, listeners, limits, Arc::clone(&metrics)).unwrap();
        Self {
            streams,
            metrics,
            address,
            now: NOW,
            heard: Vec::new(),
            proofs: Vec::new(),
            broken: Vec::new(),
            takes: true,
            room: (u32::MAX, NOW),
        }
    }

    fn connect(&self) -> TcpStream {
        let peer = TcpStream::connect(self.address).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer
    }

    /// One turn, as the worker does it.
    fn turn(&mut self) {
        let before = self.broken.len();
        let Self { streams, heard, proofs, broken, takes, .. } = self;
        let takes = *takes;
        streams.turn(self.now, self.room, &mut |flow, proved, what| {
            match what {
                Heard::Connection(..) => return takes,
                Heard::Message(bytes, _) => {
                    heard.push((flow, String::from_utf8(bytes.to_vec()).unwrap()));
                    proofs.push(Arc::clone(proved));
                }
                Heard::Broken(_, error) => broken.push((flow, error.status())),
            }
            true
        });
        streams.on_time(self.now);
        // The shard's answer is there before anything is sent.
        for (flow, status) in self.broken.iter().skip(before) {
            if status.is_some() {
                streams.send(self.now, *flow, REFUSAL);
            }
        }
        streams.flush(self.now);
    }

    /// Turns until `done`, or fails.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = HostInstant::now() + PATIENCE;
        while !done(self) {
            assert!(HostInstant::now() < end, "{what}");
            let mut fds = [PollFd::new(self.streams.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, 10_u8).unwrap();
            self.turn();
        }
    }

    fn hears(&mut self, messages: usize) {
        self.until("messages arrive", |thread| thread.heard.len() >= messages);
    }

    fn open(&self) -> u64 {
        self.streams.gauges()[0].used
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.turn();
    }

    fn counted(&self, what: &str) -> u64 {
        counted(std::iter::once(&*self.metrics)).get(what).copied().unwrap_or(0)
    }
}

fn options(number: usize) -> String {
    format!("OPTIONS sip:a@b SIP/2.0\r\nCall-ID: {number}\r\nContent-Length: 4\r\n\r\nbody")
}

fn read(peer: &mut TcpStream, len: usize) -> String {
    let mut bytes = vec![0; len];
    peer.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Whether the other side has closed, one way or another.
fn is_cut(peer: &mut TcpStream) -> bool {
    match peer.read(&mut [0; 64]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn messages_in_any_pieces_come_whole_and_their_answers_go_down_the_same_connection() {
    let mut thread = Thread::new(Connections::default());
    let (mut one, mut other) = (thread.connect(), thread.connect());
    one.write_all((options(1) + &options(2)).as_bytes()).unwrap();
    thread.hears(2);
    for byte in options(3).bytes() {
        other.write_all(&[byte]).unwrap();
        thread.turn();
    }
    thread.hears(3);
    let texts: Vec<_> = thread.heard.iter().map(|(_, text)| text.clone()).collect();
    assert_eq!(texts, [options(1), options(2), options(3)]);
    let flows: Vec<Flow> = thread.heard.iter().map(|(flow, _)| *flow).collect();
    assert_eq!((flows[0], flows[0].listener, flows[0].peer), (flows[1], LISTENER, one.local_addr().unwrap()));
    assert!(flows.iter().all(|flow| flow.connection.is_some_and(|id| id.shard() == SHARD)));
    assert_ne!(flows[0].connection, flows[2].connection);
    thread.streams.send(NOW, flows[2], b"to the other");
    thread.streams.send(NOW, flows[0], b"to one");
    thread.streams.flush(NOW);
    assert_eq!((read(&mut one, 6), read(&mut other, 12)), ("to one".into(), "to the other".into()));
}

#[test]
fn a_keep_alive_is_answered_and_keeps_an_idle_connection() {
    let mut thread = Thread::new(Connections { idle_s: 60, ..Connections::default() });
    let mut peer = thread.connect();
    peer.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    for pings in 2..5 {
        thread.pass(Duration::from_secs(50));
        peer.write_all(b"\r\n\r\n").unwrap();
        thread.hears(pings);
        assert_eq!(read(&mut peer, 2), "\r\n");
    }
    thread.pass(Duration::from_secs(59));
    assert_eq!(thread.open(), 1);
    thread.pass(Duration::from_secs(2));
    assert!(is_cut(&mut peer));
    assert_eq!((thread.open(), thread.counted("ended idle")), (0, 1));
    assert_eq!(thread.streams.ended().collect::<Vec<_>>(), [thread.heard[0].0.connection.unwrap()]);
    assert_eq!(thread.streams.ended().count(), 0);
}

#[test]
fn who_says_nothing_or_says_it_too_slowly_is_cut() {
    let mut thread = Thread::new(Connections::default());
    let (mut silent, mut pinging, mut slow) = (thread.connect(), thread.connect(), thread.connect());
    slow.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    thread.until("all are taken", |thread| thread.open() == 3);
    // A byte now and then, and line breaks, are no message.
    for byte in options(2).bytes().take(9) {
        slow.write_all(&[byte]).unwrap();
        pinging.write_all(b"\r\n\r\n").unwrap();
        thread.hears(1);
        thread.pass(Duration::from_millis(500));
    }
    assert_eq!(thread.open(), 3);
    thread.pass(Duration::from_millis(1_400));
    assert!(is_cut(&mut slow));
    assert_eq!((thread.open(), thread.counted("ended slow")), (2, 1));
    thread.pass(Duration::from_secs(5));
    assert!(is_cut(&mut silent));
    assert_eq!((thread.open(), thread.counted("ended silent")), (0, 2));
    assert_eq!(thread.streams.next_due(), None);
}

#[test]
fn a_peer_that_does_not_read_is_cut_and_holds_no_more_than_it_may() {
    let limits = Connections { unsent_bytes_max: 10_000, ..Connections::default() };
    let mut thread = Thread::new(limits);
    let mut peer = thread.connect();
    peer.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    let (flow, mut sent) = (thread.heard[0].0, 0);
    while thread.open() == 1 {
        thread.streams.send(NOW, flow, &[b'x'; 1_000]);
        thread.streams.flush(NOW);
        sent += 1_000;
        // The kernel's own buffers on both sides come on top.
        assert!(sent < 20_000_000);
    }
    assert_eq!((thread.counted("ended unread"), thread.counted("unsent gone")), (1, 1));
    thread.streams.send(NOW, flow, b"more");
    assert_eq!(thread.counted("unsent gone"), 2);
}

#[test]
fn strangers_who_stop_before_the_end_hold_so_much_together_and_keep_out_nobody_who_goes_on() {
    let limits = Connections { unfinished_bytes_max: 100_000, ..Connections::default() };
    let mut thread = Thread::new(limits);
    let begun = format!("OPTIONS sip:a@b SIP/2.0\r\nX-Long: {}", "x".repeat(10_000));
    let mut held = Vec::new();
    for number in 0..40 {
        let mut peer = thread.connect();
        peer.write_all(begun.as_bytes()).unwrap();
        held.push(peer);
        thread.until("it is taken", |thread| thread.counted("opened tcp peer") > number);
        assert!(thread.streams.gauges()[2].used <= 100_000);
    }
    thread.until("the first have given way", |thread| thread.counted("ended crowded") >= 30);
    assert!(is_cut(&mut held[0]));
    // In two pieces, with what strangers hold between them.
    let whole = options(1);
    let (first, rest) = whole.split_at(20);
    let mut honest = thread.connect();
    honest.write_all(first.as_bytes()).unwrap();
    thread.turn();
    honest.write_all(rest.as_bytes()).unwrap();
    thread.hears(1);
    drop(held);
    thread.until("they are gone", |thread| thread.open() == 1);
    assert_eq!(thread.streams.gauges()[2].used, 0);
}

#[test]
fn a_peer_that_reads_nothing_for_half_a_minute_is_cut() {
    let mut thread = Thread::new(Connections { unsent_bytes_max: 20_000_000, ..Connections::default() });
    let mut peer = thread.connect();
    peer.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    thread.streams.send(NOW, thread.heard[0].0, &vec![b'x'; 15_000_000]);
    thread.streams.flush(NOW);
    thread.pass(Duration::from_secs(31));
    assert_eq!(thread.open(), 1);
    thread.pass(Duration::from_secs(2));
    assert_eq!((thread.open(), thread.counted("ended unread")), (0, 1));
}

#[test]
fn what_is_no_message_is_answered_and_ends_the_connection() {
    let mut thread = Thread::new(Connections::default());
    let mut peer = thread.connect();
    peer.write_all(b"OPTIONS sip:a@b SIP/2.0\r\nCall-ID: 1\r\n\r\n").unwrap();
    thread.until("it is told", |thread| !thread.broken.is_empty());
    assert_eq!(thread.broken[0].1, Some(400));
    // More comes before the answer is read: that must not have it thrown away.
    peer.write_all(options(2).as_bytes()).unwrap();
    thread.turn();
    assert_eq!(read(&mut peer, REFUSAL.len()).as_bytes(), REFUSAL);
    assert!(is_cut(&mut peer));
    drop(peer);
    thread.until("it is gone", |thread| thread.open() == 0);
    assert_eq!((thread.heard.len(), thread.counted("ended malformed")), (0, 1));
}

#[test]
fn who_does_not_close_after_the_last_answer_is_cut() {
    let mut thread = Thread::new(Connections::default());
    let mut peer = thread.connect();
    peer.write_all(b"\n").unwrap();
    thread.until("it is told", |thread| !thread.broken.is_empty());
    thread.turn();
    thread.pass(Duration::from_secs(3));
    assert!(is_cut(&mut peer));
    assert_eq!(thread.open(), 0);
}

#[test]
fn a_flood_of_idle_connections_takes_no_place_from_who_has_signed_in_nor_from_who_comes_then() {
    let limits = Connections { total_max: 40, unproved_max: 20, per_source_per_s: 100_000, ..Connections::default() };
    let mut thread = Thread::new(limits);
    let mut honest = thread.connect();
    honest.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    thread.streams.prove(thread.heard[0].0.connection.unwrap(), &Arc::from("alice"));
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.extend((0..10).map(|_| thread.connect()));
        thread.until("they are taken", |thread| thread.counted("opened tcp peer") > idle.len() as u64);
    }
    assert_eq!(thread.streams.gauges().map(|gauge| gauge.used), [21, 20, 0]);
    assert_eq!(thread.counted("ended crowded"), 180);
    assert!(is_cut(&mut idle[0]));
    let mut late = thread.connect();
    late.write_all(options(2).as_bytes()).unwrap();
    honest.write_all(options(3).as_bytes()).unwrap();
    thread.hears(3);
    for (flow, _) in &thread.heard[1..] {
        thread.streams.send(NOW, *flow, b"answer");
    }
    thread.turn();
    assert_eq!((read(&mut late, 6), read(&mut honest, 6)), ("answer".into(), "answer".into()));
}

#[test]
fn connections_for_which_there_is_no_room_yet_wait_in_the_kernel() {
    let mut thread = Thread::new(Connections::default());
    thread.room = (0, NOW + Duration::from_millis(100));
    let mut peer = thread.connect();
    peer.write_all(options(1).as_bytes()).unwrap();
    thread.until("it waits", |thread| thread.streams.crowd(0.5).waiting == 1);
    for _ in 0..3 {
        thread.turn();
    }
    assert_eq!((thread.open(), thread.counted("refused load")), (0, 0));
    // Nobody is woken for it before its time.
    assert_eq!(thread.streams.next_due(), Some(NOW + Duration::from_millis(100)));
    thread.room = (1, NOW + Duration::from_millis(200));
    thread.pass(Duration::from_millis(100));
    thread.hears(1);
    assert!(!thread.streams.crowd(0.5).is_full);
    assert_eq!(thread.streams.crowd(0.5).waiting, 0);
}

#[test]
fn who_is_not_taken_for_load_is_reset_and_nothing_is_left() {
    let mut thread = Thread::new(Connections::default());
    thread.takes = false;
    let mut peer = thread.connect();
    thread.until("it is refused", |thread| thread.counted("refused load") == 1);
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!((thread.open(), thread.streams.gauges().map(|gauge| gauge.used)), (0, [0, 0, 0]));
    thread.takes = true;
    thread.connect().write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
}

#[test]
fn a_source_that_opens_connections_without_end_is_refused() {
    let mut thread = Thread::new(Connections { per_source_per_s: 1, ..Connections::default() });
    let peers: Vec<TcpStream> = (0..60).map(|_| thread.connect()).collect();
    thread.until("all are looked at", |thread| {
        thread.counted("opened tcp peer") + thread.counted("refused rate") == peers.len() as u64
    });
    assert_eq!((thread.open(), thread.counted("refused rate")), (20, 40));
}

#[test]
fn a_message_for_a_connection_that_is_gone_is_dropped_and_counted() {
    let mut thread = Thread::new(Connections::default());
    let mut peer = thread.connect();
    peer.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    let flow = thread.heard[0].0;
    // The number of a connection of before a restart, say: it leads nowhere else.
    thread.streams.send(NOW, Flow { peer: "192.0.2.1:5060".parse().unwrap(), ..flow }, b"x");
    thread.streams.send(NOW, Flow { connection: ConnectionId::new(SHARD, 77), ..flow }, b"x");
    assert_eq!((thread.counted("unsent gone"), thread.open()), (2, 1));
    drop(peer);
    thread.until("it is gone", |thread| thread.open() == 0);
    thread.streams.send(NOW, flow, b"x");
    assert_eq!(thread.counted("unsent gone"), 3);
}

#[test]
fn a_peer_without_a_connection_is_dialled_once_and_answers_over_that() {
    let mut thread = Thread::new(Connections::default());
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let flow = Flow::datagrams(LISTENER, server.local_addr().unwrap());
    thread.streams.send(NOW, flow, options(1).as_bytes());
    thread.streams.send(NOW, flow, options(2).as_bytes());
    let (mut accepted, from) = server.accept().unwrap();
    assert_eq!(from.ip(), thread.address.ip());
    thread.until("both went", |thread| thread.streams.connections.iter().all(|(_, known)| !known.carrier.has_unsent()));
    thread.streams.send(NOW, flow, options(3).as_bytes());
    thread.turn();
    assert_eq!(read(&mut accepted, 3 * options(1).len()), options(1) + &options(2) + &options(3));
    accepted.write_all(options(4).as_bytes()).unwrap();
    thread.hears(1);
    let answered = thread.heard[0].0;
    assert_eq!((answered.listener, answered.peer, thread.open()), (LISTENER, flow.peer, 1));
    assert_eq!((thread.counted("opened tcp us"), thread.streams.gauges()[1].used), (1, 0));
    // What was dialled is made again when it is needed again.
    drop(accepted);
    thread.until("it is gone", |thread| thread.open() == 0);
    thread.streams.send(NOW, flow, options(5).as_bytes());
    let (mut accepted, _) = server.accept().unwrap();
    thread.until("it went", |thread| thread.streams.connections.iter().all(|(_, known)| !known.carrier.has_unsent()));
    assert_eq!(read(&mut accepted, options(5).len()), options(5));
}

#[test]
fn a_connection_that_a_stranger_made_from_there_is_not_taken_for_one_to_a_server() {
    let mut thread = Thread::new(Connections::default());
    let mut stranger = thread.connect();
    stranger.write_all(options(1).as_bytes()).unwrap();
    thread.hears(1);
    let flow = Flow { connection: None, ..thread.heard[0].0 };
    thread.streams.send(NOW, flow, b"secret");
    thread.turn();
    stranger.set_nonblocking(true).unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn messages_for_a_peer_that_cannot_be_reached_are_counted() {
    let mut thread = Thread::new(Connections::default());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    thread.streams.send(NOW, Flow::datagrams(LISTENER, closed), b"one");
    thread.streams.send(NOW, Flow::datagrams(LISTENER, closed), b"two");
    thread.until("it is given up", |thread| thread.open() == 0);
    assert_eq!(thread.counted("unsent unreached") + thread.counted("unsent gone"), 2);
    assert_eq!(thread.counted("ended unreached"), thread.counted("opened tcp us"));
    // Their senders are told; who gets an answer has none to give.
    thread.streams.send(NOW, Flow::datagrams(LISTENER, closed), b"SIP/2.0 200 OK");
    thread.until("that is given up too", |thread| thread.open() == 0);
    let told = thread.streams.undelivered();
    assert_eq!(told, [b"one", b"two"].map(|message| (Flow::datagrams(LISTENER, closed), message.to_vec())));
    assert!(thread.streams.undelivered().is_empty());
    // No listener, no way.
    thread.streams.send(NOW, Flow::datagrams(LISTENER + 1, closed), b"three");
    assert_eq!(thread.counted("unsent unreached") + thread.counted("unsent gone"), 4);
    assert_eq!(thread.streams.undelivered().len(), 1);
}
