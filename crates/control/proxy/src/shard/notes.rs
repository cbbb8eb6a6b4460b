//! What operators can read of decisions with `trace user`.

use sluicegate_api::Decision;
use sluicegate_policy::is_name;

use super::{Shard, events::Event, ladder::Asked};
use crate::{
    decisions::Decided,
    metrics::{Kind, Outcome},
};

/// Notes about senders that are not proved, per second.
pub(super) const UNPROVED_NOTES_PER_SEC: u32 = 20;
/// Stands in notes for what is no name of a user or service.
const NO_NAME: &str = "(no name)";

impl Shard {
    /// Leaves a note for `trace user`.
    pub(super) fn decided<S: Into<String>>(
        &mut self,
        asked: Asked<'_, '_>,
        user: &str,
        (outcome, status): (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        // A flood of wrong passwords must not push out everything else.
        let is_unproved = matches!(outcome, Outcome::BadDigest | Outcome::Guessing | Outcome::Replay);
        let left_out = if is_unproved { self.unproved_notes.admit(self.now.instant) } else { Some(0) };
        let Some(left_out) = left_out else { return };
        // What is no name is anything that a stranger may write, and an operator's terminal would obey it.
        let named = |text: &str| if is_name(text) { text.to_owned() } else { NO_NAME.to_owned() };
        let decision = Decision {
            unix: self.now.unix.0,
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
