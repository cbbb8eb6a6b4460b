//! An nf_tables chain that keeps the kernel from forwarding anything in or out of a gate's interfaces.
//!
//! A gate moves packets itself, so nothing that the kernel forwards there is right: not by an interface that was made
//! anew and came up with the host's default of forwarding, not from a third interface, not before the gate starts. The
//! chain goes by the interfaces' names, which need not exist yet, and belongs to nobody, so it outlives every process.

use super::{Batch, Hook, Nftables};
use crate::Error;

/// Before every filter of others: they can drop more, but accept nothing back.
const PRIORITY: i32 = -500;
const CHAIN: &str = "forward";

/// Installs, or atomically replaces, the chain for the interfaces of this network namespace with these names.
///
/// # Errors
/// No right to, or a kernel without nf_tables.
pub fn forbid_forwarding(outside: &str, inside: &str) -> Result<(), Error> {
    let mut batch = table(outside, inside);
    batch.replace_table().base_chain(CHAIN, Hook::new("filter", libc::NF_INET_FORWARD, PRIORITY));
    for port in [outside, inside] {
        batch.rule(CHAIN, |rule| rule.came_by(port).count().drop());
        batch.rule(CHAIN, |rule| rule.leaves_by(port).count().drop());
    }
    Nftables::open()?.commit("forbid forwarding between the gate's interfaces", &batch)
}

/// Removes the chain. None is no error.
///
/// # Errors
/// Those of netlink.
pub fn allow_forwarding(outside: &str, inside: &str) -> Result<(), Error> {
    let mut batch = table(outside, inside);
    batch.delete_table();
    match Nftables::open()?.commit("allow forwarding between the gate's interfaces", &batch) {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}

fn table(outside: &str, inside: &str) -> Batch {
    Batch::new(libc::NFPROTO_INET, &format!("sluicegate_forward_{outside}_{inside}"))
}
