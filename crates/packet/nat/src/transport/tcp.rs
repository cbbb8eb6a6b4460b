//! What a TCP connection may do next: the states of RFC 7857 section 2 and the window check of RFC 9293 3.10.7.4 as
//! seen from the middle (van Rooij, "Real Stateful TCP Packet Filtering in IP Filter").
//!
//! Pure functions over two halves; lines and timers are the caller's.

use sluicegate_flow::{Kind, TcpHalf};
use sluicegate_wire::{
    IpProtocol, Reason,
    ip::Ports,
    tcp::{Flags, Packet, TcpOption},
};

use super::{Header, Quote, Selector, Signal, State, Tracking, Transport, real_ports};

pub(super) const TCP: Transport = Transport {
    protocol: IpProtocol::TCP,
    selector: Selector::Ports,
    space: Some("external_ports_tcp"),
    checksum: IpProtocol::TCP.checksum(),
    parse,
    quoted,
    tracking: Tracking::Tcp,
    idle: |state, timers| if state.is_lasting() { timers.tcp_established } else { timers.tcp_transitory },
    ..Transport::BY_ADDRESSES
};

fn parse(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let segment = Segment::parse(transport, is_cut)?;
    Ok(Header { ports: real_ports(transport)?, opens: segment.is_opening(), signal: Signal::Tcp(segment) })
}

fn quoted(transport: &[u8]) -> Option<Quote> {
    let seq = u32::from_be_bytes(*transport.get(4..)?.first_chunk()?);
    Some(Quote { ports: Ports::parse(transport).ok()?, seq: Some(seq) })
}

/// In a half's `shift` while the handshake runs: the sender offered no window scale.
const NOT_OFFERED: u8 = 15;
/// How far an acknowledgement may lie behind: the largest window without scaling, and some more for reordering.
const ACK_BEHIND_MIN: u32 = 66_000;
/// Data that a SYN may carry (RFC 7413) and the answer may leave unacknowledged.
const SYN_DATA_MAX: u32 = 1 << 14;
/// Around the numbers of an imported connection: what may have been retransmitted from.
const RESYNC_BEHIND: u32 = 1 << 20;
/// What may have been sent since they were written: a second at 32 Mbit/s. A blind segment meets both numbers with
/// (5 MiB / 4 GiB)^2, about one in 670,000, and only until the service's first packet.
const RESYNC_AHEAD: u32 = 4 << 20;

/// The parts of a segment that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Sequence space it takes: data, SYN and FIN.
    pub(crate) len: u32,
    pub(crate) window: u16,
    pub(crate) flags: Flags,
    /// Window scale option; looked for in SYNs only.
    pub(crate) scale: Option<u8>,
    /// A first fragment: the end of its data is not here.
    pub(crate) is_cut: bool,
}

impl Segment {
    #[inline]
    pub(crate) fn parse(transport: &[u8], is_cut: bool) -> Result<Self, Reason> {
        let packet = Packet::new_checked(transport)?;
        let flags = packet.flags();
        if !flags.are_consistent() {
            return Err(Reason::TransportHeaderInvalid);
        }
        let scale = if flags.has(Flags::SYN) { window_scale(&packet)? } else { None };
        Ok(Self {
            seq: packet.seq(),
            ack: packet.ack(),
            len: packet.sequence_len(),
            window: packet.window(),
            flags,
            scale,
            is_cut,
        })
    }

    const fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }

    /// Whether it can have to do with another connection than the one that stands.
    pub(crate) const fn is_rare(&self) -> bool {
        self.flags.has(Flags::SYN) || self.flags.has(Flags::RST)
    }

    pub(crate) const fn is_reset(&self) -> bool {
        self.flags.has(Flags::RST)
    }

    /// A SYN without ACK: somebody opens.
    pub(crate) const fn is_opening(&self) -> bool {
        self.flags.has(Flags::SYN) && !self.flags.has(Flags::ACK)
    }
}

fn window_scale(packet: &Packet<&[u8]>) -> Result<Option<u8>, Reason> {
    for option in packet.options() {
        if let TcpOption::WindowScale(scale) = option? {
            return Ok(Some(scale.shift()));
        }
    }
    Ok(None)
}

/// A connection as one sender's segment sees it: `own` are the sender's numbers, `peer` the other side's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) resync: Resync,
    pub(crate) own: TcpHalf,
    pub(crate) peer: TcpHalf,
}

/// How far an imported connection's numbers can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resync {
    /// They are exact.
    Done,
    /// Nobody spoke since the import: both sides may be ahead.
    Waiting,
    /// The inside spoke. The outside may still acknowledge what was sent before the restart.
    Anchored,
}

/// `a` lies behind `b` in sequence space (RFC 9293 3.4).
#[inline]
const fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[inline]
const fn later(a: u32, b: u32) -> u32 {
    if after(a, b) { a } else { b }
}

/// A SYN without ACK: the opener's side of a connection that the other side has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    from: Kind,
    end: u32,
    window: u16,
    shift: u8,
}

impl Attempt {
    pub(crate) fn of(from: Kind, segment: &Segment) -> Self {
        Self { from, end: segment.end(), window: segment.window, shift: segment.scale.unwrap_or(NOT_OFFERED) }
    }

    /// The connection that it opens.
    pub(crate) fn open(&self) -> Connection {
        let Self { from, end, window, shift } = *self;
        let own = TcpHalf { end, limit: end, window, shift, peer_shift: NOT_OFFERED, ..TcpHalf::default() };
        let peer =
            TcpHalf { peer_end: end, peer_window: window, shift: NOT_OFFERED, peer_shift: shift, ..TcpHalf::default() };
        let state = if from == Kind::Inbound { State::SynIn } else { State::SynOut };
        Connection { state, resync: Resync::Done, own, peer }
    }

    /// The connection after the other side's answer, if `segment` is that.
    pub(crate) fn answered(&self, from: Kind, segment: &Segment) -> Option<Connection> {
        let is_answer = segment.flags.has(Flags::ACK) && segment.is_rare();
        let opened = self.open();
        let seen = Connection { own: opened.peer, peer: opened.own, ..opened };
        (from != self.from && is_answer).then(|| by_answerer(&seen, segment).ok()).flatten()
    }
}

/// The connection that `segment`, a SYN without ACK, opens.
pub(crate) fn open(from: Kind, segment: &Segment) -> Connection {
    Attempt::of(from, segment).open()
}

/// What `segment` would open if the other side has no connection any more: one that stands, or may stand, is left as it
/// is. A host that crashed comes back so (RFC 9293 3.5.1): the other side challenges it, and what it says to that ends
/// the old connection. A forger's SYN is challenged as well, and nothing comes of it (RFC 5961 4).
pub(crate) fn attempt(from: Kind, connection: &Connection, segment: &Segment) -> Option<Attempt> {
    let is_repeated = match (connection.state, from) {
        // Simultaneous open.
        (State::SynIn, Kind::Outbound) | (State::SynOut, Kind::Inbound) => true,
        (State::SynIn | State::SynOut | State::AnsweredIn | State::AnsweredOut | State::SynBoth, _) => {
            segment.end() == connection.own.end
        }
        _ => false,
    };
    (segment.is_opening() && !is_repeated).then(|| Attempt::of(from, segment))
}

/// The connection after `segment` from side `from`.
///
/// # Errors
/// [`Reason::TcpState`] for a segment that has no place in this state, [`Reason::TcpWindow`] for one whose numbers
/// lie outside the window.
#[inline]
pub(crate) fn judge(from: Kind, connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    if connection.resync != Resync::Done {
        return resynchronise(from, connection, segment);
    }
    match (connection.state, from) {
        (State::SynIn, Kind::Inbound) | (State::SynOut, Kind::Outbound) => by_opener(from, connection, segment),
        (State::SynIn, Kind::Outbound) | (State::SynOut, Kind::Inbound) => by_answerer(connection, segment),
        _ => in_window(from, connection, segment),
    }
}

/// More from the side whose SYN was not answered yet.
fn by_opener(from: Kind, connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    if segment.is_opening() {
        // A retransmission; with other numbers it would be an attempt.
        return Ok(open(from, segment));
    }
    if segment.flags.has(Flags::RST) && segment.seq == connection.own.end {
        return Ok(Connection { state: State::Reset, ..*connection });
    }
    if segment.flags.has(Flags::RST) && segment.seq == connection.own.limit {
        // The number that a challenge named: this ends the other side's old connection, and not this one.
        return Ok(*connection);
    }
    Err(Reason::TcpState)
}

/// The first word of the side that got the SYN.
fn by_answerer(connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    let (flags, opened) = (segment.flags, connection.own.peer_end);
    if flags.has(Flags::RST.with(Flags::ACK)) {
        let right = segment.ack == opened;
        return if right { Ok(Connection { state: State::Reset, ..*connection }) } else { Err(Reason::TcpWindow) };
    }
    if !flags.has(Flags::SYN) {
        return challenge(connection, segment);
    }
    let is_answer = flags.has(Flags::ACK);
    if is_answer && opened.wrapping_sub(segment.ack) > SYN_DATA_MAX {
        return Err(Reason::TcpWindow);
    }
    let (mut own, mut peer) = (connection.own, connection.peer);
    let scales = segment.scale.filter(|_| peer.shift != NOT_OFFERED);
    let (own_shift, peer_shift) = scales.map_or((0, 0), |own_shift| (own_shift, peer.shift));
    // Windows in SYNs are not scaled (RFC 7323 2.2).
    own.end = segment.end();
    own.limit = later(own.end, segment.seq.wrapping_add(1 + u32::from(peer.window).max(1)));
    peer.limit = if is_answer { segment.ack } else { opened }.wrapping_add(u32::from(segment.window).max(1));
    own.window = unscaled(segment.window, own_shift);
    peer.window = unscaled(peer.window, peer_shift);
    (own.shift, peer.shift) = (own_shift, peer_shift);
    let state = match (connection.state, is_answer) {
        (_, false) => State::SynBoth,
        (State::SynIn, true) => State::AnsweredIn,
        (_, true) => State::AnsweredOut,
    };
    Ok(mirrored(Connection { state, resync: Resync::Done, own, peer }))
}

/// What a side says to a SYN that still holds an older connection of the same ports, forgotten here (RFC 9293 3.5.1, RFC
/// 5961 4). The opener resets what it names, and opens again.
fn challenge(connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    if segment.flags.has(Flags::FIN) || !segment.flags.has(Flags::ACK) || segment.len > 0 {
        return Err(Reason::TcpState);
    }
    let peer = TcpHalf { limit: segment.ack, ..connection.peer };
    Ok(Connection { peer, ..*connection })
}

/// A window of so many bytes in units of `1 << shift`, rounded up.
const fn unscaled(bytes: u16, shift: u8) -> u16 {
    ((bytes as u32 + (1 << shift) - 1) >> shift) as u16
}

/// Copies to each half what it holds of the other.
#[inline]
const fn mirrored(mut connection: Connection) -> Connection {
    let (own, peer) = (&mut connection.own, &mut connection.peer);
    (own.peer_end, own.peer_window, own.peer_shift) = (peer.end, peer.window, peer.shift);
    (peer.peer_end, peer.peer_window, peer.peer_shift) = (own.end, own.window, own.shift);
    connection
}

#[inline]
const fn window(raw: u16, shift: u8) -> u32 {
    (raw as u32) << shift
}

/// Bounds of what is acceptable, ends included.
struct Bounds {
    seq_min: u32,
    end_max: u32,
    ack_min: u32,
    ack_max: u32,
}

impl Bounds {
    #[inline]
    fn admit(&self, segment: &Segment) -> bool {
        lies_in(self.seq_min, self.end_max, segment.seq, segment.len)
            && (!segment.flags.has(Flags::ACK) || lies_in(self.ack_min, self.ack_max, segment.ack, 0))
    }
}

/// Whether `at..at + len` lies in `min..=max` on the circle of sequence numbers.
#[inline]
const fn lies_in(min: u32, max: u32, at: u32, len: u32) -> bool {
    let span = max.wrapping_sub(min);
    span <= i32::MAX as u32 && at.wrapping_sub(min) as u64 + len as u64 <= span as u64
}

#[inline]
fn in_window(from: Kind, connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    let own = &connection.own;
    let is_handshake = matches!(connection.state, State::AnsweredIn | State::AnsweredOut | State::SynBoth);
    let ack_behind = if is_handshake { SYN_DATA_MAX } else { window(own.window, own.shift).max(ACK_BEHIND_MIN) };
    let bounds = Bounds {
        // One less for keep-alives (RFC 9293 3.8.4).
        seq_min: own.end.wrapping_sub(window(own.peer_window, own.peer_shift).max(1) + 1),
        end_max: own.limit,
        ack_min: own.peer_end.wrapping_sub(ack_behind),
        ack_max: own.peer_end,
    };
    if !bounds.admit(segment) {
        return Err(Reason::TcpWindow);
    }
    if segment.flags.has(Flags::SYN) && after(segment.end(), own.end) {
        // A SYN with ACK in the middle of a connection answers nothing.
        return Err(Reason::TcpState);
    }
    Ok(advance(from, connection, segment))
}

/// Takes over the numbers of an accepted segment and moves the state.
#[inline]
fn advance(from: Kind, connection: &Connection, segment: &Segment) -> Connection {
    let mut next = *connection;
    next.state = next_state(from, connection, segment);
    let (own, peer) = (&mut next.own, &mut next.peer);
    if !segment.flags.has(Flags::RST) {
        // The length of a fragmented segment is unknown until the receiver acknowledges it.
        own.end = later(own.end, if segment.is_cut { own.limit } else { segment.end() });
        if segment.flags.has(Flags::ACK) {
            let is_syn = segment.flags.has(Flags::SYN);
            let bytes = window(segment.window, if is_syn { 0 } else { own.shift });
            // A probe of one byte into a closed window is legal (RFC 9293 3.8.6.1).
            peer.limit = later(peer.limit, segment.ack.wrapping_add(bytes.max(1)));
            let raw = if is_syn { unscaled(segment.window, own.shift) } else { segment.window };
            own.window = own.window.max(raw);
        }
    }
    mirrored(next)
}

#[inline]
fn next_state(from: Kind, connection: &Connection, segment: &Segment) -> State {
    let state = connection.state;
    let flags = segment.flags;
    if flags.has(Flags::RST) {
        // Anywhere else in the window it is challenged (RFC 5961 3), and may be a forger's.
        return if segment.seq == connection.own.end { State::Reset } else { state };
    }
    if flags.has(Flags::FIN) {
        return match (state, from) {
            (State::FinOut, Kind::Inbound) | (State::FinIn, Kind::Outbound) | (State::Closing, _) => State::Closing,
            (State::Reset, _) => State::Reset,
            (_, Kind::Inbound) => State::FinIn,
            _ => State::FinOut,
        };
    }
    let is_ack = flags.has(Flags::ACK) && !flags.has(Flags::SYN);
    match (state, from) {
        (State::AnsweredIn, Kind::Inbound) | (State::AnsweredOut, Kind::Outbound) if is_ack => State::Established,
        (State::SynBoth, _) if flags.has(Flags::ACK) && segment.ack == connection.own.peer_end => State::Established,
        // RFC 7857 2: data after a reset shows that the reset was not believed.
        (State::Reset, _) if segment.len > 0 && !flags.has(Flags::SYN) => State::Established,
        _ => state,
    }
}

/// The first segments of an imported connection. The inside is behind the gate and tells the truth: its first
/// segment sets the numbers. The outside must meet the written ones within bounds.
fn resynchronise(from: Kind, connection: &Connection, segment: &Segment) -> Result<Connection, Reason> {
    if segment.flags.has(Flags::SYN) || !segment.flags.has(Flags::ACK) {
        return Err(Reason::TcpState);
    }
    match (from, connection.resync) {
        (Kind::Outbound, Resync::Waiting) => Ok(anchor(connection, segment)),
        (Kind::Outbound, _) => in_window(from, connection, segment),
        (_, Resync::Waiting) => {
            let own = &connection.own;
            let bounds = Bounds {
                seq_min: own.end.wrapping_sub(RESYNC_BEHIND),
                end_max: own.end.wrapping_add(RESYNC_AHEAD),
                ack_min: own.peer_end.wrapping_sub(RESYNC_BEHIND),
                ack_max: own.peer_end.wrapping_add(RESYNC_AHEAD),
            };
            if !bounds.admit(segment) {
                return Err(Reason::TcpWindow);
            }
            Ok(advance(from, &acknowledged(connection, segment), segment))
        }
        _ => {
            let mut next = *connection;
            let ahead = segment.ack.wrapping_sub(next.own.peer_end);
            if ahead <= window(next.own.window, next.own.shift) {
                next = acknowledged(&next, segment);
            }
            let next = in_window(from, &next, segment)?;
            Ok(Connection { resync: Resync::Done, ..next })
        }
    }
}

/// The other side has sent at least what this segment acknowledges.
fn acknowledged(connection: &Connection, segment: &Segment) -> Connection {
    let mut next = *connection;
    next.peer.end = later(next.peer.end, segment.ack);
    mirrored(next)
}

fn anchor(connection: &Connection, segment: &Segment) -> Connection {
    let mut next = *connection;
    let (own, peer) = (&mut next.own, &mut next.peer);
    own.end = later(own.end, segment.end());
    own.limit = own.end.wrapping_add(window(peer.window, peer.shift).max(u32::from(u16::MAX)));
    peer.end = segment.ack;
    peer.limit = segment.ack.wrapping_add(window(segment.window, own.shift).max(1));
    next.resync = Resync::Anchored;
    advance(Kind::Outbound, &mirrored(next), segment)
}
