//! Between shards and gate, as the frontend's hub does it: what shards ask for is booked, told to the gate in its order, and the
//! gate's answers go to the shard that waits. The gate does one thing after the other, when it likes.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    net::IpAddr,
};

use sluicegate_feed::{GrantDelta, GrantUsage, Selector};
use sluicegate_grant::GrantId;
use sluicegate_policy::Share;
use sluicegate_proxy::{CallId, Event, GateAnswer, Input, share_of};

use super::Play;
use crate::site::GATE;

const NAME: &str = "gate-1";
/// Orders that wait for the gate; more and it catches up.
const ORDERS_MAX: usize = 64;
/// How much longer than the frontend a gate may think that a grant lasts.
const GRACE_S: u64 = 5;

#[derive(Debug)]
enum Order {
    Open(Box<GrantDelta>),
    Close(Selector),
}

#[derive(Debug, Default)]
pub(super) struct Gate {
    orders: VecDeque<Order>,
    open: BTreeMap<GrantId, GrantDelta>,
}

impl Play {
    /// What a shard asks of its surroundings.
    pub(super) fn on_event(&mut self, shard: usize, event: Event) {
        match event {
            Event::Open { deltas, .. } => self.open(shard, &deltas),
            Event::Revoke(selector) => {
                let (user, _) = self.site.ledger.end_of(&selector.what);
                self.site.ledger.revoke(self.site.unix, &selector, Some(&user));
                self.gate.orders.push_back(Order::Close(selector));
            }
            Event::Bind(binding) => {
                for other in (0..self.site.shards.len()).filter(|other| *other != shard) {
                    self.tell(other, Input::Bind(binding.clone()));
                }
            }
            Event::HandOver { shard: owner, flow, datagram } => {
                assert_ne!(usize::from(owner), shard, "handed over to itself");
                if usize::from(owner) < self.site.shards.len() {
                    self.tell(owner.into(), Input::Datagram { flow, bytes: datagram });
                }
            }
            Event::Decided(_) | Event::Told(..) | Event::Proved { .. } => {}
        }
        if self.gate.orders.len() > ORDERS_MAX {
            self.gate_acts(true);
        }
    }

    /// All grants of a call, or none.
    fn open(&mut self, shard: usize, deltas: &[GrantDelta]) {
        let Some(first) = deltas.first() else { return };
        let held = self.site.ledger.held_by(&first.user, Some(first.grant.id.call()));
        let more = deltas.iter().map(share_of).fold(Share::default(), Share::plus);
        let is_too_much = self.site.policy.per_user().admit(&held, &more).is_err();
        for delta in deltas {
            let number = u8::try_from(shard).expect("few shards");
            if is_too_much || self.site.ledger.opening(delta, NAME, number).is_err() {
                let opened = Err("too much".to_owned());
                self.tell(shard, Input::Gate(GateAnswer { id: delta.grant.id, opened }));
            } else {
                self.gate.orders.push_back(Order::Open(Box::new(delta.clone())));
            }
        }
    }

    /// The gate does what it was told first.
    pub(super) fn gate_acts(&mut self, opens: bool) {
        let unix = self.site.unix;
        self.gate.open.retain(|_, delta| delta.grant.not_after.plus_secs(GRACE_S) > unix);
        match self.gate.orders.pop_front() {
            Some(Order::Open(delta)) => self.gate_answers(*delta, opens),
            Some(Order::Close(selector)) => {
                let is_kept = |delta: &GrantDelta| !selector.selects(&delta.grant, &delta.user, &delta.service);
                self.gate.open.retain(|_, delta| is_kept(delta));
            }
            None => {}
        }
    }

    fn gate_answers(&mut self, delta: GrantDelta, opens: bool) {
        let id = delta.grant.id;
        let (waits, opened) = if opens {
            let first = 20_000 + u16::try_from(id.index() % 100).unwrap_or_default() * 100;
            let ports = (first, first + delta.target_ports.1 - delta.target_ports.0);
            let address: IpAddr = GATE.parse().expect("an address");
            self.gate.open.insert(id, delta);
            (self.site.ledger.opened(NAME, id, address, ports), Ok((address, ports)))
        } else {
            (self.site.ledger.refused(NAME, id), Err("no port is free".to_owned()))
        };
        if let Some(shard) = waits {
            self.tell(shard.into(), Input::Gate(GateAnswer { id, opened }));
        }
    }

    /// The gate does all that it was told.
    pub(super) fn gate_catches_up(&mut self) {
        while !self.gate.orders.is_empty() {
            self.gate_acts(true);
        }
        self.gate_acts(true);
    }

    /// The gate says something twice, or of what nobody asked for.
    pub(super) fn gate_babbles(&mut self, which: u8, opens: bool) {
        let known = self.gate.open.keys().nth(usize::from(which) % (self.gate.open.len() + 1)).copied();
        let id = known.unwrap_or_else(|| GrantId::of_call([which; 12], 0));
        let opened = if opens { Ok((GATE.parse().expect("an address"), (9, 9))) } else { Err("late".to_owned()) };
        self.tell(usize::from(which) % self.site.shards.len(), Input::Gate(GateAnswer { id, opened }));
    }

    /// Media flow through all that is open.
    pub(super) fn media_flow(&mut self) {
        for row in self.site.ledger.rows() {
            let bytes_used = row.bytes_used.unwrap_or(0) + 8_000;
            self.site.ledger.used(NAME, &GrantUsage { id: row.id, bytes_used, error_bytes: 0, flows: 1 });
        }
    }

    /// An operator ends something.
    pub(super) fn operator_revokes(&mut self, selector: Selector) {
        let over: Vec<CallId> = self.site.ledger.revoke(self.site.unix, &selector, None);
        self.gate.orders.push_back(Order::Close(selector));
        for shard in 0..self.site.shards.len() {
            self.tell(shard, Input::Over(over.clone().into()));
        }
    }

    /// Once the gate has done all that it was told: what is open there is in the directory, and belongs to a call that lives.
    pub(super) fn check_open(&self) {
        if !self.gate.orders.is_empty() {
            return;
        }
        let open = || self.gate.open.iter().filter(|(_, delta)| delta.grant.not_after > self.site.unix);
        for (id, delta) in open() {
            assert!(self.site.ledger.row(NAME, *id).is_some(), "open, and nobody knows of it: {delta:?}");
        }
        let calls: HashSet<CallId> = open().map(|(id, _)| id.call()).collect();
        let [_, living] = self.site.ledger.gauges();
        assert!(calls.len() as u64 <= living.used, "open for calls that are over: {:?}", self.gate.open);
    }

    pub(super) fn check_nothing_is_open(&self) {
        assert!(self.gate.open.is_empty(), "{:?}", self.gate.open);
        for gauge in self.site.ledger.gauges() {
            assert_eq!(gauge.used, 0, "{} are left", gauge.name);
        }
    }
}
