//! Each type against what the standard library has for it.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use sluicegate_bounded::{
    Bounded, Buckets, Cache, FreeList, Handle, Index, Link, List, NONE, Pool, Queue, Round, Slab, Wheel, chained,
    linked,
};
use sluicegate_wire::Instant;

const MS: u64 = 1_000_000;

/// What a table of linked values keeps in a slot.
#[derive(Debug, Clone, Copy)]
struct Node {
    key: u64,
    link: Link,
    chain: u32,
}

linked!(Node);
chained!(Node);

fn nodes(max: u32) -> Vec<Node> {
    vec![Node { key: 0, link: Link::NONE, chain: NONE }; max as usize]
}

proptest! {
    #[test]
    fn a_slab_holds_what_a_map_holds_and_handles_go_stale(steps in prop::collection::vec((0u32..12, any::<u16>()), 1..300)) {
        let mut slab = Slab::new("table", 8);
        let mut model: BTreeMap<u32, (Handle, u16)> = BTreeMap::new();
        let mut gone: Vec<Handle> = vec![Handle::NONE];
        for (step, value) in steps {
            if step < 8 {
                let taken = slab.remove(step);
                let expected = model.remove(&step);
                gone.extend(expected.map(|(handle, _)| handle));
                prop_assert_eq!(taken, expected.map(|(_, value)| value));
            } else {
                let vacant = slab.vacant();
                prop_assert_eq!(vacant.is_none(), slab.is_full());
                match slab.insert(value) {
                    Ok(handle) => {
                        prop_assert_eq!(Some(handle.index()), vacant);
                        prop_assert!(model.insert(handle.index(), (handle, value)).is_none(), "a slot twice");
                    }
                    Err(back) => prop_assert_eq!((back, model.len()), (value, 8)),
                }
            }
            prop_assert!(gone.iter().all(|handle| slab.at(*handle).is_none() && slab.resolve(*handle).is_none()));
            for (index, (handle, value)) in &model {
                prop_assert_eq!((slab.get(*index), slab.at(*handle)), (Some(value), Some(value)));
                prop_assert_eq!(slab.handle(*index), Some(*handle));
            }
            let held: Vec<(u32, u16)> = slab.iter().map(|(index, value)| (index, *value)).collect();
            prop_assert_eq!(held, model.iter().map(|(index, (_, value))| (*index, *value)).collect::<Vec<_>>());
            prop_assert_eq!(slab.iter_mut().count(), model.len());
            prop_assert_eq!(slab.used() as usize, model.len());
        }
    }

    #[test]
    fn a_queue_gives_what_a_deque_gives(steps in prop::collection::vec((0u8..4, any::<u16>()), 1..200)) {
        let mut queue = Queue::new("table", 5);
        let mut model = VecDeque::new();
        for (step, value) in steps {
            match step {
                0 => prop_assert_eq!(queue.pop(), model.pop_front()),
                1 => {
                    let oldest = if model.len() == 5 { model.pop_front() } else { None };
                    model.push_back(value);
                    prop_assert_eq!(queue.push_over(value), oldest);
                }
                _ if model.len() == 5 => prop_assert_eq!(queue.push(value), Err(value)),
                _ => {
                    model.push_back(value);
                    prop_assert_eq!(queue.push(value), Ok(()));
                }
            }
            prop_assert_eq!(queue.front(), model.front());
            prop_assert!(queue.iter().eq(&model));
            prop_assert_eq!((queue.is_full(), queue.used() as usize), (model.len() == 5, model.len()));
        }
    }

    #[test]
    fn lists_hold_what_deques_hold(steps in prop::collection::vec((0u8..6, 0u32..10, 0usize..3), 1..300)) {
        let mut nodes = nodes(10);
        let mut lists = [List::EMPTY; 3];
        let mut model: [VecDeque<u32>; 3] = Default::default();
        for (step, node, list) in steps {
            let place = model.iter().position(|list| list.contains(&node));
            match (step, place) {
                (0 | 1, None) => {
                    lists[list].push_back(&mut nodes[..], node);
                    model[list].push_back(node);
                }
                (2, Some(place)) => {
                    lists[place].remove(&mut nodes[..], node);
                    model[place].retain(|other| *other != node);
                }
                (3, _) => prop_assert_eq!(lists[list].pop_front(&nodes[..]), model[list].pop_front()),
                (4, _) => prop_assert_eq!(lists[list].pop_back(&nodes[..]), model[list].pop_back()),
                (5, _) => {
                    let other = std::mem::replace(&mut lists[(list + 1) % 3], List::EMPTY);
                    lists[list].append(&mut nodes[..], other);
                    let mut other = std::mem::take(&mut model[(list + 1) % 3]);
                    model[list].append(&mut other);
                }
                _ => {}
            }
            for (list, model) in lists.iter().zip(&model) {
                prop_assert!(list.iter(&nodes[..]).eq(model.iter().copied()));
                prop_assert_eq!((list.front(), list.back()), (model.front().copied(), model.back().copied()));
                prop_assert_eq!((list.len() as usize, list.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    #[test]
    fn a_round_takes_turns_as_a_rotated_deque_does(steps in prop::collection::vec((0u8..4, 0u32..8), 1..300)) {
        let mut nodes = nodes(8);
        let mut round = Round::EMPTY;
        let mut model: VecDeque<u32> = VecDeque::new();
        for (step, node) in steps {
            let place = model.iter().position(|other| *other == node);
            match (step, place) {
                (0, None) => {
                    round.enter(&mut nodes[..], node);
                    model.push_back(node);
                }
                (1, Some(place)) => {
                    round.leave(&mut nodes[..], node);
                    model.remove(place);
                }
                (2, Some(place)) => {
                    round.turn_to(node);
                    model.rotate_left(place);
                }
                (3, _) if !model.is_empty() => {
                    round.turn_to(Round::after(&nodes[..], round.cursor()));
                    model.rotate_left(1);
                }
                _ => {}
            }
            prop_assert_eq!((round.first(), round.is_empty()), (model.front().copied(), model.is_empty()));
            let mut at = round.cursor();
            for expected in &model {
                prop_assert_eq!(at, *expected);
                at = Round::after(&nodes[..], at);
            }
            prop_assert_eq!(at, round.cursor());
        }
    }

    #[test]
    fn buckets_and_a_free_list_hold_what_a_map_holds(steps in prop::collection::vec((any::<bool>(), 0u64..12), 1..300)) {
        let mut nodes = nodes(8);
        let mut buckets = Buckets::new(8);
        let mut free = FreeList::new(&mut nodes[..], 0, 8);
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        for (enters, key) in steps {
            // Three keys share a bucket.
            let bucket = buckets.of(key % 4);
            let found = Buckets::find(&nodes[..], buckets.first(bucket), |node| node.key == key);
            prop_assert_eq!(found, model.get(&key).copied());
            match (enters, found) {
                (true, None) => match free.take(&nodes[..]) {
                    Some(index) => {
                        nodes[index as usize].key = key;
                        buckets.insert(&mut nodes[..], bucket, index);
                        prop_assert!(!model.values().any(|taken| *taken == index), "a slot twice");
                        model.insert(key, index);
                    }
                    None => prop_assert!(free.is_full() && model.len() == 8),
                },
                (false, Some(index)) => {
                    buckets.remove(&mut nodes[..], bucket, index);
                    free.give_back(&mut nodes[..], index);
                    model.remove(&key);
                }
                _ => {}
            }
            prop_assert_eq!((free.used() as usize, free.is_full()), (model.len(), model.len() == 8));
        }
    }

    /// Several keys in a bucket, several entries a value.
    #[test]
    fn an_index_holds_what_a_list_of_pairs_holds(steps in prop::collection::vec((0u8..3, 0u64..5, 0u32..16), 1..400)) {
        let mut index = Index::new("table", 64, 16);
        let mut pairs: Vec<(u64, u32)> = Vec::new();
        for (step, key, value) in steps {
            let hash = (key << 32) | (key % 2);
            if step > 0 {
                let fits = pairs.len() < 64;
                prop_assert_eq!(index.insert(hash, value), fits);
                if fits {
                    pairs.push((hash, value));
                }
            } else {
                index.remove(value);
                pairs.retain(|(_, other)| *other != value);
            }
            let expected: Vec<u32> = pairs.iter().rev().filter(|pair| pair.0 == hash).map(|pair| pair.1).collect();
            prop_assert_eq!(index.matches(hash).collect::<Vec<_>>(), expected);
            prop_assert_eq!(index.used() as usize, pairs.len());
        }
    }

    /// The model keeps a list for each set; of those that rank alike the one that lies first gives way.
    #[test]
    fn a_cache_forgets_what_a_list_of_sets_forgets(steps in prop::collection::vec((any::<bool>(), 0u64..40, any::<u8>()), 1..300)) {
        let mut cache = Cache::<Option<(u64, u8)>, 3>::new("table", 12);
        let mut sets = [[None::<(u64, u8)>; 3]; 4];
        for (enters, key, rank) in steps {
            let hash = (key % 4) << 62 | key;
            let set = &mut sets[(key % 4) as usize];
            let is_it = |entry: &Option<(u64, u8)>| entry.is_some_and(|(known, _)| known == key);
            let known = set.iter().copied().find(is_it);
            prop_assert_eq!(cache.find(hash, is_it).copied(), known);
            if enters {
                *cache.place(hash, is_it, |entry| entry.map(|(_, rank)| rank)) = Some((key, rank));
                let lowest = || set.iter().enumerate().min_by_key(|(_, entry)| entry.map(|(_, rank)| rank)).unwrap().0;
                let way = set.iter().position(is_it).unwrap_or_else(lowest);
                set[way] = Some((key, rank));
            } else if let Some(entry) = cache.find_mut(hash, is_it) {
                *entry = None;
                *set.iter_mut().find(|entry| is_it(entry)).unwrap() = None;
            }
            prop_assert!(cache.iter().eq(sets.iter().flatten().filter(|entry| entry.is_some())));
            prop_assert_eq!((cache.used() as usize, cache.max()), (sets.iter().flatten().flatten().count(), 12));
        }
    }

    #[test]
    fn a_wheel_fires_what_a_sorted_map_fires(
        steps in prop::collection::vec((0u32..20, 0u64..6_000, any::<bool>(), 0u64..40), 1..200),
    ) {
        let mut wheel = Wheel::new("table", 20, MS);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 0;
        for (id, ms, cancel, hurry) in steps {
            if cancel {
                wheel.cancel(id);
                model.remove(&id);
            } else {
                let at = now + 1 + ms;
                wheel.schedule(id, Instant::from_millis(now), Instant::from_millis(at));
                model.insert(id, at);
            }
            if ms % 3 == 0 {
                // Mostly small steps, and now and then one over several turns of the wheel.
                now += if hurry == 0 { ms * 3 } else { ms / 30 };
                let expected: Vec<u32> = model.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
                model.retain(|_, at| *at > now);
                let mut fired: Vec<u32> = std::iter::from_fn(|| wheel.pop_due(Instant::from_millis(now))).collect();
                fired.sort_unstable();
                prop_assert_eq!(fired, expected);
            }
            prop_assert_eq!(wheel.used() as usize, model.len());
            let first = model.values().min().map(|at| Instant::from_millis(*at));
            prop_assert_eq!(wheel.next_due().is_some(), first.is_some());
            prop_assert!(wheel.next_due() <= first, "nothing is slept through");
            if first.is_some_and(|first| first < Instant::from_millis(now + 1_000)) && model.values().all(|at| at - now < 1_000) {
                prop_assert_eq!(wheel.next_due(), first, "what is near is known to the tick");
            }
        }
    }

    #[test]
    fn a_pool_gives_back_what_was_stored(steps in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..12)), 1..200)) {
        let mut pool = Pool::new("table", 4, 10);
        let mut model = VecDeque::new();
        for (stores, bytes) in steps {
            if stores {
                let (head, tail) = bytes.split_at(bytes.len() / 2);
                let fits = model.len() < 4 && bytes.len() <= pool.packet_bytes_max();
                let stored = pool.store_parts(&[head, tail]);
                prop_assert_eq!(stored.is_some(), fits);
                if let Some(buffer) = stored {
                    pool.bytes_mut(&buffer).reverse();
                    model.push_back((buffer, bytes.into_iter().rev().collect::<Vec<u8>>()));
                }
            } else if let Some((buffer, _)) = model.pop_front() {
                pool.free(buffer);
            }
            prop_assert!(model.iter().all(|(buffer, bytes)| pool.bytes(buffer) == bytes), "neighbours are untouched");
            prop_assert_eq!((pool.used() as usize, pool.max()), (model.len(), 4));
        }
    }
}
