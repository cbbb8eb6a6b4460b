//! The promise of every table: what does not fit is refused, nothing moves or gets lost for it, and emptied it is empty.

use sluicegate_bounded::{Bounded, Buffer, Cache, Gauge, Index, Pool, Queue, Slab, Wheel};
use sluicegate_wire::Instant;

const MAX: u32 = 100;

/// A table, and what an owner keeps of what is in it.
struct Filled<T> {
    table: T,
    /// Puts the number into the table; `false` if it is refused.
    put: fn(&mut T, u32, &mut Vec<Buffer>) -> bool,
    /// The numbers in the table.
    holds: fn(&T, &[Buffer]) -> Vec<u32>,
    /// Takes everything out.
    empty: fn(&mut T, Vec<Buffer>),
}

fn fill<T: Bounded>(mut filled: Filled<T>) {
    let all: Vec<u32> = (0..MAX).collect();
    for round in 0..3 {
        let mut buffers = Vec::new();
        assert_eq!(filled.table.used(), 0, "round {round}");
        for number in 0..MAX {
            assert_eq!(filled.table.used(), number);
            assert!((filled.put)(&mut filled.table, number, &mut buffers), "{number} of {MAX}");
        }
        assert_eq!(filled.table.gauge(), Gauge { name: "table", used: MAX.into(), max: MAX.into() });
        for number in MAX..2 * MAX {
            assert!(!(filled.put)(&mut filled.table, number, &mut buffers), "beyond the maximum");
        }
        let mut held = (filled.holds)(&filled.table, &buffers);
        held.sort_unstable();
        assert_eq!(held, all);
        (filled.empty)(&mut filled.table, buffers);
    }
    assert_eq!((filled.table.used(), filled.table.max()), (0, MAX));
}

#[test]
fn a_full_slab_refuses() {
    fill(Filled {
        table: Slab::new("table", MAX),
        put: |slab, number, _| slab.insert(number).is_ok(),
        holds: |slab, _| slab.iter().map(|(_, number)| *number).collect(),
        empty: |slab, _| (0..MAX).for_each(|index| assert!(slab.remove(index).is_some())),
    });
}

#[test]
fn a_full_queue_refuses() {
    fill(Filled {
        table: Queue::new("table", MAX),
        put: |queue, number, _| queue.push(number).is_ok(),
        holds: |queue, _| queue.iter().copied().collect(),
        empty: |queue, _| while queue.pop().is_some() {},
    });
}

#[test]
fn a_full_index_refuses() {
    fill(Filled {
        table: Index::new("table", MAX, 2 * MAX),
        put: |index, number, _| index.insert(u64::from(number % 7) << 32, number),
        holds: |index, _| (0..7).flat_map(|key| index.matches(key << 32)).collect(),
        empty: |index, _| (0..MAX).for_each(|value| index.remove(value)),
    });
}

#[test]
fn a_full_pool_refuses() {
    fill(Filled {
        table: Pool::new("table", MAX, 4),
        put: |pool, number, buffers| {
            assert_eq!(pool.store(&[0; 5]), None, "too long");
            pool.store(&number.to_le_bytes()).map(|buffer| buffers.push(buffer)).is_some()
        },
        holds: |pool, buffers| {
            let number = |buffer| u32::from_le_bytes(pool.bytes(buffer).try_into().unwrap());
            buffers.iter().map(number).collect()
        },
        empty: |pool, buffers| buffers.into_iter().for_each(|buffer| pool.free(buffer)),
    });
}

#[test]
fn every_id_of_a_wheel_can_wait_at_once() {
    fill(Filled {
        table: Wheel::new("table", MAX, 1),
        // There is an id for each place, so nothing beyond the maximum can be asked for.
        put: |wheel, id, _| {
            if id < wheel.max() {
                wheel.schedule(id, Instant::ZERO, Instant::from_nanos(u64::from(id) * 100 + 1));
            }
            id < wheel.max()
        },
        holds: |wheel, _| (0..wheel.used()).collect(),
        empty: |wheel, _| (0..MAX).for_each(|id| wheel.cancel(id)),
    });
}

/// It refuses nothing: the rank of what is in it decides, and here nothing that came first gives way.
#[test]
fn a_full_cache_keeps_what_ranks_highest() {
    fill(Filled {
        table: Cache::<Option<u32>, 4>::new("table", MAX),
        put: |cache, number, _| {
            // One set after the other.
            let hash = (u64::MAX / 25 + 1) * u64::from(number / 4 % 25);
            let place = cache.place(hash, |held| *held == Some(number), |held| *held);
            let is_taken = place.is_none();
            if is_taken {
                *place = Some(number);
            }
            is_taken
        },
        holds: |cache, _| cache.iter().flatten().copied().collect(),
        empty: |cache, _| {
            for number in 0..MAX {
                let hash = (u64::MAX / 25 + 1) * u64::from(number / 4 % 25);
                *cache.find_mut(hash, |held| *held == Some(number)).unwrap() = None;
            }
        },
    });
}
