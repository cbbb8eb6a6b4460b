use alloc::{boxed::Box, vec};

use sluicegate_wire::IpProtocol;

use crate::{random::Random, transport::Transports};

/// How many random places a block of ports is tried at before it is searched.
const RANDOM_TRIES: usize = 8;
/// Words of 64 ports that one search for a block reads: up to 16,384 ports from a random one on.
const SEARCH_WORDS: u32 = 256;
const WORD: u32 = u64::BITS;
const FREE: u32 = 0;
const BINDING: u32 = 1 << 31;

/// Who holds an external port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The pinhole in this slot, live or resting after its end.
    Pinhole(u32),
    /// The binding in this slot.
    Binding(u32),
}

impl Holder {
    const fn encode(self) -> u32 {
        match self {
            Self::Pinhole(slot) => slot + 1,
            Self::Binding(slot) => BINDING | (slot + 1),
        }
    }

    const fn decode(word: u32) -> Option<Self> {
        match word {
            FREE => None,
            word if word & BINDING != 0 => Some(Self::Binding((word & !BINDING) - 1)),
            word => Some(Self::Pinhole(word - 1)),
        }
    }
}

/// The external ports of the gate's address: a word for each port and protocol, so that a stranger's packet to a
/// closed port dies after one look; and beside them a bit for each that is free, so that a free one is found by reading
/// words and not ports, however few are left.
#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    len: u32,
    /// Those of each protocol that has some.
    spaces: Box<[Space]>,
    transports: &'static Transports,
}

/// The ports, or identifiers, of one protocol.
#[derive(Debug)]
struct Space {
    holders: Box<[u32]>,
    /// A set bit for each free port.
    free: Box<[u64]>,
    /// A set bit for each word of `free` that has one: ports of the first's parity, and of the other.
    with_free: [Box<[u64]>; 2],
    used: u32,
    /// How often a place was taken or given back.
    changes: u64,
}

/// Every second port from the first of a word on.
const EVEN_PLACES: u64 = 0x5555_5555_5555_5555;

impl Space {
    fn new(len: u32) -> Self {
        let words = len.div_ceil(WORD);
        let summary = || vec![0; words.div_ceil(WORD) as usize].into_boxed_slice();
        let mut space = Self {
            holders: vec![FREE; len as usize].into_boxed_slice(),
            free: vec![0; words as usize].into_boxed_slice(),
            with_free: [summary(), summary()],
            used: len,
            changes: 0,
        };
        for place in 0..len {
            space.set_free(place, true);
        }
        space
    }

    fn set_free(&mut self, place: u32, is_free: bool) {
        self.changes += 1;
        let (word, bit) = ((place / WORD) as usize, 1 << (place % WORD));
        if is_free {
            self.free[word] |= bit;
            self.used -= 1;
        } else {
            self.free[word] &= !bit;
            self.used += 1;
        }
        for (odd, summary) in self.with_free.iter_mut().enumerate() {
            let bit = 1 << (word as u32 % WORD);
            if self.free[word] & (EVEN_PLACES << odd) == 0 {
                summary[word / WORD as usize] &= !bit;
            } else {
                summary[word / WORD as usize] |= bit;
            }
        }
    }

    /// The first free place of a parity at or behind `from`, or else from the start on.
    fn find_one(&self, from: u32, odd: usize, looks: &mut u32) -> Option<u32> {
        let word = (from / WORD) as usize;
        *looks += 1;
        let here = self.free.get(word)? & (EVEN_PLACES << odd);
        let behind = here & (u64::MAX << (from % WORD));
        if behind != 0 {
            return Some(word as u32 * WORD + behind.trailing_zeros());
        }
        let word = next_set(&self.with_free[odd], word as u32 + 1, looks)?;
        let found = self.free.get(word as usize)? & (EVEN_PLACES << odd);
        (found != 0).then(|| word * WORD + found.trailing_zeros())
    }

    /// Whether `len` places from `start` on are free.
    fn is_free(&self, start: u32, len: u32, looks: &mut u32) -> bool {
        let end = start + len;
        (start / WORD..end.div_ceil(WORD)).all(|word| {
            let (first, last) = (start.max(word * WORD), (end - 1).min(word * WORD + WORD - 1));
            let mask = (u64::MAX << (first % WORD)) & (u64::MAX >> (WORD - 1 - last % WORD));
            *looks += 1;
            self.free.get(word as usize).is_some_and(|free| free & mask == mask)
        })
    }

    /// A block of `len` free places, one of the wanted parity if there is one; searched from `from` on in at most
    /// [`SEARCH_WORDS`] words.
    fn find_block(&self, from: u32, (len, odd): (u32, u32), looks: &mut u32) -> Option<u32> {
        let words = self.free.len() as u32;
        let (mut other, looks_max) = (None, *looks + SEARCH_WORDS);
        for step in 0..words {
            if *looks >= looks_max {
                break;
            }
            let word = (from / WORD + step) % words;
            *looks += 1;
            let starts = self.block_starts(word, len);
            let wanted = starts & (EVEN_PLACES << odd);
            let found = if wanted == 0 { starts } else { wanted };
            let place = word * WORD + found.trailing_zeros();
            if found == 0 || !self.is_free(place, len, looks) {
                continue;
            }
            if wanted != 0 {
                return Some(place);
            }
            other = other.or(Some(place));
        }
        other
    }

    /// The places of a word at which `len` free ones begin, as far as this word and the next show.
    fn block_starts(&self, word: u32, len: u32) -> u64 {
        let at = |word: u32| u128::from(self.free.get(word as usize).copied().unwrap_or(0));
        let (mut starts, mut sure) = (at(word + 1) << WORD | at(word), 1);
        let len = len.min(WORD);
        while sure < len {
            let step = sure.min(len - sure);
            starts &= starts >> step;
            sure += step;
        }
        starts as u64
    }
}

/// The first set bit at or behind `from`, or else from the start on.
fn next_set(words: &[u64], from: u32, looks: &mut u32) -> Option<u32> {
    let len = words.len() as u32;
    for step in 0..=len {
        let index = (from / WORD + step) % len;
        let mask = if step == 0 { u64::MAX.checked_shl(from % WORD).unwrap_or(0) } else { u64::MAX };
        *looks += 1;
        let found = words.get(index as usize)? & mask;
        if found != 0 {
            return Some(index * WORD + found.trailing_zeros());
        }
    }
    None
}

impl Ports {
    pub(crate) fn new((first, last): (u16, u16), transports: &'static Transports) -> Self {
        let len = u32::from(last.saturating_sub(first)) + 1;
        Self { first, len, spaces: transports.spaces().map(|_| Space::new(len)).collect(), transports }
    }

    #[inline]
    pub(crate) fn holder(&self, protocol: u8, port: u16) -> Option<Holder> {
        let place = usize::from(port.checked_sub(self.first)?);
        Holder::decode(*self.spaces[self.transports.space(protocol)?].holders.get(place)?)
    }

    /// Whether the port is in the range.
    pub(crate) fn contains(&self, port: u16) -> bool {
        port.checked_sub(self.first).is_some_and(|place| u32::from(place) < self.len)
    }

    /// Takes a free block of `len` ports at a random place; its first port has the parity of `like` (RFC 4787 REQ-4:
    /// RTP and RTCP) if there is one. Gives the first port. Adds to `looks` the words of ports that it read: a few for
    /// one port, however full the range is, and a bounded number for a block.
    pub(crate) fn take(
        &mut self,
        protocol: u8,
        (len, like): (u16, u16),
        holder: Holder,
        random: &mut Random,
        looks: &mut u32,
    ) -> Option<u16> {
        let odd = u32::from(self.first ^ like) & 1;
        let space = self.transports.space(protocol)?;
        let range = &mut self.spaces[space];
        let len = u32::from(len);
        let starts = (self.len + 1).checked_sub(len).filter(|starts| *starts != 0 && len != 0)?;
        if self.len - range.used < len {
            return None;
        }
        let start = if len == 1 {
            let from = random.below(starts);
            let mut one = |odd: u32| range.find_one(from, odd as usize, looks);
            one(odd).or_else(|| one(1 - odd))?
        } else {
            let tried = (0..RANDOM_TRIES)
                .map(|_| random.below(starts))
                .find(|start| start % 2 == odd && range.is_free(*start, len, looks));
            tried.or_else(|| range.find_block(random.below(starts), (len, odd), looks))?
        };
        self.fill(space, start, len, holder);
        Some(self.first + start as u16)
    }

    /// Takes exactly these ports; `false` (and no change) if they are outside the range or not all free.
    pub(crate) fn take_exactly(&mut self, protocol: u8, (first, last): (u16, u16), holder: Holder) -> bool {
        let (Some(space), Some(start)) = (self.transports.space(protocol), first.checked_sub(self.first)) else {
            return false;
        };
        let Some(more) = last.checked_sub(first) else { return false };
        let (start, len) = (u32::from(start), u32::from(more) + 1);
        if start + len > self.len || !self.spaces[space].is_free(start, len, &mut 0) {
            return false;
        }
        self.fill(space, start, len, holder);
        true
    }

    pub(crate) fn give_back(&mut self, protocol: u8, (first, last): (u16, u16)) {
        let (Some(space), Some(start)) = (self.transports.space(protocol), first.checked_sub(self.first)) else {
            return;
        };
        let space = &mut self.spaces[space];
        for place in u32::from(start)..=u32::from(start) + u32::from(last.saturating_sub(first)) {
            if let Some(word) = space.holders.get_mut(place as usize).filter(|word| **word != FREE) {
                *word = FREE;
                space.set_free(place, true);
            }
        }
    }

    /// The identifiers of pings that are taken: how often they changed, and a bit for each from the first of the range on.
    pub(crate) fn pings(&self) -> (u64, impl Iterator<Item = u64>) {
        let idents = self.transports.space(IpProtocol::ICMP.0).map(|space| &self.spaces[space]);
        let words = idents.into_iter().flat_map(|idents| &idents.free).enumerate().map(|(at, free)| {
            let past = (self.len).saturating_sub(at as u32 * WORD).min(WORD);
            !free & u64::MAX.checked_shr(WORD - past).unwrap_or(0)
        });
        (idents.map_or(0, |idents| idents.changes), words)
    }

    /// How many of each space are taken, by its name.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.transports.spaces().zip(&self.spaces).map(|(name, space)| (name, space.used))
    }

    pub(crate) const fn max(&self) -> u32 {
        self.len
    }

    fn fill(&mut self, space: usize, start: u32, len: u32, holder: Holder) {
        for place in start..start + len {
            self.spaces[space].holders[place as usize] = holder.encode();
            self.spaces[space].set_free(place, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::transport::TRANSPORTS;

    const UDP: u8 = 17;

    fn random() -> Random {
        Random::new(&[1; 16], 2)
    }

    #[test]
    fn every_port_of_the_range_can_be_taken_and_no_more() {
        let mut ports = Ports::new((40_000, 40_099), &TRANSPORTS);
        let mut random = random();
        for slot in 0..100 {
            let port = ports.take(UDP, (1, 80), Holder::Pinhole(slot), &mut random, &mut 0).unwrap();
            assert!((40_000..=40_099).contains(&port));
            assert_eq!(ports.holder(UDP, port), Some(Holder::Pinhole(slot)));
        }
        assert_eq!(ports.take(UDP, (1, 80), Holder::Pinhole(100), &mut random, &mut 0), None);
        let used: Vec<_> = ports.used().collect();
        assert_eq!(used[..2], [("external_ports_udp", 100), ("external_ports_tcp", 0)], "TCP has ports of its own");
        ports.give_back(UDP, (40_007, 40_007));
        assert_eq!(ports.take(UDP, (1, 80), Holder::Binding(3), &mut random, &mut 0), Some(40_007));
        assert_eq!(ports.holder(UDP, 40_007), Some(Holder::Binding(3)));
    }

    #[test]
    fn the_identifiers_of_pings_that_are_taken_are_told_and_when_they_change() {
        const ICMP: u8 = 1;
        let mut ports = Ports::new((20_000, 20_099), &TRANSPORTS);
        let told = |ports: &Ports| (ports.pings().0, ports.pings().1.collect::<Vec<_>>());
        let (before, words) = told(&ports);
        assert_eq!(words, [0, 0]);
        assert!(ports.take_exactly(ICMP, (20_003, 20_003), Holder::Binding(0)));
        assert!(ports.take_exactly(ICMP, (20_099, 20_099), Holder::Binding(1)));
        let (after, words) = told(&ports);
        assert_eq!(words, [1 << 3, 1 << 35]);
        assert_ne!(before, after);
        assert!(ports.take_exactly(UDP, (20_005, 20_005), Holder::Binding(2)));
        assert_eq!(told(&ports), (after, words), "UDP has ports of its own");
        ports.give_back(ICMP, (20_003, 20_003));
        assert_eq!(told(&ports).1, [0, 1 << 35]);
        assert_ne!(told(&ports).0, after);
    }

    #[test]
    fn blocks_are_contiguous_keep_parity_and_do_not_overlap() {
        let mut ports = Ports::new((20_000, 20_999), &TRANSPORTS);
        let mut random = random();
        let mut taken = [false; 1_000];
        for slot in 0..50 {
            let first = ports.take(UDP, (10, 5_004), Holder::Pinhole(slot), &mut random, &mut 0).unwrap();
            assert_eq!(first % 2, 0);
            for port in first..first + 10 {
                assert!(!core::mem::replace(&mut taken[usize::from(port) - 20_000], true));
            }
        }
    }

    #[test]
    fn a_block_longer_than_the_range_or_of_no_length_is_refused() {
        let mut ports = Ports::new((20_000, 20_009), &TRANSPORTS);
        for len in [0, 11, u16::MAX] {
            assert_eq!(ports.take(UDP, (len, 0), Holder::Pinhole(0), &mut random(), &mut 0), None);
        }
        assert_eq!(ports.take(UDP, (10, 0), Holder::Pinhole(0), &mut random(), &mut 0), Some(20_000));
    }

    #[test]
    fn wanted_ports_are_taken_only_if_all_are_free_and_in_range() {
        let mut ports = Ports::new((20_000, 20_009), &TRANSPORTS);
        assert!(ports.take_exactly(UDP, (20_002, 20_004), Holder::Pinhole(0)));
        for range in [(20_004, 20_005), (19_999, 20_000), (20_009, 20_010), (20_006, 20_005)] {
            assert!(!ports.take_exactly(UDP, range, Holder::Pinhole(1)), "{range:?}");
        }
        assert!(ports.take_exactly(UDP, (20_005, 20_005), Holder::Pinhole(1)));
    }

    #[test]
    fn the_last_free_port_is_found_by_reading_a_few_words() {
        let mut random = random();
        for last in [1_024, 1_025, 30_000, 65_535] {
            let mut ports = Ports::new((1_024, 65_535), &TRANSPORTS);
            for port in (1_024..=65_535).filter(|port| *port != last) {
                assert!(ports.take_exactly(UDP, (port, port), Holder::Binding(0)));
            }
            let mut looks = 0;
            assert_eq!(ports.take(UDP, (1, 5_004), Holder::Binding(1), &mut random, &mut looks), Some(last));
            assert!(looks < 64, "{looks}");
            looks = 0;
            assert_eq!(ports.take(UDP, (1, 5_004), Holder::Binding(2), &mut random, &mut looks), None);
            assert_eq!(looks, 0, "a full range is not searched");
        }
    }

    #[test]
    fn a_search_for_a_block_that_is_not_there_is_bounded() {
        let mut ports = Ports::new((1_024, 65_535), &TRANSPORTS);
        for port in (1_024..=65_535).step_by(8) {
            assert!(ports.take_exactly(UDP, (port, port), Holder::Binding(0)));
        }
        let mut looks = 0;
        assert_eq!(ports.take(UDP, (200, 0), Holder::Pinhole(1), &mut random(), &mut looks), None);
        assert!(looks < 1_200, "{looks}");
        assert!(ports.take(UDP, (7, 0), Holder::Pinhole(1), &mut random(), &mut looks).is_some());
    }

    #[test]
    fn free_places_are_what_a_list_of_ports_says() {
        let mut random = random();
        let mut ports = Ports::new((20_001, 20_300), &TRANSPORTS);
        let mut model = [false; 300];
        for round in 0..3_000u32 {
            let len = 1 + random.below(9) as u16;
            if round % 3 == 2 {
                let first = 20_001 + random.below(300 - u32::from(len)) as u16;
                ports.give_back(UDP, (first, first + len - 1));
                model[usize::from(first - 20_001)..][..usize::from(len)].fill(false);
            } else if let Some(first) = ports.take(UDP, (len, round as u16), Holder::Pinhole(1), &mut random, &mut 0) {
                let block = &mut model[usize::from(first - 20_001)..][..usize::from(len)];
                assert!(block.iter().all(|taken| !taken), "{first}");
                block.fill(true);
            } else {
                assert!(model.windows(len.into()).all(|block| block.contains(&true)), "{len} in a row were free");
            }
            assert_eq!(ports.used().next().unwrap().1 as usize, model.iter().filter(|taken| **taken).count());
        }
    }

    #[test]
    fn other_seeds_choose_other_ports() {
        let first = |seed| {
            Ports::new((1_024, 65_535), &TRANSPORTS)
                .take(UDP, (1, 0), Holder::Pinhole(0), &mut Random::new(&[1; 16], seed), &mut 0)
                .unwrap()
        };
        assert!(first(1) != first(2) || first(2) != first(3));
    }
}
