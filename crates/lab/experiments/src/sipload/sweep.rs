//! `lab run sip-sweep`: goodput over offered load, of this build and of Kamailio (NUTSS, Figures 2 to 7).

use std::{fs, path::PathBuf};

use clap::{Args, ValueEnum};
use sluicegate_site::{During as _, LabError, binary::Binary};
use sluicegate_traffic::{sipload::CallRate, stream::Over};

use super::{
    capacity::{Capacity, capacity},
    judge::{Point, judge, needs, note_capacity},
    picture,
    rig::{Load, Rig, Trial},
    server::{Does, FrontendDatapath, RefusesAt, Scheme, Wanted},
};
use crate::report::rows::Report;

/// The name of the run.
pub(super) const NAME: &str = "sip-sweep";
/// What is offered, in capacities of the same server.
const LOADS: [f64; 8] = [0.2, 0.5, 0.8, 1.0, 1.2, 2.0, 3.0, 5.0];
const LOADS_SHORT: [f64; 3] = [0.5, 2.0, 5.0];
/// How often an overload is played that something has to hold of, whole: the trial with the median goodput counts. What a server
/// serves on a machine that is shared changes from minute to minute, so it is looked for again after each, and where that is more
/// than so many times as much as before, or as little, the trial shows nothing, nor does one whose load did not come: it is played
/// again, so often at most.
const TRIALS: usize = 3;
const MOVED: f64 = 1.15;
const AGAIN_MAX: usize = 2;
/// Load after an overload, by which it is seen whether that is over.
pub(super) const AFTER: f64 = 0.5;

/// What is wrong with a run on purpose, so that its judge must say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// The front end serves what comes as it comes.
    Off,
}

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct SweepOptions {
    /// What callers speak: udp, tcp or tls. Over the last two each call has a connection of its own.
    #[arg(long, value_name = "TRANSPORT", default_value = "udp")]
    pub transport: Over,
    /// How datagrams come to our front end and go: through sockets, or past the kernel's network stack as frames.
    #[arg(long, value_enum, default_value_t)]
    pub datapath: FrontendDatapath,
    /// Where our front end refuses what is too much: in its process, or as it comes by an interface, in the kernel.
    #[arg(long, value_enum, default_value_t)]
    pub refuse: RefusesAt,
    /// Kamailio asks for the password of each call too, as ours always does.
    #[arg(long)]
    pub digest: bool,
    /// Fewer loads, for less time, against one build of the peer.
    #[arg(long)]
    pub short: bool,
    /// No peer.
    #[arg(long)]
    pub alone: bool,
    /// Draw goodput and set-up times over the load into this directory.
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What is wrong on purpose.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub mutant: Mutant,
}

/// Part of a processor that a server gets to whom callers connect for each call: to connect, and to be refused, costs a caller
/// as much as it costs the server, and at five times a whole processor's capacity the generator's ends first.
const STREAM_SHARE: f64 = 0.25;

/// Times of a trial, in milliseconds. A capacity is looked for over as long as loads are then offered: on a machine that is shared
/// a short trial finds what the server serves at the best of moments, a long one what it serves of all of them.
struct Times {
    settle: u32,
    load: u32,
    after: u32,
}

/// One server's points, for the picture.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) scheme: Scheme,
    pub(super) points: Vec<Point>,
}

/// Plays the sweep and returns what was measured; `tell` hears each step.
///
/// # Errors
/// If the lab cannot be built, or a server does not start: the run then shows nothing.
pub fn run(binary: &Binary, options: &SweepOptions, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    let rig = Rig::build(binary, options.seed, false)?;
    let times = if options.short {
        Times { settle: 500, load: 3_000, after: 3_000 }
    } else {
        Times { settle: 2_000, load: 6_000, after: 5_000 }
    };
    let mut report = Report::new(NAME);
    tell("the generator's own limit: callers and callees with nothing between them");
    let direct = |per_s| Load::constant(per_s, times.settle, times.load);
    let ceiling = capacity(|load| rig.reflected(load), direct, None, tell)?.per_s;
    report.of(("generator", "none")).note("ceiling_calls_per_s", ceiling);
    let mut curves = Vec::new();
    for scheme in schemes(options) {
        let wanted = wanted(options, &rig, scheme);
        tell(&format!("{}: its capacity", scheme.name()));
        let server = Server { rig: &rig, wanted, options, times: &times };
        let capacity = match server.capacity(None, tell) {
            Ok(capacity) => capacity,
            // A peer that is not there is said to be missing; ours has to be there.
            Err(error) if !scheme.is_ours() => {
                tell(&format!("{}: not measured: {error}", scheme.name()));
                continue;
            }
            Err(error) => return Err(error),
        };
        note_capacity(&mut report, scheme, &capacity, ceiling);
        let points = server.points(capacity.per_s, tell)?;
        points.iter().for_each(|point| judge(&mut report, scheme, point, options.short));
        curves.push(Curve { scheme, points });
    }
    if let Some(directory) = &options.svg {
        let digest = if options.digest { "-digest" } else { "" };
        let file = directory.join(format!("{NAME}-{}{digest}.svg", options.transport.name()));
        let picture = picture::draw(&curves, options.transport.name())?;
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&file, picture))
            .during(|| format!("writing {}", file.display()))?;
    }
    Ok(report)
}

fn schemes(options: &SweepOptions) -> Vec<Scheme> {
    match (options.alone, options.short) {
        (true, _) => vec![Scheme::Sluicegate],
        (false, true) => vec![Scheme::Sluicegate, Scheme::KamailioTlsf],
        (false, false) => vec![Scheme::Sluicegate, Scheme::KamailioTlsf, Scheme::Kamailio],
    }
}

fn wanted(options: &SweepOptions, rig: &Rig, scheme: Scheme) -> Wanted {
    Wanted {
        scheme,
        does: if options.digest { Does::AsksFirst } else { Does::Relays },
        over: options.transport,
        overload: if options.mutant == Mutant::Off { "off" } else { "adaptive" },
        datapath: options.datapath,
        refuses: options.refuse,
        grants: false,
        workers: 1,
        cpus: rig.cpus[0].clone(),
        share: options.transport.is_stream().then_some(STREAM_SHARE),
    }
}

/// A server that is swept; each trial has a fresh one.
struct Server<'r> {
    rig: &'r Rig,
    wanted: Wanted,
    options: &'r SweepOptions,
    times: &'r Times,
}

impl Server<'_> {
    fn capacity(&self, near: Option<f64>, tell: &mut dyn FnMut(&str)) -> Result<Capacity, LabError> {
        let load = |per_s| self.each(Load::constant(per_s, self.times.settle, self.times.load));
        capacity(|load| self.rig.trial(&self.wanted, load), load, near, tell)
    }

    fn each(&self, load: Load) -> Load {
        Load { connect_each: self.options.transport.is_stream(), ..load }
    }

    /// Offers each load in turn.
    fn points(&self, mut capacity: f64, tell: &mut dyn FnMut(&str)) -> Result<Vec<Point>, LabError> {
        let loads = if self.options.short { &LOADS_SHORT[..] } else { &LOADS };
        loads.iter().map(|load| self.point(*load, &mut capacity, tell)).collect()
    }

    /// Offers a load as often as it takes; `capacity` is what the server was last seen to serve.
    fn point(&self, load: f64, capacity: &mut f64, tell: &mut dyn FnMut(&str)) -> Result<Point, LabError> {
        let is_judged = self.wanted.scheme.is_ours() && needs(load).is_some();
        if self.options.short || !is_judged {
            return self.play(load, *capacity, tell);
        }
        let trials = if load > 1.0 { TRIALS } else { 1 };
        let once = |before| {
            let point = self.play(load, before, tell)?;
            Ok((point, self.capacity(Some(before), tell)?.per_s))
        };
        median(trials, capacity, once)
    }

    /// Offers a load, and after an overload one that it can bear.
    fn play(&self, load: f64, capacity: f64, tell: &mut dyn FnMut(&str)) -> Result<Point, LabError> {
        let times = self.times;
        // Not less than is asked for: of 70 calls a second one is more than a server may fail.
        let per_s = |share: f64| (capacity * share).ceil().max(1.0) as u32;
        let under_ms = times.settle + times.load;
        let after_ms = if load > 1.0 { times.after } else { 0 };
        let rates = vec![CallRate { per_s: per_s(load), ms: under_ms }, CallRate { per_s: per_s(AFTER), ms: after_ms }];
        let rates = rates.into_iter().filter(|rate| rate.ms > 0).collect();
        // Until the last calls are over, or would not have been in time.
        let load_of = Load { rates, drain_ms: 1_000, ..Load::constant(1, times.settle, times.load) };
        let trial = self.rig.trial(&self.wanted, &self.each(load_of))?;
        let point = Point { load, capacity, under_ms: under_ms.into(), trial, has_moved: false };
        tell(&format!("  {load} x: {}", point.sentence()));
        Ok(point)
    }
}

/// The trial with the median goodput of those that counted; of two the lesser. `once` offers a load to a server of this capacity
/// and says what that is afterwards.
fn median(
    trials: usize,
    capacity: &mut f64,
    mut once: impl FnMut(f64) -> Result<(Point, f64), LabError>,
) -> Result<Point, LabError> {
    let (mut counted, mut void) = (Vec::new(), Vec::new());
    while counted.len() < trials && void.len() <= AGAIN_MAX {
        let before = *capacity;
        let (mut point, after) = once(before)?;
        point.has_moved = (after / before).max(before / after) > MOVED;
        *capacity = after;
        if point.has_moved || !point.came() { void.push(point) } else { counted.push(point) }
    }
    let mut played = if counted.is_empty() { void } else { counted };
    played.sort_by(|one, other| one.goodput().total_cmp(&other.goodput()));
    Ok(played.swap_remove((played.len() - 1) / 2))
}

impl Point {
    fn sentence(&self) -> String {
        let Trial { cpu_s, seconds, .. } = &self.trial;
        let sum = self.trial.first();
        format!(
            "goodput {:.2} of capacity, {} refused, {} again, set-up p99 {:.1} ms, busy {:.2}, memory {} MB",
            self.goodput(),
            sum.refused.values().sum::<u64>(),
            sum.retransmissions,
            sum.setup_us.p99 as f64 / 1e3,
            cpu_s / seconds,
            self.trial.memory_kb[1] / 1_024,
        )
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_traffic::sipload::LoadSum;

    use super::*;

    /// Plays trials of which each completes so many calls, after which the capacity is so much: how many were played, the goodput
    /// that counts, and whether nothing did.
    fn played(outcomes: &[(u64, f64)]) -> (usize, f64, bool) {
        let outcomes: Vec<_> = outcomes.iter().map(|(completed, after)| (1.0, *completed, *after)).collect();
        played_of(&outcomes)
    }

    /// The same, where this part of each load comes.
    fn played_of(outcomes: &[(f64, u64, f64)]) -> (usize, f64, bool) {
        let (mut capacity, mut plays) = (1_000.0, 0);
        let point = median(TRIALS, &mut capacity, |before| {
            let (came, completed, after) = outcomes[plays];
            plays += 1;
            let offered = (came * 2.0 * before) as u64;
            let windows = vec![LoadSum { offered, completed, ..LoadSum::default() }];
            let trial = Trial { windows, seconds: 1.0, ..Trial::default() };
            Ok((Point { load: 2.0, capacity: before, under_ms: 1_000, trial, has_moved: false }, after))
        })
        .unwrap();
        (plays, point.goodput(), point.has_moved)
    }

    #[test]
    fn the_median_of_three_counts_and_what_is_played_while_the_capacity_moves_does_not() {
        assert_eq!(played(&[(990, 1_000.0), (700, 1_000.0), (1_100, 1_000.0)]), (3, 0.99, false));
        // The second had a server that served less: it is played again, by what that serves.
        assert_eq!(played(&[(990, 1_000.0), (500, 800.0), (760, 800.0), (784, 800.0)]), (4, 0.98, false));
        // To drift by less than that is no reason.
        assert_eq!(played(&[(950, 1_100.0), (1_100, 1_000.0), (900, 1_000.0)]), (3, 0.95, false));
    }

    #[test]
    fn a_trial_whose_load_did_not_come_is_played_again() {
        let (weak, whole) = ((0.9, 700, 1_000.0), (1.0, 990, 1_000.0));
        assert_eq!(played_of(&[weak, whole, whole, whole]), (4, 0.99, false));
        assert_eq!(played_of(&[weak; 3]), (3, 0.7, false), "and shows nothing by itself");
    }

    #[test]
    fn of_trials_that_never_count_three_are_played_and_nothing_is_shown() {
        assert_eq!(played(&[(1_500, 2_000.0), (1_500, 1_000.0), (900, 2_000.0)]), (3, 0.9, true));
        // One that counted is judged by itself.
        assert_eq!(played(&[(600, 1_000.0), (1_500, 2_000.0), (1_500, 1_000.0), (900, 2_000.0)]), (4, 0.6, false));
    }
}
