//! Judged experiments on real nodes, the demo, and benchmarks against peers.

pub mod bench;
pub mod demo;
pub mod longlife;
pub mod report;
pub mod rsoca;
pub mod sipattack;
pub mod sipflood;
pub mod transports;
pub mod tva;
