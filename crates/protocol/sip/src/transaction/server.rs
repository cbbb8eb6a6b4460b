use core::net::SocketAddr;

use sluicegate_wire::Instant;

use super::{
    Fingerprint, TableFull, Token, Transaction, TransactionState, Transactions,
    timers::{Purpose, Span},
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
enum Phase {
    /// No final response yet.
    Proceeding,
    /// INVITE: a 2xx is under way or acknowledged.
    Accepted,
    /// A final response, to INVITE other than 2xx, is under way.
    Completed,
    /// INVITE: its ACK came.
    Confirmed,
}

/// Who answers a request to us, and where that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answering {
    role: Role,
    phase: Phase,
}

impl TransactionState for Answering {
    const TABLE: &'static str = "server_transactions";
}

/// The transactions of requests that came to us; what each sends is its last response. One ends at the latest
/// [`UNANSWERED_MS`](super::UNANSWERED_MS) after its last provisional response, or 64 T1 after its final one.
///
/// Each is found by what retransmissions share with their request, and by what an ACK to a 2xx shares with its INVITE.
pub type ServerTransactions<P = SocketAddr> = Transactions<Answering, P>;

impl<P: Copy> ServerTransactions<P> {
    /// Tells what a request is, before anything else is done with it.
    pub fn receive(&mut self, now: Instant, request: &Message<'_>, fields: &Essentials<'_>) -> Received {
        let method = request.method().unwrap_or(fields.cseq.method);
        if let Some(token) = self.table.find(self.fingerprint(fields, method)) {
            return if method == Method::Ack { self.acknowledge(now, token) } else { self.absorb(token) };
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
        peer: P,
        role: Role,
    ) -> Result<Token, TableFull> {
        let method = request.method().unwrap_or(fields.cseq.method);
        let fingerprint = self.fingerprint(fields, method);
        let is_invite = method == Method::Invite;
        let ack_fingerprint = if is_invite { self.ack_fingerprint(fields) } else { fingerprint };
        let (state, message) = (Answering { role, phase: Phase::Proceeding }, self.buffers.take());
        let transaction =
            Transaction { is_invite, state, longest: self.t2, repetitions: 0, is_owed: true, peer, message };
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
        if transaction.state.phase != Phase::Proceeding {
            // More than one 2xx comes from a forking proxy; each goes on (RFC 6026 section 7.1).
            let is_accepted = matches!(transaction.state.phase, Phase::Accepted);
            return is_accepted && transaction.state.role == Role::Proxy && code / 100 == 2;
        }
        transaction.message.clear();
        transaction.message.extend_from_slice(response);
        if code < 200 {
            self.timers.arm(now, token.slot(), Purpose::End, Span::Unanswered);
            return true;
        }
        transaction.repetitions = 0;
        let is_success = code < 300;
        // An ACK comes to an INVITE's final response, but for a 2xx of somebody behind us: that one passes through.
        transaction.is_owed = transaction.is_invite && (!is_success || transaction.state.role == Role::UserAgent);
        let is_accepted = transaction.is_invite && is_success;
        transaction.state.phase = if is_accepted { Phase::Accepted } else { Phase::Completed };
        // Timers H, J and L are all 64 T1; G starts at T1, and so does the 2xx of a user agent.
        self.timers.arm(now, token.slot(), Purpose::End, Span::END);
        let is_repeated = if is_success { transaction.state.role == Role::UserAgent } else { !self.is_reliable };
        if transaction.is_invite && is_repeated {
            self.timers.arm(now, token.slot(), Purpose::Retransmit, Span::T1Shift0);
        }
        true
    }

    /// The last response and where it goes; `None` if there is none.
    #[must_use]
    pub fn response(&self, token: Token) -> Option<(&[u8], P)> {
        self.message(token)
    }

    fn absorb(&self, token: Token) -> Received {
        let Some(transaction) = self.table.value(token) else { return Received::New };
        let has_response = !transaction.message.is_empty();
        match transaction.state.phase {
            Phase::Proceeding if has_response => Received::Resend(token),
            Phase::Completed => Received::Resend(token),
            // A 2xx is repeated by its own timer, not by the request (RFC 6026 section 7.1).
            Phase::Proceeding | Phase::Accepted | Phase::Confirmed => Received::Absorbed,
        }
    }

    fn acknowledge(&mut self, now: Instant, token: Token) -> Received {
        let Some(transaction) = self.table.value_mut(token) else { return Received::New };
        match transaction.state.phase {
            Phase::Completed if transaction.is_invite => {
                transaction.state.phase = Phase::Confirmed;
                transaction.is_owed = false;
                self.timers.disarm(token.slot(), Purpose::Retransmit);
                self.timers.arm(now, token.slot(), Purpose::End, Span::T4);
                Received::Acknowledged(token)
            }
            Phase::Accepted if transaction.state.role == Role::Proxy => Received::New,
            Phase::Accepted if transaction.is_owed => {
                transaction.is_owed = false;
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
