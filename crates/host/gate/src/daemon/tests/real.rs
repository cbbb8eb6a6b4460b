//! The whole gate on real interfaces of network namespaces. Needs root; says so when it skips.

use super::{
    CLIENT, SERVICE, STRANGER,
    site::{Frontend, config, install},
};
use crate::{Backend, Config, Ending, StartError};
use sluicegate_site::{
    Lab,
    topology::{Host, Plan},
};
use std::{
    fs,
    net::{SocketAddrV4, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// Clients, gate and service, each in its own namespace.
struct Network {
    client: UdpSocket,
    stranger: UdpSocket,
    service: UdpSocket,
    lab: Lab,
}

impl Network {
    fn new() -> Self {
        let hosts = vec![
            Host::new("gate"),
            Host::with_routes("clients", &[("0.0.0.0/0", "198.51.100.1")]).unwrap(),
            Host::with_routes("service", &[("0.0.0.0/0", "10.0.0.1")]).unwrap(),
        ];
        let wires = [
            ("gate:out 198.51.100.1/24 203.0.113.1/32", "clients:eth0 198.51.100.7/24 198.51.100.66/24"),
            ("gate:in 10.0.0.1/24", "service:eth0 10.0.0.2/24"),
        ];
        let lab = Plan::of(hosts, &wires).unwrap().build().unwrap();
        let socket = |host: &str, address: SocketAddrV4| {
            let socket = lab.host(host).unwrap().run_in(|| UdpSocket::bind(address)).unwrap().unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            socket
        };
        let (client, stranger) = (socket("clients", CLIENT), socket("clients", STRANGER));
        Self { client, stranger, service: socket("service", SERVICE), lab }
    }

    /// Runs `job` on the gate's host.
    fn on_gate<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        self.lab.host("gate").unwrap().run_in(job).unwrap()
    }

    /// A datagram goes in and its answer comes back. The first ones may be lost before the gate knows its neighbours.
    fn exchange(&self, gate: SocketAddrV4) {
        let mut buffer = [0; 64];
        for _ in 0..100 {
            self.client.send_to(b"ping", gate).unwrap();
            let Ok((4, from)) = self.service.recv_from(&mut buffer) else { continue };
            assert_eq!((from, &buffer[..4]), (CLIENT.into(), &b"ping"[..]));
            self.service.send_to(b"pong", from).unwrap();
            if let Ok((4, from)) = self.client.recv_from(&mut buffer) {
                assert_eq!((from, &buffer[..4]), (gate.into(), &b"pong"[..]));
                return;
            }
        }
        panic!("nothing passes");
    }
}

fn real_config(dir: &Path, backend: Backend) -> Config {
    Config { outside: "out".into(), inside: "in".into(), datapath: backend, ..config(dir) }
}

/// Runs a gate with its feed in this thread's namespace while `meanwhile` runs.
fn run_gate(network: &Network, config: Config, meanwhile: impl FnOnce(SocketAddrV4, &crate::Control)) {
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<Ending>();
        scope.spawn(move || {
            network.on_gate(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut frontend = Frontend::new().await;
                    let feeds = vec![frontend.address()];
                    let mut gate = crate::start(Config { feeds, ..config }).await.unwrap();
                    gate.ready().await;
                    let control = gate.control();
                    let running = gate.run(async { stopped.await.unwrap_or_default() });
                    let serving = async {
                        let (mut feed, ..) = frontend.welcome().await;
                        frontend.push(&mut feed, [install(1)]).await;
                        tell.send((feed.opened().await, control)).unwrap();
                        std::future::pending::<()>().await;
                    };
                    tokio::select! {
                        ended = running => ended.unwrap(),
                        () = serving => {}
                    }
                });
            });
        });
        let (opened, control) = told.recv().unwrap();
        meanwhile(opened, &control);
        stop.send(Ending::KeepClosed).unwrap();
    });
}

fn on_real_interfaces(backend: Backend) {
    if !nix::unistd::geteuid().is_root() {
        // Past the test harness, which shows only what failing tests print.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: needs root for network namespaces\n");
        return;
    }
    let network = Network::new();
    let dir = tempfile::tempdir().unwrap();
    let mut first = None;
    run_gate(&network, real_config(dir.path(), backend), |opened, control| {
        network.exchange(opened);
        let dropped = || control.status().dropped.get("no_pinhole").copied().unwrap_or(0);
        let before = dropped();
        let mut buffer = [0; 64];
        for _ in 0..10 {
            network.stranger.send_to(b"evil", opened).unwrap();
            assert!(network.service.recv_from(&mut buffer).is_err());
        }
        // The last ones may not be published yet.
        while dropped() < before + 10 {
            assert!(network.service.recv_from(&mut buffer).is_err());
        }
        assert_eq!(dropped(), before + 10);
        first = Some(opened);
    });
    // Stopped, and still closed.
    let mut buffer = [0; 64];
    network.client.send_to(b"ping", first.unwrap()).unwrap();
    assert!(network.service.recv_from(&mut buffer).is_err());
    // The frontend's number for the grant is the same, so its ports are.
    run_gate(&network, real_config(dir.path(), backend), |opened, _| {
        assert_eq!(Some(opened), first);
        network.exchange(opened);
    });
}

#[test]
fn the_packet_back_end_passes_what_is_granted_and_stays_closed_when_stopped() {
    on_real_interfaces(Backend::Packet);
}

#[test]
fn the_xdp_back_end_passes_what_is_granted_and_stays_closed_when_stopped() {
    on_real_interfaces(Backend::Xdp);
}

#[test]
fn a_gate_beside_which_the_kernel_forwards_does_not_start_unless_it_may_switch_that_off() {
    if !nix::unistd::geteuid().is_root() {
        // Past the test harness, which shows only what failing tests print.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: needs root for network namespaces\n");
        return;
    }
    let network = Network::new();
    let dir = tempfile::tempdir().unwrap();
    network.on_gate(|| {
        let switch = "/proc/sys/net/ipv4/conf/out/forwarding";
        fs::write(switch, "1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = real_config(dir.path(), Backend::Packet);
            let Err(refused) = crate::start(config.clone()).await else { panic!("it starts") };
            assert!(matches!(&refused, StartError::KernelForwards(name) if name == "out"), "{refused}");
            let gate = crate::start(Config { manage_forwarding: true, ..config }).await.unwrap();
            assert_eq!(fs::read_to_string(switch).unwrap().trim(), "0");
            gate.run(async { Ending::Open }).await.unwrap();
        });
    });
}
