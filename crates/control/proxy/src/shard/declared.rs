//! Declared services: the frontend itself answers, once the gate has opened what was asked for.

use sluicegate_api::Decision;
use sluicegate_grant::GrantId;
use sluicegate_signin::HEADER;
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    transaction::Role,
    write::Response,
};

use super::{
    Now, Shard,
    admission::Admitted,
    answer::ALLOW,
    events::{Event, GateAnswer},
    exchanges::{Exchange, Id, Stage},
    grants::{Opening, Terms},
    ladder::Asked,
    media,
    openings::GateOrder,
    settings::RETRY_AFTER_SECS,
};
use crate::{
    decisions::Decided,
    metrics::{Count, Outcome},
    transmits::{Flow, Transmits},
};

/// Why a gate could not even be asked.
pub(super) const NO_ROOM: &str = "as many events wait for the feed as may";

/// Shortest session timer that RFC 4028 allows, in seconds.
const SESSION_TIMER_SECS_MIN: u32 = 90;

impl Shard {
    /// Asks the gate of a declared service to open what was allowed.
    pub(super) fn open_declared(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        mut admitted: Admitted,
        out: &mut Transmits,
    ) {
        let Some(id) = self.open_transaction(now, asked, Role::UserAgent, out) else { return };
        let offer = Session::parse(asked.message.body()).ok();
        media::narrow(&mut admitted.wants, offer.as_ref(), asked.flow.peer.ip());
        let opening = self.opening(now, asked.flow, &admitted);
        let request = asked.message.as_bytes().to_vec();
        let ids: Vec<GrantId> = opening.ids().collect();
        let order = GateOrder::Open { service: opening.service.name.clone(), deltas: opening.deltas() };
        let stage = Stage::Opening(Box::new(opening));
        let exchange = Exchange { flow: asked.flow, request, started: now.instant, stage, gate_deadline: None };
        self.exchanges.begin(id, exchange);
        if !self.raise(Event::Gates(order)) {
            self.metrics.request(asked.kind, Outcome::Unavailable);
            return self.fail(now, id, 503, NO_ROOM, out);
        }
        self.metrics.request(asked.kind, Outcome::Admitted);
        self.exchanges.await_gate(now.instant, id, ids.into_iter());
        self.send_trying(now, id, asked.flow, asked.message, out);
    }

    /// 100, so that the client stops repeating its request.
    pub(super) fn send_trying(&mut self, now: Now, id: Id, flow: Flow, message: &Message<'_>, out: &mut Transmits) {
        let mut answer = std::mem::take(&mut self.scratch);
        Response::to(message, 100).source(flow.peer).begin(&mut answer).finish();
        self.send_answer(now, id, 100, &answer, out);
        self.scratch = answer;
    }

    pub(super) fn opening(&self, now: Now, flow: Flow, admitted: &Admitted) -> Opening {
        let terms = Terms {
            call: admitted.call,
            user: &admitted.user,
            service: &admitted.service,
            client: flow.peer.ip(),
            limits: admitted.limits,
            agent: admitted.agent.as_ref(),
            renewal: admitted.renewal,
        };
        Opening::new((&self.settings, &self.keys, &self.ledger), now.unix, &terms, &admitted.wants)
    }

    /// Takes a gate's answer.
    pub fn on_gate_answer(&mut self, now: Now, answer: GateAnswer, out: &mut Transmits) {
        let (GateAnswer::Opened { id: grant, .. } | GateAnswer::Refused { id: grant, .. }) = answer;
        let Some(id) = self.exchanges.waiting_for(grant) else { return };
        match answer {
            GateAnswer::Opened { address, ports, .. } => self.on_opened(now, id, grant, (address, ports), out),
            GateAnswer::Refused { reason, .. } => {
                self.metrics.one(Count::OpeningRefused);
                self.on_gate_failed(now, id, &reason, out);
            }
        }
    }

    fn on_opened(
        &mut self,
        now: Now,
        id: Id,
        grant: GrantId,
        (address, ports): (std::net::IpAddr, (u16, u16)),
        out: &mut Transmits,
    ) {
        let Some(exchange) = self.exchanges.pending(id) else { return };
        match &mut exchange.stage {
            Stage::Opening(opening) => {
                if opening.note(grant, address, ports) {
                    self.accept(now, id, out);
                }
            }
            Stage::Relaying(relay) => {
                if relay.note(grant, address, ports) {
                    self.pass_answer_on(now, id, out);
                }
            }
        }
    }

    /// Nothing could be opened: the gate refused, or has not answered in time.
    pub(super) fn on_gate_failed(&mut self, now: Now, id: Id, why: &str, out: &mut Transmits) {
        let Some(exchange) = self.exchanges.pending(id) else { return };
        match &exchange.stage {
            Stage::Opening(_) => self.fail(now, id, 503, why, out),
            Stage::Relaying(_) => self.on_relay_gate_failed(now, id, why, out),
        }
    }

    /// 200: all grants are open.
    fn accept(&mut self, now: Now, id: Id, out: &mut Transmits) {
        let Some(exchange) = self.exchanges.end(id) else { return };
        let Stage::Opening(opening) = &exchange.stage else { return };
        let Ok(request) = Message::parse(&exchange.request) else { return };
        let Ok(offer) = Session::parse(request.body()) else { return };
        let opened = opening.opened();
        let sdp = media::answer(&offer, &opened, opening.service.address, opening.call, now.unix.0);
        let mut answer = std::mem::take(&mut self.scratch);
        let tag = self.keys.to_tag(opening.call, self.settings.shard, exchange.flow);
        let own = self.settings.address(exchange.flow.listener);
        let contact = format!("<sip:{}@{own}>", opening.service.name);
        let mut headers = Response::to(&request, 200)
            .source(exchange.flow.peer)
            .to_tag(tag.as_bytes())
            .record_route()
            .begin(&mut answer)
            .header("Contact", &contact)
            .header("Allow", ALLOW);
        if request.lists(HeaderName::Supported, b"timer") && opening.lifetime_s >= SESSION_TIMER_SECS_MIN {
            // The telephone refreshes at half this time, which renews the grants (RFC 4028 section 7.4).
            headers = headers
                .header("Require", "timer")
                .header_args("Session-Expires", format_args!("{};refresher=uac", opening.lifetime_s));
        }
        match &opening.agent {
            Some(agent) => {
                let (kind, body) = multipart(opening.call, &sdp, &opening.signed(&self.settings));
                let proof = agent.answer(contact.as_bytes(), &body);
                headers.header("Supported", "sluicegate").header(HEADER.as_str(), proof).body(&kind, &body);
            }
            None => headers.body("application/sdp", &sdp),
        }
        let (call, renewal) = (opening.call, opening.renewal);
        if self.send_answer(now, id, 200, &answer, out) {
            self.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
            self.metrics.setup(now.instant.since(exchange.started));
            if !renewal {
                self.exchanges.await_ack(id, call);
            }
        }
        self.scratch = answer;
    }

    /// Ends a pending exchange with a refusal, and with it whatever was opened for it. The client is not told why; `trace`
    /// is.
    pub(super) fn fail(&mut self, now: Now, id: Id, code: u16, why: &str, out: &mut Transmits) {
        let Some(exchange) = self.exchanges.end(id) else { return };
        let (opening, user, service) = match &exchange.stage {
            Stage::Opening(opening) => (Some(&**opening), &opening.user, &opening.service),
            Stage::Relaying(relay) => (relay.last_opening(), &relay.user, &relay.service),
        };
        let decision = Decision {
            unix: now.unix.0,
            user: user.clone(),
            service: service.name.clone(),
            client: exchange.flow.peer,
            outcome: Outcome::Unavailable.label().into(),
            status: code,
            steps: vec![format!("- {why}")],
        };
        self.raise(Event::Decided(Decided { decision, renewal: false, left_out: 0 }));
        if let Some(opening) = opening.filter(|opening| !opening.renewal) {
            self.revoke(opening.selector());
        }
        if let Stage::Relaying(relay) = &exchange.stage {
            self.exchanges.forget(relay.sent);
            if !relay.renewal {
                self.ledger.end_call(now.instant, relay.call, None);
            }
        }
        let Ok(request) = Message::parse(&exchange.request) else { return };
        let mut answer = std::mem::take(&mut self.scratch);
        let tag = self.keys.stateless_tag(&request);
        let headers = Response::to(&request, code).source(exchange.flow.peer).to_tag(tag.as_bytes()).begin(&mut answer);
        match code {
            503 => headers.header_args("Retry-After", format_args!("{RETRY_AFTER_SECS}")).finish(),
            _ => headers.finish(),
        }
        self.send_answer(now, id, code, &answer, out);
        self.scratch = answer;
    }
}

/// The description for the agent's user, and the portable copies for gates that are not on the feed.
pub(super) fn multipart(call: [u8; 12], sdp: &[u8], grants: &[u8]) -> (String, Vec<u8>) {
    // No one can know the call beforehand, so no part can hold its boundary.
    let boundary = format!("sluicegate-{}", GrantId::of_call(call, 0));
    let part = |kind: &str, more: &str| format!("--{boundary}\r\nContent-Type: {kind}\r\n{more}\r\n");
    let body = [
        part("application/sdp", "").as_bytes(),
        sdp,
        b"\r\n",
        part("application/vnd.sluicegate.grant", "Content-Transfer-Encoding: binary\r\n").as_bytes(),
        grants,
        format!("\r\n--{boundary}--\r\n").as_bytes(),
    ]
    .concat();
    (format!("multipart/mixed;boundary={boundary}"), body)
}
