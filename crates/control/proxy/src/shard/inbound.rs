//! Requests of a service for its users: each goes to where the user is registered, once what it offers is open for the
//! packets from there.

use std::sync::Arc;

use sluicegate_policy::Service;
use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    transaction::Role,
};

use super::{
    admission::{admit_callee, offer_of},
    answer::session_of,
    context::Context,
    exchanges::{Asking, ExchangeId, Exchanges},
    forks::{BREADTH_DEFAULT, Inbound, Target},
    keys::{Direction, Side},
    ladder::Asked,
    media::wanted_of_answer,
    paths::by_path,
    peers,
    registrar::{Hop, Registrar},
    relay::Relay,
    responses::keep_ringing,
    transactions::Transactions,
    watch,
};
use crate::{
    ledger::Begun,
    metrics::{Count, Outcome},
};

/// A service calls a user, or sends it something. What its gate opens is decided for each place where the user is.
pub(super) fn call_user(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    registrar: &Registrar,
    asked: Asked<'_>,
    service: Arc<Service>,
    user: &str,
) {
    let transactions = &mut exchanges.transactions;
    let is_invite = asked.method == Method::Invite;
    if let (true, Err(code)) = (is_invite, offer_of(asked.message)) {
        return transactions.refuse(cx, asked, (Outcome::Malformed, code), &[]);
    }
    if cx.keys.is_loop(Side::Service, asked.message) {
        return transactions.refuse(cx, asked, (Outcome::Unavailable, 482), &[]);
    }
    let breadth = asked.message.header(HeaderName::MaxBreadth).map_or(Some(BREADTH_DEFAULT), number);
    let Some(breadth) = breadth.map(|breadth| breadth.min(BREADTH_DEFAULT)) else {
        return transactions.refuse(cx, asked, (Outcome::Malformed, 400), &[]);
    };
    if breadth == 0 {
        return transactions.refuse(cx, asked, (Outcome::Unavailable, 440), &[]);
    }
    let by_path = match by_path(cx, &service, asked.message).transpose() {
        Ok(by_path) => by_path,
        Err((user, verdict, why)) => return refuse(cx, transactions, asked, (&service.name, &user), verdict, why),
    };
    let is_peers = by_path.is_none() && cx.policy.user(user).is_none();
    let target = if is_peers { peers::called_peer(cx, user) } else { by_path };
    let user = target.as_ref().map_or(user, |(user, _)| user);
    let is_known = if is_peers { target.is_some() } else { cx.policy.user(user).is_some_and(|user| user.enabled) };
    if !is_known {
        return refuse(cx, transactions, asked, (&service.name, user), (Outcome::Denied, 404), "there is no such user");
    }
    let targets: Vec<_> = match &target {
        Some((_, target)) => vec![target.clone()],
        None => {
            let contacts = registrar.contacts(cx.now.instant, user, asked.message.as_bytes().len());
            contacts.filter_map(|flows| Target::of_flows(&flows)).collect()
        }
    };
    if targets.is_empty() {
        let why = "no telephone of the user is registered";
        return refuse(cx, transactions, asked, (&service.name, user), (Outcome::Unavailable, 480), why);
    }
    if !peers::may_begin(cx, user, Begun::ByService) {
        return peers::peer_busy(cx, asked);
    }
    // What a service calls is charged to it, and not to whom it calls. No user has such a name.
    if !exchanges.transactions.charge(cx.now.instant, &format!("service:{}", service.name)) {
        cx.metrics.one(Count::TableFull);
        return cx.unavailable_once(asked);
    }
    let Some(owed) = exchanges.transactions.open(cx, asked, Role::Proxy) else { return };
    cx.metrics.request(asked.kind, Outcome::Admitted);
    if is_invite {
        exchanges.transactions.send_trying(cx, owed, asked);
    }
    let (flow, request) = asked.kept();
    let inbound = Inbound { service, flow, request, user: user.to_owned(), breadth };
    let first = exchanges.forks.begin(owed, inbound.clone(), targets);
    try_targets(cx, exchanges, owed.into(), &inbound, first);
}

/// Finally refuses a service's request for a user, and leaves a note why.
fn refuse(
    cx: &mut Context,
    transactions: &mut Transactions,
    asked: Asked<'_>,
    (service, user): (&str, &str),
    verdict: (Outcome, u16),
    why: &str,
) {
    watch::decided_callee(cx, (user, service, asked.flow), (None, asked.message), verdict, [format!("- {why}")]);
    transactions.refuse(cx, asked, verdict, &[]);
}

/// Sends a request to these places at the same time.
pub(super) fn try_targets(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    id: ExchangeId,
    inbound: &Inbound,
    targets: Vec<Target>,
) {
    let breadth = inbound.breadth / u16::try_from(targets.len().max(1)).unwrap_or(u16::MAX);
    // All are counted before the first can fail.
    let begin = |mut target| (exchanges.forks.branch(id.owed, &mut target), target);
    let branches: Vec<_> = targets.into_iter().map(begin).collect();
    for (id, target) in branches {
        try_target(cx, exchanges, id, (inbound, breadth), target);
    }
}

fn try_target(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    id: ExchangeId,
    (inbound, breadth): (&Inbound, u16),
    target: Target,
) {
    let Ok(message) = Message::parse(&inbound.request) else { return };
    let offer = session_of(&message).filter(|_| message.method() == Some(Method::Invite));
    let wants = offer.map(|offer| wanted_of_answer(&offer, &inbound.service)).unwrap_or_default();
    let wanted: Vec<_> = wants.iter().map(|want| want.range).collect();
    let (admitted, is_allowed) = admit_callee(cx, inbound, target.flow, &wanted);
    let relay =
        Relay::new((Direction::ToClient, target.flow), Hop::new(target.flow, target.uri)).by(target.routes, breadth);
    let is_kept = is_allowed && keep_ringing(cx, &message, &admitted);
    exchanges.begin(cx, id, (inbound.flow, Arc::clone(&inbound.request)), admitted, Some(Box::new(relay)));
    if !is_allowed {
        return exchanges.fail(cx, id, 403, "the user may not use the service that calls");
    }
    if !is_kept {
        return exchanges.fail(cx, id, 503, "as many calls live as may");
    }
    if wants.is_empty() || exchanges.open_grants(cx, id, &wants) == Asking::Open {
        exchanges.send_on(cx, id);
    }
}

fn number(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}
