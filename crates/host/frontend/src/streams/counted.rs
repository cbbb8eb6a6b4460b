//! What is counted of connections.

use std::collections::BTreeMap;

use sluicegate_sip::message::Transport;
use sluicegate_telemetry::{Counters, Family, Metric};

const OPENED: Family = Family::counter(
    "sluicegate_frontend_connections_opened_total",
    &["transport", "by"],
    "SIP connections opened, by transport and by whom.",
);
const REFUSED: Family =
    Family::counter("sluicegate_frontend_connections_refused_total", &["reason"], "SIP connections refused at once.");
const ENDED: Family =
    Family::counter("sluicegate_frontend_connections_ended_total", &["reason"], "SIP connections that ended.");
const UNSENT: Family = Family::counter(
    "sluicegate_frontend_stream_messages_unsent_total",
    &["reason"],
    "SIP messages for a connection that could not be sent.",
);

/// Names with their labels, in the order of their counters.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$item_doc])* $item,)* }

        impl $name {
            const LABELS: &'static [&'static str] = &[$($label,)*];
        }
    };
}

reasons! {
    /// Why a connection was refused at once.
    Refused {
        /// Its source opens too many in a short time.
        Rate = "rate",
        /// Its source has as many as it may, and has proved itself over all of them.
        Source = "source",
        /// All places are taken by who has proved itself.
        Full = "full",
        /// More connect than can be served, and its source most.
        Load = "load",
        /// The system has no more to give.
        System = "system",
    }
}

reasons! {
    /// Why a connection ended.
    Ended {
        /// The peer closed it, or it broke.
        Closed = "closed",
        /// A stranger's, which had to give way.
        Crowded = "crowded",
        /// Its user has signed in over as many others as one may.
        User = "user",
        /// No whole message came in time.
        Silent = "silent",
        /// A message took too long.
        Slow = "slow",
        /// Nothing came for too long.
        Idle = "idle",
        /// The peer does not read what it is sent.
        Unread = "unread",
        /// What came is no SIP.
        Malformed = "malformed",
        /// The TLS handshake failed.
        Tls = "tls",
        /// The peer could not be reached.
        Unreached = "unreached",
        /// We dialled, and the server has to show another certificate now.
        Outdated = "outdated",
    }
}

reasons! {
    /// Why a message was not sent.
    Unsent {
        /// Its connection is gone.
        Gone = "gone",
        /// The thread that has its connection is too busy.
        Busy = "busy",
        /// No connection to its receiver could be made.
        Unreached = "unreached",
    }
}

/// One thread's counters.
#[derive(Debug)]
pub(crate) struct StreamMetrics {
    opened: Counters,
    refused: Counters,
    ended: Counters,
    unsent: Counters,
}

/// Labels of [`OPENED`], in the order of its counters.
const OPENINGS: [[&str; 2]; 4] = [["tcp", "peer"], ["tcp", "us"], ["tls", "peer"], ["tls", "us"]];

impl Default for StreamMetrics {
    fn default() -> Self {
        Self {
            opened: Counters::new(OPENINGS.len()),
            refused: Counters::new(Refused::LABELS.len()),
            ended: Counters::new(Ended::LABELS.len()),
            unsent: Counters::new(Unsent::LABELS.len()),
        }
    }
}

impl StreamMetrics {
    pub(super) fn opened(&self, transport: Transport, is_ours: bool) {
        let is_tls = transport == Transport::Tls;
        self.opened.add(2 * usize::from(is_tls) + usize::from(is_ours), 1);
    }

    pub(super) fn refused(&self, reason: Refused) {
        self.refused.add(reason as usize, 1);
    }

    pub(super) fn ended(&self, reason: Ended) {
        self.ended.add(reason as usize, 1);
    }

    pub(crate) fn unsent(&self, reason: Unsent) {
        self.unsent.add(reason as usize, 1);
    }
}

/// All of these, of all threads.
pub(crate) fn metrics<'a>(threads: impl Iterator<Item = &'a StreamMetrics> + Clone) -> [Metric; 4] {
    let sum = |of: fn(&StreamMetrics) -> &Counters, at| threads.clone().map(|thread| of(thread).at(at)).sum::<u64>();
    let by = |family: &'static Family, labels: &'static [&'static str], of: fn(&StreamMetrics) -> &Counters| {
        family.by(labels.iter().enumerate().map(|(at, label)| (*label, sum(of, at))))
    };
    [
        OPENED.by_all(OPENINGS.into_iter().enumerate().map(|(at, labels)| (labels, sum(|thread| &thread.opened, at)))),
        by(&REFUSED, Refused::LABELS, |thread| &thread.refused),
        by(&ENDED, Ended::LABELS, |thread| &thread.ended),
        by(&UNSENT, Unsent::LABELS, |thread| &thread.unsent),
    ]
}

/// The same as a person reads it, such as `ended idle`; zeros are left out.
pub(crate) fn counted<'a>(threads: impl Iterator<Item = &'a StreamMetrics> + Clone) -> BTreeMap<String, u64> {
    let all = ["opened", "refused", "ended", "unsent"].into_iter().zip(metrics(threads));
    all.flat_map(|(what, metric)| metric.counted().into_iter().map(move |(why, n)| (format!("{what} {why}"), n)))
        .collect()
}
