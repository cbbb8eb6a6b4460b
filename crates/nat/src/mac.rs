//! What a grant demands of a packet beyond addresses and ports: packet MACs (checked here) or a capability (checked by
//! the caller). Keys and windows lie in a table beside the pinholes, one entry each; lines only say that there is one.

use alloc::{boxed::Box, vec};

use sluicegate_capability::{
    Grant, Mode, Protocol,
    mac::{ReplayWindow, SessionKey, TRAILER_LEN},
};
use sluicegate_wire::{
    Frame, Reason,
    checksum::{Delta, ones_complement},
    ip::Summary,
    udp,
};

use crate::{
    candidates::Names,
    packet::{Packet, Transport},
    passage::shorten,
    rules::Rules,
};

/// What the caller found a packet to prove before it came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// [`Mode::Capability`] if a capability of this client was found right, else [`Mode::Pinhole`]. Packet MACs are
    /// checked by the translator itself.
    pub mode: Mode,
    /// Whose capability: it counts only for grants with this client id.
    pub client_id: u32,
}

impl Permission {
    /// Nothing but its addresses and ports.
    pub const NONE: Self = Self { mode: Mode::Pinhole, client_id: 0 };
}

/// What speaks for a packet.
#[derive(Clone, Copy)]
pub(crate) struct Evidence<'a> {
    pub(crate) permission: Permission,
    /// The IP packet.
    pub(crate) bytes: &'a [u8],
}

/// What one grant demands, and what it takes to check it.
#[derive(Debug)]
pub(crate) struct Seal {
    least: Mode,
    client_id: u32,
    /// Missing after a restart until the feed brings it again.
    key: Option<SessionKey>,
    window: ReplayWindow,
}

impl Seal {
    pub(crate) const fn has_key(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) const fn is_of(&self, client_id: u32) -> bool {
        self.client_id == client_id
    }

    pub(crate) const fn highest(&self) -> u64 {
        self.window.highest()
    }

    /// Checks tag, then sequence number; the window moves only for a right tag.
    fn open(&mut self, datagram: &[u8]) -> Result<(), Reason> {
        let key = self.key.as_ref().ok_or(Reason::ModeTooWeak)?;
        let seq = key.check(self.client_id, datagram)?;
        if self.window.accept(seq) { Ok(()) } else { Err(Reason::MacReplayed) }
    }

    /// Whether the datagram ends as one of this client does, whatever the tag.
    fn names_client(&self, datagram: &[u8]) -> bool {
        let trailer = datagram.last_chunk::<TRAILER_LEN>();
        trailer.is_some_and(|trailer| trailer.starts_with(&self.client_id.to_be_bytes()))
    }
}

/// The seals of all pinholes whose grant demands more than addresses and ports.
#[derive(Debug)]
pub(crate) struct Seals {
    by_slot: Box<[Option<Seal>]>,
    used: u32,
}

impl Seals {
    pub(crate) fn new(pinholes_max: u32) -> Self {
        Self { by_slot: (0..pinholes_max).map(|_| None).collect::<vec::Vec<_>>().into_boxed_slice(), used: 0 }
    }

    pub(crate) fn used_and_max(&self) -> (u32, u32) {
        (self.used, self.by_slot.len() as u32)
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&Seal> {
        self.by_slot.get(slot as usize)?.as_ref()
    }

    /// Notes what a grant that was installed or renewed demands. The same client id is the same key: sequence numbers go
    /// on, and a key that does not come again is kept. Another client id is another key with numbers of its own.
    pub(crate) fn put(&mut self, slot: u32, grant: &Grant, key: Option<SessionKey>) {
        let Some(place) = self.by_slot.get_mut(slot as usize) else { return };
        let known = place.take();
        self.used -= u32::from(known.is_some());
        if !demands_proof(grant) {
            return;
        }
        self.used += 1;
        let (least, client_id) = (grant.least_mode, grant.client_id);
        *place = Some(match known.filter(|seal| seal.client_id == client_id) {
            Some(seal) => Seal { least, key: key.or(seal.key), ..seal },
            None => Seal { least, client_id, key, window: ReplayWindow::default() },
        });
    }

    /// The numbers up to `highest` have come, before a restart.
    pub(crate) fn resume(&mut self, slot: u32, highest: u64) {
        if let Some(Some(seal)) = self.by_slot.get_mut(slot as usize) {
            seal.window = ReplayWindow::resumed(highest);
        }
    }

    /// The grant was revoked and will not come back: its key is zeroed.
    pub(crate) fn forget_key(&mut self, slot: u32) {
        if let Some(Some(seal)) = self.by_slot.get_mut(slot as usize) {
            seal.key = None;
        }
    }

    /// The pinhole is forgotten.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(place) = self.by_slot.get_mut(slot as usize) {
            self.used -= u32::from(place.take().is_some());
        }
    }
}

/// Whether addresses and ports are not enough for this grant.
pub(crate) const fn demands_proof(grant: &Grant) -> bool {
    !matches!(grant.least_mode, Mode::Pinhole)
}

/// Why a packet under this pinhole cannot prove enough, whatever it carries, unless it carries a capability.
pub(crate) fn unprovable(rules: &Rules, slot: u32, protocol: u8) -> Option<Reason> {
    let seal = rules.seals.at(slot)?;
    let is_checkable = seal.least == Mode::Mac && protocol == Protocol::UDP && seal.has_key();
    (!is_checkable).then_some(Reason::ModeTooWeak)
}

/// Holds a packet from outside against what its pinhole demands. `true`: its last 20 bytes are a trailer that the service
/// must not see.
///
/// # Errors
/// [`Reason::ModeTooWeak`], [`Reason::MacMissing`] (so every fragment: a MAC covers a whole datagram),
/// [`Reason::MacForged`], [`Reason::MacReplayed`]; not in observe mode.
pub(crate) fn prove(rules: &mut Rules, slot: u32, packet: &Packet, evidence: &Evidence<'_>) -> Result<bool, Reason> {
    let Some(Some(seal)) = rules.seals.by_slot.get_mut(slot as usize) else { return Err(Reason::ModeTooWeak) };
    let Permission { mode, client_id } = evidence.permission;
    let is_proved = mode >= seal.least && client_id == seal.client_id;
    if seal.least != Mode::Mac || packet.transport != Transport::Udp {
        return if is_proved { Ok(false) } else { rules.waive(Reason::ModeTooWeak).map(|()| false) };
    }
    let datagram = match packet.ip.fragment {
        Some(_) => &[],
        None => payload(packet.ip.transport(evidence.bytes)),
    };
    match seal.open(datagram) {
        Ok(()) => Ok(true),
        // A datagram with a capability needs no trailer, but one that has come before stays refused.
        Err(reason) if is_proved && reason != Reason::MacReplayed => {
            Ok(reason == Reason::ModeTooWeak && seal.names_client(datagram))
        }
        Err(reason) => {
            let is_sealed = seal.names_client(datagram);
            rules.waive(reason).map(|()| is_sealed)
        }
    }
}

/// The client ids that a packet from outside names: by a capability that was found right, and by a trailer, which is yet
/// to be checked.
pub(crate) fn names(packet: &Packet, evidence: &Evidence<'_>) -> Names {
    let Permission { mode, client_id } = evidence.permission;
    let by_capability = (mode > Mode::Pinhole).then_some(client_id);
    let is_whole = packet.transport == Transport::Udp && packet.ip.fragment.is_none();
    let datagram = if is_whole { payload(packet.ip.transport(evidence.bytes)) } else { &[] };
    let trailer = datagram.last_chunk::<TRAILER_LEN>().and_then(|trailer| trailer.first_chunk());
    Names([by_capability, trailer.map(|id| u32::from_be_bytes(*id))])
}

fn payload(transport: &[u8]) -> &[u8] {
    let len = udp::Packet::new_unchecked(transport).total_len().min(transport.len());
    transport.get(udp::HEADER_LEN..len).unwrap_or_default()
}

/// Cuts the trailer off a whole UDP datagram and puts lengths and checksums right, by what changed: a payload that was
/// damaged on the way stays recognisable.
pub(crate) fn strip(ip: &mut Summary, frame: &mut Frame<'_>) {
    let bytes = frame.bytes_mut();
    let mut datagram = udp::Packet::new_unchecked(ip.transport_mut(bytes));
    let old_len = datagram.total_len();
    let new_len = old_len.saturating_sub(TRAILER_LEN);
    let trailer =
        ones_complement(datagram.payload().last_chunk::<TRAILER_LEN>().map_or(&[], <[u8; TRAILER_LEN]>::as_slice));
    // Behind an odd number of bytes the trailer's halves of words are swapped (RFC 1071 section 2 (B)).
    let trailer = if new_len.is_multiple_of(2) { trailer } else { trailer.swap_bytes() };
    // The length stands in the header and in the pseudo-header.
    let (old, new) = (old_len as u16, new_len as u16);
    let delta = Delta::NONE.u16(old, new).u16(old, new).u16(trailer, 0);
    datagram.set_total_len(new);
    ip.adjust_transport_checksum(bytes, delta);
    shorten(ip, frame, ip.transport_offset + new_len);
}
