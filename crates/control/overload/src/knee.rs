/// How much more than what was served is let in at first, and for how many intervals; afterwards twice as much more in each in
/// which nothing waits.
const PROBE: f64 = 0.03;
const PROBES: u32 = 5;
/// So many intervals pass until what is let in shows in how long requests wait: a call is several requests, one after the other.
const LAG: usize = 3;

/// How far what is let in may change: at once to where it was served as it came, and slowly beyond. To grow as fast as a thread
/// seems to have time has much more let in than is served before the first of it is seen to wait, and then much less.
#[derive(Debug)]
pub(crate) struct Knee {
    /// Level at which as much was let in as was served.
    at: f64,
    /// The same in the intervals before, newest first; the level while it is not known. Not the level since: where bursts come
    /// again and again, that is lower each time for the burst before, and the knee would fall with it.
    past: [f64; LAG],
    /// Intervals for which it has grown beyond the knee, and for which requests have waited.
    beyond: u32,
    late: usize,
}

impl Knee {
    pub(crate) const fn new() -> Self {
        Self { at: f64::INFINITY, past: [f64::INFINITY; LAG], beyond: 0, late: 0 }
    }

    /// An interval ends in which `level` was let in, or everything. There is time for `growth` times as much, and what waits
    /// leaves room for `waiting` times as much, unless it is being worked off. By which factor to change the level.
    pub(crate) fn step(&mut self, level: Option<f64>, growth: f64, waiting: f64, is_worked_off: bool) -> f64 {
        let at_once = growth * if is_worked_off { 1.0 } else { waiting };
        let Some(level) = level else {
            *self = Self::new();
            return at_once;
        };
        let then = self.past[LAG - 1];
        self.past.rotate_right(1);
        self.past[0] = if self.at.is_finite() { self.at } else { level };
        if waiting < 1.0 {
            (self.late, self.beyond) = (self.late + 1, 0);
            if self.late == 1 && then.is_finite() {
                self.at = then.min(self.past[0]);
            }
            if self.at.is_infinite() {
                return at_once.min(1.0);
            }
            if self.late > LAG && !is_worked_off {
                self.at *= waiting;
            }
            return self.at * waiting / level;
        }
        self.late = 0;
        if growth < 1.0 {
            (self.at, self.beyond) = (level * growth, 0);
            return growth;
        }
        if level * growth <= self.at {
            return growth;
        }
        self.beyond = self.beyond.saturating_add(1);
        let more = PROBE * f64::from(1_u32 << self.beyond.saturating_sub(PROBES).min(16));
        let factor = growth.min((1.0 + more).max(self.at / level));
        self.at = level * factor;
        factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_returns_to_what_was_let_in_before_anything_waited_and_grows_slowly_beyond() {
        let mut knee = Knee::new();
        for level in [100.0, 120.0, 144.0] {
            assert_eq!(knee.step(Some(level), 1.2, 1.0, false), 1.2);
        }
        let mut level = 173.0;
        level *= knee.step(Some(level), 1.2, 0.9, false);
        assert!((level - 90.0).abs() < 1e-9, "{level}");
        let levels: [f64; 12] = core::array::from_fn(|_| {
            level *= knee.step(Some(level), 1.5, 1.0, false);
            level
        });
        assert!((99.0..=110.0).contains(&levels[0]) && levels[2] < 110.0, "{levels:?}");
        assert!(levels[11] > 200.0, "{levels:?}");
    }

    #[test]
    fn a_moment_in_which_something_waited_does_not_slow_it_down() {
        let mut knee = Knee::new();
        assert_eq!(knee.step(None, 1.0, 0.7, false), 0.7);
        assert_eq!(knee.step(Some(70.0), 1.19, 1.0, false), 1.19);
        assert_eq!(knee.step(Some(83.0), 1.19, 1.0, false), 1.19);
    }

    #[test]
    fn bursts_that_come_again_and_again_do_not_have_it_fall_with_each() {
        for calm in 1..8 {
            let (mut knee, mut level) = (Knee::new(), 100.0);
            for _ in 0..10 {
                level *= knee.step(Some(level), 1.0, 1.0, false);
            }
            let mut least = f64::INFINITY;
            for _ in 0..100 {
                level *= knee.step(Some(level), 1.5, 0.6, false);
                least = least.min(level);
                (0..calm).for_each(|_| level *= knee.step(Some(level), 1.5, 1.0, false));
            }
            assert!(least >= 55.0, "{calm} intervals between them: {least}");
        }
    }
}
