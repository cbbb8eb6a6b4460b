use std::{io, ops::AddAssign, os::fd::AsRawFd};

/// Frames per system call.
pub const BATCH: usize = 64;

/// What became of the frames given to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transmitted {
    /// Handed to the interface.
    pub sent: usize,
    /// Not sent: the interface's queue was full.
    pub full: usize,
    /// Not sent: larger than the MTU, or otherwise no frame.
    pub refused: usize,
}

impl AddAssign for Transmitted {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.full += other.full;
        self.refused += other.refused;
    }
}

/// Up to [`BATCH`] frames to be sent with one `sendmmsg`. Holds pointers to frames, so each push is followed by a flush
/// while those are alive; hence crate-private.
pub(crate) struct Batch {
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    len: usize,
}

// SAFETY: between calls the batch is empty (`len == 0`) and its stale pointers are never followed.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers, zero lengths.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Self { vectors: Box::new([vector; BATCH]), headers: Box::new([header; BATCH]), len: 0 }
    }

    /// Forgets frames that were pushed and never flushed.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a frame. It must stay alive and unchanged until `flush`.
    ///
    /// # Panics
    /// If the batch is full.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        assert!(self.len < BATCH, "flush a full batch first");
        self.vectors[self.len] = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        let header = &mut self.headers[self.len].msg_hdr;
        header.msg_iov = &raw mut self.vectors[self.len];
        header.msg_iovlen = 1;
        self.len += 1;
    }

    /// Sends all frames and forgets them. A frame without room is dropped and counted, never retried.
    pub(crate) fn flush(&mut self, socket: &socket2::Socket) -> io::Result<Transmitted> {
        let mut outcome = Transmitted::default();
        let mut next = 0;
        let len = std::mem::take(&mut self.len);
        while next < len {
            let headers = self.headers[next..len].as_mut_ptr();
            let count = (len - next) as libc::c_uint;
            // SAFETY: `headers` has `count` entries, each with one iovec that refers to a live frame (see `push`).
            let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT) };
            if sent > 0 {
                outcome.sent += sent as usize;
                next += sent as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ENOBUFS | libc::EAGAIN) => outcome.full += 1,
                Some(libc::EMSGSIZE | libc::EINVAL) => outcome.refused += 1,
                _ => return Err(error),
            }
            next += 1;
        }
        Ok(outcome)
    }
}
