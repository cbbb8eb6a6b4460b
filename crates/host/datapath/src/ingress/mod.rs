//! An nf_tables filter at the ingress hook of the gate's interfaces: the kernel gets ARP, who has an address, and what
//! is for the gate's own host; everything else is dropped, after the packet sockets have seen it.
//!
//! The table belongs to nobody, so it outlives the process: a killed gate leaves its interfaces closed.

mod answers;
mod fragments;

use std::net::IpAddr;

use libc::NFPROTO_NETDEV;
use sluicegate_netlink::{
    Error,
    nft::{Batch, Hook, Nftables, Rule},
};
use sluicegate_wire::{
    Reason,
    capability::{PROTOCOL, UDP_PORT},
};

use crate::classify::{ANSWER_RATE_PPS, ERROR_RATE_PPS, LocalRule, PEER_RATE_PPS, Rules, Side, Translated};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

const CHAIN_GATE: &str = "gate";
const ERRORS: &str = "errors";
const ANSWERS: &str = "answers";
/// Runs before everything else at its hook.
const PRIORITY: i32 = -500;

/// An installed filter. Dropping the value leaves the filter in place; [`IngressFilter::remove`] takes it away.
#[derive(Debug)]
pub struct IngressFilter {
    table: String,
    nftables: Nftables,
    /// What it was made of, to make it again.
    filter: Batch,
}

impl IngressFilter {
    /// Installs, or atomically replaces, the filter `table` on `interfaces` (outside, then inside) of this network
    /// namespace.
    ///
    /// # Errors
    /// No such interface, no right to, or a kernel without the netdev family of nf_tables.
    pub fn install(table: &str, interfaces: &[&str], rules: &Rules) -> Result<Self, Error> {
        let (mut nftables, filter) = (Nftables::open()?, filter(table, interfaces, rules));
        nftables.commit("install the ingress filter", &filter)?;
        Ok(Self { table: table.into(), nftables, filter })
    }

    /// What the filter counted since it was installed: packets for the gate's own host above the rate, and packets to it that
    /// answer nothing it sent. A filter that somebody removed (`nft flush ruleset` removes those of everybody) is installed
    /// again.
    ///
    /// # Errors
    /// Those of netlink.
    pub(crate) fn counters(&mut self) -> Result<[(Reason, u64); 2], Error> {
        let (mut local_rate, mut strangers) = (0, 0);
        let counts = self.nftables.counts(NFPROTO_NETDEV, &self.table)?;
        for rule in &counts {
            match rule.chain.as_str() {
                // Kept from the kernel, and the gate's to judge.
                "own4" | "own6" | CHAIN_GATE => {}
                chain if fragments::is_gates(chain) => {}
                answers::STRANGERS => strangers += rule.packets,
                _ => local_rate += rule.packets,
            }
        }
        if counts.is_empty() {
            self.nftables.commit("install the ingress filter again", &self.filter)?;
            tracing::error!(table = self.table, "somebody removed the gate's nf_tables filter; installed it again");
        }
        Ok([(Reason::LocalRate, local_rate), (Reason::NoPinhole, strangers)])
    }

    /// Removes the filter: the kernel receives everything again.
    ///
    /// # Errors
    /// Those of netlink; a filter that is gone already is no error.
    pub(crate) fn remove(mut self) -> Result<(), Error> {
        let mut batch = Batch::new(NFPROTO_NETDEV, &self.table);
        match self.nftables.commit("remove the ingress filter", batch.delete_table()) {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }
}

/// What differs between the two families: names of chains and sets, places in the network header, types of ICMP.
struct Family {
    v6: bool,
    ethertype: u16,
    own: &'static str,
    set: &'static str,
    from: &'static str,
    address_len: u32,
    source: u32,
    destination: u32,
    protocol: u32,
    icmp: u8,
    echo: u8,
    reply: u8,
}

const V4: &Family = &Family {
    v6: false,
    ethertype: IPV4,
    own: "own4",
    set: "flows4",
    from: "from4",
    address_len: 4,
    source: 12,
    destination: 16,
    protocol: 9,
    icmp: libc::IPPROTO_ICMP as u8,
    echo: 8,
    reply: 0,
};
const V6: &Family = &Family {
    v6: true,
    ethertype: IPV6,
    own: "own6",
    set: "flows6",
    from: "from6",
    address_len: 16,
    source: 8,
    destination: 24,
    protocol: 6,
    icmp: libc::IPPROTO_ICMPV6 as u8,
    echo: 128,
    reply: 129,
};

impl Family {
    const fn of(address: IpAddr) -> &'static Self {
        if address.is_ipv6() { V6 } else { V4 }
    }

    /// Goes on with packets of this protocol.
    fn is<'a>(&self, rule: &'a mut Rule, protocol: u8) -> &'a mut Rule {
        rule.network(self.protocol, 1).equal(&[protocol])
    }

    /// Goes on with packets of this family that have `address` at this place.
    fn address<'a>(&self, rule: &'a mut Rule, at: u32, address: IpAddr) -> &'a mut Rule {
        self.address_in(rule.ethertype(self.ethertype), at, address)
    }

    /// As [`Self::address`], where the family is known.
    fn address_in<'a>(&self, rule: &'a mut Rule, at: u32, address: IpAddr) -> &'a mut Rule {
        rule.network(at, self.address_len);
        match address {
            IpAddr::V4(address) => rule.equal(&address.octets()),
            IpAddr::V6(address) => rule.equal(&address.octets()),
        }
    }
}

/// All messages that make the filter, in place of a former one.
fn filter(table: &str, interfaces: &[&str], rules: &Rules) -> Batch {
    let ports = [interfaces.first().copied().unwrap_or_default(), interfaces.get(1).copied().unwrap_or_default()];
    let mut batch = Batch::new(NFPROTO_NETDEV, table);
    batch.replace_table().chain(V4.own).chain(V6.own).chain(CHAIN_GATE);
    let rates = rules.local.iter().map(|local| local.rate_pps);
    let local = rates.enumerate().map(|(number, rate)| (rated("local", number), rate));
    let peers = (0..rules.peers.len()).map(|number| (rated("peer", number), PEER_RATE_PPS));
    let others = [(rated(ERRORS, 0), ERROR_RATE_PPS), (rated(ANSWERS, 0), ANSWER_RATE_PPS)];
    for (chain, rate_pps) in local.chain(peers).chain(others) {
        batch.chain(&chain).rule(&chain, |rule| rule.limit(rate_pps).accept());
        drop_all(&mut batch, &chain);
    }
    answers::noting(&mut batch, rules, interfaces);
    drop_all(batch.chain(fragments::FRAGMENTED), fragments::FRAGMENTED);
    for family in [V4, V6] {
        fragments::deciding(&mut batch, rules, ports, family);
    }
    own_host(&mut batch, rules, ports, V4);
    own_host(&mut batch, rules, ports, V6);
    gate(&mut batch, rules, ports);
    for (number, interface) in interfaces.iter().enumerate() {
        let name = format!("port{number}");
        batch.base_chain(&name, Hook { drops: true, ..hook(interface, libc::NF_NETDEV_INGRESS) });
        batch.rule(&name, |rule| rule.go_to(CHAIN_GATE));
    }
    batch
}

/// A hook of an interface.
const fn hook(interface: &str, number: libc::c_int) -> Hook<'_> {
    Hook { device: Some(interface), ..Hook::new("filter", number, PRIORITY) }
}

/// The end of a chain: what comes here is counted and kept from the kernel.
fn drop_all(batch: &mut Batch, chain: &str) {
    batch.rule(chain, |rule| rule.count().drop());
}

/// The chain with the rate of one entry of `local` or `peers`.
fn rated(table: &str, number: usize) -> String {
    format!("{table}{number}")
}

/// Goes on if the packet came by this side of the gate's two ports.
fn side<'a>(rule: &'a mut Rule, [outside, inside]: [&str; 2], side: Side) -> &'a mut Rule {
    match side {
        Side::Outside => rule.came_by(outside),
        Side::Inside => rule.came_by(inside),
        Side::Both => rule,
    }
}

/// One entry of `local`.
struct LocalEntry<'r> {
    number: usize,
    local: &'r LocalRule,
}

impl<'r> LocalEntry<'r> {
    /// Those that may be about this family.
    fn all(rules: &'r Rules, family: &Family) -> impl Iterator<Item = Self> {
        let v6 = family.v6;
        let entries = rules.local.iter().enumerate().map(|(number, local)| Self { number, local });
        entries.filter(move |entry| entry.local.address.is_none_or(|address| address.is_ipv6() == v6))
    }

    /// Goes on with what comes by its side to its address and ports; the protocol is known.
    fn matches<'a>(&self, rule: &'a mut Rule, ports: [&str; 2], family: &Family) -> &'a mut Rule {
        side(rule, ports, self.local.side);
        if let Some(address) = self.local.address {
            family.address_in(rule, family.destination, address);
        }
        if self.local.protocol != libc::IPPROTO_ICMP as u8 {
            rule.transport(2, 2).within(&self.local.first.to_be_bytes(), &self.local.last.to_be_bytes());
        }
        rule
    }
}

/// The chain that decides on packets for the host's own addresses.
fn own_host(batch: &mut Batch, rules: &Rules, ports: [&str; 2], family: &Family) {
    let chain = family.own;
    fragments::apart(batch, family);
    for (number, peer) in rules.peers.iter().enumerate().filter(|(_, peer)| peer.remote.is_ipv6() == family.v6) {
        batch.rule(chain, |rule| {
            family.address_in(rule, family.source, peer.remote.ip());
            family.is(rule, libc::IPPROTO_TCP as u8).transport(0, 4);
            rule.equal(&[peer.remote.port().to_be_bytes(), peer.own_port.to_be_bytes()].concat());
            rule.go_to(&rated("peer", number))
        });
    }
    answers::passing(batch, family, &rated(ANSWERS, 0));
    icmp(batch, rules, family);
    for entry in LocalEntry::all(rules, family) {
        batch.rule(chain, |rule| {
            let is_icmp = entry.local.protocol == libc::IPPROTO_ICMP as u8;
            family.is(rule, if is_icmp { family.icmp } else { entry.local.protocol });
            entry.matches(rule, ports, family);
            rule.go_to(&rated("local", entry.number))
        });
    }
    answers::refusing(batch, family, rules);
    drop_all(batch, chain);
}

/// Answers to translated pings, and errors about packets of translations or with a capability header, are not for the host;
/// errors about its own packets are.
fn icmp(batch: &mut Batch, rules: &Rules, family: &Family) {
    let (chain, v6) = (family.own, family.v6);
    let within = |rule: &mut Rule, ours: &Translated, at: u32| {
        rule.network(16, 4).equal(&ours.address.octets());
        rule.transport(at, 2).within(&ours.first.to_be_bytes(), &ours.last.to_be_bytes());
    };
    let translated = rules.translated.filter(|_| !v6);
    if let Some(ours) = &translated {
        batch.rule(chain, |rule| {
            message_of_type(rule, family, (0, 0));
            within(rule, ours, 4);
            rule.count().drop()
        });
    }
    let transport = if v6 { 48 } else { 28 };
    // Unreachable, too big, time exceeded, wrong parameter.
    let errors: &[(u8, u8)] = if v6 { &[(1, 4)] } else { &[(3, 3), (11, 12)] };
    for kinds in errors {
        batch.rule(chain, |rule| error_about(rule, family, *kinds, PROTOCOL.0).count().drop());
        for port in [transport, transport + 2] {
            batch.rule(chain, |rule| {
                error_about(rule, family, *kinds, libc::IPPROTO_UDP as u8);
                rule.transport(port, 2).equal(&UDP_PORT.to_be_bytes()).count().drop()
            });
        }
        for (quoted, at) in
            [(libc::IPPROTO_TCP, 0), (libc::IPPROTO_UDP, 0), (libc::IPPROTO_ICMP, 4), (libc::IPPROTO_ICMPV6, 4)]
        {
            if let Some(ours) = &translated {
                batch.rule(chain, |rule| {
                    error_about(rule, family, *kinds, quoted as u8);
                    within(rule, ours, transport + at);
                    rule.count().drop()
                });
            }
            batch.rule(chain, |rule| error_about(rule, family, *kinds, quoted as u8).go_to(&rated(ERRORS, 0)));
        }
    }
}

/// Goes on with an ICMP message of these types.
fn message_of_type<'a>(rule: &'a mut Rule, family: &Family, (first, last): (u8, u8)) -> &'a mut Rule {
    family.is(rule, family.icmp).transport(0, 1).within(&[first], &[last])
}

/// Goes on with an ICMP error that quotes an IP header without options, and of this protocol its ports or identifier.
fn error_about<'a>(rule: &'a mut Rule, family: &Family, kinds: (u8, u8), quoted: u8) -> &'a mut Rule {
    message_of_type(rule, family, kinds).transport(8, 1);
    if family.v6 {
        rule.mask(&[0xf0]);
    }
    rule.equal(&[if family.v6 { 0x60 } else { 0x45 }]);
    let (protocol, transport) = if family.v6 { (14, 48) } else { (17, 28) };
    rule.transport(protocol, 1).equal(&[quoted]);
    // A rule ends where the packet does.
    match i32::from(quoted) {
        libc::IPPROTO_TCP | libc::IPPROTO_UDP => rule.transport(transport, 4),
        libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6 => rule.transport(transport + 4, 2),
        _ => rule,
    }
}

/// The chain that every packet of both interfaces enters.
fn gate(batch: &mut Batch, rules: &Rules, ports: [&str; 2]) {
    batch.rule(CHAIN_GATE, |rule| rule.ethertype(ARP).accept());
    // Next header ICMPv6, hop limit 255: nobody beyond the link can send that (RFC 4861 section 6.1). Who has an
    // address, not who is a router, nor redirects: neighbours would choose the host's routes.
    batch.rule(CHAIN_GATE, |rule| {
        rule.ethertype(IPV6).network(6, 2).equal(&[V6.icmp, 255]).transport(0, 1).within(&[135], &[136]).accept()
    });
    // Multicast listener discovery: hop-by-hop options, hop limit 1, link-local to a group (RFC 3810).
    batch.rule(CHAIN_GATE, |rule| {
        rule.ethertype(IPV6).network(6, 2).equal(&[0, 1]);
        rule.network(8, 2).mask(&[0xff, 0xc0]).equal(&[0xfe, 0x80]).network(24, 1).equal(&[0xff]).accept()
    });
    for own in &rules.own {
        let family = Family::of(own.address);
        batch.rule(CHAIN_GATE, |rule| {
            family.address(side(rule, ports, own.side), family.destination, own.address).go_to(family.own)
        });
    }
    drop_all(batch, CHAIN_GATE);
}
