use alloc::vec::Vec;
use core::net::SocketAddr;

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

use super::{
    Buffers, Due, Fingerprint, TableFull, Token,
    table::Table,
    timers::{Purpose, Span, Timers},
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
    /// For the user, who sends the ACK himself if it is a 2xx to an INVITE. May come more than once for those.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No response yet.
    Calling,
    /// A provisional response came.
    Proceeding,
    /// INVITE: a 2xx came; others may (RFC 6026).
    Accepted,
    /// A final response came, to INVITE other than 2xx.
    Completed,
}

#[derive(Debug)]
struct Transaction {
    is_invite: bool,
    state: State,
    retransmissions: u8,
    peer: SocketAddr,
    /// The request, and after a final response other than 2xx to an INVITE its ACK.
    request: Vec<u8>,
}

/// The transactions of requests that we sent. Fixed number of slots; a slot ends by itself.
#[derive(Debug)]
pub struct ClientTransactions {
    key: [u8; 16],
    table: Table<Transaction>,
    buffers: Buffers,
    timers: Timers,
    /// T2: the longest between two repetitions of a request other than INVITE.
    t2: Span,
    is_reliable: bool,
    ack: Vec<u8>,
}

impl ClientTransactions {
    /// Room for `capacity` transactions; `key` is random, so that nobody can aim at one chain of the table.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        let table = Table::new("client_transactions", capacity);
        let timers = Timers::new(table.gauge().max as usize);
        Self {
            key,
            table,
            buffers: Buffers::default(),
            timers,
            t2: Span::T1Shift3,
            is_reliable: false,
            ack: Vec::new(),
        }
    }

    /// With T2 = 1 s instead of 4 s (RFC 3261 section 17.1.2.1): for the few whose registration many others wait for, once
    /// the way to the registrar is there again.
    #[must_use]
    pub const fn with_short_t2(mut self) -> Self {
        self.t2 = Span::T1Shift1;
        self
    }

    /// Over a transport that loses nothing: requests are sent once, and only given up in time.
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

    /// Notes a request that the caller is sending now, to repeat it until an answer comes. Not for ACK, which has no
    /// transaction of its own.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(&mut self, now: Instant, request: &Message<'_>, peer: SocketAddr) -> Result<Token, StartError> {
        let fingerprint = self.fingerprint(request)?;
        let mut buffer = self.buffers.take();
        buffer.extend_from_slice(request.as_bytes());
        let transaction = Transaction {
            is_invite: request.method() == Some(Method::Invite),
            state: State::Calling,
            retransmissions: 0,
            peer,
            request: buffer,
        };
        let token = self.table.insert([fingerprint; 2], transaction).ok_or(StartError::Full(TableFull))?;
        // Timers A or E, and B or F.
        if !self.is_reliable {
            self.timers.arm(now, token.slot(), Purpose::Retransmit, Span::T1Shift0);
        }
        self.timers.arm(now, token.slot(), Purpose::End, Span::END);
        Ok(token)
    }

    /// Tells what a response is. One that does not come `from` where the request went is to no request of ours: whoever has
    /// seen a branch could answer in another's place. `None` where the socket hears nobody else.
    pub fn receive(&mut self, now: Instant, response: &Message<'_>, from: Option<SocketAddr>) -> Reply {
        let Some(code) = response.status() else { return Reply::Unmatched };
        let Some(token) = self.fingerprint(response).ok().and_then(|key| self.table.find(key)) else {
            return Reply::Unmatched;
        };
        let Some(transaction) = self.table.value_mut(token) else { return Reply::Unmatched };
        if from.is_some_and(|from| from != transaction.peer) {
            return Reply::Unmatched;
        }
        match (transaction.state, code) {
            (State::Calling | State::Proceeding, 100..=199) => {
                transaction.state = State::Proceeding;
                if transaction.is_invite {
                    // Rings: nothing is sent again, and timer C starts anew.
                    self.timers.disarm(token.slot(), Purpose::Retransmit);
                    self.timers.arm(now, token.slot(), Purpose::End, Span::TimerC);
                }
                Reply::Deliver(token)
            }
            (State::Calling | State::Proceeding, _) => self.complete(now, token, response),
            (State::Accepted, 200..=299) => Reply::Deliver(token),
            (State::Completed, 300..=699) if transaction.is_invite => Reply::Ack(token),
            _ => Reply::Absorbed,
        }
    }

    /// The first final response.
    fn complete(&mut self, now: Instant, token: Token, response: &Message<'_>) -> Reply {
        let Some(transaction) = self.table.value_mut(token) else { return Reply::Unmatched };
        let is_success = response.status().is_some_and(|code| code < 300);
        self.timers.disarm(token.slot(), Purpose::Retransmit);
        let (state, span, reply) = match (transaction.is_invite, is_success) {
            // Timer K.
            (false, _) => (State::Completed, Span::T4, Reply::Deliver(token)),
            // Timer M.
            (true, true) => (State::Accepted, Span::END, Reply::Deliver(token)),
            // Timer D.
            (true, false) => (State::Completed, Span::END, Reply::DeliverAndAck(token)),
        };
        transaction.state = state;
        if reply == Reply::DeliverAndAck(token) {
            let written = Message::parse(&transaction.request)
                .and_then(|request| ack_for_final(&request, response, &mut self.ack));
            if written.is_err() {
                // Cannot be: the request was readable when it was sent. Better no ACK than a wrong message.
                self.ack.clear();
            }
            core::mem::swap(&mut transaction.request, &mut self.ack);
        }
        self.timers.arm(now, token.slot(), Purpose::End, span);
        reply
    }

    /// The request, or its ACK, and where it goes. Needed to write a CANCEL.
    #[must_use]
    pub fn request(&self, token: Token) -> Option<(&[u8], SocketAddr)> {
        let transaction = self.table.value(token)?;
        (!transaction.request.is_empty()).then_some((&transaction.request, transaction.peer))
    }

    /// Whether a provisional response but no final one has come: the time at which an INVITE can be cancelled.
    #[must_use]
    pub fn is_proceeding(&self, token: Token) -> bool {
        self.table.value(token).is_some_and(|transaction| transaction.state == State::Proceeding)
    }

    /// When `poll` has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What is due by now.
    pub fn poll(&mut self, now: Instant) -> Option<Due<'_>> {
        let (token, purpose) = self.next_due(now)?;
        if purpose == Purpose::End {
            return Some(Due::TimedOut(token));
        }
        let transaction = self.table.value(token)?;
        Some(Due::Transmit { peer: transaction.peer, bytes: &transaction.request })
    }

    /// The next retransmission or failure; what ends without a failure ends here.
    fn next_due(&mut self, now: Instant) -> Option<(Token, Purpose)> {
        loop {
            let (slot, purpose) = self.timers.pop(now)?;
            let Some(token) = self.table.token(slot) else { continue };
            let is_due = match purpose {
                Purpose::Retransmit => self.retransmit(now, token),
                Purpose::End => self.end(token),
            };
            if is_due {
                return Some((token, purpose));
            }
        }
    }

    fn retransmit(&mut self, now: Instant, token: Token) -> bool {
        let Some(transaction) = self.table.value_mut(token) else { return false };
        transaction.retransmissions = transaction.retransmissions.saturating_add(1);
        // Timer A doubles to the end; E stops at T2, and is T2 once a provisional response has come.
        let span = match (transaction.is_invite, transaction.state) {
            (true, _) => Span::retransmission(transaction.retransmissions, Span::T1Shift5),
            (false, State::Proceeding) => self.t2,
            (false, _) => Span::retransmission(transaction.retransmissions, self.t2),
        };
        self.timers.arm(now, token.slot(), Purpose::Retransmit, span);
        true
    }

    /// Forgets a request: its user no longer wants an answer, and whatever comes is [`Reply::Unmatched`].
    pub fn forget(&mut self, token: Token) {
        self.end(token);
    }

    /// Frees the slot; whether that was a failure.
    fn end(&mut self, token: Token) -> bool {
        let Some(transaction) = self.table.remove(token) else { return false };
        self.timers.disarm_all(token.slot());
        self.buffers.give_back(transaction.request);
        matches!(transaction.state, State::Calling | State::Proceeding)
    }

    /// Matching by our branch and the method (RFC 3261 section 17.1.3).
    fn fingerprint(&self, message: &Message<'_>) -> Result<Fingerprint, ParseError> {
        let via = message.top_via()?;
        let method = message.cseq()?.method;
        Ok(Fingerprint::of(&self.key, &[via.branch.unwrap_or_default(), method.as_bytes()]))
    }
}
