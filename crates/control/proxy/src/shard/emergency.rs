//! Calls for help: load does not have them refused, so many a second and no more.

use std::time::Duration;

use sluicegate_bounded::Gauge;
use sluicegate_sip::uri::Uri;
use sluicegate_wire::Instant;

use super::ladder::Asked;
use crate::{
    guesses::{Allowance, Table},
    metrics::Kind,
};

/// A call is two INVITEs: without credentials, and with them.
const INVITES: u32 = 2;
/// What one source may have of all: an INVITE every half second, and some at once.
const OF_ONE: Allowance = Allowance { burst: 4 * INVITES, interval: Duration::from_millis(500) };
/// Sources that are counted; who called last is counted longest.
const SOURCES_MAX: usize = 1_024;

/// Which calls load does not have refused.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Emergency {
    /// What is dialled for help, whole.
    pub numbers: Vec<String>,
    /// So many calls a second of each SIP thread are let in that would have been refused, and twice that at once.
    pub calls_per_s: u32,
}

impl Default for Emergency {
    fn default() -> Self {
        Self { numbers: Vec::new(), calls_per_s: 5 }
    }
}

impl Emergency {
    /// Whether somebody calls for help.
    pub(super) fn is_called(&self, asked: Asked<'_>) -> bool {
        if self.numbers.is_empty() || asked.kind != Kind::Invite {
            return false;
        }
        let Some(Ok(uri)) = asked.message.request_uri().map(Uri::parse) else { return false };
        self.numbers.iter().any(|number| uri.user_is(number))
    }
}

/// What was let in for help.
#[derive(Debug)]
pub(super) struct Lane {
    of_all: Allowance,
    all: Table,
    sources: Table,
}

impl Lane {
    pub(super) fn new(emergency: &Emergency) -> Self {
        let invites_per_s = emergency.calls_per_s.max(1).saturating_mul(INVITES);
        let of_all =
            Allowance { burst: invites_per_s.saturating_mul(2), interval: Duration::from_secs(1) / invites_per_s };
        Self { of_all, all: Table::new("emergency", 1), sources: Table::new("emergency_sources", SOURCES_MAX) }
    }

    /// Takes one INVITE out of what this source, which is a keyed hash of it, and all may have; `false` if nothing is left.
    pub(super) fn take(&mut self, now: Instant, source: u64) -> bool {
        self.sources.take(now, source, &OF_ONE) && self.all.take(now, 0, &self.of_all)
    }

    pub(super) fn gauge(&self, now: Instant) -> Gauge {
        self.sources.gauge(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_has_a_part_of_the_lane_and_all_have_no_more_than_it_is_wide() {
        let mut lane = Lane::new(&Emergency { numbers: vec!["112".into()], calls_per_s: 5 });
        let now = Instant::from_secs(1_000);
        let mut of = |now, source: u64| (0..100).filter(|_| lane.take(now, source)).count();
        assert_eq!([of(now, 1), of(now, 2), of(now, 3)], [8, 8, 4]);
        let later = now + Duration::from_secs(1);
        assert_eq!([of(later, 1), of(later, 2), of(later, 4), of(later, 5)], [2, 2, 6, 0]);
    }
}
