//! Checks a configuration against this host. Changes nothing.

use std::{net::IpAddr, os::unix::fs::PermissionsExt, path::Path};

use sluicegate_datapath::Interface;
use sluicegate_frontend::{Datapath, Listen};
use sluicegate_gate::Backend;

use super::check::{Report, Role};

/// The host's name, as far as it can name a node.
pub(super) fn name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect();
    if name.is_empty() { "sluicegate".to_owned() } else { name }
}

/// The first IPv4 address of an interface.
pub(super) fn first_ipv4(interface: &str) -> Option<IpAddr> {
    let addresses = Interface::read(interface).ok()?.addresses;
    addresses.into_iter().map(|(address, _)| address).find(IpAddr::is_ipv4)
}

/// Interfaces, addresses, forwarding, state directory, privileges.
pub(super) fn check(report: &mut Report<'_>, state: &Path, gate: Option<&sluicegate_gate::Config>, role: Role) {
    if role != Role::Agent {
        state_directory(report, state);
    }
    let Some(gate) = gate else { return };
    for (side, name) in [("outside", &gate.outside), ("inside", &gate.inside)] {
        if name == "lo" {
            report.error(
                &["gate", side],
                "\"lo\" reaches nothing but this host",
                "name an interface with a wire behind it",
            );
        }
    }
    if let Err(error) = sluicegate_gate::check_host(gate) {
        let path = ["gate", error.field().unwrap_or("outside")];
        report.error(&path, error.to_string(), "");
    }
    if gate.datapath == Backend::Xdp && !nix::unistd::geteuid().is_root() {
        let hint = "run as root, or set datapath = \"auto\" or \"packet\"";
        report.error(&["gate", "datapath"], "datapath \"xdp\" needs root", hint);
    }
    if gate.datapath == Backend::Xdp
        && [&gate.outside, &gate.inside]
            .into_iter()
            .any(|name| Interface::read(name).is_ok_and(|port| port.is_virtual()))
    {
        let hint = "use \"auto\" or \"packet\", or switch txvlan off at the other end";
        report.warn(
            &["gate", "datapath"],
            "\"xdp\" does not see VLAN tags that a veth's sender leaves beside the frames",
            hint,
        );
    }
    let keeps_ssh = gate.local.iter().any(|rule| rule.protocol == 6 && (rule.first..=rule.last).contains(&22));
    if !keeps_ssh && (std::env::var_os("SSH_CONNECTION").is_some() || listens_on_ssh()) {
        let hint = "add \"tcp/22\" to local";
        report.warn(&["gate", "local"], "this host serves SSH, and the gate would cut it off", hint);
    }
}

/// Whether what comes for the frontend can be taken as frames, or refused, at its interfaces, past `gate` if it is in the same
/// node.
pub(super) fn check_frames(
    report: &mut Report<'_>,
    frontend: &sluicegate_frontend::Config,
    gate: Option<&sluicegate_gate::Config>,
) {
    let refuses = frontend.overload.refuses_at_interfaces();
    let (path, setting, instead): (&[&str], _, _) = match (frontend.datapath, refuses) {
        (Datapath::Xdp, _) => (&["frontend", "datapath"], "datapath \"xdp\"", "datapath = \"socket\""),
        (Datapath::Socket, true) => (&["frontend", "overload"], "refuse \"interface\"", "refuse = \"process\""),
        (Datapath::Socket, false) => return,
    };
    if !nix::unistd::geteuid().is_root() {
        report.error(path, format!("{setting} needs root"), &format!("run as root, or set {instead}"));
    }
    let is_wanted = |listen: &&Listen| if refuses { listen.comes_by_an_interface() } else { listen.comes_as_frames() };
    for listen in frontend.listen.iter().filter(is_wanted) {
        let interface = Interface::with_address(listen.address.ip()).ok().flatten();
        let Some(interface) = interface.filter(|interface| interface.name != "lo") else {
            let what = format!("no interface by which packets come has the address of {listen}");
            report.error(path, what, &format!("give it to one, or set {instead}"));
            continue;
        };
        if gate.is_some_and(|gate| [&gate.outside, &gate.inside].contains(&&interface.name)) {
            let what = format!("{listen} is at {}, whose packets the gate has", interface.name);
            let hint = format!("set {instead}, or listen at an address of an interface that is not the gate's");
            report.error(path, what, &hint);
        } else if interface.is_virtual() {
            let what = format!(
                "{setting} does not see VLAN tags that senders on this machine leave beside frames to {}",
                interface.name
            );
            report.warn(path, what, &format!("switch txvlan off at the other end, or set {instead}"));
        }
    }
}

fn state_directory(report: &mut Report<'_>, state: &Path) {
    let path = ["node", "state"];
    match std::fs::metadata(state) {
        Ok(found) if !found.is_dir() => {
            report.error(&path, format!("{} is not a directory", state.display()), "name a directory");
        }
        Ok(found) if found.permissions().mode() & 0o022 != 0 => {
            let hint = format!("chmod 0700 {}", state.display());
            report.error(&path, format!("others may write to the state directory {}", state.display()), &hint);
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // It is made at start, in the nearest directory that exists.
            let parent = state.ancestors().skip(1).find(|parent| parent.exists()).unwrap_or(Path::new("/"));
            if nix::unistd::access(parent, nix::unistd::AccessFlags::W_OK).is_err() {
                let what = format!("the state directory {} cannot be made in {}", state.display(), parent.display());
                report.error(&path, what, "run as root, or name a directory that you may write to");
            }
        }
        Err(error) => {
            report.error(&path, format!("cannot look at the state directory {}: {error}", state.display()), "");
        }
    }
}

/// Whether some process listens on TCP port 22.
fn listens_on_ssh() -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(":0016")) && words.nth(1) == Some("0A")
        })
    })
}
