use alloc::collections::VecDeque;

use sluicegate_flow::{Line4, Line6};
use sluicegate_grant::mac::TRAILER_LEN;
use sluicegate_wire::{Frame, Instant, Port, Reason, Verdict, ip::Summary};

use crate::{
    config::{Config, Event},
    counters::Counters,
    flows::{Family, Flows},
    fragment::Fragments,
    grants::Clock,
    icmp,
    inbound::inbound,
    lifecycle::{LINES, end_flow, refund},
    mac::{self, Evidence, Permission},
    outbound::outbound,
    proof, reply,
    rewrite::{Rewrite, check_header},
    rules::Rules,
    transport::{Packet, Signal, TRANSPORTS, Transports},
};

/// What one call of `handle_timeout` looks at of pinholes, and of the lines of those that end.
const EXPIRE_LOOKS: u32 = 400;
/// IPv4 and IPv6 flows that one call of `handle_timeout` looks at.
const IDLE_FLOWS: [usize; 2] = [150, 50];
/// What the first packet of a turn looks at of pinholes that are due to end.
const PACKET_LOOKS: u32 = 100;

/// The gate's packet path over IP packets. See the crate's documentation for how it is driven.
///
/// **Observe mode** ([`Translator::observe`]) counts what policy would drop and forwards it: strangers' packets, spent
/// budgets, rates, flow limits, TCP windows. It never forwards what is malformed. For `filter` services everything
/// that policy refuses is forwarded. For `nat` services a packet without pinhole cannot be mapped to any host, and a
/// packet from inside without binding would show an inside address, so those are counted as drops and dropped.
#[derive(Debug)]
pub struct Translator {
    pub(crate) rules: Rules,
    pub(crate) v4: Flows<Line4>,
    pub(crate) v6: Flows<Line6>,
    pub(crate) fragments: Fragments,
    pub(crate) clock: Clock,
    /// The latest time that anybody told.
    pub(crate) now: Instant,
    /// When a pinhole may expire.
    pub(crate) due: Instant,
    /// When a packet last ended what was due: one packet of a batch is enough.
    swept_at: Instant,
    /// Pinholes whose time is over and whose flows are being ended, with their serial: a part in each turn.
    pub(crate) closing: VecDeque<(u32, u64)>,
}

/// What became of a packet that was not dropped.
pub(crate) enum Fate {
    Forward(Port),
    Held,
    /// The frame holds an answer to it.
    Answered,
}

impl Translator {
    /// A translator without services and pinholes. Allocates all its tables. `hash_key` places everything in them and
    /// must be secret and random; it and `random_seed` choose external ports.
    #[must_use]
    pub fn new(config: Config, hash_key: [u8; 16], random_seed: u64) -> Self {
        Self::with_transports(config, hash_key, random_seed, &TRANSPORTS)
    }

    /// As [`Self::new`], with another table of transports.
    #[must_use]
    pub fn with_transports(
        config: Config,
        hash_key: [u8; 16],
        random_seed: u64,
        transports: &'static Transports,
    ) -> Self {
        // Those of services, and one whose grant is over.
        let closing_max = 2 * usize::from(config.services_max) + 1;
        Self {
            v4: Flows::new(config.flows_max, &hash_key, transports),
            v6: Flows::new(config.flows_v6_max, &hash_key, transports),
            fragments: Fragments::new(&config, &hash_key),
            rules: Rules::new(config, (&hash_key, random_seed), transports),
            clock: Clock::default(),
            now: Instant::ZERO,
            due: Instant::from_nanos(u64::MAX),
            swept_at: Instant::ZERO,
            closing: VecDeque::with_capacity(closing_max),
        }
    }

    /// Judges one IP packet that came in by `port` and rewrites it in place. Bytes behind the IP packet (link-layer
    /// padding) are cut off. A dropped packet is left as it came.
    #[inline]
    pub fn on_packet(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Verdict {
        self.on_packet_with(now, port, frame, Permission::NONE)
    }

    /// As [`Self::on_packet`], for a packet of which more is known than it shows: what came with it was checked, and
    /// taken off, before.
    ///
    /// A grant's least mode decides: what `permission` does not prove, a packet MAC may (UDP under a grant of mode `mac`;
    /// its trailer is taken off). A forged, replayed or missing MAC costs the grant nothing: it is refused before a flow
    /// is made and before the budget is charged. The budget pays for the packet as it came, trailer included.
    #[inline]
    pub fn on_packet_with(
        &mut self,
        now: Instant,
        port: Port,
        frame: &mut Frame<'_>,
        permission: Permission,
    ) -> Verdict {
        match Summary::parse(frame.bytes()) {
            Ok(mut ip) => self.on_parsed(now, port, frame, &mut ip, permission),
            Err(reason) => {
                self.rules.counters.count_drop(reason);
                Verdict::Drop(reason)
            }
        }
    }

    /// As [`Self::on_packet_with`], for a packet that was parsed: `ip` describes it, and what it has become.
    #[inline]
    pub fn on_parsed(
        &mut self,
        now: Instant,
        port: Port,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        permission: Permission,
    ) -> Verdict {
        self.now = now;
        self.rules.paid = None;
        self.rules.signalling = false;
        self.sweep(now);
        match self.judge(now, port, frame, ip, permission) {
            Ok(Fate::Forward(to)) => {
                self.rules.counters.count_forward(to, frame.len());
                Verdict::Forward(to)
            }
            Ok(Fate::Held) => {
                self.rules.counters.count_held();
                Verdict::Queue
            }
            Ok(Fate::Answered) => {
                self.rules.counters.count_reply();
                Verdict::Reply
            }
            Err(reason) => self.refuse(now, port, frame, ip, reason),
        }
    }

    /// The packet that was forwarded last did not leave after all: what its grant paid for it goes back.
    #[cold]
    pub fn refund(&mut self) {
        match self.rules.paid.take() {
            Some(paid) if paid.is_ipv4 => refund(&self.v4, &paid),
            Some(paid) => refund(&self.v6, &paid),
            None => {}
        }
    }

    /// Ends what is due before a packet could still use it: once for all packets of the same moment.
    #[inline]
    pub(crate) fn sweep(&mut self, now: Instant) {
        if now >= self.due && now != self.swept_at {
            self.swept_at = now;
            self.expire(now, PACKET_LOOKS);
        }
    }

    #[inline]
    fn judge(
        &mut self,
        now: Instant,
        port: Port,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        permission: Permission,
    ) -> Result<Fate, Reason> {
        check_header(ip)?;
        frame.truncate(ip.total_len);
        if ip.fragment.is_some() {
            return self.judge_fragment(now, port, frame, ip, permission);
        }
        let mut packet = Packet::parse(self.rules.transports, *ip, frame.bytes())?;
        if packet.signal == Signal::Error {
            let to = icmp::translate(self, now, port, &mut packet.ip, frame)?;
            packet.ip.decrement_ttl(frame.bytes_mut())?;
            *ip = packet.ip;
            return Ok(Fate::Forward(to));
        }
        if port == Port::OUTSIDE && proof::is_proof(&packet, frame.bytes()) {
            let answered = self.prove_address(now, &packet, frame);
            if let Some(result) = answered {
                return result.map(|()| Fate::Answered);
            }
        }
        let evidence = Evidence { permission, bytes: frame.bytes() };
        let passage = self.decide(now, port, &packet, &evidence)?;
        let sent = self.send(&passage, &mut packet, frame)?;
        *ip = packet.ip;
        Ok(sent)
    }

    /// Who the packet belongs to and where it goes. Accounts for it, and changes nothing in it.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet,
        evidence: &Evidence<'_>,
    ) -> Result<Rewrite, Reason> {
        match (packet.ip.src.is_ipv4(), port == Port::INSIDE) {
            (true, false) => inbound(&mut self.v4, &mut self.rules, now, packet, evidence),
            (true, true) => outbound(&mut self.v4, &mut self.rules, now, packet, evidence),
            (false, false) => inbound(&mut self.v6, &mut self.rules, now, packet, evidence),
            (false, true) => outbound(&mut self.v6, &mut self.rules, now, packet, evidence),
        }
    }

    /// Rewrites an admitted packet. One that is too long for the next link is cut into fragments.
    #[inline]
    pub(crate) fn send(
        &mut self,
        passage: &Rewrite,
        packet: &mut Packet,
        frame: &mut Frame<'_>,
    ) -> Result<Fate, Reason> {
        if passage.strip {
            mac::strip(&mut packet.ip, frame);
        }
        passage.apply(packet, frame.bytes_mut());
        if let Some(slot) = passage.seal {
            mac::seal(&mut self.rules, slot, &mut packet.ip, frame)?;
        }
        packet.ip.decrement_ttl(frame.bytes_mut())?;
        if !self.rules.fits(packet.ip.total_len, passage.to) {
            let mtu = usize::from(self.rules.config.mtu[usize::from(passage.to.0 & 1)]);
            self.fragments.split(&mut packet.ip, frame, (passage.to, mtu), &mut self.rules.counters)?;
        }
        Ok(Fate::Forward(passage.to))
    }

    /// Counts a drop; an admitted packet that is too long is answered, so that its sender learns the path's MTU.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        now: Instant,
        port: Port,
        frame: &mut Frame<'_>,
        ip: &Summary,
        reason: Reason,
    ) -> Verdict {
        self.rules.counters.count_drop(reason);
        let mtu = self.rules.config.mtu[usize::from(port.opposite().0 & 1)];
        // A packet that would fit is too long with the trailer that it would get.
        let mtu = if frame.len() <= usize::from(mtu) { mtu.saturating_sub(TRAILER_LEN as u16) } else { mtu };
        if reason == Reason::PacketTooBig
            && self.rules.admit_icmp(now)
            && reply::too_big(&self.rules.config, mtu, frame, ip).is_some()
        {
            self.rules.counters.count_reply();
            return Verdict::Reply;
        }
        Verdict::Drop(reason)
    }

    /// A packet that was held: writes it into `frame` (at its start, which keeps its headroom) and says where it
    /// leaves. Call until `None`.
    pub fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<Port> {
        self.now = now;
        loop {
            match self.next_held(now, frame)? {
                Ok(to) => {
                    self.rules.counters.count_forward(to, frame.len());
                    return Some(to);
                }
                Err(reason) => self.rules.counters.count_drop(reason),
            }
        }
    }

    /// When [`Self::handle_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pinholes = (self.due != Instant::from_nanos(u64::MAX)).then_some(self.due);
        [pinholes, self.v4.next_due(), self.v6.next_due(), self.fragments.next_due()].into_iter().flatten().min()
    }

    /// Ends pinholes, flows and fragments whose time is over. Each call does a bounded part of what is due; call
    /// again while [`Self::poll_timeout`] lies in the past. A pinhole ends within 50 ms of its time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.expire(now, EXPIRE_LOOKS);
        end_idle(&mut self.v4, &mut self.rules, now, IDLE_FLOWS[0]);
        end_idle(&mut self.v6, &mut self.rules, now, IDLE_FLOWS[1]);
        self.fragments.expire(now, &mut self.rules.counters);
    }

    /// Identifiers of pings that are translated: a number that changes when they do, and a bit for each external port from the
    /// first on, in words.
    pub fn pings(&self) -> (u64, impl Iterator<Item = u64>) {
        self.rules.ports.pings()
    }

    /// How many lines, ports (in words of 64) and pinholes were looked at since the last call, besides those that packets
    /// found by their own addresses and ports. What one call may add is bounded, so that its caller can see to it that
    /// packets never wait long: see the constants beside each loop.
    pub const fn take_looks(&mut self) -> u32 {
        core::mem::replace(&mut self.rules.looks, 0)
    }

    /// What happened unasked. Call until `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.rules.pop_event()
    }

    /// Whether the packet that was judged last was SIP that a frontend relays, and proved to be that.
    #[must_use]
    pub const fn was_signalling(&self) -> bool {
        self.rules.signalling
    }

    /// Switches observe mode.
    pub const fn observe(&mut self, on: bool) {
        self.rules.observe = on;
    }

    /// Whether observe mode is on.
    #[must_use]
    pub const fn is_observing(&self) -> bool {
        self.rules.observe
    }

    /// What happened to packets.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.rules.counters
    }
}

/// Ends flows that were idle for too long, among `flows_max` that may be.
fn end_idle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, flows_max: usize) {
    let timers = rules.config.timers;
    let mut looks = flows_max;
    while let Some(flow) = flows.pop_idle(now, &timers, &mut looks) {
        end_flow(flows, rules, flow);
        // Counted once, below.
        rules.looks -= LINES;
    }
    rules.looks += (flows_max - looks) as u32 * LINES;
}
