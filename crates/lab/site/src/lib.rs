//! Sites to try things on: network namespaces, wires, the processes in them, and what they leave behind.

pub mod binary;
pub mod clock;
pub mod cpu;
mod error;
pub mod namespace;
pub mod node;
mod prefix;
pub mod process;
pub mod programs;
pub mod scratch;
pub mod topology;
pub mod worker;

pub use error::{During, LabError};
pub use namespace::{Namespace, enter_user_namespace};
pub use node::{Node, NodeFile};
pub use prefix::{Prefix, nth};
pub use process::Process;
pub use scratch::Scratch;
pub use topology::Lab;
