//! Starting, running and stopping a gate.

use crate::{
    assemble, clock,
    config::{Config, FeedAddress, TunnelListener},
    control::Control,
    ends,
    error::{ConfigError, RunError, StartError},
    feed::{Feed, FeedSlot, connection::OwnPort},
    files,
    host::Host,
    join,
    ledger::{IssuerId, OWN_ISSUER},
    packets::{
        Commander, Commands, EVENTS_MAX, PacketThread,
        neighbours::Neighbours,
        ports::{Ports, Reopen},
        tunnels::{ARRIVED_MAX, Tunnels},
    },
    published::Published,
    secrets::Seeds,
    shared::{Shared, WAITING_MAX, service_spec},
    state::{Books, Checkpointer, Close, Journal, Restored, restore},
    tunnel,
};
use nix::fcntl::{Flock, FlockArg};
use sluicegate_api::{Enforcement, Role};
use sluicegate_datapath::{Device, Interface, Links, Options, Peer, Rules, Wake, forwarding, neighbour::Table};
use sluicegate_feed::{FeedService, FromGate, tls::Identity};
use sluicegate_grant::IssuerPublic;
use sluicegate_nat::{Export, Translator};
use sluicegate_netlink::nft;
use sluicegate_node::{NextHop, Node};
use sluicegate_policy::{Outbound, ServiceDefault, ServiceMode};
use sluicegate_wire::Port;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// What a stopped gate leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// The kernel keeps dropping everything but `local` until a gate starts again.
    #[default]
    KeepClosed,
    /// The interfaces receive everything again, as before the gate.
    Open,
}

/// A started gate: packets are judged from now on.
pub struct Gate {
    control: Control,
    close: std::sync::mpsc::Sender<Close>,
    stop: Stop,
    ready: Option<oneshot::Receiver<()>>,
    stopped: oneshot::Receiver<Stopped>,
    tasks: JoinSet<()>,
}

/// Has the packet thread stop.
struct Stop {
    flag: Arc<AtomicBool>,
    wake: Arc<Wake>,
}

impl Stop {
    fn now(&self) {
        self.flag.store(true, Relaxed);
        self.wake.wake();
    }
}

/// What the packet thread leaves when it ends.
struct Stopped {
    tables: Vec<u8>,
    /// `None` if an interface was gone.
    device: Option<Device>,
    result: io::Result<()>,
}

/// What a gate stands on: real interfaces, or queues in a test.
pub(crate) struct Ground<N> {
    pub(crate) device: Device,
    pub(crate) next_hop: N,
    pub(crate) mtu: [u16; 2],
    /// Watches the interfaces; `None` for queues.
    pub(crate) links: Option<Links>,
    /// Opens the same again once it was lost.
    pub(crate) reopen: Option<Reopen<N>>,
}

/// Starts a gate on the interfaces of this network namespace. Must be called inside a tokio runtime.
///
/// # Errors
/// See [`StartError`]; nothing is forwarded then, and nothing that ran before is changed, except that with
/// `manage_forwarding` the kernel's forwarding may be off.
pub async fn start(config: Config) -> Result<Gate, StartError> {
    config.check().map_err(StartError::Config)?;
    prepare(&config)?;
    check_host(&config)?;
    let config = Config { tunnel: bind(&config)?, ..config };
    let host = Host::read().map_err(StartError::Interfaces)?;
    switch_forwarding_off(&config)?;
    let lock = lock(&config.state_dir)?;
    let feeds = feeds(&config)?.into_iter().map(with_own_port).collect::<Result<Vec<_>, _>>()?;
    let peers = feeds.iter().filter_map(|(feed, port)| Some((feed.address, port.as_ref()?.number())));
    let peers: Vec<Peer> = peers.map(|(remote, own_port)| Peer { remote, own_port }).collect();
    let mut ground = open(&config, &host, &peers)?;
    let settings = config.clone();
    ground.reopen = Some(Box::new(move || {
        check_host(&settings)?;
        // An interface that was made anew has the host's defaults again.
        switch_forwarding_off(&settings)?;
        open(&settings, &Host::read().map_err(StartError::Interfaces)?, &peers)
    }));
    start_on(config, feeds, ground, lock)
}

/// Closes the kernel's forwarding, and does what takes more rights than a running gate has. [`start`] does the same, so
/// that a process which gives up no rights need not call this; one that does calls it before.
///
/// # Errors
/// See [`StartError`]; nothing is open then that was closed before.
pub fn prepare(config: &Config) -> Result<(), StartError> {
    close(&config.outside, &config.inside)?;
    files::make_dir(&config.state_dir)
        .map_err(|source| StartError::StateDir { path: config.state_dir.clone(), source })?;
    sluicegate_datapath::prepare(config.datapath, &config.state_dir);
    Ok(())
}

/// The listener for tunnels that the configuration asks for, which a process that gives up rights binds before: its port may be
/// one of the system's.
///
/// # Errors
/// [`StartError::Tunnel`].
pub fn bind(config: &Config) -> Result<Option<Arc<TunnelListener>>, StartError> {
    config.tunnel.as_ref().map(|listener| listener.bound().map(Arc::new)).transpose()
}

/// Has the kernel forward nothing in or out of these interfaces, which need not exist yet, until [`release`] or the next
/// boot.
///
/// # Errors
/// [`StartError::Guard`].
pub fn close(outside: &str, inside: &str) -> Result<(), StartError> {
    nft::forbid_forwarding(outside, inside).map_err(StartError::Guard)
}

/// Whether a gate could start on this host, as far as can be seen without changing anything: interfaces, external
/// addresses, the kernel's forwarding.
///
/// # Errors
/// The first thing that [`start`] would refuse.
pub fn check_host(config: &Config) -> Result<(), StartError> {
    Host::read().map_err(StartError::Interfaces)?.check(config)?;
    refuse_forwarding(config)
}

/// Opens interfaces that a gate left closed, as if it had never been there.
///
/// # Errors
/// See [`StartError`]; [`StartError::StateInUse`] while the gate runs.
pub fn release(config: &Config) -> Result<(), StartError> {
    let _lock = lock(&config.state_dir)?;
    let host = Host::read().map_err(StartError::Interfaces)?;
    let Ground { device, .. } = open(config, &host, &[])?;
    device.close(false)?;
    nft::allow_forwarding(&config.outside, &config.inside).map_err(StartError::Guard)
}

/// Refuses if the kernel forwards and the gate may not switch that off.
fn refuse_forwarding(config: &Config) -> Result<(), StartError> {
    for name in [&config.outside, &config.inside] {
        let on = forwarding::is_on(name).map_err(|source| StartError::Forwarding { name: name.clone(), source })?;
        if on && !config.manage_forwarding {
            return Err(StartError::KernelForwards(name.clone()));
        }
    }
    Ok(())
}

fn switch_forwarding_off(config: &Config) -> Result<(), StartError> {
    for name in [&config.outside, &config.inside] {
        let failed = |source| StartError::Forwarding { name: name.clone(), source };
        if forwarding::is_on(name).map_err(failed)? {
            forwarding::switch_off(name).map_err(failed)?;
            tracing::warn!(interface = name, "the kernel's forwarding was on; switched it off (manage_forwarding)");
        }
        // The filter lets no such packet through; this is the second lock.
        if let Err(error) = forwarding::refuse_advice(name) {
            tracing::warn!(interface = name, %error, "the kernel may still take advertised routes; its filter does not");
        }
    }
    if let Err(error) = forwarding::shorten_reassembly() {
        tracing::warn!(%error, "the kernel keeps fragments of datagrams for the host for longer");
    }
    Ok(())
}

/// Makes the state directory and takes it.
pub(crate) fn lock(dir: &Path) -> Result<Flock<File>, StartError> {
    let unusable = |source| StartError::StateDir { path: dir.to_owned(), source };
    files::make_dir(dir).map_err(unusable)?;
    let path = dir.join("gate.lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    Flock::lock(file.map_err(unusable)?, FlockArg::LockExclusiveNonblock)
        .map_err(|_| StartError::StateInUse(dir.to_owned()))
}

/// The configured and the joined feeds, each once.
fn feeds(config: &Config) -> Result<Vec<FeedAddress>, StartError> {
    if config.role != Role::Gate {
        return Ok(Vec::new());
    }
    let mut feeds = config.feeds.clone();
    let joined = join::joined(&config.state_dir)
        .map_err(|error| StartError::StateFile { path: config.state_dir.clone(), problem: error.to_string() })?;
    for feed in joined {
        if !feeds.iter().any(|known| known.address == feed.address || known.issuer == feed.issuer) {
            feeds.push(feed);
        }
    }
    Ok(feeds)
}

/// A feed, and the port that connections to it leave from; any where no kernel filter stands in between.
type Dialled = (FeedAddress, Option<OwnPort>);

fn with_own_port(feed: FeedAddress) -> Result<Dialled, StartError> {
    let port = OwnPort::reserve(feed.address).map_err(|source| StartError::OwnPort { feed: feed.address, source })?;
    Ok((feed, Some(port)))
}

fn open(config: &Config, host: &Host, peers: &[Peer]) -> Result<Ground<Neighbours>, StartError> {
    let read = |name: &str| Interface::read(name).map_err(StartError::Neighbours);
    let ports = [read(&config.outside)?, read(&config.inside)?];
    let links = Some(Links::follow(&ports).map_err(StartError::Neighbours)?);
    let device = Device::open(&Options {
        backend: config.datapath,
        outside: config.outside.clone(),
        inside: config.inside.clone(),
        rules: Rules {
            local: config.local.clone(),
            own: host.own_addresses(config),
            peers: peers.to_vec(),
            translated: config.translated(),
            pings: Vec::new(),
        },
        state_dir: config.state_dir.clone(),
    })?;
    let table = Table::open(&ports).map_err(StartError::Neighbours)?;
    table.resolve_gateways();
    for (_, address) in &config.open_services {
        table.resolve(Port::INSIDE, *address);
    }
    let mtu = [&ports[0], &ports[1]].map(|port| u16::try_from(port.mtu).unwrap_or(u16::MAX));
    let next_hop = Neighbours { table, own: [ports[0].mac, ports[1].mac], has_tunnels: config.tunnel.is_some() };
    Ok(Ground { device, next_hop, mtu, links, reopen: None })
}

/// Starts everything on an open device.
pub(crate) fn start_on<N: NextHop + Send + 'static>(
    config: Config,
    feeds: Vec<Dialled>,
    ground: Ground<N>,
    lock: Flock<File>,
) -> Result<Gate, StartError> {
    let identity = join::identity(&config.state_dir, &config.name).map_err(StartError::Identity)?;
    let mut firewall = assemble::firewall(&config, ground.mtu)?;
    let translator = &mut firewall.translator;
    let (began, unix) = clock::second_began();
    translator.set_clock(began, unix);
    let restored = restore(&config.state_dir, clock::monotonic(), clock::unix(), &config, translator)?;
    for loss in &restored.losses {
        tracing::error!("{loss}");
    }
    let (slots, outboxes) = slots(feeds)?;
    let issuers = slots.iter().map(|slot| slot.issuer).collect();
    let restored = open_services(&config, issuers, restored, translator)?;
    translator.observe(config.mode == Enforcement::Observe);
    let seeds = Seeds::load_or_make(&config.state_dir, (began, unix))?;
    let pipeline = assemble::pipeline(
        &config,
        &seeds,
        firewall,
        ground.mtu,
        restored.ledger.grants().map(|(_, entry)| &entry.delta.grant),
    )?;
    let egress = assemble::egress(&config, ground.mtu)?;
    let stamp = restored.ledger.stamp_max();
    let (commander, commands) = Commander::new().map_err(|source| StartError::Thread { name: "packets", source })?;
    let published = Arc::new(Published::new());
    let unwritable = |source| StartError::StateDir { path: config.state_dir.clone(), source };
    let Restored { ledger, generation, .. } = restored;
    let journal = Journal::create(&config.state_dir, generation).map_err(unwritable)?;
    let journal_file = journal.file().map_err(unwritable)?;
    let (events, ended) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::new(Shared {
        commander,
        books: Books::new(ledger, journal),
        published: Arc::clone(&published),
        saved: Mutex::default(),
        feeds: slots,
        backend: (ground.device.backend(), ground.device.why().to_owned()),
        started: clock::monotonic(),
        observing: AtomicBool::new(config.mode == Enforcement::Observe),
        standing: Mutex::default(),
        services: tokio::sync::Mutex::default(),
        config,
    });
    let checkpointer = Checkpointer::new(Arc::clone(&shared), (generation, journal_file), seeds, lock);
    let (arriving, tunnels) = match &shared.config.tunnel {
        Some(listener) => {
            let (came, arrived) = mpsc::channel(ARRIVED_MAX);
            (Some((Arc::clone(listener), came)), Tunnels::taking(Some(arrived), assemble::random_number()?))
        }
        None => (None, Tunnels::none()),
    };
    let (ready, is_ready) = oneshot::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let wake = Arc::clone(shared.commander.wake());
    let (ports, next_hop) = Ports::new(ground, Arc::clone(&wake));
    let packets = PacketThread {
        ports,
        node: Node::new(pipeline, egress, next_hop),
        questions: Commands::new(events, stamp, tunnels),
        published,
        commands,
        stop: Arc::clone(&stop),
        ready: Some(ready),
    };
    let (close, closed) = std::sync::mpsc::channel();
    spawn("checkpointer", move || checkpointer.run(&closed))?;
    let stopped = spawn_packets(packets, shared.config.cpu)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(ends::follow(Arc::clone(&shared), ended));
    if let Some((listener, came)) = arriving {
        tasks.spawn(tunnel::Listener::new(&listener, &identity, shared.commander.clone(), came)?.run());
    }
    spawn_feeds(&mut tasks, &shared, identity, outboxes);
    let control = Control::new(shared);
    let stop = Stop { flag: stop, wake };
    Ok(Gate { control, close, stop, ready: Some(is_ready), stopped, tasks })
}

/// Takes the public services of the configuration, and forgets those of an earlier one. `issuers` are the frontends whose
/// feeds this gate follows.
fn open_services(
    config: &Config,
    mut issuers: Vec<IssuerId>,
    mut restored: Restored,
    translator: &mut Translator,
) -> Result<Restored, StartError> {
    let ledger = &mut restored.ledger;
    issuers.push(OWN_ISSUER);
    ledger.only_issuers(&issuers);
    let gone = |name: &str| !config.open_services.iter().any(|(known, _)| known == name);
    let before: Vec<String> = ledger.services().map(|listed| listed.service.name.clone()).collect();
    for name in before.iter().filter(|name| gone(name)) {
        if let Some(record) = ledger.withdrawn(OWN_ISSUER, name) {
            ledger.apply(record);
        }
    }
    let refused = |problem: String| StartError::OpenServices(problem);
    for (name, address) in &config.open_services {
        let service = FeedService {
            name: name.clone(),
            mode: ServiceMode::Filter,
            address: *address,
            default: ServiceDefault::Open,
            ports: Vec::new(),
            outbound: Outbound::All,
            sip: None,
        };
        ledger.own(service).map_err(|error| refused(error.to_string()))?;
    }
    let services: Vec<_> = ledger.services().map(service_spec).collect();
    translator.set_services(&services).map_err(|error| refused(error.to_string()))?;
    Ok(restored)
}

type Outbox = (IssuerPublic, mpsc::Receiver<FromGate>, Option<OwnPort>);

fn slots(feeds: Vec<Dialled>) -> Result<(Vec<FeedSlot>, Vec<Outbox>), StartError> {
    let mut slots = Vec::with_capacity(feeds.len());
    let mut outboxes = Vec::with_capacity(feeds.len());
    for (feed, own_port) in feeds {
        let wrong = |_| {
            let what = format!("the issuer key of feed {} is no Ed25519 key; join that frontend again", feed.address);
            StartError::Config(vec![ConfigError::new("feeds", what)])
        };
        let issuer = IssuerPublic::from_bytes(&feed.issuer).map_err(wrong)?;
        let (outbox, waiting) = mpsc::channel(WAITING_MAX);
        slots.push(FeedSlot::new(feed, issuer.id(), outbox, clock::monotonic()));
        outboxes.push((issuer, waiting, own_port));
    }
    Ok((slots, outboxes))
}

fn spawn_feeds(tasks: &mut JoinSet<()>, shared: &Arc<Shared>, identity: Identity, outboxes: Vec<Outbox>) {
    let identity = Arc::new(identity);
    for (index, (issuer, outbox, own_port)) in outboxes.into_iter().enumerate() {
        let (shared, identity) = (Arc::clone(shared), Arc::clone(&identity));
        tasks.spawn(Feed { shared, index, identity, issuer, outbox, own_port }.run());
    }
}

fn spawn(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    // Detached: it ends when those it serves do.
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(|source| StartError::Thread { name, source })
}

fn spawn_packets<N: NextHop + Send + 'static>(
    packets: PacketThread<N>,
    cpu: Option<usize>,
) -> Result<oneshot::Receiver<Stopped>, StartError> {
    let (stopped, has_stopped) = oneshot::channel();
    spawn("packets", move || {
        let (packets, result) = packets.run(cpu);
        let mut tables = Vec::new();
        if let Some(firewall) = packets.node.pipeline.firewall() {
            Export::whole(&firewall.translator, &mut |bytes| tables.extend_from_slice(bytes));
        }
        // Nobody waiting any more: the device is dropped, and the filter stays closed.
        let _ = stopped.send(Stopped { tables, device: packets.ports.device, result });
    })?;
    Ok(has_stopped)
}

impl Drop for Gate {
    /// A gate that is dropped stops as if it were killed: nothing passes, and what it had promised comes back.
    fn drop(&mut self) {
        self.stop.now();
    }
}

impl Gate {
    /// The control handle, for the API and the terminal.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Ready once packets are judged. Does not wait for frontends: a gate without feed forwards what it was granted
    /// before. Only the first call waits.
    pub async fn ready(&mut self) {
        if let Some(ready) = self.ready.take() {
            // The packet thread failed instead: `run` says why.
            let _ = ready.await;
        }
    }

    /// Has the last checkpoint written.
    async fn save(&self, tables: Vec<u8>) -> io::Result<()> {
        let ended = || io::Error::other("the thread that writes it has ended");
        let (done, saved) = oneshot::channel();
        self.close.send(Close { tables, done }).map_err(|_| ended())?;
        saved.await.map_err(|_| ended())?
    }

    /// Runs until `shutdown` is ready or the packet path fails; saves the state, and leaves the filter as `shutdown`
    /// says (closed if anything failed).
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run(mut self, shutdown: impl Future<Output = Ending>) -> Result<(), RunError> {
        let (stopped, ending) = tokio::select! {
            ending = shutdown => {
                self.stop.now();
                ((&mut self.stopped).await, ending)
            }
            stopped = &mut self.stopped => (stopped, Ending::KeepClosed),
        };
        self.tasks.shutdown().await;
        let interfaces = format!("{} and {}", self.control.config().outside, self.control.config().inside);
        let failed = |problem: String| RunError::Packets { interfaces: interfaces.clone(), problem };
        let Ok(Stopped { tables, device, result }) = stopped else {
            return Err(failed("its thread panicked; please report this".into()));
        };
        let saved = self.save(tables).await;
        if let Err(error) = result {
            return Err(failed(error.to_string()));
        }
        if let Some(device) = device {
            device.close(ending == Ending::KeepClosed).map_err(|error| failed(error.to_string()))?;
        }
        if ending == Ending::Open {
            let config = self.control.config();
            nft::allow_forwarding(&config.outside, &config.inside).map_err(|error| failed(error.to_string()))?;
        }
        saved.map_err(RunError::Save)
    }
}

#[cfg(test)]
mod tests;
