//! Requests inside a dialog: proved by a To-tag or a Route of ours, so that nothing need be remembered of the dialog.

use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    sdp::Session,
    transaction::Received,
    uri::Uri,
    write::{ForwardError, ForwardRequest, NewBody, ViaLine},
};
use sluicegate_store::feed::{Selected, Selector};

use super::{
    Now, Shard,
    answer::{ALLOW, answer_flow},
    events::Event,
    exchanges::Id,
    keys::Route,
    ladder::Asked,
    media,
    relay::NOT_FORWARDED,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::{Flow, Transmits},
};

/// Which way a request inside a relayed dialog goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToService,
    ToClient,
}

impl Shard {
    /// An ACK: to a final answer of ours, to a relayed 2xx, or to nothing. Never answered.
    pub(super) fn on_ack(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) {
        let listener = asked.flow.listener;
        let Some(tables) = self.exchanges.listener(listener) else { return };
        let outcome = match tables.server.receive(now.instant, asked.message, asked.essentials) {
            Received::Acknowledged(token) => {
                self.exchanges.acknowledged(Id { listener, token });
                Outcome::Answered
            }
            Received::Absorbed | Received::Resend(_) => Outcome::Absorbed,
            Received::New => self.on_new_ack(now, asked, out),
        };
        self.metrics.request(asked.kind, outcome);
    }

    fn on_new_ack(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) -> Outcome {
        if let Some((route, direction)) = self.route_of(asked) {
            let forwarded = self.forward(now, asked, &route, direction, out);
            return if forwarded.is_ok() { Outcome::Answered } else { Outcome::Unavailable };
        }
        let is_ours = asked.essentials.to.tag.is_some_and(|tag| self.keys.call_of_tag(tag).is_some());
        if is_ours && !self.handed_over {
            // The client's port changed, and the kernel chose another shard than the one that repeats the 200.
            self.metrics.one(Count::HandedOver);
            let datagram = asked.message.as_bytes().to_vec();
            self.raise(Event::HandOver { shard: None, flow: asked.flow, datagram });
            return Outcome::Answered;
        }
        // To an answer that was not remembered: it carries the tag that we would give again.
        let stateless = self.keys.stateless_tag(asked.message);
        if asked.essentials.to.tag == Some(stateless.as_bytes()) { Outcome::Absorbed } else { Outcome::Unmatched }
    }

    /// Any request but ACK and CANCEL with a tag on To.
    pub(super) fn on_in_dialog(&mut self, now: Now, asked: Asked<'_, '_>, out: &mut Transmits) {
        if let Some(call) = asked.essentials.to.tag.and_then(|tag| self.keys.call_of_tag(tag)) {
            return self.on_declared_dialog(now, asked, call, out);
        }
        match self.route_of(asked) {
            Some((route, direction)) => self.on_relayed_dialog(now, asked, &route, direction, out),
            None => self.unmatched(asked, out),
        }
    }

    fn on_declared_dialog(&mut self, now: Now, asked: Asked<'_, '_>, call: [u8; 12], out: &mut Transmits) {
        match asked.method {
            Method::Invite => {
                let service = asked.service();
                self.on_authentic(now, asked, &service, Some(call), out);
            }
            Method::Bye => {
                self.metrics.request(asked.kind, Outcome::Answered);
                self.end_call(call);
                self.answer_once(asked.flow, asked.message, 200, out);
            }
            Method::Options => {
                self.metrics.request(asked.kind, Outcome::Answered);
                self.answer_once(asked.flow, asked.message, 200, out);
            }
            _ => {
                self.metrics.request(asked.kind, Outcome::Unsupported);
                self.answer_stranger(asked.flow, asked.message, 405, out, |headers| headers.header("Allow", ALLOW));
            }
        }
    }

    fn on_relayed_dialog(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        route: &Route,
        direction: Direction,
        out: &mut Transmits,
    ) {
        let has_body = !asked.message.body().is_empty();
        match (asked.method, direction) {
            // A renewal, or other ports: decided anew.
            (Method::Invite, Direction::ToService) => {
                return self.on_authentic(now, asked, &route.service, Some(route.call), out);
            }
            // What the service would open by itself, and descriptions in other methods, would pass by the gate.
            (Method::Invite, Direction::ToClient) => return self.not_acceptable(asked, out),
            (Method::Bye, _) => self.end_call(route.call),
            _ if has_body && is_description(asked.message) => return self.not_acceptable(asked, out),
            _ => {}
        }
        match self.forward(now, asked, route, direction, out) {
            Ok(()) => self.metrics.request(asked.kind, Outcome::Answered),
            Err(code) => {
                self.metrics.request(asked.kind, Outcome::Unavailable);
                self.answer_stranger(asked.flow, asked.message, code, out, |headers| headers);
            }
        }
    }

    fn not_acceptable(&mut self, asked: Asked<'_, '_>, out: &mut Transmits) {
        self.metrics.request(asked.kind, Outcome::Unsupported);
        self.answer_stranger(asked.flow, asked.message, 488, out, |headers| headers);
    }

    /// Ends a call's grants at once. A repeated BYE finds none, and costs the gates nothing.
    fn end_call(&mut self, call: [u8; 12]) {
        if self.ledger.call(call).is_some() && self.raise(Event::Revoke(Selector::all(Selected::Call(call)))) {
            self.metrics.one(Count::CallsEnded);
        }
    }

    /// Passes a request on inside a relayed dialog, without a transaction: both ends repeat it until it is answered.
    fn forward(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        route: &Route,
        direction: Direction,
        out: &mut Transmits,
    ) -> Result<(), u16> {
        let to: Flow = match direction {
            Direction::ToClient => route.client,
            Direction::ToService => {
                let service = self.policy.service(&route.service).cloned();
                service.and_then(|service| self.hop(now, &service)).ok_or(480_u16)?.flow
            }
        };
        let message = asked.message;
        let branch = self.keys.stateless_branch(answer_flow(asked.flow, message), message).ok_or(400_u16)?;
        let session = if is_description(message) { Session::parse(message.body()).ok() } else { None };
        // Only the ACK to an answer that held the offer has a description, and only towards the service.
        let body = session.map(|session| media::rewrite_offer(&session, route.client.peer.ip()));
        let mut bytes = std::mem::take(&mut self.scratch);
        let written = ForwardRequest {
            request: message,
            source: asked.flow.peer,
            via: ViaLine {
                transport: "UDP",
                sent_by: self.settings.address(to.listener),
                branch: &branch,
                rport: true,
            },
            uri: None,
            record_routes: &[],
            remove_first_route: true,
            remove: NOT_FORWARDED,
            add: &[],
            body: body.as_deref().map(|bytes| NewBody { content_type: b"application/sdp", bytes }),
        }
        .write(&mut bytes);
        if written.is_ok() {
            out.push(to, &bytes);
        }
        self.scratch = bytes;
        written.map_err(|error| if error == ForwardError::NoHops { 483 } else { 400 })
    }

    /// The relayed dialog that the first Route names, and which way this request goes in it: the caller's tag, which the
    /// cookie covers, stands on From or on To.
    fn route_of(&self, asked: Asked<'_, '_>) -> Option<(Route, Direction)> {
        let route = asked.message.routes().next()?.ok()?;
        let uri = Uri::parse(route.uri).ok()?;
        let fields = asked.essentials;
        let by = |tag: Option<&[u8]>| self.keys.route(&uri, fields.call_id, tag?);
        by(fields.from.tag)
            .map(|route| (route, Direction::ToService))
            .or_else(|| by(fields.to.tag).map(|route| (route, Direction::ToClient)))
    }

    /// Whether the first Route value is one of ours.
    pub(super) fn first_route_is_ours(&self, message: &Message<'_>) -> bool {
        let first = message.routes().next().and_then(Result::ok);
        let uri = first.and_then(|route| Uri::parse(route.uri).ok());
        uri.is_some_and(|uri| {
            let host = uri.host.and_then(|host| host.address());
            let port = uri.port.unwrap_or(5060);
            uri.host_is(&self.settings.realm)
                || self.settings.addresses.iter().any(|own| Some(own.ip()) == host && own.port() == port)
        })
    }
}

fn is_description(message: &Message<'_>) -> bool {
    message.header(HeaderName::ContentType).is_some()
        && message.content_type().is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/sdp"))
}
