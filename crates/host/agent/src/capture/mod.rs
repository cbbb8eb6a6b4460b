//! The agent as a capability host: packets of this host, or of one command, to the destinations that a file lists get
//! capability headers, and those that arrive lose them. Programs notice nothing.
//!
//! ```text
//! program -> kernel -> TUN -> [service: sign in, gate's address] -> capability host -> raw socket -> network
//!                                                                        \ far end without capabilities: plain
//! ```

mod answers;
mod command;
mod connections;
mod destinations;
mod engine;
mod heard;
mod moving;
mod names;
mod orders;
mod place;
mod policy;
mod redirects;
mod settings;
mod shield;
mod sign_ins;
mod trials;

use std::{
    io,
    net::SocketAddr,
    process::Child,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use sluicegate_capability::host::ServerConfig;
use sluicegate_datapath::{OpenError, outer::Claim};
use sluicegate_wire::capability::UDP_PORT;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc as asking, oneshot, watch},
};
use tracing::info;

pub use self::{
    command::{CHILD_VERB, become_child},
    destinations::{CAPTURES_MAX, Destination},
    settings::{RESTORE_VERB, restore},
};
use self::{
    engine::{Engine, Wire, Wires},
    moving::Follower,
    names::Names,
    orders::{Inbox, Order, Orders},
    place::{CABLE_INSIDE, Outward, Place},
    redirects::Target,
    settings::Settings,
    shield::Shield,
    sign_ins::{ASKS_MAX, SignIns},
};
use crate::{account::Account, frontends::Frontends};

/// How long captured names may take to be looked up before the command starts.
const NAMES_WAIT: Duration = Duration::from_secs(5);

/// How packets carry the capability header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrying {
    /// As IP protocol 253.
    Native,
    /// In UDP to port 7253, across NATs.
    Encapsulated,
}

/// Who may send to this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Those who answer what this host sent.
    #[default]
    Client,
    /// Everybody, within limits; capabilities only for those who asked for them.
    Server(ServerConfig),
}

/// A user who signs in to a service.
#[derive(Debug, Clone)]
pub struct SignIn {
    /// The user.
    pub account: Account,
    /// The service's name.
    pub service: String,
}

/// One entry of the file.
#[derive(Debug, Clone)]
pub struct Capture {
    /// What is captured.
    pub to: Destination,
    /// How its packets carry the header; `None`: as the DNS says, else by trial.
    pub carrying: Option<Carrying>,
    /// The service that is there, opened by signing in on the first packet to a port. The gate's address and port
    /// then stand for the destination; of a name, one address of each IP version.
    pub service: Option<SignIn>,
}

/// What to capture, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// The interface by which captured packets leave; the one that leads to them unless given.
    pub interface: Option<String>,
    /// The site's frontends, for entries with a service.
    pub frontends: Option<Frontends>,
    /// Who may send to this host.
    pub role: Role,
    /// The name server for captured names; those of `resolv.conf` unless given.
    pub resolver: Option<SocketAddr>,
    /// The entries.
    pub captures: Vec<Capture>,
}

/// Why capturing did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A device or socket.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Routes, addresses, filters.
    #[error("{0}; capturing needs root, or CAP_NET_ADMIN and CAP_NET_RAW")]
    Netlink(sluicegate_netlink::Error),
    /// No way out.
    #[error("no route leads to the captured destinations; set `interface` in [agent], or connect this host")]
    NoInterface,
    /// No address of the host's own.
    #[error("{0} has no address that packets could come from; give it one, or set `interface` in [agent]")]
    NoAddress(String),
    /// A service without a frontend to sign in to.
    #[error("an entry has a `service`, but [agent] has no `frontend` to sign in to")]
    NoFrontend,
    /// No network namespace.
    #[error("cannot make a network namespace: {0}; `agent run` needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")]
    Namespace(io::Error),
    /// The command did not start.
    #[error("cannot start the command: {0}")]
    Command(io::Error),
    /// The DNS cannot be asked.
    #[error("cannot ask the DNS: {0}; set `resolver` in [agent]")]
    Resolver(String),
    /// Another system call.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The packet thread ended by itself.
    #[error("the packet thread ended; the log says why")]
    Thread,
}

/// The message says it all; there is no further cause to tell.
impl From<sluicegate_netlink::Error> for CaptureError {
    fn from(error: sluicegate_netlink::Error) -> Self {
        Self::Netlink(error)
    }
}

/// Captures destinations of this host until `shutdown` resolves. `ready` is called when it does.
///
/// # Errors
/// See [`CaptureError`].
pub async fn tun(config: Config, ready: impl FnOnce(), shutdown: impl Future<Output = ()>) -> Result<(), CaptureError> {
    let Start { outward, headers, orders, inbox, _claim } = Start::new(&config)?;
    let (mut control, asks) = Control::start(&config, &outward, &orders)?;
    let mut settings = Settings::default();
    let place = Place::on_host(&outward, &mut settings)?;
    settings.guard();
    let wires = Wires { headers, plain: Wire::plain(&outward.interface)? };
    let tun = Some(place.tun.name().to_owned());
    let engine = Engine::new(&config, &outward, place, wires, asks)?;
    let (ended, end) = oneshot::channel::<()>();
    let thread = thread::Builder::new().name("packets".to_owned()).spawn(move || {
        let _ended = ended;
        engine.run(inbox);
    })?;
    info!(interface = outward.interface, "capturing; end with Ctrl-C");
    control.follow(config, outward, tun, &orders);
    ready();
    tokio::select! {
        () = shutdown => {}
        _ = end => {}
    }
    let result = stop(&orders, thread).await;
    control.end().await;
    result
}

/// Runs `words` in a network namespace of its own in which the destinations are captured. Returns its exit status, 128
/// and more for a signal. Once `shutdown` resolves the command is told to end.
///
/// # Errors
/// See [`CaptureError`].
pub async fn run(config: Config, words: &[String], shutdown: impl Future<Output = ()>) -> Result<i32, CaptureError> {
    let Start { outward, headers, orders, inbox, _claim } = Start::new(&config)?;
    let (mut control, asks) = Control::start(&config, &outward, &orders)?;
    place::warn_of_local_resolver();
    place::remove_cable()?;
    let host = place::namespace()?;
    let (made, is_made) = oneshot::channel();
    let (go, going) = mpsc::channel();
    let (ended, end) = oneshot::channel::<()>();
    let (inner, inner_config, words) = (outward.clone(), config.clone(), words.to_vec());
    let thread = thread::Builder::new().name("packets".to_owned()).spawn(move || {
        let _ended = ended;
        let prepared = Place::in_namespace(&inner, &host).and_then(|place| {
            let wires = Wires { headers, plain: Wire::plain(CABLE_INSIDE)? };
            Engine::new(&inner_config, &inner, place, wires, asks)
        });
        in_namespace(prepared, made, &going, &words, inbox);
    })?;
    let mut settings = Settings::default();
    let result = async {
        let started = is_made.await.map_err(|_| CaptureError::Thread)??;
        let _host_end = place::connect_host(&outward, &mut settings)?;
        settings.guard();
        control.follow(config, outward, None, &orders);
        control.names_known().await;
        let _ = go.send(());
        let result = command_ends(started, shutdown, end).await;
        stop(&orders, thread).await?;
        result
    };
    let result = result.await;
    control.end().await;
    result
}

/// The packet thread of [`run`]: waits for the namespace's connection, starts the command, carries packets. The command
/// is killed with this thread.
fn in_namespace(
    prepared: Result<Engine, CaptureError>,
    made: oneshot::Sender<Result<Started, CaptureError>>,
    go: &mpsc::Receiver<()>,
    words: &[String],
    mut inbox: Inbox,
) {
    let mut engine = match prepared {
        Ok(engine) => engine,
        Err(error) => {
            let _ = made.send(Err(error));
            return;
        }
    };
    let (child, started) = oneshot::channel();
    if made.send(Ok(started)).is_err() || go.recv().is_err() {
        return;
    }
    engine.obey(&mut inbox);
    if child.send(command::start(words)).is_ok() {
        engine.run(inbox);
    }
}

/// The command, once it runs.
type Started = oneshot::Receiver<io::Result<Child>>;

/// The command's exit status.
async fn command_ends(
    started: Started,
    shutdown: impl Future<Output = ()>,
    end: oneshot::Receiver<()>,
) -> Result<i32, CaptureError> {
    // An interrupt at the terminal is for the command, which gets it as well.
    let _interrupts = signal(SignalKind::interrupt())?;
    let child = started.await.map_err(|_| CaptureError::Thread)?.map_err(CaptureError::Command)?;
    let shutdown = async {
        tokio::select! {
            () = shutdown => {}
            _ = end => {}
        }
    };
    command::finish(child, shutdown).await.map_err(CaptureError::Command)
}

/// Ends the packet thread.
async fn stop(orders: &Orders, thread: JoinHandle<()>) -> Result<(), CaptureError> {
    let ran = orders.send(Order::Stop);
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if ran && joined.is_ok_and(|thread| thread.is_ok()) { Ok(()) } else { Err(CaptureError::Thread) }
}

/// What both ways to capture begin with.
struct Start {
    outward: Outward,
    headers: Wire,
    orders: Orders,
    inbox: Inbox,
    _claim: Claim,
}

impl Start {
    fn new(config: &Config) -> Result<Self, CaptureError> {
        // First, because another agent's device would be taken for the way out.
        let claim = Claim::new(UDP_PORT)?;
        let outward = Outward::find(config)?;
        let headers = Wire::headers(&outward.interface)?;
        let (orders, inbox) = orders::channel()?;
        Ok(Self { outward, headers, orders, inbox, _claim: claim })
    }
}

/// Sign-ins and names, beside the packet thread.
struct Control {
    sign_ins: Option<tokio::task::JoinHandle<()>>,
    names: Vec<tokio::task::JoinHandle<()>>,
    known: Vec<oneshot::Receiver<()>>,
    shield: Option<Arc<Shield>>,
    /// By which the sessions' own packets leave.
    interface: watch::Sender<String>,
    follower: Option<tokio::task::JoinHandle<()>>,
}

impl Control {
    fn start(
        config: &Config,
        outward: &Outward,
        orders: &Orders,
    ) -> Result<(Self, asking::Sender<Target>), CaptureError> {
        let (asks, questions) = asking::channel(ASKS_MAX);
        let services: Vec<Option<SignIn>> = config.captures.iter().map(|capture| capture.service.clone()).collect();
        let (interface, leaves_by) = watch::channel(outward.interface.clone());
        let (sign_ins, shield) = match config.frontends.clone() {
            Some(frontends) => {
                let shield = Arc::new(Shield::new(&outward.interface));
                let (orders, shared) = (orders.clone(), Arc::clone(&shield));
                let sign_ins = SignIns { interface: leaves_by, frontends, services, orders, shield: shared };
                (Some(tokio::spawn(sign_ins.run(questions))), Some(shield))
            }
            None if services.iter().any(Option::is_some) => return Err(CaptureError::NoFrontend),
            None => (None, None),
        };
        let mut control = Self { sign_ins, names: Vec::new(), known: Vec::new(), shield, interface, follower: None };
        for (entry, capture) in config.captures.iter().enumerate() {
            let Destination::Name(name) = &capture.to else { continue };
            let names = Names::new(config.resolver).map_err(|error| CaptureError::Resolver(error.to_string()))?;
            let (tell, known) = oneshot::channel();
            let follow = names.follow(entry, name.clone(), capture.service.is_some(), orders.clone(), tell);
            control.names.push(tokio::spawn(follow));
            control.known.push(known);
        }
        Ok((control, asks))
    }

    /// Looks out for another way out; `tun` is the device that captures, if it is this host's.
    fn follow(&mut self, config: Config, outward: Outward, tun: Option<String>, orders: &Orders) {
        let (orders, interface, shield) = (orders.clone(), self.interface.clone(), self.shield.clone());
        let follower = Follower { config, outward, tun, orders, interface, shield };
        self.follower = Some(tokio::spawn(follower.run()));
    }

    /// Waits until every name has been looked up once, or for long enough.
    async fn names_known(&mut self) {
        let known = std::mem::take(&mut self.known);
        let all = async {
            for name in known {
                let _ = name.await;
            }
        };
        let _ = tokio::time::timeout(NAMES_WAIT, all).await;
    }

    /// Says goodbye; the packet thread has ended.
    async fn end(self) {
        self.names.iter().chain(&self.follower).for_each(tokio::task::JoinHandle::abort);
        if let Some(sign_ins) = self.sign_ins {
            let _ = sign_ins.await;
        }
    }
}
