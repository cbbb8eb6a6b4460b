//! The thread that writes checkpoints and sees to it that everything reaches the disk. Nobody waits for it.

use super::{
    checkpoint::{self, Checkpoint},
    journal::{self, Journal},
};
use crate::{
    clock,
    files::{self, Durability},
    packets::Command,
    secrets::Seeds,
    shared::Shared,
};
use nix::fcntl::Flock;
use sluicegate_wire::Instant;
use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};
use tokio::sync::oneshot;

/// Between two checkpoints at least.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(250);
/// Between two checkpoints at most, while something changes.
const CHECKPOINT_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// What was written reaches the disk about this often.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The packet thread spends at most one part in this many on checkpoints.
const EXPORT_SHARE: u32 = 200;

/// What `status` says about the state on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    pub(crate) at: Option<Instant>,
    pub(crate) bytes: u64,
    pub(crate) export: Duration,
    pub(crate) error: Option<String>,
}

/// Tells the keeper to write a last checkpoint from these tables and to end.
pub(crate) struct Close {
    pub(crate) tables: Vec<u8>,
    pub(crate) done: oneshot::Sender<io::Result<()>>,
}

/// Owns the state files, except for the end of the journal.
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    /// Of the journal that the books write.
    generation: u64,
    /// The journal in use was begun for a checkpoint that could not be written yet; the next try needs no other.
    rotated: bool,
    /// The journal in use, to have it reach the disk.
    journal: File,
    /// Frames received, as of the last checkpoint that was written: any of them may have used budget.
    received: Option<u64>,
    next_checkpoint: Instant,
    next_sync: Instant,
    /// Something was written since the disk last had everything.
    unsynced: bool,
    buffer: Vec<u8>,
    seeds: Seeds,
    /// Keeps other gates off the directory for as long as this one writes there.
    lock: Flock<File>,
}

impl Checkpointer {
    /// Of a gate whose books write `journal`, which has this generation.
    pub(crate) fn new(
        shared: Arc<Shared>,
        (generation, journal): (u64, File),
        seeds: Seeds,
        lock: Flock<File>,
    ) -> Self {
        let now = clock::monotonic();
        Self {
            shared,
            generation,
            rotated: false,
            journal,
            received: None,
            next_checkpoint: now,
            next_sync: now + SYNC_INTERVAL,
            unsynced: true,
            buffer: Vec::new(),
            seeds,
            lock,
        }
    }

    fn dir(&self) -> &Path {
        &self.shared.config.state_dir
    }

    /// Runs until it is told to close, or everyone who could tell it is gone.
    pub(crate) fn run(mut self, closed: &Receiver<Close>) {
        loop {
            let wait = self.next_checkpoint.since(clock::monotonic());
            match closed.recv_timeout(wait) {
                Ok(close) => return self.close(close),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = clock::monotonic();
            self.next_checkpoint = now + CHECKPOINT_INTERVAL;
            if self.seeds.turn(now)
                && let Err(error) = self.seeds.write(&self.shared.config.state_dir)
            {
                tracing::error!(%error, "the seed of earlier capabilities is still on the disk");
            }
            let result = self.checkpoint(now).and_then(|()| self.sync(now));
            self.note(result);
        }
    }

    fn checkpoint(&mut self, now: Instant) -> io::Result<()> {
        let received = self.shared.published.reading().received;
        if !self.shared.books.is_changed() && self.received == Some(received) {
            return Ok(());
        }
        self.received = None;
        if !self.rotated {
            let journal = Journal::create(self.dir(), self.generation + 1)?;
            self.journal = journal.file()?;
            self.shared.books.rotate(journal);
            self.generation += 1;
            self.rotated = true;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let asked = self.shared.commander.ask(|answer| Command::Export { buffer, answer }).map_err(io::Error::other)?;
        let exported = asked.blocking_recv().map_err(|_| io::Error::other("the packet thread has ended"))?;
        let pause = exported.took.saturating_mul(EXPORT_SHARE);
        self.next_checkpoint = now + pause.clamp(CHECKPOINT_INTERVAL, CHECKPOINT_INTERVAL_MAX);
        let written = self.write(exported.tables, Durability::Process)?;
        (self.received, self.unsynced, self.rotated) = (Some(received), true, false);
        let mut saved = self.shared.saved.lock().unwrap_or_else(PoisonError::into_inner);
        (saved.at, saved.bytes, saved.export) = (Some(now), written, exported.took);
        Ok(())
    }

    fn sync(&mut self, now: Instant) -> io::Result<()> {
        if now < self.next_sync {
            return Ok(());
        }
        self.next_sync = now + SYNC_INTERVAL;
        if self.unsynced {
            files::sync(&self.dir().join(checkpoint::FILE_NAME))?;
        }
        self.unsynced = false;
        // Costs nothing if nothing was appended.
        self.journal.sync_data()
    }

    fn write(&mut self, tables: Vec<u8>, durability: Durability) -> io::Result<u64> {
        let checkpoint = Checkpoint { generation: self.generation, ledger: self.shared.books.encoded()?, tables };
        checkpoint.write(self.dir(), durability)?;
        journal::delete_before(self.dir(), self.generation)?;
        let written = checkpoint.ledger.len() + checkpoint.tables.len();
        self.buffer = checkpoint.tables;
        Ok(written as u64)
    }

    fn close(mut self, close: Close) {
        let result = self.write(close.tables, Durability::Disk).map(|_| ());
        // The next gate may start as soon as somebody hears of the end.
        drop(self.lock);
        // Nobody waiting for the end is no failure.
        let _ = close.done.send(result);
    }

    fn note(&self, result: io::Result<()>) {
        let mut saved = self.shared.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let error = result.err().map(|error| format!("{}: {error}", self.dir().display()));
        if let Some(error) = &error
            && saved.error.is_none()
        {
            tracing::error!(error, "no checkpoint is written; budgets and flows since the last are lost at a restart");
        }
        saved.error = error;
    }
}
