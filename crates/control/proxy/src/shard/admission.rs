//! From an authenticated INVITE to a decision, and from a decision to the right way of carrying it out.

use std::{net::IpAddr, sync::Arc};

use sluicegate_grant::DataMode;
use sluicegate_policy::{
    Limits, Outcome as Decided, PortProtocol, PortRange, Request, Service, ServiceKind, WANTED_MAX, decide,
};
use sluicegate_signin::CONTINUES;
use sluicegate_sip::{
    message::{HeaderName, Message, Method, part},
    sdp::Session,
};

use super::{
    answer::{SDP, is_supported},
    auth::{AgentSession, Proof},
    context::Context,
    exchanges::Exchanges,
    failover,
    forks::Inbound,
    keys::Side,
    ladder::Asked,
    media::{Want, wanted_of_offer},
    peers,
    registrar::Registrar,
    watch,
};
use crate::{
    calls::CallId,
    ledger::{Begun, Ledger},
    metrics::Outcome,
    transmits::Flow,
};

/// Who may have what, once that is decided.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub(super) user: String,
    pub(super) service: Arc<Service>,
    pub(super) limits: Limits,
    /// The call: a new one, or the one that is renewed.
    pub(super) call: CallId,
    /// Whether the call is open already and its grants last longer.
    pub(super) renewal: bool,
    /// Whether it is one of another frontend, whose grants go on here.
    pub(super) continued: bool,
    /// Of an agent, which gets portable copies: what its session keys are made from and its answer is proved with.
    pub(super) agent: Option<AgentSession>,
    /// Of a peer: where its media come from.
    pub(super) media: Option<IpAddr>,
}

impl Admitted {
    /// Whether something of it may be open already: what fails now ends none of that.
    pub(super) const fn stands(&self) -> bool {
        self.renewal || self.continued
    }
}

/// The call that a re-INVITE belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Renewed {
    pub(super) call: CallId,
    /// Whether the client was called, and goes by the name that the caller gave it.
    pub(super) is_called: bool,
}

/// Decides about an authenticated request that is not our own to answer, and carries out a yes.
pub(super) fn admit(
    cx: &mut Context,
    exchanges: &mut Exchanges,
    registrar: &Registrar,
    asked: Asked<'_>,
    Proof { user, agent }: Proof,
    (service, renewed): (&str, Option<Renewed>),
) {
    let transactions = &mut exchanges.transactions;
    // The call's own user and service, or it is someone else's call.
    let other = |(owner, of): (String, String)| owner != user || of != service;
    if renewed.is_some_and(|renewed| cx.ledger.call(renewed.call).is_some_and(other)) {
        return cx.unmatched(asked);
    }
    if renewed.is_none() && !peers::may_begin(cx, &user, Begun::ByPeer) {
        return peers::peer_busy(cx, asked);
    }
    if !renewed.is_some_and(|renewed| renewed.is_called) && !peers::may_call_as(cx, asked, &user) {
        return transactions.deny(cx, asked, &user, Outcome::Denied, "From is not the user's own address");
    }
    if cx.keys.is_loop(Side::Client, asked.message) {
        return transactions.refuse(cx, asked, (Outcome::Unavailable, 482), &[]);
    }
    let offer = if asked.method == Method::Invite { offer_of(asked.message) } else { Ok(None) };
    let offer = match offer {
        Ok(offer) => offer,
        Err(code) => {
            cx.decided(asked, &user, (Outcome::Malformed, code), ["- its session description cannot be read"]);
            return transactions.refuse(cx, asked, (Outcome::Malformed, code), &[]);
        }
    };
    let is_peer = cx.policy.peer(&user).is_some();
    let media = match peers::media_address(cx, &user, renewed.map(|renewed| renewed.call), offer.as_ref()) {
        Ok(media) => media,
        Err(why) => {
            cx.decided(asked, &user, (Outcome::Unsupported, 488), [format!("- {why}")]);
            return transactions.refuse(cx, asked, (Outcome::Unsupported, 488), &[]);
        }
    };
    // The same answer whatever the reason: who may not use a service does not learn whether it exists.
    let Some((mut admitted, wants)) =
        judge(cx, asked, (&user, agent, service), renewed.map(|renewed| renewed.call), offer.as_ref())
    else {
        return transactions.refuse(cx, asked, (Outcome::Denied, 403), &[]);
    };
    admitted.media = media;
    if is_peer && admitted.service.kind != ServiceKind::Sip {
        let why = "peers call SIP servers and nothing else";
        return transactions.refuse_admitted(cx, asked, &admitted, (Outcome::Denied, 403), why);
    }
    // A proxy looks at Proxy-Require alone (RFC 3261 section 16.3). Agents have what we have.
    let unsupported = if admitted.service.kind == ServiceKind::Sip { Vec::new() } else { unsupported(asked.message) };
    if !unsupported.is_empty() {
        let refused = (Outcome::Unsupported, 420);
        watch::refused(cx, asked, &admitted, refused, "an extension that it requires is unknown");
        return transactions.refuse(cx, asked, refused, &[("Unsupported", &unsupported)]);
    }
    match admitted.service.kind {
        ServiceKind::Declared | ServiceKind::Agent if asked.method != Method::Invite => {
            return cx.no_such_method(asked);
        }
        ServiceKind::Declared => return exchanges.open_declared(cx, asked, admitted, wants),
        ServiceKind::Agent | ServiceKind::Sip => {}
    }
    let ways = failover::ways(cx, registrar, asked, &admitted);
    exchanges.relay(cx, asked, &admitted, ways, offer.as_ref());
}

/// The call of another frontend that an agent wants to go on here. It is nobody else's here; whether it is the user's own, the
/// gate knows that has its grants.
fn continued(cx: &Context, asked: Asked<'_>, (user, service): (&str, &str)) -> Option<CallId> {
    let text = asked.message.header(CONTINUES)?;
    let mut call = CallId::default();
    for (byte, digits) in call.iter_mut().zip(text.chunks(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    let is_free = cx.ledger.call(call).is_none_or(|(known, of)| (known.as_str(), of.as_str()) == (user, service));
    (text.len() == 2 * call.len() && is_free).then_some(call)
}

/// Asks the policy, and notes what it said.
pub(super) fn judge(
    cx: &mut Context,
    asked: Asked<'_>,
    (user, agent, name): (&str, Option<AgentSession>, &str),
    renewed: Option<CallId>,
    offer: Option<&Session<'_>>,
) -> Option<(Admitted, Vec<Want>)> {
    let service = cx.policy.service(name).cloned();
    let wants = match (&service, offer) {
        (Some(service), Some(offer)) => wanted_of_offer(offer, service),
        _ => Vec::new(),
    };
    let wanted = match &service {
        // The answer will say which ports: these are what it may say.
        Some(service) if offer.is_none() && (service.kind == ServiceKind::Sip || asked.method != Method::Invite) => {
            udp_of(service)
        }
        _ => wants.iter().map(|want| want.range).collect(),
    };
    let client = agent.as_ref().map_or(DataMode::Pinhole, |agent| agent.proves);
    let proves = proves(&cx.ledger, client, renewed);
    let (limits, steps) = ask(cx, (user, name, asked.flow), &wanted, proves, renewed);
    let decided = if limits.is_some() { (Outcome::Admitted, 200) } else { (Outcome::Denied, 403) };
    let continued = agent.as_ref().filter(|_| renewed.is_none()).and_then(|_| continued(cx, asked, (user, name)));
    let call = renewed.or(continued).unwrap_or_else(|| cx.new_call());
    cx.decided_of(Some(call), asked, user, decided, steps);
    let admitted = Admitted {
        user: user.to_owned(),
        limits: limits?,
        service: service?,
        call,
        renewal: renewed.is_some(),
        continued: continued.is_some(),
        agent,
        media: None,
    };
    Some((admitted, wants))
}

/// Decides anew about a call that lives: whether its user may have this now. Whoever asks for it, it is the user's.
pub(super) fn readmit(cx: &mut Context, (call, client): (CallId, Flow), wanted: &[PortRange]) -> Option<Admitted> {
    let (user, name) = cx.ledger.call(call)?;
    let service = cx.policy.service(&name).cloned()?;
    let proves = proves(&cx.ledger, DataMode::Capability, Some(call));
    let any = if wanted.is_empty() { udp_of(&service) } else { Vec::new() };
    let wanted = if wanted.is_empty() { &any } else { wanted };
    let (limits, steps) = ask(cx, (&user, &name, client), wanted, proves, Some(call));
    let decided = if limits.is_some() { (Outcome::Admitted, 200) } else { (Outcome::Denied, 403) };
    cx.decided_anew((&user, &name, client), call, decided, steps);
    let media = cx.ledger.media_of(call);
    Some(Admitted { user, limits: limits?, service, call, renewal: true, continued: false, agent: None, media })
}

/// What is remembered of a call of a service to a user at `client`, and whether that user may have what the service offers.
pub(super) fn admit_callee(
    cx: &mut Context,
    inbound: &Inbound,
    client: Flow,
    wanted: &[PortRange],
) -> (Admitted, bool) {
    let Inbound { service, user, .. } = inbound;
    let any = if wanted.is_empty() { udp_of(service) } else { Vec::new() };
    let wanted = if wanted.is_empty() { &any } else { wanted };
    let (limits, steps) = ask(cx, (user, &service.name, client), wanted, DataMode::Pinhole, None);
    let decided = if limits.is_some() { (Outcome::Admitted, 200) } else { (Outcome::Denied, 403) };
    let call = cx.new_call();
    if let Ok(request) = Message::parse(&inbound.request) {
        watch::decided_callee(cx, (user, &service.name, client), (Some(call), &request), decided, steps);
    }
    let is_allowed = limits.is_some();
    let admitted = Admitted {
        user: user.clone(),
        service: Arc::clone(service),
        limits: limits.unwrap_or(service.limits),
        call,
        renewal: false,
        continued: false,
        agent: None,
        media: peers::media_address(cx, user, None, None).unwrap_or_default(),
    };
    (admitted, is_allowed)
}

/// What the policy allows, and how it came to that.
fn ask(
    cx: &Context,
    (user, service, client): (&str, &str, Flow),
    wanted: &[PortRange],
    proves: DataMode,
    renewed: Option<CallId>,
) -> (Option<Limits>, Vec<String>) {
    let held = cx.ledger.held_by(user, renewed);
    let request = Request { user, service, client: client.peer.ip(), wanted, proves, now: cx.now.unix, held };
    let decision = decide(&cx.policy, &request);
    let steps = decision.steps.iter().map(ToString::to_string).collect();
    match decision.outcome {
        Decided::Allow(limits) => (Some(limits), steps),
        Decided::Deny(_) => (None, steps),
    }
}

/// The most that packets of a client can prove under the grants that it asks for. A renewal does not make those of a call
/// stronger, so it is asked whether they are as strong as is demanded now.
fn proves(ledger: &Ledger, client: DataMode, renewed: Option<CallId>) -> DataMode {
    renewed.and_then(|call| ledger.least_mode_of(call)).map_or(client, |known| known.min(client))
}

/// The session description in a message: none, or one that can be read.
///
/// # Errors
/// The status to answer with.
pub(super) fn offer_of<'a>(message: &Message<'a>) -> Result<Option<Session<'a>>, u16> {
    if message.body().is_empty() {
        return Ok(None);
    }
    let part = part(message, SDP).filter(|_| message.header(HeaderName::ContentEncoding).is_none()).ok_or(415_u16)?;
    Session::parse(part).map(Some).map_err(|_| 400)
}

/// Extensions that the sender demands of whoever answers, and that we do not have (RFC 3261 section 8.2.2.3).
fn unsupported(message: &Message<'_>) -> Vec<u8> {
    let unknown: Vec<&[u8]> = message.headers(HeaderName::Require).filter(|tag| !is_supported(tag)).collect();
    unknown.join(&b", "[..])
}

fn udp_of(service: &Service) -> Vec<PortRange> {
    service.ports.iter().filter(|range| range.protocol == PortProtocol::Udp).take(WANTED_MAX).copied().collect()
}
