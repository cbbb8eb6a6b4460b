//! Users, gates and what a configuration file says. Groups, services and rules are those of `sluicegate-policy`.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use sluicegate_policy::{Rule, Service, SipPeer};
use zeroize::Zeroizing;

/// A user, without what its passwords are checked against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name, also the user part of the SIP address.
    pub name: String,
    /// The groups that the user is in.
    pub groups: Vec<String>,
    /// Whether the user may log in.
    pub enabled: bool,
    /// Whether the user may log in as telephones do, and not only with an agent.
    pub phone: bool,
}

/// A user, and where its telephones are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user.
    #[serde(flatten)]
    pub user: User,
    /// Where calls to the user go, preferred first. A frontend that does not run knows of none.
    pub contacts: Option<Vec<ContactStatus>>,
}

/// Where calls to a user go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContactStatus {
    /// The URI that is called there. Whatever is no printable ASCII is escaped.
    pub uri: String,
    /// Where it goes: the address that the telephone registered from, or that of the proxy nearest to us.
    pub peer: SocketAddr,
    /// Whether over the connection that it registered over, and only as long as that stands.
    pub connected: bool,
    /// Its preference, 0 to 1.
    pub q: f64,
    /// When it ends unless it is registered again, Unix seconds.
    pub expires_at: u64,
    /// Proxies on the way to it, escaped as the URI.
    pub path: Vec<String>,
}

/// What was ended of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unregistered {
    /// How many contacts there were.
    pub contacts: usize,
}

/// A user who is added, or whose password is replaced.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// The name.
    pub name: String,
    /// Groups that exist.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The password of the user's telephones; without one the user has none.
    #[serde(default)]
    pub password: Option<Zeroizing<String>>,
    /// What the user's agents sign in with; without it no agent of the user is let in.
    #[serde(default)]
    pub key: Option<Zeroizing<[u8; 32]>>,
}

/// What changes of a user, besides what the user signs in with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// Exactly these groups.
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    /// These groups besides.
    #[serde(default)]
    pub add: Vec<String>,
    /// These groups no longer.
    #[serde(default)]
    pub remove: Vec<String>,
    /// Whether the user may log in.
    #[serde(default)]
    pub enabled: Option<bool>,
}

/// What a configuration file says of services, rules and peers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    /// All its services.
    pub services: Vec<Service>,
    /// All its rules.
    pub rules: Vec<Rule>,
    /// All its peers.
    #[serde(default)]
    pub peers: Vec<SipPeer>,
}

/// A gate that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// Whether its feed is connected.
    pub connected: bool,
    /// When it joined, Unix seconds.
    pub joined_at: u64,
    /// Where it dialled from last.
    pub seen_at: Option<IpAddr>,
}

/// What a gate joins with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinToken {
    /// The token, in one line.
    pub token: String,
}
