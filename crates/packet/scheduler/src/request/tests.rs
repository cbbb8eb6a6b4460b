use std::{collections::HashMap, vec::Vec};

use proptest::prelude::*;
use sluicegate_wire::capability::PathId;

use super::*;
use crate::Merge;

type Tags = [u16; DEPTH_MAX];

fn requests(queues_max: u32, packets_max: u32, merge: Merge, weights: Weights) -> Requests<u32> {
    let config = Config {
        packets_max: [0, packets_max, 0, 0],
        request_queues_max: queues_max,
        packet_bytes_max: 1_500,
        merge,
        weights,
        ..Config::for_rate(1_000_000)
    };
    Requests::new(&config, [0x1234_5678_9abc_def1, 0x9e37_79b9_7f4a_7c15])
}

fn known(paths: &[Tags]) -> KnownPaths {
    KnownPaths::build(paths.iter().map(|tags| tags.map(PathId)), 1_000).unwrap()
}

/// Packets of the subtree, after checking everything that must hold in it.
fn check_below(requests: &Requests<u32>, index: u32) -> u32 {
    let node = requests.tree.node(index);
    let mut backlog = node.own.len();
    let mut children = 0;
    let unknown = requests.tree.sides.get(index as usize).map_or(NONE, |side| side.unknown.cursor());
    for cursor in [node.round.cursor(), unknown] {
        let mut child = cursor;
        while child != NONE {
            assert_eq!(requests.tree.node(child).parent, index);
            assert_eq!(requests.tree.node(child).level, node.level + 1);
            let below = check_below(requests, child);
            assert!(below > 0, "a queue without packets ends");
            backlog += below;
            children += 1;
            child = requests.tree.after(child);
            if child == cursor {
                break;
            }
        }
    }
    assert_eq!((node.backlog, node.children), (backlog, children));
    backlog
}

fn check(requests: &Requests<u32>) {
    assert_eq!(check_below(requests, ROOT), requests.packets.used());
    let queues = requests.queues();
    assert!(queues.used <= queues.max);
    assert_eq!(requests.queues_by_level().iter().sum::<u32>(), queues.used as u32);
}

#[test]
fn a_queue_is_split_only_when_it_is_congested_and_is_one_again_when_it_is_empty() {
    let mut requests = requests(100, 100, Merge::DeepestFirst, Weights::Equal);
    for n in 0..SPLIT_PACKETS {
        assert!(matches!(requests.push(&[1, n as u16 + 1, 0, 0, 0], n, 100), Pushed::Queued));
    }
    assert_eq!(requests.queues_by_level(), [1, 0, 0, 0, 0], "one queue for a neighbour without congestion");
    for n in 0..4 {
        assert!(matches!(requests.push(&[1, n + 1, 0, 0, 0], 100 + u32::from(n), 100), Pushed::Queued));
    }
    assert_eq!(requests.queues_by_level(), [1, 4, 0, 0, 0]);
    check(&requests);
    let mut order = Vec::new();
    while let Some((n, _)) = requests.pop() {
        order.push(n);
        check(&requests);
    }
    assert_eq!(order.len(), 12);
    assert_eq!(order[0], 0, "who has waited longest goes first");
    assert_eq!((requests.queues().used, requests.queues().max), (0, 100));
}

#[test]
fn a_path_that_ends_at_a_congested_neighbour_has_a_queue_of_its_own() {
    let mut requests = requests(100, 100, Merge::DeepestFirst, Weights::Equal);
    for n in 0..40 {
        let _ = requests.push(&[1, 5, 0, 0, 0], n, 100);
    }
    let _ = requests.push(&[1, 0, 0, 0, 0], 99, 100);
    let position = std::iter::from_fn(|| requests.pop()).position(|(n, _)| n == 99).unwrap();
    assert!(position < 40 * 2 / 3, "position {position} of 41");
}

#[test]
fn neighbours_share_bytes_however_large_their_requests_and_however_many_paths_they_claim() {
    let mut requests = requests(1_000, 4_000, Merge::DeepestFirst, Weights::Equal);
    for n in 0..2_000_u16 {
        let _ = requests.push(&[1, n % 50 + 1, n + 1, 7, 8], 1, 100);
        let _ = requests.push(&[2, 3, n % 2 + 4, 0, 0], 2, 1_400);
    }
    let mut bytes = [0; 3];
    for (who, len) in std::iter::from_fn(|| requests.pop()).take(1_500) {
        bytes[who as usize] += len;
    }
    assert!(bytes[1].abs_diff(bytes[2]) < 5_000, "{bytes:?}");
}

#[test]
fn a_full_lane_drops_from_the_neighbour_who_has_most() {
    let mut requests = requests(1_000, 50, Merge::DeepestFirst, Weights::Equal);
    for n in 0..50 {
        assert!(matches!(requests.push(&[1, n as u16 + 1, 7, 0, 0], n, 100), Pushed::Queued));
    }
    for n in 0..25 {
        let pushed = requests.push(&[2, 1, 0, 0, 0], 100 + n, 100);
        assert!(matches!(pushed, Pushed::Displaced(0..50)), "{n} {pushed:?}");
        check(&requests);
    }
    assert!(matches!(requests.push(&[2, 1, 0, 0, 0], 200, 100), Pushed::Refused(200)), "half of the room is its share");
    assert!(matches!(requests.push(&[1, 900, 0, 0, 0], 201, 100), Pushed::Refused(201)));
    assert!(matches!(requests.push(&[3, 1, 0, 0, 0], 202, 100), Pushed::Displaced(_)));
}

/// Fills all queues with made-up paths behind neighbour 1 and returns the lane.
fn full_of_made_up_paths(merge: Merge, weights: Weights, known_paths: &[Tags]) -> Requests<u32> {
    let mut requests = requests(200, 10_000, merge, weights);
    requests.know(known(known_paths));
    for n in 0..3_000_u32 {
        let (second, third) = ((n % 16 + 100) as u16, (n / 3 + 1_000) as u16);
        let _ = requests.push(&[1, second, third, third + 1, third + 2], n, 100);
    }
    check(&requests);
    assert_eq!((requests.queues().used, requests.queues().max), (200, 200));
    requests
}

#[test]
fn tva_15_the_deepest_queues_are_merged_first_and_near_ones_keep_theirs() {
    let mut requests = full_of_made_up_paths(Merge::DeepestFirst, Weights::Equal, &[]);
    for neighbour in 2..=150 {
        let _ = requests.push(&[neighbour, 0, 0, 0, 0], u32::from(neighbour), 100);
    }
    check(&requests);
    assert_eq!(requests.queues_by_level()[0], 150, "every neighbour has its queue");
    assert!(requests.splits_and_merges().1 >= 149);
}

#[test]
fn our_2_the_largest_excess_over_known_paths_is_merged_first_wherever_it_lies() {
    let honest: Vec<Tags> = (0..40).map(|n| [2, 50 + n % 5, 60 + n, 70, 80]).collect();
    for (merge, all_kept) in [(Merge::LargestExcess, true), (Merge::DeepestFirst, false)] {
        let mut requests = full_of_made_up_paths(merge, Weights::Equal, &honest);
        for tags in honest.iter().cycle().take(40 * 30) {
            let _ = requests.push(tags, 1, 100);
        }
        let before = honest_queues(&requests);
        for n in 0..2_000 {
            let _ = requests.push(&[1, 100, n + 7_000, 1, 1], 1, 100);
        }
        check(&requests);
        assert_eq!(honest_queues(&requests) == before, all_kept, "{merge:?}: {before} before");
    }
}

fn honest_queues(requests: &Requests<u32>) -> usize {
    let mut count = 0;
    for index in 1..requests.tree.nodes.len() as u32 {
        let mut node = requests.tree.node(index);
        if node.backlog == 0 || node.parent == NONE {
            continue;
        }
        while node.level > 1 {
            node = requests.tree.node(node.parent);
        }
        count += usize::from(node.tag == 2);
    }
    count
}

#[test]
fn our_1_with_weights_a_neighbour_gets_as_much_as_there_are_known_paths_behind_it() {
    let mut paths: Vec<Tags> = (1..=30).map(|n| [1, n, 0, 0, 0]).collect();
    paths.push([2, 1, 0, 0, 0]);
    let mut requests = requests(1_000, 4_000, Merge::DeepestFirst, Weights::Known);
    requests.know(known(&paths));
    for n in 0..4_000_u32 {
        let neighbour = n as u16 % 2 + 1;
        let _ = requests.push(&[neighbour, n as u16 % 30 + 1, 0, 0, 0], u32::from(neighbour), 100);
    }
    let served: Vec<_> = std::iter::from_fn(|| requests.pop()).take(1_500).collect();
    let heavy = served.iter().filter(|(n, _)| *n == 1).count();
    assert!((1_430..=1_470).contains(&heavy), "{heavy} of 1500, fair are 30/31");
}

#[test]
fn our_1_with_weights_made_up_paths_take_no_more_than_the_known_ones() {
    let mut requests = requests(10_000, 20_000, Merge::DeepestFirst, Weights::Known);
    requests.know(known(&[[1, 5, 0, 0, 0], [1, 6, 0, 0, 0]]));
    for n in 0..9_000_u16 {
        let _ = requests.push(&[1, 1_000 + n, 0, 0, 0], 0, 100);
        if n % 10 == 0 {
            let _ = requests.push(&[1, 5 + n / 10 % 2, 0, 0, 0], 1, 100);
        }
    }
    let served: Vec<_> = std::iter::from_fn(|| requests.pop()).take(500).collect();
    let honest = served.iter().filter(|(n, _)| *n == 1).count();
    assert!(honest >= 190, "{honest} of 500: two fifths are fair");
}

fn any_tags() -> impl Strategy<Value = Tags> {
    let tag = prop_oneof![8 => 0_u16..4, 1 => any::<u16>()];
    (1_u16..4, tag, 0_u16..4, 0_u16..4, 0_u16..4).prop_map(|(a, b, c, d, e)| [a, b, c, d, e])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn tva_15_the_tree_is_sound_and_bounded_whatever_the_tags(
        steps in prop::collection::vec((any_tags(), 0_u32..10, 1_u32..1_500), 1..600),
        (queues_max, packets_max) in (8_u32..60, 1_u32..200),
        (by_excess, weighted) in any::<(bool, bool)>(),
    ) {
        let merge = if by_excess { Merge::LargestExcess } else { Merge::DeepestFirst };
        let weights = if weighted { Weights::Known } else { Weights::Equal };
        let mut requests = requests(queues_max, packets_max, merge, weights);
        requests.know(known(&[[1, 1, 1, 1, 1], [1, 1, 2, 0, 0], [2, 1, 0, 0, 0], [2, 3, 1, 0, 0]]));
        let mut waiting: HashMap<u32, u32> = HashMap::new();
        for (id, (tags, action, len)) in (0..).zip(steps) {
            if action < 7 {
                match requests.push(&tags, id, len) {
                    Pushed::Queued => prop_assert_eq!(waiting.insert(id, len), None),
                    Pushed::Displaced(other) => {
                        prop_assert!(waiting.remove(&other).is_some());
                        prop_assert_eq!(waiting.insert(id, len), None);
                    }
                    Pushed::Refused(same) => prop_assert_eq!(same, id),
                }
            } else if let Some((taken, len)) = requests.pop() {
                prop_assert_eq!(waiting.remove(&taken), Some(len));
            } else {
                prop_assert!(waiting.is_empty());
            }
            prop_assert_eq!(waiting.len() as u32, requests.packets.used());
            check(&requests);
        }
        while let Some((taken, len)) = requests.pop() {
            prop_assert_eq!(waiting.remove(&taken), Some(len));
            check(&requests);
        }
        prop_assert!(waiting.is_empty());
        prop_assert_eq!(requests.queues().used, 0);
    }
}
