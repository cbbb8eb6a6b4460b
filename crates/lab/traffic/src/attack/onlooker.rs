//! Somebody on the wire between a client and the gate, who sees what both say and speaks in the client's name.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::Options;
use sluicegate_wire::{
    IpProtocol, build,
    capability::{
        Algorithm, CAPABILITIES_MAX, CAPABILITY_ONLY, CapabilityList, ClientId, FlowNonce, Kind, Limits, Repr, Return,
        shim::Carriage,
    },
    ethernet, icmp,
    ip::{Ports, Summary, Version},
    tcp,
};

use super::{
    begin, bounded,
    capability::header,
    frames::{Forged, Path},
};
use crate::listen::open;
use sluicegate_site::{During, LabError, clock::Pacer, worker::Context};

const BURST_FRAMES: u64 = 64;
const RECEIVE_SLOTS: usize = 8_192;
/// Packets of each direction that are remembered; newer ones replace older ones.
const SEEN_MAX: usize = 256;
/// Bytes of the trailer of a packet MAC; it begins with the client id.
const TRAILER_LEN: usize = 20;
/// How often capabilities are asked for.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of an ICMP error with a long quote.
const ERROR_BYTES: usize = 1_400;

/// What an onlooker does with what it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Does {
    /// Sends the client's datagrams again: as they were, changed, from another port, without their end.
    Replay,
    /// Asks for capabilities under the client id that stands in the client's datagrams, and uses what it is given.
    Ask,
    /// Sends long ICMP errors about the client's flows.
    Icmp,
    /// Resets the client's TCP connections with numbers inside the window, and opens them again.
    Reset,
}

/// Specification of the worker `onlooker`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnlookerSpec {
    /// The interface to send from and to hear the gate on: the last one before it.
    pub interface: String,
    /// The interface to hear the client on.
    pub client_interface: String,
    /// Ethernet address of the gate.
    pub destination_mac: [u8; 6],
    /// Ethernet address to send from.
    pub source_mac: [u8; 6],
    /// In whose name it speaks.
    pub client: IpAddr,
    /// What it does.
    pub does: Does,
    /// Traffic class of what it sends.
    pub mark: u8,
    /// Frames a second.
    pub per_s: u64,
    /// How long.
    pub seconds: u32,
    /// Seed of everything random.
    pub seed: u64,
}

/// Runs the worker `onlooker`: prints `{"event":"tick","frames","bytes"}` every second; the result says how many packets
/// it saw, sent, and how often it was granted capabilities.
pub(crate) fn onlooker(spec: &OnlookerSpec, context: &Context) -> Result<(), LabError> {
    begin(context, bounded(spec.seconds, spec.per_s, "frames"))?;
    let options = Options { receive_slots: RECEIVE_SLOTS, ..Options::default() };
    let (mut socket, mut client) = (open(&spec.interface, &options)?, open(&spec.client_interface, &options)?);
    let mut onlooker = Onlooker::new(spec);
    context.ready();
    let mut paced = context.paced(Pacer::new(spec.per_s, BURST_FRAMES), Duration::from_secs(spec.seconds.into()));
    let (mut sent, mut printed, mut done) = (0u64, 0, Ok(()));
    while done.is_ok()
        && let Some(due) = paced.next()
    {
        for heard in [&mut socket, &mut client] {
            heard.receive(RECEIVE_SLOTS, &mut |frame| onlooker.see(frame.bytes));
        }
        let frames = onlooker.next(due);
        sent += frames.len() as u64;
        done = socket.send(&frames).map(drop).during(|| format!("sending from {}", spec.interface));
        if done.is_ok() && paced.has_ticked() {
            context.print(&json!({ "event": "tick", "frames": sent - printed, "bytes": 0 }));
            printed = sent;
        }
    }
    context.result(&json!({ "frames": sent, "seen": onlooker.seen, "granted": onlooker.granted }));
    done
}

/// A packet that went by.
struct Seen {
    summary: Summary,
    bytes: Vec<u8>,
}

/// Capabilities that the onlooker was given in the client's name.
struct Held {
    gate: IpAddr,
    client_id: ClientId,
    nonce: FlowNonce,
    limits: Limits,
    list: CapabilityList,
}

struct Onlooker<'a> {
    spec: &'a OnlookerSpec,
    random: Rng,
    from_client: Vec<Seen>,
    to_client: Vec<Seen>,
    asked: Option<Instant>,
    held: Option<Held>,
    seen: u64,
    granted: u64,
}

impl<'a> Onlooker<'a> {
    fn new(spec: &'a OnlookerSpec) -> Self {
        let random = Rng::with_seed(spec.seed);
        let (from_client, to_client) = (Vec::new(), Vec::new());
        Self { spec, random, from_client, to_client, asked: None, held: None, seen: 0, granted: 0 }
    }

    fn see(&mut self, frame: &[u8]) {
        let Some(packet) = frame.get(ethernet::HEADER_LEN..) else { return };
        let Ok(summary) = Summary::parse(packet) else { return };
        // What it sent itself comes by as well.
        if crate::count::traffic_class(packet) == Some(self.spec.mark) {
            return;
        }
        if summary.dst == self.spec.client {
            self.hear(frame);
        }
        let seen = if summary.src == self.spec.client {
            &mut self.from_client
        } else if summary.dst == self.spec.client {
            &mut self.to_client
        } else {
            return;
        };
        self.seen += 1;
        let bytes = packet.get(..summary.total_len).unwrap_or(packet).to_vec();
        let one = Seen { summary, bytes };
        if seen.len() < SEEN_MAX {
            seen.push(one);
        } else {
            let index = self.random.usize(..SEEN_MAX);
            seen[index] = one;
        }
    }

    /// Takes capabilities that the gate gives to the client.
    fn hear(&mut self, frame: &[u8]) {
        let Some((summary, _, header)) = header(frame) else { return };
        let Some(Return { list: Some((Some(limits), list)), .. }) = header.return_info() else { return };
        let Some(client_id) = self.client_id() else { return };
        self.granted += 1;
        let nonce = FlowNonce::from_low_bits(self.random.u64(..));
        self.held = Some(Held { gate: summary.src, client_id, nonce, limits, list });
    }

    fn next(&mut self, count: u64) -> Vec<Forged> {
        let frames = (0..count).filter_map(|_| match self.spec.does {
            Does::Replay => self.replay(),
            Does::Ask => self.ask(),
            Does::Icmp => self.error(),
            Does::Reset => self.reset(),
        });
        let mut frames: Vec<Forged> = frames.collect();
        frames.iter_mut().for_each(|frame| frame.mark(self.spec.mark));
        frames
    }

    /// One of the client's packets of this protocol.
    fn pick(&mut self, protocol: IpProtocol) -> Option<&Seen> {
        let fits = |seen: &&Seen| seen.summary.protocol == protocol;
        let count = self.from_client.iter().filter(fits).count();
        let index = self.random.usize(..count.max(1));
        self.from_client.iter().filter(fits).nth(index)
    }

    fn path(&self, seen: &Summary) -> Path {
        let (destination_mac, source_mac) = (self.spec.destination_mac, self.spec.source_mac);
        Path { destination_mac, source_mac, src: seen.src, dst: seen.dst, dst_port: 0 }
    }

    fn replay(&mut self) -> Option<Forged> {
        let (how, port) = (self.random.u8(..4), self.random.u16(1_024..));
        let seen = self.pick(IpProtocol::UDP)?;
        let payload = seen.bytes.get(seen.summary.transport_offset + 8..)?.to_vec();
        let Ports { src: from, dst: to } = Ports::parse(seen.bytes.get(seen.summary.transport_offset..)?).ok()?;
        let (summary, whole) = (seen.summary, seen.bytes.clone());
        let path = Path { dst_port: to, ..self.path(&summary) };
        Some(match how {
            0 => Forged::of(&path, &whole),
            1 => {
                let mut changed = payload;
                *changed.first_mut()? ^= 1;
                Forged::datagram(&path, from, &changed)
            }
            2 => Forged::datagram(&path, port, &payload),
            _ => Forged::datagram(&path, from, payload.get(..payload.len().checked_sub(TRAILER_LEN)?)?),
        })
    }

    /// The client id at the end of the client's datagrams.
    fn client_id(&mut self) -> Option<ClientId> {
        let seen = self.pick(IpProtocol::UDP)?;
        let trailer = seen.bytes.last_chunk::<TRAILER_LEN>()?;
        Some(ClientId(u32::from_be_bytes(*trailer.first_chunk::<4>()?)))
    }

    fn ask(&mut self) -> Option<Forged> {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if let Some(held) = self.held.as_ref().filter(|_| !is_due) {
            let Held { gate, client_id, nonce, limits, list } = *held;
            let seen = self.pick(IpProtocol::UDP)?.summary;
            let header = Repr::nonce_only(Algorithm::SipHash, client_id, nonce, IpProtocol::UDP);
            let header = header.with_list(Kind::Capabilities, limits, list);
            let path = Path { dst: gate, dst_port: 5_004, ..self.path(&seen) };
            return Some(Forged::capable(&path, &header, Carriage::Native, 600));
        }
        if !is_due {
            return None;
        }
        self.asked = Some(Instant::now());
        let client_id = self.client_id()?;
        let seen = self.pick(IpProtocol::UDP)?.summary;
        let request = Repr::request(Algorithm::SipHash, client_id, CAPABILITIES_MAX as u8, CAPABILITY_ONLY);
        Some(Forged::capable(&self.path(&seen), &request, Carriage::Native, 0))
    }

    /// "Port unreachable" about a packet that the gate sent to the client, with as much of it as fits and more.
    fn error(&mut self) -> Option<Forged> {
        let seen = self.random.choice(&self.to_client)?;
        let (IpAddr::V4(gate), IpAddr::V4(_)) = (seen.summary.src, seen.summary.dst) else { return None };
        let IpAddr::V4(client) = self.spec.client else { return None };
        let quoted = seen.bytes.clone();
        let message = icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote: icmp::Quote::new(&quoted).ok()? };
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes, client.into(), gate.into());
        bytes.resize(bytes.len().max(ERROR_BYTES), 0x58);
        icmp::Packet::new_unchecked(Version::V4, &mut bytes[..]).fill_checksum(client.into(), gate.into());
        let packet = build::packet(client, gate, &(IpProtocol::ICMP, &bytes[..]));
        let path = Path { src: client.into(), dst: gate.into(), ..self.path(&seen.summary) };
        Some(Forged::of(&path, &packet))
    }

    /// A reset with a number that is in the window but not the next one, or a SYN in the middle.
    fn reset(&mut self) -> Option<Forged> {
        let (is_reset, step) = (self.random.bool(), self.random.u32(..60_000));
        let seen = self.pick(IpProtocol::TCP)?;
        let segment = tcp::Packet::new_checked(seen.bytes.get(seen.summary.transport_offset..)?).ok()?;
        let control = if is_reset { tcp::Control::Rst } else { tcp::Control::Syn };
        let seq = segment.seq().wrapping_add(1 + step);
        let forged = tcp::Repr::new(segment.src_port(), segment.dst_port(), control, seq);
        let summary = seen.summary;
        Some(Forged::of(&self.path(&summary), &build::packet(summary.src, summary.dst, &forged)))
    }
}
