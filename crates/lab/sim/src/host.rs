//! A host with one interface: uploads files over TCP, and receives them.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use sluicegate_wire::{FrameBuf, Instant, IpProtocol, ip::Summary, tcp, udp};

use crate::{
    Interface, Io, Node, packet,
    tcp::{End, Receiver},
};

mod shim;
mod upload;
pub use shim::Shim;
pub use upload::{Transfer, Uploads};

/// The interface of a host.
const LINK: Interface = Interface(0);
/// Transfers that a host receives at a time; the oldest makes room.
const RECEIVERS_MAX: usize = 1 << 20;

/// A host: what it sends, and what it has received.
pub struct Host {
    address: IpAddr,
    shim: Option<Box<Shim>>,
    uploads: Option<Uploads>,
    receivers: BTreeMap<(IpAddr, u16, u16), Receiver>,
    malformed: u64,
}

impl Host {
    /// A host that only answers.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self { address, shim: None, uploads: None, receivers: BTreeMap::new(), malformed: 0 }
    }

    /// The same, uploading files.
    #[must_use]
    pub fn with_uploads(mut self, uploads: Uploads) -> Self {
        self.uploads = Some(uploads);
        self
    }

    /// The same, speaking capabilities.
    #[must_use]
    pub fn with_shim(mut self, shim: Shim) -> Self {
        self.shim = Some(Box::new(shim));
        self
    }

    /// Every transfer that has ended, in the order of its uploads.
    pub fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.uploads.iter().flat_map(Uploads::done)
    }

    /// Whether every transfer has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.uploads.as_ref().is_none_or(Uploads::is_done)
    }

    /// Transfers received: peer address, peer port, own port, and the state.
    #[must_use]
    pub const fn receivers(&self) -> &BTreeMap<(IpAddr, u16, u16), Receiver> {
        &self.receivers
    }

    /// Packets that did not parse or were not for this host.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    fn send(&mut self, io: &mut Io<'_>, mut packet: FrameBuf) {
        let now = io.now();
        if self.shim.as_mut().is_none_or(|shim| shim.outbound(now, &mut packet)) {
            io.send(LINK, packet);
        }
    }

    /// Sends whatever is due and may go.
    fn drive(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        while let Some((peer, segment)) = self.uploads.as_mut().and_then(|uploads| uploads.poll_transmit(now)) {
            let packet = packet::ip(self.address, peer, &segment);
            self.send(io, packet);
        }
        while let Some(packet) = self.shim.as_mut().and_then(|shim| shim.poll_output(now)) {
            io.send(LINK, packet);
        }
    }

    fn take_in(&mut self, io: &mut Io<'_>, bytes: &[u8]) -> Option<()> {
        let summary = Summary::parse(bytes).ok().filter(|summary| summary.dst == self.address)?;
        let payload = summary.transport(bytes);
        match summary.protocol {
            IpProtocol::TCP => {
                let packet = tcp::Packet::new_checked(payload).ok()?;
                let segment = tcp::Repr::parse(&packet, summary.src, summary.dst).ok()?;
                self.on_segment(io, summary.src, &segment);
            }
            IpProtocol::UDP => {
                let packet = udp::Packet::new_checked(payload).ok()?;
                packet.verify_checksum(summary.src, summary.dst).then_some(())?;
            }
            _ => {}
        }
        Some(())
    }

    fn on_segment(&mut self, io: &mut Io<'_>, peer: IpAddr, segment: &tcp::Repr<'_>) {
        let now = io.now();
        if self.uploads.as_mut().is_some_and(|uploads| uploads.on_segment(now, peer, segment)) {
            return;
        }
        let key = (peer, segment.src_port, segment.dst_port);
        let answer = match self.receivers.get_mut(&key) {
            Some(receiver) if segment.control != tcp::Control::Syn => receiver.on_segment(segment),
            known => {
                let iss = io.rng().bits() as u32;
                let answer = known.and_then(|receiver| receiver.on_segment(segment));
                answer.or_else(|| self.accept(key, iss, segment))
            }
        };
        if let Some(answer) = answer {
            let packet = packet::ip(self.address, peer, &answer);
            self.send(io, packet);
        }
    }

    fn accept(&mut self, key: (IpAddr, u16, u16), iss: u32, syn: &tcp::Repr<'_>) -> Option<tcp::Repr<'static>> {
        let mut receiver = Receiver::open(iss, syn)?;
        let answer = receiver.on_segment(syn);
        if self.receivers.len() >= RECEIVERS_MAX {
            self.receivers.pop_first();
        }
        self.receivers.insert(key, receiver);
        answer
    }
}

impl Node for Host {
    fn on_packet(&mut self, io: &mut Io<'_>, _from: Interface, mut packet: FrameBuf) {
        let now = io.now();
        let is_mine = self.shim.as_mut().is_none_or(|shim| shim.inbound(now, &mut packet));
        if is_mine && self.take_in(io, packet.bytes()).is_none() {
            self.malformed += 1;
        }
        self.drive(io);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let uploads = self.uploads.as_ref().and_then(Uploads::poll_timeout);
        let shim = self.shim.as_ref().and_then(|shim| shim.poll_timeout());
        uploads.into_iter().chain(shim).min()
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        if let Some(uploads) = &mut self.uploads {
            uploads.on_timeout(now, io.rng());
        }
        self.drive(io);
    }
}

/// What part of the transfers of some hosts completed, and how long the middle one took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tally {
    /// Transfers that completed.
    pub complete: usize,
    /// All transfers that have ended.
    pub all: usize,
    /// The middle of the completed transfers' times.
    pub median: Option<Duration>,
}

impl Tally {
    /// Counts these transfers.
    #[must_use]
    pub fn of<'a>(transfers: impl Iterator<Item = &'a Transfer>) -> Self {
        let mut times = Vec::new();
        let mut all = 0;
        for transfer in transfers {
            all += 1;
            if transfer.end == End::Complete {
                times.push(transfer.took());
            }
        }
        times.sort_unstable();
        Self { complete: times.len(), all, median: times.get(times.len() / 2).copied() }
    }
}
