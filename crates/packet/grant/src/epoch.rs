//! Epochs of user secrets (NUTSS 3.1): a frontend holds, of each agent's user, only what the digests of this epoch, and in
//! its last hour those of the next, are checked against. Who breaks into it learns of agents nothing that is worth anything
//! after that. Of users who may have telephones it also holds what lasts as long as their passwords.

use core::{fmt, num::ParseIntError, str::FromStr};

use sluicegate_wire::UnixTime;

/// How long an epoch lasts, in seconds.
pub const EPOCH_SECS: u64 = 86_400;

/// Number of an epoch: Unix time divided by [`EPOCH_SECS`]. Text form: decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch that `now` lies in.
    #[must_use]
    pub fn at(now: UnixTime) -> Self {
        Self(u32::try_from(now.0 / EPOCH_SECS).unwrap_or(u32::MAX))
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Its first second.
    #[must_use]
    pub const fn start(self) -> UnixTime {
        UnixTime(self.0 as u64 * EPOCH_SECS)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Epoch {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_day() {
        assert_eq!(Epoch::at(UnixTime(86_399)), Epoch(0));
        assert_eq!(Epoch::at(UnixTime(86_400)), Epoch(1));
        assert_eq!(Epoch(1).start(), UnixTime(86_400));
        assert_eq!("20000".parse(), Ok(Epoch(20_000)));
        assert_eq!(Epoch::at(UnixTime(u64::MAX)).next(), Epoch(u32::MAX));
    }
}
