//! Every order in which a line's bytes can be spent on one thread and taken back on another.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p sluicegate-flow --test loom`
#![cfg(loom)]

use loom::{sync::Arc, thread};
use sluicegate_flow::{Budget, Lent, SLICE_MAX};

const GRANTED: u64 = 10;

/// The owner lends a slice, takes back what is left of it, and lends again, as long as anything is left; beside it packets are
/// forwarded. Gives what passed, and what is left in the end.
fn spend_beside_reclaim(spenders: &[&'static [u32]], reclaims: usize) -> (u64, u64) {
    let line = Arc::new(Lent::default());
    let mut budget = Budget::new(GRANTED);
    line.add(budget.lend(4, SLICE_MAX).expect("a new budget"));
    let threads: Vec<_> = spenders
        .iter()
        .map(|packets| {
            let (line, packets) = (line.clone(), *packets);
            thread::spawn(move || {
                packets.iter().filter(|len| line.spend(**len)).map(|len| u64::from(*len)).sum::<u64>()
            })
        })
        .collect();
    for _ in 0..reclaims {
        budget.give_back(line.reclaim());
        if let Some(slice) = budget.lend(4, SLICE_MAX) {
            line.add(slice);
        }
    }
    let passed = threads.into_iter().map(|thread| thread.join().expect("a spender")).sum();
    budget.give_back(line.reclaim());
    (passed, budget.left())
}

/// All orders with up to four switches between threads that nothing forces.
fn every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut orders = loom::model::Builder::new();
    orders.preemption_bound = Some(4);
    orders.check(model);
}

#[test]
fn a_spend_beside_a_reclaim_never_passes_more_than_n() {
    every_order(|| {
        let (passed, left) = spend_beside_reclaim(&[&[3, 4]], 2);
        assert_eq!(passed + left, GRANTED, "every byte is spent once, or left");
    });
}

#[test]
fn two_who_spend_the_same_slice_never_pass_more_than_n() {
    every_order(|| {
        let (passed, left) = spend_beside_reclaim(&[&[3], &[4]], 1);
        assert_eq!(passed + left, GRANTED, "every byte is spent once, or left");
    });
}
