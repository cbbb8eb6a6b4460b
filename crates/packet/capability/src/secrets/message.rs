//! What the first hash covers.

use core::net::IpAddr;

use sluicegate_wire::capability::ClientId;

/// `04|06 ‖ source ‖ destination ‖ client id ‖ time`, as big-endian blocks of 16 bytes, padded with zeros. The first
/// byte tells the length, so no message is the beginning of another.
#[derive(Clone, Copy)]
pub(super) enum Message {
    /// 14 bytes.
    V4(u128),
    /// 38 bytes.
    V6([u128; 3]),
}

/// Bytes of a message between IPv4 addresses.
const V4_LEN: u64 = 14;
/// Bytes of a message between IPv6 addresses.
const V6_LEN: u64 = 38;

impl Message {
    #[inline]
    pub(super) fn new(src: IpAddr, dst: IpAddr, client: ClientId, timestamp: u8) -> Self {
        let (client, timestamp) = (u128::from(client.0), u128::from(timestamp));
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (u128::from(src.to_bits()), u128::from(dst.to_bits()));
                Self::V4(4 << 120 | src << 88 | dst << 56 | client << 24 | timestamp << 16)
            }
            (src, dst) => {
                let (src, dst) = (bits(src), bits(dst));
                Self::V6([6 << 120 | src >> 8, src << 120 | dst >> 8, dst << 120 | client << 88 | timestamp << 80])
            }
        }
    }

    /// The message of the IPv4 form as SipHash reads it: little-endian words, the last with the length on top.
    #[inline]
    pub(super) const fn words_v4(block: u128) -> [u64; 2] {
        let [high, low] = halves(block);
        [high, low | V4_LEN << 56]
    }

    /// As [`Self::words_v4`], of the IPv6 form.
    #[inline]
    pub(super) const fn words_v6(blocks: [u128; 3]) -> [u64; 5] {
        let [[a, b], [c, d], [e, _]] = [halves(blocks[0]), halves(blocks[1]), halves(blocks[2])];
        [a, b, c, d, e | V6_LEN << 56]
    }
}

#[inline]
const fn halves(block: u128) -> [u64; 2] {
    [((block >> 64) as u64).swap_bytes(), (block as u64).swap_bytes()]
}

#[inline]
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
