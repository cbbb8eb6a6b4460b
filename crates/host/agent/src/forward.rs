//! Port forwards: a local port stands for a port of the service.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use sluicegate_policy::PortProtocol;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{copy_bidirectional, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Mutex, Semaphore, watch},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    fallback::Stream,
    opening::{Opening, Reach},
    seal::{GateSocket, prove},
    session::Session,
};

/// TCP connections that one forward, or the proxy, carries at once.
const CONNECTIONS_MAX: usize = 1024;
/// Local peers that one UDP forward remembers at once.
const PEERS_MAX: usize = 1024;
/// A UDP peer is forgotten after this much silence.
const PEER_IDLE: Duration = Duration::from_secs(120);
/// Who only waits for data says something after so long, so that a translator whose address has changed lets the connection
/// through again.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(2)).with_interval(Duration::from_secs(2));
/// How long a connection lives without any answer, whatever it waits for: as long as one by default that has data to send.
const UNANSWERED_MAX: Duration = Duration::from_secs(900);
/// Bytes copied at once through a tunnel.
const TUNNELLED_LEN: usize = 64 * 1024;
/// How long a connect through the gate may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After a refusal datagrams are dropped for this long before the next sign-in.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Largest UDP payload.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// `[BIND:]LOCAL:SERVICE[/udp]`: listen at BIND:LOCAL (default loopback), reach port SERVICE of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The service's port.
    pub service_port: u16,
    /// TCP unless the text ends in `/udp`.
    pub protocol: PortProtocol,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no forward; write [BIND:]LOCAL:SERVICE or [BIND:]LOCAL:SERVICE/udp, such as 8080:80")
        };
        let (ports, protocol) = match text.split_once('/') {
            None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), PortProtocol::Tcp),
            Some((ports, "udp")) => (ports, PortProtocol::Udp),
            Some(_) => return Err(wrong()),
        };
        let (local, service) = ports.rsplit_once(':').ok_or_else(wrong)?;
        let service_port = service.parse().map_err(|_| wrong())?;
        let listen = match local.rsplit_once(':') {
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), local.parse().map_err(|_| wrong())?),
            Some((bind, port)) => {
                let bind: IpAddr = bind.trim_matches(['[', ']']).parse().map_err(|_| wrong())?;
                SocketAddr::new(bind, port.parse().map_err(|_| wrong())?)
            }
        };
        Ok(Self { listen, service_port, protocol })
    }
}

/// A forward that listens, for a port of the service.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(TcpListener, u16),
    Udp(UdpSocket, u16),
}

impl Bound {
    /// Takes the forward's local port.
    ///
    /// # Errors
    /// When that cannot be had.
    pub(crate) async fn to(forward: &Forward) -> io::Result<Self> {
        Ok(match forward.protocol {
            PortProtocol::Udp => Self::Udp(UdpSocket::bind(forward.listen).await?, forward.service_port),
            _ => Self::Tcp(TcpListener::bind(forward.listen).await?, forward.service_port),
        })
    }

    /// Runs until the local port fails. What is open may change under it: each new connection and each datagram uses the
    /// newest.
    ///
    /// # Errors
    /// When the local port fails.
    pub(crate) async fn run(self, session: Session) -> io::Result<()> {
        match self {
            Self::Udp(local, port) => run_udp(local, port, session).await,
            Self::Tcp(listener, port) => {
                accept(listener, "this forward", move |local, peer| carry_one(local, peer, port, session.clone())).await
            }
        }
    }
}

/// Serves each connection, [`CONNECTIONS_MAX`] at once, until the listener fails.
///
/// # Errors
/// When the listener fails.
pub(crate) async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    who: &'static str,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (stream, peer) = listener.accept().await?;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(%peer, max = CONNECTIONS_MAX, "refused a connection: {who} is full");
            continue;
        };
        let served = serve(stream, peer);
        tokio::spawn(async move {
            let _place = place;
            served.await;
        });
    }
}

async fn carry_one(mut local: TcpStream, peer: SocketAddr, port: u16, session: Session) {
    let reach = match session.reach(PortProtocol::Tcp, port).await {
        Ok(reach) => reach,
        Err(error) => return warn!(port, error, "not opened"),
    };
    let gate = reach.address;
    match connect(&reach).await {
        Ok(mut remote) => {
            if let Err(error) = carry((&mut local, &mut remote), &session, gate).await {
                debug!(%peer, %gate, %error, "connection ended");
            }
        }
        Err(error) => warn!(%gate, %error, "cannot reach the service through the gate"),
    }
}

/// A connection to the service.
#[derive(Debug)]
pub(crate) enum Remote {
    /// The kernel's.
    Kernel(TcpStream),
    /// Through a tunnel.
    Tunnel(Stream),
}

impl Remote {
    /// Has it end with a reset.
    fn reset(&mut self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.set_zero_linger(),
            Self::Tunnel(stream) => {
                stream.reset();
                Ok(())
            }
        }
    }
}

/// Connects to the gate within [`CONNECT_TIMEOUT`], once it knows where the connection comes from.
pub(crate) async fn connect(reach: &Reach) -> io::Result<Remote> {
    prove(reach).await?;
    if let Some(tunnel) = reach.seal.as_ref().and_then(|sealer| sealer.tunnel()) {
        let connected = timeout(CONNECT_TIMEOUT, tunnel.connect(reach.address)).await;
        return connected.map_err(|_| io::ErrorKind::TimedOut)?.map(Remote::Tunnel);
    }
    let stream =
        timeout(CONNECT_TIMEOUT, TcpStream::connect(reach.address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(UNANSWERED_MAX))?;
    Ok(Remote::Kernel(stream))
}

/// Carries a connection to its end, or to that of its grant or of this host's address: then both sides are reset, and nobody
/// waits for what cannot come.
///
/// # Errors
/// What ended it.
pub(crate) async fn carry(
    (local, remote): (&mut TcpStream, &mut Remote),
    session: &Session,
    gate: SocketAddr,
) -> io::Result<()> {
    let mut opening = session.opening();
    let moves = opening.borrow().moves;
    let _standing = session.stand();
    tokio::select! {
        done = copy(local, remote) => return done.map(drop),
        _ = opening.wait_for(|opening| opening.moves != moves || !opening.is_at(gate)) => {}
    }
    local.set_zero_linger()?;
    remote.reset()?;
    Err(io::Error::new(io::ErrorKind::ConnectionReset, "its grant or its address has ended"))
}

async fn copy(local: &mut TcpStream, remote: &mut Remote) -> io::Result<(u64, u64)> {
    match remote {
        Remote::Kernel(stream) => copy_bidirectional(local, stream).await,
        Remote::Tunnel(stream) => copy_bidirectional_with_sizes(local, stream, TUNNELLED_LEN, TUNNELLED_LEN).await,
    }
}

async fn run_udp(local: UdpSocket, port: u16, session: Session) -> io::Result<()> {
    let local = Arc::new(local);
    let peers: Peers = Arc::default();
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    let (mut opening, mut moves) = (session.opening(), 0);
    loop {
        let received = tokio::select! {
            received = local.recv_from(&mut datagram) => Some(received?),
            moved = moved(&mut opening, moves) => {
                moves = moved;
                None
            }
        };
        let Some((len, peer)) = received else {
            for remote in peers.lock().await.values() {
                remote.follow().await;
            }
            continue;
        };
        let reach = match session.reach(PortProtocol::Udp, port).await {
            Ok(reach) => reach,
            Err(error) => {
                warn!(port, error, "not opened");
                sleep(REFUSED_PAUSE).await;
                continue;
            }
        };
        let goes = |known: &Arc<GateSocket>| known.goes_with(reach.seal.as_ref());
        let known = peers.lock().await.get(&peer).cloned().filter(goes);
        let remote = match known {
            Some(remote) => remote,
            None => {
                let mut table = peers.lock().await;
                if table.len() >= PEERS_MAX && !table.contains_key(&peer) {
                    debug!(%peer, max = PEERS_MAX, "dropped a datagram: this forward has all the peers it may have");
                    continue;
                }
                let remote = Arc::new(GateSocket::open(&reach).await?);
                table.insert(peer, Arc::clone(&remote));
                tokio::spawn(return_path(Arc::clone(&local), Arc::clone(&remote), peer, Arc::clone(&peers)));
                remote
            }
        };
        remote.send(&reach, datagram.get(..len).unwrap_or_default()).await;
    }
}

/// Waits until this host's address has changed more than `moves` times; how often it has.
pub(crate) async fn moved(opening: &mut watch::Receiver<Opening>, moves: u32) -> u32 {
    match opening.wait_for(|opening| opening.moves != moves).await.map(|opening| opening.moves) {
        Ok(moved) => moved,
        // The session is ending.
        Err(_) => std::future::pending().await,
    }
}

/// The socket towards the gate of each local peer.
type Peers = Arc<Mutex<HashMap<SocketAddr, Arc<GateSocket>>>>;

async fn return_path(local: Arc<UdpSocket>, remote: Arc<GateSocket>, peer: SocketAddr, peers: Peers) {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    while let Ok(Ok((len, _))) = timeout(PEER_IDLE, remote.receive(&mut datagram)).await {
        if local.send_to(datagram.get(..len).unwrap_or_default(), peer).await.is_err() {
            break;
        }
    }
    let mut peers = peers.lock().await;
    if peers.get(&peer).is_some_and(|known| Arc::ptr_eq(known, &remote)) {
        peers.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_written_like_ssh_writes_them() {
        let forward = |text: &str| text.parse::<Forward>();
        assert_eq!(
            forward("8080:80").unwrap(),
            Forward { listen: "127.0.0.1:8080".parse().unwrap(), service_port: 80, protocol: PortProtocol::Tcp }
        );
        assert_eq!(forward("0.0.0.0:53:53/udp").unwrap().protocol, PortProtocol::Udp);
        assert_eq!(forward("[::1]:9:10").unwrap().listen, "[::1]:9".parse().unwrap());
        for wrong in ["", "80", "80:", ":80", "a:80", "80:80/sctp", "1:2:3", "80:99999"] {
            assert!(forward(wrong).is_err(), "{wrong}");
        }
    }
}
