//! A frontend whose users, groups and stored services are another's: it takes what the site's key holder signed, whole or
//! not at all, and nothing that is older than what it took last.

use std::collections::HashSet;

use sluicegate_feed::{REVOKE_KEPT_S, Selected, Selector};
use sluicegate_policy::{Draft, Policy, User};
use sluicegate_proxy::AgentKeys;
use sluicegate_signin::{ReplicaKey, SitePublic, key_text};
use sluicegate_store::{KeptRevoke, TakenFile, UserTable};
use sluicegate_wire::UnixTime;

use crate::{
    catalog::{Catalog, EditError, Edited, moved},
    holder::{HolderError, Loaded},
};

impl Catalog {
    /// Whether users are changed here at all.
    pub(crate) fn own(&self) -> Result<(), EditError> {
        let is_replica = self.holder().is_elsewhere() && self.taken()?.has_users;
        if is_replica { Err(EditError::Replica) } else { Ok(()) }
    }

    /// The last file of a key holder elsewhere; none: number 0.
    pub(crate) fn taken(&self) -> Result<TakenFile, EditError> {
        Ok(self.directory().taken()?.unwrap_or_default())
    }

    /// What a frontend knows at its start: the site's public key, and the keys of agents. What it knows of users is in its
    /// store then, and what a file that it has not seen before brings.
    pub(crate) fn start_with(&self, now: UnixTime, replica: &ReplicaKey) -> Result<(SitePublic, AgentKeys), EditError> {
        let Some((site, file)) = self.holder().elsewhere() else {
            let agents = self.holder().agents(now, *replica.public(), &AgentKeys::default())?;
            return Ok((self.holder().site()?, agents));
        };
        let mut agents = AgentKeys::default();
        let mut problems = Vec::new();
        let kept = self.directory().taken_file()?;
        let read = file.map(|file| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display())));
        for text in (!kept.is_empty()).then_some(Ok(kept)).into_iter().chain(read) {
            let loaded =
                text.and_then(|text| self.load(now, &text, replica, &agents).map_err(|error| error.to_string()));
            match loaded {
                Ok((loaded, edited)) => {
                    agents = loaded.agents;
                    for user in edited.users {
                        let revoke = kept_revoke(now, Selector::all(Selected::User(user)));
                        self.directory().keep_revoke(now, &revoke)?;
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        if agents.epochs().next().is_none() {
            // Telephones sign in without.
            let (key, problems) = (key_text(replica.public()), problems.join("; "));
            tracing::warn!(problems, frontend_key = key, "no keys: agents cannot sign in before `sluicegate key load`");
        }
        Ok((site, agents))
    }

    /// Takes a file of a key holder elsewhere: what is new in it is in the store when this returns. `agents` is what was known
    /// of agents so far. Gives the file's content, and what follows from it where a frontend runs.
    ///
    /// # Errors
    /// If the file is not this site's, not for this frontend or not for this epoch, or older than the last; or if what it says
    /// does not fit together with the configuration. Nothing was changed then.
    pub(crate) fn load(
        &self,
        now: UnixTime,
        file: &[u8],
        replica: &ReplicaKey,
        agents: &AgentKeys,
    ) -> Result<(Loaded, Edited), EditError> {
        let loaded = self.holder().load(now, file, replica, agents)?;
        let before = self.taken()?;
        if loaded.number < before.number {
            return Err(HolderError::Older.into());
        }
        let edited = loaded.table.as_ref().map_or_else(|| Ok(Edited::default()), |table| self.changed_by(table))?;
        // The last file read once more, as at each start, is nothing that was heard now.
        let at = if loaded.number > before.number { now.0 } else { before.at };
        let taken = TakenFile { number: loaded.number, at, has_users: loaded.table.is_some() };
        self.directory().take(taken, file, loaded.table.as_ref())?;
        Ok((loaded, edited))
    }

    /// Whether a file that begins so is from this frontend's site, for this frontend, and newer than the last.
    pub(crate) fn awaits(&self, head: &[u8], replica: &ReplicaKey) -> Result<(), EditError> {
        let number = self.holder().number_of(head, replica)?;
        if number > self.taken()?.number { Ok(()) } else { Err(HolderError::Older.into()) }
    }

    /// What a table changes, if it fits.
    fn changed_by(&self, table: &UserTable) -> Result<Edited, EditError> {
        let before = self.draft()?;
        let after = self.with_configured(Draft { rules: before.rules.clone(), ..table.read()? });
        let may: HashSet<&str> =
            after.users.iter().filter(|user| user.enabled).map(|user| user.name.as_str()).collect();
        let may_no_more = |old: &&User| old.enabled && !may.contains(old.name.as_str());
        let users = before.users.iter().filter(may_no_more).map(|user| user.name.clone()).collect();
        let services = moved(&before.services, &after.services);
        Policy::build(after, self.bounds()).map_err(EditError::Policy)?;
        Ok(Edited { users, services, ..Edited::default() })
    }
}

/// What is revoked, as a frontend that starts anew is to know it.
pub(crate) fn kept_revoke(now: UnixTime, mut selector: Selector) -> KeptRevoke {
    selector.issued_before.get_or_insert(now.plus_secs(1));
    KeptRevoke { selector, until: now.plus_secs(REVOKE_KEPT_S).0 }
}

/// A replica that has heard nothing for so long, in seconds, may not know what has changed.
const SILENT_S: u64 = 1_800;

/// What is wrong with what a replica knows.
pub(crate) fn stale(taken: TakenFile, now: UnixTime) -> Option<String> {
    let silent_s = now.0.saturating_sub(taken.at);
    (taken.has_users && silent_s >= SILENT_S).then(|| {
        format!(
            "nothing has come from the key holder's frontend for {} minutes: agents sign in until the epoch ends, and who was \
             removed there since can sign in here; is it running, and does it reach `feed` of this one?",
            silent_s / 60
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_hears_nothing_for_half_an_hour_says_so() {
        let taken = TakenFile { number: 1, at: 1_000, has_users: true };
        assert_eq!(stale(taken, UnixTime(1_000 + SILENT_S - 1)), None);
        let alarm = stale(taken, UnixTime(1_000 + SILENT_S)).unwrap();
        assert!(alarm.contains("for 30 minutes"), "{alarm}");
        assert_eq!(stale(TakenFile { has_users: false, ..taken }, UnixTime(90_000)), None, "its users are its own");
    }
}
