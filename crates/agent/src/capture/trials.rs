//! Destinations of which it is not known whether they speak capabilities, while that is found out.
//!
//! A request goes first. If a plain answer, or an ICMP error, shows that the far end knows nothing of capabilities,
//! what was sent last is sent again without a header, so that nobody waits for a retransmission.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use sluicegate_wire::Instant;

use super::Carrying;

/// Destinations on trial at once; more are tried without help.
const TRIALS_MAX: usize = 256;
/// How long a trial lasts.
const TRIAL: Duration = Duration::from_secs(10);
/// For how long a request goes encapsulated once it went natively in vain.
pub(super) const ENCAPSULATED_FOR: Duration = Duration::from_millis(1_500);

/// For how long a gate is asked by one carriage before the other has its turn.
pub(super) const CARRYING_FOR: Duration = Duration::from_millis(1_500);

#[derive(Debug)]
struct Trial {
    last: Box<[u8]>,
    ends: Instant,
    /// Until when requests go encapsulated, once they do.
    encapsulated_until: Option<Instant>,
    /// Whether the last packet went out plain.
    plain_last: bool,
    plain: bool,
}

/// All trials.
#[derive(Debug, Default)]
pub(super) struct Trials {
    open: HashMap<IpAddr, Trial>,
    /// What gates that have not answered yet were asked by last.
    asked_by: HashMap<IpAddr, Carrying>,
}

impl Trials {
    /// A first packet to `remote` goes out, and may have to go again.
    pub(super) fn asked(&mut self, now: Instant, remote: IpAddr, packet: &[u8]) {
        if let Some(trial) = self.open.get_mut(&remote) {
            trial.last = packet.into();
            trial.ends = now + TRIAL;
        } else if self.open.len() < TRIALS_MAX {
            let trial = Trial {
                last: packet.into(),
                ends: now + TRIAL,
                encapsulated_until: None,
                plain_last: false,
                plain: false,
            };
            self.open.insert(remote, trial);
        }
    }

    /// The native requests were in vain: whether encapsulation is to be tried next, which it is once.
    pub(super) fn turns_to_encapsulation(&mut self, now: Instant, remote: IpAddr) -> bool {
        let Some(trial) = self.open.get_mut(&remote).filter(|trial| trial.encapsulated_until.is_none()) else {
            return false;
        };
        trial.encapsulated_until = Some(now + ENCAPSULATED_FOR);
        true
    }

    /// How the next requests to a gate are carried that answered none: natively at first, then in turn.
    pub(super) fn next_carrying(&mut self, gate: IpAddr) -> Carrying {
        if !self.asked_by.contains_key(&gate) && self.asked_by.len() >= TRIALS_MAX {
            return Carrying::Native;
        }
        let next = match self.asked_by.get(&gate) {
            Some(Carrying::Native) => Carrying::Encapsulated,
            Some(Carrying::Encapsulated) | None => Carrying::Native,
        };
        self.asked_by.insert(gate, next);
        next
    }

    /// Whether the next packet goes plain although it could be a request: every other one, once both carriages have
    /// been in vain.
    pub(super) fn turns_to_plain(&mut self, now: Instant, remote: IpAddr) -> bool {
        let in_vain = |trial: &&mut Trial| trial.encapsulated_until.is_some_and(|until| until <= now);
        let Some(trial) = self.open.get_mut(&remote).filter(in_vain) else { return false };
        trial.plain_last = !trial.plain_last;
        trial.plain_last
    }

    /// A packet to `remote` goes out plain, and its answer will tell.
    pub(super) fn is_plain(&mut self, remote: IpAddr) {
        if let Some(trial) = self.open.get_mut(&remote) {
            trial.plain = true;
        }
    }

    /// Whether a plain answer is waited for.
    pub(super) fn wants_plain_answers(&self) -> bool {
        self.open.values().any(|trial| trial.plain)
    }

    /// Whether a plain answer of `remote` is waited for.
    pub(super) fn wants_plain_answer(&self, remote: IpAddr) -> bool {
        self.open.get(&remote).is_some_and(|trial| trial.plain)
    }

    /// It is known now. Returns what was sent last.
    pub(super) fn ended(&mut self, remote: IpAddr) -> Option<Box<[u8]>> {
        self.asked_by.remove(&remote);
        self.open.remove(&remote).map(|trial| trial.last)
    }

    /// Those whose time is over are given up.
    pub(super) fn expire(&mut self, now: Instant) {
        self.open.retain(|_, trial| trial.ends > now);
    }

    /// Destinations on trial.
    pub(super) fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.open.keys().copied()
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(1);

    fn remote(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(number))
    }

    #[test]
    fn a_trial_turns_to_encapsulation_once_and_gives_back_what_was_sent_last() {
        let mut trials = Trials::default();
        trials.asked(NOW, remote(1), b"first");
        assert!(!trials.turns_to_plain(NOW, remote(1)), "encapsulation comes first");
        assert!(trials.turns_to_encapsulation(NOW, remote(1)) && !trials.turns_to_encapsulation(NOW, remote(1)));
        assert!(!trials.turns_to_plain(NOW, remote(1)));
        let later = NOW + ENCAPSULATED_FOR;
        assert!(trials.turns_to_plain(later, remote(1)) && !trials.turns_to_plain(later, remote(1)));
        assert!(!trials.wants_plain_answers());
        trials.is_plain(remote(1));
        assert!(trials.wants_plain_answer(remote(1)) && !trials.wants_plain_answer(remote(2)));
        trials.asked(NOW, remote(1), b"second");
        assert_eq!(trials.ended(remote(1)).as_deref(), Some(&b"second"[..]));
        assert!(trials.is_empty());
    }

    #[test]
    fn a_gate_that_answers_nothing_is_asked_by_both_carriages_in_turn_and_then_anew() {
        let mut trials = Trials::default();
        let asked = [0; 3].map(|_| trials.next_carrying(remote(1)));
        assert_eq!(asked, [Carrying::Native, Carrying::Encapsulated, Carrying::Native]);
        trials.ended(remote(1));
        assert_eq!(trials.next_carrying(remote(1)), Carrying::Native);
        for number in 0..=TRIALS_MAX as u32 {
            trials.next_carrying(remote(number));
        }
        assert_eq!(trials.asked_by.len(), TRIALS_MAX);
    }

    #[test]
    fn trials_are_bounded_in_number_and_time() {
        let mut trials = Trials::default();
        for number in 0..=TRIALS_MAX as u32 {
            trials.asked(NOW, remote(number), b"x");
        }
        assert_eq!(trials.remotes().count(), TRIALS_MAX);
        trials.expire(NOW + TRIAL);
        assert!(trials.is_empty());
    }
}
