use core::time::Duration;

use sluicegate_wire::Instant;

use crate::{
    Used, Verdict, chance,
    class::{Class, InDialog},
    engineered::{Engineered, EngineeredError},
    excess::Excess,
    rejection::{Average, Rejection},
};

/// How a server that is overloaded refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusing {
    /// As R-SOCA does.
    Proportionally,
    /// What the paper compares it with: 503 to everything new while a resource is used up (RFC 3261 section 21.5.4), so that
    /// its senders stop for one to three seconds.
    Unavailable,
}

/// The paper's controller of one server.
#[derive(Debug)]
pub struct Rsoca {
    engineered: Engineered,
    refusing: Refusing,
    rejection: Rejection,
    cpu: Average,
    memory: f64,
    excess: Excess,
    /// With which probability what is sent once may be dropped at most.
    once_max: f64,
    measured_at: Instant,
}

impl Rsoca {
    /// A server that is not overloaded.
    ///
    /// # Errors
    /// What is wrong with `engineered`.
    pub fn new(engineered: Engineered, refusing: Refusing, now: Instant) -> Result<Self, EngineeredError> {
        let engineered = engineered.checked()?;
        Ok(Self {
            engineered,
            refusing,
            rejection: Rejection::new(engineered.smoothing),
            cpu: Average::new(engineered.smoothing),
            memory: 0.0,
            excess: Excess::new(engineered.smoothing),
            once_max: Engineered { sends: 1, ..engineered }.drop_max(),
            measured_at: now,
        })
    }

    /// A request arrives in a datagram. `draw` is random, or a keyed hash of what tells the request from others.
    pub fn arrive(&mut self, class: Class, draw: u64) -> Verdict {
        self.judge(class, draw, 1.0)
    }

    /// A request arrives over a stream: nobody sends it again, n of equation 3 is 1.
    pub fn arrive_once(&mut self, class: Class, draw: u64) -> Verdict {
        self.judge(class, draw, self.once_max)
    }

    fn judge(&mut self, class: Class, draw: u64, drop_max: f64) -> Verdict {
        match class {
            Class::InDialog(kind) => self.judge_in_dialog(kind, draw, drop_max),
            Class::Invite | Class::Register | Class::Other => {
                let is_refused = match self.refusing {
                    Refusing::Proportionally => {
                        chance(draw) < self.rejection.probability()
                            // Counts what is left: with all that arrives counted, 10,000 INVITEs/s would leave 1,200 of the
                            // 1,500 that Figure 8 shows.
                            || class.outside().is_some_and(|place| self.excess.is_burst(place, &self.engineered))
                    }
                    Refusing::Unavailable => self.rejection.is_severe(),
                };
                if is_refused { self.reject(draw) } else { Verdict::Pass }
            }
        }
    }

    fn judge_in_dialog(&mut self, kind: InDialog, draw: u64, drop_max: f64) -> Verdict {
        let dropped = self.excess.dropped(kind).min(drop_max);
        if self.refusing == Refusing::Unavailable {
            return Verdict::Pass;
        }
        if self.rejection.is_severe() {
            // Nothing answers an ACK.
            return if kind == InDialog::Ack { Verdict::Drop } else { self.reject(draw) };
        }
        if chance(draw) >= dropped {
            return Verdict::Pass;
        }
        // A session survives that its refresh comes later, and its sender keeps the transaction anyway.
        if kind == InDialog::ReInvite { self.reject(draw) } else { Verdict::Drop }
    }

    /// Senders that are told different times do not all come back at once.
    fn reject(&self, draw: u64) -> Verdict {
        let spread = draw & u64::from(u32::MAX);
        let (status, least, most) = match self.refusing {
            Refusing::Proportionally => {
                // From one second to five, the more is refused.
                let least = 1 + (4.0 * self.rejection.probability()) as u64;
                (500, least, 2 * least)
            }
            Refusing::Unavailable => (503, 1, 3),
        };
        Verdict::Reject { status, retry_after_s: (least + spread % (most - least + 1)) as u32 }
    }

    /// So many INVITEs that began a session were answered with 2xx.
    pub const fn succeed(&mut self, invites: u64) {
        self.excess.succeed(invites);
    }

    /// When to measure next.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.measured_at + self.engineered.interval
    }

    /// Ends an interval. Before any time has passed nothing happens.
    pub fn measure(&mut self, now: Instant, used: Used) {
        let seconds = now.since(self.measured_at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        self.measured_at = now;
        self.memory = used.memory as f64;
        // What cannot be told counts as all of it.
        let cpu = if used.cpu.is_nan() { 1.0 } else { used.cpu.clamp(0.0, 1.0) };
        let cpu = self.engineered.cpu.rejection(self.cpu.take(cpu));
        self.rejection.measure(&[cpu, self.engineered.memory().rejection(self.memory)]);
        self.excess.measure(seconds, &self.engineered);
    }

    /// How old a transaction of this kind may get, if there are limits at the moment: once the engineered load's memory is
    /// used (section III-D). What is older is to be ended: an INVITE, a REGISTER and what is outside dialogs with 500, what is
    /// within one without an answer, so that it is sent again.
    #[must_use]
    pub fn age_max(&self, class: Class) -> Option<Duration> {
        let durations = self.engineered.durations;
        let ordinary = match class {
            Class::Invite => durations.invite,
            Class::Register => durations.register,
            Class::Other | Class::InDialog(_) => durations.other,
        };
        (self.memory >= self.engineered.memory().min).then(|| ordinary.mul_f64(self.engineered.stretch))
    }

    /// Bytes that one transaction counts for.
    #[must_use]
    pub const fn transaction_bytes(&self) -> f64 {
        self.engineered.transaction_bytes
    }

    /// With which probability requests outside dialogs are refused.
    #[must_use]
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const NEVER: u64 = u64::MAX;
    const ALWAYS: u64 = 0;

    fn controller(refusing: Refusing) -> Rsoca {
        Rsoca::new(Engineered::PAPER, refusing, Instant::ZERO).expect("the paper's")
    }

    const fn used(cpu: f64, memory: u64) -> Used {
        Used { cpu, begun: 1.0, memory, sojourn: Duration::ZERO, lost: 0.0, crowd: crate::Crowd::NONE }
    }

    fn second(n: u64) -> Instant {
        Instant::from_secs(n)
    }

    const IDLE: Used =
        Used { cpu: 0.1, begun: 1.0, memory: 1_000_000, sojourn: Duration::ZERO, lost: 0.0, crowd: crate::Crowd::NONE };

    #[test]
    fn nothing_is_refused_while_the_engineered_load_comes() {
        let mut controller = controller(Refusing::Proportionally);
        for n in 1..100 {
            for _ in 0..1_000 {
                assert_eq!(controller.arrive(Class::Invite, ALWAYS), Verdict::Pass);
                controller.succeed(1);
                assert_eq!(controller.arrive(Class::InDialog(InDialog::Bye), ALWAYS), Verdict::Pass);
            }
            controller.measure(second(n), IDLE);
        }
        assert_eq!(controller.age_max(Class::Invite), None);
    }

    /// RS-3: the cap.
    #[test]
    fn a_burst_beyond_its_factor_is_rejected_until_the_interval_ends() {
        let mut controller = controller(Refusing::Proportionally);
        let passed = |controller: &mut Rsoca| {
            (0..10_000).filter(|_| controller.arrive(Class::Invite, NEVER) == Verdict::Pass).count()
        };
        assert_eq!(passed(&mut controller), 1_700);
        controller.measure(second(1), IDLE);
        assert_eq!(passed(&mut controller), 1_700);
    }

    #[test]
    fn a_flood_of_byes_is_dropped_as_far_as_retransmissions_get_through() {
        let mut controller = controller(Refusing::Proportionally);
        let bye = Class::InDialog(InDialog::Bye);
        // Of 3,400/s, where 1,700/s are expected, one half.
        for _ in 0..3_400 {
            assert_eq!(controller.arrive(bye, ALWAYS), Verdict::Pass);
        }
        controller.measure(second(1), IDLE);
        assert_eq!(controller.arrive(bye, (1 << 63) - 1), Verdict::Drop);
        assert_eq!(controller.arrive(bye, 1 << 63), Verdict::Pass);
        // Over a stream one in ten.
        assert_eq!(controller.arrive_once(bye, u64::MAX / 11), Verdict::Drop);
        assert_eq!(controller.arrive_once(bye, u64::MAX / 9), Verdict::Pass);
        // Other kinds are counted by themselves.
        assert_eq!(controller.arrive(Class::InDialog(InDialog::Update), ALWAYS), Verdict::Pass);
        // Of any number of them 20.6 % pass.
        for _ in 0..100_000 {
            let _ = controller.arrive(bye, NEVER);
        }
        controller.measure(second(2), IDLE);
        let at = |share: f64| (share * 2_f64.powi(64)) as u64;
        assert_eq!(controller.arrive(bye, at(0.794)), Verdict::Drop);
        assert_eq!(controller.arrive(bye, at(0.795)), Verdict::Pass);
    }

    #[test]
    fn a_refresh_too_many_is_told_when_to_come_again() {
        let mut controller = controller(Refusing::Proportionally);
        for _ in 0..10_000 {
            let _ = controller.arrive(Class::InDialog(InDialog::ReInvite), ALWAYS);
        }
        controller.measure(second(1), IDLE);
        let verdict = controller.arrive(Class::InDialog(InDialog::ReInvite), ALWAYS);
        assert_eq!(verdict, Verdict::Reject { status: 500, retry_after_s: 1 });
    }

    #[test]
    fn what_runs_goes_on_while_new_requests_are_rejected_by_chance() {
        let mut controller = controller(Refusing::Proportionally);
        for n in 1..9 {
            controller.measure(second(n), used(0.39, 0));
        }
        for class in [Class::Invite, Class::Register, Class::Other] {
            assert!(matches!(controller.arrive(class, ALWAYS), Verdict::Reject { status: 500, .. }));
            assert_eq!(controller.arrive(class, NEVER), Verdict::Pass);
        }
        for kind in InDialog::ALL {
            assert_eq!(controller.arrive(Class::InDialog(kind), ALWAYS), Verdict::Pass);
        }
    }

    #[test]
    fn a_resource_that_is_used_up_refuses_everything() {
        let mut controller = controller(Refusing::Proportionally);
        controller.measure(second(1), used(0.0, 170_000_000));
        for class in [Class::Invite, Class::Register, Class::Other, Class::InDialog(InDialog::Bye)] {
            assert!(matches!(controller.arrive(class, NEVER), Verdict::Reject { status: 500, .. }));
        }
        assert_eq!(controller.arrive(Class::InDialog(InDialog::Ack), NEVER), Verdict::Drop);
    }

    #[test]
    fn old_transactions_end_once_the_memory_of_the_engineered_load_is_used() {
        let mut controller = controller(Refusing::Proportionally);
        controller.measure(second(1), used(0.0, 84_900_000));
        assert_eq!(controller.age_max(Class::Invite), None);
        controller.measure(second(2), used(0.0, 85_000_000));
        assert_eq!(controller.age_max(Class::Invite), Some(Duration::from_secs(20)));
        assert_eq!(controller.age_max(Class::Register), Some(Duration::from_secs(2)));
        assert_eq!(controller.age_max(Class::InDialog(InDialog::Bye)), Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_baseline_says_503_for_one_to_three_seconds_and_only_when_used_up() {
        let mut controller = controller(Refusing::Unavailable);
        controller.measure(second(1), used(0.0, 169_900_000));
        assert_eq!(controller.arrive(Class::Invite, ALWAYS), Verdict::Pass);
        controller.measure(second(2), used(0.0, 170_000_000));
        let times: Vec<u32> = (0..6)
            .map(|draw| match controller.arrive(Class::Invite, draw) {
                Verdict::Reject { status: 503, retry_after_s } => retry_after_s,
                verdict => panic!("{verdict:?}"),
            })
            .collect();
        assert_eq!(times, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn time_that_stands_still_or_goes_back_measures_nothing() {
        let mut controller = controller(Refusing::Proportionally);
        controller.measure(second(5), IDLE);
        controller.measure(second(5), used(1.0, u64::MAX));
        controller.measure(second(1), used(1.0, u64::MAX));
        assert_eq!(controller.arrive(Class::Invite, ALWAYS), Verdict::Pass);
    }

    proptest! {
        /// Whatever is measured, probabilities stay probabilities, and an idle server serves again.
        #[test]
        fn it_recovers_from_whatever_it_measures(
            steps in prop::collection::vec((0_u64..5_000, any::<f64>(), any::<u64>(), 0_usize..3_000), 0..40),
        ) {
            let mut controller = controller(Refusing::Proportionally);
            let mut now = 0;
            for (millis, cpu, memory, byes) in steps {
                now += millis;
                for _ in 0..byes {
                    let _ = controller.arrive(Class::InDialog(InDialog::Bye), NEVER);
                }
                controller.measure(Instant::from_millis(now), used(cpu, memory));
                let probability = controller.rejection().probability();
                prop_assert!((0.0..=1.0).contains(&probability), "{probability}");
            }
            for n in 1..10 {
                controller.measure(Instant::from_millis(now + 1_000 * n), IDLE);
            }
            prop_assert_eq!(controller.arrive(Class::Invite, ALWAYS), Verdict::Pass);
            prop_assert_eq!(controller.arrive(Class::InDialog(InDialog::Bye), ALWAYS), Verdict::Pass);
        }
    }
}
