use alloc::{boxed::Box, vec, vec::Vec};

use super::{
    super::{
        DEPTH_MAX, KnownPaths, Merge, fold,
        packets::{NONE, Packets, Queue},
    },
    list,
};

pub(super) const ROOT: u32 = 0;

/// The node is in one of the lists from which merges choose.
const LISTED: u8 = 1;
/// The node's prefix is known; without a table of known paths, every node's is.
const KNOWN: u8 = 2;

/// Whose turn it is in a node that has been split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The children, one after another; with weights: those with a known prefix.
    Children,
    /// With weights: the children whose prefix is not known.
    Unknown,
    /// The packets that have no queue of their own: what came before the split, and what was merged.
    Own,
}

/// A request queue, or the branch that it was split into. One line of memory: what every packet touches.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) parent: u32,
    /// Next node with the same bucket of the hash, or next free node.
    chain: u32,
    pub(super) tag: u16,
    pub(super) level: u8,
    marks: u8,
    pub(super) phase: Phase,
    /// Bytes left of the phase.
    pub(super) turn: i32,
    pub(super) deficit: i32,
    /// Neighbours in the round of the parent.
    pub(super) next: u32,
    prev: u32,
    pub(super) own: Queue,
    /// The child whose turn it is.
    pub(super) cursor: u32,
    /// Children; 0: the node is a plain queue.
    pub(super) children: u32,
    /// Packets in the node's own queue and below.
    pub(super) backlog: u32,
    /// The child with most packets for its weight, as of the last packet in or out of each, and what it had.
    fattest: u32,
    score: u32,
}

/// What only making, ending and merging of queues touches.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// Neighbours in the list that merges choose from.
    pub(super) next: u32,
    pub(super) prev: u32,
    bucket: u32,
    pub(super) weight: u32,
}

/// What only branches with unknown prefixes below have.
#[derive(Debug, Clone)]
pub(super) struct Side {
    /// The plain queues with unknown prefix right below.
    unknown_leaves: u32,
    unknown_leaf_count: u32,
    /// With weights: the children with unknown prefix, and the weight of all others.
    pub(super) unknown_cursor: u32,
    pub(super) unknown_children: u32,
    pub(super) weight_sum: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

/// The tree of request queues in flat arrays: it has as many nodes as there may be queues, and never more.
///
/// A node exists while there are packets in it or below. Children are found by a keyed hash of the whole prefix, so
/// that the look-ups of all levels of a path do not wait for each other.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Box<[Node]>,
    pub(super) links: Box<[Link]>,
    pub(super) sides: Box<[Side]>,
    buckets: Box<[u32]>,
    secret: [u64; 2],
    free: u32,
    used: u32,
    /// Plain queues of each level, oldest first: what [`Merge::DeepestFirst`] chooses from.
    levels: [u32; DEPTH_MAX + 1],
    level_counts: [u32; DEPTH_MAX + 1],
    /// [`Merge::LargestExcess`]: branches by their number of unknown plain queues; else empty.
    excesses: Box<[u32]>,
    excess_max: u32,
    known: KnownPaths,
    is_weighted: bool,
    pub(super) splits: u64,
    pub(super) merges: u64,
}

const EXCESS_MAX: usize = 1 << 16;

impl Tree {
    pub(super) fn new(queues_max: u32, merge: Merge, is_weighted: bool, secret: [u64; 2]) -> Self {
        // The root is no queue.
        let nodes = queues_max + 1;
        let node = |index: u32| Node {
            parent: NONE,
            chain: if index + 1 == nodes { NONE } else { index + 1 },
            tag: 0,
            level: 0,
            marks: 0,
            phase: Phase::Children,
            turn: 0,
            deficit: 0,
            next: NONE,
            prev: NONE,
            own: Queue::EMPTY,
            cursor: NONE,
            children: 0,
            backlog: 0,
            fattest: NONE,
            score: 0,
        };
        let side = Side {
            unknown_leaves: NONE,
            unknown_leaf_count: 0,
            unknown_cursor: NONE,
            unknown_children: 0,
            weight_sum: 0,
        };
        let link = Link { next: NONE, prev: NONE, bucket: NONE, weight: 1 };
        let has_unknown = is_weighted || merge == Merge::LargestExcess;
        let excesses = if merge == Merge::LargestExcess { EXCESS_MAX + 1 } else { 0 };
        Self {
            nodes: (0..nodes).map(node).collect::<Vec<_>>().into_boxed_slice(),
            links: vec![link; nodes as usize].into_boxed_slice(),
            sides: vec![side; if has_unknown { nodes as usize } else { 0 }].into_boxed_slice(),
            buckets: vec![NONE; nodes.next_power_of_two() as usize].into_boxed_slice(),
            secret,
            free: 1,
            used: 0,
            levels: [NONE; DEPTH_MAX + 1],
            level_counts: [0; DEPTH_MAX + 1],
            excesses: vec![NONE; excesses].into_boxed_slice(),
            excess_max: 0,
            known: KnownPaths::default(),
            is_weighted,
            splits: 0,
            merges: 0,
        }
    }

    pub(super) fn know(&mut self, known: KnownPaths) -> KnownPaths {
        core::mem::replace(&mut self.known, known)
    }

    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    pub(super) const fn max(&self) -> u32 {
        self.nodes.len() as u32 - 1
    }

    /// Queues at each level, 1 to [`DEPTH_MAX`].
    pub(super) fn by_level(&self) -> [u32; DEPTH_MAX] {
        core::array::from_fn(|index| self.level_counts[index + 1])
    }

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    #[inline]
    pub(super) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// The buckets of all prefixes of a path.
    #[inline]
    pub(super) fn buckets_of(&self, tags: &[u16; DEPTH_MAX]) -> [u32; DEPTH_MAX] {
        let mut hash = self.secret[0];
        let mask = self.buckets.len() as u32 - 1;
        tags.map(|tag| {
            hash = fold(hash ^ u64::from(tag), self.secret[1]);
            hash as u32 & mask
        })
    }

    /// The first nodes in these buckets: loads that do not wait for each other.
    #[inline]
    pub(super) fn heads(&self, buckets: &[u32; DEPTH_MAX]) -> [u32; DEPTH_MAX] {
        buckets.map(|bucket| self.buckets[bucket as usize])
    }

    #[inline]
    pub(super) fn find(&self, head: u32, parent: u32, tag: u16) -> Option<u32> {
        let mut index = head;
        while let Some(node) = self.nodes.get(index as usize) {
            if node.parent == parent && node.tag == tag {
                return Some(index);
            }
            index = node.chain;
        }
        None
    }

    /// Makes the queue of `prefix` below `parent`, splitting or merging others if need be; `None` if every queue is
    /// taken and none as deep as this can be merged.
    pub(super) fn create<T>(
        &mut self,
        packets: &mut Packets<T>,
        parent: u32,
        prefix: &[u16],
        bucket: u32,
    ) -> Option<u32> {
        let level = prefix.len();
        let was_plain = self.node(parent).children == 0 && parent != ROOT;
        if was_plain {
            self.unlist(parent);
        }
        if self.free == NONE {
            // Counted in advance, so that losing its last child does not make the parent a plain queue again.
            self.node_mut(parent).children += 1;
            let merged = self.merge(packets, level);
            self.node_mut(parent).children -= 1;
            if !merged {
                if was_plain {
                    self.list(parent);
                }
                return None;
            }
        }
        if was_plain {
            self.splits += 1;
            // What waited before the split has waited longest: its turn follows.
            let node = self.node_mut(parent);
            (node.phase, node.turn) = (Phase::Unknown, 0);
        }
        let known = if self.known.is_empty() { 1 } else { self.known.weight(prefix) };
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        self.free = node.chain;
        *node = Node {
            parent,
            chain: self.buckets[bucket as usize],
            tag: prefix[level - 1],
            level: level as u8,
            marks: if known > 0 { KNOWN } else { 0 },
            phase: Phase::Children,
            turn: 0,
            deficit: 0,
            next: NONE,
            prev: NONE,
            own: Queue::EMPTY,
            cursor: NONE,
            children: 0,
            backlog: 0,
            fattest: NONE,
            score: 0,
        };
        self.buckets[bucket as usize] = index;
        let link = &mut self.links[index as usize];
        (link.bucket, link.weight) = (bucket, if self.is_weighted { known.max(1) } else { 1 });
        self.used += 1;
        self.level_counts[level] += 1;
        self.enter(parent, index);
        self.list(index);
        Some(index)
    }

    /// Ends an empty node without children.
    pub(super) fn remove(&mut self, index: u32) {
        if self.node(index).marks & LISTED != 0 {
            self.unlist(index);
        }
        let (parent, level) = (self.node(index).parent, self.node(index).level);
        self.leave(parent, index);
        if self.node(parent).fattest == index {
            (self.node_mut(parent).fattest, self.node_mut(parent).score) = (NONE, 0);
        }
        let chain = self.node(index).chain;
        let head = &mut self.buckets[self.links[index as usize].bucket as usize];
        if *head == index {
            *head = chain;
        } else {
            let mut before = *head;
            while self.node(before).chain != index {
                before = self.node(before).chain;
            }
            self.node_mut(before).chain = chain;
        }
        (self.node_mut(index).parent, self.node_mut(index).chain) = (NONE, self.free);
        self.free = index;
        self.used -= 1;
        self.level_counts[usize::from(level)] -= 1;
    }

    /// A branch that lost its last child but still has packets is a plain queue again.
    pub(super) fn collapse(&mut self, index: u32) {
        let node = self.node(index);
        if index != ROOT && node.children == 0 && !node.own.is_empty() && node.marks & LISTED == 0 {
            self.list(index);
        }
    }

    /// The child with most packets for its weight, and how many these are (scaled, see [`Self::score`]).
    pub(super) fn fattest(&self, index: u32) -> (u32, u32) {
        let node = self.node(index);
        match node.fattest {
            NONE => {
                let unknown = if self.is_weighted { self.sides[index as usize].unknown_cursor } else { NONE };
                let child = if node.cursor == NONE { unknown } else { node.cursor };
                (child, if child == NONE { 0 } else { self.score(child, 0) })
            }
            child => (child, node.score),
        }
    }

    /// Packets in a node for its weight, in 256ths, if it had `more`.
    #[inline]
    pub(super) fn score(&self, index: u32, more: u32) -> u32 {
        let scaled = (self.node(index).backlog + more).saturating_mul(256);
        if self.is_weighted { scaled / self.links[index as usize].weight } else { scaled }
    }

    /// Keeps the parent's idea of its fattest child.
    #[inline]
    pub(super) fn note_score(&mut self, parent: u32, child: u32) {
        let score = self.score(child, 0);
        let parent = self.node_mut(parent);
        if parent.fattest == child || score > parent.score {
            (parent.fattest, parent.score) = (child, score);
        }
    }

    pub(super) fn is_weighted(&self) -> bool {
        self.is_weighted
    }

    /// Chooses the queue that is merged into its parent next, for a queue that is wanted at `level`.
    pub(super) fn victim(&self, level: usize) -> Option<u32> {
        if self.excess_max > 0 {
            let branch = self.excesses[self.excess_max as usize];
            return Some(self.sides[branch as usize].unknown_leaves);
        }
        self.levels[level..].iter().rev().copied().find(|head| *head != NONE)
    }

    /// Gives up one queue: its packets join its parent's own. See [`Merge`] for which.
    fn merge<T>(&mut self, packets: &mut Packets<T>, level: usize) -> bool {
        let Some(index) = self.victim(level) else { return false };
        let merged = core::mem::replace(&mut self.node_mut(index).own, Queue::EMPTY);
        let parent = self.node(index).parent;
        self.remove(index);
        let own = packets.join(self.node(parent).own, merged);
        self.node_mut(parent).own = own;
        self.collapse(parent);
        self.merges += 1;
        true
    }

    /// A new node goes to the end of its parent's round, with one turn's bytes.
    fn enter(&mut self, parent: u32, index: u32) {
        let is_unknown = self.is_unknown(index);
        let first = if is_unknown { self.sides[parent as usize].unknown_cursor } else { self.node(parent).cursor };
        let (next, prev) = if first == NONE { (index, index) } else { (first, self.node(first).prev) };
        (self.node_mut(index).next, self.node_mut(index).prev) = (next, prev);
        self.node_mut(prev).next = index;
        self.node_mut(next).prev = index;
        if first == NONE {
            self.set_cursor(parent, is_unknown, index);
        }
        self.node_mut(parent).children += 1;
        if self.is_weighted {
            let weight = self.links[index as usize].weight;
            let side = &mut self.sides[parent as usize];
            if is_unknown {
                side.unknown_children += 1;
            } else {
                side.weight_sum += weight;
            }
        }
    }

    fn leave(&mut self, parent: u32, index: u32) {
        let is_unknown = self.is_unknown(index);
        let Node { next, prev, .. } = *self.node(index);
        if next == index {
            self.set_cursor(parent, is_unknown, NONE);
        } else {
            self.node_mut(prev).next = next;
            self.node_mut(next).prev = prev;
            let cursor = if is_unknown { self.sides[parent as usize].unknown_cursor } else { self.node(parent).cursor };
            if cursor == index {
                self.set_cursor(parent, is_unknown, next);
            }
        }
        self.node_mut(parent).children -= 1;
        if self.is_weighted {
            let weight = self.links[index as usize].weight;
            let side = &mut self.sides[parent as usize];
            if is_unknown {
                side.unknown_children -= 1;
            } else {
                side.weight_sum -= weight;
            }
        }
    }

    pub(super) fn set_cursor(&mut self, parent: u32, is_unknown: bool, index: u32) {
        if is_unknown {
            self.sides[parent as usize].unknown_cursor = index;
        } else {
            self.node_mut(parent).cursor = index;
        }
    }

    fn is_unknown(&self, index: u32) -> bool {
        self.is_weighted && self.node(index).marks & KNOWN == 0
    }

    /// Whether merges find this plain queue through its parent's excess.
    fn is_excess(&self, index: u32) -> bool {
        !self.excesses.is_empty() && self.node(index).marks & KNOWN == 0
    }

    fn list(&mut self, index: u32) {
        self.node_mut(index).marks |= LISTED;
        if self.is_excess(index) {
            let parent = self.node(index).parent;
            let head = self.sides[parent as usize].unknown_leaves;
            let head = list::append(&mut self.links, head, index);
            self.set_excess(parent, head, self.sides[parent as usize].unknown_leaf_count + 1);
        } else {
            let head = &mut self.levels[usize::from(self.nodes[index as usize].level)];
            *head = list::append(&mut self.links, *head, index);
        }
    }

    fn unlist(&mut self, index: u32) {
        self.node_mut(index).marks &= !LISTED;
        if self.is_excess(index) {
            let parent = self.node(index).parent;
            let head = self.sides[parent as usize].unknown_leaves;
            let head = list::remove(&mut self.links, head, index);
            self.set_excess(parent, head, self.sides[parent as usize].unknown_leaf_count - 1);
        } else {
            let head = &mut self.levels[usize::from(self.nodes[index as usize].level)];
            *head = list::remove(&mut self.links, *head, index);
        }
    }

    /// Moves a branch to where its new number of unknown plain queues belongs.
    fn set_excess(&mut self, branch: u32, unknown_leaves: u32, count: u32) {
        let side = &mut self.sides[branch as usize];
        let before = core::mem::replace(&mut side.unknown_leaf_count, count);
        side.unknown_leaves = unknown_leaves;
        if before > 0 {
            let head = &mut self.excesses[before as usize];
            *head = list::remove(&mut self.links, *head, branch);
        }
        if count > 0 {
            let head = &mut self.excesses[count as usize];
            *head = list::append(&mut self.links, *head, branch);
        }
        self.excess_max = self.excess_max.max(count);
        while self.excess_max > 0 && self.excesses[self.excess_max as usize] == NONE {
            self.excess_max -= 1;
        }
    }
}
