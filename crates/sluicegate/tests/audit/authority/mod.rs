//! Who may say what: relayed SIP, dialogs, identities, service agents.

mod dialogs;
mod relayed;
mod serving;
mod shards;

use std::net::SocketAddr;

use crate::support::{
    lab::{FRONTEND, GATE, Lab},
    node::{Config, Node, join},
};

/// Where the frontend of a node that is both listens.
fn own_frontend() -> SocketAddr {
    SocketAddr::new(GATE.into(), 5060)
}

/// Where a frontend on a host of its own listens.
fn far_frontend() -> SocketAddr {
    SocketAddr::new(FRONTEND.into(), 5060)
}

/// A frontend on a host of its own, and the gate that it feeds.
fn apart(lab: &Lab, config: &Config) -> (Node, Node) {
    let frontend = Node::start(lab, "frontend", "frontend", &config.write_frontend(lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(lab);
    let file = config.write_gate(lab);
    join(lab, &frontend, &file);
    let gate = Node::start(lab, "gate", "gate", &file);
    gate.ready();
    frontend.has_gate();
    (frontend, gate)
}
