//! What became of calls, by when it happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sample::Percentiles;

/// Of each power of two so many steps: a time is told to 6 %.
const STEPS: u64 = 16;
const STEPS_LOG: u32 = STEPS.ilog2();
/// Steps in all; times of more than an hour count as the last.
const PLACES: usize = (STEPS * 30) as usize;

/// What happened in a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSum {
    /// Calls begun, whatever became of them.
    pub offered: u64,
    /// Calls that were to be begun and were not: the generator did not keep up, or has too many open.
    pub not_begun: u64,
    /// Calls whose INVITE was answered with success.
    pub established: u64,
    /// Of the calls begun in this time, those that were established until the end.
    pub established_of_offered: u64,
    /// Calls whose BYE was answered with success.
    pub completed: u64,
    /// INVITEs refused, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Those of `refused` that will be begun again after the time that the refusal named; they are offered once.
    pub postponed: u64,
    /// INVITEs without a final answer, and BYEs without one.
    pub timeouts: u64,
    /// Connections that ended with a call on them.
    pub broken: u64,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Challenges that were answered.
    pub challenged: u64,
    /// Messages that the generator's own system did not take.
    pub unsent: u64,
    /// Microseconds from the first INVITE to the 200, of those established in this time.
    pub setup_us: Percentiles,
}

/// What happened in one of many equal times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadTick {
    /// Milliseconds from the start to its beginning.
    pub at_ms: u64,
    /// What happened in it.
    pub sum: LoadSum,
}

/// One tick, with how often each set-up time was seen.
#[derive(Debug, Clone)]
pub(super) struct Tick {
    pub(super) sum: LoadSum,
    times: Box<[u32]>,
}

impl Default for Tick {
    fn default() -> Self {
        Self { sum: LoadSum::default(), times: vec![0; PLACES].into_boxed_slice() }
    }
}

/// All ticks of a load.
pub(super) struct Counts {
    tick_us: u64,
    ticks: Vec<Tick>,
    ticks_max: usize,
}

impl Counts {
    /// Ticks of so long, and so many at most: what happens later counts to the last.
    pub(super) fn new(tick_ms: u32, ticks_max: usize) -> Self {
        Self { tick_us: u64::from(tick_ms.max(1)) * 1_000, ticks: Vec::new(), ticks_max: ticks_max.max(1) }
    }

    /// The sum of what happens `at` microseconds after the start.
    pub(super) fn at(&mut self, at: u64) -> &mut LoadSum {
        &mut self.tick(at).sum
    }

    fn tick(&mut self, at: u64) -> &mut Tick {
        let place = usize::try_from(at / self.tick_us).unwrap_or(usize::MAX).min(self.ticks_max - 1);
        if place >= self.ticks.len() {
            self.ticks.resize_with(place + 1, Tick::default);
        }
        &mut self.ticks[place]
    }

    /// A call that began at `began` is established.
    pub(super) fn establish(&mut self, began: u64, at: u64) {
        self.at(began).established_of_offered += 1;
        let tick = self.tick(at);
        tick.sum.established += 1;
        tick.times[place_of(at.saturating_sub(began))] += 1;
    }

    /// Each tick.
    pub(super) fn ticks(&self) -> Vec<LoadTick> {
        let told = |(place, tick): (u64, &Tick)| LoadTick {
            at_ms: place * self.tick_us / 1_000,
            sum: LoadSum { setup_us: percentiles(&tick.times), ..tick.sum.clone() },
        };
        (0..).zip(&self.ticks).map(told).collect()
    }

    /// What happened from one time to another, in milliseconds; both are rounded to ticks.
    pub(super) fn between(&self, from_ms: u64, to_ms: u64) -> LoadSum {
        let place = |ms: u64| usize::try_from(ms * 1_000 / self.tick_us).unwrap_or(usize::MAX).min(self.ticks.len());
        let (mut sum, mut times) = (LoadSum::default(), vec![0_u32; PLACES]);
        for tick in self.ticks.get(place(from_ms)..place(to_ms)).unwrap_or_default() {
            add(&mut sum, &tick.sum);
            times.iter_mut().zip(&tick.times).for_each(|(all, one)| *all += one);
        }
        sum.setup_us = percentiles(&times);
        sum
    }
}

fn add(sum: &mut LoadSum, more: &LoadSum) {
    let LoadSum { refused, setup_us: _, .. } = more;
    for (status, count) in refused {
        *sum.refused.entry(*status).or_insert(0) += count;
    }
    for (all, one) in [
        (&mut sum.offered, more.offered),
        (&mut sum.not_begun, more.not_begun),
        (&mut sum.established, more.established),
        (&mut sum.established_of_offered, more.established_of_offered),
        (&mut sum.completed, more.completed),
        (&mut sum.postponed, more.postponed),
        (&mut sum.timeouts, more.timeouts),
        (&mut sum.broken, more.broken),
        (&mut sum.retransmissions, more.retransmissions),
        (&mut sum.challenged, more.challenged),
        (&mut sum.unsent, more.unsent),
    ] {
        *all += one;
    }
}

fn place_of(us: u64) -> usize {
    let place = if us < STEPS {
        us
    } else {
        let log = us.ilog2() - STEPS_LOG;
        u64::from(log) * STEPS + (us >> log)
    };
    usize::try_from(place).unwrap_or(PLACES).min(PLACES - 1)
}

/// The largest time that is counted at this place.
fn time_at(place: usize) -> u64 {
    let place = place as u64;
    if place < 2 * STEPS {
        return place;
    }
    let log = place / STEPS - 1;
    ((place % STEPS + STEPS + 1) << log) - 1
}

fn percentiles(times: &[u32]) -> Percentiles {
    let count: u64 = times.iter().map(|times| u64::from(*times)).sum();
    // Nearest rank, as of values that are kept one by one.
    let rank = |percent: u64| {
        let rank = (count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let place = times.iter().position(|times| {
            seen += u64::from(*times);
            seen >= rank
        });
        place.map_or(0, time_at)
    };
    Percentiles { count, p50: rank(50), p90: rank(90), p99: rank(99), max: rank(100) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_to_a_sixteenth_and_never_too_low() {
        for us in (0..200_000).chain([10_000_000, 31_999_999]) {
            let told = time_at(place_of(us));
            assert!(told >= us && told - us <= us / 16, "{us} told as {told}");
        }
        assert_eq!(place_of(u64::MAX), PLACES - 1);
    }

    #[test]
    fn what_happened_counts_to_its_time_and_an_established_call_to_when_it_began_too() {
        let mut counts = Counts::new(500, 4);
        counts.at(100_000).offered += 2;
        counts.establish(100_000, 1_200_000);
        counts.at(900_000_000).completed += 1;
        let ticks = counts.ticks();
        assert_eq!(ticks.iter().map(|tick| tick.at_ms).collect::<Vec<_>>(), [0, 500, 1_000, 1_500]);
        assert_eq!((ticks[0].sum.established, ticks[0].sum.established_of_offered), (0, 1));
        assert_eq!((ticks[2].sum.established, ticks[3].sum.completed), (1, 1), "the last tick takes what is late");
        let all = counts.between(0, 2_000);
        assert_eq!((all.offered, all.established, all.completed, all.setup_us.count), (2, 1, 1, 1));
        assert!(all.setup_us.p99 >= 1_100_000 && all.setup_us.p99 < 1_170_000);
        assert_eq!(counts.between(0, 1_000).setup_us, Percentiles::default());
    }

    #[test]
    fn what_is_told_can_be_read() {
        let mut counts = Counts::new(500, 4);
        counts.at(0).refused.insert(500, 7);
        let told = serde_json::to_value(counts.ticks()).unwrap();
        assert_eq!(serde_json::from_value::<Vec<LoadTick>>(told).unwrap(), counts.ticks());
    }
}
