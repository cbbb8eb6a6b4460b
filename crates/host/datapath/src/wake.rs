//! Ends a thread's wait for packets.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

use crate::sys::wait_readable;

/// Readable from [`Wake::wake`] until [`Wake::clear`], after which everything can be seen that was done before it was woken.
#[derive(Debug)]
pub struct Wake {
    event: OwnedFd,
    /// What is awake is not woken again: that costs a system call.
    is_awake: AtomicBool,
}

impl Wake {
    /// Nobody is woken yet.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, is_awake: AtomicBool::new(false) })
    }

    /// Ends the wait.
    pub fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::AcqRel) {
            // A counter that is full wakes as well.
            let _ = write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for it, as long at most, and clears it.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        if wait_readable(&[self.as_fd()], timeout)? {
            self.clear();
        }
        Ok(())
    }

    /// Whoever waits from now on waits for the next call.
    pub fn clear(&self) {
        let _ = read(&self.event, &mut [0; 8]);
        self.is_awake.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_woken_once_for_all_that_came_and_again_for_what_comes_later() {
        let wake = Wake::new().unwrap();
        let mut count = [0; 8];
        for _ in 0..2 {
            assert!(read(&wake.event, &mut count).is_err(), "nobody has woken it");
            for _ in 0..3 {
                wake.wake();
            }
            read(&wake.event, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1);
            wake.wake();
            assert!(read(&wake.event, &mut count).is_err(), "it is awake until somebody clears it");
            wake.clear();
        }
    }

    #[test]
    fn a_wait_ends_when_it_is_woken() {
        let wake = Wake::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| wake.wake());
            let began = std::time::Instant::now();
            wake.wait(Duration::from_secs(60)).unwrap();
            assert!(began.elapsed() < Duration::from_secs(30));
        });
        assert!(!wait_readable(&[wake.as_fd()], Duration::ZERO).unwrap(), "and it is clear");
    }
}
