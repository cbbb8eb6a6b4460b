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
    Shard,
    admission::Admitted,
    answer::ALLOW,
    events::{Event, GateAnswer},
    exchanges::Exchange,
    grants::Opening,
    ladder::Asked,
    media::{self, Want},
    transactions::Id,
};
use crate::{
    calls::CallId,
    decisions::Decided,
    metrics::{Count, Outcome},
};

/// Shortest session timer that RFC 4028 allows, in seconds.
const SESSION_TIMER_SECS_MIN: u32 = 90;

impl Shard {
    /// Asks the gate of a declared service to open what was allowed.
    pub(super) fn open_declared(&mut self, asked: Asked<'_>, admitted: Admitted, mut wants: Vec<Want>) {
        let Some(id) = self.exchanges.transactions.open(&mut self.cx, asked, Role::UserAgent) else { return };
        let offer = Session::parse(asked.message.body()).ok();
        media::narrow(&mut wants, offer.as_ref(), asked.flow.peer.ip());
        self.exchanges.begin(self.cx.now.instant, id, asked, (admitted, None));
        if !self.open_grants(id, &wants) {
            return self.cx.metrics.request(asked.kind, Outcome::Unavailable);
        }
        self.cx.metrics.request(asked.kind, Outcome::Admitted);
        self.exchanges.transactions.send_trying(&mut self.cx, id, asked);
    }

    /// Has gates open what an INVITE is to have, in place of what they were asked for it before; `false`, after having
    /// told its sender, if they cannot even be asked.
    pub(super) fn open_grants(&mut self, id: Id, wants: &[Want]) -> bool {
        let Some(Exchange { flow, admitted, .. }) = self.exchanges.pending(id) else { return false };
        let client = flow.peer.ip();
        let issuing = (&self.cx.settings, &self.cx.keys, &*self.cx.ledger);
        let opening = Opening::new(issuing, self.cx.now.unix, (admitted, client), wants);
        let order = Event::Open { service: admitted.service.name.clone(), deltas: opening.deltas() };
        self.exchanges.await_gate(self.cx.now.instant, id, opening);
        let raised = self.cx.raise(order);
        if !raised {
            self.on_gate_failed(id, "as many events wait for the feed as may");
        }
        raised
    }

    /// Takes a gate's answer.
    pub(super) fn on_gate_answer(&mut self, answer: GateAnswer) {
        let (GateAnswer::Opened { id: grant, .. } | GateAnswer::Refused { id: grant, .. }) = answer;
        let Some(id) = self.exchanges.waiting_for(grant) else { return };
        match answer {
            GateAnswer::Opened { address, ports, .. } => {
                let Some(exchange) = self.exchanges.pending(id) else { return };
                let is_relayed = exchange.relay.is_some();
                let is_open = exchange.opening.as_mut().is_some_and(|opening| opening.note(grant, address, ports));
                match (is_open, is_relayed) {
                    (true, false) => self.accept(id),
                    (true, true) => self.pass_answer_on(id),
                    (false, _) => {}
                }
            }
            GateAnswer::Refused { reason, .. } => {
                self.cx.metrics.one(Count::OpeningRefused);
                self.on_gate_failed(id, &reason);
            }
        }
    }

    /// Nothing could be opened: the gate refused, or has not answered in time.
    pub(super) fn on_gate_failed(&mut self, id: Id, why: &str) {
        match self.exchanges.pending(id) {
            Some(Exchange { relay: Some(_), .. }) => self.on_relay_gate_failed(id, why),
            Some(_) => self.fail(id, 503, why),
            None => {}
        }
    }

    /// 200: all grants are open.
    fn accept(&mut self, id: Id) {
        let Some(Exchange { flow, request, started, admitted, opening, .. }) = self.exchanges.end(id) else { return };
        let Some(opening) = opening else { return };
        let Ok(request) = Message::parse(&request) else { return };
        let Ok(offer) = Session::parse(request.body()) else { return };
        let Admitted { service, call, renewal, agent, .. } = admitted;
        let sdp = media::answer(&offer, &opening.opened(), service.address, call, self.cx.now.unix.0);
        let tag = self.cx.keys.to_tag(call, self.cx.settings.shard, flow);
        let own = self.cx.settings.address(flow.listener);
        let contact = format!("<sip:{}@{own}>", service.name);
        let mut headers = Response::to(&request, 200)
            .source(flow.peer)
            .to_tag(tag.as_bytes())
            .record_route()
            .begin(&mut self.cx.scratch)
            .header("Contact", &contact)
            .header("Allow", ALLOW);
        let lifetime_s = admitted.limits.lifetime_s;
        if request.lists(HeaderName::Supported, b"timer") && lifetime_s >= SESSION_TIMER_SECS_MIN {
            // The telephone refreshes at half this time, which renews the grants (RFC 4028 section 7.4).
            headers = headers
                .header("Require", "timer")
                .header_args("Session-Expires", format_args!("{lifetime_s};refresher=uac"));
        }
        match &agent {
            Some(agent) => {
                let (kind, body) = multipart(call, &sdp, &opening.signed(&self.cx.settings));
                let proof = agent.answer(contact.as_bytes(), &body);
                headers.header("Supported", "sluicegate").header(HEADER.as_str(), proof).body(&kind, &body);
            }
            None => headers.body("application/sdp", &sdp),
        }
        if self.exchanges.transactions.respond(&mut self.cx, id, 200) {
            self.cx.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
            self.cx.metrics.setup(self.cx.now.instant.since(started));
            if !renewal {
                self.exchanges.await_ack(id, call);
            }
        }
    }

    /// Ends a pending exchange with a refusal, and with it whatever was opened for it. The client is not told why; `trace`
    /// is.
    pub(super) fn fail(&mut self, id: Id, code: u16, why: &str) {
        let Some(Exchange { flow, request, admitted, opening, relay, .. }) = self.exchanges.end(id) else { return };
        let decision = Decision {
            unix: self.cx.now.unix.0,
            user: admitted.user,
            service: admitted.service.name.clone(),
            client: flow.peer,
            outcome: Outcome::Unavailable.label().into(),
            status: code,
            steps: vec![format!("- {why}")],
        };
        self.cx.raise(Event::Decided(Decided { decision, renewal: false, left_out: 0 }));
        if opening.is_some() && !admitted.renewal {
            self.cx.revoke(admitted.call);
        }
        if let Some(relay) = relay {
            self.exchanges.forget(relay.sent);
            if !admitted.renewal {
                self.cx.ledger.end_call(self.cx.now.instant, admitted.call, None);
            }
        }
        if let Ok(request) = Message::parse(&request) {
            self.cx.write_answer(flow, &request, code, |headers| headers);
            self.exchanges.transactions.respond(&mut self.cx, id, code);
        }
    }
}

/// The description for the agent's user, and the portable copies for gates that are not on the feed.
pub(super) fn multipart(call: CallId, sdp: &[u8], grants: &[u8]) -> (String, Vec<u8>) {
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
