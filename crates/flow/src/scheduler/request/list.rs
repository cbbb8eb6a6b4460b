//! Circular lists of tree nodes, linked by index. A list is named by its head; the head's `prev` is the tail.

use super::{super::packets::NONE, tree::Side};

/// Appends `index` and returns the list's head.
pub(super) fn append(sides: &mut [Side], head: u32, index: u32) -> u32 {
    if head == NONE {
        (sides[index as usize].next, sides[index as usize].prev) = (index, index);
        return index;
    }
    let tail = sides[head as usize].prev;
    (sides[index as usize].next, sides[index as usize].prev) = (head, tail);
    sides[tail as usize].next = index;
    sides[head as usize].prev = index;
    head
}

/// Takes `index` out and returns the list's head.
pub(super) fn remove(sides: &mut [Side], head: u32, index: u32) -> u32 {
    let Side { next, prev, .. } = sides[index as usize];
    if next == index {
        return NONE;
    }
    sides[prev as usize].next = next;
    sides[next as usize].prev = prev;
    if head == index { next } else { head }
}
