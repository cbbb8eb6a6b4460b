use std::{net::IpAddr, time::Duration};

use sluicegate_wire::{Instant, udp};

use crate::Rng;

/// The longest datagram of a stream, in bytes of its payload.
const PAYLOAD_MAX: usize = 1_472;
/// Headers of a datagram over IPv4, in bytes.
const HEADERS: usize = 28;

/// Datagrams at a steady rate: a media stream, or a flood.
#[derive(Debug, Clone)]
pub struct Stream {
    src: Option<IpAddr>,
    dst: IpAddr,
    ports: (u16, u16),
    payload_bytes: usize,
    gap: Duration,
    jitter: Duration,
    next: Instant,
    due: Instant,
    stop: Instant,
}

/// One datagram of a stream.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) src: Option<IpAddr>,
    pub(super) dst: IpAddr,
    pub(super) repr: udp::Repr<'static>,
}

impl Stream {
    /// IPv4 packets of `packet_bytes` bytes at `rate_bps`, from `start` until before `stop`.
    #[must_use]
    pub fn new(dst: IpAddr, packet_bytes: usize, rate_bps: u64, start: Instant, stop: Instant) -> Self {
        let gap_ns = packet_bytes as u64 * 8_000_000_000 / rate_bps.max(1);
        Self {
            src: None,
            dst,
            ports: (5_004, 5_004),
            payload_bytes: packet_bytes.saturating_sub(HEADERS).min(PAYLOAD_MAX),
            gap: Duration::from_nanos(gap_ns.max(1)),
            jitter: Duration::ZERO,
            next: start,
            due: start,
            stop,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (self.next < self.stop).then_some(self.due)
    }

    pub(super) fn poll_transmit(&mut self, now: Instant, rng: &mut Rng) -> Option<Datagram> {
        static ZEROS: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];
        if self.next >= self.stop || now < self.due {
            return None;
        }
        self.next = self.next + self.gap;
        self.due = self.next + Duration::from_nanos(rng.below(self.jitter.as_nanos() as u64));
        let repr = udp::Repr { src_port: self.ports.0, dst_port: self.ports.1, payload: &ZEROS[..self.payload_bytes] };
        Some(Datagram { src: self.src, dst: self.dst, repr })
    }
}
