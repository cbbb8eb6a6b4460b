//! Circular lists of tree nodes, linked by index. A list is named by its head; the head's `prev` is the tail.

use super::{super::packets::NONE, tree::Link};

/// Appends `index` and returns the list's head.
pub(super) fn append(links: &mut [Link], head: u32, index: u32) -> u32 {
    if head == NONE {
        (links[index as usize].next, links[index as usize].prev) = (index, index);
        return index;
    }
    let tail = links[head as usize].prev;
    (links[index as usize].next, links[index as usize].prev) = (head, tail);
    links[tail as usize].next = index;
    links[head as usize].prev = index;
    head
}

/// Takes `index` out and returns the list's head.
pub(super) fn remove(links: &mut [Link], head: u32, index: u32) -> u32 {
    let Link { next, prev, .. } = links[index as usize];
    if next == index {
        return NONE;
    }
    links[prev as usize].next = next;
    links[next as usize].prev = prev;
    if head == index { next } else { head }
}
