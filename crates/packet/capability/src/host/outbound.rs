use core::net::IpAddr;

use sluicegate_wire::{
    Frame, Instant, IpProtocol, Reason, build,
    capability::{
        Capability, ClientId, regular_len, request_len,
        shim::{self, Carriage},
    },
    icmp,
    ip::{self, Ports},
    tcp,
};

use super::{
    Host, Knowledge, Outcome, Standing,
    compose::{Parts, fits_beside, len_of, plain_mtu, slots_beside},
    config::{CONTACT_FOR, REPLY_WITHIN},
    header::Form,
    mss,
    policy::{Flow, Policy},
    sender::TooBig,
    table::Key,
};

/// What a plain answer to a packet would look like: nobody off the path can forge one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) protocol: IpProtocol,
    pub(super) ports: Ports,
    /// The acknowledgement number that answers a TCP segment.
    pub(super) ack: Option<u32>,
}

impl Host {
    /// A plain IP packet of a local host: puts a request or a regular header in front of it, or leaves it plain where
    /// the far end does not speak capabilities. Lowers the largest TCP segment that a SYN announces.
    ///
    /// Fragments, source-routed packets and packets to no unicast address stay plain. Afterwards there may be packets
    /// for [`Self::poll_output`].
    ///
    /// # Errors
    /// [`sluicegate_wire::Reason::PacketTooBig`] if the header does not fit and the packet must not be fragmented: the caller answers
    /// with an ICMP error that says [`Self::plain_mtu`]. Otherwise those of [`ip::Summary::parse`]; such packets are
    /// dropped.
    pub fn outbound(&mut self, now: Instant, policy: &mut dyn Policy, frame: &mut Frame<'_>) -> Outcome {
        let summary = ip::Summary::parse(frame.bytes())?;
        self.put(now, policy, frame, &summary)
    }

    /// As [`Self::outbound`], for a packet that was parsed.
    ///
    /// # Errors
    /// As [`Self::outbound`].
    pub fn put(
        &mut self,
        now: Instant,
        policy: &mut dyn Policy,
        frame: &mut Frame<'_>,
        summary: &ip::Summary,
    ) -> Outcome {
        if self.config.answers_only && !self.has_peers() && self.remotes.is_empty(now) {
            // Nobody has spoken capabilities yet, and this host does not begin: the look-ups below would cost a plain gate
            // more than all else that it does with a packet.
            return Ok(());
        }
        let known = self.remotes.lookup(now, summary.dst);
        let is_foreign = summary.fragment.is_some()
            || summary.source_route
            || summary.check_addresses().is_err()
            || known == Some(Knowledge::Legacy)
            || !matches!(shim::find(summary, frame.bytes()), Ok(None));
        if is_foreign {
            return Ok(());
        }
        let segment = Segment::of(summary, frame.bytes());
        let flow = Flow { local: summary.src, remote: summary.dst, protocol: summary.protocol, ports: segment.ports };
        let Some(to) = self.destination(now, policy, &flow, &segment, known) else {
            return Ok(());
        };
        mss::clamp(frame.bytes_mut(), summary, self.largest_segment(summary));
        let form = self.emit(now, to, frame, summary)?;
        if let (Form::Bare | Form::Request, Some(peer)) = (form, self.peers.get_mut(to.0)) {
            peer.expected = segment.expected(summary.protocol);
        }
        Ok(())
    }

    /// Whether a packet of `len` bytes between these hosts, under this client id, would go without a capability while an answer
    /// is on its way that may bring one: whoever can wait had better, as routers give such a packet what is left.
    #[must_use]
    pub fn awaits(&self, now: Instant, (local, remote): (IpAddr, IpAddr), client_id: ClientId, len: usize) -> bool {
        let slot = self.peers.find(&Key { local, remote, client_id });
        let peer = slot.and_then(|slot| self.peers.get(slot));
        peer.is_some_and(|peer| peer.sender.awaits(now, len + peer.carriage.outer_len()))
    }

    /// The peer that a flow goes to, its client id, and whether the flow is known to speak capabilities; `None` if the packet
    /// is to stay plain.
    fn destination(
        &mut self,
        now: Instant,
        policy: &mut dyn Policy,
        flow: &Flow,
        segment: &Segment,
        known: Option<Knowledge>,
    ) -> Option<(u32, ClientId, bool)> {
        let (client_id, certain) = self.client_id(policy, flow);
        let key = Key { local: flow.local, remote: flow.remote, client_id };
        let seen = self.seen.find(now, flow);
        let found = self.peers.find(&key);
        let proven = found.is_some_and(|slot| self.peers.standing(slot) == Standing::Proven);
        let speaks = certain && (proven || known.is_some());
        if seen.is_some_and(|seen| seen.plain) && !speaks {
            return None;
        }
        let may_begin = !segment.is_reaction && (!self.config.answers_only || known.is_some());
        if found.is_none() && !may_begin {
            return None;
        }
        let heard = found.and_then(|slot| self.peers.get(slot)).and_then(|peer| peer.heard_at);
        let is_reply = seen.is_some() || heard.is_some_and(|at| now.since(at) < REPLY_WITHIN) || segment.answers;
        let of_own_accord = segment.opens || !is_reply;
        let standing = if of_own_accord { Standing::Contacted } else { Standing::Stranger };
        let carriage = match known {
            Some(Knowledge::Capable { carriage }) => carriage,
            _ => self.config.carriage,
        };
        let slot = self.peer_or_new(now, key, standing, carriage)?;
        let peer = self.peers.get_mut(slot)?;
        let goes_on = peer.contacted_at.is_some_and(|at| now.since(at) < CONTACT_FOR);
        if of_own_accord || goes_on {
            peer.contacted_at = Some(now);
        }
        // A host that only answers has no peers but those that its policy let in.
        let came_with_header = self.config.answers_only && found.is_some();
        Some((slot, client_id, certain && (proven || came_with_header)))
    }

    /// Puts the header that is due in front of a plain packet to this peer. Returns the form that it went out in. A flow
    /// that `speaks` capabilities never gets a plain packet: behind the header sits a connection that the far end's kernel
    /// knows nothing of, and would reset.
    fn emit(
        &mut self,
        now: Instant,
        (slot, client_id, speaks): (u32, ClientId, bool),
        frame: &mut Frame<'_>,
        summary: &ip::Summary,
    ) -> Result<Form, Reason> {
        let capable = self.is_capable(now, summary.dst);
        let own = Capability(self.random.draw());
        let Some(peer) = self.peers.get_mut(slot) else { return Ok(Form::Bare) };
        let carriage = peer.carriage;
        let base = summary.total_len + carriage.outer_len();
        let room = usize::from(peer.mtu.min(self.config.mtu));
        let mut ret = peer.receiver.telling(now, carriage);
        let slots = slots_beside(&self.config, ret.as_ref());
        let planned = peer.sender.plan(now, (base, len_of(ret.as_ref())), room, slots, capable);
        let speaks = speaks && (self.config.answers_only || planned.is_ok() || summary.dont_fragment);
        let (mut form, tells, aside) = match planned {
            Ok(plan) => (plan.form, plan.tells, plan.aside),
            // A host that only answers leaves alone what others at the address of a peer are sent.
            Err(TooBig) if summary.dont_fragment && (speaks || !self.config.answers_only) => {
                self.plain_mtu = plain_mtu(room as u16, carriage);
                return Err(Reason::PacketTooBig);
            }
            // Its sender lets routers fragment it, which no packet with a header survives.
            Err(TooBig) => (Form::Bare, false, None),
        };
        // In UDP, and in a flow that speaks capabilities, a packet without one has a header as well.
        let is_full = form == Form::Bare && base + request_len(0) + len_of(ret.as_ref()) > room;
        if !tells || is_full || !fits_beside(&self.config, (peer, speaks), form, slots, ret.as_ref()) {
            ret = None;
        }
        let slots = if ret.is_some() { slots } else { self.config.slots };
        let is_plain = form == Form::Bare && carriage == Carriage::Native && !speaks;
        if !is_plain {
            if form == Form::Bare && base + request_len(0) + len_of(ret.as_ref()) > room {
                self.plain_mtu = plain_mtu(room as u16, carriage);
                return Err(Reason::PacketTooBig);
            }
            form = peer.put(
                now,
                (frame, summary),
                form,
                &Parts { config: &self.config, client_id, carriage, slots, own, ret, base },
            )?;
        }
        let waits = peer.receiver.waits();
        if aside.is_some() || waits && ret.is_none() {
            self.queue_soon(now, slot);
        }
        Ok(form)
    }

    /// The largest TCP segment that leaves room for the header of a path with [`super::Config::clamp_capabilities`].
    pub(super) fn largest_segment(&self, summary: &ip::Summary) -> u16 {
        const LEAST: u16 = 536;
        let header = regular_len(usize::from(self.config.clamp_capabilities)) + self.config.carriage.outer_len();
        self.config.mtu.saturating_sub((build::header_len(summary.src) + tcp::HEADER_LEN + header) as u16).max(LEAST)
    }
}

/// What matters of a transport header here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Segment {
    pub(super) ports: Option<Ports>,
    /// The sequence number behind a SYN.
    syn_end: Option<u32>,
    /// The acknowledgement number of a SYN/ACK or RST/ACK.
    pub(super) answers_syn: Option<u32>,
    /// Opens a connection.
    opens: bool,
    /// Is the second packet of a connection.
    answers: bool,
    /// Only ever reacts to a packet: an ICMP error, a TCP reset.
    is_reaction: bool,
}

impl Segment {
    pub(super) fn of(summary: &ip::Summary, bytes: &[u8]) -> Self {
        let (protocol, transport) = (summary.protocol, summary.transport(bytes));
        let ports = if protocol.has_ports() { Ports::parse(transport).ok() } else { None };
        let is_error = icmp::version(protocol)
            .and_then(|version| icmp::Packet::new_checked(version, transport).ok())
            .is_some_and(|message| message.kind().is_error());
        let segment = Self { ports, is_reaction: is_error, ..Self::default() };
        let Ok(tcp) = tcp::Packet::new_checked(transport) else { return segment };
        if protocol != IpProtocol::TCP {
            return segment;
        }
        let (syn, ack) = (tcp.flags().has(tcp::Flags::SYN), tcp.flags().has(tcp::Flags::ACK));
        let reset = tcp.flags().has(tcp::Flags::RST);
        Self {
            syn_end: syn.then(|| tcp.seq().wrapping_add(tcp.sequence_len())),
            answers_syn: ((syn || reset) && ack).then(|| tcp.ack()),
            opens: syn && !ack,
            answers: syn && ack,
            is_reaction: reset,
            ..segment
        }
    }

    fn expected(&self, protocol: IpProtocol) -> Option<Expected> {
        let ports = self.ports?;
        if protocol == IpProtocol::TCP && self.syn_end.is_none() {
            return None;
        }
        Some(Expected { protocol, ports: Ports { src: ports.dst, dst: ports.src }, ack: self.syn_end })
    }
}
