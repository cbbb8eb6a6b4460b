use core::time::Duration;

use crate::class::InDialog;

/// How many requests a second a server is built for (E in the paper).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// INVITEs that begin a session (E_I).
    pub invites: f64,
    /// Requests within dialogs (E_D).
    pub in_dialog: f64,
    /// REGISTERs (E_R).
    pub registers: f64,
    /// Other requests outside dialogs (E_O).
    pub others: f64,
}

/// How long transactions ordinarily last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durations {
    /// Those of INVITEs that begin a session, ringing included (T_I).
    pub invite: Duration,
    /// Those of REGISTERs (T_R).
    pub register: Duration,
    /// All others (T_O).
    pub other: Duration,
}

/// From where on a resource makes a server refuse, and where it makes it refuse everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// What the engineered load uses (R_min).
    pub min: f64,
    /// What the worst load that is to be served uses (R_max).
    pub max: f64,
}

impl Thresholds {
    /// Equation 1: with which probability a request is to be refused when this much is used.
    #[must_use]
    pub fn rejection(self, used: f64) -> f64 {
        if used <= self.min {
            0.0
        } else if used >= self.max {
            1.0
        } else {
            (used - self.min) / (self.max - self.min)
        }
    }
}

/// What a server is built for, and how it is controlled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Engineered {
    /// Requests a second.
    pub load: Load,
    /// How long their transactions last.
    pub durations: Durations,
    /// Between two measurements (T).
    pub interval: Duration,
    /// Weight of the newest value in moving averages (sigma).
    pub smoothing: f64,
    /// Share of the time of all threads, 0 to 1 (C_min, C_max).
    pub cpu: Thresholds,
    /// What one transaction takes, in bytes (S).
    pub transaction_bytes: f64,
    /// How many times the engineered load may come in a burst (B_en).
    pub burst: f64,
    /// How many times its ordinary duration a transaction may last, and so how many times the memory of the engineered load
    /// there is (B); above [`Self::burst`].
    pub stretch: f64,
    /// With which probability none of the sends of one in-dialog request passes, at most (p_pass: the paper's name says the
    /// opposite, its arithmetic and Table I do not).
    pub pass: f64,
    /// How often an in-dialog request is sent before its sender gives up (n).
    pub sends: u32,
    /// Re-INVITEs in a session: its mean duration over its session timer (N_r).
    pub refreshes: f64,
}

/// Why a server cannot be controlled so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EngineeredError {
    /// `cpu`: not 0 <= min < max <= 1.
    #[error("the CPU thresholds have to be shares from 0 to 1, the lower one first")]
    Cpu,
    /// `smoothing` or `pass`: not between 0 and 1.
    #[error("the weight of the newest value and the probability that nothing passes have to lie between 0 and 1")]
    Share,
    /// `burst` below 1, or `stretch` not above it (section III-D) or beyond any duration.
    #[error("bursts of at least the engineered load have to fit, and memory has to last for more than a burst")]
    Factors,
    /// A rate, a duration, an amount or a count that is not above zero.
    #[error("rates, durations, bytes a transaction, the interval and the number of sends have to be above zero")]
    Zero,
}

impl Engineered {
    /// The paper's test set-up (section IV), with the engineered load of its figures: 1,000 calls/s.
    pub const PAPER: Self = Self {
        // Of its tests that measure memory only INVITEs count: M_min is 85 MB (section IV-C).
        load: Load { invites: 1_000.0, in_dialog: 0.0, registers: 0.0, others: 0.0 },
        durations: Durations {
            invite: Duration::from_secs(10),
            register: Duration::from_secs(1),
            other: Duration::from_secs(1),
        },
        interval: Duration::from_secs(1),
        smoothing: 0.6,
        cpu: Thresholds { min: 0.2, max: 0.4 },
        transaction_bytes: 8_500.0,
        burst: 1.7,
        stretch: 2.0,
        pass: 0.1,
        sends: 10,
        refreshes: 1.0,
    };

    /// The same, if a server can be controlled so.
    ///
    /// # Errors
    /// What is wrong.
    pub fn checked(self) -> Result<Self, EngineeredError> {
        let share = |share: f64| share > 0.0 && share < 1.0;
        let Load { invites, in_dialog, registers, others } = self.load;
        if !(self.cpu.min >= 0.0 && self.cpu.min < self.cpu.max && self.cpu.max <= 1.0) {
            return Err(EngineeredError::Cpu);
        }
        if !(share(self.smoothing) && share(self.pass)) {
            return Err(EngineeredError::Share);
        }
        let Durations { invite, register, other } = self.durations;
        let oldest = invite.max(register).max(other).as_secs_f64() * self.stretch;
        if !(self.burst >= 1.0 && self.stretch > self.burst && Duration::try_from_secs_f64(oldest).is_ok()) {
            return Err(EngineeredError::Factors);
        }
        let amounts = [invites, self.transaction_bytes];
        let rest = [in_dialog, registers, others, self.refreshes];
        let is_empty = self.interval.is_zero() || invite.is_zero() || self.sends == 0;
        if is_empty
            || !amounts.iter().all(|amount| *amount > 0.0 && amount.is_finite())
            || !rest.iter().all(|amount| *amount >= 0.0 && amount.is_finite())
        {
            return Err(EngineeredError::Zero);
        }
        Ok(self)
    }

    /// Equations 8 and 9: bytes that the transactions of the engineered load take, and `stretch` times as many.
    #[must_use]
    pub fn memory(&self) -> Thresholds {
        let Load { invites, in_dialog, registers, others } = self.load;
        let Durations { invite, register, other } = self.durations;
        let open = invites * invite.as_secs_f64()
            + (in_dialog + others) * other.as_secs_f64()
            + registers * register.as_secs_f64();
        let min = self.transaction_bytes * open;
        Thresholds { min, max: min * self.stretch }
    }

    /// Equations 3 and 4: with which probability an in-dialog request may be dropped at most, so that of `sends` sends one
    /// passes but for `pass`. `p^n < p_pass`: the largest such number that a double holds.
    #[must_use]
    pub fn drop_max(&self) -> f64 {
        let (mut low, mut high) = (0.0_f64, 1.0_f64);
        // The root lies between them; each step halves the distance.
        for _ in 0..64 {
            let middle = f64::midpoint(low, high);
            if power(middle, self.sends) < self.pass { low = middle } else { high = middle }
        }
        low
    }

    /// Equations 5 and 6: how many requests a second of this kind are expected (D_en), if so many INVITEs a second succeed.
    #[must_use]
    pub fn expected(&self, kind: InDialog, succeeding: f64) -> f64 {
        let calls = self.load.invites.max(succeeding) * self.burst;
        match kind {
            InDialog::Bye | InDialog::Ack | InDialog::Cancel | InDialog::Prack | InDialog::Update => calls,
            InDialog::ReInvite => calls * self.refreshes,
            InDialog::Other => self.load.in_dialog * self.burst,
        }
    }
}

/// `base` to the power of `exponent`.
fn power(base: f64, exponent: u32) -> f64 {
    (0..exponent).fold(1.0, |power, _| power * base)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RS-1.
    #[test]
    fn the_probability_of_rejection_grows_evenly_between_the_thresholds() {
        let cpu = Engineered::PAPER.cpu;
        for (used, rejection) in [(0.0, 0.0), (0.2, 0.0), (0.23, 0.15), (0.3, 0.5), (0.4, 1.0), (0.9, 1.0)] {
            assert!((cpu.rejection(used) - rejection).abs() < 1e-9, "{used}");
        }
    }

    /// RS-7.
    #[test]
    fn memory_is_that_of_the_engineered_load_and_twice_as_much() {
        let memory = Engineered::PAPER.memory();
        assert!((memory.min - 85e6).abs() < 1e-3 && (memory.max - 170e6).abs() < 1e-3, "{memory:?}");
    }

    /// RS-9.
    #[test]
    fn of_ten_sends_one_passes_but_for_a_tenth() {
        let drop_max = Engineered::PAPER.drop_max();
        assert!(power(drop_max, 10) < 0.1);
        assert!((drop_max - 0.794_328_234_7).abs() < 1e-9, "{drop_max}");
        // Where nothing is sent again the request itself has to pass.
        let once = Engineered { sends: 1, ..Engineered::PAPER };
        assert!((once.drop_max() - 0.1).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_be_controlled_is_said() {
        let paper = Engineered::PAPER;
        assert_eq!(paper.checked(), Ok(paper));
        let cpu = Thresholds { min: 0.4, max: 0.4 };
        assert_eq!(Engineered { cpu, ..paper }.checked(), Err(EngineeredError::Cpu));
        assert_eq!(Engineered { pass: 0.0, ..paper }.checked(), Err(EngineeredError::Share));
        assert_eq!(Engineered { stretch: 1.7, ..paper }.checked(), Err(EngineeredError::Factors));
        assert_eq!(Engineered { stretch: 1e300, ..paper }.checked(), Err(EngineeredError::Factors));
        assert_eq!(Engineered { burst: f64::NAN, ..paper }.checked(), Err(EngineeredError::Factors));
        assert_eq!(Engineered { sends: 0, ..paper }.checked(), Err(EngineeredError::Zero));
        let load = Load { registers: f64::INFINITY, ..paper.load };
        assert_eq!(Engineered { load, ..paper }.checked(), Err(EngineeredError::Zero));
    }
}
