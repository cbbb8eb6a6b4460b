//! Puts a node's packet path together from its configuration.

use crate::{
    config::{Capabilities, Carriage, Config, EdgePolicy},
    error::StartError,
    known_paths::{KNOWN_PATHS_MAX, known_paths},
    secrets::Seeds,
};
use sluicegate_api::Role;
use sluicegate_capability::host::{self, ClientIds, ClientPolicy, Host, ServerConfig, ServerPolicy};
use sluicegate_capability::router::{Router, RouterConfig};
use sluicegate_grant::Grant;
use sluicegate_nat::{self as nat, Translator};
use sluicegate_node::{
    EdgePipeline, Egress, Firewall, Forwarder, Forwarding, GatePipeline, HostPolicy, Labels, Pipeline, RouterPipeline,
};
use sluicegate_scheduler::{self as scheduler, KnownPaths, Lane, Weights};
use sluicegate_wire::{
    capability::{Limits, shim},
    ethernet,
};
use std::{
    net::{IpAddr, Ipv4Addr},
    ops::Range,
};

/// Revocations within the longest life of a capability.
const REVOCATIONS_MAX: u32 = 4_096;
/// Packets that may wait in each lane, whatever the rate of the link: bounds the pool. Requests: one for each queue, or
/// the queues could not all be used.
const WAITING_MAX: [u32; 4] = [256, scheduler::QUEUES_MAX, 16_384, 8_192];
/// What framing costs on the link: Ethernet header, check sequence, preamble and gap.
const FRAMING_LEN: u32 = 38;
/// Flows of IPv6 for each of IPv4: filter services only, so fewer.
const V6_SHARE: u32 = 8;
/// Ports that an encapsulating host may send from.
const EPHEMERAL_PORTS: Range<u16> = 49_152..65_535;

fn random<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StartError::Random(error.to_string()))?;
    Ok(bytes)
}

/// A random number.
pub(crate) fn random_number() -> Result<u32, StartError> {
    random().map(u32::from_be_bytes)
}

/// A firewall without services and pinholes.
pub(crate) fn firewall(config: &Config, mtu: [u16; 2]) -> Result<Firewall, StartError> {
    let forwarding = forwarding(config, mtu);
    let defaults = nat::Config::default();
    let tables = nat::Config {
        gate_address: forwarding.address,
        external_ports: (*config.external_ports.start(), *config.external_ports.end()),
        mtu,
        flows_max: config.flows_max,
        flows_v6_max: (config.flows_max / V6_SHARE).max(1),
        pinholes_max: config.pinholes_max,
        per_user: config.per_user,
        services_max: crate::ledger::SERVICES_MAX as u16,
        ..defaults
    };
    let hash_key = random()?;
    let translator = Translator::new(tables, hash_key, u64::from_le_bytes(random()?));
    Ok(Firewall::new(translator, forwarding, &hash_key))
}

fn forwarding(config: &Config, mtu: [u16; 2]) -> Forwarding {
    let v4 = config.addresses.iter().find_map(|address| if let IpAddr::V4(v4) = address { Some(*v4) } else { None });
    let v6 = config.addresses.iter().find_map(|address| if let IpAddr::V6(v6) = address { Some(*v6) } else { None });
    Forwarding { address: v4.unwrap_or(Ipv4Addr::UNSPECIFIED), address_v6: v6, mtu, ..Forwarding::default() }
}

/// What the role does with packets. `firewall` is the gate's; a router and an edge have none. A gate knows the clients of
/// `grants`.
pub(crate) fn pipeline<'a>(
    config: &Config,
    seeds: &Seeds,
    firewall: Firewall,
    mtu: [u16; 2],
    grants: impl Iterator<Item = &'a Grant>,
) -> Result<Pipeline, StartError> {
    let told = &config.capabilities;
    let labels = Labels::new(told.fairness);
    let forwarder = || Ok::<_, StartError>(Forwarder::new(forwarding(config, mtu), &random()?));
    Ok(match config.role {
        Role::Gate => {
            // Clients may be telephones: only who speaks capabilities hears them.
            let host = host::Config { answers_only: true, ..host_config(told, mtu[0])? };
            let host = Host::new(host, random()?);
            let mut pipeline = GatePipeline::new(router(config, seeds)?, host, firewall, labels, told.ingress_verified);
            grants.for_each(|grant| pipeline.opened(grant));
            Pipeline::Gate(Box::new(pipeline))
        }
        Role::Router => {
            let router = router(config, seeds)?;
            Pipeline::Router(Box::new(RouterPipeline::new(router, forwarder()?, labels, told.ingress_verified)))
        }
        Role::Edge => {
            let host = Host::new(host_config(told, mtu[0])?, random()?);
            Pipeline::Edge(Box::new(EdgePipeline::new(host, policy(told, seeds)?, forwarder()?)))
        }
    })
}

fn router(config: &Config, seeds: &Seeds) -> Result<Router, StartError> {
    let told = &config.capabilities;
    let (started_at, first_seconds) = seeds.clock();
    let router = RouterConfig {
        // Attackers choose the IP version: either table must hold all that the link can carry.
        lines_max: told.lines(),
        lines6_max: told.lines(),
        revocations_max: REVOCATIONS_MAX,
        boundary: told.boundary,
        least: Limits::LEAST,
        seed: seeds.seed().clone(),
        tag_key: *seeds.tags,
        first_seconds,
        started_at,
    };
    Ok(Router::new(router, random()?))
}

fn policy(told: &Capabilities, seeds: &Seeds) -> Result<HostPolicy, StartError> {
    let limits = limits(told.limits);
    Ok(match told.policy {
        EdgePolicy::Client => HostPolicy::Client(ClientPolicy::new(ClientIds::PerHost(seeds.tags.clone()), limits)),
        EdgePolicy::Server => {
            let server = ServerConfig { limits, senders_max: told.peers_max as usize, ..told.server };
            HostPolicy::Server(Box::new(ServerPolicy::new(server, random()?)))
        }
    })
}

/// Limits whose range the configuration's check has ensured.
fn limits((kilobytes, seconds): (u16, u8)) -> Limits {
    Limits::new(kilobytes, seconds).unwrap_or(ServerConfig::default().limits)
}

fn host_config(told: &Capabilities, mtu: u16) -> Result<host::Config, StartError> {
    let carriage = match told.carriage {
        Carriage::Native => shim::Carriage::Native,
        Carriage::Encapsulated => {
            let at = u16::from_be_bytes(random()?) % EPHEMERAL_PORTS.len() as u16;
            shim::Carriage::Encapsulated { src_port: EPHEMERAL_PORTS.start + at }
        }
    };
    let (algorithm, peers_max, remotes_max) = (told.algorithm, told.peers_max, told.peers_max);
    Ok(host::Config { algorithm, carriage, mtu, peers_max, remotes_max, ..host::Config::default() })
}

/// The scheduled links, by port.
pub(crate) fn egress(config: &Config, mtu: [u16; 2]) -> Result<[Option<Egress>; 2], StartError> {
    let told = &config.capabilities;
    let link = |port: usize| match told.link_rates_bps[port] {
        Some(rate_bps) => egress_at(told, rate_bps, mtu[port]).map(Some),
        None => Ok(None),
    };
    Ok([link(0)?, link(1)?])
}

fn egress_at(told: &Capabilities, rate_bps: u64, mtu: u16) -> Result<Egress, StartError> {
    let mut link = scheduler::Config::for_rate(rate_bps);
    link.packet_bytes_max = u32::from(mtu) + FRAMING_LEN;
    link.quantum_bytes = link.packet_bytes_max;
    link.burst_bytes = link.burst_bytes.max(link.packet_bytes_max);
    link.request_queues_max = told.request_queues(rate_bps);
    let requests = &mut link.packets_max[Lane::Request as usize];
    *requests = (*requests).max(link.request_queues_max);
    for (waiting, max) in link.packets_max.iter_mut().zip(WAITING_MAX) {
        *waiting = (*waiting).min(max);
    }
    link.request_permille = u16::from(told.request_percent) * 10;
    link.merge = told.merge;
    let known = known(told)?;
    link.weights = if known.is_empty() { Weights::Equal } else { Weights::Known };
    Ok(Egress::new(&link, known, usize::from(mtu) + ethernet::HEADER_LEN, &random()?))
}

fn known(told: &Capabilities) -> Result<KnownPaths, StartError> {
    let Some(path) = &told.known_paths else { return Ok(KnownPaths::default()) };
    let unreadable = |problem| StartError::StateFile { path: path.clone(), problem };
    let paths = known_paths(path).map_err(unreadable)?;
    KnownPaths::build(paths, KNOWN_PATHS_MAX as u32).map_err(|error| unreadable(error.to_string()))
}
