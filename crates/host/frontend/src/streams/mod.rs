//! SIP over TCP and TLS: the connections of one thread. Nothing here blocks, allocates beyond its limits, or trusts anybody
//! before a whole message has come.
//!
//! Until then a connection costs its entries (some 400 bytes), with TLS some 6 KB besides; at most 32 KB of the message under
//! way, at most 32 KB of a TLS handshake, and what waits to be sent. The kernel's own buffers come on top, twice 64 KB.

mod carrier;
mod connection;
mod counted;
mod places;
mod unfinished;

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use rustls::ServerConnection;
use sluicegate_bounded::{Gauge, Slab, Wheel};
use sluicegate_datapath::{unread_for, waiting_at};
use sluicegate_overload::Crowd;
use sluicegate_policy::Policy;
use sluicegate_proxy::{ConnectionId, Flow, Proofs};
use sluicegate_sip::message::Transport;
use sluicegate_wire::Instant;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use self::{
    carrier::{Carrier, Failed, READ_BYTES_MAX},
    connection::{Begun, Connection, Stage},
    counted::{Ended, Refused},
    places::Places,
    unfinished::Unfinished,
};
use crate::{config::LISTEN_MAX, tls::Tls};
pub(crate) use connection::Heard;
pub(crate) use counted::{StreamMetrics, Unsent, counted, metrics};
pub use places::Connections;

/// Connections that the kernel holds until they are taken.
const BACKLOG: i32 = 1_024;
/// Most connections taken from one listener before others get their turn; and where so much is to be read that it does not
/// fit into a turn: what was begun is ended first.
const ACCEPTS_PER_TURN: usize = 16;
const ACCEPTS_PER_FULL_TURN: usize = 4;
/// Most sockets looked at before others get their turn.
const EVENTS_PER_TURN: usize = 64;
/// A listener whose connections the system cannot hold is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// Deadlines are looked at this often.
const TICK_NANOS: u64 = 100_000_000;
/// Kernel buffers of each connection, in bytes. They would grow to megabytes by themselves.
const KERNEL_BYTES: usize = 64 * 1024;

/// One listening socket of one thread: as many threads share a port as there are.
#[derive(Debug)]
pub(crate) struct StreamListener {
    socket: TcpListener,
    /// Its TLS, if it speaks that.
    tls: Option<Arc<Tls>>,
    own: IpAddr,
    paused_until: Option<Instant>,
}

impl StreamListener {
    /// Listens at `address`. With `shared`, other sockets of this user may listen at the same port, and the kernel spreads
    /// connections over them.
    pub(crate) fn bind(address: SocketAddr, shared: bool, tls: Option<Arc<Tls>>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // What is left of earlier connections must not keep a restarted frontend away from its port.
        socket.set_reuse_address(true)?;
        if shared {
            socket.set_reuse_port(true)?;
        }
        bound_buffers(SockRef::from(&socket))?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: socket.into(), tls, own: address.ip(), paused_until: None })
    }

    /// The address bound to.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    const fn transport(&self) -> Transport {
        if self.tls.is_some() { Transport::Tls } else { Transport::Tcp }
    }
}

/// A request that could not be sent, and where it should have gone.
pub(crate) type Undelivered = (Flow, Vec<u8>);

/// All connections of one thread.
#[derive(Debug)]
pub(crate) struct Streams {
    shard: u8,
    limits: Connections,
    /// By listener number.
    listeners: HashMap<u8, StreamListener>,
    poller: Epoll,
    connections: Slab<Connection>,
    by_id: HashMap<ConnectionId, u32>,
    /// Those that we dialled, by listener and peer.
    dialled: HashMap<(u8, SocketAddr), u32>,
    places: Places,
    unfinished: Unfinished,
    deadlines: Wheel,
    /// Slots of those that have something to send.
    due: Vec<u32>,
    /// Those that have ended since somebody asked, if anything ever came over them.
    ended: Vec<ConnectionId>,
    /// What nobody has proved yet, over any of them.
    nothing: Arc<Proofs>,
    /// Requests that could not be sent, since somebody asked.
    undelivered: Vec<Undelivered>,
    last_number: u32,
    chunk: Box<[u8]>,
    metrics: Arc<StreamMetrics>,
}

impl Streams {
    /// The connections of `shard` over these listeners, by their numbers.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(
        shard: u8,
        listeners: HashMap<u8, StreamListener>,
        limits: Connections,
        metrics: Arc<StreamMetrics>,
    ) -> io::Result<Self> {
        let poller = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (number, listener) in &listeners {
            poller.add(&listener.socket, EpollEvent::new(EpollFlags::EPOLLIN, u64::from(*number)))?;
        }
        let max = u32::try_from(limits.total_max).unwrap_or(u32::MAX);
        Ok(Self {
            shard,
            limits,
            listeners,
            poller,
            connections: Slab::new("connections", max),
            by_id: HashMap::new(),
            dialled: HashMap::new(),
            places: Places::new(limits),
            unfinished: Unfinished::new(limits.unfinished_bytes_max),
            deadlines: Wheel::new("connection_deadlines", max, TICK_NANOS),
            due: Vec::new(),
            ended: Vec::new(),
            nothing: Arc::default(),
            undelivered: Vec::new(),
            last_number: 0,
            chunk: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            metrics,
        })
    }

    /// Whether a listener is one of these.
    pub(crate) fn has(&self, listener: u8) -> bool {
        self.listeners.contains_key(&listener)
    }

    /// Takes new connections and what has come over those that there are, each a little, so that none takes all the time. No
    /// more than so many connections before that time; the others wait in the kernel.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        room: (u32, Instant),
        heard: &mut impl FnMut(Flow, &Arc<Proofs>, Heard<'_>) -> bool,
    ) {
        let mut events = [EpollEvent::empty(); EVENTS_PER_TURN];
        let count = match self.poller.wait(&mut events, 0_u8) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => {
                tracing::error!(%errno, "cannot look for connections");
                0
            }
        };
        let accepts = if count == EVENTS_PER_TURN { ACCEPTS_PER_FULL_TURN } else { ACCEPTS_PER_TURN };
        for event in events.iter().take(count) {
            match u32::try_from(event.data()).ok().map(|data| (data, u8::try_from(data).ok())) {
                Some((_, Some(listener))) => self.accept(now, listener, (accepts.min(room.0 as usize), room.1), heard),
                Some((data, None)) => self.on_ready(now, data - FIRST_SLOT, event.events(), heard),
                None => {}
            }
        }
    }

    /// Ends what did not do in time what it had to.
    pub(crate) fn on_time(&mut self, now: Instant) {
        while let Some(slot) = self.deadlines.pop_due(now) {
            let Some(connection) = self.connections.get(slot) else { continue };
            match connection.deadline(&self.limits) {
                (due, reason) if due <= now => self.end(slot, reason),
                (due, _) => self.deadlines.schedule(slot, now, due),
            }
        }
        for (number, listener) in &mut self.listeners {
            if listener.paused_until.take_if(|until| *until <= now).is_some() {
                let mut event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(*number));
                let _ = self.poller.modify(&listener.socket, &mut event);
            }
        }
    }

    /// When [`Self::on_time`] has something to do.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let paused = self.listeners.values().filter_map(|listener| listener.paused_until);
        paused.chain(self.deadlines.next_due()).min()
    }

    /// Counts a message that another thread should have sent.
    pub(crate) fn count_unsent(&self, reason: Unsent) {
        self.metrics.unsent(reason);
    }

    /// The servers that are known by certificates are those of this policy.
    pub(crate) fn know(&self, policy: &Policy) {
        let all = self.listeners.values().filter_map(|listener| listener.tls.as_ref());
        all.for_each(|tls| tls.servers.know(policy));
    }

    /// This user has signed in over a connection.
    pub(crate) fn prove(&mut self, id: ConnectionId, user: &Arc<str>) {
        let Some(slot) = self.by_id.get(&id).copied() else { return };
        if let Some(connection) = self.connections.get_mut(slot) {
            Arc::make_mut(&mut connection.proofs).user = Some(Arc::clone(user));
        }
        if let Some(oldest) = self.places.sign_in(slot, user) {
            self.end(oldest, Ended::User);
        }
    }

    /// Sends a message over the connection of its flow, or over one to its peer, which is made if there is none. It goes
    /// with the next [`Self::flush`].
    pub(crate) fn send(&mut self, now: Instant, flow: Flow, message: &[u8]) {
        let slot = match flow.connection {
            Some(id) => self.by_id.get(&id).copied().ok_or(Unsent::Gone),
            None => match self.dialled_for(flow) {
                Some(slot) => Ok(slot),
                None => self.dial(now, flow).ok_or(Unsent::Unreached),
            },
        };
        if let Err(reason) = slot.and_then(|slot| self.queue(slot, flow, message)) {
            self.give_back(reason, flow, message);
        }
    }

    /// The connection to a peer, if there is one and its peer still counts as the one that is meant.
    fn dialled_for(&mut self, flow: Flow) -> Option<u32> {
        let slot = self.dialled.get(&(flow.listener, flow.peer)).copied()?;
        let tls = self.listeners.get(&flow.listener)?.tls.as_ref();
        let Some(tls) = tls else { return Some(slot) };
        let wanted = tls.servers.certificate(flow.peer);
        let shown = self.connections.get(slot).and_then(|known| known.proofs.certificates.first());
        if shown == wanted.as_ref() {
            return Some(slot);
        }
        self.end(slot, Ended::Outdated);
        None
    }

    /// Counts a message that was not sent; a request is told of.
    fn give_back(&mut self, reason: Unsent, flow: Flow, message: &[u8]) {
        self.metrics.unsent(reason);
        if !message.starts_with(b"SIP/2.0") {
            self.undelivered.push((flow, message.to_vec()));
        }
    }

    /// Requests that could not be sent since the last call, and where they should have gone.
    pub(crate) fn undelivered(&mut self) -> Vec<Undelivered> {
        std::mem::take(&mut self.undelivered)
    }

    fn queue(&mut self, slot: u32, flow: Flow, message: &[u8]) -> Result<(), Unsent> {
        let connection = self.connections.get_mut(slot).filter(|known| known.is(flow)).ok_or(Unsent::Gone)?;
        if connection.stage == Stage::Left {
            return Err(Unsent::Gone);
        }
        let queued = connection.carrier.queue(&connection.socket, message, self.limits.unsent_bytes_max);
        if connection.is_begun() && queued.is_ok() {
            connection.waiting.push(message.into());
        }
        if !std::mem::replace(&mut connection.is_due, true) {
            self.due.push(slot);
        }
        queued.map_err(|failed| {
            self.fail(slot, &failed);
            Unsent::Gone
        })
    }

    /// Sends what is to be sent, as far as peers take it.
    pub(crate) fn flush(&mut self, now: Instant) {
        let mut due = std::mem::take(&mut self.due);
        for slot in due.drain(..) {
            let Some(connection) = self.connections.get_mut(slot).filter(|known| known.is_due) else { continue };
            connection.is_due = false;
            if connection.stage != Stage::Dialling
                && let Err(failed) = connection.write(now)
            {
                self.fail(slot, &failed);
                continue;
            }
            self.settle(now, slot);
        }
        self.due = due;
    }

    /// Connections that have ended since the last call and over which something had come.
    pub(crate) fn ended(&mut self) -> std::vec::Drain<'_, ConnectionId> {
        self.ended.drain(..)
    }

    /// How many connections there are, and may be, and what strangers' hold of what they have not ended.
    pub(crate) fn gauges(&self) -> [Gauge; 3] {
        let [all, unproved] = self.places.gauges();
        [all, unproved, self.unfinished.gauge()]
    }

    /// How it is with new connections, of a thread that had something to do for this share of the time.
    pub(crate) fn crowd(&self, busy: f64) -> Crowd {
        let waiting = self.listeners.values().filter_map(|listener| waiting_at(&listener.socket).ok());
        let fold = |(sum, is_full), (waiting, most)| (sum + waiting, is_full || waiting >= most);
        let (waiting, is_full) = waiting.fold((0, false), fold);
        Crowd { waiting, is_full, strangers: self.places.strangers(), busy }
    }

    fn accept(
        &mut self,
        now: Instant,
        number: u8,
        (left, until): (usize, Instant),
        heard: &mut impl FnMut(Flow, &Arc<Proofs>, Heard<'_>) -> bool,
    ) {
        if left == 0 {
            return self.pause(number, until);
        }
        for _ in 0..left {
            let Some(listener) = self.listeners.get_mut(&number) else { return };
            match listener.socket.accept() {
                Ok((socket, peer)) => {
                    let waited = unread_for(&socket).unwrap_or_default();
                    if heard(Flow::datagrams(number, peer), &self.nothing, Heard::Connection(waited)) {
                        self.take(now, number, socket, peer);
                    } else {
                        // Nothing is left of it, here or in the kernel.
                        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                        self.metrics.refused(Refused::Load);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Gone again before it was taken.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.pause(number, now + PAUSE);
                    return self.metrics.refused(Refused::System);
                }
            }
        }
    }

    /// Leaves connections in the kernel until then.
    fn pause(&mut self, number: u8, until: Instant) {
        let Some(listener) = self.listeners.get_mut(&number) else { return };
        listener.paused_until = Some(until);
        let mut event = EpollEvent::new(EpollFlags::empty(), u64::from(number));
        let _ = self.poller.modify(&listener.socket, &mut event);
    }

    /// A peer has connected.
    fn take(&mut self, now: Instant, number: u8, socket: TcpStream, peer: SocketAddr) {
        let Some(listener) = self.listeners.get(&number) else { return };
        let (tls, transport) = (listener.tls.clone(), listener.transport());
        let crowded = match self.places.admit(now, peer.ip()) {
            Ok(crowded) => crowded,
            Err(reason) => {
                let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                return self.metrics.refused(reason);
            }
        };
        let carrier = match tls.map(|tls| ServerConnection::new(Arc::clone(&tls.server))).transpose() {
            Ok(None) => Carrier::Plain(Vec::new()),
            Ok(Some(tls)) => Carrier::tls(tls.into(), self.limits.unsent_bytes_max),
            Err(_) => return self.metrics.refused(Refused::System),
        };
        if socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).is_err() {
            return self.metrics.refused(Refused::System);
        }
        if let Some(slot) = crowded {
            self.end(slot, Ended::Crowded);
        }
        let flow = Flow::datagrams(number, peer);
        let begun = Begun { socket, carrier, stage: Stage::Open, proofs: Arc::clone(&self.nothing) };
        if self.keep(now, flow, begun).is_some() {
            self.metrics.opened(transport, false);
        }
    }

    /// Makes a connection to a peer that somebody has a message for.
    fn dial(&mut self, now: Instant, flow: Flow) -> Option<u32> {
        let listener = self.listeners.get(&flow.listener)?;
        let (own, transport) = (listener.own, listener.transport());
        let mut proofs = Proofs::default();
        let carrier = match &listener.tls {
            None => Carrier::Plain(Vec::new()),
            Some(tls) => {
                // Who answers there has to show the server's certificate, or there is no connection.
                let certificate = tls.servers.certificate(flow.peer)?;
                let connection = tls.servers.dial(flow.peer, &certificate)?;
                proofs.certificates.push(certificate);
                Carrier::tls(connection.into(), self.limits.unsent_bytes_max)
            }
        };
        let socket = match open_to(own, flow.peer) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, peer = %flow.peer, "cannot connect");
                return None;
            }
        };
        if let Some(slot) = self.places.admit_own().ok()? {
            self.end(slot, Ended::Crowded);
        }
        let begun = Begun { socket, carrier, stage: Stage::Dialling, proofs: Arc::new(proofs) };
        let slot = self.keep(now, flow, begun)?;
        self.dialled.insert((flow.listener, flow.peer), slot);
        self.metrics.opened(transport, true);
        Some(slot)
    }

    /// Keeps a connection that has been let in.
    fn keep(&mut self, now: Instant, flow: Flow, begun: Begun) -> Option<u32> {
        let (slot, id) = (self.connections.vacant()?, self.next_id(begun.stage == Stage::Dialling)?);
        let flow = Flow { connection: Some(id), ..flow };
        let mut connection = Connection::new(now, (id, flow), begun);
        connection.interest = connection.wanted();
        let event = EpollEvent::new(connection.interest, u64::from(FIRST_SLOT + slot));
        self.poller.add(&connection.socket, event).ok()?;
        let (due, is_ours) = (connection.deadline(&self.limits).0, connection.is_ours);
        self.connections.insert(connection).ok()?;
        self.by_id.insert(id, slot);
        self.places.enter(slot, flow.peer.ip(), is_ours);
        self.deadlines.schedule(slot, now, due);
        Some(slot)
    }

    /// A name that no connection has.
    fn next_id(&mut self, is_ours: bool) -> Option<ConnectionId> {
        for _ in 0..=self.by_id.len() {
            self.last_number = self.last_number % ConnectionId::NUMBER_MAX + 1;
            let id = ConnectionId::new(self.shard, self.last_number)?;
            let id = if is_ours { id.dialled() } else { id };
            if !self.by_id.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    fn on_ready(
        &mut self,
        now: Instant,
        slot: u32,
        ready: EpollFlags,
        heard: &mut impl FnMut(Flow, &Arc<Proofs>, Heard<'_>) -> bool,
    ) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.stage == Stage::Dialling {
            if !connection.is_answered() {
                return self.end(slot, Ended::Unreached);
            }
            connection.stage = Stage::Open;
        }
        let tls = self.listeners.get(&connection.flow.listener).and_then(|listener| listener.tls.as_deref());
        let result = match ready.intersects(!EpollFlags::EPOLLOUT) {
            true => connection.read(now, (&mut self.chunk, &self.limits), tls, heard),
            false => Ok(()),
        };
        if let Err(failed) = result {
            return self.fail(slot, &failed);
        }
        if !connection.is_begun() {
            connection.waiting = Vec::new();
        }
        if connection.has_certificate(tls) {
            self.places.prove(slot);
        }
        // What has to be sent goes when all that came has been looked at: an answer may join it.
        if !std::mem::replace(&mut connection.is_due, true) {
            self.due.push(slot);
        }
    }

    /// Notes what a connection waits for now.
    fn settle(&mut self, now: Instant, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let wanted = connection.wanted();
        if connection.interest != wanted {
            connection.interest = wanted;
            let mut event = EpollEvent::new(wanted, u64::from(FIRST_SLOT + slot));
            let _ = self.poller.modify(&connection.socket, &mut event);
        }
        let (due, unfinished) = (connection.deadline(&self.limits).0, connection.unfinished());
        self.deadlines.schedule(slot, now, due);
        match self.places.stranger(slot) {
            Some(source) => self.unfinished.note(now, (slot, source), unfinished),
            None => self.unfinished.leave(slot),
        }
        while let Some(oldest) = self.unfinished.crowded() {
            self.end(oldest, Ended::Crowded);
        }
    }

    fn fail(&mut self, slot: u32, failed: &Failed) {
        let is_over = |known: &Connection| matches!(known.stage, Stage::Leaving | Stage::Left);
        let reason = match failed {
            _ if self.connections.get(slot).is_some_and(is_over) => Ended::Malformed,
            Failed::Closed | Failed::Broken => Ended::Closed,
            Failed::Unread => Ended::Unread,
            Failed::Tls(error) => {
                if let Some(connection) = self.connections.get(slot) {
                    tracing::debug!(%error, peer = %connection.flow.peer, "no TLS");
                }
                Ended::Tls
            }
        };
        self.end(slot, reason);
    }

    fn end(&mut self, slot: u32, reason: Ended) {
        let Some(connection) = self.connections.remove(slot) else { return };
        self.deadlines.cancel(slot);
        self.places.leave(slot);
        self.unfinished.leave(slot);
        self.by_id.remove(&connection.id);
        if connection.is_ours {
            self.dialled.remove(&(connection.flow.listener, connection.flow.peer));
        }
        self.ended.extend(connection.has_spoken().then_some(connection.id));
        let flow = Flow { connection: None, ..connection.flow };
        for message in &connection.waiting {
            self.give_back(Unsent::Unreached, flow, message);
        }
        self.metrics.ended(reason);
        connection.close(reason);
    }
}

/// Events of connections are named by their slots from here on; those of listeners by numbers below.
const FIRST_SLOT: u32 = 1 << 8;
const _: () = assert!(LISTEN_MAX < FIRST_SLOT as usize);

impl AsFd for Streams {
    /// Ready when one of the sockets is.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.0.as_fd()
    }
}

fn bound_buffers(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_recv_buffer_size(KERNEL_BYTES)?;
    socket.set_send_buffer_size(KERNEL_BYTES)
}

/// Begins to connect, from one of our own addresses.
fn open_to(own: IpAddr, peer: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
    bound_buffers(SockRef::from(&socket))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    match socket.connect(&peer.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}

#[cfg(test)]
mod tests;
