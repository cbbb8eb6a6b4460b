//! The values in a capability header.

use core::{fmt, hint};

/// Names a client inside one pair of addresses, so that those behind one NAT or edge box do not share a capability's
/// fate. Assigned by the frontend with the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId(pub u32);

impl ClientId {
    /// No grant, so no client that the frontend knows.
    pub const NONE: Self = Self(0);
}

/// The value that routers tag a request with where it enters their trust domain. It names the neighbour that it came
/// from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathId(pub u16);

impl PathId {
    /// Not tagged: the router stands at no trust boundary.
    pub const NONE: Self = Self(0);
}

/// What a sender puts into all packets of one flow; routers that cached its capability know it again by this.
/// The lower 48 bits count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowNonce(pub u64);

impl FlowNonce {
    /// The bits that a header carries.
    pub const MASK: u64 = 0xffff_ffff_ffff;

    /// The nonce made of the lower 48 bits of `value`.
    #[inline]
    #[must_use]
    pub const fn from_low_bits(value: u64) -> Self {
        Self(value & Self::MASK)
    }
}

/// Whoever reads a nonce in a log could send in the flow's name.
impl fmt::Debug for FlowNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowNonce(..)")
    }
}

/// A capability or a pre-capability: 8 bits of the router's clock in seconds and 56 bits of hash. All zero while blank.
#[derive(Clone, Copy, Default)]
pub struct Capability(pub u64);

impl Capability {
    /// What a request's slots hold before a router fills them.
    pub const BLANK: Self = Self(0);
    /// The bits of the hash.
    pub const HASH_MASK: u64 = 0x00ff_ffff_ffff_ffff;

    /// A capability made of a router's time (seconds modulo 256) and the low 56 bits of `hash56`.
    #[inline]
    #[must_use]
    pub const fn new(timestamp: u8, hash56: u64) -> Self {
        Self((timestamp as u64) << 56 | hash56 & Self::HASH_MASK)
    }

    /// The router's time of issue, in seconds modulo 256.
    #[inline]
    #[must_use]
    pub const fn timestamp(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The hash: 56 bits.
    #[inline]
    #[must_use]
    pub const fn hash(self) -> u64 {
        self.0 & Self::HASH_MASK
    }

    /// Whether both are the same, found out in a time that does not tell where they differ.
    #[inline]
    #[must_use]
    pub fn ct_eq(&self, other: &Self) -> bool {
        hint::black_box(self.0 ^ other.0) == 0
    }
}

impl PartialEq for Capability {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other)
    }
}

impl Eq for Capability {}

/// A capability is a bearer token on its path: its value goes into no log.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(..)")
    }
}

/// What a capability allows: N kilobytes within T seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    kilobytes: u16,
    seconds: u8,
}

impl Limits {
    /// The largest N, in kilobytes of 1,000 bytes.
    pub const KILOBYTES_MAX: u16 = 1_023;
    /// The largest T, in seconds. Less than half of the 8-bit clock, so that times compare unambiguously.
    pub const SECONDS_MAX: u8 = 63;
    /// Bytes of a kilobyte.
    pub const KILOBYTE: u64 = 1_000;
    /// (N/T)min: the slowest capability for which routers hold a line, 4,000 bytes in 10 seconds (TVA III-F).
    pub const LEAST: Self = Self { kilobytes: 4, seconds: 10 };

    /// N in kilobytes (1 to 1,023) and T in seconds (1 to 63); `None` outside of that.
    #[inline]
    #[must_use]
    pub const fn new(kilobytes: u16, seconds: u8) -> Option<Self> {
        let possible =
            kilobytes != 0 && kilobytes <= Self::KILOBYTES_MAX && seconds != 0 && seconds <= Self::SECONDS_MAX;
        if possible { Some(Self { kilobytes, seconds }) } else { None }
    }

    /// From the header field N(10) T(6); `None` if either is zero.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Option<Self> {
        Self::new(bits >> 6, (bits & 0x3f) as u8)
    }

    /// The header field N(10) T(6).
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.kilobytes << 6 | self.seconds as u16
    }

    /// N in kilobytes of 1,000 bytes.
    #[inline]
    #[must_use]
    pub const fn kilobytes(self) -> u16 {
        self.kilobytes
    }

    /// N in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.kilobytes as u64 * Self::KILOBYTE
    }

    /// T in seconds.
    #[inline]
    #[must_use]
    pub const fn seconds(self) -> u8 {
        self.seconds
    }

    /// Whether N/T is smaller than that of `least`.
    #[inline]
    #[must_use]
    pub const fn is_slower_than(self, least: Self) -> bool {
        self.bytes() * (least.seconds as u64) < least.bytes() * self.seconds as u64
    }
}

/// How pre-capabilities and capabilities are hashed. It is the version of the header, and one path uses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum Algorithm {
    /// SipHash-2-4 for both hashes.
    #[default]
    SipHash = 1,
    /// AES-128 as PRF and in Matyas-Meyer-Oseas mode, as in the paper.
    Aes = 2,
}

impl Algorithm {
    /// From the header's version; `None` for others.
    #[inline]
    #[must_use]
    pub const fn from_version(version: u8) -> Option<Self> {
        match version {
            1 => Some(Self::SipHash),
            2 => Some(Self::Aes),
            _ => None,
        }
    }
}

/// What a header is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Asks for a capability: routers fill the slots.
    Request = 0b00,
    /// A regular packet that carries its capabilities.
    Capabilities = 0b01,
    /// A regular packet that carries only the flow nonce of cached capabilities.
    Nonce = 0b10,
    /// A regular packet whose capabilities the routers check and replace by fresh pre-capabilities.
    Renewal = 0b11,
}

impl Kind {
    /// From the lower two bits of `bits`.
    #[inline]
    #[must_use]
    pub const fn from_low_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::Request,
            0b01 => Self::Capabilities,
            0b10 => Self::Nonce,
            _ => Self::Renewal,
        }
    }

    /// Whether such a header has a list of capabilities.
    #[inline]
    #[must_use]
    pub const fn has_list(self) -> bool {
        matches!(self, Self::Capabilities | Self::Renewal)
    }
}
