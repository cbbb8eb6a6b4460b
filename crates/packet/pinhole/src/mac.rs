//! What a grant demands of a packet beyond addresses and ports: packet MACs (checked and made here), a capability (checked
//! by the caller), or that its client has proved its address. Keys and windows lie in a table beside the pinholes, one
//! entry each; lines only say that there is one.

use alloc::{boxed::Box, vec};

use sluicegate_grant::{
    DataMode, Grant, Protocol,
    mac::{Ends, Purpose, ReplayWindow, SEQ_MAX, Sealed, SessionKeys, TRAILER_LEN, client_id_of},
};
use sluicegate_wire::{IpProtocol, Reason, UnixTime, ip::Summary, udp};

use crate::{candidates::Names, protocol::Tuple, relayed::Relays};

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
pub struct Evidence<'a> {
    /// What came with it, and was checked and taken off before.
    pub permission: Permission,
    /// What is known of it.
    pub ip: &'a Summary,
    /// The IP packet.
    pub bytes: &'a [u8],
}

impl<'a> Evidence<'a> {
    /// Whether packet MACs are for it.
    #[inline]
    fn is_udp(&self) -> bool {
        self.ip.protocol == IpProtocol::UDP
    }

    /// The payload of a UDP datagram that is in one piece.
    pub fn datagram(&self) -> Option<&'a [u8]> {
        let is_whole = self.is_udp() && self.ip.fragment.is_none();
        is_whole.then(|| payload(self.ip.transport(self.bytes)))
    }
}

/// What one grant demands, and what it takes to check it.
#[derive(Debug)]
pub struct Seal {
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
pub struct Proof {
    /// Its last 20 bytes are a trailer that the service must not see.
    pub strip: bool,
    /// Its tag was right and its number new: it is from the grant's client, wherever it comes from.
    pub sealed: bool,
}

impl Proof {
    /// Nothing.
    pub const NONE: Self = Self { strip: false, sealed: false };
}

impl Seal {
    /// Whether its key is here.
    pub const fn has_key(&self) -> bool {
        self.keys.is_some()
    }

    /// Whose it is.
    #[inline]
    pub const fn client_id(&self) -> u32 {
        self.client_id
    }

    /// The highest number that has come.
    pub const fn highest(&self) -> u64 {
        self.window.highest()
    }

    /// Checks tag, then purpose and sequence number; the window moves only for a right tag. `rising`: the number must be
    /// higher than all that came, because the packet changes something.
    pub fn open(
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
    pub fn seal(&mut self, purpose: Purpose, ends: &Ends, payload: &[u8]) -> Option<[u8; TRAILER_LEN]> {
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
pub struct Seals {
    by_slot: Box<[Option<Seal>]>,
    used: u32,
}

impl Seals {
    /// A place for each slot.
    pub fn new(pinholes_max: u32) -> Self {
        Self { by_slot: (0..pinholes_max).map(|_| None).collect::<vec::Vec<_>>().into_boxed_slice(), used: 0 }
    }

    /// Grants that demand more than addresses and ports, and the most there can be.
    #[inline]
    pub fn used_and_max(&self) -> (u32, u32) {
        (self.used, self.by_slot.len() as u32)
    }

    /// As [`Self::at`], to check and seal.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut Seal> {
        self.by_slot.get_mut(slot as usize)?.as_mut()
    }

    /// What the grant of a pinhole demands, if that is more than addresses and ports.
    #[inline]
    pub fn at(&self, slot: u32) -> Option<&Seal> {
        self.by_slot.get(slot as usize)?.as_ref()
    }

    /// Notes what a grant that was installed or renewed demands. The same client id is the same keys: sequence numbers go
    /// on, and keys that do not come again are kept. Another client id is other keys with numbers of their own.
    ///
    /// The numbers to the client begin with the time, so that they rise over a restart, of which nothing else remains:
    /// 2^24 numbers a second are more than a link carries.
    pub fn put(&mut self, slot: u32, unix: UnixTime, grant: &Grant, keys: Option<SessionKeys>) {
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
    pub fn resume(&mut self, slot: u32, highest: u64) {
        if let Some(seal) = self.at_mut(slot) {
            seal.window = ReplayWindow::resumed(highest);
        }
    }

    /// The grant was revoked and will not come back: its key is zeroed.
    pub fn forget_key(&mut self, slot: u32) {
        if let Some(seal) = self.at_mut(slot) {
            seal.keys = None;
        }
    }

    /// The pinhole is forgotten.
    pub fn remove(&mut self, slot: u32) {
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

/// The MACs of packets under pinholes: those of grants' clients, and those of the frontends behind standing pinholes.
#[derive(Debug)]
pub struct Macs {
    /// What the grants of pinholes demand, by slot.
    pub seals: Seals,
    /// The frontends of standing pinholes.
    pub relays: Relays,
    /// Whether the packet that was judged last was a frontend's, and proved it.
    pub signalling: bool,
}

/// Why a packet does not prove enough, and whether its end is a trailer all the same.
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    pub(crate) strip: bool,
}

impl Macs {
    pub(crate) fn new(pinholes_max: u32) -> Self {
        Self { seals: Seals::new(pinholes_max), relays: Relays::default(), signalling: false }
    }

    /// Why a packet under this pinhole cannot prove enough, whatever it carries, unless it carries a capability.
    #[must_use]
    pub fn unprovable(&self, slot: u32, protocol: u8) -> Option<Reason> {
        if self.relays.is_mute(slot) {
            return Some(Reason::ModeTooWeak);
        }
        let seal = self.seals.at(slot).filter(|seal| seal.least != DataMode::Pinhole)?;
        let is_checkable = seal.least == DataMode::Mac && protocol == Protocol::UDP && seal.has_key();
        (!is_checkable).then_some(Reason::ModeTooWeak)
    }

    /// Whether what the service sends under this pinhole gets a trailer.
    #[must_use]
    pub fn seals_answers(&self, slot: u32) -> bool {
        self.relays.holds(slot) || self.seals.at(slot).is_some_and(|seal| seal.least == DataMode::Mac)
    }

    /// Holds a packet from outside against what its pinhole demands, see [`crate::Pinholes::prove`]. `moves`: it comes from
    /// another address than the proved one. `None` if nothing is known of what it has to prove.
    pub(crate) fn check(
        &mut self,
        slot: u32,
        tuple: &Tuple,
        evidence: &Evidence<'_>,
        moves: impl FnOnce() -> bool,
    ) -> Option<Result<Proof, Refused>> {
        let ends = Ends { client: tuple.src, gate_port: tuple.dst.1 };
        if self.relays.holds(slot) {
            let opened = self.relays.open(slot, &ends, evidence.datagram().unwrap_or_default());
            self.signalling |= opened.is_ok();
            let proof = Proof { strip: true, sealed: true };
            return Some(opened.map(|()| proof).map_err(|reason| Refused { reason, strip: false }));
        }
        let seal = self.seals.at_mut(slot)?;
        let Permission { mode, client_id } = evidence.permission;
        let is_proved = mode >= seal.least && client_id == seal.client_id;
        if seal.least != DataMode::Mac || !evidence.is_udp() {
            let refused = Refused { reason: Reason::ModeTooWeak, strip: false };
            return Some(if is_proved { Ok(Proof::NONE) } else { Err(refused) });
        }
        let datagram = evidence.datagram().unwrap_or_default();
        let is_datagram = |purpose| matches!(purpose, Purpose::Datagram | Purpose::Translated);
        Some(match seal.open(&ends, datagram, is_datagram, moves()) {
            Ok(_) => Ok(Proof { strip: true, sealed: true }),
            // A datagram with a capability needs no trailer, but one that has come before stays refused.
            Err(reason) if is_proved && reason != Reason::MacReplayed => {
                Ok(Proof { strip: reason == Reason::ModeTooWeak && seal.names_client(datagram), sealed: false })
            }
            Err(reason) => Err(Refused { reason, strip: seal.names_client(datagram) }),
        })
    }

    /// The trailer of a whole UDP datagram, as it leaves, for the client of `slot`; `None` without the key.
    pub fn trailer(&mut self, slot: u32, ends: &Ends, payload: &[u8]) -> Option<[u8; TRAILER_LEN]> {
        match self.seals.at_mut(slot) {
            Some(sealer) => sealer.seal(sealer.answers_as(), ends, payload),
            None => self.relays.seal(slot, ends, payload),
        }
    }
}

/// The client ids that a packet from outside names: by a capability that was found right, and by a trailer, which is yet
/// to be checked.
#[must_use]
pub fn names(evidence: &Evidence<'_>) -> Names {
    let Permission { mode, client_id } = evidence.permission;
    let by_capability = (mode > DataMode::Pinhole).then_some(client_id);
    Names([by_capability, evidence.datagram().and_then(client_id_of)])
}

/// The payload of a UDP datagram.
#[must_use]
pub fn payload(transport: &[u8]) -> &[u8] {
    let len = udp::Packet::new_unchecked(transport).total_len().min(transport.len());
    transport.get(udp::HEADER_LEN..len).unwrap_or_default()
}
