//! Responses on their way back to the client.

use std::time::Duration;

use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    write::{ForwardResponse, NewBody},
};

use super::{
    Shard,
    admission::Admitted,
    declared::multipart,
    exchanges::Exchange,
    grants::Opening,
    keys::{BranchOwner, Direction},
    legs::Leg,
    media::{self, wanted_of_answer},
    settings::Settings,
    transactions::Id,
};
use crate::{metrics::Count, transmits::Flow};

const SDP: &str = "application/sdp";
/// What of a service's answer a client does not get as it is.
const HIDDEN: &[HeaderName] = &[HeaderName::PAssertedIdentity, HEADER, HeaderName::Contact];

impl Shard {
    /// A response: of use only if its branch is ours.
    pub(super) fn on_response(&mut self, flow: Flow, message: &Message<'_>, code: u16) {
        match self.cx.keys.owner_of(flow, message) {
            None => self.cx.metrics.one(Count::ResponsesUnmatched),
            Some(BranchOwner::Stateless(direction, to)) => self.pass_back(message, (direction, to)),
            Some(BranchOwner::Shard(shard)) if shard != self.cx.settings.shard => {
                if !self.cx.handed_over {
                    self.cx.hand_over(shard, flow, message.as_bytes());
                }
            }
            Some(BranchOwner::Shard(_)) => {
                if let Some(sent) = self.exchanges.transactions.take_response(&mut self.cx, flow, message) {
                    self.deliver(sent, message, code);
                }
            }
        }
    }

    /// Passes the response to a request on that was forwarded without state.
    fn pass_back(&mut self, message: &Message<'_>, (direction, to): (Direction, Flow)) {
        let is_services = direction == Direction::ToService;
        let contact = if is_services { self.answer_contact(message, to.listener) } else { None };
        let remove = if is_services { HIDDEN } else { &HIDDEN[..2] };
        let add = contact.as_deref().map(|value| ("Contact", value));
        let response = ForwardResponse { response: message, remove, add: add.as_slice(), body: None };
        match response.write(&mut self.cx.scratch) {
            Ok(()) => {
                self.cx.metrics.one(Count::ResponsesRelayed);
                self.cx.out.push(to, &self.cx.scratch);
            }
            Err(_) => self.cx.metrics.one(Count::ResponsesUnmatched),
        }
    }

    /// The Contact that a client is told of in a service's answer. A redirection would name an address inside, so it has
    /// none (RFC 3261 section 8.1.3.4: the client then has nowhere else to try).
    fn answer_contact(&self, message: &Message<'_>, listener: u8) -> Option<Vec<u8>> {
        let is_redirection = message.status().is_some_and(|code| code / 100 == 3);
        if is_redirection { None } else { self.cx.settings.outer_contact(message, listener) }
    }

    /// A response to an INVITE that we relayed; those to our own CANCEL and BYE are owed to no one.
    fn deliver(&mut self, sent: Id, message: &Message<'_>, code: u16) {
        let Some(owed) = self.exchanges.owed(sent) else { return };
        let Some(exchange) = self.exchanges.pending(owed) else {
            // A 2xx again: the client has not acknowledged it yet, so it gets ours again.
            if code / 100 == 2 {
                self.exchanges.transactions.respond_again(&mut self.cx, owed);
            }
            return;
        };
        let Some(relay) = &mut exchange.relay else { return };
        if code < 200 && relay.cancelled {
            return self.cancel_sent(owed);
        }
        if code == 100 || (code < 300 && relay.waiting.is_some() && !supersedes(relay.waiting.as_deref(), code)) {
            return;
        }
        let Some(session) = description(message, code) else { return self.pass_on(owed, message, code) };
        let mut wants = wanted_of_answer(&session, &exchange.admitted.service);
        let request = Message::parse(&exchange.request).ok();
        let offer = request.as_ref().and_then(|request| Session::parse(request.body()).ok());
        media::narrow(&mut wants, offer.as_ref(), exchange.flow.peer.ip());
        let known = exchange.opening.as_ref().filter(|_| relay.waiting.is_none());
        let is_open = known.is_some_and(|opening| opening.opens(&wants));
        if wants.is_empty() || is_open {
            return self.pass_on(owed, message, code);
        }
        // The answer waits until everything that it names is open.
        relay.waiting = Some(message.as_bytes().to_vec());
        self.open_grants(owed, &wants);
    }

    /// The answer that waits, if one does. Nothing is waited for any more.
    fn take_waiting(&mut self, owed: Id) -> Option<Vec<u8>> {
        let exchange = self.exchanges.pending(owed)?;
        exchange.gate_deadline = None;
        exchange.relay.as_mut()?.waiting.take()
    }

    /// Everything that the waiting answer names is open now.
    pub(super) fn pass_answer_on(&mut self, owed: Id) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        let code = message.status().unwrap_or(500);
        self.pass_on(owed, &message, code);
    }

    /// Passes a response on to the client, with the gate's addresses in place of the service's.
    fn pass_on(&mut self, owed: Id, message: &Message<'_>, code: u16) {
        let Some(exchange) = self.exchanges.pending(owed) else { return };
        let Some(relay) = &exchange.relay else { return };
        let Admitted { user, service, limits, call, renewal, agent } = exchange.admitted.clone();
        let (sent, started, listener) = (relay.sent, exchange.started, exchange.flow.listener);
        let is_accepted = code / 100 == 2;
        let leg = if is_accepted { Leg::new(relay.hop, &relay.forwarded, message) } else { None };
        let has_opened = exchange.opening.is_some();
        let (kind, body) = relayed_body(message, exchange, code, &self.cx.settings);
        let body = body.as_deref().map(|bytes| NewBody { content_type: kind.as_bytes(), bytes });
        let contact = self.answer_contact(message, listener);
        let said = (contact.as_deref().unwrap_or_default(), body.as_ref().map_or(message.body(), |body| body.bytes));
        let proof = agent.filter(|_| is_accepted).map(|agent| agent.answer(said.0, said.1));
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let proof = proof.as_ref().map(|proof| (HEADER.as_str(), proof.as_bytes()));
        let add: Vec<_> = contact.into_iter().chain(proof).collect();
        let response = ForwardResponse { response: message, remove: HIDDEN, add: &add, body };
        if response.write(&mut self.cx.scratch).is_err() {
            return;
        }
        if code >= 200 {
            self.exchanges.end(owed);
        }
        if self.exchanges.transactions.respond(&mut self.cx, owed, code) {
            self.cx.metrics.one(Count::ResponsesRelayed);
        }
        let (now, lifetime_s) = (self.cx.now, u64::from(limits.lifetime_s));
        if is_accepted {
            self.cx.ledger.keep_call(call, (&user, &service.name), now.unix.plus_secs(lifetime_s));
            leg.into_iter().for_each(|leg| self.legs.keep(call, now.instant + Duration::from_secs(lifetime_s), leg));
            self.exchanges.linger(now.instant, sent);
            self.cx.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
            self.cx.metrics.setup(now.instant.since(started));
        } else if code >= 300 {
            self.exchanges.forget(sent);
            if !renewal {
                self.cx.ledger.end_call(now.instant, call, None);
            }
            if has_opened && !renewal {
                self.cx.revoke(call);
            }
        }
    }

    /// The gate would not open what the service's answer names: the client gets no early media, or a 503 and the service
    /// the end of a call that it thinks it has.
    pub(super) fn on_relay_gate_failed(&mut self, owed: Id, why: &str) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        if message.status().is_some_and(|code| code < 200) {
            return self.exchanges.give_up_opening(owed);
        }
        let Some(Exchange { relay: Some(relay), .. }) = self.exchanges.pending(owed) else { return };
        let (sent, leg) = (relay.sent, Leg::new(relay.hop, &relay.forwarded, &message));
        self.exchanges.forget(sent);
        if let Some(leg) = leg {
            self.hang_up(&leg);
        }
        self.fail(owed, 503, why);
    }

    /// Our own request was never answered.
    pub(super) fn on_relay_timeout(&mut self, sent: Id) {
        let Some(owed) = self.exchanges.owed(sent) else { return };
        self.exchanges.forget(sent);
        let Some(Exchange { relay: Some(relay), .. }) = self.exchanges.pending(owed) else { return };
        let (code, why) =
            if relay.cancelled { (487, "the client cancelled") } else { (408, "the service did not answer") };
        self.fail(owed, code, why);
    }
}

/// Whether a final answer replaces the provisional one that waits for the gate.
fn supersedes(waiting: Option<&[u8]>, code: u16) -> bool {
    let waiting = waiting.and_then(|bytes| Message::parse(bytes).ok()).and_then(|message| message.status());
    code >= 200 && waiting.is_some_and(|waiting| waiting < 200)
}

/// The session description in an answer that opens something.
fn description<'a>(message: &Message<'a>, code: u16) -> Option<Session<'a>> {
    let is_sdp = message.content_type().is_some_and(|kind| kind.eq_ignore_ascii_case(SDP.as_bytes()));
    if is_sdp && code < 300 { Session::parse(message.body()).ok() } else { None }
}

/// The description as the client is to see it: with the gate's addresses, and for an agent with its grants. `None`: as it
/// came.
fn relayed_body(
    message: &Message<'_>,
    Exchange { admitted, opening, .. }: &Exchange,
    code: u16,
    settings: &Settings,
) -> (String, Option<Vec<u8>>) {
    let Some(session) = description(message, code) else { return (String::new(), None) };
    let opened = opening.as_ref().map(Opening::opened).unwrap_or_default();
    let sdp = media::rewrite_answer(&session, &opened, settings.address(0).ip());
    match opening {
        Some(opening) if admitted.agent.is_some() && code >= 200 => {
            let (kind, body) = multipart(admitted.call, &sdp, &opening.signed(settings));
            (kind, Some(body))
        }
        _ => (SDP.to_owned(), Some(sdp)),
    }
}
