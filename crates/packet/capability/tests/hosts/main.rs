//! Hosts that talk to each other through capability routers.

mod bootstrap;
mod hostile;
mod model;
mod repair;
mod size;
mod world;

use sluicegate_capability::host::{ClientIds, ClientPolicy, Policy, ServerConfig, ServerPolicy};
use sluicegate_wire::capability::{ClientId, Limits};

/// N in kilobytes, T in seconds.
fn limits(kilobytes: u16, seconds: u8) -> Limits {
    Limits::new(kilobytes, seconds).unwrap()
}

fn client(id: u32) -> Box<dyn Policy> {
    Box::new(ClientPolicy::new(ClientIds::Fixed(ClientId(id)), limits(100, 10)))
}

/// A server to which no rate is a flood.
fn server(config: ServerConfig) -> Box<dyn Policy> {
    Box::new(ServerPolicy::new(ServerConfig { flood_bytes_per_s: u64::MAX, ..config }, [3; 16]))
}
