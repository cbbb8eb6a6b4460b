//! The configuration file as TOML describes it. Unknown fields are errors; units stand in names or values.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use sluicegate_api::{Enforcement, Role as Place};
use sluicegate_frontend::{Connections, Datapath, GateSite, OverloadControl, TlsFiles};
use sluicegate_gate::{Algorithm, Backend, Carriage, EdgePolicy, Merge, Renew, ServerConfig};
use sluicegate_policy::{Bytes, PortRange, Rate, Rule, Service, SipPeer};
use sluicegate_proxy::{DigestName, Emergency, Phones, Tables};
use sluicegate_store::audit::Options;

/// Where keys, the store and the control socket live unless the file says otherwise.
pub(crate) const STATE_DEFAULT: &str = "/var/lib/sluicegate";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) node: Node,
    pub(crate) frontend: Option<Frontend>,
    pub(crate) gate: Option<Gate>,
    pub(crate) agent: Option<Agent>,
    pub(crate) keyholder: Option<KeyHolder>,
    #[serde(default)]
    pub(crate) metrics: Metrics,
    #[serde(default)]
    pub(crate) audit: Audit,
    #[serde(default, rename = "issuer")]
    pub(crate) issuers: Vec<Issuer>,
    #[serde(default, rename = "service")]
    pub(crate) services: Vec<Service>,
    #[serde(default, rename = "rule")]
    pub(crate) rules: Vec<Rule>,
    #[serde(default, rename = "peer")]
    pub(crate) peers: Vec<SipPeer>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Node {
    /// Name in feeds, logs and `status`; the host's name unless given.
    pub(crate) name: Option<String>,
    /// Directory of keys, the store and the control socket.
    pub(crate) state: PathBuf,
}

impl Default for Node {
    fn default() -> Self {
        Self { name: None, state: STATE_DEFAULT.into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Frontend {
    /// SIP addresses, such as `udp/203.0.113.1:5060`.
    pub(crate) listen: Vec<SipAddress>,
    /// Certificates of those that are of TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// What each SIP thread spends on connections.
    #[serde(default)]
    pub(crate) connections: Connections,
    /// The realm users belong to.
    pub(crate) realm: String,
    /// Digest algorithms in the order they are offered.
    #[serde(default = "digest_default")]
    pub(crate) digest: Vec<DigestName>,
    /// Addresses that are dialled where a NAT stands in front, such as `198.51.100.1:5060`.
    #[serde(default)]
    pub(crate) advertise: Vec<SocketAddr>,
    /// Where gates dial in; needed by `frontend`, chosen by `up`.
    pub(crate) feed: Option<SocketAddr>,
    /// SIP threads; one per core unless given.
    pub(crate) shards: Option<usize>,
    /// How datagrams come and go.
    #[serde(default)]
    pub(crate) datapath: Datapath,
    /// Where keys of agents come from, if the key holder is on another host.
    pub(crate) keys: Option<Keys>,
    /// What is known of gates beforehand.
    #[serde(default, rename = "gate")]
    pub(crate) gates: Vec<GateSite>,
    /// Frontends on other hosts that have this one's users.
    #[serde(default, rename = "replica")]
    pub(crate) replicas: Vec<Replica>,
    /// Rate of SIP that a gate lets through to one service, such as `2Mbit`.
    pub(crate) relay_rate: Option<Rate>,
    /// Requests a second within one relayed call.
    pub(crate) dialog_requests_per_s: Option<u32>,
    /// Answers of 512 bytes a second and SIP thread to unproved senders of one /24 (IPv6: /64).
    pub(crate) unproved_answers_per_s: Option<u32>,
    /// What the grants of one user may hold together.
    #[serde(default)]
    pub(crate) per_user: sluicegate_policy::PerUser,
    /// Grants at once.
    pub(crate) grants_max: Option<usize>,
    /// How long telephones may be registered.
    #[serde(default)]
    pub(crate) phones: Phones,
    /// How more requests are met than can be served.
    #[serde(default)]
    pub(crate) overload: OverloadControl,
    /// Which calls are let in all the same.
    #[serde(default)]
    pub(crate) emergency: Emergency,
    /// Sizes of each SIP thread's tables.
    #[serde(default)]
    pub(crate) tables: Tables,
}

/// Where SIP is taken: `"udp/10.0.0.5:5060"`, or `{ on = "udp/10.0.0.5:5060", advertise = "198.51.100.1:5060" }` behind a NAT.
#[derive(Debug)]
pub(crate) struct SipAddress {
    pub(crate) on: String,
    pub(crate) advertise: Option<String>,
}

impl<'de> Deserialize<'de> for SipAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadSipAddress)
    }
}

struct ReadSipAddress;

impl<'de> Visitor<'de> for ReadSipAddress {
    type Value = SipAddress;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"udp/ADDRESS:PORT\" or { on = \"udp/ADDRESS:PORT\", advertise = \"ADDRESS:PORT\" }")
    }

    fn visit_str<E>(self, text: &str) -> Result<SipAddress, E> {
        Ok(SipAddress { on: text.to_owned(), advertise: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SipAddress, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Behind {
            on: String,
            advertise: String,
        }
        let Behind { on, advertise } = Behind::deserialize(MapAccessDeserializer::new(map))?;
        Ok(SipAddress { on, advertise: Some(advertise) })
    }
}

/// What a key holder on another host issues.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    /// Where a file is copied to, if that is how they come.
    pub(crate) file: Option<PathBuf>,
    /// The key of the site that issues it, as `key show` there prints it.
    pub(crate) site_key: String,
}

/// A key holder for frontends on other hosts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyHolder {
    /// The realm users belong to.
    pub(crate) realm: String,
    /// Who gets keys.
    #[serde(default, rename = "frontend")]
    pub(crate) frontends: Vec<Replica>,
}

/// A frontend on another host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replica {
    /// What its file is called.
    pub(crate) name: String,
    /// Its key, as its status shows it.
    pub(crate) key: String,
    /// The address of its feed, where a frontend sends it what it gets.
    pub(crate) feed: Option<SocketAddr>,
}

fn digest_default() -> Vec<DigestName> {
    vec![DigestName::Sha256, DigestName::Md5]
}

/// What the file says about senders that misbehave, besides the defaults.
pub(crate) fn server(renew: Option<Renew>, flood_rate: Option<Rate>, blacklist_s: Option<u32>) -> ServerConfig {
    let default = ServerConfig::default();
    ServerConfig {
        renew: renew.unwrap_or(default.renew),
        flood_bytes_per_s: flood_rate.map_or(default.flood_bytes_per_s, |rate| rate.0 / 8),
        blacklist_for: blacklist_s.map_or(default.blacklist_for, |seconds| Duration::from_secs(seconds.into())),
        ..default
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gate {
    /// What it does with packets.
    #[serde(default)]
    pub(crate) role: Place,
    /// Interface towards the Internet.
    pub(crate) outside: String,
    /// Interface towards the protected link.
    pub(crate) inside: String,
    /// External addresses of `nat` services; the outside interface's first IPv4 address unless given.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(crate) address: Vec<IpAddr>,
    /// Packet I/O back end.
    #[serde(default = "backend_default", deserialize_with = "backend")]
    pub(crate) datapath: Backend,
    /// Drop what no grant covers, or only count it.
    pub(crate) mode: Option<Enforcement>,
    /// What the gate's own host may receive, such as `tcp/22`.
    #[serde(default)]
    pub(crate) local: Vec<Local>,
    /// Packets a second that an entry of `local` may receive unless it says so itself.
    pub(crate) local_rate_pps: Option<u32>,
    /// Where agents may bring packets over TLS, such as `203.0.113.1:443`.
    pub(crate) tunnel: Option<SocketAddr>,
    /// External ports for bindings, such as `20000-32767`.
    pub(crate) external_ports: Option<String>,
    /// Switch the kernel's forwarding off instead of refusing to start.
    #[serde(default)]
    pub(crate) manage_forwarding: bool,
    /// Flow lines, fixed at start.
    pub(crate) flows_max: Option<u32>,
    /// Pinholes, fixed at start.
    pub(crate) pinholes_max: Option<u32>,
    /// What all grants of one user may hold together.
    pub(crate) per_user: Option<PerUser>,
    /// Addresses that a feed may open, such as `10.4.0.0/24`; any unless given.
    #[serde(default)]
    pub(crate) may_open: Vec<String>,
    /// Rate of the link towards the inside; not scheduled unless given.
    pub(crate) link_rate: Option<Rate>,
    /// Rate of the link towards the outside; not scheduled unless given.
    pub(crate) link_rate_outside: Option<Rate>,
    /// Where requests are tagged with the neighbour that they came from.
    #[serde(default, deserialize_with = "boundary")]
    pub(crate) boundary: Option<[bool; 2]>,
    /// Between whom the regular lane is shared, such as `destination` or `prefix/24`.
    pub(crate) fairness: Option<String>,
    /// The network in front refuses forged source addresses.
    #[serde(default)]
    pub(crate) ingress_verified: bool,
    /// Which request queues are merged when all are in use.
    pub(crate) merge: Option<Merge>,
    /// File of path identifiers and their weights.
    pub(crate) known_paths: Option<PathBuf>,
    /// Capabilities remembered, fixed at start.
    pub(crate) capability_lines_max: Option<u32>,
    /// Queues of requests, fixed at start.
    pub(crate) request_queues_max: Option<u32>,
    /// What requests get of the link, in percent.
    pub(crate) request_percent: Option<u8>,
    /// The hash of this node's own requests.
    pub(crate) algorithm: Option<Algorithm>,
    /// Pairs of hosts that this node speaks for, fixed at start.
    pub(crate) peers_max: Option<u32>,
    /// Whose requests an edge grants.
    pub(crate) policy: Option<EdgePolicy>,
    /// Whether an edge with `policy = "server"` grants a sender more than once.
    pub(crate) renew: Option<Renew>,
    /// From which rate a sender floods.
    pub(crate) flood_rate: Option<Rate>,
    /// How long such a sender gets nothing.
    pub(crate) blacklist_s: Option<u32>,
    /// How an edge sends capability headers.
    pub(crate) carriage: Option<Carriage>,
    /// What an edge grants: bytes.
    pub(crate) capability_bytes: Option<Bytes>,
    /// What an edge grants: seconds.
    pub(crate) capability_s: Option<u8>,
}

/// An entry of `local`: what the host may receive, in short or at length.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Local {
    /// Such as `tcp/22`, by either interface.
    Port(String),
    /// The same, narrowed.
    Entry(LocalEntry),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocalEntry {
    /// Such as `tcp/22`.
    pub(crate) port: String,
    /// By which interface it may come.
    #[serde(default)]
    pub(crate) side: sluicegate_gate::Side,
    /// To which address of the host; any unless given.
    pub(crate) address: Option<IpAddr>,
    /// Packets a second.
    pub(crate) rate_pps: Option<u32>,
}

/// `true` (the outside), `false`, `"inside"`, `"outside"`, or a list of the two.
fn boundary<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<[bool; 2]>, D::Error> {
    struct Boundary;
    impl<'de> Visitor<'de> for Boundary {
        type Value = Option<[bool; 2]>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true (the outside), false, \"outside\", \"inside\", or a list of the two")
        }

        fn visit_bool<E: serde::de::Error>(self, outside: bool) -> Result<Self::Value, E> {
            Ok(Some([outside, false]))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            match text {
                "outside" => Ok(Some([true, false])),
                "inside" => Ok(Some([false, true])),
                _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
            }
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut ports = [false; 2];
            while let Some(side) = list.next_element::<Side>()? {
                ports[side as usize] = true;
            }
            Ok(Some(ports))
        }
    }
    deserializer.deserialize_any(Boundary)
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Outside,
    Inside,
}

const fn sip_port_default() -> u16 {
    sluicegate_policy::SIP_PORT_DEFAULT
}

const fn backend_default() -> Backend {
    Backend::Auto
}

/// One address, or a list of them.
pub(super) fn one_or_many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "an address such as \"203.0.113.1\" (of a frontend with its port), or a list of them"
    )]
    enum OneOrMany<T> {
        One(T),
        Many(Vec<T>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(only) => vec![only],
        OneOrMany::Many(all) => all,
    })
}

fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Backend, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "auto" => Ok(Backend::Auto),
        "xdp" => Ok(Backend::Xdp),
        "packet" => Ok(Backend::Packet),
        _ => Err(serde::de::Error::custom(format!("`{text}` is no datapath; write auto, xdp or packet"))),
    }
}

/// What one frontend may have the gate open.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Issuer {
    /// The frontend's public key: 64 hexadecimal digits.
    pub(crate) key: String,
    /// Services that it may announce; any unless given.
    #[serde(default)]
    pub(crate) services: Vec<String>,
    /// Addresses that it may open, such as `10.4.0.0/24`.
    #[serde(default)]
    pub(crate) may_open: Vec<String>,
    /// Ports that it may open, such as `udp/5004-5100`.
    #[serde(default)]
    pub(crate) ports: Vec<PortRange>,
    /// Most bytes of one grant.
    pub(crate) bytes_max: Option<Bytes>,
    /// Highest rate of one grant.
    pub(crate) rate: Option<Rate>,
    /// Longest life of one grant in seconds.
    pub(crate) lifetime_s: Option<u32>,
    /// Where it relays SIP from; the address of its feed unless given.
    #[serde(default)]
    pub(crate) sip_from: Vec<IpAddr>,
}

/// `per_user` of `[gate]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PerUser {
    /// Flows at once.
    pub(crate) flows_max: Option<u32>,
    /// External ports at once.
    pub(crate) ports_max: Option<u32>,
    /// Rate to services; that of the fastest of the user's grants unless given.
    pub(crate) rate: Option<Rate>,
    /// Bytes to services in `window_s`; as much as rate and grants allow unless given.
    pub(crate) bytes_max: Option<Bytes>,
    /// See `bytes_max`.
    pub(crate) window_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Where Prometheus scrapes; loopback only.
    pub(crate) listen: Option<SocketAddr>,
}

/// The audit log.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Audit {
    /// Whether there is one.
    pub(crate) enabled: bool,
    /// Its directory; `audit` in the node's state unless given.
    pub(crate) directory: Option<PathBuf>,
    /// Size of a file at which a new one is begun.
    pub(crate) file_bytes: Bytes,
    /// Older files kept of each kind.
    pub(crate) keep: u8,
    /// Whether a frontend logs calls.
    pub(crate) calls: bool,
}

impl Default for Audit {
    fn default() -> Self {
        Self { enabled: true, directory: None, file_bytes: Bytes(8_000_000), keep: 7, calls: true }
    }
}

impl Audit {
    /// Where and how it is kept by a node with this state directory, if it is. Calls are a frontend's.
    pub(crate) fn options(&self, state: &Path) -> Option<Options> {
        let directory = self.directory.clone().unwrap_or_else(|| state.join("audit"));
        self.enabled.then_some(Options { directory, bytes_max: self.file_bytes.0, keep: self.keep, calls: false })
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: Some(([127, 0, 0, 1], 9469).into()) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agent {
    /// The frontend's SIP address, or those of several.
    #[serde(deserialize_with = "one_or_many")]
    pub(crate) frontend: Vec<SocketAddr>,
    /// The realm.
    pub(crate) realm: String,
    /// The user that may register the service (the service's `registrar`).
    pub(crate) user: String,
    /// File with that user's password on its first line, mode 0600.
    pub(crate) password_file: Option<PathBuf>,
    /// File with that user's key instead, mode 0600.
    pub(crate) key_file: Option<PathBuf>,
    /// The site's key; the first one met is remembered unless given.
    pub(crate) site_key: Option<String>,
    /// Where it is remembered.
    pub(crate) known_sites: Option<PathBuf>,
    /// The service.
    pub(crate) service: String,
    /// Address of the service as the gate reaches it.
    pub(crate) address: IpAddr,
    /// The agent's own SIP port: the service's `sip_port`.
    #[serde(default = "sip_port_default")]
    pub(crate) sip_port: u16,
    /// Ports to offer, such as `tcp/22`.
    pub(crate) ports: Vec<String>,
    /// Users that are let in; everyone whom the policy allows unless given.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    /// Users that are refused.
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    /// Clients at once.
    pub(crate) clients_max: Option<usize>,
    /// Clients of one user at once.
    pub(crate) clients_per_user_max: Option<usize>,
    /// A client that sends faster than this for `abuse_ms` is ended.
    pub(crate) abuse_rate: Option<Rate>,
    /// How long a client may exceed `abuse_rate`, in milliseconds.
    pub(crate) abuse_ms: Option<u32>,
    /// Interface on which client traffic arrives, to measure it.
    pub(crate) interface: Option<String>,
}
