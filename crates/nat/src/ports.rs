use alloc::{boxed::Box, vec};

use sluicegate_wire::IpProtocol;

use crate::random::Random;

/// How many random places are tried before the range is searched from a random start.
const RANDOM_TRIES: u32 = 32;
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
/// closed port dies after one look.
#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    /// UDP, TCP, and the identifiers of ICMP echo.
    holders: [Box<[u32]>; 3],
    used: [u32; 3],
}

/// The names of the three spaces, for gauges.
pub(crate) const SPACES: [&str; 3] = ["external_ports_udp", "external_ports_tcp", "external_idents_icmp"];

const fn space(protocol: u8) -> Option<usize> {
    match IpProtocol(protocol) {
        IpProtocol::UDP => Some(0),
        IpProtocol::TCP => Some(1),
        IpProtocol::ICMP => Some(2),
        _ => None,
    }
}

impl Ports {
    pub(crate) fn new((first, last): (u16, u16)) -> Self {
        let len = usize::from(last.saturating_sub(first)) + 1;
        let space = || vec![FREE; len].into_boxed_slice();
        Self { first, holders: [space(), space(), space()], used: [0; 3] }
    }

    #[inline]
    pub(crate) fn holder(&self, protocol: u8, port: u16) -> Option<Holder> {
        let place = usize::from(port.checked_sub(self.first)?);
        Holder::decode(*self.holders[space(protocol)?].get(place)?)
    }

    /// Takes a free block of `len` ports at a random place; its first port has the parity of `like` (RFC 4787 REQ-4:
    /// RTP and RTCP). Gives the first port.
    pub(crate) fn take(
        &mut self,
        protocol: u8,
        len: u16,
        like: u16,
        holder: Holder,
        random: &mut Random,
    ) -> Option<u16> {
        let space = space(protocol)?;
        let starts = (self.holders[space].len() as u32 + 1).checked_sub(u32::from(len))?;
        if starts == 0 || len == 0 {
            return None;
        }
        let is_free = |start: &u32| self.is_free(space, *start, len);
        let like_parity = |start: &u32| (u32::from(self.first) + start) % 2 == u32::from(like) % 2;
        let from = random.below(starts);
        let search = |wanted: &dyn Fn(&u32) -> bool| (0..starts).map(|step| (from + step) % starts).find(wanted);
        let start = (0..RANDOM_TRIES)
            .map(|_| random.below(starts))
            .find(|start| like_parity(start) && is_free(start))
            .or_else(|| search(&|start| like_parity(start) && is_free(start)))
            .or_else(|| search(&is_free))?;
        self.fill(space, start, len, holder);
        Some(self.first + start as u16)
    }

    /// Takes exactly these ports; `false` (and no change) if they are outside the range or not all free.
    pub(crate) fn take_exactly(&mut self, protocol: u8, (first, last): (u16, u16), holder: Holder) -> bool {
        let (Some(space), Some(start)) = (space(protocol), first.checked_sub(self.first)) else { return false };
        let Some(len) = last.checked_sub(first).and_then(|more| more.checked_add(1)) else { return false };
        if !self.is_free(space, u32::from(start), len) {
            return false;
        }
        self.fill(space, u32::from(start), len, holder);
        true
    }

    pub(crate) fn give_back(&mut self, protocol: u8, (first, last): (u16, u16)) {
        let (Some(space), Some(start)) = (space(protocol), first.checked_sub(self.first)) else { return };
        let end = usize::from(start) + usize::from(last.saturating_sub(first)) + 1;
        if let Some(block) = self.holders[space].get_mut(usize::from(start)..end) {
            self.used[space] -= block.iter().filter(|word| **word != FREE).count() as u32;
            block.fill(FREE);
        }
    }

    pub(crate) const fn used(&self) -> [u32; 3] {
        self.used
    }

    pub(crate) fn max(&self) -> u32 {
        self.holders[0].len() as u32
    }

    fn is_free(&self, space: usize, start: u32, len: u16) -> bool {
        let start = start as usize;
        let block = self.holders[space].get(start..start + usize::from(len));
        block.is_some_and(|block| block.iter().all(|word| *word == FREE))
    }

    fn fill(&mut self, space: usize, start: u32, len: u16, holder: Holder) {
        let start = start as usize;
        self.holders[space][start..start + usize::from(len)].fill(holder.encode());
        self.used[space] += u32::from(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: u8 = 17;

    fn random() -> Random {
        Random::new(&[1; 16], 2)
    }

    #[test]
    fn every_port_of_the_range_can_be_taken_and_no_more() {
        let mut ports = Ports::new((40_000, 40_099));
        let mut random = random();
        for slot in 0..100 {
            let port = ports.take(UDP, 1, 80, Holder::Pinhole(slot), &mut random).unwrap();
            assert!((40_000..=40_099).contains(&port));
            assert_eq!(ports.holder(UDP, port), Some(Holder::Pinhole(slot)));
        }
        assert_eq!(ports.take(UDP, 1, 80, Holder::Pinhole(100), &mut random), None);
        assert_eq!(ports.used(), [100, 0, 0], "TCP has ports of its own");
        ports.give_back(UDP, (40_007, 40_007));
        assert_eq!(ports.take(UDP, 1, 80, Holder::Binding(3), &mut random), Some(40_007));
        assert_eq!(ports.holder(UDP, 40_007), Some(Holder::Binding(3)));
    }

    #[test]
    fn blocks_are_contiguous_keep_parity_and_do_not_overlap() {
        let mut ports = Ports::new((20_000, 20_999));
        let mut random = random();
        let mut taken = [false; 1_000];
        for slot in 0..50 {
            let first = ports.take(UDP, 10, 5_004, Holder::Pinhole(slot), &mut random).unwrap();
            assert_eq!(first % 2, 0);
            for port in first..first + 10 {
                assert!(!core::mem::replace(&mut taken[usize::from(port) - 20_000], true));
            }
        }
    }

    #[test]
    fn a_block_longer_than_the_range_or_of_no_length_is_refused() {
        let mut ports = Ports::new((20_000, 20_009));
        for len in [0, 11, u16::MAX] {
            assert_eq!(ports.take(UDP, len, 0, Holder::Pinhole(0), &mut random()), None);
        }
        assert_eq!(ports.take(UDP, 10, 0, Holder::Pinhole(0), &mut random()), Some(20_000));
    }

    #[test]
    fn wanted_ports_are_taken_only_if_all_are_free_and_in_range() {
        let mut ports = Ports::new((20_000, 20_009));
        assert!(ports.take_exactly(UDP, (20_002, 20_004), Holder::Pinhole(0)));
        for range in [(20_004, 20_005), (19_999, 20_000), (20_009, 20_010), (20_006, 20_005)] {
            assert!(!ports.take_exactly(UDP, range, Holder::Pinhole(1)), "{range:?}");
        }
        assert!(ports.take_exactly(UDP, (20_005, 20_005), Holder::Pinhole(1)));
    }

    #[test]
    fn other_seeds_choose_other_ports() {
        let first = |seed| {
            Ports::new((1_024, 65_535)).take(UDP, 1, 0, Holder::Pinhole(0), &mut Random::new(&[1; 16], seed)).unwrap()
        };
        assert!(first(1) != first(2) || first(2) != first(3));
    }
}
