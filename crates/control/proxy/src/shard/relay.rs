//! Relayed services: the INVITE goes to the agent or SIP server, and what its answer names is opened before the answer is
//! passed on.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use sluicegate_grant::GrantId;
use sluicegate_policy::{Limits, Service, ServiceKind};
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    transaction::Role,
    write::{ForwardError, ForwardRequest, NewBody, ViaLine, cancel_for},
};

use super::{
    Now, Shard,
    admission::Admitted,
    auth::AgentSession,
    declared::NO_ROOM,
    events::Event,
    exchanges::{Exchange, Id, Stage},
    grants::Opening,
    keys::Route,
    ladder::Asked,
    media,
    names::NOT_FORWARDED,
    openings::GateOrder,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::{Flow, Transmits},
};

/// How long a relayed call may ring, in seconds: longer than timer C lets it (RFC 3261 section 16.6).
const RINGING_SECS: u64 = 200;

/// What is known of an INVITE that was passed on to a service.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) user: String,
    pub(super) service: Arc<Service>,
    pub(super) limits: Limits,
    pub(super) call: [u8; 12],
    pub(super) renewal: bool,
    /// Of an agent: what the session keys of its grants are made from, and its answer is proved with.
    pub(super) agent: Option<AgentSession>,
    /// Our own transaction towards the service.
    pub(super) sent: Id,
    /// Where it went.
    pub(super) hop: Flow,
    /// The INVITE as it went there.
    pub(super) forwarded: Vec<u8>,
    /// What the last answer with a description had opened, or waits for.
    pub(super) opening: Option<Opening>,
    /// The answer that is passed on once everything is open.
    pub(super) waiting: Option<Vec<u8>>,
    pub(super) cancelled: bool,
    /// Whether the service was told so.
    pub(super) cancel_sent: bool,
}

impl Relay {
    /// The grants of the last answer, open or not.
    pub(super) const fn last_opening(&self) -> Option<&Opening> {
        self.opening.as_ref()
    }

    /// Notes a gate's answer; whether now everything is open.
    pub(super) fn note(&mut self, id: GrantId, address: IpAddr, ports: (u16, u16)) -> bool {
        self.opening.as_mut().is_some_and(|opening| opening.note(id, address, ports))
    }
}

/// Where requests for a service go, and under which URI.
pub(super) struct Hop {
    pub(super) flow: Flow,
    pub(super) uri: Vec<u8>,
}

impl Shard {
    /// Where a service takes SIP: where its agent registered from; or for a SIP server under the address that its gate
    /// told, or its own.
    pub(super) fn hop(&self, now: Now, service: &Service) -> Option<Hop> {
        if let Some(binding) = self.registrar.at(now.instant, &service.name) {
            return Some(Hop { flow: binding.flow, uri: binding.contact.clone() });
        }
        if service.kind != ServiceKind::Sip {
            return None;
        }
        let own = SocketAddr::new(service.address, service.sip_port_or_default()?);
        let peer = self.standing.get(&service.name).map_or(own, |standing| standing.address);
        let flow = Flow::datagrams(self.settings.listener_for(peer.ip()), peer);
        Some(Hop { flow, uri: format!("sip:{}@{own}", service.name).into_bytes() })
    }

    /// Passes an allowed INVITE on to its service.
    pub(super) fn relay_invite(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        admitted: Admitted,
        offer: Option<&Session<'_>>,
        out: &mut Transmits,
    ) {
        let Some(hop) = self.hop(now, &admitted.service) else {
            self.metrics.request(asked.kind, Outcome::Unavailable);
            return self.refuse_with(now, asked, 480, None, out);
        };
        let mut forwarded = Vec::with_capacity(asked.message.as_bytes().len() + 512);
        match self.write_forwarded(now, asked, &admitted, &hop, offer, &mut forwarded) {
            Ok(()) => {}
            Err(error) => {
                self.metrics.request(asked.kind, Outcome::Malformed);
                let code = if matches!(error, ForwardError::NoHops) { 483 } else { 400 };
                return self.refuse_with(now, asked, code, None, out);
            }
        }
        if out.links.is_too_long(hop.flow.peer, forwarded.len()) {
            self.metrics.request(asked.kind, Outcome::Unsupported);
            return self.refuse_with(now, asked, 513, None, out);
        }
        let of = (admitted.user.as_str(), admitted.service.name.as_str());
        if !self.ledger.keep_call(admitted.call, of, now.unix.plus_secs(RINGING_SECS)) {
            self.metrics.one(Count::TableFull);
            self.metrics.request(asked.kind, Outcome::Unavailable);
            return self.refuse_with(now, asked, 503, None, out);
        }
        let Some(owed) = self.open_transaction(now, asked, Role::Proxy, out) else { return };
        let request = asked.message.as_bytes().to_vec();
        let sent = self.start(now, hop.flow, &forwarded, out);
        let stage = Stage::Relaying(Box::new(Relay {
            user: admitted.user,
            service: admitted.service,
            limits: admitted.limits,
            call: admitted.call,
            renewal: admitted.renewal,
            agent: admitted.agent,
            sent: sent.unwrap_or(owed),
            hop: hop.flow,
            forwarded,
            opening: None,
            waiting: None,
            cancelled: false,
            cancel_sent: false,
        }));
        let exchange = Exchange { flow: asked.flow, request, started: now.instant, stage, gate_deadline: None };
        self.exchanges.begin(owed, exchange);
        let Some(sent) = sent else {
            self.metrics.request(asked.kind, Outcome::Unavailable);
            return self.fail(now, owed, 503, "the table of requests to services is full", out);
        };
        self.metrics.request(asked.kind, Outcome::Admitted);
        self.exchanges.relay(sent, owed);
        self.send_trying(now, owed, asked.flow, asked.message, out);
    }

    fn write_forwarded(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        admitted: &Admitted,
        hop: &Hop,
        offer: Option<&Session<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), ForwardError> {
        let Asked { flow, message, essentials, .. } = asked;
        let number = self.next_number();
        let branch = self.keys.branch(self.settings.shard, number);
        let route = Route { call: admitted.call, service: admitted.service.name.clone(), client: flow };
        let caller_tag = essentials.from.tag.unwrap_or_default();
        let own = self.settings.address(flow.listener);
        let record_route = self.keys.record_route((own, now.unix), &route, essentials.call_id, caller_tag);
        let identity = format!("<sip:{}@{}>", admitted.user, self.settings.realm);
        let body = offer.map(|offer| media::rewrite_offer(offer, flow.peer.ip()));
        // Within the dialog the client names the service's own Contact, as far as it knows that.
        let uri = if admitted.renewal { self.inner_uri(message, &hop.uri) } else { Some(hop.uri.clone()) };
        // Our agent is told how long what it lets in lasts; a SIP server would want to refresh by itself.
        let lifetime = admitted.limits.lifetime_s.to_string();
        let is_agent = admitted.service.kind == ServiceKind::Agent;
        let add = [("P-Asserted-Identity", identity.as_bytes()), ("Session-Expires", lifetime.as_bytes())];
        let remove = [NOT_FORWARDED, &[HeaderName::SessionExpires]].concat();
        ForwardRequest {
            request: message,
            source: flow.peer,
            via: ViaLine {
                transport: self.settings.listening(hop.flow.listener).transport,
                sent_by: self.settings.address(hop.flow.listener),
                branch: &branch,
                rport: true,
            },
            uri: uri.as_deref(),
            record_routes: &[record_route.as_bytes()],
            remove_first_route: self.first_route_is_ours(message),
            remove: if is_agent { &remove } else { NOT_FORWARDED },
            add: if is_agent { &add } else { &add[..1] },
            body: body.as_deref().map(|bytes| NewBody { content_type: b"application/sdp", bytes }),
        }
        .write(out)
    }

    /// Sends a request of ours and repeats it until it is answered. `None` if the table is full.
    pub(super) fn start(&mut self, now: Now, to: Flow, request: &[u8], out: &mut Transmits) -> Option<Id> {
        let message = Message::parse(request).ok()?;
        let tables = self.exchanges.listener(to.listener)?;
        let token = tables.client.start(now.instant, &message, to.peer).ok()?;
        out.push(to, request);
        Some(Id { listener: to.listener, token })
    }

    /// A CANCEL: for an INVITE of the same branch and sender, from the same address.
    pub(super) fn on_cancel(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) {
        let listener = asked.flow.listener;
        let token = self.exchanges.listener(listener).and_then(|tables| tables.server.cancelled_by(asked.essentials));
        let Some(id) = token.map(|token| Id { listener, token }) else { return self.unmatched(asked, out) };
        let source = self.exchanges.pending(id).map(|exchange| exchange.flow.peer.ip());
        if source.is_some_and(|ip| ip != asked.flow.peer.ip()) {
            return self.unmatched(asked, out);
        }
        self.metrics.request(asked.kind, Outcome::Answered);
        self.answer_once(asked.flow, asked.message, 200, out);
        // Answered already: then the CANCEL changes nothing (RFC 3261 section 9.2).
        let Some(exchange) = self.exchanges.pending(id) else { return };
        match &mut exchange.stage {
            Stage::Opening(_) => self.fail(now, id, 487, "the client cancelled", out),
            Stage::Relaying(relay) => {
                relay.cancelled = true;
                let (sent, hop) = (relay.sent, relay.hop);
                self.cancel_sent(now, id, sent, hop, out);
            }
        }
    }

    /// Cancels what was sent to the service, once that has answered provisionally (RFC 3261 section 9.1).
    pub(super) fn cancel_sent(&mut self, now: Now, owed: Id, sent: Id, hop: Flow, out: &mut Transmits) {
        if !self.exchanges.listener(sent.listener).is_some_and(|tables| tables.client.is_proceeding(sent.token)) {
            return;
        }
        let Some(exchange) = self.exchanges.pending(owed) else { return };
        let Stage::Relaying(relay) = &mut exchange.stage else { return };
        if std::mem::replace(&mut relay.cancel_sent, true) {
            return;
        }
        let mut cancel = Vec::new();
        let written = Message::parse(&relay.forwarded).and_then(|forwarded| cancel_for(&forwarded, &mut cancel));
        if written.is_ok() {
            self.start(now, hop, &cancel, out);
        }
    }

    /// Has the grants opened that an answer of the service names; the answer waits.
    pub(super) fn open_relayed(
        &mut self,
        now: Now,
        owed: Id,
        answer: &[u8],
        wants: Vec<media::Want>,
        out: &mut Transmits,
    ) {
        let Some(exchange) = self.exchanges.pending(owed) else { return };
        let flow = exchange.flow;
        let Stage::Relaying(relay) = &exchange.stage else { return };
        let admitted = Admitted {
            user: relay.user.clone(),
            service: Arc::clone(&relay.service),
            limits: relay.limits,
            wants,
            call: relay.call,
            renewal: relay.renewal,
            agent: relay.agent.clone(),
        };
        let opening = self.opening(now, flow, &admitted);
        let ids: Vec<GrantId> = opening.ids().collect();
        let order = GateOrder::Open { service: admitted.service.name.clone(), deltas: opening.deltas() };
        let raised = self.raise(Event::Gates(order));
        let mut before = None;
        if let Some(Exchange { stage: Stage::Relaying(relay), .. }) = self.exchanges.pending(owed) {
            before = relay.opening.replace(opening);
            relay.waiting = Some(answer.to_vec());
        }
        if let Some(before) = before {
            self.exchanges.stop_waiting(&before);
        }
        self.exchanges.await_gate(now.instant, owed, ids.into_iter());
        if !raised {
            self.on_gate_failed(now, owed, NO_ROOM, out);
        }
    }
}
