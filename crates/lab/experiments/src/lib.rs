//! Judged experiments on real nodes, the demo, and benchmarks against peers.

pub mod bench;
mod certificate;
pub mod demo;
mod family;
pub mod longlife;
pub mod report;
pub mod rsoca;
pub mod sipattack;
pub mod sipflood;
pub mod sipload;
pub mod transports;
pub mod tva;
