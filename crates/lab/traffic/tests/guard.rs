//! Attacks refuse to run where they could reach anybody.

use std::{io::Write, path::Path, process::Command};

use sluicegate_site::{LabError, Namespace, namespace::may_make_namespaces, worker};
use sluicegate_traffic::attack::{InsiderSpec, require_lab};

#[test]
fn an_attack_outside_a_lab_is_refused_with_the_reason() {
    let error = require_lab().unwrap_err();
    assert!(matches!(error, LabError::NotALab(_)), "{error}");
    let spec = InsiderSpec {
        to: vec!["127.0.0.1:9".parse().unwrap()],
        from_ports: vec![0],
        bytes: 1,
        per_s: 1,
        seconds: 1,
        bytes_max: 1,
    };
    let command: Command = worker::command(Path::new(env!("CARGO_BIN_EXE_lab-worker")), "insider", &spec);
    let output = { command }.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("refusing to attack"), "{text}");
}

#[test]
fn a_namespace_of_a_lab_is_accepted_until_it_loses_its_marker() {
    if !may_make_namespaces() {
        let _ = writeln!(std::io::stderr(), "skipped: no right to make network namespaces (run as root)");
        return;
    }
    let namespace = Namespace::new("guarded").unwrap();
    namespace.run_in(require_lab).unwrap().unwrap();
    let marker = sluicegate_site::namespace::MARKER.into();
    namespace.netlink("removing the marker", |netlink| netlink.delete_address("lo", marker, 128)).unwrap();
    let error = namespace.run_in(require_lab).unwrap().unwrap_err();
    assert!(error.to_string().contains("marker"), "{error}");
}
