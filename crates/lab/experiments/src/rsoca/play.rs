//! One scenario after the other, in one lab.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    Mode, Mutant, NAME, Picture, RsocaOptions,
    judge::{self, BURST, Capacity},
    load::{Tally, Workers, forwarded, rates},
    plot,
    sample::{Sampler, Second},
    scenes::Scene,
    site::{self, Callee, Certificates, FORWARDERS},
};
use crate::report::rows::Report;
use sluicegate_site::{
    Lab, LabError, Node, Process,
    binary::Binary,
    cpu::{StolenWatch, Taken},
};
use sluicegate_traffic::sipload::CallRate;

/// Share of its SIP thread's time that the engineered load takes (C_min), and from which all is refused (C_max).
pub(super) const CPU: (f64, f64) = (0.2, 0.4);
/// How often what is said is listened to.
const LISTEN: Duration = Duration::from_millis(10);
/// In multiples of the engineered load, what comes at most (Figures 7 and 8 of the paper).
const HEAVIEST: f64 = 10.0;
/// Calls a second for which a target is engineered that is to refuse nearly all.
const NEARLY_NONE: f64 = 1.0;
/// Calls a second by which capacity is guessed first, for how long each guess is tried, and how often.
const FIRST_GUESS: f64 = 50.0;
const GUESS_S: u32 = 6;
const GUESSES: usize = 4;
/// Engineered loads that are played: with fewer calls chance says more than control, and M_max of more is more calls than two
/// peers may have (10,000 each).
const LOAD: (f64, f64) = (50.0, 900.0);
/// Calls a second by which costs are measured at most.
const RATE_MAX: f64 = HEAVIEST * LOAD.1;
/// How much later than they should callers may tell what became of their calls.
const LATE_MAX: Duration = Duration::from_secs(10);

/// A scenario, and what came of it.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) scene: Scene,
    /// How the target met it.
    pub(super) by: Mode,
    pub(super) tally: Tally,
    pub(super) seconds: Vec<Second>,
    /// How long calls began.
    pub(super) calls_s: u32,
    pub(super) taken: Taken,
}

struct Rig<'a> {
    options: &'a RsocaOptions,
    certificates: Certificates,
    _callees: Vec<Process>,
    gate: Node,
    lab: Lab,
    binary: &'a Binary,
}

/// Plays the paper's scenarios and returns what was measured, and pictures of it; `tell` hears each step. All daemons and
/// workers are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If no scenario is called so, the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(
    binary: &Binary,
    options: &RsocaOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<(Report, Vec<Picture>), LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let plays: Vec<_> = options.mode.plays().iter().filter(|(scene, _)| scene.name.contains(only)).collect();
    if plays.is_empty() {
        let names: Vec<_> = options.mode.plays().iter().map(|(scene, _)| scene.name).collect();
        return Err(LabError::Plan(format!("no scenario is called so; there are {}", names.join(", "))));
    }
    tell("building the lab: 8 network namespaces, a target, a gate, callees");
    let stage = Rig::build(binary, options)?;
    tell("measuring what the target can do");
    let capacity = stage.measure()?;
    tell(&format!(
        "{:.0} us of its SIP thread a call, {:.0} us where many come, {:.0} us a refusal: it is engineered for {:.0} calls/s",
        capacity.call_s * 1e6,
        capacity.busy_call_s * 1e6,
        capacity.refusal_s * 1e6,
        capacity.load
    ));
    let mut all = Vec::new();
    for (scene, by) in plays {
        tell(&format!("{}, {}: {}", scene.name, by.label(), scene.about));
        all.push(stage.play(*scene, *by, capacity.load)?);
    }
    let mut report = Report::new(NAME);
    judge::judge(&mut report, options, capacity, &all);
    let pictures = all.iter().map(|played| plot::draw(played, capacity.load)).collect::<Result<Vec<_>, _>>()?;
    Ok((report, pictures))
}

impl<'a> Rig<'a> {
    fn build(binary: &'a Binary, options: &'a RsocaOptions) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let certificates = Certificates::make(&binary.directory)?;
        let target = Node::start(binary, &lab, "target", "frontend", &site::target_file(OFF, &certificates))?;
        target.answers()?;
        let gate = site::gate_file(options);
        target.admit(&lab, "gate", &gate)?;
        let gate = Node::start(binary, &lab, "gate", "gate", &gate)?;
        gate.ready()?;
        let workers = Workers { binary, lab: &lab, seed: options.seed };
        let callees = workers.callees()?;
        Ok(Self { options, certificates, _callees: callees, gate, lab, binary })
    }

    const fn workers(&self) -> Workers<'_> {
        Workers { binary: self.binary, lab: &self.lab, seed: self.options.seed }
    }

    /// A target that was started anew, and forwarding proxies that have reached it.
    fn target(&self, overload: &str) -> Result<(Node, Vec<Process>), LabError> {
        let file = site::target_file(overload, &self.certificates);
        let target = Node::start(self.binary, &self.lab, "target", "frontend", &file)?;
        target.answers()?;
        self.gate.ready()?;
        let forwarders = self.workers().forwarders(&self.certificates)?;
        let is_reached = || {
            let one = CallRate { per_s: FORWARDERS as u32, ms: 1_000 };
            let callers = self.workers().calls(Callee::Replying, vec![one], 3, u64::MAX >> 16).ok()?;
            let said = callers.event("result", Duration::from_secs(6)).ok()?;
            Tally::read(&said.to_string()).filter(|tally| tally.answered == tally.offered).map(drop)
        };
        self.binary.wait_for("target", is_reached)?;
        Ok((target, forwarders))
    }

    /// What a call takes of the target's SIP thread, and so for what it is engineered: the rate at which calls take `CPU.0` of
    /// it. A call costs more where few come at once, so the guess is tried. And not for more than it can protect: where refusing
    /// alone takes `CPU.1` of it, everything is refused, which the paper's target with its cheap refusals never met.
    fn measure(&self) -> Result<Capacity, LabError> {
        let (target, forwarders) = self.target(OFF)?;
        let cost_at = |load, turn| self.cost(&target, &forwarders, load, turn, |second| second.accepted);
        let (mut load, mut call_s) = (FIRST_GUESS, 0.0);
        for turn in 0..GUESSES {
            call_s = cost_at(load, turn)?;
            load = CPU.0 / call_s;
        }
        // In the paper so many would take all of its time.
        let busy_call_s = cost_at(load / CPU.0, GUESSES)?.min(call_s);
        drop((target, forwarders));
        let (target, forwarders) = self.target(&control(Mode::Paper, NEARLY_NONE))?;
        let refusal_s = self.cost(&target, &forwarders, HEAVIEST * load, GUESSES + 1, |second| second.refused)?;
        // As much as may be let in, and the rest refused, is to take half of what is between no refusals and nothing else.
        let heaviest_s = BURST * busy_call_s + (HEAVIEST - BURST) * refusal_s;
        let load = load.min(f64::midpoint(CPU.0, CPU.1) / heaviest_s).clamp(LOAD.0, LOAD.1).round();
        Ok(Capacity { call_s, busy_call_s, refusal_s, load })
    }

    /// What one of these takes of the SIP thread, in seconds, where so many calls a second begin.
    fn cost(
        &self,
        target: &Node,
        forwarders: &[Process],
        load: f64,
        turn: usize,
        of: fn(&Second) -> u64,
    ) -> Result<f64, LabError> {
        let rate = CallRate { per_s: load.clamp(1.0, RATE_MAX) as u32, ms: GUESS_S * 1_000 };
        let callers = self.workers().calls(Callee::Replying, vec![rate], 4, turn as u64)?;
        let (_, seconds) = self.watch(target, forwarders, &callers, Duration::from_secs((GUESS_S + 4).into()))?;
        // Calls end later than they begin: the first and the last seconds say too little.
        let steady = seconds.iter().filter(|second| (3.0..=f64::from(GUESS_S) + 0.5).contains(&second.at_s));
        let (busy, count) =
            steady.fold((0.0, 0), |(busy, count), second| (busy + second.cpu * second.span_s, count + of(second)));
        Ok(busy / count.max(1) as f64)
    }

    fn play(&self, scene: Scene, by: Mode, load: f64) -> Result<Played, LabError> {
        let mode = if self.options.mutant == Mutant::Off { OFF.to_owned() } else { control(by, load) };
        let (target, forwarders) = self.target(&mode)?;
        let calls_s = if self.options.short { scene.seconds.1 } else { scene.seconds.0 };
        let stolen = StolenWatch::start();
        let is_attacked = scene.byes > 0.0 && self.options.mutant != Mutant::NoFlood;
        let attacker = is_attacked.then(|| self.workers().byes(scene.byes * load)).transpose()?;
        let time = Duration::from_secs((calls_s + scene.ends_s).into());
        let callers = self.workers().calls(scene.callee, rates(&scene, load, calls_s), scene.ends_s, 1)?;
        let (tally, seconds) = self.watch(&target, &forwarders, &callers, time)?;
        drop(attacker);
        let taken = stolen.end().taken();
        Ok(Played { scene, by, tally, seconds, calls_s, taken })
    }

    /// Looks at a target while these call.
    fn watch(
        &self,
        target: &Node,
        forwarders: &[Process],
        callers: &Process,
        time: Duration,
    ) -> Result<(Tally, Vec<Second>), LabError> {
        let (mut sampler, end) = (Sampler::start(target)?, Instant::now() + time + LATE_MAX);
        loop {
            sampler.look()?;
            forwarders.iter().flat_map(forwarded).for_each(|second| sampler.add(&second));
            match Tally::of(callers) {
                Some(tally) => return Ok((tally, sampler.seconds)),
                None if Instant::now() >= end => return Err(callers.failed("said nothing of its calls")),
                None => thread::sleep(LISTEN),
            }
        }
    }
}

const OFF: &str = "{ mode = \"off\" }";

/// How a target is to meet more than it can serve.
fn control(by: Mode, load: f64) -> String {
    let engineered =
        |mode: &str| format!("{{ mode = \"{mode}\", calls_per_s = {load}, cpu_min = {}, cpu_max = {} }}", CPU.0, CPU.1);
    match by {
        Mode::Paper => engineered("paper"),
        Mode::Unavailable => engineered("503"),
        Mode::Default => "{ mode = \"adaptive\" }".to_owned(),
    }
}
