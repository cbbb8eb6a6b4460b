//! The `[gate]` section, in the role of a gate, a router or an edge.

use std::sync::Arc;

use hex::FromHex as _;
use sluicegate_api::{Enforcement, Role as Place};
use sluicegate_gate::{Capabilities, Config, EdgePolicy, Issuer, LocalRule, OwnService, Prefix, Side, TunnelListener};
use sluicegate_policy::{Outbound, PortRange, Rate};

use super::{
    check::{Report, Role},
    file::{self, File, Gate, Local},
    host,
};

/// Packets a second that an entry of `local` may receive unless the file says otherwise: a SIP flood has to reach the frontend's
/// overload control, not starve in front of it.
const LOCAL_RATE_PPS: u32 = 200_000;

/// What the section says, checked.
pub(super) fn plan(report: &mut Report<'_>, gate: &Gate, file: &File, role: Role, name: &str) -> Option<Config> {
    let mut config = Config::new(name, &gate.outside, &gate.inside, file.node.state.join("gate"));
    config.role = gate.role;
    fits_role(report, gate, file, role);
    config.addresses.clone_from(&gate.address);
    if config.addresses.is_empty() {
        config.addresses.extend(host::first_ipv4(&gate.outside));
    }
    config.datapath = gate.datapath;
    config.mode = gate.mode.unwrap_or(Enforcement::Enforce);
    let rate_pps = gate.local_rate_pps.unwrap_or(LOCAL_RATE_PPS);
    config.local.extend(gate.local.iter().filter_map(|local| local_rule(report, local, rate_pps)));
    if let Some(address) = gate.tunnel {
        let (first, last) = (address.port(), address.port());
        let rule = LocalRule { protocol: 6, first, last, side: Side::Both, address: Some(address.ip()), rate_pps };
        config.local.push(rule);
        config.tunnel = Some(Arc::new(TunnelListener::at(address)));
        if address.ip().is_unspecified() || address.port() == 0 {
            let hint = "name an address of this gate's outside interface, and a port";
            report.error(&["gate", "tunnel"], format!("tunnel {address} is no address that agents could dial"), hint);
        }
    }
    if let Some(text) = &gate.external_ports {
        let range = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
        match range {
            Some((first, last)) => config.external_ports = first..=last,
            None => {
                let what = format!("external_ports {text:?} is no range of ports");
                report.error(&["gate", "external_ports"], what, "write it like \"20000-32767\"");
            }
        }
    }
    config.manage_forwarding = gate.manage_forwarding;
    config.flows_max = gate.flows_max.unwrap_or(config.flows_max);
    config.pinholes_max = gate.pinholes_max.unwrap_or(config.pinholes_max);
    if let Some(told) = &gate.per_user {
        let limits = &mut config.per_user;
        limits.flows_max = told.flows_max.unwrap_or(limits.flows_max);
        limits.ports_max = told.ports_max.unwrap_or(limits.ports_max);
        limits.rate_bytes_per_s =
            told.rate.filter(|rate| *rate != Rate::UNLIMITED).map_or(0, |rate| rate.0.div_ceil(8));
        limits.bytes = told.bytes_max.map_or(0, |bytes| bytes.0);
        limits.window_s = told.window_s.unwrap_or(limits.window_s);
    }
    for text in &gate.may_open {
        config.may_open.extend(report.parse::<Prefix>(&["gate", "may_open"], text, ""));
    }
    config.issuers = issuers(report, file);
    let own = |service: &sluicegate_policy::Service| OwnService {
        name: service.name.clone(),
        address: service.address,
        is_open: service.is_open(),
        outbound_all: service.outbound == Outbound::All,
    };
    config.own_services = file.services.iter().map(own).collect();
    if role == Role::Gate {
        let open = file.services.iter().filter(|service| service.is_open());
        config.open_services = open.map(|service| (service.name.clone(), service.address)).collect();
    }
    config.capabilities = capabilities(report, gate);
    for error in config.check().err().unwrap_or_default() {
        let path: &[&str] = match error.field {
            "name" => &["node", "name"],
            "issuer" => &["issuer"],
            field => &["gate", field],
        };
        report.error(path, error.to_string(), "");
    }
    Some(config)
}

/// The `[[issuer]]` tables.
fn issuers(report: &mut Report<'_>, file: &File) -> Vec<Issuer> {
    let mut issuers: Vec<Issuer> = Vec::new();
    for (index, told) in file.issuers.iter().enumerate() {
        let index = index.to_string();
        let Ok(key) = <[u8; 32]>::from_hex(&told.key) else {
            let hint = "write the 64 hexadecimal digits that `sluicegate gate-join` printed at this gate";
            report.error(&["issuer", &index, "key"], format!("key {:?} is no Ed25519 public key", told.key), hint);
            continue;
        };
        if issuers.iter().any(|known| known.key == key) {
            report.error(&["issuer", &index, "key"], "this key has an [[issuer]] already", "keep one of the two");
        }
        let mut issuer = Issuer::any(key);
        for text in &told.may_open {
            issuer.may_open.extend(report.parse::<Prefix>(&["issuer", &index, "may_open"], text, ""));
        }
        issuer.services.clone_from(&told.services);
        issuer.ports.clone_from(&told.ports);
        issuer.bytes_max = told.bytes_max.map(|bytes| bytes.0);
        issuer.rate_max_bps = told.rate.filter(|rate| *rate != Rate::UNLIMITED).map(|rate| rate.0);
        issuer.lifetime_max_s = told.lifetime_s;
        issuer.sip_from.clone_from(&told.sip_from);
        issuers.push(issuer);
    }
    issuers
}

fn capabilities(report: &mut Report<'_>, gate: &Gate) -> Capabilities {
    let mut told = Capabilities::new(gate.role);
    let scheduled = |rate: Option<Rate>| rate.filter(|rate| *rate != Rate::UNLIMITED).map(|rate| rate.0);
    told.link_rates_bps = [scheduled(gate.link_rate_outside), scheduled(gate.link_rate)];
    told.boundary = gate.boundary.unwrap_or(told.boundary);
    if let Some(text) = &gate.fairness {
        told.fairness = report.parse(&["gate", "fairness"], text, "").unwrap_or_default();
    }
    told.ingress_verified = gate.ingress_verified;
    told.merge = gate.merge.unwrap_or_default();
    if let Some(path) = &gate.known_paths
        && let Err(error) = sluicegate_gate::known_paths(path)
    {
        report.error(&["gate", "known_paths"], error, "name a file with one path a line, such as \"1a2b/00c4\"");
    }
    told.known_paths.clone_from(&gate.known_paths);
    told.lines_max = gate.capability_lines_max;
    told.request_queues_max = gate.request_queues_max;
    told.request_percent = gate.request_percent.unwrap_or(told.request_percent);
    told.algorithm = gate.algorithm.unwrap_or_default();
    told.peers_max = gate.peers_max.unwrap_or(told.peers_max);
    told.policy = gate.policy.unwrap_or_default();
    told.limits = told.policy.limits();
    told.server = file::server(gate.renew, gate.flood_rate, gate.blacklist_s);
    serves_all(report, gate);
    told.carriage = gate.carriage.unwrap_or_default();
    if let Some(bytes) = gate.capability_bytes {
        told.limits.0 = u16::try_from(bytes.0 / 1_000).unwrap_or(u16::MAX);
    }
    told.limits.1 = gate.capability_s.unwrap_or(told.limits.1);
    told
}

/// Settings of a policy that this edge does not have.
fn serves_all(report: &mut Report<'_>, gate: &Gate) {
    let given = [
        ("renew", gate.renew.is_some()),
        ("flood_rate", gate.flood_rate.is_some()),
        ("blacklist_s", gate.blacklist_s.is_some()),
    ];
    let is_client = gate.role == Place::Edge && gate.policy != Some(EdgePolicy::Server);
    for (field, _) in given.into_iter().filter(|(_, given)| is_client && *given) {
        let what = format!("{field} is about senders that hosts did not contact, and those get nothing");
        report.error(&["gate", field], what, "remove it, or set policy = \"server\"");
    }
}

/// Settings that mean nothing in the role, and roles that a verb cannot run.
fn fits_role(report: &mut Report<'_>, gate: &Gate, file: &File, role: Role) {
    use Place::{Edge, Gate as Filter, Router};
    let place = gate.role;
    if role == Role::Up && place != Filter {
        let what =
            format!("`up` runs a gate beside the frontend, and this is an instance of role \"{}\"", place.label());
        let hint = "remove [frontend] and start it with `sluicegate gate FILE`, or remove role";
        report.error(&["gate", "role"], what, hint);
    }
    if place != Filter && !file.issuers.is_empty() {
        let what = format!("role \"{}\" follows no frontend", place.label());
        report.error(&["issuer"], what, "remove [[issuer]], or correct role");
    }
    if place != Filter && !file.services.is_empty() {
        let what = format!("role \"{}\" protects no service", place.label());
        report.error(&["service"], what, "describe services on the gate in front of them");
    }
    let settings: [(&str, bool, &[Place]); 26] = [
        ("tunnel", gate.tunnel.is_some(), &[Filter]),
        ("mode", gate.mode.is_some(), &[Filter]),
        ("external_ports", gate.external_ports.is_some(), &[Filter]),
        ("flows_max", gate.flows_max.is_some(), &[Filter]),
        ("pinholes_max", gate.pinholes_max.is_some(), &[Filter]),
        ("per_user", gate.per_user.is_some(), &[Filter]),
        ("may_open", !gate.may_open.is_empty(), &[Filter]),
        ("link_rate", gate.link_rate.is_some(), &[Filter, Router]),
        ("link_rate_outside", gate.link_rate_outside.is_some(), &[Filter, Router]),
        ("boundary", gate.boundary.is_some(), &[Filter, Router]),
        ("fairness", gate.fairness.is_some(), &[Filter, Router]),
        ("ingress_verified", gate.ingress_verified, &[Filter, Router]),
        ("merge", gate.merge.is_some(), &[Filter, Router]),
        ("known_paths", gate.known_paths.is_some(), &[Filter, Router]),
        ("capability_lines_max", gate.capability_lines_max.is_some(), &[Filter, Router]),
        ("request_queues_max", gate.request_queues_max.is_some(), &[Filter, Router]),
        ("request_percent", gate.request_percent.is_some(), &[Filter, Router]),
        ("algorithm", gate.algorithm.is_some(), &[Filter, Edge]),
        ("peers_max", gate.peers_max.is_some(), &[Filter, Edge]),
        ("policy", gate.policy.is_some(), &[Edge]),
        ("renew", gate.renew.is_some(), &[Edge]),
        ("flood_rate", gate.flood_rate.is_some(), &[Edge]),
        ("blacklist_s", gate.blacklist_s.is_some(), &[Edge]),
        ("carriage", gate.carriage.is_some(), &[Edge]),
        ("capability_bytes", gate.capability_bytes.is_some(), &[Edge]),
        ("capability_s", gate.capability_s.is_some(), &[Edge]),
    ];
    for (field, _, places) in settings.into_iter().filter(|(_, given, _)| *given) {
        if !places.contains(&place) {
            let roles: Vec<String> = places.iter().map(|place| format!("\"{}\"", place.label())).collect();
            let what = format!("{field} means nothing in role \"{}\", only in {}", place.label(), roles.join(" and "));
            report.error(&["gate", field], what, "remove it, or correct role");
        }
    }
    if place == Router && gate.link_rate.is_none() && gate.link_rate_outside.is_none() {
        let what = "a router without link_rate sorts nothing, and cannot size its tables";
        let hint =
            "write link_rate = \"100Mbit\", the rate of the link towards the inside; or \"none\" to sort nothing";
        report.error(&["gate", "role"], what, hint);
    }
    let scheduled = [gate.link_rate, gate.link_rate_outside].into_iter().flatten().any(|rate| rate != Rate::UNLIMITED);
    let needs_link = [
        ("fairness", gate.fairness.is_some()),
        ("merge", gate.merge.is_some()),
        ("known_paths", gate.known_paths.is_some()),
        ("request_queues_max", gate.request_queues_max.is_some()),
        ("request_percent", gate.request_percent.is_some()),
    ];
    for (field, _) in needs_link.into_iter().filter(|(_, given)| *given && !scheduled && place != Edge) {
        let what = format!("{field} has no effect: no link is scheduled");
        report.error(&["gate", field], what, "add link_rate = \"100Mbit\", the rate of the link towards the inside");
    }
    if gate.ingress_verified && gate.fairness.as_deref() != Some("source") {
        let what = "ingress_verified is only asked for by fairness = \"source\"";
        report.warn(&["gate", "ingress_verified"], what, "remove it, or set fairness = \"source\"");
    }
}

/// A protocol without ports: what a tunnel of the host needs. Not those that are told apart by ports or types, nor
/// fragments and capabilities, which are never the host's.
fn whole_protocol(text: &str) -> Option<u8> {
    match text {
        "gre" => Some(47),
        "esp" => Some(50),
        _ => text.strip_prefix("ip/")?.parse().ok().filter(|number| !matches!(number, 0 | 1 | 6 | 17 | 44 | 58 | 253)),
    }
}

/// One entry of `local`. The kernel knows protocols by number; ICMP stands for ICMPv6 too.
fn local_rule(report: &mut Report<'_>, local: &Local, rate_pps: u32) -> Option<LocalRule> {
    let (text, side, address, own_rate) = match local {
        Local::Port(text) => (text, Side::Both, None, None),
        Local::Entry(entry) => (&entry.port, entry.side, entry.address, entry.rate_pps),
    };
    let (protocol, first, last) = match whole_protocol(text) {
        Some(number) => (number, 0, u16::MAX),
        None => {
            let hint = "write tcp/22, udp/5060, icmp, gre, esp or ip/4";
            let range: PortRange = report.parse(&["gate", "local"], text, hint)?;
            let number = range.protocol.number(std::net::Ipv4Addr::UNSPECIFIED.into());
            if range.protocol.has_ports() { (number, range.first, range.last) } else { (number, 0, u16::MAX) }
        }
    };
    Some(LocalRule { protocol, first, last, side, address, rate_pps: own_rate.unwrap_or(rate_pps) })
}
