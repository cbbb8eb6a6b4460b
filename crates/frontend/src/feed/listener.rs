//! Connections of gates: handshake, join, hello; then frames one way and messages the other.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustls::ServerConfig;
use sluicegate_store::{
    Directory,
    feed::{Decoder, FEED_VERSION, FromGate, Resume, ToGate, encode, tls::Peer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Door, FRAMES_MAX, GateEvent};
use crate::{clock::Clock, config::GATES_MAX};

/// For the handshake and everything up to the hello.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A gate that takes nothing for so long is cut off.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// A gate that says nothing for so long is taken for dead: it is pinged every 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Connections that have not said hello.
const GREETINGS_MAX: usize = 32;

type Tls = TlsStream<TcpStream>;

/// Accepts gates.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) directory: Directory,
    pub(crate) door: Arc<Door>,
    pub(crate) events: mpsc::Sender<GateEvent>,
    pub(crate) clock: Clock,
}

/// What every connection needs.
#[derive(Clone)]
struct Shared {
    directory: Directory,
    door: Arc<Door>,
    events: mpsc::Sender<GateEvent>,
    clock: Clock,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Codec(#[from] sluicegate_store::feed::CodecError),
    #[error("nothing was said in time")]
    Late,
    #[error("it closed the connection")]
    Closed,
    #[error("it was refused: {0}")]
    Refused(String),
}

impl Listener {
    /// Accepts until dropped.
    pub(crate) async fn run(self) {
        let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
        let gates = Arc::new(Semaphore::new(GATES_MAX));
        let acceptor = TlsAcceptor::from(self.tls);
        let shared = Shared { directory: self.directory, door: self.door, events: self.events, clock: self.clock };
        let numbers = AtomicU64::new(1);
        loop {
            let (stream, peer) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a gate");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Beyond the bound a new connection is closed at once: those that are greeting are cut off in time anyway.
            let Ok(greeting) = Arc::clone(&greetings).try_acquire_owned() else { continue };
            let Ok(gate) = Arc::clone(&gates).try_acquire_owned() else {
                tracing::warn!(%peer, max = GATES_MAX, "as many gates are connected as may be");
                continue;
            };
            let connection = numbers.fetch_add(1, Ordering::Relaxed);
            let (acceptor, shared) = (acceptor.clone(), shared.clone());
            tokio::spawn(async move { serve(acceptor, stream, peer, connection, shared, greeting, gate).await });
        }
    }
}

async fn serve(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    connection: u64,
    shared: Shared,
    greeting: OwnedSemaphorePermit,
    _gate: OwnedSemaphorePermit,
) {
    let is_local = stream.local_addr().is_ok_and(|local| local.ip() == peer.ip());
    let greeted =
        timeout(GREETING_TIMEOUT, greet(acceptor, stream, &shared)).await.unwrap_or(Err(ConnectionError::Late));
    drop(greeting);
    let (mut incoming, outgoing, gate, resume) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            tracing::info!(%peer, %error, "no feed for this connection");
            return;
        }
    };
    let (frames, queue) = mpsc::channel(FRAMES_MAX);
    let connected = GateEvent::Connected { gate: gate.clone(), connection, peer, is_local, resume, frames };
    if shared.events.send(connected).await.is_err() {
        return;
    }
    let mut writer = tokio::spawn(write(outgoing, queue));
    let ended = tokio::select! {
        ended = read(&mut incoming, &gate, connection, &shared) => ended,
        _ = &mut writer => ConnectionError::Closed,
    };
    tracing::info!(gate, %peer, reason = %ended, "the feed to a gate ended");
    writer.abort();
    let _ = shared.events.send(GateEvent::Gone { gate, connection }).await;
}

/// Passes on what the gate says; why that ended.
async fn read(incoming: &mut Incoming, gate: &str, connection: u64, shared: &Shared) -> ConnectionError {
    loop {
        match timeout(SILENCE_MAX, incoming.receive()).await {
            Ok(Ok(message)) => {
                let said = GateEvent::Said { gate: gate.to_owned(), connection, message: Box::new(message) };
                if shared.events.send(said).await.is_err() {
                    return ConnectionError::Closed;
                }
            }
            Ok(Err(error)) => return error,
            Err(_) => return ConnectionError::Late,
        }
    }
}

type Greeted = (Incoming, WriteHalf<Tls>, String, Option<Resume>);

/// Handshake, a join if the gate is new, and its hello.
async fn greet(acceptor: TlsAcceptor, stream: TcpStream, shared: &Shared) -> Result<Greeted, ConnectionError> {
    stream.set_nodelay(true)?;
    let tls = acceptor.accept(stream).await?;
    let peer = Peer::of(tls.get_ref().1.peer_certificates()).ok_or(ConnectionError::Closed)?;
    let (read, mut write) = tokio::io::split(tls);
    let mut incoming = Incoming { stream: read, decoder: Decoder::new() };
    let mut message = incoming.receive().await?;
    if let FromGate::Join { secret, gate } = message {
        let (directory, now) = (shared.directory.clone(), shared.clock.unix());
        let joining = tokio::task::spawn_blocking(move || directory.join(now, &secret, &gate, peer.cert_hash));
        match joining.await.map_err(std::io::Error::other)? {
            Ok(gate) => tracing::info!(gate = gate.name, "a gate joined"),
            Err(error) => return refuse(&mut write, error.to_string()).await,
        }
        let _ = shared.door.refresh(&shared.directory, shared.clock.unix());
        message = incoming.receive().await?;
    }
    let FromGate::Hello { version, gate, resume, unix } = message else {
        return refuse(&mut write, "a gate says hello first".to_owned()).await;
    };
    if version != FEED_VERSION {
        let reason = format!("this frontend speaks version {FEED_VERSION} of the feed, the gate {version}");
        return refuse(&mut write, reason).await;
    }
    let known = shared.directory.gate_of_certificate(shared.clock.unix(), &peer.cert_hash);
    match known {
        Ok(Some(known)) if known.name == gate => {}
        Ok(_) => return refuse(&mut write, format!("no gate {gate:?} with this certificate has joined")).await,
        Err(error) => return refuse(&mut write, error.to_string()).await,
    }
    if let Some(ahead_s) = sluicegate_store::feed::skew_alarm(shared.clock.unix(), unix) {
        tracing::warn!(gate, ahead_s, "the gate's clock and this one differ; set both by NTP");
    }
    Ok((incoming, write, gate, resume))
}

async fn refuse<T>(write: &mut WriteHalf<Tls>, reason: String) -> Result<T, ConnectionError> {
    let frame = encode(&ToGate::Refused { reason: reason.clone() })?;
    write.write_all(&frame).await?;
    write.shutdown().await?;
    Err(ConnectionError::Refused(reason))
}

/// Writes frames until the queue is closed, the gate is too slow, or the connection breaks; all end the connection.
async fn write(mut stream: WriteHalf<Tls>, mut queue: mpsc::Receiver<Arc<[u8]>>) {
    while let Some(first) = queue.recv().await {
        let written = timeout(SEND_TIMEOUT, async {
            stream.write_all(&first).await?;
            while let Ok(next) = queue.try_recv() {
                stream.write_all(&next).await?;
            }
            stream.flush().await
        });
        if !matches!(written.await, Ok(Ok(()))) {
            break;
        }
    }
    let _ = timeout(SEND_TIMEOUT, stream.shutdown()).await;
}

struct Incoming {
    stream: ReadHalf<Tls>,
    decoder: Decoder<FromGate>,
}

impl Incoming {
    async fn receive(&mut self) -> Result<FromGate, ConnectionError> {
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
