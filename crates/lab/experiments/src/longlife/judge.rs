//! What has to hold of what was carried.

use std::ops::Range;

use super::{Row, ways::Way};
use crate::report::rows::Report;
use sluicegate_site::cpu::Stolen;
use sluicegate_traffic::client::haul::{Haul, Order, Pause};

/// The longest that nothing may come.
const PAUSE_MS_MAX: f64 = 2_000.0;
/// The same where the client moves: it has to notice, and senders that have waited wait as long again.
const MOVE_MS_MAX: f64 = 7_000.0;
/// What is said before and after a move is of the move.
const MOVE_BEFORE_NS: u64 = 500_000_000;
const MOVE_AFTER_NS: u64 = 2_000_000_000;

/// One transfer that was to be made.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) way: Way,
    pub(super) order: Order,
    /// `None`: its process said nothing.
    pub(super) haul: Option<Haul>,
}

/// Judges the transfers of a row. `moved_at`: when clients moved, nanoseconds since 1970.
pub(super) fn judge(report: &mut Report, row: Row, carried: &[Carried], moved_at: &[u64], stolen: &Stolen) {
    for Carried { way, order, haul } in carried {
        let about = (row.label(), way.into_str());
        let direction = if order.upload { "up" } else { "down" };
        let is_whole = haul.as_ref().is_some_and(|haul| haul.bytes == order.bytes && haul.error.is_none());
        if let Some(error) = haul.as_ref().and_then(|haul| haul.error.as_ref()) {
            eprintln!("{} {} {direction}: {error}", row.label(), way.into_str());
        }
        report.of(about).at_least(&format!("whole_{direction}"), f64::from(u8::from(is_whole)), 1.0);
        let Some(haul) = haul else { continue };
        report.of(about).note(&format!("mb_per_s_{direction}"), haul.bytes as f64 / 1e3 / haul.ms.max(1) as f64);
        let (moving, others): (Vec<&Pause>, Vec<&Pause>) =
            haul.pauses.iter().partition(|pause| moved_at.iter().any(|at| is_of_move(pause, *at)));
        // What the machine's host took of a pause was no pause of ours.
        let longest = |pauses: &[&Pause]| {
            let own = |pause: &&Pause| {
                let during = during(pause);
                pause.ms.saturating_sub(stolen.between(during.start, during.end) / 1_000_000)
            };
            pauses.iter().map(own).max().unwrap_or(0) as f64
        };
        // A program that had no processor pauses as well.
        let is_disturbed = stolen.taken().is_much();
        let mut timed = report.of(about).disturbed(is_disturbed);
        timed.at_most(&format!("pause_{direction}_ms"), longest(&others), PAUSE_MS_MAX);
        if !moved_at.is_empty() {
            timed.at_most(&format!("pause_at_move_{direction}_ms"), longest(&moving), MOVE_MS_MAX);
        }
    }
}

const fn during(pause: &Pause) -> Range<u64> {
    pause.began_ns..pause.began_ns + pause.ms * 1_000_000
}

fn is_of_move(pause: &Pause, at: u64) -> bool {
    let pause = during(pause);
    pause.start < at + MOVE_AFTER_NS && pause.end > at.saturating_sub(MOVE_BEFORE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    const S: u64 = 1_000_000_000;

    fn verdict(haul: Option<Haul>, moved_at: &[u64]) -> Verdict {
        let mut report = Report::default();
        let order = Order { upload: false, bytes: 10, bytes_per_s: 0 };
        judge(&mut report, Row::Roaming, &[Carried { way: Way::Run, order, haul }], moved_at, &Stolen::default());
        report.figures.verdict()
    }

    fn haul(bytes: u64, pauses: &[(u64, u64)]) -> Option<Haul> {
        let pauses = pauses.iter().map(|(began_ns, ms)| Pause { began_ns: *began_ns, ms: *ms }).collect();
        Some(Haul { bytes, ms: 1, pauses, error: None })
    }

    #[test]
    fn what_is_whole_and_without_long_pauses_holds_and_nothing_else() {
        assert_eq!(verdict(haul(10, &[(50 * S, 1_900)]), &[]), Verdict::Holds);
        for wrong in [None, haul(9, &[]), haul(10, &[(50 * S, 2_100)])] {
            assert_eq!(verdict(wrong, &[]), Verdict::Missed);
        }
    }

    #[test]
    fn a_move_may_take_longer_than_other_pauses_but_not_for_ever() {
        assert_eq!(verdict(haul(10, &[(50 * S, 5_000)]), &[50 * S]), Verdict::Holds);
        assert_eq!(verdict(haul(10, &[(50 * S, 7_100)]), &[50 * S]), Verdict::Missed);
        assert_eq!(verdict(haul(10, &[(53 * S, 5_000)]), &[50 * S]), Verdict::Missed, "that is another");
    }
}
