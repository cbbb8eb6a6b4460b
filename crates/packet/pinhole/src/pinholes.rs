//! Permission as a whole: who has which pinhole, what it may still use, and what its packets must prove.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use sluicegate_bounded::{Bounded as _, Gauge, Queue};
use sluicegate_flow::{Hasher, Share, TokenBucket};
use sluicegate_grant::{
    GrantId,
    mac::{SessionKeys, client_id_of},
};
use sluicegate_wire::{Instant, Reason, UnixTime, ip::octets};

use crate::{
    candidates::Names,
    clock::Clock,
    config::{EndCause, Ended, PerUser, ServiceMode},
    hosts::Hosts,
    mac::{Evidence, Macs, Proof, Refused, Seal, names},
    pinhole::{Holder, Pinhole, contains},
    protocol::{Protocols, Tuple},
    revoked::{REVOKED_MAX, RevokedGrants},
    sources::Sources,
    table::{Found, Table},
    users::Users,
};

/// How large the tables are. Fixed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Pinholes at once; ended ones are remembered in the same table until their place is needed.
    pub pinholes_max: u32,
    /// Services at once.
    pub services_max: u16,
    /// What all grants of one user may hold together, see [`PerUser::for_ports`].
    pub per_user: PerUser,
    /// Protocols that have ports.
    pub with_ports: Protocols,
    /// How many protocols have external ports or identifiers of their own.
    pub spaces: u8,
}

/// What happened since the start besides drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// By [`Reason`] code: packets forwarded in observe mode which would have been dropped.
    pub observed: [u64; Reason::ALL.len()],
    /// Events that nobody fetched in time.
    pub events_lost: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { observed: [0; Reason::ALL.len()], events_lost: 0 }
    }
}

/// The pinholes of a gate, with everything that decides about them. Knows nothing of flows, bindings and rewriting: those
/// ask here on a flow's first packet, and whenever a flow needs a new slice of its grant's bytes.
#[derive(Debug)]
pub struct Pinholes {
    /// The pinholes, and under which keys they are found.
    pub table: Table,
    /// The services' addresses.
    pub hosts: Hosts,
    /// What packets prove by MACs.
    pub macs: Macs,
    /// Outside addresses that may have something open here.
    pub sources: Sources,
    /// What users hold over all their grants.
    pub users: Users,
    /// Grants that are refused although they have not ended.
    pub revoked: RevokedGrants,
    /// Where Unix time lies on the monotonic clock.
    pub clock: Clock,
    /// Whether what policy refuses is counted and forwarded.
    pub observe: bool,
    /// What happened besides drops, which the caller counts.
    pub counters: Counters,
    /// The pinhole of each service that may start flows: (service, slot), sorted by service.
    pub service_slots: Vec<(u16, u32)>,
    /// The slots of standing pinholes, at most one or two a service.
    pub standing_slots: Vec<u32>,
    challenges: Hasher,
    events: Queue<Ended>,
    gate_address: Ipv4Addr,
}

/// What stands in the way of a new flow, and the pinhole it is about; or the slot of the pinhole that admits it.
pub type Located = Result<u32, (Reason, Option<u32>)>;

impl Pinholes {
    /// Allocates all tables. `gate_address` is the external address of `nat` services, unspecified if there are none;
    /// `hash_key` places everything and must be secret and random.
    #[must_use]
    pub fn new(sizes: &Sizes, gate_address: Ipv4Addr, hash_key: &[u8; 16]) -> Self {
        let pinholes_max = sizes.pinholes_max.clamp(1, 1 << 24);
        Self {
            table: Table::new(pinholes_max, hash_key, sizes.with_ports, sizes.spaces.into()),
            hosts: Hosts::new(sizes.services_max, hash_key),
            macs: Macs::new(pinholes_max),
            sources: Sources::new(hash_key),
            users: Users::new(pinholes_max, sizes.per_user, hash_key),
            revoked: RevokedGrants::new(REVOKED_MAX),
            clock: Clock::default(),
            observe: false,
            counters: Counters::default(),
            service_slots: Vec::with_capacity(sizes.services_max.into()),
            standing_slots: Vec::with_capacity(sizes.services_max.into()),
            challenges: Hasher::new(hash_key),
            events: Queue::new("events", sizes.pinholes_max.max(1)),
            gate_address,
        }
    }

    /// Whether a packet to this address is for the gate's own external address.
    #[inline]
    #[must_use]
    pub fn is_gate(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.gate_address) && !self.gate_address.is_unspecified()
    }

    /// A policy says no: in observe mode it is counted and overruled.
    ///
    /// # Errors
    /// The reason, otherwise.
    #[inline]
    pub fn waive(&mut self, reason: Reason) -> Result<(), Reason> {
        if self.observe {
            self.counters.observed[reason as usize] += 1;
            Ok(())
        } else {
            Err(reason)
        }
    }

    /// Nobody outside may use an address of this side.
    ///
    /// # Errors
    /// [`Reason::AddressInvalid`].
    pub fn check_source(&self, source: IpAddr) -> Result<(), Reason> {
        if self.is_gate(source) || self.hosts.find(source).is_some() { Err(Reason::AddressInvalid) } else { Ok(()) }
    }

    /// The slot if it is open, else why not.
    pub fn opened(&self, now: Instant, found: Found) -> Located {
        match found {
            Found::Open(slot) => Ok(slot),
            Found::Closed(slot) => {
                let reason = self.table.at(slot).map_or(Reason::NoPinhole, |pinhole| pinhole.closed_reason(now));
                Err((reason, Some(slot)))
            }
            Found::Nothing => Err((Reason::NoPinhole, None)),
        }
    }

    /// The pinhole for a packet to a service's own address that no line knows.
    ///
    /// # Errors
    /// [`Reason::NotForService`] if no `filter` service is there; why its pinhole is closed, or that there is none.
    pub fn locate_filtered(&self, now: Instant, tuple: &Tuple, names: Names) -> Located {
        match self.hosts.find(tuple.dst.0) {
            Some(host) if host.mode == ServiceMode::Filter => {
                self.opened(now, self.table.by_inbound(now, tuple, names))
            }
            _ => Err((Reason::NotForService, None)),
        }
    }

    /// The open pinhole whose client a whole UDP datagram names in its trailer, and that listens where it goes. Its client's
    /// address is not asked: the datagram may be what proves it. Costs one hash and a look at those with this client id.
    #[must_use]
    pub fn claimed(&self, now: Instant, tuple: &Tuple, evidence: &Evidence<'_>) -> Option<u32> {
        let client_id = client_id_of(evidence.datagram()?)?;
        let (address, port) = tuple.dst;
        let fits = |slot: &u32| {
            let seal = self.macs.seals.at(*slot).is_some_and(|seal| seal.client_id() == client_id);
            seal && self.table.at(*slot).is_some_and(|pinhole| {
                pinhole.is_open(now) && pinhole.gate.address == address && contains(pinhole.gate.ports, port)
            })
        };
        self.table.of_client_id(client_id).find(fits)
    }

    /// Holds a packet from outside against what its pinhole demands. Under a grant whose client has to prove its address, one
    /// from another address than the proved one passes only with a number above all that came: a copy moves nothing.
    ///
    /// # Errors
    /// [`Reason::ModeTooWeak`], [`Reason::MacMissing`] (so every fragment: a MAC covers a whole datagram),
    /// [`Reason::MacForged`], [`Reason::MacReplayed`]; not in observe mode.
    pub fn prove(&mut self, slot: u32, tuple: &Tuple, evidence: &Evidence<'_>) -> Result<Proof, Reason> {
        let moves = || self.table.at(slot).is_none_or(|pinhole| pinhole.client != Some(tuple.src.0));
        let checked = self.macs.check(slot, tuple, evidence, moves).ok_or(Reason::ModeTooWeak)?;
        checked.or_else(|Refused { reason, strip }| self.waive(reason).map(|()| Proof { strip, sealed: false }))
    }

    /// The guarded pinhole that a packet names, if its line belongs to another, `owner`: the service spoke first, under
    /// whichever grant of that address was found, or the address gave the client's port to another. Whoever proves itself
    /// gets the line.
    #[inline]
    #[must_use]
    pub fn rightful(&self, now: Instant, tuple: &Tuple, evidence: &Evidence<'_>, owner: u32) -> Option<u32> {
        if self.macs.seals.used_and_max().0 == 0 {
            return None;
        }
        let names = names(evidence);
        if self.macs.seals.at(owner).is_some_and(|seal| names.iter().any(|id| seal.client_id() == id)) {
            return None;
        }
        match self.table.by_name(now, tuple, names) {
            Found::Open(slot) if slot != owner && self.macs.seals.at(slot).is_some() => Some(slot),
            _ => None,
        }
    }

    /// Whether a packet comes from where this pinhole's packets may come from. Of a hairpin packet the gate's own address
    /// stands for its sender.
    #[must_use]
    pub fn is_client(&self, slot: u32, address: IpAddr) -> bool {
        self.table.at(slot).is_some_and(|pinhole| match &pinhole.holder {
            Holder::Granted(_) => pinhole.client == Some(address) || self.is_gate(address),
            Holder::Standing { .. } | Holder::Service => true,
        })
    }

    /// The client of a grant has proved that it sends from `address`. What it had open from where it was before stays there
    /// until it has shown that it also hears: else it could have a service send to anybody.
    pub fn move_client(&mut self, slot: u32, address: IpAddr) {
        let Some(pinhole) = self.table.at(slot) else { return };
        let (before, has_flows) = (pinhole.client, pinhole.flows > 0);
        if before == Some(address) {
            return;
        }
        if let Some(before) = before {
            self.sources.remove(before);
        }
        self.table.change(slot, |pinhole| {
            pinhole.client = Some(address);
            pinhole.follows |= has_flows;
        });
        self.sources.add(address);
    }

    /// Whether this pinhole's flows may have one more ICMP error now. One grant so leaves the common ones to others.
    #[inline]
    pub fn admit_error_of(&mut self, now: Instant, slot: u32) -> bool {
        self.table.at_mut(slot).is_some_and(|pinhole| pinhole.errors.take(now, 1))
    }

    /// Notes that an ICMP error of `len` bytes was paid from this pinhole's budget.
    #[inline]
    pub fn note_error(&mut self, slot: u32, len: u32) {
        if let Some(pinhole) = self.table.at_mut(slot) {
            pinhole.error_bytes += u64::from(len);
        }
    }

    /// Notes what a grant that was installed or renewed has its client prove, and under which keys.
    pub fn put_seal(&mut self, slot: u32, unix: UnixTime, keys: Option<SessionKeys>) {
        let Some(grant) = self.table.at(slot).and_then(Pinhole::grant) else { return };
        self.macs.seals.put(slot, unix, grant, keys);
        self.table.list_client_id(slot, self.macs.seals.at(slot).map(Seal::client_id));
    }

    /// The slot that holds the flows which this service starts.
    #[must_use]
    pub fn service_slot(&self, service: u16) -> Option<u32> {
        let at = self.service_slots.binary_search_by_key(&service, |(id, _)| *id).ok()?;
        Some(self.service_slots[at].1)
    }

    /// Whether one more flow has room under this pinhole, and among those of its user.
    #[must_use]
    pub fn has_room(&self, slot: u32) -> bool {
        let Some(pinhole) = self.table.at(slot) else { return false };
        let user = self.users.at(pinhole.user);
        pinhole.has_room() && user.is_none_or(|user| user.flows < self.users.limits.flows_max)
    }

    /// A flow began under this pinhole.
    pub fn join(&mut self, slot: u32) {
        let Some(pinhole) = self.table.at_mut(slot) else { return };
        pinhole.flows += 1;
        if let Some(user) = self.users.at_mut(pinhole.user) {
            user.flows += 1;
        }
    }

    /// A flow under this pinhole ended.
    pub fn leave(&mut self, slot: u32) {
        let Some(pinhole) = self.table.at_mut(slot) else { return };
        pinhole.flows -= 1;
        if let Some(user) = self.users.at_mut(pinhole.user) {
            user.flows -= 1;
        }
    }

    /// A slice of the pinhole's budget for a line that needs `need` bytes; `None` if there is not that much left. It has to be
    /// paid for, see [`Self::pay`].
    pub fn lend(&mut self, slot: u32, need: u32) -> Option<u32> {
        let pinhole = self.table.at_mut(slot)?;
        pinhole.budget.lend(need, pinhole.slice_max)
    }

    /// Pays for a slice of the budget out of the rates of the pinhole and of its user, or for the `need` in it alone; what is
    /// not paid for goes back. `share` is what the flow took of the rate.
    ///
    /// # Errors
    /// [`Reason::RateExceeded`].
    pub fn pay(&mut self, now: Instant, slot: u32, share: &mut Share, slice: u32, need: u32) -> Result<u32, Reason> {
        let paid = if self.take(now, slot, share, slice) { Some(slice) } else { None };
        let paid = paid.or_else(|| self.take(now, slot, share, need).then_some(need));
        if let Some(pinhole) = self.table.at_mut(slot) {
            pinhole.budget.give_back(slice - paid.unwrap_or(0));
        }
        paid.ok_or(Reason::RateExceeded)
    }

    /// Takes bytes of the rate of a pinhole and of its user, for one flow.
    fn take(&mut self, now: Instant, slot: u32, share: &mut Share, tokens: u32) -> bool {
        let Some(pinhole) = self.table.at_mut(slot) else { return false };
        if let Some(bucket) = &mut pinhole.bucket
            && !bucket.take(now, share, tokens)
        {
            return false;
        }
        let Some(user) = self.users.at_mut(pinhole.user) else { return true };
        if user.take(now, &mut pinhole.share, tokens) {
            return true;
        }
        if let Some(bucket) = &mut pinhole.bucket {
            bucket.give_back(share, tokens);
        }
        false
    }

    /// Takes back what a flow was lent and has not spent.
    pub fn give_back(&mut self, slot: u32, share: &mut Share, lent: u32) {
        let Some(pinhole) = self.table.at_mut(slot) else { return };
        pinhole.budget.give_back(lent);
        if let Some(bucket) = &mut pinhole.bucket {
            bucket.give_back(share, lent);
        }
        if let Some(user) = self.users.at_mut(pinhole.user) {
            user.give_back(&mut pinhole.share, lent);
        }
    }

    /// The budget is spent; says so once.
    pub fn spend_all(&mut self, slot: u32) -> Reason {
        let ended = self.table.at(slot).and_then(|pinhole| pinhole.account(EndCause::Spent));
        self.table.change(slot, |pinhole| pinhole.spent = true);
        if let Some(ended) = ended {
            self.push_event(ended);
        }
        Reason::BudgetSpent
    }

    /// Forgets an ended pinhole; its external ports are free again, which the caller sees to.
    pub fn forget(&mut self, slot: u32) -> Option<Pinhole> {
        let pinhole = self.table.forget(slot)?;
        self.table.list_client_id(slot, None);
        self.macs.seals.remove(slot);
        self.macs.relays.remove(slot);
        if let Some(user) = self.users.at_mut(pinhole.user) {
            user.ports_resting -= pinhole.ports_len();
        }
        self.users.leave(pinhole.user);
        Some(pinhole)
    }

    /// What only who hears at `address` can repeat for this pinhole, in this period and no other; never 0.
    pub(crate) fn challenge(&self, slot: u32, address: IpAddr, period: u64) -> u64 {
        let serial = self.table.at(slot).map_or(0, |pinhole| pinhole.serial);
        let mut input = [0; 16 + 8 + 8 + 9];
        input[..16].copy_from_slice(&octets(address));
        input[16..24].copy_from_slice(&serial.to_le_bytes());
        input[24..32].copy_from_slice(&period.to_le_bytes());
        input[32..].copy_from_slice(b"challenge");
        self.challenges.hash(&input) | 1
    }

    /// Says that a grant expired or spent its budget: what happens without anybody asking.
    pub fn push_event(&mut self, event: Ended) {
        if self.events.push_over(event).is_some() {
            self.counters.events_lost += 1;
        }
    }

    /// What happened unasked. Call until `None`.
    pub fn pop_event(&mut self) -> Option<Ended> {
        self.events.pop()
    }

    /// How full each table is. Ended pinholes that are only remembered give way to new ones.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> {
        let gauge = |name, (used, max): (u32, u32)| Gauge { name, used: used.into(), max: max.into() };
        let others = [
            gauge("packet_macs", self.macs.seals.used_and_max()),
            self.users.gauge(),
            gauge("revoked_grants", self.revoked.used_and_max()),
            gauge("services", (self.hosts.services().len() as u32, self.hosts.max().into())),
            self.events.gauge(),
        ];
        self.table.gauges().into_iter().chain(others)
    }

    /// The slot of a live grant.
    #[must_use]
    pub fn live(&self, id: GrantId) -> Option<(u32, &Pinhole)> {
        let slot = self.table.by_id(id)?;
        self.table.at(slot).filter(|pinhole| pinhole.is_live()).map(|pinhole| (slot, pinhole))
    }
}

/// A bucket for so many errors a second, a tenth of them at once.
#[must_use]
pub fn errors(now: Instant, per_s: u32) -> TokenBucket {
    TokenBucket::new(now, per_s.into(), u64::from(per_s).div_ceil(10))
}
