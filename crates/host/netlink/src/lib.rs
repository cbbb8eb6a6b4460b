//! What the kernel is told and asked over netlink: links, addresses, routes, neighbours and queues ([`Rtnetlink`],
//! [`Monitor`]), and the tables of nf_tables ([`nft`]).
//!
//! Everything happens in the network namespace in which a connection was opened, and without root in those that a user
//! namespace owns. Messages of rtnetlink are the library's; those of nf_tables, for which there is none, are written here.

mod error;
mod message;
pub mod nft;
mod rtnetlink;
mod socket;

pub use error::Error;
pub use rtnetlink::{
    Change, Link, LinkCounters, Monitor, Neighbour, NextHop, QueueCounters, Route, RouteEntry, Rtnetlink, Tunnel, Way,
};
