//! The structures shared with the XDP program: the mirror of `bpf/gate.h`.

use std::net::IpAddr;

use sluicegate_wire::{Port, Reason, ip::octets};

use crate::{
    ERROR_RATE_PPS, FRAGMENT_WAIT, FRAGMENTED_RATE_PPS, Interface, LOCAL_MAX, OWN_MAX, PEER_RATE_PPS, PEERS_MAX, Rules,
    Side, classify::PLACE_DATAGRAMS,
};

/// Queues per interface that the program can tell apart.
pub(super) const QUEUES_MAX: u32 = 16;
/// Counters of the program, by code of `wire::Reason`.
const REASONS_MAX: u32 = 64;
const _: () = assert!(Reason::ALL.len() <= REASONS_MAX as usize);
/// What the program drops for, and the names of that in the header.
pub(super) const REASONS: [(&str, Reason); 5] = [
    ("REASON_FRAME_TRUNCATED", Reason::FrameTruncated),
    ("REASON_NOT_FOR_SERVICE", Reason::NotForService),
    ("REASON_LOCAL_RATE", Reason::LocalRate),
    ("REASON_HEARTBEAT_STALE", Reason::HeartbeatStale),
    ("REASON_RECEIVE_FULL", Reason::ReceiveFull),
];
/// Words of the identifiers of pings, a bit for each.
pub(super) const PINGS_WORDS: usize = 1024;
/// The program drops when the gate has not been heard of for this long.
const HEARTBEAT_LIMIT_NS: u64 = 2_000_000_000;
/// Each entry of `local` and `peers` may spend this much of its rate at once.
const BURST_NS: u64 = 100_000_000;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Address([u8; 16]);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own {
    address: Address,
    ports: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Remote {
    address: Address,
    port: u16,
    own_port: u16,
    pad: u32,
    interval_ns: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Local {
    address: Address,
    interval_ns: u64,
    protocol: u8,
    ports: u8,
    first: u16,
    last: u16,
    pad: u16,
}

/// Everything that the program knows about its gate.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(super) struct Config {
    heartbeat_limit_ns: u64,
    burst_ns: u64,
    ifindex: [u32; 2],
    mac: [[u8; 8]; 2],
    own_count: u32,
    peer_count: u32,
    local_count: u32,
    pad: u32,
    error_interval_ns: u64,
    fragment_wait_ns: u64,
    fragmented_interval_ns: u64,
    translated: Address,
    translated_first: u32,
    translated_last: u32,
    own: [Own; OWN_MAX],
    peers: [Remote; PEERS_MAX],
    local: [Local; LOCAL_MAX],
}

/// A datagram for the host of which fragments may still come.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Datagram {
    ends: [Address; 2],
    until: u64,
    id: u32,
    next: u32,
    bucket: u32,
    pad: u32,
}

/// What senders of fragments share.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    spent: u64,
    datagrams: [Datagram; PLACE_DATAGRAMS],
}

// SAFETY: as for `Config`.
unsafe impl aya::Pod for Place {}

impl Place {
    /// Datagrams of which fragments may still come.
    pub(super) fn expected(&self, now_ns: u64) -> usize {
        self.datagrams.iter().filter(|datagram| datagram.until > now_ns).count()
    }
}

// SAFETY: `repr(C)` structures of integers without implicit padding (checked by the size test below).
unsafe impl aya::Pod for Config {}

impl Config {
    /// Fragments may follow the first for so long, and no sender has a share.
    #[cfg(test)]
    pub(super) fn with_fragments_for(mut self, wait_ns: u64) -> Self {
        (self.fragment_wait_ns, self.fragmented_interval_ns) = (wait_ns, 0);
        self
    }

    /// The configuration for these interfaces and rules, which fit its tables.
    pub(super) fn new(ports: &[Interface; 2], rules: &Rules) -> Self {
        let ours = rules.translated;
        let mut config = Self {
            heartbeat_limit_ns: HEARTBEAT_LIMIT_NS,
            burst_ns: BURST_NS,
            ifindex: [ports[0].index, ports[1].index],
            mac: [[0; 8]; 2],
            own_count: rules.own.len().min(OWN_MAX) as u32,
            peer_count: rules.peers.len().min(PEERS_MAX) as u32,
            local_count: rules.local.len().min(LOCAL_MAX) as u32,
            pad: 0,
            error_interval_ns: interval(ERROR_RATE_PPS),
            fragment_wait_ns: FRAGMENT_WAIT.as_nanos() as u64,
            fragmented_interval_ns: interval(FRAGMENTED_RATE_PPS),
            translated: ours.map(|ours| mapped(ours.address.into())).unwrap_or_default(),
            // No port fits where nothing is translated.
            translated_first: ours.map_or(u32::MAX, |ours| ours.first.into()),
            translated_last: ours.map_or(0, |ours| ours.last.into()),
            own: [Own::default(); OWN_MAX],
            peers: [Remote::default(); PEERS_MAX],
            local: [Local::default(); LOCAL_MAX],
        };
        for (mac, port) in config.mac.iter_mut().zip(ports) {
            mac[..6].copy_from_slice(&port.mac);
        }
        for (slot, own) in config.own.iter_mut().zip(&rules.own) {
            *slot = Own { address: mapped(own.address), ports: bits(own.side).into(), pad: 0 };
        }
        for (slot, peer) in config.peers.iter_mut().zip(&rules.peers) {
            let (address, port) = (mapped(peer.remote.ip()), peer.remote.port());
            *slot = Remote { address, port, own_port: peer.own_port, pad: 0, interval_ns: interval(PEER_RATE_PPS) };
        }
        for (slot, rule) in config.local.iter_mut().zip(&rules.local) {
            *slot = Local {
                address: rule.address.map(mapped).unwrap_or_default(),
                interval_ns: interval(rule.rate_pps),
                protocol: rule.protocol,
                ports: bits(rule.side),
                first: rule.first,
                last: rule.last,
                pad: 0,
            };
        }
        config
    }
}

/// Time that one packet costs.
fn interval(rate_pps: u32) -> u64 {
    1_000_000_000 / u64::from(rate_pps.max(1))
}

/// Bit 0 outside, bit 1 inside.
fn bits(side: Side) -> u8 {
    u8::from(side.has(Port::OUTSIDE)) | u8::from(side.has(Port::INSIDE)) << 1
}

/// An IPv4 address is mapped into IPv6, so that one comparison serves both.
fn mapped(address: IpAddr) -> Address {
    Address(octets(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{FRAGMENTED_BYTES_MAX, PLACES};

    const HEADER: &str = include_str!("../../bpf/gate.h");

    fn defined(name: &str) -> u32 {
        let line = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name} is not in gate.h"))
    }

    #[test]
    fn the_header_and_its_mirror_have_the_same_numbers() {
        let mirrored = [
            ("LOCAL_MAX", LOCAL_MAX as u32),
            ("OWN_MAX", OWN_MAX as u32),
            ("PEERS_MAX", PEERS_MAX as u32),
            ("QUEUES_MAX", QUEUES_MAX),
            ("REASONS_MAX", REASONS_MAX),
            ("PLACES", PLACES as u32),
            ("FRAGMENTED_BYTES_MAX", FRAGMENTED_BYTES_MAX as u32),
            ("PLACE_DATAGRAMS", PLACE_DATAGRAMS as u32),
        ];
        let reasons = REASONS.map(|(name, reason)| (name, reason as u32));
        for (name, value) in mirrored.into_iter().chain(reasons) {
            assert_eq!(defined(name), value, "{name}");
        }
        let named = HEADER.lines().filter(|line| line.starts_with("#define REASON_"));
        assert_eq!(named.count(), REASONS.len(), "one is not read");
    }

    #[test]
    fn the_structures_have_no_hidden_padding() {
        assert_eq!(size_of::<Address>(), 16);
        assert_eq!((size_of::<Own>(), size_of::<Remote>(), size_of::<Local>()), (24, 32, 32));
        assert_eq!(size_of::<Place>(), 8 + 56 * PLACE_DATAGRAMS);
        let head = 2 * 8 + 2 * 4 + 2 * 8 + 4 * 4 + 3 * 8 + 16 + 2 * 4;
        assert_eq!(size_of::<Config>(), head + 24 * OWN_MAX + 32 * PEERS_MAX + 32 * LOCAL_MAX);
    }
}
