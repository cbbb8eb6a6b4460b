//! What survives a restart: a checkpoint of everything at most every 250 ms, and a journal of what frontends were told
//! in between. A frontend hears `Opened` only after the journal has it, so a killed gate keeps every promise that it
//! made. Records reach the kernel before the answer and the disk within a second: a killed process loses nothing, a
//! power cut at most that second.

mod checkpoint;
mod journal;
mod keeper;
mod restore;

pub(crate) use checkpoint::FILE_NAME as CHECKPOINT_FILE_NAME;
pub(crate) use keeper::{Keeper, Saved};
pub(crate) use restore::restore;

use crate::ledger::{Ledger, Record};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
};
use tokio::sync::oneshot;

/// What the keeper is told.
pub(crate) enum Order {
    /// Append these, then say so.
    Append { records: Vec<Vec<u8>>, done: oneshot::Sender<()> },
    /// Write a last checkpoint from these tables and end.
    Close { tables: Vec<u8>, done: oneshot::Sender<io::Result<()>> },
}

/// The ledger of a running gate.
pub(crate) type SharedLedger = Arc<Mutex<Ledger>>;

/// The ledger, and the way of its changes into the journal, in one order.
#[derive(Debug)]
pub(crate) struct Books {
    ledger: SharedLedger,
    orders: mpsc::Sender<Order>,
}

impl Books {
    pub(crate) fn new(ledger: Ledger) -> (Self, mpsc::Receiver<Order>) {
        let (orders, received) = mpsc::channel();
        (Self { ledger: Arc::new(Mutex::new(ledger)), orders }, received)
    }

    /// The ledger itself, for the keeper, which ends when all who could give it orders are gone.
    pub(crate) fn ledger(&self) -> SharedLedger {
        Arc::clone(&self.ledger)
    }

    /// Reads the ledger. Held for a look-up, never over an `await`.
    pub(crate) fn read(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger; the records that `change` returns are in the journal when the future is ready.
    ///
    /// The queue to the keeper has no bound of its own: every caller waits here before it makes more.
    pub(crate) async fn write<T>(&self, change: impl FnOnce(&mut Ledger) -> (T, Vec<Record>)) -> T {
        let (result, done) = {
            let mut ledger = self.read();
            let (result, records) = change(&mut ledger);
            if records.is_empty() {
                return result;
            }
            let (done, written) = oneshot::channel();
            let records = records.iter().filter_map(|record| postcard::to_allocvec(record).ok()).collect();
            // Sent under the lock: the journal has the order of the ledger.
            let sent = self.orders.send(Order::Append { records, done });
            (result, sent.is_ok().then_some(written))
        };
        if let Some(written) = done {
            // The keeper answers also when the disk failed (and raises an alarm): calls go on without it.
            let _ = written.await;
        }
        result
    }

    /// Has the last checkpoint written.
    pub(crate) async fn close(&self, tables: Vec<u8>) -> io::Result<()> {
        let ended = || io::Error::other("the thread that writes it has ended");
        let (done, closed) = oneshot::channel();
        self.orders.send(Order::Close { tables, done }).map_err(|_| ended())?;
        closed.await.map_err(|_| ended())?
    }
}
