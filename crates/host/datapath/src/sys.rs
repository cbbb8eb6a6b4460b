//! The few system calls this crate needs, each behind a safe function.

use std::{
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    time::Duration,
};

use libc::{c_int, socklen_t};
use memmap2::{MmapOptions, MmapRaw};
use nix::time::{ClockId, clock_gettime};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use sluicegate_wire::Instant;

/// Most descriptors to wait for at once.
const WAIT_MAX: usize = 33;

/// Opens a close-on-exec, non-blocking socket in the calling thread's network namespace.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<socket2::Socket> {
    let protocol = Some(protocol).filter(|protocol| *protocol != 0).map(Into::into);
    let socket = socket2::Socket::new(domain.into(), kind.into(), protocol)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Types without padding, invariants or pointers owned by Rust, whose bytes the kernel may read and write.
///
/// # Safety
/// Every bit pattern of the type must be valid, and the type must be `repr(C)` or an integer.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: any bit pattern is a valid integer.
unsafe impl Plain for c_int {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: a `repr(C)` structure of integers (or of raw pointers, which carry no validity promise).
            unsafe impl Plain for $type {}
        )*
    };
}
plain!(libc::sockaddr_ll, libc::tpacket_req, libc::tpacket_stats, libc::packet_mreq, libc::tcp_info);

/// What the gate sends for others carries this mark, by which the filter tells it from what its host sends.
pub(crate) const MARK: u32 = 0x51c6_a7e0;

/// Sets a socket option.
pub(crate) fn set_option<T: Plain>(fd: &impl AsRawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is readable for `len` bytes during the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    check(result).map(drop)
}

/// Reads a socket option that is exactly a `T`.
pub(crate) fn option<T: Plain>(fd: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is writable for `len` bytes and the kernel writes no more than that.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    check(result)?;
    // SAFETY: zeroed or written by the kernel; any bit pattern of a `Plain` type is valid.
    Ok(unsafe { value.assume_init() })
}

/// Makes the send buffer as large as the caller's rights allow.
pub(crate) fn grow_send_buffer(fd: &impl AsFd, bytes: usize) {
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
}

/// Binds a socket to an address structure of any family.
pub(crate) fn bind<T: Plain>(fd: &impl AsRawFd, address: &T) -> io::Result<()> {
    // SAFETY: `address` is readable for its size during the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), size_of::<T>() as socklen_t) };
    check(result).map(drop)
}

/// Waits until one of `fds` (at most 33) is readable; `true` if so, `false` on timeout or signal.
///
/// # Errors
/// Those of `poll(2)`.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
    let Some(first) = fds.first() else { return Ok(false) };
    let place = |at| PollFd::from_borrowed_fd(*fds.get(at).unwrap_or(first), PollFlags::IN);
    let mut polled: [_; WAIT_MAX] = std::array::from_fn(place);
    match poll(&mut polled[..fds.len().min(WAIT_MAX)], Timespec::try_from(timeout).ok().as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `CLOCK_MONOTONIC`, which the kernel program reads too: the clock for [`crate::Device::heartbeat`].
#[must_use]
pub fn monotonic_now() -> Instant {
    // The clock always exists.
    Instant::ZERO + clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// How long what came last over a connection has waited to be read; since the connection was made if nothing came. To the
/// millisecond.
///
/// # Errors
/// Those of the system.
pub fn unread_for(connection: &impl AsRawFd) -> io::Result<Duration> {
    let info: libc::tcp_info = option(connection, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(Duration::from_millis(info.tcpi_last_data_recv.into()))
}

/// How many connections wait to be taken from a socket that listens, and how many it holds at most.
///
/// # Errors
/// Those of the system.
pub fn waiting_at(listener: &impl AsRawFd) -> io::Result<(u32, u32)> {
    // Of a socket that listens, the kernel tells its queue by these two names.
    let info: libc::tcp_info = option(listener, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok((info.tcpi_unacked, info.tcpi_sacked))
}

/// The result of a system call that returns -1 on error.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Memory shared with the kernel; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `len` bytes of a socket's ring at `offset`.
    pub(crate) fn shared(fd: &impl AsRawFd, len: usize, offset: u64) -> io::Result<Self> {
        MmapOptions::new().len(len).offset(offset).populate().map_raw(fd).map(Self)
    }

    /// Maps `len` zeroed bytes of private memory, page-aligned.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        MmapOptions::new().len(len).populate().map_anon().map(|mapped| Self(mapped.into()))
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Pointer to the byte at `offset`. The caller answers for what it does with it.
    ///
    /// # Panics
    /// If `offset..offset + len` does not lie inside the mapping.
    pub(crate) fn pointer(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "range outside the mapping");
        // SAFETY: `offset` lies inside the mapping, as just checked, and a mapping is not at address 0.
        unsafe { NonNull::new_unchecked(self.0.as_mut_ptr().add(offset)) }
    }
}

/// The C string of an interface name inside a fixed `ifreq` field.
pub(crate) fn interface_name(name: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut field = [0; libc::IFNAMSIZ];
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no interface name")));
    }
    for (slot, byte) in field.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(field)
}
