//! What SIP threads decide by, as it stands. Each looks for itself, so that no queue that is full keeps a change from it:
//! a user who was removed is removed under a flood too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, Guard};

/// A value that one side replaces, and that each of several threads takes up.
#[derive(Debug)]
pub(crate) struct Published<T> {
    current: ArcSwap<T>,
    version: AtomicU64,
    /// By thread: the version that it decides by.
    taken: Box<[AtomicU64]>,
}

impl<T> Published<T> {
    /// `first` is what all `threads` begin with.
    pub(crate) fn new(first: Arc<T>, threads: usize) -> Self {
        Self {
            current: ArcSwap::new(first),
            version: AtomicU64::new(0),
            taken: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// Puts `new` in place. Threads that sleep have to be woken.
    pub(crate) fn publish(&self, new: Arc<T>) {
        self.current.store(new);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Hands a thread what it does not decide by yet, if anything.
    pub(crate) fn take(&self, thread: usize, decide_by: impl FnOnce(Arc<T>)) {
        let version = self.version.load(Ordering::Acquire);
        let Some(taken) = self.taken.get(thread).filter(|taken| taken.load(Ordering::Relaxed) != version) else {
            return;
        };
        decide_by(self.current.load_full());
        taken.store(version, Ordering::Release);
    }

    /// Waits until every thread decides by what is there now, or until `patience` is over; whether all do.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let (version, until) = (self.version.load(Ordering::Acquire), Instant::now() + patience);
        let has = |taken: &AtomicU64| taken.load(Ordering::Acquire) >= version;
        while !self.taken.iter().all(has) {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_takes_a_change_once_and_whoever_waits_knows_when_all_have() {
        let published = Published::new(Arc::new(1), 2);
        let take = |thread| {
            let mut got = None;
            published.take(thread, |value| got = Some(*value));
            got
        };
        assert_eq!((take(0), take(1)), (None, None));
        assert!(published.wait(Duration::ZERO));
        published.publish(Arc::new(2));
        published.publish(Arc::new(3));
        assert_eq!((take(0), take(0)), (Some(3), None));
        assert!(!published.wait(Duration::from_millis(5)), "the other has not");
        assert_eq!((take(1), take(1), take(2)), (Some(3), None, None));
        assert!(published.wait(Duration::ZERO));
    }
}
