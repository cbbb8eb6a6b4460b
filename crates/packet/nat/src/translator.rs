use alloc::collections::VecDeque;
use core::net::IpAddr;

use sluicegate_bounded::Gauge;
use sluicegate_flow::{Line4, Line6};
use sluicegate_grant::GrantId;
use sluicegate_pinhole::{Allowance, Ended, Evidence, Permission, Pinholes, Proved, ServiceMode, Usage, is_proof};
use sluicegate_wire::{Frame, Instant, IpProtocol, Port, Reason, UnixTime, ip::Summary};

use crate::{
    config::Config,
    explain::{Explanation, Probe, explain},
    flows::{Flows, of_family},
    icmp,
    inbound::inbound,
    lifecycle::{end_idle, lent, move_flows, pay, refund},
    outbound::outbound,
    rewrite::Rewrite,
    rules::Rules,
    trailer,
    transport::{Packet, Signal, TRANSPORTS, Transports},
};

/// What one call of `handle_timeout` looks at of pinholes, and of the lines of those that end.
const EXPIRE_LOOKS: u32 = 400;
/// IPv4 and IPv6 flows that one call of `handle_timeout` looks at.
const IDLE_FLOWS: [usize; 2] = [150, 50];
/// What the first packet of a turn looks at of pinholes that are due to end.
const PACKET_LOOKS: u32 = 100;

/// Permissions, bindings and flows. See the crate's documentation for how it is driven.
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
    /// The latest time that anybody told.
    pub(crate) now: Instant,
    /// When a pinhole may expire.
    pub(crate) due: Instant,
    /// When a packet last ended what was due: one packet of a batch is enough.
    swept_at: Instant,
    /// Pinholes whose time is over and whose flows are being ended, with their serial: a part in each turn.
    pub(crate) closing: VecDeque<(u32, u64)>,
}

/// What became of a packet that was not refused.
#[derive(Debug, Clone, Copy)]
pub enum Passed {
    /// It was rewritten; later fragments of it follow alike.
    Through(Rewrite),
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
            rules: Rules::new(config, (&hash_key, random_seed), transports),
            now: Instant::ZERO,
            due: Instant::from_nanos(u64::MAX),
            swept_at: Instant::ZERO,
            closing: VecDeque::with_capacity(closing_max),
        }
    }

    /// Every packet begins with this: ends what is due before a packet could still use it.
    #[inline]
    pub fn begin_packet(&mut self, now: Instant) {
        self.now = now;
        self.rules.paid = None;
        self.rules.pinholes.macs.signalling = false;
        self.sweep(now);
    }

    /// Reads the transport header of a packet, or of a first fragment.
    ///
    /// # Errors
    /// What no host would take, or none should see.
    #[inline]
    pub fn parse<'a>(&self, ip: &'a mut Summary, bytes: &[u8]) -> Result<Packet<'a>, Reason> {
        let is_fragment = ip.fragment.is_some();
        Packet::parse(self.rules.transports, ip, bytes).map_err(|reason| match reason {
            // RFC 1858: a first fragment without the whole transport header is an attack.
            Reason::TransportHeaderInvalid if is_fragment => Reason::FragmentInvalid,
            other => other,
        })
    }

    /// Judges one packet, or first fragment, that came in by `port` and rewrites it in place; it is not a hop older yet.
    /// `permission` is what came with it, was checked, and taken off, before. A refused packet is left as it came.
    ///
    /// # Errors
    /// Why it is refused. [`Reason::PacketTooBig`]: it does not fit and must not be cut.
    #[inline]
    pub fn translate(
        &mut self,
        now: Instant,
        port: Port,
        packet: &mut Packet<'_>,
        frame: &mut Frame<'_>,
        permission: Permission,
    ) -> Result<Passed, Reason> {
        if packet.signal == Signal::Error {
            let (rules, ip) = (&mut self.rules, &mut *packet.ip);
            let to = of_family!(ip.src.is_ipv4(), (&mut self.v4, &mut self.v6), |flows| {
                icmp::translate(flows, rules, now, port, ip, frame)
            })?;
            return Ok(Passed::Through(Rewrite::unchanged(to)));
        }
        let evidence = Evidence { permission, ip: &*packet.ip, bytes: frame.bytes() };
        if port == Port::OUTSIDE
            && is_proof(&evidence)
            && let Some(proved) = self.rules.pinholes.prove_address(now, &packet.tuple, &evidence)
        {
            return self.acknowledge(now, &proved?, frame);
        }
        let rewrite = self.decide(now, port, packet, &evidence)?;
        if rewrite.strip {
            trailer::strip(packet.ip, frame);
        }
        rewrite.ends.write(packet.transport, &packet.tuple, packet.ip, frame.bytes_mut());
        if let Some(slot) = rewrite.seal {
            trailer::add(&mut self.rules.pinholes, slot, packet.ip, frame)?;
        }
        Ok(Passed::Through(rewrite))
    }

    /// Answers a proof of an address with what was seen. Who has shown to hear there has its flows go on from there.
    #[cold]
    fn acknowledge(&mut self, now: Instant, proved: &Proved, frame: &mut Frame<'_>) -> Result<Passed, Reason> {
        let (slot, client) = (proved.slot, proved.client());
        if proved.hears && self.rules.pinholes.may_follow(now, slot) {
            of_family!(client.is_ipv4(), (&mut self.v4, &mut self.v6), |flows| {
                move_flows(flows, &mut self.rules, now, slot, client);
            });
        }
        self.rules.pinholes.acknowledge(proved, frame).map(|()| Passed::Answered).ok_or(Reason::ModeTooWeak)
    }

    /// Checks a request for a capability that ends in a trailer, see [`Pinholes::open_request`].
    pub fn open_request(
        &mut self,
        now: Instant,
        client_id: u32,
        ends: (IpAddr, IpAddr),
        upper: IpProtocol,
        sealed: &[u8],
    ) -> Option<Result<(), Reason>> {
        self.rules.pinholes.open_request(now, client_id, ends, upper, sealed)
    }

    /// Checks the proof in front of a tunnel, see [`Pinholes::open_tunnel`].
    ///
    /// # Errors
    /// Why the grant is not open, or the proof does not count.
    pub fn open_tunnel(&mut self, now: Instant, id: GrantId, sealed: &[u8]) -> Result<(), Reason> {
        self.rules.pinholes.open_tunnel(now, id, sealed)
    }

    /// Whether a later fragment's addresses can belong to a flow at all.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn check_ends(&self, from: Port, ip: &Summary) -> Result<(), Reason> {
        let rules = &self.rules;
        if from == Port::INSIDE {
            return rules.pinholes.hosts.find(ip.src).map(|_| ()).ok_or(Reason::AddressInvalid);
        }
        if !rules.pinholes.is_gate(ip.dst) && rules.pinholes.hosts.find(ip.dst).is_none() {
            return Err(Reason::NotForService);
        }
        if rules.pinholes.sources.may_contain(ip.src) { Ok(()) } else { Err(Reason::NoPinhole) }
    }

    /// Whether a later fragment that [`Self::check_ends`] refused passes all the same: to a `filter` service, in observe mode.
    ///
    /// # Errors
    /// The reason, if not.
    pub fn waive_ends(&mut self, from: Port, ip: &Summary, reason: Reason) -> Result<(), Reason> {
        let is_filtered = self.rules.pinholes.hosts.find(ip.dst).is_some_and(|host| host.mode == ServiceMode::Filter);
        if from == Port::INSIDE || !is_filtered { Err(reason) } else { self.rules.pinholes.waive(reason) }
    }

    /// Lets a later fragment follow the first: paid by the same line, rewritten alike.
    ///
    /// # Errors
    /// As [`Self::translate`]; [`Reason::NoPinhole`] if the flow has ended since.
    pub fn follow(
        &mut self,
        now: Instant,
        rewrite: &Rewrite,
        ip: &mut Summary,
        frame: &mut Frame<'_>,
    ) -> Result<(), Reason> {
        self.now = now;
        let len = ip.total_len as u32;
        of_family!(ip.src.is_ipv4(), (&mut self.v4, &mut self.v6), |flows| {
            pay(flows, &mut self.rules, now, rewrite, len)
        })?;
        rewrite.ends.write_addresses(ip, frame.bytes_mut());
        Ok(())
    }

    /// Whether one more ICMP error about a private flow may be sent now.
    pub fn admit_error(&mut self, now: Instant) -> bool {
        self.rules.admit_icmp(now)
    }

    /// The packet that was forwarded last did not leave after all: what its grant paid for it goes back.
    #[cold]
    pub fn refund(&mut self) {
        if let Some(paid) = self.rules.paid.take() {
            of_family!(paid.is_ipv4, (&self.v4, &self.v6), |flows| refund(flows, &paid));
        }
    }

    /// Ends what is due before a packet could still use it: once for all packets of the same moment.
    #[inline]
    fn sweep(&mut self, now: Instant) {
        if now >= self.due && now != self.swept_at {
            self.swept_at = now;
            self.expire(now, PACKET_LOOKS);
        }
    }

    /// Who the packet belongs to and where it goes. Accounts for it, and changes nothing in it.
    #[inline]
    fn decide(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'_>,
        evidence: &Evidence<'_>,
    ) -> Result<Rewrite, Reason> {
        of_family!(packet.ip.src.is_ipv4(), (&mut self.v4, &mut self.v6), |flows| {
            if port == Port::INSIDE {
                outbound(flows, &mut self.rules, now, packet, evidence)
            } else {
                inbound(flows, &mut self.rules, now, packet, evidence)
            }
        })
    }

    /// When [`Self::handle_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pinholes = (self.due != Instant::from_nanos(u64::MAX)).then_some(self.due);
        [pinholes, self.v4.next_due(), self.v6.next_due()].into_iter().flatten().min()
    }

    /// Ends pinholes and flows whose time is over. Each call does a bounded part of what is due; call
    /// again while [`Self::poll_timeout`] lies in the past. A pinhole ends within 50 ms of its time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.expire(now, EXPIRE_LOOKS);
        end_idle(&mut self.v4, &mut self.rules, now, IDLE_FLOWS[0]);
        end_idle(&mut self.v6, &mut self.rules, now, IDLE_FLOWS[1]);
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
    pub fn poll_event(&mut self) -> Option<Ended> {
        self.rules.pinholes.pop_event()
    }

    /// Switches observe mode.
    pub const fn observe(&mut self, on: bool) {
        self.rules.pinholes.observe = on;
    }

    /// Says what would become of a packet, and why. For TCP it asks about a new connection or a segment within the
    /// window of an old one.
    #[must_use]
    pub fn explain(&self, now: Instant, unix: UnixTime, probe: &Probe) -> Explanation {
        of_family!(probe.tuple.src.0.is_ipv4(), (&self.v4, &self.v6), |flows| explain(
            flows,
            &self.rules,
            (now, unix),
            probe
        ))
    }

    /// What a grant has used; `None` if it is not installed or over.
    #[must_use]
    pub fn usage(&self, id: GrantId) -> Option<Usage> {
        let (slot, pinhole) = self.rules.pinholes.live(id)?;
        Some(pinhole.usage(self.lent(slot)))
    }

    /// What a live grant still allows at `now`; `None` if it is not open, over or spent.
    #[must_use]
    pub fn allowance(&self, now: Instant, id: GrantId) -> Option<Allowance> {
        let (slot, pinhole) = self.rules.pinholes.live(id)?;
        pinhole.allowance(now, self.lent(slot))
    }

    /// Who has permission, which hosts are theirs to reach, and what was seen of them.
    #[inline]
    #[must_use]
    pub const fn pinholes(&self) -> &Pinholes {
        &self.rules.pinholes
    }

    /// What flows of a pinhole hold of its budget and have not spent.
    pub(crate) fn lent(&self, slot: u32) -> u64 {
        let (is_ipv4, rules) = (self.rules.is_ipv4(slot), &self.rules);
        of_family!(is_ipv4, (&self.v4, &self.v6), |flows| lent(flows, rules, slot))
    }

    /// How full each table is. Ended pinholes that are only remembered give way to new ones.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> {
        let rules = &self.rules;
        let gauge = |name, used: u32, max: u32| Gauge { name, used: used.into(), max: max.into() };
        let ports = rules.ports.used().map(move |(name, used)| gauge(name, used, rules.ports.max()));
        let flows =
            [gauge("flows", self.v4.flows, self.v4.flows_max), gauge("flows_v6", self.v6.flows, self.v6.flows_max)];
        flows.into_iter().chain(rules.pinholes.gauges()).chain([rules.bindings.gauge()]).chain(ports)
    }
}
