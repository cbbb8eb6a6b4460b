use core::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};
use sluicegate_sip::message::Transport;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    Day, Limits, PortRange, Schedule, SipCertificate, SipPeer, SipPort, Subject, TimeOfDay, limits, peer::fit,
};

/// Longest name of a user, group, service or rule, in bytes.
pub const NAME_LEN_MAX: usize = 64;
/// The SIP port of a service that names none.
pub const SIP_PORT_DEFAULT: u16 = 5060;

/// Whether `name` can name a user, group, service or rule: 1 to 64 letters, digits, `.`, `_`, `-` or `+`, which are what a
/// SIP URI and a digest can carry as they are.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
        && !name.starts_with(['.', '-'])
}

/// Someone who may ask for grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name, also the user part of the SIP address. Case matters.
    pub name: String,
    /// The groups that the user is in.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Whether the user may log in.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// What a telephone's digest is checked against; none of a user who has agents only.
    #[serde(default)]
    pub credentials: Option<Credentials>,
    /// Whether the user may log in with the plain realm, as telephones do, and not only with an agent.
    #[serde(default)]
    pub phone: bool,
}

impl User {
    /// A user in no group, enabled, without credentials.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), groups: Vec::new(), enabled: true, credentials: None, phone: false }
    }

    /// Whether the user's telephones may be registered.
    #[must_use]
    pub const fn may_register(&self) -> bool {
        self.enabled && self.phone
    }

    /// Whether `subject` means this user.
    #[must_use]
    pub fn is(&self, subject: &Subject) -> bool {
        match subject {
            Subject::User(name) => *name == self.name,
            Subject::Group(name) => self.groups.contains(name),
            Subject::Peer(name) => SipPeer::name_of(&self.name) == Some(name),
        }
    }
}

/// What a telephone's digest is checked against, for as long as the password lasts. Equivalent to the password: erased when dropped, never printed.
#[derive(Clone, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Credentials {
    /// `SHA-256(user:realm:password)` for digest access (RFC 7616, RFC 8760).
    pub ha1_sha256: [u8; 32],
    /// `MD5(user:realm:password)` for old telephones.
    pub ha1_md5: [u8; 16],
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let same = self.ha1_sha256.ct_eq(&other.ha1_sha256) & self.ha1_md5.ct_eq(&other.ha1_md5);
        same.into()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Users under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The name.
    pub name: String,
    /// What it is for, in the words of the administrator.
    #[serde(default)]
    pub description: String,
}

/// Who answers for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// No agent: the frontend itself answers the INVITE.
    #[default]
    Declared,
    /// An agent registers the service, and the INVITE is relayed to it.
    Agent,
    /// A SIP server: calls are relayed to it, and its answers rewritten.
    Sip,
}

/// Whether the gate translates addresses for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceMode {
    /// Clients send to the gate's address; the gate translates.
    #[default]
    Nat,
    /// Clients send to the service's own address; the gate only filters.
    Filter,
}

/// What happens to a packet for a service that nobody granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceDefault {
    /// It is dropped: a private service.
    #[default]
    Off,
    /// It gets what the link has left, and requests for capabilities go to the service: a public service.
    Open,
}

/// Where telephones are registered that use a SIP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registering {
    /// At the frontend.
    #[default]
    Frontend,
    /// At the SIP server, by way of the frontend.
    Relay,
}

/// What a service may start on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outbound {
    /// Nothing.
    #[default]
    None,
    /// Flows to anywhere; answers are let back in by address and port.
    All,
}

/// A protected service. In configuration: `[[service]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The name, also the user part of its SIP address: `sip:NAME@REALM`.
    pub name: String,
    /// Who answers for it.
    #[serde(default)]
    pub kind: ServiceKind,
    /// Whether the gate translates addresses.
    #[serde(default)]
    pub mode: ServiceMode,
    /// Its own address, behind the gate.
    pub address: IpAddr,
    /// Whether strangers' packets are dropped.
    #[serde(default)]
    pub default: ServiceDefault,
    /// What a grant can open; empty only for an open service.
    #[serde(default)]
    pub ports: Vec<PortRange>,
    /// Where it takes SIP over UDP and nothing else (kinds `agent` and `sip`), see [`Self::sip_ports`].
    #[serde(default)]
    pub sip_port: Option<u16>,
    /// What it may start on its own.
    #[serde(default)]
    pub outbound: Outbound,
    /// How much one grant may be worth.
    #[serde(rename = "grant", with = "limits::of_service", default)]
    pub limits: Limits,
    /// Who may ask for it at any time.
    #[serde(default)]
    pub allow: Vec<Subject>,
    /// The user that may register as this service (kinds `agent` and `sip`).
    #[serde(default)]
    pub registrar: Option<String>,
    /// What can be dialled besides its name to reach it (kind `sip`): whole names, or with `*` at the end how they begin.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// All ways by which it takes SIP, preferred first, in place of `sip_port` (kind `sip`).
    #[serde(default)]
    pub sip: Vec<SipPort>,
    /// The certificate that it shows over TLS; one for its address unless given.
    #[serde(default)]
    pub certificate: Option<SipCertificate>,
    /// Where the telephones of its users are registered (kind `sip`).
    #[serde(default)]
    pub register: Registering,
    /// Other SIP servers that get what this one does not answer, in this order (kind `sip`).
    #[serde(default)]
    pub backups: Vec<String>,
}

impl Service {
    /// Whether it is a public service, which needs no grants.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.default == ServiceDefault::Open
    }

    /// By which ways it takes SIP, preferred first; none of a declared service, which gets none.
    #[must_use]
    pub fn sip_ports(&self) -> Vec<SipPort> {
        let over_udp = || SipPort { transport: Transport::Udp, port: self.sip_port.unwrap_or(SIP_PORT_DEFAULT) };
        match (self.kind, self.sip.is_empty()) {
            (ServiceKind::Declared, _) => Vec::new(),
            (_, true) => vec![over_udp()],
            (_, false) => self.sip.clone(),
        }
    }

    /// Where it takes SIP over this transport.
    #[must_use]
    pub fn sip_port_over(&self, transport: Transport) -> Option<u16> {
        self.sip_ports().into_iter().find(|own| own.transport == transport).map(|own| own.port)
    }

    /// The certificate by which it is known over TLS.
    #[must_use]
    pub fn certificate_or_default(&self) -> SipCertificate {
        self.certificate.clone().unwrap_or_else(|| SipCertificate::of(self.address))
    }

    /// How well what was dialled fits one of its numbers: the longer the part that is the same, the better.
    #[must_use]
    pub fn answers_to(&self, dialled: &str) -> Option<usize> {
        fit(&self.numbers, dialled)
    }

    /// Whether all of `wanted` lies in one of the ranges that can be opened.
    #[must_use]
    pub fn offers(&self, wanted: &PortRange) -> bool {
        self.ports.iter().any(|range| range.contains(wanted))
    }
}

/// What a rule does with those it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Lets them ask, within the rule's limits.
    Allow,
    /// Refuses them, whatever else allows them.
    Deny,
}

/// A permission or refusal for certain times. In configuration: `[[rule]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The name in explanations.
    pub name: String,
    /// Names of the services that it is about.
    pub services: Vec<String>,
    /// Whom it is about.
    pub subjects: Vec<Subject>,
    /// What it does.
    pub effect: Effect,
    /// The days (UTC) on which it applies; none: every day.
    #[serde(default)]
    pub days: Vec<Day>,
    /// The time of day (UTC) from which it applies; none: 00:00.
    #[serde(default)]
    pub from: Option<TimeOfDay>,
    /// The time of day (UTC) until which it applies; none: 24:00. Before `from`: past midnight.
    #[serde(default)]
    pub to: Option<TimeOfDay>,
    /// Limits besides those of the service; the stricter holds.
    #[serde(rename = "grant", with = "limits::of_rule", default)]
    pub limits: Option<Limits>,
}

impl Rule {
    /// When it applies.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::new(&self.days, self.from, self.to)
    }

    /// Whether it is about this user at this service, at any time.
    #[must_use]
    pub fn is_about(&self, user: &User, service: &str) -> bool {
        self.services.iter().any(|name| name == service) && self.subjects.iter().any(|subject| user.is(subject))
    }
}

const fn yes() -> bool {
    true
}
