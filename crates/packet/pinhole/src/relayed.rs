//! Relayed SIP under standing pinholes: which frontends may send to a service's SIP port, proved by packet MACs. Their
//! addresses are known to everybody, so they only say who may be meant.

use alloc::vec::Vec;
use core::net::IpAddr;

use sluicegate_grant::{
    mac::{Ends, Purpose, ReplayWindow, TRAILER_LEN, client_id_of},
    relay::RelayKeys,
};
use sluicegate_wire::Reason;

use crate::config::Relay;

/// One frontend.
#[derive(Debug)]
struct Sender {
    peers: Vec<IpAddr>,
    keys: RelayKeys,
    /// One for each of its shards.
    windows: Vec<ReplayWindow>,
    /// The number of the next datagram to it.
    next: u64,
}

/// The frontends of all standing pinholes, by slot. As many as there are services with SIP, and at most
/// [`crate::PEERS_MAX`] for each.
#[derive(Debug, Default)]
pub struct Relays {
    by_slot: Vec<(u32, Vec<Sender>)>,
}

impl Relays {
    /// Whether what this slot holds belongs to frontends.
    pub fn holds(&self, slot: u32) -> bool {
        self.position(slot).is_ok()
    }

    /// Whether nobody could prove anything here: the feed has not brought a key (again).
    pub fn is_mute(&self, slot: u32) -> bool {
        self.position(slot).is_ok_and(|at| self.by_slot[at].1.is_empty())
    }

    fn position(&self, slot: u32) -> Result<usize, usize> {
        self.by_slot.binary_search_by_key(&slot, |(known, _)| *known)
    }

    /// Writes down a slot's frontends. One whose keys are the same goes on counting.
    pub fn put(&mut self, slot: u32, relays: &[Relay]) {
        let mut known = match self.position(slot) {
            Ok(at) => core::mem::take(&mut self.by_slot[at].1),
            Err(at) => {
                self.by_slot.insert(at, (slot, Vec::new()));
                Vec::new()
            }
        };
        let sender = |relay: &Relay| {
            let old = known.iter().position(|sender| sender.keys == relay.keys).map(|at| known.swap_remove(at));
            let mut sender = old.unwrap_or_else(|| Sender {
                peers: Vec::new(),
                keys: relay.keys.clone(),
                windows: Vec::new(),
                next: 1,
            });
            sender.peers.clone_from(&relay.peers);
            sender.windows.resize_with(relay.shards.max(1).into(), ReplayWindow::default);
            sender
        };
        let senders = relays.iter().map(sender).collect();
        if let Ok(at) = self.position(slot) {
            self.by_slot[at].1 = senders;
        }
    }

    /// Forgets the frontends of a slot.
    pub fn remove(&mut self, slot: u32) {
        if let Ok(at) = self.position(slot) {
            self.by_slot.remove(at);
        }
    }

    fn senders(&mut self, slot: u32) -> &mut [Sender] {
        match self.position(slot) {
            Ok(at) => &mut self.by_slot[at].1,
            Err(_) => &mut [],
        }
    }

    /// Checks the trailer of a datagram from a frontend: whose it is, tag, then sequence number.
    ///
    /// # Errors
    /// [`Reason::MacMissing`], [`Reason::MacForged`], [`Reason::MacReplayed`]; [`Reason::ModeTooWeak`] while there is no key.
    pub fn open(&mut self, slot: u32, ends: &Ends, datagram: &[u8]) -> Result<(), Reason> {
        let senders = self.senders(slot);
        if senders.is_empty() {
            return Err(Reason::ModeTooWeak);
        }
        let client_id = client_id_of(datagram).ok_or(Reason::MacMissing)?;
        let shard_of = |sender: &Sender| {
            let shard = sender.keys.shard_of(client_id).filter(|_| sender.peers.contains(&ends.client.0))?;
            Some(usize::from(shard)).filter(|shard| *shard < sender.windows.len())
        };
        let sender = senders.iter_mut().find(|sender| shard_of(sender).is_some()).ok_or(Reason::MacMissing)?;
        let shard = shard_of(sender).ok_or(Reason::MacMissing)?;
        let sealed = sender.keys.keys().to_service.check(client_id, ends, datagram)?;
        if sealed.purpose != Purpose::Datagram {
            return Err(Reason::MacForged);
        }
        let is_new = sender.windows.get_mut(shard).is_some_and(|window| window.accept(sealed.seq));
        if is_new { Ok(()) } else { Err(Reason::MacReplayed) }
    }

    /// The trailer of the next datagram to the frontend at `ends.client`; `None` if there is no key for it.
    pub fn seal(&mut self, slot: u32, ends: &Ends, payload: &[u8]) -> Option<[u8; TRAILER_LEN]> {
        let sender = self.senders(slot).iter_mut().find(|sender| sender.peers.contains(&ends.client.0))?;
        let seq = sender.next;
        sender.next += 1;
        Some(sender.keys.keys().to_client.trailer(sender.keys.sender(0), Purpose::Datagram, seq, ends, payload))
    }
}
