use alloc::vec::Vec;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use sluicegate_flow::TcpHalf;
use sluicegate_pinhole::{PEERS_MAX, Revoked, Tuple};

/// The largest shift of a TCP window that a line has room for.
const SHIFT_MAX: u8 = 15;

/// One thing that survives, in the order of its fields in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record<'a> {
    Pinhole(Place, #[serde(borrow)] PinholeRecord<'a>),
    Flow(FlowRecord),
    /// By the grant's id.
    Revoked([u8; 16], Revoked),
    /// What a full table of revoked grants forgot, see [`crate::revoked`].
    Forgotten(Revoked),
    End,
}

/// By which a flow names its pinhole: the count of installations at its own (so in order of age), and its slot. A slot
/// that became another's while the export went on is another place.
pub(super) type Place = (u64, u32);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PinholeRecord<'a> {
    #[serde(borrow)]
    Grant(GrantRecord<'a>),
    Standing(StandingRecord),
    /// The pinhole of what this service starts.
    Service(u16),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GrantRecord<'a> {
    /// The encoded grant.
    pub(super) body: &'a [u8],
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandingRecord {
    pub(super) service: u16,
    pub(super) target: IpAddr,
    pub(super) target_port: u16,
    pub(super) gate_ports: (u16, u16),
    pub(super) rate_bytes_per_s: u64,
    pub(super) peers: Vec<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl Record<'_> {
    /// Whether the fields fit each other, as those that were written do.
    pub(super) fn is_consistent(&self) -> bool {
        let in_order = |(first, last): (u16, u16)| first <= last;
        match self {
            Self::Pinhole(_, PinholeRecord::Grant(grant)) => in_order(grant.target_ports) && in_order(grant.gate_ports),
            Self::Pinhole(_, PinholeRecord::Standing(standing)) => {
                in_order(standing.gate_ports) && standing.peers.len() <= PEERS_MAX
            }
            Self::Flow(flow) => {
                let same_version = |tuple: &Tuple| tuple.src.0.is_ipv4() == tuple.dst.0.is_ipv4();
                same_version(&flow.inbound)
                    && same_version(&flow.outbound)
                    && flow.halves.iter().all(|half| half.shift.max(half.peer_shift) <= SHIFT_MAX)
            }
            Self::Pinhole(_, PinholeRecord::Service(_)) | Self::Revoked(..) | Self::Forgotten(_) | Self::End => true,
        }
    }
}
