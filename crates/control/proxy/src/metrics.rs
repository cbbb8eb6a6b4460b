//! What a frontend counts: a shard adds, readers sum over all shards.

use std::time::Duration;

use sluicegate_sip::message::Transport;
use sluicegate_telemetry::{Counters, Family, Histogram, Metric, Published};

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

pub(crate) use labelled;

labelled! {
    /// Request methods as counted.
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
        /// PRACK.
        Prack = "prack",
        /// UPDATE.
        Update = "update",
        /// INFO.
        Info = "info",
        /// REFER.
        Refer = "refer",
        /// MESSAGE.
        Message = "message",
        /// SUBSCRIBE.
        Subscribe = "subscribe",
        /// NOTIFY.
        Notify = "notify",
        /// PUBLISH.
        Publish = "publish",
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
        /// Refused unseen: more came than can be served.
        Overload = "overload",
    }
}

labelled! {
    /// Counters without a method.
    Count {
        /// Datagrams received.
        Datagrams = "datagrams",
        /// Empty or CRLF datagrams and STUN Binding requests.
        Keepalives = "keepalives",
        /// STUN that is no Binding request, contradicts itself, or came over a connection.
        StunDropped = "stun_dropped",
        /// Datagrams that are no SIP message.
        Garbage = "garbage",
        /// Responses passed back towards a caller.
        ResponsesRelayed = "responses_relayed",
        /// Responses whose branch is not ours.
        ResponsesUnmatched = "responses_unmatched",
        /// Responses whose branch is ours, but came more often than its request was repeated.
        ResponsesTooMany = "responses_too_many",
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
        /// Requests that went on to a backup of the SIP server that they were for.
        FailedOver = "failed_over",
        /// Refused because a bounded table was full.
        TableFull = "table_full",
        /// Datagrams that were lost before they were read, since a socket had no room for them.
        DatagramsLost = "datagrams_lost",
        /// INVITEs ended because they rang for long while memory was short.
        EndedEarly = "ended_early",
        /// INVITEs to emergency numbers that were let in although more arrived than could be served.
        Emergency = "emergency",
        /// Requests of a peer or to it, beyond the calls a second that it may have.
        PeerBusy = "peer_busy",
    }
}

/// Classes of statuses, in order.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];
/// Transports and what they are called in metrics.
const TRANSPORTS: [(Transport, &str); 3] = [(Transport::Udp, "udp"), (Transport::Tcp, "tcp"), (Transport::Tls, "tls")];

/// Upper bounds of the set-up latency buckets, in milliseconds; one more bucket holds the rest.
const SETUP_BUCKETS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

const REQUESTS: Family = Family::counter(
    "sluicegate_frontend_requests_total",
    &["method", "outcome"],
    "SIP requests by method and outcome.",
);
const ANSWERS: Family = Family::counter(
    "sluicegate_frontend_answers_total",
    &["method", "class", "transport"],
    "SIP responses sent, by the method that they answer, class of status and transport.",
);
const EVENTS: Family = Family::counter("sluicegate_frontend_events_total", &["event"], "What else happened, by event.");
const LEFT: Family =
    Family::counter("sluicegate_frontend_left_total", &["rung"], "Datagrams by the check that was the last for them.");
const SETUPS: Family = Family::counter(
    "sluicegate_frontend_setups_total",
    &["le"],
    "Set-ups from the authenticated INVITE to its 200 OK, by upper bound in seconds.",
);

const BUSY: Family = Family::gauge(
    "sluicegate_frontend_thread_busy_ratio",
    &["shard"],
    "Share of the time that the SIP thread ran when it was measured last.",
);
const WAIT: Family = Family::gauge(
    "sluicegate_frontend_wait_seconds",
    &["shard"],
    "How long whatever waited least for the SIP thread had waited when it was measured last.",
);
const ADMITTED: Family = Family::gauge(
    "sluicegate_frontend_admitted_per_source",
    &["shard"],
    "Requests that each source may have of a tenth of a second under adaptive overload control; +Inf while all are let in.",
);
const HEARD: Family = Family::gauge(
    "sluicegate_frontend_heard_per_source",
    &["shard"],
    "Datagrams of each source that are heard in a tenth of a second under adaptive overload control; +Inf while all are.",
);

/// What a shard's thread was seen to do in the last interval.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    /// For which share of the time it ran.
    pub(crate) busy: f64,
    /// How long what waited least for it had waited.
    pub(crate) wait: Duration,
    /// What follows for each source, if anything does.
    pub(crate) per_source: Option<PerSource>,
}

/// What each source may have of an interval; infinite while that is all it sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerSource {
    /// Requests that begin something.
    pub(crate) admitted: f64,
    /// Datagrams.
    pub(crate) heard: f64,
}

/// One shard's counters.
#[derive(Debug)]
pub struct ShardMetrics {
    requests: Counters,
    answers: Counters,
    counts: Counters,
    left: Counters,
    setups: Histogram,
    measured: Published<Measured>,
}

impl Default for ShardMetrics {
    fn default() -> Self {
        Self {
            requests: Counters::new(Kind::ALL.len() * Outcome::ALL.len()),
            answers: Counters::new(Kind::ALL.len() * CLASSES.len() * TRANSPORTS.len()),
            counts: Counters::new(Count::ALL.len()),
            left: Counters::new(Rung::ALL.len()),
            setups: Histogram::new(&SETUP_BUCKETS_MS),
            measured: Published::new(Measured::default()),
        }
    }
}

impl ShardMetrics {
    /// Counts one request and what became of it.
    pub fn request(&self, kind: Kind, outcome: Outcome) {
        self.requests.add(place(kind, outcome), 1);
    }

    /// Counts one response that was sent; what has no status of a known class is not counted.
    pub fn answer(&self, kind: Kind, code: u16, transport: Transport) {
        let class = usize::from(code / 100).checked_sub(1).filter(|class| *class < CLASSES.len());
        let transport = TRANSPORTS.iter().position(|(known, _)| *known == transport);
        if let (Some(class), Some(transport)) = (class, transport) {
            self.answers.add(answer_place(kind, class, transport), 1);
        }
    }

    /// Counts one datagram that left the ladder at this rung.
    pub fn left(&self, rung: Rung) {
        self.left.add(rung as usize, 1);
    }

    /// Adds `n` to one counter.
    pub fn add(&self, count: Count, n: u64) {
        self.counts.add(count as usize, n);
    }

    /// Adds one to one counter.
    pub fn one(&self, count: Count) {
        self.add(count, 1);
    }

    /// Records the time from the first request with a right digest to the 200 OK.
    pub fn setup(&self, took: Duration) {
        self.setups.observe(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    }

    /// Replaces what was measured last.
    pub(crate) fn measure(&self, measured: Measured) {
        self.measured.publish(|last| *last = measured);
    }

    /// How many requests of this kind had this outcome.
    #[must_use]
    pub fn requests(&self, kind: Kind, outcome: Outcome) -> u64 {
        self.requests.at(place(kind, outcome))
    }

    /// The value of one counter.
    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        self.counts.at(count as usize)
    }
}

const fn place(kind: Kind, outcome: Outcome) -> usize {
    kind as usize * Outcome::ALL.len() + outcome as usize
}

const fn answer_place(kind: Kind, class: usize, transport: usize) -> usize {
    (kind as usize * CLASSES.len() + class) * TRANSPORTS.len() + transport
}

/// Responses sent, by method, class and transport, of all shards; those that never were are left out.
pub fn answers<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Metric {
    let classes = || CLASSES.iter().enumerate();
    let transports = || TRANSPORTS.iter().enumerate();
    let all =
        Kind::ALL.iter().flat_map(|kind| classes().flat_map(move |class| transports().map(move |t| (*kind, class, t))));
    let counted = all.map(|(kind, (class, class_label), (transport, (_, transport_label)))| {
        let place = answer_place(kind, class, transport);
        let sum = shards.clone().map(|shard| shard.answers.at(place)).sum();
        ([kind.label(), class_label, transport_label], sum)
    });
    ANSWERS.by_all(counted.filter(|(_, count)| *count > 0))
}

/// Requests by method and outcome, of all shards; those that never happened are left out.
pub fn requests<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Metric {
    let sum = |kind, outcome| shards.clone().map(|shard| shard.requests(kind, outcome)).sum();
    let all = Kind::ALL.iter().flat_map(|kind| Outcome::ALL.iter().map(move |outcome| (*kind, *outcome)));
    let counted = all.map(|(kind, outcome)| ([kind.label(), outcome.label()], sum(kind, outcome)));
    REQUESTS.by_all(counted.filter(|(_, count)| *count > 0))
}

/// Other events, of all shards.
pub fn events<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Metric {
    let sum = |count: &Count| shards.clone().map(|shard| shard.count(*count)).sum();
    EVENTS.by(Count::ALL.iter().map(|count| (count.label(), sum(count))))
}

/// Datagrams by the rung of the ladder at which they left it, of all shards.
pub fn datagrams_left<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Metric {
    let sum = |rung: Rung| shards.clone().map(|shard| shard.left.at(rung as usize)).sum();
    LEFT.by(Rung::ALL.iter().map(|rung| (rung.label(), sum(*rung))))
}

/// How busy each shard was when it was measured last, how long it was waited for, and what each source may have of it, where it
/// refuses by source.
pub fn load<'a>(shards: impl Iterator<Item = &'a ShardMetrics>) -> [Metric; 4] {
    let measured: Vec<Measured> = shards.map(|shard| shard.measured.read(|last| *last)).collect();
    let by_shard = |family: &'static Family, value: fn(&Measured) -> Option<f64>| {
        let values = measured.iter().enumerate();
        let samples = values.filter_map(|(shard, last)| Some((vec![shard.to_string().into()], value(last)?)));
        Metric { family, samples: samples.collect() }
    };
    [
        by_shard(&BUSY, |last| Some(last.busy)),
        by_shard(&WAIT, |last| Some(last.wait.as_secs_f64())),
        by_shard(&ADMITTED, |last| last.per_source.map(|each| each.admitted)),
        by_shard(&HEARD, |last| last.per_source.map(|each| each.heard)),
    ]
}

/// How long set-ups took, of all shards: how many at most so long.
pub fn setups<'a>(shards: impl Iterator<Item = &'a ShardMetrics> + Clone) -> Metric {
    let bounds = SETUP_BUCKETS_MS.iter().map(|ms| (*ms as f64 / 1e3).to_string()).chain(["+Inf".to_owned()]);
    let mut below = 0;
    SETUPS.by(bounds.enumerate().map(|(bucket, bound)| {
        below += shards.clone().map(|shard| shard.setups.at(bucket)).sum::<u64>();
        (bound, below)
    }))
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
        a.answer(Kind::Invite, 200, Transport::Tls);
        b.answer(Kind::Invite, 204, Transport::Tls);
        b.answer(Kind::Publish, 699, Transport::Udp);
        [0, 99, 700].into_iter().for_each(|code| a.answer(Kind::Invite, code, Transport::Udp));
        b.setup(Duration::from_millis(3));
        let shards = || [&a, &b].into_iter();
        assert_eq!(requests(shards()).counted(), [("invite challenged".to_owned(), 2)].into());
        let answered = [("invite 2xx tls".to_owned(), 2), ("publish 6xx udp".to_owned(), 1)];
        assert_eq!(answers(shards()).counted(), answered.into());
        assert_eq!(events(shards()).counted(), [("garbage".to_owned(), 1)].into());
        let setups = setups(shards()).samples;
        assert_eq!((setups[1].1, &*setups[2].0[0], setups[2].1, setups[10].1), (0.0, "0.005", 1.0, 1.0));
    }
}
