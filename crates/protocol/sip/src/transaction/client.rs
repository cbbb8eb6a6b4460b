use alloc::vec::Vec;
use core::net::SocketAddr;

use sluicegate_wire::Instant;

use super::{
    Lapse, TableFull, Token, TransactionState, Transactions,
    table::{Active, Fingerprint, Keep},
    timers::Span,
};
use crate::{
    message::{Message, Method, ParseError},
    write::ack_for_final,
};

/// What a response is to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// To no request of ours: drop it. A proxy must not forward it (RFC 6026 section 7.3).
    Unmatched,
    /// Seen before, and nothing to be done.
    Absorbed,
    /// For the user, who sends the ACK himself if it is a 2xx to an INVITE. May come more than once for those, and after
    /// [`Due::TimedOut`](super::Due::TimedOut): then the user ends what it makes.
    Deliver(Token),
    /// For the user; and send [`ClientTransactions::request`], which is now the ACK.
    DeliverAndAck(Token),
    /// Seen before: send [`ClientTransactions::request`], which is the ACK, again.
    Ack(Token),
}

/// Why a client transaction cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No slot is free.
    #[error(transparent)]
    Full(TableFull),
    /// The request has no Via or CSeq to match responses by.
    #[error(transparent)]
    Request(#[from] ParseError),
}

/// Where a request of ours is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// No response yet.
    Calling,
    /// A provisional response came.
    Proceeding,
    /// INVITE: a CANCEL was sent. A final response comes within 64 T1, or none is waited for (RFC 3261 section 9.1).
    Cancelled,
    /// INVITE: a 2xx came; others may (RFC 6026).
    Accepted,
    /// A final response came, to INVITE other than 2xx.
    Completed,
    /// INVITE: nobody waits for its answer any more, but a call that one makes has to be ended.
    GivenUp,
}

impl TransactionState for Asked {
    const TABLE: &'static str = "client_transactions";

    fn lapse(&mut self, is_invite: bool) -> Lapse {
        let (state, lapse) = match *self {
            Self::Proceeding if is_invite => (Self::Cancelled, Lapse::Cancel),
            Self::Calling | Self::Cancelled if is_invite => (Self::GivenUp, Lapse::GivenUp),
            state => (state, Lapse::Over),
        };
        *self = state;
        lapse
    }
}

/// The transactions of requests that we sent. What each sends is its request, and after a final response other than 2xx to
/// an INVITE its ACK.
pub type ClientTransactions<P = SocketAddr> = Transactions<Asked, P>;

impl<P: Copy> ClientTransactions<P> {
    /// With T2 = 1 s instead of 4 s (RFC 3261 section 17.1.2.1): for the few whose registration many others wait for, once
    /// the way to the registrar is there again.
    #[must_use]
    pub const fn with_short_t2(mut self) -> Self {
        self.t2 = Span::T1Shift1;
        self
    }

    /// Notes a request that the caller is sending now, to repeat it until an answer comes. Not for ACK, which has no
    /// transaction of its own.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(&mut self, now: Instant, request: &Message<'_>, peer: P) -> Result<Token, StartError> {
        let fingerprint = self.fingerprint(request)?;
        let is_invite = request.method() == Some(Method::Invite);
        // Timer A doubles to the end, E stops at T2.
        let longest = if is_invite { Span::T1Shift5 } else { self.t2 };
        let active = Active::new(peer, longest, request.as_bytes());
        let inserted = self.table.insert((fingerprint, None), (is_invite, Asked::Calling), active);
        let token = inserted.ok_or(StartError::Full(TableFull))?;
        // Timers A or E, and B or F.
        if !self.is_reliable {
            self.table.arm_repeat(now, token, Span::T1Shift0);
        }
        self.table.arm_end(now, token, Span::END);
        Ok(token)
    }

    /// Tells what a response is. One that does not come from where its request went, which `is_from` tells, is to no request of
    /// ours: whoever has seen a branch could answer in another's place.
    pub fn receive(&mut self, now: Instant, response: &Message<'_>, is_from: impl FnOnce(P) -> bool) -> Reply {
        let Some(code) = response.status() else { return Reply::Unmatched };
        let Some(token) = self.fingerprint(response).ok().and_then(|key| self.table.find(key)) else {
            return Reply::Unmatched;
        };
        if !self.table.peer(token).is_some_and(is_from) {
            return Reply::Unmatched;
        }
        let Some(entry) = self.table.entry_mut(token) else { return Reply::Unmatched };
        match (entry.state, code) {
            (Asked::Calling | Asked::Proceeding, 100..=199) => {
                self.proceed(now, token, code);
                Reply::Deliver(token)
            }
            (Asked::Calling | Asked::Proceeding | Asked::Cancelled, 200..=699) => self.complete(now, token, response),
            (Asked::GivenUp, 300..=699) => match self.complete(now, token, response) {
                Reply::DeliverAndAck(token) => Reply::Ack(token),
                reply => reply,
            },
            (Asked::Accepted | Asked::GivenUp, 200..=299) => Reply::Deliver(token),
            (Asked::Completed, 300..=699) if entry.is_invite => Reply::Ack(token),
            _ => Reply::Absorbed,
        }
    }

    /// A provisional response.
    fn proceed(&mut self, now: Instant, token: Token, code: u16) {
        let Some(entry) = self.table.entry_mut(token) else { return };
        let is_invite = entry.is_invite;
        let before = core::mem::replace(&mut entry.state, Asked::Proceeding);
        // Timer E is T2 from now on.
        if let Some(active) = self.table.active_mut(token) {
            active.repetitions = u8::MAX;
        }
        if !is_invite {
            return;
        }
        // Nothing is sent again. Timer C starts with the first, and anew with all but 100.
        self.table.disarm_repeats(token);
        if before == Asked::Calling || code > 100 {
            self.table.arm_end(now, token, Span::TimerC);
        }
    }

    /// The first final response.
    fn complete(&mut self, now: Instant, token: Token, response: &Message<'_>) -> Reply {
        let Some(entry) = self.table.entry_mut(token) else { return Reply::Unmatched };
        let is_success = response.status().is_some_and(|code| code < 300);
        let is_accepted = entry.is_invite && is_success;
        entry.state = if is_accepted { Asked::Accepted } else { Asked::Completed };
        let is_invite = entry.is_invite;
        if let Some(active) = self.table.active_mut(token) {
            active.is_owed = false;
        }
        self.table.disarm_repeats(token);
        let (span, reply) = match (is_invite, is_success) {
            // Timer K, where the request is not released before.
            (false, _) => (Span::T4, Reply::Deliver(token)),
            // Timer M.
            (true, true) => (Span::END, Reply::Deliver(token)),
            // Timer D.
            (true, false) => {
                self.acknowledge(token, response);
                (self.while_repeated(Span::END), Reply::DeliverAndAck(token))
            }
        };
        self.table.arm_end(now, token, span);
        reply
    }

    /// From now on the ACK is what is sent, and sent again.
    fn acknowledge(&mut self, token: Token, response: &Message<'_>) {
        let Some(active) = self.table.active_mut(token) else { return };
        let mut ack = Vec::new();
        let written = Message::parse(&active.message).and_then(|request| ack_for_final(&request, response, &mut ack));
        if written.is_err() {
            // Cannot be: the request was readable when it was sent. Better no ACK than a wrong message.
            ack.clear();
        }
        active.message = ack.into();
    }

    /// The request and where it goes, so that nobody else need keep it: until [`ClientTransactions::release`], or the end of
    /// the transaction. Of an INVITE that was refused it is the ACK, until the end.
    #[must_use]
    pub fn request(&self, token: Token) -> Option<(&[u8], P)> {
        self.message(token)
    }

    /// The user has taken what it needs from a request that has its final response: from now on the transaction only tells
    /// what is new from what comes again, if anything can. Without effect before that, and where an ACK is kept.
    pub fn release(&mut self, token: Token) {
        let Some(entry) = self.table.entry(token) else { return };
        match entry.state {
            // Timer K is zero.
            Asked::Completed if !entry.is_invite && self.is_reliable => drop(self.table.remove(token)),
            Asked::Completed if !entry.is_invite => self.table.bury(token, Keep::Peer),
            Asked::Accepted => self.table.bury(token, Keep::Peer),
            _ => {}
        }
    }

    /// A request is not sent again, though its answer is still taken.
    pub fn stop_repeating(&mut self, token: Token) {
        if self.table.entry(token).is_some() {
            self.table.disarm_repeats(token);
        }
    }

    /// An INVITE is no longer wanted: whether a CANCEL is to be sent now, because a provisional response but no final one
    /// has come, and no CANCEL was sent before. Its final response then comes within 64 T1, or
    /// [`Due::TimedOut`](super::Due::TimedOut) does (RFC 3261 section 9.1).
    pub fn cancel(&mut self, now: Instant, token: Token) -> bool {
        let Some(entry) = self.table.entry_mut(token) else { return false };
        if !entry.is_invite || entry.state != Asked::Proceeding {
            return false;
        }
        entry.state = Asked::Cancelled;
        self.table.arm_end(now, token, Span::END);
        true
    }

    /// Matching by our branch and the method (RFC 3261 section 17.1.3).
    fn fingerprint(&self, message: &Message<'_>) -> Result<Fingerprint, ParseError> {
        let via = message.top_via()?;
        let method = message.cseq()?.method;
        Ok(Fingerprint::of(&self.key, &[via.branch.unwrap_or_default(), method.as_bytes()]))
    }
}
