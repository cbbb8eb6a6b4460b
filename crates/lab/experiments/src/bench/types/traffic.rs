//! Packets of each kind, with capabilities that the router itself minted.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use fastrand::Rng;
use sluicegate_capability::secrets::seal;
use sluicegate_wire::{
    IpProtocol,
    capability::{
        Algorithm, Capability, CapabilityList, ClientId, FlowNonce, Kind as Header, Limits, Repr, shim::Carriage,
    },
    ipv4,
};

use super::Kind;
use crate::bench::{
    lab::{BenchLab, FIRST_PORT, GEN, SINK},
    load::at_rate,
};
use sluicegate_site::{During, LabError};
use sluicegate_traffic::attack::{Forged, Path, header};

const ETHERNET_LEN: usize = 14;
/// IP and UDP header, and payload: as long as an acknowledgement of TCP.
const INNER_LEN: usize = 40;
const PAYLOAD_LEN: usize = INNER_LEN - ipv4::HEADER_LEN - 8;
/// Where a frame has the last byte of its flow nonce.
const NONCE_LAST_AT: usize = ETHERNET_LEN + ipv4::HEADER_LEN + 7;
/// Flows that the router remembers while they send. Together their N lasts for all steps.
const CACHED_FLOWS: usize = 256;
/// Flows that send in turn, so many that the router has forgotten each when its turn comes again.
pub(super) const UNCACHED_FLOWS: usize = 65_536;
/// Longer than all steps; the ttl of a line is then 2 ms.
const LIMITS: Limits = Limits::new(Limits::KILOBYTES_MAX, 30).expect("a possible N and T");
const ALGORITHM: Algorithm = Algorithm::SipHash;
/// Requests on their way at one time.
const ASKED_MAX: usize = 1_024;
const ASK_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_millis(20);
/// Frames sent at once.
const BURST: usize = 64;

/// One client's permission.
#[derive(Debug, Clone, Copy)]
struct Flow {
    client: ClientId,
    nonce: FlowNonce,
    list: CapabilityList,
}

/// Frames to be sent in turn.
pub(super) struct Traffic {
    frames: Vec<Vec<u8>>,
    next: usize,
    /// Whether each round of the frames has nonces that the router has not seen.
    fresh: bool,
}

impl Traffic {
    /// Gets what the packets need: capabilities and a router that remembers them, unless nobody looks at them.
    pub(super) fn prepare(lab: &mut BenchLab, kind: Kind, router: bool) -> Result<Self, LabError> {
        let fresh = matches!(kind, Kind::RegularUncached | Kind::RenewalUncached);
        let count = if fresh { UNCACHED_FLOWS } else { CACHED_FLOWS };
        // Other flows than those of any earlier measurement.
        let mut random = Rng::new();
        let first = random.u32(..) >> 1;
        let clients = first..first + count as u32;
        let needs_capabilities = !matches!(kind, Kind::Plain | Kind::Request);
        let flows = if router && needs_capabilities {
            obtain(lab, clients, &mut random)?
        } else {
            clients.map(|client| made_up(client, &mut random)).collect()
        };
        if router && matches!(kind, Kind::RegularCached | Kind::RenewalCached) {
            let lists: Vec<_> = flows.iter().map(|flow| frame(lab, &flow.with_list(Header::Capabilities))).collect();
            lab.sender.send(&lists).during(|| "showing capabilities".to_owned())?;
        }
        let frames = flows.iter().map(|flow| match kind {
            Kind::Plain => plain(lab),
            Kind::Request => frame(lab, &Repr::request(ALGORITHM, flow.client, 1, IpProtocol::UDP)),
            Kind::RegularCached => frame(lab, &Repr::nonce_only(ALGORITHM, flow.client, flow.nonce, IpProtocol::UDP)),
            Kind::RegularUncached => frame(lab, &flow.with_list(Header::Capabilities)),
            Kind::RenewalCached | Kind::RenewalUncached => frame(lab, &flow.with_list(Header::Renewal)),
        });
        Ok(Self { frames: frames.collect(), next: 0, fresh })
    }

    /// Sends for `time` at this rate, or as fast as possible. Returns how many packets.
    pub(super) fn send(&mut self, lab: &mut BenchLab, per_s: Option<u32>, time: Duration) -> Result<u64, LabError> {
        if let Some(per_s) = per_s {
            return Ok(at_rate(per_s / BURST as u32, time, |_| self.burst(lab))? * BURST as u64);
        }
        let (start, mut bursts) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.burst(lab)?;
            bursts += 1;
        }
        Ok(bursts * BURST as u64)
    }

    fn burst(&mut self, lab: &mut BenchLab) -> Result<(), LabError> {
        // Their number is a multiple of the burst.
        let next = (self.next + BURST) % self.frames.len();
        let frames = &mut self.frames[self.next..][..BURST];
        self.next = next;
        if self.fresh {
            for frame in &mut *frames {
                frame[NONCE_LAST_AT] = frame[NONCE_LAST_AT].wrapping_add(1);
            }
        }
        lab.sender.send(frames).map(drop).during(|| "sending from the generator".to_owned())
    }
}

impl Flow {
    fn with_list(&self, kind: Header) -> Repr {
        Repr::nonce_only(ALGORITHM, self.client, self.nonce, IpProtocol::UDP).with_list(kind, LIMITS, self.list)
    }
}

fn path(lab: &BenchLab) -> Path {
    let (destination_mac, source_mac) = (lab.macs.destination, lab.macs.source);
    Path { destination_mac, source_mac, src: GEN.into(), dst: SINK.into(), dst_port: FIRST_PORT }
}

fn plain(lab: &BenchLab) -> Vec<u8> {
    Forged::datagram(&path(lab), FIRST_PORT, &[0; PAYLOAD_LEN]).as_ref().to_vec()
}

fn frame(lab: &BenchLab, header: &Repr) -> Vec<u8> {
    let len = ETHERNET_LEN + header.buffer_len() + INNER_LEN;
    Forged::capable(&path(lab), header, Carriage::Native, len).as_ref().to_vec()
}

fn flow(client: ClientId, capability: Capability, random: &mut Rng) -> Flow {
    let nonce = FlowNonce::from_low_bits(random.u64(..));
    Flow { client, nonce, list: [capability].into_iter().collect() }
}

/// A flow whose capability no router minted.
fn made_up(client: u32, random: &mut Rng) -> Flow {
    let capability = Capability(random.u64(..));
    flow(ClientId(client), capability, random)
}

/// Asks for every client and grants at the far end, as a colluder does. The answer does not take the way back: nothing
/// on it is measured.
fn obtain(lab: &mut BenchLab, clients: Range<u32>, random: &mut Rng) -> Result<Vec<Flow>, LabError> {
    let mut sink = lab.sink_socket()?;
    let mut flows: Vec<Option<Flow>> = vec![None; clients.len()];
    let end = Instant::now() + ASK_MAX;
    for asked in (0..flows.len()).step_by(ASKED_MAX) {
        let asked = asked..(asked + ASKED_MAX).min(flows.len());
        loop {
            let missing: Vec<_> = asked.clone().filter(|index| flows[*index].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            if Instant::now() >= end {
                let reason = format!("{} of {} requests did not arrive stamped", missing.len(), asked.len());
                return Err(LabError::process(&lab.name, reason));
            }
            let request = |index: &usize| {
                let client = ClientId(clients.start + *index as u32);
                frame(lab, &Repr::request(ALGORITHM, client, 1, IpProtocol::UDP))
            };
            let requests: Vec<_> = missing.iter().map(request).collect();
            lab.sender.send(&requests).during(|| "asking for capabilities".to_owned())?;
            let mut left = missing.len();
            while left > 0 && sink.wait(ANSWER_MAX).during(|| "waiting for requests".to_owned())? {
                sink.receive(usize::MAX, &mut |received| {
                    let Some((client, pre)) = stamped(received.bytes) else { return };
                    let index = client.0.wrapping_sub(clients.start) as usize;
                    if let Some(place @ None) = flows.get_mut(index) {
                        *place = Some(flow(client, seal(ALGORITHM, pre, LIMITS), random));
                        left = left.saturating_sub(1);
                    }
                });
            }
        }
    }
    Ok(flows.into_iter().flatten().collect())
}

/// The client of a request that has arrived, and what the router wrote into it.
fn stamped(frame: &[u8]) -> Option<(ClientId, Capability)> {
    let (.., header) = header(frame)?;
    let is_stamped = header.kind() == Header::Request && header.pointer() == 1;
    is_stamped.then(|| Some((header.client_id(), header.capability(0)?)))?
}
