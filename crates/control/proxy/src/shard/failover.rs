//! SIP servers with backups: a request that its server does not answer, or answers with 503, goes on to the next one (RFC
//! 3263 section 4.3, RFC 3261 section 16.7), and one that it redirects to some of them to the first of these, as if its client
//! had asked for that: rules, grants and the call are of the server that has it.

use std::{cmp::Reverse, collections::VecDeque, sync::Arc, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_policy::{Registering, SIP_PORT_DEFAULT, Service, ServiceKind};
use sluicegate_sip::{
    message::{HeaderName, Message, Method, Transport},
    sdp::Session,
    uri::Uri,
};
use sluicegate_wire::Instant;

use super::{
    admission::{Admitted, judge, offer_of},
    answer::kind_of,
    context::Context,
    exchanges::{ExchangeId, Exchanges},
    keys::Direction,
    ladder::Asked,
    names::{REDIRECTED_MAX, user_in},
    onward::forwarded,
    registrar::{Hop, Registrar, number, thousandths},
    relay::Relay,
    responses::{abandon, keep_ringing},
    transactions::Id,
    watch,
};
use crate::{
    locations::Contact,
    metrics::{Count, Outcome},
};

/// How long a server may say nothing at all: three repetitions of the request (RFC 3261 section 17.1.1.2).
const SILENCE: Duration = Duration::from_secs(4);

const SIPS_PORT_DEFAULT: u16 = 5061;

/// Servers that a request may go to, in this order.
pub(super) type Ways = VecDeque<(Arc<Service>, Hop)>;

/// How the server does that has a request, and who gets it next.
#[derive(Debug)]
pub(super) struct Others {
    asked: Instant,
    /// Whether the server has answered.
    heard: bool,
    /// Whether the client has heard of that.
    rang: bool,
    later: Ways,
}

impl Others {
    pub(super) const fn new(asked: Instant, later: Ways) -> Self {
        Self { asked, heard: false, rang: false, later }
    }

    pub(super) fn is_last(&self) -> bool {
        self.later.is_empty()
    }
}

/// When servers have to have said something, soonest first.
#[derive(Debug)]
pub(super) struct Silences {
    due: VecDeque<(Instant, Id)>,
    max: usize,
}

impl Silences {
    pub(super) const fn new(max: usize) -> Self {
        Self { due: VecDeque::new(), max }
    }

    /// A request was sent. Without room for this it goes on after its own transaction ends.
    pub(super) fn begin(&mut self, now: Instant, sent: Id) {
        if self.due.len() < self.max {
            self.due.push_back((now + SILENCE, sent));
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.front().map(|(due, _)| *due)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("silences", self.due.len(), self.max)
    }
}

/// Why a call is begun nowhere.
pub(super) const CUT_OFF: &str = "no gate that reaches the service is connected";
pub(super) const NOWHERE: &str = "nobody is registered for the service, or no gate reaches it";
pub(super) const FULL: &str = "as many calls live as may";

/// The servers that may take a request, those last that are out. Calls and registrations that go on stay where they are.
pub(super) fn ways(cx: &Context, registrar: &Registrar, asked: Asked<'_>, admitted: &Admitted) -> Ways {
    let takes = |backup: &&Arc<Service>| {
        let registers = asked.method != Method::Register || backup.register == Registering::Relay;
        !admitted.renewal && backup.kind == ServiceKind::Sip && registers
    };
    let backups = admitted.service.backups.iter().filter_map(|name| cx.policy.service(name)).filter(takes);
    let all = std::iter::once(&admitted.service).chain(backups);
    let mut ways: Vec<_> = all.filter_map(|one| Some((Arc::clone(one), registrar.hop(cx, one)?))).collect();
    if ways.len() > 1 {
        ways.sort_by_cached_key(|(one, _)| cx.settings.outages.is_out(cx.now.instant, &one.name, &admitted.user));
    }
    ways.into()
}

/// Leaves out what no gate reaches, if this begins a call; whether nothing is left.
pub(super) fn are_cut_off(cx: &Context, asked: Asked<'_>, ways: &mut Ways) -> bool {
    let begins = asked.method == Method::Invite && asked.essentials.to.tag.is_none();
    if !begins || ways.is_empty() {
        return false;
    }
    ways.retain(|(service, _)| !cx.settings.outages.is_cut_off(&service.name));
    ways.is_empty()
}

/// The first of these that the user may use, and what is let in there.
pub(super) fn next(
    cx: &mut Context,
    asked: Asked<'_>,
    admitted: &Admitted,
    ways: &mut Ways,
    offer: Option<&Session<'_>>,
) -> Option<(Admitted, Hop)> {
    while let Some((service, hop)) = ways.pop_front() {
        let admitted = if service.name == admitted.service.name {
            Some(admitted.clone())
        } else if asked.method == Method::Register {
            Some(Admitted { limits: service.limits, service, call: cx.new_call(), ..admitted.clone() })
        } else {
            let judged = judge(cx, asked, (&admitted.user, admitted.agent.clone(), &service.name), None, offer);
            judged.map(|(judged, _)| Admitted { media: admitted.media, ..judged })
        };
        if let Some(admitted) = admitted {
            return Some((admitted, hop));
        }
    }
    None
}

/// Requests whose servers have said nothing go on to others.
pub(super) fn after_silence(cx: &mut Context, exchanges: &mut Exchanges) {
    while let Some((_, sent)) = exchanges.silences.due.pop_front_if(|(due, _)| *due <= cx.now.instant) {
        let Some(id) = exchanges.relayed.get(&sent).map(|relayed| relayed.exchange) else { continue };
        unanswered(cx, exchanges, id);
    }
}

/// Nothing came for as long as something may; whether the request went on to another server.
pub(super) fn unanswered(cx: &mut Context, exchanges: &mut Exchanges, id: ExchangeId) -> bool {
    let Some(exchange) = exchanges.pending.get(&id) else { return false };
    let others = exchange.relay.as_ref().and_then(|relay| relay.others.as_ref());
    let Some(others) = others.filter(|others| !others.heard) else { return false };
    let (service, of) = (&exchange.admitted.service.name, (exchange.admitted.user.as_str(), others.asked));
    cx.settings.outages.failed(cx.now.instant, service, of, None);
    go_on(cx, exchanges, id, "it did not answer")
}

/// A server has answered, or could not be reached; whether the request went on to another one.
pub(super) fn heard(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    id: ExchangeId,
    message: &Message<'_>,
    code: u16,
) -> bool {
    let Some(exchange) = exchanges.pending.get_mut(&id) else { return false };
    let others = exchange.relay.as_mut().and_then(|relay| relay.others.as_mut());
    let Some(others) = others else { return false };
    others.heard = true;
    others.rang |= (101..200).contains(&code);
    let is_redirection = matches!(code, 300..=302 | 305);
    if is_redirection {
        others.later = named(&others.later, message, &exchange.request);
    }
    let (outages, now) = (&cx.settings.outages, cx.now.instant);
    let (service, user) = (exchange.admitted.service.name.as_str(), exchange.admitted.user.as_str());
    match (code, message.header(HeaderName::RetryAfter).and_then(seconds)) {
        (503, _) if cx.is_undelivered => outages.failed(now, service, (user, others.asked), None),
        (503, Some(secs)) => outages.failed(now, service, (user, now), Some(secs)),
        _ => outages.answered(now, service),
    }
    match code {
        503 => go_on(cx, exchanges, id, "it is not available"),
        _ => is_redirection && go_on(cx, exchanges, id, "it redirects"),
    }
}

/// Of the servers that have not been asked those that a redirection names, for what was dialled and nothing else: where it
/// leads elsewhere is the client's to follow. Each is asked once at most, so nothing goes in a circle.
fn named(later: &Ways, redirection: &Message<'_>, request: &[u8]) -> Ways {
    let Some(dialled) = Message::parse(request).ok().and_then(|request| user_in(request.request_uri()?)) else {
        return Ways::new();
    };
    let mut contacts: Vec<_> = redirection.contacts().take(REDIRECTED_MAX).filter_map(Result::ok).collect();
    contacts.sort_by_key(|contact| Reverse(contact.params.value(b"q").map_or(Some(Contact::Q_MAX), thousandths)));
    let mut named = Ways::new();
    for contact in contacts.iter().filter(|contact| user_in(contact.uri).as_ref() == Some(&dialled)) {
        let way = later.iter().find(|(service, _)| is_at(service, contact.uri));
        let is_new = |(service, _): &&(Arc<Service>, Hop)| named.iter().all(|(known, _)| known.name != service.name);
        named.extend(way.filter(is_new).cloned());
    }
    named
}

/// Whether a URI leads to where this server takes SIP, at its own address.
fn is_at(service: &Service, uri: &[u8]) -> bool {
    let Some(uri) = Uri::parse(uri).ok().filter(Uri::is_sip) else { return false };
    let transport = Transport::named(uri.param(b"transport").flatten().unwrap_or(b"udp"));
    let port = transport.and_then(|transport| service.sip_port_over(transport));
    let default = if transport == Some(Transport::Tls) { SIPS_PORT_DEFAULT } else { SIP_PORT_DEFAULT };
    let is_named = uri.host.and_then(|host| host.address()) == Some(service.address);
    is_named && port == Some(uri.port.unwrap_or(default))
}

/// The number that a Retry-After begins with.
fn seconds(value: &[u8]) -> Option<u32> {
    number(value.split(|byte| !byte.is_ascii_digit()).next()?)
}

/// Sends an exchange's request to the next server, unless its client has heard of this one or wants it no longer.
fn go_on(cx: &mut Context, exchanges: &mut Exchanges, id: ExchangeId, why: &str) -> bool {
    let Some(exchange) = exchanges.pending.get_mut(&id) else { return false };
    let Some(relay) = exchange.relay.as_mut().filter(|relay| !relay.cancelled) else { return false };
    let Some(others) = relay.others.as_mut().filter(|others| !others.rang) else { return false };
    let mut later = std::mem::take(&mut others.later);
    let (kept, before) = ((exchange.flow, Arc::clone(&exchange.request)), exchange.admitted.clone());
    let Ok(message) = Message::parse(&kept.1) else { return false };
    let Some((essentials, method)) = message.essentials().ok().zip(message.method()) else { return false };
    let asked =
        Asked { flow: kept.0, message: &message, essentials: &essentials, method, kind: kind_of(method, false) };
    let offer = if method == Method::Invite { offer_of(&message).ok().flatten() } else { None };
    let (admitted, hop, forwarded) = loop {
        let Some((admitted, hop)) = next(cx, asked, &before, &mut later, offer.as_ref()) else { return false };
        if let Ok((hop, forwarded)) = write(cx, asked, &admitted, &hop, offer.as_ref()) {
            break (admitted, hop, forwarded);
        }
    };
    // The one before keeps its place in the table, so each counts as a request of its own.
    if !exchanges.transactions.charge(cx.now.instant, &before.user) {
        cx.metrics.one(Count::TableFull);
        return false;
    }
    let Some(over) = exchanges.end(id) else { return false };
    if let Some(sent) = over.relay.as_ref().and_then(|relay| relay.sent) {
        exchanges.relayed.remove(&sent);
        exchanges.transactions.stop_repeating(sent);
    }
    let why = format!("{why}: {} is asked instead", admitted.service.name);
    watch::failed(cx, &over.admitted, (over.flow, over.relay.as_deref()), 503, &why);
    abandon(cx, &over);
    cx.metrics.one(Count::FailedOver);
    exchanges.transactions.wait(cx.now.instant, id.owed);
    let is_kept = keep_ringing(cx, &message, &admitted);
    let relay = Relay::new((Direction::ToService, kept.0), hop).or(Others::new(cx.now.instant, later));
    exchanges.begin(cx, id, (kept.0, Arc::clone(&kept.1)), admitted, Some(Box::new(relay)));
    if is_kept {
        exchanges.start(cx, id, &forwarded);
    } else {
        exchanges.fail(cx, id, 503, FULL);
    }
    true
}

/// The answer to a request that cannot be passed on, and why.
pub(super) type Refused = ((Outcome, u16), &'static str);

/// A request as it goes to its service, and where: another way if it is too long for the first.
///
/// # Errors
/// [`Refused`].
pub(super) fn write(
    cx: &mut Context,
    asked: Asked<'_>,
    admitted: &Admitted,
    hop: &Hop,
    offer: Option<&Session<'_>>,
) -> Result<(Hop, Vec<u8>), Refused> {
    let (mut hop, mut written) = (hop, forwarded(cx, asked, admitted, hop, offer));
    if let Some(other) = written.as_ref().ok().and_then(|short| hop.instead(short.len())) {
        (hop, written) = (other, forwarded(cx, asked, admitted, other, offer));
    }
    let written = written.map_err(|code| ((Outcome::Malformed, code), "it cannot be passed on as it is"))?;
    if cx.out.links.is_too_long(hop.flow.peer, written.len()) {
        let why = "it is too long to reach the service's gate in one packet";
        return Err(((Outcome::Unsupported, 513), why));
    }
    Ok((hop.clone(), written))
}
