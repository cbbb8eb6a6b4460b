//! Declared services: the frontend itself answers, once the gate has opened what was asked for.

use sluicegate_grant::GrantId;
use sluicegate_signin::HEADER;
use sluicegate_sip::{message::Message, transaction::Role, write::Response};

use super::{
    admission::Admitted,
    answer::{ALLOW, SDP, session_of},
    context::Context,
    exchanges::{Asking, Exchange, ExchangeId, Exchanges},
    ladder::Asked,
    media::{self, Want},
    timers, watch,
};
use crate::{
    calls::CallId,
    metrics::{Count, Outcome},
    stories::Who,
};

impl Exchanges {
    /// Asks the gate of a declared service to open what was allowed.
    pub(super) fn open_declared(
        &mut self,
        cx: &mut Context,
        asked: Asked<'_>,
        admitted: Admitted,
        mut wants: Vec<Want>,
    ) {
        if timers::is_too_small(asked.message) {
            let least = timers::SECS_MIN.to_string();
            let too_small = (Outcome::Unsupported, 422);
            watch::refused(cx, asked, &admitted, too_small, "its session timer is too short");
            return self.transactions.refuse(cx, asked, too_small, &[("Min-SE", least.as_bytes())]);
        }
        let Some(id) = self.transactions.open(cx, asked, Role::UserAgent) else { return };
        let offer = session_of(asked.message);
        media::narrow(&mut wants, offer.as_ref(), asked.flow.peer.ip());
        let id = id.into();
        self.begin(cx, id, asked.kept(), admitted, None);
        if self.open_grants(cx, id, &wants) == Asking::Failed {
            return cx.metrics.request(asked.kind, Outcome::Unavailable);
        }
        cx.metrics.request(asked.kind, Outcome::Admitted);
        self.transactions.send_trying(cx, id.owed, asked);
    }

    /// 200: all grants are open.
    pub(super) fn accept(&mut self, cx: &mut Context, id: ExchangeId) {
        let Some(Exchange { flow, request, started, admitted, opening, .. }) = self.end(id) else { return };
        let Some(opening) = opening else { return };
        let Ok(request) = Message::parse(&request) else { return };
        let Some(offer) = session_of(&request) else { return };
        let Admitted { service, call, renewal, agent, .. } = admitted;
        let sdp = media::answer(&offer, &opening.opened(), service.address, call, cx.now.unix.0);
        let tag = cx.keys.to_tag(call, cx.settings.shard, flow);
        let contact = format!("<sip:{}@{}>", service.name, cx.settings.place(flow));
        let mut headers = Response::to(&request, 200)
            .source(flow.peer)
            .to_tag(tag.as_bytes())
            .record_route()
            .begin(&mut cx.scratch)
            .header("Contact", &contact)
            .header("Allow", ALLOW);
        if let Some(secs) = timers::of_answer(&request, admitted.limits.lifetime_s) {
            // The telephone refreshes at half this time, which renews the grants (RFC 4028 section 7.4).
            headers =
                headers.header("Require", "timer").header_args("Session-Expires", format_args!("{secs};refresher=uac"));
        }
        match &agent {
            Some(agent) => {
                let (kind, body) = multipart(call, &sdp, &opening.signed(&cx.settings));
                let proof = agent.answer(contact.as_bytes(), &body);
                headers.header("Supported", "sluicegate").header(HEADER.as_str(), proof).body(&kind, &body);
            }
            None => headers.body(SDP, &sdp),
        }
        if self.transactions.respond(cx, id.owed, 200) {
            watch::tell_accepted(cx, Who::Frontend, call, renewal, started);
            cx.metrics.one(if renewal { Count::CallsRenewed } else { Count::CallsOpened });
            cx.metrics.setup(cx.now.instant.since(started));
            if !renewal {
                self.unacknowledged.insert(id.owed, call);
            }
        }
    }
}

/// The description for the agent's user, and the portable copies for gates that are not on the feed.
pub(super) fn multipart(call: CallId, sdp: &[u8], grants: &[u8]) -> (String, Vec<u8>) {
    // No one can know the call beforehand, so no part can hold its boundary.
    let boundary = format!("sluicegate-{}", GrantId::of_call(call, 0));
    let part = |kind: &str, more: &str| format!("--{boundary}\r\nContent-Type: {kind}\r\n{more}\r\n");
    let body = [
        part(SDP, "").as_bytes(),
        sdp,
        b"\r\n",
        part("application/vnd.sluicegate.grant", "Content-Transfer-Encoding: binary\r\n").as_bytes(),
        grants,
        format!("\r\n--{boundary}--\r\n").as_bytes(),
    ]
    .concat();
    (format!("multipart/mixed;boundary={boundary}"), body)
}
