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

/// For how long a destination is reached by one carriage before the other has its turn, unless data arrives: less than
/// TCP waits before it repeats a SYN, so that the second one goes the other way.
const CARRYING_FOR: Duration = Duration::from_millis(900);
/// How long a destination that nothing is sent to is remembered, at least.
const COURSE_KEPT: Duration = Duration::from_secs(60);

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

/// How packets to a destination are carried that is known to speak capabilities while nobody said how.
#[derive(Debug)]
struct Course {
    carrying: Carrying,
    /// When the other carriage has its turn; counted from the first packet that goes this way.
    until: Option<Instant>,
    /// Whether data came back whole. What the far end's capability host says is no sign: it looks at no checksum, and a
    /// translator on the way spoils those of native packets.
    arrives: bool,
    used_at: Instant,
}

/// All trials.
#[derive(Debug, Default)]
pub(super) struct Trials {
    open: HashMap<IpAddr, Trial>,
    courses: HashMap<IpAddr, Course>,
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

    /// How packets to a destination are carried now: natively at first, and by the other carriage in turn until data has
    /// come back.
    pub(super) fn carrying(&mut self, now: Instant, remote: IpAddr) -> Carrying {
        if !self.courses.contains_key(&remote) {
            if self.courses.len() >= TRIALS_MAX {
                self.courses.retain(|_, course| course.used_at + COURSE_KEPT > now);
            }
            if self.courses.len() >= TRIALS_MAX {
                return Carrying::Native;
            }
            let course = Course { carrying: Carrying::Native, until: None, arrives: false, used_at: now };
            self.courses.insert(remote, course);
        }
        let Some(course) = self.courses.get_mut(&remote) else { return Carrying::Native };
        course.used_at = now;
        if !course.arrives && course.until.is_some_and(|until| until <= now) {
            course.carrying = match course.carrying {
                Carrying::Native => Carrying::Encapsulated,
                Carrying::Encapsulated => Carrying::Native,
            };
            course.until = None;
        }
        course.until.get_or_insert(now + CARRYING_FOR);
        course.carrying
    }

    /// Whether data of this destination has arrived whole.
    pub(super) fn has_arrived(&self, remote: IpAddr) -> bool {
        self.courses.get(&remote).is_none_or(|course| course.arrives)
    }

    /// Data arrived by this carriage, or somebody told that it does.
    pub(super) fn arrived(&mut self, now: Instant, remote: IpAddr, carrying: Carrying) {
        self.carrying(now, remote);
        if let Some(course) = self.courses.get_mut(&remote) {
            (course.carrying, course.arrives) = (carrying, true);
        }
    }

    /// Data arrived that a translator on the way has spoiled. Whether that ends native carriage's turn: anybody may forge
    /// such data, and a turn can be ended only as often as it comes.
    pub(super) fn arrived_spoiled(&mut self, remote: IpAddr) -> bool {
        let Some(course) = self.courses.get_mut(&remote).filter(|course| course.carrying == Carrying::Native) else {
            return false;
        };
        (course.carrying, course.until) = (Carrying::Encapsulated, None);
        true
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
    fn both_carriages_have_their_turn_until_data_arrives_by_one() {
        let mut trials = Trials::default();
        let turns = [0, 1, 2, 3].map(|turn| trials.carrying(NOW + CARRYING_FOR * turn, remote(1)));
        let (native, encapsulated) = (Carrying::Native, Carrying::Encapsulated);
        assert_eq!(turns, [native, encapsulated, native, encapsulated]);
        assert!(!trials.has_arrived(remote(1)));
        let later = NOW + CARRYING_FOR * 4;
        trials.arrived(later, remote(1), encapsulated);
        assert!(trials.has_arrived(remote(1)));
        assert_eq!([4, 5, 60].map(|turn| trials.carrying(NOW + CARRYING_FOR * turn, remote(1))), [encapsulated; 3]);
    }

    #[test]
    fn data_that_a_translator_has_spoiled_ends_native_carriage_at_once() {
        let mut trials = Trials::default();
        assert_eq!(trials.carrying(NOW, remote(1)), Carrying::Native);
        assert!(trials.arrived_spoiled(remote(1)));
        assert!(!trials.arrived_spoiled(remote(1)), "once a turn, however often it comes");
        // What is sent next goes the other way, whenever that is.
        let next = NOW + CARRYING_FOR * 2;
        assert_eq!(trials.carrying(next, remote(1)), Carrying::Encapsulated);
        assert!(!trials.has_arrived(remote(1)));
        assert_eq!(trials.carrying(next + CARRYING_FOR, remote(1)), Carrying::Native);
    }

    #[test]
    fn a_full_table_of_courses_lets_go_of_those_that_nobody_uses() {
        let mut trials = Trials::default();
        for number in 0..=TRIALS_MAX as u32 {
            trials.carrying(NOW, remote(number));
        }
        assert_eq!(trials.courses.len(), TRIALS_MAX);
        trials.carrying(NOW + COURSE_KEPT, remote(u32::MAX));
        assert_eq!(trials.courses.len(), 1);
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
