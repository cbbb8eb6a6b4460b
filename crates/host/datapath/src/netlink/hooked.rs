//! nf_tables chains at the hooks of a protocol family: tables, chains, rules.

use super::{
    Message,
    ingress::{
        ACCEPT, APPEND, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_TYPE, CREATE, EQUAL, HOOK_NUMBER,
        HOOK_PRIORITY, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, SUBSYSTEM, TABLE_NAME, compare, expression,
    },
};

pub(super) const HOOK_FORWARD: u32 = 2;
pub(super) const PRIORITY_FILTER: i32 = 0;

/// `struct nfgenmsg`.
fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// `kind` is `NFT_MSG_NEWTABLE` or `NFT_MSG_DELTABLE`.
pub(super) fn table(family: u8, kind: libc::c_int, table: &str) -> Message {
    let mut message = Message::new(SUBSYSTEM | kind as u16, CREATE, &header(family));
    message.put_text(TABLE_NAME, table);
    message
}

/// A chain at a hook (type, number, priority) that accepts what no rule decides on.
pub(super) fn chain(family: u8, table: &str, name: &str, (kind, hook, priority): (&str, u32, i32)) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_NEWCHAIN as u16, CREATE, &header(family));
    message.put_text(CHAIN_TABLE, table).put_text(CHAIN_NAME, name).nest(CHAIN_HOOK, |inner| {
        inner.put_be32(HOOK_NUMBER, hook).put_be32(HOOK_PRIORITY, priority as u32);
    });
    message.put_be32(CHAIN_POLICY, ACCEPT as u32).put_text(CHAIN_TYPE, kind);
    message
}

pub(super) fn rule(family: u8, table: &str, chain: &str, expressions: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_NEWRULE as u16, APPEND, &header(family));
    message.put_text(RULE_TABLE, table).put_text(RULE_CHAIN, chain).nest(RULE_EXPRESSIONS, expressions);
    message
}

/// Takes all rules out of a chain.
pub(super) fn flush(family: u8, table: &str, chain: &str) -> Message {
    let mut message = Message::new(SUBSYSTEM | libc::NFT_MSG_DELRULE as u16, CREATE, &header(family));
    message.put_text(RULE_TABLE, table).put_text(RULE_CHAIN, chain);
    message
}

/// Goes on if the packet's interface (`key`: incoming or outgoing) is `name`.
pub(super) fn interface(rule: &mut Message, key: libc::c_int, name: &str) {
    expression(rule, "meta", |data| {
        data.put_be32(2, key as u32).put_be32(1, 1);
    });
    let mut padded = [0; libc::IFNAMSIZ];
    for (to, from) in padded.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    compare(rule, EQUAL, &padded);
}

/// Loads the number of the packet's interface (`key`: incoming or outgoing) into a register.
pub(super) fn interface_number(rule: &mut Message, key: libc::c_int, register: u32) {
    expression(rule, "meta", |data| {
        data.put_be32(2, key as u32).put_be32(1, register);
    });
}

/// Goes on if the packet has this mark.
pub(super) fn marked(rule: &mut Message, mark: i32) {
    expression(rule, "meta", |data| {
        data.put_be32(2, libc::NFT_META_MARK as u32).put_be32(1, 1);
    });
    compare(rule, EQUAL, &mark.to_ne_bytes());
}
