//! What callers call over: sockets, or connections.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::sys::epoll::EpollFlags;
use rustls::ClientConfig;
use sluicegate_sip::stream::{Framer, Item};

use crate::{
    datagrams::{BATCH, Batch, Inbox, make_room},
    stream::{Over, Stream},
};

/// Batches that are read from one socket before others get their turn.
const BATCHES_PER_TURN: usize = 4;

enum Wire {
    Datagrams(UdpSocket),
    Connection(Box<(Stream, Framer)>),
}

/// One telephone: what stands in its requests, and those that it has yet to send.
pub(super) struct Phone {
    /// What stands in Via and Contact.
    pub(super) local: String,
    pub(super) address: IpAddr,
    /// The same, as it stands in Call-ID.
    pub(super) ip: String,
    pub(super) transport: &'static str,
    pub(super) uri_parameter: &'static str,
    /// Messages to send, one behind the other, and where each ends.
    unsent: Vec<u8>,
    ends: Vec<usize>,
}

impl Phone {
    pub(super) fn new(local: SocketAddr, over: Over) -> Self {
        let uri_parameter = match over {
            Over::Udp => "",
            Over::Tcp => ";transport=tcp",
            Over::Tls => ";transport=tls",
        };
        let (address, local, transport) = (local.ip(), local.to_string(), over.transport().name());
        let ip = address.to_string();
        Self { local, address, ip, transport, uri_parameter, unsent: Vec::new(), ends: Vec::new() }
    }

    /// Has a message sent with the next ones.
    pub(super) fn say(&mut self, message: &[u8]) {
        self.unsent.extend_from_slice(message);
        self.ends.push(self.unsent.len());
    }
}

/// A telephone and its end of the wire.
pub(super) struct Line {
    wire: Wire,
    /// Whether it is a connection that does not stand yet.
    is_connecting: bool,
    pub(super) phone: Phone,
}

impl Line {
    /// A line from this address, whatever its port, to a server.
    pub(super) fn open(
        from: SocketAddr,
        to: SocketAddr,
        (over, tls): (Over, Option<&Arc<ClientConfig>>),
    ) -> io::Result<Self> {
        let (wire, local) = if over.is_stream() {
            let stream = Stream::open(from, to, tls)?;
            let local = stream.socket.local_addr()?;
            (Wire::Connection(Box::new((stream, Framer::new()))), local)
        } else {
            let socket = UdpSocket::bind(from)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            make_room(&socket)?;
            let local = socket.local_addr()?;
            (Wire::Datagrams(socket), local)
        };
        Ok(Self { wire, is_connecting: over.is_stream(), phone: Phone::new(local, over) })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.wire {
            Wire::Datagrams(socket) => socket.as_fd(),
            Wire::Connection(held) => held.0.socket.as_fd(),
        }
    }

    /// What it waits for.
    pub(super) fn waits_for(&self) -> EpollFlags {
        if self.is_connecting { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN }
    }

    /// Whether it is a connection that has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(&self.wire, Wire::Connection(held) if held.0.is_over())
    }

    /// Sends what there is to say; how many messages the system did not take, and whether some wait for it.
    pub(super) fn flush(&mut self, batch: &mut Batch) -> (u64, bool) {
        let Phone { unsent, ends, .. } = &mut self.phone;
        let mut lost = 0;
        let waits = match &mut self.wire {
            Wire::Datagrams(socket) => {
                let mut from = 0;
                for some in ends.chunks(BATCH) {
                    let mut left = some;
                    while !left.is_empty() {
                        let mut start = from;
                        let messages =
                            left.iter().map(|end| (None, &unsent[std::mem::replace(&mut start, *end)..*end]));
                        let taken = batch.send_each(socket, messages).unwrap_or(0);
                        // One that is not taken must not hold up the others.
                        lost += u64::from(taken == 0);
                        let gone = taken.max(1);
                        from = left[gone - 1];
                        left = &left[gone..];
                    }
                }
                false
            }
            Wire::Connection(held) if self.is_connecting => {
                held.0.say_later(unsent);
                false
            }
            Wire::Connection(held) => {
                if ends.is_empty() {
                    held.0.push();
                } else {
                    held.0.send(unsent);
                }
                held.0.has_unsent() && !held.0.is_over()
            }
        };
        unsent.clear();
        ends.clear();
        (lost, waits)
    }

    /// Gives `take` what has come.
    pub(super) fn hear(&mut self, inbox: &mut Inbox, mut take: impl FnMut(&mut Phone, &[u8])) {
        let phone = &mut self.phone;
        self.is_connecting = false;
        match &mut self.wire {
            Wire::Datagrams(socket) => {
                for _ in 0..BATCHES_PER_TURN {
                    if inbox.receive(socket, |_, bytes| take(phone, bytes)) < BATCH {
                        return;
                    }
                }
            }
            Wire::Connection(held) => {
                let (stream, framer) = &mut **held;
                stream.read(&mut |mut bytes| {
                    while let Ok(Some((used, item))) = framer.next(bytes) {
                        if let Item::Message(message) = item {
                            take(phone, message);
                        }
                        bytes = bytes.get(used..).unwrap_or_default();
                    }
                });
            }
        }
    }
}
