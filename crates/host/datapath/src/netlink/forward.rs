//! An nf_tables chain that keeps the kernel from forwarding anything in or out of a gate's interfaces.
//!
//! A gate moves packets itself, so nothing that the kernel forwards there is right: not by an interface that was made
//! anew and came up with the host's default of forwarding, not from a third interface, not before the gate starts. The
//! chain goes by the interfaces' names, which need not exist yet, and belongs to nobody, so it outlives every process.

use super::{
    Error, Socket,
    hooked::{self, HOOK_FORWARD, interface},
    ingress::{DROP, expression, transact, verdict},
};

const INET: u8 = libc::NFPROTO_INET as u8;
/// Before every filter of others: they can drop more, but accept nothing back.
const PRIORITY: i32 = -500;
const CHAIN: &str = "forward";

/// Installs, or atomically replaces, the chain for the interfaces of this network namespace with these names.
///
/// # Errors
/// No right to, or a kernel without nf_tables.
pub fn forbid_forwarding(outside: &str, inside: &str) -> Result<(), Error> {
    let table = name(outside, inside);
    let mut batch = vec![
        hooked::table(INET, libc::NFT_MSG_NEWTABLE, &table),
        hooked::table(INET, libc::NFT_MSG_DELTABLE, &table),
        hooked::table(INET, libc::NFT_MSG_NEWTABLE, &table),
        hooked::chain(INET, &table, CHAIN, ("filter", HOOK_FORWARD, PRIORITY)),
    ];
    for port in [outside, inside] {
        for key in [libc::NFT_META_IIFNAME, libc::NFT_META_OIFNAME] {
            batch.push(hooked::rule(INET, &table, CHAIN, |rule| {
                interface(rule, key, port);
                expression(rule, "counter", |_| {});
                verdict(rule, DROP, None);
            }));
        }
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    transact(&mut socket, "forbid forwarding between the gate's interfaces", batch)
}

/// Removes the chain. None is no error.
///
/// # Errors
/// Those of netlink.
pub fn allow_forwarding(outside: &str, inside: &str) -> Result<(), Error> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    let batch = vec![hooked::table(INET, libc::NFT_MSG_DELTABLE, &name(outside, inside))];
    match transact(&mut socket, "allow forwarding between the gate's interfaces", batch) {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}

fn name(outside: &str, inside: &str) -> String {
    format!("sluicegate_forward_{outside}_{inside}")
}
