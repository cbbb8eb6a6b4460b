//! What an operator ended, on disk: a gate that was away meanwhile is told of it even if the frontend was started anew.

use serde::{Deserialize, Serialize};
use sluicegate_feed::Selector;
use sluicegate_wire::UnixTime;

use crate::{
    Directory, DirectoryError, Txn,
    directory::{decode, encode},
};

const PREFIX: &str = "revoke/";
/// Revokes that are kept on disk. Full: the oldest gives way to the newest.
pub const KEPT_REVOKES_MAX: usize = 4_096;

/// What was ended, and until when a gate may not know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRevoke {
    /// What was ended; it says before when it must have been issued.
    pub selector: Selector,
    /// Unix second after which all of it has ended by itself.
    pub until: u64,
}

impl Directory {
    /// Keeps a revoke.
    ///
    /// # Errors
    /// If the store fails.
    pub fn keep_revoke(&self, now: UnixTime, revoke: &KeptRevoke) -> Result<(), DirectoryError> {
        // In the order of their making, and none in another's place.
        let key = format!("{PREFIX}{:016x}-{:016x}", now.0, self.store().revision()?);
        let kept = self.store().range(PREFIX, "", KEPT_REVOKES_MAX)?;
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
        for entry in self.store().range(PREFIX, "", KEPT_REVOKES_MAX)? {
            let revoke: KeptRevoke = decode(&entry.key, &entry.value)?;
            if revoke.until > now.0 {
                live.push(revoke);
            } else {
                self.store().txn(&Txn::default().delete(&entry.key))?;
            }
        }
        Ok(live)
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
        for part in (0..KEPT_REVOKES_MAX - 2).collect::<Vec<_>>().chunks(crate::OPS_MAX) {
            let put = |txn: Txn, user: &usize| txn.put(&format!("{PREFIX}{user:016x}"), encode(&revoke(*user, 9_000)));
            directory.store().txn(&part.iter().fold(Txn::default(), put)).unwrap();
        }
        directory.keep_revoke(NOW, &revoke(9_999, 9_000)).unwrap();
        let kept = directory.revokes(NOW).unwrap();
        assert_eq!(kept.len(), KEPT_REVOKES_MAX);
        assert!(kept.contains(&revoke(9_999, 9_000)) && !kept.contains(&revoke(0, 9_000)), "the oldest gave way");
    }
}
