//! How many calls a second a server serves.

use sluicegate_site::LabError;

use super::rig::{Load, Trial};

/// Where the search begins; how it goes up while all is served, and down until it is.
const FIRST: f64 = 1_500.0;
const STEP: f64 = 1.6;
const BELOW: f64 = 1.3;
const MOST: f64 = 200_000.0;
const LEAST: f64 = 10.0;
/// The answer is known to this; where it is nearly known before, the search goes up by it.
const EXACT: f64 = 1.07;
/// In one of so many trials a rate has to be served.
const TRIALS: usize = 2;
/// Of the calls offered, those that have to be completed; and requests that may be sent again for each.
const COMPLETED_MIN: f64 = 0.99;
const REPEATED_MAX: f64 = 0.01;

/// The highest rate at which a server serves all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Capacity {
    pub(crate) per_s: f64,
    /// The trial at that rate.
    pub(crate) trial: Trial,
}

/// Whether a trial shows that its rate is served.
pub(crate) fn is_served(trial: &Trial) -> bool {
    let sum = trial.first();
    let offered = sum.offered as f64;
    offered > 0.0
        && trial.kept_up()
        && sum.completed as f64 >= COMPLETED_MIN * offered
        && sum.retransmissions as f64 <= REPEATED_MAX * offered
}

/// Searches with fresh servers, from `near` on where the answer is nearly known: a rate is served if it is in one of
/// two trials, since what disturbs a trial makes it look worse and nothing makes it look better.
///
/// # Errors
/// Those of a trial, and [`LabError::Process`] if the server serves nobody: nothing can be said in multiples of that.
pub(crate) fn capacity(
    mut trial: impl FnMut(&Load) -> Result<Trial, LabError>,
    load: impl Fn(u32) -> Load,
    near: Option<f64>,
    tell: &mut dyn FnMut(&str),
) -> Result<Capacity, LabError> {
    let mut best = Capacity::default();
    let mut served = |per_s: f64, best: &mut Capacity| -> Result<bool, LabError> {
        for _ in 0..TRIALS {
            let found = trial(&load(per_s as u32))?;
            let sum = found.first();
            tell(&format!(
                "  {per_s:.0}/s: {} of {} calls completed, {} requests again, {:.2} s of processor time in {:.1} s",
                sum.completed, sum.offered, sum.retransmissions, found.cpu_s, found.seconds
            ));
            if is_served(&found) {
                *best = Capacity { per_s, trial: found };
                return Ok(true);
            }
        }
        Ok(false)
    };
    let (first, step) = near.map_or((FIRST, STEP), |near| (near, EXACT));
    let (mut low, mut high) = (0.0, first);
    while high < MOST && served(high, &mut best)? {
        (low, high) = (high, high * step);
    }
    while low == 0.0 {
        let lower = high / BELOW;
        if lower < LEAST {
            return Err(LabError::process("server", format!("it serves no {high:.0} calls a second")));
        }
        if served(lower, &mut best)? { low = lower } else { high = lower }
    }
    // One step apart is near enough, however it was rounded.
    while high / low > 1.001 * EXACT {
        let middle = (low * high).sqrt();
        if served(middle, &mut best)? { low = middle } else { high = middle }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use sluicegate_traffic::sipload::LoadSum;

    use super::*;

    fn played(load: &Load, limit: f64) -> Trial {
        let per_s = f64::from(load.rates[0].per_s);
        let completed = per_s.min(limit) as u64;
        let retransmissions = if per_s > limit { per_s as u64 } else { 0 };
        let sum = LoadSum { offered: per_s as u64, completed, retransmissions, ..LoadSum::default() };
        Trial { windows: vec![sum], seconds: 1.0, ..Trial::default() }
    }

    #[test]
    fn the_search_ends_just_below_the_limit_wherever_that_is() {
        for limit in [200.0, 1_400.0, 3_633.0, 13_392.0, 60_000.0] {
            let load = |per_s| Load::constant(per_s, 0, 1_000);
            for near in [None, Some(limit * 1.2), Some(limit / 2.0)] {
                let found = capacity(|load| Ok(played(load, limit)), load, near, &mut |_| ()).unwrap().per_s;
                assert!(found <= limit * 1.011 && found >= limit / 1.08, "{limit}, near {near:?}: {found}");
            }
        }
    }

    #[test]
    fn a_server_that_serves_nobody_has_no_capacity() {
        let load = |per_s| Load::constant(per_s, 0, 1_000);
        for near in [None, Some(1_000.0)] {
            let found = capacity(|load| Ok(played(load, 1.0)), load, near, &mut |_| ());
            assert!(found.unwrap_err().to_string().contains("serves no"), "near {near:?}");
        }
    }

    #[test]
    fn what_the_generator_did_not_send_is_not_served() {
        let mut trial = played(&Load::constant(1_000, 0, 1_000), 2_000.0);
        assert!(is_served(&trial));
        trial.windows[0].not_begun = 100;
        assert!(!is_served(&trial));
    }
}
