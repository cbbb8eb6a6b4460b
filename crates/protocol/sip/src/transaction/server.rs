use alloc::vec::Vec;
use core::net::SocketAddr;

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

use super::{
    Buffers, Due, Fingerprint, TableFull, Token,
    table::Table,
    timers::{Purpose, Span, Timers},
};
use crate::message::{Essentials, Message, Method};

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// We do: a 2xx to an INVITE is sent again until its ACK comes (RFC 3261 section 13.3.1.4).
    UserAgent,
    /// Somebody behind us does: 2xx and their ACK only pass through (RFC 6026).
    Proxy,
}

/// What a request is to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Unknown: answer it without state, or [`ServerTransactions::open`] a transaction. An ACK is for the user or to be
    /// forwarded.
    New,
    /// Seen before: send [`ServerTransactions::response`] again.
    Resend(Token),
    /// Seen before, and nothing to be done.
    Absorbed,
    /// The ACK to our final response, the first of its kind.
    Acknowledged(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No final response yet.
    Proceeding,
    /// INVITE: a 2xx is under way or acknowledged.
    Accepted { acknowledged: bool },
    /// A final response, to INVITE other than 2xx, is under way.
    Completed,
    /// INVITE: its ACK came.
    Confirmed,
}

#[derive(Debug)]
struct Transaction {
    is_invite: bool,
    role: Role,
    state: State,
    retransmissions: u8,
    peer: SocketAddr,
    response: Vec<u8>,
}

/// The transactions of requests that came to us. Fixed number of slots; a slot ends by itself at the latest
/// [`UNANSWERED_MS`](super::UNANSWERED_MS) after its last provisional response, or 64 T1 after its final one.
#[derive(Debug)]
pub struct ServerTransactions {
    key: [u8; 16],
    /// By what retransmissions share with their request, and by what an ACK to a 2xx shares with its INVITE.
    table: Table<Transaction>,
    buffers: Buffers,
    timers: Timers,
    is_reliable: bool,
}

impl ServerTransactions {
    /// Room for `capacity` transactions; `key` is random, so that nobody can aim at one chain of the table.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        let table = Table::new("server_transactions", capacity);
        let timers = Timers::new(table.gauge().max as usize);
        Self { key, table, buffers: Buffers::default(), timers, is_reliable: false }
    }

    /// Over a transport that loses nothing: refusals are sent once. A 2xx is repeated all the same until its ACK comes
    /// (RFC 3261 section 13.3.1.4): it crosses hops of other transports.
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

    /// Tells what a request is, before anything else is done with it.
    pub fn receive(&mut self, now: Instant, request: &Message<'_>, fields: &Essentials<'_>) -> Received {
        let method = request.method().unwrap_or(fields.cseq.method);
        if let Some(token) = self.table.find(self.fingerprint(fields, method)) {
            return if method == Method::Ack { self.acknowledge(now, token) } else { self.repeat(token) };
        }
        let invite = || self.table.find(self.ack_fingerprint(fields));
        if method == Method::Ack
            && let Some(token) = invite()
        {
            return self.acknowledge(now, token);
        }
        Received::New
    }

    /// Opens a transaction for a request that [`ServerTransactions::receive`] called new. `peer` is where responses go.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn open(
        &mut self,
        now: Instant,
        request: &Message<'_>,
        fields: &Essentials<'_>,
        peer: SocketAddr,
        role: Role,
    ) -> Result<Token, TableFull> {
        let method = request.method().unwrap_or(fields.cseq.method);
        let fingerprint = self.fingerprint(fields, method);
        let is_invite = method == Method::Invite;
        let ack_fingerprint = if is_invite { self.ack_fingerprint(fields) } else { fingerprint };
        let response = self.buffers.take();
        let transaction = Transaction { is_invite, role, state: State::Proceeding, retransmissions: 0, peer, response };
        let token = self.table.insert([fingerprint, ack_fingerprint], transaction).ok_or(TableFull)?;
        self.timers.arm(now, token.slot(), Purpose::End, Span::Unanswered);
        Ok(token)
    }

    /// The INVITE that a CANCEL is for (RFC 3261 section 9.2): the same branch and sender.
    #[must_use]
    pub fn cancelled_by(&self, cancel: &Essentials<'_>) -> Option<Token> {
        self.table.find(self.fingerprint(cancel, Method::Invite))
    }

    /// Notes the response that the caller is sending now, to repeat it when needed. `false` if the transaction has ended
    /// or already has its final response: then the response must not be sent, except for a 2xx that a proxy relays.
    pub fn respond(&mut self, now: Instant, token: Token, code: u16, response: &[u8]) -> bool {
        let Some(transaction) = self.table.value_mut(token) else { return false };
        if transaction.state != State::Proceeding {
            // More than one 2xx comes from a forking proxy; each goes on (RFC 6026 section 7.1).
            let is_accepted = matches!(transaction.state, State::Accepted { .. });
            return is_accepted && transaction.role == Role::Proxy && code / 100 == 2;
        }
        transaction.response.clear();
        transaction.response.extend_from_slice(response);
        if code < 200 {
            self.timers.arm(now, token.slot(), Purpose::End, Span::Unanswered);
            return true;
        }
        transaction.retransmissions = 0;
        let is_success = code < 300;
        transaction.state = if transaction.is_invite && is_success {
            State::Accepted { acknowledged: false }
        } else {
            State::Completed
        };
        // Timers H, J and L are all 64 T1; G starts at T1, and so does the 2xx of a user agent.
        self.timers.arm(now, token.slot(), Purpose::End, Span::END);
        let is_repeated = if is_success { transaction.role == Role::UserAgent } else { !self.is_reliable };
        if transaction.is_invite && is_repeated {
            self.timers.arm(now, token.slot(), Purpose::Retransmit, Span::T1Shift0);
        }
        true
    }

    /// The last response and where it goes; `None` if there is none.
    #[must_use]
    pub fn response(&self, token: Token) -> Option<(&[u8], SocketAddr)> {
        let transaction = self.table.value(token)?;
        (!transaction.response.is_empty()).then_some((&transaction.response, transaction.peer))
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
        Some(Due::Transmit { peer: transaction.peer, bytes: &transaction.response })
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
        let span = Span::retransmission(transaction.retransmissions, Span::T1Shift3);
        self.timers.arm(now, token.slot(), Purpose::Retransmit, span);
        true
    }

    /// Frees the slot; whether that was a failure.
    fn end(&mut self, token: Token) -> bool {
        let Some(transaction) = self.table.remove(token) else { return false };
        self.timers.disarm_all(token.slot());
        self.buffers.give_back(transaction.response);
        match transaction.state {
            State::Proceeding => true,
            State::Accepted { acknowledged } => transaction.role == Role::UserAgent && !acknowledged,
            State::Completed => transaction.is_invite,
            State::Confirmed => false,
        }
    }

    fn repeat(&self, token: Token) -> Received {
        let Some(transaction) = self.table.value(token) else { return Received::New };
        let has_response = !transaction.response.is_empty();
        match transaction.state {
            State::Proceeding if has_response => Received::Resend(token),
            State::Completed => Received::Resend(token),
            // A 2xx is repeated by its own timer, not by the request (RFC 6026 section 7.1).
            State::Proceeding | State::Accepted { .. } | State::Confirmed => Received::Absorbed,
        }
    }

    fn acknowledge(&mut self, now: Instant, token: Token) -> Received {
        let Some(transaction) = self.table.value_mut(token) else { return Received::New };
        match transaction.state {
            State::Completed if transaction.is_invite => {
                transaction.state = State::Confirmed;
                self.timers.disarm(token.slot(), Purpose::Retransmit);
                self.timers.arm(now, token.slot(), Purpose::End, Span::T4);
                Received::Acknowledged(token)
            }
            State::Accepted { .. } if transaction.role == Role::Proxy => Received::New,
            State::Accepted { acknowledged: false } => {
                transaction.state = State::Accepted { acknowledged: true };
                self.timers.disarm(token.slot(), Purpose::Retransmit);
                Received::Acknowledged(token)
            }
            _ => Received::Absorbed,
        }
    }

    /// Matching by branch, sent-by and method (RFC 3261 section 17.2.3); for RFC 2543 clients, whose branch says
    /// nothing, by the fields that a retransmission repeats.
    fn fingerprint(&self, fields: &Essentials<'_>, method: Method<'_>) -> Fingerprint {
        let method = if method == Method::Ack { Method::Invite } else { method };
        let branch = fields.via.branch.unwrap_or_default();
        let (call_id, from_tag, number) = if fields.via.has_magic_cookie() {
            (&[][..], &[][..], 0)
        } else {
            (fields.call_id, fields.from.tag.unwrap_or_default(), fields.cseq.number)
        };
        let number = number.to_be_bytes();
        Fingerprint::of(
            &self.key,
            &[b"transaction", branch, fields.via.head, method.as_bytes(), call_id, from_tag, &number],
        )
    }

    /// The ACK to a 2xx has a branch of its own, but the INVITE's Call-ID, From tag and sequence number
    /// (RFC 3261 section 13.2.2.4).
    fn ack_fingerprint(&self, fields: &Essentials<'_>) -> Fingerprint {
        let number = fields.cseq.number.to_be_bytes();
        Fingerprint::of(&self.key, &[b"ack", fields.call_id, fields.from.tag.unwrap_or_default(), &number])
    }
}
