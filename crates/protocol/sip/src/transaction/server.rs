use core::net::SocketAddr;

use sluicegate_wire::Instant;

use super::{
    TableFull, Token, TransactionState, Transactions,
    table::{Active, Fingerprint, Keep},
    timers::Span,
};
use crate::message::{Essentials, Message, Method, Via};

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
/// [`UNANSWERED_MS`](super::UNANSWERED_MS) after its last provisional response or [`ServerTransactions::wait`], or 64 T1 after
/// its final one.
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
        let alias = is_invite.then(|| self.ack_fingerprint(fields));
        let state = Answering { role, phase: Phase::Proceeding };
        let active = Active::new(peer, self.t2, &[]);
        let token = self.table.insert((fingerprint, alias), (is_invite, state), active).ok_or(TableFull)?;
        self.table.arm_end(now, token, Span::Unanswered);
        Ok(token)
    }

    /// The INVITE that a CANCEL, or the ACK of a refusal, is for (RFC 3261 sections 9.2 and 17.1.1.3): the same branch and sender.
    #[must_use]
    pub fn invite_of(&self, request: &Essentials<'_>) -> Option<Token> {
        self.table.find(self.fingerprint(request, Method::Invite))
    }

    /// The same of a message of which only the topmost Via is known. `None` as well if that alone does not tell.
    #[must_use]
    pub fn invite_at(&self, via: &Via<'_>) -> Option<Option<Token>> {
        let print = self.branch_fingerprint(via, Method::Invite)?;
        Some(self.table.find(print))
    }

    /// Notes the response that the caller is sending now, to repeat it when needed. `false` if the transaction has ended
    /// or already has its final response: then the response must not be sent, except for a 2xx that a proxy relays.
    pub fn respond(&mut self, now: Instant, token: Token, code: u16, response: &[u8]) -> bool {
        let Some(entry) = self.table.entry_mut(token) else { return false };
        let (is_invite, Answering { role, phase }) = (entry.is_invite, entry.state);
        if phase != Phase::Proceeding {
            // More than one 2xx comes from a forking proxy; each goes on (RFC 6026 section 7.1).
            return phase == Phase::Accepted && role == Role::Proxy && code / 100 == 2;
        }
        let is_success = code < 300;
        if code >= 200 {
            entry.state.phase = if is_invite && is_success { Phase::Accepted } else { Phase::Completed };
        }
        let Some(active) = self.table.active_mut(token) else { return false };
        active.message = response.into();
        if code < 200 {
            self.table.arm_end(now, token, Span::Unanswered);
            return true;
        }
        active.repetitions = 0;
        // An ACK comes to an INVITE's final response, but for a 2xx of somebody behind us: that one passes through.
        active.is_owed = is_invite && (!is_success || role == Role::UserAgent);
        // Timers H and L are 64 T1, and so is J where it is not zero; G starts at T1, and so does the 2xx of a user agent.
        let span = if is_invite { Span::END } else { self.while_repeated(Span::END) };
        self.table.arm_end(now, token, span);
        let is_repeated = if is_success { role == Role::UserAgent } else { !self.is_reliable };
        if is_invite && is_repeated {
            self.table.arm_repeat(now, token, Span::T1Shift0);
        }
        true
    }

    /// Whoever is to answer has shown that it goes on with a request, in what is not passed on: it has as long again as after a
    /// provisional response.
    pub fn wait(&mut self, now: Instant, token: Token) {
        if self.table.entry(token).is_some_and(|entry| entry.state.phase == Phase::Proceeding) {
            self.table.arm_end(now, token, Span::Unanswered);
        }
    }

    /// The last response and where it goes; `None` if there is none, or its ACK has come.
    #[must_use]
    pub fn response(&self, token: Token) -> Option<(&[u8], P)> {
        self.message(token)
    }

    fn absorb(&self, token: Token) -> Received {
        let Some(entry) = self.table.entry(token) else { return Received::New };
        match entry.state.phase {
            Phase::Proceeding if self.message(token).is_some() => Received::Resend(token),
            Phase::Completed => Received::Resend(token),
            // A 2xx is repeated by its own timer, not by the request (RFC 6026 section 7.1).
            Phase::Proceeding | Phase::Accepted | Phase::Confirmed => Received::Absorbed,
        }
    }

    fn acknowledge(&mut self, now: Instant, token: Token) -> Received {
        let is_owed = self.table.active(token).is_some_and(|active| active.is_owed);
        let Some(entry) = self.table.entry_mut(token) else { return Received::New };
        match entry.state.phase {
            Phase::Completed if entry.is_invite => {
                entry.state.phase = Phase::Confirmed;
                self.table.bury(token, Keep::Alias);
                self.table.arm_end(now, token, self.while_repeated(Span::T4));
                Received::Acknowledged(token)
            }
            Phase::Accepted if entry.state.role == Role::Proxy => {
                // It has reached the client. Those that are still to come are not ours to repeat.
                self.table.bury(token, Keep::Peer);
                Received::New
            }
            Phase::Accepted if is_owed => {
                self.table.bury(token, Keep::Alias);
                Received::Acknowledged(token)
            }
            _ => Received::Absorbed,
        }
    }

    /// Matching by branch, sent-by and method (RFC 3261 section 17.2.3); for RFC 2543 clients, whose branch says
    /// nothing, by the fields that a retransmission repeats.
    fn fingerprint(&self, fields: &Essentials<'_>, method: Method<'_>) -> Fingerprint {
        let method = if method == Method::Ack { Method::Invite } else { method };
        if let Some(print) = self.branch_fingerprint(&fields.via, method) {
            return print;
        }
        let (branch, head) = (fields.via.branch.unwrap_or_default(), fields.via.head);
        let method = method.as_bytes();
        let (from_tag, number) = (fields.from.tag.unwrap_or_default(), fields.cseq.number.to_be_bytes());
        Fingerprint::of(&self.key, &[b"fields", branch, head, method, fields.call_id, from_tag, &number])
    }

    fn branch_fingerprint(&self, via: &Via<'_>, method: Method<'_>) -> Option<Fingerprint> {
        let branch = via.branch.filter(|_| via.has_magic_cookie())?;
        Some(Fingerprint::of(&self.key, &[b"branch", branch, via.head, method.as_bytes()]))
    }

    /// The ACK to a 2xx has a branch of its own, but the INVITE's Call-ID, From tag and sequence number
    /// (RFC 3261 section 13.2.2.4).
    fn ack_fingerprint(&self, fields: &Essentials<'_>) -> Fingerprint {
        let number = fields.cseq.number.to_be_bytes();
        Fingerprint::of(&self.key, &[b"ack", fields.call_id, fields.from.tag.unwrap_or_default(), &number])
    }
}
