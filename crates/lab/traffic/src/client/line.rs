//! What a call's messages travel over.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use rustls::ClientConfig;
use sluicegate_sip::stream::{Framer, Item};

use crate::{sockets::any_like, stream::Stream};

/// The way of one call.
pub(super) enum Line {
    /// One of the sockets that all calls share.
    Shared(usize),
    /// A connection of its own.
    Own(Box<(Stream, Framer)>),
}

impl Line {
    /// Begins to connect.
    pub(super) fn open(to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let stream = Stream::open(SocketAddr::new(any_like(to.ip()), 0), to, tls)?;
        Ok(Self::Own(Box::new((stream, Framer::new()))))
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Shared(_) => None,
            Self::Own(own) => Some(&own.0),
        }
    }

    /// The other end, and this one.
    pub(super) fn ends(&self, sockets: &[UdpSocket], to: SocketAddr) -> io::Result<(SocketAddr, SocketAddr)> {
        match self {
            Self::Shared(at) => Ok((sockets[*at].peer_addr()?, sockets[*at].local_addr()?)),
            Self::Own(own) => Ok((to, own.0.socket.local_addr()?)),
        }
    }

    /// Sends a message. What the kernel does not take of datagrams is lost, and sent again by the timer.
    pub(super) fn send(&mut self, sockets: &[UdpSocket], message: &[u8]) {
        match self {
            Self::Shared(at) => drop(sockets[*at].send(message)),
            Self::Own(own) => own.0.send(message),
        }
    }

    /// Sends what waits on a connection, and adds what has come to `messages`. What comes over shared sockets is not its.
    pub(super) fn turn(&mut self, messages: &mut Vec<Vec<u8>>) {
        let Self::Own(own) = self else { return };
        let (stream, framer) = &mut **own;
        stream.push();
        stream.read(&mut |mut bytes| {
            while let Ok(Some((used, item))) = framer.next(bytes) {
                if let Item::Message(message) = item {
                    messages.push(message.to_vec());
                }
                bytes = bytes.get(used..).unwrap_or_default();
            }
        });
    }
}
