//! One pinhole: who may pass where, and what is left of it.

use alloc::boxed::Box;
use core::net::IpAddr;

use sluicegate_flow::{Budget, FairBucket, Share, TokenBucket};
use sluicegate_grant::Grant;
use sluicegate_wire::{Instant, Reason};

use crate::{
    config::{EndCause, Ended, Opened},
    mac::demands_proof,
    pinholes::errors,
    protocol::Tuple,
};

/// No pinhole, or no user.
pub const NO_SLOT: u32 = u32::MAX;
/// ICMP errors about the flows of one pinhole, a second: more than path MTU discovery and unreachable ports need, and a
/// twentieth of what all have together by default.
const ERRORS_PER_S: u32 = 50;

/// Where a slot stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// In force, or it will be.
    Live,
    /// Over, but remembered: its ports rest and its packets get the right reason.
    Ended(EndCause),
}

/// Who may use a pinhole.
#[derive(Debug, Clone)]
pub enum Holder {
    /// A grant's client.
    Granted(Box<Grant>),
    /// The frontends.
    Standing {
        /// Their addresses.
        peers: Box<[IpAddr]>,
        /// What all of them together may send; 0: no limit.
        rate_bytes_per_s: u64,
    },
    /// The service itself: flows that it starts. In no index.
    Service,
}

/// What a grant, a frontend or a service has at this gate.
#[derive(Debug, Clone)]
pub struct Pinhole {
    /// Whether it is in force.
    pub life: Life,
    /// Who may use it.
    pub holder: Holder,
    /// Of a grant: the address that packets may come from; none before its client has proved one, if it has to.
    pub client: Option<IpAddr>,
    /// It has flows from where its client was before, which follow once the client has shown that it hears where it is now.
    pub follows: bool,
    /// When flows followed last.
    pub followed_at: Option<Instant>,
    /// IP protocol number; 0 for all that the service starts.
    pub protocol: u8,
    /// Whether its protocol has ports, which it is about then.
    pub has_ports: bool,
    /// The service, see [`crate::Service::id`].
    pub service: u16,
    /// Whether nothing is translated.
    pub filter: bool,
    /// Of which space its external ports are, if it holds some.
    pub space: Option<u8>,
    /// Where it listens.
    pub gate: Opened,
    /// The service's own address.
    pub target: IpAddr,
    /// The service's first and last port; `(1, 0)` is none.
    pub target_ports: (u16, u16),
    /// When it opens.
    pub not_before: Instant,
    /// [`Instant`] of the largest value: never.
    pub not_after: Instant,
    /// The bytes that its client may send.
    pub budget: Budget,
    /// A packet did not fit the budget any more; cleared by a renewal. Changed by [`Table::change`], as all that
    /// decides where it is filed.
    pub spent: bool,
    /// Its rate, which its flows share.
    pub bucket: Option<FairBucket>,
    /// ICMP errors about its flows.
    pub errors: TokenBucket,
    /// IP bytes of its budget that such errors took.
    pub error_bytes: u64,
    /// The most that one line is lent, in bytes.
    pub slice_max: u32,
    /// The user's slot, see [`crate::users`]; [`NO_SLOT`] without a grant.
    pub user: u32,
    /// What this grant took of the user's rate.
    pub share: Share,
    /// Flows under it at most.
    pub flows_max: u32,
    /// Its flows now, as whoever makes and ends them counts.
    pub flows: u32,
    /// Counts installations: of two pinholes that fit a packet the newer wins.
    pub serial: u64,
    /// When it is forgotten, once it has ended.
    pub forget_at: Instant,
}

/// Whether a port lies in a range.
pub(crate) const fn contains((first, last): (u16, u16), port: u16) -> bool {
    first <= port && port <= last
}

impl Pinhole {
    /// A pinhole for a service at `target`, without flows and with a fresh rate (0: no limit). What the caller does not say
    /// otherwise is as for flows that the service starts: nothing comes in by it, and it has no end.
    #[must_use]
    pub fn new(now: Instant, holder: Holder, (gate, target): (Opened, IpAddr), rate_bytes_per_s: u64) -> Self {
        let (bucket, slice_max) = rate(now, rate_bytes_per_s);
        Self {
            life: Life::Live,
            client: address_known(&holder),
            follows: false,
            followed_at: None,
            holder,
            protocol: 0,
            has_ports: true,
            service: 0,
            filter: false,
            space: None,
            gate,
            target,
            target_ports: (1, 0),
            not_before: Instant::ZERO,
            not_after: Instant::from_nanos(u64::MAX),
            budget: Budget::new(u64::MAX),
            spent: false,
            bucket,
            errors: errors(now, ERRORS_PER_S),
            error_bytes: 0,
            slice_max,
            user: NO_SLOT,
            share: Share::NONE,
            flows_max: 0,
            flows: 0,
            serial: 0,
            forget_at: Instant::ZERO,
        }
    }

    /// The grant that it was made from, if it was.
    pub const fn grant(&self) -> Option<&Grant> {
        if let Holder::Granted(grant) = &self.holder { Some(grant) } else { None }
    }

    /// Whether it has not ended.
    pub const fn is_live(&self) -> bool {
        matches!(self.life, Life::Live)
    }

    /// Live and inside its time.
    pub fn is_open(&self, now: Instant) -> bool {
        self.is_live() && self.not_before <= now && now < self.not_after
    }

    /// Whether `remote` is somebody this was opened for.
    pub fn admits_client(&self, remote: (IpAddr, u16)) -> bool {
        match &self.holder {
            Holder::Granted(grant) => {
                let port = !self.has_ports || contains(grant.client_ports, remote.1);
                self.client == Some(remote.0) && port
            }
            Holder::Standing { peers, .. } => peers.contains(&remote.0),
            Holder::Service => false,
        }
    }

    /// Whether a packet that arrives from outside is meant for this.
    pub fn admits_inbound(&self, tuple: &Tuple) -> bool {
        let port = !self.has_ports || contains(self.gate.ports, tuple.dst.1);
        self.protocol == tuple.protocol && self.gate.address == tuple.dst.0 && port && self.admits_client(tuple.src)
    }

    /// Whether a packet that arrives from inside belongs to this.
    pub fn admits_outbound(&self, tuple: &Tuple) -> bool {
        let port = !self.has_ports || contains(self.target_ports, tuple.src.1);
        self.protocol == tuple.protocol && self.target == tuple.src.0 && port && self.admits_client(tuple.dst)
    }

    /// The target port that stands behind a gate port.
    pub const fn target_port(&self, gate_port: u16) -> u16 {
        self.target_ports.0.wrapping_add(gate_port.wrapping_sub(self.gate.ports.0))
    }

    /// The gate port in front of a target port, if there is one.
    pub fn gate_port(&self, target_port: u16) -> Option<u16> {
        contains(self.target_ports, target_port).then(|| self.gate.ports.0 + (target_port - self.target_ports.0))
    }

    /// Whether it holds external ports.
    pub const fn owns_ports(&self) -> bool {
        !self.filter && self.has_ports && self.gate.ports.0 != 0
    }

    /// Why packets for it are dropped while it is not open.
    pub fn closed_reason(&self, now: Instant) -> Reason {
        match self.life {
            Life::Ended(EndCause::Revoked) => Reason::GrantRevoked,
            Life::Ended(EndCause::Expired) => Reason::GrantExpired,
            Life::Ended(EndCause::Spent) => Reason::BudgetSpent,
            Life::Live if now >= self.not_after => Reason::GrantExpired,
            Life::Live => Reason::NoPinhole,
        }
    }

    /// The account of a granted pinhole that ends for this cause.
    pub fn account(&self, cause: EndCause) -> Option<Ended> {
        Some(Ended { id: self.grant()?.id, cause, bytes_used: self.budget.taken() })
    }

    /// Whether packets must prove more than their addresses.
    pub fn is_guarded(&self) -> bool {
        matches!(self.holder, Holder::Standing { .. }) || self.grant().is_some_and(demands_proof)
    }

    /// Whether its budget or rate pays for what comes from outside.
    pub const fn is_charged(&self) -> bool {
        match &self.holder {
            Holder::Granted(_) => true,
            Holder::Standing { .. } => self.bucket.is_some(),
            Holder::Service => false,
        }
    }

    /// External ports that it holds, live or resting.
    pub fn ports_len(&self) -> u32 {
        if !self.owns_ports() { 0 } else { u32::from(self.gate.ports.1 - self.gate.ports.0) + 1 }
    }

    /// Whether a new flow needs no other's place.
    pub(crate) const fn has_room(&self) -> bool {
        self.flows < self.flows_max
    }

    /// The outside addresses that its packets come from, as far as they are known.
    pub fn clients(&self) -> &[IpAddr] {
        match &self.holder {
            Holder::Granted(_) => self.client.as_slice(),
            Holder::Standing { peers, .. } => peers,
            Holder::Service => &[],
        }
    }
}

/// The address of a grant's client where it need not prove one.
fn address_known(holder: &Holder) -> Option<IpAddr> {
    match holder {
        Holder::Granted(grant) if !grant.proves_address() => Some(grant.client_address),
        _ => None,
    }
}

/// How much a rated pinhole may send at once: a quarter of a second, but at least one full slice.
const BURST_MIN: u64 = 64 * 1024;

/// The bucket for a rate in bytes a second (0: none), and the slices that lines get under it: 10 ms, so that the
/// bucket is asked a hundred times a second and not for every packet.
pub(crate) fn rate(now: Instant, bytes_per_s: u64) -> (Option<FairBucket>, u32) {
    if bytes_per_s == 0 {
        return (None, u32::MAX);
    }
    let slice = u32::try_from(bytes_per_s / 100).unwrap_or(u32::MAX);
    (Some(FairBucket::new(now, bytes_per_s, burst(bytes_per_s))), slice)
}

/// What may be sent at once at a rate in bytes a second.
pub(crate) fn burst(bytes_per_s: u64) -> u64 {
    (bytes_per_s / 4).max(BURST_MIN)
}
