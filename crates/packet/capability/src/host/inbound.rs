use core::net::IpAddr;

use sluicegate_wire::{
    Frame, Instant, IpProtocol, Packet, Reason,
    capability::{
        Algorithm, CAPABILITY_ONLY, CapabilityList, FlowNonce, Kind, Limits, PathId, Repr, Return, SlotList,
        regular_len,
        shim::{self, Carriage},
    },
    ip::{self, Ports},
};

use super::{
    Host, Inbound, Knowledge, Standing,
    config::{CAPABLE_FOR, CONTACT_FOR, DOUBTED_NOTICE_INTERVAL, LEGACY_FOR, MTU_MIN, STRANGER_NOTICE_INTERVAL},
    icmp::{self, Meaning, Proof},
    is_due, mss,
    outbound::Segment,
    policy::{Decision, Flow, Misdeed, PATH_MAX, Policy, Received, Request, Unexpected},
    seen::Seen,
    sender::Answered,
    table::Key,
};

/// A capability packet from the network.
struct Arrival {
    key: Key,
    algorithm: Algorithm,
    /// How packets to its sender would travel.
    carriage: Carriage,
    upper: IpProtocol,
    ports: Option<Ports>,
    len: usize,
    /// The peer, if it is in the table.
    slot: Option<u32>,
}

/// A regular packet.
struct Regular<'a> {
    kind: Kind,
    nonce: FlowNonce,
    limits: Option<Limits>,
    list: &'a CapabilityList,
    demoted: bool,
}

/// What a request or a renewal asks.
struct Asks<'a> {
    pre: &'a CapabilityList,
    path: [PathId; PATH_MAX],
    /// Whether it is a renewal, and if so whether the packet that it rides on proves its sender.
    renews: Option<bool>,
}

impl Host {
    /// An IP packet from the network. Answers and learns what its capability header says and takes the header out.
    /// Afterwards there may be packets for [`Self::poll_output`].
    ///
    /// # Errors
    /// Those of [`ip::Summary::parse`], [`Reason::CapabilityHeader`] and [`Reason::AddressInvalid`]; such packets are
    /// dropped.
    pub fn inbound(&mut self, now: Instant, policy: &mut dyn Policy, frame: &mut Frame<'_>) -> Result<Inbound, Reason> {
        let mut packet = Packet::UNREAD;
        packet.read(frame.bytes())?;
        self.take(now, policy, frame, &mut packet)
    }

    /// As [`Self::inbound`], for a packet that was parsed; `packet` describes it afterwards too.
    ///
    /// # Errors
    /// As [`Self::inbound`].
    pub fn take(
        &mut self,
        now: Instant,
        policy: &mut dyn Policy,
        frame: &mut Frame<'_>,
        packet: &mut Packet,
    ) -> Result<Inbound, Reason> {
        let summary = packet.ip;
        let is_icmp = matches!(summary.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6) && summary.fragment.is_none();
        if is_icmp && let Some(inbound) = self.icmp_error(now, &summary, frame) {
            if inbound != Inbound::Consumed {
                packet.parse_rest(frame.bytes())?;
            }
            return Ok(inbound);
        }
        let Some(found) = packet.header? else {
            self.plain(now, policy, &summary, frame.bytes());
            return Ok(Inbound::Plain);
        };
        summary.check_addresses()?;
        let repr = Repr::parse(&found.packet(frame.bytes()))?;
        let payload = frame.bytes().get(found.payload_at..summary.total_len).unwrap_or_default();
        let mut arrival = self.arrival(&summary, &repr, found.carriage, payload);
        let accepted = self.judge(now, policy, &mut arrival, &repr);
        self.learn_route(now, &arrival, accepted);
        shim::strip(frame, &found)?;
        if arrival.upper == CAPABILITY_ONLY {
            return Ok(Inbound::Consumed);
        }
        packet.parse_rest(frame.bytes())?;
        let largest = self.largest_segment(&packet.ip);
        mss::clamp(frame.bytes_mut(), &packet.ip, largest);
        Ok(if accepted { Inbound::Deliver } else { Inbound::Refused })
    }

    /// An ICMP error that quotes a packet with a capability header; `None` if it is anything else.
    fn icmp_error(&mut self, now: Instant, summary: &ip::Summary, frame: &mut Frame<'_>) -> Option<Inbound> {
        let (meaning, quote) = icmp::read(summary, frame.bytes())?;
        let slot = self.peers.find(&quote.key);
        let standing = slot.map(|slot| self.peers.standing(slot));
        let peer = slot.and_then(|slot| self.peers.get_mut(slot));
        let is_ours = peer.as_ref().is_some_and(|peer| match quote.proof {
            Proof::Request(own) => peer.sender.is_outstanding(own),
            Proof::Regular(nonce) => peer.sender.regular_parts().is_some_and(|(held, ..)| held == nonce),
        });
        match (meaning, peer) {
            (Meaning::Unreachable, Some(peer)) if is_ours && standing != Some(Standing::Proven) => {
                peer.sender.give_up();
                self.remotes.know(quote.key.remote, Knowledge::Legacy, now + LEGACY_FOR);
                // The local host never sent what this error is about, and its next packet goes plain.
                return Some(Inbound::Consumed);
            }
            (Meaning::TooBig { mtu }, Some(peer)) if is_ours => {
                let least = if summary.src.is_ipv4() { MTU_MIN.0 } else { MTU_MIN.1 };
                peer.mtu = peer.mtu.min(mtu.max(least));
            }
            _ => {}
        }
        if quote.upper == CAPABILITY_ONLY {
            return Some(Inbound::Consumed);
        }
        if !shim::strip_quote(frame, summary) {
            return None;
        }
        if let Meaning::TooBig { mtu } = meaning {
            icmp::lower_mtu(frame, mtu.saturating_sub(quote.overhead as u16));
        }
        Some(Inbound::Deliver)
    }

    fn arrival(&self, summary: &ip::Summary, repr: &Repr, carriage: Carriage, payload: &[u8]) -> Arrival {
        let (Repr::Request { algorithm, client_id, upper, .. } | Repr::Regular { algorithm, client_id, upper, .. }) =
            *repr;
        let key = Key { local: summary.dst, remote: summary.src, client_id };
        let ports = if upper.has_ports() { Ports::parse(payload).ok() } else { None };
        let carriage = match carriage {
            Carriage::Native => Carriage::Native,
            Carriage::Encapsulated { src_port } => Carriage::Answer { dst_port: src_port },
            Carriage::Answer { dst_port } => Carriage::Encapsulated { src_port: dst_port },
        };
        let slot = self.peers.find(&key);
        Arrival { key, algorithm, carriage, upper, ports, len: summary.total_len, slot }
    }

    /// Everything that a header says; false if it is a request that was not granted.
    fn judge(&mut self, now: Instant, policy: &mut dyn Policy, arrival: &mut Arrival, repr: &Repr) -> bool {
        match repr {
            Repr::Request { entries, demoted, ret, .. } => {
                let answered = self.returned(now, arrival, ret.as_ref(), false);
                self.heard(now, arrival, ret.as_ref(), answered);
                // Demoted, it lacks the pre-capability of a router; without entries it asks for nothing.
                let asks = !demoted && !entries.is_empty();
                let pre = &pre_capabilities(entries);
                !asks || self.request(now, policy, arrival, &Asks { pre, path: path(entries), renews: None })
            }
            Repr::Regular { kind, nonce, limits, list, pointer, demoted, ret, .. } => {
                let (kind, nonce, limits) = (*kind, *nonce, *limits);
                let regular = Regular { kind, nonce, limits, list, demoted: *demoted };
                let proven = self.regular(now, policy, arrival, &regular);
                let answered = self.returned(now, arrival, ret.as_ref(), proven);
                self.heard(now, arrival, ret.as_ref(), proven || answered);
                if kind == Kind::Renewal && !demoted {
                    // What lies behind the pointer no router has replaced: the way has become shorter.
                    let fresh = list.iter().take(usize::from(*pointer)).collect();
                    // A renewal that is refused still came with a capability.
                    let asks = Asks { pre: &fresh, path: [PathId::NONE; PATH_MAX], renews: Some(proven) };
                    let _ = self.request(now, policy, arrival, &asks);
                }
                true
            }
        }
    }

    /// Return information: only what a receiver of our packets could know changes anything that matters.
    fn returned(&mut self, now: Instant, arrival: &Arrival, ret: Option<&Return>, proven: bool) -> bool {
        let (Some(ret), Some(slot)) = (ret, arrival.slot) else { return false };
        let nonce = self.random.nonce();
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        let answered = match &ret.list {
            Some((Some(limits), list)) if !list.is_empty() => {
                peer.sender.answered(now, arrival.algorithm, *limits, *list, nonce) == Answered::Accepted
            }
            Some(_) => {
                let refused = peer.sender.refused(now) == Answered::Accepted;
                self.counters.answers_ignored += u64::from(!refused);
                false
            }
            None => false,
        };
        if matches!(&ret.list, Some((_, list)) if !list.is_empty()) {
            self.counters.answers_heard += u64::from(answered);
            self.counters.answers_ignored += u64::from(!answered);
        }
        // A peer that has restarted proves nothing any more. Its notices are believed, but rarely: they may be forged.
        let is_credible = proven || answered || !peer.receiver.has_proof();
        let noticed = ret.demoted && (is_credible || is_due(&mut peer.doubted_at, now, DOUBTED_NOTICE_INTERVAL));
        let repairs = noticed && !answered && peer.sender.noticed(now);
        if answered {
            self.peers.touch(now, slot, Standing::Proven);
            let carriage = self.peers.get(slot).map_or(arrival.carriage, |peer| peer.carriage);
            self.know_capable(now, arrival.key.remote, carriage);
        }
        let goes_ahead = answered && self.send_list_ahead(slot);
        if repairs || goes_ahead {
            self.queue_soon(now, slot);
        }
        answered
    }

    /// A list longer than full TCP segments leave room for goes ahead of them, in a packet of its own.
    fn send_list_ahead(&mut self, slot: u32) -> bool {
        let room = regular_len(usize::from(self.config.clamp_capabilities));
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        let is_long = peer.sender.regular_parts().is_some_and(|(.., list)| regular_len(list.len()) > room);
        is_long && peer.sender.send_list_alone()
    }

    fn know_capable(&mut self, now: Instant, remote: IpAddr, carriage: Carriage) {
        let carriage = match carriage {
            // Towards a client behind a NAT only its own packets show the way.
            Carriage::Answer { .. } => self.config.carriage,
            carriage => carriage,
        };
        self.remotes.know(remote, Knowledge::Capable { carriage }, now + CAPABLE_FOR);
    }

    fn heard(&mut self, now: Instant, arrival: &Arrival, ret: Option<&Return>, credible: bool) {
        let Some(peer) = arrival.slot.and_then(|slot| self.peers.get_mut(slot)) else { return };
        peer.heard_at = Some(now);
        if ret.is_none_or(|ret| !ret.demoted) && (credible || !peer.receiver.has_proof()) {
            peer.sender.heard(now, arrival.upper != CAPABILITY_ONLY);
        }
    }

    /// A regular packet; returns whether it proves that its sender received what this host granted.
    fn regular(&mut self, now: Instant, policy: &mut dyn Policy, arrival: &mut Arrival, regular: &Regular<'_>) -> bool {
        let list = regular.limits.filter(|_| regular.kind == Kind::Capabilities).map(|limits| (limits, regular.list));
        let keyed = &self.keyed;
        let peer = arrival.slot.and_then(|slot| self.peers.get_mut(slot));
        let Some(peer) = peer.filter(|peer| peer.receiver.has_grants()) else {
            self.stranger(now, policy, arrival, regular);
            return false;
        };
        if !peer.receiver.proves(now, keyed, regular.nonce, list) {
            if !regular.demoted && peer.receiver.uses_unseen(regular.nonce) {
                let (bytes, asked_anew) = (arrival.len as u64, peer.receiver.begun());
                policy.received(now, &Received { remote: arrival.key.remote, bytes, asked_anew });
            }
            self.stranger(now, policy, arrival, regular);
            return false;
        }
        // Whoever proves that also shows where its NAT has put it.
        let moved = peer.carriage != arrival.carriage;
        let overrun = !regular.demoted && peer.receiver.count(arrival.len);
        let bytes = if regular.demoted { 0 } else { arrival.len as u64 };
        policy.received(now, &Received { remote: arrival.key.remote, bytes, asked_anew: peer.receiver.begun() });
        let notices = regular.demoted && peer.receiver.notice(now);
        if moved && self.learns_carriage(now, arrival) {
            self.set_carriage(arrival);
        }
        if let Some(slot) = arrival.slot {
            self.peers.touch(now, slot, Standing::Proven);
            if notices {
                self.queue_late(now, slot);
            }
        }
        if overrun {
            policy.unexpected(now, &unexpected(arrival, true, Misdeed::Overrun));
        }
        true
    }

    /// Whether packets to a peer are to be carried as its own are. One that this host speaks to of its own accord is reached
    /// as was found out, or told: its last answers by another carriage may still be on their way.
    fn learns_carriage(&self, now: Instant, arrival: &Arrival) -> bool {
        self.config.answers_only
            || matches!(arrival.carriage, Carriage::Answer { .. })
            || !self.is_capable(now, arrival.key.remote)
    }

    fn set_carriage(&mut self, arrival: &Arrival) {
        if let Some(peer) = arrival.slot.and_then(|slot| self.peers.get_mut(slot)) {
            peer.carriage = arrival.carriage;
        }
    }

    /// A regular packet of whom nothing is known, perhaps because this host has restarted.
    fn stranger(&mut self, now: Instant, policy: &mut dyn Policy, arrival: &mut Arrival, regular: &Regular<'_>) {
        let what = if regular.demoted { Misdeed::UnknownDemoted } else { Misdeed::UnknownNonce };
        let may_answer = policy.unexpected(now, &unexpected(arrival, false, what));
        let is_asked = regular.demoted && may_answer;
        if !is_asked || !is_due(&mut self.stranger_notice_at, now, STRANGER_NOTICE_INTERVAL) {
            return;
        }
        let Some(slot) = self.peer_or_new(now, arrival.key, Standing::Stranger, arrival.carriage) else { return };
        arrival.slot = Some(slot);
        if self.peers.get_mut(slot).is_some_and(|peer| peer.receiver.notice(now)) {
            self.queue_late(now, slot);
        }
    }

    /// A request or renewal; returns whether it was granted.
    fn request(&mut self, now: Instant, policy: &mut dyn Policy, arrival: &mut Arrival, asks: &Asks<'_>) -> bool {
        let answers_mine = self.answers_mine(now, policy, arrival);
        let has_proved = || arrival.slot.is_some_and(|slot| self.peers.standing(slot) == Standing::Proven);
        let proven = asks.renews.unwrap_or_else(has_proved);
        let receiver = arrival.slot.and_then(|slot| self.peers.get(slot)).map(|peer| &peer.receiver);
        let request = Request {
            local: arrival.key.local,
            remote: arrival.key.remote,
            client_id: arrival.key.client_id,
            upper: arrival.upper,
            ports: arrival.ports,
            path: asks.path,
            renewal: asks.renews.is_some(),
            answers_mine,
            proven,
            rtt: receiver.and_then(super::receiver::Receiver::rtt),
            repeats: receiver.and_then(|receiver| receiver.repeats(asks.pre)),
            answering: receiver.is_some_and(|receiver| receiver.is_answering(now)),
        };
        let decision = if asks.pre.is_empty() { Decision::Silent } else { policy.decide(now, &request) };
        if decision == Decision::Silent {
            return false;
        }
        let key = arrival.key;
        let Some(slot) = self.peer_or_new(now, key, Standing::Stranger, arrival.carriage) else { return false };
        arrival.slot = Some(slot);
        let standing = self.peers.standing(slot);
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        if standing == Standing::Stranger {
            peer.carriage = arrival.carriage;
        }
        peer.heard_at = Some(now);
        match decision {
            Decision::Grant(limits) => {
                let pre = (asks.pre, proven && asks.renews.is_some());
                peer.receiver.grant(now, &self.keyed, arrival.algorithm, limits, pre, arrival.carriage);
                self.counters.grants += 1;
            }
            Decision::Again => peer.receiver.again(),
            _ => {
                peer.receiver.refuse(now, arrival.carriage);
            }
        }
        // Until the peer has proved its new place only the answer goes there. A request that rode on nothing elicits no
        // packet that the answer could ride on, and repairs within two round trips cannot wait for the next.
        if peer.carriage == arrival.carriage && arrival.upper != CAPABILITY_ONLY {
            self.queue_late(now, slot);
        } else {
            self.queue_soon(now, slot);
        }
        matches!(decision, Decision::Grant(_) | Decision::Again)
    }

    /// Whether a local host has sent to this peer of its own accord, under its id or under that of the local host.
    fn answers_mine(&mut self, now: Instant, policy: &mut dyn Policy, arrival: &Arrival) -> bool {
        let contacted = |host: &Self, slot: Option<u32>| {
            let peer = slot.and_then(|slot| host.peers.get(slot));
            peer.and_then(|peer| peer.contacted_at).is_some_and(|at| now.since(at) < CONTACT_FOR)
        };
        if contacted(self, arrival.slot) {
            return true;
        }
        let (client_id, _) = self.client_id(policy, &arrival.flow());
        let own = self.peers.find(&Key { client_id, ..arrival.key });
        contacted(self, own)
    }

    /// Remembers whom packets of this flow answer.
    fn learn_route(&mut self, now: Instant, arrival: &Arrival, accepted: bool) {
        let flow = arrival.flow();
        let Some(slot) = arrival.slot else {
            if !accepted {
                self.seen.learn(now, &flow, Seen { plain: false });
            }
            return;
        };
        let (peers, peer) = (&self.peers, self.peers.handle(slot));
        let proven = peers.standing(slot) == Standing::Proven;
        let takes_over =
            |held| proven || peers.resolve(held).is_none_or(|held| peers.standing(held) != Standing::Proven);
        self.routes.learn(&flow, peer, takes_over);
        self.seen.forget(&flow);
    }

    /// A plain packet: if it answers what a local host sent, and requests stay unanswered, the far end is a legacy one.
    fn plain(&mut self, now: Instant, policy: &mut dyn Policy, summary: &ip::Summary, bytes: &[u8]) {
        if summary.fragment.is_some() || summary.check_addresses().is_err() {
            return;
        }
        let segment = Segment::of(summary, bytes);
        let ports = segment.ports.map(|ports| Ports { src: ports.dst, dst: ports.src });
        let flow = Flow { local: summary.dst, remote: summary.src, protocol: summary.protocol, ports };
        if self.config.answers_only && self.routes.find(&flow).is_none() {
            // Nobody at this address ever came with a header: its flows are answered plainly anyway.
            return;
        }
        let (client_id, certain) = self.client_id(policy, &flow);
        let slot = self.peers.find(&Key { local: flow.local, remote: flow.remote, client_id });
        let proven = slot.is_some_and(|slot| self.peers.standing(slot) == Standing::Proven);
        let capable = self.is_capable(now, flow.remote);
        let Some(peer) = slot.filter(|_| certain).and_then(|slot| self.peers.get_mut(slot)) else {
            self.seen.learn(now, &flow, Seen { plain: true });
            return;
        };
        let answers = peer.expected.is_some_and(|expected| {
            expected.protocol == summary.protocol
                && segment.ports == Some(expected.ports)
                && (expected.ack.is_none() || expected.ack == segment.answers_syn)
        });
        if answers && peer.sender.is_on_trial() && !proven && !capable {
            peer.sender.give_up();
            self.remotes.know(flow.remote, Knowledge::Legacy, now + LEGACY_FOR);
        }
    }
}

impl Arrival {
    /// The flow that answers this packet.
    fn flow(&self) -> Flow {
        let ports = self.ports.map(|ports| Ports { src: ports.dst, dst: ports.src });
        Flow { local: self.key.local, remote: self.key.remote, protocol: self.upper, ports }
    }
}

fn unexpected(arrival: &Arrival, proven: bool, what: Misdeed) -> Unexpected {
    let Key { local, remote, client_id } = arrival.key;
    Unexpected { local, remote, client_id, proven, what }
}

fn pre_capabilities(entries: &SlotList) -> CapabilityList {
    entries.iter().map(|slot| slot.capability).collect()
}

/// The path identifiers of a request, most recent first.
fn path(entries: &SlotList) -> [PathId; PATH_MAX] {
    let mut path = [PathId::NONE; PATH_MAX];
    let tagged = entries.iter().rev().map(|slot| slot.path_id).filter(|id| *id != PathId::NONE);
    for (to, from) in path.iter_mut().zip(tagged) {
        *to = from;
    }
    path
}
