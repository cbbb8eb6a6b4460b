//! What a capability router does without state (TVA III-D, III-E): it mints pre-capabilities and checks capabilities.
//!
//! A pre-capability is the router's time and a keyed hash over that time, both addresses and the client id. The
//! destination hashes it once more with N and T, which makes it a capability. The router repeats both hashes to check
//! one. Its secret changes every [`PERIOD_SECS`] seconds; the high bit of the 8-bit time in a capability tells whether
//! the current or the previous secret made it, so one trial decides. Each period's seed is a hash of the one before, which
//! is forgotten: whoever steals one learns no earlier secret.

use core::{fmt, net::IpAddr};

use hkdf::Hkdf;
use sha2::Sha256;
use sluicegate_wire::{
    Reason,
    capability::{Algorithm, Capability, ClientId, Limits, PathId},
};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

mod aes128;
mod message;
mod siphash;

use self::{aes128::Compression, message::Message};

/// Seconds for which one secret mints: half a rollover of the 8-bit clock.
pub const PERIOD_SECS: u64 = 128;

const SECRET_LABEL: &[u8] = b"sluicegate router secret v2";
const NEXT_LABEL: &[u8] = b"sluicegate router seed v2";

/// What one period's secret is made from, and the seeds of all later periods, but of none before. Erased from memory when
/// dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Seed(pub [u8; 32]);

/// A router's current and previous secret. Erased from memory when dropped.
pub struct Secrets {
    /// Of the period after the current one.
    next: Seed,
    seconds: u64,
    /// The secrets of even and odd periods: a capability's high time bit is the index.
    periods: [Secret; 2],
    compression: Compression,
}

/// The keys of one period.
struct Secret {
    siphash: siphash::Key,
    aes: aes128::Prf,
}

/// What a valid capability is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// The last second, by the router's clock as given to [`Secrets::turn`], in which the capability may be used.
    pub expires: u64,
}

impl Secrets {
    /// The secrets of a router whose clock shows `seconds`, made from the seed of the period before that.
    #[must_use]
    pub fn new(seed: &Seed, seconds: u64) -> Self {
        let (previous, current) = (Secret::of(seed), seed.next());
        let (next, current) = (current.next(), Secret::of(&current));
        let is_even = (seconds / PERIOD_SECS).is_multiple_of(2);
        let periods = if is_even { [current, previous] } else { [previous, current] };
        Self { next, seconds, periods, compression: Compression::new() }
    }

    /// Sets the router's clock, in seconds. Only its steps matter, so it may start anywhere, but it never goes back: no
    /// seed leads to the one before it. Costs a few nanoseconds, and some microseconds for each period that has begun.
    pub fn turn(&mut self, seconds: u64) {
        let (before, period) = (self.seconds / PERIOD_SECS, seconds / PERIOD_SECS);
        self.seconds = self.seconds.max(seconds);
        for begun in before + 1..=period {
            *self.slot_of(begun) = Secret::of(&self.next);
            self.next = self.next.next();
        }
    }

    fn slot_of(&mut self, period: u64) -> &mut Secret {
        let [even, odd] = &mut self.periods;
        if period & 1 == 0 { even } else { odd }
    }

    /// The secret that made, or makes, capabilities with this time.
    #[inline]
    fn secret(&self, timestamp: u8) -> &Secret {
        let [even, odd] = &self.periods;
        if timestamp >> 7 == 0 { even } else { odd }
    }

    /// The router's clock as last set, in seconds.
    #[inline]
    #[must_use]
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }

    /// A fresh pre-capability for packets from `src` to `dst` of this client.
    #[inline]
    #[must_use]
    pub fn mint(&self, algorithm: Algorithm, src: IpAddr, dst: IpAddr, client: ClientId) -> Capability {
        self.pre_capability(algorithm, src, dst, client, self.seconds as u8)
    }

    #[inline]
    fn pre_capability(
        &self,
        algorithm: Algorithm,
        src: IpAddr,
        dst: IpAddr,
        client: ClientId,
        timestamp: u8,
    ) -> Capability {
        let (secret, message) = (self.secret(timestamp), Message::new(src, dst, client, timestamp));
        let hash = match algorithm {
            Algorithm::SipHash => secret.siphash.hash(&message),
            Algorithm::Aes => secret.aes.hash(&message),
        };
        Capability::new(timestamp, hash)
    }

    /// Checks a capability: one trial of both hashes, in a time that does not depend on the capability's hash.
    ///
    /// # Errors
    /// [`Reason::CapabilityForged`] if this router, with its current or previous secret, did not mint it for exactly
    /// this source, destination, client id, N and T; [`Reason::CapabilityExpired`] if it did, more than T seconds ago.
    #[inline]
    pub fn check(
        &self,
        algorithm: Algorithm,
        src: IpAddr,
        dst: IpAddr,
        client: ClientId,
        limits: Limits,
        cap: &Capability,
    ) -> Result<Checked, Reason> {
        let pre = self.pre_capability(algorithm, src, dst, client, cap.timestamp());
        let expected = match algorithm {
            Algorithm::SipHash => siphash::seal(pre, limits),
            Algorithm::Aes => self.compression.seal(pre, limits),
        };
        if !bool::from(expected.0.ct_eq(&cap.0)) {
            return Err(Reason::CapabilityForged);
        }
        let age_secs = (self.seconds as u8).wrapping_sub(cap.timestamp());
        if age_secs > limits.seconds() {
            return Err(Reason::CapabilityExpired);
        }
        Ok(Checked { expires: self.seconds.saturating_add(u64::from(limits.seconds() - age_secs)) })
    }
}

/// Makes a capability from a router's pre-capability: the second hash, with N and T. What destinations do.
#[must_use]
pub fn seal(algorithm: Algorithm, pre: Capability, limits: Limits) -> Capability {
    match algorithm {
        Algorithm::SipHash => siphash::seal(pre, limits),
        Algorithm::Aes => Compression::new().seal(pre, limits),
    }
}

impl Seed {
    /// The seed of the period after this one's.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut next = Self([0; 32]);
        self.expand(NEXT_LABEL, &mut next.0);
        next
    }

    fn expand(&self, label: &[u8], bytes: &mut [u8]) {
        // 32 bytes are one block of SHA-256: expansion to them cannot fail.
        let expanded = Hkdf::<Sha256>::new(None, &self.0).expand(label, bytes);
        debug_assert!(expanded.is_ok());
    }
}

/// Shows no key.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Secret {
    fn of(seed: &Seed) -> Self {
        let mut keys = [[0; 16]; 2];
        seed.expand(SECRET_LABEL, keys.as_flattened_mut());
        let [siphash, aes] = &keys;
        let secret = Self { siphash: siphash::Key::new(siphash), aes: aes128::Prf::new(aes) };
        keys.zeroize();
        secret
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

/// Makes path identifiers: 16 bits that name the neighbour a request came from (TVA III-B). They look random to whoever
/// does not know the key, so that nobody can aim at another's.
pub struct PathTagger {
    key: siphash::Key,
}

impl PathTagger {
    /// The tagger with this secret key.
    #[must_use]
    pub fn new(mut key: [u8; 16]) -> Self {
        let tagger = Self { key: siphash::Key::new(&key) };
        key.zeroize();
        tagger
    }

    /// The identifier of an ingress: an interface's number, or the link address of the neighbour. Never
    /// [`PathId::NONE`].
    #[inline]
    #[must_use]
    pub fn tag(&self, ingress: u64) -> PathId {
        let hash = self.key.hash_u64(ingress);
        PathId((hash % u64::from(u16::MAX)) as u16 + 1)
    }
}

impl fmt::Debug for PathTagger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathTagger(..)")
    }
}

#[cfg(test)]
mod tests;
