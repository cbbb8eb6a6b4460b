//! Transactions over an unreliable transport (RFC 3261 section 17, RFC 6026): retransmissions are sent and absorbed
//! here, so that their users see each request and each response once.
//!
//! Both tables have a fixed number of slots. After every call, and whenever `poll_timeout` has passed, call `poll` until
//! it gives `None`.

mod client;
mod server;
mod table;
mod timers;

pub use client::{Asked, ClientTransactions, Reply, StartError};
pub use server::{Answering, Received, Role, ServerTransactions};
pub use table::{Fingerprint, Token};
pub use timers::{T1_MS, T2_MS, T4_MS, TIMER_C_MS, UNANSWERED_MS};

use alloc::vec::Vec;
use core::net::SocketAddr;

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

use self::{
    table::Table,
    timers::{Purpose, Span, Timers},
};

/// All slots of a table are taken. For a request from outside: answer 503 without state, or drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table of transactions is full")]
pub struct TableFull;

/// What a table wants done. From `poll`.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<'t, P = SocketAddr> {
    /// Send these bytes there.
    Transmit {
        /// The other side.
        peer: P,
        /// A whole message.
        bytes: &'t [u8],
    },
    /// Client: an INVITE rang for too long (timer C). Send a CANCEL: its final response comes within 64 T1, or
    /// [`Due::TimedOut`] does.
    Cancel(Token),
    /// Client: no final response came in time; act as on 408 (timers B, F, and after a CANCEL). Of an INVITE a 2xx may be
    /// delivered all the same for another 64 T1: end what it makes.
    /// Server: an INVITE's final response was not acknowledged, so a call that it made must be ended with BYE (timers H,
    /// L), or its user never answered. The token is no longer valid.
    TimedOut(Token),
}

/// What the end of a transaction's time means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lapse {
    /// The slot is free again.
    Over,
    /// It goes on for 64 T1 and is to be cancelled meanwhile.
    Cancel,
    /// It was given up, and goes on for 64 T1 to know what comes too late.
    GivenUp,
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

/// What a timer wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Repetition,
    Cancel,
    Failure,
}

/// Where a transaction is.
pub trait TransactionState {
    /// The name of the table of such transactions.
    const TABLE: &'static str;

    /// Its time is over.
    fn lapse(&mut self, _is_invite: bool) -> Lapse {
        Lapse::Over
    }
}

#[derive(Debug)]
struct Transaction<S, P> {
    is_invite: bool,
    state: S,
    /// Timers A, E, G double with each repetition, up to this.
    longest: Span,
    repetitions: u8,
    /// Somebody still owes a final response, or its ACK: to end now would be a failure.
    is_owed: bool,
    peer: P,
    /// What is sent, and sent again; empty while there is nothing.
    message: Vec<u8>,
}

/// Transactions of one side. Fixed number of slots; a slot ends by itself. `P` is where messages go, in the caller's words: an
/// address, or one with the way to it.
#[derive(Debug)]
pub struct Transactions<S, P = SocketAddr> {
    key: [u8; 16],
    table: Table<Transaction<S, P>>,
    buffers: Buffers,
    timers: Timers,
    /// T2: the longest between two repetitions of anything but an INVITE request.
    t2: Span,
    is_reliable: bool,
}

impl<S: TransactionState, P: Copy> Transactions<S, P> {
    /// Room for `capacity` transactions; `key` is random, so that nobody can aim at one chain of the table.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        let table = Table::new(S::TABLE, capacity);
        let timers = Timers::new(table.gauge().max as usize);
        Self { key, table, buffers: Buffers::default(), timers, t2: Span::T1Shift3, is_reliable: false }
    }

    /// Over a transport that loses nothing: requests and refusals are sent once, and only given up in time. A 2xx of ours to
    /// an INVITE is repeated all the same until its ACK comes (RFC 3261 section 13.3.1.4): it crosses hops of other
    /// transports.
    #[must_use]
    pub const fn over_reliable(mut self, is_reliable: bool) -> Self {
        self.is_reliable = is_reliable;
        self
    }

    /// How full the table is.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        self.table.gauge()
    }

    /// When `poll` has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What is due by now.
    pub fn poll(&mut self, now: Instant) -> Option<Due<'_, P>> {
        let (token, wanted) = self.next_due(now)?;
        Some(match wanted {
            Wanted::Cancel => Due::Cancel(token),
            Wanted::Failure => Due::TimedOut(token),
            Wanted::Repetition => {
                let transaction = self.table.value(token)?;
                Due::Transmit { peer: transaction.peer, bytes: &transaction.message }
            }
        })
    }

    /// The next repetition or failure; what ends without a failure ends here.
    fn next_due(&mut self, now: Instant) -> Option<(Token, Wanted)> {
        loop {
            let (slot, purpose) = self.timers.pop(now)?;
            let Some(token) = self.table.token(slot) else { continue };
            let wanted = match purpose {
                Purpose::Retransmit => self.repeat(now, token),
                Purpose::End => self.lapse(now, token),
            };
            if let Some(wanted) = wanted {
                return Some((token, wanted));
            }
        }
    }

    fn repeat(&mut self, now: Instant, token: Token) -> Option<Wanted> {
        let transaction = self.table.value_mut(token)?;
        transaction.repetitions = transaction.repetitions.saturating_add(1);
        let span = Span::retransmission(transaction.repetitions, transaction.longest);
        self.timers.arm(now, token.slot(), Purpose::Retransmit, span);
        Some(Wanted::Repetition)
    }

    /// The time of a transaction is over.
    fn lapse(&mut self, now: Instant, token: Token) -> Option<Wanted> {
        let transaction = self.table.value_mut(token)?;
        let lapse = transaction.state.lapse(transaction.is_invite);
        if lapse == Lapse::Over {
            return self.end(token).then_some(Wanted::Failure);
        }
        transaction.is_owed = lapse == Lapse::Cancel;
        self.timers.disarm(token.slot(), Purpose::Retransmit);
        self.timers.arm(now, token.slot(), Purpose::End, Span::END);
        Some(if lapse == Lapse::Cancel { Wanted::Cancel } else { Wanted::Failure })
    }

    /// Forgets a transaction: its user wants to hear no more of it, or has nothing to say. What comes of it later is of none.
    pub fn forget(&mut self, token: Token) {
        self.end(token);
    }

    /// Frees the slot; whether that was a failure.
    fn end(&mut self, token: Token) -> bool {
        let Some(transaction) = self.table.remove(token) else { return false };
        self.timers.disarm_all(token.slot());
        self.buffers.give_back(transaction.message);
        transaction.is_owed
    }

    /// What was sent last and where it goes; `None` if nothing was.
    fn message(&self, token: Token) -> Option<(&[u8], P)> {
        let transaction = self.table.value(token)?;
        (!transaction.message.is_empty()).then_some((&transaction.message, transaction.peer))
    }
}

#[cfg(test)]
mod tests;
