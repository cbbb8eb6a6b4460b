//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624 equation 3).
//!
//! A *sum* is the folded ones' complement sum; a *checksum* is its complement, as carried in headers.

use core::net::IpAddr;

use crate::IpProtocol;

#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// The ones' complement sum of `data` as big-endian 16-bit words, padded with a zero byte if odd.
///
/// Costs one addition for each four bytes: the sum is taken in the machine's own byte order and swapped once at the
/// end (RFC 1071 2(B)).
#[must_use]
pub fn ones_complement(data: &[u8]) -> u16 {
    let (words, rest) = data.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum += u64::from(u32::from_ne_bytes(last));
    u16::from_be(fold(sum))
}

/// [`ones_complement`] of a header whose length is known, which the compiler unrolls: a nanosecond.
#[inline]
pub(crate) fn ones_complement_of_header<const N: usize>(header: &[u8; N]) -> u16 {
    const { assert!(N.is_multiple_of(4)) };
    let mut sum = 0;
    for word in header.as_chunks::<4>().0 {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    u16::from_be(fold(sum))
}

/// The checksum of `data`: what to write into a header whose checksum field is zero, or zero if `data` includes a
/// correct checksum.
#[inline]
#[must_use]
pub fn internet(data: &[u8]) -> u16 {
    !ones_complement(data)
}

/// Adds sums. All but the last must come from data of even length.
#[inline]
#[must_use]
pub fn combine(sums: &[u16]) -> u16 {
    fold(sums.iter().map(|sum| u64::from(*sum)).sum())
}

/// The pseudo-header sum for addresses of either version; the formula is the same for both.
#[inline]
#[must_use]
pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: IpProtocol, len: u32) -> u16 {
    let tail = u64::from(protocol.0) + u64::from(len);
    combine(&[address_sum(src), address_sum(dst), fold(tail)])
}

/// The sum of a transport packet of `len` bytes of which the checksum covers these, with its pseudo-header.
pub(crate) fn transport(src: IpAddr, dst: IpAddr, protocol: IpProtocol, len: usize, covered: &[u8]) -> u16 {
    combine(&[pseudo(src, dst, protocol, len as u32), ones_complement(covered)])
}

#[inline]
fn address_sum(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(v4) => fold(u64::from(v4.to_bits())),
        IpAddr::V6(v6) => ones_complement(&v6.octets()),
    }
}

/// The UDP zero rule (RFC 768, RFC 8200 8.1): zero on the wire means "no checksum", so a computed zero is sent as
/// all ones.
#[inline]
#[must_use]
pub const fn udp_nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The checksum after one 16-bit word changed from `old` to `new` (RFC 1624 equation 3). The word must lie at an even
/// offset.
#[inline]
#[must_use]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    Delta::NONE.u16(old, new).apply(checksum)
}

/// What a set of field changes adds to a sum: gathered once, applied to every checksum that covers the fields.
///
/// Rewriting an address changes the IPv4 header checksum and the transport checksum by the same delta; a port changes
/// only the latter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delta(u16);

impl Delta {
    /// No change.
    pub const NONE: Self = Self(0);

    /// Adds the change of a 16-bit word at an even offset.
    #[inline]
    #[must_use]
    pub const fn u16(self, old: u16, new: u16) -> Self {
        Self(fold(self.0 as u64 + (!old) as u64 + new as u64))
    }

    /// Adds the change of a 32-bit word at an even offset.
    #[inline]
    #[must_use]
    pub const fn u32(self, old: u32, new: u32) -> Self {
        Self(fold(self.0 as u64 + (!old) as u64 + new as u64))
    }

    /// Adds the change of an address, also from one version to the other.
    #[inline]
    #[must_use]
    pub fn address(self, old: IpAddr, new: IpAddr) -> Self {
        match (old, new) {
            (IpAddr::V4(old), IpAddr::V4(new)) => self.u32(old.to_bits(), new.to_bits()),
            (old, new) => self.u16(address_sum(old), address_sum(new)),
        }
    }

    /// Adds another set of changes.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(fold(self.0 as u64 + other.0 as u64))
    }

    /// The checksum after the changes (RFC 1624 equation 3: HC' = ~(~HC + ~m + m')).
    #[inline]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold((!checksum) as u64 + self.0 as u64)
    }

    /// The UDP checksum after the changes: an absent checksum stays absent, a present one never becomes zero.
    #[inline]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        if checksum == 0 { 0 } else { udp_nonzero(self.apply(checksum)) }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// The textbook loop, as the model for the fast one.
    fn naive(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071_section_3_sums_to_ddf2() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(ones_complement(&data), 0xddf2);
        assert_eq!(internet(&data), 0x220d);
    }

    #[test]
    fn the_corner_case_of_rfc_1624_section_4_gives_plus_zero() {
        // A header with checksum 0xDD2F whose word 0x5555 becomes 0x3285: equation 3 gives 0x0000, not 0xFFFF.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_udp_checksum_that_computes_to_zero_is_sent_as_all_ones() {
        assert_eq!(udp_nonzero(0), 0xffff);
        assert_eq!(Delta::NONE.u16(0x5555, 0x3285).apply_udp(0xdd2f), 0xffff);
    }

    #[test]
    fn an_absent_udp_checksum_stays_absent() {
        assert_eq!(Delta::NONE.u16(1, 2).apply_udp(0), 0);
    }

    #[test]
    fn data_with_its_own_checksum_verifies_to_zero() {
        let mut data = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1];
        let checksum = internet(&data);
        data[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(internet(&data), 0);
    }

    proptest! {
        #[test]
        fn fast_sum_equals_the_textbook_loop(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(ones_complement(&data), naive(&data));
        }

        #[test]
        fn a_header_of_known_length_sums_as_any_data_does(header: [u8; 20]) {
            prop_assert_eq!(ones_complement_of_header(&header), naive(&header));
        }

        #[test]
        fn split_sums_combine_to_the_whole(data in proptest::collection::vec(any::<u8>(), 2..200), at in 0usize..100) {
            let (head, tail) = data.split_at((at * 2).min(data.len() & !1));
            prop_assert_eq!(combine(&[ones_complement(head), ones_complement(tail)]), ones_complement(&data));
        }

        #[test]
        fn incremental_update_equals_full_recompute(
            mut data in proptest::collection::vec(any::<u8>(), 32..128),
            new in any::<[u8; 16]>(),
            word in 1usize..8,
        ) {
            // A real header is never all zero; RFC 1624 holds for everything else.
            data[0] |= 0x40;
            let at = word * 2;
            let before = internet(&data);
            let old: [u8; 16] = data[at..at + 16].try_into().unwrap();

            let mut changed: Vec<u8> = data.clone();
            changed[at..at + 2].copy_from_slice(&new[..2]);
            let (old16, new16) = (u16::from_be_bytes([old[0], old[1]]), u16::from_be_bytes([new[0], new[1]]));
            prop_assert_eq!(update_u16(before, old16, new16), internet(&changed));

            changed[at..at + 4].copy_from_slice(&new[..4]);
            let (old32, new32) = (&old[..4], &new[..4]);
            let (old32, new32) = (old32.try_into().unwrap(), new32.try_into().unwrap());
            prop_assert_eq!(Delta::NONE.u32(u32::from_be_bytes(old32), u32::from_be_bytes(new32)).apply(before), internet(&changed));

            changed[at..at + 16].copy_from_slice(&new);
            let v6 = |bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes));
            prop_assert_eq!(Delta::NONE.address(v6(old), v6(new)).apply(before), internet(&changed));
        }

        #[test]
        fn deltas_may_be_gathered_in_any_order(a in any::<(u16, u16)>(), b in any::<(u32, u32)>(), checksum in 1u16..) {
            let together = Delta::NONE.u16(a.0, a.1).u32(b.0, b.1);
            let apart = Delta::NONE.u32(b.0, b.1).and(Delta::NONE.u16(a.0, a.1));
            prop_assert_eq!(together.apply_udp(checksum), apart.apply_udp(checksum));
        }

        #[test]
        fn pseudo_headers_equal_the_sum_of_their_bytes(src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), len in 0u32..70000) {
            let tail = [len.to_be_bytes(), [0, 0, 0, 17]].concat();
            let whole = [&src[..], &dst[..], &tail[..]].concat();
            let (src6, dst6) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
            prop_assert_eq!(pseudo(src6.into(), dst6.into(), IpProtocol::UDP, len), naive(&whole));

            let src4 = Ipv4Addr::new(src[0], src[1], src[2], src[3]);
            let dst4 = Ipv4Addr::new(dst[0], dst[1], dst[2], dst[3]);
            let whole = [&src[..4], &dst[..4], &tail[..]].concat();
            prop_assert_eq!(pseudo(src4.into(), dst4.into(), IpProtocol::UDP, len), naive(&whole));
        }
    }
}
