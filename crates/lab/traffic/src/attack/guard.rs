use std::{fs, io};

use rustix::process::setpriority_process;

use sluicegate_netlink::Rtnetlink;
use sluicegate_site::{LabError, namespace::MARKER};

/// Kinds of interfaces that a lab has beside loopback.
const LAB_LINK_KINDS: [&str; 1] = ["veth"];

/// Checks that the calling thread is in a network namespace of a lab, and so cannot reach anybody else.
///
/// Three signs must agree: the namespace is not the one in which the machine's first process lives (where that may be
/// asked); loopback carries the lab's [`MARKER`] address; and every interface that is on is loopback or a veth.
///
/// # Errors
/// [`LabError::NotALab`] with the sign that is missing; [`LabError::Kernel`] if interfaces cannot be listed.
pub fn require_lab() -> Result<(), LabError> {
    let refuse = |reason: String| Err(LabError::NotALab(reason));
    let own = fs::read_link("/proc/thread-self/ns/net").ok();
    // Unreadable in a user namespace of one's own, which is not the first process's namespace anyway.
    let first = fs::read_link("/proc/1/ns/net").ok();
    if own.is_some() && own == first {
        return refuse("this is the machine's own network namespace".to_owned());
    }
    // Asked of the list of addresses: some hosts let programs bind to addresses that they do not have.
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let marker = format!("{:032x} ", MARKER.to_bits());
    if !addresses.lines().any(|line| line.starts_with(&marker) && line.ends_with(" lo")) {
        return refuse(format!("loopback does not carry the lab's marker address {MARKER}"));
    }
    let links = Rtnetlink::open()
        .and_then(|mut netlink| netlink.links())
        .map_err(|error| LabError::Kernel { what: "listing interfaces".to_owned(), source: error.into() })?;
    match links.iter().find(|link| link.up && link.name != "lo" && !LAB_LINK_KINDS.contains(&link.kind.as_str())) {
        Some(link) => refuse(format!("interface {} is no virtual wire of a lab", link.name)),
        None => Ok(()),
    }
}

/// Gives this thread, and threads started from it, the lowest priority: an attacker that takes processor time from the
/// gate on the same machine would measure the machine, not the gate.
pub(crate) fn be_polite() -> io::Result<()> {
    Ok(setpriority_process(None, 19)?)
}
