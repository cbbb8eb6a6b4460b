//! Fragments for the host: those of UDP datagrams whose first fragment `local` lists. The first, which has the ports, is
//! noted under its entry, and what follows it within a second is let pass at the rate of that entry. Overlaps are the
//! kernel's to refuse (RFC 5722); nothing can be written over the ports, which are in the first eight bytes.

use sluicegate_netlink::nft::{Batch, Header, Rule};

use super::{Family, LocalEntry, drop_all, rated};
use crate::classify::{FRAGMENT_WAIT, FRAGMENTED_BYTES_MAX, FRAGMENTED_RATE_PPS, PLACE_AT, PLACES, Rules};

/// The first of the 32-bit registers, where values that are compared lie as well; the keys lie in a row of them.
const KEY: u32 = libc::NFT_REG32_00 as u32;
/// Never full: all places together note fewer in the wait, and in the second that the kernel takes to clear.
const NOTED_MAX: u32 = 65_536;
/// Of each port, and those that the kernel has not cleared yet.
const SHARES_MAX: u32 = 4 * PLACES as u32;
const FRAGMENT_WAIT_MS: u64 = FRAGMENT_WAIT.as_millis() as u64;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// Where first fragments end that are more than a sender's share.
pub(super) const FRAGMENTED: &str = "fragmented";

/// Names of this family's chain and tables, and where things lie in the network header.
struct Places {
    chain: &'static str,
    noted: &'static str,
    shares: &'static str,
    set_ids: [u32; 2],
    protocol: u32,
    /// Two bytes with offset and flags; which bits of them are the offset, and all that a first fragment says there.
    offset_more: u32,
    offset_mask: [u8; 2],
    any_mask: [u8; 2],
    /// Bytes in a step of the offset field.
    step: usize,
    first: [u8; 2],
    id: (u32, u32),
}

const V4: Places = Places {
    chain: "fragments4",
    noted: "noted4",
    shares: "shares4",
    set_ids: [3, 4],
    protocol: 9,
    offset_more: 6,
    offset_mask: [0x1f, 0xff],
    any_mask: [0x3f, 0xff],
    step: 8,
    first: [0x20, 0],
    id: (4, 2),
};
const V6: Places = Places {
    chain: "fragments6",
    noted: "noted6",
    shares: "shares6",
    set_ids: [5, 6],
    protocol: 40,
    offset_more: 42,
    offset_mask: [0xff, 0xf8],
    any_mask: [0xff, 0xf9],
    step: 1,
    first: [0, 1],
    id: (44, 4),
};

const fn places(family: &Family) -> &'static Places {
    if family.v6 { &V6 } else { &V4 }
}

/// Whether what the chain dropped was the gate's to judge, and no packet of the host above a rate.
pub(super) fn is_gates(chain: &str) -> bool {
    chain == V4.chain || chain == V6.chain
}

impl Family {
    /// Interface, entry, both addresses and identification: each in whole registers.
    const fn fragment_key_len(&self) -> u32 {
        3 * 4 + 2 * self.address_len
    }

    fn fragment_key<'a>(&self, rule: &'a mut Rule, entry: usize) -> &'a mut Rule {
        let (words, (id, id_len)) = (self.address_len / 4, places(self).id);
        rule.load_meta(KEY, libc::NFT_META_IIF)
            .load_number(KEY + 1, entry as u32)
            .load(KEY + 2, Header::Network, self.source, self.address_len)
            .load(KEY + 2 + words, Header::Network, self.destination, self.address_len)
            .load(KEY + 2 + 2 * words, Header::Network, id, id_len)
    }
}

/// Sends fragments to their chain: the first rule about the host's addresses.
pub(super) fn apart(batch: &mut Batch, family: &Family) {
    let places = places(family);
    batch.rule(family.own, |rule| {
        if family.v6 {
            rule.network(family.protocol, 1).equal(&[libc::IPPROTO_FRAGMENT as u8])
        } else {
            rule.network(places.offset_more, 2).mask(&places.any_mask).not_equal(&[0, 0])
        };
        rule.go_to(places.chain)
    });
}

/// The tables of this family and the chain that fills them.
pub(super) fn deciding(batch: &mut Batch, rules: &Rules, ports: [&str; 2], family: &Family) {
    let places = places(family);
    batch
        .set(places.noted, places.set_ids[0], family.fragment_key_len(), NOTED_MAX)
        .set(places.shares, places.set_ids[1], 8, SHARES_MAX)
        .chain(places.chain);
    let entries = || LocalEntry::all(rules, family).filter(|entry| entry.local.protocol == UDP);
    for entry in entries() {
        batch.rule(places.chain, |rule| {
            rule.network(places.protocol, 1).equal(&[UDP]);
            let farthest = (FRAGMENTED_BYTES_MAX / places.step) as u16;
            rule.network(places.offset_more, 2).mask(&places.offset_mask);
            rule.within(&1_u16.to_be_bytes(), &farthest.to_be_bytes());
            family.fragment_key(rule, entry.number).listed(places.noted, KEY).go_to(&rated("local", entry.number))
        });
    }
    for entry in entries() {
        let first = |rule: &mut Rule| {
            // Where IPv4 options or a second extension header stand, the kernel would have to be believed.
            if !family.v6 {
                rule.network(0, 1).equal(&[0x45]).network(2, 2).within(&28_u16.to_be_bytes(), &[0xff; 2]);
            }
            rule.network(places.protocol, 1).equal(&[UDP]);
            rule.network(places.offset_more, 2).mask(&places.any_mask).equal(&places.first);
            entry.matches(rule, ports, family);
            rule.transport(0, 8);
        };
        batch.rule(places.chain, |rule| {
            first(rule);
            rule.network(PLACE_AT as u32, 1).mask(&[(PLACES / 2 - 1) as u8]);
            rule.load_meta(KEY + 1, libc::NFT_META_IIF).share(places.shares, KEY, 10_000, FRAGMENTED_RATE_PPS);
            family.fragment_key(rule, entry.number).list(places.noted, KEY, FRAGMENT_WAIT_MS);
            rule.go_to(&rated("local", entry.number))
        });
        batch.rule(places.chain, |rule| {
            first(rule);
            rule.go_to(FRAGMENTED)
        });
    }
    drop_all(batch, places.chain);
}
