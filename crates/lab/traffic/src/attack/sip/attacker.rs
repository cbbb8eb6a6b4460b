//! One source of a SIP flood.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use rustls::ClientConfig;
use sluicegate_sip::stream::{Framer, Item};

use super::SipFloodSpec;
use crate::{
    datagrams::Batch,
    stream::{Over, Stream},
};
use sluicegate_site::nth;

/// Answers read from a socket each time it sends.
const ANSWERS_PER_TURN: usize = 48;
/// Nonces that an attacker keeps for its next guesses.
const NONCES_MAX: usize = 64;
/// Bytes that wait for a connection to take them before no more are written.
const UNSENT_MAX: usize = 65_536;

/// What an attacker sends over.
pub(super) enum Wire {
    Datagrams(UdpSocket),
    Connection(Box<(Stream, Framer)>),
}

/// One source address of the flood.
pub(super) struct Attacker {
    wire: Wire,
    tls: Option<Arc<ClientConfig>>,
    pub(super) local: SocketAddr,
    pub(super) front_end: SocketAddr,
    /// The place of what it recorded itself.
    pub(super) own: Option<usize>,
    /// Nonces that the front end gave to this address, each used once.
    pub(super) nonces: Vec<String>,
    /// Connections that it made.
    pub(super) opened: u64,
}

impl Attacker {
    pub(super) fn open(spec: &SipFloodSpec, index: u16, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        // The network's own and its broadcast address are left out.
        let any = || SocketAddr::new(nth(spec.sources, 1 + u64::from(index) % 250), 0);
        let own = Some(usize::from(index)).filter(|own| *own < spec.from.len());
        let from = own.and_then(|own| spec.from.get(own)).copied().unwrap_or_else(any);
        let front_end = spec.to[usize::from(index) % spec.to.len()];
        let wire = match spec.way.over {
            Over::Udp => {
                let socket = UdpSocket::bind(from)?;
                socket.connect(front_end)?;
                socket.set_nonblocking(true)?;
                Wire::Datagrams(socket)
            }
            Over::Tcp | Over::Tls => connect(from, front_end, tls)?,
        };
        Self::new(wire, front_end, (own, tls))
    }

    pub(super) fn new(
        wire: Wire,
        front_end: SocketAddr,
        (own, tls): (Option<usize>, Option<&Arc<ClientConfig>>),
    ) -> io::Result<Self> {
        let (local, opened) = match &wire {
            Wire::Datagrams(socket) => (socket.local_addr()?, 0),
            Wire::Connection(held) => (held.0.socket.local_addr()?, 1),
        };
        Ok(Self { wire, tls: tls.cloned(), local, front_end, own, nonces: Vec::new(), opened })
    }

    /// Sends some messages; how many were taken. A connection that has ended is made anew and takes the next ones.
    pub(super) fn send(&mut self, batch: &mut Batch, messages: &[&[u8]]) -> io::Result<usize> {
        match &mut self.wire {
            Wire::Datagrams(socket) => batch.send(socket, messages),
            Wire::Connection(held) if held.0.is_over() => {
                held.0.will_reset();
                self.wire = connect(self.local, self.front_end, self.tls.as_ref())?;
                if let Wire::Connection(held) = &self.wire {
                    self.local = held.0.socket.local_addr()?;
                }
                self.opened += 1;
                self.nonces.clear();
                Ok(0)
            }
            Wire::Connection(held) => {
                let fits = held.0.unsent() < UNSENT_MAX && !held.0.is_handshaking();
                held.0.send(&if fits { messages.concat() } else { Vec::new() });
                Ok(if fits { messages.len() } else { 0 })
            }
        }
    }

    pub(super) fn read_answers(&mut self, answers: &mut BTreeMap<u16, u64>) {
        let nonces = &mut self.nonces;
        let mut take = |answer: &[u8]| {
            let Some(status) = status(answer) else { return };
            *answers.entry(status).or_insert(0) += 1;
            if nonces.len() < NONCES_MAX {
                nonces.extend(nonce(answer));
            }
        };
        match &mut self.wire {
            Wire::Datagrams(socket) => {
                let mut buffer = [0; 2_048];
                for _ in 0..ANSWERS_PER_TURN {
                    let Ok(len) = socket.recv(&mut buffer) else { return };
                    take(buffer.get(..len).unwrap_or_default());
                }
            }
            Wire::Connection(held) => {
                let (stream, framer) = &mut **held;
                stream.read(&mut |mut bytes| {
                    while let Ok(Some((used, item))) = framer.next(bytes) {
                        if let Item::Message(answer) = item {
                            take(answer);
                        }
                        bytes = bytes.get(used..).unwrap_or_default();
                    }
                });
            }
        }
    }
}

/// Begins to connect from this address, whatever its port was.
fn connect(from: SocketAddr, to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Wire> {
    let stream = Stream::open(SocketAddr::new(from.ip(), 0), to, tls)?;
    Ok(Wire::Connection(Box::new((stream, Framer::new()))))
}

fn status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"SIP/2.0 ")?.first_chunk::<3>()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn nonce(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (_, rest) = text.split_once("nonce=\"")?;
    rest.split_once('"').map(|(nonce, _)| nonce.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_nonces_are_found_in_answers_only() {
        let answer = b"SIP/2.0 407 Proxy Authentication Required\r\nProxy-Authenticate: Digest realm=\"r\", nonce=\"abc\"\r\n\r\n";
        assert_eq!((status(answer), nonce(answer)), (Some(407), Some("abc".to_owned())));
        assert_eq!((status(b"INVITE sip:x SIP/2.0"), nonce(b"nonce=\"abc")), (None, None));
    }
}
