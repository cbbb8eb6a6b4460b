use core::net::Ipv6Addr;

use crate::{Reason, ethernet::Address};

/// An option of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NdpOption<'a> {
    /// The sender's hardware address (RFC 4861 4.6.1).
    SourceLinkLayer(Address),
    /// The target's hardware address (RFC 4861 4.6.1).
    TargetLinkLayer(Address),
    /// A prefix of the link (RFC 4861 4.6.2).
    Prefix(PrefixInformation),
    /// The link's MTU, in bytes (RFC 4861 4.6.4).
    Mtu(u32),
    /// Another option: what follows kind and length.
    Other {
        /// The option's kind.
        kind: u8,
        /// What follows kind and length.
        data: &'a [u8],
    },
}

/// An address prefix: 0 to 128 bits, and zeros behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: Ipv6Addr,
    len: u8,
}

impl Prefix {
    /// The first `len` bits of `address`; `None` above 128 bits.
    #[must_use]
    pub const fn new(address: Ipv6Addr, len: u8) -> Option<Self> {
        if len > 128 {
            return None;
        }
        let mask = match u128::MAX.checked_shl(128 - len as u32) {
            Some(mask) => mask,
            None => 0,
        };
        Some(Self { address: Ipv6Addr::from_bits(address.to_bits() & mask), len })
    }

    /// The address with zeros behind the prefix.
    #[must_use]
    pub const fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// How many bits the prefix has.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.len
    }
}

/// What a router says of a prefix (RFC 4861 4.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixInformation {
    /// The prefix.
    pub prefix: Prefix,
    /// Its addresses are on this link.
    pub on_link: bool,
    /// Hosts may make addresses from it.
    pub autonomous: bool,
    /// How long it is on the link, in seconds.
    pub valid_lifetime_s: u32,
    /// How long addresses made from it are preferred, in seconds.
    pub preferred_lifetime_s: u32,
}

impl PrefixInformation {
    const DATA_LEN: usize = 30;

    fn parse(data: &[u8; Self::DATA_LEN]) -> Option<Self> {
        let [len, flags, v0, v1, v2, v3, p0, p1, p2, p3, _, _, _, _, address @ ..] = *data;
        Some(Self {
            prefix: Prefix::new(Ipv6Addr::from(address), len)?,
            on_link: flags & 0x80 != 0,
            autonomous: flags & 0x40 != 0,
            valid_lifetime_s: u32::from_be_bytes([v0, v1, v2, v3]),
            preferred_lifetime_s: u32::from_be_bytes([p0, p1, p2, p3]),
        })
    }

    /// The whole option, with kind and length.
    pub(super) fn to_bytes(self) -> [u8; 2 + Self::DATA_LEN] {
        let on_link = if self.on_link { 0x80 } else { 0 };
        let autonomous = if self.autonomous { 0x40 } else { 0 };
        let mut bytes = [0; 2 + Self::DATA_LEN];
        bytes[..4].copy_from_slice(&[3, 4, self.prefix.len, on_link | autonomous]);
        bytes[4..8].copy_from_slice(&self.valid_lifetime_s.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.preferred_lifetime_s.to_be_bytes());
        bytes[16..].copy_from_slice(&self.prefix.address.octets());
        bytes
    }
}

/// Iterates over options; the first malformed one ends the list with an error. At least 8 bytes a step.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    #[inline]
    pub(super) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    fn read(&mut self) -> Option<NdpOption<'a>> {
        let [kind, units, ..] = *self.rest else { return None };
        let (option, rest) = self.rest.split_at_checked(usize::from(units) * 8)?;
        // RFC 4861 4.6: a length of zero makes the whole message invalid; here `option` is then empty.
        let data = option.get(2..)?;
        self.rest = rest;
        Some(match kind {
            1 => NdpOption::SourceLinkLayer(data.try_into().ok()?),
            2 => NdpOption::TargetLinkLayer(data.try_into().ok()?),
            3 => NdpOption::Prefix(PrefixInformation::parse(data.try_into().ok()?)?),
            5 => match *data {
                [_, _, m0, m1, m2, m3] => NdpOption::Mtu(u32::from_be_bytes([m0, m1, m2, m3])),
                _ => return None,
            },
            _ => NdpOption::Other { kind, data },
        })
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<NdpOption<'a>, Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let option = self.read();
        if option.is_none() {
            self.rest = &[];
        }
        Some(option.ok_or(Reason::TransportHeaderInvalid))
    }
}
