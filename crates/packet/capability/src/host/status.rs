use core::net::IpAddr;

use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits, shim::Carriage},
};

use super::Standing;

/// What a host has done and heard since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent as requests.
    pub requests: u64,
    /// Packets sent as renewals.
    pub renewals: u64,
    /// Packets sent with their list of capabilities.
    pub lists: u64,
    /// Packets sent with only a nonce.
    pub nonces: u64,
    /// Packets sent without a capability although the far end may know the header.
    pub bare: u64,
    /// Packets left plain.
    pub plain: u64,
    /// Packets with nothing but a header.
    pub alone: u64,
    /// Capabilities granted.
    pub grants: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Requests ignored.
    pub ignored: u64,
    /// Demotion notices owed to senders.
    pub notices: u64,
    /// Regular packets whose nonce and list nobody here knows.
    pub unknown: u64,
    /// Plain packets from the network.
    pub plain_heard: u64,
    /// Answers that gave capabilities.
    pub answers_heard: u64,
    /// Answers that fit no outstanding request: late, repeated or forged.
    pub answers_ignored: u64,
    /// Refusals heard.
    pub refusals_heard: u64,
    /// Demotion notices heard.
    pub notices_heard: u64,
    /// Remote addresses found not to speak capabilities.
    pub legacy_found: u64,
    /// Peers for whom the full table had no room.
    pub table_full: u64,
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
