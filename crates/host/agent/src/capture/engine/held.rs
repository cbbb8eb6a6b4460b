//! Packets that wait for a capability. One is worth so many bytes, and TCP sends faster than answers come: without a
//! capability a packet is lost at the gate, and with it a part of what TCP had under way.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use sluicegate_wire::{
    Frame, FrameBuf, Instant,
    capability::ClientId,
    ip::{Ports, Summary},
};

use super::Engine;

/// A burst of TCP; what does not fit is lost as in any queue.
const PACKETS_MAX: usize = 1_024;
/// Whoever waits longer is repeated by its sender already.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How often to look while nothing comes.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Whose packet it is.
type Peer = (IpAddr, IpAddr, ClientId);

/// The packets, with the addresses with which they leave, oldest first.
#[derive(Debug, Default)]
pub(super) struct Held(VecDeque<(Instant, Peer, Box<[u8]>)>);

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Engine {
    /// Keeps a packet that had better wait, or that others of its peer wait in front of.
    pub(super) fn holds(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
        let Some((local, remote, client_id)) = self.peer(frame) else { return false };
        let peer = (local, remote, client_id);
        let is_behind = self.held.0.iter().any(|(_, other, _)| *other == peer);
        if !is_behind && !self.host.awaits(now, (local, remote), client_id, frame.bytes().len()) {
            return false;
        }
        if self.held.0.len() < PACKETS_MAX {
            self.held.0.push_back((now, peer, frame.bytes().into()));
        } else {
            self.counters.dropped += 1;
        }
        true
    }

    /// Sends what need not wait any more, in order.
    pub(super) fn release(&mut self, now: Instant) {
        let mut waiting = VecDeque::new();
        let mut blocked: Vec<Peer> = Vec::new();
        for (since, peer, packet) in std::mem::take(&mut self.held.0) {
            let (local, remote, client_id) = peer;
            if now.since(since) >= WAIT_MAX {
                self.counters.dropped += 1;
            } else if blocked.contains(&peer) || self.host.awaits(now, (local, remote), client_id, packet.len()) {
                if !blocked.contains(&peer) {
                    blocked.push(peer);
                }
                waiting.push_back((since, peer, packet));
            } else {
                FrameBuf::from_bytes(&packet).with(|frame| self.send_addressed(now, frame));
            }
        }
        self.held.0 = waiting;
    }

    fn peer(&self, frame: &Frame<'_>) -> Option<Peer> {
        let summary = Summary::parse(frame.bytes()).ok()?;
        let ports = Ports::parse(summary.transport(frame.bytes())).ok()?;
        let client_id = self.redirects.client_id(summary.protocol, (summary.dst, ports.dst).into())?;
        Some((summary.src, summary.dst, client_id))
    }
}
