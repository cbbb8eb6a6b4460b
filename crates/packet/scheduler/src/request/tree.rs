use alloc::{boxed::Box, vec};

use sluicegate_bounded::{Buckets, FreeList, Gauge, Link, List, NONE, Round, chained, linked};

use super::super::{DEPTH_MAX, KnownPaths, Merge, fold, packets::Packets};

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
    link: Link,
    pub(super) own: List,
    /// The children; with weights: those with a known prefix.
    pub(super) round: Round,
    /// Children; 0: the node is a plain queue.
    pub(super) children: u32,
    /// Packets in the node's own queue and below.
    pub(super) backlog: u32,
    /// The child with most packets for its weight, as of the last packet in or out of each, and what it had.
    fattest: u32,
    score: u32,
}

linked!(Node);
chained!(Node);

/// What only making, ending and merging of queues touches.
#[derive(Debug, Clone)]
pub(super) struct Merging {
    /// Neighbours in the list that merges choose from, oldest first.
    link: Link,
    bucket: u32,
    pub(super) weight: u32,
}

linked!(Merging);

/// What only branches with unknown prefixes below have.
#[derive(Debug, Clone)]
pub(super) struct Side {
    /// The plain queues with unknown prefix right below.
    unknown_leaves: Round,
    unknown_leaf_count: u32,
    /// With weights: the children with unknown prefix, and the weight of all others.
    pub(super) unknown: Round,
    pub(super) unknown_children: u32,
    pub(super) weight_sum: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    /// No queue yet.
    const EMPTY: Self = Self {
        parent: NONE,
        chain: NONE,
        tag: 0,
        level: 0,
        marks: 0,
        phase: Phase::Children,
        turn: 0,
        deficit: 0,
        link: Link::NONE,
        own: List::EMPTY,
        round: Round::EMPTY,
        children: 0,
        backlog: 0,
        fattest: NONE,
        score: 0,
    };
}

/// The tree of request queues in flat arrays: it has as many nodes as there may be queues, and never more.
///
/// A node exists while there are packets in it or below. Children are found by a keyed hash of the whole prefix, so
/// that the look-ups of all levels of a path do not wait for each other.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Box<[Node]>,
    pub(super) merging: Box<[Merging]>,
    pub(super) sides: Box<[Side]>,
    buckets: Buckets,
    secret: [u64; 2],
    free: FreeList,
    /// Plain queues of each level, oldest first: what [`Merge::DeepestFirst`] chooses from.
    levels: [Round; DEPTH_MAX + 1],
    level_counts: [u32; DEPTH_MAX + 1],
    /// [`Merge::LargestExcess`]: branches by their number of unknown plain queues; else empty.
    excesses: Box<[Round]>,
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
        let max = queues_max as usize + 1;
        let mut nodes = vec![Node::EMPTY; max].into_boxed_slice();
        let merging = Merging { link: Link::NONE, bucket: NONE, weight: 1 };
        let side = Side {
            unknown_leaves: Round::EMPTY,
            unknown_leaf_count: 0,
            unknown: Round::EMPTY,
            unknown_children: 0,
            weight_sum: 0,
        };
        let has_unknown = is_weighted || merge == Merge::LargestExcess;
        let excesses = if merge == Merge::LargestExcess { EXCESS_MAX + 1 } else { 0 };
        Self {
            free: FreeList::new(&mut nodes[..], ROOT + 1, queues_max + 1),
            nodes,
            merging: vec![merging; max].into_boxed_slice(),
            sides: vec![side; if has_unknown { max } else { 0 }].into_boxed_slice(),
            buckets: Buckets::new(queues_max + 1),
            secret,
            levels: [Round::EMPTY; DEPTH_MAX + 1],
            level_counts: [0; DEPTH_MAX + 1],
            excesses: vec![Round::EMPTY; excesses].into_boxed_slice(),
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

    pub(super) const fn gauge(&self) -> Gauge {
        Gauge { name: "link_request_queues", used: self.free.used() as u64, max: self.nodes.len() as u64 - 1 }
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
        tags.map(|tag| {
            hash = fold(hash ^ u64::from(tag), self.secret[1]);
            self.buckets.of(hash)
        })
    }

    /// The first nodes in these buckets: loads that do not wait for each other.
    #[inline]
    pub(super) fn heads(&self, buckets: &[u32; DEPTH_MAX]) -> [u32; DEPTH_MAX] {
        buckets.map(|bucket| self.buckets.first(bucket))
    }

    #[inline]
    pub(super) fn find(&self, head: u32, parent: u32, tag: u16) -> Option<u32> {
        Buckets::find(&self.nodes[..], head, |node| node.parent == parent && node.tag == tag)
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
        if self.free.is_full() {
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
        let index = self.free.take(&self.nodes[..])?;
        self.nodes[index as usize] = Node {
            parent,
            tag: prefix[level - 1],
            level: level as u8,
            marks: if known > 0 { KNOWN } else { 0 },
            ..Node::EMPTY
        };
        self.buckets.insert(&mut self.nodes[..], bucket, index);
        let merging = &mut self.merging[index as usize];
        (merging.bucket, merging.weight) = (bucket, if self.is_weighted { known.max(1) } else { 1 });
        self.level_counts[level] += 1;
        self.change_round(index, Round::enter, 1);
        self.list(index);
        Some(index)
    }

    /// Ends an empty node without children.
    pub(super) fn remove(&mut self, index: u32) {
        if self.node(index).marks & LISTED != 0 {
            self.unlist(index);
        }
        let (parent, level) = (self.node(index).parent, self.node(index).level);
        self.change_round(index, Round::leave, -1);
        if self.node(parent).fattest == index {
            (self.node_mut(parent).fattest, self.node_mut(parent).score) = (NONE, 0);
        }
        self.buckets.remove(&mut self.nodes[..], self.merging[index as usize].bucket, index);
        self.node_mut(index).parent = NONE;
        self.free.give_back(&mut self.nodes[..], index);
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
                let unknown = if self.is_weighted { self.sides[index as usize].unknown.cursor() } else { NONE };
                let child = node.round.first().unwrap_or(unknown);
                (child, if child == NONE { 0 } else { self.score(child, 0) })
            }
            child => (child, node.score),
        }
    }

    /// Packets in a node for its weight, in 256ths, if it had `more`.
    #[inline]
    pub(super) fn score(&self, index: u32, more: u32) -> u32 {
        let scaled = (self.node(index).backlog + more).saturating_mul(256);
        if self.is_weighted { scaled / self.merging[index as usize].weight } else { scaled }
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

    /// The child whose turn is after that of `child`.
    #[inline]
    pub(super) fn after(&self, child: u32) -> u32 {
        Round::after(&self.nodes[..], child)
    }

    pub(super) fn is_weighted(&self) -> bool {
        self.is_weighted
    }

    /// Chooses the queue that is merged into its parent next, for a queue that is wanted at `level`.
    pub(super) fn victim(&self, level: usize) -> Option<u32> {
        if self.excess_max > 0 {
            let branch = self.excesses[self.excess_max as usize].first()?;
            return self.sides[branch as usize].unknown_leaves.first();
        }
        self.levels[level..].iter().rev().find_map(|level| level.first())
    }

    /// Gives up one queue: its packets join its parent's own. See [`Merge`] for which.
    fn merge<T>(&mut self, packets: &mut Packets<T>, level: usize) -> bool {
        let Some(index) = self.victim(level) else { return false };
        let merged = core::mem::replace(&mut self.node_mut(index).own, List::EMPTY);
        let parent = self.node(index).parent;
        self.remove(index);
        let own = packets.join(self.node(parent).own, merged);
        self.node_mut(parent).own = own;
        self.collapse(parent);
        self.merges += 1;
        true
    }

    /// Has a child enter its parent's round, at the end and with one turn's bytes, or leave it.
    fn change_round(&mut self, index: u32, change: impl FnOnce(&mut Round, &mut [Node], u32), by: i32) {
        let (parent, is_unknown) = (self.node(index).parent, self.is_unknown(index));
        let mut round = *self.round_mut(parent, is_unknown);
        change(&mut round, &mut self.nodes[..], index);
        *self.round_mut(parent, is_unknown) = round;
        let children = self.node(parent).children.strict_add_signed(by);
        self.node_mut(parent).children = children;
        if self.is_weighted {
            let weight = self.merging[index as usize].weight as i32;
            let side = &mut self.sides[parent as usize];
            if is_unknown {
                side.unknown_children = side.unknown_children.strict_add_signed(by);
            } else {
                side.weight_sum = side.weight_sum.strict_add_signed(by * weight);
            }
        }
    }

    /// The round of those children whose prefix is known, or is not.
    #[inline]
    pub(super) fn round_mut(&mut self, parent: u32, is_unknown: bool) -> &mut Round {
        if is_unknown { &mut self.sides[parent as usize].unknown } else { &mut self.nodes[parent as usize].round }
    }

    fn is_unknown(&self, index: u32) -> bool {
        self.is_weighted && self.node(index).marks & KNOWN == 0
    }

    fn list(&mut self, index: u32) {
        self.node_mut(index).marks |= LISTED;
        self.change_list(index, Round::enter, 1);
    }

    fn unlist(&mut self, index: u32) {
        self.node_mut(index).marks &= !LISTED;
        self.change_list(index, Round::leave, -1);
    }

    /// Has a plain queue enter the list that merges find it in, or leave it.
    fn change_list(&mut self, index: u32, change: impl FnOnce(&mut Round, &mut [Merging], u32), by: i32) {
        let merging = &mut self.merging[..];
        if self.excesses.is_empty() || self.nodes[index as usize].marks & KNOWN != 0 {
            return change(&mut self.levels[usize::from(self.nodes[index as usize].level)], merging, index);
        }
        let parent = self.nodes[index as usize].parent;
        let side = &mut self.sides[parent as usize];
        change(&mut side.unknown_leaves, merging, index);
        let count = side.unknown_leaf_count.strict_add_signed(by);
        self.set_excess(parent, count);
    }

    /// Moves a branch to where its new number of unknown plain queues belongs.
    fn set_excess(&mut self, branch: u32, count: u32) {
        let before = core::mem::replace(&mut self.sides[branch as usize].unknown_leaf_count, count);
        if before > 0 {
            self.excesses[before as usize].leave(&mut self.merging[..], branch);
        }
        if count > 0 {
            self.excesses[count as usize].enter(&mut self.merging[..], branch);
        }
        self.excess_max = self.excess_max.max(count);
        while self.excess_max > 0 && self.excesses[self.excess_max as usize].is_empty() {
            self.excess_max -= 1;
        }
    }
}
