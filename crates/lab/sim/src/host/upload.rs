use std::{net::IpAddr, time::Duration};

use sluicegate_wire::{Instant, tcp::Repr};

use crate::{
    Rng,
    tcp::{Config, End, Sender},
};

/// The first of the ports that uploads are sent from.
const FIRST_PORT: u16 = 1_024;

/// Files sent to one peer, one after the other.
#[derive(Debug)]
pub struct Uploads {
    config: Config,
    peer: (IpAddr, u16),
    bytes: u64,
    count: usize,
    pause: Duration,
    next_start: Instant,
    current: Option<Sender>,
    done: Vec<Transfer>,
}

/// A transfer that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// When its first packet was sent.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
    /// How.
    pub end: End,
    /// Segments sent more than once.
    pub repeated: u64,
}

impl Transfer {
    /// How long it took.
    #[must_use]
    pub const fn took(&self) -> Duration {
        self.ended.since(self.started)
    }
}

impl Uploads {
    /// `count` files of `bytes` bytes each to a peer's port, the first at `start`, the next one `pause` after the end
    /// of the one before.
    #[must_use]
    pub const fn new(peer: (IpAddr, u16), bytes: u64, count: usize, start: Instant) -> Self {
        Self {
            config: Config::PAPER,
            peer,
            bytes,
            count,
            pause: Duration::ZERO,
            next_start: start,
            current: None,
            done: Vec::new(),
        }
    }

    /// The same with this pause between two files.
    #[must_use]
    pub const fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// The same with another TCP.
    #[must_use]
    pub const fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    pub(super) fn done(&self) -> impl Iterator<Item = &Transfer> {
        self.done.iter()
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done.len() >= self.count
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.current {
            Some(sender) => sender.poll_timeout(),
            None => (!self.is_done()).then_some(self.next_start),
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant, rng: &mut Rng) {
        match &mut self.current {
            Some(sender) => sender.on_timeout(now),
            None if self.done.len() < self.count && now >= self.next_start => {
                let port = FIRST_PORT + (self.done.len() % 60_000) as u16;
                let iss = rng.bits() as u32;
                self.current = Some(Sender::new(self.config, now, (port, self.peer.1), iss, self.bytes));
            }
            None => {}
        }
        self.finish();
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(IpAddr, Repr<'static>)> {
        let segment = self.current.as_mut()?.poll_transmit(now)?;
        Some((self.peer.0, segment))
    }

    /// Takes a segment in; whether it belongs to these uploads.
    pub(super) fn on_segment(&mut self, now: Instant, peer: IpAddr, segment: &Repr<'_>) -> bool {
        let Some(sender) = &mut self.current else { return false };
        if peer != self.peer.0 || (segment.dst_port, segment.src_port) != sender.ports() {
            return false;
        }
        sender.on_segment(now, segment);
        self.finish();
        true
    }

    fn finish(&mut self) {
        let Some(sender) = &self.current else { return };
        if let Some((ended, end)) = sender.ended() {
            self.done.push(Transfer { started: sender.started(), ended, end, repeated: sender.repeated() });
            self.current = None;
            self.next_start = ended + self.pause;
        }
    }
}
