//! What survives a restart: a checkpoint of everything every 250 ms while something changes, and a journal of what
//! frontends were told in between. A frontend hears `Opened` only after the journal has it, so a killed gate keeps every
//! promise that it made. Records reach the kernel before the answer and the disk within about a second: a killed process
//! loses nothing, a power cut at most that second.

mod checkpoint;
mod checkpointer;
mod journal;
mod restore;

pub(crate) use checkpoint::FILE_NAME as CHECKPOINT_FILE_NAME;
pub(crate) use checkpointer::{Checkpointer, Close, Saved};
pub(crate) use journal::Journal;
pub(crate) use restore::{Restored, restore};

use crate::ledger::{Ledger, Record};
use std::{
    io,
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The ledger, and the way of its changes into the journal, in one order.
#[derive(Debug)]
pub(crate) struct Books {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    journal: Journal,
    /// Records were appended since the last checkpoint began.
    changed: bool,
    /// Why the last append failed.
    error: Option<String>,
}

/// The ledger, locked.
pub(crate) struct Reading<'a>(MutexGuard<'a, Inner>);

impl Deref for Reading<'_> {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.0.ledger
    }
}

impl Books {
    pub(crate) const fn new(ledger: Ledger, journal: Journal) -> Self {
        // Changed: what was just brought back belongs into a checkpoint.
        Self { inner: Mutex::new(Inner { ledger, journal, changed: true, error: None }) }
    }

    /// Reads the ledger. Held for a look-up, never over an `await`.
    pub(crate) fn read(&self) -> Reading<'_> {
        Reading(self.lock())
    }

    /// Applies records; they survive the death of this process when it returns. Costs one short write to a file.
    ///
    /// If the disk fails, the records are applied all the same and an alarm is raised: calls go on without it.
    pub(crate) fn write(&self, records: &[Record]) {
        let mut inner = self.lock();
        inner.write(records);
    }

    /// As [`Self::write`], with records that are made under the same lock.
    pub(crate) fn write_with<T>(&self, make: impl FnOnce(&Ledger) -> (T, Vec<Record>)) -> T {
        let mut inner = self.lock();
        let (result, records) = make(&inner.ledger);
        inner.write(&records);
        result
    }

    /// From here on records go to `journal`. All that the old one holds is in the tables and the ledger already.
    fn rotate(&self, journal: Journal) {
        let mut inner = self.lock();
        inner.journal = journal;
        inner.changed = false;
    }

    fn is_changed(&self) -> bool {
        self.lock().changed
    }

    /// The ledger for the checkpoint.
    fn encoded(&self) -> io::Result<Vec<u8>> {
        postcard::to_allocvec(&self.lock().ledger).map_err(io::Error::other)
    }

    /// Why records are not saved.
    pub(crate) fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn write(&mut self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        for record in records {
            self.ledger.apply(record.clone());
        }
        self.changed = true;
        let encoded: Result<Vec<_>, _> = records.iter().map(postcard::to_allocvec).collect();
        let appended = encoded
            .map_err(io::Error::other)
            .and_then(|encoded| self.journal.append(encoded.iter().map(Vec::as_slice)))
            .map_err(|error| error.to_string());
        if let Err(error) = &appended
            && self.error.is_none()
        {
            tracing::error!(
                error,
                "the journal is not written; what is opened from now on is lost if the gate restarts"
            );
        }
        self.error = appended.err();
    }
}
