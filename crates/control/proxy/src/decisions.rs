//! The bounded memory behind `trace --user`: what was decided lately about whom, and why.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use sluicegate_api::Decision;
use sluicegate_bounded::Gauge;

use crate::{calls::CallId, stories::Who};

/// What was decided about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// What `trace` shows of it.
    pub decision: Decision,
    /// Whether the request goes on with a call that stands already.
    pub renewal: bool,
    /// The call that it is about, if it has an id already.
    pub call: Option<CallId>,
    /// Who began that.
    pub caller: Who,
    /// How many decisions about unproved senders were not told of since the last one.
    pub left_out: u64,
}

/// The last decisions of all shards, oldest dropped first.
#[derive(Debug)]
pub struct Decisions {
    ring: Mutex<VecDeque<Decision>>,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { ring: Mutex::new(VecDeque::with_capacity(Self::MAX)) }
    }
}

impl Decisions {
    /// Most decisions remembered.
    pub const MAX: usize = 2048;

    /// Remembers one; the oldest gives way.
    pub fn push(&self, decision: Decision) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= Self::MAX {
            ring.pop_front();
        }
        ring.push_back(decision);
    }

    /// What was decision about this user, newest first.
    pub fn of_user(&self, user: &str) -> Vec<Decision> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter().rev().filter(|decision| decision.user == user).cloned().collect()
    }

    /// How many are remembered.
    pub fn gauge(&self) -> Gauge {
        Gauge::of("decisions", self.ring.lock().unwrap_or_else(PoisonError::into_inner).len(), Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(user: &str, unix: u64) -> Decision {
        Decision {
            unix,
            user: user.to_owned(),
            service: "web".to_owned(),
            client: "192.0.2.1:5060".parse().unwrap(),
            outcome: "denied".into(),
            status: 403,
            rung: None,
            call: None,
            call_id: None,
            steps: Vec::new(),
        }
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_decision() {
        let decisions = Decisions::default();
        decisions.push(decision("alice", 1));
        for unix in 0..Decisions::MAX as u64 {
            decisions.push(decision("bob", unix));
        }
        assert!(decisions.of_user("alice").is_empty());
        assert_eq!(decisions.of_user("bob").len(), Decisions::MAX);
        assert_eq!(decisions.of_user("bob")[0].unix, Decisions::MAX as u64 - 1);
        assert_eq!(decisions.gauge(), Gauge::of("decisions", 2048, 2048));
    }
}
