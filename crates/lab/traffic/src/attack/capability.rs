//! Attackers who know capabilities: they forge requests, flood what a colluder authorises, or spend what a destination
//! granted by mistake.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_capability::secrets::seal;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{
    IpProtocol, build,
    capability::{
        Algorithm, CAPABILITIES_MAX, CAPABILITY_ONLY, Capability, CapabilityList, ClientId, FlowNonce, Kind, Limits,
        Packet, PathId, Repr, Return, Slot, SlotList,
        shim::{self, Carriage},
    },
    ethernet,
    ip::Summary,
    udp,
};

use super::{
    begin, bounded,
    frames::{Forged, Path},
    require_lab,
};
use crate::listen::{listen, open};
use sluicegate_site::{
    During, LabError, Prefix,
    clock::{Pacer, unix_ns},
    nth,
    worker::Context,
};

/// What a flood rests between bursts: so short that no queue of a lab's links runs empty meanwhile.
const REST: Duration = Duration::from_micros(200);
/// Frames sent at once.
const BURST_FRAMES: u64 = 32;
/// Bytes of a frame that is a request: a flood of them need not have more packets than bits.
const REQUEST_BYTES: u64 = 400;
/// Source addresses of attackers at most.
const ATTACKERS_MAX: u32 = 10_000;
/// A request without an answer is sent again after this; by those without patience sooner.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const REASK_AGAIN: Duration = Duration::from_millis(100);
/// How long the attackers who spend wait for all of them to be granted.
const ASK_MAX: Duration = Duration::from_secs(3);
/// Packets that carry the list before only the nonce is sent.
const LISTS: u32 = 8;
const RECEIVE_SLOTS: usize = 8_192;
/// The port that the attackers' encapsulated packets come from.
const ENCAPSULATION_PORT: u16 = 50_000;

/// What the attackers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityMode {
    /// Datagrams without capabilities.
    Legacy,
    /// Requests from forged sources with forged path identifiers.
    Requests,
    /// Ask the target, who grants everything; flood inside what was granted, and ask again.
    Authorized,
    /// As [`Self::Authorized`], but ask again as soon as the last grant is spent or refused, without any patience.
    Reasking,
    /// Ask the target once, then send `bytes_each` without regard to what was granted.
    Spend,
}

/// Specification of the worker `capability_flood`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapabilityFloodSpec {
    /// The interface to send from.
    pub interface: String,
    /// Ethernet address of the next hop.
    pub destination_mac: [u8; 6],
    /// Ethernet address to send from.
    pub source_mac: [u8; 6],
    /// What to do.
    pub mode: CapabilityMode,
    /// Where the packets go.
    pub target: IpAddr,
    /// The port of the datagrams inside.
    pub target_port: u16,
    /// Whether capability headers travel in UDP.
    pub encapsulated: bool,
    /// The attackers' addresses; the first `attackers` of them ask for capabilities.
    pub sources: Prefix,
    /// How many attackers there are.
    pub attackers: u32,
    /// Attackers who spend do so in this many groups, one after the other.
    pub groups: u32,
    /// What an attacker who spends sends in all.
    pub bytes_each: u64,
    /// Size of a flooding frame.
    pub packet_bytes: u16,
    /// Rate of all attackers together, bit/s as Ethernet frames.
    pub rate_bps: u64,
    /// How long to send.
    pub seconds: u32,
    /// Seed of everything random.
    pub seed: u64,
}

/// One attacker's permission.
#[derive(Debug, Clone)]
struct Held {
    nonce: FlowNonce,
    limits: Limits,
    list: CapabilityList,
    sent: u64,
    packets: u32,
}

#[derive(Debug, Clone, Default)]
struct Attacker {
    held: Option<Held>,
    asked: Option<Instant>,
    /// Bytes sent in the flood.
    flooded: u64,
}

struct Flood<'a> {
    spec: &'a CapabilityFloodSpec,
    random: Rng,
    addresses: Vec<IpAddr>,
    attackers: Vec<Attacker>,
    by_address: HashMap<IpAddr, usize>,
    next: usize,
}

/// Runs the worker `capability_flood`: prints `{"event":"began","ns","granted"}` when the flood begins, totals in the
/// result.
pub(crate) fn capability_flood(spec: &CapabilityFloodSpec, context: &Context) -> Result<(), LabError> {
    begin(context, check(spec))?;
    let options = Options { receive_slots: RECEIVE_SLOTS, ..Options::default() };
    let mut socket = open(&spec.interface, &options)?;
    let mut flood = Flood::new(spec);
    context.ready();
    if matches!(spec.mode, CapabilityMode::Authorized | CapabilityMode::Reasking | CapabilityMode::Spend) {
        flood.ask_all(&mut socket, context)?;
    }
    let granted = flood.attackers.iter().filter(|attacker| attacker.held.is_some()).count();
    context.print(&json!({ "event": "began", "ns": unix_ns(), "granted": granted }));
    let (mut frames, mut bytes) = (0, 0);
    let frame_bytes = if spec.mode == CapabilityMode::Requests { REQUEST_BYTES } else { spec.packet_bytes.into() };
    let pacer = Pacer::new((spec.rate_bps / 8 / frame_bytes).max(1), BURST_FRAMES).resting(REST);
    let mut paced = context.paced(pacer, Duration::from_secs(spec.seconds.into()));
    let mut done = Ok(());
    while done.is_ok()
        && let Some(due) = paced.next()
    {
        let batch = flood.batch(due, paced.elapsed());
        frames += batch.len() as u64;
        bytes += batch.iter().map(|frame| frame.as_ref().len() as u64).sum::<u64>();
        done = socket.send(&batch).map(drop).during(|| format!("sending from {}", spec.interface));
        socket.receive(RECEIVE_SLOTS, &mut |frame| flood.hear(frame.bytes));
    }
    context.result(&json!({ "frames": frames, "bytes": bytes, "granted": granted, "ms": paced.elapsed_ms() }));
    done
}

fn check(spec: &CapabilityFloodSpec) -> Result<(), String> {
    bounded(spec.seconds, spec.rate_bps / 8 / REQUEST_BYTES, "frames")?;
    if spec.attackers == 0 || spec.attackers > ATTACKERS_MAX || spec.groups == 0 {
        return Err(format!("1 to {ATTACKERS_MAX} attackers, in at least one group"));
    }
    if !(200..=1_400).contains(&spec.packet_bytes) {
        return Err("packet_bytes: 200 to 1,400".to_owned());
    }
    Ok(())
}

impl<'a> Flood<'a> {
    fn new(spec: &'a CapabilityFloodSpec) -> Self {
        // The first address of a prefix is no host's.
        let addresses: Vec<_> = (1..=u64::from(spec.attackers)).map(|number| nth(spec.sources, number)).collect();
        let by_address = addresses.iter().enumerate().map(|(index, address)| (*address, index)).collect();
        let attackers = vec![Attacker::default(); addresses.len()];
        Self { spec, random: Rng::with_seed(spec.seed), addresses, attackers, by_address, next: 0 }
    }

    fn path(&self, src: IpAddr) -> Path {
        Path {
            destination_mac: self.spec.destination_mac,
            source_mac: self.spec.source_mac,
            src,
            dst: self.spec.target,
            dst_port: self.spec.target_port,
        }
    }

    const fn carriage(&self) -> Carriage {
        if self.spec.encapsulated { Carriage::Encapsulated { src_port: ENCAPSULATION_PORT } } else { Carriage::Native }
    }

    /// A datagram without a header, as long as a flooding packet.
    fn plain(&self, path: &Path) -> Forged {
        let header = ethernet::HEADER_LEN + build::header_len(path.dst);
        let payload = vec![0; usize::from(self.spec.packet_bytes) - header - udp::HEADER_LEN];
        Forged::datagram(path, self.spec.target_port, &payload)
    }

    /// Asks for every attacker until all have an answer or time is up.
    fn ask_all(&mut self, socket: &mut Socket, context: &Context) -> Result<(), LabError> {
        let end = Instant::now() + ASK_MAX;
        while Instant::now() < end && !context.stopped() && self.attackers.iter().any(|one| one.held.is_none()) {
            let due: Vec<_> = (0..self.attackers.len()).filter(|index| self.must_ask(*index)).take(8).collect();
            let requests: Vec<_> = due.into_iter().map(|index| self.ask(index)).collect();
            socket.send(&requests).during(|| format!("sending from {}", self.spec.interface))?;
            socket.wait(Duration::from_millis(5)).during(|| "waiting for answers".to_owned())?;
            socket.receive(RECEIVE_SLOTS, &mut |frame| self.hear(frame.bytes));
        }
        Ok(())
    }

    fn must_ask(&self, index: usize) -> bool {
        let attacker = &self.attackers[index];
        let again = if self.spec.mode == CapabilityMode::Reasking { REASK_AGAIN } else { ASK_AGAIN };
        attacker.held.is_none() && attacker.asked.is_none_or(|asked| asked.elapsed() >= again)
    }

    fn ask(&mut self, index: usize) -> Forged {
        self.attackers[index].asked = Some(Instant::now());
        let header = Repr::request(Algorithm::SipHash, ClientId::NONE, CAPABILITIES_MAX as u8, IpProtocol::UDP);
        Forged::capable(&self.path(self.addresses[index]), &header, self.carriage(), REQUEST_BYTES as usize)
    }

    /// The next frames, at most `count`.
    fn batch(&mut self, count: u64, elapsed: Duration) -> Vec<Forged> {
        (0..count).filter_map(|_| self.frame(elapsed)).collect()
    }

    fn frame(&mut self, elapsed: Duration) -> Option<Forged> {
        match self.spec.mode {
            CapabilityMode::Legacy => {
                let src = nth(self.spec.sources, self.random.u64(..));
                Some(self.plain(&self.path(src)))
            }
            CapabilityMode::Requests => Some(self.forged_request()),
            CapabilityMode::Authorized | CapabilityMode::Reasking => {
                let index = self.turn(0, self.attackers.len());
                if self.must_ask(index) { Some(self.ask(index)) } else { self.flooding(index, true) }
            }
            CapabilityMode::Spend => {
                // A group is done when its attackers have sent, at their own rate, what they send.
                let groups = self.spec.groups as usize;
                let per_group = self.attackers.len().div_ceil(groups);
                let lasts_s =
                    self.spec.bytes_each as f64 * 8.0 * self.attackers.len() as f64 / self.spec.rate_bps as f64;
                let group = if groups == 1 { 0 } else { (elapsed.as_secs_f64() / lasts_s) as usize };
                let first = group * per_group;
                let end = (first + per_group).min(self.attackers.len());
                if first >= end {
                    return None;
                }
                // The rate is that of all attackers; a group has its share of it.
                if groups > 1 && self.random.usize(..groups) != 0 {
                    return None;
                }
                let index = self.turn(first, end);
                self.flooding(index, false)
            }
        }
    }

    /// Whose turn it is among `first..end`.
    fn turn(&mut self, first: usize, end: usize) -> usize {
        self.next = if (first..end).contains(&(self.next + 1)) { self.next + 1 } else { first };
        self.next
    }

    /// The next packet of an attacker's flood; `None` once it has sent what it sends, or has nothing to send it with.
    fn flooding(&mut self, index: usize, inside_limits: bool) -> Option<Forged> {
        let (path, len) = (self.path(self.addresses[index]), u64::from(self.spec.packet_bytes));
        let attacker = &mut self.attackers[index];
        if self.spec.bytes_each > 0 && attacker.flooded + len > self.spec.bytes_each {
            return None;
        }
        attacker.flooded += len;
        let Some(held) = &mut attacker.held else {
            // Nobody answers in a network without capabilities; the flood is a plain one.
            return Some(self.plain(&path));
        };
        held.sent += len;
        held.packets += 1;
        let mut header = Repr::nonce_only(Algorithm::SipHash, ClientId::NONE, held.nonce, IpProtocol::UDP);
        if held.packets <= LISTS {
            header = header.with_list(Kind::Capabilities, held.limits, held.list);
        }
        if inside_limits && held.sent + 4 * len > held.limits.bytes() {
            attacker.held = None;
            attacker.asked = None;
        }
        Some(Forged::capable(&path, &header, self.carriage(), len as usize))
    }

    /// A request with up to seven forged path identifiers, from a forged source.
    fn forged_request(&mut self) -> Forged {
        let count = 1 + self.random.u8(..5);
        let mut slot =
            || Slot { path_id: PathId(self.random.u16(..) | 1), capability: Capability(self.random.u64(..)) };
        let entries: SlotList = (0..count).map(|_| slot()).collect();
        let header = Repr::Request {
            algorithm: Algorithm::SipHash,
            client_id: ClientId::NONE,
            slots: CAPABILITIES_MAX as u8,
            entries,
            demoted: false,
            upper: IpProtocol::UDP,
            ret: None,
        };
        let src = nth(self.spec.sources, self.random.u64(..));
        Forged::capable(&self.path(src), &header, self.carriage(), REQUEST_BYTES as usize)
    }

    /// Takes the capabilities that a packet brings.
    fn hear(&mut self, frame: &[u8]) {
        let Some((summary, _, header)) = header(frame) else { return };
        let Some(answer) = header.return_info() else { return };
        let Some(attacker) = self.by_address.get(&summary.dst).and_then(|index| self.attackers.get_mut(*index)) else {
            return;
        };
        if let Some((Some(limits), list)) = answer.list
            && attacker.held.is_none()
            && summary.src == self.spec.target
        {
            let nonce = FlowNonce::from_low_bits(self.random.u64(..));
            attacker.held = Some(Held { nonce, limits, list, sent: 0, packets: 0 });
        }
    }
}

/// The capability header of a frame, and how it travels.
#[must_use]
pub fn header(frame: &[u8]) -> Option<(Summary, Carriage, Packet<&[u8]>)> {
    let packet = frame.get(ethernet::HEADER_LEN..)?;
    let summary = Summary::parse(packet).ok()?;
    let found = shim::find(&summary, packet).ok()??;
    Some((summary, found.carriage, found.packet(packet)))
}

/// Specification of the worker `colluder`: a destination that grants whatever is asked of `address`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColluderSpec {
    /// The interface.
    pub interface: String,
    /// The address that requests come to; no address of the host's kernel.
    pub address: IpAddr,
    /// How long.
    pub seconds: u32,
}

/// Runs the worker `colluder`: answers every request with the largest grant.
pub(crate) fn colluder(spec: &ColluderSpec, context: &Context) -> Result<(), LabError> {
    require_lab()?;
    let options = Options { receive_slots: RECEIVE_SLOTS, ..Options::default() };
    let mut granted = 0u64;
    listen((&spec.interface, &options, spec.seconds), context, |socket| {
        let mut answers = Vec::new();
        socket.receive(RECEIVE_SLOTS, &mut |frame| answers.extend(grant(spec, frame.bytes)));
        granted += answers.len() as u64;
        socket.send(&answers).map(drop).during(|| format!("sending from {}", spec.interface))
    })?;
    context.result(&json!({ "granted": granted }));
    Ok(())
}

/// The answer to a request, back the way it came.
fn grant(spec: &ColluderSpec, frame: &[u8]) -> Option<Forged> {
    let (summary, carriage, header) = header(frame)?;
    if header.kind() != Kind::Request || summary.dst != spec.address {
        return None;
    }
    let limits = Limits::new(Limits::KILOBYTES_MAX, 10)?;
    let mut list = CapabilityList::new();
    for index in 0..usize::from(header.pointer()) {
        list.push(seal(header.algorithm(), header.capability(index)?, limits))?;
    }
    let back = Path {
        destination_mac: *frame.get(6..)?.first_chunk()?,
        source_mac: *frame.first_chunk()?,
        src: summary.dst,
        dst: summary.src,
        dst_port: 0,
    };
    let answer = Repr::request(header.algorithm(), ClientId::NONE, CAPABILITIES_MAX as u8, CAPABILITY_ONLY);
    let carriage = match carriage {
        Carriage::Encapsulated { src_port } => Carriage::Answer { dst_port: src_port },
        other => other,
    };
    Some(Forged::capable(&back, &answer.with_return(Some(Return::granted(limits, list))), carriage, 0))
}
