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
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Mutex, Semaphore},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    seal::{GateSocket, prove},
    session::Session,
};

/// TCP connections that one forward carries at once.
const CONNECTIONS_MAX: usize = 1024;
/// Local peers that one UDP forward remembers at once.
const PEERS_MAX: usize = 1024;
/// A UDP peer is forgotten after this much silence.
const PEER_IDLE: Duration = Duration::from_secs(120);
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

/// Runs one forward until its listener fails. What is open may change under it: each new connection and each datagram
/// uses the newest.
///
/// # Errors
/// When the local address cannot be used.
pub(crate) async fn run(forward: Forward, session: Session) -> io::Result<()> {
    match forward.protocol {
        PortProtocol::Udp => run_udp(&forward, session).await,
        _ => run_tcp(&forward, session).await,
    }
}

async fn run_tcp(forward: &Forward, session: Session) -> io::Result<()> {
    let listener = TcpListener::bind(forward.listen).await?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (mut local, peer) = listener.accept().await?;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(%peer, max = CONNECTIONS_MAX, "refused a connection: this forward is full");
            continue;
        };
        let (session, port) = (session.clone(), forward.service_port);
        tokio::spawn(async move {
            let _place = place;
            let gate = match session.address(PortProtocol::Tcp, port).await {
                Ok(gate) => gate,
                Err(error) => return warn!(port, error, "not opened"),
            };
            match connect(gate, &session, port).await {
                Ok(mut remote) => {
                    if let Err(error) = tokio::io::copy_bidirectional(&mut local, &mut remote).await {
                        debug!(%peer, %gate, %error, "connection ended");
                    }
                }
                Err(error) => warn!(%gate, %error, "cannot reach the service through the gate"),
            }
        });
    }
}

/// Connects to the gate within [`CONNECT_TIMEOUT`], once it knows where the connection comes from.
pub(crate) async fn connect(gate: SocketAddr, session: &Session, port: u16) -> io::Result<TcpStream> {
    if let Some(sealer) = session.seal(PortProtocol::Tcp, port) {
        prove(gate, &sealer).await?;
    }
    timeout(CONNECT_TIMEOUT, TcpStream::connect(gate)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn run_udp(forward: &Forward, session: Session) -> io::Result<()> {
    let local = Arc::new(UdpSocket::bind(forward.listen).await?);
    let peers: Peers = Arc::default();
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let (len, peer) = local.recv_from(&mut datagram).await?;
        let gate = match session.address(PortProtocol::Udp, forward.service_port).await {
            Ok(gate) => gate,
            Err(error) => {
                warn!(port = forward.service_port, error, "not opened");
                sleep(REFUSED_PAUSE).await;
                continue;
            }
        };
        let known = peers.lock().await.get(&peer).cloned();
        let remote = match known {
            Some(remote) => remote,
            None => {
                let mut table = peers.lock().await;
                if table.len() >= PEERS_MAX {
                    debug!(%peer, max = PEERS_MAX, "dropped a datagram: this forward has all the peers it may have");
                    continue;
                }
                let remote = Arc::new(GateSocket::open(gate).await?);
                table.insert(peer, Arc::clone(&remote));
                tokio::spawn(return_path(Arc::clone(&local), Arc::clone(&remote), peer, Arc::clone(&peers)));
                remote
            }
        };
        let seal = session.seal(PortProtocol::Udp, forward.service_port);
        remote.send(gate, seal.as_ref(), datagram.get(..len).unwrap_or_default()).await;
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
    peers.lock().await.remove(&peer);
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
