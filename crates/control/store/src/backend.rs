use std::{io, path::PathBuf, time::Duration};

use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

/// Longest key in bytes.
pub const KEY_LEN_MAX: usize = 256;
/// Longest value in bytes.
pub const VALUE_LEN_MAX: usize = 64 * 1024;
/// Comparisons and operations of one transaction, each.
pub const OPS_MAX: usize = 256;
/// Leases that live at once.
pub const LEASES_MAX: u64 = 256;

/// Counts transactions that changed something; the store's own clock.
pub type Revision = u64;

/// Names a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);

/// A record as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value; erased when dropped, as it may hold secrets.
    pub value: Zeroizing<Vec<u8>>,
    /// The transaction that last wrote it.
    pub revision: Revision,
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Entry({:?} at revision {}, {} bytes)", self.key, self.revision, self.value.len())
    }
}

/// What a transaction demands of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is no such record.
    Absent,
    /// There is one.
    Present,
    /// There is one, last written by this transaction.
    At(Revision),
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// What must be true of it.
    pub expect: Expect,
}

/// A change that a transaction makes.
#[derive(Clone)]
pub enum Op {
    /// Writes a record, under a lease or for good.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Zeroizing<Vec<u8>>,
        /// The lease with which the record ends.
        lease: Option<LeaseId>,
    },
    /// Removes a record, if there is one.
    Delete {
        /// The key.
        key: String,
    },
}

/// Changes that happen together, or not at all if a condition does not hold.
#[derive(Clone, Default)]
pub struct Txn {
    /// The conditions.
    pub compare: Vec<Compare>,
    /// The changes, in order.
    pub ops: Vec<Op>,
}

impl Txn {
    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, key: &str, expect: Expect) -> Self {
        self.compare.push(Compare { key: key.into(), expect });
        self
    }

    /// Adds a write.
    #[must_use]
    pub fn put(mut self, key: &str, value: Zeroizing<Vec<u8>>) -> Self {
        self.ops.push(Op::Put { key: key.into(), value, lease: None });
        self
    }

    /// Adds a write that ends with `lease`.
    #[must_use]
    pub fn put_leased(mut self, key: &str, value: Zeroizing<Vec<u8>>, lease: LeaseId) -> Self {
        self.ops.push(Op::Put { key: key.into(), value, lease: Some(lease) });
        self
    }

    /// Adds a removal.
    #[must_use]
    pub fn delete(mut self, key: &str) -> Self {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }
}

/// What happened to a record. Carries no value: read the record for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The transaction that did it.
    pub revision: Revision,
    /// The record's key.
    pub key: String,
    /// What it did.
    pub kind: ChangeKind,
}

/// What a transaction did to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Wrote it.
    Put,
    /// Removed it, or found that its lease had ended.
    Deleted,
}

/// Small records under text keys. Every method takes the present time, by which leases end.
pub trait Store: Send + Sync {
    /// The record under `key`.
    ///
    /// # Errors
    /// Only if the store itself fails.
    fn get(&self, now: UnixTime, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Up to `limit` records whose keys start with `prefix` and come after `after`, in the order of their keys.
    ///
    /// # Errors
    /// Only if the store itself fails.
    fn range(&self, now: UnixTime, prefix: &str, after: &str, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// The revision of the last transaction; a range read after this call is at least as new.
    ///
    /// # Errors
    /// Only if the store itself fails.
    fn revision(&self) -> Result<Revision, StoreError>;

    /// Watches changes made after revision `from`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if changes after `from` are no longer known: read everything anew, then watch from there.
    fn watch(&self, from: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// Makes changes together and returns their revision.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if a condition does not hold, and then nothing changed; or a bound was exceeded.
    fn txn(&self, now: UnixTime, txn: &Txn) -> Result<Revision, StoreError>;

    /// A lease of `ttl_s` seconds: records written under it end with it.
    ///
    /// # Errors
    /// [`StoreError::LeasesFull`] when as many live as may.
    fn lease(&self, now: UnixTime, ttl_s: u64) -> Result<LeaseId, StoreError>;

    /// Lets a lease end `ttl_s` seconds from now.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] if it has ended.
    fn renew(&self, now: UnixTime, lease: LeaseId, ttl_s: u64) -> Result<(), StoreError>;
}

/// A position in the history of a store.
pub trait Watch: Send {
    /// The next changes in order, at least one whole transaction of them; none if nothing changed for `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the reader was so slow that changes are lost: read everything anew, then watch anew.
    fn next(&mut self, timeout: Duration) -> Result<Vec<Change>, StoreError>;
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be opened or created.
    #[error("cannot open the store {}: {source}; check that the directory exists and belongs to the user that runs this", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has the file open.
    #[error("the store {} is in use by another process; a running node changes it through its control socket", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Others than the owner may read or write the file.
    #[error("others may read the store {}, which holds secrets (mode {mode:04o}); run: chmod 600 {}", path.display(), path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is damaged, or no store.
    #[error("the store {} is damaged or no store ({detail}); move it away and restore a copy", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The file has a format that this version does not know.
    #[error("the store {} has format {found}, this version knows format 1; upgrade sluicegate", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u64,
    },
    /// Reading or writing failed; nothing was changed.
    #[error("the store failed: {0}; nothing was changed")]
    Failed(#[source] Box<redb::Error>),
    /// A condition of the transaction does not hold; nothing was changed.
    #[error("{key:?} was changed meanwhile; nothing was written, read it again")]
    Conflict {
        /// The first key whose condition does not hold.
        key: String,
    },
    /// As many records as there may be.
    #[error("the store holds {max} records already, which is its maximum")]
    Full {
        /// The maximum.
        max: u64,
    },
    /// A key, value or transaction beyond its bound.
    #[error("{what} of {len} is too large for the store, at most {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// The changes that were asked for are no longer known.
    #[error("changes since revision {from} are no longer known; read everything anew")]
    Compacted {
        /// The revision asked for.
        from: Revision,
    },
    /// The lease has ended.
    #[error("the lease has ended")]
    LeaseEnded,
    /// As many leases as there may be.
    #[error("{LEASES_MAX} leases live already, which is the maximum")]
    LeasesFull,
}
