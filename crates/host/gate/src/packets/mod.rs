//! The packet thread: polls the device, judges frames, answers the control side, gives signs of life.

#[cfg(test)]
mod chain;
pub(crate) mod command;
mod commands;
pub(crate) mod neighbours;
#[cfg(test)]
mod node_tests;
pub(crate) mod ports;
pub(crate) mod tunnels;

pub(crate) use command::{COMMANDS_MAX, Command, Commander, EVENTS_MAX, Ended, Installed};
pub(crate) use commands::Commands;
pub use commands::longest::{Longest, longest_turns};

use crate::{clock, published::Published};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use ports::Ports;
use sluicegate_datapath::Action;
use sluicegate_node::{NextHop, Node};
use sluicegate_wire::{HEADROOM, Instant, Port};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// Between two heartbeats and publications.
pub(crate) const BEAT: Duration = Duration::from_millis(100);
/// What one turn may look at: lines, words of 64 ports, and pinholes, besides those that its packets found by their own
/// addresses and ports. Keeps a turn below 2 ms.
pub(crate) const TURN_LOOKS_MAX: u32 = 2_000;
/// What one step may look at, such as the answer to a question or one call for what is due: a step begins only while as
/// much is left.
pub(crate) const STEP_LOOKS_MAX: u32 = TURN_LOOKS_MAX / 2;
/// Room for the largest packet that is released from a queue.
const RELEASE_LEN: usize = 2 * HEADROOM + 65_536 + HEADROOM;

/// Everything the packet thread owns.
pub(crate) struct PacketThread<N> {
    pub(crate) ports: Ports<N>,
    pub(crate) node: Node<N>,
    pub(crate) questions: Commands,
    pub(crate) published: Arc<Published>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Told once packets flow.
    pub(crate) ready: Option<oneshot::Sender<()>>,
}

impl<N: NextHop> PacketThread<N> {
    /// Runs until `stop` is set or the device fails. Returns itself, so that the last state can be saved.
    pub(crate) fn run(mut self, cpu: Option<usize>) -> (Self, io::Result<()>) {
        if let Err(error) = come_first() {
            tracing::info!(%error, "the packet thread has no priority over other work (CAP_SYS_NICE gives it)");
        }
        if let Err(error) = pin(cpu) {
            tracing::warn!(%error, "packet thread is not pinned to a CPU");
        }
        let result = self.forward();
        (self, result)
    }

    fn forward(&mut self) -> io::Result<()> {
        let mut released = vec![0; RELEASE_LEN];
        let mut next_beat = clock::monotonic();
        while !self.stop.load(Relaxed) {
            let now = self.poll(next_beat)?;
            self.take_tunnelled(now);
            self.tell_pings();
            self.release(now, &mut released);
            // After a batch that looked at much, what is due waits for the next turn, which follows at once.
            let may_end = self.node.looks() <= STEP_LOOKS_MAX;
            if may_end && self.node.poll_timeout().is_some_and(|due| due <= now) {
                self.node.handle_timeout(now);
                self.release(now, &mut released);
            }
            self.questions.answer(now, &mut self.node, &mut self.commands);
            self.tell_pings();
            if now >= next_beat {
                self.beat(now);
                next_beat = now + BEAT;
            }
            self.node.end_turn(now, clock::monotonic());
        }
        Ok(())
    }

    /// What came through tunnels.
    fn take_tunnelled(&mut self, now: Instant) {
        let Self { node, questions, ports, .. } = self;
        let own = node.next_hop.own_link_address(Port::OUTSIDE);
        let Some(device) = &mut ports.device else { return };
        questions.tunnels.take(
            own,
            |frame| node.on_frame(now, Port::OUTSIDE, frame),
            |port, bytes| {
                // The device has counted what it could not send.
                let _ = device.send(port, bytes);
            },
        );
    }

    /// One batch of packets. The clock is read once, when the first of them is there.
    fn poll(&mut self, next_beat: Instant) -> io::Result<Instant> {
        let before = clock::monotonic();
        let due = self.node.poll_timeout().map_or(next_beat, |due| due.min(next_beat));
        let timeout = due.since(before).min(self.questions.wait_max().unwrap_or(BEAT));
        let (node, tunnels) = (&mut self.node, &mut self.questions.tunnels);
        let mut arrived = None;
        let Some(device) = &mut self.ports.device else {
            self.ports.wake.wait(timeout)?;
            return Ok(clock::monotonic());
        };
        let polled = device.poll(timeout, &mut |port, frame| {
            let now = *arrived.get_or_insert_with(clock::monotonic);
            if tunnels.is_forged(port, frame.bytes()) {
                return Action::Drop;
            }
            let out = node.on_frame(now, port, frame);
            out.filter(|out| !tunnels.takes(*out, frame.bytes())).map_or(Action::Drop, Action::Send)
        });
        match polled {
            Err(error) if self.ports.may_come_back() => self.shut(error.to_string()),
            other => drop(other?),
        }
        Ok(arrived.unwrap_or_else(clock::monotonic))
    }

    fn tell_pings(&mut self) {
        if let (Some(device), Some(firewall)) = (&mut self.ports.device, self.node.pipeline.firewall()) {
            device.translates_pings(firewall.translator.pings());
        }
    }

    fn release(&mut self, now: Instant, buffer: &mut [u8]) {
        let (device, tunnels) = (&mut self.ports.device, &mut self.questions.tunnels);
        self.node.release(now, buffer, &mut |port: Port, bytes| {
            if tunnels.takes(port, bytes) {
                return;
            }
            if let Some(device) = device {
                // The device has counted what it could not send.
                let _ = device.send(port, bytes);
            }
        });
    }

    fn beat(&mut self, now: Instant) {
        if let Some(problem) = self.ports.problem() {
            self.shut(problem);
        }
        if self.ports.device.is_none() {
            self.find();
        }
        if let Some(device) = &mut self.ports.device {
            device.heartbeat(now);
        }
        self.node.beat();
        let mut below = self.ports.counters();
        below.extend(self.questions.tunnels.counters());
        let (reading, mut gauges) = self.node.published(now, &below);
        gauges.push(self.questions.tunnels.gauge());
        gauges.extend(self.ports.gauge());
        self.published.publish(now, &reading, &gauges);
        if let Some(ready) = self.ready.take() {
            // Nobody waiting for readiness is no failure.
            let _ = ready.send(());
        }
    }

    /// Stops forwarding until the interfaces are there again.
    fn shut(&mut self, problem: String) {
        tracing::error!(problem, "nothing is forwarded until both interfaces are there again");
        self.ports.shut();
        self.published.close(Some(problem));
    }

    fn find(&mut self) {
        match self.ports.find(&mut self.node) {
            Ok(()) => {
                tracing::warn!("both interfaces are there again; the gate forwards");
                self.published.close(None);
            }
            Err(problem) => self.published.close(Some(problem)),
        }
    }
}

/// Puts this thread before other work on its CPU: a packet that waits for a log line or a sign-in is a late packet. The
/// thread sleeps when no packet waits, so nothing starves.
fn come_first() -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, -20)?)
}

/// Binds this thread to `cpu`, or to the last CPU that it may run on.
fn pin(cpu: Option<usize>) -> nix::Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let Some(cpu) = cpu.or(last) else { return Ok(()) };
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(this, &only)
}
