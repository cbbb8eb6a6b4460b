use core::net::IpAddr;

use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits, shim::Carriage},
};

use super::Standing;

/// What a host has granted and been answered since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Capabilities granted.
    pub grants: u64,
    /// Answers that gave capabilities.
    pub answers_heard: u64,
    /// Answers that fit no outstanding request: late, repeated or forged.
    pub answers_ignored: u64,
}

/// How a host sends to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Its packets are requests.
    Requesting,
    /// It has capabilities.
    Capable {
        /// N and T.
        limits: Limits,
        /// Bytes of N used.
        used: u64,
        /// When they end.
        until: Instant,
    },
    /// The peer refused.
    Refused {
        /// When it is asked again.
        until: Instant,
    },
    /// The remote address does not speak capabilities.
    Legacy,
}

/// A row of the table of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerStatus {
    /// The local address.
    pub local: IpAddr,
    /// The remote address.
    pub remote: IpAddr,
    /// The client id.
    pub client_id: ClientId,
    /// How packets to it travel.
    pub carriage: Carriage,
    /// What it has proved.
    pub standing: Standing,
    /// How this host sends to it.
    pub sending: Sending,
    /// What it may send to this host.
    pub granted: Option<Limits>,
    /// When it was seen last.
    pub seen: Instant,
}
