//! Who may say what: relayed SIP, dialogs, identities, service agents.

mod dialogs;
mod serving;
mod shards;

use std::net::SocketAddr;

use crate::support::lab::GATE;

/// Where the frontend of a node that is both listens.
fn own_frontend() -> SocketAddr {
    SocketAddr::new(GATE.into(), 5060)
}
