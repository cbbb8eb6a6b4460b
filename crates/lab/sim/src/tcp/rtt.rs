use std::time::Duration;

/// The longest retransmission timeout, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;

/// The retransmission timeout of RFC 6298, in integer nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rtt {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    min_ns: u64,
    backoff: u32,
}

impl Rtt {
    pub(super) const fn new(min: Duration) -> Self {
        Self { smoothed_ns: None, variation_ns: 0, min_ns: min.as_nanos() as u64, backoff: 0 }
    }

    /// Takes in one measured round trip.
    pub(super) fn sample(&mut self, measured: Duration) {
        let measured_ns = measured.as_nanos() as u64;
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(measured_ns);
                self.variation_ns = measured_ns / 2;
            }
            Some(smoothed_ns) => {
                self.variation_ns = (3 * self.variation_ns + smoothed_ns.abs_diff(measured_ns)) / 4;
                self.smoothed_ns = Some((7 * smoothed_ns + measured_ns) / 8);
            }
        }
        self.backoff = 0;
    }

    /// Doubles the timeout until the next sample.
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Ends the doubling: new data was acknowledged.
    pub(super) const fn recovered(&mut self) {
        self.backoff = 0;
    }

    pub(super) fn timeout(&self) -> Duration {
        let base_ns = self.smoothed_ns.map_or(1_000_000_000, |smoothed_ns| smoothed_ns + 4 * self.variation_ns);
        Duration::from_nanos((base_ns.max(self.min_ns) << self.backoff).min(MAX_NS))
    }
}
