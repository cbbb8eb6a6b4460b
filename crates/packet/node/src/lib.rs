//! What a node does with each packet: one object that gates, routers and edges drive, and everything that stands in for them.
//!
//! A frame goes in by a port with [`Node::on_frame`]. The [`Pipeline`] judges it: checks its capability, answers for hosts,
//! finds its permission, forwards. Then come its next hop, and its turn in the lane of a link that is scheduled. What waits
//! comes out of [`Node::release`]. Nothing here does I/O, reads a clock or draws randomness.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod clients;
mod drops;
mod edge;
mod egress;
mod firewall;
mod forward;
mod fragments;
mod gate;
mod icmp_error;
mod labels;
mod next_hop;
mod node;
mod pipeline;
mod readings;
mod router;

pub use drops::{DropLog, DroppedPacket};
pub use edge::{EdgePipeline, HostPolicy};
pub use egress::Egress;
pub use firewall::Firewall;
pub use forward::{Forwarder, Forwarding};
pub use gate::GatePipeline;
pub use labels::{Fairness, FairnessError, Labels};
pub use next_hop::NextHop;
pub use node::{Node, Outcome};
pub use pipeline::Pipeline;
pub use readings::{KINDS, LANES, LaneReading, Lanes, REASONS, Reading, Sent};
pub use router::RouterPipeline;
