//! Connections of gates: handshake, join, hello; then frames one way and messages the other.
//!
//! Whoever dials is a stranger until its hello is right, and may keep nothing until then: see [`super::places`].

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustls::ServerConfig;
use sluicegate_feed::{
    Decoder, FEED_VERSION, FromGate, Resume, ToGate, encode,
    tls::{Peer, SEALED_PROTOCOL},
};
use sluicegate_store::{
    Directory, Gate,
    audit::{self, Audit},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    Allowlist, FRAMES_MAX, GateEvent,
    places::{Greeting, Places},
    sealed::Sender,
};
use crate::{clock::Clock, config::GATES_MAX, control::Control, log_limit::LogLimit};

/// For the ClientHello, which a gate sends with the end of the TCP handshake.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_millis(500);
/// For the handshake and everything up to the hello.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A gate that takes nothing for so long is cut off.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// A gate that says nothing for so long is taken for dead: it is pinged every 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(20);

type Tls = TlsStream<TcpStream>;

/// Accepts gates: what every connection needs.
pub(crate) struct Listener {
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) directory: Directory,
    pub(crate) door: Arc<Allowlist>,
    pub(crate) places: Arc<Places>,
    /// Gates whose hello was right.
    pub(crate) gates: Arc<Semaphore>,
    pub(crate) events: mpsc::Sender<GateEvent>,
    pub(crate) clock: Clock,
    pub(crate) audit: Option<Audit>,
    pub(crate) log: Log,
    /// For senders of what is sealed to this frontend.
    pub(crate) sealed: Arc<ServerConfig>,
    /// One of them at a time.
    pub(crate) taking: Arc<Semaphore>,
    pub(crate) control: Control,
}

/// Lines that strangers cause, one limit a kind.
pub(crate) struct Log {
    late: LogLimit,
    gave_way: LogLimit,
    refused: LogLimit,
    other: LogLimit,
    no_accept: LogLimit,
}

impl Log {
    pub(crate) const fn new() -> Self {
        let limit = LogLimit::new;
        Self { late: limit(), gave_way: limit(), refused: limit(), other: limit(), no_accept: limit() }
    }

    const fn of(&self, error: &ConnectionError) -> &LogLimit {
        match error {
            ConnectionError::Late => &self.late,
            ConnectionError::GaveWay => &self.gave_way,
            ConnectionError::Refused(_) => &self.refused,
            _ => &self.other,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Codec(#[from] sluicegate_feed::CodecError),
    #[error("nothing was said in time")]
    Late,
    #[error("it closed the connection")]
    Closed,
    #[error("it only greeted, and gave way to a newcomer")]
    GaveWay,
    #[error("it was refused: {0}")]
    Refused(String),
}

impl Listener {
    /// Accepts until dropped.
    pub(crate) async fn run(self, socket: TcpListener) {
        let shared = Arc::new(self);
        let numbers = AtomicU64::new(1);
        loop {
            let (stream, peer) = match socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(left_out) = shared.log.no_accept.admit(shared.clock.now()) {
                        tracing::warn!(%error, left_out, "cannot accept a gate");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let greeting = shared.places.enter(peer.ip(), shared.door.knows_address(peer.ip()));
            let connection = numbers.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(stream, peer, connection, Arc::clone(&shared), greeting));
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, connection: u64, shared: Arc<Listener>, mut greeting: Greeting) {
    let is_local = stream.local_addr().is_ok_and(|local| local.ip() == peer.ip());
    let greeted = tokio::select! {
        greeted = timeout(GREETING_TIMEOUT, greet(stream, peer, &shared)) => greeted.unwrap_or(Err(ConnectionError::Late)),
        _ = &mut greeting.gives_way => Err(ConnectionError::GaveWay),
    };
    drop(greeting);
    let greeted = match greeted {
        Ok(Caller::Gate(gate)) => Ok(*gate),
        Ok(Caller::Frontend(sender)) => match take(*sender, &shared).await {
            Ok(()) => return,
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error),
    };
    let Greeted { mut incoming, outgoing, gate, resume, place: _place } = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            if let Some(left_out) = shared.log.of(&error).admit(shared.clock.now()) {
                tracing::info!(%peer, %error, left_out, "no feed for this connection");
            }
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
async fn read(incoming: &mut Incoming, gate: &str, connection: u64, shared: &Listener) -> ConnectionError {
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

/// Takes what a frontend sends. Who has the place for it has the site's word, so nobody else fills memory.
async fn take(sender: Sender, shared: &Listener) -> std::io::Result<()> {
    match shared.taking.try_acquire() {
        Ok(_one_at_a_time) => sender.take(shared.control.clone()).await,
        Err(_) => sender.put_off().await,
    }
}

/// Who calls.
enum Caller {
    Gate(Box<Greeted>),
    /// It has what the site has signed for this frontend.
    Frontend(Box<Sender>),
}

/// A connection whose hello was right.
struct Greeted {
    incoming: Incoming,
    outgoing: WriteHalf<Tls>,
    gate: String,
    resume: Option<Resume>,
    /// Its place among the gates that are connected.
    place: OwnedSemaphorePermit,
}

/// Handshake, a join if the gate is new, and its hello.
async fn greet(stream: TcpStream, peer_address: SocketAddr, shared: &Listener) -> Result<Caller, ConnectionError> {
    stream.set_nodelay(true)?;
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    // Who has nothing to say is no gate: a stranger that only connects is gone before it is in anybody's way.
    let hello = timeout(CLIENT_HELLO_TIMEOUT, hello).await.map_err(|_| ConnectionError::Late)??;
    let is_sealed = hello.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == SEALED_PROTOCOL));
    if is_sealed {
        let tls = hello.into_stream(Arc::clone(&shared.sealed)).await?;
        let sender = Sender::greet(tls, &shared.control).await?;
        return sender
            .map(|sender| Caller::Frontend(Box::new(sender)))
            .ok_or_else(|| ConnectionError::Refused("nothing that is new here".to_owned()));
    }
    let tls = hello.into_stream(Arc::clone(&shared.tls)).await?;
    let peer = Peer::of(tls.get_ref().1.peer_certificates()).ok_or(ConnectionError::Closed)?;
    let (read, mut write) = tokio::io::split(tls);
    let mut incoming = Incoming { stream: read, decoder: Decoder::new() };
    let mut message = incoming.receive().await?;
    if let FromGate::Join { secret, gate } = message {
        let (directory, now) = (shared.directory.clone(), shared.clock.unix());
        let joining = tokio::task::spawn_blocking(move || directory.join(now, &secret, &gate, peer.cert_hash));
        match joining.await.map_err(std::io::Error::other)? {
            Ok(gate) => {
                tracing::info!(gate = gate.name, "a gate joined");
                let joined = audit::Event::GateJoined { address: peer_address.ip().to_canonical(), gate: gate.name };
                shared.audit.iter().for_each(|audit| audit.write(&joined, 0));
            }
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
    let known = shared.directory.gate_of_certificate(&peer.cert_hash);
    let known = match known {
        Ok(Some(known)) if known.name == gate => known,
        Ok(_) => return refuse(&mut write, format!("no gate {gate:?} with this certificate has joined")).await,
        Err(error) => return refuse(&mut write, error.to_string()).await,
    };
    let Ok(place) = Arc::clone(&shared.gates).try_acquire_owned() else {
        return refuse(&mut write, format!("{GATES_MAX} gates are connected, as many as may be")).await;
    };
    remember_address(known, peer_address, shared).await;
    if let Some(ahead_s) = sluicegate_feed::skew_alarm(shared.clock.unix(), unix) {
        tracing::warn!(gate, ahead_s, "the gate's clock and this one differ; set both by NTP");
    }
    Ok(Caller::Gate(Box::new(Greeted { incoming, outgoing: write, gate, resume, place })))
}

/// Remembers where a gate dials from, so that a place to greet is kept free for it: after a restart of either too.
async fn remember_address(known: Gate, peer: SocketAddr, shared: &Listener) {
    let address = peer.ip().to_canonical();
    if known.seen_at == Some(address) {
        return;
    }
    let directory = shared.directory.clone();
    let name = known.name.clone();
    let seen = move || directory.change::<Gate>(&known.name, |gate| gate.seen_at = Some(address)).map(drop);
    let written = tokio::task::spawn_blocking(seen).await;
    if !matches!(written, Ok(Ok(()))) {
        tracing::warn!(gate = name, ?written, "where the gate dials from was not written down");
    }
    let _ = shared.door.refresh(&shared.directory, shared.clock.unix());
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
