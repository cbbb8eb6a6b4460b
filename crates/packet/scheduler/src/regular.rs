mod queues;

use sluicegate_bounded::{Gauge, List, NONE, Round};

use self::queues::Queues;
use super::packets::Packets;

/// What happened to a packet that came to a lane.
#[derive(Debug)]
pub(super) enum Pushed<T> {
    Queued,
    /// The packet waits; this one, of the longest queue, had to make room.
    Displaced(T),
    Refused(T),
}

/// What a group of senders has waiting.
#[derive(Debug, Clone, Copy)]
struct Group {
    weight: u32,
    packets: u32,
    /// Its senders, and the one with most packets.
    round: Round,
    longest: u32,
}

impl Group {
    const EMPTY: Self = Self { weight: 1, packets: 0, round: Round::EMPTY, longest: NONE };

    /// Packets for its weight, with `more` to come.
    fn length(&self, more: u32) -> f32 {
        (self.packets + more) as f32 / self.weight as f32
    }
}

/// The regular lane: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over groups that the caller names, and
/// within each over its senders.
///
/// A queue exists while it has packets, so there are never more of them than packets. Each turn gives a group
/// `quantum * weight` bytes, and each sender in it `quantum`, so every step is O(1). A full lane drops from the group that
/// is longest for its weight, there from its longest sender; which these are, is remembered from the last packet in or
/// out of each, and from who comes after them in the round, so it may be out of date by one round, never by more. A sender's queue has a limit of its own, so that
/// the room which many senders need delays none of them.
#[derive(Debug)]
pub(super) struct Regular<T> {
    packets: Packets<T>,
    groups: Queues<Group>,
    senders: Queues<List>,
    sender_packets_max: u32,
    quantum: u32,
    /// The groups, and the one with most packets for its weight.
    round: Round,
    longest: u32,
}

impl<T> Regular<T> {
    /// Room for `packets_max` packets, `sender_packets_max` of them of one sender. Allocates once.
    pub(super) fn new(packets_max: u32, sender_packets_max: u32, quantum: u32, secrets: [[u64; 2]; 2]) -> Self {
        Self {
            packets: Packets::new("link_regular_packets", packets_max),
            groups: Queues::new("link_regular_groups", packets_max, Group::EMPTY, secrets[0]),
            senders: Queues::new("link_regular_queues", packets_max, List::EMPTY, secrets[1]),
            sender_packets_max: sender_packets_max.max(1),
            quantum,
            round: Round::EMPTY,
            longest: NONE,
        }
    }

    pub(super) const fn packets(&self) -> &Packets<T> {
        &self.packets
    }

    /// The senders that have packets.
    pub(super) const fn senders(&self) -> Gauge {
        self.senders.gauge()
    }

    /// Appends a packet of `sender` in the group `key`.
    #[inline]
    pub(super) fn push(&mut self, (key, sender): (u128, u128), weight: u16, item: T, len: u32) -> Pushed<T> {
        let mut group = self.groups.find(NONE, key);
        let mut found = group.and_then(|group| self.senders.find(group, sender));
        if found.and_then(|found| self.senders.get(found)).is_some_and(|own| own.len() >= self.sender_packets_max) {
            return Pushed::Refused(item);
        }
        let mut displaced = None;
        if self.packets.is_full() {
            match self.displace(group, found) {
                Some(item) => displaced = Some(item),
                None => return Pushed::Refused(item),
            }
            // They may have lost their last packet.
            group = self.groups.find(NONE, key);
            found = group.and_then(|group| self.senders.find(group, sender));
        }
        let weight = u32::from(weight.max(1));
        let enters = || {
            self.groups.enter(
                &mut self.round,
                (NONE, key),
                turn(self.quantum, weight),
                Group { weight, ..Group::EMPTY },
            )
        };
        let Some(group) = group.or_else(enters) else { return Pushed::Refused(item) };
        let Some(held) = self.groups.get_mut(group) else { return Pushed::Refused(item) };
        let enters = || self.senders.enter(&mut held.round, (group, sender), turn(self.quantum, 1), List::EMPTY);
        let Some(found) = found.or_else(enters) else { return Pushed::Refused(item) };
        let Some(queue) = self.senders.get_mut(found) else { return Pushed::Refused(item) };
        if let Err(item) = self.packets.push(queue, item, len) {
            return Pushed::Refused(item);
        }
        held.packets += 1;
        self.note_length(group, found);
        displaced.map_or(Pushed::Queued, Pushed::Displaced)
    }

    /// Takes the packet whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(T, u32)> {
        let quantum = self.quantum;
        let group = self.groups.next(&mut self.round, |group| turn(quantum, group.weight))?;
        let held = self.groups.get_mut(group)?;
        let sender = self.senders.next(&mut held.round, |_| turn(quantum, 1))?;
        let (item, len) = self.packets.pop_oldest(self.senders.get_mut(sender)?)?;
        self.groups.charge(group, len);
        self.senders.charge(sender, len);
        self.took(group, sender);
        Some((item, len))
    }

    /// Drops the newest packet of the longest sender in the longest group, unless that is the sender `own` itself.
    fn displace(&mut self, own_group: Option<u32>, own: Option<u32>) -> Option<T> {
        let longest = if self.longest == NONE { self.round.cursor() } else { self.longest };
        let held = self.groups.get(longest)?;
        if own_group != Some(longest) {
            let own_length = own_group.and_then(|own| self.groups.get(own)).map_or(0.0, |own| own.length(1));
            if held.length(0) <= own_length {
                return None;
            }
        }
        let sender = if held.longest == NONE { held.round.cursor() } else { held.longest };
        if own_group == Some(longest) {
            let own_length = own.and_then(|own| self.senders.get(own)).map_or(0, |own| own.len() + 1);
            if self.senders.get(sender)?.len() <= own_length {
                return None;
            }
        }
        let (item, _) = self.packets.pop_newest(self.senders.get_mut(sender)?)?;
        // The next one is looked at too, or a burst would make room at one sender alone.
        let next = (self.groups.after(longest), self.senders.after(sender));
        self.took(longest, sender);
        self.note_length(longest, next.1);
        self.note_length(next.0, NONE);
        Some(item)
    }

    /// A packet of `sender` in `group` has gone.
    #[inline]
    fn took(&mut self, group: u32, sender: u32) {
        let Some(held) = self.groups.get_mut(group) else { return };
        held.packets -= 1;
        let is_empty = held.packets == 0;
        if self.senders.get(sender).is_some_and(List::is_empty) {
            if held.longest == sender {
                held.longest = NONE;
            }
            self.senders.leave(&mut held.round, sender);
        }
        if is_empty {
            if self.longest == group {
                self.longest = NONE;
            }
            self.groups.leave(&mut self.round, group);
        } else {
            self.note_length(group, sender);
        }
    }

    #[inline]
    fn note_length(&mut self, group: u32, sender: u32) {
        let longest = self.groups.get(self.longest).map_or(0.0, |group| group.length(0));
        let Some(held) = self.groups.get_mut(group) else { return };
        if self.longest != group && held.length(0) > longest {
            self.longest = group;
        }
        let packets = |sender: u32| self.senders.get(sender).map_or(0, List::len);
        if held.longest != sender && packets(sender) > packets(held.longest) {
            held.longest = sender;
        }
    }
}

/// Bytes of one turn.
fn turn(quantum: u32, weight: u32) -> i32 {
    i32::try_from(u64::from(quantum) * u64::from(weight)).unwrap_or(i32::MAX)
}
