//! One packet's way through the node: link header off, judged by the node's pipeline, next hop, link header on, and the turn
//! of its lane where the link is scheduled. No I/O, no clock.

use super::{
    Pipeline,
    egress::{Departure, Egress},
    next_hop::{NextHop, destination},
};
use crate::{
    drops::DropLog,
    readings::{REASONS, Reading, Sent},
};
use alloc::vec::Vec;
use sluicegate_bounded::Gauge;
use sluicegate_pinhole::Tuple;
use sluicegate_scheduler::Label;
use sluicegate_wire::{
    Frame, HEADROOM, Instant, IpProtocol, Packet, Port, Reason, Verdict,
    ethernet::{self, EtherType},
    ip::{FragmentOffset, Summary},
};

/// Where a released packet starts: room for every header that may come in front of it.
const RELEASE_AT: usize = 2 * HEADROOM;

/// An IP packet that came in, and what is known of it: handed down the stages of a role, which change both alike.
pub(crate) struct Arrived<'f, 'b> {
    pub(crate) port: Port,
    /// The link address of the neighbour that sent it, in the low 48 bits.
    pub(crate) neighbour: u64,
    pub(crate) frame: &'f mut Frame<'b>,
    pub(crate) packet: &'f mut Packet,
}

/// What a role decided about an IP packet, which it has rewritten in place.
pub enum Outcome {
    /// It leaves by this port, in this lane.
    Leave(Port, Label),
    /// It was dropped, and counted by whoever dropped it.
    Dropped(Reason),
    /// It waits for another, or was for this node.
    Kept,
}

impl Outcome {
    /// What a verdict means for a packet that came in by `port`.
    pub(crate) fn of(verdict: Verdict, port: Port, label: impl FnOnce() -> Label) -> Result<Self, Reason> {
        match verdict {
            Verdict::Forward(out) => Ok(Self::Leave(out, label())),
            Verdict::Reply => Ok(Self::Leave(port, Label::CONTROL)),
            Verdict::Drop(reason) => Ok(Self::Dropped(reason)),
            Verdict::Queue => Ok(Self::Kept),
            Verdict::Punt => Err(Reason::ProtocolUnsupported),
        }
    }
}

/// A node: its packet path, and what that counts besides the objects that it is made of.
pub struct Node<N> {
    /// What the role does.
    pub pipeline: Pipeline,
    /// Where packets go next.
    pub next_hop: N,
    /// The last drops.
    pub drops: DropLog,
    /// By port, where its link is scheduled.
    egress: [Option<Egress>; 2],
    dropped: [u64; REASONS],
    received: u64,
    sent: [Sent; 2],
    /// What the turn under way looked at, and the longest turns so far.
    looks: u32,
    turns: Turns,
}

/// What the turns of one to two minutes were at most.
#[derive(Debug, Default)]
struct Turns {
    /// Nanoseconds and looks, of this minute and of the last.
    most: [[u64; 2]; 2],
    minute: u64,
}

impl Turns {
    fn note(&mut self, now: Instant, nanos: u64, looks: u64) {
        let minute = now.as_nanos() / 60_000_000_000;
        if minute != self.minute {
            self.most = [[0; 2], if minute == self.minute + 1 { self.most[0] } else { [0; 2] }];
            self.minute = minute;
        }
        let most = &mut self.most[0];
        *most = [most[0].max(nanos), most[1].max(looks)];
    }

    fn most(&self) -> [u64; 2] {
        let [now, before] = self.most;
        [now[0].max(before[0]), now[1].max(before[1])]
    }
}

impl<N: NextHop> Node<N> {
    /// A node; `egress` by port, where its link is scheduled.
    #[must_use]
    pub fn new(pipeline: Pipeline, egress: [Option<Egress>; 2], next_hop: N) -> Self {
        Self {
            pipeline,
            next_hop,
            drops: DropLog::new(),
            egress,
            dropped: [0; REASONS],
            received: 0,
            sent: [Sent::default(); 2],
            looks: 0,
            turns: Turns::default(),
        }
    }

    /// What this turn looked at so far: lines, words of ports, pinholes.
    pub fn looks(&mut self) -> u32 {
        self.looks += self.pipeline.firewall_mut().map_or(0, |firewall| firewall.translator.take_looks());
        self.looks
    }

    /// Adds what somebody looked at on behalf of this turn.
    pub const fn add_looks(&mut self, looks: u32) {
        self.looks += looks;
    }

    /// The turn that began at `began` ends `now`.
    pub fn end_turn(&mut self, began: Instant, now: Instant) {
        let looks = self.looks();
        self.turns.note(now, now.as_nanos().saturating_sub(began.as_nanos()), looks.into());
        self.looks = 0;
    }

    /// Judges one frame that came in by `port`. `Some(port)`: it has been rewritten in place and leaves by that port now.
    ///
    /// Cost beyond the role's: one next-hop look-up, 14 bytes written, and a copy if its link is busy.
    pub fn on_frame(&mut self, now: Instant, port: Port, frame: &mut Frame<'_>) -> Option<Port> {
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
        let mut packet = Packet::UNREAD;
        packet.read(frame.bytes())?;
        let arrived = Arrived { port, neighbour: neighbour(link.src), frame, packet: &mut packet };
        match self.pipeline.judge(now, arrived)? {
            Outcome::Leave(out, label) => {
                let left = self.address(out, frame).and_then(|()| self.depart(now, out, &label, frame));
                // A grant does not pay for what no link took.
                left.inspect_err(|_| self.refund())
            }
            Outcome::Dropped(reason) => {
                self.drops.record(now, port, reason, || tuple(frame.bytes()));
                Ok(None)
            }
            Outcome::Kept => Ok(None),
        }
    }

    /// Hands every packet that may leave now to `send`, link header on: those that the pipeline
    /// released, written into `buffer`, and those whose turn has come.
    pub fn release(&mut self, now: Instant, buffer: &mut [u8], send: &mut dyn FnMut(Port, &[u8])) {
        while let Some(mut frame) = Frame::new(buffer, RELEASE_AT, 0) {
            let frame = &mut frame;
            let Some((out, label)) = self.pipeline.poll_output(now, frame) else { break };
            match self.address(out, frame).and_then(|()| self.depart(now, out, &label, frame)) {
                Ok(left) => {
                    if left.is_some() {
                        send(out, frame.bytes());
                    }
                }
                Err(reason) => {
                    self.dropped[reason as usize] += 1;
                    self.drops.record(now, out.opposite(), reason, || tuple(frame.bytes()));
                }
            }
        }
        for port in [Port::OUTSIDE, Port::INSIDE] {
            let Some(egress) = &mut self.egress[usize::from(port.0)] else { continue };
            let sent = &mut self.sent;
            let mut leave = |bytes: &[u8]| {
                count(sent, port, bytes.len());
                send(port, bytes);
            };
            while egress.poll(now, &mut leave) {}
        }
    }

    /// When [`Self::release`] or [`Self::handle_timeout`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.egress.iter().flatten().filter_map(Egress::poll_timeout).min();
        [self.pipeline.poll_timeout(), links].into_iter().flatten().min()
    }

    /// Does what is due in the objects that keep time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pipeline.handle_timeout(now);
    }

    /// Starts a new interval of drop samples.
    pub fn beat(&mut self) {
        self.drops.refill();
    }

    /// All counters and gauges; `below` are the frames that the device dropped before they got here.
    pub fn published(&self, now: Instant, below: &[(Reason, u64)]) -> (Reading, Vec<Gauge>) {
        let mut reading = Reading {
            dropped: self.dropped,
            received: self.received,
            sent: self.sent,
            turn: self.turns.most(),
            ..Reading::default()
        };
        for (reason, count) in below {
            reading.dropped[*reason as usize] += count;
        }
        for (lanes, egress) in reading.lanes.iter_mut().zip(&self.egress) {
            *lanes = egress.as_ref().map(Egress::lanes);
        }
        self.pipeline.report(&mut reading);
        let mut gauges = self.pipeline.gauges(now);
        gauges.push(self.drops.gauge());
        for (egress, port) in self.egress.iter().zip([Port::OUTSIDE, Port::INSIDE]) {
            gauges.extend(egress.iter().flat_map(|egress| egress.gauges(port)));
        }
        gauges.extend(self.next_hop.gauges());
        (reading, gauges)
    }

    #[cold]
    fn refund(&mut self) {
        if let Some(firewall) = self.pipeline.firewall_mut() {
            firewall.translator.refund();
        }
    }

    fn address(&mut self, out: Port, frame: &mut Frame<'_>) -> Result<(), Reason> {
        let (destination, ethertype) = destination(frame.bytes()).ok_or(Reason::IpHeaderInvalid)?;
        let dst = self.next_hop.link_address(out, destination)?;
        let src = self.next_hop.own_link_address(out);
        let bytes = frame.push_front(ethernet::HEADER_LEN).ok_or(Reason::FrameTruncated)?;
        ethernet::Repr { dst, src, ethertype }.emit(&mut ethernet::Packet::new_unchecked(bytes));
        Ok(())
    }

    /// Lets an addressed frame leave: now, or when its lane has its turn.
    fn depart(
        &mut self,
        now: Instant,
        out: Port,
        label: &Label,
        frame: &mut Frame<'_>,
    ) -> Result<Option<Port>, Reason> {
        if let Some(egress) = &mut self.egress[usize::from(out.0 & 1)] {
            let (dropped, drops) = (&mut self.dropped, &mut self.drops);
            let turn = egress.offer(now, label, frame.bytes(), &mut |reason, other| {
                dropped[reason as usize] += 1;
                drops.record(now, out.opposite(), reason, || tuple(other.get(ethernet::HEADER_LEN..)?));
            });
            match turn {
                Departure::Now => {}
                Departure::Waits => return Ok(None),
                Departure::Refused(reason) => {
                    let _ = frame.pull_front(ethernet::HEADER_LEN);
                    return Err(reason);
                }
            }
        }
        count(&mut self.sent, out, frame.len());
        Ok(Some(out))
    }
}

fn count(sent: &mut [Sent; 2], out: Port, len: usize) {
    let sent = &mut sent[usize::from(out.0 & 1)];
    sent.packets += 1;
    sent.bytes += len as u64;
}

/// A link address as a number: the neighbour that a path identifier names.
fn neighbour(link: [u8; 6]) -> u64 {
    link.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
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
    let (src, dst) = ((summary.src, source_port), (summary.dst, destination_port));
    Some(Tuple { protocol: summary.protocol.0, src, dst })
}
