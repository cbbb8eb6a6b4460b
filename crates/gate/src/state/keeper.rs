//! The thread that writes checkpoints and the journal.

use super::{
    Order, SharedLedger,
    checkpoint::{self, Checkpoint},
    journal::{self, Journal},
};
use crate::{
    board::Board,
    clock,
    files::{self, Durability},
    packets::{Command, Commander},
};
use nix::fcntl::Flock;
use sluicegate_wire::Instant;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// Between two checkpoints at least.
pub(crate) const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(250);
/// What was written reaches the disk within this time.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The packet thread spends at most one part in this many on checkpoints.
const EXPORT_SHARE: u32 = 50;

/// What `status` says about the state on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    pub(crate) at: Option<Instant>,
    pub(crate) bytes: u64,
    pub(crate) export: Duration,
    pub(crate) error: Option<String>,
}

/// Owns the state files.
pub(crate) struct Keeper {
    dir: PathBuf,
    ledger: SharedLedger,
    commander: Commander,
    board: Arc<Board>,
    saved: Arc<Mutex<Saved>>,
    journal: Journal,
    generation: u64,
    /// Records were appended since the last checkpoint.
    appended: bool,
    /// Something was written since the disk last had everything.
    unsynced: bool,
    /// Frames received, as of the last checkpoint: any of them may have used budget.
    received: u64,
    next_checkpoint: Instant,
    next_sync: Instant,
    buffer: Vec<u8>,
    /// Keeps other gates off the directory for as long as this one writes there.
    lock: Flock<File>,
}

impl Keeper {
    /// Starts the journal of `generation`.
    pub(crate) fn new(
        dir: &Path,
        generation: u64,
        ledger: SharedLedger,
        commander: Commander,
        board: Arc<Board>,
        lock: Flock<File>,
    ) -> io::Result<Self> {
        let now = clock::monotonic();
        Ok(Self {
            journal: Journal::create(dir, generation)?,
            dir: dir.to_owned(),
            ledger,
            commander,
            board,
            saved: Arc::default(),
            generation,
            appended: true,
            unsynced: true,
            received: 0,
            next_checkpoint: now,
            next_sync: now + SYNC_INTERVAL,
            buffer: Vec::new(),
            lock,
        })
    }

    /// What `status` says.
    pub(crate) fn saved(&self) -> Arc<Mutex<Saved>> {
        Arc::clone(&self.saved)
    }

    /// Runs until it is told to close or everyone who could tell it is gone.
    pub(crate) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let now = clock::monotonic();
            match orders.recv_timeout(self.next_checkpoint.since(now)) {
                Ok(Order::Append { records, done }) => {
                    if let Some(close) = self.append(orders, records, done) {
                        return self.close(close);
                    }
                }
                Ok(close @ Order::Close { .. }) => return self.close(close),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = clock::monotonic();
            if now >= self.next_checkpoint {
                self.next_checkpoint = now + CHECKPOINT_INTERVAL;
                let result = self.checkpoint(now);
                self.note(result);
            }
        }
    }

    /// Appends this order and all that wait behind it with one write.
    fn append(
        &mut self,
        orders: &Receiver<Order>,
        mut records: Vec<Vec<u8>>,
        done: tokio::sync::oneshot::Sender<()>,
    ) -> Option<Order> {
        let mut answers = vec![done];
        let mut close = None;
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Append { records: more, done } => {
                    records.extend(more);
                    answers.push(done);
                }
                order @ Order::Close { .. } => {
                    close = Some(order);
                    break;
                }
            }
        }
        let result = self.journal.append(records.iter().map(Vec::as_slice));
        (self.appended, self.unsynced) = (true, true);
        self.note(result);
        for done in answers {
            // Whoever asked may be gone.
            let _ = done.send(());
        }
        close
    }

    fn checkpoint(&mut self, now: Instant) -> io::Result<()> {
        let received = self.board.reading().received;
        if self.appended || received != self.received {
            // From here on records go to the next journal. All that the old one holds is in tables and ledger already.
            let next = self.generation + 1;
            self.journal = Journal::create(&self.dir, next)?;
            self.generation = next;
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let asked = self.commander.ask(|answer| Command::Export { buffer, answer }).map_err(io::Error::other)?;
            let exported = asked.blocking_recv().map_err(|_| io::Error::other("the packet thread has ended"))?;
            self.next_checkpoint = now + CHECKPOINT_INTERVAL.max(exported.took * EXPORT_SHARE);
            let durability = if now >= self.next_sync { Durability::Disk } else { Durability::Process };
            let written = self.write(exported.tables, durability)?;
            (self.appended, self.received) = (false, received);
            self.unsynced = durability == Durability::Process;
            let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            (saved.at, saved.bytes, saved.export) = (Some(now), written, exported.took);
        }
        if now >= self.next_sync {
            if self.unsynced {
                self.journal.sync()?;
                files::sync(&self.dir.join(checkpoint::FILE_NAME))?;
                self.unsynced = false;
            }
            self.next_sync = now + SYNC_INTERVAL;
        }
        Ok(())
    }

    fn write(&mut self, tables: Vec<u8>, durability: Durability) -> io::Result<u64> {
        let ledger = {
            let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            postcard::to_allocvec(&*ledger).map_err(io::Error::other)?
        };
        let checkpoint = Checkpoint { generation: self.generation, ledger, tables };
        checkpoint.write(&self.dir, durability)?;
        journal::delete_before(&self.dir, self.generation)?;
        let written = checkpoint.ledger.len() + checkpoint.tables.len();
        self.buffer = checkpoint.tables;
        Ok(written as u64)
    }

    fn close(mut self, order: Order) {
        if let Order::Close { tables, done } = order {
            self.generation += 1;
            let result = self.write(tables, Durability::Disk).map(|_| ());
            // The next gate may start as soon as somebody hears of the end.
            drop(self.lock);
            // Nobody waiting for the end is no failure.
            let _ = done.send(result);
        }
    }

    fn note(&self, result: io::Result<()>) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let error = result.err().map(|error| format!("{}: {error}", self.dir.display()));
        if let Some(error) = &error
            && saved.error.is_none()
        {
            tracing::error!(%error, "the state is not saved; what is opened from now on is lost if the gate restarts");
        }
        saved.error = error;
    }
}
