//! Packets of agents over TLS, where no UDP passes. Before it has proved to hold the session key of a grant, a connection has a
//! place in one bounded table, for a few seconds, and nothing else; then its packets go the way of all others.

mod carrying;
mod strangers;

use crate::{
    error::StartError,
    packets::{Commander, tunnels::Arrived},
};
use sluicegate_feed::tls::{Identity, tunnel_config};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use strangers::Strangers;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Connections that the kernel holds until they are taken.
const BACKLOG: i32 = 1_024;
/// A listener whose connections the system cannot hold is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a stranger has for TLS handshake and proof.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// A peer that is gone is noticed after so long.
const UNANSWERED_MAX: Duration = Duration::from_secs(30);
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
/// Kernel buffers of each connection, in bytes.
const KERNEL_LEN: usize = 1 << 20;

/// Where a gate listens for tunnels.
#[derive(Debug)]
pub struct TunnelListener {
    address: SocketAddr,
    socket: Mutex<Option<TcpListener>>,
}

impl TunnelListener {
    /// At `address`; bound when it is used.
    #[must_use]
    pub const fn at(address: SocketAddr) -> Self {
        Self { address, socket: Mutex::new(None) }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    fn taken(&self) -> Option<TcpListener> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The same, bound.
    pub(crate) fn bound(&self) -> Result<Self, StartError> {
        let socket = match self.taken() {
            Some(socket) => socket,
            None => listen(self.address).map_err(|source| StartError::Tunnel { address: self.address, source })?,
        };
        Ok(Self { address: self.address, socket: Mutex::new(Some(socket)) })
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_send_buffer_size(KERNEL_LEN)?;
    socket.set_recv_buffer_size(KERNEL_LEN)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes connections.
pub(crate) struct Listener {
    socket: tokio::net::TcpListener,
    acceptor: TlsAcceptor,
    commander: Commander,
    came: mpsc::Sender<Arrived>,
    strangers: Arc<Mutex<Strangers<AbortHandle>>>,
}

impl Listener {
    pub(crate) fn new(
        listener: &TunnelListener,
        identity: &Identity,
        commander: Commander,
        came: mpsc::Sender<Arrived>,
    ) -> Result<Self, StartError> {
        let address = listener.address;
        let failed = |source| StartError::Tunnel { address, source };
        let socket = listener.bound()?.taken().ok_or_else(|| failed(std::io::ErrorKind::AddrInUse.into()))?;
        let socket = tokio::net::TcpListener::from_std(socket).map_err(failed)?;
        let config = tunnel_config(identity).map_err(|error| failed(std::io::Error::other(error)))?;
        let certificate = hex::encode(identity.fingerprint());
        tracing::info!(%address, certificate = format!("sha256:{certificate}"), "takes packets of agents over TLS");
        let strangers = Arc::new(Mutex::new(Strangers::new()));
        Ok(Self { socket, acceptor: TlsAcceptor::from(config), commander, came, strangers })
    }

    /// Runs until it is dropped, and all tunnels with it.
    pub(crate) async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            match self.socket.accept().await {
                Ok((stream, peer)) => self.take(&mut connections, stream, peer),
                Err(error) => {
                    tracing::debug!(%error, "no connection for a tunnel can be taken");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn take(&self, connections: &mut JoinSet<()>, stream: TcpStream, peer: SocketAddr) {
        let options = SockRef::from(&stream);
        let is_set = stream.set_nodelay(true).and_then(|()| options.set_tcp_keepalive(&KEEPALIVE));
        if is_set.and_then(|()| options.set_tcp_user_timeout(Some(UNANSWERED_MAX))).is_err() {
            return;
        }
        let (acceptor, commander, came) = (self.acceptor.clone(), self.commander.clone(), self.came.clone());
        let strangers = Arc::clone(&self.strangers);
        let (begin, begun) = tokio::sync::oneshot::channel::<u64>();
        let task = connections.spawn(async move {
            let Ok(place) = begun.await else { return };
            let proved = timeout(PROOF_MAX, carrying::prove(acceptor, stream, &commander)).await;
            lock(&strangers).leave(place);
            match proved {
                Ok(Ok(tunnel)) => {
                    let ended = tunnel.carry(came, commander.wake()).await;
                    tracing::debug!(%peer, ?ended, "a tunnel has ended");
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no tunnel"),
                Err(_) => tracing::debug!(%peer, "no tunnel: nothing was proved in time"),
            }
        });
        let (place, crowded) = lock(&self.strangers).admit(peer.ip(), task);
        if let Some(crowded) = crowded {
            crowded.abort();
        }
        let _ = begin.send(place);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
