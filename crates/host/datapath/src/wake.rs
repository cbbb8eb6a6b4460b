//! Ends a thread's wait for packets.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

/// Readable from [`Wake::wake`] until [`Wake::clear`].
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Nobody is woken yet.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        // Fails only when it was woken 2^64 times already.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whoever waits from now on waits for the next call.
    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
