//! RTP packets where they pass: which were sent, which arrived.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use sluicegate_wire::{ipv4, udp};

use super::{
    capture::{Capture, Seen},
    lab::Lab,
};

/// One RTP packet: its stream and its place in it (RFC 3550 section 5.1), and when the kernel received it, in nanoseconds
/// since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packet {
    pub(crate) ssrc: u32,
    pub(crate) number: u16,
    pub(crate) at_ns: u64,
}

/// What a phone or PBX says and hears, on its own wire.
#[derive(Debug)]
pub(crate) struct Audio {
    said: Watch,
    heard: Watch,
}

#[derive(Debug)]
struct Watch {
    capture: Capture,
    packets: Arc<Mutex<Vec<Packet>>>,
}

/// What of one's words reached the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) said: usize,
    pub(crate) lost: usize,
}

impl Audio {
    /// Watches a host at `address` whose wire ends at an interface of another one.
    pub(crate) fn of(lab: &Lab, host: &str, address: IpAddr, far_end: (&str, &'static str)) -> Self {
        let said = Watch::start(lab, far_end, move |seen| seen.from == address);
        Self { said, heard: Watch::start(lab, (host, "eth0"), move |seen| seen.to == address) }
    }

    /// What it said from one time to another, and what of that `other` heard until now.
    pub(crate) fn reached(&self, other: &Self, from_ns: u64, until_ns: u64) -> Arrived {
        let heard: BTreeSet<(u32, u16)> =
            other.heard.all().into_iter().map(|packet| (packet.ssrc, packet.number)).collect();
        let said = self.said.all().into_iter().filter(|packet| (from_ns..until_ns).contains(&packet.at_ns));
        let arrived: Vec<bool> = said.map(|packet| heard.contains(&(packet.ssrc, packet.number))).collect();
        Arrived { said: arrived.len(), lost: arrived.iter().filter(|arrived| !**arrived).count() }
    }

    /// When it heard something from this time on, in order.
    pub(crate) fn heard_since(&self, from_ns: u64) -> Vec<u64> {
        self.heard.all().into_iter().map(|packet| packet.at_ns).filter(|at_ns| *at_ns >= from_ns).collect()
    }
}

impl Watch {
    fn start(lab: &Lab, place: (&str, &'static str), keep: impl Fn(&Seen) -> bool + Send + 'static) -> Self {
        let packets = Arc::<Mutex<Vec<Packet>>>::default();
        let kept = Arc::clone(&packets);
        let capture = Capture::start(lab, place, move |seen| {
            if let Some(packet) = rtp(seen).filter(|_| keep(seen)) {
                kept.lock().expect("not poisoned").push(packet);
            }
            false
        });
        Self { capture, packets }
    }

    fn all(&self) -> Vec<Packet> {
        // Settles, so that what the kernel has is in the list.
        self.capture.count();
        self.packets.lock().expect("not poisoned").clone()
    }
}

/// RTP of version 2, and not RTCP, whose packet types are 200 to 204.
fn rtp(seen: &Seen) -> Option<Packet> {
    let header = if seen.from.is_ipv4() { ipv4::HEADER_LEN } else { 40 };
    let payload = seen.bytes.get(header + udp::HEADER_LEN..).filter(|_| seen.protocol == 17)?;
    let (fixed, _) = payload.split_first_chunk::<12>()?;
    let is_rtp = fixed[0] >> 6 == 2 && !(200..=204).contains(&fixed[1]);
    let number = u16::from_be_bytes([fixed[2], fixed[3]]);
    let ssrc = u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    is_rtp.then_some(Packet { ssrc, number, at_ns: seen.at_ns })
}
