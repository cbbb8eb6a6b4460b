//! Links, addresses, routes, neighbours and queues by netlink, in the network namespace of the calling thread.

mod link;
mod message;
mod queue;
mod route;

use std::{fmt, io, process};

use message::{ACK, DUMP, HEADER_LEN, Message, u32_at};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub use link::{Link, LinkCounters};
pub use queue::QueueCounters;
pub use route::{Destination, Prefix, PrefixParseError};

/// Answers of one request; more would be a kernel that does not end its dump.
const DATAGRAMS_MAX: usize = 4_096;
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;

/// A routing netlink socket of the namespace that the calling thread was in at [`Netlink::open`].
pub struct Netlink {
    socket: Socket,
    protocol: isize,
    sequence: u32,
}

impl Netlink {
    /// Opens the socket.
    ///
    /// # Errors
    /// What the kernel says; out of file descriptors is the likely one.
    pub fn open() -> io::Result<Self> {
        Self::with_protocol(NETLINK_ROUTE)
    }

    fn with_protocol(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, protocol, sequence: process::id() << 12 })
    }

    /// Sends one request and waits for its acknowledgement; `what` names the object in the error.
    fn request(&mut self, message: Message, what: &str) -> io::Result<()> {
        self.exchange(message, ACK, &mut |_, _| ()).map_err(|error| with_context(&error, what))
    }

    /// Sends one request and hands every answer (its kind, the bytes after the header) to `each`.
    fn dump(&mut self, message: Message, each: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
        self.exchange(message, DUMP, each)
    }

    fn exchange(&mut self, mut message: Message, flags: u16, each: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        message.add_flags(flags);
        self.socket.send(&message.finish(self.sequence), 0)?;
        for _ in 0..DATAGRAMS_MAX {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Some((kind, sequence, body, tail)) = split_message(rest) {
                rest = tail;
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    KIND_DONE => return Ok(()),
                    KIND_ERROR => {
                        return match u32_at(body, 0).map_or(0, u32::cast_signed) {
                            0 => Ok(()),
                            code => Err(io::Error::from_raw_os_error(-code)),
                        };
                    }
                    kind => each(kind, body),
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("netlink {}: answer without end", self.protocol)))
    }
}

impl fmt::Debug for Netlink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Netlink").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// (kind, sequence, body, what follows) of the first message in `bytes`.
fn split_message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let sequence = u32_at(bytes, 8)?;
    let body = bytes.get(HEADER_LEN..len)?;
    Some((kind, sequence, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The same kind of error with `what` in front.
fn with_context(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
