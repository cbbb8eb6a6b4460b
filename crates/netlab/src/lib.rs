//! Namespaces, links, clients and attackers for the demo, tests and benchmarks.

mod error;
pub mod namespace;
pub mod process;
pub mod rtnetlink;
pub mod topology;

pub use error::LabError;
pub use namespace::{Namespace, enter_user_namespace};
pub use process::Process;
pub use topology::Lab;
