//! What makes dialogs and branches unforgeable without remembering them: names with a MAC behind.
//!
//! | where | bytes (base64url) | what the MAC covers besides |
//! |---|---|---|
//! | To-tag of a declared service | call 12, shard 1, MAC of the caller's flow 8, MAC 8 | |
//! | `sg` of our Record-Route | call 12, MAC 8 | |
//! | `cl` of our Record-Route | client's flow 19, its connection 4, which side called 1, epoch 4, MAC 8 | call, service (`sv`), Call-ID, caller's tag |
//! | `pc` of our Path | telephone's flow 19, its connection 4, our start 4 if it has one, its end 8, MAC 8 | user (`us`), service (`sv`) |
//! | branch of a relayed request | 0, shard 1, number 8, hash of how it came 4, MAC 8 | this start of the frontend |
//! | branch of a request passed on without state | 1 (to the service) or 2 (to the client), flow 19, its connection 4, hash of the branch below 8, MAC 8 | this start, Call-ID, CSeq, where the request went |
//!
//! A tag names the flow that it was made for only by a MAC: whoever sends it shows by its own address whether it is that
//! flow. A branch dies with the process that made it, so that one seen before a restart is worth nothing after it.

use std::{
    hash::Hasher as _,
    net::{Ipv6Addr, SocketAddr},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use siphasher::sip::SipHasher24;
use sluicegate_grant::epoch::Epoch;
use sluicegate_sip::{
    Base64Url,
    cookie::{CALL_PREFIX_LEN, CookieKey, TAGGED_LEN, TO_TAG_LEN},
    keyed_hash,
    message::{Essentials, HeaderName, MAGIC_COOKIE, Message, Via},
    uri::Uri,
};
use sluicegate_wire::{UnixTime, ip::octets};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{derive, settings::Settings};
use crate::transmits::{ConnectionId, Flow};

const MAC_LEN: usize = 8;
/// Eight bytes as base64url.
const STATELESS_TAG_LEN: usize = 11;
pub(super) type StatelessTag = [u8; STATELESS_TAG_LEN];
const FLOW_LEN: usize = 19;
/// A flow with its connection.
const CONNECTED_LEN: usize = FLOW_LEN + 4;
const EPOCH_LEN: usize = 4;
const WAY_LEN: usize = 4;
/// The parameter of our Path that names a telephone.
pub(super) const REACHED: &str = "pc";
const REACHED_LEN: usize = CONNECTED_LEN + 4 + 8;
/// Longest hidden place, as text.
const PLACE_LEN_MAX: usize = 400;
/// Of a branch, what its MAC covers.
const STATEFUL_LEN: usize = 2 + 8 + WAY_LEN;

/// The shard's keys. Those of tags, cookies and branches last over restarts; the others are new at each start.
/// With which the sources of requests and connections are hashed (SipHash-2-4 of the octets of an IPv4 address, or of an IPv6
/// /64), so that no one can choose with whom he shares a counter: also in front of the shard.
#[must_use]
pub fn source_key(start_key: &[u8; 32]) -> [u8; 16] {
    half(start_key, b"sources")
}

fn half(key: &[u8; 32], label: &[u8]) -> [u8; 16] {
    derive(key, label).first_chunk().copied().unwrap_or_default()
}

#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Keys {
    #[zeroize(skip)]
    cookie: CookieKey,
    flow: [u8; 16],
    route: [u8; 16],
    branch: [u8; 16],
    stateless: [u8; 16],
    /// For the tables of transactions, so that no one can aim at one chain of them.
    pub(super) tables: [u8; 16],
    pub(super) sources: [u8; 16],
    /// For the buckets of unproved senders, so that no one can choose with whom he shares one.
    pub(super) unproved: [u8; 16],
    pub(super) calls: [u8; 32],
    pub(super) pseudonyms: [u8; 32],
    /// For Call-IDs of registrations.
    registrations: [u8; 16],
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
    /// Who began it.
    pub(super) caller: Side,
}

/// A telephone that is registered at a service, as our Path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) service: String,
    pub(super) user: String,
    pub(super) flow: Flow,
    /// In which start of ours its connection was made; 0 if it has none.
    pub(super) start: u32,
    /// Until when the service may reach it by this.
    pub(super) end: UnixTime,
}

/// One side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client = 1,
    Service = 2,
}

/// What the cookie of a dialog is bound to besides: the caller's half of its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller<'m> {
    pub(super) call_id: &'m [u8],
    pub(super) tag: &'m [u8],
}

impl<'m> Caller<'m> {
    /// The sender of a request that begins a dialog.
    pub(super) fn of(request: &Message<'m>) -> Option<Self> {
        Some(Self { call_id: request.call_id().ok()?, tag: request.from().ok()?.tag.unwrap_or_default() })
    }
}

/// What a To-tag of ours carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tagged {
    pub(super) call: [u8; 12],
    /// The shard that answered, and repeats its 200 until it is acknowledged.
    pub(super) shard: u8,
    flow: [u8; MAC_LEN],
}

/// Which way a request inside a relayed dialog goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToService = 1,
    ToClient = 2,
}

impl Direction {
    /// Who sends what goes this way.
    pub(super) const fn sender(self) -> Side {
        match self {
            Self::ToService => Side::Client,
            Self::ToClient => Side::Service,
        }
    }

    /// Which way what this side sends goes.
    pub(super) const fn from(sender: Side) -> Self {
        match sender {
            Side::Client => Self::ToService,
            Side::Service => Self::ToClient,
        }
    }

    pub(super) const fn reversed(self) -> Self {
        match self {
            Self::ToService => Self::ToClient,
            Self::ToClient => Self::ToService,
        }
    }
}

/// Whose transaction a branch of ours names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BranchOwner {
    /// A relayed request of this shard.
    Shard(u8),
    /// No one's: the request went this way, and the answer goes to this flow.
    Stateless(Direction, Flow),
}

impl Keys {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            cookie: CookieKey::new(half(&settings.dialog_key, b"cookie")),
            flow: half(&settings.dialog_key, b"flow"),
            route: half(&settings.dialog_key, b"route"),
            // All shards of one start share it.
            branch: half(&settings.dialog_key, &[&b"branch"[..], &settings.boot.to_be_bytes()].concat()),
            stateless: half(&settings.start_key, b"stateless"),
            tables: half(&settings.start_key, b"tables"),
            sources: source_key(&settings.start_key),
            unproved: half(&settings.start_key, b"unproved"),
            calls: derive(&settings.start_key, b"calls"),
            pseudonyms: derive(&settings.dialog_key, b"pseudonyms"),
            registrations: half(&settings.dialog_key, b"registrations"),
        }
    }

    /// What is kept of a registration's Call-ID, over restarts: nobody can make another that is taken for it.
    pub(super) fn call_id(&self, call_id: &[u8]) -> u64 {
        u64::from_be_bytes(mac(&self.registrations, b"call-id", &[call_id]))
    }

    /// The To-tag of an answer that is not remembered: the same for each retransmission of the request.
    pub(super) fn stateless_tag(&self, message: &Message<'_>) -> StatelessTag {
        let branch = message.top_via().ok().and_then(|via| via.branch);
        let from_tag = message.from().ok().and_then(|from| from.tag);
        self.tag_of(message.call_id().unwrap_or_default(), branch, from_tag)
    }

    /// The same for a request whose fields are known.
    pub(super) fn stateless_tag_of(&self, of: &Essentials<'_>) -> StatelessTag {
        self.tag_of(of.call_id, of.via.branch, of.from.tag)
    }

    fn tag_of(&self, call_id: &[u8], branch: Option<&[u8]>, from_tag: Option<&[u8]>) -> StatelessTag {
        let parts = [call_id, branch.unwrap_or_default(), from_tag.unwrap_or_default()];
        text_of(keyed_hash(&self.stateless, &parts))
    }

    /// Whether a To-tag is that of an answer to a request, or to the INVITE of an ACK, that is not remembered. What the request has
    /// in its topmost Via, and as the caller's tag.
    pub(super) fn is_stateless_tag(
        &self,
        tag: &[u8],
        call_id: &[u8],
        (branch, from_tag): (Option<&[u8]>, Option<&[u8]>),
    ) -> bool {
        tag.len() == STATELESS_TAG_LEN && tag == self.tag_of(call_id, branch, from_tag)
    }

    /// The To-tag of a declared service's dialog, made by `shard` for the caller at `flow`.
    pub(super) fn to_tag(&self, call: [u8; 12], shard: u8, flow: Flow) -> Base64Url<TO_TAG_LEN> {
        let mut tagged = [0; TAGGED_LEN];
        let (head, proof) = tagged.split_at_mut(CALL_PREFIX_LEN + 1);
        head[..CALL_PREFIX_LEN].copy_from_slice(&call);
        head[CALL_PREFIX_LEN] = shard;
        proof.copy_from_slice(&self.flow_mac(call, flow));
        self.cookie.to_tag(&tagged)
    }

    /// What a To-tag carries, if a frontend of this site made it.
    pub(super) fn tagged(&self, tag: &[u8]) -> Option<Tagged> {
        let tagged = self.cookie.check_to_tag(tag)?;
        let (call, rest) = tagged.split_first_chunk::<CALL_PREFIX_LEN>()?;
        let (shard, flow) = rest.split_first()?;
        Some(Tagged { call: *call, shard: *shard, flow: flow.try_into().ok()? })
    }

    /// Whether a To-tag was made for this flow.
    pub(super) fn is_callers(&self, tagged: &Tagged, flow: Flow) -> bool {
        self.flow_mac(tagged.call, flow).ct_eq(&tagged.flow).into()
    }

    fn flow_mac(&self, call: [u8; 12], flow: Flow) -> [u8; MAC_LEN] {
        mac(&self.flow, b"flow", &[&call, &flow_bytes(flow)])
    }

    /// Our Record-Route value for a relayed dialog, good this day and the next.
    pub(super) fn record_route(&self, (own, unix): (&str, UnixTime), route: &Route, caller: Caller<'_>) -> String {
        let flow = connected_bytes(route.client);
        let client = [&flow[..], &[route.caller as u8], &Epoch::at(unix).0.to_be_bytes()].concat();
        let mac = self.route_mac((&route.call, route.service.as_bytes()), &client, caller);
        let cookie = self.cookie.route(&route.call);
        let client = URL_SAFE_NO_PAD.encode([&client[..], &mac].concat());
        format!("<sip:{own};lr;sg={};sv={};cl={client}>", cookie.as_str(), route.service)
    }

    /// A place inside as somebody outside may carry it: unreadable, and worth nothing with another Call-ID.
    pub(super) fn hide(&self, call_id: &[u8], place: &[u8]) -> String {
        let mac = mac(&self.route, b"place", &[call_id, place]);
        URL_SAFE_NO_PAD.encode([&mac[..], &self.veiled(&mac, place)].concat())
    }

    /// The place that was [hidden](Self::hide) in a text.
    pub(super) fn show(&self, call_id: &[u8], text: &[u8]) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(text.get(..PLACE_LEN_MAX.min(text.len()))?).ok()?;
        let (sent, veiled) = bytes.split_first_chunk::<MAC_LEN>()?;
        let place = self.veiled(sent, veiled);
        let is_ours: bool = mac(&self.route, b"place", &[call_id, &place]).ct_eq(sent).into();
        String::from_utf8(place).ok().filter(|_| is_ours)
    }

    /// Makes a text unreadable, and readable again. Its own MAC is what makes it look different each time.
    fn veiled(&self, mac_of_text: &[u8; MAC_LEN], text: &[u8]) -> Vec<u8> {
        let block = |nth: usize| mac(&self.route, b"veil", &[mac_of_text, &nth.to_be_bytes()]);
        let blocks = text.chunks(MAC_LEN).enumerate();
        blocks
            .flat_map(|(nth, chunk)| chunk.iter().zip(block(nth)).map(|(byte, veil)| byte ^ veil).collect::<Vec<u8>>())
            .collect()
    }

    /// Whether we wrote this URI into a Record-Route, whatever its dialog.
    pub(super) fn is_route(&self, uri: &Uri<'_>) -> bool {
        uri.param(b"sg").flatten().is_some_and(|cookie| self.cookie.check_route(cookie).is_some())
    }

    /// The dialog that a Route URI of ours names, if it is of this Call-ID and this caller and not too old: no cookie is
    /// worth anything two days later, whatever else is remembered or forgotten.
    pub(super) fn route(&self, unix: UnixTime, uri: &Uri<'_>, caller: Caller<'_>) -> Option<Route> {
        let call = self.cookie.check_route(uri.param(b"sg")??)?;
        let client: [u8; CONNECTED_LEN + 1 + EPOCH_LEN + MAC_LEN] = decode(uri.param(b"cl")??)?;
        let (client, sent) = client.split_at_checked(CONNECTED_LEN + 1 + EPOCH_LEN)?;
        let (flow, rest) = client.split_first_chunk::<CONNECTED_LEN>()?;
        let (side, epoch) = rest.split_first()?;
        let service = std::str::from_utf8(uri.param(b"sv")??).ok()?;
        let expected = self.route_mac((&call, service.as_bytes()), client, caller);
        let age = Epoch::at(unix).0.checked_sub(u32::from_be_bytes(epoch.try_into().ok()?))?;
        if !bool::from(expected.ct_eq(sent)) || age > 1 {
            return None;
        }
        let caller = if *side == Side::Service as u8 { Side::Service } else { Side::Client };
        Some(Route { call, service: service.to_owned(), client: flow_of(flow)?, caller })
    }

    fn route_mac(&self, (call, service): (&[u8; 12], &[u8]), client: &[u8], caller: Caller<'_>) -> [u8; MAC_LEN] {
        mac(&self.route, b"route", &[call, service, client, caller.call_id, caller.tag])
    }

    /// Our Path value for a telephone, on the side of its service, where we are `own`.
    pub(super) fn path(&self, own: &str, reached: &Reached) -> String {
        let Reached { service, user, flow, start, end } = reached;
        let named = [&connected_bytes(*flow)[..], &start.to_be_bytes(), &end.0.to_be_bytes()].concat();
        let mac = mac(&self.route, b"path", &[&named, user.as_bytes(), service.as_bytes()]);
        let cookie = URL_SAFE_NO_PAD.encode([&named[..], &mac].concat());
        format!("<sip:{own};lr;sv={service};us={user};{REACHED}={cookie}>")
    }

    /// The telephone that a URI of ours in a Path names. It may have ended.
    pub(super) fn reached(&self, uri: &Uri<'_>) -> Option<Reached> {
        let cookie: [u8; REACHED_LEN + MAC_LEN] = decode(uri.param(REACHED.as_bytes())??)?;
        let (named, sent) = cookie.split_first_chunk::<REACHED_LEN>()?;
        let [service, user] = [uri.param(b"sv")??, uri.param(b"us")??];
        if !bool::from(mac(&self.route, b"path", &[named, user, service]).ct_eq(sent)) {
            return None;
        }
        let (flow, rest) = named.split_first_chunk::<CONNECTED_LEN>()?;
        let (start, end) = rest.split_first_chunk::<4>()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(Reached {
            service: text(service)?,
            user: text(user)?,
            flow: flow_of(flow)?,
            start: u32::from_be_bytes(*start),
            end: UnixTime(u64::from_be_bytes(end.try_into().ok()?)),
        })
    }

    /// The branch of the request number `number` that `shard` sends. `came`: of one that is relayed, as it came.
    pub(super) fn branch(&self, shard: u8, number: u64, came: Option<(Side, &Message<'_>)>) -> Vec<u8> {
        let came = came.map(|(from, came)| self.way(from, came)).unwrap_or_default();
        let named = [&[0, shard], &number.to_be_bytes()[..], &came].concat();
        let mac = mac(&self.branch, b"stateful", &[&named]);
        branch_text(&[&named[..], &mac].concat())
    }

    /// What decides where a request goes, in short: one that comes again with the same is on its way in a circle (RFC 3261
    /// section 16.6, 8).
    fn way(&self, from: Side, request: &Message<'_>) -> [u8; WAY_LEN] {
        let number = request.cseq().map(|cseq| cseq.number).unwrap_or_default().to_be_bytes();
        let mut hash = SipHasher24::new_with_key(&self.branch);
        put(&mut hash, &[from as u8]);
        put(&mut hash, request.request_uri().unwrap_or_default());
        for party in [request.from(), request.to()] {
            put(&mut hash, party.ok().and_then(|party| party.tag).unwrap_or_default());
        }
        put(&mut hash, request.call_id().unwrap_or_default());
        put(&mut hash, &number);
        request.headers_raw(HeaderName::Route).for_each(|route| put(&mut hash, route));
        hash.finish().to_be_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// Whether a request of this side was here before, and went on as it would again. What a client sends to a service and what
    /// comes from there for a user are two ways.
    pub(super) fn is_loop(&self, from: Side, request: &Message<'_>) -> bool {
        let way = self.way(from, request);
        let mut vias = request.headers(HeaderName::Via).skip(1).filter_map(|via| Via::parse(via).ok());
        vias.any(|via| {
            let text = via.branch.and_then(|branch| branch.strip_prefix(MAGIC_COOKIE));
            text.and_then(|text| self.stateful(text)).is_some_and(|(_, came)| came == way)
        })
    }

    /// The branch of a request that is passed on to `next` without a transaction: it names where the answer goes, and is
    /// the same for each retransmission (RFC 3261 section 16.11).
    pub(super) fn stateless_branch(
        &self,
        (direction, answer_to, next): (Direction, Flow, Flow),
        request: &Message<'_>,
    ) -> Option<Vec<u8>> {
        let via = request.top_via().ok()?;
        let below = mac(&self.branch, b"below", &[via.branch.unwrap_or_default(), via.head]);
        let named = [&[direction as u8], &connected_bytes(answer_to)[..], &below].concat();
        let mac = self.stateless_mac(&named, next, request)?;
        Some(branch_text(&[&named[..], &mac].concat()))
    }

    fn stateless_mac(&self, named: &[u8], next: Flow, message: &Message<'_>) -> Option<[u8; MAC_LEN]> {
        let number = message.cseq().ok()?.number.to_be_bytes();
        Some(mac(&self.branch, b"stateless", &[named, &flow_bytes(next), message.call_id().ok()?, &number]))
    }

    /// Whether a branch can have been made here: by its own MAC, or as far as its length goes if its MAC covers more.
    pub(super) fn may_have_made(&self, branch: &[u8]) -> bool {
        let Some(text) = branch.strip_prefix(MAGIC_COOKIE) else { return false };
        self.stateful(text).is_some() || decode::<{ 1 + CONNECTED_LEN + 2 * MAC_LEN }>(text).is_some()
    }

    /// The shard whose relayed request has this branch, and how that came.
    fn stateful(&self, text: &[u8]) -> Option<(u8, [u8; WAY_LEN])> {
        let bytes = decode::<{ STATEFUL_LEN + MAC_LEN }>(text)?;
        let (named, sent) = bytes.split_first_chunk::<STATEFUL_LEN>()?;
        let is_ours = bool::from(mac(&self.branch, b"stateful", &[named]).ct_eq(sent));
        let [kind, shard, .., a, b, c, d] = *named;
        (kind == 0 && is_ours).then_some((shard, [a, b, c, d]))
    }

    /// Whose transaction the topmost Via of a response from `source` names; `None` if the branch is not ours, or the
    /// request that it was for went elsewhere.
    pub(super) fn owner_of(&self, source: Flow, response: &Message<'_>) -> Option<BranchOwner> {
        let text = response.top_via().ok()?.branch?.strip_prefix(MAGIC_COOKIE)?;
        if let Some((shard, _)) = self.stateful(text) {
            return Some(BranchOwner::Shard(shard));
        }
        let bytes = decode::<{ 1 + CONNECTED_LEN + 2 * MAC_LEN }>(text)?;
        let (named, sent) = bytes.split_at_checked(1 + CONNECTED_LEN + MAC_LEN)?;
        let direction = match named.first()? {
            1 => Direction::ToService,
            2 => Direction::ToClient,
            _ => return None,
        };
        let valid = bool::from(self.stateless_mac(named, source, response)?.ct_eq(sent));
        let flow = named.get(1..=CONNECTED_LEN)?.try_into().ok()?;
        valid.then_some(BranchOwner::Stateless(direction, flow_of(flow)?))
    }
}

/// Eight bytes as base64url: each answer to a flood needs it.
fn text_of(bytes: u64) -> StatelessTag {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = u128::from(bytes) << 2;
    std::array::from_fn(|nth| DIGITS[(bits >> (60 - 6 * nth)) as usize % 64])
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

/// A connection is left out: it may end before its dialog does, and another from the same place takes over.
fn flow_bytes(flow: Flow) -> [u8; FLOW_LEN] {
    let mut bytes = [0; FLOW_LEN];
    bytes[0] = flow.listener;
    bytes[1..3].copy_from_slice(&flow.peer.port().to_be_bytes());
    bytes[3..].copy_from_slice(&octets(flow.peer.ip()));
    bytes
}

/// What leads back to a peer, over the same connection if it has one.
fn connected_bytes(flow: Flow) -> [u8; CONNECTED_LEN] {
    let mut bytes = [0; CONNECTED_LEN];
    bytes[..FLOW_LEN].copy_from_slice(&flow_bytes(flow));
    bytes[FLOW_LEN..].copy_from_slice(&ConnectionId::to_bytes(flow.connection));
    bytes
}

fn flow_of(bytes: &[u8; CONNECTED_LEN]) -> Option<Flow> {
    let (flow, connection) = bytes.split_last_chunk::<4>()?;
    let [listener, high, low, ip @ ..] = flow else { return None };
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?).to_canonical();
    let peer = SocketAddr::new(ip, u16::from_be_bytes([*high, *low]));
    Some(Flow { listener: *listener, peer, connection: ConnectionId::from_bytes(*connection) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_are_written_as_everybody_writes_them() {
        for bytes in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0xfbff_bffb_ffbf_fbff] {
            assert_eq!(text_of(bytes), *URL_SAFE_NO_PAD.encode(bytes.to_be_bytes()).as_bytes());
        }
    }
}
