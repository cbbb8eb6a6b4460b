//! nf_tables for a network namespace that reaches the world through its host: the host lends it its address
//! ([`masquerade`]), and the namespace keeps its own connection tracking off a TUN device ([`untrack`]). And for a host
//! whose connections run through a TUN device: its kernel does not hear what is sent past that ([`Unheard`]).
//!
//! The tables belong to the connection that made them: they go with it, or with its process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libc::{NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING, NFPROTO_IPV4, NFPROTO_IPV6};

use super::{Batch, Hook, Nftables};
use crate::Error;

const FAMILIES: [libc::c_int; 2] = [NFPROTO_IPV4, NFPROTO_IPV6];
const CHAIN_UNHEARD: &str = "unheard";
const UNHEARD: &str = "keep from the kernel what it would reset";

const PRIORITY_FILTER: i32 = 0;
/// Before connection tracking.
const PRIORITY_RAW: i32 = -300;
const SOURCE_NAT: Hook<'static> = Hook::new("nat", NF_INET_POST_ROUTING, 100);

/// Offset of the source address in an IPv4 header.
const SOURCE_AT: u32 = 12;
const SOURCE_AT_V6: u32 = 8;

/// Lets packets of a network namespace behind `inside` leave the host with the host's own address: what comes from `source`.
/// With `alone`, this is all that the host forwards: where forwarding was off before, nothing else is let through.
///
/// # Errors
/// Those of netlink: no right to, or a kernel without nf_tables or masquerading.
pub fn masquerade(table: &str, inside: &str, source: Ipv4Addr, alone: bool) -> Result<Nftables, Error> {
    let mut batch = Batch::new(NFPROTO_IPV4, table);
    batch.create_owned_table().base_chain("out", SOURCE_NAT);
    batch.rule("out", |rule| rule.network(SOURCE_AT, 4).equal(&source.octets()).masquerade());
    if alone {
        batch.base_chain("forward", Hook::new("filter", NF_INET_FORWARD, PRIORITY_FILTER));
        batch.rule("forward", |rule| rule.came_by(inside).accept());
        batch.rule("forward", |rule| rule.leaves_by(inside).accept());
        batch.rule("forward", |rule| rule.drop());
    }
    install(&batch, "let a namespace use the host's address")
}

/// Has nothing tracked that passes the TUN device `tun`, so that the same connection can be tracked, and masqueraded, once
/// its packets leave by `uplink` instead. In the calling thread's network namespace.
///
/// # Errors
/// Those of netlink: no right to, or a kernel without nf_tables or masquerading.
pub fn untrack(table: &str, tun: &str, uplink: &str) -> Result<Nftables, Error> {
    let mut batch = Batch::new(NFPROTO_IPV4, table);
    batch.create_owned_table();
    batch.base_chain("sent", Hook::new("filter", NF_INET_LOCAL_OUT, PRIORITY_RAW));
    batch.rule("sent", |rule| rule.leaves_by(tun).untrack());
    batch.base_chain("received", Hook::new("filter", NF_INET_PRE_ROUTING, PRIORITY_RAW));
    batch.rule("received", |rule| rule.came_by(tun).untrack());
    batch.base_chain("out", SOURCE_NAT);
    batch.rule("out", |rule| rule.leaves_by(uplink).masquerade());
    install(&batch, "keep connection tracking off the TUN device")
}

/// TCP segments of some remote ports do not reach the kernel by an interface: it knows nothing of those connections, and
/// would reset them.
#[derive(Debug)]
pub struct Unheard {
    owner: Nftables,
    table: String,
    interface: String,
}

impl Unheard {
    /// Nothing is kept from the kernel yet.
    ///
    /// # Errors
    /// Those of netlink: no right to, or a kernel without nf_tables.
    pub fn open(table: &str, interface: &str) -> Result<Self, Error> {
        let mut owner = Nftables::open()?;
        for family in FAMILIES {
            let mut batch = Batch::new(family, table);
            let hook = Hook::new("filter", NF_INET_PRE_ROUTING, PRIORITY_RAW);
            owner.commit(UNHEARD, batch.create_owned_table().base_chain(CHAIN_UNHEARD, hook))?;
        }
        Ok(Self { owner, table: table.to_owned(), interface: interface.to_owned() })
    }

    /// What is set from now on is about another interface.
    pub fn set_interface(&mut self, interface: &str) {
        interface.clone_into(&mut self.interface);
    }

    /// From now on these addresses and ports, and no others, are kept from the kernel.
    ///
    /// # Errors
    /// Those of netlink; then everything is as before.
    pub fn set(&mut self, remotes: &[SocketAddr]) -> Result<(), Error> {
        let [mut batch, mut v6] = FAMILIES.map(|family| Batch::new(family, &self.table));
        batch.flush(CHAIN_UNHEARD);
        v6.flush(CHAIN_UNHEARD);
        for remote in remotes {
            let port = remote.port().to_be_bytes();
            let (batch, protocol_at, source_at, address) = match remote.ip() {
                IpAddr::V4(address) => (&mut batch, 9, SOURCE_AT, address.octets().to_vec()),
                IpAddr::V6(address) => (&mut v6, 6, SOURCE_AT_V6, address.octets().to_vec()),
            };
            batch.rule(CHAIN_UNHEARD, |rule| {
                rule.came_by(&self.interface).network(source_at, address.len() as u32).equal(&address);
                rule.network(protocol_at, 1).equal(&[libc::IPPROTO_TCP as u8]);
                rule.transport(0, 2).equal(&port).drop()
            });
        }
        self.owner.commit(UNHEARD, batch.append(v6))
    }
}

fn install(batch: &Batch, request: &str) -> Result<Nftables, Error> {
    let mut owner = Nftables::open()?;
    owner.commit(request, batch)?;
    Ok(owner)
}
