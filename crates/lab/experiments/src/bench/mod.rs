//! What a packet costs: each back end of the gate against plain kernel forwarding and nftables masquerade, in one run.
//!
//! Four labs of three hosts each, `gen -- gate -- sink`, live side by side and are measured in turn, so that whatever
//! disturbs the machine disturbs all of them. The generator sends raw frames; what arrived is read from the counters of
//! the sink's interface. How each figure comes about, and what it does not show: `docs/src/internals/cost.md`.

mod capability;
mod frame;
mod lab;
mod load;
mod peer;
mod signin;
mod site;
mod types;

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

pub use self::{
    capability::{CapabilityOptions, capability},
    signin::signin,
    types::types,
};

use self::{
    lab::BenchLab,
    load::{Measurement, Sample},
};
use sluicegate_site::{LabError, cpu::Cpu};

/// How often each figure is measured; the median counts.
const RUNS: usize = 3;

/// What to measure, and with what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `sluicegate` binary.
    pub program: PathBuf,
    /// An existing directory for configuration, state and logs that only this user can read.
    pub directory: PathBuf,
    /// 0.2 s a measurement instead of 1 s: shows that everything works, not how fast it is.
    pub short: bool,
    /// Only rows whose name starts so, such as `established_64b` or `latency_p99.xdp`.
    pub only: Option<String>,
    /// The commit that `program` was built from.
    pub commit: String,
}

/// One figure of ours beside the same figure of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `gate`, `capability` or `signin`.
    pub bench: &'static str,
    /// What was measured: figure, back end, protocol, or figure and order of the flows.
    pub row: String,
    /// Unit of `ours` and `peer`.
    pub unit: &'static str,
    /// Our median.
    pub ours: f64,
    /// The peer's median; `None` where there is nothing to compare with.
    pub peer: Option<f64>,
    /// Such as `kernel_forward` or `nft_masquerade`.
    pub peer_name: Option<String>,
    /// How many times better ours is, whatever the unit; above 1 is ahead.
    pub ratio: Option<f64>,
    /// What was offered, where the row is one point of a curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<f64>,
    /// How often each was measured.
    pub runs: usize,
    /// (largest - smallest) / median, of ours or the peer's values, whichever is larger.
    pub spread: f64,
    /// Processor and kernel.
    pub machine: String,
    /// The commit that was measured.
    pub commit: String,
}

/// How the bench went.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// `gate`, `capability` or `signin`.
    pub bench: &'static str,
    /// Rows measured.
    pub rows: usize,
    /// What was to be measured and was not, and why. Empty if all went well.
    pub missing: Vec<String>,
    /// What lost next to nothing in some run: there the rate is the generator's, and the candidate could do more.
    pub generator_bound: Vec<String>,
    /// Processors of the machine.
    pub cpus: usize,
    /// Share of the machine's processor time that others used just before the bench: figures of a busy machine mean
    /// little.
    pub busy_before: f64,
    /// How long the whole bench took.
    pub seconds: f64,
}

/// A figure of the bench.
#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
    /// More is better of what is counted per second, less of everything else.
    unit: &'static str,
    measurement: Measurement,
}

const FIGURES: [Figure; 6] = [
    Figure::new("established_64b", "packets/s", Measurement::Established { frame_bytes: 64 }),
    Figure::new("established_64b_cpu", "ns/packet", Measurement::Cpu { frame_bytes: 64 }),
    Figure::new("established_1400b", "packets/s", Measurement::Established { frame_bytes: 1_400 }),
    Figure::new("established_1400b_cpu", "ns/packet", Measurement::Cpu { frame_bytes: 1_400 }),
    Figure::new("new_flows", "flows/s", Measurement::NewFlows),
    Figure::new("latency_p99", "us", Measurement::Latency),
];
const BACKENDS: [&str; 2] = ["xdp", "packet"];

impl Figure {
    const fn new(name: &'static str, unit: &'static str, measurement: Measurement) -> Self {
        Self { name, unit, measurement }
    }

    fn row(&self, backend: &str) -> String {
        format!("{}.{backend}.udp", self.name)
    }

    fn ratio(&self, ours: f64, peer: f64) -> f64 {
        if self.unit.ends_with("/s") { ours / peer } else { peer / ours }
    }
}

/// Builds the labs, measures, and hands each row to `tell`.
///
/// # Errors
/// [`LabError::Namespace`] without root; [`LabError::Plan`] for a row that does not exist; [`LabError::Process`] without
/// the `nft` program. A back end that does not start is no error: its rows are [`Summary::missing`].
pub fn gate(options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let start = Instant::now();
    let figures = wanted(options.only.as_deref())?;
    let busy_before = Cpu::share_busy(Duration::from_millis(500))?;
    let mut missing = Vec::new();
    let mut labs = vec![peer::kernel_forward()?, peer::nft_masquerade(&options.directory)?];
    let peers_len = labs.len();
    for backend in BACKENDS.iter().filter(|backend| figures.iter().any(|figure| is_wanted(options, figure, backend))) {
        match site::start(options, backend) {
            Ok(lab) => labs.push(lab),
            Err(error) => missing.push(format!("{backend}: {error}")),
        }
    }
    let time = Duration::from_millis(if options.short { 200 } else { 1_000 });
    let samples = thread::scope(|scope| {
        // A thread of its own: it is bound to one processor, and the daemons must not inherit that.
        let measuring = scope.spawn(|| measure_all(&mut labs, &figures, time, &mut missing));
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let machine = machine();
    let mut rows = 0;
    let mut generator_bound = Vec::new();
    for (figure, of_labs) in figures.iter().zip(&samples) {
        let lossless = of_labs.iter().zip(&labs).filter(|(samples, _)| samples.iter().any(|sample| sample.lossless));
        generator_bound.extend(lossless.map(|(_, lab)| format!("{}.{}", figure.name, lab.name)));
        for (ours, lab) in of_labs.iter().zip(&labs).skip(peers_len) {
            for (peer, peer_lab) in of_labs.iter().zip(&labs).take(peers_len) {
                let (Some(ours), Some(theirs)) = (Median::of(ours), Median::of(peer)) else { continue };
                if !is_wanted(options, figure, &lab.name) {
                    continue;
                }
                rows += 1;
                tell(Row {
                    bench: "gate",
                    row: figure.row(&lab.name),
                    unit: figure.unit,
                    ours: rounded(ours.median),
                    peer: Some(rounded(theirs.median)),
                    peer_name: Some(peer_lab.name.clone()),
                    ratio: Some(rounded(figure.ratio(ours.median, theirs.median))),
                    input: None,
                    runs: RUNS,
                    spread: rounded(ours.spread.max(theirs.spread)),
                    machine: machine.clone(),
                    commit: options.commit.clone(),
                });
            }
        }
    }
    let seconds = rounded(start.elapsed().as_secs_f64());
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    Ok(Summary { bench: "gate", rows, missing, generator_bound, cpus, busy_before: rounded(busy_before), seconds })
}

fn wanted(only: Option<&str>) -> Result<Vec<Figure>, LabError> {
    let fits = |figure: &Figure| {
        let only = only.unwrap_or_default();
        BACKENDS.iter().any(|backend| figure.row(backend).starts_with(only))
    };
    let figures: Vec<_> = FIGURES.into_iter().filter(fits).collect();
    if figures.is_empty() {
        let names = FIGURES.map(|figure| figure.name).join(", ");
        return Err(LabError::Plan(format!("no row starts with {}; there are {names}", only.unwrap_or_default())));
    }
    Ok(figures)
}

fn is_wanted(options: &Options, figure: &Figure, backend: &str) -> bool {
    options.only.as_deref().is_none_or(|only| figure.row(backend).starts_with(only))
}

/// The values of each figure, for each lab; fewer than [`RUNS`] where a measurement failed.
type Samples = Vec<Vec<Vec<Sample>>>;

fn measure_all(
    labs: &mut [BenchLab],
    figures: &[Figure],
    time: Duration,
    missing: &mut Vec<String>,
) -> Result<Samples, LabError> {
    load::bind_to_first_cpu()?;
    for lab in labs.iter_mut() {
        load::warm_up(lab)?;
    }
    let mut samples: Samples = vec![vec![Vec::new(); labs.len()]; figures.len()];
    for run in 0..RUNS {
        for (figure, of_labs) in figures.iter().zip(&mut samples) {
            for (lab, values) in labs.iter_mut().zip(of_labs) {
                // Whatever else runs on the machine may disturb one; twice is no accident.
                let mut measure = || load::measure(lab, figure.measurement, run, time);
                match measure().or_else(|_| measure()) {
                    Ok(sample) => values.push(sample),
                    Err(error) => missing.push(format!("{}.{}: {error}", figure.name, lab.name)),
                }
            }
        }
    }
    Ok(samples)
}

struct Median {
    median: f64,
    spread: f64,
}

impl Median {
    /// `None` unless every run gave a value.
    fn of(samples: &[Sample]) -> Option<Self> {
        let mut sorted: Vec<_> = samples.iter().map(|sample| sample.value).collect();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (sorted.first()?, sorted.last()?);
        let median = *sorted.get(RUNS / 2)?;
        (sorted.len() == RUNS && median > 0.0).then(|| Self { median, spread: (last - first) / median })
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Processor and kernel.
#[must_use]
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, Linux {}", release.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_means_ahead_for_rates_and_for_costs() {
        let of = |name: &str| FIGURES.into_iter().find(|figure| figure.name == name).unwrap();
        assert!(of("new_flows").ratio(300.0, 200.0) > 1.0);
        assert!(of("latency_p99").ratio(300.0, 200.0) < 1.0);
        assert!(of("established_64b_cpu").ratio(100.0, 200.0) > 1.0);
    }

    #[test]
    fn a_figure_counts_only_if_every_run_gave_a_value() {
        let samples =
            |values: &[f64]| values.iter().map(|value| Sample { value: *value, lossless: false }).collect::<Vec<_>>();
        let median = Median::of(&samples(&[30.0, 10.0, 20.0])).unwrap();
        assert_eq!((median.median, median.spread), (20.0, 1.0));
        assert!(Median::of(&samples(&[10.0, 20.0])).is_none());
        assert!(Median::of(&samples(&[0.0; RUNS])).is_none());
    }

    #[test]
    fn one_row_can_be_asked_for_and_an_unknown_one_is_refused_with_the_names() {
        let names = |only| wanted(only).unwrap().iter().map(|figure| figure.name).collect::<Vec<_>>();
        assert_eq!(names(None).len(), FIGURES.len());
        assert_eq!(names(Some("latency_p99.packet.udp")), ["latency_p99"]);
        assert_eq!(names(Some("established_64b")), ["established_64b", "established_64b_cpu"]);
        assert!(wanted(Some("speed")).unwrap_err().to_string().contains("new_flows"));
    }
}
