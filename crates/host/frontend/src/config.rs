//! What a frontend is told at start. The binary's TOML reader fills it.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluicegate_api::Configured;
use sluicegate_policy::PerUser;
use sluicegate_store::audit;

use crate::{holder::KeyHolder, overload::OverloadControl, streams::Connections, tls::TlsFiles};
use sluicegate_proxy::{DigestName, Emergency, Listening, Phones, Tables, is_private};
use sluicegate_sip::message::Transport;

/// Most listening addresses.
pub const LISTEN_MAX: usize = 8;
/// Most shards.
pub const SHARDS_MAX: usize = 64;
/// Most entries of a table.
const TABLE_MAX: usize = 1 << 22;
/// Most gates connected at once.
pub const GATES_MAX: usize = 64;
/// Most frontends that have another's users.
pub const REPLICAS_MAX: usize = 16;
/// Slowest relay of SIP to a service, in bit/s.
const RELAY_RATE_BPS_MIN: u64 = 64_000;
/// Most contacts of one user.
const CONTACTS_PER_USER_MAX: usize = 30;
/// Least and most of the shortest registration of a telephone, in seconds: no longer one may be refused (RFC 3261 section
/// 10.3).
const REGISTRATION_S_LEAST: u32 = 10;
const REGISTRATION_S_BRIEF: u32 = 3_600;
/// Longest registration of a telephone, in seconds.
const REGISTRATION_S_MOST: u32 = 86_400;
/// Longest realm, in bytes.
const REALM_LEN_MAX: usize = 128;

/// A transport and a local address. Text form: `udp/203.0.113.1:5060`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// What carries the messages.
    pub transport: Transport,
    /// The address.
    pub address: SocketAddr,
    /// The address that a NAT in front of the host makes into it.
    pub advertise: Option<SocketAddr>,
}

impl Listen {
    /// A local address.
    #[must_use]
    pub const fn new(transport: Transport, address: SocketAddr) -> Self {
        Self { transport, address, advertise: None }
    }

    /// The same with what it is advertised as: its own word for that, or else the first of `all` that a NAT makes into it which
    /// keeps ports. What is no private address is behind no NAT.
    #[must_use]
    pub fn advertised(self, all: &[SocketAddr]) -> Self {
        let is_meant = |outside: &&SocketAddr| {
            is_private(self.address.ip())
                && outside.port() == self.address.port()
                && outside.is_ipv4() == self.address.is_ipv4()
        };
        Self { advertise: self.advertise.or_else(|| all.iter().find(is_meant).copied()), ..self }
    }

    /// Whether peers can know it by its advertised address, if it has one.
    fn may_advertise(&self) -> bool {
        self.advertise.is_none_or(|outside| {
            let is_address = !outside.ip().is_unspecified() && !outside.ip().is_multicast() && outside.port() != 0;
            is_address && outside.is_ipv4() == self.address.is_ipv4()
        })
    }

    /// Whether it needs a certificate.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.transport == Transport::Tls
    }

    /// Whether peers connect to it.
    #[must_use]
    pub const fn is_stream(&self) -> bool {
        self.transport.is_reliable()
    }

    /// Whether datagrams for it come by an interface, and from senders that are known without saying by which.
    #[must_use]
    pub fn comes_as_frames(&self) -> bool {
        !self.is_stream() && self.comes_by_an_interface()
    }

    /// Whether packets for it come by an interface, and from senders that are known without saying by which.
    #[must_use]
    pub fn comes_by_an_interface(&self) -> bool {
        let ip = self.address.ip();
        let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        !ip.is_loopback() && !is_link_local
    }
}

impl From<&Listen> for Listening {
    fn from(listen: &Listen) -> Self {
        Self::new(listen.transport, listen.address).behind(listen.advertise)
    }
}

impl FromStr for Listen {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let read = || {
            let (name, address) = text.split_once('/')?;
            let transport = Transport::named(name.as_bytes()).filter(|transport| transport.param() == name)?;
            Some(Self::new(transport, address.parse().ok()?))
        };
        read().ok_or_else(|| ConfigError::Listen(text.to_owned()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport.param(), self.address)
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How datagrams come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Datapath {
    /// Through the kernel's network stack.
    #[default]
    Socket,
    /// Past it where it can be: as frames, and answers go back as frames. One SIP thread has them all.
    Xdp,
}

/// What the frontend's own file says of one gate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateSite {
    /// Its name, as it joined.
    pub name: String,
    /// The services that this gate protects, and no other. A gate that names none protects all that no gate names.
    #[serde(default)]
    pub services: Vec<String>,
    /// Its external addresses; the one that it dials from unless given.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// A frontend on another host that has this one's users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSite {
    /// Its name.
    pub name: String,
    /// Its key, to which what it gets is sealed.
    pub key: [u8; 32],
    /// Where it takes what is sent to it: the address of its feed. Without one, files are issued to it and copied.
    pub feed: Option<SocketAddr>,
}

/// Everything a frontend is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this frontend in feeds, logs and `status`.
    pub name: String,
    /// Where keys, certificate and the store lie; made with mode 0700 if missing.
    pub state_dir: PathBuf,
    /// SIP addresses. Each must be one that clients can answer to, so not `0.0.0.0`.
    pub listen: Vec<Listen>,
    /// Certificates, if one of them is of TLS.
    pub tls: Option<TlsFiles>,
    /// What each SIP thread spends on connections.
    pub connections: Connections,
    /// The realm, also the domain of all SIP addresses here.
    pub realm: String,
    /// Digest algorithms offered to telephones, preferred first.
    pub digest: Vec<DigestName>,
    /// Further addresses that agents dial: those of a NAT in front of this frontend.
    pub advertise: Vec<SocketAddr>,
    /// Where the secrets of agents' users are held.
    pub keyholder: KeyHolder,
    /// Where gates dial the feed.
    pub feed: SocketAddr,
    /// SIP threads; 0: one per processor.
    pub shards: usize,
    /// How datagrams come and go.
    pub datapath: Datapath,
    /// Services, rules and peers from the configuration file.
    pub configured: Configured,
    /// What is known of gates beforehand: their services and addresses. Services that no gate names here are protected by
    /// the gate that joined first.
    pub gates: Vec<GateSite>,
    /// Frontends on other hosts that have this one's users.
    pub replicas: Vec<ReplicaSite>,
    /// Grants at once.
    pub grants_max: usize,
    /// What the grants of one user may hold together.
    pub per_user: PerUser,
    /// Longest registration of an agent, in seconds.
    pub registration_secs_max: u32,
    /// How long telephones may be registered.
    pub phones: Phones,
    /// Rate of SIP that a gate lets the frontends send to one service, in bit/s.
    pub relay_rate_bps: u64,
    /// Requests a second that may be said within one relayed call, and twice that at once.
    pub dialog_requests_per_s: u32,
    /// Answers a second of each shard to the senders of one /24 (IPv6: /64) that have proved nothing.
    pub unproved_answers_per_s: u32,
    /// How more requests are met than can be served.
    pub overload: OverloadControl,
    /// Which calls are let in all the same.
    pub emergency: Emergency,
    /// Sizes of each shard's tables.
    pub tables: Tables,
    /// The audit log; none unless given.
    pub audit: Option<audit::Options>,
}

impl Config {
    /// Whether one SIP thread has all that comes: what belongs together has to reach one, in fragments or not and by whatever
    /// queue; and what an interface refuses is said by one.
    pub(crate) fn has_one_thread(&self) -> bool {
        self.datapath == Datapath::Xdp || self.overload.refuses_at_interfaces()
    }

    /// A frontend on these addresses with the default of every other field.
    #[must_use]
    pub fn new(name: &str, realm: &str, listen: SocketAddr, feed: SocketAddr, state_dir: impl Into<PathBuf>) -> Self {
        let state_dir = state_dir.into();
        Self {
            name: name.to_owned(),
            keyholder: KeyHolder::Thread { directory: crate::holder::directory(&state_dir) },
            state_dir,
            advertise: Vec::new(),
            listen: vec![Listen::new(Transport::Udp, listen)],
            tls: None,
            connections: Connections::default(),
            realm: realm.to_owned(),
            digest: vec![DigestName::Sha256, DigestName::Md5],
            feed,
            shards: 0,
            datapath: Datapath::Socket,
            configured: Configured::default(),
            gates: Vec::new(),
            replicas: Vec::new(),
            grants_max: 65_536,
            per_user: PerUser::default(),
            registration_secs_max: 120,
            phones: Phones::default(),
            relay_rate_bps: 2_000_000,
            dialog_requests_per_s: 20,
            unproved_answers_per_s: 500,
            overload: OverloadControl::default(),
            emergency: Emergency::default(),
            tables: Tables::default(),
            audit: None,
        }
    }

    /// Checks all that can be checked without looking at the host. Returns every mistake, not only the first. Services
    /// and rules are checked by [`sluicegate_policy::Draft::check`].
    ///
    /// # Errors
    /// One [`ConfigError`] for each field that cannot be used.
    pub fn check(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        if !sluicegate_policy::is_name(&self.name) {
            errors.push(ConfigError::Name(self.name.clone()));
        }
        let is_domain_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        if !(1..=REALM_LEN_MAX).contains(&self.realm.len()) || !self.realm.bytes().all(is_domain_byte) {
            errors.push(ConfigError::Realm(self.realm.clone()));
        }
        if !(1..=LISTEN_MAX).contains(&self.listen.len()) {
            errors.push(ConfigError::ListenCount(self.listen.len()));
        }
        for (index, listen) in self.listen.iter().enumerate() {
            if listen.address.ip().is_unspecified() || listen.address.ip().is_multicast() {
                errors.push(ConfigError::ListenAddress(*listen));
            }
            if !listen.may_advertise() {
                errors.push(ConfigError::Advertise(*listen));
            }
            let is_same = |earlier: &Listen| (earlier.transport, earlier.address) == (listen.transport, listen.address);
            if self.listen.iter().take(index).any(is_same) && listen.address.port() != 0 {
                errors.push(ConfigError::ListenTwice(*listen));
            }
        }
        if self.tls.is_none()
            && let Some(listen) = self.listen.iter().find(|listen| listen.is_tls())
        {
            errors.push(ConfigError::NoTls(*listen));
        }
        let twice = |(index, name): (usize, &DigestName)| self.digest.iter().take(index).any(|earlier| earlier == name);
        if self.digest.is_empty() || self.digest.iter().enumerate().any(twice) {
            errors.push(ConfigError::Digest);
        }
        if self.shards > SHARDS_MAX {
            errors.push(ConfigError::Shards(self.shards));
        }
        if self.has_one_thread() && self.shards > 1 {
            errors.push(ConfigError::InterfaceShards(self.shards));
        }
        if self.datapath == Datapath::Xdp && !self.listen.iter().any(Listen::comes_as_frames) {
            errors.push(ConfigError::DatapathListen);
        }
        if self.overload.refuses_at_interfaces() && !self.listen.iter().any(Listen::comes_by_an_interface) {
            errors.push(ConfigError::RefuseListen);
        }
        self.check_gates(&mut errors);
        self.check_replicas(&mut errors);
        let (tables, connections) = (&self.tables, &self.connections);
        let sizes = [
            ("grants_max", self.grants_max),
            ("per_user grants_max", self.per_user.grants_max as usize),
            ("per_user ports_max", self.per_user.ports_max as usize),
            ("per_user flows_max", self.per_user.flows_max as usize),
            ("per_user bytes_max", self.per_user.bytes_max as usize),
            ("per_user rate", self.per_user.rate_bps as usize),
            ("tables transactions_max", tables.transactions_max),
            ("tables transactions_per_user_max", tables.transactions_per_user_max),
            ("tables exchanges_per_user_max", tables.exchanges_per_user_max),
            ("tables replays_max", tables.replays_max),
            ("tables replays_per_user_max", tables.replays_per_user_max),
            ("tables bindings_max", tables.bindings_max),
            ("tables contacts_max", tables.contacts_max),
            ("tables contacts_per_user_max", tables.contacts_per_user_max),
            ("tables events_max", tables.events_max),
            ("tables legs_max", tables.legs_max),
            ("connections total_max", connections.total_max),
            ("connections unproved_max", connections.unproved_max),
            ("connections per_source_max", connections.per_source_max),
            ("connections per_user_max", connections.per_user_max),
            ("connections per_source_per_s", connections.per_source_per_s as usize),
            ("connections first_message_s", connections.first_message_s as usize),
            ("connections message_s", connections.message_s as usize),
            ("connections idle_s", connections.idle_s as usize),
            ("connections unfinished_bytes_max", connections.unfinished_bytes_max),
            ("connections unsent_bytes_max", connections.unsent_bytes_max),
            ("dialog_requests_per_s", self.dialog_requests_per_s as usize),
            ("unproved_answers_per_s", self.unproved_answers_per_s as usize),
            ("emergency calls_per_s", self.emergency.calls_per_s as usize),
        ];
        errors.extend(sizes.iter().filter(|(_, size)| *size == 0).map(|(field, _)| ConfigError::Zero(field)));
        // Memory is taken for them at the start.
        let is_table =
            |field: &str| field == "grants_max" || field.starts_with("tables ") || field.ends_with("total_max");
        let large = sizes.iter().filter(|(field, size)| is_table(field) && *size > TABLE_MAX);
        errors.extend(large.map(|(field, _)| ConfigError::Large(field)));
        if self.relay_rate_bps < RELAY_RATE_BPS_MIN {
            errors.push(ConfigError::RelayRate(self.relay_rate_bps));
        }
        if !(30..=86_400).contains(&self.registration_secs_max) {
            errors.push(ConfigError::Registration(self.registration_secs_max));
        }
        if tables.contacts_per_user_max > CONTACTS_PER_USER_MAX {
            errors.push(ConfigError::ContactsPerUser(tables.contacts_per_user_max));
        }
        errors.extend(self.overload.fault().map(ConfigError::Overload));
        let is_dialled = |number: &String| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+*#".contains(&byte))
        };
        let numbers = self.emergency.numbers.iter();
        errors.extend(numbers.filter(|number| !is_dialled(number)).cloned().map(ConfigError::EmergencyNumber));
        if !self.emergency.numbers.is_empty() && !matches!(self.overload, OverloadControl::Adaptive(_)) {
            errors.push(ConfigError::Emergency);
        }
        let Phones { registration_s_default: default, registration_s_min: min, registration_s_max: max } = self.phones;
        if !(REGISTRATION_S_LEAST..=REGISTRATION_S_BRIEF).contains(&min) || max > REGISTRATION_S_MOST {
            errors.push(ConfigError::Phones);
        } else if !(min..=max).contains(&default) {
            errors.push(ConfigError::PhonesOrder);
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_replicas(&self, errors: &mut Vec<ConfigError>) {
        if self.replicas.len() > REPLICAS_MAX {
            errors.push(ConfigError::Replicas(self.replicas.len()));
        }
        if !self.replicas.is_empty() && matches!(self.keyholder, KeyHolder::Elsewhere { .. }) {
            errors.push(ConfigError::ReplicaOfReplica);
        }
        for (index, replica) in self.replicas.iter().enumerate() {
            if !sluicegate_policy::is_name(&replica.name) {
                errors.push(ConfigError::ReplicaName(replica.name.clone()));
            }
            let is_same = |other: &ReplicaSite| other.name == replica.name || other.key == replica.key;
            if self.replicas.iter().take(index).any(is_same) {
                errors.push(ConfigError::ReplicaTwice(replica.name.clone()));
            }
        }
    }

    fn check_gates(&self, errors: &mut Vec<ConfigError>) {
        if self.gates.len() > GATES_MAX {
            errors.push(ConfigError::Gates(self.gates.len()));
        }
        for (index, gate) in self.gates.iter().enumerate() {
            let earlier = || self.gates.iter().take(index);
            if !sluicegate_policy::is_name(&gate.name) {
                errors.push(ConfigError::GateName(gate.name.clone()));
            }
            if earlier().any(|other| other.name == gate.name) {
                errors.push(ConfigError::GateTwice(gate.name.clone()));
            }
            let twice = gate.services.iter().filter(|name| earlier().any(|other| other.services.contains(name)));
            errors.extend(twice.map(|name| ConfigError::GateService(name.clone())));
            let wrong = gate.addresses.iter().filter(|address| address.is_unspecified() || address.is_multicast());
            errors.extend(wrong.map(|address| ConfigError::GateAddress(*address)));
        }
    }
}

/// A field that cannot be used: what it is and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Overload cannot be controlled so.
    #[error("{0}")]
    Overload(String),
    /// The node name is no name.
    #[error("name {0:?} is not 1 to 64 letters, digits, '-', '_', '.' or '+'")]
    Name(String),
    /// The realm is no domain.
    #[error("realm {0:?} is not a domain name; write the domain of your SIP addresses, such as \"example.net\"")]
    Realm(String),
    /// A listening address that cannot be read.
    #[error(
        "listen {0:?} is not a SIP address; write \"udp/203.0.113.1:5060\", \"tcp/[2001:db8::1]:5060\" or \"tls/203.0.113.1:5061\""
    )]
    Listen(String),
    /// None, or too many.
    #[error("listen names {0} addresses; write 1 to {LISTEN_MAX}")]
    ListenCount(usize),
    /// An address that cannot stand in a SIP message.
    #[error("listen \"{0}\" is not an address that clients can answer to; write one address of this host per entry")]
    ListenAddress(Listen),
    /// What it is advertised as can be no such address.
    #[error(
        "listen \"{0}\" is advertised as {outside}, where nobody reaches it; write the address and port that the NAT makes into it, of the same IP version",
        outside = .0.advertise.map(|outside| outside.to_string()).unwrap_or_default()
    )]
    Advertise(Listen),
    /// The same address again.
    #[error("listen \"{0}\" is there twice; remove one")]
    ListenTwice(Listen),
    /// TLS without a certificate.
    #[error("listen \"{0}\" needs a certificate; add tls = {{ certificate = \"FILE\", key = \"FILE\" }}")]
    NoTls(Listen),
    /// No digest algorithm, or one twice.
    #[error("digest must name \"SHA-256\", \"MD5\" or both, each once")]
    Digest,
    /// More threads than can have what comes by XDP.
    #[error(
        "shards = {0} is too many for datapath = \"xdp\" and for overload refuse = \"interface\", by which one SIP thread has all; write 1, or \"socket\" and \"process\""
    )]
    InterfaceShards(usize),
    /// Nothing comes by XDP.
    #[error(
        "datapath \"xdp\" has no datagrams to take: listen names no UDP address of an interface; add \"udp/203.0.113.1:5060\", or write \"socket\""
    )]
    DatapathListen,
    /// Nothing comes by an interface where it could be refused.
    #[error(
        "overload refuse = \"interface\" has nothing to refuse: listen names no address of an interface; add \"udp/203.0.113.1:5060\", or write \"process\""
    )]
    RefuseListen,
    /// Nobody is refused by source, so nobody can be let in all the same.
    #[error("emergency numbers count with overload mode = \"adaptive\" alone; set that, or leave the numbers out")]
    Emergency,
    /// Nobody dials that.
    #[error("emergency numbers has {0:?}, which is no number; write what is dialled, such as \"112\"")]
    EmergencyNumber(String),
    /// Too many shards.
    #[error("shards = {0} is more than {SHARDS_MAX}; write one per processor, or 0 to have it chosen")]
    Shards(usize),
    /// A table of size zero.
    #[error("{0} = 0 leaves no room for anything; write a larger number or leave it out")]
    Zero(&'static str),
    /// A table larger than a host has memory for.
    #[error("{0} is larger than {TABLE_MAX}; write a smaller number or leave it out")]
    Large(&'static str),
    /// More gates than may connect.
    #[error("gate describes {0} gates, at most {GATES_MAX} can be connected")]
    Gates(usize),
    /// A gate's name that is none.
    #[error("gate name {0:?} is not 1 to 64 letters, digits, '-', '_', '.' or '+'; write the gate's [node] name")]
    GateName(String),
    /// A gate described twice.
    #[error("gate {0:?} is described twice; keep one of the two")]
    GateTwice(String),
    /// A service with two gates.
    #[error("gate: the service {0:?} is protected by two gates; only one gets its grants")]
    GateService(String),
    /// An address that no gate can have.
    #[error("gate address {0} is unspecified or multicast; write the gate's external address")]
    GateAddress(IpAddr),
    /// More replicas than may be.
    #[error("replica names {0} frontends, at most {REPLICAS_MAX} can have this one's users")]
    Replicas(usize),
    /// What has its users from elsewhere hands none on.
    #[error("replica: this frontend has its own users from elsewhere (`keys`); name its replicas at that frontend")]
    ReplicaOfReplica,
    /// A replica's name that is none.
    #[error(
        "replica name {0:?} is not 1 to 64 letters, digits, '-', '_', '.' or '+'; write that frontend's [node] name"
    )]
    ReplicaName(String),
    /// A replica named twice.
    #[error("replica {0:?} has the name or key of another; keep one of the two")]
    ReplicaTwice(String),
    /// Too slow for signalling.
    #[error("relay_rate = {0} bit/s carries no signalling; write at least \"64kbit\"")]
    RelayRate(u64),
    /// More contacts than fit into one record of the store.
    #[error("tables contacts_per_user_max = {0} is more than {CONTACTS_PER_USER_MAX}")]
    ContactsPerUser(usize),
    /// Registration times of telephones out of range.
    #[error(
        "phones registration_s_min must be {REGISTRATION_S_LEAST} to {REGISTRATION_S_BRIEF}, and registration_s_max at \
         most {REGISTRATION_S_MOST}"
    )]
    Phones,
    /// A default that is not between its bounds.
    #[error("phones registration_s_default must be between registration_s_min and registration_s_max")]
    PhonesOrder,
    /// A registration time out of range.
    #[error("registration_secs_max = {0} is not between 30 and 86400")]
    Registration(u32),
}

#[cfg(test)]
mod tests;
