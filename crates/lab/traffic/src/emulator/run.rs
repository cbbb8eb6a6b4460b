use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant as Clock},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::Instant;

use super::{Line, LineCounters, LineOptions};
use crate::attack::{FloodSpec, Kind, Target};
use sluicegate_site::{
    During, LabError, Prefix,
    topology::{End, Host, Plan, Via, Wire},
    worker::Context,
};

/// Frames moved from one interface before the other one is looked at.
const BATCH: usize = 64;
/// Longest wait; also how late the emulator notices that it should stop.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Specification of the worker `emulate`: a wire between two interfaces of its host, which must have no addresses.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulateSpec {
    /// One interface.
    pub a: String,
    /// The other.
    pub b: String,
    /// What happens to frames from `a` to `b`.
    #[serde(default)]
    pub a_to_b: LineOptions,
    /// What happens to frames from `b` to `a`.
    #[serde(default)]
    pub b_to_a: LineOptions,
    /// How long to run.
    pub seconds: u32,
}

/// Runs the worker `emulate`: prints both directions' counters.
pub(crate) fn emulate(spec: &EmulateSpec, context: &Context) -> Result<(), LabError> {
    let end = Clock::now() + Duration::from_secs(spec.seconds.into());
    let [a_to_b, b_to_a] = run(spec, || context.ready(), || context.stopped() || Clock::now() >= end)
        .during(|| "emulating a link".to_owned())?;
    context.result(&json!({ "a_to_b": a_to_b, "b_to_a": b_to_a }));
    Ok(())
}

fn run(spec: &EmulateSpec, ready: impl FnOnce(), mut stopped: impl FnMut() -> bool) -> io::Result<[LineCounters; 2]> {
    // Every frame on the wire counts, whatever Ethernet address it is for.
    let options = Options { promiscuous: true, receive_slots: 16_384, ..Options::default() };
    let mut sockets = [Socket::open(&spec.a, &options)?, Socket::open(&spec.b, &options)?];
    let mut lines = [Line::new(spec.a_to_b), Line::new(spec.b_to_a)];
    let mut frames: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    let mut spare: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    ready();
    let clock = Clock::now();
    let mut turn = 0;
    while !stopped() {
        let mut moved = 0;
        for from in 0..2 {
            let now = Instant::ZERO + clock.elapsed();
            let line = &mut lines[from];
            moved += sockets[from].receive(BATCH, &mut |frame| line.push(now, frame.bytes));
            while frames.len() < BATCH && line.pop(now, |bytes| keep(&mut frames, &mut spare, bytes)) {}
            moved += frames.len();
            sockets[1 - from].send(&frames)?;
            spare.append(&mut frames);
        }
        if moved == 0 {
            // One socket at a time: the other one's frames wait a moment, and the line delays them anyway.
            turn = 1 - turn;
            let next = lines.iter().filter_map(Line::poll_timeout).min();
            let until = next.map_or(WAIT_MAX, |at| at.since(Instant::ZERO + clock.elapsed()).min(WAIT_MAX));
            sockets[turn].wait(until.min(Duration::from_micros(500)))?;
        }
    }
    Ok([lines[0].counters(), lines[1].counters()])
}

/// Copies a frame into a buffer that was used before, if there is one.
fn keep(frames: &mut Vec<Vec<u8>>, spare: &mut Vec<Vec<u8>>, bytes: &[u8]) {
    let mut buffer = spare.pop().unwrap_or_else(|| Vec::with_capacity(1_536));
    buffer.clear();
    buffer.extend_from_slice(bytes);
    frames.push(buffer);
}

/// What the emulator can carry on this machine, one direction, 64-byte payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Frames a second offered.
    pub offered_per_s: u64,
    /// Frames a second carried.
    pub carried_per_s: u64,
}

/// Measures the emulator's ceiling in a lab of its own: two hosts, the emulator between them, a flood for `seconds`.
///
/// `flood` starts a worker `flood` in a namespace and returns when it has ended: the caller knows the binary.
///
/// # Errors
/// If the lab cannot be built or the flood fails.
pub fn ceiling(
    seconds: u32,
    flood: impl FnOnce(&sluicegate_site::Namespace, &FloodSpec) -> Result<(), LabError>,
) -> Result<Ceiling, LabError> {
    let prefix = |text: &str| text.parse::<Prefix>().map_err(|error| LabError::Plan(error.to_string()));
    let (left, right) = (prefix("10.9.0.1/24")?, prefix("10.9.0.2/24")?);
    let plan = Plan {
        hosts: vec![
            Host::new("left"),
            Host::new("emulator"),
            Host::new("right").route(prefix("198.18.0.0/15")?, Via::Blackhole),
        ],
        wires: vec![
            Wire { ends: [End::new("left", "eth0", &[left]), End::new("emulator", "a", &[])] },
            Wire { ends: [End::new("emulator", "b", &[]), End::new("right", "eth0", &[right])] },
        ],
    };
    let lab = plan.build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let spec = EmulateSpec {
        a: "a".to_owned(),
        b: "b".to_owned(),
        a_to_b: LineOptions::default(),
        b_to_a: LineOptions::default(),
        seconds,
    };
    let emulator = lab.host("emulator")?;
    let thread = emulator
        .thread("emulator", move || run(&spec, || (), || stopped.load(Ordering::Relaxed)))
        .during(|| "starting the emulator".to_owned())?;
    let before = (lab.counters("emulator", "a")?, lab.counters("right", "eth0")?);
    let started = Clock::now();
    let flooded = flood(lab.host("left")?, &flood_spec(&lab, right, seconds)?);
    let after = (lab.counters("emulator", "a")?, lab.counters("right", "eth0")?);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
    stop.store(true, Ordering::Relaxed);
    let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    flooded?;
    ended.during(|| "emulating".to_owned())?;
    let per_s = |packets: u64| packets * 1_000 / ms;
    Ok(Ceiling {
        offered_per_s: per_s(after.0.since(&before.0).rx_packets),
        carried_per_s: per_s(after.1.since(&before.1).rx_packets),
    })
}

fn flood_spec(lab: &sluicegate_site::Lab, right: Prefix, seconds: u32) -> Result<FloodSpec, LabError> {
    Ok(FloodSpec {
        interface: "eth0".to_owned(),
        destination_mac: lab.mac("right", "eth0")?,
        source_mac: lab.mac("left", "eth0")?,
        targets: vec![Target { address: right.address, first: 9, last: 9 }],
        mix: vec![(Kind::Udp, 1)],
        datagrams: Vec::new(),
        sources: vec![Prefix { address: std::net::Ipv4Addr::new(198, 18, 0, 0).into(), len: 15 }],
        clients: Vec::new(),
        mark: 0,
        clients_percent: 0,
        frame_bytes: vec![106],
        per_s: 2_000_000,
        seconds,
        frames_max: u64::MAX,
        seed: 1,
    })
}
