//! Packet I/O back ends: xdp, packet, tun; raw sockets; a mirror of the kernel's routes and neighbours.
//!
//! The only crate of the workspace with `unsafe` code: system calls and memory shared with the kernel. Every block says
//! why it is sound, and everything else sees safe types only.

mod classify;
mod device;
mod error;
pub mod forwarding;
mod ingress;
mod interface;
mod links;
pub mod neighbour;
pub mod offload;
pub mod outer;
mod packet;
pub mod raw;
mod sys;
pub mod tun;
mod wake;
mod xdp;

pub use classify::{
    ANSWER_RATE_PPS, Class, ERROR_RATE_PPS, FLOWS_MAX, FRAGMENT_WAIT, FRAGMENTED_MAX, FRAGMENTED_RATE_PPS, LOCAL_MAX,
    LocalRule, OWN_MAX, OwnAddress, PEER_RATE_PPS, PEERS_MAX, Peer, Rules, Side, Translated, classify,
};
pub use device::{Action, BATCH, Backend, Device, Handler, Options, PacketIo, prepare};
pub use error::OpenError;
pub use ingress::IngressFilter;
pub use interface::Interface;
pub use links::Links;
pub use sys::{monotonic_now, unread_for, waiting_at};
pub use wake::Wake;
pub use xdp::{LISTENERS_MAX, SHARES, SPARED_MAX, Sieve, SieveCounts, Sieved, UdpCounts, UdpPort, UdpQueue, xdp_works};
