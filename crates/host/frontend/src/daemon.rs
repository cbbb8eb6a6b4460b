//! Starting and stopping a frontend: keys, store, sockets, threads, tasks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::DirBuilder,
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use sluicegate_feed::tls::{self, TlsError};
use sluicegate_keys::KeyError;
use sluicegate_policy::Policy;
use sluicegate_signin::SitePublic;
use sluicegate_store::{
    DirectoryError, KeptRevoke, StoreError,
    audit::{self, Audit, AuditError},
};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use zeroize::Zeroizing;

use crate::{
    catalog::{Catalog, EditError},
    clock::Clock,
    config::{Config, ConfigError, GATES_MAX, Listen},
    contacts::{ContactFile, OpenedContacts, keep},
    control::{Control, Identity, Inner},
    feed::{
        Ask, Audited, Hub, Listener, Log, Queues, call_ended,
        holders::Holders,
        registrations::{self, Registrations},
    },
    frames::{self, FrameCounts, Ports},
    inbox::{ShardSender, shard_queue},
    published::Published,
    replicas::{Replicas, send_on},
    secrets::Secrets,
    sockets::{Sockets, bind_all},
    streams::{StreamMetrics, Streams},
    tls::TlsFileError,
    to_hub::ToHub,
    upkeep::{watch_door, watch_keys},
    worker::{Gauges, Worker},
};
use sluicegate_overload::EngineeredError;
use sluicegate_proxy::{
    AgentKeys, Decisions, Event, Guesses, Ledger, Limits, Listening, Outages, Overload, Settings, Shard, ShardMetrics,
    Stories, Traces,
};

/// Events on their way from all shards to the hub.
const EVENTS_MAX: usize = 8_192;
/// Questions of the control side that wait.
const ASKS_MAX: usize = 256;
/// Messages of gates that wait.
const GATE_EVENTS_MAX: usize = 1_024;

/// Why a frontend could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    /// The load that the frontend is engineered for cannot be.
    #[error("overload cannot be controlled so: {0}")]
    Overload(EngineeredError),
    /// The state directory cannot be made.
    #[error("cannot make the state directory {}: {source}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Certificate and key of the feed cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Certificates of SIP over TLS cannot be used.
    #[error(transparent)]
    SipTls(#[from] TlsFileError),
    /// The system allows fewer open files than there may be connections.
    #[error(
        "so many connections need {needed} open files, and this process may have {hard}; lower connections.total_max, or raise the limit (LimitNOFILE= in the unit, `ulimit -Hn`)"
    )]
    Files {
        /// Files that would be open.
        needed: u64,
        /// Files that may be.
        hard: u64,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Users, services and rules do not fit together, or the key holder does not answer.
    #[error(transparent)]
    Policy(#[from] EditError),
    /// An address cannot be listened on.
    #[error("cannot listen on {what}: {source}; is the address on this host, and free?")]
    Listen {
        /// Which.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Datagrams cannot be taken as frames.
    #[error("datapath \"xdp\" or overload refuse = \"interface\" does not work at {what}: {why}")]
    Interface {
        /// An address or an interface.
        what: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The system has no random bytes to give.
    #[error("the system gave no random bytes: {0}")]
    Random(String),
    /// A thread or queue cannot be made.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A running frontend. Dropping it stops its threads.
pub struct Frontend {
    control: Control,
    tasks: JoinSet<()>,
    threads: Vec<JoinHandle<()>>,
    shards: Vec<ShardSender>,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frontend").field("control", &self.control).finish_non_exhaustive()
    }
}

/// What all shards are made from.
struct Common {
    secrets: Arc<Secrets>,
    policy: Arc<Published<Policy>>,
    ledger: Arc<Ledger>,
    guesses: Arc<Guesses>,
    limits: Arc<Limits>,
    outages: Arc<Outages>,
    traces: Arc<Traces>,
    contacts: Arc<ContactFile>,
    agents: Arc<Published<AgentKeys>>,
    clock: Clock,
    stop: Arc<AtomicBool>,
    events: mpsc::Sender<(u8, Event)>,
}

impl Common {
    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.load())
    }
}

/// The shards' ends that the rest of the daemon holds.
#[derive(Default)]
struct Shards {
    senders: Vec<ShardSender>,
    metrics: Vec<Arc<ShardMetrics>>,
    gauges: Vec<Gauges>,
    threads: Vec<JoinHandle<()>>,
    streams: Vec<Arc<StreamMetrics>>,
    frames: FrameCounts,
    addresses: Vec<Listen>,
}

/// A frontend whose files and sockets are open and which has read nothing from the network yet. It needs no privilege
/// from here on, so this is the moment to give all of them up.
pub struct Opened {
    config: Config,
    secrets: Arc<Secrets>,
    clock: Clock,
    catalog: Catalog,
    policy: Arc<Policy>,
    site: SitePublic,
    agents: Arc<AgentKeys>,
    audit: Option<audit::Files>,
    contacts: OpenedContacts,
    feed: std::net::TcpListener,
    /// By shard.
    sockets: Vec<Sockets>,
    addresses: Vec<Listen>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Opened {
    /// Starts the threads and tasks: SIP is answered and gates are taken when this returns.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(self) -> Result<Frontend, StartError> {
        let Self { config, secrets, clock, catalog, policy, site, agents, audit, contacts, feed, sockets, addresses } =
            self;
        let at_feed = |source| StartError::Listen { what: config.feed.to_string(), source };
        let socket = TcpListener::from_std(feed).map_err(at_feed)?;
        let feed = socket.local_addr().map_err(at_feed)?;
        let ledger = Arc::new(Ledger::new(config.grants_max));
        ledger.set_partial(true);
        let audit = audit.map(audit::Files::start).transpose().map_err(StartError::Thread)?;
        let (events, shard_events) = mpsc::channel(EVENTS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let guesses = Arc::new(guesses(&secrets));
        let listening = addresses.iter().map(Listening::from).collect();
        let contacts = Arc::new(contacts.restore(clock, &config.tables, listening, &policy));
        let traces = Arc::default();
        let outages = Arc::default();
        let limits = Arc::default();
        let policy = Arc::new(Published::new(policy, sockets.len()));
        let agents = Arc::new(Published::new(agents, sockets.len()));
        let common =
            Common { guesses, limits, outages, traces, contacts, secrets, agents, policy, ledger, clock, stop, events };
        let shards = start_shards(&config, &common, sockets, addresses)?;
        let (asks, ask_queue) = mpsc::channel(ASKS_MAX);
        let (gate_events, gates) = mpsc::channel(GATE_EVENTS_MAX);
        let control = control(&config, &common, &shards, (catalog, asks, feed), site, audit);
        let revokes = control.inner.catalog.directory().revokes(clock.unix())?;
        let hub = hub(&config, &common, &shards, &control, revokes);
        let inner = Arc::clone(&control.inner);
        inner.door.refresh(inner.catalog.directory(), clock.unix())?;
        registrations::restore(inner.catalog.directory(), clock, &shards.addresses, &shards.senders);
        let _ = inner.asks.try_send(Ask::Gates(control.gates_joined()?));
        let _ = inner.asks.try_send(Ask::Policy(control.policy()));

        let mut tasks = JoinSet::new();
        tasks.spawn(hub.run(Queues { shards: shard_events, gates, asks: ask_queue }));
        let listener = Listener {
            tls: tls::server_config(&common.secrets.tls, Arc::clone(&inner.door) as Arc<dyn tls::Admission>)?,
            directory: inner.catalog.directory().clone(),
            door: Arc::clone(&inner.door),
            places: Arc::clone(&inner.places),
            gates: Arc::new(Semaphore::new(GATES_MAX)),
            events: gate_events,
            clock,
            audit: inner.audit.clone(),
            log: Log::new(),
            sealed: tls::sealed_server_config(&common.secrets.tls)?,
            taking: Arc::new(Semaphore::new(1)),
            control: control.clone(),
        };
        for (index, feed) in inner.replicas.sent_to() {
            tasks.spawn(send_on(control.clone(), index, feed));
        }
        tasks.spawn(listener.run(socket));
        tasks.spawn(watch_door(control.clone()));
        tasks.spawn(keep(Arc::clone(&common.contacts)));
        let watching = watch_keys(control.clone(), Arc::clone(&common.stop)).map_err(StartError::Thread)?;
        tracing::info!(name = config.name, listen = ?control.inner.identity.listen, %feed, "the frontend is up");
        let threads = shards.threads.into_iter().chain([watching]).collect();
        Ok(Frontend { control, tasks, threads, shards: shards.senders, stop: common.stop })
    }
}

impl Frontend {
    /// Reads the files and opens the sockets of a frontend, and no more: nothing that came from the network has been
    /// looked at when this returns, and all that needs a privilege is done.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left open.
    pub fn open(config: Config) -> Result<Opened, StartError> {
        config.check().map_err(StartError::Config)?;
        make_state_dir(&config.state_dir)?;
        let secrets = Arc::new(Secrets::load(&config.state_dir, &config.name)?);
        let clock = Clock::start();
        let audit = config.audit.as_ref().map(audit::Files::open).transpose()?;
        let catalog = Catalog::open(
            &config.state_dir,
            &config.realm,
            (config.configured.clone(), config.per_user),
            &config.keyholder,
        )?;
        let contacts = OpenedContacts::open(&config.state_dir)?;
        // Before privileges are given up: a process without any starts no other, and reads no file.
        let (site, agents) = catalog.start_with(clock.unix(), &secrets.replica)?;
        let agents = Arc::new(agents);
        let (policy, findings) = catalog.policy()?;
        findings
            .iter()
            .for_each(|finding| tracing::warn!("{}: {}; {}", finding.subject, finding.message, finding.hint));
        let policy = Arc::new(policy);
        let feed =
            listen(config.feed).map_err(|source| StartError::Listen { what: config.feed.to_string(), source })?;
        let (mut sockets, addresses) = bind_all(&config)?;
        if let Some(first) = sockets.first_mut() {
            first.ports = Ports::of(&config, (&secrets.of_thread(0), &secrets.start), &addresses)?;
        }
        Ok(Opened { config, secrets, clock, catalog, policy, site, agents, audit, contacts, feed, sockets, addresses })
    }

    /// Starts a frontend: it answers SIP and takes gates when this returns.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::open(config)?.start().await
    }

    /// A handle to ask and change it by.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Runs until `shutdown` is done, then stops. Grants live on at the gates.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = shutdown => {}
            ended = self.tasks.join_next() => tracing::error!(?ended, "a task of the frontend ended by itself"),
        }
        self.tasks.shutdown().await;
        self.stop_threads();
        let threads = std::mem::take(&mut self.threads);
        let _ = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        self.control.inner.contacts.write();
        if let Some(audit) = self.control.audit() {
            let over = self.control.inner.stories.take_over();
            over.into_iter().filter_map(call_ended).for_each(|event| audit.write(&event, 0));
            audit.flush();
        }
        tracing::info!("the frontend is down");
    }

    fn stop_threads(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.shards.iter().for_each(ShardSender::wake);
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Starts a frontend and runs it until `shutdown` is done.
///
/// # Errors
/// See [`StartError`].
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
    Frontend::start(config).await?.run(shutdown).await;
    Ok(())
}

fn make_state_dir(path: &Path) -> Result<(), StartError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| StartError::StateDir { path: path.to_owned(), source })
}

/// The feed's listening socket, for the runtime to take over.
fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn start_shards(
    config: &Config,
    common: &Common,
    sockets: Vec<Sockets>,
    addresses: Vec<Listen>,
) -> Result<Shards, StartError> {
    let mut shards = Shards { addresses, ..Shards::default() };
    let queues = sockets.iter().map(|_| shard_queue()).collect::<io::Result<Vec<_>>>().map_err(StartError::Thread)?;
    let (senders, inboxes): (Vec<_>, Vec<_>) = queues.into_iter().unzip();
    let all: Arc<[ShardSender]> = senders.clone().into();
    shards.senders = senders;
    let mut workers = Vec::new();
    for ((number, Sockets { udp, streams, ports }), inbox) in (0..=u8::MAX).zip(sockets).zip(inboxes) {
        let metrics = Arc::new(ShardMetrics::default());
        let gauges = Gauges::default();
        let overload = config.overload.of_shard(shards.senders.len()).map_err(StartError::Overload)?;
        let settings = settings(config, common, (number, overload), &shards.addresses);
        let (policy, agents) = (Arc::clone(&common.policy), Arc::clone(&common.agents));
        let ledger = Arc::clone(&common.ledger);
        let shard =
            Shard::new(settings, common.policy(), ledger, Arc::clone(&metrics)).map_err(StartError::Overload)?;
        let counted = Arc::<StreamMetrics>::default();
        let streams = (!streams.is_empty())
            .then(|| Streams::new(number, streams, config.connections, Arc::clone(&counted)))
            .transpose()
            .map_err(StartError::Thread)?;
        streams.iter().for_each(|streams| streams.know(&common.policy()));
        shards.metrics.push(metrics);
        shards.streams.push(counted);
        shards.gauges.push(Arc::clone(&gauges));
        let to_hub = ToHub::new(common.events.clone(), number);
        let (stop, all) = (Arc::clone(&common.stop), Arc::clone(&all));
        let clock = common.clock;
        let (sockets, frames) = (udp, shards.frames.clone());
        workers.push(Worker {
            shard,
            number,
            sockets,
            ports,
            frames,
            streams,
            inbox,
            policy,
            agents,
            all,
            to_hub,
            clock,
            stop,
            gauges,
        });
    }
    for worker in workers {
        shards.threads.push(worker.spawn().map_err(StartError::Thread)?);
    }
    Ok(shards)
}

fn guesses(secrets: &Secrets) -> Guesses {
    Guesses::new(sluicegate_proxy::derive(&secrets.start, b"guesses").first_chunk().copied().unwrap_or_default())
}

fn settings(config: &Config, common: &Common, (shard, overload): (u8, Overload), addresses: &[Listen]) -> Settings {
    let secrets = &common.secrets;
    let public = secrets.issuer.public().id();
    let start_key = secrets.of_thread(shard);
    Settings {
        realm: config.realm.clone(),
        algorithms: config.digest.clone(),
        listening: addresses.iter().map(Listening::from).collect(),
        // Nonces of different frontends must not be taken for each other's; the MAC sees to it where this does not.
        replica: u16::from_be_bytes([public[0], public[1]]),
        boot: u32::try_from(secrets.boot_id & u64::from(u32::MAX)).unwrap_or_default(),
        shard,
        registration_secs_max: config.registration_secs_max,
        connection_idle_s: config.connections.idle_s,
        phones: config.phones,
        locations: Arc::clone(&common.contacts.locations),
        dialog_requests_per_s: config.dialog_requests_per_s,
        unproved_answers_per_s: config.unproved_answers_per_s,
        overload,
        emergency: Arc::new(config.emergency.clone()),
        sieved: frames::sieved(config, addresses),
        tables: config.tables,
        dialog_key: Arc::new(secrets.dialog.clone()),
        start_key: Arc::new(Zeroizing::new(start_key)),
        advertise: config.advertise.clone(),
        replica_key: Arc::clone(&secrets.replica),
        agents: Arc::clone(&common.agents.load()),
        guesses: Arc::clone(&common.guesses),
        limits: Arc::clone(&common.limits),
        outages: Arc::clone(&common.outages),
        traces: Arc::clone(&common.traces),
        issuer: Arc::clone(&secrets.issuer),
    }
}

fn control(
    config: &Config,
    common: &Common,
    shards: &Shards,
    (catalog, asks, feed): (Catalog, mpsc::Sender<Ask>, SocketAddr),
    site: SitePublic,
    audit: Option<Audit>,
) -> Control {
    let issuer = common.secrets.issuer.public();
    let identity = Identity {
        name: config.name.clone(),
        realm: config.realm.clone(),
        listen: shards.addresses.iter().map(ToString::to_string).collect(),
        feed,
        certificate: common.secrets.tls.fingerprint(),
        issuer,
        site,
    };
    let inner = Inner {
        identity,
        catalog,
        policy: Arc::clone(&common.policy),
        asks,
        ledger: Arc::clone(&common.ledger),
        decisions: Arc::new(Decisions::default()),
        stories: Arc::new(Stories::new(config.grants_max)),
        guesses: Arc::clone(&common.guesses),
        limits: Arc::clone(&common.limits),
        outages: Arc::clone(&common.outages),
        traces: Arc::clone(&common.traces),
        contacts: Arc::clone(&common.contacts),
        replica: Arc::clone(&common.secrets.replica),
        agents: Arc::clone(&common.agents),
        shards: shards.senders.clone(),
        metrics: shards.metrics.clone(),
        streams: shards.streams.clone(),
        frames: shards.frames.clone(),
        gauges: shards.gauges.clone(),
        gates: Arc::default(),
        door: Arc::default(),
        places: Arc::default(),
        clock: common.clock,
        untold: AtomicBool::new(false),
        reloading: Mutex::new(()),
        audit,
        replicas: Replicas::new(&config.replicas),
    };
    Control { inner: Arc::new(inner) }
}

fn hub(config: &Config, common: &Common, shards: &Shards, control: &Control, revokes: Vec<KeptRevoke>) -> Hub {
    Hub {
        clock: common.clock,
        ledger: Arc::clone(&common.ledger),
        decisions: Arc::clone(&control.inner.decisions),
        stories: Arc::clone(&control.inner.stories),
        traces: Arc::clone(&common.traces),
        shards: shards.senders.clone(),
        statuses: Arc::clone(&control.inner.gates),
        holders: Holders::new(&config.gates),
        registrations: Registrations::new(control.inner.catalog.directory().clone()),
        peers: shards.addresses.iter().map(|listen| listen.address.ip()).collect(),
        issuer: Arc::clone(&common.secrets.issuer),
        boot_id: common.secrets.boot_id,
        name: config.name.clone(),
        relay_rate_bps: config.relay_rate_bps,
        relay_secret: Zeroizing::new(sluicegate_proxy::derive(&common.secrets.start, b"relay")),
        gates: BTreeMap::new(),
        heard: BTreeSet::new(),
        hears_until: None,
        services: BTreeMap::new(),
        policy: common.policy(),
        revokes,
        audited: Audited::new(control.inner.audit.clone()),
        outages: Arc::clone(&common.outages),
        unreached: BTreeMap::new(),
    }
}
