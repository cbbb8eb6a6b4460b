//! What makes dialogs and branches unforgeable without remembering them: names with a MAC behind.
//!
//! | where | bytes (base64url) | what the MAC covers besides |
//! |---|---|---|
//! | To-tag of a declared service | grant id 16, MAC 8 | |
//! | `sg` of our Record-Route | call 12, MAC 8 | |
//! | `cl` of our Record-Route | client's flow 19, MAC 8 | call, service (`sv`), Call-ID, caller's tag |
//! | branch of a relayed request | 0, shard 1, number 8, MAC 8 | |
//! | branch of a request passed on without state | 1, flow 19, hash of the branch below 8, MAC 8 | Call-ID, CSeq |

use std::{
    hash::Hasher as _,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use siphasher::sip::SipHasher24;
use sluicegate_capability::GrantId;
use sluicegate_sip::{
    cookie::{CookieKey, CookieText, TO_TAG_LEN},
    message::{MAGIC_COOKIE, Message},
    uri::Uri,
};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{derive, settings::Settings};
use crate::transmits::Flow;

const MAC_LEN: usize = 8;
const FLOW_LEN: usize = 19;

/// The shard's keys. Those of tags, cookies and branches last over restarts; the others are new at each start.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Keys {
    #[zeroize(skip)]
    cookie: CookieKey,
    route: [u8; 16],
    branch: [u8; 16],
    stateless: [u8; 16],
    /// For the tables of transactions, so that no one can aim at one chain of them.
    pub(super) tables: [u8; 16],
    pub(super) calls: [u8; 32],
    pub(super) pseudonyms: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// A dialog through this frontend, as its Record-Route cookie names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) call: [u8; 12],
    pub(super) service: String,
    pub(super) client: Flow,
}

/// Whose transaction a branch of ours names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BranchOwner {
    /// A relayed request of this shard.
    Shard(u8),
    /// No one's: the answer goes to this flow.
    Stateless(Flow),
}

impl Keys {
    pub(super) fn new(settings: &Settings) -> Self {
        let half = |key: &[u8; 32], label: &[u8]| {
            let wide = derive(key, label);
            std::array::from_fn(|at| wide.get(at).copied().unwrap_or(0))
        };
        Self {
            cookie: CookieKey::new(half(&settings.dialog_key, b"cookie")),
            route: half(&settings.dialog_key, b"route"),
            branch: half(&settings.dialog_key, b"branch"),
            stateless: half(&settings.start_key, b"stateless"),
            tables: half(&settings.start_key, b"tables"),
            calls: derive(&settings.start_key, b"calls"),
            pseudonyms: derive(&settings.dialog_key, b"pseudonyms"),
        }
    }

    /// The To-tag of an answer that is not remembered: the same for each retransmission of the request.
    pub(super) fn stateless_tag(&self, message: &Message<'_>) -> String {
        let mut hash = SipHasher24::new_with_key(&self.stateless);
        put(&mut hash, message.call_id().unwrap_or_default());
        put(&mut hash, message.top_via().ok().and_then(|via| via.branch).unwrap_or_default());
        put(&mut hash, message.from().ok().and_then(|from| from.tag).unwrap_or_default());
        URL_SAFE_NO_PAD.encode(hash.finish().to_be_bytes())
    }

    /// The To-tag of a declared service's dialog.
    pub(super) fn to_tag(&self, call: [u8; 12]) -> CookieText<TO_TAG_LEN> {
        self.cookie.to_tag(&GrantId::of_call(call, 0).0)
    }

    /// The call that a To-tag names, if a frontend of this site made it.
    pub(super) fn call_of_tag(&self, tag: &[u8]) -> Option<[u8; 12]> {
        self.cookie.check_to_tag(tag).map(|id| GrantId(id).call())
    }

    /// Our Record-Route value for a relayed dialog.
    pub(super) fn record_route(&self, own: SocketAddr, route: &Route, call_id: &[u8], caller_tag: &[u8]) -> String {
        let client = flow_bytes(route.client);
        let mac = self.route_mac(route, &client, call_id, caller_tag);
        let cookie = self.cookie.route(&route.call);
        let client = URL_SAFE_NO_PAD.encode([&client[..], &mac].concat());
        format!("<sip:{own};lr;sg={};sv={};cl={client}>", cookie.as_str(), route.service)
    }

    /// The dialog that a Route URI of ours names, if it is of this Call-ID and this caller.
    pub(super) fn route(&self, uri: &Uri<'_>, call_id: &[u8], caller_tag: &[u8]) -> Option<Route> {
        let call = self.cookie.check_route(uri.param(b"sg")??)?;
        let client: [u8; FLOW_LEN + MAC_LEN] = decode(uri.param(b"cl")??)?;
        let (client, sent) = client.split_at_checked(FLOW_LEN)?;
        let service = std::str::from_utf8(uri.param(b"sv")??).ok()?;
        let route = Route { call, service: service.to_owned(), client: flow_of(client.try_into().ok()?)? };
        let expected = self.route_mac(&route, client, call_id, caller_tag);
        bool::from(expected.ct_eq(sent)).then_some(route)
    }

    fn route_mac(&self, route: &Route, client: &[u8], call_id: &[u8], caller_tag: &[u8]) -> [u8; MAC_LEN] {
        mac(&self.route, b"route", &[&route.call, route.service.as_bytes(), client, call_id, caller_tag])
    }

    /// The branch of the request number `number` that `shard` relays.
    pub(super) fn branch(&self, shard: u8, number: u64) -> Vec<u8> {
        let number = number.to_be_bytes();
        let mac = mac(&self.branch, b"stateful", &[&[shard], &number]);
        branch_text(&[&[0, shard], &number[..], &mac].concat())
    }

    /// The branch of a request that is passed on without a transaction: it names where the answer goes, and is the same
    /// for each retransmission (RFC 3261 section 16.11).
    pub(super) fn stateless_branch(&self, to: Flow, request: &Message<'_>) -> Option<Vec<u8>> {
        let via = request.top_via().ok()?;
        let below = mac(&self.branch, b"below", &[via.branch.unwrap_or_default(), via.head]);
        let named = [&flow_bytes(to)[..], &below].concat();
        let mac = self.stateless_mac(&named, request)?;
        Some(branch_text(&[&[1], &named[..], &mac].concat()))
    }

    fn stateless_mac(&self, named: &[u8], message: &Message<'_>) -> Option<[u8; MAC_LEN]> {
        let number = message.cseq().ok()?.number.to_be_bytes();
        Some(mac(&self.branch, b"stateless", &[named, message.call_id().ok()?, &number]))
    }

    /// Whose transaction the topmost Via of a response names; `None` if the branch is not ours.
    pub(super) fn owner_of(&self, response: &Message<'_>) -> Option<BranchOwner> {
        let text = response.top_via().ok()?.branch?.strip_prefix(MAGIC_COOKIE)?;
        if let Some([kind, shard, rest @ ..]) = decode::<{ 2 + 8 + MAC_LEN }>(text) {
            let (number, sent) = rest.split_at_checked(8)?;
            let expected = mac(&self.branch, b"stateful", &[&[shard], number]);
            let valid = kind == 0 && bool::from(expected.ct_eq(sent));
            return valid.then_some(BranchOwner::Shard(shard));
        }
        let [kind, rest @ ..] = decode::<{ 1 + FLOW_LEN + 2 * MAC_LEN }>(text)?;
        let (named, sent) = rest.split_at_checked(FLOW_LEN + MAC_LEN)?;
        let expected = self.stateless_mac(named, response)?;
        let valid = kind == 1 && bool::from(expected.ct_eq(sent));
        let flow = named.get(..FLOW_LEN)?.try_into().ok()?;
        valid.then_some(BranchOwner::Stateless(flow_of(flow)?))
    }
}

fn branch_text(bytes: &[u8]) -> Vec<u8> {
    [MAGIC_COOKIE, URL_SAFE_NO_PAD.encode(bytes).as_bytes()].concat()
}

fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; 64];
    if text.len() > 80 {
        return None;
    }
    let len = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    bytes.get(..len)?.try_into().ok()
}

fn mac(key: &[u8; 16], label: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    let mut hash = SipHasher24::new_with_key(key);
    put(&mut hash, label);
    parts.iter().for_each(|part| put(&mut hash, part));
    hash.finish().to_be_bytes()
}

/// Each part with its length in front, so that no two lists of parts look alike.
fn put(hash: &mut impl std::hash::Hasher, part: &[u8]) {
    hash.write(&(part.len() as u64).to_be_bytes());
    hash.write(part);
}

fn flow_bytes(flow: Flow) -> [u8; FLOW_LEN] {
    let mut bytes = [0; FLOW_LEN];
    let ip = match flow.peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[0] = flow.listener;
    bytes[1..3].copy_from_slice(&flow.peer.port().to_be_bytes());
    bytes[3..].copy_from_slice(&ip.octets());
    bytes
}

fn flow_of(bytes: &[u8; FLOW_LEN]) -> Option<Flow> {
    let [listener, high, low, ip @ ..] = bytes;
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip.as_slice()).ok()?).to_canonical();
    Some(Flow { listener: *listener, peer: SocketAddr::new(ip, u16::from_be_bytes([*high, *low])) })
}
