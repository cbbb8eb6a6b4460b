/// At most this probability, and a server does not count as overloaded: a moving average never reaches zero (section III-A).
pub const OVERLOADED_ABOVE: f64 = 0.05;

/// A weighted moving average (equations 2 and 7).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Average {
    value: f64,
    weight: f64,
}

impl Average {
    pub(crate) const fn new(weight: f64) -> Self {
        Self { value: 0.0, weight }
    }

    /// Takes the newest value in.
    pub(crate) fn take(&mut self, newest: f64) -> f64 {
        self.value = self.value * (1.0 - self.weight) + newest * self.weight;
        self.value
    }

    pub(crate) const fn value(&self) -> f64 {
        self.value
    }

    pub(crate) const fn set(&mut self, value: f64) {
        self.value = value;
    }
}

/// With which probability requests outside dialogs are refused at the moment.
#[derive(Debug, Clone, Copy)]
pub struct Rejection(Average);

impl Rejection {
    /// None yet; `smoothing` is the weight of the newest value (sigma).
    #[must_use]
    pub const fn new(smoothing: f64) -> Self {
        Self(Average::new(smoothing))
    }

    /// Equation 2: takes in what each resource asks for. The largest counts; one that is used up counts at once and alone.
    pub fn measure(&mut self, resources: &[f64]) {
        let largest = resources.iter().copied().fold(0.0, f64::max);
        self.0.take(largest);
        if largest >= 1.0 {
            self.0.set(1.0);
        }
    }

    /// The probability, 0 to 1: 0 unless the server is overloaded.
    #[must_use]
    pub fn probability(&self) -> f64 {
        if self.0.value() > OVERLOADED_ABOVE { self.0.value() } else { 0.0 }
    }

    /// Whether a resource is used up: everything is refused.
    #[must_use]
    pub fn is_severe(&self) -> bool {
        self.0.value() >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RS-1.
    #[test]
    fn the_average_follows_with_six_tenths_and_counts_above_a_twentieth() {
        let mut rejection = Rejection::new(0.6);
        rejection.measure(&[0.5, 0.1]);
        assert!((rejection.probability() - 0.3).abs() < 1e-9);
        rejection.measure(&[0.0, 0.0]);
        assert!((rejection.probability() - 0.12).abs() < 1e-9);
        // 0.048 is not above 0.05.
        rejection.measure(&[0.0, 0.0]);
        assert!(rejection.probability() == 0.0);
    }

    /// RS-1.
    #[test]
    fn one_resource_that_is_used_up_refuses_everything_at_once() {
        let mut rejection = Rejection::new(0.6);
        rejection.measure(&[0.2, 1.0]);
        assert!(rejection.is_severe() && rejection.probability() == 1.0);
        rejection.measure(&[0.2, 0.9]);
        assert!(!rejection.is_severe());
        assert!((rejection.probability() - 0.94).abs() < 1e-9);
    }
}
