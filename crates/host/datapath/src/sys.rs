//! The few system calls this crate needs, each behind a safe function.

use std::{
    io,
    mem::{MaybeUninit, size_of},
    net::Ipv6Addr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    time::Duration,
};

use libc::{c_int, c_void, socklen_t};
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};
use sluicegate_wire::Instant;

/// Opens a close-on-exec, non-blocking socket in the calling thread's network namespace.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
plain!(
    libc::sock_fprog,
    libc::sockaddr_ll,
    libc::sockaddr_xdp,
    libc::tpacket_req,
    libc::tpacket_stats,
    libc::packet_mreq,
    libc::xdp_umem_reg,
    libc::xdp_mmap_offsets,
    libc::xdp_statistics,
    libc::sockaddr_in,
    libc::sockaddr_in6,
    [libc::c_char; libc::IFNAMSIZ],
);

/// What the gate sends for others carries this mark, by which the filter tells it from what its host sends.
pub(crate) const MARK: i32 = 0x51c6_a7e0;

/// Marks what this socket sends as the gate's.
pub(crate) fn mark(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_MARK, &MARK)
}

/// Sets a socket option.
pub(crate) fn set_option<T: Plain>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is readable for `len` bytes during the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    check(result).map(drop)
}

/// Reads a socket option that is exactly a `T`.
pub(crate) fn option<T: Plain>(fd: &OwnedFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is writable for `len` bytes and the kernel writes no more than that.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    check(result)?;
    // SAFETY: zeroed or written by the kernel; any bit pattern of a `Plain` type is valid.
    Ok(unsafe { value.assume_init() })
}

/// Makes the send buffer as large as the caller's rights allow.
pub(crate) fn grow_send_buffer(fd: &OwnedFd, bytes: c_int) {
    if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
    }
}

/// Binds a socket to an address structure of any family.
pub(crate) fn bind<T: Plain>(fd: &OwnedFd, address: &T) -> io::Result<()> {
    // SAFETY: `address` is readable for its size during the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), size_of::<T>() as socklen_t) };
    check(result).map(drop)
}

/// Sends one message on a connected or bound socket.
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for its length.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends one message to an address on a socket that need not be connected.
pub(crate) fn send_to<T: Plain>(fd: &OwnedFd, bytes: &[u8], to: &T) -> io::Result<usize> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `bytes` and `to` are readable for their lengths during the call.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
            std::ptr::from_ref(to).cast(),
            len,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives one message on an IPv6 socket with `IPV6_RECVPKTINFO`: its length, source and destination.
pub(crate) fn receive_v6(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Ipv6Addr, Ipv6Addr)> {
    // As u64, so that it is aligned for `cmsghdr`.
    let mut control = [0_u64; 16];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid `sockaddr_in6` and a valid `msghdr`.
    let (mut from, mut message): (libc::sockaddr_in6, libc::msghdr) = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message's pointers are to live, writable memory of the lengths given with them.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut to = None;
    // SAFETY: `message` was filled by the kernel, and `control` is still alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so it lies inside `control` with a whole header.
        let found = unsafe { header.read_unaligned() };
        if (found.cmsg_level, found.cmsg_type) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            // SAFETY: the kernel puts an `in6_pktinfo` behind this header.
            let info = unsafe { libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().read_unaligned() };
            to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr));
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    let to = to.ok_or(io::ErrorKind::InvalidData)?;
    Ok((len, Ipv6Addr::from(from.sin6_addr.s6_addr), to))
}

/// Receives one message; returns its length, which may exceed the buffer with `MSG_TRUNC`.
pub(crate) fn receive(fd: &OwnedFd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    let len = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Most descriptors to wait for at once.
const WAIT_MAX: usize = 32;
/// 68 years, which every `time_t` holds.
const TIMEOUT_MAX: Duration = Duration::from_secs(i32::MAX as u64);

/// Waits until one of `fds` (at most 32) is readable; `true` if so, `false` on timeout or signal.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WAIT_MAX];
    for (slot, fd) in polled.iter_mut().zip(fds) {
        slot.fd = fd.as_raw_fd();
    }
    let time = TimeSpec::from_duration(timeout.min(TIMEOUT_MAX));
    // SAFETY: `polled` is a live array of the length passed; a null signal mask is allowed.
    let ready = unsafe {
        libc::ppoll(polled.as_mut_ptr(), fds.len().min(WAIT_MAX) as libc::nfds_t, time.as_ref(), std::ptr::null())
    };
    match check(ready) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock that the kernel program reads.
#[must_use]
pub fn monotonic_nanos() -> u64 {
    // The clock always exists.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// [`monotonic_nanos`] as an [`Instant`]: the clock for [`crate::Device::heartbeat`].
#[must_use]
pub fn monotonic_now() -> Instant {
    Instant::from_nanos(monotonic_nanos())
}

/// The result of a system call that returns -1 on error.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Memory shared with the kernel; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned memory that no other thread refers to through this value.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a socket's ring at `offset`.
    pub(crate) fn shared(fd: &OwnedFd, len: usize, offset: i64) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps `len` zeroed bytes of private memory, page-aligned.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    fn map(len: usize, flags: c_int, fd: c_int, offset: i64) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Pointer to the byte at `offset`. The caller answers for what it does with it.
    ///
    /// # Panics
    /// If `offset..offset + len` does not lie inside the mapping.
    pub(crate) fn pointer(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range outside the mapping");
        // SAFETY: `offset` lies inside the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those that mmap returned, and no reference outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
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
