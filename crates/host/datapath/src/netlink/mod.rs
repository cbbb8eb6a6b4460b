//! A small netlink writer and socket: links, addresses, routes, neighbours, queueing disciplines, and an nf_tables
//! ingress filter. Works in an unprivileged user namespace for the network namespaces that it owns.

mod answers;
mod capture;
mod forward;
mod hooked;
mod ingress;
mod link;
mod masquerade;
mod message;
mod monitor;
mod qdisc;
mod tunnel;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

pub use capture::Way;
pub use forward::{allow_forwarding, forbid_forwarding};
pub use ingress::{IngressCounters, IngressFilter};
pub use link::{Namespace, Route};
pub use masquerade::{Masquerade, Unheard, Untracked};
pub(crate) use message::Message;
pub(crate) use monitor::{Change, LinkNews, Monitor, Neighbour, RouteEntry, read_addresses, read_link};
pub use tunnel::Tunnel;

use crate::sys;

const RECEIVE_BYTES: usize = 1 << 16;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The answer names the attribute or the reason (`NETLINK_EXT_ACK`).
const FLAG_ACK_TLVS: u16 = 0x200;
const FLAG_CAPPED: u16 = 0x100;
const ACK_ATTRIBUTE_MESSAGE: u16 = 1;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket could not be opened or used.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refused the request.
    #[error("the kernel refused to {request}: {source}{detail}")]
    Refused {
        /// What was asked for.
        request: String,
        /// The kernel's error number.
        source: io::Error,
        /// The kernel's own words, in parentheses, or nothing.
        detail: String,
    },
    /// No answer within five seconds.
    #[error("the kernel did not answer the request to {request}")]
    Timeout {
        /// What was asked for.
        request: String,
    },
}

impl Error {
    /// The kernel's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Timeout { .. } => None,
        }
    }

    /// Whether the thing to create existed already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.errno() == Some(libc::ENETUNREACH)
    }

    /// Whether the thing to change or delete does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENXIO))
    }
}

/// A netlink socket in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    pub(crate) fn open(protocol: libc::c_int) -> io::Result<Self> {
        Self::with_groups(protocol, 0)
    }

    /// A socket that also receives the notifications of `groups` (bit mask of the old numbering).
    pub(crate) fn with_groups(protocol: libc::c_int, groups: u32) -> io::Result<Self> {
        let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
        let _ = sys::set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &1);
        let _ = sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &(1 << 20));
        // SAFETY: all-zero bytes are a valid `sockaddr_nl`; its padding field is private.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        sys::bind(&fd, &address)?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; RECEIVE_BYTES].into_boxed_slice() })
    }

    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sys::send(&self.fd, bytes).map(drop)
    }

    /// Sends a message (with `NLM_F_ACK`) and waits for its acknowledgement. `request` completes "refused to …".
    pub(crate) fn request(&mut self, request: &str, message: Message) -> Result<(), Error> {
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        self.answers(request, sequence, 1, &mut |_| {})
    }

    /// Sends a dump request and hands every answer to `each`.
    pub(crate) fn dump(
        &mut self,
        request: &str,
        message: Message,
        each: &mut dyn FnMut(message::Received<'_>),
    ) -> Result<(), Error> {
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        self.answers(request, sequence, 1, each)
    }

    /// Reads answers to `count` consecutive messages, the first with sequence number `first`, until all are done.
    pub(crate) fn answers(
        &mut self,
        request: &str,
        first: u32,
        count: u32,
        each: &mut dyn FnMut(message::Received<'_>),
    ) -> Result<(), Error> {
        let mut open = count;
        while open > 0 {
            if !sys::wait_readable(&[self.fd.as_fd()], ANSWER_TIMEOUT)? {
                return Err(Error::Timeout { request: request.into() });
            }
            let len = match sys::receive(&self.fd, &mut self.buffer, 0) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            for received in message::messages(&self.buffer[..len]) {
                if received.sequence.wrapping_sub(first) >= count {
                    continue;
                }
                match libc::c_int::from(received.kind) {
                    libc::NLMSG_ERROR => {
                        refusal(request, received)?;
                        open = open.saturating_sub(1);
                    }
                    libc::NLMSG_DONE => open = open.saturating_sub(1),
                    _ => each(received),
                }
            }
        }
        Ok(())
    }

    /// Reads one datagram of notifications, if one is there, and hands its messages to `each`; `false` if none was.
    pub(crate) fn notifications(&mut self, each: &mut dyn FnMut(message::Received<'_>)) -> io::Result<bool> {
        match sys::receive(&self.fd, &mut self.buffer, 0) {
            Ok(len) => {
                message::messages(&self.buffer[..len]).for_each(each);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Turns an `NLMSG_ERROR` into an error, unless it is an acknowledgement.
fn refusal(request: &str, received: message::Received<'_>) -> Result<(), Error> {
    let code = received.payload.first_chunk().map_or(-libc::EPROTO, |bytes| i32::from_ne_bytes(*bytes));
    if code == 0 {
        return Ok(());
    }
    let mut detail = String::new();
    if received.flags & FLAG_ACK_TLVS != 0 {
        // Behind the code comes our message: its header only if capped, else whole.
        let quoted = if received.flags & FLAG_CAPPED != 0 {
            16
        } else {
            received.payload.get(4..8).and_then(message::u32_of).unwrap_or(16) as usize
        };
        let rest = received.payload.get((4 + quoted).next_multiple_of(4)..).unwrap_or_default();
        for (kind, value) in message::attributes(rest) {
            if kind == ACK_ATTRIBUTE_MESSAGE {
                detail = format!(" ({})", String::from_utf8_lossy(value).trim_end_matches('\0'));
            }
        }
    }
    Err(Error::Refused { request: request.into(), source: io::Error::from_raw_os_error(-code), detail })
}
