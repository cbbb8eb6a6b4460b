use siphasher::sip::SipHasher24;
use sluicegate_wire::capability::FlowNonce;
use zeroize::Zeroizing;

/// SipHash-2-4 under a secret key: a pseudo-random function, and an index or a digest needs no more than one.
#[derive(Clone)]
pub(super) struct Keyed(Zeroizing<[u8; 16]>);

impl Keyed {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self(Zeroizing::new(key))
    }

    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

impl core::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keyed")
    }
}

/// The host's randomness: hashes of a counter.
#[derive(Debug)]
pub(super) struct Random {
    keyed: Keyed,
    drawn: u64,
}

impl Random {
    pub(super) fn new(seed: [u8; 16]) -> Self {
        Self { keyed: Keyed::new(seed), drawn: 0 }
    }

    /// 64 bits that nobody without the seed can guess.
    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.keyed.hash(&self.drawn.to_ne_bytes())
    }

    /// A fresh flow nonce.
    pub(super) fn nonce(&mut self) -> FlowNonce {
        FlowNonce::from_low_bits(self.draw())
    }
}
