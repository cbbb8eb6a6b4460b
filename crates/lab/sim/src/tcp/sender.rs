use std::time::Duration;

use sluicegate_wire::{
    Instant,
    tcp::{Control, Repr},
};

use super::{Config, SEGMENT_BYTES, WINDOW, pattern, rtt::Rtt};

/// Duplicate acknowledgements that tell of a loss (RFC 5681 3.2).
const DUPLICATES: u32 = 3;
const SEGMENT: u64 = SEGMENT_BYTES as u64;
/// The congestion window at the start, in bytes.
const INITIAL_WINDOW: u64 = 2 * SEGMENT;
/// How long an unanswered SYN waits before it is sent again, each time: the papers' runs do not double it.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer has acknowledged all data and the end of the stream.
    Complete,
    /// It took longer than it may.
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Ended(Instant, End),
}

/// The active end of one transfer: connects, sends, closes.
///
/// Positions count from the SYN (0): data starts at 1, the FIN follows it.
#[derive(Debug, Clone)]
pub struct Sender {
    config: Config,
    ports: (u16, u16),
    iss: u32,
    peer_seq: u32,
    peer_window: u32,
    state: State,
    started: Instant,
    fin_at: u64,
    unacked: u64,
    next: u64,
    sent_max: u64,
    cwnd: u64,
    ssthresh: u64,
    duplicates: u32,
    /// While in fast recovery: the position that ends it.
    recovery: Option<u64>,
    /// What was sent before the last timeout is no reason for fast retransmit (RFC 6582 3.2).
    recover: u64,
    must_repeat: bool,
    rtt: Rtt,
    timed: Option<(u64, Instant)>,
    syns: u32,
    timer: Option<Instant>,
    repeated: u64,
}

impl Sender {
    /// A transfer of `bytes` bytes from `ports.0` to `ports.1` that starts now.
    #[must_use]
    pub fn new(config: Config, now: Instant, ports: (u16, u16), iss: u32, bytes: u64) -> Self {
        Self {
            config,
            ports,
            iss,
            peer_seq: 0,
            peer_window: u32::from(WINDOW),
            state: State::Opening,
            started: now,
            fin_at: 1 + bytes,
            unacked: 0,
            next: 0,
            sent_max: 0,
            cwnd: INITIAL_WINDOW,
            ssthresh: u64::MAX,
            duplicates: 0,
            recovery: None,
            recover: 0,
            must_repeat: false,
            rtt: Rtt::new(config.timeout_min),
            timed: None,
            syns: 0,
            timer: Some(now),
            repeated: 0,
        }
    }

    /// When the transfer started.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// When and how it ended, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<(Instant, End)> {
        match self.state {
            State::Ended(at, end) => Some((at, end)),
            State::Opening | State::Open => None,
        }
    }

    /// Local and remote port.
    #[must_use]
    pub const fn ports(&self) -> (u16, u16) {
        self.ports
    }

    /// Segments sent more than once, SYNs left out.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// When [`Self::on_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ended().is_some() {
            return None;
        }
        let give_up = self.config.abort_after.map(|after| self.started + after);
        [self.timer, give_up].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.ended().is_some() {
            return;
        }
        if self.config.abort_after.is_some_and(|after| now >= self.started + after) {
            self.state = State::Ended(now, End::GivenUp);
            return;
        }
        if self.timer.is_none_or(|timer| now < timer) {
            return;
        }
        self.timer = None;
        if self.state == State::Opening {
            self.next = 0;
            return;
        }
        self.ssthresh = (self.in_flight() / 2).max(2 * SEGMENT);
        self.cwnd = SEGMENT;
        self.duplicates = 0;
        self.recovery = None;
        self.recover = self.sent_max;
        self.next = self.unacked;
        self.timed = None;
        self.rtt.back_off();
    }

    /// Takes a segment of the peer in.
    pub fn on_segment(&mut self, now: Instant, segment: &Repr<'_>) {
        if self.ended().is_some() {
            return;
        }
        let Some(ack) = segment.ack else { return };
        let acked_to = self.unacked.saturating_add_signed(i64::from(ack.wrapping_sub(self.seq(self.unacked)) as i32));
        if acked_to > self.sent_max {
            return;
        }
        self.peer_window = u32::from(segment.window);
        if self.state == State::Opening {
            if segment.control == Control::Syn && acked_to == 1 {
                self.opened(now, segment);
            }
        } else if acked_to > self.unacked {
            self.on_new_ack(now, acked_to);
        } else if acked_to == self.unacked && segment.control == Control::None && segment.payload.is_empty() {
            self.on_duplicate();
        }
    }

    /// The next segment to send, if the windows let one go now. Call until there is none.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Repr<'static>> {
        match self.state {
            State::Ended(..) => None,
            State::Opening => (self.next == 0 && self.timer.is_none_or(|at| at <= now)).then(|| self.syn(now)),
            State::Open if self.must_repeat => {
                self.must_repeat = false;
                self.timer = Some(now + self.rtt.timeout());
                Some(self.segment_at(now, self.unacked))
            }
            State::Open => {
                let len = self.len_at(self.next);
                let room = self.cwnd.min(u64::from(self.peer_window));
                if self.next > self.fin_at || self.in_flight() + len > room.max(SEGMENT) {
                    return None;
                }
                let repr = self.segment_at(now, self.next);
                self.next += len + u64::from(self.next + len == self.fin_at);
                self.sent_max = self.sent_max.max(self.next);
                if self.timer.is_none() {
                    self.timer = Some(now + self.rtt.timeout());
                }
                Some(repr)
            }
        }
    }

    fn syn(&mut self, now: Instant) -> Repr<'static> {
        self.timer = Some(now + SYN_TIMEOUT);
        self.timed = (self.syns == 0).then_some((0, now));
        self.syns += 1;
        self.next = 1;
        self.sent_max = 1;
        let mss = Some(SEGMENT_BYTES);
        Repr { mss, ..Repr::new(self.ports.0, self.ports.1, Control::Syn, self.iss) }
    }

    fn opened(&mut self, now: Instant, segment: &Repr<'_>) {
        self.state = State::Open;
        self.peer_seq = segment.seq.wrapping_add(1);
        self.measure(now, 1);
        self.unacked = 1;
        self.next = 1;
        self.timer = None;
    }

    fn on_new_ack(&mut self, now: Instant, acked_to: u64) {
        let acked = acked_to - self.unacked;
        self.measure(now, acked_to);
        self.unacked = acked_to;
        self.next = self.next.max(acked_to);
        self.duplicates = 0;
        self.rtt.recovered();
        match self.recovery {
            Some(end) if acked_to < end => {
                self.must_repeat = true;
                self.cwnd = (self.cwnd.saturating_sub(acked) + SEGMENT).max(SEGMENT);
            }
            Some(_) => {
                self.recovery = None;
                self.cwnd = self.ssthresh.min(self.in_flight().max(SEGMENT) + SEGMENT);
            }
            None if self.cwnd < self.ssthresh => self.cwnd += acked.min(SEGMENT),
            None => self.cwnd += (SEGMENT * SEGMENT / self.cwnd).max(1),
        }
        if self.unacked > self.fin_at {
            self.state = State::Ended(now, End::Complete);
        } else {
            self.timer = (self.sent_max > self.unacked).then(|| now + self.rtt.timeout());
        }
    }

    fn on_duplicate(&mut self) {
        if self.sent_max == self.unacked {
            return;
        }
        self.duplicates += 1;
        if self.recovery.is_some() {
            self.cwnd += SEGMENT;
        } else if self.duplicates == DUPLICATES && self.unacked > self.recover {
            self.ssthresh = (self.in_flight() / 2).max(2 * SEGMENT);
            self.cwnd = self.ssthresh + u64::from(DUPLICATES) * SEGMENT;
            self.recovery = Some(self.sent_max);
            self.recover = self.sent_max;
            self.must_repeat = true;
        }
    }

    /// Karn's rule: only a segment that was sent once is timed.
    fn measure(&mut self, now: Instant, acked_to: u64) {
        if let Some((at, sent)) = self.timed
            && acked_to > at
        {
            self.rtt.sample(now.since(sent));
            self.timed = None;
        }
    }

    fn segment_at(&mut self, now: Instant, at: u64) -> Repr<'static> {
        let len = self.len_at(at);
        if at < self.sent_max {
            self.repeated += 1;
            self.timed = None;
        } else if self.timed.is_none() {
            self.timed = Some((at, now));
        }
        let control = if at + len == self.fin_at { Control::Fin } else { Control::None };
        Repr {
            ack: Some(self.peer_seq),
            window: WINDOW,
            push: control == Control::Fin,
            payload: pattern(at.saturating_sub(1), len as usize),
            ..Repr::new(self.ports.0, self.ports.1, control, self.seq(at))
        }
    }

    fn len_at(&self, at: u64) -> u64 {
        self.fin_at.saturating_sub(at).min(SEGMENT)
    }

    const fn in_flight(&self) -> u64 {
        self.next.saturating_sub(self.unacked)
    }

    const fn seq(&self, position: u64) -> u32 {
        self.iss.wrapping_add(position as u32)
    }
}
