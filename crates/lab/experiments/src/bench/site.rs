//! Our side: the real binary as gate and frontend in one, opened by a telephone's calls.
//!
//! A telephone's datagrams are in pinhole mode: they are what its program sends, as with the peers. An agent's would
//! carry packet MACs, under keys that the generator does not have.

use std::net::SocketAddr;

use super::lab::{BenchLab, FIRST_PORT, OUTSIDE, PORTS, SINK, SIP_PORT};
use sluicegate_site::{LabError, Node, NodeFile, binary::Binary};
use sluicegate_traffic::client::setup::{SetupSpec, opened};

const REALM: &str = "bench.example";
const USER: &str = "bench";
/// One socket may have 64 SIP requests under way, and a call takes two: one is challenged, one answered.
const PHONE_SOCKETS: u16 = 4;
/// Longer than any bench.
const FOREVER_S: u32 = 3_600;

/// A lab with our gate, whose grants are open.
pub(super) fn start(binary: &Binary, backend: &str) -> Result<BenchLab, LabError> {
    let mut lab = BenchLab::build(backend, false)?;
    lab.targets.clear();
    let binary = Binary { directory: binary.directory.join(backend), ..binary.clone() };
    let password = format!("{:016x}", fastrand::u64(..));
    let node = Node::start(&binary, &lab.lab, "gate", "up", &file(backend))?;
    node.ready()?;
    node.add_users("bench", [(USER.to_owned(), password.clone())], &["--no-agent"])?;
    lab.keep_node(node);
    let phone = binary.worker(&lab.lab, "gen", "setup", &calls(password))?;
    for _ in services() {
        match opened(&phone)? {
            SocketAddr::V4(target) => lab.targets.push(target),
            target @ SocketAddr::V6(_) => return Err(LabError::Plan(format!("{target} is of no IPv4 gate"))),
        }
    }
    lab.keep(phone);
    Ok(lab)
}

/// One service for each port: a grant is for one port, and a telephone that calls is let in to a service.
fn services() -> impl Iterator<Item = (String, u16)> {
    (FIRST_PORT..FIRST_PORT + PORTS).map(|port| (format!("sink{port}"), port))
}

/// A call to each service, all held until the phone is told to stop.
fn calls(password: String) -> SetupSpec {
    let mut services = services().map(|(name, _)| name);
    SetupSpec {
        to: vec![SocketAddr::from((OUTSIDE, SIP_PORT))],
        sockets: PHONE_SOCKETS,
        realm: REALM.to_owned(),
        service: services.next().unwrap_or_default(),
        more_services: services.collect(),
        users: vec![(USER.to_owned(), password)],
        per_s: 50,
        calls: u32::from(PORTS),
        seconds: FOREVER_S,
        give_up_ms: 5_000,
        // Discard: the generator sends from any port, and so may who names none.
        media_port: 9,
        seed: 1,
        ..SetupSpec::default()
    }
}

fn file(backend: &str) -> NodeFile {
    let per_user = "per_user = { flows_max = 4194304, rate = \"none\" }\n";
    let gate = format!(
        "local = [\"udp/{SIP_PORT}\"]\nflows_max = 131072\nper_user = {{ flows_max = 131072, rate = \"none\" }}\n"
    );
    let node =
        NodeFile::new("bench").frontend(OUTSIDE.into(), REALM, per_user).gate(("outside", "inside"), backend, &gate);
    services().fold(node, |node, (name, port)| {
        let more = format!(
            "ports = [\"udp/{port}\"]\nallow = [\"user:{USER}\"]\n\
             grant = {{ bytes_max = \"1TB\", lifetime_s = 3600, rate = \"none\", flows_max = 65535 }}\n"
        );
        node.service(&name, SINK, &more)
    })
}
