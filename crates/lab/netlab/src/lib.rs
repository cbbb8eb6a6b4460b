//! Namespaces, links, clients and attackers for the demo, tests and benchmarks.

pub mod attack;
pub mod bench;
mod binary;
pub mod client;
pub mod clock;
pub mod count;
mod cpu;
pub mod demo;
pub mod emulator;
mod error;
pub mod longlife;
pub mod namespace;
pub mod passing;
pub mod process;
pub mod report;
pub mod rtnetlink;
pub mod sample;
pub mod scratch;
pub mod seen;
pub mod topology;
pub mod transports;
pub mod tva;
pub mod worker;

pub use error::LabError;
pub use namespace::{Namespace, enter_user_namespace};
pub use process::Process;
pub use scratch::Scratch;
pub use topology::Lab;
