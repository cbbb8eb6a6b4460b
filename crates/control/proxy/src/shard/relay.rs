//! Relayed services: the INVITE goes to the agent or SIP server, and what its answer names is opened before the answer is
//! passed on.

use sluicegate_policy::ServiceKind;
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
    transaction::Role,
    write::{ForwardError, ForwardRequest, NewBody, cancel_for},
};

use super::{
    Shard, admission::Admitted, exchanges::Exchange, keys::Route, ladder::Asked, media, names::NOT_FORWARDED,
    registrar::Hop, transactions::Id,
};
use crate::{
    metrics::{Count, Outcome},
    transmits::Flow,
};

/// How long a relayed call may ring, in seconds: longer than timer C lets it (RFC 3261 section 16.6).
const RINGING_SECS: u64 = 200;

/// What is known of an INVITE that was passed on to a service.
#[derive(Debug)]
pub(super) struct Relay {
    /// Our own transaction towards the service.
    pub(super) sent: Id,
    /// Where it went.
    pub(super) hop: Flow,
    /// The INVITE as it went there.
    pub(super) forwarded: Vec<u8>,
    /// The answer that is passed on once everything that it names is open.
    pub(super) waiting: Option<Vec<u8>>,
    pub(super) cancelled: bool,
    /// Whether the service was told so.
    pub(super) cancel_sent: bool,
}

impl Shard {
    /// Passes an allowed INVITE on to its service.
    pub(super) fn relay_invite(&mut self, asked: Asked<'_>, admitted: Admitted, offer: Option<&Session<'_>>) {
        let Some(hop) = self.registrar.hop(&self.cx, &admitted.service) else {
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Unavailable, 480));
        };
        let mut forwarded = Vec::with_capacity(asked.message.as_bytes().len() + 512);
        if let Err(error) = self.write_forwarded(asked, &admitted, &hop, offer, &mut forwarded) {
            let code = if matches!(error, ForwardError::NoHops) { 483 } else { 400 };
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Malformed, code));
        }
        if self.cx.out.links.is_too_long(hop.flow.peer, forwarded.len()) {
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Unsupported, 513));
        }
        let of = (admitted.user.as_str(), admitted.service.name.as_str());
        if !self.cx.ledger.keep_call(admitted.call, of, self.cx.now.unix.plus_secs(RINGING_SECS)) {
            self.cx.metrics.one(Count::TableFull);
            return self.exchanges.transactions.refuse(&mut self.cx, asked, (Outcome::Unavailable, 503));
        }
        let Some(owed) = self.exchanges.transactions.open(&mut self.cx, asked, Role::Proxy) else { return };
        let sent = self.exchanges.transactions.start(&mut self.cx, hop.flow, &forwarded);
        let relay = Relay {
            sent: sent.unwrap_or(owed),
            hop: hop.flow,
            forwarded,
            waiting: None,
            cancelled: false,
            cancel_sent: false,
        };
        self.exchanges.begin(self.cx.now.instant, owed, asked, (admitted, Some(Box::new(relay))));
        let Some(sent) = sent else {
            self.cx.metrics.request(asked.kind, Outcome::Unavailable);
            return self.fail(owed, 503, "the table of requests to services is full");
        };
        self.cx.metrics.request(asked.kind, Outcome::Admitted);
        self.exchanges.relay(sent, owed);
        self.exchanges.transactions.send_trying(&mut self.cx, owed, asked);
    }

    fn write_forwarded(
        &mut self,
        asked: Asked<'_>,
        admitted: &Admitted,
        hop: &Hop,
        offer: Option<&Session<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), ForwardError> {
        let Asked { flow, message, essentials, .. } = asked;
        let branch = self.cx.new_branch();
        let route = Route { call: admitted.call, service: admitted.service.name.clone(), client: flow };
        let caller_tag = essentials.from.tag.unwrap_or_default();
        let own = self.cx.settings.address(flow.listener);
        let record_route = self.cx.keys.record_route((own, self.cx.now.unix), &route, essentials.call_id, caller_tag);
        let identity = format!("<sip:{}@{}>", admitted.user, self.cx.settings.realm);
        let body = offer.map(|offer| media::rewrite_offer(offer, flow.peer.ip()));
        // Within the dialog the client names the service's own Contact, as far as it knows that.
        let uri = if admitted.renewal { self.cx.settings.inner_uri(message, &hop.uri) } else { Some(hop.uri.clone()) };
        // Our agent is told how long what it lets in lasts; a SIP server would want to refresh by itself.
        let lifetime = admitted.limits.lifetime_s.to_string();
        let is_agent = admitted.service.kind == ServiceKind::Agent;
        let add = [("P-Asserted-Identity", identity.as_bytes()), ("Session-Expires", lifetime.as_bytes())];
        let remove = [NOT_FORWARDED, &[HeaderName::SessionExpires]].concat();
        ForwardRequest {
            request: message,
            source: flow.peer,
            via: self.cx.settings.via(hop.flow.listener, &branch),
            uri: uri.as_deref(),
            record_routes: &[record_route.as_bytes()],
            remove_first_route: self.cx.settings.first_route_is_ours(message),
            remove: if is_agent { &remove } else { NOT_FORWARDED },
            add: if is_agent { &add } else { &add[..1] },
            body: body.as_deref().map(|bytes| NewBody { content_type: b"application/sdp", bytes }),
        }
        .write(out)
    }

    /// A CANCEL: for an INVITE of the same branch and sender, from the same address.
    pub(super) fn on_cancel(&mut self, asked: Asked<'_>) {
        let Some(id) = self.exchanges.transactions.cancelled_by(asked) else { return self.cx.unmatched(asked) };
        let source = self.exchanges.pending(id).map(|exchange| exchange.flow.peer.ip());
        if source.is_some_and(|ip| ip != asked.flow.peer.ip()) {
            return self.cx.unmatched(asked);
        }
        self.cx.answer_once(asked, (Outcome::Answered, 200));
        // Answered already: then the CANCEL changes nothing (RFC 3261 section 9.2).
        match self.exchanges.pending(id) {
            None => {}
            Some(Exchange { relay: None, .. }) => self.fail(id, 487, "the client cancelled"),
            Some(Exchange { relay: Some(relay), .. }) => {
                relay.cancelled = true;
                self.cancel_sent(id);
            }
        }
    }

    /// Cancels what was sent to the service, once that has answered provisionally (RFC 3261 section 9.1).
    pub(super) fn cancel_sent(&mut self, owed: Id) {
        let Some(Exchange { relay: Some(relay), .. }) = self.exchanges.pending(owed) else { return };
        let (sent, hop) = (relay.sent, relay.hop);
        if !self.exchanges.transactions.is_proceeding(sent) {
            return;
        }
        let Some(Exchange { relay: Some(relay), .. }) = self.exchanges.pending(owed) else { return };
        if std::mem::replace(&mut relay.cancel_sent, true) {
            return;
        }
        let mut cancel = Vec::new();
        let written = Message::parse(&relay.forwarded).and_then(|forwarded| cancel_for(&forwarded, &mut cancel));
        if written.is_ok() {
            self.exchanges.transactions.start(&mut self.cx, hop, &cancel);
        }
    }
}
