//! Small records under text keys, in one file.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};
use zeroize::Zeroizing;

/// Key to (revision, 0, value). The number in the middle is a part of the format that is of no use any more.
const ENTRIES: TableDefinition<'_, &str, (u64, u64, &[u8])> = TableDefinition::new("entries");
/// The counters below.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

const FORMAT: &str = "format";
const REVISION: &str = "revision";
const FORMAT_KNOWN: u64 = 1;
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Records of a store, unless fewer are asked for.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// Longest key in bytes.
pub const KEY_LEN_MAX: usize = 256;
/// Longest value in bytes.
pub const VALUE_LEN_MAX: usize = 64 * 1024;
/// Conditions and changes of one transaction, each.
pub const OPS_MAX: usize = 256;

/// Counts transactions that changed something; the store's own clock.
pub type Revision = u64;

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

/// Changes that happen together, or not at all if a condition does not hold.
#[derive(Clone, Default)]
pub struct Txn {
    /// What must be true of which key.
    conditions: Vec<(String, Expect)>,
    /// Keys and their new values, in order; none: the record is removed.
    changes: Vec<(String, Option<Zeroizing<Vec<u8>>>)>,
}

impl Txn {
    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, key: &str, expect: Expect) -> Self {
        self.conditions.push((key.into(), expect));
        self
    }

    /// Adds a write.
    #[must_use]
    pub fn put(mut self, key: &str, value: Zeroizing<Vec<u8>>) -> Self {
        self.changes.push((key.into(), Some(value)));
        self
    }

    /// Adds a removal, of a record that need not be there.
    #[must_use]
    pub fn delete(mut self, key: &str) -> Self {
        self.changes.push((key.into(), None));
        self
    }

    fn check_bounds(&self) -> Result<(), StoreError> {
        within("a transaction", self.changes.len().max(self.conditions.len()), OPS_MAX)?;
        self.changes.iter().try_for_each(|(key, value)| {
            within("a key", key.len(), KEY_LEN_MAX)?;
            within("a value", value.as_ref().map_or(0, |value| value.len()), VALUE_LEN_MAX)
        })
    }

    /// The revision afterwards: a new one if a record changed. On an error the changes made so far are to be thrown away.
    fn apply(&self, write: &WriteTransaction, entries_max: u64) -> Result<Revision, StoreError> {
        let mut entries = write.open_table(ENTRIES)?;
        let mut meta = write.open_table(META)?;
        for (key, expect) in &self.conditions {
            let found = entries.get(key.as_str())?.map(|entry| entry.value().0);
            let holds = match *expect {
                Expect::Absent => found.is_none(),
                Expect::Present => found.is_some(),
                Expect::At(revision) => found == Some(revision),
            };
            if !holds {
                return Err(StoreError::Conflict { key: key.clone() });
            }
        }
        let (last, len_before) = (revision(&meta)?, entries.len()?);
        let mut is_changed = false;
        for (key, value) in &self.changes {
            is_changed |= match value {
                Some(value) => entries.insert(key.as_str(), (last + 1, 0, value.as_slice())).map(|_| true)?,
                None => entries.remove(key.as_str())?.is_some(),
            };
        }
        if entries.len()? > entries_max.max(len_before) {
            return Err(StoreError::Full { max: entries_max });
        }
        if !is_changed {
            return Ok(last);
        }
        meta.insert(REVISION, last + 1)?;
        Ok(last + 1)
    }
}

/// A store in one file, for one process on one machine. Every transaction is on disk when it returns.
pub struct Store {
    database: Database,
    entries_max: u64,
}

impl Store {
    /// Opens the store in the file `path`, or makes an empty one that only its owner may read (mode 0600). It takes no
    /// more than `entries_max` records.
    ///
    /// # Errors
    /// If the file cannot be opened, is open elsewhere, damaged, of an unknown format, or readable by others.
    pub fn open(path: &Path, entries_max: u64) -> Result<Self, StoreError> {
        let file = open_private(path)?;
        let opened = redb::Builder::new().set_cache_size(CACHE_BYTES).create_file(file);
        let database = opened.map_err(|error| refused(path, error))?;
        let format = prepare(&database).map_err(|error| damaged(path, error))?;
        if format != FORMAT_KNOWN {
            return Err(StoreError::Format { path: path.into(), found: format });
        }
        Ok(Self { database, entries_max })
    }

    /// The record under `key`.
    ///
    /// # Errors
    /// Only if the store itself fails.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.database.begin_read()?.open_table(ENTRIES)?.get(key)?;
        Ok(found.map(|found| entry(key, found.value())))
    }

    /// Up to `limit` records whose keys start with `prefix` and come after `after`, in the order of their keys.
    ///
    /// # Errors
    /// Only if the store itself fails.
    pub fn range(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let entries = self.database.begin_read()?.open_table(ENTRIES)?;
        let mut found = Vec::new();
        for item in entries.range(prefix.max(after)..)? {
            let (key, value) = item?;
            let key = key.value();
            if !key.starts_with(prefix) || found.len() >= limit {
                break;
            }
            if key > after {
                found.push(entry(key, value.value()));
            }
        }
        Ok(found)
    }

    /// The revision of the last transaction.
    ///
    /// # Errors
    /// Only if the store itself fails.
    pub fn revision(&self) -> Result<Revision, StoreError> {
        revision(&self.database.begin_read()?.open_table(META)?)
    }

    /// Makes changes together and returns their revision.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if a condition does not hold, and then nothing changed; or a bound was exceeded.
    pub fn txn(&self, txn: &Txn) -> Result<Revision, StoreError> {
        txn.check_bounds()?;
        let write = self.database.begin_write()?;
        let revision = txn.apply(&write, self.entries_max)?;
        write.commit()?;
        Ok(revision)
    }

    /// Has these records and no others under keys that begin with one of `prefixes`: all of them, or what there was on an error.
    ///
    /// # Errors
    /// As [`Store::txn`], but for the number of records, which is that of the store.
    pub fn replace(&self, prefixes: &[String], records: &[(String, &[u8])]) -> Result<Revision, StoreError> {
        records.iter().try_for_each(|(key, value)| {
            within("a key", key.len(), KEY_LEN_MAX)?;
            within("a value", value.len(), VALUE_LEN_MAX)
        })?;
        let new: BTreeSet<&str> = records.iter().map(|(key, _)| key.as_str()).collect();
        let write = self.database.begin_write()?;
        let revision = {
            let mut entries = write.open_table(ENTRIES)?;
            let mut meta = write.open_table(META)?;
            let (next, len_before) = (revision(&meta)? + 1, entries.len()?);
            for prefix in prefixes {
                let end = format!("{prefix}\u{10ffff}");
                entries.retain_in(prefix.as_str()..end.as_str(), |key, _| new.contains(key))?;
            }
            for (key, value) in records {
                let is_same = entries.get(key.as_str())?.is_some_and(|known| known.value().2 == *value);
                if !is_same {
                    entries.insert(key.as_str(), (next, 0, *value))?;
                }
            }
            if entries.len()? > self.entries_max.max(len_before) {
                return Err(StoreError::Full { max: self.entries_max });
            }
            meta.insert(REVISION, next)?;
            next
        };
        write.commit()?;
        Ok(revision)
    }

    /// Removes all records with keys from `first` on and before `end`.
    ///
    /// # Errors
    /// Only if the store itself fails; then nothing changed.
    pub fn remove(&self, first: &str, end: &str) -> Result<(), StoreError> {
        let write = self.database.begin_write()?;
        {
            let mut meta = write.open_table(META)?;
            let next = revision(&meta)? + 1;
            meta.insert(REVISION, next)?;
            write.open_table(ENTRIES)?.retain_in(first..end, |_, _| false)?;
        }
        write.commit()?;
        Ok(())
    }
}

const fn within(what: &'static str, len: usize, max: usize) -> Result<(), StoreError> {
    if len > max { Err(StoreError::TooLarge { what, len, max }) } else { Ok(()) }
}

fn entry(key: &str, (revision, _, value): (u64, u64, &[u8])) -> Entry {
    Entry { key: key.into(), value: Zeroizing::new(value.to_vec()), revision }
}

fn revision(meta: &impl ReadableTable<&'static str, u64>) -> Result<Revision, StoreError> {
    Ok(meta.get(REVISION)?.map_or(0, |revision| revision.value()))
}

/// Creates the tables of a new file. Returns the format of the file.
fn prepare(database: &Database) -> Result<u64, StoreError> {
    let write = database.begin_write()?;
    write.open_table(ENTRIES)?;
    let format = {
        let mut meta = write.open_table(META)?;
        let found = meta.get(FORMAT)?.map(|format| format.value());
        if found.is_none() {
            meta.insert(FORMAT, FORMAT_KNOWN)?;
        }
        found.unwrap_or(FORMAT_KNOWN)
    };
    write.commit()?;
    Ok(format)
}

fn open_private(path: &Path) -> Result<File, StoreError> {
    let opening = |source| StoreError::Open { path: path.into(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = match options.clone().create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        other => other,
    }
    .map_err(opening)?;
    let mode = file.metadata().map_err(opening)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StoreError::Permissions { path: path.into(), mode });
    }
    Ok(file)
}

fn refused(path: &Path, error: redb::DatabaseError) -> StoreError {
    let path: PathBuf = path.into();
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path },
        redb::DatabaseError::Storage(redb::StorageError::Io(source))
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::Open { path, source }
        }
        other => StoreError::Corrupt { path, detail: other.to_string() },
    }
}

/// A failure while opening means that the file is not what it should be.
fn damaged(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Failed(cause) => StoreError::Corrupt { path: path.into(), detail: cause.to_string() },
        other => other,
    }
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
}

/// Whatever the database says: reading or writing failed.
macro_rules! failures {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for StoreError {
            fn from(error: redb::$error) -> Self {
                Self::Failed(Box::new(error.into()))
            }
        }
    )*};
}

failures!(TransactionError, TableError, StorageError, CommitError);
