//! Transactions over an unreliable transport (RFC 3261 section 17, RFC 6026): retransmissions are sent and absorbed
//! here, so that their users see each request and each response once.
//!
//! Both tables have a fixed number of slots. After every call, and whenever `poll_timeout` has passed, call `poll` until
//! it gives `None`.

mod client;
mod server;
mod table;
mod timers;

pub use client::{ClientTransactions, Reply, StartError};
pub use server::{Received, Role, ServerTransactions};
pub use table::{Fingerprint, Token};
pub use timers::{T1_MS, T2_MS, T4_MS, TIMER_C_MS, UNANSWERED_MS};

use alloc::vec::Vec;
use core::net::SocketAddr;

/// All slots of a table are taken. For a request from outside: answer 503 without state, or drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table of transactions is full")]
pub struct TableFull;

/// What a table wants done. From `poll`.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<'t> {
    /// Send these bytes there.
    Transmit {
        /// The other side.
        peer: SocketAddr,
        /// A whole message.
        bytes: &'t [u8],
    },
    /// Client: no final response came in time; act as on 408, and CANCEL if it is an INVITE that rang (timers B, C, F).
    /// Server: an INVITE's final response was not acknowledged, so a call that it made must be ended with BYE (timers H,
    /// L), or its user never answered. The token is no longer valid.
    TimedOut(Token),
}

/// Messages longer than this do not leave their buffer when the transaction ends.
const BUFFER_KEPT_MAX: usize = 2_048;

/// Buffers of transactions that have ended, for those to come: as many as there were transactions at a time.
#[derive(Debug, Default)]
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    fn give_back(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= BUFFER_KEPT_MAX {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests;
