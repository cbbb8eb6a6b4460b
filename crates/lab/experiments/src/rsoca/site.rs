//! The lab of the experiment (Figure 2 of the paper), and the files of its nodes.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::RsocaOptions;
use sluicegate_site::{
    During as _, LabError, NodeFile, Prefix,
    node::SIP_PORT,
    scratch::write_private,
    topology::{Host, Plan},
};
use sluicegate_traffic::stream::{Connecting, Over};

pub(super) const REALM: &str = "lab.example";
const TARGET: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 130);
const FEED_PORT: u16 = 7_443;
const TLS_PORT: u16 = 5_061;
/// Where calls come from, and their media would.
const SENDERS: &str = "198.18.1.0/24";
/// Addresses of which the attackers own every one.
pub(super) const ATTACKERS: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 51, 101, 0)), 24);
pub(super) const MEDIA_PORT: u16 = 5_004;
/// Forwarding proxies in front of the target (Figure 2).
pub(super) const FORWARDERS: usize = 2;
/// How long a call lasts that nobody ends.
const LIFETIME_S: u32 = 30;
/// What the target counts for an INVITE that is being set up, in bytes (S).
pub(super) const TRANSACTION_BYTES: f64 = 6_144.0;

/// Whom callers call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Callee {
    /// Answers every call.
    Replying,
    /// Says nothing.
    Silent,
}

impl Callee {
    pub(super) const ALL: [Self; 2] = [Self::Replying, Self::Silent];

    /// Its name as a service.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Replying => "answering",
            Self::Silent => "silent",
        }
    }

    pub(super) const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 4, 0, 2 + self as u8)
    }

    /// Where it takes SIP.
    pub(super) const fn sip(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.address()), SIP_PORT)
    }
}

/// Where the target takes SIP.
pub(super) const fn target(over: Over) -> SocketAddr {
    let port = if matches!(over, Over::Tls) { TLS_PORT } else { SIP_PORT };
    SocketAddr::new(IpAddr::V4(TARGET), port)
}

/// The host of a forwarding proxy.
pub(super) fn forwarder(number: usize) -> String {
    format!("forward-{number}")
}

/// Where a forwarding proxy takes SIP.
pub(super) fn forwards_at(number: usize) -> SocketAddr {
    let third = u8::try_from(number).unwrap_or(u8::MAX).saturating_add(10);
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, third, 2)), SIP_PORT)
}

/// Certificates of the target and of the forwarding proxies, by which it knows them, and who signed them.
#[derive(Debug)]
pub(super) struct Certificates {
    authority: PathBuf,
    target: (PathBuf, PathBuf),
    forwarders: Vec<(PathBuf, PathBuf)>,
}

impl Certificates {
    /// Makes them in this directory.
    pub(super) fn make(directory: &Path) -> Result<Self, LabError> {
        let during = || "making certificates".to_owned();
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other).during(during)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(io::Error::other).during(during)?;
        let authority = params.self_signed(&key).map_err(io::Error::other).during(during)?.pem();
        let issuer = Issuer::new(params, key);
        let sign = |name: &str| -> io::Result<(PathBuf, PathBuf)> {
            let key = KeyPair::generate().map_err(io::Error::other)?;
            let params = CertificateParams::new(vec![name.to_owned()]).map_err(io::Error::other)?;
            let signed = params.signed_by(&key, &issuer).map_err(io::Error::other)?;
            let files = ["pem", "key"].map(|kind| directory.join(format!("sip-{name}.{kind}")));
            write_private(&files[0], &signed.pem())?;
            write_private(&files[1], &key.serialize_pem())?;
            Ok(files.into())
        };
        let file = directory.join("authority.pem");
        write_private(&file, &authority).during(during)?;
        let target = sign(&TARGET.to_string()).during(during)?;
        let forwarders = (0..FORWARDERS).map(|number| sign(&name(number))).collect::<io::Result<_>>().during(during)?;
        Ok(Self { authority: file, target, forwarders })
    }

    /// How a forwarding proxy reaches the target.
    pub(super) fn way(&self, number: usize) -> Connecting {
        let own = self.forwarders.get(number).cloned();
        Connecting { over: Over::Tls, certificate: Some(self.authority.clone()), own }
    }
}

/// The name in a forwarding proxy's certificate.
fn name(number: usize) -> String {
    format!("{}.{REALM}", forwarder(number))
}

/// ```text
/// senders ───┐
/// forward-0 ─┤        ┌── target
/// forward-1 ─┼─ core ─┤
/// attackers ─┘        └── gate ── callees
/// ```
pub(super) fn plan() -> Result<Plan, LabError> {
    let attackers = ATTACKERS.to_string();
    let mut hosts = vec![
        Host::with_routes("senders", &[("0.0.0.0/0", "198.18.1.1")])?,
        Host::with_routes("attackers", &[(&attackers, "itself"), ("0.0.0.0/0", "198.18.2.1")])?,
        Host::with_routes("core", &[(&attackers, "198.18.2.2")])?.forwarding(),
        Host::with_routes("target", &[("0.0.0.0/0", "203.0.113.129")])?,
        Host::with_routes("gate", &[("0.0.0.0/0", "203.0.113.1")])?,
        Host::with_routes("callees", &[("0.0.0.0/0", "10.4.0.1")])?,
    ];
    let mut wires = vec![
        ("core:senders 198.18.1.1/24".to_owned(), "senders:eth0 198.18.1.2/24".to_owned()),
        ("core:attackers 198.18.2.1/24".to_owned(), "attackers:eth0 198.18.2.2/24".to_owned()),
        ("core:target 203.0.113.129/25".to_owned(), "target:eth0 203.0.113.130/25".to_owned()),
        ("core:gate 203.0.113.1/25".to_owned(), "gate:outside 203.0.113.2/25".to_owned()),
        ("gate:inside 10.4.0.1/24".to_owned(), "callees:eth0 10.4.0.2/24 10.4.0.3/24".to_owned()),
    ];
    for number in 0..FORWARDERS {
        let (name, own) = (forwarder(number), forwards_at(number).ip());
        let gateway = forwards_at(number).to_string().replace(".2:5060", ".1");
        hosts.push(Host::with_routes(&name, &[("0.0.0.0/0", &gateway)])?);
        wires.push((format!("core:{name} {gateway}/24"), format!("{name}:eth0 {own}/24")));
    }
    let wires: Vec<(&str, &str)> = wires.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    Plan::of(hosts, &wires)
}

/// The file of the target, which controls its load so.
pub(super) fn target_file(overload: &str, certificates: &Certificates) -> NodeFile {
    let Certificates { authority, target: (certificate, key), .. } = certificates;
    // The paper's proxy had memory for whatever its control let it have: so has this one, and neither table nor trunk is
    // to refuse what is not refused by it.
    let more = format!(
        "shards = 1\nfeed = \"{TARGET}:{FEED_PORT}\"\nrelay_rate = \"1Gbit\"\noverload = {overload}\ngrants_max = 262144\n\
         tables = {{ transactions_max = 262144, transactions_per_user_max = 262144, exchanges_per_user_max = 65536, \
         legs_max = 65536, events_max = 65536 }}\n\
         connections = {{ unsent_bytes_max = 8388608 }}\n\
         tls = {{ certificate = {certificate:?}, key = {key:?}, server_ca = {authority:?} }}\n"
    );
    let file = NodeFile::new("target").frontend(TARGET.into(), REALM, &more);
    let file =
        file.with(&format!("[frontend]\nlisten = [\"udp/{}\", \"tls/{}\"]\n", target(Over::Udp), target(Over::Tls)));
    let peers = || (0..FORWARDERS).map(|number| format!("\"peer:{}\"", forwarder(number)));
    let allow = peers().collect::<Vec<_>>().join(", ");
    let file = Callee::ALL.into_iter().fold(file, |file, callee| {
        let more = format!(
            "kind = \"sip\"\nmode = \"nat\"\nports = [\"udp/{MEDIA_PORT}-{}\"]\n\
             grant = {{ lifetime_s = {LIFETIME_S} }}\nallow = [{allow}]\n",
            MEDIA_PORT + 3,
        );
        file.service(callee.name(), callee.address(), &more)
    });
    (0..FORWARDERS).fold(file, |file, number| {
        file.with(&format!(
            "[[peer]]\nname = \"{}\"\naddresses = [\"{}\"]\ncertificate = \"{}\"\ncallers = [\"*\"]\n\
             media = [\"{SENDERS}\"]\ncalls_max = 10000\ncalls_per_s = 10000\n",
            forwarder(number),
            forwards_at(number).ip(),
            name(number)
        ))
    })
}

/// The file of the gate.
pub(super) fn gate_file(options: &RsocaOptions) -> NodeFile {
    NodeFile::new("gate").gate(("outside", "inside"), &options.datapath, "")
}
