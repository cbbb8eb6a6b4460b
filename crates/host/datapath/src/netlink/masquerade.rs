//! nf_tables for a network namespace that reaches the world through its host: the host lends it its address
//! ([`Masquerade`]), and the namespace keeps its own connection tracking off a TUN device ([`Untracked`]). And for a host
//! whose connections run through a TUN device: its kernel does not hear what is sent past that ([`Unheard`]).
//!
//! The tables belong to the netlink socket that made them: they go with this value, or with its process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    Error, Message, Socket,
    hooked::{self, HOOK_FORWARD, PRIORITY_FILTER, interface},
    ingress::{ACCEPT, DROP, EQUAL, NETWORK, TRANSPORT, compare, expression, payload, transact, verdict},
};

const IPV4: u8 = libc::NFPROTO_IPV4 as u8;
const IPV6: u8 = libc::NFPROTO_IPV6 as u8;
const FAMILIES: [u8; 2] = [IPV4, IPV6];
const CHAIN_UNHEARD: &str = "unheard";

const TABLE_FLAGS: u16 = 2;
/// `NFT_TABLE_F_OWNER`: the table goes with the socket.
const OWNED: u32 = 2;

const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
const HOOK_POSTROUTING: u32 = 4;
/// Before connection tracking.
const PRIORITY_RAW: i32 = -300;
const PRIORITY_SOURCE_NAT: i32 = 100;

/// Offset of the source address in an IPv4 header.
const SOURCE_AT: u32 = 12;
const SOURCE_AT_V6: u32 = 8;

/// Packets of a network namespace behind `inside` leave the host with the host's own address.
#[derive(Debug)]
pub struct Masquerade {
    _owner: Socket,
}

impl Masquerade {
    /// Masquerades what comes from `source`. With `alone`, this is all that the host forwards: where forwarding was
    /// off before, nothing else is let through.
    ///
    /// # Errors
    /// Those of netlink: no right to, or a kernel without nf_tables or masquerading.
    pub fn install(table: &str, inside: &str, source: Ipv4Addr, alone: bool) -> Result<Self, Error> {
        let mut batch = vec![
            table_message(table),
            chain(table, "out", ("nat", HOOK_POSTROUTING, PRIORITY_SOURCE_NAT)),
            rule(table, "out", |rule| {
                payload(rule, NETWORK, SOURCE_AT, 4);
                compare(rule, EQUAL, &super::message::address_bytes(IpAddr::V4(source)));
                expression(rule, "masq", |_| {});
            }),
        ];
        if alone {
            batch.push(chain(table, "forward", ("filter", HOOK_FORWARD, PRIORITY_FILTER)));
            for key in [libc::NFT_META_IIFNAME, libc::NFT_META_OIFNAME] {
                batch.push(rule(table, "forward", |rule| {
                    interface(rule, key, inside);
                    verdict(rule, ACCEPT, None);
                }));
            }
            batch.push(rule(table, "forward", |rule| verdict(rule, DROP, None)));
        }
        Ok(Self { _owner: install(batch, "let a namespace use the host's address")? })
    }
}

/// What passes the TUN device `tun` is not tracked, so that the same connection can be tracked, and masqueraded, once
/// its packets leave by `uplink` instead.
#[derive(Debug)]
pub struct Untracked {
    _owner: Socket,
}

impl Untracked {
    /// Installs the table in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of netlink: no right to, or a kernel without nf_tables or masquerading.
    pub fn install(table: &str, tun: &str, uplink: &str) -> Result<Self, Error> {
        let untracked = |chain: &str, key| {
            rule(table, chain, |rule| {
                interface(rule, key, tun);
                expression(rule, "notrack", |_| {});
            })
        };
        let batch = vec![
            table_message(table),
            chain(table, "sent", ("filter", HOOK_OUTPUT, PRIORITY_RAW)),
            untracked("sent", libc::NFT_META_OIFNAME),
            chain(table, "received", ("filter", HOOK_PREROUTING, PRIORITY_RAW)),
            untracked("received", libc::NFT_META_IIFNAME),
            chain(table, "out", ("nat", HOOK_POSTROUTING, PRIORITY_SOURCE_NAT)),
            rule(table, "out", |rule| {
                interface(rule, libc::NFT_META_OIFNAME, uplink);
                expression(rule, "masq", |_| {});
            }),
        ];
        Ok(Self { _owner: install(batch, "keep connection tracking off the TUN device")? })
    }
}

/// TCP segments of some remote ports do not reach the kernel by an interface: it knows nothing of those connections, and
/// would reset them.
#[derive(Debug)]
pub struct Unheard {
    socket: Socket,
    table: String,
    interface: String,
}

impl Unheard {
    /// Nothing is kept from the kernel yet.
    ///
    /// # Errors
    /// Those of netlink: no right to, or a kernel without nf_tables.
    pub fn open(table: &str, interface: &str) -> Result<Self, Error> {
        let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
        for family in FAMILIES {
            let batch = vec![
                owned_table(family, table),
                hooked::chain(family, table, CHAIN_UNHEARD, ("filter", HOOK_PREROUTING, PRIORITY_RAW)),
            ];
            transact(&mut socket, "keep from the kernel what it would reset", batch)?;
        }
        Ok(Self { socket, table: table.to_owned(), interface: interface.to_owned() })
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
        let (table, chain) = (self.table.as_str(), CHAIN_UNHEARD);
        let mut batch: Vec<Message> = FAMILIES.map(|family| hooked::flush(family, table, chain)).into();
        for remote in remotes {
            let (family, source_at, protocol_at) =
                if remote.is_ipv4() { (IPV4, SOURCE_AT, 9) } else { (IPV6, SOURCE_AT_V6, 6) };
            let address = super::message::address_bytes(remote.ip());
            batch.push(hooked::rule(family, table, chain, |rule| {
                interface(rule, libc::NFT_META_IIFNAME, &self.interface);
                payload(rule, NETWORK, source_at, address.len() as u32);
                compare(rule, EQUAL, &address);
                payload(rule, NETWORK, protocol_at, 1);
                compare(rule, EQUAL, &[libc::IPPROTO_TCP as u8]);
                payload(rule, TRANSPORT, 0, 2);
                compare(rule, EQUAL, &remote.port().to_be_bytes());
                verdict(rule, DROP, None);
            }));
        }
        transact(&mut self.socket, "keep from the kernel what it would reset", batch)
    }
}

fn install(batch: Vec<Message>, what: &str) -> Result<Socket, Error> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    transact(&mut socket, what, batch)?;
    Ok(socket)
}

fn table_message(table: &str) -> Message {
    owned_table(IPV4, table)
}

fn owned_table(family: u8, table: &str) -> Message {
    let mut message = hooked::table(family, libc::NFT_MSG_NEWTABLE, table);
    message.put_be32(TABLE_FLAGS, OWNED);
    message
}

fn chain(table: &str, name: &str, hook: (&str, u32, i32)) -> Message {
    hooked::chain(IPV4, table, name, hook)
}

fn rule(table: &str, chain: &str, expressions: impl FnOnce(&mut Message)) -> Message {
    hooked::rule(IPV4, table, chain, expressions)
}
