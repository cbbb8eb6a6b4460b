//! The bounded memory behind `trace user`: what was decided lately about whom, and why.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;

/// What was decided about one request, for a person asking why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// When, in Unix seconds.
    pub unix: u64,
    /// The user that the request named. It is proved unless the outcome is `bad_digest`.
    pub user: String,
    /// The service asked for.
    pub service: String,
    /// Where the request came from.
    pub client: SocketAddr,
    /// The outcome's label, as in the metrics.
    pub outcome: &'static str,
    /// The status that was answered.
    pub status: u16,
    /// Why, in steps.
    pub steps: Vec<String>,
    /// Whether the request goes on with a call that stands already.
    #[serde(skip)]
    pub renewal: bool,
    /// How many decisions about unproved senders were not told of since the last one.
    #[serde(skip)]
    pub left_out: u64,
}

/// The last decisions of all shards, oldest dropped first.
#[derive(Debug)]
pub struct Decisions {
    ring: Mutex<VecDeque<Decided>>,
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
    pub fn push(&self, decided: Decided) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= Self::MAX {
            ring.pop_front();
        }
        ring.push_back(decided);
    }

    /// What was decided about this user, newest first.
    pub fn of_user(&self, user: &str) -> Vec<Decided> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter().rev().filter(|decided| decided.user == user).cloned().collect()
    }

    /// Used and maximum.
    pub fn gauge(&self) -> (u64, u64) {
        let used = self.ring.lock().unwrap_or_else(PoisonError::into_inner).len();
        (used as u64, Self::MAX as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(user: &str, unix: u64) -> Decided {
        Decided {
            unix,
            user: user.to_owned(),
            service: "web".to_owned(),
            client: "192.0.2.1:5060".parse().unwrap(),
            outcome: "denied",
            status: 403,
            steps: Vec::new(),
            renewal: false,
            left_out: 0,
        }
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_decision() {
        let decisions = Decisions::default();
        decisions.push(decided("alice", 1));
        for unix in 0..Decisions::MAX as u64 {
            decisions.push(decided("bob", unix));
        }
        assert!(decisions.of_user("alice").is_empty());
        assert_eq!(decisions.of_user("bob").len(), Decisions::MAX);
        assert_eq!(decisions.of_user("bob")[0].unix, Decisions::MAX as u64 - 1);
        assert_eq!(decisions.gauge(), (2048, 2048));
    }
}
