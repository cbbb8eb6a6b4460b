//! A gate's default-off filter: who may pass to private services and back, and under which addresses.
//!
//! Fragments pass by virtual reassembly: the first fragment is judged like a packet, and its decision holds for the others.
//! Nothing is put together, nothing overlaps, and memory is bounded (RFC 4787 REQ-14, RFC 8900).

use sluicegate_bounded::Gauge;
use sluicegate_grant::mac::TRAILER_LEN;
use sluicegate_nat::{Packet, Passed, Rewrite, Translator};
use sluicegate_pinhole::Permission;
use sluicegate_wire::{
    Frame, Instant, Port, Reason, Verdict,
    ip::{Fragment, Summary},
};

use crate::{
    forward::{Forwarder, Forwarding},
    fragments::{PacketId, Released, State},
};

/// What passes to private services and back. Takes IP packets (no link-layer header), does no I/O, reads no clock, and
/// allocates nothing for a packet. The caller drives it:
///
/// 1. [`Self::on_packet`] for every packet; after [`Verdict::Queue`] or a forwarded fragment, [`Self::poll_output`] until
///    `None`.
/// 2. [`Self::handle_timeout`] at or after [`Self::poll_timeout`].
/// 3. [`Translator::poll_event`] until `None`, now and then.
///
/// Default-off: without a pinhole that was made from a grant, or a flow that the service may start, nothing passes.
#[derive(Debug)]
pub struct Firewall {
    /// Permissions, bindings and flows.
    pub translator: Translator,
    pub(crate) forwarder: Forwarder,
}

/// What became of a packet that was not dropped.
enum Fate {
    Forward(Port),
    Held,
    /// The frame holds an answer to it.
    Answered,
}

impl Firewall {
    /// A firewall whose permissions `translator` holds. `hash_key` places everything in its other tables and must be secret
    /// and random.
    #[must_use]
    pub fn new(translator: Translator, forwarding: Forwarding, hash_key: &[u8; 16]) -> Self {
        Self { translator, forwarder: Forwarder::new(forwarding, hash_key) }
    }

    /// Judges one IP packet that came in by `port` and rewrites it in place. Bytes behind the IP packet (link-layer
    /// padding) are cut off. A dropped packet is left as it came.
    #[inline]
    pub fn on_packet(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Verdict {
        match Summary::parse(frame.bytes()) {
            Ok(mut ip) => self.on_parsed(now, port, frame, &mut ip, Permission::NONE),
            Err(reason) => self.forwarder.drop(reason),
        }
    }

    /// As [`Self::on_packet`], for a packet that was parsed: `ip` describes it, and what it has become. `permission` is what
    /// came with it, was checked, and taken off, before.
    ///
    /// A grant's least mode decides: what `permission` does not prove, a packet MAC may (UDP under a grant of mode `mac`;
    /// its trailer is taken off). A forged, replayed or missing MAC costs the grant nothing: it is refused before a flow
    /// is made and before the budget is charged. The budget pays for the packet as it came, trailer included.
    #[inline]
    pub fn on_parsed(
        &mut self,
        now: Instant,
        port: Port,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        permission: Permission,
    ) -> Verdict {
        self.translator.begin_packet(now);
        match self.judge(now, port, frame, ip, permission) {
            Ok(Fate::Forward(to)) => Verdict::Forward(to),
            Ok(Fate::Held) => Verdict::Queue,
            Ok(Fate::Answered) => Verdict::Reply,
            Err(reason) => self.refuse(now, port, frame, ip, reason),
        }
    }

    /// Forwards a packet of an open service, which needs no permission, as a router does.
    pub fn pass(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>, ip: &mut Summary) -> Verdict {
        self.translator.begin_packet(now);
        self.forwarder.pass(now, port, frame, ip)
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
        let mut packet = self.translator.parse(ip, frame.bytes())?;
        match self.translator.translate(now, port, &mut packet, frame, permission)? {
            Passed::Through(rewrite) => self.send(&rewrite, frame, ip),
            Passed::Answered => Ok(Fate::Answered),
        }
    }

    /// Lets a translated packet leave.
    #[inline]
    fn send(&mut self, rewrite: &Rewrite, frame: &mut Frame<'_>, ip: &mut Summary) -> Result<Fate, Reason> {
        self.forwarder.send_on(rewrite.to(), frame, ip)?;
        Ok(Fate::Forward(rewrite.to()))
    }

    /// Counts a drop; an admitted packet that is too long is answered, so that its sender learns the path's MTU.
    #[cold]
    fn refuse(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>, ip: &Summary, reason: Reason) -> Verdict {
        if reason != Reason::PacketTooBig || !self.translator.admit_error(now) {
            return self.forwarder.drop(reason);
        }
        let mtu = self.forwarder.mtu(port.opposite());
        // A packet that would fit is too long with the trailer that it would get.
        let mtu = if frame.len() <= usize::from(mtu) { mtu.saturating_sub(TRAILER_LEN as u16) } else { mtu };
        self.forwarder.answer_too_big(mtu, frame, ip)
    }

    #[inline(never)]
    fn judge_fragment(
        &mut self,
        now: Instant,
        from: Port,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        permission: Permission,
    ) -> Result<Fate, Reason> {
        let Some(fragment) = ip.fragment else { return Err(Reason::FragmentInvalid) };
        let protocol = if ip.src.is_ipv4() { ip.protocol.0 } else { 0 };
        let id = PacketId { src: ip.src, dst: ip.dst, protocol, id: fragment.id, from };
        if ip.has_transport_header() {
            return self.judge_first(now, frame, ip, &fragment, (id, permission));
        }
        if self.forwarder.fragments.find(&id).is_none() {
            // Without ports only the addresses can tell a stranger, and a stranger takes no memory.
            if let Err(reason) = self.translator.check_ends(from, ip) {
                self.translator.waive_ends(from, ip, reason)?;
                ip.decrement_ttl(frame.bytes_mut())?;
                return Ok(Fate::Forward(Port::INSIDE));
            }
        }
        let Forwarder { fragments, dropped, .. } = &mut self.forwarder;
        let at = fragments.find_or_add(now, id, dropped)?;
        match fragments.state(at).unwrap_or(State::Waiting) {
            State::Refused(reason) => Err(reason),
            State::Waiting => {
                fragments.note(at, &fragment, ip.transport_len())?;
                fragments.hold(at, frame.bytes(), dropped)?;
                Ok(Fate::Held)
            }
            State::Admitted(rewrite) => {
                fragments.note(at, &fragment, ip.transport_len())?;
                if fragments.is_complete(at) {
                    fragments.remove(at);
                }
                self.follow(now, &rewrite, ip, frame).map(Fate::Forward)
            }
        }
    }

    fn judge_first(
        &mut self,
        now: Instant,
        frame: &mut Frame<'_>,
        ip: &mut Summary,
        fragment: &Fragment,
        (id, permission): (PacketId, Permission),
    ) -> Result<Fate, Reason> {
        let mut packet = self.translator.parse(ip, frame.bytes())?;
        if self.translator.check_ends(id.from, packet.ip).is_err() {
            let rewrite = self.translate_first(now, id.from, &mut packet, frame, permission)?;
            return self.send(&rewrite, frame, packet.ip);
        }
        let Forwarder { fragments, dropped, .. } = &mut self.forwarder;
        let at = fragments.find_or_add(now, id, dropped)?;
        match fragments.state(at) {
            Some(State::Refused(reason)) => return Err(reason),
            Some(State::Admitted(_)) => return Err(Reason::FragmentInvalid),
            _ => {}
        }
        let noted = fragments.note(at, fragment, packet.ip.transport_len());
        let judged = noted.and_then(|()| self.translate_first(now, id.from, &mut packet, frame, permission));
        let Forwarder { fragments, dropped, .. } = &mut self.forwarder;
        match judged {
            Ok(rewrite) => {
                fragments.admit(at, rewrite, dropped);
                self.send(&rewrite, frame, packet.ip)
            }
            Err(reason) => {
                fragments.refuse(at, reason, dropped);
                Err(reason)
            }
        }
    }

    /// Translates a first fragment, which is neither an error nor a proof: those are whole.
    fn translate_first(
        &mut self,
        now: Instant,
        from: Port,
        packet: &mut Packet<'_>,
        frame: &mut Frame<'_>,
        permission: Permission,
    ) -> Result<Rewrite, Reason> {
        match self.translator.translate(now, from, packet, frame, permission)? {
            Passed::Through(rewrite) => Ok(rewrite),
            Passed::Answered => Err(Reason::FragmentInvalid),
        }
    }

    /// Lets a later fragment follow the first: paid by the same line, rewritten alike.
    fn follow(
        &mut self,
        now: Instant,
        rewrite: &Rewrite,
        ip: &mut Summary,
        frame: &mut Frame<'_>,
    ) -> Result<Port, Reason> {
        self.translator.follow(now, rewrite, ip, frame)?;
        self.forwarder.send_on(rewrite.to(), frame, ip)?;
        Ok(rewrite.to())
    }

    /// A packet that was held: writes it into `frame` (at its start, which keeps its headroom) and says where it
    /// leaves. Call until `None`.
    pub fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<Port> {
        loop {
            let released = self.forwarder.fragments.release(frame)?;
            let left = released.and_then(|released| match released {
                Released::Piece(to) => Ok(to),
                Released::Fragment(rewrite) => {
                    let mut ip = Summary::parse(frame.bytes())?;
                    self.follow(now, &rewrite, &mut ip, frame)
                }
            });
            match left {
                Ok(to) => return Some(to),
                Err(reason) => {
                    self.forwarder.drop(reason);
                }
            }
        }
    }

    /// When [`Self::handle_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.translator.poll_timeout(), self.forwarder.poll_timeout()].into_iter().flatten().min()
    }

    /// Ends pinholes, flows and fragments whose time is over. Each call does a bounded part of what is due; call
    /// again while [`Self::poll_timeout`] lies in the past. A pinhole ends within 50 ms of its time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.translator.handle_timeout(now);
        self.forwarder.handle_timeout(now);
    }

    /// Packets dropped for this reason. Includes those answered with an ICMP error.
    #[must_use]
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.forwarder.dropped()[reason as usize]
    }

    /// How full each table is.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> {
        self.translator.gauges().chain(self.forwarder.gauges())
    }
}

/// Checks what every packet must satisfy before anything is looked up.
#[inline]
fn check_header(ip: &Summary) -> Result<(), Reason> {
    if ip.source_route {
        return Err(Reason::SourceRoute);
    }
    if ip.has_options {
        return Err(Reason::IpOptions);
    }
    if ip.ttl <= 1 {
        return Err(Reason::TtlExpired);
    }
    Ok(())
}
