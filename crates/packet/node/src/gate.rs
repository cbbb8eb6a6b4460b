//! A gate: a capability router in front, and behind it the firewall for private services, in whose place the gate
//! answers requests for capabilities, or nothing at all for open ones.

use super::{
    clients::Clients,
    firewall::Firewall,
    labels::Labels,
    node::{Arrived, Outcome},
    router,
};
use crate::readings::Reading;
use alloc::{boxed::Box, vec, vec::Vec};
use core::time::Duration;
use sluicegate_bounded::Gauge;
use sluicegate_capability::host::{Budget, Decision, Host, Inbound, Policy, Request, Unexpected};
use sluicegate_capability::router::{Arrival, Class, Router};
use sluicegate_grant::{DataMode, Grant, GrantId, mac::TRAILER_LEN};
use sluicegate_nat::Translator;
use sluicegate_pinhole::{Allowance, Ended, Permission};
use sluicegate_scheduler::Label;
use sluicegate_wire::{
    Frame, Instant, IpProtocol, Packet, Port, Reason, Verdict,
    capability::{ClientId, HEADER_LEN_MAX, shim},
    ip::Summary,
};

/// The round trip to a client that is assumed when the N of its first capability is chosen.
const RTT_ASSUMED: Duration = Duration::from_millis(200);
/// And the longest that is believed: a client makes it longer by waiting, and then loses more when it misbehaves.
const RTT_MAX: Duration = Duration::from_secs(1);

/// The longest header that a packet may get, and what may be too long with it: such a packet is kept as it came, for the
/// error message about it.
const HEADER_MAX: usize = HEADER_LEN_MAX + 28;
const KEPT_MAX: usize = 9_216;

/// The packet path of `role = "gate"`.
pub struct GatePipeline {
    router: Router,
    host: Host,
    /// What passes to private services and back.
    pub firewall: Firewall,
    kept: Box<[u8]>,
    labels: Labels,
    verified_source: bool,
    clients: Clients,
}

/// What a packet for a private service came with.
struct Header {
    permission: Permission,
    is_request: bool,
}

impl GatePipeline {
    /// A gate whose `router` checks capabilities, whose `host` answers requests for them, and behind both a `firewall`.
    /// `verified_source`: the networks in front of it refuse forged sources.
    #[must_use]
    pub fn new(router: Router, host: Host, firewall: Firewall, labels: Labels, verified_source: bool) -> Self {
        let kept = vec![0; KEPT_MAX].into_boxed_slice();
        Self { router, host, firewall, kept, labels, verified_source, clients: Clients::default() }
    }

    pub(crate) fn judge(&mut self, now: Instant, mut arrived: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        let (port, ip) = (arrived.port, &arrived.packet.ip);
        let inside = if port == Port::INSIDE { ip.src } else { ip.dst };
        if self.firewall.translator.pinholes().hosts.is_open(inside) {
            let class = self.classify(now, &mut arrived)?;
            let Arrived { frame, packet, .. } = arrived;
            let verdict = self.firewall.pass(now, port, frame, &mut packet.ip);
            return Outcome::of(verdict, port, || self.labels.label(&class, frame.bytes()));
        }
        if port == Port::INSIDE {
            return self.outward(now, arrived);
        }
        match self.classify(now, &mut arrived)? {
            Class::Legacy { demoted: None } => self.plain(now, arrived),
            class => self.with_header(now, &class, arrived),
        }
    }

    fn classify(&mut self, now: Instant, arrived: &mut Arrived<'_, '_>) -> Result<Class, Reason> {
        let Arrived { port, neighbour, frame, packet } = arrived;
        let arrival = Arrival { port: *port, neighbour: *neighbour, verified_source: self.verified_source };
        self.router.judge(now, &arrival, frame, packet)
    }

    /// A packet without a header for a private service: what its pinhole allows.
    fn plain(&mut self, now: Instant, mut arrived: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        let is_icmp = matches!(arrived.packet.ip.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        if self.host.has_peers() || is_icmp {
            // It may be about a header that this gate sent, or from a client without capabilities at the address of one
            // with: answers to it must stay plain.
            self.ask_host(now, &mut arrived, false)?;
        }
        let Arrived { frame, packet, .. } = arrived;
        let verdict = self.firewall.on_parsed(now, Port::OUTSIDE, frame, &mut packet.ip, Permission::NONE);
        Outcome::of(verdict, Port::OUTSIDE, || self.inward_label(frame.bytes()))
    }

    /// A packet with a capability header for a private service: the header ends here.
    fn with_header(&mut self, now: Instant, class: &Class, mut arrived: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        let source = arrived.packet.ip.src;
        let header = self.header(now, class, &mut arrived)?;
        let is_proved = header.permission.mode == DataMode::Capability;
        let permission = match self.ask_host(now, &mut arrived, is_proved)? {
            Inbound::Deliver if !header.is_request || header.permission != Permission::NONE => header.permission,
            Inbound::Refused if !self.firewall.translator.pinholes().sources.may_contain(source) => {
                return Err(Reason::RequestRefused);
            }
            // A bare request proves nothing yet, and whoever has a pinhole has it with or without capabilities.
            Inbound::Deliver | Inbound::Refused | Inbound::Plain => Permission::NONE,
            Inbound::Consumed => return Ok(Outcome::Kept),
        };
        let Arrived { frame, packet, .. } = arrived;
        let verdict = self.firewall.on_parsed(now, Port::OUTSIDE, frame, &mut packet.ip, permission);
        Outcome::of(verdict, Port::OUTSIDE, || self.inward_label(frame.bytes()))
    }

    /// What the header of a packet proves, which the router has judged. A request proves as much as a capability if its
    /// client sealed it; the trailer is taken off.
    fn header(
        &mut self,
        now: Instant,
        class: &Class,
        Arrived { frame, packet, .. }: &mut Arrived<'_, '_>,
    ) -> Result<Header, Reason> {
        let is_proof = match class {
            Class::Regular { capability } => *capability,
            // Another router forgot the capability, or this one's line was lost: a line that knows the nonce pays.
            Class::Legacy { demoted: Some(_) } => self.router.vouches(now, frame, packet).is_ok(),
            Class::Request { .. } => is_sealed(now, frame, packet, &mut self.firewall.translator)?,
            Class::Legacy { demoted: None } => false,
        };
        let found = packet.header?;
        let client_id = found.map_or(ClientId::NONE, |found| found.packet(frame.bytes()).client_id());
        let is_request = matches!(class, Class::Request { .. });
        let proved = Permission { mode: DataMode::Capability, client_id: client_id.0 };
        Ok(Header { permission: if is_proof { proved } else { Permission::NONE }, is_request })
    }

    /// `proved`: the packet carries a good capability, or is a request that its client sealed.
    fn ask_host(
        &mut self,
        now: Instant,
        Arrived { frame, packet, .. }: &mut Arrived<'_, '_>,
        proved: bool,
    ) -> Result<Inbound, Reason> {
        let mut policy = Grants { clients: &self.clients, translator: &self.firewall.translator, proved };
        self.host.take(now, &mut policy, frame, packet)
    }

    /// A packet of a private service.
    fn outward(&mut self, now: Instant, Arrived { frame, packet, .. }: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        let kept = (self.keep(frame), packet.ip);
        let verdict = self.firewall.on_parsed(now, Port::INSIDE, frame, &mut packet.ip, Permission::NONE);
        if verdict == Verdict::Forward(Port::OUTSIDE) {
            let mut policy = Grants { clients: &self.clients, translator: &self.firewall.translator, proved: false };
            match self.host.put(now, &mut policy, frame, &packet.ip) {
                Ok(()) => {}
                // Without its header it would reach a kernel that knows nothing of this flow.
                Err(Reason::PacketTooBig) => return self.refuse_too_big(now, kept, frame),
                Err(reason) => return Err(reason),
            }
        }
        Outcome::of(verdict, Port::INSIDE, || self.labels.regular(frame.bytes()))
    }

    /// Keeps a packet as the service sent it if it may turn out too long. Returns its length, 0 if it was not kept.
    fn keep(&mut self, frame: &Frame<'_>) -> usize {
        let packet = frame.bytes();
        let may_be_too_long = self.host.has_peers() && packet.len() + HEADER_MAX > usize::from(self.host.mtu());
        match self.kept.get_mut(..packet.len()).filter(|_| may_be_too_long) {
            Some(kept) => {
                kept.copy_from_slice(packet);
                packet.len()
            }
            None => 0,
        }
    }

    /// Tells the service how long its packets may be.
    fn refuse_too_big(
        &mut self,
        now: Instant,
        (kept, ip): (usize, Summary),
        frame: &mut Frame<'_>,
    ) -> Result<Outcome, Reason> {
        let packet = self.kept.get(..kept).filter(|packet| !packet.is_empty());
        packet.and_then(|packet| frame.replace(packet)).ok_or(Reason::PacketTooBig)?;
        let verdict = self.firewall.forwarder.refuse_too_big(now, self.host.plain_mtu(), frame, &ip);
        Outcome::of(verdict, Port::INSIDE, || self.labels.regular(frame.bytes()))
    }

    /// What a grant let in is wanted; what a frontend says about it, and proves to have said, is signalling.
    fn inward_label(&self, packet: &[u8]) -> Label {
        if self.firewall.translator.pinholes().macs.signalling { Label::CONTROL } else { self.labels.regular(packet) }
    }

    pub(crate) fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<(Port, Label)> {
        if let Some(out) = self.firewall.poll_output(now, frame) {
            return Some((out, self.labels.regular(frame.bytes())));
        }
        let is_made = self.host.poll_output(now, frame);
        is_made.then(|| (Port::OUTSIDE, self.labels.regular(frame.bytes())))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.router.poll_timeout(), self.host.poll_timeout(), self.firewall.poll_timeout()];
        due.into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.firewall.poll_timeout().is_some_and(|due| due <= now) {
            self.firewall.handle_timeout(now);
        }
        self.router.handle_timeout(now);
        self.host.handle_timeout(now);
    }

    pub(crate) fn report(&self, reading: &mut Reading) {
        router::report(self.router.counters(), reading);
        reading.observed = self.firewall.translator.pinholes().counters.observed;
    }

    pub(crate) fn gauges(&self, now: Instant) -> Vec<Gauge> {
        self.firewall.gauges().chain(self.router.gauges()).chain(self.host.gauges(now)).collect()
    }

    /// A grant was opened or renewed: its client may ask for capabilities.
    pub fn opened(&mut self, grant: &Grant) {
        self.clients.add(grant);
    }

    /// What happened unasked. The capabilities made from a grant that ended are worth no more than it was.
    pub(crate) fn poll_event(&mut self) -> Option<Ended> {
        let ended = self.firewall.translator.poll_event()?;
        self.clients.remove(ended.id);
        Some(ended)
    }

    /// Revokes a grant: capabilities made from it, between its client's address and its own, end now too.
    pub(crate) fn revoke(&mut self, now: Instant, id: GrantId) -> Option<Ended> {
        let left = self.firewall.translator.allowance(now, id);
        let client_id = self.clients.remove(id);
        if let (Some(client_id), Some(Allowance { client: Some(client), address, .. })) = (client_id, left) {
            self.router.revoke(now, client, address, ClientId(client_id));
        }
        self.firewall.translator.revoke(now, id)
    }
}

/// Whether a request ends in a trailer of the client that it names, which is taken off then.
fn is_sealed(
    now: Instant,
    frame: &mut Frame<'_>,
    packet: &mut Packet,
    translator: &mut Translator,
) -> Result<bool, Reason> {
    let (Some(found), summary) = (packet.header?, &packet.ip) else { return Ok(false) };
    let header = found.packet(frame.bytes());
    let (client_id, upper) = (header.client_id(), header.upper_protocol());
    let sealed = frame.bytes().get(found.payload_at..summary.total_len).unwrap_or_default();
    match translator.open_request(now, client_id.0, (summary.src, summary.dst), upper, sealed) {
        None => Ok(false),
        Some(Err(reason)) => Err(reason),
        Some(Ok(())) => shim::cut_back(frame, &mut packet.ip, &found, TRAILER_LEN).map(|()| true),
    }
}

/// The policy of a gate, in the place of its services: whoever has a grant gets capabilities from that grant's budget.
struct Grants<'a> {
    clients: &'a Clients,
    translator: &'a Translator,
    /// Whether the packet proves whose it is.
    proved: bool,
}

impl Grants<'_> {
    /// What is left of the grants of this client id.
    fn allowances(&self, now: Instant, client_id: ClientId) -> impl Iterator<Item = Allowance> {
        self.clients.grants(client_id.0).iter().filter_map(move |id| self.translator.allowance(now, *id))
    }
}

impl Policy for Grants<'_> {
    /// The grant with the most left pays. A grant whose client has a session key gives nothing to a request that does not
    /// prove it: its client id is no secret, and anybody can forge an address.
    fn decide(&mut self, now: Instant, request: &Request) -> Decision {
        let fits = |left: &Allowance| {
            (left.address, left.client) == (request.local, Some(request.remote)) && (self.proved || !left.wants_seal)
        };
        let allowances = self.allowances(now, request.client_id).filter(fits);
        let Some(best) = allowances.max_by_key(|left| left.bytes_left) else { return Decision::Silent };
        let rtt_ms = request.rtt.unwrap_or(RTT_ASSUMED).min(RTT_MAX).as_millis() as u32;
        let (bytes, rate) = (best.bytes_left, best.rate_bytes_per_s);
        Budget { bytes, seconds: best.ends_at.since(now).as_secs(), rate, rtt_ms }.decide()
    }

    /// A client id must have an open grant at the address that it is used from.
    fn unexpected(&mut self, now: Instant, event: &Unexpected) -> bool {
        self.allowances(now, event.client_id).any(|left| left.client == Some(event.remote))
    }
}
