//! Flows: two lines each, with timers and the lists of their pinhole.

use alloc::{boxed::Box, vec};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use sluicegate_bounded::{Link, Wheel};
use sluicegate_flow::{Entry, FlowLine, Key, Kind, Line4, Line6, Share, Table, Tick};
use sluicegate_pinhole::Tuple;
use sluicegate_wire::Instant;

use crate::{
    aside::Asides,
    config::Timers,
    transport::{Selector, State, Transport, Transports},
};

const GRANULARITY_NANOS: u64 = 50_000_000;

/// Set in a line's flags: addresses and ports are rewritten.
pub(crate) const TRANSLATED: u16 = 1;
/// The pinhole's budget or rate pays for the bytes of this line.
pub(crate) const CHARGED: u16 = 2;
/// The inside sent the first packet.
pub(crate) const FROM_INSIDE: u16 = 4;
/// The external port belongs to a binding, not to the pinhole.
pub(crate) const BOUND: u16 = 8;
/// What comes from outside must prove more than its addresses, see [`sluicegate_pinhole::Pinholes::prove`].
pub(crate) const GUARDED: u16 = 16;

/// Set in a line's notes: the side that did not start the flow has answered.
pub(crate) const ANSWERED: u16 = 1;
/// The flow is in the list of lasting flows.
pub(crate) const LASTING: u16 = 2;
/// Imported TCP numbers that nobody has confirmed, see [`crate::transport::tcp::Resync`].
pub(crate) const WAITING: u16 = 4;
/// Imported TCP numbers that the inside has confirmed.
pub(crate) const ANCHORED: u16 = 8;
/// The client has moved: its line from outside has another address than the service knows, which the peer's key has.
pub(crate) const MOVED: u16 = 16;
/// It has moved, and nothing has come from there yet.
pub(crate) const UNHEARD: u16 = 32;

/// The address family of a kind of line.
pub(crate) trait Family: FlowLine {
    /// The address of this family; unspecified for one of the other.
    fn address(ip: IpAddr) -> <Self::Key as Key>::Address;
    fn ip(address: <Self::Key as Key>::Address) -> IpAddr;
    /// A translated address as a line keeps it, and back.
    fn pack(ip: IpAddr) -> u32;
    fn unpack(bits: u32) -> IpAddr;
    const IS_IPV4: bool;

    #[inline]
    fn key_of(kind: Kind, tuple: &Tuple) -> Self::Key {
        let (src, dst) = (tuple.src, tuple.dst);
        Self::Key::new(kind, tuple.protocol, (Self::address(src.0), src.1), (Self::address(dst.0), dst.1))
    }

    fn tuple_of(key: &Self::Key) -> Tuple {
        let (src, dst) = (key.src(), key.dst());
        Tuple { protocol: key.protocol(), src: (Self::ip(src.0), src.1), dst: (Self::ip(dst.0), dst.1) }
    }
}

impl Family for Line4 {
    const IS_IPV4: bool = true;

    #[inline]
    fn address(ip: IpAddr) -> Ipv4Addr {
        if let IpAddr::V4(v4) = ip { v4 } else { Ipv4Addr::UNSPECIFIED }
    }

    fn ip(address: Ipv4Addr) -> IpAddr {
        IpAddr::V4(address)
    }

    fn pack(ip: IpAddr) -> u32 {
        Self::address(ip).to_bits()
    }

    #[inline]
    fn unpack(bits: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(bits))
    }
}

impl Family for Line6 {
    const IS_IPV4: bool = false;

    #[inline]
    fn address(ip: IpAddr) -> Ipv6Addr {
        if let IpAddr::V6(v6) = ip { v6 } else { Ipv6Addr::UNSPECIFIED }
    }

    fn ip(address: Ipv6Addr) -> IpAddr {
        IpAddr::V6(address)
    }

    fn pack(_: IpAddr) -> u32 {
        0
    }

    fn unpack(_: u32) -> IpAddr {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    }
}

/// Does the same with the flows of IPv4, or else of IPv6.
macro_rules! of_family {
    ($is_ipv4:expr, ($v4:expr, $v6:expr), |$flows:ident| $then:expr) => {
        if $is_ipv4 {
            let $flows = $v4;
            $then
        } else {
            let $flows = $v6;
            $then
        }
    };
}
pub(crate) use of_family;

/// What a flow is made of, as seen from outside and from inside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFlow {
    /// Pinhole slot.
    pub(crate) owner: u32,
    /// A packet from outside, on arrival.
    pub(crate) inbound: Tuple,
    /// A packet from inside, on arrival.
    pub(crate) outbound: Tuple,
    /// Of both lines; [`CHARGED`] goes to the inbound line only.
    pub(crate) flags: u16,
}

/// The flows of one address family. A flow is named by the index of its inbound line.
#[derive(Debug)]
pub(crate) struct Flows<L> {
    pub(crate) table: Table<L>,
    /// Neighbours of each flow in a list of its pinhole.
    pub(crate) links: Box<[Link]>,
    pub(crate) asides: Asides,
    /// What each flow took of its pinhole's rate.
    pub(crate) shares: Box<[Share]>,
    wheel: Wheel,
    transports: &'static Transports,
    pub(crate) flows: u32,
    pub(crate) flows_max: u32,
}

impl<L: Family> Flows<L> {
    pub(crate) fn new(flows_max: u32, hash_key: &[u8; 16], transports: &'static Transports) -> Self {
        let flows_max = flows_max.clamp(1, 1 << 25);
        let table = Table::new(flows_max * 2, hash_key);
        let ids = table.index_end();
        Self {
            table,
            links: vec![Link::NONE; ids as usize].into_boxed_slice(),
            asides: Asides::new(ids),
            shares: vec![Share::NONE; ids as usize].into_boxed_slice(),
            wheel: Wheel::new("flow_timers", ids, GRANULARITY_NANOS),
            transports,
            flows: 0,
            flows_max,
        }
    }

    #[inline]
    pub(crate) fn find(&self, kind: Kind, tuple: &Tuple) -> Option<u32> {
        let key = L::key_of(kind, tuple);
        self.table.find(self.table.hash(&key), &key)
    }

    #[inline]
    pub(crate) fn line(&self, index: u32) -> &L {
        self.table.line(index)
    }

    /// The flow that a line belongs to.
    #[inline]
    pub(crate) fn flow_of(&self, index: u32) -> u32 {
        let line = self.table.line(index);
        if line.key().kind() == Kind::Inbound { index } else { line.peer() }
    }

    /// Makes both lines; neither may be there yet. `None`: no room.
    pub(crate) fn insert(&mut self, now: Instant, new: &NewFlow) -> Option<u32> {
        if self.flows >= self.flows_max {
            return None;
        }
        let seen = Tick::at(now);
        let entry = |to: (IpAddr, u16), flags| Entry {
            owner: new.owner,
            new_address: L::pack(to.0),
            new_port: to.1,
            flags,
            seen,
        };
        // A packet from outside goes where those from inside come from, and the other way round. An echo identifier
        // stands in the source's port on both ways.
        let selector = self.transports.selector(new.inbound.protocol);
        let (in_port, out_port) = (new.outbound.src.1, selector.external(&new.inbound));
        let inbound = L::key_of(Kind::Inbound, &new.inbound);
        let to = entry((new.outbound.src.0, in_port), new.flags);
        let flow = self.table.insert(self.table.hash(&inbound), &inbound, &to)?;
        let outbound = L::key_of(Kind::Outbound, &new.outbound);
        let to = entry((new.inbound.dst.0, out_port), new.flags & !CHARGED);
        let Some(back) = self.table.insert(self.table.hash(&outbound), &outbound, &to) else {
            self.table.free(flow);
            return None;
        };
        self.table.line(flow).set_peer(back);
        self.table.line(back).set_peer(flow);
        self.asides.reset(now, flow);
        self.shares[flow as usize] = Share::NONE;
        self.flows += 1;
        Some(flow)
    }

    /// Where the outside end of a flow is, or what the inside takes it for: the key of the other direction's line knows.
    pub(crate) fn outside_of_peer(&self, index: u32) -> (IpAddr, u16) {
        let peer = self.line(self.line(index).peer());
        let tuple = L::tuple_of(&peer.key());
        if peer.key().kind() == Kind::Inbound { tuple.src } else { tuple.dst }
    }

    /// Gives a flow another outside address, with the same port; the inside goes on knowing the first. A line lies where
    /// its key belongs, so the flow's name changes. The caller has taken it off its list and puts it and its timer back.
    ///
    /// # Errors
    /// The flow's name, if it is where it was: another flow has these ends, or there is no room.
    pub(crate) fn move_outside(&mut self, flow: u32, address: IpAddr) -> Result<u32, u32> {
        let line = self.table.line(flow);
        let old = line.key();
        let mut tuple = L::tuple_of(&old);
        tuple.src.0 = address;
        let new = L::key_of(Kind::Inbound, &tuple);
        if self.table.find(self.table.hash(&new), &new).is_some() {
            return Err(flow);
        }
        let (new_address, new_port, flags) = line.rewrite();
        let entry = Entry { owner: line.owner(), new_address, new_port, flags, seen: line.seen() };
        let (back, half, state, notes) = (line.peer(), line.tcp(), line.state(), line.notes());
        self.wheel.cancel(flow);
        self.table.free(flow);
        let moved = match self.table.insert(self.table.hash(&new), &new, &entry) {
            Some(moved) => moved,
            // One of its sets has the place that was freed just now.
            None => match self.table.insert(self.table.hash(&old), &old, &entry) {
                Some(same) => same,
                None => unreachable!("a line that was freed can be made again"),
            },
        };
        self.asides.copy(flow, moved);
        self.shares[moved as usize] = self.shares[flow as usize];
        let line = self.table.line(moved);
        line.set_peer(back);
        line.set_tcp(&half);
        self.table.line(back).set_peer(moved);
        let is_first = self.outside_of_peer(moved) == L::tuple_of(&line.key()).src;
        let notes = if is_first { notes & !MOVED } else { notes | MOVED };
        self.set_state(moved, State::from_code(state), notes | UNHEARD);
        if line.key() == new { Ok(moved) } else { Err(moved) }
    }

    /// Frees both lines. The caller has taken the flow off its list.
    pub(crate) fn free(&mut self, flow: u32) {
        let back = self.table.line(flow).peer();
        self.wheel.cancel(flow);
        self.table.free(back);
        self.table.free(flow);
        self.flows -= 1;
    }

    /// What the line's protocol is. Only of those that have a row are there lines.
    pub(crate) fn transport(&self, index: u32) -> Option<&'static Transport> {
        self.transports.of(self.table.line(index).key().protocol())
    }

    /// By what the flows of the line's protocol are told apart.
    pub(crate) fn selector(&self, index: u32) -> Selector {
        self.transports.selector(self.table.line(index).key().protocol())
    }

    /// How long the flow may be idle.
    pub(crate) fn idle_max(&self, flow: u32, timers: &Timers) -> Duration {
        let line = self.table.line(flow);
        let state = State::from_code(line.state());
        self.transport(flow).map_or(timers.udp, |transport| (transport.idle)(state, timers))
    }

    /// How long ago the last packet of either direction came.
    pub(crate) fn idle(&self, flow: u32, now: Instant) -> Duration {
        let line = self.table.line(flow);
        line.seen().age(now).min(self.table.line(line.peer()).seen().age(now))
    }

    /// Looks at the flow again when it may have become too old.
    pub(crate) fn schedule(&mut self, now: Instant, flow: u32, timers: &Timers) {
        let rest = self.idle_max(flow, timers).saturating_sub(self.idle(flow, now));
        self.wheel.schedule(flow, now, now + rest);
    }

    /// A flow whose time is over. Flows that were used meanwhile are scheduled again; each flow looked at takes one
    /// off `looks`. Call until `None`.
    pub(crate) fn pop_idle(&mut self, now: Instant, timers: &Timers, looks: &mut usize) -> Option<u32> {
        while *looks > 0 {
            *looks -= 1;
            let flow = self.wheel.pop_due(now)?;
            if self.idle(flow, now) >= self.idle_max(flow, timers) {
                return Some(flow);
            }
            self.schedule(now, flow, timers);
        }
        None
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due()
    }

    /// Writes state and notes into both lines.
    pub(crate) fn set_state(&self, flow: u32, state: State, notes: u16) {
        let line = self.table.line(flow);
        line.set_state(state as u8, notes);
        self.table.line(line.peer()).set_state(state as u8, notes);
    }

    /// The flows whose inbound line lies in a set of the table.
    pub(crate) fn in_set(&self, set: u32) -> impl Iterator<Item = u32> {
        self.table.used_in_set(set).filter(|index| self.table.line(*index).key().kind() == Kind::Inbound)
    }
}
