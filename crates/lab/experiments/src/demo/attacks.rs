//! The packets that attackers send, by class: whose address they bear and where they go. Each class has a traffic class
//! of its own, so that what arrives at a service can be told from what the owner of the address sent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    cast::{Cast, FOREVER_S},
    daemons::Daemons,
    files::{SERVICE_SIP_PORT, SERVICES},
};
use sluicegate_site::{LabError, node::SIP_PORT, topology::Site};
use sluicegate_traffic::attack::{Does, FloodSpec, Kind, OnlookerSpec, Target};

/// A class of forged packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    pub name: &'static str,
    pub mark: u8,
}

/// Addresses of nobody in particular, and now and then of a client, at every port.
pub(super) const SPOOFED: Class = Class { name: "spoofed", mark: 0x04 };
/// The address of a telephone in a call, at the port that the gate opened for it.
pub(super) const FORGED_PHONE: Class = Class { name: "forged_phone", mark: 0x08 };
/// The address of a host with an agent, at the port that the gate opened for it.
pub(super) const FORGED_AGENT: Class = Class { name: "forged_agent", mark: 0x0c };
/// The front end's address and port, with SIP that it might relay, and addresses of gate and services.
pub(super) const FORGED_INFRASTRUCTURE: Class = Class { name: "forged_infrastructure", mark: 0x10 };

/// Whoever stands on the wire and speaks in a client's name.
pub(super) const ONLOOKER: Class = Class { name: "onlooker", mark: 0x14 };

/// The classes of the demo's flood.
pub(super) const CLASSES: [Class; 4] = [SPOOFED, FORGED_PHONE, FORGED_AGENT, FORGED_INFRASTRUCTURE];
/// All classes, those of [`CLASSES`] first.
pub(super) const ALL: [Class; 5] = [SPOOFED, FORGED_PHONE, FORGED_AGENT, FORGED_INFRASTRUCTURE, ONLOOKER];

/// Frames a second of each of the two outside attackers, of the one next to the gate, and of each class of forgeries.
const FLOOD_PER_S: u64 = 9_000;
const FLOOD_NEXT_DOOR_PER_S: u64 = 4_000;
const FORGED_PER_S: u64 = 1_500;

/// For counters.
pub(super) fn marks() -> Vec<(String, u8)> {
    ALL.iter().map(|class| (class.name.to_owned(), class.mark)).collect()
}

const fn everywhere(address: Ipv4Addr) -> Target {
    Target { address: IpAddr::V4(address), first: 1, last: u16::MAX }
}

const fn at(place: SocketAddr) -> Target {
    Target { address: place.ip(), first: place.port(), last: place.port() }
}

/// What the two attackers outside send: everything, from everywhere.
pub(super) fn spoofed(daemons: &Daemons, host: &str, number: u64) -> Result<FloodSpec, LabError> {
    let clients = ["alice", "bob", "phones"].map(Site::address).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut spec = from(daemons, (host, "eth0"), ("core", &format!("to_{host}")), SPOOFED)?;
    spec.targets = [Site::NAT, Site::WEB].map(everywhere).to_vec();
    spec.mix = vec![(Kind::Udp, 4), (Kind::Syn, 2), (Kind::Icmp, 1), (Kind::Fragment, 1)];
    spec.clients = clients.into_iter().map(Into::into).collect();
    spec.clients_percent = 10;
    spec.per_s = FLOOD_PER_S;
    spec.seed ^= number;
    Ok(spec)
}

/// What no router forwards, and a flood of the address of the gate's host itself (or of the plain router in its place):
/// sent by the last router before it.
pub(super) fn next_door(
    daemons: &Daemons,
    (router, interface): (&str, &str),
    own: Ipv4Addr,
) -> Result<FloodSpec, LabError> {
    let mut spec = from(daemons, ("core", interface), (router, Site::OUTSIDE), SPOOFED)?;
    spec.targets = [Site::NAT, Site::WEB, own].map(everywhere).to_vec();
    spec.mix = vec![(Kind::Garbage, 2), (Kind::Udp, 1), (Kind::Syn, 1)];
    spec.per_s = FLOOD_NEXT_DOOR_PER_S;
    Ok(spec)
}

/// Forgeries by somebody who knows whom the gate lets in, and where.
pub(super) fn forged(daemons: &Daemons, cast: &Cast) -> Result<Vec<(Class, FloodSpec)>, LabError> {
    let make = |class, client: &str, told: Vec<SocketAddr>| -> Result<_, LabError> {
        let mut spec = from(daemons, ("storm_a", "eth0"), ("core", "to_storm_a"), class)?;
        spec.targets = told.into_iter().map(at).collect();
        spec.mix = vec![(Kind::Udp, 3), (Kind::Icmp, 1), (Kind::Fragment, 1)];
        spec.clients = vec![Site::address(client)?.into()];
        spec.clients_percent = 100;
        Ok((class, spec))
    };
    let phone = make(FORGED_PHONE, "alice", cast.call_targets.concat())?;
    let agent = make(FORGED_AGENT, "bob", daemons.told("bob")?)?;
    Ok(vec![phone, agent, (FORGED_INFRASTRUCTURE, infrastructure(daemons, cast)?)])
}

/// Datagrams under a host's own address to every port of the gate, and to the services with addresses of their own.
pub(super) fn own(daemons: &Daemons, host: &str) -> Result<FloodSpec, LabError> {
    let mut spec = from(daemons, (host, "eth0"), ("core", &format!("to_{host}")), ONLOOKER)?;
    spec.targets = [Site::NAT, Site::WEB].map(everywhere).to_vec();
    for service in SERVICES {
        spec.targets.push(Target { address: service.public().into(), first: service.udp, last: service.udp_last() });
    }
    spec.mix = vec![(Kind::Udp, 3), (Kind::Syn, 1)];
    spec.clients = vec![Site::address(host)?.into()];
    spec.clients_percent = 100;
    Ok(spec)
}

/// Somebody between a client and the gate.
pub(super) fn onlooker(daemons: &Daemons, client: &str, does: Does) -> Result<OnlookerSpec, LabError> {
    Ok(OnlookerSpec {
        interface: "to_gate".to_owned(),
        client_interface: format!("to_{client}"),
        destination_mac: daemons.site.lab.mac("gate", Site::OUTSIDE)?,
        source_mac: daemons.site.lab.mac("core", "to_gate")?,
        client: Site::address(client)?.into(),
        does,
        mark: ONLOOKER.mark,
        per_s: FORGED_PER_S,
        seconds: FOREVER_S,
        seed: daemons.options.seed,
    })
}

fn infrastructure(daemons: &Daemons, cast: &Cast) -> Result<FloodSpec, LabError> {
    let mut spec = from(daemons, ("storm_b", "eth0"), ("core", "to_storm_b"), FORGED_INFRASTRUCTURE)?;
    let frontend = SocketAddr::from((Site::address("frontend")?, SIP_PORT));
    let sip = SocketAddr::from((Site::WEB, SERVICE_SIP_PORT));
    spec.targets = vec![at(sip), at(sip), everywhere(Site::NAT)];
    spec.mix = vec![(Kind::Udp, 1)];
    spec.clients = vec![frontend.ip(), Site::GATE.into(), Site::NAT.into()];
    spec.clients_percent = 100;
    spec.datagrams = cast.recorded.iter().map(|(_, message)| (Some(frontend), message.clone())).collect();
    Ok(spec)
}

/// A flood without targets of its own yet.
fn from(
    daemons: &Daemons,
    (host, interface): (&str, &str),
    next_hop: (&str, &str),
    class: Class,
) -> Result<FloodSpec, LabError> {
    Ok(FloodSpec {
        interface: interface.to_owned(),
        destination_mac: daemons.site.lab.mac(next_hop.0, next_hop.1)?,
        source_mac: daemons.site.lab.mac(host, interface)?,
        targets: Vec::new(),
        mix: Vec::new(),
        datagrams: Vec::new(),
        sources: vec![Site::SPOOFED],
        clients: Vec::new(),
        clients_percent: 0,
        mark: class.mark,
        frame_bytes: vec![100, 1_400, 1_450],
        per_s: FORGED_PER_S,
        seconds: FOREVER_S,
        frames_max: u64::MAX,
        seed: daemons.options.seed ^ u64::from(class.mark) << 32,
    })
}
