//! Transactions over an unreliable transport (RFC 3261 section 17, RFC 6026): retransmissions are sent and absorbed
//! here, so that their users see each request and each response once.
//!
//! Both tables have a fixed number of slots. After every call, and whenever `poll_timeout` has passed, call `poll` until
//! it gives `None`.
//!
//! Most transactions that a table holds have their final response, and wait for retransmissions. Such a one is its slot: 64
//! bytes at most, with all that the table needs for it, where a peer takes 28. It keeps a message only if that may have to be
//! sent again, which is a final response, until its ACK if it is to an INVITE, or the ACK to a refused INVITE of ours.

mod client;
mod server;
mod table;
mod timers;

pub use client::{Asked, ClientTransactions, Reply, StartError};
pub use server::{Answering, Received, Role, ServerTransactions};
pub use table::Token;
pub use timers::{T1_MS, T2_MS, T4_MS, TIMER_C_MS, UNANSWERED_MS};

use core::net::SocketAddr;

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

use self::{
    table::{Purpose, Table},
    timers::Span,
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

/// What a timer wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Repetition,
    Cancel,
    Failure,
}

/// Where a transaction is.
pub trait TransactionState: Copy {
    /// The name of the table of such transactions.
    const TABLE: &'static str;

    /// Its time is over.
    fn lapse(&mut self, _is_invite: bool) -> Lapse {
        Lapse::Over
    }
}

/// Transactions of one side. Fixed number of slots; a slot ends by itself. `P` is where messages go, in the caller's words: an
/// address, or one with the way to it.
#[derive(Debug)]
pub struct Transactions<S, P = SocketAddr> {
    key: [u8; 16],
    table: Table<S, P>,
    /// T2: the longest between two repetitions of anything but an INVITE request.
    t2: Span,
    is_reliable: bool,
}

impl<S: TransactionState, P: Copy> Transactions<S, P> {
    /// Room for `capacity` transactions; `key` is random, so that nobody can aim at one chain of the table.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        Self { key, table: Table::new(S::TABLE, capacity), t2: Span::T1Shift3, is_reliable: false }
    }

    /// Over a transport that loses nothing: requests and refusals are sent once, and only given up in time, and nothing is
    /// kept for retransmissions (timers D, I, J, K are zero). A 2xx of ours to an INVITE is repeated all the same until its
    /// ACK comes (RFC 3261 section 13.3.1.4): it crosses hops of other transports.
    #[must_use]
    pub const fn over_reliable(mut self, is_reliable: bool) -> Self {
        self.is_reliable = is_reliable;
        self
    }

    /// The same of all that begins from now on.
    pub const fn set_reliable(&mut self, is_reliable: bool) {
        self.is_reliable = is_reliable;
    }

    /// How full the table is.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        self.table.gauge()
    }

    /// When `poll` has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.next().map(|(at, ..)| at)
    }

    /// What is due by now.
    pub fn poll(&mut self, now: Instant) -> Option<Due<'_, P>> {
        let (token, wanted) = self.next_due(now)?;
        Some(match wanted {
            Wanted::Cancel => Due::Cancel(token),
            Wanted::Failure => Due::TimedOut(token),
            Wanted::Repetition => {
                let (bytes, peer) = self.message(token)?;
                Due::Transmit { peer, bytes }
            }
        })
    }

    /// Where the other side of a transaction is; `None` if it has ended, or nothing more goes there.
    #[must_use]
    pub fn peer(&self, token: Token) -> Option<P> {
        self.table.peer(token)
    }

    /// The next repetition or failure; what ends without a failure ends here.
    fn next_due(&mut self, now: Instant) -> Option<(Token, Wanted)> {
        loop {
            let (token, purpose) = self.table.pop(now)?;
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
        let active = self.table.active_mut(token)?;
        active.repetitions = active.repetitions.saturating_add(1);
        let span = Span::retransmission(active.repetitions, active.longest);
        self.table.arm_repeat(now, token, span);
        Some(Wanted::Repetition)
    }

    /// The time of a transaction is over.
    fn lapse(&mut self, now: Instant, token: Token) -> Option<Wanted> {
        let entry = self.table.entry_mut(token)?;
        let lapse = entry.state.lapse(entry.is_invite);
        if lapse == Lapse::Over {
            return self.table.remove(token).then_some(Wanted::Failure);
        }
        if let Some(active) = self.table.active_mut(token) {
            active.is_owed = lapse == Lapse::Cancel;
        }
        self.table.disarm_repeats(token);
        self.table.arm_end(now, token, Span::END);
        Some(if lapse == Lapse::Cancel { Wanted::Cancel } else { Wanted::Failure })
    }

    /// Forgets a transaction: its user wants to hear no more of it, or has nothing to say. What comes of it later is of none.
    pub fn forget(&mut self, token: Token) {
        self.table.remove(token);
    }

    /// What was sent last and where it goes; `None` if there is nothing that may have to be sent again.
    fn message(&self, token: Token) -> Option<(&[u8], P)> {
        let active = self.table.active(token)?;
        (!active.message.is_empty()).then_some((&active.message, active.peer))
    }

    /// How long what may be repeated is remembered, if nothing is lost on the way: not at all.
    const fn while_repeated(&self, span: Span) -> Span {
        if self.is_reliable { Span::Zero } else { span }
    }
}

#[cfg(test)]
mod tests;
