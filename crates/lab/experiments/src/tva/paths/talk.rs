//! Two flows of datagrams, one in each direction, and what listeners behind the routers see of them.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;

use super::site::{CLIENT, SERVICE, USERS};
use sluicegate_site::{
    Lab, LabError, Prefix, Process,
    binary::Binary,
    cpu::{Stolen, StolenWatch},
    topology::prefix,
    worker::said,
};
use sluicegate_traffic::{
    client::call::{CallSpec, Calls, SinkSpec},
    passing::{Clocks, PassingSpec, Weak},
};

const PORT: u16 = 5004;
/// Datagrams a second in each direction, and their bytes: a telephone call is like that.
pub(super) const PER_S: u32 = 100;
const BYTES: usize = 160;
const READY_MAX: Duration = Duration::from_secs(15);
const TURN: Duration = Duration::from_millis(200);
/// Longer than any packet is under way.
const UNDER_WAY: Duration = Duration::from_millis(600);

/// Direction of a flow: to the service, to the client.
pub(super) const DIRECTIONS: [usize; 2] = [0, 1];

/// The flows while they run.
pub(super) struct Talk {
    callers: Vec<Process>,
    sinks: Vec<Process>,
    listeners: Vec<Process>,
    watch: StolenWatch,
    heard: Heard,
}

/// What was seen of the flows.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) calls: Calls,
    /// By direction: when a packet passed behind the routers without a capability that held.
    pub(super) weak: [Vec<(u64, Weak)>; 2],
    /// By direction: until when, and how many packets had passed since the entry before with capabilities.
    pub(super) regular: [Vec<(u64, u64)>; 2],
    /// By direction, at the end: the clocks of the routers.
    pub(super) clocks: [Clocks; 2],
    /// What the listeners missed.
    pub(super) missed: u64,
    /// When the host ran something else.
    pub(super) stolen: Stolen,
}

impl Talk {
    /// Both hosts begin to talk, for at most `seconds`.
    pub(super) fn start(lab: &Lab, binary: &Binary, seconds: u32) -> Result<Self, LabError> {
        let (callers, sinks, listeners) = (Vec::new(), Vec::new(), Vec::new());
        let mut talk = Self { callers, sinks, listeners, watch: StolenWatch::start(), heard: Heard::default() };
        let host = |address| Prefix::from(IpAddr::V4(address));
        let sources = [vec![host(CLIENT), prefix(USERS)?], vec![host(SERVICE)]];
        // Where packets arrive that have all routers of their direction behind them.
        for (at, sources) in [("far", "client"), ("near", "service")].into_iter().zip(sources) {
            let spec = PassingSpec { interface: at.1.into(), sources, seconds: seconds + 10 };
            talk.listeners.push(binary.worker(lab, at.0, "passing", &spec)?);
        }
        let ends = [("client", SERVICE), ("service", CLIENT)];
        for (host, own) in [("client", CLIENT), ("service", SERVICE)] {
            let spec = SinkSpec { listen: vec![(own, PORT).into()], seconds: seconds + 10 };
            talk.sinks.push(binary.worker(lab, host, "sink", &spec)?);
        }
        for (flow, (host, to)) in (0u32..).zip(ends) {
            talk.callers.push(binary.worker(lab, host, "call", &call(to, flow, seconds))?);
            // The client speaks first: its edge box lets the service answer, and nobody else begin.
            thread::sleep(TURN);
        }
        Ok(talk)
    }

    /// Lets them talk on for a while.
    pub(super) fn go_on(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.listen();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(TURN));
        }
    }

    /// Takes what the workers have said, so that none of them waits for a reader.
    fn listen(&mut self) {
        for process in self.callers.iter().chain(&self.sinks) {
            while let Some(line) = process.line_now() {
                self.heard.calls.take(&line);
            }
        }
        for direction in DIRECTIONS {
            while let Some(line) = self.listeners[direction].line_now() {
                self.heard.take(direction, &line);
            }
        }
    }

    /// Ends the talk when its last packets have arrived.
    pub(super) fn end(mut self) -> Result<Heard, LabError> {
        for process in [&mut self.callers, &mut self.sinks, &mut self.listeners] {
            process.iter_mut().for_each(Process::close_input);
            // Before the sinks and listeners stop, what is under way arrives.
            let end = Instant::now() + READY_MAX;
            for (direction, process) in process.iter().enumerate() {
                loop {
                    let line = process.line(end.saturating_duration_since(Instant::now()));
                    let line = line.ok_or_else(|| process.failed("ended without a result"))?;
                    self.heard.calls.take(&line);
                    self.heard.take(direction, &line);
                    if line.contains("\"event\":\"result\"") {
                        break;
                    }
                }
            }
            thread::sleep(UNDER_WAY);
        }
        self.heard.stolen = self.watch.end();
        Ok(self.heard)
    }
}

impl Heard {
    /// Takes in one line of a `passing` worker; others are ignored.
    fn take(&mut self, direction: usize, line: &str) {
        #[derive(Deserialize)]
        struct Passing {
            ns: u64,
            regular: u64,
            weak: Vec<(u64, Weak)>,
        }
        #[derive(Deserialize)]
        struct Result {
            clocks: Clocks,
            lost: u64,
        }
        if let Some(passing) = said::<Passing>(line, "passing") {
            self.regular[direction].push((passing.ns, passing.regular));
            self.weak[direction].extend(passing.weak);
        } else if let Some(result) = said::<Result>(line, "result") {
            self.clocks[direction] = result.clocks;
            self.missed += result.lost;
        }
    }
}

fn call(to: Ipv4Addr, flow: u32, seconds: u32) -> CallSpec {
    CallSpec {
        to: vec![(to, PORT).into()],
        first_flow: flow,
        from_ports: Vec::new(),
        per_s: PER_S,
        bytes: BYTES,
        seconds,
    }
}
