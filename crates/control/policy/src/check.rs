mod peers;

use core::{fmt, net::IpAddr};
use std::collections::{HashMap, HashSet};

use sluicegate_grant::DataMode;
use sluicegate_sip::message::Transport;

use crate::{
    Draft, Effect, Limits, NAME_LEN_MAX, PortProtocol, PortRange, Registering, Rule, Service, ServiceKind, ServiceMode,
    SipPort, Subject, User, WANTED_MAX, data_mode, is_name,
};

/// How many of each a policy may hold. Fixed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Users.
    pub users_max: usize,
    /// Groups.
    pub groups_max: usize,
    /// Services.
    pub services_max: usize,
    /// Rules.
    pub rules_max: usize,
    /// Peers.
    pub peers_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { users_max: 100_000, groups_max: 1_000, services_max: 1_000, rules_max: 1_000, peers_max: 64 }
    }
}

/// Groups of one user, subjects and services of one rule, subjects of one service.
const LIST_LEN_MAX: usize = 256;
/// Servers that one request is passed on to after its own.
const BACKUPS_MAX: usize = 4;
const LIFETIME_S: core::ops::RangeInclusive<u32> = 10..=86_400;
pub(crate) const BYTES_MIN: u64 = 1_500;
pub(crate) const RATE_BPS_MIN: u64 = 100_000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, though probably not as meant.
    Warning,
    /// It cannot be used.
    Error,
}

/// What a finding is about, so that the file and line can be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The number of things, or all of them together.
    Whole,
    /// The user with this name.
    User(String),
    /// The group with this name.
    Group(String),
    /// The service at this position, with this name.
    Service(usize, String),
    /// The rule at this position, with this name.
    Rule(usize, String),
    /// The peer at this position, with this name.
    Peer(usize, String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("policy"),
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Group(name) => write!(f, "group {name:?}"),
            Self::Service(_, name) => write!(f, "service {name:?}"),
            Self::Rule(_, name) => write!(f, "rule {name:?}"),
            Self::Peer(_, name) => write!(f, "peer {name:?}"),
        }
    }
}

/// Something that is wrong with a policy, or looks wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub subject: Place,
    /// The field in question, as it is written in configuration; empty if there is no single one.
    pub field: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {} ({})", self.subject, self.message, self.hint)
    }
}

/// Collects findings, of which those that come are about one place.
struct Report {
    subject: Place,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, severity: Severity, field: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        let (message, hint) = (message.into(), hint.into());
        self.findings.push(Finding { severity, subject: self.subject.clone(), field, message, hint });
    }

    fn error(&mut self, field: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.add(Severity::Error, field, message, hint);
    }

    fn warn(&mut self, field: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.add(Severity::Warning, field, message, hint);
    }

    fn name(&mut self, name: &str) {
        if !is_name(name) {
            let hint = "use 1 to 64 letters, digits, '.', '_', '-' or '+', not starting with '.' or '-'";
            self.error("name", "the name cannot be used", hint);
        }
    }

    fn list_len(&mut self, field: &'static str, len: usize, max: usize) {
        if len > max {
            self.error(field, format!("{field} has {len} entries, at most {max} are possible"), "use groups");
        }
    }
}

/// What the names in a draft may refer to.
struct Known<'a> {
    users: HashSet<&'a str>,
    groups: HashSet<&'a str>,
    services: HashSet<&'a str>,
    /// Of these, SIP servers.
    sip_servers: HashMap<&'a str, &'a Service>,
    peers: HashSet<&'a str>,
    /// Services that an allowing rule names.
    opened: HashSet<&'a str>,
    /// External ports that one user may hold.
    ports_max: u32,
}

impl<'a> Known<'a> {
    fn of(draft: &'a Draft) -> Self {
        let sip_servers = draft.services.iter().filter(|service| service.kind == ServiceKind::Sip);
        let allowing = draft.rules.iter().filter(|rule| rule.effect == Effect::Allow);
        Self {
            users: draft.users.iter().map(|user| user.name.as_str()).collect(),
            groups: draft.groups.iter().map(|group| group.name.as_str()).collect(),
            services: draft.services.iter().map(|service| service.name.as_str()).collect(),
            sip_servers: sip_servers.map(|service| (service.name.as_str(), service)).collect(),
            peers: draft.peers.iter().map(|peer| peer.name.as_str()).collect(),
            opened: allowing.flat_map(|rule| rule.services.iter().map(String::as_str)).collect(),
            ports_max: draft.per_user.ports_max,
        }
    }

    fn check_subjects(&self, report: &mut Report, field: &'static str, subjects: &[Subject]) {
        for subject in subjects {
            let (known, kind, name) = match subject {
                Subject::User(name) => (self.users.contains(name.as_str()), "user", name),
                Subject::Group(name) => (self.groups.contains(name.as_str()), "group", name),
                Subject::Peer(name) => (self.peers.contains(name.as_str()), "peer", name),
            };
            if !known {
                let hint = match subject {
                    Subject::Peer(_) => "describe it in a [[peer]] of the configuration file".to_owned(),
                    _ => format!("add it with: sluicegate {kind} add {name}"),
                };
                report.warn(field, format!("there is no {kind} {name:?}, so it lets no one in"), hint);
            }
        }
    }
}

pub(crate) fn draft(draft: &Draft, bounds: &Bounds) -> Vec<Finding> {
    let known = Known::of(draft);
    let mut report = Report { subject: Place::Whole, findings: Vec::new() };
    counts(&mut report, draft, bounds);
    for each in &draft.users {
        report.subject = Place::User(each.name.clone());
        user(&mut report, each, &known);
    }
    for group in &draft.groups {
        report.subject = Place::Group(group.name.clone());
        report.name(&group.name);
    }
    for (index, each) in draft.services.iter().enumerate() {
        report.subject = Place::Service(index, each.name.clone());
        service(&mut report, each, &known);
        service_among(&mut report, each, &draft.services[..index]);
    }
    for (index, each) in draft.rules.iter().enumerate() {
        report.subject = Place::Rule(index, each.name.clone());
        rule(&mut report, each, &known);
    }
    for (index, each) in draft.peers.iter().enumerate() {
        report.subject = Place::Peer(index, each.name.clone());
        peers::check(&mut report, each, (&draft.peers[..index], &draft.services));
    }
    duplicates(&mut report, draft);
    report.findings
}

fn counts(report: &mut Report, draft: &Draft, bounds: &Bounds) {
    let tables = [
        ("users", draft.users.len(), bounds.users_max),
        ("groups", draft.groups.len(), bounds.groups_max),
        ("services", draft.services.len(), bounds.services_max),
        ("rules", draft.rules.len(), bounds.rules_max),
        ("peers", draft.peers.len(), bounds.peers_max),
    ];
    for (what, count, max) in tables.into_iter().filter(|(_, count, max)| count > max) {
        report.error("", format!("{count} {what}, but at most {max} fit"), format!("raise {what}_max or remove some"));
    }
}

fn duplicates(report: &mut Report, draft: &Draft) {
    let mut seen = HashSet::new();
    let users = draft.users.iter().map(|user| (0, &user.name, Place::User(user.name.clone())));
    let groups = draft.groups.iter().map(|group| (1, &group.name, Place::Group(group.name.clone())));
    let services = draft.services.iter().enumerate().map(|(i, s)| (2, &s.name, Place::Service(i, s.name.clone())));
    let rules = draft.rules.iter().enumerate().map(|(i, r)| (3, &r.name, Place::Rule(i, r.name.clone())));
    let peers = draft.peers.iter().enumerate().map(|(i, p)| (4, &p.name, Place::Peer(i, p.name.clone())));
    for (kind, name, place) in users.chain(groups).chain(services).chain(rules).chain(peers) {
        if !seen.insert((kind, name)) {
            report.subject = place;
            report.error("name", "the name is used twice", "give every one its own name");
        }
    }
}

fn user(report: &mut Report, user: &User, known: &Known<'_>) {
    report.name(&user.name);
    report.list_len("groups", user.groups.len(), LIST_LEN_MAX);
    for group in user.groups.iter().filter(|group| !known.groups.contains(group.as_str())) {
        let hint = format!("add it with: sluicegate group add {group}");
        report.warn("groups", format!("there is no group {group:?}"), hint);
    }
    if user.enabled && user.phone && user.credentials.is_none() {
        let message = "the user has no password and cannot log in with a telephone";
        report.warn("credentials", message, "set one with: sluicegate user add");
    }
}

fn service(report: &mut Report, service: &Service, known: &Known<'_>) {
    report.name(&service.name);
    report.list_len("allow", service.allow.len(), LIST_LEN_MAX);
    report.list_len("ports", service.ports.len(), WANTED_MAX);
    if !is_host(service.address) {
        let message = format!("{} is no address of a host", service.address);
        report.error("address", message, "write the service's own address");
    }
    if service.mode == ServiceMode::Nat && service.address.is_ipv6() {
        report.error("mode", "addresses are translated for IPv4 only", "write mode = \"filter\" for an IPv6 service");
    }
    if service.is_open() {
        return open_service(report, service);
    }
    if service.ports.is_empty() {
        report.error("ports", "no grant could open anything", "write for example ports = [\"tcp/22\"]");
    }
    for (index, range) in service.ports.iter().enumerate() {
        service_range(report, service, range, (&service.ports[..index], known.ports_max));
    }
    service_sip(report, service, known);
    limits(report, &service.limits);
    service_modes(report, service);
    known.check_subjects(report, "allow", &service.allow);
    if service.allow.is_empty() && !known.opened.contains(service.name.as_str()) {
        report.warn("allow", "no one may use it", "write for example allow = [\"group:phones\"], or add a [[rule]]");
    }
}

/// A public service is never asked for over SIP and granted nothing, so it says nothing about grants.
fn open_service(report: &mut Report, service: &Service) {
    if service.mode == ServiceMode::Nat {
        let hint = "write mode = \"filter\" and let clients use the service's own address, or leave out default";
        report.error("default", "an open service is reached at its own address, without translation", hint);
    }
    if service.kind != ServiceKind::Declared {
        let hint = "remove kind, or leave out default so that grants open it";
        report.error("kind", "nobody signs in to an open service, so no SIP is relayed to it", hint);
    }
    if !service.ports.is_empty() {
        report.error("ports", "an open service is open on all ports", "remove ports, or leave out default");
    }
    if !service.allow.is_empty() {
        report.error("allow", "an open service is open to everyone", "remove allow, or leave out default");
    }
    if service.limits.least_mode != DataMode::Pinhole {
        let hint = "remove least_mode, or leave out default so that grants open it";
        report.error("grant", "an open service is granted to nobody, so packets prove what they like", hint);
    }
    let registrar = service.registrar.as_ref().map(|_| "registrar");
    if let Some(field) = registrar.or_else(|| sip_field(service)) {
        let hint = format!("remove {field}, or leave out default so that grants open it");
        report.error(field, "an open service is sent no SIP", hint);
    }
}

/// A service that demands of packets what some of those that it offers cannot prove.
fn service_modes(report: &mut Report, service: &Service) {
    let least = service.limits.least_mode;
    if least == DataMode::Pinhole {
        return;
    }
    if service.kind == ServiceKind::Sip {
        let message = format!("least_mode = \"{least}\" lets no telephone in: it can prove no more than its address");
        report.error("grant", message, "leave out least_mode for a service of kind \"sip\"");
    }
    for range in &service.ports {
        match (data_mode(DataMode::Capability, range.protocol), data_mode(least, range.protocol)) {
            (DataMode::Pinhole, _) => {
                let message =
                    format!("{range} would never be opened: least_mode = \"{least}\", and its packets prove nothing");
                report.error("grant", message, "leave it out, or give it to a service of its own without least_mode");
            }
            (_, proves) if proves < least => {
                let message = format!("{range} carries no packet MACs, so it is opened only for who has capabilities");
                report.warn("grant", message, "write least_mode = \"capability\", or put it into a service of its own");
            }
            _ => {}
        }
    }
}

fn service_range(report: &mut Report, service: &Service, range: &PortRange, (earlier, ports_max): (&[PortRange], u32)) {
    if !range.is_right() {
        report.error("ports", format!("{range} is no port range"), "write for example \"udp/5004-5100\"");
    }
    if service.mode == ServiceMode::Nat && !range.protocol.is_translatable() {
        let hint = "use mode = \"filter\" with a routed address";
        report.error("ports", format!("{range} signs the addresses, which mode = \"nat\" rewrites"), hint);
    }
    if let Some(other) = earlier.iter().find(|other| other.overlaps(range)) {
        report.error("ports", format!("{range} overlaps {other}"), "merge the two");
    }
    let translated = service.kind == ServiceKind::Declared && service.mode == ServiceMode::Nat;
    let len = range.len();
    if translated && len > ports_max {
        let message = format!(
            "a grant for all of {range} takes {len} of the gate's external ports, and one user may hold {ports_max}"
        );
        let hint = "offer fewer ports, raise ports_max of per_user, or use mode = \"filter\" with a routed address";
        report.warn("ports", message, hint);
    }
}

/// Whether this is the user part of a SIP address, or its beginning with `*` behind.
fn is_number(number: &str) -> bool {
    let dialled = number.strip_suffix('*').unwrap_or(number);
    let is_whole = dialled.len() == number.len();
    let has_bytes = dialled.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+#".contains(&byte));
    dialled.len() <= NAME_LEN_MAX && has_bytes && !(is_whole && dialled.is_empty())
}

fn service_sip(report: &mut Report, service: &Service, known: &Known<'_>) {
    match service.kind {
        ServiceKind::Declared => {
            if let Some(field) = sip_field(service) {
                let hint = format!("remove {field}, or set kind = \"sip\" or \"agent\"");
                report.error(field, "a declared service is sent no SIP", hint);
            }
            if service.registrar.is_some() {
                let hint = "remove registrar, or set kind = \"agent\"";
                report.error("registrar", "a declared service does not register", hint);
            }
        }
        ServiceKind::Agent if service.registrar.is_none() => {
            let hint = "name the user that its agent logs in as: registrar = \"NAME\"";
            report.error("registrar", "no one may register this service", hint);
        }
        ServiceKind::Agent | ServiceKind::Sip => {}
    }
    report.list_len("numbers", service.numbers.len(), LIST_LEN_MAX);
    if service.kind != ServiceKind::Sip && !service.numbers.is_empty() {
        report.error("numbers", "only a SIP server has numbers", "remove numbers, or set kind = \"sip\"");
    }
    if service.kind != ServiceKind::Sip && service.register != Registering::Frontend {
        report.error("register", "only a SIP server takes registrations", "remove register, or set kind = \"sip\"");
    }
    if let Some(number) = service.numbers.iter().find(|number| !is_number(number)) {
        let message = format!("{number:?} cannot be dialled");
        report.error("numbers", message, "write a name or its beginning and *, such as \"1*\", \"+49*\" or \"*\"");
    }
    service_transports(report, service);
    service_backups(report, service, known);
    if let Some(name) = service.registrar.as_ref().filter(|name| !known.users.contains(name.as_str())) {
        let hint = format!("add it with: sluicegate user add {name}");
        report.warn("registrar", format!("there is no user {name:?}, so nothing can register"), hint);
    }
    let sip = service.sip_ports().into_iter().map(|sip| {
        let is_udp = sip.transport == Transport::Udp;
        PortRange::single(if is_udp { PortProtocol::Udp } else { PortProtocol::Tcp }, sip.port)
    });
    if let Some(range) = sip.filter_map(|sip| service.ports.iter().find(|range| range.overlaps(&sip))).next() {
        report.error("ports", format!("{range} includes its SIP port"), "SIP passes the frontend: leave that port out");
    }
}

/// Who gets what it does not answer.
fn service_backups(report: &mut Report, service: &Service, known: &Known<'_>) {
    if !service.backups.is_empty() && service.kind != ServiceKind::Sip {
        report.error("backups", "only a SIP server has backups", "remove backups, or set kind = \"sip\"");
    }
    report.list_len("backups", service.backups.len(), BACKUPS_MAX);
    for (at, name) in service.backups.iter().enumerate() {
        let Some(backup) = known.sip_servers.get(name.as_str()).filter(|_| *name != service.name) else {
            let message = format!("{name:?} is no other service of kind \"sip\"");
            report.error("backups", message, "name other SIP servers, each with a [[service]] of its own");
            continue;
        };
        if service.backups.iter().take(at).any(|earlier| earlier == name) {
            report.error("backups", format!("{name:?} is there twice"), "name each once");
        }
        if let Some(subject) = service.allow.iter().find(|subject| !backup.allow.contains(subject)) {
            let message = format!("{subject} may use this and not {name:?}, and goes without it");
            report.warn("backups", message, format!("add {subject} to the allow of service {name:?}"));
        }
    }
}

/// The first field that says how a service takes SIP.
fn sip_field(service: &Service) -> Option<&'static str> {
    let fields = [
        ("sip_port", service.sip_port.is_some()),
        ("sip", !service.sip.is_empty()),
        ("certificate", service.certificate.is_some()),
    ];
    fields.into_iter().find(|(_, is_there)| *is_there).map(|(field, _)| field)
}

/// By which ways it takes SIP.
fn service_transports(report: &mut Report, service: &Service) {
    if service.sip_port == Some(0) {
        report.error("sip_port", "0 is no port", "write 5060 or leave it out");
    }
    if service.sip_port.is_some() && !service.sip.is_empty() {
        let hint = "remove sip_port, and write \"udp/PORT\" into sip if it takes SIP over UDP too";
        report.error("sip_port", "sip says already where it takes SIP", hint);
    }
    if service.kind == ServiceKind::Agent && !service.sip.is_empty() {
        report.error("sip", "an agent takes SIP over UDP alone", "write sip_port = PORT, or set kind = \"sip\"");
    }
    let twice =
        |(at, one): (usize, &SipPort)| service.sip.iter().take(at).any(|other| other.transport == one.transport);
    if let Some((_, one)) = service.sip.iter().enumerate().find(|each| twice(*each)) {
        let message = format!("{one} is the second port of this transport");
        report.error("sip", message, "write each of udp, tcp and tls once at most");
    }
    if service.certificate.is_some() && service.sip_port_over(Transport::Tls).is_none() {
        let hint = "add \"tls/5061\" to sip, or remove certificate";
        report.error("certificate", "it takes no SIP over TLS, and so shows no certificate", hint);
    }
}

/// What is wrong with `service` besides the ones before it.
fn service_among(report: &mut Report, service: &Service, earlier: &[Service]) {
    for other in earlier.iter().filter(|other| other.address == service.address) {
        let overlap = service.ports.iter().find(|range| other.ports.iter().any(|theirs| theirs.overlaps(range)));
        if let Some(range) = overlap {
            let message = format!("{} {range} belongs to service {:?} already", service.address, other.name);
            report.error("ports", message, "give every port of an address to one service");
        }
        if other.mode != service.mode || other.outbound != service.outbound {
            let message = format!("service {:?} has the same address but another mode or outbound", other.name);
            report.error("mode", message, "services at one address need the same mode and outbound");
        }
        let tls = service.sip_port_over(Transport::Tls);
        let is_same_server = tls.is_some() && tls == other.sip_port_over(Transport::Tls);
        if is_same_server && other.certificate_or_default() != service.certificate_or_default() {
            let message = format!("service {:?} is reached there over TLS with another certificate", other.name);
            report.error("certificate", message, "write the same certificate for one server");
        }
        if other.default != service.default {
            let message = format!("service {:?} has the same address but another default", other.name);
            report.error("default", message, "services at one address need the same default");
        }
    }
}

fn limits(report: &mut Report, limits: &Limits) {
    if !LIFETIME_S.contains(&limits.lifetime_s) && limits.lifetime_s != Limits::UNLIMITED.lifetime_s {
        let message = format!("lifetime_s = {} is out of range", limits.lifetime_s);
        report.error("grant", message, format!("write {} to {} seconds", LIFETIME_S.start(), LIFETIME_S.end()));
    }
    if limits.bytes_max < BYTES_MIN {
        let message = format!("bytes_max = {} does not carry one packet", limits.bytes_max);
        report.error("grant", message, "write for example bytes_max = \"10MB\"");
    }
    if limits.rate_bps < RATE_BPS_MIN {
        let message = format!("rate = {} bit/s is less than a grant can say", limits.rate_bps);
        report.error("grant", message, "write at least \"100kbit\", or \"none\" for no limit");
    }
    if limits.flows_max == 0 {
        report.error("grant", "flows_max = 0 lets no flow through", "write 1 to 65535");
    }
}

fn rule(report: &mut Report, rule: &Rule, known: &Known<'_>) {
    report.name(&rule.name);
    report.list_len("services", rule.services.len(), LIST_LEN_MAX);
    report.list_len("subjects", rule.subjects.len(), LIST_LEN_MAX);
    if rule.services.is_empty() {
        report.error("services", "it is about no service", "write for example services = [\"pbx\"]");
    }
    for name in rule.services.iter().filter(|name| !known.services.contains(name.as_str())) {
        report.error("services", format!("there is no service {name:?}"), "write the name of a [[service]]");
    }
    if rule.subjects.is_empty() {
        report.error("subjects", "it is about no one", "write for example subjects = [\"group:phones\"]");
    }
    known.check_subjects(report, "subjects", &rule.subjects);
    if rule.from.is_some() && rule.from == rule.to {
        report.error("to", "it ends when it begins", "leave out from and to for the whole day");
    }
    match (&rule.limits, rule.effect) {
        (Some(_), Effect::Deny) => report.error("grant", "a rule that denies grants nothing", "remove grant"),
        (Some(of_rule), Effect::Allow) => limits(report, of_rule),
        (None, _) => {}
    }
}

fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()) && v6.to_ipv4_mapped().is_none(),
    }
}
