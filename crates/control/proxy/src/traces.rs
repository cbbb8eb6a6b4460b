//! The messages of users that an operator traces: copied while somebody asks for them, and none at any other time.
//!
//! Whoever wants them reads again and again. A trace that nobody has read for [`LIFE`] ends, and its memory with it.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use siphasher::sip::SipHasher24;
use sluicegate_api::{TracedMessage, TracedMessages};
use sluicegate_bounded::Gauge;
use sluicegate_sip::{
    digest::Authorization,
    message::{HeaderName, Message, NameAddr, Transport},
    uri::Uri,
};
use sluicegate_wire::{Instant, Pace};

use crate::mask::mask;

/// How long a trace goes on that nobody reads.
const LIFE: Duration = Duration::from_secs(10);
/// Messages that wait to be read, and their bytes: beyond either the oldest goes.
const MESSAGES_MAX: usize = 4_096;
const BYTES_MAX: usize = 2 << 20;
/// Calls of the user that are known by their Call-ID, for messages in which nobody's name is.
const CALLS_MAX: usize = 64;
/// Messages a second that are copied. Anybody may send what names the user, and it must not cost those who serve SIP much.
const MESSAGES_PER_SEC: u32 = 2_000;

/// As many users are traced as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("messages of {max} users are traced already; end one of those traces first", max = Traces::MAX)]
pub struct TracesFull;

/// One hop of a message: between a peer and one of our addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hop {
    pub(crate) transport: Transport,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
}

/// All traces that go on. Shared by shards and control.
#[derive(Debug, Default)]
pub struct Traces {
    /// Whether there is any: all that a message of a frontend without one costs.
    is_on: AtomicBool,
    list: RwLock<Vec<Arc<Trace>>>,
}

impl Traces {
    /// Most users traced at once.
    pub const MAX: usize = 4;

    /// The messages of `user` from number `after` on, and whether a trace began by this. `unix_us`: the wall clock, in
    /// microseconds.
    ///
    /// # Errors
    /// [`TracesFull`] if there would be one too many.
    pub fn read(
        &self,
        user: &str,
        after: u64,
        now: Instant,
        unix_us: u64,
    ) -> Result<(TracedMessages, bool), TracesFull> {
        self.end_unread(now);
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let known = list.iter().find(|trace| trace.user == user).cloned();
        if let Some(trace) = known {
            trace.read_at.store(now.as_nanos(), Ordering::Relaxed);
            drop(list);
            return Ok((trace.ring().after(after), false));
        }
        if list.len() >= Self::MAX {
            return Err(TracesFull);
        }
        list.push(Arc::new(Trace::new(user, now, unix_us)));
        self.is_on.store(true, Ordering::Relaxed);
        Ok((TracedMessages::default(), true))
    }

    /// Ends the traces that nobody reads any more.
    pub fn end_unread(&self, now: Instant) {
        if !self.is_on() {
            return;
        }
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.retain(|trace| now.since(trace.read_at()) < LIFE);
        self.is_on.store(!list.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Copies a message for each trace that it is of.
    pub(crate) fn note(&self, now: Instant, hop: Hop, message: &Message<'_>) {
        for trace in self.list.read().unwrap_or_else(PoisonError::into_inner).iter() {
            trace.note(now, hop, message);
        }
    }

    /// How many go on.
    pub fn gauge(&self) -> Gauge {
        Gauge::of("traces", self.list.read().unwrap_or_else(PoisonError::into_inner).len(), Self::MAX)
    }
}

/// One user's.
#[derive(Debug)]
struct Trace {
    user: String,
    /// When it began, on both clocks: the wall clock in microseconds.
    begun: (Instant, u64),
    /// When it was read last.
    read_at: AtomicU64,
    pace: Pace,
    calls: Calls,
    /// Messages that came too fast since the ring was locked last.
    left_out: AtomicU64,
    /// Locked for what is copied alone, so that those who serve SIP wait for no others.
    ring: Mutex<Ring>,
}

/// Hashes of the last Call-IDs of messages that name the user. Zero stands for none.
#[derive(Debug)]
struct Calls {
    hashes: [AtomicU64; CALLS_MAX],
    learned: AtomicUsize,
}

impl Calls {
    fn know(&self, call: u64) -> bool {
        self.hashes.iter().any(|known| known.load(Ordering::Relaxed) == call)
    }

    fn learn(&self, call: u64) {
        let at = self.learned.fetch_add(1, Ordering::Relaxed) % CALLS_MAX;
        if let Some(oldest) = self.hashes.get(at) {
            oldest.store(call, Ordering::Relaxed);
        }
    }
}

impl Trace {
    fn new(user: &str, now: Instant, unix_us: u64) -> Self {
        Self {
            user: user.to_owned(),
            begun: (now, unix_us),
            read_at: AtomicU64::new(now.as_nanos()),
            pace: Pace::per_second(MESSAGES_PER_SEC),
            calls: Calls { hashes: std::array::from_fn(|_| AtomicU64::new(0)), learned: AtomicUsize::new(0) },
            left_out: AtomicU64::new(0),
            ring: Mutex::new(Ring::new()),
        }
    }

    fn read_at(&self) -> Instant {
        Instant::from_nanos(self.read_at.load(Ordering::Relaxed))
    }

    /// What is not copied has a number too, so that whoever reads sees that it is missing.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.next += self.left_out.swap(0, Ordering::Relaxed);
        ring
    }

    fn note(&self, now: Instant, hop: Hop, message: &Message<'_>) {
        let call = message.call_id().map(|id| SipHasher24::new().hash(id) | 1).unwrap_or_default();
        let is_known = call != 0 && self.calls.know(call);
        if !is_known && !names(message, &self.user) {
            return;
        }
        if self.pace.admit(now).is_none() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !is_known {
            self.calls.learn(call);
        }
        let mut ring = self.ring();
        let since = u64::try_from(now.since(self.begun.0).as_micros()).unwrap_or(u64::MAX);
        ring.push(self.begun.1.saturating_add(since), hop, message.as_bytes());
    }
}

#[derive(Debug)]
struct Item {
    number: u64,
    unix_us: u64,
    hop: Hop,
    len: usize,
}

/// What waits to be read: its memory is taken when the trace begins.
#[derive(Debug)]
struct Ring {
    items: VecDeque<Item>,
    /// Of all items, one after the other.
    bytes: VecDeque<u8>,
    /// Where secrets are taken out of a message.
    scratch: Vec<u8>,
    /// What the next message is numbered.
    next: u64,
}

impl Ring {
    fn new() -> Self {
        Self {
            items: VecDeque::with_capacity(MESSAGES_MAX),
            bytes: VecDeque::with_capacity(BYTES_MAX),
            scratch: Vec::new(),
            next: 0,
        }
    }

    fn push(&mut self, unix_us: u64, hop: Hop, message: &[u8]) {
        let len = message.len();
        while self.items.len() >= MESSAGES_MAX || self.bytes.len() + len > BYTES_MAX {
            let Some(oldest) = self.items.pop_front() else { return };
            self.bytes.drain(..oldest.len.min(self.bytes.len()));
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(message);
        mask(&mut self.scratch);
        self.bytes.extend(&self.scratch);
        self.items.push_back(Item { number: self.next, unix_us, hop, len });
        self.next += 1;
    }

    /// Those from number `after` on. A number that there is not yet is one of an earlier trace.
    fn after(&self, after: u64) -> TracedMessages {
        let after = if after > self.next { 0 } else { after };
        let mut at = 0;
        let mut messages = Vec::new();
        for Item { number, unix_us, hop, len } in &self.items {
            let place = at..at + len;
            at = place.end;
            if *number >= after {
                let bytes = self.bytes.range(place).copied().collect();
                let transport = hop.transport.name().into();
                messages.push(TracedMessage { unix_us: *unix_us, transport, from: hop.from, to: hop.to, bytes });
            }
        }
        let lost = (self.next - after).saturating_sub(messages.len() as u64);
        TracedMessages { next: self.next, lost, messages }
    }
}

/// Whether a message names this user: as who sends it, is meant, or has signed in.
fn names(message: &Message<'_>, user: &str) -> bool {
    let is_user = |uri: &[u8]| Uri::parse(uri).is_ok_and(|uri| uri.user_is(user));
    let ends = [message.from().ok(), message.to().ok()].into_iter().flatten();
    let asserted = message.headers(HeaderName::PAssertedIdentity).filter_map(NameAddr::parse);
    let mut claimed = [HeaderName::Authorization, HeaderName::ProxyAuthorization]
        .into_iter()
        .flat_map(|name| message.headers_raw(name))
        .filter_map(|value| Authorization::parse(value).ok()?.username());
    message.request_uri().is_some_and(is_user)
        || ends.chain(asserted).any(|address| is_user(address.uri))
        || claimed.any(|name| name == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(1_000);
    const UNIX_US: u64 = 1_800_000_000_000_000;

    fn hop() -> Hop {
        let [from, to] = ["198.51.100.7:40000", "203.0.113.1:5060"].map(|text| text.parse().unwrap());
        Hop { transport: Transport::Udp, from, to }
    }

    fn text(from: &str, call_id: &str, more: &str) -> String {
        format!(
            "INVITE sip:pbx@example.net SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:{from}@example.net>;tag=1\r\n\
            To: <sip:pbx@example.net>\r\nCall-ID: {call_id}\r\nCSeq: 1 INVITE\r\n{more}\r\n"
        )
    }

    fn note(traces: &Traces, now: Instant, text: &str) {
        traces.note(now, hop(), &Message::parse(text.as_bytes()).unwrap());
    }

    fn read(traces: &Traces, user: &str, after: u64) -> TracedMessages {
        traces.read(user, after, NOW, UNIX_US).unwrap().0
    }

    #[test]
    fn messages_that_name_the_user_are_copied_without_secrets_and_others_of_the_same_call() {
        let traces = Traces::default();
        assert!(traces.read("alice", 0, NOW, UNIX_US).unwrap().1, "it began");
        let credentials = "Proxy-Authorization: Digest username=\"alice\", realm=\"r\", nonce=\"n1\", uri=\"sip:pbx@example.net\", \
            response=\"d0d0\", algorithm=MD5, cnonce=\"c\", nc=00000001, qop=auth\r\n";
        let later = NOW + Duration::from_millis(5);
        note(&traces, NOW, &text("alice", "1", ""));
        note(&traces, NOW, &text("mallory", "2", ""));
        note(&traces, later, &text("anonymous", "3", credentials));
        note(&traces, later, &text("anonymous", "3", ""));
        note(&traces, later, &text("bob", "4", "P-Asserted-Identity: <sip:alice@example.net>\r\n"));
        let got = read(&traces, "alice", 0);
        assert_eq!((got.next, got.lost, got.messages.len()), (4, 0, 4));
        assert_eq!(got.messages[0].bytes, text("alice", "1", "").into_bytes());
        let masked = credentials.replace("n1", "xx").replace("d0d0", "xxxx");
        assert_eq!(String::from_utf8(got.messages[1].bytes.clone()).unwrap(), text("anonymous", "3", &masked));
        assert_eq!(got.messages[1].unix_us, UNIX_US + 5_000);
        assert_eq!(read(&traces, "alice", 3).messages.len(), 1);
        assert_eq!(read(&traces, "alice", 99).messages.len(), 4, "99 was a number of an earlier trace");
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_and_says_how_many() {
        let traces = Traces::default();
        read(&traces, "alice", 0);
        let long = text("alice", "1", &format!("X: {}\r\n", "x".repeat(30_000)));
        for second in 0..100 {
            note(&traces, NOW + Duration::from_secs(second), &long);
        }
        let got = read(&traces, "alice", 0);
        assert_eq!(got.messages.len(), BYTES_MAX / long.len());
        assert_eq!(got.lost, 100 - got.messages.len() as u64);
        assert!(got.messages.iter().all(|message| message.bytes == long.as_bytes()));
        for second in 0..8 {
            for _ in 0..MESSAGES_PER_SEC + 5 {
                note(&traces, NOW + Duration::from_secs(200 + second), &text("alice", "1", ""));
            }
        }
        let rest = read(&traces, "alice", got.next);
        assert_eq!(rest.messages.len(), MESSAGES_MAX);
        assert_eq!(rest.lost + MESSAGES_MAX as u64, 8 * u64::from(MESSAGES_PER_SEC + 5), "those beyond the rate too");
    }

    #[test]
    fn traces_are_bounded_and_end_when_nobody_reads_them() {
        let traces = Traces::default();
        for user in ["a", "b", "c", "d"] {
            read(&traces, user, 0);
        }
        assert_eq!(traces.read("e", 0, NOW, UNIX_US), Err(TracesFull));
        assert_eq!(traces.gauge(), Gauge::of("traces", 4, 4));
        let later = NOW + LIFE / 2;
        assert!(traces.read("a", 0, later, UNIX_US).is_ok());
        traces.end_unread(NOW + LIFE);
        assert_eq!(traces.gauge().used, 1);
        traces.end_unread(later + LIFE);
        assert!(traces.gauge().used == 0 && !traces.is_on());
    }
}
