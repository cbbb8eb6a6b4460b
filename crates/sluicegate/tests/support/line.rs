//! What carries a phone's messages: datagrams, TCP, or TLS.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned, pki_types::ServerName};
use sluicegate_sip::{
    message::Transport,
    stream::{Framer, Item},
};

use super::lab::Lab;

/// A way to the frontend and back.
#[derive(Debug)]
pub(crate) struct Line {
    transport: Transport,
    local: SocketAddr,
    wire: Mutex<Wire>,
}

#[derive(Debug)]
enum Wire {
    Datagrams { socket: UdpSocket, to: SocketAddr },
    Stream(Stream),
}

struct Stream {
    text: Box<dyn ReadWrite>,
    /// The same connection, for its timeouts.
    socket: TcpStream,
    framer: Framer,
    come: VecDeque<Vec<u8>>,
    is_over: bool,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("socket", &self.socket).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

impl Line {
    pub(crate) fn udp(lab: &Lab, host: &str, address: impl Into<IpAddr>, to: SocketAddr) -> Self {
        let socket = lab.udp(host, address, 0);
        let local = socket.local_addr().expect("a bound socket");
        Self { transport: Transport::Udp, local, wire: Mutex::new(Wire::Datagrams { socket, to }) }
    }

    pub(crate) fn tcp(lab: &Lab, host: &str, to: SocketAddr) -> Self {
        let socket = lab.connect(host, to).expect("the frontend takes connections");
        let text = Box::new(socket.try_clone().expect("a socket"));
        Self::stream(Transport::Tcp, socket, text)
    }

    /// A TLS connection; the handshake is made with the first message.
    pub(crate) fn tls(lab: &Lab, host: &str, to: SocketAddr, config: Arc<ClientConfig>) -> Self {
        let socket = lab.connect(host, to).expect("the frontend takes connections");
        let tls = ClientConnection::new(config, ServerName::from(to.ip())).expect("a client");
        let text = Box::new(StreamOwned::new(tls, socket.try_clone().expect("a socket")));
        Self::stream(Transport::Tls, socket, text)
    }

    /// The next connection that somebody has made here, with TLS inside if it is to have some.
    pub(crate) fn accepted(listener: &TcpListener, tls: Option<Arc<ServerConfig>>) -> Option<Self> {
        let (socket, _) = listener.accept().ok()?;
        // What is accepted from a listener that does not block may not block either.
        socket.set_nonblocking(false).expect("a socket");
        let own = socket.try_clone().expect("a socket");
        Some(match tls {
            None => Self::stream(Transport::Tcp, socket, Box::new(own)),
            Some(config) => {
                let tls = ServerConnection::new(config).expect("a server");
                Self::stream(Transport::Tls, socket, Box::new(StreamOwned::new(tls, own)))
            }
        })
    }

    fn stream(transport: Transport, socket: TcpStream, text: Box<dyn ReadWrite>) -> Self {
        let local = socket.local_addr().expect("a connected socket");
        socket.set_nodelay(true).expect("a socket");
        let stream = Stream { text, socket, framer: Framer::new(), come: VecDeque::new(), is_over: false };
        Self { transport, local, wire: Mutex::new(Wire::Stream(stream)) }
    }

    pub(crate) const fn transport(&self) -> Transport {
        self.transport
    }

    pub(crate) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends bytes: one datagram, or the next of the stream.
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.try_send(bytes).expect("the frontend takes it");
    }

    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.wire.lock().unwrap_or_else(PoisonError::into_inner) {
            Wire::Datagrams { socket, to } => socket.send_to(bytes, *to).map(drop),
            Wire::Stream(stream) => stream.text.write_all(bytes).and_then(|()| stream.text.flush()),
        }
    }

    /// The next message that comes in this time.
    pub(crate) fn receive(&self, wait: Duration) -> Option<Vec<u8>> {
        match &mut *self.wire.lock().unwrap_or_else(PoisonError::into_inner) {
            Wire::Datagrams { socket, .. } => {
                socket.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).expect("a timeout");
                let mut bytes = vec![0; 65_536];
                let len = later(socket.recv(&mut bytes)).unwrap_or_else(|error| panic!("the socket: {error}"))?;
                bytes.truncate(len);
                Some(bytes)
            }
            Wire::Stream(stream) => stream.receive(wait),
        }
    }

    /// Whether the frontend ends the connection in this time. What comes meanwhile is lost.
    pub(crate) fn ends(&self, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        while Instant::now() < end {
            self.receive(end.saturating_duration_since(Instant::now()));
            if matches!(&*self.wire.lock().unwrap_or_else(PoisonError::into_inner), Wire::Stream(stream) if stream.is_over)
            {
                return true;
            }
        }
        false
    }
}

impl Stream {
    fn receive(&mut self, wait: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + wait;
        while self.come.is_empty() && !self.is_over && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).expect("a timeout");
            let mut bytes = vec![0; 4_096];
            match later(self.text.read(&mut bytes)) {
                Ok(Some(0)) | Err(_) => self.is_over = true,
                Ok(Some(len)) => self.take(&bytes[..len]),
                Ok(None) => {}
            }
        }
        self.come.pop_front()
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while let Some((used, item)) = self.framer.next(bytes).expect("messages of the frontend") {
            if let Item::Message(message) = item {
                self.come.push_back(message.to_vec());
            }
            bytes = &bytes[used..];
        }
    }
}

/// `None` if nothing came in time.
fn later(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}
