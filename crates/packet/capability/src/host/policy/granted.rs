use sluicegate_wire::capability::Limits;

use super::Decision;

/// The least default N, in kilobytes.
pub const LIMITS_KILOBYTES_MIN: u16 = 32;

/// The least time at a grant's rate that one capability is worth.
const WORTH_MS_MIN: u64 = 250;

/// What is left of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes left.
    pub bytes: u64,
    /// Seconds left.
    pub seconds: u64,
    /// The rate that the grant allows, in bytes a second; 0: unlimited.
    pub rate: u64,
    /// The round trip to the client, in milliseconds.
    pub rtt_ms: u32,
}

impl Budget {
    /// What becomes of a request that is paid from this: refused if nothing is left.
    #[must_use]
    pub fn decide(&self) -> Decision {
        self.limits().map_or(Decision::Refuse, Decision::Grant)
    }

    /// What one capability may be worth: two round trips at the grant's rate, or a quarter of a second if they are shorter,
    /// between 32 kB and the header's most, and never more than is left of the grant. `None` if nothing is left.
    ///
    /// Within a second each renewal is worth a little less, so that routers tell them apart: dozens of them would be worth
    /// less than routers hold a line for.
    #[must_use]
    pub fn limits(&self) -> Option<Limits> {
        let kilobyte = Limits::KILOBYTE;
        let two_trips = match self.rate {
            0 => u64::MAX,
            rate => rate.saturating_mul((u64::from(self.rtt_ms) * 2).max(WORTH_MS_MIN)) / 1_000,
        };
        let most = u64::from(Limits::KILOBYTES_MAX);
        let wanted = two_trips.div_ceil(kilobyte).clamp(u64::from(LIMITS_KILOBYTES_MIN), most);
        let kilobytes = u16::try_from(wanted.min(self.bytes / kilobyte)).ok()?;
        // No slower than routers hold a line for, also after a destination that renews again within a second has taken
        // off its quarter of N: the last bytes of a grant get a shorter T.
        let held = u64::from(kilobytes) * Limits::KILOBYTE * 3 / 4 * u64::from(Limits::LEAST.seconds());
        let seconds = self.seconds.min(u64::from(Limits::SECONDS_MAX)).min((held / Limits::LEAST.bytes()).max(1));
        Limits::new(kilobytes, u8::try_from(seconds).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_worth_two_round_trips_and_never_more_than_the_grant() {
        let budget = Budget { bytes: 10_000_000, seconds: 600, rate: 1_250_000, rtt_ms: 150 };
        let worth = |budget: Budget| budget.limits().map(|limits| (limits.kilobytes(), limits.seconds()));
        assert_eq!(worth(budget), Some((375, 63)));
        assert_eq!(worth(Budget { rtt_ms: 1, ..budget }), Some((313, 63)), "a quarter of a second");
        assert_eq!(worth(Budget { rate: 10_000, ..budget }), Some((32, 60)), "at least 32 kB");
        assert_eq!(worth(Budget { rate: 0, ..budget }), Some((1_023, 63)), "at most what the header can say");
        assert_eq!(worth(Budget { bytes: 7_999, seconds: 2, ..budget }), Some((7, 2)));
        assert_eq!(worth(Budget { bytes: 999, ..budget }), None);
        assert_eq!(worth(Budget { seconds: 0, ..budget }), None);
    }
}
