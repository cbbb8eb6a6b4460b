//! Packet MACs: a trailer under a key that only the client, its frontend and the service's gate know. In the data mode
//! `mac` every UDP datagram between client and gate carries one, both ways; with one a client proves the address that its
//! data comes from; and with one it asks for a capability.
//!
//! Trailer, big-endian, behind the payload: `client id 4 | purpose 1 | sequence number 7 | tag 8`.
//! `tag = SipHash-2-4(K, payload ‖ client address 16 ‖ client port 2 ‖ gate port 2 ‖ purpose 1 ‖ sequence number 7 ‖
//! client id 4)`. Sequence numbers begin at 1 and are used once a direction; the receiver takes each once, within a window
//! of 64 below the highest.
//!
//! What a datagram is for is under the tag, so that none can stand for another: an answer, a proof and a request are no
//! datagrams for the service. So are the ports, and the client's address where no translator changes them
//! ([`Purpose::Datagram`]); a client that may stand behind a translator seals for address and port zero
//! ([`Purpose::Translated`]), because it cannot know what the gate sees. It is told by the acknowledgement of its proof.
//!
//! `K = HKDF-SHA256(ikm = handshake hash ‖ both split keys, info = "sluicegate mac v2" ‖ grant id ‖ direction)`, 16 bytes,
//! from the Noise handshake of the sign-in that let the client in: no key travels between the ends, and neither the
//! password nor a stored key gives it later. The client id comes from the same secret (`info = "sluicegate client id v1" ‖
//! grant id ‖ attempt`), so that it also tells the client which of its sign-ins a grant's key is from.

use core::{fmt, net::IpAddr};

use hkdf::{Hkdf, HkdfExtract};
use sha2::Sha256;
use siphasher::sip::SipHasher24;
use sluicegate_wire::{IpProtocol, Reason};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::GrantId;

/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 20;
/// Bytes of a session key.
pub const SESSION_KEY_LEN: usize = 16;
/// Datagrams below the highest sequence number that may still come, each once.
pub const WINDOW: u64 = 64;
/// Client ids that one secret gives for one grant; the second and later are for when the first is taken.
pub const CLIENT_ID_ATTEMPTS: u8 = 4;

const KEY_INFO: &[u8] = b"sluicegate mac v2";
const CONFIRM_INFO: &[u8] = b"sluicegate answer v1";
const CLIENT_ID_INFO: &[u8] = b"sluicegate client id v1";

/// Largest sequence number: it has 56 bits.
pub const SEQ_MAX: u64 = (1 << 56) - 1;

/// Which way the datagrams go that a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the service.
    ToService = 0,
    /// From the gate to the client.
    ToClient = 1,
}

/// What a sealed packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A datagram between client and service. Client and gate see the same client address and port.
    Datagram = 0,
    /// The same, where a translator may stand between: the tag covers address and port zero.
    Translated = 1,
    /// A client's proof that it sends from its address, for the gate alone; back, the gate's acknowledgement.
    Proof = 2,
    /// A request for a capability.
    Request = 3,
    /// A client's proof that a TLS connection to the gate is its own; see [`crate::tunnel`].
    Tunnel = 4,
}

impl Purpose {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Datagram,
            1 => Self::Translated,
            2 => Self::Proof,
            3 => Self::Request,
            4 => Self::Tunnel,
            _ => return None,
        })
    }
}

/// Between which ports a sealed packet goes, as its sender or receiver sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The client's address and port. [`Purpose::Translated`] and [`Purpose::Proof`] do not cover them.
    pub client: (IpAddr, u16),
    /// The gate's port; 0 where there is none.
    pub gate_port: u16,
}

impl Ends {
    /// Of a request for a capability, which may ride on any protocol or none: where it goes, and on what, in the place of
    /// the client's end. Its sender's address is for the gate to compare.
    #[must_use]
    pub const fn of_request(destination: IpAddr, upper: IpProtocol) -> Self {
        Self { client: (destination, upper.0 as u16), gate_port: 0 }
    }
}

/// A trailer whose tag was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// What the packet is for.
    pub purpose: Purpose,
    /// Its number, to be held against a [`ReplayWindow`].
    pub seq: u64,
}

/// The client id that a packet's trailer names, whatever its tag; `None` if it is too short for one.
#[must_use]
pub fn client_id_of(datagram: &[u8]) -> Option<u32> {
    let trailer = datagram.last_chunk::<TRAILER_LEN>()?;
    trailer.first_chunk().map(|id| u32::from_be_bytes(*id))
}

/// What one sign-in left in both ends' hands: the HKDF pseudo-random key of its handshake. Zeroed when dropped; `Debug`
/// shows nothing of it.
#[derive(Clone)]
pub struct SessionSecret(Zeroizing<[u8; 32]>);

impl SessionSecret {
    /// HKDF-Extract, without salt, over the hash of a finished handshake and the two keys that it was split into.
    #[must_use]
    pub fn extract(handshake_hash: &[u8], keys: (&[u8; 32], &[u8; 32])) -> Self {
        let mut extract = HkdfExtract::<Sha256>::new(None);
        [handshake_hash, keys.0, keys.1].into_iter().for_each(|part| extract.input_ikm(part));
        let (mut prk, _) = extract.finalize();
        let secret = Self(Zeroizing::new(prk.into()));
        prk.as_mut_slice().zeroize();
        secret
    }

    /// What proves that the other end said something with this hash: 32 bytes.
    #[must_use]
    pub fn confirm(&self, hash: &[u8; 32]) -> [u8; 32] {
        let mut tag = [0; 32];
        if let Ok(hkdf) = Hkdf::<Sha256>::from_prk(&*self.0) {
            let _ = hkdf.expand_multi_info(&[CONFIRM_INFO, hash], &mut tag);
        }
        tag
    }

    /// The session key of one grant and direction.
    #[must_use]
    pub fn key(&self, grant: GrantId, direction: Direction) -> SessionKey {
        let mut key = [0; SESSION_KEY_LEN];
        self.expand(KEY_INFO, grant, direction as u8, &mut key);
        let session = SessionKey(Zeroizing::new(key));
        key.zeroize();
        session
    }

    /// Both session keys of one grant.
    #[must_use]
    pub fn keys(&self, grant: GrantId) -> SessionKeys {
        SessionKeys {
            to_service: self.key(grant, Direction::ToService),
            to_client: self.key(grant, Direction::ToClient),
        }
    }

    /// The client id of one grant, never 0. `attempt` counts from 0 while ids are taken, up to [`CLIENT_ID_ATTEMPTS`].
    #[must_use]
    pub fn client_id(&self, grant: GrantId, attempt: u8) -> u32 {
        let mut id = [0; 4];
        self.expand(CLIENT_ID_INFO, grant, attempt, &mut id);
        u32::from_be_bytes(id).max(1)
    }

    /// Whether a grant with this client id has its key from this secret.
    #[must_use]
    pub fn is_of(&self, grant: GrantId, client_id: u32) -> bool {
        (0..CLIENT_ID_ATTEMPTS).any(|attempt| self.client_id(grant, attempt) == client_id)
    }

    fn expand(&self, label: &[u8], grant: GrantId, last: u8, out: &mut [u8]) {
        // A 32-byte key and at most 16 bytes out: neither step can fail.
        if let Ok(hkdf) = Hkdf::<Sha256>::from_prk(&*self.0) {
            let _ = hkdf.expand_multi_info(&[label, &grant.0, &[last]], out);
        }
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(..)")
    }
}

impl PartialEq for SessionSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl Eq for SessionSecret {}

/// The key of one grant's packet MACs. Compared in constant time, zeroed when dropped; `Debug` shows nothing of it.
#[derive(Clone)]
pub struct SessionKey(Zeroizing<[u8; SESSION_KEY_LEN]>);

impl SessionKey {
    /// As the feed delivers it.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SESSION_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes, for the feed. Secret.
    #[must_use]
    pub fn expose(&self) -> &[u8; SESSION_KEY_LEN] {
        &self.0
    }

    /// The trailer of a packet with this payload. No sequence number may be used twice under one key; its upper 8 bits
    /// are lost.
    #[must_use]
    pub fn trailer(
        &self,
        client_id: u32,
        purpose: Purpose,
        seq: u64,
        ends: &Ends,
        payload: &[u8],
    ) -> [u8; TRAILER_LEN] {
        let mut trailer = [0; TRAILER_LEN];
        let numbered = (purpose as u64) << 56 | seq & SEQ_MAX;
        trailer[..4].copy_from_slice(&client_id.to_be_bytes());
        trailer[4..12].copy_from_slice(&numbered.to_be_bytes());
        trailer[12..].copy_from_slice(&self.tag(payload, purpose, numbered, client_id, ends).to_be_bytes());
        trailer
    }

    /// Checks the trailer of `datagram` (payload and trailer) and gives what it is for and its sequence number, which the
    /// caller holds against its [`ReplayWindow`]. Costs one SipHash over the datagram.
    ///
    /// # Errors
    /// [`Reason::MacMissing`] if it is too short for a trailer or names another client id, [`Reason::MacForged`] if the
    /// tag is wrong.
    pub fn check(&self, client_id: u32, ends: &Ends, datagram: &[u8]) -> Result<Sealed, Reason> {
        let Some((payload, trailer)) = datagram.split_last_chunk::<TRAILER_LEN>() else {
            return Err(Reason::MacMissing);
        };
        let (named, rest) = trailer.split_first_chunk::<4>().ok_or(Reason::MacMissing)?;
        if u32::from_be_bytes(*named) != client_id {
            return Err(Reason::MacMissing);
        }
        let field = |at: usize| rest[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let (numbered, tag) = (field(0), field(8));
        let purpose = Purpose::from_byte(rest[0]).ok_or(Reason::MacForged)?;
        let is_right = self.tag(payload, purpose, numbered, client_id, ends).ct_eq(&tag);
        if bool::from(is_right) { Ok(Sealed { purpose, seq: numbered & SEQ_MAX }) } else { Err(Reason::MacForged) }
    }

    fn tag(&self, payload: &[u8], purpose: Purpose, numbered: u64, client_id: u32, ends: &Ends) -> u64 {
        use core::hash::Hasher as _;
        let (address, port) = match (purpose, ends.client) {
            (Purpose::Datagram | Purpose::Request, (IpAddr::V4(v4), port)) => (v4.to_ipv6_mapped().octets(), port),
            (Purpose::Datagram | Purpose::Request, (IpAddr::V6(v6), port)) => (v6.octets(), port),
            _ => ([0; 16], 0),
        };
        let mut hash = SipHasher24::new_with_key(&self.0);
        hash.write(payload);
        hash.write(&address);
        hash.write(&port.to_be_bytes());
        hash.write(&ends.gate_port.to_be_bytes());
        hash.write(&numbered.to_be_bytes());
        hash.write(&client_id.to_be_bytes());
        hash.finish()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl Eq for SessionKey {}

/// The keys of one grant: one a direction, so that nothing that one end sent can be sent back to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKeys {
    /// Of what the client sends.
    pub to_service: SessionKey,
    /// Of what the gate sends to the client.
    pub to_client: SessionKey,
}

impl SessionKeys {
    /// As the feed delivers them.
    #[must_use]
    pub fn from_bytes([to_service, to_client]: [[u8; SESSION_KEY_LEN]; 2]) -> Self {
        Self { to_service: SessionKey::from_bytes(to_service), to_client: SessionKey::from_bytes(to_client) }
    }
}

/// Which sequence numbers have come: the highest, and the 64 that end with it. Starts empty; 0 is no sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayWindow {
    highest: u64,
    /// Bit `n`: `highest - n` has come.
    seen: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { highest: 0, seen: 1 }
    }
}

impl ReplayWindow {
    /// The window after a restart: `highest` and everything below it counts as come.
    #[must_use]
    pub const fn resumed(highest: u64) -> Self {
        Self { highest, seen: u64::MAX }
    }

    /// The highest sequence number that has come, 0 at the start.
    #[must_use]
    pub const fn highest(&self) -> u64 {
        self.highest
    }

    /// Whether `seq` may come now.
    #[must_use]
    pub const fn is_fresh(&self, seq: u64) -> bool {
        if seq > self.highest {
            return true;
        }
        let age = self.highest - seq;
        age < WINDOW && self.seen >> age & 1 == 0
    }

    /// Notes that `seq` came, with the right tag. `false`, and no change, if it may not.
    pub const fn accept(&mut self, seq: u64) -> bool {
        if !self.is_fresh(seq) {
            return false;
        }
        if seq > self.highest {
            let step = seq - self.highest;
            self.seen = if step < WINDOW { self.seen << step | 1 } else { 1 };
            self.highest = seq;
        } else {
            self.seen |= 1 << (self.highest - seq);
        }
        true
    }
}

#[cfg(test)]
mod tests;
