//! Answers to what the gate's host itself sent: the egress hook of both interfaces notes where the host sent to, and the
//! ingress filter lets pass what comes back from there.
//!
//! The kernel notes a packet before it leaves, so no answer can be faster. Only the host makes entries: a stranger's
//! packet is compared with them and changes none, so a flood neither opens nor fills anything. What leaves from a port
//! that `local` lists is not noted: those ports are open, and a flood there would make the host fill the table with its
//! answers to forged addresses.

use sluicegate_wire::capability::UDP_PORT;

use super::{
    Message,
    hooked::{interface, interface_number, marked},
    ingress::{
        ACCEPT, AT_LEAST, AT_MOST, CREATE, EQUAL, GOTO, IPV4, IPV6, NETWORK, NOT_EQUAL, SUBSYSTEM, TRANSPORT,
        chain_message, compare, drop_rule, ethertype, expression, header, hooked_chain, keep, mask, payload,
        payload_into, rule, verdict,
    },
    message,
};
use crate::{
    classify::{FLOWS_MAX, Rules, Side},
    sys::MARK,
};

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
/// Entries end by themselves, and rules make them.
const TIMEOUT_AND_EVAL: u32 = 0x10 | 0x20;
const UPDATE: u32 = 1;
const EGRESS: u32 = 1;
/// The first of the 32-bit registers; the key lies in a row of them.
const KEY: u32 = 8;

/// An opening or closing TCP connection, and what was asked in UDP (RFC 4787 REQ-5).
const SHORT_MS: u64 = 120_000;
/// An established connection may be silent for so long (RFC 5382 REQ-5).
const ESTABLISHED_MS: u64 = 7_440_000;
const PING_MS: u64 = 30_000;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// The chain in which packets to the host end that answer nothing it sent.
pub(super) const STRANGERS: &str = "strangers";

/// What differs between the two families.
#[derive(Clone, Copy)]
struct Family {
    v6: bool,
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

const V4: Family = Family {
    v6: false,
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
const V6: Family = Family {
    v6: true,
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

const fn family(v6: bool) -> Family {
    if v6 { V6 } else { V4 }
}

impl Family {
    /// Interface, remote and own address, protocol, and two ports: each in whole registers.
    const fn key_len(self) -> u32 {
        4 + 2 * self.address_len + 3 * 4
    }

    /// Goes on with packets of this protocol.
    fn is(self, rule: &mut Message, protocol: u8) {
        payload(rule, NETWORK, self.protocol, 1);
        compare(rule, EQUAL, &[protocol]);
    }

    /// Loads the key: by which interface, with whom, from which own address, and where the ports lie in the transport header.
    fn key(
        self,
        rule: &mut Message,
        interface: libc::c_int,
        [remote, own]: [u32; 2],
        [remote_port, own_port]: [u32; 2],
    ) {
        let words = self.address_len / 4;
        interface_number(rule, interface, KEY);
        payload_into(rule, KEY + 1, NETWORK, remote, self.address_len);
        payload_into(rule, KEY + 1 + words, NETWORK, own, self.address_len);
        payload_into(rule, KEY + 1 + 2 * words, NETWORK, self.protocol, 1);
        payload_into(rule, KEY + 2 + 2 * words, TRANSPORT, remote_port, 2);
        payload_into(rule, KEY + 3 + 2 * words, TRANSPORT, own_port, 2);
    }

    /// Notes where this packet goes, and ends there.
    fn note(self, rule: &mut Message, ports: [u32; 2], timeout_ms: u64) {
        self.key(rule, libc::NFT_META_OIF, [self.destination, self.source], ports);
        expression(rule, "dynset", |data| {
            data.put_text(1, self.set).put_be32(3, UPDATE).put_be32(4, KEY).put_be64(6, timeout_ms);
        });
        verdict(rule, ACCEPT, None);
    }

    /// Goes on if the host sent there.
    fn lookup(self, rule: &mut Message, ports: [u32; 2]) {
        self.key(rule, libc::NFT_META_IIF, [self.source, self.destination], ports);
        expression(rule, "lookup", |data| {
            data.put_text(1, self.set).put_be32(2, KEY);
        });
    }
}

/// Goes on if the port at this place of the transport header is one of these.
fn port_within(rule: &mut Message, at: u32, first: u16, last: u16) {
    payload(rule, TRANSPORT, at, 2);
    compare(rule, AT_LEAST, &first.to_be_bytes());
    compare(rule, AT_MOST, &last.to_be_bytes());
}

/// The tables of flows and the chains that fill them.
pub(super) fn noting(batch: &mut Vec<Message>, table: &str, rules: &Rules, ports: &[&str]) {
    for family in [V4, V6] {
        batch.push(set(table, family));
        batch.push(chain_message(table, family.from));
        from_host(batch, table, family, rules, ports);
    }
    for (number, port) in ports.iter().enumerate() {
        let chain = format!("sent{number}");
        batch.push(hooked_chain(table, &chain, port, (EGRESS, ACCEPT)));
        batch.push(rule(table, &chain, |rule| {
            marked(rule, MARK);
            verdict(rule, ACCEPT, None);
        }));
        for own in &rules.own {
            let family = family(own.address.is_ipv6());
            batch.push(rule(table, &chain, |rule| {
                ethertype(rule, if family.v6 { IPV6 } else { IPV4 });
                payload(rule, NETWORK, family.source, family.address_len);
                compare(rule, EQUAL, &message::address_bytes(own.address));
                verdict(rule, GOTO, Some(family.from));
            }));
        }
    }
    batch.push(chain_message(table, STRANGERS));
    batch.push(drop_rule(table, STRANGERS));
}

fn set(table: &str, family: Family) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_NEWSET as u16, CREATE, &header(0));
    message
        .put_text(SET_TABLE, table)
        .put_text(SET_NAME, family.set)
        .put_be32(SET_FLAGS, TIMEOUT_AND_EVAL)
        .put_be32(SET_KEY_TYPE, 0)
        .put_be32(SET_KEY_LEN, family.key_len())
        .put_be32(SET_ID, 1 + u32::from(family.v6))
        .nest(SET_DESCRIPTION, |description| {
            description.put_be32(1, FLOWS_MAX);
        });
    message
}

/// What leaves from one of the host's addresses.
fn from_host(batch: &mut Vec<Message>, table: &str, family: Family, rules: &Rules, ports: &[&str]) {
    let chain = family.from;
    let icmp = libc::IPPROTO_ICMP as u8;
    for local in rules.local.iter().filter(|local| local.protocol != icmp) {
        batch.push(rule(table, chain, |rule| {
            if local.side != Side::Both {
                let port = ports.get(usize::from(local.side == Side::Inside)).copied().unwrap_or_default();
                interface(rule, libc::NFT_META_OIFNAME, port);
            }
            family.is(rule, local.protocol);
            port_within(rule, 0, local.first, local.last);
            verdict(rule, ACCEPT, None);
        }));
    }
    gates_own(batch, table, chain, family, rules, false);
    batch.push(rule(table, chain, |rule| {
        family.is(rule, family.icmp);
        payload(rule, TRANSPORT, 0, 1);
        compare(rule, EQUAL, &[family.echo]);
        family.note(rule, [4, 4], PING_MS);
    }));
    batch.push(rule(table, chain, |rule| {
        family.is(rule, UDP);
        family.note(rule, [2, 0], SHORT_MS);
    }));
    batch.push(rule(table, chain, |rule| {
        family.is(rule, TCP);
        payload(rule, TRANSPORT, 13, 1);
        // FIN, SYN, RST.
        mask(rule, &[0x07]);
        compare(rule, NOT_EQUAL, &[0]);
        family.note(rule, [2, 0], SHORT_MS);
    }));
    batch.push(rule(table, chain, |rule| {
        family.is(rule, TCP);
        family.note(rule, [2, 0], ESTABLISHED_MS);
    }));
}

/// What the gate sends and receives under the host's addresses for others: nothing of it is the host's.
fn gates_own(batch: &mut Vec<Message>, table: &str, chain: &str, family: Family, rules: &Rules, arrives: bool) {
    let mut end = |what: &dyn Fn(&mut Message)| {
        batch.push(rule(table, chain, |rule| {
            what(rule);
            if arrives {
                keep(rule);
            } else {
                verdict(rule, ACCEPT, None);
            }
        }));
    };
    for at in [0, 2] {
        end(&|rule| {
            family.is(rule, UDP);
            port_within(rule, at, UDP_PORT, UDP_PORT);
        });
    }
    let Some(ours) = rules.translated.filter(|_| !family.v6) else { return };
    let (address, port) = if arrives { (family.destination, 2) } else { (family.source, 0) };
    for protocol in [TCP, UDP] {
        end(&|rule| {
            payload(rule, NETWORK, address, 4);
            compare(rule, EQUAL, &ours.address.octets());
            family.is(rule, protocol);
            port_within(rule, port, ours.first, ours.last);
        });
    }
}

/// Lets answers pass to the host: the first rules about its addresses.
pub(super) fn passing(batch: &mut Vec<Message>, table: &str, chain: &str, v6: bool, answers: &str) {
    let family = family(v6);
    for protocol in [TCP, UDP] {
        batch.push(rule(table, chain, |rule| {
            family.is(rule, protocol);
            family.lookup(rule, [0, 2]);
            verdict(rule, GOTO, Some(answers));
        }));
    }
    batch.push(rule(table, chain, |rule| {
        family.is(rule, family.icmp);
        payload(rule, TRANSPORT, 0, 1);
        compare(rule, EQUAL, &[family.reply]);
        family.lookup(rule, [4, 4]);
        verdict(rule, GOTO, Some(answers));
    }));
}

/// Ends what could have been an answer and is none, apart from what is the gate's.
pub(super) fn refusing(batch: &mut Vec<Message>, table: &str, chain: &str, rules: &Rules, v6: bool) {
    let family = family(v6);
    gates_own(batch, table, chain, family, rules, true);
    for protocol in [TCP, UDP] {
        batch.push(rule(table, chain, |rule| {
            family.is(rule, protocol);
            payload(rule, TRANSPORT, 0, 4);
            verdict(rule, GOTO, Some(STRANGERS));
        }));
    }
    batch.push(rule(table, chain, |rule| {
        family.is(rule, family.icmp);
        payload(rule, TRANSPORT, 0, 1);
        compare(rule, EQUAL, &[family.reply]);
        payload(rule, TRANSPORT, 4, 2);
        verdict(rule, GOTO, Some(STRANGERS));
    }));
}
