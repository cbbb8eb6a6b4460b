use crate::{
    class::{Class, InDialog},
    engineered::Engineered,
    rejection::Average,
};

/// Counts what arrives in an interval, by its kind, and what is too much of it (sections III-B and III-C).
#[derive(Debug)]
pub(crate) struct Excess {
    outside: [u64; Class::OUTSIDE],
    within: [u64; InDialog::ALL.len()],
    /// With which probability each kind is dropped in this interval, by what came in the one before.
    dropped: [f64; InDialog::ALL.len()],
    succeeded: u64,
    /// INVITEs a second that succeed (I).
    succeeding: Average,
}

impl Excess {
    pub(crate) const fn new(smoothing: f64) -> Self {
        Self {
            outside: [0; Class::OUTSIDE],
            within: [0; InDialog::ALL.len()],
            dropped: [0.0; InDialog::ALL.len()],
            succeeded: 0,
            succeeding: Average::new(smoothing),
        }
    }

    pub(crate) const fn succeed(&mut self, invites: u64) {
        self.succeeded = self.succeeded.saturating_add(invites);
    }

    /// Counts a request outside dialogs. Whether it is beyond the burst that is expected of its kind.
    pub(crate) fn is_burst(&mut self, place: usize, engineered: &Engineered) -> bool {
        let load = engineered.load;
        let rates = [load.invites, load.registers, load.others];
        let (Some(count), Some(rate)) = (self.outside.get_mut(place), rates.get(place)) else { return false };
        *count += 1;
        // What no load is engineered for has no limit of its own.
        *rate > 0.0 && *count as f64 > rate * engineered.burst * engineered.interval.as_secs_f64()
    }

    /// Counts a request within a dialog: with which probability it is dropped.
    pub(crate) fn dropped(&mut self, kind: InDialog) -> f64 {
        if let Some(count) = self.within.get_mut(kind as usize) {
            *count += 1;
        }
        self.dropped.get(kind as usize).copied().unwrap_or(0.0)
    }

    /// Ends an interval that lasted so many seconds.
    pub(crate) fn measure(&mut self, seconds: f64, engineered: &Engineered) {
        let succeeding = self.succeeding.take(self.succeeded as f64 / seconds);
        let drop_max = engineered.drop_max();
        for ((kind, count), dropped) in InDialog::ALL.into_iter().zip(&mut self.within).zip(&mut self.dropped) {
            let came = *count as f64 / seconds;
            let expected = engineered.expected(kind, succeeding);
            *dropped = if came > expected && expected > 0.0 { ((came - expected) / came).min(drop_max) } else { 0.0 };
            *count = 0;
        }
        self.outside = [0; Class::OUTSIDE];
        self.succeeded = 0;
    }
}
