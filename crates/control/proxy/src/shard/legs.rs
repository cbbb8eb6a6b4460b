//! The services' ends of relayed calls, for as long as they last: when a call ends here, because its time is over or
//! somebody revoked it, its service is told so with a BYE of our own. A service that is never told keeps a place for a
//! client that is long gone.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use sluicegate_bounded::Gauge;
use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr},
    write::{Party, Request},
};
use sluicegate_wire::Instant;

use super::{context::Context, transactions::Transactions};
use crate::{calls::CallId, transmits::Flow};

/// What our own BYE counts up from the last request that we know of: those of the caller that were passed on without being
/// remembered lie below (RFC 3261 section 12.2.1.1 asks for rising numbers, not for consecutive ones).
const CSEQ_STEP: u32 = 1 << 16;

/// A dialog as its service knows it, seen from the caller's side.
#[derive(Debug, Clone)]
pub(super) struct Leg {
    hop: Flow,
    from: (Vec<u8>, Option<Vec<u8>>),
    to: (Vec<u8>, Option<Vec<u8>>),
    contact: Vec<u8>,
    /// The value of Route, if there are proxies between us and the service's own end (RFC 3261 section 12.1).
    routes: Option<Vec<u8>>,
    call_id: Vec<u8>,
    cseq: u32,
}

impl Leg {
    /// The dialog that `answer` makes of the INVITE that was `forwarded` to `hop`.
    pub(super) fn new(hop: Flow, forwarded: &[u8], answer: &Message<'_>) -> Option<Self> {
        let message = Message::parse(forwarded).ok()?;
        let invite = message.essentials().ok()?;
        let to = answer.to().ok()?;
        let party = |address: &NameAddr<'_>| (address.uri.to_vec(), address.tag.map(<[u8]>::to_vec));
        let recorded: Vec<&[u8]> = answer.headers(HeaderName::RecordRoute).collect();
        // Those of the request, ours among them, come last.
        let behind = recorded.len().saturating_sub(message.headers(HeaderName::RecordRoute).count());
        Some(Self {
            hop,
            routes: route(recorded.into_iter().take(behind).rev()),
            from: party(&invite.from),
            to: party(&to),
            contact: answer.contact().ok().flatten().map_or(to.uri, |contact| contact.uri).to_vec(),
            call_id: invite.call_id.to_vec(),
            cseq: invite.cseq.number,
        })
    }

    /// The dialog that a client's `answer` makes of the INVITE of a service that came from `hop`: seen from that client.
    pub(super) fn of_caller(hop: Flow, invite: &[u8], answer: &Message<'_>) -> Option<Self> {
        let message = Message::parse(invite).ok()?;
        let invite = message.essentials().ok()?;
        let to = answer.to().ok()?;
        let party = |address: &NameAddr<'_>| (address.uri.to_vec(), address.tag.map(<[u8]>::to_vec));
        Some(Self {
            hop,
            routes: route(message.headers(HeaderName::RecordRoute)),
            from: party(&to),
            to: party(&invite.from),
            contact: message.contact().ok().flatten().map_or(invite.from.uri, |contact| contact.uri).to_vec(),
            call_id: invite.call_id.to_vec(),
            cseq: 0,
        })
    }

    /// Acknowledges the answer that made the call.
    pub(super) fn acknowledge(&self, cx: &mut Context) {
        let ack = self.request(cx, b"ACK", self.cseq);
        cx.out.push(self.hop, &ack);
    }

    /// Ends a call at its service.
    pub(super) fn say_bye(&self, cx: &mut Context, transactions: &mut Transactions) {
        let bye = self.request(cx, b"BYE", self.cseq.saturating_add(CSEQ_STEP));
        transactions.start(cx, self.hop, &bye);
    }

    fn request(&self, cx: &mut Context, method: &[u8], cseq: u32) -> Vec<u8> {
        let branch = cx.new_branch(None);
        let routes = self.routes.as_deref();
        let mut bytes = Vec::new();
        let request = Request {
            method,
            uri: &self.contact,
            via: cx.settings.via(self.hop, &branch),
            from: Party { uri: &self.from.0, tag: self.from.1.as_deref() },
            to: Party { uri: &self.to.0, tag: self.to.1.as_deref() },
            call_id: &self.call_id,
            cseq,
            routes: routes.as_slice(),
        };
        request.begin(&mut bytes).finish();
        bytes
    }
}

fn route<'a>(recorded: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> = recorded.collect();
    if values.is_empty() { None } else { Some(values.join(&b", "[..])) }
}

/// At most `max` legs; the one that would end first gives way to a new one, and its service ends it by itself.
#[derive(Debug)]
pub(super) struct Legs {
    by_call: HashMap<CallId, (Instant, Leg)>,
    by_end: BTreeSet<(Instant, CallId)>,
    max: usize,
}

impl Legs {
    pub(super) fn new(max: usize) -> Self {
        Self { by_call: HashMap::new(), by_end: BTreeSet::new(), max }
    }

    /// Notes a call, new or renewed, that ends at `until` unless it is renewed again.
    pub(super) fn keep(&mut self, call: CallId, until: Instant, leg: Leg) {
        self.take(call);
        if self.by_call.len() >= self.max
            && let Some((_, oldest)) = self.by_end.first().copied()
        {
            self.take(oldest);
        }
        self.by_call.insert(call, (until, leg));
        self.by_end.insert((until, call));
    }

    /// Whether the service's side of a call is known, and goes by another tag: a service that forks may answer more than
    /// once.
    pub(super) fn is_another(&self, call: CallId, tag: Option<&[u8]>) -> bool {
        let own = self.by_call.get(&call).and_then(|(_, leg)| leg.to.1.as_deref());
        own.zip(tag).is_some_and(|(own, tag)| own != tag)
    }

    /// The service has accepted an INVITE of its client with this number.
    pub(super) fn accepted(&mut self, call: CallId, cseq: u32) {
        if let Some((_, leg)) = self.by_call.get_mut(&call) {
            leg.cseq = leg.cseq.max(cseq);
        }
    }

    /// Whether no INVITE of the client with this number can have been accepted: it is above all that were.
    pub(super) fn is_beyond(&self, call: CallId, cseq: u32) -> bool {
        self.by_call.get(&call).is_some_and(|(_, leg)| cseq > leg.cseq)
    }

    pub(super) fn take(&mut self, call: CallId) -> Option<Leg> {
        let (until, leg) = self.by_call.remove(&call)?;
        self.by_end.remove(&(until, call));
        Some(leg)
    }

    /// Ends at their services the calls whose time is over. Another shard may have renewed a call.
    pub(super) fn end_due(&mut self, cx: &mut Context, transactions: &mut Transactions) {
        while let Some((_, call)) = self.by_end.first().copied().filter(|(until, _)| *until <= cx.now.instant) {
            let left_s = cx.ledger.lasts_until(call).map_or(0, |until| until.0.saturating_sub(cx.now.unix.0));
            match self.take(call) {
                Some(leg) if left_s > 0 => self.keep(call, cx.now.instant + Duration::from_secs(left_s), leg),
                Some(leg) => leg.say_bye(cx, transactions),
                None => {}
            }
        }
    }

    /// Ends at its service a call that is over, and not by a BYE.
    pub(super) fn end(&mut self, cx: &mut Context, transactions: &mut Transactions, call: CallId) {
        if let Some(leg) = self.take(call).filter(|_| !cx.ledger.was_hung_up(cx.now.instant, call)) {
            leg.say_bye(cx, transactions);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("service_legs", self.by_call.len(), self.max)
    }
}
