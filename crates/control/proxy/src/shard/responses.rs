//! Responses on their way back to the client.

use std::{sync::Arc, time::Duration};

use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    transaction::{Reply, Token},
    write::{ForwardResponse, NewBody},
};

use super::{
    Now, Shard,
    declared::multipart,
    events::Event,
    exchanges::{Exchange, Id, Stage},
    keys::{BranchOwner, Direction},
    legs::Leg,
    media::{self, wanted_of_answer},
};
use crate::{
    metrics::Count,
    transmits::{Flow, Transmits},
};

/// What of a service's answer a client does not get as it is.
const HIDDEN: &[HeaderName] = &[HeaderName::PAssertedIdentity, HEADER, HeaderName::Contact];

impl Shard {
    /// A response: of use only if its branch is ours.
    pub(super) fn on_response(&mut self, now: Now, flow: Flow, message: &Message<'_>, code: u16, out: &mut Transmits) {
        match self.keys.owner_of(flow, message) {
            None => self.metrics.one(Count::ResponsesUnmatched),
            Some(BranchOwner::Stateless(direction, to)) => self.pass_back(message, (direction, to), out),
            Some(BranchOwner::Shard(shard)) if shard != self.settings.shard => {
                if !self.handed_over {
                    self.metrics.one(Count::HandedOver);
                    self.raise(Event::HandOver { shard, flow, datagram: message.as_bytes().to_vec() });
                }
            }
            Some(BranchOwner::Shard(_)) => self.on_relayed_response(now, flow, message, code, out),
        }
    }

    /// Passes the response to a request on that was forwarded without state.
    fn pass_back(&mut self, message: &Message<'_>, (direction, to): (Direction, Flow), out: &mut Transmits) {
        let is_services = direction == Direction::ToService;
        let contact = if is_services { self.answer_contact(message, to.listener) } else { None };
        let remove = if is_services { HIDDEN } else { &HIDDEN[..2] };
        let add = contact.as_deref().map(|value| ("Contact", value));
        let mut bytes = std::mem::take(&mut self.scratch);
        let response = ForwardResponse { response: message, remove, add: add.as_slice(), body: None };
        match response.write(&mut bytes) {
            Ok(()) => {
                self.metrics.one(Count::ResponsesRelayed);
                out.push(to, &bytes);
            }
            Err(_) => self.metrics.one(Count::ResponsesUnmatched),
        }
        self.scratch = bytes;
    }

    /// The Contact that a client is told of in a service's answer. A redirection would name an address inside, so it has
    /// none (RFC 3261 section 8.1.3.4: the client then has nowhere else to try).
    fn answer_contact(&self, message: &Message<'_>, listener: u8) -> Option<Vec<u8>> {
        let is_redirection = message.status().is_some_and(|code| code / 100 == 3);
        if is_redirection { None } else { self.outer_contact(message, listener) }
    }

    fn on_relayed_response(&mut self, now: Now, flow: Flow, message: &Message<'_>, code: u16, out: &mut Transmits) {
        let listener = flow.listener;
        let Some(tables) = self.exchanges.listener(listener) else { return };
        match tables.client.receive(now.instant, message, Some(flow.peer)) {
            Reply::Unmatched => self.metrics.one(Count::ResponsesUnmatched),
            Reply::Absorbed => {}
            Reply::Ack(token) => self.send_request(Id { listener, token }, out),
            Reply::DeliverAndAck(token) => {
                self.send_request(Id { listener, token }, out);
                self.deliver(now, Id { listener, token }, message, code, out);
            }
            Reply::Deliver(token) => self.deliver(now, Id { listener, token }, message, code, out),
        }
    }

    fn send_request(&mut self, Id { listener, token }: Id, out: &mut Transmits) {
        if let Some((bytes, peer)) = self.exchanges.listener(listener).and_then(|tables| tables.client.request(token)) {
            out.push(Flow::datagrams(listener, peer), bytes);
        }
    }

    /// A response to an INVITE that we relayed; those to our own CANCEL and BYE are owed to no one.
    fn deliver(&mut self, now: Now, sent: Id, message: &Message<'_>, code: u16, out: &mut Transmits) {
        let Some(owed) = self.exchanges.owed(sent) else { return };
        let Some(exchange) = self.exchanges.pending(owed) else {
            // A 2xx again: the client has not acknowledged it yet, so it gets ours again.
            return self.repeat_answer(owed, code, out);
        };
        let Stage::Relaying(relay) = &exchange.stage else { return };
        if code < 200 && relay.cancelled {
            let hop = relay.hop;
            return self.cancel_sent(now, owed, sent, hop, out);
        }
        if code == 100 || (code < 300 && relay.waiting.is_some() && !supersedes(relay.waiting.as_deref(), code)) {
            return;
        }
        let is_sdp = message.content_type().is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/sdp"));
        let session = if code < 300 && is_sdp { Session::parse(message.body()).ok() } else { None };
        let Some(session) = session else { return self.pass_on(now, owed, message, code, out) };
        let mut wants = wanted_of_answer(&session, &relay.service);
        let request = Message::parse(&exchange.request).ok();
        let offer = request.as_ref().and_then(|request| Session::parse(request.body()).ok());
        media::narrow(&mut wants, offer.as_ref(), exchange.flow.peer.ip());
        let known = relay.opening.as_ref().filter(|_| relay.waiting.is_none());
        let is_open = known.is_some_and(|opening| opening.opens(&wants));
        if wants.is_empty() || is_open {
            self.pass_on(now, owed, message, code, out);
        } else {
            self.open_relayed(now, owed, message.as_bytes(), wants, out);
        }
    }

    fn repeat_answer(&mut self, owed: Id, code: u16, out: &mut Transmits) {
        if code / 100 != 2 {
            return;
        }
        if let Some((bytes, peer)) =
            self.exchanges.listener(owed.listener).and_then(|tables| tables.server.response(owed.token))
        {
            out.push(Flow::datagrams(owed.listener, peer), bytes);
        }
    }

    /// Everything that the waiting answer names is open now.
    pub(super) fn pass_answer_on(&mut self, now: Now, owed: Id, out: &mut Transmits) {
        let Some(Exchange { stage: Stage::Relaying(relay), gate_deadline, .. }) = self.exchanges.pending(owed) else {
            return;
        };
        *gate_deadline = None;
        let Some(answer) = relay.waiting.take() else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        let code = message.status().unwrap_or(500);
        self.pass_on(now, owed, &message, code, out);
    }

    /// Passes a response on to the client, with the gate's addresses in place of the service's.
    fn pass_on(&mut self, now: Now, owed: Id, message: &Message<'_>, code: u16, out: &mut Transmits) {
        let Some(exchange) = self.exchanges.pending(owed) else { return };
        let (started, listener) = (exchange.started, exchange.flow.listener);
        let Stage::Relaying(relay) = &exchange.stage else { return };
        let (sent, renewal, call) = (relay.sent, relay.renewal, relay.call);
        let (kind, body) = relayed_body(message, relay, code, &self.settings);
        let body = body.as_deref().map(|bytes| NewBody { content_type: kind.as_bytes(), bytes });
        let mut bytes = std::mem::take(&mut self.scratch);
        let is_accepted = code / 100 == 2;
        let leg = if is_accepted { Leg::new(relay.hop, &relay.forwarded, message) } else { None };
        let (user, service) = (relay.user.clone(), Arc::clone(&relay.service));
        let lifetime_s = u64::from(relay.limits.lifetime_s);
        let agent = relay.agent.clone().filter(|_| is_accepted);
        let contact = self.answer_contact(message, listener);
        let said = (contact.as_deref().unwrap_or_default(), body.as_ref().map_or(message.body(), |body| body.bytes));
        let proof = agent.map(|agent| agent.answer(said.0, said.1));
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let proof = proof.as_ref().map(|proof| (HEADER.as_str(), proof.as_bytes()));
        let add: Vec<_> = contact.into_iter().chain(proof).collect();
        let response = ForwardResponse { response: message, remove: HIDDEN, add: &add, body };
        let written = response.write(&mut bytes);
        let Some(Exchange { stage: Stage::Relaying(relay), .. }) = self.exchanges.pending(owed) else { return };
        let failed = (code >= 300).then(|| relay.last_opening().filter(|o| !o.renewal).map(|o| o.selector())).flatten();
        if written.is_ok() {
            if code >= 200 {
                self.exchanges.end(owed);
            }
            if self.send_answer(now, owed, code, &bytes, out) {
                self.metrics.one(Count::ResponsesRelayed);
            }
            if is_accepted {
                self.ledger.keep_call(call, (&user, &service.name), now.unix.plus_secs(lifetime_s));
            } else if code >= 300 && !renewal {
                self.ledger.end_call(now.instant, call, None);
            }
            if let Some(leg) = leg {
                self.legs.keep(call, now.instant + Duration::from_secs(lifetime_s), leg);
            }
            self.settle(now, (code, renewal), sent, started, failed);
        }
        self.scratch = bytes;
    }

    /// Books what a final answer means.
    fn settle(
        &mut self,
        now: Now,
        (code, renewal): (u16, bool),
        sent: Id,
        started: sluicegate_wire::Instant,
        failed: Option<sluicegate_feed::Selector>,
    ) {
        match code {
            200..=299 => {
                self.exchanges.linger(now.instant, sent);
                self.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
                self.metrics.setup(now.instant.since(started));
            }
            300.. => {
                self.exchanges.forget(sent);
                if let Some(selector) = failed {
                    self.revoke(selector);
                }
            }
            _ => {}
        }
    }

    /// The gate would not open what the service's answer names: the client gets no early media, or a 503 and the service
    /// the end of a call that it thinks it has.
    pub(super) fn on_relay_gate_failed(&mut self, now: Now, owed: Id, why: &str, out: &mut Transmits) {
        let Some(Exchange { stage: Stage::Relaying(relay), gate_deadline, .. }) = self.exchanges.pending(owed) else {
            return;
        };
        *gate_deadline = None;
        let Some(answer) = relay.waiting.take() else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        if message.status().is_some_and(|code| code < 200) {
            if let Some(opening) = relay.opening.take() {
                self.exchanges.stop_waiting(&opening);
            }
            return;
        }
        let (sent, leg) = (relay.sent, Leg::new(relay.hop, &relay.forwarded, &message));
        self.exchanges.forget(sent);
        if let Some(leg) = leg {
            self.hang_up(now, &leg, out);
        }
        self.fail(now, owed, 503, why, out);
    }

    /// Our own request was never answered.
    pub(super) fn on_relay_timeout(&mut self, now: Now, listener: u8, token: Token, out: &mut Transmits) {
        let sent = Id { listener, token };
        let Some(owed) = self.exchanges.owed(sent) else { return };
        self.exchanges.forget(sent);
        let Some(Exchange { stage: Stage::Relaying(relay), .. }) = self.exchanges.pending(owed) else { return };
        let (code, why) =
            if relay.cancelled { (487, "the client cancelled") } else { (408, "the service did not answer") };
        self.fail(now, owed, code, why, out);
    }
}

/// Whether a final answer replaces the provisional one that waits for the gate.
fn supersedes(waiting: Option<&[u8]>, code: u16) -> bool {
    let waiting = waiting.and_then(|bytes| Message::parse(bytes).ok()).and_then(|message| message.status());
    code >= 200 && waiting.is_some_and(|waiting| waiting < 200)
}

/// The description as the client is to see it: with the gate's addresses, and for an agent with its grants. `None`: as it
/// came.
fn relayed_body(
    message: &Message<'_>,
    relay: &super::relay::Relay,
    code: u16,
    settings: &super::Settings,
) -> (String, Option<Vec<u8>>) {
    const SDP: &str = "application/sdp";
    let is_sdp = message.content_type().is_some_and(|kind| kind.eq_ignore_ascii_case(SDP.as_bytes()));
    let session = if is_sdp && code < 300 { Session::parse(message.body()).ok() } else { None };
    let Some(session) = session else { return (String::new(), None) };
    let opened = relay.last_opening().map(super::grants::Opening::opened).unwrap_or_default();
    let sdp = media::rewrite_answer(&session, &opened, settings.address(0).ip());
    match &relay.opening {
        Some(opening) if relay.agent.is_some() && code >= 200 => {
            let (kind, body) = multipart(relay.call, &sdp, &opening.signed(settings));
            (kind, Some(body))
        }
        _ => (SDP.to_owned(), Some(sdp)),
    }
}
