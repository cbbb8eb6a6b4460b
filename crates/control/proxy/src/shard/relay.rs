//! Relayed services: the INVITE goes to the agent or SIP server, and what its answer names is opened before the answer is
//! passed on.

use std::time::Duration;

use sluicegate_policy::ServiceKind;
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    sdp::Session,
    transaction::Role,
    write::{ForwardRequest, ForwardResponse, NewBody, cancel_for},
};

use super::{
    admission::Admitted,
    answer::{session_of, with_session},
    context::Context,
    declared::multipart,
    exchanges::{Exchange, Exchanges},
    grants::Opening,
    keys::Route,
    ladder::Asked,
    legs::{Leg, Legs},
    media::{self, wanted_of_answer},
    names::{HIDDEN, NOT_FORWARDED, refusal_of},
    registrar::Hop,
    settings::Settings,
    transactions::Id,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::Flow,
};

/// How long a relayed call may ring, in seconds: longer than timer C lets it, and the CANCEL that follows (RFC 3261 section
/// 16.8).
const RINGING_SECS: u64 = 240;

/// What is known of an INVITE that was passed on to a service.
#[derive(Debug)]
pub(super) struct Relay {
    /// Our own transaction towards the service.
    pub(super) sent: Id,
    /// Where it went.
    pub(super) hop: Flow,
    /// The INVITE as it went there.
    pub(super) forwarded: Vec<u8>,
    /// The answer that is passed on once everything that it names is open.
    pub(super) waiting: Option<Vec<u8>>,
    /// Whether the client wants it no longer.
    pub(super) cancelled: bool,
}

impl Exchanges {
    /// Passes an allowed INVITE on to its service.
    pub(super) fn relay_invite(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        admitted: Admitted,
        hop: &Hop,
        offer: Option<&Session<'_>>,
    ) {
        let forwarded = match forwarded(cx, asked, &admitted, hop, offer) {
            Ok(forwarded) => forwarded,
            Err(code) => return self.transactions.refuse(cx, asked, (Outcome::Malformed, code), &[]),
        };
        if cx.out.links.is_too_long(hop.flow.peer, forwarded.len()) {
            return self.transactions.refuse(cx, asked, (Outcome::Unsupported, 513), &[]);
        }
        let of = (admitted.user.as_str(), admitted.service.name.as_str());
        if !cx.ledger.keep_call(admitted.call, of, cx.now.unix.plus_secs(RINGING_SECS)) {
            cx.metrics.one(Count::TableFull);
            return self.transactions.refuse(cx, asked, (Outcome::Unavailable, 503), &[]);
        }
        let Some(owed) = self.transactions.open(cx, asked, Role::Proxy) else { return };
        let sent = self.transactions.start(cx, hop.flow, &forwarded);
        let relay = Relay { sent: sent.unwrap_or(owed), hop: hop.flow, forwarded, waiting: None, cancelled: false };
        self.begin(cx, owed, asked, admitted, Some(Box::new(relay)));
        let Some(sent) = sent else {
            cx.metrics.request(asked.kind, Outcome::Unavailable);
            return self.fail(cx, owed, 503, "the table of requests to services is full");
        };
        cx.metrics.request(asked.kind, Outcome::Admitted);
        self.relayed.insert(sent, owed);
        self.transactions.send_trying(cx, owed, asked);
    }

    /// A CANCEL: for an INVITE of the same branch and sender, from the same address.
    pub(super) fn on_cancel(&mut self, cx: &mut Context, asked: Asked<'_>) {
        let Some(id) = self.transactions.cancelled_by(asked) else { return cx.unmatched(asked) };
        let source = self.pending.get_mut(&id).map(|exchange| exchange.flow.peer.ip());
        if source.is_some_and(|ip| ip != asked.flow.peer.ip()) {
            return cx.unmatched(asked);
        }
        cx.answer_once(asked, (Outcome::Answered, 200));
        // Answered already: then the CANCEL changes nothing (RFC 3261 section 9.2).
        match self.pending.get_mut(&id) {
            None => {}
            Some(Exchange { relay: None, .. }) => self.fail(cx, id, 487, "the client cancelled"),
            Some(Exchange { relay: Some(relay), .. }) => {
                relay.cancelled = true;
                let sent = relay.sent;
                self.cancel(cx, sent);
            }
        }
    }

    /// Cancels what was sent to the service, once that has answered provisionally (RFC 3261 section 9.1).
    fn cancel(&mut self, cx: &mut Context, sent: Id) {
        if self.transactions.cancel(cx.now.instant, sent) {
            self.send_cancel(cx, sent);
        }
    }

    /// Nobody answers at the service (RFC 3261 section 16.8). The client hears what becomes of that.
    pub(super) fn on_ringing_too_long(&mut self, cx: &mut Context, sent: Id) {
        self.send_cancel(cx, sent);
    }

    fn send_cancel(&mut self, cx: &mut Context, sent: Id) {
        let mut cancel = Vec::new();
        let Some((invite, hop)) = self.transactions.request(sent) else { return };
        if Message::parse(invite).and_then(|invite| cancel_for(&invite, &mut cancel)).is_ok() {
            self.transactions.start(cx, hop, &cancel);
        }
    }

    /// A response to an INVITE that we relayed; those to our own CANCEL and BYE are owed to no one.
    pub(super) fn on_response(
        &mut self,
        cx: &mut Context,
        legs: &mut Legs,
        flow: Flow,
        message: &Message<'_>,
        code: u16,
    ) {
        let Some(sent) = self.transactions.take_response(cx, flow, message) else { return };
        let Some(owed) = self.relayed.get(&sent).copied() else { return self.on_late(cx, sent, message, code) };
        let Some(exchange) = self.pending.get_mut(&owed) else { return self.on_another(cx, owed, message, code) };
        let Some(relay) = &mut exchange.relay else { return };
        if code < 200 && relay.cancelled {
            return self.cancel(cx, sent);
        }
        if code == 100 || (code < 300 && relay.waiting.is_some() && !supersedes(relay.waiting.as_deref(), code)) {
            return;
        }
        let Some(session) = description(message, code) else { return self.pass_on(cx, legs, owed, message, code) };
        let mut wants = wanted_of_answer(&session, &exchange.admitted.service);
        let request = Message::parse(&exchange.request).ok();
        let offer = request.as_ref().and_then(session_of);
        media::narrow(&mut wants, offer.as_ref(), exchange.flow.peer.ip());
        let known = exchange.opening.as_ref().filter(|_| relay.waiting.is_none());
        let is_open = known.is_some_and(|opening| opening.opens(&wants));
        if wants.is_empty() || is_open {
            return self.pass_on(cx, legs, owed, message, code);
        }
        // The answer waits until everything that it names is open.
        relay.waiting = Some(message.as_bytes().to_vec());
        self.open_grants(cx, owed, &wants);
    }

    /// An answer that nobody waits for any more: the call that it makes is ended.
    fn on_late(&mut self, cx: &mut Context, sent: Id, message: &Message<'_>, code: u16) {
        let is_call = code / 100 == 2 && message.cseq().is_ok_and(|cseq| cseq.method == Method::Invite);
        let Some((invite, hop)) = self.transactions.request(sent).filter(|_| is_call) else { return };
        if let Some(leg) = Leg::new(hop, invite, message) {
            self.hang_up(cx, sent, &leg);
        }
    }

    /// A 2xx after the first. The same again: the client has not acknowledged it yet, so it gets ours again. That of another
    /// branch of a service that forks: the client ends it (RFC 3261 section 13.2.2.4), and nothing is opened for it.
    fn on_another(&self, cx: &mut Context, owed: Id, message: &Message<'_>, code: u16) {
        let Some((first, to)) = self.transactions.response(owed).filter(|_| code / 100 == 2) else { return };
        let tag = |message: &Message<'_>| message.to().ok().and_then(|to| to.tag.map(<[u8]>::to_vec));
        if Message::parse(first).is_ok_and(|first| tag(&first) == tag(message)) {
            cx.out.push(to, first);
            return;
        }
        let sdp =
            description(message, code).map(|session| media::rewrite_answer(&session, &[], cx.settings.address(0).ip()));
        let body = sdp.and_then(|sdp| with_session(message, &sdp));
        let contact = cx.settings.answer_contact(message, to.listener);
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let response = ForwardResponse {
            response: message,
            remove: HIDDEN,
            add: contact.as_slice(),
            body: body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes }),
        };
        if response.write(&mut cx.scratch).is_ok() {
            cx.metrics.one(Count::ResponsesRelayed);
            cx.out.push(to, &cx.scratch);
        }
    }

    /// The answer that waits, if one does. Nothing is waited for any more.
    fn take_waiting(&mut self, owed: Id) -> Option<Vec<u8>> {
        let exchange = self.pending.get_mut(&owed)?;
        exchange.gate_deadline = None;
        exchange.relay.as_mut()?.waiting.take()
    }

    /// Everything that the waiting answer names is open now.
    pub(super) fn pass_answer_on(&mut self, cx: &mut Context, legs: &mut Legs, owed: Id) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        let code = message.status().unwrap_or(500);
        self.pass_on(cx, legs, owed, &message, code);
    }

    /// Passes a response on to the client, with the gate's addresses in place of the service's.
    fn pass_on(&mut self, cx: &mut Context, legs: &mut Legs, owed: Id, message: &Message<'_>, code: u16) {
        let Some(exchange) = self.pending.get_mut(&owed) else { return };
        let Some(relay) = &exchange.relay else { return };
        let Admitted { user, service, limits, call, renewal, agent } = exchange.admitted.clone();
        let (sent, started, listener) = (relay.sent, exchange.started, exchange.flow.listener);
        let is_accepted = code / 100 == 2;
        let leg = if is_accepted { Leg::new(relay.hop, &relay.forwarded, message) } else { None };
        let has_opened = exchange.opening.is_some();
        let body = relayed_body(message, exchange, code, &cx.settings);
        let body = body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes });
        let contact = cx.settings.answer_contact(message, listener);
        let said = (contact.as_deref().unwrap_or_default(), body.as_ref().map_or(message.body(), |body| body.bytes));
        let proof = agent.filter(|_| is_accepted).map(|agent| agent.answer(said.0, said.1));
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let proof = proof.as_ref().map(|proof| (HEADER.as_str(), proof.as_bytes()));
        let add: Vec<_> = contact.into_iter().chain(proof).collect();
        let response = ForwardResponse { response: message, remove: HIDDEN, add: &add, body };
        if response.write(&mut cx.scratch).is_err() {
            return;
        }
        if code >= 200 {
            self.end(owed);
        }
        if self.transactions.respond(cx, owed, code) {
            cx.metrics.one(Count::ResponsesRelayed);
        }
        let (now, lifetime_s) = (cx.now, u64::from(limits.lifetime_s));
        if is_accepted {
            cx.ledger.keep_call(call, (&user, &service.name), now.unix.plus_secs(lifetime_s));
            leg.into_iter().for_each(|leg| legs.keep(call, now.instant + Duration::from_secs(lifetime_s), leg));
            self.linger(now.instant, sent);
            cx.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
            cx.metrics.setup(now.instant.since(started));
        } else if code >= 300 {
            self.relayed.remove(&sent);
            if !renewal {
                cx.ledger.end_call(now.instant, call, None);
            }
            if has_opened && !renewal {
                cx.revoke(call);
            }
        }
    }

    /// The gate would not open what the service's answer names: the client gets no early media, or a 503 and the service
    /// the end of a call that it thinks it has.
    pub(super) fn on_relay_gate_failed(&mut self, cx: &mut Context, owed: Id, why: &str) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        if message.status().is_some_and(|code| code < 200) {
            return self.give_up_opening(owed);
        }
        let Some(Exchange { relay: Some(relay), .. }) = self.pending.get_mut(&owed) else { return };
        let (sent, leg) = (relay.sent, Leg::new(relay.hop, &relay.forwarded, &message));
        self.relayed.remove(&sent);
        if let Some(leg) = leg {
            self.hang_up(cx, sent, &leg);
        }
        self.fail(cx, owed, 503, why);
    }

    /// Our own request was never answered.
    pub(super) fn on_relay_timeout(&mut self, cx: &mut Context, sent: Id) {
        let Some(owed) = self.relayed.remove(&sent) else { return };
        let Some(Exchange { relay: Some(relay), .. }) = self.pending.get_mut(&owed) else { return };
        let (code, why) =
            if relay.cancelled { (487, "the client cancelled") } else { (408, "the service did not answer") };
        self.fail(cx, owed, code, why);
    }
}

/// The INVITE as it goes to the service.
///
/// # Errors
/// The status to answer with.
fn forwarded(
    cx: &mut Context,
    asked: Asked<'_>,
    admitted: &Admitted,
    hop: &Hop,
    offer: Option<&Session<'_>>,
) -> Result<Vec<u8>, u16> {
    let Asked { flow, message, essentials, .. } = asked;
    let branch = cx.new_branch();
    let route = Route { call: admitted.call, service: admitted.service.name.clone(), client: flow };
    let caller_tag = essentials.from.tag.unwrap_or_default();
    let own = cx.settings.address(flow.listener);
    let record_route = cx.keys.record_route((own, cx.now.unix), &route, essentials.call_id, caller_tag);
    let identity = format!("<sip:{}@{}>", admitted.user, cx.settings.realm);
    let sdp = offer.map(|offer| media::rewrite_offer(offer, flow.peer.ip()));
    let body = sdp.and_then(|sdp| with_session(message, &sdp));
    // Within the dialog the client names the service's own Contact, as far as it knows that.
    let uri = if admitted.renewal { cx.settings.inner_uri(message, &hop.uri) } else { Some(hop.uri.clone()) };
    // Our agent is told how long what it lets in lasts; a SIP server would want to refresh by itself.
    let lifetime = admitted.limits.lifetime_s.to_string();
    let is_agent = admitted.service.kind == ServiceKind::Agent;
    let add = [("P-Asserted-Identity", identity.as_bytes()), ("Session-Expires", lifetime.as_bytes())];
    let remove = [NOT_FORWARDED, &[HeaderName::SessionExpires]].concat();
    let mut out = Vec::with_capacity(message.as_bytes().len() + 512);
    let request = ForwardRequest {
        request: message,
        source: flow.peer,
        via: cx.settings.via(hop.flow.listener, &branch),
        uri: uri.as_deref(),
        record_routes: &[record_route.as_bytes()],
        remove_first_route: cx.settings.first_route_is_ours(message),
        remove: if is_agent { &remove } else { NOT_FORWARDED },
        credentials_of: Some(&cx.settings.realm),
        add: if is_agent { &add } else { &add[..1] },
        body: body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes }),
    };
    request.write(&mut out).map(|()| out).map_err(refusal_of)
}

/// Whether a final answer replaces the provisional one that waits for the gate.
fn supersedes(waiting: Option<&[u8]>, code: u16) -> bool {
    let waiting = waiting.and_then(|bytes| Message::parse(bytes).ok()).and_then(|message| message.status());
    code >= 200 && waiting.is_some_and(|waiting| waiting < 200)
}

/// The session description in an answer that opens something.
fn description<'a>(message: &Message<'a>, code: u16) -> Option<Session<'a>> {
    if code < 300 { session_of(message) } else { None }
}

/// The description as the client is to see it, and its type: with the gate's addresses, and for an agent with its grants.
/// `None`: as it came.
fn relayed_body(
    message: &Message<'_>,
    Exchange { admitted, opening, .. }: &Exchange,
    code: u16,
    settings: &Settings,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let session = description(message, code)?;
    let opened = opening.as_ref().map(Opening::opened).unwrap_or_default();
    let sdp = media::rewrite_answer(&session, &opened, settings.address(0).ip());
    Some(match opening {
        Some(opening) if admitted.agent.is_some() && code >= 200 => {
            let (kind, body) = multipart(admitted.call, &sdp, &opening.signed(settings));
            (kind.into_bytes(), body)
        }
        _ => with_session(message, &sdp).map(|(kind, body)| (kind.to_vec(), body))?,
    })
}
