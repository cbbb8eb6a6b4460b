//! A frontend's own shards on a virtual clock, with a gate that opens whatever it is asked for.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use sluicegate_feed::Selector;
use sluicegate_grant::{GrantId, IssuerKey};
use sluicegate_policy::{Bounds, Credentials, Draft, Group, Policy, Service, User};
use sluicegate_proxy::{
    AgentKeys, ConnectionId, DigestName, Event, Flow, GateAnswer, Guesses, Input, Ledger, Limits, Listening, Locations,
    Now, Outages, Overload, Phones, Proofs, Settings, Shard, ShardMetrics, Tables, Traces, derive,
};
use sluicegate_signin::ReplicaKey;
use sluicegate_sip::{
    digest::{Algorithm, ha1},
    message::Transport,
};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

/// The domain of every site here.
pub(crate) const REALM: &str = "example.net";
/// When a run begins: noon, so that no epoch ends in it unless it is meant to.
pub(crate) const START: UnixTime = UnixTime(1_800_014_400);
/// Where the SIP server stands.
pub(crate) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 5060);
const PASSWORD: &str = "correct horse";
const GATE: (IpAddr, (u16, u16)) = (IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200)), (20_000, 20_000));

/// Datagrams and messages on their way out.
pub(crate) type Sent = Vec<(Flow, Vec<u8>)>;

/// A user who has a telephone and an agent, and may use everything.
pub(crate) fn user(name: &str) -> User {
    let of = |algorithm| ha1(algorithm, name, REALM, PASSWORD);
    let credentials = Credentials {
        ha1_sha256: of(Algorithm::Sha256).as_bytes().try_into().unwrap_or_default(),
        ha1_md5: of(Algorithm::Md5).as_bytes().try_into().unwrap_or_default(),
    };
    User { groups: vec!["staff".into()], phone: true, credentials: Some(credentials), ..User::new(name) }
}

/// A site with these users, a declared service `web` and a SIP server `pbx`.
pub(crate) fn policy(users: Vec<User>) -> Arc<Policy> {
    let service = |text: &str| -> Service { toml::from_str(text).expect("a service") };
    let services = vec![
        service("name='web'\naddress='10.0.0.1'\nports=['tcp/80','udp/5004-5005']\nallow=['group:staff']"),
        service("name='pbx'\nkind='sip'\naddress='10.0.0.2'\nports=['udp/4000-4999']\nallow=['group:staff']"),
    ];
    let groups = vec![Group { name: "staff".into(), description: String::new() }];
    let draft = Draft { users, groups, services, ..Draft::default() };
    Arc::new(Policy::build(draft, Bounds::default()).expect("a policy").0)
}

/// Tables of a few calls, which are soon made.
const SMALL: Tables = Tables {
    transactions_max: 256,
    transactions_per_user_max: 256,
    exchanges_per_user_max: 256,
    replays_max: 256,
    replays_per_user_max: 256,
    bindings_max: 16,
    contacts_max: 256,
    contacts_per_user_max: 10,
    events_max: 256,
    legs_max: 256,
};

/// What tells one frontend of a site from another, and how it is set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) replica: u16,
    pub(crate) shards: u8,
    pub(crate) overload: Overload,
    pub(crate) tables: Tables,
    /// Whether all shards of all frontends and starts make their nonces with one key, as the NUTSS paper's servers do.
    pub(crate) shares_nonces: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { replica: 1, shards: 1, overload: Overload::Off, tables: SMALL, shares_nonces: false }
    }
}

/// One frontend.
#[derive(Debug)]
pub(crate) struct Frontend {
    setup: Setup,
    starts: u32,
    pub(crate) policy: Arc<Policy>,
    pub(crate) agents: Arc<AgentKeys>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    /// Calls that it had a gate open.
    pub(crate) opened: u64,
    /// The grants of these, and what it had gates end.
    pub(crate) granted: Vec<GrantId>,
    pub(crate) revoked: Vec<Selector>,
    /// Connections over which somebody has signed in.
    pub(crate) proved: Vec<ConnectionId>,
}

/// The own key of a frontend.
pub(crate) fn replica_key(replica: u16) -> ReplicaKey {
    ReplicaKey::from_seed(&derive(&[8; 32], &replica.to_be_bytes()))
}

/// Where a frontend listens; UDP is its listener 0, TCP its listener 1.
pub(crate) fn address(replica: u16) -> SocketAddr {
    let [high, low] = replica.to_be_bytes();
    SocketAddr::from(([203, 0, 113 + high, low], 5060))
}

impl Frontend {
    pub(crate) fn new(setup: Setup, policy: &Arc<Policy>, agents: AgentKeys) -> Self {
        let mut frontend = Self {
            setup,
            starts: 0,
            policy: Arc::clone(policy),
            agents: Arc::new(agents),
            ledger: Arc::new(Ledger::new(1)),
            shards: Vec::new(),
            metrics: Vec::new(),
            opened: 0,
            granted: Vec::new(),
            revoked: Vec::new(),
            proved: Vec::new(),
        };
        frontend.start();
        frontend
    }

    /// Starts anew, as after a crash: only the keys on disk are the same.
    pub(crate) fn start(&mut self) {
        self.starts += 1;
        self.ledger = Arc::new(Ledger::new(65_536));
        self.metrics = (0..self.setup.shards).map(|_| Arc::default()).collect();
        let common = self.settings();
        let shard = |number: u8, metrics: &Arc<ShardMetrics>| {
            let settings = Settings { shard: number, start_key: self.start_key(number), ..common.clone() };
            Shard::new(self.place(settings), Arc::clone(&self.policy), Arc::clone(&self.ledger), Arc::clone(metrics))
                .expect("a load to be engineered for")
        };
        self.shards =
            (0..self.setup.shards).zip(&self.metrics).map(|(number, metrics)| shard(number, metrics)).collect();
    }

    fn start_key(&self, shard: u8) -> Arc<Zeroizing<[u8; 32]>> {
        let [high, low] = self.setup.replica.to_be_bytes();
        let label = [&[high, low, shard], &self.starts.to_be_bytes()[..]].concat();
        let label = if self.setup.shares_nonces { &[][..] } else { &label };
        Arc::new(Zeroizing::new(derive(&[3; 32], label)))
    }

    /// Where nonces are shared, everything is the same that they are bound to.
    fn place(&self, settings: Settings) -> Settings {
        if self.setup.shares_nonces { Settings { replica: 0, boot: 0, shard: 0, ..settings } } else { settings }
    }

    fn settings(&self) -> Settings {
        let tables = self.setup.tables;
        let own = address(self.setup.replica);
        Settings {
            realm: REALM.into(),
            algorithms: vec![DigestName::Sha256, DigestName::Md5],
            listening: vec![Listening::udp(own), Listening::new(Transport::Tcp, own)],
            replica: self.setup.replica,
            boot: self.starts,
            shard: 0,
            registration_secs_max: 120,
            connection_idle_s: 600,
            phones: Phones::default(),
            locations: Arc::new(Locations::new(tables.contacts_max, tables.contacts_per_user_max)),
            dialog_requests_per_s: 20,
            unproved_answers_per_s: 500,
            overload: self.setup.overload,
            emergency: Arc::default(),
            sieved: Arc::default(),
            tables,
            dialog_key: Arc::new(Zeroizing::new([7; 32])),
            start_key: Arc::new(Zeroizing::new([0; 32])),
            advertise: Vec::new(),
            replica_key: Arc::new(replica_key(self.setup.replica)),
            agents: Arc::clone(&self.agents),
            guesses: Arc::new(Guesses::new([3; 16])),
            limits: Arc::new(Limits::default()),
            outages: Arc::new(Outages::default()),
            traces: Arc::new(Traces::default()),
            issuer: Arc::new(IssuerKey::from_seed([9; 32])),
        }
    }

    /// One datagram, or one message over a connection, and what comes of it.
    pub(crate) fn receive(&mut self, now: Now, shard: usize, flow: Flow, message: &[u8]) -> Sent {
        if let Some(shard) = self.shards.get_mut(shard) {
            match flow.connection {
                None => shard.on_datagram(now, flow, message),
                Some(_) => shard.on_message(now, flow, &Arc::new(Proofs::default()), message),
            }
        }
        self.settle(now)
    }

    /// Tells every shard.
    pub(crate) fn tell(&mut self, now: Now, input: &Input) -> Sent {
        self.shards.iter_mut().for_each(|shard| shard.on_input(now, input.clone()));
        self.settle(now)
    }

    /// Does what is due.
    pub(crate) fn on_time(&mut self, now: Now) -> Sent {
        for shard in &mut self.shards {
            if shard.poll_timeout().is_some_and(|due| due <= now.instant) {
                shard.on_time(now);
            }
        }
        self.settle(now)
    }

    /// Passes on what shards ask for, until they ask for nothing more.
    fn settle(&mut self, now: Now) -> Sent {
        let mut sent = Sent::new();
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for number in 0..self.shards.len() {
                sent.extend(self.shards[number].transmits().iter().map(|(flow, bytes)| (flow, bytes.to_vec())));
                self.shards[number].transmits().clear();
                while let Some(event) = self.shards[number].poll_event() {
                    is_quiet = false;
                    self.carry_out(now, number, event);
                }
            }
        }
        sent
    }

    fn carry_out(&mut self, now: Now, number: usize, event: Event) {
        match event {
            Event::Open { deltas, .. } => {
                self.opened += 1;
                for delta in deltas {
                    let id = delta.grant.id;
                    self.granted.push(id);
                    let opened = self.ledger.opening(&delta, "gate", number as u8).map_err(|full| full.to_string());
                    self.ledger.opened("gate", id, GATE.0, GATE.1);
                    let answer = GateAnswer { id, opened: opened.map(|()| GATE) };
                    self.shards[number].on_input(now, Input::Gate(answer));
                }
            }
            Event::Revoke(selector) => {
                let (user, _) = self.ledger.end_of(&selector.what);
                let over = self.ledger.revoke(now.unix, &selector, Some(&user));
                self.revoked.push(selector);
                self.shards.iter_mut().for_each(|shard| shard.on_input(now, Input::Over(over.clone().into())));
            }
            Event::Bind(binding) => {
                let others = self.shards.iter_mut().enumerate().filter(|(other, _)| *other != number);
                others.for_each(|(_, shard)| shard.on_input(now, Input::Bind(binding.clone())));
            }
            Event::HandOver { shard, flow, datagram } => {
                if let Some(owner) = self.shards.get_mut(usize::from(shard)) {
                    owner.on_input(now, Input::Datagram { flow, bytes: datagram });
                }
            }
            Event::Proved { connection, .. } => self.proved.push(connection),
            Event::Decided(_) | Event::Told(..) => {}
        }
    }
}
