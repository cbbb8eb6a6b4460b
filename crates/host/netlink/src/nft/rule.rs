//! What a rule is made of: expressions that load parts of a packet into registers, compare them, and decide.

use libc::c_int;

use crate::message::{self, Attributes};

// Attributes of linux/netfilter/nf_tables.h.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const COUNTER_PACKETS: u16 = 2;
const META_DREG: u16 = 1;
const META_KEY: u16 = 2;

/// The register for values that are compared at once; a whole address fits.
const VALUE: u32 = libc::NFT_REG_1 as u32;

/// A header of the packet, from whose start bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// IPv4 or IPv6.
    Network,
    /// What follows, extension headers of IPv6 apart.
    Transport,
}

/// A rule under construction. Each method adds one expression; the rule goes on to the next while they fit the packet.
#[derive(Debug, Clone, Default)]
pub struct Rule(pub(super) Attributes);

impl Rule {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Attributes)) -> &mut Self {
        self.0.nest(LIST_ELEMENT, |element| {
            element.put_text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, data);
        });
        self
    }

    /// Loads `len` bytes at `offset` of the network header, to be compared.
    pub fn network(&mut self, offset: u32, len: u32) -> &mut Self {
        self.load(VALUE, Header::Network, offset, len)
    }

    /// Loads `len` bytes at `offset` of the transport header, to be compared.
    pub fn transport(&mut self, offset: u32, len: u32) -> &mut Self {
        self.load(VALUE, Header::Transport, offset, len)
    }

    /// Loads `len` bytes at `offset` of a header into a register. The rule ends where the packet does.
    pub fn load(&mut self, register: u32, header: Header, offset: u32, len: u32) -> &mut Self {
        let base = match header {
            Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER,
            Header::Transport => libc::NFT_PAYLOAD_TRANSPORT_HEADER,
        };
        self.expression("payload", |data| {
            data.put_u32(1, register).put_u32(2, base as u32).put_u32(3, offset).put_u32(4, len);
        })
    }

    /// Loads what the kernel knows of the packet (`NFT_META_*`) into a register.
    pub fn load_meta(&mut self, register: u32, key: c_int) -> &mut Self {
        self.expression("meta", |data| {
            data.put_u32(META_DREG, register).put_u32(META_KEY, key as u32);
        })
    }

    /// Puts a number into a register.
    pub fn load_number(&mut self, register: u32, number: u32) -> &mut Self {
        self.expression("immediate", |data| {
            data.put_u32(1, register).nest(2, |inner| {
                inner.put(DATA_VALUE, &number.to_be_bytes());
            });
        })
    }

    fn compare(&mut self, operation: c_int, value: &[u8]) -> &mut Self {
        self.expression("cmp", |data| {
            data.put_u32(1, VALUE).put_u32(2, operation as u32).nest(3, |inner| {
                inner.put(DATA_VALUE, value);
            });
        })
    }

    /// What was loaded is this.
    pub fn equal(&mut self, value: &[u8]) -> &mut Self {
        self.compare(libc::NFT_CMP_EQ, value)
    }

    /// What was loaded is something else.
    pub fn not_equal(&mut self, value: &[u8]) -> &mut Self {
        self.compare(libc::NFT_CMP_NEQ, value)
    }

    /// What was loaded is one of these, as numbers in network byte order.
    pub fn within(&mut self, first: &[u8], last: &[u8]) -> &mut Self {
        self.compare(libc::NFT_CMP_GTE, first).compare(libc::NFT_CMP_LTE, last)
    }

    /// Leaves only these bits of what was loaded.
    pub fn mask(&mut self, bits: &[u8]) -> &mut Self {
        self.expression("bitwise", |data| {
            data.put_u32(1, VALUE).put_u32(2, VALUE).put_u32(3, bits.len() as u32);
            data.nest(4, |mask| {
                mask.put(DATA_VALUE, bits);
            });
            data.nest(5, |flipped| {
                flipped.put(DATA_VALUE, &vec![0; bits.len()]);
            });
        })
    }

    /// The packet is of this EtherType.
    pub fn ethertype(&mut self, value: u16) -> &mut Self {
        self.load_meta(VALUE, libc::NFT_META_PROTOCOL).equal(&value.to_be_bytes())
    }

    /// The packet came by the interface called so, which need not exist.
    pub fn came_by(&mut self, interface: &str) -> &mut Self {
        self.load_meta(VALUE, libc::NFT_META_IIFNAME).equal(&name_field(interface))
    }

    /// The packet leaves by the interface called so, which need not exist.
    pub fn leaves_by(&mut self, interface: &str) -> &mut Self {
        self.load_meta(VALUE, libc::NFT_META_OIFNAME).equal(&name_field(interface))
    }

    /// The packet has this mark.
    pub fn marked(&mut self, mark: u32) -> &mut Self {
        self.load_meta(VALUE, libc::NFT_META_MARK).equal(&mark.to_ne_bytes())
    }

    /// The key in the registers from `register` on is in a set.
    pub fn listed(&mut self, set: &str, register: u32) -> &mut Self {
        self.expression("lookup", |data| {
            data.put_text(1, set).put_u32(2, register);
        })
    }

    /// Puts the key in the registers from `register` on into a set, or starts its time anew.
    pub fn list(&mut self, set: &str, register: u32, timeout_ms: u64) -> &mut Self {
        self.expression("dynset", |data| {
            data.put_text(1, set).put_u32(3, libc::NFT_DYNSET_OP_UPDATE as u32);
            data.put_u32(4, register).put_u64(6, timeout_ms);
        })
    }

    /// Goes on while the key in the registers from `register` on has not had its share: as [`Self::limit`], for each key
    /// of a set by itself.
    pub fn share(&mut self, set: &str, register: u32, timeout_ms: u64, rate_pps: u32) -> &mut Self {
        self.expression("dynset", |data| {
            data.put_text(1, set).put_u32(3, libc::NFT_DYNSET_OP_UPDATE as u32);
            data.put_u32(4, register).put_u64(6, timeout_ms).nest(7, |limit| {
                limit.put_text(EXPRESSION_NAME, "limit").nest(EXPRESSION_DATA, |data| put_limit(data, rate_pps));
            });
        })
    }

    /// Counts the packet.
    pub fn count(&mut self) -> &mut Self {
        self.expression("counter", |_| {})
    }

    /// Lets a tenth of a second's worth through at once, and `rate_pps` packets per second in the long run.
    pub fn limit(&mut self, rate_pps: u32) -> &mut Self {
        self.expression("limit", |data| put_limit(data, rate_pps))
    }

    /// The packet leaves with the address of its interface.
    pub fn masquerade(&mut self) -> &mut Self {
        self.expression("masq", |_| {})
    }

    /// The packet's connection is not tracked.
    pub fn untrack(&mut self) -> &mut Self {
        self.expression("notrack", |_| {})
    }

    fn verdict(&mut self, code: c_int, chain: Option<&str>) -> &mut Self {
        self.expression("immediate", |data| {
            data.put_u32(1, libc::NFT_REG_VERDICT as u32).nest(2, |inner| {
                inner.nest(DATA_VERDICT, |verdict| {
                    verdict.put_u32(VERDICT_CODE, code as u32);
                    if let Some(chain) = chain {
                        verdict.put_text(VERDICT_CHAIN, chain);
                    }
                });
            });
        })
    }

    /// Ends here: the packet goes on.
    pub fn accept(&mut self) -> &mut Self {
        self.verdict(libc::NF_ACCEPT, None)
    }

    /// Ends here: the packet is dropped.
    pub fn drop(&mut self) -> &mut Self {
        self.verdict(libc::NF_DROP, None)
    }

    /// Goes to another chain of the table and does not come back.
    pub fn go_to(&mut self, chain: &str) -> &mut Self {
        self.verdict(libc::NFT_GOTO, Some(chain))
    }
}

fn put_limit(data: &mut Attributes, rate_pps: u32) {
    data.put_u64(1, rate_pps.max(1).into()).put_u64(2, 1).put_u32(3, (rate_pps / 10).max(1)).put_u32(4, 0);
}

/// An interface's name as the kernel compares it.
fn name_field(name: &str) -> [u8; libc::IFNAMSIZ] {
    let mut field = [0; libc::IFNAMSIZ];
    for (to, from) in field.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    field
}

/// Packets counted by the counters among these expressions.
pub(crate) fn counted(expressions: Option<&[u8]>) -> u64 {
    message::attributes(expressions.unwrap_or_default(), 0)
        .filter(|(_, element)| message::value(element, EXPRESSION_NAME) == Some(b"counter\0"))
        .filter_map(|(_, element)| message::value(message::value(element, EXPRESSION_DATA)?, COUNTER_PACKETS))
        .filter_map(|packets| packets.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)))
        .sum()
}
