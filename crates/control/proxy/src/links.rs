//! The ways by which SIP is relayed through distant gates. Every datagram there ends with a packet MAC, both ways: the gate's
//! address and the frontend's are known to everybody, so neither counts for anything by itself.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use sluicegate_grant::{
    mac::{Ends, Purpose, ReplayWindow, TRAILER_LEN},
    relay::RelayKeys,
};

use crate::transmits::Flow;

/// Longest relayed datagram, without its trailer: with that it just fits a packet of 1,500 bytes. Longer ones would be cut
/// into fragments, of which a gate can check none.
const RELAYED_BYTES_MAX: [usize; 2] = [1_500 - 20 - 8 - TRAILER_LEN, 1_500 - 40 - 8 - TRAILER_LEN];

/// Where a distant gate takes SIP for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The gate's address and port.
    pub address: SocketAddr,
    /// What goes there and comes from there is sealed under.
    pub keys: RelayKeys,
}

#[derive(Debug)]
struct Link {
    keys: RelayKeys,
    next: u64,
    window: ReplayWindow,
}

/// One shard's ends of these ways, by the gate's address and port.
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_peer: HashMap<SocketAddr, Link>,
    /// The frontend's own addresses, by listener.
    own: Vec<SocketAddr>,
    shard: u8,
}

impl Links {
    /// From now on these are all. One whose keys are the same goes on counting.
    pub(crate) fn set<'s>(
        &mut self,
        own: impl Iterator<Item = SocketAddr>,
        shard: u8,
        standing: impl Iterator<Item = &'s Standing> + Clone,
    ) {
        self.own = own.collect();
        self.shard = shard;
        let kept: HashSet<SocketAddr> = standing.clone().map(|standing| standing.address).collect();
        self.by_peer.retain(|peer, _| kept.contains(peer));
        for Standing { address, keys } in standing {
            let link = || Link { keys: keys.clone(), next: 1, window: ReplayWindow::default() };
            let known = self.by_peer.entry(*address).or_insert_with(link);
            if known.keys != *keys {
                *known = link();
            }
        }
    }

    fn ends(&self, flow: Flow) -> Ends {
        let own = self.own.get(usize::from(flow.listener)).copied();
        let own = own.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        Ends { client: (own.ip(), own.port()), gate_port: flow.peer.port() }
    }

    /// Whether a datagram of this length is too long to be relayed there.
    pub(crate) fn is_too_long(&self, peer: SocketAddr, len: usize) -> bool {
        let max = RELAYED_BYTES_MAX[usize::from(peer.is_ipv6())];
        len > max && self.by_peer.contains_key(&peer)
    }

    /// The trailer of a datagram, if it goes to one of these gates.
    pub(crate) fn seal(&mut self, flow: Flow, datagram: &[u8]) -> Option<[u8; TRAILER_LEN]> {
        if flow.connection.is_some() {
            return None;
        }
        let (ends, shard) = (self.ends(flow), self.shard);
        let link = self.by_peer.get_mut(&flow.peer)?;
        let seq = link.next;
        link.next += 1;
        Some(link.keys.keys().to_service.trailer(link.keys.sender(shard), Purpose::Datagram, seq, &ends, datagram))
    }

    /// A datagram without its trailer, or as it is if it does not come from one of these gates. Nothing that comes over a
    /// connection does.
    ///
    /// # Errors
    /// [`Unproved`] if it comes from the address of one and does not prove to be that gate's.
    pub(crate) fn open<'d>(&mut self, flow: Flow, datagram: &'d [u8]) -> Result<&'d [u8], Unproved> {
        let ends = self.ends(flow);
        let link = self.by_peer.get_mut(&flow.peer).filter(|_| flow.connection.is_none());
        let Some(link) = link else { return Ok(datagram) };
        let sealed = link.keys.keys().to_client.check(link.keys.sender(0), &ends, datagram).map_err(|_| Unproved)?;
        if sealed.purpose != Purpose::Datagram || !link.window.accept(sealed.seq) {
            return Err(Unproved);
        }
        datagram.split_last_chunk::<TRAILER_LEN>().map(|(text, _)| text).ok_or(Unproved)
    }
}

/// From a gate's address, and not proved to be the gate's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unproved;
