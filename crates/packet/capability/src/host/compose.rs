//! Headers put together: what fits beside what, and what leaves in a packet of its own.

use core::net::IpAddr;

use sluicegate_wire::{
    Frame, Instant, IpProtocol, Reason, build,
    capability::{
        CAPABILITY_ONLY, Capability, CapabilityList, ClientId, HEADER_LEN_MAX, NONCE_LEN, PathId, Repr, Return, Slot,
        SlotList, request_len,
        shim::{self, Carriage},
    },
    ip, ipv6,
};

use super::{
    Peer,
    config::Config,
    header::{self, Form},
};

/// What a header is put together from.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) client_id: ClientId,
    pub(super) carriage: Carriage,
    pub(super) slots: u8,
    /// The entry that names a request or renewal, if this becomes one.
    pub(super) own: Capability,
    pub(super) ret: Option<Return>,
    /// Bytes of the packet without the header.
    pub(super) base: usize,
}

impl Peer {
    /// Puts a header of this form into the packet and records what that means.
    pub(super) fn put(
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
    pub(super) fn entries(&self, form: Form, slots: u8) -> usize {
        match form {
            Form::Request => usize::from(slots),
            _ => self.sender.regular_parts().map_or(0, |(.., list)| list.len()),
        }
    }
}

/// How many slots a request has beside this return information.
pub(super) fn slots_beside(config: &Config, ret: Option<&Return>) -> u8 {
    let left = HEADER_LEN_MAX - len_of(ret) - request_len(0);
    config.slots.min((left / (request_len(1) - request_len(0))) as u8)
}

/// Whether the return information may ride in a header of this form. Beside a request it must leave slots for a path
/// one router longer than the one back.
pub(super) fn fits_beside(
    config: &Config,
    (peer, speaks): (&Peer, bool),
    form: Form,
    slots: u8,
    ret: Option<&Return>,
) -> bool {
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

pub(super) fn len_of(ret: Option<&Return>) -> usize {
    ret.map_or(0, Return::buffer_len)
}

/// Writes an IP packet without payload; returns its length.
pub(super) fn write_empty(frame: &mut Frame<'_>, local: IpAddr, remote: IpAddr) -> Result<usize, Reason> {
    let mut bytes = [0; ipv6::HEADER_LEN];
    let len = build::write(&mut bytes, local, remote, &(CAPABILITY_ONLY, &[][..])).ok_or(Reason::AddressInvalid)?;
    frame.replace(&bytes[..len]).ok_or(Reason::FrameTruncated)?;
    Ok(len)
}
