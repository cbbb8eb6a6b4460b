//! One packet's way through the gate: link header off, translator, next hop, link header on. No I/O, no clock.

use crate::{
    board::{Gauge, REASONS, Reading, Sent},
    drops::{DROPS_MAX, DropLog, Tuple},
};
use sluicegate_datapath::neighbour::Table;
use sluicegate_nat::Translator;
use sluicegate_wire::{
    Frame, Instant, IpProtocol, Port, Reason, Verdict,
    ethernet::{self, EtherType},
    ip::{FragmentOffset, Summary},
};
use std::net::IpAddr;

/// Where packets go next on each port.
pub(crate) trait NextHop {
    /// Link address of the next hop towards `destination`.
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason>;
    /// The gate's own link address on `port`.
    fn own_link_address(&self, port: Port) -> [u8; 6];
    /// Fill of its tables.
    fn gauges(&self) -> Vec<Gauge>;
}

/// The kernel's routes and neighbours, mirrored.
pub(crate) struct Neighbours {
    pub(crate) table: Table,
    pub(crate) own: [[u8; 6]; 2],
}

impl NextHop for Neighbours {
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason> {
        self.table.lookup(port, destination)
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        self.own[usize::from(port.0 & 1)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.table.gauges().into_iter().map(|(name, used, max)| gauge(name, used as u64, max as u64)).collect()
    }
}

fn gauge(name: &'static str, used: u64, max: u64) -> Gauge {
    Gauge { name, used, max }
}

/// The packet path and what it counts besides the translator.
pub(crate) struct Path<N> {
    pub(crate) translator: Translator,
    pub(crate) next_hop: N,
    pub(crate) drops: DropLog,
    dropped: [u64; REASONS],
    received: u64,
    sent: [Sent; 2],
}

impl<N: NextHop> Path<N> {
    pub(crate) fn new(translator: Translator, next_hop: N) -> Self {
        Self {
            translator,
            next_hop,
            drops: DropLog::new(),
            dropped: [0; REASONS],
            received: 0,
            sent: [Sent::default(); 2],
        }
    }

    /// Judges one frame that came in by `port`. `Some(port)`: it has been rewritten in place and leaves by that port.
    ///
    /// Cost beyond the translator's: one next-hop look-up and 14 bytes written.
    pub(crate) fn on_frame(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Option<Port> {
        self.received += 1;
        match self.judge(now, port, frame) {
            Ok(out) => out,
            Err(reason) => {
                self.dropped[reason as usize] += 1;
                self.drops.record(now, port, reason, || tuple(frame.bytes()));
                None
            }
        }
    }

    fn judge(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Result<Option<Port>, Reason> {
        let link = ethernet::Repr::parse(&ethernet::Packet::new_unchecked(frame.bytes()))?;
        if link.ethertype != EtherType::IPV4 && link.ethertype != EtherType::IPV6 {
            return Err(Reason::EthertypeUnsupported);
        }
        if link.dst != self.next_hop.own_link_address(port) {
            // For another station, or for all: a switch does not know better.
            return Err(Reason::NotForService);
        }
        frame.pull_front(ethernet::HEADER_LEN).ok_or(Reason::FrameTruncated)?;
        let out = match self.translator.on_packet(now, port, frame) {
            Verdict::Forward(out) => out,
            Verdict::Reply => port,
            Verdict::Drop(reason) => {
                // The translator counts its own drops.
                self.drops.record(now, port, reason, || tuple(frame.bytes()));
                return Ok(None);
            }
            Verdict::Queue => return Ok(None),
            Verdict::Punt => return Err(Reason::ProtocolUnsupported),
        };
        self.address(out, frame)?;
        Ok(Some(out))
    }

    /// Hands every packet that the translator released to `send`, link header on.
    pub(crate) fn release(&mut self, now: Instant, frame: &mut Frame<'_>, send: &mut dyn FnMut(Port, &[u8])) {
        while let Some(out) = self.translator.poll_output(now, frame) {
            match self.address(out, frame) {
                Ok(()) => {
                    send(out, frame.bytes());
                    // Back to where the next packet starts.
                    let _ = frame.pull_front(ethernet::HEADER_LEN);
                }
                Err(reason) => {
                    self.dropped[reason as usize] += 1;
                    self.drops.record(now, out.opposite(), reason, || tuple(frame.bytes()));
                }
            }
            frame.truncate(0);
        }
    }

    /// Starts a new interval of drop samples.
    pub(crate) fn beat(&mut self) {
        self.drops.refill();
    }

    /// All counters and gauges; `below` are the frames that the device dropped before they got here.
    pub(crate) fn published(&self, below: &[(Reason, u64)]) -> (Reading, Vec<Gauge>) {
        let counters = self.translator.counters();
        let mut reading = Reading { received: self.received, sent: self.sent, ..Reading::default() };
        for reason in Reason::ALL {
            let index = *reason as usize;
            reading.dropped[index] = counters.dropped(*reason) + self.dropped[index];
            reading.observed[index] = counters.observed(*reason);
        }
        for (reason, count) in below {
            reading.dropped[*reason as usize] += count;
        }
        let tables = self.translator.gauges().into_iter();
        let mut gauges: Vec<Gauge> = tables.map(|(name, used, max)| gauge(name, used.into(), max.into())).collect();
        gauges.push(gauge("recent_drops", self.drops.len() as u64, DROPS_MAX as u64));
        gauges.extend(self.next_hop.gauges());
        (reading, gauges)
    }

    fn address(&mut self, out: Port, frame: &mut Frame<'_>) -> Result<(), Reason> {
        let (destination, ethertype) = destination(frame.bytes()).ok_or(Reason::IpHeaderInvalid)?;
        let dst = self.next_hop.link_address(out, destination)?;
        let src = self.next_hop.own_link_address(out);
        let bytes = frame.push_front(ethernet::HEADER_LEN).ok_or(Reason::FrameTruncated)?;
        ethernet::Repr { dst, src, ethertype }.emit(&mut ethernet::Packet::new_unchecked(&mut *bytes));
        let sent = &mut self.sent[usize::from(out.0 & 1)];
        sent.packets += 1;
        sent.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Destination address and Ethernet type of an IP packet.
fn destination(packet: &[u8]) -> Option<(IpAddr, EtherType)> {
    match packet.first()? >> 4 {
        4 => Some((IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?), EtherType::IPV4)),
        6 => Some((IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?), EtherType::IPV6)),
        _ => None,
    }
}

/// Addresses and ports of an IP packet for the drop log.
fn tuple(packet: &[u8]) -> Option<Tuple> {
    let summary = Summary::parse_quoted(packet).ok()?;
    let transport = packet.get(summary.transport_offset..).unwrap_or_default();
    let starts = summary.fragment.is_none_or(|fragment| fragment.offset == FragmentOffset::ZERO);
    let port = |at: usize| match transport.get(at..at + 2) {
        Some(bytes) if starts => u16::from_be_bytes([bytes[0], bytes[1]]),
        _ => 0,
    };
    let (source_port, destination_port) = match summary.protocol {
        protocol if protocol.has_ports() => (port(0), port(2)),
        IpProtocol::ICMP | IpProtocol::ICMPV6 => (port(4), 0),
        _ => (0, 0),
    };
    Some(Tuple {
        protocol: summary.protocol.0,
        source: summary.src,
        source_port,
        destination: summary.dst,
        destination_port,
    })
}

#[cfg(test)]
mod tests;
