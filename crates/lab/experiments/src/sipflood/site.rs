//! The lab of the experiment, and the files of its nodes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::certificate::Certificate;
use sluicegate_site::{
    LabError, NodeFile, Prefix,
    node::SIP_PORT,
    topology::{Host, Plan},
};
use sluicegate_traffic::stream::Over;

pub(crate) const REALM: &str = "lab.example";
/// The front end, and another one where there are two.
pub(crate) const FRONTENDS: [Ipv4Addr; 2] = [FRONTEND, Ipv4Addr::new(203, 0, 113, 194)];
pub(crate) const FRONTEND: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 130);
const FEED_PORT: u16 = 7_443;
/// More than the front ends have to say to an exchange while a crowd calls it.
const RELAY_RATE: &str = "100Mbit";
const TLS_PORT: u16 = 5_061;
/// Addresses of which the attackers own every one, and addresses of others whom they make out to be.
pub(crate) const BOTNET: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 51, 101, 0)), 24);
pub(crate) const VICTIMS: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 51, 102, 0)), 24);
/// The address of somebody who has an account, and floods.
pub(crate) const INSIDER: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 18, 3, 2)), 32);
/// Where services of the exchange want their media.
pub(crate) const MEDIA_PORT: u16 = 5_004;
/// Answers to strangers of one network, a second and SIP thread.
pub(crate) const UNPROVED_PER_S: u32 = 500;

/// How long a call lasts that nobody ends, whose media do not flow.
pub(crate) const LIFETIME_S: u32 = 30;
/// SIP threads.
pub(crate) const SHARDS: u32 = 2;
/// Connections of one address with each of them, and how many it may open a second.
pub(crate) const PER_SOURCE_MAX: u32 = 256;
pub(crate) const PER_SOURCE_PER_S: u32 = 50;

/// An exchange behind the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// Answers every call.
    Office,
    /// Lets every call ring.
    Ringing,
    /// Says nothing.
    Silent,
}

impl Exchange {
    pub(crate) const ALL: [Self; 3] = [Self::Office, Self::Ringing, Self::Silent];

    /// Its name as a service.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Office => "office",
            Self::Ringing => "ringing",
            Self::Silent => "silent",
        }
    }

    pub(crate) const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 4, 0, 2 + self as u8)
    }

    /// Where it takes SIP.
    pub(crate) const fn sip(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.address()), SIP_PORT)
    }
}

/// Where the front end takes SIP.
pub(crate) const fn frontend(over: Over) -> SocketAddr {
    at(FRONTEND, over)
}

/// Where the front end with this address takes SIP.
pub(crate) const fn at(frontend: Ipv4Addr, over: Over) -> SocketAddr {
    let port = match over {
        Over::Udp | Over::Tcp => SIP_PORT,
        Over::Tls => TLS_PORT,
    };
    SocketAddr::new(IpAddr::V4(frontend), port)
}

/// ```text
/// phones ──┐        ┌── frontend
/// insider ─┤        ├── frontend-2
/// botnet ──┼─ core ─┤
/// victims ─┘        └── gate ── exchange
/// ```
pub(crate) fn plan() -> Result<Plan, LabError> {
    let (botnet, victims) = (BOTNET.to_string(), VICTIMS.to_string());
    let hosts = vec![
        Host::with_routes("phones", &[("0.0.0.0/0", "198.18.1.1")])?,
        Host::with_routes("botnet", &[(&botnet, "itself"), ("0.0.0.0/0", "198.18.2.1")])?,
        Host::with_routes("insider", &[("0.0.0.0/0", "198.18.3.1")])?,
        Host::with_routes("victims", &[("0.0.0.0/0", "198.18.4.1")])?,
        Host::with_routes("core", &[(&botnet, "198.18.2.2"), (&victims, "198.18.4.2")])?.forwarding(),
        Host::with_routes("frontend", &[("0.0.0.0/0", "203.0.113.129")])?,
        Host::with_routes("frontend-2", &[("0.0.0.0/0", "203.0.113.193")])?,
        Host::with_routes("gate", &[("0.0.0.0/0", "203.0.113.1")])?,
        Host::with_routes("exchange", &[("0.0.0.0/0", "10.4.0.1")])?,
    ];
    let wires = [
        ("core:phones 198.18.1.1/24", "phones:eth0 198.18.1.2/24"),
        ("core:botnet 198.18.2.1/24", "botnet:eth0 198.18.2.2/24"),
        ("core:insider 198.18.3.1/24", "insider:eth0 198.18.3.2/24"),
        ("core:victims 198.18.4.1/24", "victims:eth0 198.18.4.2/24"),
        ("core:frontend 203.0.113.129/26", "frontend:eth0 203.0.113.130/26"),
        ("core:frontend-2 203.0.113.193/26", "frontend-2:eth0 203.0.113.194/26"),
        ("core:gate 203.0.113.1/25", "gate:outside 203.0.113.2/25"),
        ("gate:inside 10.4.0.1/24", "exchange:eth0 10.4.0.2/24 10.4.0.3/24 10.4.0.4/24"),
    ];
    Plan::of(hosts, &wires)
}

/// A front end of which one thing or another may be wrong on purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrontEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: Ipv4Addr,
    /// No user and no network has a share of its own.
    pub(crate) is_unbounded: bool,
    /// No source of connections has.
    pub(crate) is_unshared: bool,
    /// Further lines of its table.
    pub(crate) more: &'a str,
}

impl FrontEnd<'_> {
    pub(crate) fn file(self, files: &Certificate) -> NodeFile {
        let Self { name, address, is_unbounded, is_unshared, more } = self;
        let tables = |max: u32| {
            format!("transactions_per_user_max = {max}, exchanges_per_user_max = {max}, replays_per_user_max = {max}")
        };
        let shares = if is_unbounded {
            let tables = tables(1_000_000);
            format!("dialog_requests_per_s = 1000000\nunproved_answers_per_s = 1000000\ntables = {{ {tables} }}\n")
        } else {
            format!("unproved_answers_per_s = {UNPROVED_PER_S}\n")
        };
        let (per_source, per_s) = if is_unshared { (4_096, 1_000_000) } else { (PER_SOURCE_MAX, PER_SOURCE_PER_S) };
        let listen = Over::ALL.map(|over| format!("\"{}/{}\"", over.name(), at(address, over))).join(", ");
        let more = format!(
            "{shares}shards = {SHARDS}\nfeed = \"{address}:{FEED_PORT}\"\nrelay_rate = \"{RELAY_RATE}\"\n\
             connections = {{ per_source_max = {per_source}, per_source_per_s = {per_s} }}\n\
             {}{more}",
            files.line()
        );
        let file = NodeFile::new(name).frontend(address.into(), REALM, &more);
        let file = file.with(&format!("[frontend]\nlisten = [{listen}]\n"));
        Exchange::ALL.into_iter().fold(file, |file, exchange| {
            let more = format!(
                "kind = \"sip\"\nmode = \"nat\"\nports = [\"udp/{MEDIA_PORT}-{}\"]\n\
                 grant = {{ lifetime_s = {LIFETIME_S} }}\nallow = [\"group:phones\", \"group:insiders\"]\n",
                MEDIA_PORT + 3,
            );
            file.service(exchange.name(), exchange.address(), &more)
        })
    }
}

/// The file of the gate.
pub(crate) fn gate_file(datapath: &str) -> NodeFile {
    // A call's two ports rest for two minutes: enough for some two hundred calls a second.
    NodeFile::new("gate").gate(("outside", "inside"), datapath, "external_ports = \"16384-65535\"\n")
}
