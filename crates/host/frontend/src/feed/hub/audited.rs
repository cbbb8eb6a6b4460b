//! What the hub writes into the audit log: sign-ins, and grants from their opening to their end.

use std::{collections::BTreeMap, time::Duration};

use sluicegate_api::{CallStory, GrantState, GrantStatus};
use sluicegate_feed::{EndCause, Selector};
use sluicegate_grant::GrantId;
use sluicegate_store::audit::{Attempt, Audit, Call, Event, Grant};
use sluicegate_wire::Instant;

use sluicegate_proxy::{Decided, Ledger, Outcome};

/// How long a gate has to say what a revoked grant used; then what it said last is written.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most grants about which a gate is waited for.
const ENDING_MAX: usize = 8_192;

/// A revoked grant, which is in the directory no more.
#[derive(Debug)]
struct Ending {
    row: GrantStatus,
    cause: &'static str,
    until: Instant,
}

/// The hub's pen.
#[derive(Debug)]
pub(crate) struct Audited {
    audit: Option<Audit>,
    ending: BTreeMap<(GrantId, String), Ending>,
}

impl Audited {
    pub(crate) const fn new(audit: Option<Audit>) -> Self {
        Self { audit, ending: BTreeMap::new() }
    }

    fn write(&self, event: &Event, left_out: u64) {
        if let Some(audit) = &self.audit {
            audit.write(event, left_out);
        }
    }

    /// Somebody signed in, or did not. Requests that go on with a call are told of as renewals of its grants.
    pub(super) fn decided(&self, decided: &Decided) {
        let said = &decided.decision;
        let is = |outcome: Outcome| said.outcome == outcome.label();
        let (event, is_refused): (fn(Attempt) -> Event, _) = if is(Outcome::Admitted) && !decided.renewal {
            (Event::SignedIn, false)
        } else if is(Outcome::Denied) {
            (Event::SignInDenied, true)
        } else if [Outcome::BadDigest, Outcome::Guessing, Outcome::Replay, Outcome::Handshake].into_iter().any(is) {
            (Event::SignInFailed, true)
        } else {
            return;
        };
        let sign_in = Attempt {
            address: said.client.ip().to_canonical(),
            port: said.client.port(),
            user: said.user.clone(),
            service: said.service.clone(),
            why: is_refused.then(|| said.steps.join("; ")),
        };
        self.write(&event(sign_in), decided.left_out);
    }

    /// A call is over.
    pub(super) fn call(&self, story: CallStory) {
        call_ended(story).iter().for_each(|event| self.write(event, 0));
    }

    /// A gate has opened or renewed a grant, which stood like this before.
    pub(super) fn opened(&self, before: Option<GrantStatus>) {
        let Some(row) = before else { return };
        let event = match row.state {
            GrantState::Opening => Event::GrantOpened(grant(row)),
            GrantState::Open => Event::GrantRenewed(grant(row)),
        };
        self.write(&event, 0);
    }

    /// These grants are about to be revoked: what each used in the end, its gate will say.
    pub(super) fn ending(&mut self, now: Instant, (selector, cause): (&Selector, &'static str), ledger: &Ledger) {
        if self.audit.is_none() {
            return;
        }
        for row in ledger.matching(selector).into_iter().filter(|row| row.state == GrantState::Open) {
            let ending = Ending { row, cause, until: now + PATIENCE };
            if self.ending.len() < ENDING_MAX {
                self.ending.insert((ending.row.id, ending.row.gate.clone()), ending);
            } else {
                self.over(ending);
            }
        }
    }

    fn over(&self, Ending { row, cause, .. }: Ending) {
        let bytes_used = row.bytes_used.unwrap_or(0);
        self.write(&Event::GrantEnded { grant: grant(row), cause, bytes_used }, 0);
    }

    /// A gate says that a grant has ended; `row` unless it was revoked before.
    pub(super) fn ended(
        &mut self,
        gate: &str,
        (id, row): (GrantId, Option<GrantStatus>),
        cause: EndCause,
        bytes_used: u64,
    ) {
        let ending = self.ending.remove(&(id, gate.to_owned()));
        let cause = match cause {
            EndCause::Expired => "expired",
            EndCause::Spent => "spent",
            EndCause::Revoked => "revoked",
        };
        let known = row.map(|row| (row, cause)).or(ending.map(|ending| (ending.row, ending.cause)));
        if let Some((row, cause)) = known {
            self.write(&Event::GrantEnded { grant: grant(row), cause, bytes_used }, 0);
        }
    }

    /// Writes the ends that no gate has told of.
    pub(super) fn sweep(&mut self, now: Instant, expired: Vec<GrantStatus>) {
        for row in expired.into_iter().filter(|row| row.state == GrantState::Open) {
            self.over(Ending { row, cause: "expired", until: now });
        }
        let late: Vec<_> = self.ending.extract_if(.., |_, ending| ending.until <= now).collect();
        late.into_iter().for_each(|(_, ending)| self.over(ending));
    }
}

/// The line of a call that is over.
pub(crate) fn call_ended(story: CallStory) -> Option<Event> {
    let end = story.end?;
    Some(Event::CallEnded(Box::new(Call {
        call: story.call,
        call_id: story.call_id,
        user: story.user,
        service: story.service,
        caller: story.caller,
        address: story.client.ip().to_canonical(),
        port: story.client.port(),
        began_unix: story.unix,
        setup_ms: story.setup_ms,
        duration_s: story.answered_unix.map(|answered| end.unix.saturating_sub(answered)),
        bytes_to_service: story.bytes_to_service,
        ended: end.why,
        by: end.by,
        status: end.status,
    })))
}

fn grant(row: GrantStatus) -> Grant {
    Grant {
        grant: row.id.to_string(),
        address: row.client.to_canonical(),
        user: row.user,
        service: row.service,
        protocol: row.protocol,
        ports: row.target_ports,
        gate: row.gate,
        bytes_max: row.bytes_max,
    }
}
