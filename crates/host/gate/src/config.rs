//! What a gate is told at start. The binary's TOML reader fills these; defaults are in [`Config::new`].

use ipnet::IpNet;
use sluicegate_api::{Enforcement, Role};
use sluicegate_datapath::Translated;
use sluicegate_wire::capability::UDP_PORT;

use crate::error::ConfigError;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

mod capabilities;
mod issuers;

pub use capabilities::{
    Algorithm, CAPABILITY_LINES_MAX_MAX, Capabilities, Carriage, EdgePolicy, Merge, PEERS_MAX_MAX,
    REQUEST_QUEUES_MAX_MAX,
};
pub use issuers::{ISSUERS_MAX, Issuer, OwnService};
pub use sluicegate_capability::host::{Renew, ServerConfig};
pub use sluicegate_datapath::{Backend, LocalRule, Side};
pub use sluicegate_pinhole::PerUser;

pub use crate::tunnel::TunnelListener;

/// Feeds a gate holds at once.
pub const FEEDS_MAX: usize = 16;
/// Largest `flows_max`: two lines of 64 bytes each, two gibibytes in all.
pub const FLOWS_MAX_MAX: u32 = 1 << 24;
/// Largest `bytes_max` of `per_user`.
const USER_BYTES_MAX: u64 = 16_000_000_000;
/// Largest `pinholes_max`.
pub const PINHOLES_MAX_MAX: u32 = 1 << 18;

/// Everything a gate is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this gate in feeds, logs and `status`; 1 to 64 letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// What it does with packets.
    pub role: Role,
    /// Interface towards the Internet.
    pub outside: String,
    /// Interface towards the protected link.
    pub inside: String,
    /// The external address of NAT services (IPv4), and the gate's own IPv6 address; at most one of each, and on this
    /// host. May be empty if every service is a filter service.
    pub addresses: Vec<IpAddr>,
    /// How packets get in and out.
    pub datapath: Backend,
    /// Whether strangers' packets are dropped or only counted.
    pub mode: Enforcement,
    /// What the gate's own host may receive.
    pub local: Vec<LocalRule>,
    /// Where agents may bring packets over TLS, if anywhere.
    pub tunnel: Option<Arc<TunnelListener>>,
    /// External ports that bindings are taken from.
    pub external_ports: RangeInclusive<u16>,
    /// Whether the gate may switch the kernel's forwarding off by itself.
    pub manage_forwarding: bool,
    /// Flows at once, fixed at start.
    pub flows_max: u32,
    /// Pinholes at once, fixed at start.
    pub pinholes_max: u32,
    /// What all grants of one user may hold together.
    pub per_user: PerUser,
    /// Directory of keys, pins, bindings and grants; made if it does not exist.
    pub state_dir: PathBuf,
    /// Frontends whose feeds this gate holds, besides those joined with [`crate::join`].
    pub feeds: Vec<FeedAddress>,
    /// Targets that a feed may open; empty means any.
    pub may_open: Vec<Prefix>,
    /// What each frontend may have this gate open; empty: everything that a frontend can ask for. If any frontend has a
    /// rule, those without may do nothing.
    pub issuers: Vec<Issuer>,
    /// Services as the gate's own file describes them: it alone makes a service open or lets it start flows.
    pub own_services: Vec<OwnService>,
    /// Public services that this gate knows without a feed: names and addresses.
    pub open_services: Vec<(String, IpAddr)>,
    /// Capabilities and lanes.
    pub capabilities: Capabilities,
    /// CPU of the packet thread; `None` takes the last one that this process may run on.
    pub cpu: Option<usize>,
}

impl Config {
    /// A gate between two interfaces with the default of every other field.
    #[must_use]
    pub fn new(name: &str, outside: &str, inside: &str, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            role: Role::Gate,
            outside: outside.to_owned(),
            inside: inside.to_owned(),
            addresses: Vec::new(),
            datapath: Backend::Auto,
            mode: Enforcement::Enforce,
            local: Vec::new(),
            tunnel: None,
            external_ports: 20_000..=32_767,
            manage_forwarding: false,
            flows_max: 1 << 16,
            pinholes_max: 1 << 13,
            per_user: PerUser::default(),
            state_dir: state_dir.into(),
            feeds: Vec::new(),
            may_open: Vec::new(),
            issuers: Vec::new(),
            own_services: Vec::new(),
            open_services: Vec::new(),
            capabilities: Capabilities::new(Role::Gate),
            cpu: None,
        }
    }

    /// Checks all that can be checked without looking at the host. Returns every mistake, not only the first.
    ///
    /// # Errors
    /// One [`ConfigError`] for each field that cannot be used.
    pub fn check(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        if !is_name(&self.name) {
            let what = format!("the gate's name {:?} must be 1 to 64 letters, digits, '-', '_' or '.'", self.name);
            errors.push(ConfigError::new("name", what));
        }
        if self.outside == self.inside {
            let what = "a gate stands between two different interfaces";
            errors.push(ConfigError::new("inside", format!("outside and inside are both {:?}; {what}", self.inside)));
        }
        for (index, address) in self.addresses.iter().enumerate() {
            if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
                let what = "is unspecified, multicast or loopback; use an address of the outside interface";
                errors.push(ConfigError::new("address", format!("address {address} {what}")));
            }
            if self.addresses.iter().take(index).any(|earlier| earlier.is_ipv4() == address.is_ipv4()) {
                let what = "is the second of its IP version; a gate has one IPv4 and one IPv6 address";
                errors.push(ConfigError::new("address", format!("address {address} {what}")));
            }
        }
        self.check_ports(&mut errors);
        self.check_sizes(&mut errors);
        self.capabilities.check(&mut errors);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Whether a feed may open this target.
    pub(crate) fn may_open(&self, target: IpAddr) -> bool {
        self.may_open.is_empty() || self.may_open.iter().any(|prefix| prefix.contains(target))
    }

    fn check_ports(&self, errors: &mut Vec<ConfigError>) {
        let (first, last) = (*self.external_ports.start(), *self.external_ports.end());
        if first > last || first < 1024 {
            let what = "must be an ascending range above 1023, such as \"20000-32767\"";
            errors.push(ConfigError::new("external_ports", format!("external_ports {first}-{last} {what}")));
        }
        if self.external_ports.contains(&UDP_PORT) {
            let what = format!(
                "external_ports {first}-{last} contain {UDP_PORT}, the port of encapsulated capabilities; leave it out"
            );
            errors.push(ConfigError::new("external_ports", what));
        }
        for rule in self.local.iter().filter(|rule| rule.protocol == 6 || rule.protocol == 17) {
            if rule.first <= last && rule.last >= first {
                let rule = format!("{}/{}-{}", protocol_label(rule.protocol), rule.first, rule.last);
                let what = format!("local rule {rule} overlaps external_ports {first}-{last}; move one of the two");
                // Packets of the one could not be told from those of the other.
                errors.push(ConfigError::new("local", what));
            }
        }
    }

    fn check_sizes(&self, errors: &mut Vec<ConfigError>) {
        let sizes =
            [("flows_max", self.flows_max, FLOWS_MAX_MAX), ("pinholes_max", self.pinholes_max, PINHOLES_MAX_MAX)];
        for (field, given, max) in sizes {
            check_size(errors, field, given, max);
        }
        for (field, given) in [("flows_max", u64::from(self.per_user.flows_max)), ("window_s", self.per_user.window_s)]
        {
            if given == 0 {
                errors.push(ConfigError::new("per_user", format!("{field} of per_user must be at least 1")));
            }
        }
        let lists = [
            ("per_user", self.per_user.bytes, USER_BYTES_MAX),
            ("feeds", self.feeds.len() as u64, FEEDS_MAX as u64),
            ("issuer", self.issuers.len() as u64, ISSUERS_MAX as u64),
        ];
        for (field, given, max) in lists {
            check_max(errors, field, given, max);
        }
        if self.local.iter().any(|rule| rule.rate_pps == 0) {
            let field = "rate_pps of a local rule";
            errors.push(ConfigError::new(field, format!("{field} must be at least 1")));
        }
    }

    /// What a gate translates to: its IPv4 address and external ports.
    pub(crate) fn translated(&self) -> Option<Translated> {
        let v4 = |address: &IpAddr| if let IpAddr::V4(v4) = address { Some(*v4) } else { None };
        let address = self.addresses.iter().find_map(v4).filter(|_| self.role == Role::Gate)?;
        let (first, last) = (*self.external_ports.start(), *self.external_ports.end());
        Some(Translated { address, first, last })
    }
}

/// A size that is fixed at start.
fn check_size(errors: &mut Vec<ConfigError>, field: &'static str, given: u32, max: u32) {
    if given == 0 {
        errors.push(ConfigError::new(field, format!("{field} must be at least 1")));
    }
    check_max(errors, field, given.into(), max.into());
}

fn check_max(errors: &mut Vec<ConfigError>, field: &'static str, given: u64, max: u64) {
    if given > max {
        errors.push(ConfigError::new(field, format!("{field} is {given}, at most {max} is possible")));
    }
}

/// `udp`, `tcp`, `icmp`, or the number.
pub(crate) fn protocol_label(protocol: u8) -> String {
    sluicegate_wire::IpProtocol(protocol).to_string()
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// One frontend's feed: where it is and by which keys it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedAddress {
    /// TCP address of the feed.
    pub address: SocketAddr,
    /// SHA-256 of the frontend's certificate (DER).
    pub certificate_pin: [u8; 32],
    /// Ed25519 public key that signs this frontend's grants and batches.
    pub issuer: [u8; 32],
}

/// An address prefix such as `192.0.2.0/24` or `2001:db8::/32`; a bare address is a prefix of full length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(IpNet);

impl Prefix {
    /// Whether `address` lies inside; never across address families.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Prefix {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bare = |_| text.parse::<IpAddr>().map(IpNet::from);
        text.parse().or_else(bare).map(Self).map_err(|_| {
            let what = "is no address prefix; write it like 192.0.2.0/24 or 2001:db8::/32";
            ConfigError::new("may_open", format!("{text:?} {what}"))
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_accepted() {
        assert_eq!(Config::new("gate-1", "eth0", "eth1", "/nowhere").check(), Ok(()));
    }

    #[test]
    fn no_client_gets_the_port_of_encapsulated_capabilities() {
        let mut config = Config::new("gate-1", "eth0", "eth1", "/nowhere");
        config.external_ports = 1_024..=60_000;
        assert!(config.check().unwrap_err()[0].to_string().contains("contain 7253"));
        config.external_ports = UDP_PORT + 1..=60_000;
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let mut config = Config::new("no spaces", "eth0", "eth0", "/nowhere");
        config.addresses = vec!["127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
        config.external_ports = 80..=90;
        config.local =
            vec![LocalRule { protocol: 6, first: 22, last: 85, side: Side::Both, address: None, rate_pps: 0 }];
        config.flows_max = 0;
        config.pinholes_max = PINHOLES_MAX_MAX + 1;
        assert_eq!(config.check().unwrap_err().len(), 9);
    }

    #[test]
    fn a_prefix_contains_its_own_addresses_only() {
        let prefix: Prefix = "192.0.2.128/25".parse().unwrap();
        assert!(prefix.contains("192.0.2.200".parse().unwrap()));
        assert!(!prefix.contains("192.0.2.100".parse().unwrap()));
        assert!(!prefix.contains("2001:db8::1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Prefix>().unwrap().contains("203.0.113.9".parse().unwrap()));
        assert!("::/0".parse::<Prefix>().unwrap().contains("2001:db8::1".parse().unwrap()));
        assert!(!"2001:db8::1".parse::<Prefix>().unwrap().contains("2001:db8::2".parse().unwrap()));
        for wrong in ["192.0.2.0/33", "192.0.2/24", "", "192.0.2.0/", "2001:db8::/129"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
