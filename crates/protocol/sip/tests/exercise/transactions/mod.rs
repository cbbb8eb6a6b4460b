//! Both tables of transactions against what RFC 3261 section 17 and RFC 6026 draw, kept here as a plain list with a deadline
//! for each timer: whatever is said in whatever order, the tables say the same.

mod client;
mod server;

use std::{net::SocketAddr, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_sip::{
    message::{Message, Transport},
    transaction::{T1_MS, T2_MS, T4_MS, TIMER_C_MS, Token, UNANSWERED_MS},
    write::{Party, Request, ViaLine},
};
use sluicegate_wire::Instant;

/// Transactions that a table has room for.
const TABLE_MAX: usize = 6;
const STEPS_MAX: usize = 256;
/// Bytes of one step: an action, and three choices.
const STEP_LEN: usize = 4;
/// Longer than any timer runs, and all of them one after the other.
const QUIET: Duration = Duration::from_millis(4 * UNANSWERED_MS);
const PEERS: [SocketAddr; 2] = [peer(1), peer(2)];

const fn peer(last: u8) -> SocketAddr {
    SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(192, 0, 2, last), 5060))
}

/// The first byte chooses a table and its transport, each four that follow are a step.
pub(crate) fn play(bytes: &[u8]) {
    let Some((kind, steps)) = bytes.split_first() else { return };
    let steps = steps.chunks_exact(STEP_LEN).take(STEPS_MAX).filter_map(|step| step.first_chunk().copied());
    if kind & 1 == 0 { client::play(kind >> 1, steps) } else { server::play(kind >> 1, steps) }
}

/// What a transaction's timers are to do, and when.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    /// T1 or more between two repetitions.
    every: Duration,
    longest: Duration,
    repeat: Option<Instant>,
    end: Instant,
}

impl Clocks {
    fn new(now: Instant, longest: Duration, end: Duration) -> Self {
        Self { every: ms(T1_MS), longest, repeat: None, end: now + end }
    }

    /// Repeats from now on, first after T1.
    fn repeat_from(&mut self, now: Instant) {
        (self.every, self.repeat) = (ms(T1_MS), Some(now + ms(T1_MS)));
    }

    /// Whether something is to be sent again now. Not at the very end.
    fn repeats(&mut self, now: Instant) -> bool {
        if self.repeat.is_none_or(|at| at > now || at >= self.end) {
            return false;
        }
        self.every = (self.every * 2).min(self.longest);
        self.repeat = Some(now + self.every);
        true
    }

    fn next(&self) -> Instant {
        self.repeat.map_or(self.end, |repeat| repeat.min(self.end))
    }
}

/// What a table has done, or ought to have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Did {
    Sent(Vec<u8>),
    Cancel(String),
    TimedOut(String),
}

fn named(token: Token) -> String {
    format!("{token:?}")
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How long a step waits.
fn wait([_, unit, high, low]: [u8; STEP_LEN]) -> Duration {
    const UNITS_MS: [u64; 3] = [1, 10, 100];
    ms(u64::from(u16::from_be_bytes([high, low])) * UNITS_MS[usize::from(unit) % UNITS_MS.len()] / 4)
}

fn request(method: &str, branch: &str, (call_id, number): (&str, u32)) -> Vec<u8> {
    let party = |uri| Party { uri, tag: Some(b"t") };
    let mut out = Vec::new();
    Request {
        method: method.as_bytes(),
        uri: b"sip:b@example.net",
        via: ViaLine { transport: Transport::Udp, sent_by: PEERS[0], branch: branch.as_bytes(), rport: true },
        from: party(b"sip:a@example.net"),
        to: Party { uri: b"sip:b@example.net", tag: None },
        call_id: call_id.as_bytes(),
        cseq: number,
        routes: &[],
    }
    .begin(&mut out)
    .finish();
    out
}

fn parse(bytes: &[u8]) -> Message<'_> {
    Message::parse(bytes).expect("a message of ours")
}

/// The table has as many transactions as the list, and waits for the same moment.
fn agree(gauge: Gauge, next: Option<Instant>, known: impl Iterator<Item = Clocks>) {
    let (mut count, mut earliest) = (0, None);
    for clocks in known {
        count += 1;
        earliest = Some(earliest.map_or(clocks.next(), |before: Instant| before.min(clocks.next())));
    }
    assert!(gauge.used <= gauge.max);
    assert_eq!((gauge.used, next), (count, earliest));
}
