//! What the control side of a running frontend can ask and do. Serves the CLI and the HTTP API.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluicegate_api::{
    CallStory, ContactStatus, Decision, FrontendStatus, GrantStatus, JoinedGate, LimitLift, LimitStatus, TableStatus,
    TracedMessages, UsersTaken,
};
use sluicegate_bounded::Gauge;
use sluicegate_feed::{JoinSecret, JoinToken, Selected, Selector};
use sluicegate_grant::{DataMode, IssuerPublic};
use sluicegate_policy::{Policy, PortRange, Request, decide};
use sluicegate_signin::{ReplicaKey, SitePublic};
use sluicegate_store::{Gate, JoinError, TakenFile, audit::Audit};
use sluicegate_telemetry::{Family, Metric};
use sluicegate_wire::UnixTime;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::{
    catalog::{Catalog, EditError, Edited},
    clock::Clock,
    contacts::ContactFile,
    feed::{Allowlist, Ask, Places},
    frames::FrameCounts,
    holder::Loaded,
    inbox::ShardSender,
    published::Published,
    replica::{kept_revoke, stale},
    replicas::Replicas,
    streams::{self, StreamMetrics},
    tables,
    worker::Gauges,
};
use sluicegate_proxy::{
    AgentKeys, Decisions, Guesses, LIFTED_S_MAX, Ledger, Limits, LimitsFull, Outages, ShardMetrics, Stories, Traces,
    TracesFull,
};

const OUT: Family = Family::gauge(
    "sluicegate_frontend_server_out",
    &["service"],
    "SIP servers that do not answer, whose backups are asked first.",
);

/// How often, and how long after each other, a hub with a full queue is told.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a change waits for SIP threads to decide by it.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// Why something asked of a running frontend could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The change was refused.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// No join token could be made.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The store failed.
    #[error(transparent)]
    Directory(#[from] sluicegate_store::DirectoryError),
    /// Done, but not on disk.
    #[error(
        "this holds until the frontend is started anew, and was not written down: {0}; repair the disk, do it again"
    )]
    NotWritten(String),
    /// The frontend is stopping, or has more to do than it can.
    #[error("the frontend is stopping or overloaded; try again in a moment")]
    Busy,
    /// Too many traces.
    #[error(transparent)]
    Traces(#[from] TracesFull),
    /// Too many limits are lifted.
    #[error(transparent)]
    Limits(#[from] LimitsFull),
    /// A limit cannot be lifted so.
    #[error("a limit is lifted for at most {} days, and with a reason of at most 200 characters", LIFTED_S_MAX / 86_400)]
    Lift,
    /// No such replica.
    #[error(
        "there is no [[frontend.replica]] {0:?} in this frontend's configuration; add it, and start the frontend anew"
    )]
    NoReplica(String),
    /// The system has no random bytes to give.
    #[error("the system gave no random bytes: {0}")]
    Random(String),
}

/// What the frontend is reached by and known as.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) realm: String,
    pub(crate) listen: Vec<String>,
    pub(crate) feed: SocketAddr,
    pub(crate) certificate: [u8; 32],
    pub(crate) issuer: IssuerPublic,
    pub(crate) site: SitePublic,
}

pub(crate) struct Inner {
    pub(crate) identity: Identity,
    pub(crate) catalog: Catalog,
    pub(crate) policy: Arc<Published<Policy>>,
    pub(crate) asks: mpsc::Sender<Ask>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) decisions: Arc<Decisions>,
    pub(crate) guesses: Arc<Guesses>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) outages: Arc<Outages>,
    pub(crate) stories: Arc<Stories>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) contacts: Arc<ContactFile>,
    pub(crate) replica: Arc<ReplicaKey>,
    pub(crate) agents: Arc<Published<AgentKeys>>,
    pub(crate) shards: Vec<ShardSender>,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    pub(crate) streams: Vec<Arc<StreamMetrics>>,
    pub(crate) frames: FrameCounts,
    pub(crate) gauges: Vec<Gauges>,
    pub(crate) gates: Arc<Mutex<Vec<JoinedGate>>>,
    pub(crate) door: Arc<Allowlist>,
    pub(crate) places: Arc<Places>,
    pub(crate) clock: Clock,
    /// Whether the hub had no room for the policy that was read last.
    pub(crate) untold: AtomicBool,
    /// Held while a policy is read and put in place, so that an older one never replaces a newer.
    pub(crate) reloading: Mutex<()>,
    pub(crate) audit: Option<Audit>,
    pub(crate) replicas: Replicas,
}

/// A handle on a running frontend. Cheap to clone; methods that edit block for the time of a disk write.
#[derive(Clone)]
pub struct Control {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("identity", &self.inner.identity.name).finish_non_exhaustive()
    }
}

fn unanswering(service: String) -> String {
    format!(
        "the SIP server {service} does not answer, so its `backups` are asked first; is it running, and does its gate reach it?"
    )
}

fn unwritten(error: String) -> String {
    format!(
        "where telephones are registered is not written down ({error}); after a restart they are called again when they register anew"
    )
}

impl Control {
    fn now(&self) -> UnixTime {
        self.inner.clock.unix()
    }

    /// Everything at a glance.
    #[must_use]
    pub fn status(&self) -> FrontendStatus {
        let inner = &self.inner;
        let policy = inner.policy.load();
        let out = inner.outages.out(inner.clock.now()).into_iter().map(unanswering);
        let tables = self.tables();
        let full = tables::alarms(&tables);
        FrontendStatus {
            name: inner.identity.name.clone(),
            realm: inner.identity.realm.clone(),
            listen: inner.identity.listen.clone(),
            site_key: inner.identity.site.to_string(),
            frontend_key: sluicegate_signin::key_text(inner.replica.public()),
            agent_epochs: inner.agents.load().epochs().map(|(epoch, _)| epoch.0).collect(),
            users_taken: self.users_taken().map(|taken| UsersTaken { number: taken.number, at: taken.at }),
            replicas: inner.replicas.statuses(),
            feed: inner.identity.feed,
            shards: inner.metrics.len(),
            uptime_s: inner.clock.now().as_nanos() / 1_000_000_000,
            gates: self.gates_known(),
            users: policy.users().len(),
            services: policy.services().len(),
            grants: inner.ledger.gauges()[0].used,
            requests: sluicegate_proxy::requests(self.shards()).counted(),
            events: sluicegate_proxy::events(self.shards()).counted(),
            connections: streams::counted(self.streams()),
            frames: inner.frames.counted(),
            alarms: inner
                .contacts
                .error()
                .map(unwritten)
                .into_iter()
                .chain(out)
                .chain(self.alarms())
                .chain(full)
                .collect(),
            tables,
        }
    }

    /// What is known of another frontend's users, if they are had from there.
    fn users_taken(&self) -> Option<TakenFile> {
        let catalog = &self.inner.catalog;
        let taken = catalog.holder().is_elsewhere().then(|| catalog.taken().ok()).flatten();
        taken.filter(|taken| taken.has_users)
    }

    /// What is wrong where frontends share users.
    fn alarms(&self) -> impl Iterator<Item = String> {
        let silent = self.users_taken().and_then(|taken| stale(taken, self.now()));
        silent.into_iter().chain(self.inner.replicas.alarms(self.now()))
    }

    /// Its audit log, if it keeps one.
    #[must_use]
    pub fn audit(&self) -> Option<&Audit> {
        self.inner.audit.as_ref()
    }

    /// Every grant, in order of id.
    #[must_use]
    pub fn grants(&self) -> Vec<GrantStatus> {
        self.inner.ledger.rows()
    }

    /// Ends what is selected, at every gate; what is known of it here. A gate that is away is told when it comes back, even
    /// if this frontend was started anew meanwhile.
    ///
    /// # Errors
    /// [`ControlError::Busy`], or if the store fails.
    pub fn revoke(&self, selector: Selector) -> Result<Vec<GrantStatus>, ControlError> {
        let now = self.now();
        let revoke = kept_revoke(now, selector);
        self.inner.catalog.directory().keep_revoke(now, &revoke)?;
        let selector = revoke.selector;
        let rows = self.inner.ledger.matching(&selector);
        self.tell_hub(Ask::Revoke(selector))?;
        Ok(rows)
    }

    /// Tells the hub, which may have as much to do as fits: a table of another frontend ends many grants at once.
    fn tell_hub(&self, mut ask: Ask) -> Result<(), ControlError> {
        for _ in 0..BUSY_TRIES {
            match self.inner.asks.try_send(ask) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => ask = back,
                Err(TrySendError::Closed(_)) => break,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        Err(ControlError::Busy)
    }

    /// A token with which one gate can join within the next hour.
    ///
    /// # Errors
    /// If as many are open as may be, or the store fails.
    pub fn join_token(&self) -> Result<JoinToken, ControlError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| ControlError::Random(error.to_string()))?;
        let secret = JoinSecret::new(bytes);
        let directory = self.inner.catalog.directory();
        directory.open_join(self.now(), &secret)?;
        self.inner.door.refresh(directory, self.now())?;
        Ok(self.token(secret))
    }

    /// What a gate needs to know of the feed, with this secret.
    fn token(&self, secret: JoinSecret) -> JoinToken {
        let Identity { feed, certificate, ref issuer, .. } = self.inner.identity;
        JoinToken { feed, certificate, issuer: issuer.clone(), secret }
    }

    /// Lets a gate in without a token: one that this process runs itself, recognised by the SHA-256 of its certificate.
    /// Returns what the gate needs to know of the feed, with a secret that opens nothing.
    ///
    /// # Errors
    /// If the store fails or the name is none.
    pub fn gate_admit(&self, name: &str, certificate: [u8; 32]) -> Result<JoinToken, ControlError> {
        let directory = self.inner.catalog.directory();
        let gate = Gate { name: name.to_owned(), certificate, joined_at: self.now().0, seen_at: None };
        match directory.find::<Gate>(name)? {
            Some(known) if known.certificate == certificate => {}
            Some(_) => drop(directory.replace(&gate)?),
            None => drop(directory.add(&gate)?),
        }
        // What had this certificate under another name is this gate before it was renamed.
        let gates: Vec<Gate> = directory.all()?;
        let renamed: Vec<Gate> =
            gates.into_iter().filter(|known| known.certificate == certificate && known.name != name).collect();
        for gate in &renamed {
            directory.remove::<Gate>(&gate.name)?;
        }
        self.inner.door.refresh(directory, self.now())?;
        if !renamed.is_empty() {
            self.inner.asks.try_send(Ask::Gates(self.gates_joined()?)).map_err(|_| ControlError::Busy)?;
        }
        Ok(self.token(JoinSecret::new([0; 16])))
    }

    /// The gates that have joined.
    ///
    /// # Errors
    /// If the store fails.
    pub fn gates(&self) -> Result<Vec<Gate>, ControlError> {
        Ok(self.inner.catalog.directory().all()?)
    }

    /// Removes a gate: it is cut off, and cannot come back without a new token.
    ///
    /// # Errors
    /// If there is none.
    pub fn gate_remove(&self, name: &str) -> Result<(), ControlError> {
        let directory = self.inner.catalog.directory();
        directory.remove::<Gate>(name)?;
        self.inner.door.refresh(directory, self.now())?;
        self.inner.asks.try_send(Ask::Gates(self.gates_joined()?)).map_err(|_| ControlError::Busy)
    }

    /// Names of the gates, first joined first.
    pub(crate) fn gates_joined(&self) -> Result<Vec<String>, sluicegate_store::DirectoryError> {
        let mut gates: Vec<Gate> = self.inner.catalog.directory().all()?;
        gates.sort_by_key(|gate| gate.joined_at);
        Ok(gates.into_iter().map(|gate| gate.name).collect())
    }

    /// What the policy would say now to this user, service and client, and why. Without `wanted`: to all that the service
    /// offers, as far as one request may name it. `proves`: the most that the client's packets can prove.
    #[must_use]
    pub fn policy_test(
        &self,
        (user, service): (&str, &str),
        client: Option<IpAddr>,
        wanted: &[PortRange],
        proves: DataMode,
    ) -> sluicegate_policy::Decision {
        let policy = self.inner.policy.load();
        let known = policy.service(service);
        let all: Vec<PortRange> = known.map(|known| known.ports.clone()).unwrap_or_default();
        let wanted = if wanted.is_empty() { all.get(..sluicegate_policy::WANTED_MAX).unwrap_or(&all) } else { wanted };
        let client = client.or_else(|| known.map(|known| known.address)).unwrap_or(IpAddr::from([192, 0, 2, 1]));
        let held = self.inner.ledger.held_by(user, None);
        decide(&policy, &Request { user, service, client, wanted, proves, now: self.now(), held })
    }

    /// Where calls to a user go now, preferred first.
    #[must_use]
    pub fn contacts_of(&self, user: &str) -> Vec<ContactStatus> {
        self.inner.contacts.of(user)
    }

    /// Ends a user's registrations; how many there were. They are not back after a restart.
    ///
    /// # Errors
    /// If the disk does not take it: then nobody is called there until this frontend is started anew.
    pub fn unregister(&self, user: &str) -> Result<usize, ControlError> {
        let ended = self.inner.contacts.end(user);
        self.inner.contacts.error().map_or(Ok(ended), |error| Err(ControlError::NotWritten(error)))
    }

    /// Senders that were held to a limit lately, and those for which one is lifted.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.inner.limits.status(self.inner.clock.now(), self.inner.clock.unix().0)
    }

    /// Lifts the limit of load for a source, or ends that; whether there was anything to do.
    ///
    /// # Errors
    /// [`ControlError::Lift`], [`ControlError::Limits`].
    pub fn lift_limit(&self, lift: &LimitLift) -> Result<bool, ControlError> {
        let LimitLift { source, seconds, reason } = lift;
        let is_said = !reason.trim().is_empty() && reason.chars().count() <= 200;
        if *seconds > LIFTED_S_MAX || (*seconds > 0 && !is_said) || reason.chars().any(char::is_control) {
            return Err(ControlError::Lift);
        }
        Ok(self.inner.limits.lift(self.inner.clock.now(), *source, Duration::from_secs(*seconds), reason)?)
    }

    /// Forgets wrong passwords of a user; at how many sources the user may try again.
    #[must_use]
    pub fn forgive(&self, user: &str) -> usize {
        let from = self.inner.limits.forgive(user);
        self.inner.guesses.forgive(user, &from);
        from.len()
    }

    /// What was decided about a user lately, newest first. A decision may come here 20 ms after it was made, like all that is
    /// told of calls.
    #[must_use]
    pub fn trace_user(&self, user: &str) -> Vec<Decision> {
        self.inner.decisions.of_user(user)
    }

    /// What became of calls: by a Call-ID, the id of a grant, or the part of it that a call's grants share. Newest first.
    #[must_use]
    pub fn trace_call(&self, id: &str) -> Vec<CallStory> {
        self.inner.stories.of(id, &self.inner.ledger)
    }

    /// The messages of a user from number `after` on, and whether by this they are copied from now on. They are for as long
    /// as somebody asks.
    ///
    /// # Errors
    /// If those of as many users are as may be.
    pub fn trace_messages(&self, user: &str, after: u64) -> Result<(TracedMessages, bool), ControlError> {
        let Inner { traces, clock, .. } = &*self.inner;
        Ok(traces.read(user, after, clock.now(), clock.unix_us())?)
    }

    /// All counters and gauges.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let shards = self.shards();
        let out = self.inner.outages.out(self.inner.clock.now());
        let mut all = vec![
            sluicegate_proxy::requests(shards.clone()),
            sluicegate_proxy::answers(shards.clone()),
            sluicegate_proxy::events(shards.clone()),
            sluicegate_proxy::datagrams_left(shards.clone()),
            OUT.by(out.into_iter().map(|service| (service, 1))),
            sluicegate_proxy::setups(shards.clone()),
        ];
        all.extend(sluicegate_proxy::load(shards));
        all.extend(tables::metrics(&self.tables()));
        all.extend(streams::metrics(self.streams()));
        all.extend(self.inner.frames.metrics());
        all
    }

    fn shards(&self) -> impl Iterator<Item = &ShardMetrics> + Clone {
        self.inner.metrics.iter().map(|metrics| &**metrics)
    }

    fn streams(&self) -> impl Iterator<Item = &StreamMetrics> + Clone {
        self.inner.streams.iter().map(|metrics| &**metrics)
    }

    /// Fill of every bounded table; those that each shard has are summed.
    fn tables(&self) -> Vec<TableStatus> {
        let inner = &self.inner;
        let mut all: Vec<Gauge> = Vec::new();
        for gauges in &inner.gauges {
            all.extend_from_slice(&gauges.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let connected = self.gates_known().iter().filter(|gate| gate.connected).count();
        all.extend(inner.ledger.gauges());
        all.push(inner.ledger.peers_gauge(inner.clock.now()));
        all.extend([
            inner.decisions.gauge(),
            inner.stories.gauge(),
            inner.traces.gauge(),
            inner.guesses.gauge(inner.clock.now()),
            inner.outages.gauge(),
            inner.contacts.locations.gauge(),
            Gauge::of("gates", connected, crate::config::GATES_MAX),
        ]);
        all.extend(inner.limits.gauges(inner.clock.now()));
        all.extend(inner.policy.load().gauges());
        all.extend(inner.places.gauges());
        tables::summed(all)
    }

    fn gates_known(&self) -> Vec<JoinedGate> {
        self.inner.gates.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The policy that shards decide by.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.policy.load())
    }

    /// Its users, groups, services and rules, to read them. What edits them goes through [`Control::edit`].
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// Edits users, groups, services or rules, puts the change in place, and ends the grants that nothing allows any more.
    ///
    /// # Errors
    /// As `edit`, which then changed nothing; or if the change cannot be put in place.
    pub fn edit(&self, edit: impl FnOnce(&Catalog) -> Result<Edited, EditError>) -> Result<Edited, ControlError> {
        let edited = edit(&self.inner.catalog)?;
        self.reload()?;
        if edited.agents {
            self.reload_agents()?;
        }
        self.follow(&edited)?;
        Ok(edited)
    }

    /// Ends what a change allows no more.
    fn follow(&self, edited: &Edited) -> Result<(), ControlError> {
        // A shard that is too busy to know yet may register one more; it ends that when it does.
        for user in &edited.users {
            self.inner.contacts.end(user);
        }
        let users = edited.users.iter().chain(&edited.peers).cloned().map(Selected::User);
        for ended in users.chain(edited.services.iter().cloned().map(Selected::Service)) {
            self.revoke(Selector::all(ended))?;
        }
        Ok(())
    }

    /// Reads users, groups, services and rules anew and puts them in place.
    ///
    /// # Errors
    /// If the store cannot be read or they do not fit together: then the old ones stay.
    pub fn reload(&self) -> Result<(), ControlError> {
        let _one_at_a_time = self.inner.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let (policy, _) = self.inner.catalog.policy()?;
        self.inner.replicas.changed();
        let policy = Arc::new(policy);
        self.put_in_place(&self.inner.policy, Arc::clone(&policy));
        let told = self.inner.asks.try_send(Ask::Policy(policy)).map_err(|_| ControlError::Busy);
        self.inner.untold.store(told.is_err(), Ordering::Relaxed);
        told
    }

    /// Fetches from the key holder what agents' digests are checked against now.
    ///
    /// # Errors
    /// If the key holder does not answer: then what there was stays, for its epoch.
    pub fn reload_agents(&self) -> Result<(), ControlError> {
        let _one_at_a_time = self.inner.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = self.inner.catalog.holder();
        let agents = holder.agents(self.now(), *self.inner.replica.public(), &self.inner.agents.load());
        self.put_in_place(&self.inner.agents, Arc::new(agents.map_err(EditError::from)?));
        self.inner.replicas.changed();
        Ok(())
    }

    /// Has SIP threads decide by it. When this returns they do, or are so busy that they will in a moment.
    fn put_in_place<T>(&self, what: &Published<T>, new: Arc<T>) {
        what.publish(new);
        self.inner.shards.iter().for_each(ShardSender::wake);
        if !what.wait(TAKEN_WITHIN) {
            tracing::warn!("a SIP thread is busy and takes up changed users, services, rules or keys only in a moment");
        }
    }

    /// Takes a file that a key holder on another host issued to this frontend: keys of agents, by epoch for how many users, and
    /// users, groups and services if it brings some. Who may sign in no more loses grants and registrations at once.
    ///
    /// # Errors
    /// If it is not from this site's, not for this frontend or not for this epoch, or older than what there is: then
    /// nothing is changed.
    pub fn keys_load(&self, file: &[u8]) -> Result<Vec<(u32, usize)>, ControlError> {
        Ok(self.take(file)?.agents.epochs().map(|(epoch, users)| (epoch.0, users)).collect())
    }

    /// Whether a file that begins so is one to be taken.
    pub(crate) fn awaits(&self, head: &[u8]) -> Result<(), ControlError> {
        Ok(self.inner.catalog.awaits(head, &self.inner.replica)?)
    }

    pub(crate) fn take(&self, file: &[u8]) -> Result<Loaded, ControlError> {
        let inner = &self.inner;
        let (loaded, edited) = {
            let _one_at_a_time = inner.reloading.lock().unwrap_or_else(PoisonError::into_inner);
            let (loaded, edited) = inner.catalog.load(self.now(), file, &inner.replica, &inner.agents.load())?;
            self.put_in_place(&inner.agents, Arc::new(loaded.agents.clone()));
            (loaded, edited)
        };
        let reloaded = if loaded.table.is_some() { self.reload() } else { Ok(()) };
        self.follow(&edited)?;
        reloaded.map(|()| loaded)
    }

    /// Whether [`Control::reload_agents`] has something to do: an epoch begins or ends.
    pub(crate) fn agents_are_due(&self) -> bool {
        self.inner.agents.load().is_due(self.now())
    }
}
