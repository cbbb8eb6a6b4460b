//! Checks a configuration file against itself, and turns it into what the daemons take.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use sluicegate_agent::{Account, Pin, serve};
use sluicegate_api::Configured;
use sluicegate_frontend::{KeyHolder, Listen, ReplicaSite};
use sluicegate_keys as keys;
use sluicegate_policy::{
    Bounds, Draft, Group, Place, PortRange, Service, ServiceKind, Severity, SipCertificate, SipPort, Subject, User,
};
use sluicegate_signin::{SitePublic, UserSecret};
use sluicegate_sip::message::Transport;
use sluicegate_store::audit;

use super::{
    Known,
    file::{Agent, File, Frontend, Replica},
    host,
    source::{Finding, Source},
    ways,
};
use crate::secret;

/// Where the feed of `up` listens, for its own gate only.
const FEED_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7443);
/// Clients of a service side agent unless the file says otherwise.
const CLIENTS_MAX: usize = 1024;
/// Frontends that a service registers at.
const FRONTENDS_MAX: usize = 16;
/// Clients of one user at once, unless given.
const CLIENTS_PER_USER_MAX: usize = 16;
/// For how long a client may exceed `abuse_rate` unless the file says otherwise.
const ABUSE_MS: u32 = 200;

/// What a node is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Up,
    Gate,
    Frontend,
    Agent,
    KeyHolder,
}

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) state: PathBuf,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) gate: Option<sluicegate_gate::Config>,
    pub(crate) frontend: Option<sluicegate_frontend::Config>,
    pub(crate) agent: Option<AgentPlan>,
    pub(crate) audit: Option<audit::Options>,
}

impl Plan {
    /// Where the frontend of `up`, a process of its own, is asked by the gate's.
    pub(crate) fn frontend_socket(&self) -> PathBuf {
        self.state.join("frontend.sock")
    }
}

/// A service side agent; its password is read when it starts.
#[derive(Debug)]
pub(crate) struct AgentPlan {
    source: SecretFile,
    pin: Pin,
    user: String,
    realm: String,
    settings: serve::Config,
}

/// Where an agent's secret is.
#[derive(Debug)]
enum SecretFile {
    Password(PathBuf),
    Key(PathBuf),
}

impl AgentPlan {
    /// What the agent takes, with the secret that its file holds.
    pub(crate) fn read_secret(self) -> anyhow::Result<serve::Config> {
        let secret = match &self.source {
            SecretFile::Key(path) => secret::from_key_file(path)?,
            SecretFile::Password(path) => {
                UserSecret::from_password(&self.user, &self.realm, keys::read_password(path)?.as_bytes())
            }
        };
        Ok(serve::Config { account: Account::new(&self.user, &self.realm, secret, self.pin), ..self.settings })
    }
}

/// Collects findings.
pub(super) struct Report<'s> {
    source: &'s Source,
    pub(super) findings: Vec<Finding>,
}

impl<'s> Report<'s> {
    pub(super) const fn new(source: &'s Source) -> Self {
        Self { source, findings: Vec::new() }
    }

    pub(super) fn error(&mut self, path: &[&str], what: impl Into<String>, hint: &str) {
        self.findings.push(self.source.finding(Severity::Error, path, what.into(), hint));
    }

    pub(super) fn warn(&mut self, path: &[&str], what: impl Into<String>, hint: &str) {
        self.findings.push(self.source.finding(Severity::Warning, path, what.into(), hint));
    }

    /// Parses a text setting; an error is reported and gives `None`.
    pub(super) fn parse<T: FromStr>(&mut self, path: &[&str], text: &str, hint: &str) -> Option<T>
    where
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|error: T::Err| self.error(path, error.to_string(), hint)).ok()
    }

    fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }
}

/// Checks `file` for `role`, or for the role that its sections suggest.
pub(super) fn check(source: &Source, file: File, role: Option<Role>) -> (Vec<Finding>, Option<Plan>) {
    let mut report = Report::new(source);
    let role = role.unwrap_or(match (&file.frontend, &file.gate, &file.agent, &file.keyholder) {
        (Some(_), None, ..) => Role::Frontend,
        (None, Some(_), ..) => Role::Gate,
        (None, None, Some(_), _) => Role::Agent,
        (None, None, None, Some(_)) => Role::KeyHolder,
        _ => Role::Up,
    });
    sections(&mut report, &file, role);
    objects(&mut report, &file);
    if let Some(listen) = file.metrics.listen
        && !listen.ip().is_loopback()
    {
        let hint =
            "use a loopback address; put a reverse proxy with authentication in front to scrape it from elsewhere";
        report.error(&["metrics", "listen"], format!("{listen} is reachable from outside this host"), hint);
    }
    let name = file.node.name.clone().unwrap_or_else(host::name);
    let frontend = match &file.frontend {
        Some(frontend) if matches!(role, Role::Up | Role::Frontend) => {
            frontend_plan(&mut report, frontend, &file, &name, role)
        }
        _ => None,
    };
    let gate = match &file.gate {
        Some(gate) if matches!(role, Role::Up | Role::Gate) => super::gate::plan(&mut report, gate, &file, role, &name),
        _ => None,
    };
    if let (Role::Up, Some(frontend), Some(gate)) = (role, &frontend, &gate) {
        reachable(&mut report, frontend, gate);
    }
    let agent = match &file.agent {
        Some(agent) if role == Role::Agent => agent_plan(&mut report, agent),
        _ => None,
    };
    if let Some(holder) = &file.keyholder {
        key_holder(&mut report, &file, holder);
    }
    host::check(&mut report, &file.node.state, gate.as_ref(), role);
    if let Some(frontend) = &frontend {
        ways::check_listen(&mut report, &frontend.listen);
        host::check_frames(&mut report, frontend, gate.as_ref());
    }
    if let Some(gate) = &gate {
        ways::check(&mut report, gate, &services_behind(&file, gate));
    }
    audit_log(&mut report, &file);
    let audit = file.audit.options(&file.node.state);
    let plan = Plan { state: file.node.state, metrics: file.metrics.listen, gate, frontend, agent, audit };
    let plan = (!report.has_errors()).then_some(plan);
    (report.findings, plan)
}

/// Tries out what `file` says, as far as that changes nothing. `untried` gets what could not be tried.
pub(super) fn try_out(
    source: &Source,
    file: &File,
    (plan, known): (&Plan, Option<&Known>),
    untried: &mut Vec<String>,
) -> Vec<Finding> {
    let mut report = Report::new(source);
    if let Some(gate) = &plan.gate {
        ways::ask_neighbours(&mut report, &gate.inside, &services_behind(file, gate), untried);
    }
    let is_peers = |subject: &Subject| matches!(subject, Subject::Peer(_));
    let mut subjects = Vec::new();
    for (index, service) in file.services.iter().enumerate() {
        subjects.extend(service.allow.iter().map(|subject| (["service", "allow"], index, subject)));
    }
    for (index, rule) in file.rules.iter().enumerate() {
        subjects.extend(rule.subjects.iter().map(|subject| (["rule", "subjects"], index, subject)));
    }
    // Those stand in the file.
    subjects.retain(|(_, _, subject)| !is_peers(subject));
    match known {
        _ if subjects.is_empty() => {}
        Some(known) => {
            for ([table, field], index, subject) in subjects {
                let (is_known, kind, name) = match subject {
                    Subject::User(name) => (known.users.contains(name), "user", name),
                    Subject::Group(name) => (known.groups.contains(name), "group", name),
                    Subject::Peer(name) => (true, "peer", name),
                };
                if !is_known {
                    let hint = format!("add it with: sluicegate {kind} add {name}");
                    report.warn(&[table, &index.to_string(), field], format!("there is no {kind} {name:?}"), &hint);
                }
            }
        }
        None => untried.push("whether there are such users and groups: the frontend does not run".to_owned()),
    }
    report.findings
}

/// The services of the file that this gate protects, and where in the file they stand: all but those that it gives to another.
fn services_behind<'f>(file: &'f File, gate: &sluicegate_gate::Config) -> Vec<(usize, &'f Service)> {
    let gates = file.frontend.iter().flat_map(|frontend| &frontend.gates);
    let others: BTreeSet<&String> =
        gates.filter(|other| other.name != gate.name).flat_map(|other| &other.services).collect();
    file.services.iter().enumerate().filter(|(_, service)| !others.contains(&service.name)).collect()
}

/// Smallest size of an audit log's file, and largest.
const AUDIT_BYTES: std::ops::RangeInclusive<u64> = 100_000..=1_000_000_000;

fn audit_log(report: &mut Report<'_>, file: &File) {
    let (log, keep_max) = (&file.audit, audit::Options::KEEP_MAX);
    if !AUDIT_BYTES.contains(&log.file_bytes.0) {
        let what = format!("file_bytes is {} bytes", log.file_bytes.0);
        report.error(&["audit", "file_bytes"], what, "write \"100KB\" to \"1GB\"");
    }
    if log.keep > keep_max {
        let what = format!("keep = {} files are more than {keep_max}", log.keep);
        report.error(&["audit", "keep"], what, "raise file_bytes, or copy older files away");
    }
}

fn sections(report: &mut Report<'_>, file: &File, role: Role) {
    let missing = |report: &mut Report<'_>, section: &str, verb: &str| {
        let what = format!("there is no [{section}] section, which `sluicegate {verb}` needs");
        report.error(&[], what, &format!("add [{section}]; examples/site.toml shows one"));
    };
    if matches!(role, Role::Up | Role::Frontend) && file.frontend.is_none() {
        missing(report, "frontend", if role == Role::Up { "up" } else { "frontend" });
    }
    if matches!(role, Role::Up | Role::Gate) && file.gate.is_none() {
        missing(report, "gate", if role == Role::Up { "up" } else { "gate" });
    }
    if role == Role::Agent && file.agent.is_none() {
        missing(report, "agent", "agent --serve");
    }
}

/// A key holder for frontends on other hosts. A frontend in the same file would have another.
fn key_holder(report: &mut Report<'_>, file: &File, holder: &super::file::KeyHolder) {
    if file.frontend.is_some() {
        let hint = "give the key holder a file, a state directory and best a host of its own; a frontend without `keys` needs none";
        report.error(&["keyholder"], "a frontend and a key holder for others are in one file", hint);
    }
    for (index, replica) in holder.frontends.iter().enumerate() {
        let path = ["keyholder", "frontend", &index.to_string()];
        if !sluicegate_policy::is_name(&replica.name) {
            report.error(
                &path,
                format!("{:?} can name no frontend, and no file", replica.name),
                "write its [node] name",
            );
        }
        if holder.frontends.iter().take(index).any(|earlier| earlier.name == replica.name) {
            report.error(&path, format!("frontend {:?} is there twice", replica.name), "remove one");
        }
        if replica.feed.is_some() {
            let hint =
                "remove it: files are copied from here; a frontend with [[frontend.replica]] sends them by itself";
            report.error(&[&path[..], &["feed"]].concat(), "a key holder for others sends nothing", hint);
        }
        replica_key(report, &path, replica);
    }
}

fn replica_key(report: &mut Report<'_>, path: &[&str], replica: &Replica) -> Option<[u8; 32]> {
    let key = sluicegate_signin::key_of(&replica.key);
    key.map_err(|error| report.error(path, error.to_string(), "write the `frontend_key` of its `sluicegate status`"))
        .ok()
}

/// Services and rules. Users and groups live in the store, so every name in the file counts as known.
fn objects(report: &mut Report<'_>, file: &File) {
    let subjects = file.services.iter().flat_map(|service| &service.allow);
    let subjects = subjects.chain(file.rules.iter().flat_map(|rule| &rule.subjects));
    let (mut users, mut groups) = (BTreeSet::new(), BTreeSet::new());
    for subject in subjects {
        match subject {
            Subject::User(name) => users.insert(name.clone()),
            Subject::Group(name) => groups.insert(name.clone()),
            Subject::Peer(_) => false,
        };
    }
    users.extend(file.services.iter().filter_map(|service| service.registrar.clone()));
    let draft = Draft {
        users: users.iter().map(|name| User::new(name)).collect(),
        groups: groups.into_iter().map(|name| Group { name, description: String::new() }).collect(),
        services: file.services.clone(),
        rules: file.rules.clone(),
        peers: file.peers.clone(),
        per_user: file.frontend.as_ref().map(|frontend| frontend.per_user).unwrap_or_default(),
    };
    for finding in draft.check(&Bounds::default()) {
        let (table, index) = match &finding.subject {
            Place::Service(index, _) => ("service", index.to_string()),
            Place::Rule(index, _) => ("rule", index.to_string()),
            Place::Peer(index, _) => ("peer", index.to_string()),
            Place::User(_) => continue,
            _ => ("service", String::new()),
        };
        let path: Vec<&str> = [table, &index, finding.field].into_iter().filter(|part| !part.is_empty()).collect();
        let what = format!("{}: {}", finding.subject, finding.message);
        report.findings.push(report.source.finding(finding.severity, &path, what, &finding.hint));
    }
}

fn frontend_plan(
    report: &mut Report<'_>,
    frontend: &Frontend,
    file: &File,
    name: &str,
    role: Role,
) -> Option<sluicegate_frontend::Config> {
    let mut listen: Vec<Listen> = Vec::new();
    for entry in &frontend.listen {
        let hint = "write udp/ADDRESS:PORT, tcp/ADDRESS:PORT or tls/ADDRESS:PORT";
        let own = report.parse::<Listen>(&["frontend", "listen"], &entry.on, hint);
        listen.extend(own.map(|own| {
            let advertise = entry.advertise.as_ref().and_then(|text| advertised(report, text));
            Listen { advertise, ..own }.advertised(&frontend.advertise)
        }));
    }
    if role == Role::Frontend && frontend.feed.is_none() {
        let hint = "add feed = \"ADDRESS:7443\", an address of this host that gates can dial";
        report.error(&["frontend"], "gates have no address to dial", hint);
    }
    let first = listen.first()?.address;
    let mut config = sluicegate_frontend::Config::new(
        name,
        &frontend.realm,
        first,
        frontend.feed.unwrap_or(FEED_DEFAULT),
        file.node.state.join("frontend"),
    );
    config.listen = listen;
    config.connections = frontend.connections;
    config.tls.clone_from(&frontend.tls);
    tls(report, &config);
    config.configured =
        Configured { services: file.services.clone(), rules: file.rules.clone(), peers: file.peers.clone() };
    ways_to_servers(report, &config, &file.services, role);
    ways_to_peers(report, &config);
    config.advertise.clone_from(&frontend.advertise);
    config.keyholder = match &frontend.keys {
        Some(keys) => {
            let hint = "write what `sluicegate key show` prints on the key holder's host";
            let site = report.parse::<SitePublic>(&["frontend", "keys"], &keys.site_key, hint)?;
            KeyHolder::Elsewhere { file: keys.file.clone(), site }
        }
        None => KeyHolder::Process {
            program: std::env::current_exe().unwrap_or_else(|_| "sluicegate".into()),
            directory: sluicegate_frontend::keyholder_directory(&file.node.state),
        },
    };
    for (index, replica) in frontend.replicas.iter().enumerate() {
        let path = ["frontend", "replica", &index.to_string()];
        let key = replica_key(report, &path, replica);
        config.replicas.extend(key.map(|key| ReplicaSite { name: replica.name.clone(), key, feed: replica.feed }));
    }
    config.digest.clone_from(&frontend.digest);
    config.shards = frontend.shards.unwrap_or(0);
    config.datapath = frontend.datapath;
    config.gates.clone_from(&frontend.gates);
    for (index, gate) in frontend.gates.iter().enumerate() {
        let unknown = |name: &&String| !file.services.iter().any(|service| service.name == **name);
        for name in gate.services.iter().filter(unknown) {
            let what = format!("gate {:?} protects {name:?}, and this file has no such service", gate.name);
            let hint = "correct the name, unless the service is added with `sluicegate service add`";
            report.warn(&["frontend", "gate", &index.to_string(), "services"], what, hint);
        }
    }
    config.relay_rate_bps = frontend.relay_rate.map_or(config.relay_rate_bps, |rate| rate.0);
    config.dialog_requests_per_s = frontend.dialog_requests_per_s.unwrap_or(config.dialog_requests_per_s);
    config.unproved_answers_per_s = frontend.unproved_answers_per_s.unwrap_or(config.unproved_answers_per_s);
    config.per_user = frontend.per_user;
    config.grants_max = frontend.grants_max.unwrap_or(config.grants_max);
    config.phones = frontend.phones;
    config.overload = frontend.overload;
    config.emergency.clone_from(&frontend.emergency);
    calls_for_help(report, &frontend.emergency.numbers, &file.services);
    config.tables = frontend.tables;
    config.audit =
        file.audit.options(&file.node.state).map(|options| audit::Options { calls: file.audit.calls, ..options });
    for error in config.check().err().unwrap_or_default() {
        let text = error.to_string();
        let field = text.split(' ').next().unwrap_or_default().to_owned();
        let section = if field == "name" { "node" } else { "frontend" };
        report.error(&[section, &field], text, "");
    }
    Some(config)
}

/// What a NAT makes into an address of ours.
fn advertised(report: &mut Report<'_>, text: &str) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        let what = format!("advertise = {text:?} is no address and port");
        let hint = "write what the NAT makes into this address, such as \"198.51.100.1:5060\"";
        report.error(&["frontend", "listen"], what, hint);
    }
    address
}

/// Whether the certificates of SIP over TLS can be used, and are.
fn tls(report: &mut Report<'_>, config: &sluicegate_frontend::Config) {
    let Some(files) = &config.tls else { return };
    if let Err(error) = files.check() {
        report.error(&["frontend", "tls"], error.to_string(), "");
    }
    if !config.listen.iter().any(Listen::is_tls) {
        let hint = "add \"tls/ADDRESS:5061\" to listen, or remove tls";
        report.warn(&["frontend", "tls"], "there are certificates, and nothing listens for TLS", hint);
    }
}

/// Whether the frontend can speak to SIP servers as they want it.
fn ways_to_servers(report: &mut Report<'_>, config: &sluicegate_frontend::Config, services: &[Service], role: Role) {
    let has_authority = config.tls.as_ref().is_some_and(|files| files.server_ca.is_some());
    for (index, service) in services.iter().enumerate().filter(|(_, service)| service.kind == ServiceKind::Sip) {
        let is_spoken = |port: &SipPort| {
            let is_near = |own: &&Listen| own.address.is_ipv4() == service.address.is_ipv4();
            config.listen.iter().filter(is_near).any(|own| own.transport == port.transport)
        };
        let index = index.to_string();
        let ports = service.sip_ports();
        if let Some(port) = ports.first().filter(|_| !ports.iter().any(is_spoken)) {
            let what = format!(
                "service {:?} takes SIP as {port}, and the frontend listens for none of its IP version",
                service.name
            );
            let hint = format!("add \"{}/ADDRESS:PORT\" to listen: requests go from there", port.transport.param());
            report.error(&["service", &index, "sip"], what, &hint);
        }
        if role == Role::Frontend && service.sip_port_over(Transport::Udp).is_none() {
            let what = format!("service {:?} is not reached through a gate on another host", service.name);
            let hint = "add \"udp/PORT\" to sip: such gates relay datagrams, sealed, and no connections";
            report.warn(&["service", &index, "sip"], what, hint);
        }
        let is_named = matches!(service.certificate_or_default(), SipCertificate::Name(_));
        if is_named && !has_authority && ports.iter().any(|port| port.transport == Transport::Tls) {
            let what = format!("service {:?} shows a certificate that the frontend could not believe", service.name);
            let hint = "add server_ca = FILE to tls, or pin it: certificate = \"sha256:FINGERPRINT\"";
            report.error(&["service", &index, "certificate"], what, hint);
        }
    }
}

/// Whether emergency numbers lead anywhere.
fn calls_for_help(report: &mut Report<'_>, numbers: &[String], services: &[Service]) {
    let leads_nowhere = |number: &&String| services.iter().all(|service| service.answers_to(number).is_none());
    for number in numbers.iter().filter(leads_nowhere) {
        let what = format!("emergency number {number:?} is called at no service of this file");
        let hint = "add it to numbers of the SIP server that takes such calls, unless that is added with `sluicegate service add`";
        report.warn(&["frontend", "emergency"], what, hint);
    }
}

/// Whether peers can be known and spoken to.
fn ways_to_peers(report: &mut Report<'_>, config: &sluicegate_frontend::Config) {
    let has_authority = config.tls.as_ref().is_some_and(|files| files.server_ca.is_some());
    for (index, peer) in config.configured.peers.iter().enumerate() {
        let index = index.to_string();
        let is_near = |own: &&Listen| peer.sip.is_none_or(|sip| sip.address.is_ipv4() == own.address.is_ipv4());
        if !config.listen.iter().filter(is_near).any(Listen::is_tls) {
            let what =
                format!("peer {:?} shows its certificate over TLS, and the frontend listens for none", peer.name);
            report.error(&["peer", &index], what, "add \"tls/ADDRESS:5061\" to listen, of the IP version of its sip");
        }
        if matches!(peer.certificate, Some(SipCertificate::Name(_))) && !has_authority {
            let what = format!("peer {:?} shows a certificate that the frontend could not believe", peer.name);
            let hint = "add server_ca = FILE to tls, or pin it: certificate = \"sha256:FINGERPRINT\"";
            report.error(&["peer", &index, "certificate"], what, hint);
        }
    }
}

/// In one process with the gate, SIP reaches the frontend only through `local`.
fn reachable(report: &mut Report<'_>, frontend: &sluicegate_frontend::Config, gate: &sluicegate_gate::Config) {
    for listen in &frontend.listen {
        let port = listen.address.port();
        let (protocol, name) = if listen.is_stream() { (6, "tcp") } else { (17, "udp") };
        let reaches = |rule: &sluicegate_gate::LocalRule| {
            rule.protocol == protocol
                && (rule.first..=rule.last).contains(&port)
                && rule.side != sluicegate_gate::Side::Inside
                && rule.address.is_none_or(|address| address == listen.address.ip())
        };
        let is_local = gate.local.iter().any(reaches);
        if !listen.address.ip().is_loopback() && !is_local {
            let hint = format!("add \"{name}/{port}\" to local");
            report.error(&["gate", "local"], format!("the gate would drop all SIP to {listen}"), &hint);
        }
    }
}

fn agent_plan(report: &mut Report<'_>, agent: &Agent) -> Option<AgentPlan> {
    let mut ports = Vec::new();
    for text in &agent.ports {
        ports.extend(report.parse::<PortRange>(&["agent", "ports"], text, "write tcp/22 or udp/5004-5100"));
    }
    if !(1..=FRONTENDS_MAX).contains(&agent.frontend.len()) {
        let what = format!("frontend names {} addresses", agent.frontend.len());
        report.error(&["agent", "frontend"], what, "write one SIP address, or a list of up to 16");
    }
    if agent.ports.is_empty() {
        report.error(&["agent", "ports"], "no port is offered", "add at least one, such as \"tcp/22\"");
    }
    let limit = match (&agent.interface, agent.abuse_rate) {
        (Some(interface), Some(rate)) => Some(serve::Limit {
            interface: interface.clone(),
            rate_bps: rate.0,
            excess: Duration::from_millis(agent.abuse_ms.unwrap_or(ABUSE_MS).into()),
        }),
        (None, Some(_)) => {
            let hint = "add interface = \"NAME\", the interface on which client traffic arrives";
            report.error(&["agent", "abuse_rate"], "abuse_rate cannot be measured without an interface", hint);
            None
        }
        _ => None,
    };
    let source = match (&agent.password_file, &agent.key_file) {
        (Some(path), None) => Some(SecretFile::Password(path.clone())),
        (None, Some(path)) => Some(SecretFile::Key(path.clone())),
        _ => {
            let hint = "write password_file, or key_file for a user that was added with --key";
            report.error(&["agent"], "it takes one of password_file and key_file", hint);
            None
        }
    };
    let files = [
        ("password_file", &agent.password_file, "write the password of `user` to it, mode 0600"),
        ("key_file", &agent.key_file, "copy the key of `user` to it, as `user add --key` made it, mode 0600"),
    ];
    for (field, file, hint) in files {
        if let Some(path) = file
            && let Err(error) = keys::read(path)
        {
            report.error(&["agent", field], error.to_string(), hint);
        }
    }
    let pin = match secret::pin(agent.site_key.as_deref(), agent.known_sites.as_deref()) {
        Ok(pin) => Some(pin),
        Err(error) => {
            report.error(&["agent", "site_key"], error.to_string(), "`sluicegate status` at the site shows it");
            None
        }
    };
    let settings = serve::Config {
        frontends: agent.frontend.clone(),
        account: Account::new(&agent.user, &agent.realm, UserSecret::from_bytes([0; 32]), pin.clone()?),
        service: agent.service.clone(),
        sip: SocketAddr::new(agent.address, agent.sip_port),
        ports,
        allow: agent.allow.clone(),
        deny: agent.deny.clone(),
        clients_max: agent.clients_max.unwrap_or(CLIENTS_MAX),
        clients_per_user_max: agent.clients_per_user_max.unwrap_or(CLIENTS_PER_USER_MAX).max(1),
        limit,
    };
    let (user, realm) = (agent.user.clone(), agent.realm.clone());
    Some(AgentPlan { source: source?, pin: pin?, user, realm, settings })
}
