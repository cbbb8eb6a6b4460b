//! Capabilities, the user, and the bounding set: what a process may still do once it has what it needs.
//!
//! Every function here is for a process of one thread, before its runtime is made: the kernel keeps rights by thread.

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    unistd::{Gid, Uid, User, setgroups, setresgid, setresuid},
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::{
    child::Parent,
    filter::{self, Network},
};

/// What a gate uses as long as it runs: links, filters and neighbours; packet sockets; the kernel program and its maps;
/// memory that the card writes into; a packet thread that comes first. It opens its interfaces again when they were
/// gone, so these are also the rights that opening takes.
pub(crate) const GATE: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_NICE);

/// What it takes to start a key holder that gives up all rights: to change the user, and to make the bounding set smaller.
pub(crate) const KEYS: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::SETPCAP);

/// The user of a confined process where the host has none of its name: from the range that Debian leaves to numbers
/// given out on demand, and outside of what systemd gives to dynamic users.
const USER_UNNAMED: u32 = 64_701;

/// Keeps these capabilities at most, for this process and whatever it starts, and lets no program that it starts have
/// more.
pub(crate) fn keep(kept: CapabilitySet) -> Result<()> {
    bound(kept)?;
    limit(kept)
}

/// Gives up everything: the user (if it is root), all capabilities, and every system call that a process which reads
/// from the network through sockets that are open already does not make. If there is a parent, its end is this
/// process's.
///
/// `user` is the host's name for what this process is; a host without that user lends it a number.
pub(crate) fn confine(user: &str, parent: Option<&Parent>, network: Network) -> Result<()> {
    // While it may: the bounding set goes first.
    bound(CapabilitySet::empty())?;
    if Uid::effective().is_root() {
        change_user(user)?;
    }
    if let Some(parent) = parent {
        parent.die_with()?;
    }
    limit(CapabilitySet::empty())?;
    filter::install(network)
}

/// Nothing that this process starts will have more than `kept`.
fn bound(kept: CapabilitySet) -> Result<()> {
    let _ = clear_ambient_capability_set();
    for capability in CapabilitySet::all().difference(kept).iter() {
        match remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not know, or a process that may not: then it has none to give either.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error).context("the capability bounding set cannot be made smaller"),
        }
    }
    Ok(())
}

fn limit(kept: CapabilitySet) -> Result<()> {
    let had = capabilities(None).context("the capabilities of this process cannot be read")?;
    let permitted = had.permitted.intersection(kept);
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("capabilities cannot be given up")?;
    set_no_new_privs(true).context("the process cannot bind itself to its privileges")
}

fn change_user(name: &str) -> Result<()> {
    let known = User::from_name(name).ok().flatten();
    let (uid, gid) =
        known.map_or((Uid::from_raw(USER_UNNAMED), Gid::from_raw(USER_UNNAMED)), |known| (known.uid, known.gid));
    let changed = setgroups(&[]).and_then(|()| setresgid(gid, gid, gid)).and_then(|()| setresuid(uid, uid, uid));
    match changed {
        // In a user namespace that knows no other user, root is nobody in particular already.
        Err(Errno::EINVAL | Errno::EPERM) if !uid.is_root() && Uid::effective().is_root() => {
            tracing::warn!(
                user = name,
                "cannot change the user in this user namespace; capabilities are given up alone"
            );
            Ok(())
        }
        other => other.with_context(|| format!("cannot become the user {name} ({uid})")),
    }
}
