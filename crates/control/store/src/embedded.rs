use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use redb::{
    Database, MultimapTable, MultimapTableDefinition, ReadTransaction, ReadableDatabase, ReadableMultimapTable,
    ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction,
};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

use crate::{
    Change, ChangeKind, Entry, Expect, KEY_LEN_MAX, LEASES_MAX, LeaseId, OPS_MAX, Op, Revision, Store, StoreError, Txn,
    VALUE_LEN_MAX, Watch,
};

/// Key to (revision, lease or 0, value).
const ENTRIES: TableDefinition<'_, &str, (u64, u64, &[u8])> = TableDefinition::new("entries");
/// (Revision, position in it) to (key, whether it was deleted).
const LOG: TableDefinition<'_, (u64, u32), (&str, bool)> = TableDefinition::new("log");
/// Lease to the Unix second at which it ends.
const LEASES: TableDefinition<'_, u64, u64> = TableDefinition::new("leases");
/// Lease to the keys under it.
const LEASED: MultimapTableDefinition<'_, u64, &str> = MultimapTableDefinition::new("leased");
/// The counters below.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

const FORMAT: &str = "format";
const REVISION: &str = "revision";
/// Changes of this revision and of those before it are no longer all in the log.
const FORGOTTEN: &str = "forgotten";
const LAST_LEASE: &str = "last_lease";

const FORMAT_KNOWN: u64 = 1;
const CACHE_BYTES: usize = 16 * 1024 * 1024;
/// Changes that one call of [`Watch::next`] returns, unless one transaction has more.
const WATCH_STEP: usize = 1_024;

/// The bounds of an [`Embedded`] store, fixed when it is opened.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedOptions {
    /// Records.
    pub entries_max: u64,
    /// Changes that a watch can resume over.
    pub log_len_max: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { entries_max: 1_000_000, log_len_max: 8_192 }
    }
}

/// A store in one file, for one process on one machine. Every transaction is on disk when it returns.
pub struct Embedded {
    database: Arc<Database>,
    options: EmbeddedOptions,
    news: Arc<News>,
}

/// Wakes watches when the revision moves on.
struct News {
    revision: Mutex<Revision>,
    moved: Condvar,
}

impl Embedded {
    /// Opens the store in the file `path`, or makes an empty one that only its owner may read (mode 0600).
    ///
    /// # Errors
    /// If the file cannot be opened, is open elsewhere, damaged, of an unknown format, or readable by others.
    pub fn open(path: &Path, options: EmbeddedOptions) -> Result<Self, StoreError> {
        let file = open_private(path)?;
        let database =
            redb::Builder::new().set_cache_size(CACHE_BYTES).create_file(file).map_err(|e| refused(path, e))?;
        let revision = prepare(&database).map_err(|error| damaged(path, error))?;
        let format = prepare_format(&database).map_err(|error| damaged(path, error))?;
        if format != FORMAT_KNOWN {
            return Err(StoreError::Format { path: path.into(), found: format });
        }
        let news = Arc::new(News { revision: Mutex::new(revision), moved: Condvar::new() });
        Ok(Self { database: Arc::new(database), options, news })
    }

    fn commit(&self, write: WriteTransaction, revision: Revision) -> Result<(), StoreError> {
        write.commit().map_err(failed)?;
        let mut newest = self.news.revision.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever committed after us may have come here before us.
        *newest = revision.max(*newest);
        drop(newest);
        self.news.moved.notify_all();
        Ok(())
    }

    /// Name, used, maximum of each table.
    ///
    /// # Errors
    /// Only if the store itself fails.
    pub fn gauges(&self) -> Result<[(&'static str, u64, u64); 3], StoreError> {
        let read = self.database.begin_read().map_err(failed)?;
        let len = |table: TableDefinition<'_, &'static str, (u64, u64, &'static [u8])>| {
            read.open_table(table).map_err(failed)?.len().map_err(failed)
        };
        Ok([
            ("store_entries", len(ENTRIES)?, self.options.entries_max),
            ("store_log", read.open_table(LOG).map_err(failed)?.len().map_err(failed)?, self.options.log_len_max),
            ("store_leases", read.open_table(LEASES).map_err(failed)?.len().map_err(failed)?, LEASES_MAX),
        ])
    }
}

impl Store for Embedded {
    fn get(&self, now: UnixTime, key: &str) -> Result<Option<Entry>, StoreError> {
        let read = self.database.begin_read().map_err(failed)?;
        let Some(found) = read.open_table(ENTRIES).map_err(failed)?.get(key).map_err(failed)? else { return Ok(None) };
        live_entry(&read, now, key, found.value())
    }

    fn range(&self, now: UnixTime, prefix: &str, after: &str, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let read = self.database.begin_read().map_err(failed)?;
        let entries = read.open_table(ENTRIES).map_err(failed)?;
        let mut found = Vec::new();
        for item in entries.range(prefix.max(after)..).map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            let key = key.value();
            if !key.starts_with(prefix) || found.len() >= limit {
                break;
            }
            if key > after {
                found.extend(live_entry(&read, now, key, value.value())?);
            }
        }
        Ok(found)
    }

    fn revision(&self) -> Result<Revision, StoreError> {
        Ok(*self.news.revision.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn watch(&self, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let mut watch = EmbeddedWatch { database: self.database.clone(), news: self.news.clone(), seen: from };
        watch.check_known(&self.database.begin_read().map_err(failed)?)?;
        watch.seen = from.min(self.revision()?);
        Ok(Box::new(watch))
    }

    fn txn(&self, now: UnixTime, txn: &Txn) -> Result<Revision, StoreError> {
        check_bounds(txn)?;
        let write = self.database.begin_write().map_err(failed)?;
        // On an error the transaction is dropped, and with it everything that it did.
        let revision = Writing::begin(&write)?.run(now, txn, &self.options)?;
        self.commit(write, revision)?;
        Ok(revision)
    }

    fn lease(&self, now: UnixTime, ttl_s: u64) -> Result<LeaseId, StoreError> {
        let write = self.database.begin_write().map_err(failed)?;
        let (id, revision) = Writing::begin(&write)?.open_lease(now, ttl_s, &self.options)?;
        self.commit(write, revision)?;
        Ok(id)
    }

    fn renew(&self, now: UnixTime, lease: LeaseId, ttl_s: u64) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(failed)?;
        {
            let mut leases = write.open_table(LEASES).map_err(failed)?;
            let ends = leases.get(lease.0).map_err(failed)?.map(|ends| ends.value());
            if ends.is_none_or(|ends| ends <= now.0) {
                return Err(StoreError::LeaseEnded);
            }
            leases.insert(lease.0, now.plus_secs(ttl_s).0).map_err(failed)?;
        }
        write.commit().map_err(failed)
    }
}

/// The tables of one transaction under way.
struct Writing<'t> {
    entries: Table<'t, &'static str, (u64, u64, &'static [u8])>,
    log: Table<'t, (u64, u32), (&'static str, bool)>,
    leases: Table<'t, u64, u64>,
    leased: MultimapTable<'t, u64, &'static str>,
    meta: Table<'t, &'static str, u64>,
    revision: Revision,
    changes: u32,
}

impl<'t> Writing<'t> {
    fn begin(write: &'t WriteTransaction) -> Result<Self, StoreError> {
        let meta = write.open_table(META).map_err(failed)?;
        let revision = counter(&meta, REVISION)? + 1;
        Ok(Self {
            entries: write.open_table(ENTRIES).map_err(failed)?,
            log: write.open_table(LOG).map_err(failed)?,
            leases: write.open_table(LEASES).map_err(failed)?,
            leased: write.open_multimap_table(LEASED).map_err(failed)?,
            meta,
            revision,
            changes: 0,
        })
    }

    /// The revision afterwards: a new one if a record changed.
    fn run(mut self, now: UnixTime, txn: &Txn, options: &EmbeddedOptions) -> Result<Revision, StoreError> {
        self.end_leases(now)?;
        for compare in &txn.compare {
            let found = self.entries.get(compare.key.as_str()).map_err(failed)?.map(|entry| entry.value().0);
            let holds = match compare.expect {
                Expect::Absent => found.is_none(),
                Expect::Present => found.is_some(),
                Expect::At(revision) => found == Some(revision),
            };
            if !holds {
                return Err(StoreError::Conflict { key: compare.key.clone() });
            }
        }
        for op in &txn.ops {
            match op {
                Op::Put { key, value, lease } => self.put(key, value, *lease, options)?,
                Op::Delete { key } => self.delete(key)?,
            }
        }
        self.finish(options)
    }

    /// A new lease, and the revision afterwards: ended leases make room first.
    fn open_lease(
        mut self,
        now: UnixTime,
        ttl_s: u64,
        options: &EmbeddedOptions,
    ) -> Result<(LeaseId, Revision), StoreError> {
        self.end_leases(now)?;
        if self.leases.len().map_err(failed)? >= LEASES_MAX {
            return Err(StoreError::LeasesFull);
        }
        let id = counter(&self.meta, LAST_LEASE)? + 1;
        self.meta.insert(LAST_LEASE, id).map_err(failed)?;
        self.leases.insert(id, now.plus_secs(ttl_s).0).map_err(failed)?;
        Ok((LeaseId(id), self.finish(options)?))
    }

    fn finish(mut self, options: &EmbeddedOptions) -> Result<Revision, StoreError> {
        if self.changes == 0 {
            return Ok(self.revision - 1);
        }
        self.meta.insert(REVISION, self.revision).map_err(failed)?;
        while self.log.len().map_err(failed)? > options.log_len_max {
            let Some((at, _)) = self.log.pop_first().map_err(failed)? else { break };
            self.meta.insert(FORGOTTEN, at.value().0).map_err(failed)?;
        }
        Ok(self.revision)
    }

    fn end_leases(&mut self, now: UnixTime) -> Result<(), StoreError> {
        let mut ended = Vec::new();
        for item in self.leases.iter().map_err(failed)? {
            let (id, ends) = item.map_err(failed)?;
            if ends.value() <= now.0 {
                ended.push(id.value());
            }
        }
        for id in ended {
            let mut keys = Vec::new();
            for key in self.leased.get(id).map_err(failed)? {
                keys.push(key.map_err(failed)?.value().to_owned());
            }
            for key in keys {
                self.delete(&key)?;
            }
            self.leases.remove(id).map_err(failed)?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        key: &str,
        value: &[u8],
        lease: Option<LeaseId>,
        options: &EmbeddedOptions,
    ) -> Result<(), StoreError> {
        let lease = lease.map_or(0, |lease| lease.0);
        if lease != 0 && self.leases.get(lease).map_err(failed)?.is_none() {
            return Err(StoreError::LeaseEnded);
        }
        let before =
            self.entries.insert(key, (self.revision, lease, value)).map_err(failed)?.map(|entry| entry.value().1);
        match before {
            Some(0) => {}
            Some(lease) => _ = self.leased.remove(lease, key).map_err(failed)?,
            None if self.entries.len().map_err(failed)? > options.entries_max => {
                return Err(StoreError::Full { max: options.entries_max });
            }
            None => {}
        }
        if lease != 0 {
            self.leased.insert(lease, key).map_err(failed)?;
        }
        self.note(key, ChangeKind::Put)
    }

    fn delete(&mut self, key: &str) -> Result<(), StoreError> {
        let before = self.entries.remove(key).map_err(failed)?.map(|entry| entry.value().1);
        match before {
            None => return Ok(()),
            Some(0) => {}
            Some(lease) => _ = self.leased.remove(lease, key).map_err(failed)?,
        }
        self.note(key, ChangeKind::Deleted)
    }

    fn note(&mut self, key: &str, kind: ChangeKind) -> Result<(), StoreError> {
        self.log.insert((self.revision, self.changes), (key, kind == ChangeKind::Deleted)).map_err(failed)?;
        self.changes += 1;
        Ok(())
    }
}

struct EmbeddedWatch {
    database: Arc<Database>,
    news: Arc<News>,
    seen: Revision,
}

impl EmbeddedWatch {
    fn check_known(&self, read: &ReadTransaction) -> Result<(), StoreError> {
        let forgotten = counter(&read.open_table(META).map_err(failed)?, FORGOTTEN)?;
        if self.seen < forgotten { Err(StoreError::Compacted { from: self.seen }) } else { Ok(()) }
    }
}

impl Watch for EmbeddedWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Change>, StoreError> {
        let revision = self.news.revision.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.seen;
        drop(self.news.moved.wait_timeout_while(revision, timeout, |revision| *revision <= seen));

        let read = self.database.begin_read().map_err(failed)?;
        self.check_known(&read)?;
        let mut changes: Vec<Change> = Vec::new();
        for item in read.open_table(LOG).map_err(failed)?.range((seen.saturating_add(1), 0)..).map_err(failed)? {
            let (at, what) = item.map_err(failed)?;
            let (revision, (key, deleted)) = (at.value().0, what.value());
            // A transaction is never split, so that resuming after its revision misses nothing.
            if changes.len() >= WATCH_STEP && revision != self.seen {
                break;
            }
            self.seen = revision;
            let kind = if deleted { ChangeKind::Deleted } else { ChangeKind::Put };
            changes.push(Change { revision, key: key.into(), kind });
        }
        Ok(changes)
    }
}

/// The entry, unless its lease has ended.
fn live_entry(
    read: &ReadTransaction,
    now: UnixTime,
    key: &str,
    (revision, lease, value): (u64, u64, &[u8]),
) -> Result<Option<Entry>, StoreError> {
    if lease != 0 {
        let ends = read.open_table(LEASES).map_err(failed)?.get(lease).map_err(failed)?.map(|ends| ends.value());
        if ends.is_none_or(|ends| ends <= now.0) {
            return Ok(None);
        }
    }
    Ok(Some(Entry { key: key.into(), value: Zeroizing::new(value.to_vec()), revision }))
}

fn counter(meta: &impl ReadableTable<&'static str, u64>, name: &str) -> Result<u64, StoreError> {
    Ok(meta.get(name).map_err(failed)?.map_or(0, |value| value.value()))
}

fn check_bounds(txn: &Txn) -> Result<(), StoreError> {
    let within = |what, len, max| if len > max { Err(StoreError::TooLarge { what, len, max }) } else { Ok(()) };
    within("a transaction", txn.ops.len().max(txn.compare.len()), OPS_MAX)?;
    for op in &txn.ops {
        let (Op::Put { key, .. } | Op::Delete { key }) = op;
        within("a key", key.len(), KEY_LEN_MAX)?;
        if let Op::Put { value, .. } = op {
            within("a value", value.len(), VALUE_LEN_MAX)?;
        }
    }
    Ok(())
}

/// Creates the tables and returns the present revision.
fn prepare(database: &Database) -> Result<Revision, StoreError> {
    let write = database.begin_write().map_err(failed)?;
    let revision = Writing::begin(&write)?.revision - 1;
    write.commit().map_err(failed)?;
    Ok(revision)
}

/// The format of the file, written if it is new.
fn prepare_format(database: &Database) -> Result<u64, StoreError> {
    let write = database.begin_write().map_err(failed)?;
    let format = {
        let mut meta = write.open_table(META).map_err(failed)?;
        let found = meta.get(FORMAT).map_err(failed)?.map(|format| format.value());
        if found.is_none() {
            meta.insert(FORMAT, FORMAT_KNOWN).map_err(failed)?;
        }
        found.unwrap_or(FORMAT_KNOWN)
    };
    write.commit().map_err(failed)?;
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

fn failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Failed(Box::new(error.into()))
}
