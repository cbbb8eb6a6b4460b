//! The generator, and what it measures.

use std::{
    fs, io,
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use sluicegate_datapath::raw::BATCH;

use super::{
    frame,
    lab::{BenchLab, GEN},
};
use crate::{
    LabError,
    clock::{Pacer, paced, unix_ns},
    error::During,
    sample::Percentiles,
};

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
            return Err(LabError::Process { name: lab.name.clone(), reason });
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

    const fn cost(value: f64) -> Self {
        Self { value, lossless: false }
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
    if holds { Ok(()) } else { Err(LabError::Process { name: lab.name.clone(), reason: reason() }) }
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
    let mut pacer = Pacer::new(per_s.into(), 2);
    paced(
        &mut pacer,
        |elapsed| elapsed >= time,
        |due| {
            (number..number + due).try_for_each(&mut step)?;
            number += due;
            Ok(())
        },
    )?;
    Ok(number)
}

/// Processor time of the machine until now, from `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    at: Instant,
    cpus: usize,
    /// Time in which nothing ran, or the host ran something else, all processors together.
    idle_s: f64,
}

impl Cpu {
    fn now() -> Result<Self, LabError> {
        let stat = fs::read_to_string("/proc/stat").during(|| "reading /proc/stat".to_owned())?;
        Self::parse(&stat, Instant::now())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .during(|| "understanding /proc/stat".to_owned())
    }

    /// Share of the machine that is in use.
    pub(super) fn share_busy(time: Duration) -> Result<f64, LabError> {
        let before = Self::now()?;
        thread::sleep(time);
        let after = Self::now()?;
        let all = after.at.duration_since(before.at).as_secs_f64() * after.cpus as f64;
        Ok(after.busy_since(&before) / all)
    }

    /// Idle time is exact where the kernel stops its tick when idle; busy time would be sampled by that tick, and
    /// packets come in step with it. So busy is what is not idle.
    fn busy_since(&self, earlier: &Self) -> f64 {
        let all = self.at.duration_since(earlier.at).as_secs_f64() * self.cpus as f64;
        (all - (self.idle_s - earlier.idle_s)).max(0.0)
    }

    fn parse(stat: &str, at: Instant) -> Option<Self> {
        let mut lines = stat.lines().filter(|line| line.starts_with("cpu"));
        // user nice system idle iowait irq softirq steal, in hundredths of a second
        let all: Vec<f64> = lines.next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
        let idle: f64 = [3, 4, 7].iter().filter_map(|index| all.get(*index)).sum();
        (all.len() >= 4).then(|| Self { at, cpus: lines.count().max(1), idle_s: idle / 100.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_was_neither_idle_nor_taken_by_the_host() {
        let at = Instant::now();
        let before = "cpu  10 0 10 100 5 0 0 5 0 0\ncpu0 5 0 5 50 5 0 0 5\ncpu1 5 0 5 50 0 0 0 0\nintr 1\n";
        let after = "cpu  60 0 60 150 15 0 0 15 0 0\ncpu0 1\ncpu1 1\nintr 2\n";
        let before = Cpu::parse(before, at).unwrap();
        let after = Cpu::parse(after, at + Duration::from_secs(1)).unwrap();
        // Two processors for a second, of which 0.5 s idle, 0.1 s waiting for a disk, 0.1 s not ours.
        assert!((after.busy_since(&before) - 1.3).abs() < 1e-9);
        assert!(Cpu::parse("intr 1\n", at).is_none());
    }
}
