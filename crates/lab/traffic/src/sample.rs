//! Percentiles of measured values.

use serde::{Deserialize, Serialize};

/// Summary of a set of values, all in the values' own unit. Zeros for an empty set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many values there were.
    pub count: u64,
    /// Half of the values are not above this.
    pub p50: u64,
    /// 90 % of the values are not above this.
    pub p90: u64,
    /// 99 % of the values are not above this.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Percentiles {
    /// Of these values; sorts them.
    #[must_use]
    pub fn of(values: &mut [u64]) -> Self {
        values.sort_unstable();
        // Nearest rank: the smallest value that at least `percent` % of the values do not exceed.
        let rank =
            |percent: usize| values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
        Self { count: values.len() as u64, p50: rank(50), p90: rank(90), p99: rank(99), max: rank(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(Percentiles::of(&mut values), Percentiles { count: 200, p50: 100, p90: 180, p99: 198, max: 200 });
        assert_eq!(Percentiles::of(&mut [7]), Percentiles { count: 1, p50: 7, p90: 7, p99: 7, max: 7 });
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    }
}
