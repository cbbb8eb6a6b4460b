//! What a frontend knows of agents' users: for this epoch, and near its end for the next, what their digests are checked
//! against, and what the site says about this frontend. Kept in memory only.

use std::collections::HashMap;

use sluicegate_grant::epoch::{EPOCH_SECS, Epoch};
use sluicegate_signin::EpochHa1;
use sluicegate_sip::nonce::WINDOW_S;
use sluicegate_wire::UnixTime;

/// How long before an epoch begins a frontend may have its keys, in seconds.
pub const LEAD_S: u64 = 3_600;

/// Users of one epoch, by name.
pub type EpochUsers = HashMap<String, EpochHa1>;

/// The users of one or two epochs. After midnight those of the day before stay for as long as a nonce lives.
#[derive(Clone, Default)]
pub struct AgentKeys {
    certificate: String,
    epochs: Vec<(Epoch, EpochUsers)>,
}

impl std::fmt::Debug for AgentKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let epochs: Vec<u32> = self.epochs().map(|(epoch, _)| epoch.0).collect();
        f.debug_struct("AgentKeys").field("epochs", &epochs).finish_non_exhaustive()
    }
}

impl AgentKeys {
    /// From what a key holder gave.
    #[must_use]
    pub fn new(certificate: String, epochs: Vec<(Epoch, EpochUsers)>) -> Self {
        Self { certificate, epochs }
    }

    /// The epochs of which there are keys, and of how many users.
    pub fn epochs(&self) -> impl Iterator<Item = (Epoch, usize)> {
        self.epochs.iter().map(|(epoch, users)| (*epoch, users.len()))
    }

    /// The same without what is over.
    pub fn still_good(&self, now: UnixTime) -> Self {
        let epochs = self.epochs.iter().filter(|(epoch, _)| *epoch >= Self::oldest(now)).cloned().collect();
        Self { certificate: self.certificate.clone(), epochs }
    }

    /// The epochs whose keys a frontend may have now.
    #[must_use]
    pub fn wanted(now: UnixTime) -> Vec<Epoch> {
        let mut wanted = vec![Epoch::at(now), Epoch::at(now.plus_secs(LEAD_S))];
        wanted.dedup();
        wanted
    }

    /// When a frontend's certificate ends that is issued now: with the last epoch of which it has keys.
    #[must_use]
    pub fn certified_until(now: UnixTime) -> UnixTime {
        Epoch::at(now.plus_secs(LEAD_S)).start().plus_secs(EPOCH_SECS + WINDOW_S)
    }

    /// Whether a key holder has to be asked: keys are missing, or there are some that ought to be forgotten.
    #[must_use]
    pub fn is_due(&self, now: UnixTime) -> bool {
        let oldest = Self::oldest(now);
        let has = |wanted: &Epoch| self.epochs.iter().any(|(epoch, _)| epoch == wanted);
        !Self::wanted(now).iter().all(has) || self.epochs.iter().any(|(epoch, _)| *epoch < oldest)
    }

    /// Adds what nonces of the epoch before may still need.
    pub fn keep_previous(&mut self, before: &Self, now: UnixTime) {
        let oldest = Self::oldest(now);
        let old = before.epochs.iter().filter(|(epoch, _)| *epoch >= oldest && *epoch < Epoch::at(now));
        self.epochs.extend(old.cloned());
    }

    fn oldest(now: UnixTime) -> Epoch {
        Epoch::at(UnixTime(now.0.saturating_sub(WINDOW_S)))
    }

    /// What this user's digest of this epoch is checked against.
    #[must_use]
    pub fn ha1(&self, epoch: Epoch, user: &str) -> Option<&EpochHa1> {
        self.epochs.iter().find(|(known, _)| *known == epoch).and_then(|(_, users)| users.get(user))
    }

    /// What an agent is told of this frontend in this epoch; `None` if no agent can sign in now.
    #[must_use]
    pub fn certificate(&self, epoch: Epoch) -> Option<&str> {
        self.epochs.iter().any(|(known, _)| *known == epoch).then_some(self.certificate.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(epochs: &[u32]) -> AgentKeys {
        AgentKeys::new(String::new(), epochs.iter().map(|epoch| (Epoch(*epoch), EpochUsers::new())).collect())
    }

    #[test]
    fn the_next_epochs_keys_come_an_hour_before_and_the_last_ones_go_a_minute_after() {
        let midnight = Epoch(20_000).start().0;
        let due = |epochs: &[u32], at: u64| keys(epochs).is_due(UnixTime(at));
        assert_eq!(AgentKeys::wanted(UnixTime(midnight - LEAD_S - 1)), [Epoch(19_999)]);
        assert_eq!(AgentKeys::wanted(UnixTime(midnight - LEAD_S)), [Epoch(19_999), Epoch(20_000)]);
        assert!(!due(&[19_999], midnight - LEAD_S - 1) && due(&[19_999], midnight - LEAD_S));
        assert!(!due(&[19_999, 20_000], midnight - 1) && !due(&[19_999, 20_000], midnight + WINDOW_S - 1));
        assert!(due(&[19_999, 20_000], midnight + WINDOW_S) && !due(&[20_000], midnight));
        let mut after = keys(&[20_000]);
        after.keep_previous(&keys(&[19_999, 20_000]), UnixTime(midnight + WINDOW_S - 1));
        assert_eq!(format!("{after:?}"), "AgentKeys { epochs: [20000, 19999], .. }");
        let mut later = keys(&[20_000]);
        later.keep_previous(&after, UnixTime(midnight + WINDOW_S));
        assert_eq!(format!("{later:?}"), "AgentKeys { epochs: [20000], .. }");
    }
}
