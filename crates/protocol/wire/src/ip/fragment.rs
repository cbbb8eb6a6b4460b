use crate::Reason;

/// What the length field of either version can describe: the IPv4 packet, the IPv6 payload.
const REASSEMBLED_MAX: usize = 65_535;

/// Where a fragment's payload starts in the whole packet's: a multiple of 8 bytes, up to 65,528.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FragmentOffset(u16);

impl FragmentOffset {
    /// The offset of the first fragment and of whole packets.
    pub const ZERO: Self = Self(0);

    /// From the header field: units of 8 bytes; bits above the 13th are dropped.
    #[inline]
    #[must_use]
    pub const fn from_units(units: u16) -> Self {
        Self(units & 0x1fff)
    }

    /// From bytes; `None` if that is no multiple of 8.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: u16) -> Option<Self> {
        if bytes.is_multiple_of(8) { Some(Self(bytes / 8)) } else { None }
    }

    /// In units of 8 bytes, as in the header.
    #[inline]
    #[must_use]
    pub const fn units(self) -> u16 {
        self.0
    }

    /// In bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0 as usize * 8
    }
}

/// Which part of which packet this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// Where this part starts.
    pub offset: FragmentOffset,
    /// Whether other parts lie behind this one.
    pub more: bool,
}

impl Fragment {
    /// Whether this is less than the whole packet.
    #[inline]
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.more || self.offset != FragmentOffset::ZERO
    }

    /// Checks the length of this part's data, in bytes. `header_len` is what the length field counts besides the
    /// data: the IPv4 header.
    ///
    /// # Errors
    /// [`Reason::FragmentInvalid`] if it is zero, ends past the largest packet, or is not the last but no multiple of
    /// 8 (RFC 791 3.2, RFC 8200 4.5).
    pub fn check(&self, header_len: usize, len: usize) -> Result<(), Reason> {
        let aligned = !self.more || len.is_multiple_of(8);
        if len == 0 || !aligned || header_len + self.offset.bytes() + len > REASSEMBLED_MAX {
            return Err(Reason::FragmentInvalid);
        }
        Ok(())
    }
}
