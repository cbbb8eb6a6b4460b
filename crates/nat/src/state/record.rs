use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use sluicegate_capability::GRANT_LEN;
use sluicegate_flow::TcpHalf;

use super::reader::Fields;
use crate::{config::PEERS_MAX, packet::Tuple, pinhole::octets};

const GRANT: u8 = 1;
const STANDING: u8 = 2;
const SERVICE: u8 = 3;
const FLOW: u8 = 4;
const END: u8 = 0xff;

/// One thing that survives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Grant(GrantRecord),
    Standing(StandingRecord),
    /// The place of the pinhole of what this service starts.
    Service(u16),
    Flow(FlowRecord),
    End,
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
    pub(super) left: u64,
    pub(super) used: u64,
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
    /// Place of its pinhole among the pinhole records.
    pub(super) owner: u32,
    pub(super) inbound: Tuple,
    pub(super) outbound: Tuple,
    pub(super) flags: u16,
    pub(super) state: u8,
    pub(super) notes: u16,
    /// From outside, from inside.
    pub(super) halves: [TcpHalf; 2],
    pub(super) idle_ms: [u32; 2],
}

type Sink<'a> = &'a mut dyn FnMut(&[u8]);

impl Record {
    pub(super) fn write(&self, sink: Sink<'_>) {
        match self {
            Self::Grant(grant) => grant.write(sink),
            Self::Standing(standing) => standing.write(sink),
            Self::Service(service) => {
                sink(&[SERVICE]);
                sink(&service.to_le_bytes());
            }
            Self::Flow(flow) => flow.write(sink),
            Self::End => sink(&[END]),
        }
    }

    /// The next record; `None` if the bytes are none.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [kind] = fields.take()?;
        match kind {
            GRANT => GrantRecord::read(fields).map(Self::Grant),
            STANDING => StandingRecord::read(fields).map(Self::Standing),
            SERVICE => fields.u16().map(Self::Service),
            FLOW => FlowRecord::read(fields).map(Self::Flow),
            END => Some(Self::End),
            _ => None,
        }
    }
}

impl GrantRecord {
    fn write(&self, sink: Sink<'_>) {
        sink(&[GRANT]);
        sink(&self.body);
        sink(&self.service.to_le_bytes());
        sink(&octets(self.target));
        write_ports(self.target_ports, sink);
        write_ports(self.gate_ports, sink);
        sink(&[u8::from(self.filter), u8::from(self.spent)]);
        sink(&self.left.to_le_bytes());
        sink(&self.used.to_le_bytes());
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
            left: fields.u64()?,
            used: fields.u64()?,
        })
    }
}

impl StandingRecord {
    fn write(&self, sink: Sink<'_>) {
        sink(&[STANDING]);
        sink(&self.service.to_le_bytes());
        sink(&octets(self.target));
        sink(&self.target_port.to_le_bytes());
        write_ports(self.gate_ports, sink);
        sink(&self.rate_bytes_per_s.to_le_bytes());
        sink(&[self.peers.len() as u8]);
        for peer in &self.peers {
            sink(&octets(*peer));
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
    fn write(&self, sink: Sink<'_>) {
        sink(&[FLOW]);
        sink(&self.owner.to_le_bytes());
        for tuple in [&self.inbound, &self.outbound] {
            sink(&[tuple.protocol]);
            for (address, port) in [tuple.src, tuple.dst] {
                sink(&octets(address));
                sink(&port.to_le_bytes());
            }
        }
        sink(&self.flags.to_le_bytes());
        sink(&[self.state]);
        sink(&self.notes.to_le_bytes());
        for half in &self.halves {
            for number in [half.end, half.limit, half.peer_end] {
                sink(&number.to_le_bytes());
            }
            sink(&half.window.to_le_bytes());
            sink(&half.peer_window.to_le_bytes());
            sink(&[half.shift, half.peer_shift]);
        }
        for idle in self.idle_ms {
            sink(&idle.to_le_bytes());
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            owner: fields.u32()?,
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

fn write_ports((first, last): (u16, u16), sink: Sink<'_>) {
    sink(&first.to_le_bytes());
    sink(&last.to_le_bytes());
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
