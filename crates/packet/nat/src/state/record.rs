use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use sluicegate_flow::TcpHalf;
use sluicegate_grant::{GRANT_LEN, GrantId};
use sluicegate_wire::{UnixTime, ip::octets};

use super::{reader::Fields, writer::Writer};
use sluicegate_pinhole::{PEERS_MAX, Revoked, Tuple};

const GRANT: u8 = 1;
const STANDING: u8 = 2;
const SERVICE: u8 = 3;
const FLOW: u8 = 4;
const REVOKED: u8 = 5;
const FORGOTTEN: u8 = 6;
const END: u8 = 0xff;

/// One thing that survives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Pinhole(Place, PinholeRecord),
    Flow(FlowRecord),
    Revoked(GrantId, Revoked),
    /// What a full table of revoked grants forgot, see [`crate::revoked`].
    Forgotten(Revoked),
    End,
}

/// By which a flow names its pinhole: the count of installations at its own (so in order of age), and its slot. A slot
/// that became another's while the export went on is another place.
pub(super) type Place = (u64, u32);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PinholeRecord {
    Grant(GrantRecord),
    Standing(StandingRecord),
    /// The pinhole of what this service starts.
    Service(u16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrantRecord {
    pub(super) body: [u8; GRANT_LEN],
    pub(super) service: u16,
    pub(super) target: IpAddr,
    pub(super) target_ports: (u16, u16),
    pub(super) gate_ports: (u16, u16),
    pub(super) filter: bool,
    pub(super) spent: bool,
    /// Where its packets may come from; of one that proves it, what it proved last.
    pub(super) client: Option<IpAddr>,
    /// Of the budget: what lines hold is left.
    pub(super) left: u64,
    pub(super) taken: u64,
    /// The highest sequence number of packet MACs, if it demands them. Keys are in no record.
    pub(super) window: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StandingRecord {
    pub(super) service: u16,
    pub(super) target: IpAddr,
    pub(super) target_port: u16,
    pub(super) gate_ports: (u16, u16),
    pub(super) rate_bytes_per_s: u64,
    pub(super) peers: Vec<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub(super) owner: Place,
    pub(super) inbound: Tuple,
    pub(super) outbound: Tuple,
    pub(super) flags: u16,
    pub(super) state: u8,
    pub(super) notes: u16,
    /// From outside, from inside.
    pub(super) halves: [TcpHalf; 2],
    pub(super) idle_ms: [u32; 2],
}

impl Record {
    pub(super) fn write(&self, to: &mut Writer<'_>) {
        match self {
            Self::Pinhole(place, pinhole) => {
                match pinhole {
                    PinholeRecord::Grant(grant) => grant.write(to),
                    PinholeRecord::Standing(standing) => standing.write(to),
                    PinholeRecord::Service(service) => {
                        to.put(&[SERVICE]);
                        to.put(&service.to_le_bytes());
                    }
                }
                write_place(*place, to);
            }
            Self::Flow(flow) => flow.write(to),
            Self::Revoked(id, revoked) => {
                to.put(&[REVOKED]);
                to.put(&id.0);
                write_revoked(*revoked, to);
            }
            Self::Forgotten(revoked) => {
                to.put(&[FORGOTTEN]);
                write_revoked(*revoked, to);
            }
            Self::End => to.put(&[END]),
        }
    }

    /// The next record; `None` if the bytes are none.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [kind] = fields.take()?;
        let pinhole = match kind {
            GRANT => PinholeRecord::Grant(GrantRecord::read(fields)?),
            STANDING => PinholeRecord::Standing(StandingRecord::read(fields)?),
            SERVICE => PinholeRecord::Service(fields.u16()?),
            FLOW => return FlowRecord::read(fields).map(Self::Flow),
            REVOKED => return Some(Self::Revoked(GrantId(fields.take()?), revoked(fields)?)),
            FORGOTTEN => return revoked(fields).map(Self::Forgotten),
            END => return Some(Self::End),
            _ => return None,
        };
        Some(Self::Pinhole(place(fields)?, pinhole))
    }
}

impl GrantRecord {
    fn write(&self, to: &mut Writer<'_>) {
        to.put(&[GRANT]);
        to.put(&self.body);
        to.put(&self.service.to_le_bytes());
        to.put(&octets(self.target));
        write_ports(self.target_ports, to);
        write_ports(self.gate_ports, to);
        to.put(&[u8::from(self.filter), u8::from(self.spent)]);
        to.put(&octets(self.client.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))));
        to.put(&self.left.to_le_bytes());
        to.put(&self.taken.to_le_bytes());
        to.put(&[u8::from(self.window.is_some())]);
        to.put(&self.window.unwrap_or(0).to_le_bytes());
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            body: fields.take()?,
            service: fields.u16()?,
            target: address(fields)?,
            target_ports: ports(fields)?,
            gate_ports: ports(fields)?,
            filter: fields.bool()?,
            spent: fields.bool()?,
            client: address(fields).map(|client| (!client.is_unspecified()).then_some(client))?,
            left: fields.u64()?,
            taken: fields.u64()?,
            window: {
                let (is_there, highest) = (fields.bool()?, fields.u64()?);
                is_there.then_some(highest)
            },
        })
    }
}

impl StandingRecord {
    fn write(&self, to: &mut Writer<'_>) {
        to.put(&[STANDING]);
        to.put(&self.service.to_le_bytes());
        to.put(&octets(self.target));
        to.put(&self.target_port.to_le_bytes());
        write_ports(self.gate_ports, to);
        to.put(&self.rate_bytes_per_s.to_le_bytes());
        to.put(&[self.peers.len() as u8]);
        for peer in &self.peers {
            to.put(&octets(*peer));
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (service, target, target_port) = (fields.u16()?, address(fields)?, fields.u16()?);
        let (gate_ports, rate_bytes_per_s) = (ports(fields)?, fields.u64()?);
        let [len] = fields.take()?;
        if usize::from(len) > PEERS_MAX {
            return None;
        }
        let peers = (0..len).map(|_| address(fields)).collect::<Option<Vec<_>>>()?;
        Some(Self { service, target, target_port, gate_ports, rate_bytes_per_s, peers })
    }
}

impl FlowRecord {
    fn write(&self, to: &mut Writer<'_>) {
        to.put(&[FLOW]);
        write_place(self.owner, to);
        for tuple in [&self.inbound, &self.outbound] {
            to.put(&[tuple.protocol]);
            for (address, port) in [tuple.src, tuple.dst] {
                to.put(&octets(address));
                to.put(&port.to_le_bytes());
            }
        }
        to.put(&self.flags.to_le_bytes());
        to.put(&[self.state]);
        to.put(&self.notes.to_le_bytes());
        for half in &self.halves {
            for number in [half.end, half.limit, half.peer_end] {
                to.put(&number.to_le_bytes());
            }
            to.put(&half.window.to_le_bytes());
            to.put(&half.peer_window.to_le_bytes());
            to.put(&[half.shift, half.peer_shift]);
        }
        for idle in self.idle_ms {
            to.put(&idle.to_le_bytes());
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            owner: place(fields)?,
            inbound: tuple(fields)?,
            outbound: tuple(fields)?,
            flags: fields.u16()?,
            state: fields.take::<1>()?[0],
            notes: fields.u16()?,
            halves: [half(fields)?, half(fields)?],
            idle_ms: [fields.u32()?, fields.u32()?],
        })
    }
}

fn write_place((serial, slot): Place, to: &mut Writer<'_>) {
    to.put(&serial.to_le_bytes());
    to.put(&slot.to_le_bytes());
}

fn place(fields: &mut Fields<'_>) -> Option<Place> {
    Some((fields.u64()?, fields.u32()?))
}

fn write_revoked(revoked: Revoked, to: &mut Writer<'_>) {
    to.put(&revoked.user);
    to.put(&revoked.not_before.0.to_le_bytes());
    to.put(&revoked.not_after.0.to_le_bytes());
}

fn revoked(fields: &mut Fields<'_>) -> Option<Revoked> {
    let user = fields.take()?;
    Some(Revoked { user, not_before: UnixTime(fields.u64()?), not_after: UnixTime(fields.u64()?) })
}

fn write_ports((first, last): (u16, u16), to: &mut Writer<'_>) {
    to.put(&first.to_le_bytes());
    to.put(&last.to_le_bytes());
}

fn ports(fields: &mut Fields<'_>) -> Option<(u16, u16)> {
    let (first, last) = (fields.u16()?, fields.u16()?);
    (first <= last).then_some((first, last))
}

fn address(fields: &mut Fields<'_>) -> Option<IpAddr> {
    Some(Ipv6Addr::from(fields.take::<16>()?).to_canonical())
}

fn tuple(fields: &mut Fields<'_>) -> Option<Tuple> {
    let [protocol] = fields.take()?;
    let (src, src_port) = (address(fields)?, fields.u16()?);
    let (dst, dst_port) = (address(fields)?, fields.u16()?);
    (src.is_ipv4() == dst.is_ipv4()).then_some(Tuple { protocol, src: (src, src_port), dst: (dst, dst_port) })
}

fn half(fields: &mut Fields<'_>) -> Option<TcpHalf> {
    let (end, limit, peer_end) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (window, peer_window) = (fields.u16()?, fields.u16()?);
    let [shift, peer_shift] = fields.take()?;
    let is_right = shift <= 15 && peer_shift <= 15;
    is_right.then_some(TcpHalf { end, limit, peer_end, window, peer_window, shift, peer_shift })
}
