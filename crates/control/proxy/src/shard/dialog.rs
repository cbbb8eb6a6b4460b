//! Requests inside a dialog. A To-tag or a Route of ours shows that there was such a call; the directory says whether it
//! still lives; and who may speak in it is the flow that signed in, the service, or whoever has its user's password.

use sluicegate_policy::{PortRange, SipPeer};
use sluicegate_sip::{
    message::{Essentials, HeaderName, Message, Method, NameAddr, PeekAck},
    sdp::Session,
    transaction::Received,
    uri::Uri,
    write::{ForwardResponse, NewBody},
};

use super::{
    Shard,
    admission::{Renewed, admit, offer_of, readmit},
    answer::{has_sdp, session_of, with_closed_session},
    context::Context,
    exchanges::Exchanges,
    grants::{move_media, renew},
    keys::{Caller, Direction, Route, Side, Tagged},
    ladder::Asked,
    late_answers::LateAnswers,
    legs::Legs,
    media::{self, wanted_of_answer},
    names::HIDDEN,
    onward::Onward,
    peers,
    registrar::{Hop, Registrar, may_be_of},
    relay::Relay,
    responses::keep_subscription,
    transactions::Id,
    watch,
};
use crate::{
    calls::{CallId, Leaves, Refused},
    metrics::{Count, Outcome},
    transmits::Flow,
};

/// A relayed dialog, and which way a request goes in it.
type Dialog = (Route, Direction);

/// Why a request inside a relayed dialog does not pass as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barred {
    /// Its call is over, or it comes from nobody who has a part in it.
    Unmatched,
    /// It may be the caller's or the service's, from another flow: credentials can show that.
    Unproved,
    /// More than the call's share.
    Busy,
}

impl Shard {
    /// Any request but ACK and CANCEL with a tag on To.
    pub(super) fn on_in_dialog(&mut self, asked: Asked<'_>) {
        if let Some(loose) = loosened(&self.cx, asked.message) {
            return with_message(asked, &loose, |asked| self.on_loose_in_dialog(asked));
        }
        self.on_loose_in_dialog(asked);
    }

    fn on_loose_in_dialog(&mut self, asked: Asked<'_>) {
        if let Some(tagged) = asked.essentials.to.tag.and_then(|tag| self.cx.keys.tagged(tag)) {
            if !self.is_early(asked, tagged.call) {
                self.on_declared_dialog(asked, &tagged);
            }
            return;
        }
        match dialog_of(&self.cx, asked) {
            Some(dialog) if self.is_early(asked, dialog.0.call) => {}
            Some(dialog) => self.on_relayed_dialog(asked, &dialog),
            None => self.cx.unmatched(asked),
        }
    }

    /// Whether nobody knows yet if this call lives, because gates have not said since this start what they have open: a 481
    /// would end it. A datagram comes again by itself; over a connection its sender is told to try again.
    fn is_early(&mut self, asked: Asked<'_>, call: CallId) -> bool {
        let is_early = self.cx.ledger.may_live(self.cx.now.instant, call);
        match asked.flow.connection {
            Some(_) if is_early => self.cx.unavailable_once(asked),
            None if is_early => self.cx.metrics.request(asked.kind, Outcome::Unavailable),
            _ => {}
        }
        is_early
    }

    fn on_declared_dialog(&mut self, asked: Asked<'_>, tagged: &Tagged) {
        match asked.method {
            Method::Invite => self.on_reinvite(asked, tagged.call, None),
            Method::Bye => {
                if !self.cx.keys.is_callers(tagged, asked.flow) && !self.is_callers_own(asked, tagged.call) {
                    return;
                }
                watch::tell_bye(&mut self.cx, tagged.call, Direction::ToService);
                self.end_call(tagged.call, None);
                self.cx.answer_once(asked, (Outcome::Answered, 200));
            }
            Method::Options => self.cx.answer(asked, (Outcome::Answered, 200), &[]),
            _ => self.cx.no_such_method(asked),
        }
    }

    fn on_relayed_dialog(&mut self, asked: Asked<'_>, dialog: &Dialog) {
        let (route, direction) = (&dialog.0, dialog.1);
        match bar(&self.cx, &self.registrar, asked, dialog) {
            Some(Barred::Unproved)
                if direction == Direction::ToClient && !self.is_registrars(asked, &route.service) =>
            {
                return;
            }
            Some(Barred::Unproved) if direction == Direction::ToClient => {}
            // A re-INVITE is decided anew, and its user asked for the password as for any INVITE.
            Some(Barred::Unproved) if asked.method == Method::Invite => {}
            Some(Barred::Unproved) if !self.is_callers_own(asked, route.call) => return,
            Some(Barred::Unproved) => {}
            Some(Barred::Unmatched) => return self.cx.unmatched(asked),
            Some(Barred::Busy) => return self.cx.unavailable_once(asked),
            None => {}
        }
        match (asked.method, direction) {
            // A renewal, or other ports.
            (Method::Invite, Direction::ToService) => {
                return self.on_reinvite(asked, route.call, Some(route));
            }
            (Method::Bye, _) => {}
            (Method::Invite, Direction::ToClient) => return self.on_offer(asked, dialog),
            (Method::Other(b"SUBSCRIBE"), _) if !self.keep_subscription(asked, route) => return,
            _ if has_sdp(asked.message) => return self.on_offer(asked, dialog),
            _ => {}
        }
        match forward(&mut self.cx, &self.registrar, asked, dialog) {
            Ok(()) => {
                self.cx.metrics.request(asked.kind, Outcome::Answered);
                // A refresh (RFC 4028 section 7.4): what the call has open lasts longer.
                if asked.method == Method::Other(b"UPDATE") {
                    renew(&mut self.cx, route.call);
                }
                // Only now: a BYE that cannot be passed on ends nothing at the service, and so it ends nothing here.
                if asked.method == Method::Bye && !self.legs.is_another(route.call, service_tag(asked, direction)) {
                    watch::tell_bye(&mut self.cx, route.call, direction);
                    self.end_call(route.call, Some(asked.essentials.cseq.number));
                }
            }
            Err(code) => self.cx.answer(asked, (Outcome::Unavailable, code), &[]),
        }
    }

    /// A request that may change what a call has open: decided anew, opened where the service offers something, and passed on.
    fn on_offer(&mut self, asked: Asked<'_>, dialog: &Dialog) {
        let (route, direction) = (&dialog.0, dialog.1);
        let Ok(offer) = offer_of(asked.message) else { return self.cx.not_acceptable(asked) };
        let hop = match next(&self.cx, &self.registrar, asked, dialog) {
            Ok(hop) => hop,
            Err(code) => return self.cx.answer(asked, (Outcome::Unavailable, code), &[]),
        };
        let is_clients = direction == Direction::ToService;
        if is_clients && move_media(&mut self.cx, route.call, offer.as_ref()).is_err() {
            return self.cx.not_acceptable(asked);
        }
        let wanted = self.wanted(route, offer.as_ref().filter(|_| !is_clients));
        match readmit(&mut self.cx, (route.call, route.client), &wanted) {
            Some(admitted) => {
                let relay = Relay::new((direction, route.client), hop);
                self.exchanges.relay_offer(&mut self.cx, asked, admitted, relay);
            }
            None => self.cx.answer(asked, (Outcome::Denied, 403), &[]),
        }
    }

    /// A subscription is refreshed, if its user still may have it; else the request is answered.
    fn keep_subscription(&mut self, asked: Asked<'_>, route: &Route) -> bool {
        let Some(admitted) = readmit(&mut self.cx, (route.call, route.client), &[]) else {
            self.cx.answer(asked, (Outcome::Denied, 403), &[]);
            return false;
        };
        let of = (admitted.user.as_str(), admitted.service.name.as_str());
        keep_subscription(&self.cx, route.call, of, asked.message.expires());
        true
    }

    /// The ports that a service's description names.
    fn wanted(&self, route: &Route, session: Option<&Session<'_>>) -> Vec<PortRange> {
        let service = self.cx.policy.service(&route.service);
        let wants = session.zip(service).map(|(session, service)| wanted_of_answer(session, service));
        wants.into_iter().flatten().map(|want| want.range).collect()
    }

    /// Whether the credentials are those of the call's own user; else the request is answered.
    fn is_callers_own(&mut self, asked: Asked<'_>, call: CallId) -> bool {
        let Some((owner, _)) = self.cx.ledger.call(call) else {
            self.cx.unmatched(asked);
            return false;
        };
        let Some(proof) = self.authenticate(asked) else { return false };
        if proof.user != owner {
            self.cx.unmatched(asked);
        }
        proof.user == owner
    }

    /// The same of those of whoever registers a service.
    fn is_registrars(&mut self, asked: Asked<'_>, service: &str) -> bool {
        let Some(proof) = self.authenticate(asked) else { return false };
        let registrar = self.cx.policy.service(service).and_then(|service| service.registrar.clone());
        let is_theirs = registrar.is_some_and(|registrar| registrar == proof.user);
        if !is_theirs {
            self.cx.unmatched(asked);
        }
        is_theirs
    }

    /// Authenticates a client's re-INVITE, and decides anew. `route`: of a relayed call.
    fn on_reinvite(&mut self, asked: Asked<'_>, call: CallId, route: Option<&Route>) {
        if self.cx.refuse_extensions(asked, &[HeaderName::ProxyRequire]) {
            return;
        }
        let Some(proof) = self.authenticate(asked) else { return };
        let service = route.map_or_else(|| asked.service(), |route| route.service.clone());
        let is_called = route.is_some_and(|route| route.caller == Side::Service);
        let renewed = Renewed { call, is_called };
        admit(&mut self.cx, &mut self.exchanges, &self.registrar, asked, proof, (&service, Some(renewed)));
    }

    /// Ends a call's grants at once. A repeated BYE finds none, and costs the gates nothing, nor does a call that never had any.
    fn end_call(&mut self, call: CallId, bye: Option<u32>) {
        self.legs.take(call);
        let is_ended = match self.cx.ledger.end_call(self.cx.now.instant, call, bye) {
            None => false,
            Some(Leaves::Nothing) => true,
            Some(Leaves::Grants) => self.cx.revoke(call),
        };
        if is_ended {
            self.cx.metrics.one(Count::CallsEnded);
        }
    }
}

/// Whether a datagram is the ACK of a refusal that is not remembered: under a flood they all are. It carries the tag that we would
/// give again. A refusal that is remembered may have that too.
pub(super) fn ends_refusal(cx: &Context, exchanges: &Exchanges, flow: Flow, datagram: &[u8]) -> bool {
    let Some(PeekAck { via, call_id, from_tag, to_tag }) = PeekAck::at(datagram) else { return false };
    cx.keys.is_stateless_tag(to_tag, call_id, (via.branch, from_tag))
        && exchanges.transactions.has_no_invite(flow.listener, &via)
}

/// An ACK: to a final answer of ours, to a relayed 2xx, or to nothing. Never answered.
pub(super) fn on_ack(cx: &mut Context, exchanges: &mut Exchanges, calls: (&Registrar, &Legs), asked: Asked<'_>) {
    // Of a refusal that was not remembered, and not told by a look at it: it carries the tag that we would give again.
    let Essentials { via, from, to, call_id, .. } = asked.essentials;
    let is_stateless = to.tag.is_some_and(|tag| cx.keys.is_stateless_tag(tag, call_id, (via.branch, from.tag)));
    if is_stateless && exchanges.transactions.invite_of(asked).is_none() {
        return cx.metrics.request(asked.kind, Outcome::Absorbed);
    }
    let outcome = match exchanges.transactions.receive(cx, asked) {
        Received::Acknowledged(token) => {
            exchanges.unacknowledged.remove(&Id { listener: asked.flow.listener, token });
            Outcome::Answered
        }
        Received::Absorbed | Received::Resend(_) => Outcome::Absorbed,
        Received::New => on_new_ack(cx, &mut exchanges.late_answers, calls, asked),
    };
    cx.metrics.request(asked.kind, outcome);
}

fn on_new_ack(cx: &mut Context, late: &mut LateAnswers, calls: (&Registrar, &Legs), asked: Asked<'_>) -> Outcome {
    if let Some(loose) = loosened(cx, asked.message) {
        let mut outcome = Outcome::Malformed;
        with_message(asked, &loose, |asked| outcome = on_loose_ack(cx, late, calls, asked));
        return outcome;
    }
    on_loose_ack(cx, late, calls, asked)
}

fn on_loose_ack(
    cx: &mut Context,
    late: &mut LateAnswers,
    (registrar, legs): (&Registrar, &Legs),
    asked: Asked<'_>,
) -> Outcome {
    if let Some(dialog) = dialog_of(cx, asked) {
        // To a refusal of ours that is not remembered, such as a 407: it goes no further (RFC 3261 section 17.1.1.3).
        if dialog.1 == Direction::ToService && legs.is_beyond(dialog.0.call, asked.essentials.cseq.number) {
            return Outcome::Absorbed;
        }
        // Nobody can be asked for the password of an ACK.
        if bar(cx, registrar, asked, &dialog).is_some() {
            return Outcome::Unmatched;
        }
        if dialog.1 == Direction::ToClient && has_sdp(asked.message) {
            return on_late_answer(cx, late, asked, &dialog.0);
        }
        let forwarded = forward(cx, registrar, asked, &dialog);
        return if forwarded.is_ok() { Outcome::Answered } else { Outcome::Unavailable };
    }
    if let Some(tagged) = asked.essentials.to.tag.and_then(|tag| cx.keys.tagged(tag)) {
        return on_foreign_ack(cx, asked, &tagged);
    }
    Outcome::Unmatched
}

/// A service's answer in its ACK: what it names is opened first.
fn on_late_answer(cx: &mut Context, late: &mut LateAnswers, asked: Asked<'_>, route: &Route) -> Outcome {
    let Some(session) = session_of(asked.message) else { return Outcome::Malformed };
    let service = cx.policy.service(&route.service);
    let wants = service.map(|service| wanted_of_answer(&session, service)).unwrap_or_default();
    let wanted: Vec<PortRange> = wants.iter().map(|want| want.range).collect();
    let Some(admitted) = readmit(cx, (route.call, route.client), &wanted) else { return Outcome::Denied };
    late.hold(cx, asked, &admitted, route.client);
    Outcome::Admitted
}

/// The client's port changed, and the kernel chose another shard than the one that repeats the 200, which the tag names.
/// For a call that is over nobody repeats anything.
fn on_foreign_ack(cx: &mut Context, asked: Asked<'_>, tagged: &Tagged) -> Outcome {
    if tagged.shard == cx.settings.shard || cx.handed_over || cx.ledger.call(tagged.call).is_none() {
        return Outcome::Unmatched;
    }
    cx.hand_over(tagged.shard, asked.flow, asked.message.as_bytes());
    Outcome::Answered
}

/// What stands in the way of a request inside a relayed dialog. The cookie shows only that there was such a call.
fn bar(cx: &Context, registrar: &Registrar, asked: Asked<'_>, dialog: &Dialog) -> Option<Barred> {
    let (route, direction) = (&dialog.0, dialog.1);
    let is_senders = match direction {
        Direction::ToService => asked.flow == route.client,
        Direction::ToClient => {
            let service = cx.policy.service(&route.service);
            let is_own = service.is_some_and(|service| registrar.is_of(cx, service, asked.flow));
            if !is_own && !service.is_some_and(|service| may_be_of(service, asked.flow)) {
                return Some(Barred::Unmatched);
            }
            is_own
        }
    };
    let cseq = asked.essentials.cseq.number;
    if asked.method == Method::Bye && cx.ledger.was_ended_by(cx.now.instant, route.call, cseq) {
        let is_peers = direction == Direction::ToService && peers::sending_peer(cx, asked.flow).is_some();
        return (!is_senders && !is_peers).then_some(Barred::Unmatched);
    }
    let Some((owner, service)) = cx.ledger.call(route.call) else { return Some(Barred::Unmatched) };
    // Who is called goes by the name that the caller gave it.
    let is_callers_name = direction == Direction::ToService && route.caller == Side::Client;
    let is_renamed = is_callers_name && !peers::may_call_as(cx, asked, &owner);
    if service != route.service || is_renamed {
        return Some(Barred::Unmatched);
    }
    // Whoever lost the connection that the call began over signs in over the next one, once: an ACK cannot.
    let is_anew = direction == Direction::ToService && cx.has_signed_in(asked.flow, &owner);
    // A peer may have several connections, and the one by which it is called is not its own.
    let is_peers = || direction == Direction::ToService && is_sent_by(cx, asked.flow, &owner);
    if !is_senders && !is_anew && !is_peers() {
        return Some(Barred::Unproved);
    }
    match cx.ledger.say(cx.now.instant, route.call, cx.settings.dialog_requests_per_s) {
        Ok(()) => None,
        Err(Refused::Busy) => Some(Barred::Busy),
        Err(Refused::Over) => Some(Barred::Unmatched),
    }
}

/// Whether a message is of this peer.
fn is_sent_by(cx: &Context, flow: Flow, party: &str) -> bool {
    peers::sending_peer(cx, flow).is_some_and(|peer| SipPeer::name_of(party) == Some(&peer.name))
}

/// Where a request inside a relayed dialog goes, and under which URI.
///
/// # Errors
/// The status to answer with: the service is not to be reached.
fn next(cx: &Context, registrar: &Registrar, asked: Asked<'_>, dialog: &Dialog) -> Result<Hop, u16> {
    let (route, direction) = (&dialog.0, dialog.1);
    let own = asked.message.request_uri().unwrap_or_default();
    if direction == Direction::ToClient {
        let owner = cx.ledger.call(route.call).map(|(owner, _)| owner);
        let client = owner.map_or(route.client, |owner| registrar.now_at(cx.now.instant, &owner, route.client, own));
        return Ok(Hop::new(client, own.to_vec()));
    }
    let service = cx.policy.service(&route.service).cloned();
    let hop = service.and_then(|service| registrar.hop(cx, &service)).ok_or(480_u16)?;
    let inner = |hop: &Hop| Hop::new(hop.flow, cx.inner_uri(asked.message, &hop.uri).unwrap_or_else(|| own.to_vec()));
    Ok(Hop { of_long: hop.of_long.as_deref().map(|hop| Box::new(inner(hop))), ..inner(&hop) })
}

/// Passes a request on inside a relayed dialog, without a transaction: both ends repeat it until it is answered.
fn forward(cx: &mut Context, registrar: &Registrar, asked: Asked<'_>, dialog: &Dialog) -> Result<(), u16> {
    let (route, direction) = (&dialog.0, dialog.1);
    let hop = next(cx, registrar, asked, dialog)?;
    // Only the ACK to an answer that held the offer has a description. A service's waits for its gate.
    let session = session_of(asked.message);
    if direction == Direction::ToService && session.is_some() {
        move_media(cx, route.call, session.as_ref()).map_err(|_| 488_u16)?;
    }
    let sdp = session.map(|session| media::rewrite_offer(&session, peers::client_ip(cx, route.call, route.client)));
    let (message, from) = (asked.message, asked.flow);
    Onward { message, from, to: (direction, &hop), sdp: sdp.as_deref(), record_routes: &[], routes: &[], breadth: None }
        .send(cx)
}

/// The request of a strict router as a loose one would have sent it: what we had written into Record-Route stands in its
/// Request-URI, and the Request-URI behind its Route values (RFC 3261 section 16.4).
fn loosened(cx: &Context, message: &Message<'_>) -> Option<Vec<u8>> {
    let own = message.request_uri()?;
    Uri::parse(own).ok().filter(|uri| cx.keys.is_route(uri))?;
    let routes: Vec<&[u8]> = message.headers(HeaderName::Route).collect();
    let (last, others) = routes.split_last()?;
    let target = NameAddr::parse(last)?.uri;
    let mut bytes = [message.method()?.as_bytes(), b" ", target, b" SIP/2.0\r\nRoute: <", own, b">"].concat();
    for route in others {
        bytes.extend_from_slice(b", ");
        bytes.extend_from_slice(route);
    }
    bytes.extend_from_slice(b"\r\n");
    for line in message.lines().filter(|line| line.name != HeaderName::Route) {
        bytes.extend_from_slice(line.text);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(message.body());
    Some(bytes)
}

/// Goes on with a request in another form.
fn with_message(asked: Asked<'_>, bytes: &[u8], go_on: impl FnOnce(Asked<'_>)) {
    let Ok(message) = Message::parse(bytes) else { return };
    let Ok(essentials) = message.essentials() else { return };
    let (Some(method), Asked { flow, kind, .. }) = (message.method(), asked) else { return };
    go_on(Asked { flow, kind, method, message: &message, essentials: &essentials });
}

/// The relayed dialog that the first Route names, and which way this request goes in it: the caller's tag, which the
/// cookie covers, stands on From or on To.
fn dialog_of(cx: &Context, asked: Asked<'_>) -> Option<Dialog> {
    let route = asked.message.routes().next()?.ok()?;
    let uri = Uri::parse(route.uri).ok()?;
    let fields = asked.essentials;
    let by = |tag: Option<&[u8]>| cx.keys.route(cx.now.unix, &uri, Caller { call_id: fields.call_id, tag: tag? });
    let of_caller = by(fields.from.tag).map(|route| {
        let direction = Direction::from(route.caller);
        (route, direction)
    });
    of_caller.or_else(|| {
        let route = by(fields.to.tag)?;
        let direction = Direction::from(route.caller).reversed();
        Some((route, direction))
    })
}

/// The tag by which the service's side of the dialog goes.
fn service_tag<'m>(asked: Asked<'m>, direction: Direction) -> Option<&'m [u8]> {
    match direction {
        Direction::ToService => asked.essentials.to.tag,
        Direction::ToClient => asked.essentials.from.tag,
    }
}

/// Passes the response to a request on that was forwarded without state.
pub(super) fn pass_back(cx: &mut Context, from: Flow, message: &Message<'_>, (direction, to): (Direction, Flow)) {
    let is_services = direction == Direction::ToService;
    let contact = if is_services { cx.answer_contact(message, from, to) } else { None };
    let remove = if is_services { HIDDEN } else { &HIDDEN[..2] };
    let add = contact.as_deref().map(|value| ("Contact", value));
    let body = with_closed_session(message, cx.settings.address(0).ip()).filter(|_| is_services);
    let body = body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes });
    let response = ForwardResponse { response: message, remove, add: add.as_slice(), body };
    match response.write(&mut cx.scratch) {
        Ok(()) => {
            cx.metrics.one(Count::ResponsesRelayed);
            cx.out.push(to, &cx.scratch);
        }
        Err(_) => cx.metrics.one(Count::ResponsesUnmatched),
    }
}
