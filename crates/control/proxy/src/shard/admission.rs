//! From an authenticated INVITE to a decision, and from a decision to the right way of carrying it out.

use std::sync::Arc;

use sluicegate_grant::DataMode;
use sluicegate_policy::{
    Limits, Outcome as Decided, PortProtocol, PortRange, Request, Service, ServiceKind, WANTED_MAX, decide,
};
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    transaction::Role,
    write::Response,
};

use super::{
    Now, Shard,
    answer::answer_flow,
    auth::{AgentSession, Proof},
    exchanges::Id,
    ladder::Asked,
    media::{Want, wanted_of_offer},
    settings::RETRY_AFTER_SECS,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::Transmits,
};

/// Who asks for what, once that is known.
pub(super) struct Admitted {
    pub(super) user: String,
    pub(super) service: Arc<Service>,
    pub(super) limits: Limits,
    pub(super) wants: Vec<Want>,
    /// The call: a new one, or the one that is renewed.
    pub(super) call: [u8; 12],
    pub(super) renewal: bool,
    /// Of an agent: what the session keys of its grants are made from.
    pub(super) agent: Option<AgentSession>,
}

impl Shard {
    /// An INVITE without a dialog.
    pub(super) fn on_invite(&mut self, now: Now, asked: Asked<'_, '_>, proof: Proof, out: &mut Transmits) {
        let service = if self.is_for_us(asked.message) { asked.service() } else { String::new() };
        self.on_authentic(now, asked, proof, (&service, None), out);
    }

    /// Authenticates a re-INVITE of a call, and decides anew.
    pub(super) fn on_reinvite(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        (service, call): (&str, [u8; 12]),
        out: &mut Transmits,
    ) {
        let Some(proof) = self.authenticate(now, asked, out) else { return };
        self.on_authentic(now, asked, proof, (service, Some(call)), out);
    }

    /// Decides; carries out a yes. `renewed` is the call that a re-INVITE belongs to.
    fn on_authentic(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        Proof { user, agent }: Proof,
        (service, renewed): (&str, Option<[u8; 12]>),
        out: &mut Transmits,
    ) {
        // The call's own user and service, or it is someone else's call.
        let other = |(owner, of): (String, String)| owner != user || of != service;
        if renewed.is_some_and(|call| self.ledger.call(call).is_some_and(other)) {
            return self.unmatched(asked, out);
        }
        if !self.is_from(asked, &user) {
            self.metrics.request(asked.kind, Outcome::Denied);
            self.decided(now, asked, &user, (Outcome::Denied, 403), ["From is not the user's own address"]);
            return self.refuse_with(now, asked, 403, None, out);
        }
        let unsupported = Self::unsupported(asked.message);
        if !unsupported.is_empty() {
            self.metrics.request(asked.kind, Outcome::Unsupported);
            return self.refuse_with(now, asked, 420, Some(("Unsupported", unsupported)), out);
        }
        let offer = match offer_of(asked.message) {
            Ok(offer) => offer,
            Err(code) => {
                self.metrics.request(asked.kind, Outcome::Malformed);
                return self.refuse_with(now, asked, code, None, out);
            }
        };
        match self.judge(now, asked, (&user, agent, service), renewed, offer.as_ref()) {
            Some(admitted) => self.carry_out(now, asked, admitted, offer.as_ref(), out),
            // The same answer whatever the reason: who may not use a service does not learn whether it exists.
            None => self.refuse_with(now, asked, 403, None, out),
        }
    }

    /// Asks the policy, and notes what it said.
    fn judge(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        (user, agent, name): (&str, Option<AgentSession>, &str),
        renewed: Option<[u8; 12]>,
        offer: Option<&Session<'_>>,
    ) -> Option<Admitted> {
        let service = self.policy.service(name).cloned();
        let wants = match (&service, offer) {
            (Some(service), Some(offer)) => wanted_of_offer(offer, service),
            _ => Vec::new(),
        };
        let wanted = match &service {
            // The answer will say which ports: these are what it may say.
            Some(service) if offer.is_none() && service.kind == ServiceKind::Sip => udp_of(service),
            _ => wants.iter().map(|want| want.range).collect(),
        };
        let decision = decide(
            &self.policy,
            &Request {
                user,
                service: name,
                client: asked.flow.peer.ip(),
                wanted: &wanted,
                proves: self.proves(agent.as_ref(), renewed),
                now: now.unix,
                held: self.ledger.held_by(user, renewed),
            },
        );
        let (limits, outcome, status) = match decision.outcome {
            Decided::Allow(limits) => (Some(limits), Outcome::Admitted, 200),
            Decided::Deny(_) => (None, Outcome::Denied, 403),
        };
        if limits.is_none() {
            self.metrics.request(asked.kind, Outcome::Denied);
        }
        let steps: Vec<String> = decision
            .steps
            .iter()
            .map(|step| format!("{} {}", if step.passed { "+" } else { "-" }, step.text))
            .collect();
        self.decided(now, asked, user, (outcome, status), steps);
        Some(Admitted {
            user: user.to_owned(),
            limits: limits?,
            service: service?,
            wants,
            call: renewed.unwrap_or_else(|| self.new_call()),
            renewal: renewed.is_some(),
            agent,
        })
    }

    /// The most that packets of this client can prove under the grants that it asks for. A renewal does not make those of
    /// a call stronger, so it is asked whether they are as strong as is demanded now.
    fn proves(&self, agent: Option<&AgentSession>, renewed: Option<[u8; 12]>) -> DataMode {
        let client = agent.map_or(DataMode::Pinhole, |agent| agent.proves);
        renewed.and_then(|call| self.ledger.least_mode_of(call)).map_or(client, |known| known.min(client))
    }

    fn carry_out(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        admitted: Admitted,
        offer: Option<&Session<'_>>,
        out: &mut Transmits,
    ) {
        match admitted.service.kind {
            ServiceKind::Declared => self.open_declared(now, asked, admitted, out),
            ServiceKind::Agent | ServiceKind::Sip => self.relay_invite(now, asked, admitted, offer, out),
        }
    }

    /// Opens a server transaction. `None`, after a 503 without one, if the table is full.
    pub(super) fn open_transaction(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        role: Role,
        out: &mut Transmits,
    ) -> Option<Id> {
        let listener = asked.flow.listener;
        let to = answer_flow(asked.flow, asked.message).peer;
        let tables = self.exchanges.listener(listener)?;
        match tables.server.open(now.instant, asked.message, asked.essentials, to, role) {
            Ok(token) => Some(Id { listener, token }),
            Err(_) => {
                self.metrics.one(Count::TableFull);
                self.unavailable_once(asked, out);
                None
            }
        }
    }

    /// Finally refuses an authenticated request, and remembers that for its retransmissions.
    pub(super) fn refuse_with(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        code: u16,
        header: Option<(&str, Vec<u8>)>,
        out: &mut Transmits,
    ) {
        let Some(id) = self.open_transaction(now, asked, Role::UserAgent, out) else { return };
        let tag = self.keys.stateless_tag(asked.message);
        let mut answer = std::mem::take(&mut self.scratch);
        let headers =
            Response::to(asked.message, code).source(asked.flow.peer).to_tag(tag.as_bytes()).begin(&mut answer);
        let headers = match header {
            Some((name, value)) => headers.header(name, value),
            None => headers,
        };
        match code {
            503 => headers.header_args("Retry-After", format_args!("{RETRY_AFTER_SECS}")).finish(),
            _ => headers.finish(),
        }
        self.send_answer(now, id, code, &answer, out);
        self.scratch = answer;
    }

    /// Sends an answer in its transaction; `false` if that has ended or has its final answer already.
    pub(super) fn send_answer(&mut self, now: Now, id: Id, code: u16, answer: &[u8], out: &mut Transmits) -> bool {
        let Some(tables) = self.exchanges.listener(id.listener) else { return false };
        if !tables.server.respond(now.instant, id.token, code, answer) {
            return false;
        }
        if let Some((_, peer)) = tables.server.response(id.token) {
            out.push(crate::transmits::Flow::datagrams(id.listener, peer), answer);
        }
        true
    }
}

/// The session description in a message: none, or one that can be read.
///
/// # Errors
/// The status to answer with.
fn offer_of<'a>(message: &Message<'a>) -> Result<Option<Session<'a>>, u16> {
    if message.body().is_empty() {
        return Ok(None);
    }
    let is_sdp = message.content_type().is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/sdp"));
    if !is_sdp || message.header(HeaderName::ContentEncoding).is_some() {
        return Err(415);
    }
    Session::parse(message.body()).map(Some).map_err(|_| 400)
}

fn udp_of(service: &Service) -> Vec<PortRange> {
    service.ports.iter().filter(|range| range.protocol == PortProtocol::Udp).take(WANTED_MAX).copied().collect()
}
