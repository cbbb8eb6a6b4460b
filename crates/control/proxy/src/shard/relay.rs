//! Relayed services: a request goes to the agent or SIP server and what its answer names is opened before that is passed on,
//! or it comes from there and what it offers is opened before it goes to the client.

use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    sdp::Session,
    transaction::Role,
    write::{ForwardResponse, NewBody, cancel_for},
};

use super::{
    admission::Admitted,
    answer::{session_of, with_closed_session, with_session},
    context::Context,
    exchanges::{Asking, Exchange, ExchangeId, Exchanges, Relayed},
    failover::{self, Others, Ways},
    forks::Refusal,
    grants::{Opening, open_already},
    inbound::try_targets,
    keys::{Caller, Direction, Route},
    ladder::Asked,
    legs::{Leg, Legs},
    media::{self, wanted_of_answer},
    names::{HIDDEN, NOT_FORWARDED},
    onward::Onward,
    paths::{asks_for_ours, is_registration},
    peers::{self, note_media},
    registrar::Hop,
    responses::{Makes, abandon, description, keep_ringing, settle, supersedes, write_response},
    transactions::Id,
    watch,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::Flow,
};

/// What is known of a request that is passed on to a service, or from it to a client.
#[derive(Debug)]
pub(super) struct Relay {
    /// Which way it goes.
    pub(super) direction: Direction,
    /// Where the client is, whose packets the gate lets in.
    pub(super) client: Flow,
    /// Our own transaction towards the other side; none until what the request offers is open.
    pub(super) sent: Option<Id>,
    /// Where it goes.
    pub(super) hop: Flow,
    /// The Request-URI under which it goes there, and where it goes if it is too long for that way.
    way: Hop,
    /// The Route values by which it gets there.
    routes: Vec<Vec<u8>>,
    /// To how many places at a time it may go from there, of one that went to several (RFC 5393 section 5).
    breadth: Option<u16>,
    /// The answer that is passed on once everything that it names is open.
    waiting: Option<Vec<u8>>,
    /// Whether its sender wants it no longer.
    pub(super) cancelled: bool,
    /// Who else may take it.
    pub(super) others: Option<Others>,
}

impl Relay {
    /// What goes on from one side of a call to the other, which is at `hop`.
    pub(super) fn new((direction, client): (Direction, Flow), way: Hop) -> Self {
        let (hop, routes, breadth) = (way.flow, Vec::new(), None);
        Self { direction, client, sent: None, hop, way, routes, breadth, waiting: None, cancelled: false, others: None }
    }

    /// The same where others may take it.
    pub(super) fn or(self, others: Others) -> Self {
        Self { others: Some(others), ..self }
    }

    /// The same by way of these proxies, which may send it to so many places at a time.
    pub(super) fn by(self, routes: Vec<Vec<u8>>, breadth: u16) -> Self {
        Self { routes, breadth: Some(breadth), ..self }
    }
}

impl Exchanges {
    /// Passes an allowed request outside of dialogs, or a re-INVITE, on to its service, or to the first of these.
    pub(super) fn relay(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        admitted: &Admitted,
        mut ways: Ways,
        offer: Option<&Session<'_>>,
    ) {
        if failover::are_cut_off(cx, asked, &mut ways) {
            return self.transactions.refuse_admitted(
                cx,
                asked,
                admitted,
                (Outcome::Unavailable, 503),
                failover::CUT_OFF,
            );
        }
        let is_alone = ways.len() <= 1;
        let Some((admitted, hop)) = failover::next(cx, asked, admitted, &mut ways, offer) else {
            return self.transactions.refuse_admitted(
                cx,
                asked,
                admitted,
                (Outcome::Unavailable, 480),
                failover::NOWHERE,
            );
        };
        let (hop, forwarded) = match failover::write(cx, asked, &admitted, &hop, offer) {
            Ok(written) => written,
            Err((verdict, why)) => {
                return self.transactions.refuse_admitted(cx, asked, &admitted, verdict, why);
            }
        };
        if !self.has_room_for(&admitted.user) {
            // Not remembered: that would cost what is to be saved.
            cx.metrics.one(Count::TableFull);
            watch::refused(
                cx,
                asked,
                &admitted,
                (Outcome::Unavailable, 503),
                "the user waits for as many answers as one may",
            );
            return cx.unavailable_once(asked);
        }
        if !keep_ringing(cx, asked.message, &admitted) {
            return self.transactions.refuse_admitted(
                cx,
                asked,
                &admitted,
                (Outcome::Unavailable, 503),
                failover::FULL,
            );
        }
        let Some(owed) = self.transactions.open(cx, asked, Role::Proxy) else { return };
        let relay = Relay::new((Direction::ToService, asked.flow), hop);
        let relay = if is_alone { relay } else { relay.or(Others::new(cx.now.instant, ways)) };
        self.begin(cx, owed.into(), asked.kept(), admitted, Some(Box::new(relay)));
        let is_sent = self.start(cx, owed.into(), &forwarded);
        cx.metrics.request(asked.kind, if is_sent { Outcome::Admitted } else { Outcome::Unavailable });
        if is_sent && asked.method == Method::Invite {
            self.transactions.send_trying(cx, owed, asked);
        }
    }

    /// Sends an exchange's request on; `false`, after having told its sender, if there is no room.
    pub(super) fn start(&mut self, cx: &mut Context, id: ExchangeId, forwarded: &[u8]) -> bool {
        let Some(Exchange { admitted, relay: Some(relay), .. }) = self.pending.get_mut(&id) else { return false };
        relay.sent = self.transactions.start(cx, relay.hop, forwarded);
        let relayed = Relayed { exchange: id, call: admitted.call, direction: relay.direction };
        if let Some(sent) = relay.sent.filter(|_| relay.others.as_ref().is_some_and(|others| !others.is_last())) {
            self.silences.begin(cx.now.instant, sent);
        }
        match relay.sent {
            Some(sent) => drop(self.relayed.insert(sent, relayed)),
            None => self.fail(cx, id, 503, "the table of requests to the other side is full"),
        }
        self.pending.contains_key(&id)
    }

    /// An exchange's request as it was sent on.
    fn sent_on(&self, exchange: &Exchange) -> &[u8] {
        let sent = exchange.relay.as_ref().and_then(|relay| relay.sent);
        sent.and_then(|sent| self.transactions.request(sent)).map(|(request, _)| request).unwrap_or_default()
    }

    /// Passes a request within a call on that may change what the call has open: at once, or once what a service offers is
    /// open.
    pub(super) fn relay_offer(&mut self, cx: &mut Context, asked: Asked<'_>, admitted: Admitted, relay: Relay) {
        let offer = session_of(asked.message).filter(|_| relay.direction == Direction::ToClient);
        let wants = offer.map(|offer| wanted_of_answer(&offer, &admitted.service)).unwrap_or_default();
        if !self.transactions.charge(cx.now.instant, &admitted.user) {
            cx.metrics.one(Count::TableFull);
            return cx.unavailable_once(asked);
        }
        let Some(owed) = self.transactions.open(cx, asked, Role::Proxy) else { return };
        cx.metrics.request(asked.kind, Outcome::Admitted);
        let id = owed.into();
        self.begin(cx, id, asked.kept(), admitted, Some(Box::new(relay)));
        if asked.method == Method::Invite {
            self.transactions.send_trying(cx, owed, asked);
        }
        if wants.is_empty() || self.open_grants(cx, id, &wants) == Asking::Open {
            self.send_on(cx, id);
        }
    }

    /// Everything that a request offers is open now, so it goes on.
    pub(super) fn send_on(&mut self, cx: &mut Context, id: ExchangeId) {
        let Some(exchange) = self.pending.get(&id) else { return };
        let Exchange { flow, request, opening, relay: Some(relay), admitted, .. } = exchange else { return };
        let Ok(message) = Message::parse(request) else { return };
        let sdp = session_of(&message).map(|session| match relay.direction {
            Direction::ToService => media::rewrite_offer(&session, exchange.client_ip()),
            Direction::ToClient => {
                let opened = opening.as_ref().map(Opening::opened).unwrap_or_default();
                media::rewrite_answer(&session, &opened, cx.settings.address(0).ip())
            }
        });
        // What makes a call has to come back this way.
        let is_first = !admitted.renewal && Makes::of(&message) != Makes::Nothing;
        let caller = Caller::of(&message).filter(|_| is_first);
        let record_routes = caller.map_or_else(Vec::new, |caller| {
            let service = admitted.service.name.clone();
            let route = Route { call: admitted.call, service, client: relay.client, caller: relay.direction.sender() };
            cx.record_routes(&route, caller, [relay.hop, *flow])
        });
        let onward = Onward {
            message: &message,
            from: *flow,
            to: (relay.direction, &relay.way),
            sdp: sdp.as_deref(),
            record_routes: &record_routes,
            routes: &relay.routes,
            breadth: relay.breadth,
        };
        let came = (relay.direction.sender(), &message);
        match onward.write(cx, |cx, _| Some(cx.new_branch(Some(came)))) {
            Ok(to) => {
                let forwarded = cx.scratch.clone();
                if let Some(relay) = self.pending.get_mut(&id).and_then(|exchange| exchange.relay.as_mut()) {
                    relay.hop = to;
                }
                self.start(cx, id, &forwarded);
            }
            Err(code) => self.fail(cx, id, code, "the request cannot be passed on"),
        }
    }

    /// A CANCEL: for an INVITE of the same branch and sender, from the same address.
    pub(super) fn on_cancel(&mut self, cx: &mut Context, asked: Asked<'_>) {
        let Some(owed) = self.transactions.invite_of(asked) else { return cx.unmatched(asked) };
        let pending = |id: &ExchangeId| self.pending.get(id);
        let source = self.forks.branches(owed).find_map(|id| pending(&id)).map(|exchange| exchange.flow.peer.ip());
        if source.is_some_and(|ip| ip != asked.flow.peer.ip()) {
            return cx.unmatched(asked);
        }
        cx.answer_once(asked, (Outcome::Answered, 200));
        // Answered already: then the CANCEL changes nothing (RFC 3261 section 9.2).
        self.forks.close(owed);
        for id in self.forks.branches(owed) {
            self.call_off(cx, id);
        }
    }

    /// An exchange is no longer wanted.
    fn call_off(&mut self, cx: &mut Context, id: ExchangeId) {
        let Some(exchange) = self.pending.get_mut(&id) else { return };
        let relay = exchange.relay.as_mut();
        let sent = relay.and_then(|relay| {
            relay.cancelled = true;
            relay.sent
        });
        match sent {
            Some(sent) => self.cancel(cx, sent),
            None => self.fail(cx, id, 487, "its sender cancelled"),
        }
    }

    /// Sends the answer in `scratch` in the transaction that an exchange owes it, unless others owe it too and may still
    /// have a better one; whether it was sent.
    pub(super) fn answer(&mut self, cx: &mut Context, id: ExchangeId, code: u16) -> bool {
        if code < 300 {
            let is_sent = self.transactions.respond(cx, id.owed, code);
            let others = if code < 200 { None } else { Some(self.forks.end(id.owed)) };
            for other in others.into_iter().flatten() {
                self.call_off(cx, other);
            }
            return is_sent;
        }
        // Nobody there has answered: what else comes from a telephone is its word for all of its flows (RFC 5626 section 7).
        if (matches!(code, 408 | 430) || cx.is_undelivered)
            && let Some((inbound, next)) = self.forks.flow_failed(id)
        {
            self.transactions.wait(cx.now.instant, id.owed);
            try_targets(cx, self, id, &inbound, vec![next]);
            return false;
        }
        match self.forks.refused(id.owed, code, &cx.scratch) {
            Refusal::Answer => return self.transactions.respond(cx, id.owed, code),
            Refusal::Best(code, answer) => {
                cx.scratch = answer;
                return self.transactions.respond(cx, id.owed, code);
            }
            Refusal::Next(inbound, targets) => {
                self.transactions.wait(cx.now.instant, id.owed);
                try_targets(cx, self, id, &inbound, targets);
            }
            Refusal::Wait if code >= 600 => {
                self.forks.branches(id.owed).for_each(|other| self.call_off(cx, other));
            }
            Refusal::Wait => {}
        }
        false
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

    /// Memory is short, and this has rung for long: its caller is told, and what was sent on is called off, now or once it is
    /// heard of.
    pub(super) fn end_early(&mut self, cx: &mut Context, id: ExchangeId) {
        let sent = self.pending.get(&id).and_then(|exchange| exchange.relay.as_ref()?.sent);
        if let Some(sent) = sent {
            self.cancel(cx, sent);
        }
        self.fail(cx, id, 500, "nobody answered, and there was no room to wait on");
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
        let Some(relayed) = self.relayed.get(&sent).copied() else { return self.on_late(cx, sent, message, code) };
        let owed = relayed.exchange;
        let is_registration = relayed.direction == Direction::ToService && is_registration(message);
        if is_registration && asks_for_ours(message, &cx.settings.realm) {
            self.transactions.release(sent);
            return self.fail(cx, owed, 500, "the service asks for passwords in our realm: it has to name another");
        }
        if failover::heard(cx, self, owed, message, code) {
            return;
        }
        let Some(exchange) = self.pending.get_mut(&owed) else {
            return self.on_another(cx, legs, relayed, (flow, message), code);
        };
        let Some(relay) = &mut exchange.relay else { return };
        if code < 200 && relay.cancelled {
            return self.cancel(cx, sent);
        }
        // Timer C begins anew, whether or not this is passed on.
        if code > 100 && code < 200 {
            self.transactions.wait(cx.now.instant, owed.owed);
        }
        if code == 100 || (code < 300 && relay.waiting.is_some() && !supersedes(relay.waiting.as_deref(), code)) {
            return;
        }
        if relay.direction == Direction::ToClient
            && let Err(why) = note_media(cx, exchange, message, code)
        {
            exchange.relay.iter_mut().for_each(|relay| relay.waiting = Some(message.as_bytes().to_vec()));
            return self.on_relay_gate_failed(cx, owed, why);
        }
        let client_ip = exchange.client_ip();
        let Some(relay) = &mut exchange.relay else { return };
        let opens = relay.direction == Direction::ToService && !is_registration;
        let of_service = description(message, code).filter(|_| opens);
        let Some(session) = of_service else { return self.pass_on(cx, legs, owed, message, code) };
        let mut wants = wanted_of_answer(&session, &exchange.admitted.service);
        let request = Message::parse(&exchange.request).ok();
        let offer = request.as_ref().and_then(session_of);
        media::narrow(&mut wants, offer.as_ref(), client_ip);
        let known = exchange.opening.as_ref().filter(|_| relay.waiting.is_none());
        let is_open = known.is_some_and(|opening| opening.opens(&wants));
        if wants.is_empty() || is_open {
            return self.pass_on(cx, legs, owed, message, code);
        }
        // The answer waits until everything that it names is open.
        relay.waiting = Some(message.as_bytes().to_vec());
        if self.open_grants(cx, owed, &wants) == Asking::Open {
            self.pass_answer_on(cx, legs, owed);
        }
    }

    /// An answer that nobody waits for any more: the call that it makes is ended.
    fn on_late(&mut self, cx: &mut Context, sent: Id, message: &Message<'_>, code: u16) {
        let is_call = code / 100 == 2 && message.cseq().is_ok_and(|cseq| cseq.method == Method::Invite);
        if code < 200 {
            return self.cancel(cx, sent);
        }
        if !is_call {
            return self.transactions.release(sent);
        }
        let Some((invite, hop)) = self.transactions.request(sent) else { return };
        if let Some(leg) = Leg::new(hop, invite, message) {
            self.hang_up(cx, sent, &leg);
        }
    }

    /// A 2xx after the first. The same again, before it was acknowledged: the client gets ours again. Else it is passed on as
    /// it comes: after the ACK, which was lost behind us, with what the call has open; that of another branch, which the
    /// client ends (RFC 3261 section 13.2.2.4), with nothing.
    fn on_another(
        &self,
        cx: &mut Context,
        legs: &Legs,
        Relayed { exchange, call, direction }: Relayed,
        (flow, message): (Flow, &Message<'_>),
        code: u16,
    ) {
        let Some(to) = self.transactions.client(exchange.owed).filter(|_| code / 100 == 2) else { return };
        let tag = |message: &Message<'_>| message.to().ok().and_then(|to| to.tag.map(<[u8]>::to_vec));
        let first = self.transactions.response(exchange.owed);
        if let Some(first) = first.filter(|first| Message::parse(first).is_ok_and(|first| tag(&first) == tag(message)))
        {
            cx.out.push(to, first);
            return;
        }
        let is_own = !legs.is_another(call, tag(message).as_deref());
        let own = cx.settings.address(0).ip();
        let body = match description(message, code) {
            None => with_closed_session(message, own),
            Some(session) if direction == Direction::ToClient => {
                with_session(message, &media::rewrite_offer(&session, peers::client_ip(cx, call, flow)))
            }
            Some(session) => {
                let opened = if is_own { open_already(cx, call, &session) } else { Vec::new() };
                with_session(message, &media::rewrite_answer(&session, &opened, own))
            }
        };
        let is_services = direction == Direction::ToService;
        let contact = if is_services { cx.answer_contact(message, flow, to) } else { None };
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let response = ForwardResponse {
            response: message,
            remove: if is_services { HIDDEN } else { NOT_FORWARDED },
            add: contact.as_slice(),
            body: body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes }),
        };
        if response.write(&mut cx.scratch).is_ok() {
            cx.metrics.one(Count::ResponsesRelayed);
            cx.out.push(to, &cx.scratch);
        }
    }

    /// The answer that waits, if one does. Nothing is waited for any more.
    fn take_waiting(&mut self, owed: ExchangeId) -> Option<Vec<u8>> {
        let exchange = self.pending.get_mut(&owed)?;
        exchange.gate_deadline = None;
        exchange.relay.as_mut()?.waiting.take()
    }

    /// Everything that the waiting answer names is open now.
    pub(super) fn pass_answer_on(&mut self, cx: &mut Context, legs: &mut Legs, owed: ExchangeId) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        let code = message.status().unwrap_or(500);
        self.pass_on(cx, legs, owed, &message, code);
    }

    /// Passes a response on: one of the service with the gate's addresses in place of its own, one of the client with the
    /// address that the client has.
    fn pass_on(&mut self, cx: &mut Context, legs: &mut Legs, owed: ExchangeId, message: &Message<'_>, code: u16) {
        let Some(exchange) = self.pending.get(&owed) else { return };
        if write_response(cx, (exchange, self.sent_on(exchange)), message, code).is_none() {
            return;
        }
        let exchange = if code >= 200 { self.end(owed) } else { None };
        if self.answer(cx, owed, code) {
            cx.metrics.one(Count::ResponsesRelayed);
        }
        let Some((exchange, sent)) = exchange.and_then(|exchange| {
            let sent = exchange.relay.as_ref()?.sent?;
            Some((exchange, sent))
        }) else {
            return;
        };
        let is_invite = message.cseq().is_ok_and(|cseq| cseq.method == Method::Invite);
        if is_invite && code < 300 {
            self.linger(cx.now.instant, sent);
        } else {
            self.relayed.remove(&sent);
        }
        watch::tell_answer(cx, &exchange, code);
        if code < 300 {
            settle(cx, legs, (&exchange, self.sent_on(&exchange)), message);
        } else {
            abandon(cx, &exchange);
        }
        self.transactions.release(sent);
    }

    /// The gate would not open what the service's answer names: the client gets no early media, or a 503 and the service
    /// the end of a call that it thinks it has.
    pub(super) fn on_relay_gate_failed(&mut self, cx: &mut Context, owed: ExchangeId, why: &str) {
        let Some(answer) = self.take_waiting(owed) else { return };
        let Ok(message) = Message::parse(&answer) else { return };
        if message.status().is_some_and(|code| code < 200) {
            self.give_up_opening(owed);
            return self.pass_on_without_media(cx, owed, &message);
        }
        let Some(Exchange { relay: Some(relay), .. }) = self.pending.get_mut(&owed) else { return };
        let Some(sent) = relay.sent else { return };
        self.relayed.remove(&sent);
        if let Some(leg) = self.transactions.request(sent).and_then(|(invite, hop)| Leg::new(hop, invite, &message)) {
            self.hang_up(cx, sent, &leg);
        }
        self.fail(cx, owed, 503, why);
    }

    /// A provisional answer of a service whose early media no gate opened. A reliable one comes again, and may then be opened.
    fn pass_on_without_media(&mut self, cx: &mut Context, owed: ExchangeId, message: &Message<'_>) {
        let Some(Exchange { relay: Some(relay), flow, .. }) = self.pending.get(&owed) else { return };
        if message.lists(HeaderName::Require, b"100rel") {
            return;
        }
        let contact = cx.answer_contact(message, relay.hop, *flow);
        let contact = contact.as_deref().map(|value| ("Contact", value));
        let body = Some(NewBody { content_type: b"", bytes: b"" });
        let response = ForwardResponse { response: message, remove: HIDDEN, add: contact.as_slice(), body };
        if response.write(&mut cx.scratch).is_ok() {
            self.answer(cx, owed, message.status().unwrap_or(183));
        }
    }

    /// Our own request was never answered.
    pub(super) fn on_relay_timeout(&mut self, cx: &mut Context, sent: Id) {
        let Some(owed) = self.relayed.remove(&sent).map(|relayed| relayed.exchange) else { return };
        if failover::unanswered(cx, self, owed) {
            return;
        }
        let Some(Exchange { relay: Some(relay), request, .. }) = self.pending.get(&owed) else { return };
        let is_invite = Message::parse(request).is_ok_and(|request| request.method() == Some(Method::Invite));
        match (is_invite, relay.cancelled) {
            (true, true) => self.fail(cx, owed, 487, "the caller cancelled"),
            (true, false) => self.fail(cx, owed, 408, "the other side did not answer"),
            // Its sender gives up at the same time, and would take a 408 for an answer to something else (RFC 4320 section 4.2).
            (false, _) => self.on_unanswered(cx, owed),
        }
    }

    /// Nobody answers, and nobody is told.
    fn on_unanswered(&mut self, cx: &mut Context, id: ExchangeId) {
        if let Some(exchange) = self.end(id) {
            abandon(cx, &exchange);
        }
        drop(self.forks.end(id.owed));
        self.transactions.forget(id.owed);
    }
}
