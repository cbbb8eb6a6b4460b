//! Namespaces and the site's topology, with plain kernel forwarding.

use std::{
    io::Write,
    net::{SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use sluicegate_site::{
    Namespace,
    namespace::{MARKER, may_make_namespaces},
    topology::{Site, SiteOptions},
};

/// Whether the test can run; says so if not.
fn namespaces_allowed() -> bool {
    let allowed = may_make_namespaces();
    if !allowed {
        // Straight to the descriptor: the test harness hides what a passing test prints.
        let _ = writeln!(std::io::stderr(), "skipped: no right to make network namespaces (run as root)");
    }
    allowed
}

#[test]
fn a_namespace_carries_the_marker_and_nothing_of_the_host() {
    if !namespaces_allowed() {
        return;
    }
    let namespace = Namespace::new("alone").unwrap();
    let names = namespace.netlink("listing", |netlink| netlink.links()).unwrap();
    assert!(names.iter().any(|link| link.name == "lo" && link.up));
    namespace.run_in(|| UdpSocket::bind((MARKER, 0))).unwrap().expect("the marker is on loopback");
    assert!(UdpSocket::bind((MARKER, 0)).is_err(), "the host itself has no marker");
}

#[test]
fn a_process_is_started_inside_and_ends_with_the_namespace() {
    if !namespaces_allowed() {
        return;
    }
    let namespace = Namespace::new("parent").unwrap();
    let mut command = Command::new("cat");
    command.arg("/proc/self/net/dev").arg("-");
    let process = namespace.spawn("cat", command).unwrap();
    let table: Vec<_> = (0..3).filter_map(|_| process.line(Duration::from_secs(5))).collect();
    assert!(table[2].trim_start().starts_with("lo:"), "{table:?}");
    let pid = process.pid();
    drop(process);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn the_site_connects_clients_with_services_only_while_the_gate_is_bypassed() {
    if !namespaces_allowed() {
        return;
    }
    let site = Site::build(SiteOptions::default()).unwrap();
    let reaches = |server: &str, address: SocketAddr| {
        let receiver = site.lab.host(server).unwrap().run_in(|| UdpSocket::bind(address)).unwrap();
        let Ok(receiver) = receiver else { return false };
        receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let client = site.lab.host("alice").unwrap();
        client.run_in(|| UdpSocket::bind(("::", 0)).unwrap().send_to(b"hello", address)).unwrap().unwrap();
        receiver.recv_from(&mut [0; 16]).is_ok()
    };
    let targets: [(&str, SocketAddr); 2] = [("web", (Site::WEB, 9).into()), ("web", (Site::WEB_V6, 9).into())];
    let public = ("pbx", SocketAddr::from((Site::NAT, 9)));
    for (server, address) in targets {
        assert!(!reaches(server, address), "{address} without a gate process");
    }
    site.gate_off().unwrap();
    for (server, address) in targets.into_iter().chain([public]) {
        assert!(reaches(server, address), "{address} by way of the plain router");
    }
    site.gate_on().unwrap();
    for (server, address) in targets.into_iter().chain([public]) {
        assert!(!reaches(server, address), "{address} by way of the gate again");
    }
}
