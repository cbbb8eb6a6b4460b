//! The request lane: hierarchical fair queueing on path identifiers (TVA III-B).

mod tree;

use sluicegate_bounded::{Gauge, NONE};
use tree::{Phase, ROOT, Tree};

use super::{Config, DEPTH_MAX, KnownPaths, Lane, QUEUES_MAX, Weights, packets::Packets, regular::Pushed};

/// A queue with this many packets is congested: what comes next is told apart by the next tag.
const SPLIT_PACKETS: u32 = 8;
/// The longest that a queue grows which cannot be split. Merged queues may be longer, and then take nothing new.
const QUEUE_PACKETS_MAX: u32 = 256;
/// Enough for one path of full depth.
const QUEUES_MIN: u32 = 8;

/// The packets and the tree that says in what order they leave.
///
/// A path's most recent tag names its queue at the first level. A congested queue becomes a branch: what waited stays
/// together and is served first, what comes from then on gets a queue for each next most recent tag. Inside a queue the
/// packet that has waited longest goes first. Branches serve their children by deficit round robin, a quantum a turn;
/// what has no queue of its own counts as one child.
#[derive(Debug)]
pub(super) struct Requests<T> {
    packets: Packets<T>,
    tree: Tree,
    quantum: u32,
    depth_max: usize,
}

/// Where the packets of a path wait.
enum Place {
    /// In this queue, which exists.
    Queue(u32),
    /// In a queue still to be made below this node.
    Below(u32),
}

impl<T> Requests<T> {
    pub(super) fn new(config: &Config, secret: [u64; 2]) -> Self {
        let queues_max = config.request_queues_max.clamp(QUEUES_MIN, QUEUES_MAX);
        Self {
            packets: Packets::new("link_request_packets", config.packets_max[Lane::Request as usize]),
            tree: Tree::new(queues_max, config.merge, config.weights == Weights::Known, secret),
            quantum: config.packet_bytes_max.max(1),
            depth_max: usize::from(config.depth_max).clamp(1, DEPTH_MAX),
        }
    }

    pub(super) const fn packets(&self) -> &Packets<T> {
        &self.packets
    }

    /// The queues.
    pub(super) const fn queues(&self) -> Gauge {
        self.tree.gauge()
    }

    /// Queues in use at each level, nearest first.
    pub(super) fn queues_by_level(&self) -> [u32; DEPTH_MAX] {
        self.tree.by_level()
    }

    pub(super) const fn splits_and_merges(&self) -> (u64, u64) {
        (self.tree.splits, self.tree.merges)
    }

    pub(super) fn know(&mut self, known: KnownPaths) -> KnownPaths {
        self.tree.know(known)
    }

    /// Appends a packet to the queue of its path, most recent tag first.
    #[inline]
    pub(super) fn push(&mut self, tags: &[u16; DEPTH_MAX], item: T, len: u32) -> Pushed<T> {
        let buckets = self.tree.buckets_of(tags);
        let mut place = self.place(tags, &buckets);
        if let Place::Queue(index) = place
            && self.tree.node(index).own.len() >= QUEUE_PACKETS_MAX
        {
            return Pushed::Refused(item);
        }
        let mut displaced = None;
        if self.packets.is_full() {
            match self.displace(tags, &buckets) {
                Some(item) => displaced = Some(item),
                None => return Pushed::Refused(item),
            }
            place = self.place(tags, &buckets);
        }
        let index = match place {
            Place::Queue(index) => index,
            Place::Below(parent) => {
                let level = usize::from(self.tree.node(parent).level) + 1;
                let made = self.tree.create(&mut self.packets, parent, &tags[..level], buckets[level - 1]);
                made.unwrap_or(parent)
            }
        };
        if let Err(item) = self.packets.push(&mut self.tree.nodes[index as usize].own, item, len) {
            return Pushed::Refused(item);
        }
        self.count_in(index);
        displaced.map_or(Pushed::Queued, Pushed::Displaced)
    }

    /// Takes the packet whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(T, u32)> {
        let mut index = ROOT;
        while self.tree.node(index).children > 0 {
            match self.choose(index) {
                Some(child) => index = child,
                None => break,
            }
        }
        let (item, len) = self.packets.pop_oldest(&mut self.tree.nodes[index as usize].own)?;
        if self.tree.node(index).children > 0 {
            let node = self.tree.node_mut(index);
            node.turn = node.turn.saturating_sub_unsigned(len);
        }
        self.count_out(index, len);
        Some((item, len))
    }

    /// The deepest node on the path that exists, or below which a queue is due.
    #[inline]
    fn place(&self, tags: &[u16; DEPTH_MAX], buckets: &[u32; DEPTH_MAX]) -> Place {
        let heads = self.tree.heads(buckets);
        let mut index = ROOT;
        for (level, (tag, head)) in tags.iter().zip(heads).enumerate() {
            let node = self.tree.node(index);
            let is_plain = node.children == 0 && index != ROOT;
            let is_split_due = level < self.depth_max && *tag != 0 && node.own.len() >= SPLIT_PACKETS;
            if is_plain && !is_split_due {
                return Place::Queue(index);
            }
            // Packets whose path ends here are told apart from the others by the tag 0, which ends the path.
            match self.tree.find(head, index, *tag) {
                Some(child) => index = child,
                None => return Place::Below(index),
            }
            if *tag == 0 {
                break;
            }
        }
        Place::Queue(index)
    }

    /// The child whose turn it is, or `None` if it is that of the node's own packets.
    #[inline]
    fn choose(&mut self, index: u32) -> Option<u32> {
        loop {
            let node = self.tree.node(index);
            match node.phase {
                Phase::Own if node.turn > 0 && !node.own.is_empty() => return None,
                Phase::Children if node.turn > 0 && !node.round.is_empty() => {
                    return Some(self.next_child(index, false));
                }
                Phase::Unknown if node.turn > 0 && self.unknown_children(index) > 0 => {
                    return Some(self.next_child(index, true));
                }
                _ => self.next_phase(index),
            }
        }
    }

    /// Gives the turn to the next kind of packets: as many quanta as it has queues.
    fn next_phase(&mut self, index: u32) {
        let unknown = self.unknown_children(index);
        let quantum = self.quantum;
        let node = self.tree.node_mut(index);
        let known = node.children - unknown;
        // What its own packets took too much, the children get more in their turn.
        let overdrawn = if node.phase == Phase::Own { node.turn.min(0).unsigned_abs().min(quantum) } else { 0 };
        let (phase, queues) = match node.phase {
            Phase::Children => (Phase::Unknown, unknown.min(known.max(1))),
            Phase::Unknown => (Phase::Own, 1),
            Phase::Own => (Phase::Children, known),
        };
        let turn = u64::from(quantum + overdrawn) * u64::from(queues);
        node.phase = phase;
        node.turn = i32::try_from(turn).unwrap_or(i32::MAX);
    }

    /// Deficit round robin among the children. Without weights a quantum is no smaller than a packet, so a child that
    /// was passed once is ready the next time; with weights the average child is.
    fn next_child(&mut self, index: u32, is_unknown: bool) -> u32 {
        let first =
            if is_unknown { self.tree.sides[index as usize].unknown } else { self.tree.node(index).round }.cursor();
        let mut child = first;
        while self.tree.node(child).deficit <= 0 {
            let quantum = self.child_quantum(index, child, is_unknown);
            let node = self.tree.node_mut(child);
            node.deficit = node.deficit.saturating_add(quantum);
            child = self.tree.after(child);
        }
        if child != first {
            self.tree.round_mut(index, is_unknown).turn_to(child);
        }
        child
    }

    /// Bytes of one turn of a child: a quantum, times its weight over the average weight.
    fn child_quantum(&self, parent: u32, child: u32, is_unknown: bool) -> i32 {
        let mut quantum = u64::from(self.quantum);
        if self.tree.is_weighted() && !is_unknown {
            let side = &self.tree.sides[parent as usize];
            let known = self.tree.node(parent).children - side.unknown_children;
            let weight = self.tree.merging[child as usize].weight;
            quantum = quantum * u64::from(weight) * u64::from(known) / u64::from(side.weight_sum.max(1));
        }
        i32::try_from(quantum).unwrap_or(i32::MAX).max(1)
    }

    fn unknown_children(&self, index: u32) -> u32 {
        if self.tree.is_weighted() { self.tree.sides[index as usize].unknown_children } else { 0 }
    }

    /// Makes room in a full lane for a packet of this path: goes down from the root, at each branch to the child that
    /// has most packets for its weight, and drops the newest of the queue it ends in. `None`: that would be the path's
    /// own queue, or nobody has more.
    fn displace(&mut self, tags: &[u16; DEPTH_MAX], buckets: &[u32; DEPTH_MAX]) -> Option<T> {
        let heads = self.tree.heads(buckets);
        let mut index = ROOT;
        for (tag, head) in tags.iter().zip(heads) {
            let node = self.tree.node(index);
            if node.children == 0 && index != ROOT {
                return None;
            }
            let own_child = self.tree.find(head, index, *tag);
            let own_score = own_child.map_or(256, |child| self.tree.score(child, 1));
            let waiting = node.own.len().saturating_mul(256);
            let (fattest, score) = self.tree.fattest(index);
            if waiting > own_score && waiting >= score {
                return self.drop_newest(index);
            }
            match own_child {
                Some(child) if fattest == child || score <= own_score => index = child,
                None if score <= own_score => return None,
                _ => return self.drop_newest_below(fattest),
            }
        }
        None
    }

    fn drop_newest_below(&mut self, mut index: u32) -> Option<T> {
        loop {
            let waiting = self.tree.node(index).own.len().saturating_mul(256);
            match self.tree.fattest(index) {
                (child, score) if child != NONE && score > waiting => index = child,
                (child, _) if child != NONE && waiting == 0 => index = child,
                _ => return self.drop_newest(index),
            }
        }
    }

    fn drop_newest(&mut self, index: u32) -> Option<T> {
        let (item, _) = self.packets.pop_newest(&mut self.tree.nodes[index as usize].own)?;
        self.count_out(index, 0);
        Some(item)
    }

    #[inline]
    fn count_in(&mut self, mut index: u32) {
        while index != ROOT {
            let node = self.tree.node_mut(index);
            node.backlog += 1;
            let parent = node.parent;
            self.tree.note_score(parent, index);
            index = parent;
        }
        self.tree.node_mut(ROOT).backlog += 1;
    }

    /// One packet of this queue has gone: charges every node above for its bytes and ends those that are empty now.
    #[inline]
    fn count_out(&mut self, mut index: u32, bytes: u32) {
        while index != ROOT {
            let node = self.tree.node_mut(index);
            node.backlog -= 1;
            node.deficit = node.deficit.saturating_sub_unsigned(bytes);
            let (parent, backlog) = (node.parent, node.backlog);
            let above = self.tree.node_mut(parent);
            above.turn = above.turn.saturating_sub_unsigned(bytes);
            if backlog == 0 {
                self.tree.remove(index);
                self.tree.collapse(parent);
            } else {
                self.tree.note_score(parent, index);
            }
            index = parent;
        }
        self.tree.node_mut(ROOT).backlog -= 1;
    }
}

#[cfg(test)]
mod tests;
