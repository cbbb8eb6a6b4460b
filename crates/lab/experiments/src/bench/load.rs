//! The generator, and what it measures.

use std::{
    net::SocketAddrV4,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use sluicegate_datapath::raw::BATCH;

use super::{
    Median, frame,
    lab::{BenchLab, GEN},
};
use sluicegate_site::{
    During, LabError,
    clock::{Paced, Pacer, unix_ns},
    cpu::Cpu,
};
use sluicegate_traffic::sample::Percentiles;

/// Source ports of the established flows.
const FLOWS: u16 = 64;
const FLOWS_FROM: u16 = 4_000;
/// Source ports of the new flows of one run, to each of the service's other ports.
const NEW_FLOWS: u16 = 1_024;
const NEW_FLOWS_FROM: u16 = 10_000;
/// What every candidate can carry without loss, packets a second: the load at which processor time is measured. Under
/// more than a candidate can carry, processor time says how hard it was pressed and not what a packet costs.
const CPU_LOAD_PER_S: u32 = 100_000;
/// Packets a second whose delay is measured: an idle link.
const LATENCY_LOAD_PER_S: u32 = 1_000;
/// How long nothing may arrive before all has arrived.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// How long a lab may take until every flow works.
const WARM_UP_MAX: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measurement {
    /// Packets a second that arrive of as many as can be sent in flows that both sides know.
    Established { frame_bytes: usize },
    /// Processor time of the whole machine above what it uses when idle, at [`CPU_LOAD_PER_S`], nanoseconds a packet.
    Cpu { frame_bytes: usize },
    /// Packets a second that arrive, each the first of its flow.
    NewFlows,
    /// 99th percentile of the time from just before sending to the sink kernel's timestamp, microseconds.
    Latency,
}

/// Binds this thread to the first processor: the gate's packet thread takes the last.
pub(super) fn bind_to_first_cpu() -> Result<(), LabError> {
    let mut first = CpuSet::new();
    first.set(0).and_then(|()| sched_setaffinity(Pid::from_raw(0), &first)).during(|| "choosing a processor".to_owned())
}

/// Opens every established flow in both directions.
pub(super) fn warm_up(lab: &mut BenchLab) -> Result<(), LabError> {
    let frames = established(lab, 64);
    let mut sink = lab.sink_socket()?;
    let end = Instant::now() + WARM_UP_MAX;
    loop {
        send(lab, &frames)?;
        thread::sleep(Duration::from_millis(100));
        let mut answers = Vec::new();
        sink.receive(usize::MAX, &mut |received| answers.extend(frame::answer(received.bytes)));
        sink.send(&answers).during(|| "answering from the sink".to_owned())?;
        if answers.len() >= frames.len() {
            thread::sleep(Duration::from_millis(100));
            return Ok(());
        }
        if Instant::now() >= end {
            let reason = format!("{} of {} packets arrive", answers.len(), frames.len());
            return Err(LabError::process(&lab.name, reason));
        }
    }
}

/// What one measurement gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub value: f64,
    /// The candidate lost next to nothing of what the generator could send: the value is the generator's limit.
    pub lossless: bool,
}

impl Sample {
    fn rate(received: u64, sent: u64, time: Duration) -> Self {
        Self { value: received as f64 / time.as_secs_f64(), lossless: received as f64 > 0.99 * sent as f64 }
    }

    pub(super) const fn cost(value: f64) -> Self {
        Self { value, lossless: false }
    }

    pub(super) fn median(samples: &[Self]) -> Option<Median> {
        Median::of(&samples.iter().map(|sample| sample.value).collect::<Vec<_>>())
    }
}

/// Measures one value, for `time` or about so.
pub(super) fn measure(
    lab: &mut BenchLab,
    measurement: Measurement,
    run: usize,
    time: Duration,
) -> Result<Sample, LabError> {
    match measurement {
        Measurement::Established { frame_bytes } => throughput(lab, frame_bytes, time),
        Measurement::Cpu { frame_bytes } => cpu_per_packet(lab, frame_bytes, time).map(Sample::cost),
        Measurement::NewFlows => new_flows(lab, run),
        Measurement::Latency => latency(lab, time).map(Sample::cost),
    }
}

fn throughput(lab: &mut BenchLab, frame_bytes: usize, time: Duration) -> Result<Sample, LabError> {
    let frames = established(lab, frame_bytes);
    let before = lab.received()?;
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < time {
        send(lab, &frames)?;
        sent += frames.len() as u64;
    }
    let received = lab.received()? - before;
    Ok(Sample::rate(received, sent, start.elapsed()))
}

fn cpu_per_packet(lab: &mut BenchLab, frame_bytes: usize, time: Duration) -> Result<f64, LabError> {
    let frames = established(lab, frame_bytes);
    let idle = Cpu::now()?;
    thread::sleep(time);
    let idle = Cpu::now()?.busy_since(&idle);
    let before = lab.received()?;
    let loaded = Cpu::now()?;
    let sent = at_rate(CPU_LOAD_PER_S / u32::from(FLOWS), time, |_| send(lab, &frames))? * u64::from(FLOWS);
    let loaded = Cpu::now()?.busy_since(&loaded);
    let received = lab.received()? - before;
    require(lab, received as f64 >= 0.99 * sent as f64, || format!("{received} of {sent} packets arrived"))?;
    require(lab, loaded > idle, || "other programs keep the machine too busy to tell".to_owned())?;
    Ok((loaded - idle) * 1e9 / received as f64)
}

fn new_flows(lab: &mut BenchLab, run: usize) -> Result<Sample, LabError> {
    let first = NEW_FLOWS_FROM + u16::try_from(run).unwrap_or(0) * NEW_FLOWS;
    let targets = lab.targets.iter().skip(1);
    let frames: Vec<_> = (first..first + NEW_FLOWS)
        .flat_map(|port| targets.clone().map(move |target| (port, *target)))
        .map(|(port, target)| packet(lab, port, target, 64, 0))
        .collect();
    let before = lab.received()?;
    let start = Instant::now();
    send(lab, &frames)?;
    let (mut last, mut last_at) = (lab.received()?, Instant::now());
    while last_at.elapsed() < QUIET {
        let now = lab.received()?;
        if now != last {
            (last, last_at) = (now, Instant::now());
        }
    }
    Ok(Sample::rate(last - before, frames.len() as u64, last_at.duration_since(start)))
}

fn latency(lab: &mut BenchLab, time: Duration) -> Result<f64, LabError> {
    let mut sink = lab.sink_socket()?;
    let target = lab.targets[0];
    let sent = at_rate(LATENCY_LOAD_PER_S, time, |number| {
        let port = FLOWS_FROM + u16::try_from(number % u64::from(FLOWS)).unwrap_or(0);
        let frame = packet(lab, port, target, 64, unix_ns());
        send(lab, &[frame])
    })?;
    thread::sleep(QUIET);
    let mut delays_ns = Vec::new();
    sink.receive(usize::MAX, &mut |received| {
        let sent_ns = frame::stamp(received.bytes).filter(|stamp| *stamp != 0);
        delays_ns.extend(sent_ns.map(|sent_ns| received.timestamp_ns.saturating_sub(sent_ns)));
    });
    let count = delays_ns.len();
    // A lost packet is late for ever: with more than one in a hundred there is no 99th percentile.
    require(lab, count as f64 >= 0.99 * sent as f64, || format!("{count} of {sent} packets arrived"))?;
    Ok(Percentiles::of(&mut delays_ns).p99 as f64 / 1_000.0)
}

fn require(lab: &BenchLab, holds: bool, reason: impl FnOnce() -> String) -> Result<(), LabError> {
    if holds { Ok(()) } else { Err(LabError::process(&lab.name, reason())) }
}

/// One packet of each established flow: one batch.
fn established(lab: &BenchLab, frame_bytes: usize) -> Vec<Vec<u8>> {
    const { assert!(FLOWS as usize == BATCH) };
    (FLOWS_FROM..FLOWS_FROM + FLOWS).map(|port| packet(lab, port, lab.targets[0], frame_bytes, 0)).collect()
}

fn packet(lab: &BenchLab, port: u16, target: SocketAddrV4, len: usize, stamp: u64) -> Vec<u8> {
    frame::datagram(lab.macs, SocketAddrV4::new(GEN, port), target, len, stamp)
}

fn send(lab: &mut BenchLab, frames: &[Vec<u8>]) -> Result<(), LabError> {
    lab.sender.send(frames).map(drop).during(|| "sending from the generator".to_owned())
}

/// Calls `step` with 0, 1, 2 … at a constant rate for `time` and returns how often. Steps that are late are left out: sent
/// all at once they would overflow any queue, and that would be the generator's fault.
pub(super) fn at_rate(
    per_s: u32,
    time: Duration,
    mut step: impl FnMut(u64) -> Result<(), LabError>,
) -> Result<u64, LabError> {
    let mut number = 0;
    for due in Paced::new(Pacer::new(per_s.into(), 2), time, Arc::default()) {
        (number..number + due).try_for_each(&mut step)?;
        number += due;
    }
    Ok(number)
}
