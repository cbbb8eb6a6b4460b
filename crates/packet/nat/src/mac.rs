//! What a grant demands of a packet beyond addresses and ports: packet MACs (checked and made here), a capability (checked
//! by the caller), or that its client has proved its address. Keys and windows lie in a table beside the pinholes, one
//! entry each; lines only say that there is one.

use alloc::{boxed::Box, vec};

use sluicegate_grant::{
    DataMode, Grant, Protocol,
    mac::{Ends, Purpose, ReplayWindow, SEQ_MAX, Sealed, SessionKeys, TRAILER_LEN, client_id_of},
};
use sluicegate_wire::{
    Frame, Instant, Reason, UnixTime,
    checksum::{Delta, ones_complement},
    ip::Summary,
    udp,
};

use crate::{candidates::Names, pinhole::contains, rewrite::set_len, rules::Rules, transport::Packet};

/// What the caller found a packet to prove before it came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// [`DataMode::Capability`] if a capability of this client was found right, else [`DataMode::Pinhole`]. Packet MACs are
    /// checked by the translator itself.
    pub mode: DataMode,
    /// Whose capability: it counts only for grants with this client id.
    pub client_id: u32,
}

impl Permission {
    /// Nothing but its addresses and ports.
    pub const NONE: Self = Self { mode: DataMode::Pinhole, client_id: 0 };
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
    least: DataMode,
    client_id: u32,
    /// Missing after a restart until the feed brings them again.
    keys: Option<SessionKeys>,
    window: ReplayWindow,
    /// The number of the next packet to the client.
    next: u64,
    /// Whether the client's last datagram was sealed for behind a translator: so are those to it.
    translated: bool,
}

/// What a packet from outside has proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Its last 20 bytes are a trailer that the service must not see.
    pub(crate) strip: bool,
    /// Its tag was right and its number new: it is from the grant's client, wherever it comes from.
    pub(crate) sealed: bool,
}

impl Proof {
    pub(crate) const NONE: Self = Self { strip: false, sealed: false };
}

impl Seal {
    pub(crate) const fn has_key(&self) -> bool {
        self.keys.is_some()
    }

    pub(crate) const fn client_id(&self) -> u32 {
        self.client_id
    }

    pub(crate) const fn is_of(&self, client_id: u32) -> bool {
        self.client_id == client_id
    }

    pub(crate) const fn highest(&self) -> u64 {
        self.window.highest()
    }

    /// Checks tag, then purpose and sequence number; the window moves only for a right tag. `rising`: the number must be
    /// higher than all that came, because the packet changes something.
    pub(crate) fn open(
        &mut self,
        ends: &Ends,
        datagram: &[u8],
        fits: impl FnOnce(Purpose) -> bool,
        rising: bool,
    ) -> Result<Sealed, Reason> {
        let keys = self.keys.as_ref().ok_or(Reason::ModeTooWeak)?;
        let sealed = keys.to_service.check(self.client_id, ends, datagram)?;
        if !fits(sealed.purpose) {
            return Err(Reason::MacForged);
        }
        let is_new = !rising || sealed.seq > self.window.highest();
        if !is_new || !self.window.accept(sealed.seq) {
            return Err(Reason::MacReplayed);
        }
        self.translated = sealed.purpose != Purpose::Datagram;
        Ok(sealed)
    }

    /// What a datagram to the client is sealed as.
    const fn answers_as(&self) -> Purpose {
        if self.translated { Purpose::Translated } else { Purpose::Datagram }
    }

    /// The trailer of the next packet to the client; `None` without a key.
    pub(crate) fn seal(&mut self, purpose: Purpose, ends: &Ends, payload: &[u8]) -> Option<[u8; TRAILER_LEN]> {
        let keys = self.keys.as_ref()?;
        let trailer = keys.to_client.trailer(self.client_id, purpose, self.next, ends, payload);
        self.next = (self.next + 1).min(SEQ_MAX);
        Some(trailer)
    }

    /// Whether the datagram ends as one of this client does, whatever the tag.
    fn names_client(&self, datagram: &[u8]) -> bool {
        client_id_of(datagram) == Some(self.client_id)
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
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut Seal> {
        self.by_slot.get_mut(slot as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&Seal> {
        self.by_slot.get(slot as usize)?.as_ref()
    }

    /// Notes what a grant that was installed or renewed demands. The same client id is the same keys: sequence numbers go
    /// on, and keys that do not come again are kept. Another client id is other keys with numbers of their own.
    ///
    /// The numbers to the client begin with the time, so that they rise over a restart, of which nothing else remains:
    /// 2^24 numbers a second are more than a link carries.
    pub(crate) fn put(&mut self, slot: u32, unix: UnixTime, grant: &Grant, keys: Option<SessionKeys>) {
        let Some(place) = self.by_slot.get_mut(slot as usize) else { return };
        let known = place.take();
        self.used -= u32::from(known.is_some());
        if !has_seal(grant) {
            return;
        }
        self.used += 1;
        let (least, client_id) = (grant.least_mode, grant.client_id);
        *place = Some(match known.filter(|seal| seal.client_id == client_id) {
            Some(seal) => Seal { least, keys: keys.or(seal.keys), ..seal },
            None => {
                let next = (unix.0 << 24) & SEQ_MAX;
                Seal { least, client_id, keys, window: ReplayWindow::default(), next, translated: true }
            }
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
            seal.keys = None;
        }
    }

    /// The pinhole is forgotten.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(place) = self.by_slot.get_mut(slot as usize) {
            self.used -= u32::from(place.take().is_some());
        }
    }
}

/// Whether addresses and ports are not enough for a packet under this grant.
pub(crate) const fn demands_proof(grant: &Grant) -> bool {
    !matches!(grant.least_mode, DataMode::Pinhole)
}

/// Whether anything about this grant is proved under a key.
pub(crate) const fn has_seal(grant: &Grant) -> bool {
    demands_proof(grant) || grant.proves_address()
}

/// Why a packet under this pinhole cannot prove enough, whatever it carries, unless it carries a capability.
pub(crate) fn unprovable(rules: &Rules, slot: u32, protocol: u8) -> Option<Reason> {
    if rules.relays.is_mute(slot) {
        return Some(Reason::ModeTooWeak);
    }
    let seal = rules.seals.at(slot).filter(|seal| seal.least != DataMode::Pinhole)?;
    let is_checkable = seal.least == DataMode::Mac && protocol == Protocol::UDP && seal.has_key();
    (!is_checkable).then_some(Reason::ModeTooWeak)
}

/// Whether what the service sends under this pinhole gets a trailer.
pub(crate) fn seals_answers(rules: &Rules, slot: u32) -> bool {
    rules.relays.holds(slot) || rules.seals.at(slot).is_some_and(|seal| seal.least == DataMode::Mac)
}

/// The open pinhole whose client a whole UDP datagram names in its trailer, and that listens where it goes. Its client's
/// address is not asked: the datagram may be what proves it. Costs one hash and a look at those with this client id.
pub(crate) fn claimed(rules: &Rules, now: Instant, packet: &Packet, bytes: &[u8]) -> Option<u32> {
    let datagram = whole(packet, bytes)?;
    let client_id = client_id_of(datagram)?;
    let (address, port) = packet.tuple.dst;
    let fits = |slot: &u32| {
        let seal = rules.seals.at(*slot).is_some_and(|seal| seal.client_id == client_id);
        seal && rules.pinholes.at(*slot).is_some_and(|pinhole| {
            pinhole.is_open(now) && pinhole.gate.address == address && contains(pinhole.gate.ports, port)
        })
    };
    rules.pinholes.of_client_id(client_id).find(fits)
}

/// Holds a packet from outside against what its pinhole demands. Under a grant whose client has to prove its address, one
/// from another address than the proved one passes only with a number above all that came: a copy moves nothing.
///
/// # Errors
/// [`Reason::ModeTooWeak`], [`Reason::MacMissing`] (so every fragment: a MAC covers a whole datagram),
/// [`Reason::MacForged`], [`Reason::MacReplayed`]; not in observe mode.
pub(crate) fn prove(rules: &mut Rules, slot: u32, packet: &Packet, evidence: &Evidence<'_>) -> Result<Proof, Reason> {
    if rules.relays.holds(slot) {
        return prove_relayed(rules, slot, packet, evidence);
    }
    let moves = rules.pinholes.at(slot).is_none_or(|pinhole| pinhole.client != Some(packet.tuple.src.0));
    let Some(seal) = rules.seals.at_mut(slot) else { return Err(Reason::ModeTooWeak) };
    let Permission { mode, client_id } = evidence.permission;
    let is_proved = mode >= seal.least && client_id == seal.client_id;
    if seal.least != DataMode::Mac || !packet.is_udp() {
        return if is_proved { Ok(Proof::NONE) } else { rules.waive(Reason::ModeTooWeak).map(|()| Proof::NONE) };
    }
    let datagram = whole(packet, evidence.bytes).unwrap_or_default();
    let ends = Ends { client: packet.tuple.src, gate_port: packet.tuple.dst.1 };
    let is_datagram = |purpose| matches!(purpose, Purpose::Datagram | Purpose::Translated);
    match seal.open(&ends, datagram, is_datagram, moves) {
        Ok(_) => Ok(Proof { strip: true, sealed: true }),
        // A datagram with a capability needs no trailer, but one that has come before stays refused.
        Err(reason) if is_proved && reason != Reason::MacReplayed => {
            Ok(Proof { strip: reason == Reason::ModeTooWeak && seal.names_client(datagram), sealed: false })
        }
        Err(reason) => {
            let strip = seal.names_client(datagram);
            rules.waive(reason).map(|()| Proof { strip, sealed: false })
        }
    }
}

/// Holds a packet in a frontend's name against that frontend's key.
fn prove_relayed(rules: &mut Rules, slot: u32, packet: &Packet, evidence: &Evidence<'_>) -> Result<Proof, Reason> {
    let datagram = whole(packet, evidence.bytes).unwrap_or_default();
    let ends = Ends { client: packet.tuple.src, gate_port: packet.tuple.dst.1 };
    match rules.relays.open(slot, &ends, datagram) {
        Ok(()) => {
            rules.signalling = true;
            Ok(Proof { strip: true, sealed: true })
        }
        Err(reason) => rules.waive(reason).map(|()| Proof::NONE),
    }
}

/// The client ids that a packet from outside names: by a capability that was found right, and by a trailer, which is yet
/// to be checked.
pub(crate) fn names(packet: &Packet, evidence: &Evidence<'_>) -> Names {
    let Permission { mode, client_id } = evidence.permission;
    let by_capability = (mode > DataMode::Pinhole).then_some(client_id);
    Names([by_capability, whole(packet, evidence.bytes).and_then(client_id_of)])
}

/// The payload of a UDP datagram that is in one piece.
fn whole<'a>(packet: &Packet, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let is_whole = packet.is_udp() && packet.ip.fragment.is_none();
    is_whole.then(|| payload(packet.ip.transport(bytes)))
}

pub(crate) fn payload(transport: &[u8]) -> &[u8] {
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
    set_len(ip, frame, ip.transport_offset + new_len);
}

/// Puts a trailer behind a whole UDP datagram for the client of `slot`, whose addresses and ports are those of the outside
/// by now. Lengths and checksums change by what is added.
///
/// # Errors
/// [`Reason::ModeTooWeak`] without the key, [`Reason::PacketTooBig`] without room.
pub(crate) fn seal(rules: &mut Rules, slot: u32, ip: &mut Summary, frame: &mut Frame<'_>) -> Result<(), Reason> {
    let datagram = udp::Packet::new_unchecked(ip.transport(frame.bytes()));
    let old_len = datagram.total_len();
    let ends = Ends { client: (ip.dst, datagram.dst_port()), gate_port: datagram.src_port() };
    let text = payload(ip.transport(frame.bytes()));
    let trailer = match rules.seals.at_mut(slot) {
        Some(sealer) => sealer.seal(sealer.answers_as(), &ends, text),
        None => rules.relays.seal(slot, &ends, text),
    };
    let trailer = trailer.ok_or(Reason::ModeTooWeak)?;
    let at = ip.transport_offset + old_len;
    frame.truncate(at);
    let bytes = frame.extend_back(TRAILER_LEN).ok_or(Reason::PacketTooBig)?;
    if let Some(place) = bytes.get_mut(at..) {
        place.copy_from_slice(&trailer);
    }
    let (old, new) = (old_len as u16, (old_len + TRAILER_LEN) as u16);
    let added = ones_complement(&trailer);
    // Behind an odd number of bytes the trailer's halves of words are swapped (RFC 1071 section 2 (B)).
    let added = if old_len.is_multiple_of(2) { added } else { added.swap_bytes() };
    udp::Packet::new_unchecked(ip.transport_mut(bytes)).set_total_len(new);
    ip.adjust_transport_checksum(bytes, Delta::NONE.u16(old, new).u16(old, new).u16(0, added));
    set_len(ip, frame, at + TRAILER_LEN);
    Ok(())
}
