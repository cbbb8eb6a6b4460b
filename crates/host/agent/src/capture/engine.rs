//! The packet thread: between the TUN device, the capability host, and the raw sockets.

mod held;
mod obey;

use std::{io, net::IpAddr, os::fd::AsFd, time::Duration};

use sluicegate_capability::host::{self, Host, Inbound, Knowledge};
use sluicegate_datapath::{
    monotonic_now,
    outer::{Receiver, Sender},
    tun::{BUFFER_MARGIN, wait_readable},
};
use sluicegate_grant::mac::TRAILER_LEN;
use sluicegate_wire::{
    Frame, HEADROOM, Instant, IpProtocol, Reason,
    capability::{
        Kind, UDP_PORT,
        shim::{self, Carriage},
    },
    ip::Summary,
    tcp,
};
use tokio::sync::mpsc as asking;
use tracing::{debug, info, warn};

use self::held::Held;
use super::{
    Capture, CaptureError, Carrying, Config, Role,
    answers::{self, Why},
    connections::{Connections, bare_ack},
    destinations::{Destination, Destinations},
    heard::Heard,
    orders::Inbox,
    place::{Outward, Place},
    policy::Rules,
    redirects::{Redirects, Step, Target},
    trials::{ENCAPSULATED_FOR, Trials},
};
use crate::account::random;

/// Packets taken from one source before the others have their turn.
const BATCH: usize = 64;
/// Longest wait while nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// What an entry of the file says about a destination holds for as long as the agent runs.
const ALWAYS: Duration = Duration::from_secs(1 << 31);
/// Largest packet of any wire here.
const BUFFER_BYTES: usize = 65_536 + BUFFER_MARGIN;

/// The sockets of the packet thread.
pub(super) struct Wires {
    /// For packets with a capability header, and errors about these.
    pub(super) headers: Wire,
    pub(super) plain: Wire,
}

/// Sockets at one interface.
#[derive(Debug)]
pub(super) struct Wire {
    sender: Sender,
    receivers: Vec<Receiver>,
}

impl Wire {
    /// For packets with a capability header.
    pub(super) fn headers(interface: &str) -> Result<Self, CaptureError> {
        let sender = Sender::open(Some(interface))?;
        Ok(Self { sender, receivers: Receiver::open_all(interface, UDP_PORT)? })
    }

    /// For plain packets; hears none yet.
    pub(super) fn plain(interface: &str) -> Result<Self, CaptureError> {
        let sender = Sender::open(Some(interface))?;
        Ok(Self { sender, receivers: Receiver::open_plain(interface)? })
    }

    /// Sends a packet, and counts that it was sent or dropped.
    fn send(&self, packet: &[u8], (sent, dropped): (&mut u64, &mut u64)) {
        match self.sender.send(packet) {
            Ok(()) => *sent += 1,
            Err(error) => {
                *dropped += 1;
                debug!(%error, "not sent");
            }
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    sent: u64,
    sent_plain: u64,
    delivered: u64,
    consumed: u64,
    dropped: u64,
}

pub(super) struct Engine {
    place: Place,
    wires: Wires,
    host: Host,
    rules: Rules,
    role: Role,
    captures: Vec<Capture>,
    destinations: Destinations,
    redirects: Redirects,
    connections: Connections,
    held: Held,
    said_again_at: Instant,
    trials: Trials,
    heard: Heard,
    asks: asking::Sender<Target>,
    listens_plain: bool,
    counters: Counters,
    buffer: Box<[u8]>,
    spare: Box<[u8]>,
}

impl Engine {
    /// An engine that captures the file's addresses already.
    pub(super) fn new(
        config: &Config,
        outward: &Outward,
        place: Place,
        wires: Wires,
        asks: asking::Sender<Target>,
    ) -> Result<Self, CaptureError> {
        let mut engine = Self {
            place,
            wires,
            host: new_host(outward),
            rules: Rules::new(config.role, random()),
            role: config.role,
            captures: config.captures.clone(),
            destinations: Destinations::default(),
            redirects: Redirects::default(),
            connections: Connections::default(),
            held: Held::default(),
            said_again_at: monotonic_now(),
            trials: Trials::default(),
            heard: Heard::new(),
            asks,
            listens_plain: false,
            counters: Counters::default(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            spare: vec![0; BUFFER_BYTES].into_boxed_slice(),
        };
        engine.wires.plain.receivers.iter().try_for_each(|one| one.listen(engine.listens_to(one)))?;
        for (entry, capture) in config.captures.iter().enumerate() {
            if let Destination::Prefix(prefix) = capture.to {
                engine.name(entry, &[prefix]).map_err(CaptureError::Netlink)?;
            }
        }
        Ok(engine)
    }

    /// Carries packets until it is told to stop.
    pub(super) fn run(mut self, mut inbox: Inbox) {
        loop {
            match self.turn(&mut inbox) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    warn!(%error, "packets can no longer be captured");
                    break;
                }
            }
        }
        let Counters { sent, sent_plain, delivered, consumed, dropped } = self.counters;
        info!(sent, sent_plain, delivered, consumed, dropped, "captured packets");
    }

    fn turn(&mut self, inbox: &mut Inbox) -> io::Result<bool> {
        let now = monotonic_now();
        let idle = if self.held.is_empty() { IDLE } else { held::LOOK_INTERVAL };
        let wait = self.host.poll_timeout().map_or(idle, |at| at.since(now).min(idle));
        let fds: Vec<_> = [self.place.tun.as_fd(), inbox.as_fd()]
            .into_iter()
            .chain(self.wires.headers.receivers.iter().map(AsFd::as_fd))
            .chain(self.wires.plain.receivers.iter().filter(|one| self.listens_to(one)).map(AsFd::as_fd))
            .collect();
        wait_readable(&fds, wait)?;
        if !self.obey(inbox) {
            return Ok(false);
        }
        // Out of `self` for the turn, so that packets in it and the rest can change independently.
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.packets(&mut buffer);
        self.buffer = buffer;
        result?;
        let now = monotonic_now();
        self.host.handle_timeout(now);
        self.flush(now);
        self.release(now);
        self.trials.expire(now);
        self.listen_for_plain_answers();
        if now.since(self.said_again_at) >= IDLE {
            self.said_again_at = now;
            self.say_again(now, false);
        }
        Ok(true)
    }

    fn packets(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..BATCH {
            match self.place.tun.read(buffer)? {
                Some(mut frame) => {
                    // The kernel may have answered a plain answer by this packet already: first things first.
                    self.plain_answers();
                    self.outbound(monotonic_now(), &mut frame);
                }
                None => break,
            }
        }
        self.plain_answers();
        let receivers = std::mem::take(&mut self.wires.headers.receivers);
        receivers.iter().for_each(|one| received(one, buffer, |frame| self.inbound(monotonic_now(), frame)));
        self.wires.headers.receivers = receivers;
        Ok(())
    }

    /// Plain answers of destinations on trial, while any are waited for.
    fn plain_answers(&mut self) {
        if !self.listens_plain && self.role == Role::Client {
            return;
        }
        let receivers = std::mem::take(&mut self.wires.plain.receivers);
        let mut buffer = std::mem::take(&mut self.spare);
        let all = self.listens_plain;
        for receiver in receivers.iter().filter(|one| all || one.protocol() == IpProtocol::TCP) {
            received(receiver, &mut buffer, |frame| self.plain_answer(monotonic_now(), frame));
        }
        self.spare = buffer;
        self.wires.plain.receivers = receivers;
    }

    /// A packet that the kernel routed into the device.
    fn outbound(&mut self, now: Instant, frame: &mut Frame<'_>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        if summary.dst.is_multicast() {
            return;
        }
        let entry = self.destinations.find(summary.dst);
        let capture = entry.and_then(|entry| self.captures.get(entry));
        let told = capture.and_then(|capture| capture.carrying);
        if let Some(entry) = entry.filter(|_| capture.is_some_and(|capture| capture.service.is_some())) {
            let ack = bare_ack(frame);
            match self.redirects.outbound(now, entry, frame) {
                Step::Go => return self.send_granted(now, frame, told, ack.as_ref().map(|(ack, len)| &ack[..*len])),
                Step::Ask(target) => {
                    if self.asks.try_send(target).is_err() {
                        self.refuse(now, target);
                    }
                    return;
                }
                Step::Wait => return,
                Step::Refuse => {
                    self.answer(frame.bytes(), Why::Prohibited);
                    return;
                }
            }
        }
        if self.place.is_former(summary.src) {
            // No gate that would know this host again at its other address.
            return self.answer(frame.bytes(), Why::Prohibited);
        }
        self.send(now, frame, told);
    }

    /// Sends a packet under a grant. The gate takes nothing without a capability, so there is no trial that ends in plain
    /// packets: what cannot have a header now is not sent.
    fn send_granted(&mut self, now: Instant, frame: &mut Frame<'_>, told: Option<Carrying>, ack: Option<&[u8]>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        let Some(current) = self.place.source(summary.dst) else { return };
        if !self.connections.outbound(now, current, frame, ack) {
            self.counters.dropped += 1;
            return;
        }
        self.carry(now, summary.dst, told);
        if self.holds(now, frame) {
            return;
        }
        self.send_addressed(now, frame);
    }

    /// As [`Self::send_granted`], once the packet has the addresses with which it leaves.
    fn send_addressed(&mut self, now: Instant, frame: &mut Frame<'_>) {
        match self.put_header(now, frame) {
            Ok(()) if has_header(frame.bytes()) => self.emit(frame),
            // A request is on its way already.
            Ok(()) => self.counters.dropped += 1,
            Err(reason) => self.not_sent(frame, reason),
        }
        self.flush(now);
    }

    /// Gives a packet its header, if it is to have one.
    fn put_header(&mut self, now: Instant, frame: &mut Frame<'_>) -> Result<(), Reason> {
        self.host.outbound(now, &mut self.rules.with(&self.redirects), frame)
    }

    /// Has packets to a destination that speaks capabilities carried as somebody told, or else both ways in turn until data
    /// has come back.
    fn carry(&mut self, now: Instant, remote: IpAddr, told: Option<Carrying>) {
        let carrying = told.unwrap_or_else(|| self.trials.carrying(now, remote));
        let knowledge = Knowledge::Capable { carriage: carriage(carrying) };
        if self.host.knowledge(now, remote) != Some(knowledge) {
            self.host.know(remote, knowledge, now + ALWAYS);
        }
    }

    /// Gives a packet its header, if its destination can read one, and sends it.
    fn send(&mut self, now: Instant, frame: &mut Frame<'_>, told: Option<Carrying>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        let remote = summary.dst;
        if matches!(self.role, Role::Server(_))
            && told.is_none()
            && (!self.heard.has(now, remote) || self.heard.is_plain(&summary, frame.bytes()))
        {
            self.send_plain(frame.bytes());
            return;
        }
        let known = self.host.knowledge(now, remote);
        let has_answered = matches!(known, Some(Knowledge::Capable { .. })) && self.role == Role::Client;
        if told.is_some() || has_answered {
            self.carry(now, remote, told);
        }
        let undecided = known.is_none() && told.is_none();
        let before = undecided.then(|| frame.bytes().to_vec());
        if let Err(reason) = self.put_header(now, frame) {
            return self.not_sent(frame, reason);
        }
        let Some(before) = before else {
            self.emit(frame);
            self.flush(now);
            return;
        };
        if has_header(frame.bytes()) {
            self.trials.asked(now, remote, &before);
            if self.trials.turns_to_plain(now, remote) {
                self.trials.is_plain(remote);
                self.listen_for_plain_answers();
                self.send_plain(&before);
                return;
            }
        } else if self.trials.turns_to_encapsulation(now, remote) {
            let knowledge = Knowledge::Capable { carriage: carriage(Carrying::Encapsulated) };
            self.host.know(remote, knowledge, now + ENCAPSULATED_FOR);
            if let Err(reason) = self.put_header(now, frame) {
                return self.not_sent(frame, reason);
            }
        } else {
            self.trials.is_plain(remote);
            self.listen_for_plain_answers();
        }
        self.emit(frame);
        self.flush(now);
    }

    fn not_sent(&mut self, frame: &Frame<'_>, reason: Reason) {
        if reason == Reason::PacketTooBig {
            self.answer(frame.bytes(), Why::TooBig(self.place.mtu as u16));
        }
        self.counters.dropped += 1;
        debug!(reason = reason.label(), "not sent");
    }

    /// Sends a packet with a header by the outer socket, one without by the plain one.
    fn emit(&mut self, frame: &mut Frame<'_>) {
        if !has_header(frame.bytes()) {
            self.send_plain(frame.bytes());
            return;
        }
        if let Err(reason) = self.seal_request(frame) {
            return self.not_sent(frame, reason);
        }
        let Counters { sent, dropped, .. } = &mut self.counters;
        self.wires.headers.send(frame.bytes(), (sent, dropped));
    }

    /// Puts a trailer behind a request for a capability of one of our grants: the gate gives none to anybody else.
    fn seal_request(&self, frame: &mut Frame<'_>) -> Result<(), Reason> {
        let summary = Summary::parse(frame.bytes())?;
        let Some(found) = shim::find(&summary, frame.bytes())? else { return Ok(()) };
        let header = found.packet(frame.bytes());
        if header.kind() != Kind::Request {
            return Ok(());
        }
        let Some(sealer) = self.redirects.sealer(header.client_id()) else { return Ok(()) };
        let payload = frame.bytes().get(found.payload_at..summary.total_len).unwrap_or_default();
        let trailer = sealer.request(summary.dst, header.upper_protocol(), payload);
        shim::append(frame, &found, &trailer)
    }

    fn send_plain(&mut self, packet: &[u8]) {
        let Counters { sent_plain, dropped, .. } = &mut self.counters;
        self.wires.plain.send(packet, (sent_plain, dropped));
    }

    fn answer(&self, packet: &[u8], why: Why) {
        if let Some(error) = answers::about(packet, why) {
            let _ = self.place.tun.write(&error);
        }
    }

    /// A packet with a header, or an ICMP error, from the network.
    fn inbound(&mut self, now: Instant, frame: &mut Frame<'_>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        let carried = carried(frame.bytes());
        let with_header = carried.is_some();
        let mut policy = self.rules.with(&self.redirects);
        match self.host.inbound(now, &mut policy, frame) {
            Ok(Inbound::Deliver | Inbound::Refused) => {
                if let Some(carrying) = carried
                    && !self.is_whole(now, carrying, frame)
                {
                    self.counters.dropped += 1;
                } else {
                    self.deliver(now, with_header, frame);
                }
            }
            Ok(Inbound::Consumed) => {
                self.counters.consumed += 1;
                if with_header {
                    self.heard.add(now, summary.src);
                    self.trials.ended(summary.src);
                }
            }
            Ok(Inbound::Plain) => {}
            Err(reason) => {
                self.counters.dropped += 1;
                debug!(reason = reason.label(), from = %summary.src, "dropped");
            }
        }
        self.repeat_plain(now);
        self.flush(now);
    }

    /// Whether a packet that came by this carriage arrived as it was sent. Once one has, the kernel looks at the others.
    fn is_whole(&mut self, now: Instant, carrying: Carrying, frame: &Frame<'_>) -> bool {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return false };
        if self.trials.has_arrived(summary.src) {
            return true;
        }
        let whole = summary.verify_transport_checksum(frame.bytes());
        if whole {
            self.trials.arrived(now, summary.src, carrying);
        } else if self.trials.arrived_spoiled(summary.src) {
            info!(remote = %summary.src, "a translator on the way spoils native packets: they go in UDP now");
        }
        whole
    }

    /// Gives a packet, stripped of its header, to the kernel.
    fn deliver(&mut self, now: Instant, with_header: bool, frame: &mut Frame<'_>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        if with_header {
            self.heard.add(now, summary.src);
            self.heard.uses_headers(frame.bytes());
            self.trials.ended(summary.src);
        }
        self.connections.inbound(now, frame);
        self.redirects.inbound(frame);
        self.counters.delivered += 1;
        if let Err(error) = self.place.tun.write(frame.bytes()) {
            debug!(%error, "not delivered");
        }
    }

    /// A plain answer from the network. The kernel has it as well; the host only learns from it.
    fn plain_answer(&mut self, now: Instant, frame: &mut Frame<'_>) {
        let Ok(summary) = Summary::parse(frame.bytes()) else { return };
        if matches!(self.role, Role::Server(_))
            && let Ok(tcp) = tcp::Packet::new_checked(summary.transport(frame.bytes()))
            && summary.protocol == IpProtocol::TCP
            && tcp.flags().has(tcp::Flags::SYN)
        {
            self.heard.opened_plainly((summary.src, tcp.src_port(), tcp.dst_port()));
        }
        if self.trials.wants_plain_answer(summary.src) && !has_header(frame.bytes()) {
            let mut policy = self.rules.with(&self.redirects);
            let _ = self.host.inbound(now, &mut policy, frame);
            let is_known = self.host.knowledge(now, summary.src).is_some();
            debug!(remote = %summary.src, is_known, "plain answer");
            if is_known {
                info!(remote = %summary.src, "speaks no capabilities; plain for a minute");
                self.trials.ended(summary.src);
            }
        }
    }

    /// Whether plain packets of this receiver's protocol matter now. A server always looks at how connections open.
    fn listens_to(&self, receiver: &Receiver) -> bool {
        self.listens_plain || matches!(self.role, Role::Server(_)) && receiver.protocol() == IpProtocol::TCP
    }

    /// Destinations that turned out to know nothing of capabilities get what was sent last once more, plain.
    fn repeat_plain(&mut self, now: Instant) {
        if self.trials.is_empty() {
            return;
        }
        let legacy = |remote: &IpAddr| self.host.knowledge(now, *remote) == Some(Knowledge::Legacy);
        let found: Vec<IpAddr> = self.trials.remotes().filter(legacy).collect();
        for remote in found {
            info!(%remote, "speaks no capabilities; plain for a minute");
            if let Some(packet) = self.trials.ended(remote) {
                self.send_plain(&packet);
            }
        }
    }

    /// Packets that the host sends on its own account.
    fn flush(&mut self, now: Instant) {
        let mut spare = std::mem::take(&mut self.spare);
        while let Some(mut frame) = Frame::new(&mut spare, HEADROOM, 0) {
            if !self.host.poll_output(now, &mut frame) {
                break;
            }
            self.emit(&mut frame);
        }
        self.spare = spare;
    }

    fn listen_for_plain_answers(&mut self) {
        let wanted = self.trials.wants_plain_answers();
        if wanted != self.listens_plain {
            self.listens_plain = wanted;
            self.set_listening();
        }
    }

    fn set_listening(&self) {
        for receiver in &self.wires.plain.receivers {
            if let Err(error) = receiver.listen(self.listens_to(receiver)) {
                debug!(%error, "cannot listen for plain answers");
            }
        }
    }
}

/// Hands a batch of what waits at a receiver to `take`.
fn received(receiver: &Receiver, buffer: &mut [u8], mut take: impl FnMut(&mut Frame<'_>)) {
    for _ in 0..BATCH {
        match receiver.receive(buffer) {
            Ok(Some(mut frame)) => take(&mut frame),
            Ok(None) => break,
            Err(error) => debug!(%error, "not received"),
        }
    }
}

fn new_host(outward: &Outward) -> Host {
    // Behind a request goes its trailer, of which the host knows nothing.
    let mtu = u16::try_from(outward.mtu).unwrap_or(u16::MAX).saturating_sub(TRAILER_LEN as u16);
    Host::new(host::Config { mtu, ..host::Config::default() }, random())
}

const fn carriage(carrying: Carrying) -> Carriage {
    match carrying {
        Carrying::Native => Carriage::Native,
        Carrying::Encapsulated => Carriage::Encapsulated { src_port: UDP_PORT },
    }
}

fn has_header(packet: &[u8]) -> bool {
    carried(packet).is_some()
}

/// How a packet carries its capability header, if it has one.
fn carried(packet: &[u8]) -> Option<Carrying> {
    let summary = Summary::parse(packet).ok()?;
    match shim::find(&summary, packet).ok()??.carriage {
        Carriage::Native => Some(Carrying::Native),
        Carriage::Encapsulated { .. } | Carriage::Answer { .. } => Some(Carrying::Encapsulated),
    }
}
