//! What a frontend that starts anew has to know of the one before: where services take their calls, and what an operator
//! ended, so that a gate that was away meanwhile is told of it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use sluicegate_feed::Selector;
use sluicegate_wire::UnixTime;

use crate::{
    Directory, DirectoryError, ISSUED_BYTES_MAX, OPS_MAX, TakenFile, Txn, UserTable, VALUE_LEN_MAX,
    directory::{PAGE_LEN, decode, encode},
    issued::{KINDS, PART_PREFIX, PREFIX, TAKEN},
};

const REGISTRATION_PREFIX: &str = "registration/";
/// Registrations that are read back: more than a frontend holds.
const REGISTRATIONS_MAX: usize = 4_096;
const REVOKE_PREFIX: &str = "revoke/";
/// Revokes that are kept on disk. Full: the oldest gives way to the newest.
pub const KEPT_REVOKES_MAX: usize = 4_096;

/// Where a service takes its calls, for a frontend that starts anew: its agent registers again only after a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The service's name.
    pub service: String,
    /// Index of the listening address that the agent sent to.
    pub listener: u8,
    /// Where it sent from.
    pub peer: SocketAddr,
    /// Its Contact URI.
    pub contact: Vec<u8>,
    /// Unix second at which it ends.
    pub expires_at: u64,
}

/// What was ended, and until when a gate may not know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRevoke {
    /// What was ended; it says before when it must have been issued.
    pub selector: Selector,
    /// Unix second after which all of it has ended by itself.
    pub until: u64,
}

impl Directory {
    /// Keeps what changed; what has ended is removed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn keep_registrations(&self, now: UnixTime, changed: &[Registration]) -> Result<(), DirectoryError> {
        for part in changed.chunks(OPS_MAX) {
            let txn = part.iter().fold(Txn::default(), |txn, registration| {
                let key = format!("{REGISTRATION_PREFIX}{}", registration.service);
                if registration.expires_at <= now.0 { txn.delete(&key) } else { txn.put(&key, encode(registration)) }
            });
            self.store().txn(&txn)?;
        }
        Ok(())
    }

    /// The registrations that have not ended. Those that have are removed.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn registrations(&self, now: UnixTime) -> Result<Vec<Registration>, DirectoryError> {
        let entries = self.store().range(REGISTRATION_PREFIX, "", REGISTRATIONS_MAX)?;
        let all = entries.iter().map(|entry| decode(&entry.key, &entry.value));
        let all = all.collect::<Result<Vec<Registration>, _>>()?;
        let (live, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(|registration| registration.expires_at > now.0);
        if !ended.is_empty() {
            self.keep_registrations(now, &ended)?;
        }
        Ok(live)
    }

    /// Keeps a revoke.
    ///
    /// # Errors
    /// If the store fails.
    pub fn keep_revoke(&self, now: UnixTime, revoke: &KeptRevoke) -> Result<(), DirectoryError> {
        // In the order of their making, and none in another's place.
        let key = format!("{REVOKE_PREFIX}{:016x}-{:016x}", now.0, self.store().revision()?);
        let kept = self.store().range(REVOKE_PREFIX, "", KEPT_REVOKES_MAX)?;
        let mut txn = Txn::default().put(&key, encode(revoke));
        if kept.len() >= KEPT_REVOKES_MAX
            && let Some(oldest) = kept.first()
        {
            txn = txn.delete(&oldest.key);
        }
        self.store().txn(&txn)?;
        Ok(())
    }

    /// The revokes that still matter, oldest first. The others are removed.
    ///
    /// # Errors
    /// If the store fails or a record cannot be read.
    pub fn revokes(&self, now: UnixTime) -> Result<Vec<KeptRevoke>, DirectoryError> {
        let mut live = Vec::new();
        for entry in self.store().range(REVOKE_PREFIX, "", KEPT_REVOKES_MAX)? {
            let revoke: KeptRevoke = decode(&entry.key, &entry.value)?;
            if revoke.until > now.0 {
                live.push(revoke);
            } else {
                self.store().txn(&Txn::default().delete(&entry.key))?;
            }
        }
        Ok(live)
    }

    /// Users, groups and services as they are stored.
    ///
    /// # Errors
    /// If the store fails.
    pub fn table(&self) -> Result<UserTable, DirectoryError> {
        let mut all = Vec::new();
        for prefix in KINDS.map(|kind| kind.key("")) {
            let mut after = String::new();
            loop {
                let page = self.store().range(&prefix, &after, PAGE_LEN)?;
                let is_last = page.len() < PAGE_LEN;
                if let Some(last) = page.last() {
                    after.clone_from(&last.key);
                }
                all.extend(page.into_iter().map(|entry| (entry.key, entry.value)));
                if is_last {
                    break;
                }
            }
        }
        Ok(UserTable(all))
    }

    /// Has what a file brought from now on, all of it or nothing: its `table` in the place of the users, groups and services
    /// that there were, if it has one. `file` is kept for [`Directory::taken_file`].
    ///
    /// # Errors
    /// If the store fails or has no room.
    pub fn take(&self, taken: TakenFile, file: &[u8], table: Option<&UserTable>) -> Result<(), DirectoryError> {
        let mut prefixes = vec![PREFIX.to_owned()];
        let mut entries: Vec<(String, &[u8])> = Vec::new();
        if let Some(UserTable(records)) = table {
            prefixes.extend(KINDS.map(|kind| kind.key("")));
            entries.extend(records.iter().map(|(key, value)| (key.clone(), value.as_slice())));
        }
        let parts = file.chunks(VALUE_LEN_MAX).zip(0_u32..);
        entries.extend(parts.map(|(part, number)| (format!("{PART_PREFIX}{number:08x}"), part)));
        let record = encode(&taken);
        entries.push((TAKEN.to_owned(), &record));
        Ok(self.store().replace(&prefixes, &entries).map(drop)?)
    }

    /// The last file that was taken, if there was any.
    ///
    /// # Errors
    /// If the store fails or what it says of it cannot be read.
    pub fn taken(&self) -> Result<Option<TakenFile>, DirectoryError> {
        self.store().get(TAKEN)?.map(|entry| decode(TAKEN, &entry.value)).transpose()
    }

    /// The file itself; empty if there was none.
    ///
    /// # Errors
    /// If the store fails.
    pub fn taken_file(&self) -> Result<Vec<u8>, DirectoryError> {
        let parts = self.store().range(PART_PREFIX, "", ISSUED_BYTES_MAX / VALUE_LEN_MAX + 1)?;
        Ok(parts.iter().flat_map(|part| part.value.iter().copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{ENTRIES_MAX, Store};
    use sluicegate_feed::Selected;

    const NOW: UnixTime = UnixTime(1_000);

    #[test]
    fn revokes_are_kept_in_order_until_they_do_not_matter_and_never_more_than_the_maximum() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store.redb"), ENTRIES_MAX).unwrap();
        let directory = Directory::new(Arc::new(store));
        let revoke = |user: usize, until: u64| {
            let what = Selected::User(format!("user-{user}"));
            KeptRevoke { selector: Selector { what, issued_before: Some(NOW) }, until }
        };
        for user in 0..3 {
            directory.keep_revoke(NOW, &revoke(user, 2_000 + user as u64)).unwrap();
        }
        assert_eq!(directory.revokes(UnixTime(2_000)).unwrap(), [revoke(1, 2_001), revoke(2, 2_002)]);
        assert_eq!(directory.revokes(NOW).unwrap().len(), 2, "what was over is gone");
        // As many as there may be, written at once, and then one more.
        for part in (0..KEPT_REVOKES_MAX - 2).collect::<Vec<_>>().chunks(OPS_MAX) {
            let put =
                |txn: Txn, user: &usize| txn.put(&format!("{REVOKE_PREFIX}{user:016x}"), encode(&revoke(*user, 9_000)));
            directory.store().txn(&part.iter().fold(Txn::default(), put)).unwrap();
        }
        directory.keep_revoke(NOW, &revoke(9_999, 9_000)).unwrap();
        let kept = directory.revokes(NOW).unwrap();
        assert_eq!(kept.len(), KEPT_REVOKES_MAX);
        assert!(kept.contains(&revoke(9_999, 9_000)) && !kept.contains(&revoke(0, 9_000)), "the oldest gave way");
    }
}
