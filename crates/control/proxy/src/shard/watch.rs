//! What an operator sees of messages and calls: copies for whoever traces their user, and notes of what was decided and what
//! happened.

use memchr::{memchr, memchr_iter};
use sluicegate_sip::message::{Message, Method};
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    answer::kind_of,
    context::Context,
    exchanges::Exchange,
    keys::{Direction, Side},
    ladder::{Asked, Rung},
    relay::Relay,
};
use crate::{
    calls::CallId,
    metrics::Outcome,
    stories::{Happened, Who},
    traces::Hop,
    transmits::Flow,
};

/// Longest Call-ID that is shown, in bytes.
const CALL_ID_LEN_MAX: usize = 128;
/// Stands for one that is longer, or has something in it that a terminal might obey.
const NO_CALL_ID: &str = "(not shown)";

/// A message came. What another shard has handed over it has noted.
pub(super) fn note_received(cx: &Context, flow: Flow, message: &Message<'_>) {
    if cx.settings.traces.is_on() && !cx.handed_over {
        let own = cx.settings.listening(flow.listener);
        let hop = Hop { transport: own.transport, from: flow.peer, to: own.address };
        cx.settings.traces.note(cx.now.instant, hop, message);
    }
}

/// Looks at what was queued to be sent since the last call: counts responses, and copies what is traced. A gate's trailer
/// lies behind the message, which says how long it is.
pub(super) fn note_sent(cx: &mut Context) {
    let Context { settings, metrics, out, now, .. } = cx;
    for (flow, text) in out.take_new() {
        let own = settings.listening(flow.listener);
        if let Some((code, method)) = response(text) {
            metrics.answer(kind_of(method, false), code, own.transport);
        }
        if settings.traces.is_on()
            && let Ok(message) = Message::parse(text)
        {
            let hop = Hop { transport: own.transport, from: own.address, to: flow.peer };
            settings.traces.note(now.instant, hop, &message);
        }
    }
}

/// Status and method of a response that we have written: that is cheaper than to parse it.
fn response(text: &[u8]) -> Option<(u16, Method<'_>)> {
    let status = text.strip_prefix(b"SIP/2.0 ")?.first_chunk::<3>()?;
    let code = std::str::from_utf8(status).ok()?.parse().ok()?;
    let mut at = 0;
    for end in memchr_iter(b'\n', text) {
        let line = text.get(at..end)?;
        at = end + 1;
        let Some((name, value)) = memchr(b':', line).and_then(|colon| line.split_at_checked(colon)) else { continue };
        if name.trim_ascii_end().eq_ignore_ascii_case(b"CSeq") {
            let method = value.trim_ascii_end().rsplit(u8::is_ascii_whitespace).next()?;
            return Some((code, Method::of(method)));
        }
    }
    None
}

/// Leaves a note about a service's request for a user: one that would make a call has a story.
pub(super) fn decided_callee<S: Into<String>>(
    cx: &mut Context,
    of: (&str, &str, Flow),
    (call, request): (Option<CallId>, &Message<'_>),
    verdict: (Outcome, u16),
    steps: impl IntoIterator<Item = S>,
) {
    let is_call = request.method() == Some(Method::Invite);
    let mut decision = cx.decision(of, verdict, steps);
    decision.rung = Some(Rung::Rules.label().into());
    decision.call_id = request.call_id().ok().filter(|_| is_call).map(shown);
    cx.note(decision, (call.filter(|_| is_call), Who::Service), (false, 0));
}

/// Leaves a note about something that was let in and cannot be carried out. Its sender is not told why; `trace` is.
pub(super) fn failed(
    cx: &mut Context,
    admitted: &Admitted,
    (flow, relay): (Flow, Option<&Relay>),
    code: u16,
    why: &str,
) {
    let caller = relay.map_or(Who::User, |relay| relay.direction.sender().into());
    let of = (admitted.user.as_str(), admitted.service.name.as_str(), flow);
    let decision = cx.decision(of, (Outcome::Unavailable, code), [format!("- {why}")]);
    cx.note(decision, (Some(admitted.call), caller), (admitted.renewal, 0));
}

/// Leaves a note about a request that policy has let in and that is refused all the same.
pub(super) fn refused(cx: &mut Context, asked: Asked<'_>, admitted: &Admitted, verdict: (Outcome, u16), why: &str) {
    cx.decided_of(Some(admitted.call), asked, &admitted.user, verdict, [format!("- {why}")]);
}

/// The other side of a call has answered what was passed on to it, finally.
pub(super) fn tell_answer(cx: &mut Context, exchange: &Exchange, code: u16) {
    let Exchange { admitted, started, relay, .. } = exchange;
    let by = relay.as_ref().map_or(Who::Frontend, |relay| relay.direction.reversed().sender().into());
    match code {
        300.. => cx.tell(admitted.call, Happened::Declined(by, code)),
        _ => tell_accepted(cx, by, admitted.call, admitted.renewal, *started),
    }
}

/// A call is answered, or goes on.
pub(super) fn tell_accepted(cx: &mut Context, by: Who, call: CallId, renewal: bool, started: Instant) {
    let after = cx.now.instant.since(started);
    cx.tell(call, if renewal { Happened::WentOn(by) } else { Happened::Answered(by, after) });
}

/// A BYE goes this way.
pub(super) fn tell_bye(cx: &mut Context, call: CallId, direction: Direction) {
    cx.tell(call, Happened::HungUp(direction.sender().into()));
}

impl From<Side> for Who {
    fn from(side: Side) -> Self {
        match side {
            Side::Client => Self::User,
            Side::Service => Self::Service,
        }
    }
}

/// Where on the ladder it is found out that this becomes of a request.
pub(super) const fn rung_of(outcome: Outcome) -> Rung {
    match outcome {
        Outcome::BadDigest | Outcome::Guessing | Outcome::Replay | Outcome::Handshake => Rung::Credentials,
        _ => Rung::Rules,
    }
}

/// A Call-ID as it may stand on a terminal: anybody writes one.
pub(super) fn shown(call_id: &[u8]) -> String {
    let is_plain = call_id.len() <= CALL_ID_LEN_MAX && call_id.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(call_id).ok().filter(|_| is_plain);
    text.unwrap_or(NO_CALL_ID).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_known_by_its_status_and_the_method_in_its_cseq() {
        let text = |cseq: &str| format!("SIP/2.0 486 Busy Here\r\nt:a\r\nX: CSeq: 1 BYE\r\n{cseq}\r\n\r\nbody");
        for cseq in ["CSeq: 4711 INVITE", "cseq : 1  INVITE ", "CSEQ:\t1\tINVITE"] {
            assert_eq!(response(text(cseq).as_bytes()), Some((486, Method::Invite)), "{cseq}");
        }
        for other in [
            "",
            "SIP/2.0 ",
            "SIP/2.0 4x6 Busy\r\nCSeq: 1 INVITE\r\n",
            "INVITE sip:a SIP/2.0\r\nCSeq: 1 INVITE\r\n",
            &text(""),
        ] {
            assert_eq!(response(other.as_bytes()), None, "{other}");
        }
    }
}
