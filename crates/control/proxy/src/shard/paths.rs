//! Telephones that are registered at a SIP server, by way of this frontend (RFC 3327). The server remembers where each is: in
//! our Path, whose MAC makes it worth nothing for another user, another service or another telephone, or after its time.

use std::sync::Arc;

use sluicegate_policy::{Registering, Service};
use sluicegate_sip::{
    digest::{self, DigestError},
    message::{HeaderName, Message, Method, NameAddr},
    uri::Uri,
    write::{ForwardRequest, ForwardResponse, NewBody},
};

use super::{
    admission::Admitted,
    answer::with_closed_session,
    auth::Proof,
    context::Context,
    exchanges::{Exchange, Exchanges},
    failover,
    forks::Target,
    keys::{Direction, REACHED, Reached, Side},
    ladder::Asked,
    names::{NOT_FORWARDED, place_of, refusal_of, user_in},
    registrar::{Hop, Registrar, check_relayed, flow_back, number, path, refuse, tail},
};
use crate::metrics::Outcome;

/// Most Contacts of an answer that are looked at.
const CONTACTS_MAX: usize = 64;
/// What a telephone does not get of the answer to its REGISTER, or not as it is.
const HIDDEN: &[HeaderName] = &[
    HeaderName::Contact,
    HeaderName::Expires,
    HeaderName::Path,
    HeaderName::ServiceRoute,
    HeaderName::PAssertedIdentity,
    HeaderName::SluicegateNoise,
];

/// The SIP server that takes this REGISTER: one of a user for itself, who has a telephone.
pub(super) fn registers_at(cx: &Context, asked: Asked<'_>, proof: &Proof) -> Option<Arc<Service>> {
    let is_own = proof.agent.is_none() && user_in(asked.essentials.to.uri).as_ref() == Some(&proof.user);
    cx.policy.registers_at(&proof.user).filter(|_| is_own).cloned()
}

/// Passes a REGISTER on to the SIP server.
pub(super) fn register(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    registrar: &Registrar,
    asked: Asked<'_>,
    (user, service): (String, Arc<Service>),
) {
    let transactions = &mut exchanges.transactions;
    if let Err(refusal) = check_relayed(cx, asked, &user) {
        return refuse(cx, transactions, asked, &user, refusal);
    }
    if cx.keys.is_loop(Side::Client, asked.message) {
        return transactions.refuse(cx, asked, (Outcome::Unavailable, 482), &[]);
    }
    let (call, limits) = (cx.new_call(), service.limits);
    let admitted = Admitted { user, service, limits, call, renewal: false, continued: false, agent: None, media: None };
    let ways = failover::ways(cx, registrar, asked, &admitted);
    exchanges.relay(cx, asked, &admitted, ways, None);
}

/// A REGISTER as it goes to the SIP server.
///
/// # Errors
/// The status to answer with.
pub(super) fn forwarded(
    cx: &mut Context,
    Asked { flow, message, .. }: Asked<'_>,
    admitted: &Admitted,
    hop: &Hop,
) -> Result<Vec<u8>, u16> {
    let branch = cx.new_branch(Some((Direction::ToService.sender(), message)));
    let to = flow_back(flow, message);
    let reached = Reached {
        service: admitted.service.name.clone(),
        user: admitted.user.clone(),
        flow: to,
        start: to.connection.map_or(0, |_| cx.settings.boot),
        end: cx.now.unix.plus_secs(cx.settings.phones.registration_s_max.into()),
    };
    let own = cx.keys.path(&cx.settings.place(hop.flow), &reached);
    // Topmost is who is nearest to the registrar.
    let earlier = path(message).map_err(|refusal| refusal.answer().1)?;
    let paths = std::iter::once(own.as_bytes()).chain(earlier.iter().map(Vec::as_slice));
    let identity = format!("<sip:{}@{}>", admitted.user, cx.settings.realm);
    let is_named = message.lists(HeaderName::Supported, b"path");
    let supported = (!is_named).then_some(("Supported", &b"path"[..]));
    let identity = ("P-Asserted-Identity", identity.as_bytes());
    let add: Vec<_> = paths.map(|path| ("Path", path)).chain(supported).chain([identity]).collect();
    let uri = registrar_uri(&hop.uri).ok_or(500_u16)?;
    let request = ForwardRequest {
        request: message,
        source: flow.peer,
        via: cx.settings.via(hop.flow, &branch),
        uri: Some(&uri),
        record_routes: &[],
        remove_routes: cx.settings.own_routes(message),
        remove: &[NOT_FORWARDED, &[HeaderName::Path]].concat(),
        credentials_of: Some(&cx.settings.realm),
        add: &add,
        body: None,
    };
    let mut out = Vec::with_capacity(message.as_bytes().len() + 512);
    request.write(&mut out).map(|()| out).map_err(refusal_of)
}

/// The Request-URI of a REGISTER names a registrar, and no user (RFC 3261 section 10.2).
fn registrar_uri(hop: &[u8]) -> Option<Vec<u8>> {
    Some(format!("sip:{}", place_of(&Uri::parse(hop).ok()?)?).into_bytes())
}

/// Whether a message is about a REGISTER.
pub(super) fn is_registration(message: &Message<'_>) -> bool {
    message.cseq().is_ok_and(|cseq| cseq.method == Method::Register)
}

/// Whether the answer asks for a password that its telephone has for us, for all that we can read: others would learn what
/// they can guess it by.
pub(super) fn asks_for_ours(message: &Message<'_>, realm: &str) -> bool {
    let challenges = [HeaderName::WwwAuthenticate, HeaderName::ProxyAuthenticate];
    let mut realms = challenges.into_iter().flat_map(|name| message.headers_raw(name)).map(digest::realm_of);
    realms.any(|other| match other {
        Ok(other) => match other.strip_prefix(realm.as_bytes()) {
            Some(rest) => matches!(rest, [] | [b';', ..]),
            None => other.contains(&b'\\'),
        },
        Err(error) => error != DigestError::Scheme,
    })
}

/// Writes the answer to a REGISTER, which was `sent_on`, as its telephone gets it: of what is registered its own alone, for no
/// longer than it can be reached, and without the ways inside.
pub(super) fn write_answer(
    cx: &mut Context,
    (exchange, sent_on): (&Exchange, &[u8]),
    message: &Message<'_>,
) -> Option<()> {
    let (request, sent_on) = (Message::parse(&exchange.request).ok()?, Message::parse(sent_on).ok()?);
    let end = sent_on.headers(HeaderName::Path).next().and_then(|path| reached_by(cx, path))?.end;
    let left = u32::try_from(end.0.saturating_sub(cx.now.unix.0)).unwrap_or(u32::MAX);
    let contacts = own_contacts(&request, message, left);
    let paths = message.headers(HeaderName::Path).filter(|path| reached_by(cx, path).is_none());
    let paths = paths.map(|path| ("Path", path));
    let add: Vec<_> = contacts.iter().map(|contact| ("Contact", contact.as_slice())).chain(paths).collect();
    // It opens nothing, so what it describes is not to be reached.
    let body = with_closed_session(message, cx.settings.address(0).ip());
    let body = body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes });
    ForwardResponse { response: message, remove: HIDDEN, add: &add, body }.write(&mut cx.scratch).ok()
}

/// Those Contacts of an answer that its request named, for so many seconds at most. Others of the user are inside, maybe.
fn own_contacts(request: &Message<'_>, answer: &Message<'_>, left: u32) -> Vec<Vec<u8>> {
    let asked: Vec<_> = request.contacts().filter_map(Result::ok).collect();
    let asked: Vec<_> = asked.iter().filter_map(|contact| Uri::parse(contact.uri).ok()).collect();
    let is_own = |contact: &NameAddr<'_>| {
        Uri::parse(contact.uri).is_ok_and(|uri| asked.iter().any(|asked| asked.is_equivalent(&uri)))
    };
    let own = answer.contacts().take(CONTACTS_MAX).filter_map(Result::ok).filter(is_own);
    let value = |contact: NameAddr<'_>| {
        let secs = contact.params.value(b"expires").and_then(number).or(answer.expires()).unwrap_or(left).min(left);
        [b"<", contact.uri, &tail(&contact, contact.uri.len()), format!(";expires={secs}").as_bytes()].concat()
    };
    own.map(value).collect()
}

/// The telephone that a Path or Route value of ours names.
fn reached_by(cx: &Context, value: &[u8]) -> Option<Reached> {
    let address = NameAddr::parse(value)?;
    cx.keys.reached(&Uri::parse(address.uri).ok()?)
}

/// Whether a request goes by a Path, as its first Route says: to a telephone, if that is true.
pub(super) fn is_by_path(cx: &Context, message: &Message<'_>) -> bool {
    let Some(Ok(route)) = message.routes().next() else { return false };
    let names_one = |uri: Uri<'_>| uri.param(REACHED.as_bytes()).is_some();
    cx.settings.own_routes(message) > 0 && Uri::parse(route.uri).is_ok_and(names_one)
}

/// Why a request does not go by its Path: whose that is, if it is ours, and the answer.
pub(super) type Barred = (String, (Outcome, u16), &'static str);

/// The telephone that a service reaches by our Path, and whose it is. `None`: the request has no such Route.
///
/// # Errors
/// It is not ours, or another service's, or over.
pub(super) fn by_path(
    cx: &Context,
    service: &Service,
    message: &Message<'_>,
) -> Option<Result<(String, Target), Barred>> {
    let uri = message.request_uri().filter(|_| is_by_path(cx, message))?.to_vec();
    let Some(reached) = reached_by(cx, message.headers(HeaderName::Route).next()?) else {
        return Some(Err((String::new(), (Outcome::Denied, 403), "its Route is a Path of ours that somebody changed")));
    };
    if let Some((verdict, why)) = bar(cx, service, &reached) {
        return Some(Err((reached.user, verdict, why)));
    }
    let target = Target { flow: reached.flow, uri, routes: Vec::new(), q: 0, others: Vec::new() };
    Some(Ok((reached.user, target)))
}

/// What stands in the way of a service that uses a Path of ours.
fn bar(cx: &Context, service: &Service, reached: &Reached) -> Option<((Outcome, u16), &'static str)> {
    if reached.service != service.name {
        return Some(((Outcome::Denied, 403), "its Route is the Path of another service"));
    }
    let is_gone = reached.flow.connection.is_some() && reached.start != cx.settings.boot;
    if is_gone || reached.end <= cx.now.unix || service.register != Registering::Relay {
        return Some(((Outcome::Unavailable, 430), "the telephone has not registered by way of this frontend since"));
    }
    let is_there = cx.policy.user(&reached.user).is_some_and(|user| user.may_register());
    (!is_there).then_some(((Outcome::Denied, 404), "the user may not register"))
}
