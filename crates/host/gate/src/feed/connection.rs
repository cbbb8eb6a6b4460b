//! One TLS connection to a frontend, as a stream of messages.

use crate::config::FeedAddress;
use rustls::pki_types::ServerName;
use sluicegate_feed::{
    CodecError, Decoder, FromGate, ToGate, encode,
    tls::{Identity, SERVER_NAME, TlsError, client_config},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// For the TCP connection, and again for the TLS handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// A frontend that takes nothing for so long is taken for dead.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot connect to the frontend at {address}: {source}")]
    Dial { address: SocketAddr, source: io::Error },
    #[error(
        "the TLS handshake with {address} failed: {source}; if the frontend has a new certificate, or this gate a new \
         key, join again with a new token"
    )]
    Handshake { address: SocketAddr, source: io::Error },
    #[error("the frontend did not answer within {} s", SEND_TIMEOUT.as_secs())]
    Timeout,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("the frontend closed the connection")]
    Closed,
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// What arrives.
pub(crate) struct Incoming {
    stream: ReadHalf<TlsStream<TcpStream>>,
    decoder: Decoder<ToGate>,
}

/// What is sent.
pub(crate) struct Outgoing {
    stream: WriteHalf<TlsStream<TcpStream>>,
}

/// The local port of a feed's connections, kept for them from the gate's start on: what the kernel lets through to the
/// host names it, and it must not be another program's.
#[derive(Debug)]
pub(crate) struct OwnPort {
    reserved: TcpSocket,
    port: u16,
}

impl OwnPort {
    /// Keeps a free port for connections to `remote`.
    pub(crate) fn reserve(remote: SocketAddr) -> io::Result<Self> {
        let reserved = socket_for(remote)?;
        reserved.bind(unspecified(remote, 0))?;
        let port = reserved.local_addr()?.port();
        Ok(Self { reserved, port })
    }

    pub(crate) const fn number(&self) -> u16 {
        self.port
    }

    async fn connect(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        debug_assert!(self.reserved.local_addr().is_ok());
        let socket = socket_for(remote)?;
        // The next connection has the same two ends, so this one must not linger in the kernel when it is closed.
        socket.set_zero_linger()?;
        socket.bind(unspecified(remote, self.port))?;
        socket.connect(remote).await
    }
}

fn socket_for(remote: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if remote.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

fn unspecified(remote: SocketAddr, port: u16) -> SocketAddr {
    let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, port)
}

/// Dials the frontend; both sides have shown the keys that the other pinned when this returns.
pub(crate) async fn dial(
    feed: &FeedAddress,
    identity: &Identity,
    own_port: Option<&OwnPort>,
) -> Result<(Incoming, Outgoing), ConnectionError> {
    let config = client_config(identity, feed.certificate_pin)?;
    let address = feed.address;
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let connected = async {
        match own_port {
            Some(own_port) => own_port.connect(address).await,
            None => TcpStream::connect(address).await,
        }
    };
    let tcp = timeout(DIAL_TIMEOUT, connected).await.unwrap_or_else(|_| Err(late()));
    let tcp = tcp.map_err(|source| ConnectionError::Dial { address, source })?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let tls = timeout(DIAL_TIMEOUT, TlsConnector::from(config).connect(name, tcp)).await;
    let tls = tls.unwrap_or_else(|_| Err(late())).map_err(|source| ConnectionError::Handshake { address, source })?;
    let (read, write) = tokio::io::split(tls);
    Ok((Incoming { stream: read, decoder: Decoder::new() }, Outgoing { stream: write }))
}

impl Incoming {
    /// The next message. May be dropped while it waits; nothing that arrived is lost.
    pub(crate) async fn receive(&mut self) -> Result<ToGate, ConnectionError> {
        loop {
            if let Some(message) = self.decoder.poll()? {
                return Ok(message);
            }
            match self.stream.read(self.decoder.space()).await? {
                0 => return Err(ConnectionError::Closed),
                n => self.decoder.advance(n),
            }
        }
    }
}

impl Outgoing {
    /// Sends messages, in order, with one flush.
    pub(crate) async fn send(&mut self, messages: &[FromGate]) -> Result<(), ConnectionError> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for message in messages {
            bytes.extend(encode(message)?);
        }
        timeout(SEND_TIMEOUT, async {
            self.stream.write_all(&bytes).await?;
            self.stream.flush().await
        })
        .await
        .map_err(|_| ConnectionError::Timeout)?
        .map_err(ConnectionError::from)
    }
}
