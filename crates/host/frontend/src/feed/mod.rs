//! The feed's end at the frontend: gates dial in over TLS, are recognised by their pinned certificates, are told what to
//! open and answer what they opened.

mod allowlist;
pub(crate) mod holders;
mod hub;
mod listener;
mod places;
pub(crate) mod registrations;
mod sealed;

pub(crate) use allowlist::Allowlist;
pub(crate) use hub::{Ask, Audited, Hub, Queues, call_ended};
pub(crate) use listener::{Listener, Log};
pub(crate) use places::Places;

use std::{net::SocketAddr, sync::Arc};

use sluicegate_feed::{FromGate, Resume};
use tokio::sync::mpsc;

/// Frames on their way to one gate. When as many wait, the gate is too slow: it is cut off, and resumes.
pub(crate) const FRAMES_MAX: usize = 1_024;

/// From a gate's connection to the hub.
#[derive(Debug)]
pub(crate) enum GateEvent {
    /// A known gate said hello.
    Connected {
        gate: String,
        connection: u64,
        peer: SocketAddr,
        /// Whether the gate runs on this very host, which then reaches services by itself.
        is_local: bool,
        resume: Option<Resume>,
        frames: mpsc::Sender<Arc<[u8]>>,
    },
    /// It said something.
    Said { gate: String, connection: u64, message: Box<FromGate> },
    /// The connection ended.
    Gone { gate: String, connection: u64 },
}
