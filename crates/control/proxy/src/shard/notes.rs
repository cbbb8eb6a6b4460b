//! What operators can read of decisions with `trace user`.

use sluicegate_api::Decision;
use sluicegate_policy::is_name;

use super::{Now, Shard, events::Event, ladder::Asked};
use crate::{
    decisions::Decided,
    metrics::{Kind, Outcome},
};

/// Notes about senders that are not proved, per second.
const UNPROVED_NOTES_PER_SEC: u32 = 20;
/// Stands in notes for what is no name of a user or service.
const NO_NAME: &str = "(no name)";

/// How many notes were left about senders that are not proved: a flood of wrong passwords must not push out everything else.
#[derive(Debug, Default)]
pub(super) struct UnprovedNotes {
    /// Unix time, and the notes left in that second.
    second: u64,
    left: u32,
    /// Those that were not left since the last one.
    left_out: u64,
}

impl UnprovedNotes {
    /// Counts one more: how many were left out since the last, or `None` if this one is to be left out.
    const fn leave(&mut self, now: Now) -> Option<u64> {
        if self.second != now.unix.0 {
            (self.second, self.left) = (now.unix.0, 0);
        }
        self.left += 1;
        if self.left <= UNPROVED_NOTES_PER_SEC {
            return Some(std::mem::replace(&mut self.left_out, 0));
        }
        self.left_out += 1;
        None
    }
}

impl Shard {
    /// Leaves a note for `trace user`.
    pub(super) fn decided<S: Into<String>>(
        &mut self,
        now: Now,
        asked: Asked<'_, '_>,
        user: &str,
        (outcome, status): (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        let is_unproved = matches!(outcome, Outcome::BadDigest | Outcome::Guessing | Outcome::Replay);
        let left_out = if is_unproved { self.unproved_notes.leave(now) } else { Some(0) };
        let Some(left_out) = left_out else { return };
        // What is no name is anything that a stranger may write, and an operator's terminal would obey it.
        let named = |text: &str| if is_name(text) { text.to_owned() } else { NO_NAME.to_owned() };
        let decision = Decision {
            unix: now.unix.0,
            user: named(user),
            service: named(&asked.service()),
            client: asked.flow.peer,
            outcome: outcome.label().into(),
            status,
            steps: steps.into_iter().map(Into::into).collect(),
        };
        let renewal = asked.kind == Kind::Reinvite;
        self.raise(Event::Decided(Decided { decision, renewal, left_out }));
    }
}
