use crate::{Reason, field::next_option};

/// An option of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Largest segment that the sender of the option receives, in bytes (RFC 9293 3.7.1).
    MaximumSegmentSize(u16),
    /// Shift of the windows that the sender of the option will send (RFC 7323 2).
    WindowScale(WindowScale),
    /// Selective acknowledgements may be sent (RFC 2018 2).
    SackPermitted,
    /// Selective acknowledgement: blocks of 8 bytes (RFC 2018 3).
    Sack(&'a [u8]),
    /// Timestamps (RFC 7323 3).
    Timestamps(Timestamps),
    /// Another option: what follows kind and length.
    Other {
        /// The option's kind.
        kind: u8,
        /// What follows kind and length.
        data: &'a [u8],
    },
}

/// A window shift: 0 to 14 (RFC 7323 2.3: a larger one counts as 14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WindowScale(u8);

impl WindowScale {
    /// The largest shift.
    pub const MAX: Self = Self(14);

    /// This shift, or the largest.
    #[inline]
    #[must_use]
    pub const fn new(shift: u8) -> Self {
        if shift > Self::MAX.0 { Self::MAX } else { Self(shift) }
    }

    /// The shift.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> u8 {
        self.0
    }

    /// A window field in bytes.
    #[inline]
    #[must_use]
    pub const fn apply(self, window: u16) -> u32 {
        (window as u32) << self.0
    }
}

/// The timestamps option (RFC 7323 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The clock value that it echoes.
    pub echo: u32,
}

/// Iterates over options; padding is left out, and the first malformed option ends the list with an error.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    #[inline]
    pub(super) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, Reason>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let option = next_option(&mut self.rest, Reason::TransportHeaderInvalid)?;
        let option = option.and_then(|(kind, data)| read(kind, data).ok_or(Reason::TransportHeaderInvalid));
        if option.is_err() {
            self.rest = &[];
        }
        Some(option)
    }
}

/// The option of this kind; `None` if its length is not that of its kind.
#[inline]
fn read(kind: u8, data: &[u8]) -> Option<TcpOption<'_>> {
    Some(match (kind, data) {
        (2, &[m0, m1]) => TcpOption::MaximumSegmentSize(u16::from_be_bytes([m0, m1])),
        (3, &[shift]) => TcpOption::WindowScale(WindowScale::new(shift)),
        (4, []) => TcpOption::SackPermitted,
        (5, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => TcpOption::Sack(blocks),
        (8, &[v0, v1, v2, v3, e0, e1, e2, e3]) => TcpOption::Timestamps(Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        }),
        (2..=5 | 8, _) => return None,
        (kind, data) => TcpOption::Other { kind, data },
    })
}
