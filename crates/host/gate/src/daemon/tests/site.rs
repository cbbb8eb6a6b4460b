//! A gate on queues in memory, and a frontend on a socket of this host.

use super::{
    super::{Ending, Gate, Ground, lock, start_on},
    loopback::{self, Cables},
};
use crate::{
    Config, Control, FeedAddress, RunError, StartError, clock,
    samples::{self, Hops, read_udp, udp_frame},
};
use sluicegate_feed::{
    Decoder, Delta, FeedSender, FromGate, Resume, SenderOptions,
    tls::{Admission, Identity, Peer, server_config},
};
use sluicegate_grant::IssuerKey;
use sluicegate_wire::Port;
use std::{net::SocketAddrV4, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Far longer than anything here takes; a test that waits for so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `ready` gives something.
pub(super) async fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(value) = ready() {
                return value;
            }
            yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"))
}

#[derive(Debug)]
struct Everyone;

impl Admission for Everyone {
    fn admits(&self, _: &Peer) -> bool {
        true
    }
}

/// A frontend that serves one connection at a time, and everything that is open at it.
pub(super) struct Frontend {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    identity: Identity,
    sender: FeedSender,
    pub(super) state: Vec<Delta>,
}

/// The frontend's end of a feed.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    decoder: Decoder<FromGate>,
}

fn issuer() -> IssuerKey {
    IssuerKey::from_seed([5; 32])
}

/// Grant number `number`, valid now, of the frontend's issuer, on its pipeline.
pub(super) fn install(number: u8) -> Delta {
    let grant = sluicegate_grant::Grant { issuer: issuer().public().id(), ..samples::current_grant(number) };
    Delta::Install(Box::new(samples::delta(grant)))
}

impl Frontend {
    pub(super) async fn new() -> Self {
        let identity = Identity::generate("frontend").unwrap();
        let acceptor = TlsAcceptor::from(server_config(&identity, Arc::new(Everyone)).unwrap());
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor,
            identity,
            sender: FeedSender::new(issuer(), getrandom::u64().unwrap(), "frontend-1", SenderOptions::default()),
            state: vec![Delta::Service(samples::service("web"))],
        }
    }

    pub(super) fn address(&self) -> FeedAddress {
        FeedAddress {
            address: self.listener.local_addr().unwrap(),
            certificate_pin: self.identity.fingerprint(),
            issuer: issuer().public().to_bytes(),
        }
    }

    /// Takes the next connection, up to the gate's hello.
    pub(super) async fn accept(&self) -> Connection {
        let taken = async {
            let (tcp, _) = self.listener.accept().await.unwrap();
            self.acceptor.accept(tcp).await.unwrap()
        };
        let stream = timeout(PATIENCE, taken).await.expect("the gate dials");
        Connection { stream, decoder: Decoder::new() }
    }

    /// Takes the next connection and brings the gate up to date. Also gives where the gate had left off, and what it
    /// says is open there.
    pub(super) async fn welcome(&mut self) -> (Connection, Option<Resume>, Vec<FromGate>) {
        let mut connection = self.accept().await;
        let FromGate::Hello { resume, .. } = connection.next().await else { panic!("a hello comes first") };
        let state = self.state.clone();
        for frame in self.sender.welcome(clock::unix(), resume, || state).unwrap() {
            connection.send(&frame).await;
        }
        let mut before = Vec::new();
        loop {
            let message = connection.next().await;
            let is_last = matches!(message, FromGate::Active { more: false, .. });
            before.push(message);
            if is_last {
                return (connection, resume, before);
            }
        }
    }

    /// Sends changes in one batch.
    pub(super) async fn push(&mut self, connection: &mut Connection, deltas: impl IntoIterator<Item = Delta>) {
        let now = clock::monotonic();
        for delta in deltas {
            self.sender.push(now, clock::unix(), delta).unwrap();
        }
        let batch = self.sender.poll_transmit(now + Duration::from_secs(1), clock::unix()).unwrap();
        connection.send(&batch).await;
    }
}

impl Connection {
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next message that is no report of usage.
    pub(super) async fn next(&mut self) -> FromGate {
        let next = async {
            loop {
                match self.decoder.poll().unwrap() {
                    Some(FromGate::Usage { .. }) => {}
                    Some(message) => return message,
                    None => {
                        let n = self.stream.read(self.decoder.space()).await.unwrap();
                        assert!(n > 0, "the gate closed the feed");
                        self.decoder.advance(n);
                    }
                }
            }
        };
        timeout(PATIENCE, next).await.expect("the gate answers")
    }

    /// The address and port that the next message says are open.
    pub(super) async fn opened(&mut self) -> SocketAddrV4 {
        match self.next().await {
            FromGate::Opened { address: std::net::IpAddr::V4(address), ports, .. } => {
                SocketAddrV4::new(address, ports.0)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A gate that runs.
pub(super) struct Running {
    pub(super) control: Control,
    pub(super) cables: Cables,
    stop: oneshot::Sender<Ending>,
    task: JoinHandle<Result<(), RunError>>,
}

/// The configuration of a test's gate.
pub(super) fn config(dir: &Path) -> Config {
    let mut config = Config::new("gate-1", "out", "in", dir);
    config.addresses = vec![samples::GATE_ADDRESS];
    config.flows_max = 1024;
    config.pinholes_max = 64;
    config
}

/// Opens a gate that does not run yet.
pub(super) fn open(config: Config, feeds: &[FeedAddress]) -> Result<(Gate, Cables), StartError> {
    let lock = lock(&config.state_dir)?;
    let (device, cables) = loopback::device();
    let ground = Ground { device, next_hop: Hops { known: true }, mtu: [1500, 1500], links: None, reopen: None };
    let feeds = feeds.iter().map(|feed| (feed.clone(), None)).collect();
    Ok((start_on(config, feeds, ground, lock)?, cables))
}

/// Starts a gate; waits for one that was killed to let go of the directory.
pub(super) async fn start(config: Config, feeds: &[FeedAddress]) -> Running {
    let opened = until("the directory is free", || match open(config.clone(), feeds) {
        Err(StartError::StateInUse(..)) => None,
        other => Some(other.unwrap()),
    });
    let (mut gate, cables) = opened.await;
    gate.ready().await;
    let control = gate.control();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(gate.run(async { stopped.await.unwrap_or_default() }));
    Running { control, cables, stop, task }
}

impl Running {
    /// Shuts it down.
    pub(super) async fn stop(self) {
        self.stop.send(Ending::KeepClosed).unwrap();
        timeout(PATIENCE, self.task).await.expect("it stops").unwrap().unwrap();
    }

    /// Ends it without a chance to save anything.
    pub(super) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Sends a datagram from outside and gives what arrives inside: source, destination, payload.
    pub(super) async fn send_in(&self, from: SocketAddrV4, to: SocketAddrV4) -> (SocketAddrV4, SocketAddrV4, Vec<u8>) {
        self.send_text_in(from, to, b"ping").await
    }

    /// The same with this payload.
    pub(super) async fn send_text_in(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        text: &[u8],
    ) -> (SocketAddrV4, SocketAddrV4, Vec<u8>) {
        assert!(self.cables.inject(Port::OUTSIDE, &udp_frame(Port::OUTSIDE, from, to, text)));
        let frame = until("the packet passes", || self.cables.take(Port::INSIDE)).await;
        let (from, to, payload, _) = read_udp(&frame);
        (from, to, payload)
    }

    /// Sends a datagram from outside that does not pass, and waits until it was dropped for one of `reasons`.
    pub(super) async fn send_in_vain(&self, from: SocketAddrV4, to: SocketAddrV4, reasons: &[&'static str]) {
        let count = || -> u64 {
            let dropped = self.control.status().dropped;
            reasons.iter().filter_map(|reason| dropped.get(*reason)).sum()
        };
        let before = count();
        assert!(self.cables.inject(Port::OUTSIDE, &udp_frame(Port::OUTSIDE, from, to, b"ping")));
        until(&format!("dropped: {reasons:?}"), || (count() > before).then_some(())).await;
        assert_eq!(self.cables.take(Port::INSIDE), None);
    }
}
