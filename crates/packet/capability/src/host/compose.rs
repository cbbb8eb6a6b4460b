//! Headers put together: what fits beside what, and what leaves in a packet of its own.

use core::net::IpAddr;

use sluicegate_wire::{
    Frame, Instant, IpProtocol, Reason,
    capability::{
        CAPABILITY_ONLY, Capability, CapabilityList, ClientId, HEADER_LEN_MAX, NONCE_LEN, PathId, Repr, Return, Slot,
        SlotList, request_len,
        shim::{self, Carriage},
    },
    ip, ipv4, ipv6,
};

use super::{
    Host, Knowledge, Outcome, Peer,
    config::Config,
    header::{self, Form},
    sender::TooBig,
};

impl Host {
    /// Puts the header that is due in front of a plain packet to this peer. Returns the form that it went out in. A flow
    /// that `speaks` capabilities never gets a plain packet: behind the header sits a connection that the far end's kernel
    /// knows nothing of, and would reset.
    pub(super) fn emit(
        &mut self,
        now: Instant,
        (slot, speaks): (u32, bool),
        frame: &mut Frame<'_>,
        summary: &ip::Summary,
    ) -> Result<Form, Reason> {
        let capable = self.is_capable(now, summary.dst);
        let own = Capability(self.random.draw());
        let Some((key, peer)) = self.peers.get_mut(slot) else { return Ok(Form::Bare) };
        let (carriage, client_id) = (peer.carriage, key.client_id);
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
        match form {
            Form::Bare => self.counters.bare += 1,
            Form::Request => self.counters.requests += 1,
            Form::Renewal => self.counters.renewals += 1,
            Form::List => self.counters.lists += 1,
            Form::Nonce => self.counters.nonces += 1,
        }
        if aside.is_some() || waits && ret.is_none() {
            self.queue_soon(now, slot);
        }
        Ok(form)
    }

    /// Writes a packet with nothing but a header to this peer: an answer, a notice, a request or a list.
    pub(super) fn emit_alone(&mut self, now: Instant, slot: u32, frame: &mut Frame<'_>) -> Outcome {
        let Some((key, _)) = self.peers.get(slot) else { return Err(Reason::CapabilityHeader) };
        let key = *key;
        let known = self.remotes.lookup(&self.random, now, key.remote);
        let capable = matches!(known, Some(Knowledge::Capable { .. }));
        let own = Capability(self.random.draw());
        let Some((_, peer)) = self.peers.get_mut(slot) else { return Err(Reason::CapabilityHeader) };
        let carriage = peer.receiver.answer_carriage().unwrap_or(peer.carriage);
        let mut ret = peer.receiver.telling(now, carriage);
        let plain_len = write_empty(frame, key.local, key.remote)?;
        let base = plain_len + carriage.outer_len();
        let slots = slots_beside(&self.config, ret.as_ref());
        let mut form = peer.sender.plan_alone(now, base + len_of(ret.as_ref()), slots, capable);
        if ret.is_none() && (form == Form::Bare || known == Some(Knowledge::Legacy)) {
            return Err(Reason::CapabilityHeader);
        }
        if header::len(form, peer.entries(form, slots)) + len_of(ret.as_ref()) > HEADER_LEN_MAX {
            // Two long lists are two packets: first the one that routers need to let the other pass.
            if peer.sender.is_listed() {
                form = Form::Nonce;
            } else {
                ret = None;
            }
        }
        let parts = Parts { config: &self.config, client_id: key.client_id, carriage, slots, own, ret, base };
        let summary = ip::Summary::parse(frame.bytes())?;
        peer.put(now, (frame, &summary), form, &parts)?;
        if peer.receiver.waits() {
            self.queue_soon(now, slot);
        }
        self.counters.alone += 1;
        Ok(())
    }

    pub(super) fn is_capable(&self, now: Instant, remote: IpAddr) -> bool {
        matches!(self.remotes.lookup(&self.random, now, remote), Some(Knowledge::Capable { .. }))
    }
}

/// What a header is put together from.
struct Parts<'a> {
    config: &'a Config,
    client_id: ClientId,
    carriage: Carriage,
    slots: u8,
    /// The entry that names a request or renewal, if this becomes one.
    own: Capability,
    ret: Option<Return>,
    /// Bytes of the packet without the header.
    base: usize,
}

impl Peer {
    /// Puts a header of this form into the packet and records what that means.
    fn put(
        &mut self,
        now: Instant,
        (frame, summary): (&mut Frame<'_>, &ip::Summary),
        form: Form,
        parts: &Parts<'_>,
    ) -> Result<Form, Reason> {
        let repr = self.header(form, parts).with_return(parts.ret);
        shim::insert_into(frame, summary, &repr, parts.carriage)?;
        if matches!(form, Form::Request | Form::Renewal) {
            self.sender.asks(now, form, parts.own);
        }
        if let Some(ret) = &parts.ret {
            self.receiver.told(now, ret);
        }
        self.sender.sent(now, form, parts.base + repr.buffer_len());
        Ok(form)
    }

    fn header(&self, form: Form, parts: &Parts<'_>) -> Repr {
        let (algorithm, client_id, upper) = (parts.config.algorithm, parts.client_id, IpProtocol::NO_NEXT_HEADER);
        let regular = self.sender.regular_parts().filter(|_| form.is_regular());
        let Some((nonce, limits, list)) = regular else {
            let mut entries = SlotList::new();
            let is_request = form == Form::Request;
            if is_request {
                let _ = entries.push(Slot { path_id: PathId::NONE, capability: parts.own });
            }
            let slots = if is_request { parts.slots } else { 0 };
            return Repr::Request { algorithm, client_id, slots, entries, demoted: !is_request, upper, ret: None };
        };
        if form == Form::Nonce {
            return Repr::nonce_only(algorithm, client_id, nonce, upper);
        }
        // The first entry is this host's own: behind it the routers' begin. A renewal names itself by a fresh one.
        let list: CapabilityList = match form {
            Form::Renewal => core::iter::once(parts.own).chain(list.iter().skip(1)).collect(),
            _ => *list,
        };
        let (kind, limits) = (form.kind(), Some(limits));
        Repr::Regular { algorithm, kind, nonce, client_id, limits, list, pointer: 1, demoted: false, upper, ret: None }
    }

    /// Slots or capabilities in a header of this form.
    fn entries(&self, form: Form, slots: u8) -> usize {
        match form {
            Form::Request => usize::from(slots),
            _ => self.sender.regular_parts().map_or(0, |(.., list)| list.len()),
        }
    }
}

/// How many slots a request has beside this return information.
fn slots_beside(config: &Config, ret: Option<&Return>) -> u8 {
    let left = HEADER_LEN_MAX - len_of(ret) - request_len(0);
    config.slots.min((left / (request_len(1) - request_len(0))) as u8)
}

/// Whether the return information may ride in a header of this form. Beside a request it must leave slots for a path
/// one router longer than the one back.
fn fits_beside(config: &Config, (peer, speaks): (&Peer, bool), form: Form, slots: u8, ret: Option<&Return>) -> bool {
    let Some(ret) = ret else { return true };
    match form {
        Form::Bare => speaks || peer.carriage != Carriage::Native,
        Form::Request => {
            let path = ret.list.as_ref().map_or(0, |(_, list)| list.len()) as u8;
            slots >= config.slots.min(path + 1)
        }
        Form::Renewal | Form::List | Form::Nonce => {
            header::len(form, peer.entries(form, slots)) + ret.buffer_len() <= HEADER_LEN_MAX
        }
    }
}

/// The largest plain packet that fits into `mtu` with a nonce.
pub(super) const fn plain_mtu(mtu: u16, carriage: Carriage) -> u16 {
    mtu.saturating_sub((carriage.outer_len() + NONCE_LEN) as u16)
}

fn len_of(ret: Option<&Return>) -> usize {
    ret.map_or(0, Return::buffer_len)
}

/// Writes an IP packet without payload; returns its length.
fn write_empty(frame: &mut Frame<'_>, local: IpAddr, remote: IpAddr) -> Result<usize, Reason> {
    let mut bytes = [0; ipv6::HEADER_LEN];
    let len = match (local, remote) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let repr = ipv4::Repr::new(src, dst, CAPABILITY_ONLY, 0);
            repr.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..ipv4::HEADER_LEN]));
            ipv4::HEADER_LEN
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let repr = ipv6::Repr::new(src, dst, CAPABILITY_ONLY, 0);
            repr.emit(&mut ipv6::Packet::new_unchecked(&mut bytes[..]));
            ipv6::HEADER_LEN
        }
        _ => return Err(Reason::AddressInvalid),
    };
    frame.replace(&bytes[..len]).ok_or(Reason::FrameTruncated)?;
    Ok(len)
}
