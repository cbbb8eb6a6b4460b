//! Answers to what the gate's host itself sent: the egress hook of both interfaces notes where the host sent to, and the
//! ingress filter lets pass what comes back from there.
//!
//! The kernel notes a packet before it leaves, so no answer can be faster. Only the host makes entries: a stranger's
//! packet is compared with them and changes none, so a flood neither opens nor fills anything. What leaves from a port
//! that `local` lists is not noted: those ports are open, and a flood there would make the host fill the table with its
//! answers to forged addresses.

use sluicegate_netlink::nft::{Batch, Header, Rule};
use sluicegate_wire::capability::UDP_PORT;

use super::{Family, V4, V6, drop_all, hook};
use crate::{
    classify::{FLOWS_MAX, Rules, Side},
    sys::MARK,
};

/// The first of the 32-bit registers; the key lies in a row of them.
const KEY: u32 = libc::NFT_REG32_00 as u32;

/// An opening or closing TCP connection, and what was asked in UDP (RFC 4787 REQ-5).
const SHORT_MS: u64 = 120_000;
/// An established connection may be silent for so long (RFC 5382 REQ-5).
const ESTABLISHED_MS: u64 = 7_440_000;
const PING_MS: u64 = 30_000;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// The chain in which packets to the host end that answer nothing it sent.
pub(super) const STRANGERS: &str = "strangers";

impl Family {
    /// Interface, remote and own address, protocol, and two ports: each in whole registers.
    const fn key_len(&self) -> u32 {
        4 + 2 * self.address_len + 3 * 4
    }

    /// Loads the key: by which interface, with whom, from which own address, and where the ports lie in the transport header.
    fn key<'a>(
        &self,
        rule: &'a mut Rule,
        interface: libc::c_int,
        [remote, own]: [u32; 2],
        [remote_port, own_port]: [u32; 2],
    ) -> &'a mut Rule {
        let words = self.address_len / 4;
        rule.load_meta(KEY, interface)
            .load(KEY + 1, Header::Network, remote, self.address_len)
            .load(KEY + 1 + words, Header::Network, own, self.address_len)
            .load(KEY + 1 + 2 * words, Header::Network, self.protocol, 1)
            .load(KEY + 2 + 2 * words, Header::Transport, remote_port, 2)
            .load(KEY + 3 + 2 * words, Header::Transport, own_port, 2)
    }

    /// Notes where this packet goes, and ends there.
    fn note<'a>(&self, rule: &'a mut Rule, ports: [u32; 2], timeout_ms: u64) -> &'a mut Rule {
        let addresses = [self.destination, self.source];
        self.key(rule, libc::NFT_META_OIF, addresses, ports).list(self.set, KEY, timeout_ms).accept()
    }

    /// Goes on if the host sent there.
    fn lookup<'a>(&self, rule: &'a mut Rule, ports: [u32; 2]) -> &'a mut Rule {
        self.key(rule, libc::NFT_META_IIF, [self.source, self.destination], ports).listed(self.set, KEY)
    }
}

/// Goes on if the port at this place of the transport header is one of these.
fn port_within(rule: &mut Rule, at: u32, first: u16, last: u16) -> &mut Rule {
    rule.transport(at, 2).within(&first.to_be_bytes(), &last.to_be_bytes())
}

/// Counts the packet and keeps it from the kernel.
fn keep(rule: &mut Rule) -> &mut Rule {
    rule.count().drop()
}

/// The tables of flows and the chains that fill them.
pub(super) fn noting(batch: &mut Batch, rules: &Rules, ports: &[&str]) {
    for (id, family) in [(1, V4), (2, V6)] {
        batch.set(family.set, id, family.key_len(), FLOWS_MAX).chain(family.from);
        from_host(batch, family, rules, ports);
    }
    for (number, port) in ports.iter().enumerate() {
        let chain = format!("sent{number}");
        batch.base_chain(&chain, hook(port, libc::NF_NETDEV_EGRESS));
        batch.rule(&chain, |rule| rule.marked(MARK).accept());
        for own in &rules.own {
            let family = Family::of(own.address);
            batch.rule(&chain, |rule| family.address(rule, family.source, own.address).go_to(family.from));
        }
    }
    drop_all(batch.chain(STRANGERS), STRANGERS);
}

/// What leaves from one of the host's addresses.
fn from_host(batch: &mut Batch, family: &Family, rules: &Rules, ports: &[&str]) {
    let chain = family.from;
    let icmp = libc::IPPROTO_ICMP as u8;
    for local in rules.local.iter().filter(|local| local.protocol != icmp) {
        batch.rule(chain, |rule| {
            if local.side != Side::Both {
                rule.leaves_by(ports.get(usize::from(local.side == Side::Inside)).copied().unwrap_or_default());
            }
            port_within(family.is(rule, local.protocol), 0, local.first, local.last).accept()
        });
    }
    gates_own(batch, chain, family, rules, false);
    batch.rule(chain, |rule| {
        family.note(family.is(rule, family.icmp).transport(0, 1).equal(&[family.echo]), [4, 4], PING_MS)
    });
    batch.rule(chain, |rule| family.note(family.is(rule, UDP), [2, 0], SHORT_MS));
    batch.rule(chain, |rule| {
        // FIN, SYN, RST.
        let is_short = family.is(rule, TCP).transport(13, 1).mask(&[0x07]).not_equal(&[0]);
        family.note(is_short, [2, 0], SHORT_MS)
    });
    batch.rule(chain, |rule| family.note(family.is(rule, TCP), [2, 0], ESTABLISHED_MS));
}

/// What the gate sends and receives under the host's addresses for others: nothing of it is the host's.
fn gates_own(batch: &mut Batch, chain: &str, family: &Family, rules: &Rules, arrives: bool) {
    let end = if arrives { keep } else { Rule::accept };
    for at in [0, 2] {
        batch.rule(chain, |rule| end(port_within(family.is(rule, UDP), at, UDP_PORT, UDP_PORT)));
    }
    let Some(ours) = rules.translated.filter(|_| !family.v6) else { return };
    let (address, port) = if arrives { (family.destination, 2) } else { (family.source, 0) };
    for protocol in [TCP, UDP] {
        batch.rule(chain, |rule| {
            rule.network(address, 4).equal(&ours.address.octets());
            end(port_within(family.is(rule, protocol), port, ours.first, ours.last))
        });
    }
}

/// Lets answers pass to the host: the first rules about its addresses.
pub(super) fn passing(batch: &mut Batch, family: &Family, answers: &str) {
    let chain = family.own;
    for protocol in [TCP, UDP] {
        batch.rule(chain, |rule| family.lookup(family.is(rule, protocol), [0, 2]).go_to(answers));
    }
    batch.rule(chain, |rule| {
        let is_reply = family.is(rule, family.icmp).transport(0, 1).equal(&[family.reply]);
        family.lookup(is_reply, [4, 4]).go_to(answers)
    });
}

/// Ends what could have been an answer and is none, apart from what is the gate's.
pub(super) fn refusing(batch: &mut Batch, family: &Family, rules: &Rules) {
    let chain = family.own;
    gates_own(batch, chain, family, rules, true);
    for protocol in [TCP, UDP] {
        batch.rule(chain, |rule| family.is(rule, protocol).transport(0, 4).go_to(STRANGERS));
    }
    batch.rule(chain, |rule| {
        family.is(rule, family.icmp).transport(0, 1).equal(&[family.reply]).transport(4, 2).go_to(STRANGERS)
    });
}
