//! Measures what forwarding one small packet costs in each back end, one after the other in one run.
//!
//! A generator floods 60-byte frames through a gate in network namespaces; printed are the packets per second and the
//! CPU time of the gate's thread per packet (with what the kernel does for its transmits, without what it does on
//! receipt). Figures of a veth pair: they say nothing about a network card. Needs root.

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sluicegate_datapath::{Action, Backend, Device, IngressFilter, Rules, monotonic_now, raw};
use sluicegate_wire::Port;
use support::site::{Site, State, options};

const RUN: Duration = Duration::from_secs(2);
const RUNS: usize = 3;

fn main() {
    if !support::is_root() {
        return;
    }
    let mut medians = Vec::new();
    for backend in [Backend::Xdp, Backend::Packet] {
        let mut runs: Vec<_> = (0..RUNS).map(|_| measure(backend)).collect();
        runs.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (rate, cost) = runs[RUNS / 2];
        println!("{backend:?}: {rate:.0} packets/s, {cost:.0} ns CPU/packet (median of {RUNS}; all {runs:.0?})");
        medians.push(cost);
    }
    println!("packet / xdp: {:.2} times the CPU time", medians[1] / medians[0]);
}

/// Packets per second and CPU nanoseconds per packet.
fn measure(backend: Backend) -> (f64, f64) {
    let (site, state) = (Site::new(), State::new());
    let mut device = Device::open(&options(backend, state.path())).expect("the device opens");
    // The sink drops at once, so that its receipt, which runs in the gate's system calls, costs little.
    site.service.run(|| {
        IngressFilter::install("sink", &["s0"], &Rules::default()).expect("sink");
    });
    let stop = Arc::new(AtomicBool::new(false));
    let mut generator = site.client.run(|| raw::Socket::open("c0", &raw::Options::send_only()).expect("generator"));
    let generating = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let frames = vec![frame(); raw::BATCH];
            while !stop.load(Ordering::Relaxed) {
                generator.send(&frames).expect("send");
            }
        })
    };
    let mut count = 0u64;
    let (start, cpu) = (Instant::now(), thread_cpu_ns());
    while start.elapsed() < RUN {
        device.heartbeat(monotonic_now());
        let judged = device.poll(Duration::from_millis(1), &mut |port, frame| {
            if port == Port::INSIDE {
                return Action::Drop;
            }
            let bytes = frame.bytes_mut();
            bytes[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 4]);
            bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
            Action::Send(Port::INSIDE)
        });
        count += judged.expect("poll") as u64;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), thread_cpu_ns() - cpu);
    stop.store(true, Ordering::Relaxed);
    generating.join().expect("generator");
    let counters = device.kernel_counters();
    eprintln!("{}: {counters:?}", device.why());
    device.close(false).expect("close");
    (count as f64 / seconds, cpu as f64 / count.max(1) as f64)
}

/// UDP from the client to the service, 60 bytes.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 51, 100, 2, 10, 0, 0, 2]);
    frame.extend([0x0f, 0xa0, 0x13, 0x8c, 0, 26, 0, 0]);
    frame.extend([0; 18]);
    frame
}

fn thread_cpu_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("thread clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
