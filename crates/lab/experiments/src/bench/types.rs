//! Output over input of a capability router, for the six kinds of packets of TVA's Figure 10.
//!
//! The lab of `bench gate`, with the real binary as a router, each back end, against plain kernel forwarding of the very
//! same packets in the same run. Offered rates go up in steps; what arrives is read from the sink's interface. Packets are
//! as short as they get: 40 bytes of IP and UDP, and the capability header. How to read the rows:
//! `docs/src/internals/cost.md`.

mod router;
mod traffic;

use std::{
    thread,
    time::{Duration, Instant},
};

use strum::{IntoStaticStr, VariantArray};

use super::{
    BACKENDS, Options, Row, Run, Summary, busy_before,
    lab::BenchLab,
    load::{QUIET, Sample},
    measured, no_row, peer, rounded,
};
use router::Router;
use sluicegate_site::{LabError, binary::Binary};
use traffic::Traffic;

/// What the packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(prefix = "types_", serialize_all = "snake_case", const_into_str)]
enum Kind {
    /// No capability header.
    Plain,
    Request,
    /// Only the nonce, of a flow that the router remembers.
    RegularCached,
    /// A valid capability, of a flow that the router does not remember.
    RegularUncached,
    RenewalCached,
    RenewalUncached,
}

/// What is offered, packets a second; `None`: as many as can be sent.
const STEPS: [Option<u32>; 6] = [Some(50_000), Some(100_000), Some(200_000), Some(300_000), Some(400_000), None];

impl Kind {
    /// What the router counts such a packet as.
    const fn counted_as(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Request => "request",
            Self::RegularCached => "nonce",
            Self::RegularUncached => "capabilities",
            Self::RenewalCached | Self::RenewalUncached => "renewal",
        }
    }

    fn row(self, backend: &str) -> String {
        format!("{}.{backend}", self.into_str())
    }
}

/// The name of a step in a row's name.
fn step_name(step: Option<u32>) -> String {
    step.map_or_else(|| "max".to_owned(), |per_s| format!("{}k", per_s / 1_000))
}

/// A lab, and the router in it unless its kernel forwards.
struct Candidate {
    lab: BenchLab,
    router: Option<Router>,
}

/// Packets a second at one step.
#[derive(Debug, Clone, Copy)]
struct Point {
    input: f64,
    output: f64,
}

/// The points of each run, for one kind and candidate.
type Curves = Vec<Vec<Point>>;

/// Builds the labs, measures, and hands each row to `tell`: for each kind and back end the highest output of any step,
/// and a row `NAME@STEP` with [`Row::input`] for each step.
///
/// # Errors
/// [`LabError::Namespace`] without root; [`LabError::Plan`] for a row that does not exist. A router that does not start,
/// or that finds packets wanting, is no error: its rows are [`Summary::missing`].
pub fn types(binary: &Binary, options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let is_wanted = |kind: Kind, backend: &str| kind.row(backend).starts_with(only);
    let kinds: Vec<_> = Kind::VARIANTS
        .iter()
        .copied()
        .filter(|kind| BACKENDS.iter().any(|backend| is_wanted(*kind, backend)))
        .collect();
    if kinds.is_empty() {
        let names: Vec<_> = Kind::VARIANTS.iter().map(Kind::into_str).collect();
        return Err(no_row(only, &format!("{}, each .xdp and .packet", names.join(", "))));
    }
    let mut run = Run::begin("gate", busy_before()?, tell);
    let mut candidates = vec![Candidate { lab: peer::kernel_forward()?, router: None }];
    for backend in BACKENDS.iter().filter(|backend| kinds.iter().any(|kind| is_wanted(*kind, backend))) {
        match router::start(binary, backend) {
            Ok((lab, router)) => candidates.push(Candidate { lab, router: Some(router) }),
            Err(error) => run.miss(format!("{backend}: {error}")),
        }
    }
    let time = Duration::from_millis(if options.short { 100 } else { 400 });
    let name = |kind: &Kind, candidate: &Candidate| kind.row(&candidate.lab.name);
    let measure = |candidate: &mut Candidate, kind: &Kind, _| candidate.curve(*kind, time);
    let curves = measured((&mut candidates, &kinds), name, measure, &mut run.missing)?;
    for (kind, of_kind) in kinds.iter().zip(&curves) {
        let Some((kernel, ours)) = of_kind.split_first() else { continue };
        for (curves, candidate) in of_kind.iter().zip(&candidates) {
            if peaks(curves).iter().any(|peak| peak.lossless) {
                run.generator_bound.push(name(kind, candidate));
            }
        }
        for (curves, candidate) in ours.iter().zip(candidates.iter().skip(1)) {
            let name = name(kind, candidate);
            let mut row = |name: &str, (ours, peer): (Vec<Sample>, Vec<Sample>), input| {
                if let (Some(ours), Some(peer)) = (Sample::median(&ours), Sample::median(&peer)) {
                    run.row(name, "packets/s", ours, Some((peer, "kernel_forward")), input);
                }
            };
            row(&name, (peaks(curves), peaks(kernel)), None);
            for (step, offered) in STEPS.iter().enumerate() {
                let Some(input) = Sample::median(&at_step(curves, step, |point| point.input)) else { continue };
                let output = |curves| at_step(curves, step, |point| point.output);
                let name = format!("{name}@{}", step_name(*offered));
                row(&name, (output(curves), output(kernel)), Some(rounded(input.value())));
            }
        }
    }
    Ok(run.end())
}

/// The highest output of each run, and whether the generator, not the candidate, was at its limit there.
fn peaks(curves: &Curves) -> Vec<Sample> {
    let peak = |points: &Vec<Point>| {
        let best = points.iter().max_by(|a, b| a.output.total_cmp(&b.output))?;
        // Offered more, the candidate had given more: only the last step offers all that there is.
        let lossless = points.last().is_some_and(|last| last.output > 0.99 * last.input);
        Some(Sample { value: best.output, lossless })
    };
    curves.iter().filter_map(peak).collect()
}

/// One value of a step in each run.
fn at_step(curves: &Curves, step: usize, value: impl Fn(&Point) -> f64) -> Vec<Sample> {
    let points = curves.iter().filter_map(|points| points.get(step));
    points.map(|point| Sample::cost(value(point))).collect()
}

impl Candidate {
    /// Output and input at each step.
    fn curve(&mut self, kind: Kind, time: Duration) -> Result<Vec<Point>, LabError> {
        let lab = &mut self.lab;
        let mut traffic = Traffic::prepare(lab, kind, self.router.is_some())?;
        let before = self.router.as_ref().map(|router| router.counts(kind)).transpose()?;
        let mut points = Vec::with_capacity(STEPS.len());
        for step in STEPS {
            thread::sleep(QUIET);
            let received = lab.received()?;
            let start = Instant::now();
            let sent = traffic.send(lab, step, time)?;
            let seconds = start.elapsed().as_secs_f64();
            let received = lab.received()? - received;
            points.push(Point { input: sent as f64 / seconds, output: received as f64 / seconds });
        }
        if let (Some(router), Some(before)) = (&self.router, before) {
            router.require_passed(kind, &before)?;
        }
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_run_is_its_highest_output_and_the_generators_if_nothing_was_lost() {
        let point = |input, output| Point { input, output };
        let overloaded = vec![point(50.0, 50.0), point(100.0, 80.0), point(200.0, 60.0)];
        let idle = vec![point(50.0, 50.0), point(90.0, 90.0)];
        let peaks = peaks(&vec![overloaded, idle]);
        assert_eq!(
            peaks.iter().map(|peak| (peak.value, peak.lossless)).collect::<Vec<_>>(),
            [(80.0, false), (90.0, true)]
        );
    }

    #[test]
    fn steps_are_named_by_what_is_offered_and_rows_by_what_is_sent() {
        assert_eq!(Kind::RegularCached.row("xdp"), "types_regular_cached.xdp");
        assert_eq!(STEPS.map(step_name), ["50k", "100k", "200k", "300k", "400k", "max"]);
    }
}
