//! nf_tables: tables, chains and rules as transactions, and those of them that hosts of agents and gates need.

mod forward;
mod masquerade;
mod rule;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};
use netlink_sys::protocols::NETLINK_NETFILTER;

pub use forward::{allow_forwarding, forbid_forwarding};
pub use masquerade::{Unheard, masquerade, untrack};
pub(crate) use rule::counted;
pub use rule::{Header, Rule};

use crate::{
    Error,
    message::{self, Attributes, Message},
    socket::{Answer, Socket},
};

const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;

// Attributes of linux/netfilter/nf_tables.h.
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DESCRIPTION: u16 = 9;
const SET_DESCRIPTION_SIZE: u16 = 1;
const SET_ID: u16 = 10;

/// `NFT_TABLE_F_OWNER`: the table goes with the socket.
const OWNED: u32 = 2;
/// Entries end by themselves, and rules make them.
const TIMEOUT_AND_EVAL: u32 = (libc::NFT_SET_TIMEOUT | libc::NFT_SET_EVAL) as u32;

/// Where a base chain hangs, and what becomes of packets that no rule decides on.
#[derive(Debug, Clone, Copy)]
pub struct Hook<'a> {
    /// `filter` or `nat`.
    pub kind: &'a str,
    /// The hook's number in its family.
    pub number: libc::c_int,
    /// Chains of lower numbers see packets first.
    pub priority: i32,
    /// The interface, in the netdev family.
    pub device: Option<&'a str>,
    /// Packets that no rule decides on are dropped.
    pub drops: bool,
}

impl Hook<'static> {
    /// A hook of a protocol family, where packets that no rule decides on go on.
    #[must_use]
    pub const fn new(kind: &'static str, number: libc::c_int, priority: i32) -> Self {
        Self { kind, number, priority, device: None, drops: false }
    }
}

/// Changes to one table that happen all together or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    family: u8,
    table: String,
    messages: Vec<Message>,
}

impl Batch {
    /// No changes yet. The family is one of `NFPROTO_*`.
    #[must_use]
    pub fn new(family: libc::c_int, table: &str) -> Self {
        Self { family: family as u8, table: table.to_owned(), messages: Vec::new() }
    }

    fn push(&mut self, kind: libc::c_int, flags: u16, attributes: Attributes) -> &mut Self {
        self.messages.push(Message::new(SUBSYSTEM | kind as u16, flags, &header(self.family), attributes));
        self
    }

    /// Attributes that begin with the table's name.
    fn of_table(&self, kind: u16) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.put_text(kind, &self.table);
        attributes
    }

    /// Makes the table, empty in place of a former one. It belongs to nobody, so it outlives every process.
    pub fn replace_table(&mut self) -> &mut Self {
        let table = self.of_table(TABLE_NAME);
        // Only what exists can be deleted.
        self.push(libc::NFT_MSG_NEWTABLE, NLM_F_CREATE, table.clone()).delete_table();
        self.push(libc::NFT_MSG_NEWTABLE, NLM_F_CREATE, table)
    }

    /// Makes a table that ends with the connection, and with its process.
    pub fn create_owned_table(&mut self) -> &mut Self {
        let mut table = self.of_table(TABLE_NAME);
        table.put_u32(TABLE_FLAGS, OWNED);
        self.push(libc::NFT_MSG_NEWTABLE, NLM_F_CREATE, table)
    }

    /// Removes the table and all that is in it.
    pub fn delete_table(&mut self) -> &mut Self {
        self.push(libc::NFT_MSG_DELTABLE, 0, self.of_table(TABLE_NAME))
    }

    /// Makes a chain to which rules lead.
    pub fn chain(&mut self, name: &str) -> &mut Self {
        let mut chain = self.of_table(CHAIN_TABLE);
        chain.put_text(CHAIN_NAME, name);
        self.push(libc::NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain)
    }

    /// Makes a chain at a hook.
    pub fn base_chain(&mut self, name: &str, hook: Hook<'_>) -> &mut Self {
        let mut chain = self.of_table(CHAIN_TABLE);
        chain.put_text(CHAIN_NAME, name).put_text(CHAIN_TYPE, hook.kind).nest(CHAIN_HOOK, |inner| {
            inner.put_u32(HOOK_NUMBER, hook.number as u32).put_u32(HOOK_PRIORITY, hook.priority as u32);
            if let Some(device) = hook.device {
                inner.put_text(HOOK_DEVICE, device);
            }
        });
        chain.put_u32(CHAIN_POLICY, if hook.drops { libc::NF_DROP } else { libc::NF_ACCEPT } as u32);
        self.push(libc::NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain)
    }

    /// Adds a rule behind the others of a chain.
    pub fn rule(&mut self, chain: &str, fill: impl FnOnce(&mut Rule) -> &mut Rule) -> &mut Self {
        let mut expressions = Rule::default();
        fill(&mut expressions);
        let mut rule = self.of_table(RULE_TABLE);
        rule.put_text(RULE_CHAIN, chain).put_all(RULE_EXPRESSIONS, &expressions.0);
        self.push(libc::NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, rule)
    }

    /// Takes all rules out of a chain.
    pub fn flush(&mut self, chain: &str) -> &mut Self {
        let mut rules = self.of_table(RULE_TABLE);
        rules.put_text(RULE_CHAIN, chain);
        self.push(libc::NFT_MSG_DELRULE, 0, rules)
    }

    /// Makes a set of at most `size` keys of `key_len` bytes, which rules fill and which end by themselves. `id` tells the
    /// sets of one batch apart.
    pub fn set(&mut self, name: &str, id: u32, key_len: u32, size: u32) -> &mut Self {
        let mut set = self.of_table(SET_TABLE);
        set.put_text(SET_NAME, name)
            .put_u32(SET_FLAGS, TIMEOUT_AND_EVAL)
            .put_u32(SET_KEY_TYPE, 0)
            .put_u32(SET_KEY_LEN, key_len)
            .put_u32(SET_ID, id)
            .nest(SET_DESCRIPTION, |description| {
                description.put_u32(SET_DESCRIPTION_SIZE, size);
            });
        self.push(libc::NFT_MSG_NEWSET, NLM_F_CREATE, set)
    }

    /// Adds the changes of `other`, to the same or another table.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.messages.extend(other.messages);
        self
    }
}

/// What a rule counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's chain.
    pub chain: String,
    /// Packets that came to a counter of it.
    pub packets: u64,
}

/// A connection to nf_tables in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// Connects, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(NETLINK_NETFILTER, 0)? })
    }

    /// Makes the changes: all of them, or none. `request` completes "the kernel refused to …".
    ///
    /// # Errors
    /// No right to, or a kernel without nf_tables or without one of the expressions.
    pub fn commit(&mut self, request: &str, batch: &Batch) -> Result<(), Error> {
        let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
        let [begin, end] = [libc::NFNL_MSG_BATCH_BEGIN, libc::NFNL_MSG_BATCH_END]
            .map(|kind| Message::new(kind as u16, 0, &[libc::AF_UNSPEC as u8, 0, high, low], Attributes::default()));
        self.socket.transact(request, &batch.messages, [&begin, &end])
    }

    /// What the rules of a table counted, in their order; nothing where there is no such table.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn counts(&mut self, family: libc::c_int, table: &str) -> Result<Vec<RuleCount>, Error> {
        let mut attributes = Attributes::default();
        attributes.put_text(RULE_TABLE, table);
        let kind = SUBSYSTEM | libc::NFT_MSG_GETRULE as u16;
        let message = Message::new(kind, 0, &header(family as u8), attributes);
        let request = format!("read the counters of the table {table}");
        self.socket.dump(&request, &message, |counts: &mut Vec<RuleCount>, answer: Answer<'_>| {
            let rule = answer.payload.get(header(0).len()..).unwrap_or_default();
            if let Some(chain) = message::value(rule, RULE_CHAIN).map(message::text) {
                counts.push(RuleCount { chain, packets: counted(message::value(rule, RULE_EXPRESSIONS)) });
            }
        })
    }
}

/// `struct nfgenmsg`.
const fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}
