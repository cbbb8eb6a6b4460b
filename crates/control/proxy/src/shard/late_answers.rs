//! ACKs of services that carry a description: the answer to an offer that a client made in its 200 (RFC 3264 section 5). Each
//! waits until what it names is open.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use sluicegate_bounded::Gauge;
use sluicegate_policy::Service;
use sluicegate_sip::message::Message;
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    answer::session_of,
    context::Context,
    events::{Event, GateAnswer},
    grants::Opening,
    keys::Direction,
    ladder::Asked,
    media::{self, wanted_of_answer},
    onward::Onward,
    peers,
    registrar::Hop,
    settings::OPENING_MAX,
};
use crate::{
    calls::CallId,
    metrics::{Count, Outcome},
    transmits::Flow,
};

#[derive(Debug)]
struct LateAnswer {
    user: String,
    service: Arc<Service>,
    from: Flow,
    client: Flow,
    ack: Vec<u8>,
    opening: Opening,
    /// When gates have to have answered.
    deadline: Instant,
}

/// At most `max` of them, one for each call.
#[derive(Debug)]
pub(super) struct LateAnswers {
    by_call: HashMap<CallId, LateAnswer>,
    /// Oldest first; what has ended stays in it for a while.
    deadlines: VecDeque<(Instant, CallId)>,
    max: usize,
}

impl LateAnswers {
    pub(super) fn new(max: usize) -> Self {
        Self { by_call: HashMap::new(), deadlines: VecDeque::new(), max }
    }

    /// Has gates open what an ACK to `client` names; it goes on once they have.
    pub(super) fn hold(&mut self, cx: &mut Context, asked: Asked<'_>, admitted: &Admitted, client: Flow) {
        let Some(session) = session_of(asked.message) else { return };
        let wants = wanted_of_answer(&session, &admitted.service);
        let opening = Opening::new(cx, admitted, peers::client_ip(cx, admitted.call, client), &wants);
        let order = Event::Open { service: admitted.service.name.clone(), deltas: opening.deltas() };
        let late = LateAnswer {
            user: admitted.user.clone(),
            service: Arc::clone(&admitted.service),
            from: asked.flow,
            client,
            ack: asked.message.as_bytes().to_vec(),
            opening,
            deadline: cx.now.instant + OPENING_MAX,
        };
        if !wants.is_empty() && !cx.raise(order) {
            return;
        }
        if late.opening.is_open() {
            return late.pass_on(cx, admitted.call);
        }
        if self.by_call.len() >= self.max {
            return late.lose(cx, admitted.call, (Count::TableFull, "as many answers wait for gates as may"));
        }
        self.deadlines.push_back((late.deadline, admitted.call));
        self.by_call.insert(admitted.call, late);
    }

    /// Takes a gate's answer. Where the gate refuses, the ACK is lost, and the client repeats its 200 until it gives up.
    pub(super) fn on_gate_answer(&mut self, cx: &mut Context, answer: &GateAnswer) {
        let call = answer.id.call();
        let Some(late) = self.by_call.get_mut(&call) else { return };
        match &answer.opened {
            Ok((address, ports)) if !late.opening.note(answer.id, *address, *ports) => {}
            Ok(_) => drop(self.by_call.remove(&call).map(|late| late.pass_on(cx, call))),
            Err(why) => {
                late.lose(cx, call, (Count::OpeningRefused, why));
                self.by_call.remove(&call);
            }
        }
    }

    /// Forgets those whose gates have not answered in time.
    pub(super) fn give_up(&mut self, cx: &mut Context) {
        while let Some((deadline, call)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= cx.now.instant) {
            // A later answer in the same call has a later deadline.
            if let Some(late) = self.by_call.get(&call).filter(|late| late.deadline == deadline) {
                let why = (Count::OpeningTimeouts, "the gate has not opened in time what the service's answer names");
                late.lose(cx, call, why);
                self.by_call.remove(&call);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("late_answers", self.by_call.len(), self.max)
    }
}

impl LateAnswer {
    /// It does not go on: nobody is told but who traces, since nothing answers an ACK.
    fn lose(&self, cx: &mut Context, call: CallId, (count, why): (Count, &str)) {
        cx.metrics.one(count);
        let of = (self.user.as_str(), self.service.name.as_str(), self.from);
        cx.decided_anew(of, call, (Outcome::Unavailable, 503), [format!("- {why}: the ACK is not passed on")]);
    }

    fn pass_on(&self, cx: &mut Context, call: CallId) {
        let Ok(message) = Message::parse(&self.ack) else { return };
        let Some(session) = session_of(&message) else { return };
        let sdp = media::rewrite_answer(&session, &self.opening.opened(), cx.settings.address(0).ip());
        let hop = Hop::new(self.client, message.request_uri().unwrap_or_default().to_vec());
        let onward = Onward {
            message: &message,
            from: self.from,
            to: (Direction::ToClient, &hop),
            sdp: Some(&sdp),
            record_routes: &[],
            routes: &[],
            breadth: None,
        };
        if onward.send(cx).is_ok() {
            let kept: Vec<_> = self.opening.ids().collect();
            cx.close_others(call, &kept);
        }
    }
}
