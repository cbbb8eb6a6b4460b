//! What a frontend counts. Shards add with relaxed atomics; readers take snapshots.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;
use sluicegate_api::TableStatus;

use crate::shard::Rung;

macro_rules! labelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$item_doc])* $item,)* }

        impl $name {
            /// All of them, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$item,)*];

            /// The stable name in metrics and logs.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$item => $label,)* }
            }
        }
    };
}

labelled! {
    /// Request methods as counted; everything that the frontend does not act on is `Other`.
    Kind {
        /// INVITE without a dialog.
        Invite = "invite",
        /// INVITE inside a dialog: a renewal.
        Reinvite = "reinvite",
        /// ACK.
        Ack = "ack",
        /// BYE.
        Bye = "bye",
        /// CANCEL.
        Cancel = "cancel",
        /// OPTIONS.
        Options = "options",
        /// REGISTER.
        Register = "register",
        /// Any other method.
        Other = "other",
    }
}

labelled! {
    /// What became of a request. Every parsed request has exactly one outcome.
    Outcome {
        /// Answered with a fresh nonce because it carried no credentials.
        Challenged = "challenged",
        /// Its nonce was foreign, of another shard or too old: challenged again with `stale=true`.
        Stale = "stale",
        /// Wrong password, or no such user.
        BadDigest = "bad_digest",
        /// Refused unseen: too many wrong digests had come for the claimed user.
        Guessing = "guessing",
        /// An agent's digest was right, but not the handshake with it: changed or relayed, or sent to another address.
        Handshake = "handshake",
        /// Its nonce had been used before.
        Replay = "replay",
        /// A required header field is missing or wrong.
        Malformed = "malformed",
        /// A retransmission, answered or ignored without a look at its credentials.
        Absorbed = "absorbed",
        /// Policy said no, or there is no such service.
        Denied = "denied",
        /// Let through: a grant is being opened, the request was relayed, or the agent registered.
        Admitted = "admitted",
        /// In-dialog request with a valid tag or cookie, or an OPTIONS answered.
        Answered = "answered",
        /// Named a dialog or transaction that its tag, cookie or branch does not prove.
        Unmatched = "unmatched",
        /// Allowed, but a table is full, the gate is away, or the service cannot be reached.
        Unavailable = "unavailable",
        /// A method or extension that the frontend does not speak.
        Unsupported = "unsupported",
    }
}

labelled! {
    /// Counters without a method.
    Count {
        /// Datagrams received.
        Datagrams = "datagrams",
        /// Empty or CRLF datagrams and STUN keep-alives.
        Keepalives = "keepalives",
        /// Datagrams that are no SIP message.
        Garbage = "garbage",
        /// Responses passed back towards a caller.
        ResponsesRelayed = "responses_relayed",
        /// Responses whose branch is not ours.
        ResponsesUnmatched = "responses_unmatched",
        /// Answers left unsent because they would have been much larger than the unproved request.
        AnswersTooLarge = "answers_too_large",
        /// Answers left unsent because the sender's prefix had so many already without proving anything.
        AnswersTooMany = "answers_too_many",
        /// Datagrams that did not fit into the transmit list or the socket.
        TransmitDropped = "transmit_dropped",
        /// Events that did not fit into the queue to the feed.
        EventsDropped = "events_dropped",
        /// Datagrams handed to the shard that owns their transaction.
        HandedOver = "handed_over",
        /// Datagrams from the address of a gate that relays SIP, without a right packet MAC.
        RelayUnproved = "relay_unproved",
        /// Answers retransmitted until acknowledged.
        Retransmitted = "retransmitted",
        /// Calls opened: 200 OK sent with grants behind it.
        CallsOpened = "calls_opened",
        /// Calls renewed.
        CallsRenewed = "calls_renewed",
        /// Calls ended by BYE or CANCEL.
        CallsEnded = "calls_ended",
        /// Openings that no gate answered in time.
        OpeningTimeouts = "opening_timeouts",
        /// Openings that the gate refused.
        OpeningRefused = "opening_refused",
        /// Refused because a bounded table was full.
        TableFull = "table_full",
    }
}

/// Upper bounds of the set-up latency buckets, in milliseconds; one more bucket holds the rest.
pub const SETUP_BUCKETS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// One shard's counters.
#[derive(Debug)]
pub struct ShardMetrics {
    requests: Vec<AtomicU64>,
    counts: Vec<AtomicU64>,
    left: [AtomicU64; Rung::ALL.len()],
    setups: [AtomicU64; SETUP_BUCKETS_MS.len() + 1],
    setup_us_sum: AtomicU64,
}

impl Default for ShardMetrics {
    fn default() -> Self {
        let zeroes = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            requests: zeroes(Kind::ALL.len() * Outcome::ALL.len()),
            counts: zeroes(Count::ALL.len()),
            left: Default::default(),
            setups: Default::default(),
            setup_us_sum: AtomicU64::new(0),
        }
    }
}

impl ShardMetrics {
    /// Counts one request and what became of it.
    pub fn request(&self, kind: Kind, outcome: Outcome) {
        if let Some(cell) = self.requests.get(kind as usize * Outcome::ALL.len() + outcome as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Counts one datagram that left the ladder at this rung.
    pub fn left(&self, rung: Rung) {
        if let Some(cell) = self.left.get(rung as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Adds `n` to one counter.
    pub fn add(&self, count: Count, n: u64) {
        if let Some(cell) = self.counts.get(count as usize) {
            cell.fetch_add(n, Relaxed);
        }
    }

    /// Adds one to one counter.
    pub fn one(&self, count: Count) {
        self.add(count, 1);
    }

    /// Records the time from the first request with a right digest to the 200 OK.
    pub fn setup(&self, took: Duration) {
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let bucket = SETUP_BUCKETS_MS.iter().position(|bound| millis < *bound).unwrap_or(SETUP_BUCKETS_MS.len());
        if let Some(cell) = self.setups.get(bucket) {
            cell.fetch_add(1, Relaxed);
        }
        self.setup_us_sum.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// How many requests of this kind had this outcome.
    #[must_use]
    pub fn requests(&self, kind: Kind, outcome: Outcome) -> u64 {
        self.requests.get(kind as usize * Outcome::ALL.len() + outcome as usize).map_or(0, |cell| cell.load(Relaxed))
    }

    /// The value of one counter.
    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        self.counts.get(count as usize).map_or(0, |cell| cell.load(Relaxed))
    }
}

/// One figure: a name, its labels, its value. Counters end in `_total`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Metric name without the `sluicegate_frontend_` prefix.
    pub name: &'static str,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The figure.
    pub value: u64,
}

/// Distribution of the time from an authenticated INVITE to its 200 OK.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SetupLatency {
    /// Set-ups per bucket of [`SETUP_BUCKETS_MS`], not cumulative; the last bucket has no upper bound.
    pub buckets: Vec<u64>,
    /// Sum of all set-up times, in microseconds.
    pub sum_us: u64,
}

/// Everything that all shards have counted so far.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MetricsSnapshot {
    /// Counters and gauges.
    pub samples: Vec<Sample>,
    /// Set-up latency.
    pub setup: SetupLatency,
}

impl MetricsSnapshot {
    /// Sums the shards' counters. Requests that never happened are left out.
    #[must_use]
    pub fn of<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Self {
        let mut samples = Vec::new();
        for kind in Kind::ALL {
            for outcome in Outcome::ALL {
                let value = shards.clone().map(|shard| shard.requests(*kind, *outcome)).sum();
                if value > 0 {
                    let labels = vec![("method", kind.label().to_owned()), ("outcome", outcome.label().to_owned())];
                    samples.push(Sample { name: "requests_total", labels, value });
                }
            }
        }
        for count in Count::ALL {
            let value = shards.clone().map(|shard| shard.count(*count)).sum();
            let labels = vec![("event", count.label().to_owned())];
            samples.push(Sample { name: "events_total", labels, value });
        }
        for rung in Rung::ALL {
            let value = shards.clone().filter_map(|shard| shard.left.get(rung as usize)).map(|cell| cell.load(Relaxed));
            let labels = vec![("rung", rung.label().to_owned())];
            samples.push(Sample { name: "left_total", labels, value: value.sum() });
        }
        let mut setup = SetupLatency { buckets: vec![0; SETUP_BUCKETS_MS.len() + 1], sum_us: 0 };
        for shard in shards {
            for (sum, cell) in setup.buckets.iter_mut().zip(&shard.setups) {
                *sum += cell.load(Relaxed);
            }
            setup.sum_us = setup.sum_us.saturating_add(shard.setup_us_sum.load(Relaxed));
        }
        Self { samples, setup }
    }

    /// Adds a gauge pair `NAME_used` and `NAME_max` as `table_used` and `table_max` with a `table` label.
    pub fn push_gauge(&mut self, table: &str, used: u64, max: u64) {
        let labels = vec![("table", table.to_owned())];
        self.samples.push(Sample { name: "table_used", labels: labels.clone(), value: used });
        self.samples.push(Sample { name: "table_max", labels, value: max });
    }

    /// Counters of this name that are not 0, by their label values in one text.
    #[must_use]
    pub fn counted(&self, name: &str) -> BTreeMap<String, u64> {
        let counted = self.samples.iter().filter(|sample| sample.name == name && sample.value > 0);
        let labels =
            |sample: &Sample| sample.labels.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
        counted.map(|sample| (labels(sample), sample.value)).collect()
    }

    /// The fill of every table.
    #[must_use]
    pub fn tables(&self) -> Vec<TableStatus> {
        let of = |name| self.samples.iter().filter(move |sample| sample.name == name);
        let label = |sample: &Sample| sample.labels.first().map_or_else(String::new, |(_, value)| value.clone());
        let pairs = of("table_used").zip(of("table_max"));
        pairs.map(|(used, max)| TableStatus { table: label(used).into(), used: used.value, max: max.value }).collect()
    }

    /// The sum of the samples of this name that carry this label value, for status lines and tests.
    #[must_use]
    pub fn total(&self, name: &str, label: &str) -> u64 {
        let has = |sample: &&Sample| sample.name == name && sample.labels.iter().any(|(_, value)| value == label);
        self.samples.iter().filter(has).map(|sample| sample.value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_summed() {
        let (a, b) = (ShardMetrics::default(), ShardMetrics::default());
        a.request(Kind::Invite, Outcome::Challenged);
        b.request(Kind::Invite, Outcome::Challenged);
        b.one(Count::Garbage);
        b.setup(Duration::from_millis(3));
        let snapshot = MetricsSnapshot::of([&a, &b].into_iter());
        assert_eq!(snapshot.total("requests_total", "challenged"), 2);
        assert_eq!(snapshot.total("events_total", "garbage"), 1);
        assert_eq!(snapshot.setup.buckets[2], 1);
        assert_eq!(snapshot.setup.sum_us, 3000);
    }
}
