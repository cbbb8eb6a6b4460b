//! An nf_tables filter at the ingress hook of the gate's interfaces: the kernel gets ARP, who has an address, and what
//! is for the gate's own host; everything else is dropped, after the packet sockets have seen it.
//!
//! The table belongs to nobody, so it outlives the process: a killed gate leaves its interfaces closed.

use std::net::IpAddr;

use sluicegate_wire::capability::{PROTOCOL, UDP_PORT};

use super::{Error, Message, Socket, answers, hooked::interface, message};
use crate::classify::{ANSWER_RATE_PPS, ERROR_RATE_PPS, PEER_RATE_PPS, Rules, Side, Translated};

pub(super) const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
pub(super) const CREATE: u16 = REQUEST | libc::NLM_F_CREATE as u16;
pub(super) const APPEND: u16 = CREATE | libc::NLM_F_APPEND as u16;
const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

// Attributes of linux/netfilter/nf_tables.h.
pub(super) const TABLE_NAME: u16 = 1;
pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;

pub(super) const DROP: i32 = 0;
pub(super) const ACCEPT: i32 = 1;
pub(super) const GOTO: i32 = -4;

pub(super) const EQUAL: u32 = 0;
pub(super) const NOT_EQUAL: u32 = 1;
pub(super) const AT_MOST: u32 = 3;
pub(super) const AT_LEAST: u32 = 5;

pub(super) const NETWORK: u32 = 1;
pub(super) const TRANSPORT: u32 = 2;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

const CHAIN_GATE: &str = "gate";
const ERRORS: &str = "errors";
const ANSWERS: &str = "answers";
const INGRESS: u32 = 0;
/// Runs before everything else at the ingress hook.
const PRIORITY: i32 = -500;

/// What the filter counted since it was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IngressCounters {
    /// Packets for the gate's own host above the rate.
    pub local_rate: u64,
    /// Packets kept from the kernel that are the gate's to judge.
    pub kept_from_kernel: u64,
    /// Packets to the host that answer nothing it sent.
    pub strangers: u64,
}

/// An installed filter. Dropping the value leaves the filter in place; [`IngressFilter::remove`] takes it away.
#[derive(Debug)]
pub struct IngressFilter {
    table: String,
    socket: Socket,
    /// What it was made of, to make it again.
    interfaces: Vec<String>,
    rules: Rules,
}

impl IngressFilter {
    /// Installs, or atomically replaces, the filter `table` on `interfaces` (outside, then inside) of this network
    /// namespace.
    ///
    /// # Errors
    /// No such interface, no right to, or a kernel without the netdev family of nf_tables.
    pub fn install(table: &str, interfaces: &[&str], rules: &Rules) -> Result<Self, Error> {
        let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
        transact(&mut socket, "install the ingress filter", filter(table, interfaces, rules))?;
        let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
        Ok(Self { table: table.into(), socket, interfaces, rules: rules.clone() })
    }

    /// Reads the filter's counters. A filter that somebody removed (`nft flush ruleset` removes those of everybody) is
    /// installed again.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn counters(&mut self) -> Result<IngressCounters, Error> {
        let mut counters = IngressCounters::default();
        let mut request = Message::new(SUBSYSTEM | libc::NFT_MSG_GETRULE as u16, DUMP, &header(0));
        request.put_text(RULE_TABLE, &self.table);
        let mut stands = false;
        self.socket.dump("read the ingress filter's counters", request, &mut |received| {
            let payload = received.payload.get(4..).unwrap_or_default();
            stands = true;
            match chain_of(payload) {
                Some(b"own4" | b"own6" | b"gate") => counters.kept_from_kernel += counted(payload),
                Some(b"strangers") => counters.strangers += counted(payload),
                Some(_) => counters.local_rate += counted(payload),
                None => {}
            }
        })?;
        if !stands {
            tracing::error!(table = self.table, "somebody removed the gate's nf_tables filter; installing it again");
            let interfaces: Vec<&str> = self.interfaces.iter().map(String::as_str).collect();
            let batch = filter(&self.table, &interfaces, &self.rules);
            transact(&mut self.socket, "install the ingress filter again", batch)?;
        }
        Ok(counters)
    }

    /// Removes the filter: the kernel receives everything again.
    ///
    /// # Errors
    /// Those of netlink; a filter that is gone already is no error.
    pub fn remove(mut self) -> Result<(), Error> {
        remove(&mut self.socket, &self.table)
    }
}

/// All messages that make the filter, in place of a former one.
fn filter(table: &str, interfaces: &[&str], rules: &Rules) -> Vec<Message> {
    let ports = [interfaces.first().copied().unwrap_or_default(), interfaces.get(1).copied().unwrap_or_default()];
    let mut batch = vec![
        table_message(libc::NFT_MSG_NEWTABLE, table),
        table_message(libc::NFT_MSG_DELTABLE, table),
        table_message(libc::NFT_MSG_NEWTABLE, table),
    ];
    for chain in ["own4", "own6", CHAIN_GATE] {
        batch.push(chain_message(table, chain));
    }
    let rates = rules.local.iter().map(|local| local.rate_pps);
    let local = rates.enumerate().map(|(number, rate)| (rated("local", number), rate));
    let peers = (0..rules.peers.len()).map(|number| (rated("peer", number), PEER_RATE_PPS));
    let others = [(rated(ERRORS, 0), ERROR_RATE_PPS), (rated(ANSWERS, 0), ANSWER_RATE_PPS)];
    for (chain, rate_pps) in local.chain(peers).chain(others) {
        batch.push(chain_message(table, &chain));
        batch.push(rule(table, &chain, |rule| {
            limit(rule, rate_pps);
            verdict(rule, ACCEPT, None);
        }));
        batch.push(drop_rule(table, &chain));
    }
    answers::noting(&mut batch, table, rules, interfaces);
    own_host(&mut batch, table, rules, ports, false);
    own_host(&mut batch, table, rules, ports, true);
    gate(&mut batch, table, rules, ports);
    for (number, interface) in interfaces.iter().enumerate() {
        let name = format!("port{number}");
        batch.push(hooked_chain(table, &name, interface, (INGRESS, DROP)));
        batch.push(rule(table, &name, |rule| verdict(rule, GOTO, Some(CHAIN_GATE))));
    }
    batch
}

fn remove(socket: &mut Socket, table: &str) -> Result<(), Error> {
    match transact(socket, "remove the ingress filter", vec![table_message(libc::NFT_MSG_DELTABLE, table)]) {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}

/// The value of an attribute.
fn of(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    message::attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The chain of the rule in a dump message.
fn chain_of(payload: &[u8]) -> Option<&[u8]> {
    of(payload, RULE_CHAIN)?.strip_suffix(b"\0")
}

/// Packets counted by the rule of a dump message.
fn counted(payload: &[u8]) -> u64 {
    message::attributes(of(payload, RULE_EXPRESSIONS).unwrap_or_default())
        .filter(|(_, element)| of(element, EXPRESSION_NAME) == Some(b"counter\0"))
        .filter_map(|(_, element)| of(of(element, EXPRESSION_DATA)?, COUNTER_PACKETS))
        .filter_map(|packets| packets.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)))
        .sum()
}

/// The chain with the rate of one entry of `local` or `peers`.
fn rated(table: &str, number: usize) -> String {
    format!("{table}{number}")
}

/// Goes on if the packet came by this side of the gate's two ports.
fn side(rule: &mut Message, [outside, inside]: [&str; 2], side: Side) {
    match side {
        Side::Outside => interface(rule, libc::NFT_META_IIFNAME, outside),
        Side::Inside => interface(rule, libc::NFT_META_IIFNAME, inside),
        Side::Both => {}
    }
}

/// The chain that decides on packets for the host's own addresses.
fn own_host(batch: &mut Vec<Message>, table: &str, rules: &Rules, ports: [&str; 2], v6: bool) {
    let chain = if v6 { "own6" } else { "own4" };
    let (source_offset, destination_offset, protocol_offset) = if v6 { (8, 24, 6) } else { (12, 16, 9) };
    let address_len = if v6 { 16 } else { 4 };
    if !v6 {
        // A fragment is never local: its ports are elsewhere.
        batch.push(rule(table, chain, |rule| {
            payload(rule, NETWORK, 6, 2);
            mask(rule, &[0x3f, 0xff]);
            compare(rule, NOT_EQUAL, &[0, 0]);
            count(rule);
            verdict(rule, DROP, None);
        }));
    }
    for (number, peer) in rules.peers.iter().enumerate().filter(|(_, peer)| peer.remote.is_ipv6() == v6) {
        batch.push(rule(table, chain, |rule| {
            payload(rule, NETWORK, source_offset, address_len);
            compare(rule, EQUAL, &message::address_bytes(peer.remote.ip()));
            payload(rule, NETWORK, protocol_offset, 1);
            compare(rule, EQUAL, &[libc::IPPROTO_TCP as u8]);
            payload(rule, TRANSPORT, 0, 4);
            compare(rule, EQUAL, &[peer.remote.port().to_be_bytes(), peer.own_port.to_be_bytes()].concat());
            verdict(rule, GOTO, Some(&rated("peer", number)));
        }));
    }
    answers::passing(batch, table, chain, v6, &rated(ANSWERS, 0));
    icmp(batch, table, rules, v6);
    let of_family = |address: Option<IpAddr>| address.is_none_or(|address| address.is_ipv6() == v6);
    for (number, local) in rules.local.iter().enumerate().filter(|(_, local)| of_family(local.address)) {
        let icmp = local.protocol == libc::IPPROTO_ICMP as u8;
        let protocol = if icmp && v6 { libc::IPPROTO_ICMPV6 as u8 } else { local.protocol };
        batch.push(rule(table, chain, |rule| {
            side(rule, ports, local.side);
            if let Some(address) = local.address {
                payload(rule, NETWORK, destination_offset, address_len);
                compare(rule, EQUAL, &message::address_bytes(address));
            }
            payload(rule, NETWORK, protocol_offset, 1);
            compare(rule, EQUAL, &[protocol]);
            if !icmp {
                payload(rule, TRANSPORT, 2, 2);
                compare(rule, AT_LEAST, &local.first.to_be_bytes());
                compare(rule, AT_MOST, &local.last.to_be_bytes());
            }
            verdict(rule, GOTO, Some(&rated("local", number)));
        }));
    }
    answers::refusing(batch, table, chain, rules, v6);
    batch.push(drop_rule(table, chain));
}

/// Answers to translated pings, and errors about packets of translations or with a capability header, are not for the host;
/// errors about its own packets are.
fn icmp(batch: &mut Vec<Message>, table: &str, rules: &Rules, v6: bool) {
    let chain = if v6 { "own6" } else { "own4" };
    let within = |rule: &mut Message, ours: &Translated, at: u32| {
        payload(rule, NETWORK, 16, 4);
        compare(rule, EQUAL, &ours.address.octets());
        payload(rule, TRANSPORT, at, 2);
        compare(rule, AT_LEAST, &ours.first.to_be_bytes());
        compare(rule, AT_MOST, &ours.last.to_be_bytes());
    };
    let translated = rules.translated.filter(|_| !v6);
    if let Some(ours) = &translated {
        batch.push(rule(table, chain, |rule| {
            message_of_type(rule, v6, (0, 0));
            within(rule, ours, 4);
            keep(rule);
        }));
    }
    let transport = if v6 { 48 } else { 28 };
    // Unreachable, too big, time exceeded, wrong parameter.
    let errors: &[(u8, u8)] = if v6 { &[(1, 4)] } else { &[(3, 3), (11, 12)] };
    for kinds in errors {
        batch.push(rule(table, chain, |rule| {
            error_about(rule, v6, *kinds, PROTOCOL.0);
            keep(rule);
        }));
        for port in [transport, transport + 2] {
            batch.push(rule(table, chain, |rule| {
                error_about(rule, v6, *kinds, libc::IPPROTO_UDP as u8);
                payload(rule, TRANSPORT, port, 2);
                compare(rule, EQUAL, &UDP_PORT.to_be_bytes());
                keep(rule);
            }));
        }
        for (quoted, at) in
            [(libc::IPPROTO_TCP, 0), (libc::IPPROTO_UDP, 0), (libc::IPPROTO_ICMP, 4), (libc::IPPROTO_ICMPV6, 4)]
        {
            if let Some(ours) = &translated {
                batch.push(rule(table, chain, |rule| {
                    error_about(rule, v6, *kinds, quoted as u8);
                    within(rule, ours, transport + at);
                    keep(rule);
                }));
            }
            batch.push(rule(table, chain, |rule| {
                error_about(rule, v6, *kinds, quoted as u8);
                verdict(rule, GOTO, Some(&rated(ERRORS, 0)));
            }));
        }
    }
}

/// Goes on with an ICMP message of these types.
fn message_of_type(rule: &mut Message, v6: bool, (first, last): (u8, u8)) {
    let (offset, protocol) = if v6 { (6, libc::IPPROTO_ICMPV6) } else { (9, libc::IPPROTO_ICMP) };
    payload(rule, NETWORK, offset, 1);
    compare(rule, EQUAL, &[protocol as u8]);
    payload(rule, TRANSPORT, 0, 1);
    compare(rule, AT_LEAST, &[first]);
    compare(rule, AT_MOST, &[last]);
}

/// Goes on with an ICMP error that quotes an IP header without options, and of this protocol its ports or identifier.
fn error_about(rule: &mut Message, v6: bool, kinds: (u8, u8), quoted: u8) {
    message_of_type(rule, v6, kinds);
    payload(rule, TRANSPORT, 8, 1);
    if v6 {
        mask(rule, &[0xf0]);
    }
    compare(rule, EQUAL, &[if v6 { 0x60 } else { 0x45 }]);
    let (protocol, transport) = if v6 { (14, 48) } else { (17, 28) };
    payload(rule, TRANSPORT, protocol, 1);
    compare(rule, EQUAL, &[quoted]);
    // A rule ends where the packet does.
    match i32::from(quoted) {
        libc::IPPROTO_TCP | libc::IPPROTO_UDP => payload(rule, TRANSPORT, transport, 4),
        libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6 => payload(rule, TRANSPORT, transport + 4, 2),
        _ => {}
    }
}

/// The chain that every packet of both interfaces enters.
fn gate(batch: &mut Vec<Message>, table: &str, rules: &Rules, ports: [&str; 2]) {
    batch.push(rule(table, CHAIN_GATE, |rule| {
        ethertype(rule, ARP);
        verdict(rule, ACCEPT, None);
    }));
    batch.push(rule(table, CHAIN_GATE, |rule| {
        ethertype(rule, IPV6);
        // Next header ICMPv6, hop limit 255: nobody beyond the link can send that (RFC 4861 section 6.1). Who has an
        // address, not who is a router, nor redirects: neighbours would choose the host's routes.
        payload(rule, NETWORK, 6, 2);
        compare(rule, EQUAL, &[libc::IPPROTO_ICMPV6 as u8, 255]);
        payload(rule, TRANSPORT, 0, 1);
        compare(rule, AT_LEAST, &[135]);
        compare(rule, AT_MOST, &[136]);
        verdict(rule, ACCEPT, None);
    }));
    batch.push(rule(table, CHAIN_GATE, |rule| {
        ethertype(rule, IPV6);
        // Multicast listener discovery: hop-by-hop options, hop limit 1, link-local to a group (RFC 3810).
        payload(rule, NETWORK, 6, 2);
        compare(rule, EQUAL, &[0, 1]);
        payload(rule, NETWORK, 8, 2);
        mask(rule, &[0xff, 0xc0]);
        compare(rule, EQUAL, &[0xfe, 0x80]);
        payload(rule, NETWORK, 24, 1);
        compare(rule, EQUAL, &[0xff]);
        verdict(rule, ACCEPT, None);
    }));
    for own in &rules.own {
        let (kind, offset, len, chain) = match own.address {
            IpAddr::V4(_) => (IPV4, 16, 4, "own4"),
            IpAddr::V6(_) => (IPV6, 24, 16, "own6"),
        };
        batch.push(rule(table, CHAIN_GATE, |rule| {
            side(rule, ports, own.side);
            ethertype(rule, kind);
            payload(rule, NETWORK, offset, len);
            compare(rule, EQUAL, &message::address_bytes(own.address));
            verdict(rule, GOTO, Some(chain));
        }));
    }
    batch.push(drop_rule(table, CHAIN_GATE));
}

/// Sends all messages as one transaction: all happen or none.
pub(super) fn transact(socket: &mut Socket, what: &str, batch: Vec<Message>) -> Result<(), Error> {
    let begin = Message::new(BATCH_BEGIN, libc::NLM_F_REQUEST as u16, &batch_header());
    let mut bytes = begin.finish(socket.next_sequence());
    let count = batch.len() as u32;
    let mut first = None;
    for message in batch {
        let sequence = socket.next_sequence();
        first.get_or_insert(sequence);
        bytes.extend(message.finish(sequence));
    }
    let end = Message::new(BATCH_END, libc::NLM_F_REQUEST as u16, &batch_header());
    bytes.extend(end.finish(socket.next_sequence()));
    socket.send(&bytes)?;
    socket.answers(what, first.unwrap_or_default(), count, &mut |_| {})
}

/// `struct nfgenmsg` for the netdev family.
pub(super) fn header(resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [libc::NFPROTO_NETDEV as u8, 0, high, low]
}

fn batch_header() -> [u8; 4] {
    let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    [libc::AF_UNSPEC as u8, 0, high, low]
}

fn table_message(kind: libc::c_int, table: &str) -> Message {
    let flags = if kind == libc::NFT_MSG_NEWTABLE { CREATE } else { REQUEST };
    let mut message = Message::new(SUBSYSTEM | kind as u16, flags, &header(0));
    message.put_text(TABLE_NAME, table);
    message
}

pub(super) fn chain_message(table: &str, chain: &str) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_NEWCHAIN as u16, CREATE, &header(0));
    message.put_text(CHAIN_TABLE, table).put_text(CHAIN_NAME, chain);
    message
}

/// A chain at a hook of an interface, and what happens to packets that no rule decides on.
pub(super) fn hooked_chain(table: &str, chain: &str, device: &str, (hook, policy): (u32, i32)) -> Message {
    let mut message = chain_message(table, chain);
    message.nest(CHAIN_HOOK, |inner| {
        inner.put_be32(HOOK_NUMBER, hook).put_be32(HOOK_PRIORITY, PRIORITY as u32).put_text(HOOK_DEVICE, device);
    });
    message.put_be32(CHAIN_POLICY, policy as u32).put_text(CHAIN_TYPE, "filter");
    message
}

pub(super) fn rule(table: &str, chain: &str, expressions: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_NEWRULE as u16, APPEND, &header(0));
    message.put_text(RULE_TABLE, table).put_text(RULE_CHAIN, chain).nest(RULE_EXPRESSIONS, expressions);
    message
}

pub(super) fn drop_rule(table: &str, chain: &str) -> Message {
    rule(table, chain, |rule| {
        keep(rule);
    })
}

pub(super) fn expression(rule: &mut Message, name: &str, data: impl FnOnce(&mut Message)) {
    rule.nest(LIST_ELEMENT, |element| {
        element.put_text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, data);
    });
}

/// Loads `len` bytes at `offset` of a header into register 1.
pub(super) fn payload(rule: &mut Message, base: u32, offset: u32, len: u32) {
    payload_into(rule, 1, base, offset, len);
}

pub(super) fn payload_into(rule: &mut Message, register: u32, base: u32, offset: u32, len: u32) {
    expression(rule, "payload", |data| {
        data.put_be32(1, register).put_be32(2, base).put_be32(3, offset).put_be32(4, len);
    });
}

pub(super) fn compare(rule: &mut Message, operation: u32, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.put_be32(1, 1).put_be32(2, operation).nest(3, |inner| {
            inner.put(1, value);
        });
    });
}

pub(super) fn mask(rule: &mut Message, bits: &[u8]) {
    expression(rule, "bitwise", |data| {
        data.put_be32(1, 1).put_be32(2, 1).put_be32(3, bits.len() as u32);
        data.nest(4, |inner| {
            inner.put(1, bits);
        });
        data.nest(5, |inner| {
            inner.put(1, &vec![0; bits.len()]);
        });
    });
}

pub(super) fn ethertype(rule: &mut Message, value: u16) {
    expression(rule, "meta", |data| {
        data.put_be32(2, libc::NFT_META_PROTOCOL as u32).put_be32(1, 1);
    });
    compare(rule, EQUAL, &value.to_be_bytes());
}

pub(super) fn verdict(rule: &mut Message, code: i32, chain: Option<&str>) {
    expression(rule, "immediate", |data| {
        data.put_be32(1, 0).nest(2, |inner| {
            inner.nest(2, |verdict| {
                verdict.put_be32(1, code as u32);
                if let Some(chain) = chain {
                    verdict.put_text(2, chain);
                }
            });
        });
    });
}

/// Counts the packet and keeps it from the kernel.
pub(super) fn keep(rule: &mut Message) {
    count(rule);
    verdict(rule, DROP, None);
}

fn count(rule: &mut Message) {
    expression(rule, "counter", |_| {});
}

/// Lets a tenth of a second's worth through at once, and `rate_pps` packets per second in the long run.
fn limit(rule: &mut Message, rate_pps: u32) {
    expression(rule, "limit", |data| {
        data.put_be64(1, u64::from(rate_pps.max(1))).put_be64(2, 1).put_be32(3, (rate_pps / 10).max(1)).put_be32(4, 0);
    });
}
