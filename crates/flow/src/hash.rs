use siphasher::sip::SipHasher13;

/// The keyed hash behind every index: SipHash-1-3, so that no sender can choose where its packets land.
///
/// An index needs speed and unpredictability, not a tag that convinces anyone; tags use SipHash-2-4 with other keys.
#[derive(Clone)]
pub struct Hasher(SipHasher13);

impl Hasher {
    /// A hasher under a secret key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    /// The hash of `bytes`.
    #[inline]
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        self.0.hash(bytes)
    }
}

impl core::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hasher(keyed)")
    }
}
