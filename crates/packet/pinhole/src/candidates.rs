//! Under which keys a pinhole is found, and which of several that fit a packet takes it.
//!
//! Whatever is not found by an external port of its own is found by its client's address, and many clients may stand
//! behind one. So a packet is tried on what it proves: first on the pinhole whose client id it names, then on those of
//! its client port, the narrowest first. Only pinholes that can still take a packet without more proof lie under the
//! keys that are looked at then; spent, ended and better guarded ones lie apart, where they hide nobody and are looked at
//! for the reason of a drop. Of equal ones the newest with room for a flow wins.

use core::{net::IpAddr, ops::RangeInclusive};

use sluicegate_flow::Hasher;
use sluicegate_wire::ip::octets;

use crate::{
    mac::demands_proof,
    pinhole::{Holder, Pinhole},
    protocol::{Protocols, Tuple},
};

/// Ports of services are filed in groups of 16, so that a range of 100 ports takes 7 or 8 groups.
const PORT_GROUP_SHIFT: u32 = 4;
/// Client ports are filed in blocks of the smallest of these sizes (as shifts) of which a range touches at most
/// [`BLOCKS_MAX`]. Ranges that do not overlap, as those behind one address, so share a block with few others.
const BLOCK_SHIFTS: [u32; 5] = [0, 4, 8, 12, 16];
const BLOCKS_MAX: u32 = 2;

/// Which way a packet goes that a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Inbound = 0,
    Outbound = 1,
    /// From whatever port of the service.
    OutboundAny = 2,
}

/// What a key asks for beside protocol, service and client address.
#[derive(Debug, Clone, Copy)]
enum Selector {
    /// The client id of the grant.
    Named(u32),
    /// A block of client ports: shift and number.
    Block(u32, u16),
    /// Nothing: all that cannot take a packet just so.
    Apart,
}

/// The keys of packets and pinholes.
#[derive(Debug)]
pub(crate) struct Keys {
    hasher: Hasher,
    with_ports: Protocols,
}

impl Keys {
    pub(crate) fn new(hash_key: &[u8; 16], with_ports: Protocols) -> Self {
        Self { hasher: Hasher::new(hash_key), with_ports }
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash(bytes)
    }

    /// The key of packets from outside that name a client id.
    pub(crate) fn named(&self, tuple: &Tuple, client_id: u32) -> u64 {
        self.key(Side::Inbound, tuple.protocol, tuple.dst, tuple.src.0, Selector::Named(client_id))
    }

    /// The keys of a packet by its client port, the narrowest first, where `filed` says for which shifts there are any.
    pub(crate) fn of_packet(&self, side: Side, tuple: &Tuple, filed: Filed) -> impl Iterator<Item = u64> {
        let (service, client) = ends(side, tuple);
        let shifts = BLOCK_SHIFTS.into_iter().zip(filed.0).filter(|(_, filed)| *filed > 0);
        shifts.map(move |(shift, _)| {
            let block = Selector::Block(shift, block(client.1, shift));
            self.key(side, tuple.protocol, service, client.0, block)
        })
    }

    /// The key of those that cannot take a packet without more proof, or at all.
    pub(crate) fn apart(&self, side: Side, tuple: &Tuple) -> u64 {
        let (service, client) = ends(side, tuple);
        self.key(side, tuple.protocol, service, client.0, Selector::Apart)
    }

    /// All keys under which a pinhole is filed as it is now.
    pub(crate) fn of_pinhole(&self, pinhole: &Pinhole) -> impl Iterator<Item = u64> {
        let is_usable = pinhole.is_live() && !pinhole.spent;
        let is_guarded = pinhole.grant().is_some_and(demands_proof);
        let client_id = pinhole.grant().map_or(0, |grant| grant.client_id);
        places(pinhole).flat_map(move |(side, service)| {
            let (shift, blocks) = blocks(client_ports(pinhole));
            let is_usable = is_usable && (side != Side::Inbound || !is_guarded);
            pinhole.clients().iter().flat_map(move |client| {
                let key = move |selector| self.key(side, pinhole.protocol, service, *client, selector);
                let name = (side == Side::Inbound && client_id != 0).then(|| key(Selector::Named(client_id)));
                let apart = (!is_usable).then(|| key(Selector::Apart));
                let blocks = blocks.clone().filter(move |_| is_usable);
                name.into_iter().chain(apart).chain(blocks.map(move |block| key(Selector::Block(shift, block))))
            })
        })
    }

    /// How many keys a pinhole may have, whatever becomes of it.
    pub(crate) fn count_max(pinhole: &Pinhole) -> usize {
        let of_place = |side| BLOCKS_MAX as usize + usize::from(side == Side::Inbound);
        // A grant's client that has not proved its address yet will have one.
        let clients = if pinhole.grant().is_some() { 1 } else { pinhole.clients().len() };
        places(pinhole).map(|(side, _)| of_place(side)).sum::<usize>() * clients
    }

    fn key(&self, side: Side, protocol: u8, service: (IpAddr, u16), client: IpAddr, selector: Selector) -> u64 {
        let group = if self.with_ports.contains(protocol) { service.1 >> PORT_GROUP_SHIFT } else { 0 };
        let (kind, number) = match selector {
            Selector::Apart => (0xff, 0),
            Selector::Named(client_id) => (0xfe, client_id),
            Selector::Block(shift, number) => (shift as u8, number.into()),
        };
        let mut input = [0; 41];
        (input[0], input[1], input[2]) = (side as u8, protocol, kind);
        input[3..5].copy_from_slice(&group.to_le_bytes());
        input[5..9].copy_from_slice(&number.to_le_bytes());
        input[9..25].copy_from_slice(&octets(service.0));
        input[25..41].copy_from_slice(&octets(client));
        self.hasher.hash(&input)
    }
}

/// How many pinholes are filed by size of their blocks of client ports: sizes that nobody uses cost no look-up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Filed([u32; BLOCK_SHIFTS.len()]);

impl Filed {
    /// Notes that a pinhole was filed, or (`false`) taken out.
    pub(crate) fn note(&mut self, pinhole: &Pinhole, is_in: bool) {
        let (shift, _) = blocks(client_ports(pinhole));
        let counts = BLOCK_SHIFTS.into_iter().zip(&mut self.0).filter(|(known, _)| *known == shift);
        for (_, count) in counts {
            *count = if is_in { *count + 1 } else { count.saturating_sub(1) };
        }
    }
}

/// The sides and port groups of the service that a pinhole is filed by.
fn places(pinhole: &Pinhole) -> impl Iterator<Item = (Side, (IpAddr, u16))> {
    let by_client = pinhole.filter || !pinhole.has_ports;
    let is_standing = matches!(pinhole.holder, Holder::Standing { .. });
    let inbound = by_client.then_some((Side::Inbound, pinhole.gate.address, pinhole.gate.ports));
    let any = is_standing.then_some((Side::OutboundAny, pinhole.target, (0, 0)));
    let sides = inbound.into_iter().chain([(Side::Outbound, pinhole.target, pinhole.target_ports)]).chain(any);
    sides.flat_map(move |(side, address, ports)| {
        groups(pinhole.has_ports, ports).map(move |group| (side, (address, group)))
    })
}

fn ends(side: Side, tuple: &Tuple) -> ((IpAddr, u16), (IpAddr, u16)) {
    match side {
        Side::Inbound => (tuple.dst, tuple.src),
        Side::Outbound => (tuple.src, tuple.dst),
        Side::OutboundAny => ((tuple.src.0, 0), tuple.dst),
    }
}

fn groups(has_ports: bool, (first, last): (u16, u16)) -> impl Iterator<Item = u16> {
    let groups = if has_ports { first >> PORT_GROUP_SHIFT..=last >> PORT_GROUP_SHIFT } else { 0..=0 };
    groups.map(|group| group << PORT_GROUP_SHIFT)
}

/// The client ports that a pinhole is filed by.
const fn client_ports(pinhole: &Pinhole) -> (u16, u16) {
    match &pinhole.holder {
        Holder::Granted(grant) if pinhole.has_ports => grant.client_ports,
        _ => (0, u16::MAX),
    }
}

/// Shift and numbers of the blocks that a range of ports is filed under.
fn blocks((first, last): (u16, u16)) -> (u32, RangeInclusive<u16>) {
    let fits = |shift: &u32| u32::from(block(last, *shift)) < u32::from(block(first, *shift)) + BLOCKS_MAX;
    let shift = BLOCK_SHIFTS.into_iter().find(fits).unwrap_or(16);
    (shift, block(first, shift)..=block(last, shift))
}

const fn block(port: u16, shift: u32) -> u16 {
    ((port as u32) >> shift) as u16
}

/// The client ids that a packet names, the stronger first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names(pub(crate) [Option<u32>; 2]);

impl Names {
    /// None.
    pub const NONE: Self = Self([None; 2]);

    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().flatten().filter(|id| *id != 0)
    }
}
