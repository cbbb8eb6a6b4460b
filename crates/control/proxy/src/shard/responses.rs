//! Responses on their way back, and what follows from them.

use std::time::Duration;

use sluicegate_policy::ServiceKind;
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{Message, Method},
    sdp::Session,
    write::{ForwardResponse, NewBody},
};

use super::{
    admission::Admitted,
    answer::{session_of, with_closed_session, with_session},
    context::Context,
    declared::multipart,
    events::Event,
    exchanges::Exchange,
    grants::{Opening, renew},
    keys::Direction,
    legs::{Leg, Legs},
    media,
    names::{HIDDEN, NOT_FORWARDED},
    paths::{is_registration, write_answer},
    peers::calls_max,
    registrar::ways,
    settings::Settings,
    timers,
};
use crate::{calls::CallId, metrics::Count};

/// Longest time between two refreshes of a subscription, in seconds, and how much later one may come.
const SUBSCRIPTION_SECS_MAX: u32 = 3_600;
const SUBSCRIPTION_GRACE_SECS: u32 = 32;
/// How long a relayed call may ring, in seconds: longer than timer C lets it, and the CANCEL that follows (RFC 3261 section
/// 16.8).
const RINGING_SECS: u64 = 240;

/// What a request makes that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Makes {
    /// A dialog with media.
    Call,
    /// A dialog in which one side is told of events (RFC 6665, RFC 3515).
    Subscription,
    Nothing,
}

impl Makes {
    /// Of a request, or of the one that a response is to. What may change a call's media makes it anew.
    pub(super) fn of(message: &Message<'_>) -> Self {
        match message.cseq().map(|cseq| cseq.method) {
            Ok(Method::Invite | Method::Other(b"UPDATE" | b"PRACK")) => Self::Call,
            Ok(Method::Other(b"SUBSCRIBE" | b"REFER")) => Self::Subscription,
            _ => Self::Nothing,
        }
    }
}

/// A subscription lives for as long as its last refresh said.
pub(super) fn keep_subscription(cx: &Context, call: CallId, of: (&str, &str), expires: Option<u32>) {
    let secs = expires.unwrap_or(SUBSCRIPTION_SECS_MAX).min(SUBSCRIPTION_SECS_MAX) + SUBSCRIPTION_GRACE_SECS;
    cx.ledger.keep_call(call, of, cx.now.unix.plus_secs(secs.into()));
}

/// Writes a response as it goes back to the sender of a request, which was `sent_on`.
pub(super) fn write_response(
    cx: &mut Context,
    (exchange, sent_on): (&Exchange, &[u8]),
    message: &Message<'_>,
    code: u16,
) -> Option<()> {
    let relay = exchange.relay.as_ref()?;
    if is_registration(message) && relay.direction == Direction::ToService {
        return write_answer(cx, (exchange, sent_on), message);
    }
    let body = relayed_body(message, exchange, code, &cx.settings);
    let body = body.as_ref().map(|(content_type, bytes)| NewBody { content_type, bytes });
    if relay.direction == Direction::ToClient {
        let response = ForwardResponse { response: message, remove: NOT_FORWARDED, add: &[], body };
        return response.write(&mut cx.scratch).ok();
    }
    let contact = cx.answer_contact(message, relay.hop, exchange.flow);
    let said = (contact.as_deref().unwrap_or_default(), body.as_ref().map_or(message.body(), |body| body.bytes));
    let agent = exchange.admitted.agent.as_ref().filter(|_| code / 100 == 2);
    let proof = agent.map(|agent| agent.answer(said.0, said.1));
    let timer = timers::for_caller(&exchange.request, sent_on, message);
    let contact = contact.as_deref().map(|value| ("Contact", value));
    let proof = proof.as_ref().map(|proof| (HEADER.as_str(), proof.as_bytes()));
    let timer = timer.iter().flat_map(|timer| [("Require", &b"timer"[..]), ("Session-Expires", timer.as_bytes())]);
    let add: Vec<_> = contact.into_iter().chain(proof).chain(timer).collect();
    ForwardResponse { response: message, remove: HIDDEN, add: &add, body }.write(&mut cx.scratch).ok()
}

/// A request was accepted: its call lives on, with what was described last and nothing else.
pub(super) fn settle(cx: &mut Context, legs: &mut Legs, (exchange, sent_on): (&Exchange, &[u8]), answer: &Message<'_>) {
    let Exchange { admitted: Admitted { user, service, limits, call, renewal, .. }, opening, .. } = exchange;
    let Some(relay) = &exchange.relay else { return };
    let (now, lifetime_s) = (cx.now, u64::from(limits.lifetime_s));
    match Makes::of(answer) {
        Makes::Nothing => return,
        Makes::Subscription => return keep_subscription(cx, *call, (user, &service.name), answer.expires()),
        Makes::Call => {}
    }
    let until = now.unix.plus_secs(lifetime_s);
    cx.ledger.keep_call(*call, (user, &service.name), until);
    if !renewal {
        cx.ledger.answered(*call, until);
    }
    // What has no Contact, such as the answer to a PRACK, changes no target (RFC 3261 section 12.2.1.2).
    let has_contact = answer.contact().is_ok_and(|contact| contact.is_some());
    let leg = match relay.direction {
        Direction::ToService if has_contact => Leg::new(relay.hop, sent_on, answer),
        Direction::ToClient if !renewal => {
            // The service's own connection may be gone when it is told.
            let back = exchange.flow.connection.and_then(|_| ways(&cx.settings, service).next());
            Leg::of_caller(back.unwrap_or(exchange.flow), &exchange.request, answer)
        }
        _ => None,
    };
    leg.into_iter().for_each(|leg| legs.keep(*call, now.instant + Duration::from_secs(lifetime_s), leg));
    if let (Direction::ToService, Ok(cseq)) = (relay.direction, answer.cseq()) {
        legs.accepted(*call, cseq.number);
    }
    let opening = opening.as_ref().filter(|opening| opening.is_latest(cx, *call));
    match opening {
        Some(opening) if service.kind == ServiceKind::Sip => {
            let kept: Vec<_> = opening.ids().collect();
            cx.close_others(*call, &kept);
            cx.ledger.agree(*call);
        }
        None if *renewal => renew(cx, *call),
        _ => {}
    }
    if let (Some(opening), Direction::ToClient, Some(session)) = (opening, relay.direction, session_of(answer)) {
        let deltas = opening.clone().narrowed(&session, exchange.client_ip());
        if !deltas.is_empty() {
            cx.raise(Event::Open { service: service.name.clone(), deltas });
        }
    }
    cx.metrics.one(if *renewal { Count::CallsRenewed } else { Count::CallsOpened });
    cx.metrics.setup(now.instant.since(exchange.started));
}

/// A request was refused: what was opened for it is closed.
pub(super) fn abandon(cx: &mut Context, exchange: &Exchange) {
    let Exchange { admitted: Admitted { call, renewal, .. }, opening, .. } = exchange;
    if *renewal {
        return cx.close(opening.iter().flat_map(Opening::new_ids));
    }
    cx.ledger.end_call(cx.now.instant, *call, None);
    if opening.is_some() || cx.ledger.has_grants(*call) {
        cx.revoke(*call);
    }
}

/// Whether a final answer replaces the provisional one that waits for the gate.
pub(super) fn supersedes(waiting: Option<&[u8]>, code: u16) -> bool {
    let waiting = waiting.and_then(|bytes| Message::parse(bytes).ok()).and_then(|message| message.status());
    code >= 200 && waiting.is_some_and(|waiting| waiting < 200)
}

/// The session description in an answer that opens something.
pub(super) fn description<'a>(message: &Message<'a>, code: u16) -> Option<Session<'a>> {
    if code < 300 { session_of(message) } else { None }
}

/// The description as the other side is to see it, and its type: the client's with the client's address, the service's with
/// the gate's, and for an agent with its grants. `None`: as it came.
fn relayed_body(
    message: &Message<'_>,
    exchange: &Exchange,
    code: u16,
    settings: &Settings,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let Exchange { admitted, opening, relay, .. } = exchange;
    let owned = |(kind, body): (&[u8], Vec<u8>)| (kind.to_vec(), body);
    let Some(session) = description(message, code) else {
        return with_closed_session(message, settings.address(0).ip()).map(owned);
    };
    if relay.as_ref().is_some_and(|relay| relay.direction == Direction::ToClient) {
        let sdp = media::rewrite_offer(&session, exchange.client_ip());
        return with_session(message, &sdp).map(owned);
    }
    let opened = opening.as_ref().map(Opening::opened).unwrap_or_default();
    let sdp = media::rewrite_answer(&session, &opened, settings.address(0).ip());
    Some(match opening {
        Some(opening) if admitted.agent.is_some() && code >= 200 => {
            let (kind, body) = multipart(admitted.call, &sdp, &opening.signed(settings));
            (kind.into_bytes(), body)
        }
        _ => with_session(message, &sdp).map(owned)?,
    })
}

/// What a request may make is remembered until it is answered; `false` if there is no room.
pub(super) fn keep_ringing(cx: &Context, request: &Message<'_>, admitted: &Admitted) -> bool {
    if Makes::of(request) == Makes::Nothing {
        return true;
    }
    let of = (admitted.user.as_str(), admitted.service.name.as_str());
    let until = cx.now.unix.plus_secs(RINGING_SECS);
    let is_kept = match admitted.renewal {
        true => cx.ledger.keep_call(admitted.call, of, until),
        false => cx.ledger.begin_call(admitted.call, of, until, calls_max(cx, &admitted.user)),
    };
    if let Some(media) = admitted.media {
        cx.ledger.set_media(admitted.call, media);
    }
    if !is_kept {
        cx.metrics.one(Count::TableFull);
    }
    is_kept
}
