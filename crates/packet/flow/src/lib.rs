//! Flow lines, budgets and token buckets, all in tables whose size is fixed at start.
//!
//! A [`Table`] of lines answers "is this packet part of something already allowed, and what is done to it" with one
//! keyed hash and one line. A [`Budget`] is the N bytes of a grant, lent to lines in slices, so that a packet touches
//! only its own line. Nothing here reads a clock, draws randomness or allocates after
//! construction.
#![no_std]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

mod budget;
mod fair_bucket;
mod hash;
mod key;
mod lent;
mod line;
mod state;
mod table;
mod token_bucket;

pub use budget::{Budget, SLICE_MAX};
pub use fair_bucket::{FairBucket, Share};
pub use hash::Hasher;
pub use key::{Key, Key4, Key6, Kind};
pub use lent::Lent;
pub use line::{Body, Line, Line4, Line6};
pub use state::{Entry, Flow, FlowLine, TcpHalf, Tick};
pub use table::{Table, WAYS};
pub use token_bucket::TokenBucket;
