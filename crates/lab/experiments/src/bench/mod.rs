//! What a packet costs: each back end of the gate against plain kernel forwarding and nftables masquerade, in one run.
//!
//! Four labs of three hosts each, `gen -- gate -- sink`, live side by side and are measured in turn, so that whatever
//! disturbs the machine disturbs all of them. The generator sends raw frames; what arrived is read from the counters of
//! the sink's interface. How each figure comes about, and what it does not show: `docs/src/internals/cost.md`.

mod capability;
mod frame;
mod lab;
mod load;
mod node;
mod peer;
mod signin;
mod sip;
mod site;
mod types;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;

pub use self::{capability::capability, node::node, signin::signin, sip::sip, types::types};

use self::{
    lab::BenchLab,
    load::{Measurement, Sample},
};
use sluicegate_site::{LabError, binary::Binary, cpu::Cpu};

/// How often each figure is measured; the median counts.
const RUNS: usize = 3;

/// What to measure, as arguments of the commands.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only rows whose name starts so, such as `latency_p99.xdp`; one that there is not is answered with those there are.
    #[arg(long, value_name = "ROW")]
    pub only: Option<String>,
    /// A part of the measurements: shows that everything works, not how fast it is.
    #[arg(long)]
    pub short: bool,
}

/// One figure of ours beside the same figure of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Such as `gate`, `capability` or `node`.
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
    /// The commit that was measured, where whoever built this said which it is.
    pub commit: &'static str,
}

/// How the bench went.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Such as `gate`, `capability` or `node`.
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

/// A bench under way: what its rows have in common, and what will be its [`Summary`].
pub struct Run<'t> {
    bench: &'static str,
    machine: String,
    start: Instant,
    busy_before: f64,
    rows: usize,
    missing: Vec<String>,
    generator_bound: Vec<String>,
    tell: &'t mut dyn FnMut(Row),
}

/// The value that a row is compared with: its own spread, 0 where it was not measured, and its name.
type Peer<'n> = (Median, &'n str);

impl<'t> Run<'t> {
    /// A bench that begins on a machine of which others use `busy_before`; each of its rows goes to `tell`.
    pub fn begin(bench: &'static str, busy_before: f64, tell: &'t mut dyn FnMut(Row)) -> Self {
        let (missing, generator_bound) = (Vec::new(), Vec::new());
        let (machine, start) = (machine(), Instant::now());
        Self { bench, machine, start, busy_before, rows: 0, missing, generator_bound, tell }
    }

    /// One figure. More is better of what is counted per second, less of everything else. `input`: what was offered, where
    /// the row is one point of a curve.
    pub fn row(&mut self, row: &str, unit: &'static str, ours: Median, peer: Option<Peer<'_>>, input: Option<f64>) {
        self.rows += 1;
        let ratio = |peer: f64| if unit.ends_with("/s") { ours.median / peer } else { peer / ours.median };
        (self.tell)(Row {
            bench: self.bench,
            row: row.to_owned(),
            unit,
            ours: rounded(ours.median),
            peer: peer.map(|(peer, _)| rounded(peer.median)),
            peer_name: peer.map(|(_, name)| name.to_owned()),
            ratio: peer.map(|(peer, _)| rounded(ratio(peer.median))),
            input,
            runs: ours.runs,
            spread: rounded(peer.map_or(ours.spread, |(peer, _)| ours.spread.max(peer.spread))),
            machine: self.machine.clone(),
            commit: option_env!("SLUICEGATE_COMMIT").unwrap_or("unknown"),
        });
    }

    /// What was to be measured and was not, and why.
    pub fn miss(&mut self, what: String) {
        self.missing.push(what);
    }

    /// The bench is over.
    #[must_use]
    pub fn end(self) -> Summary {
        Summary {
            bench: self.bench,
            rows: self.rows,
            missing: self.missing,
            generator_bound: self.generator_bound,
            cpus: thread::available_parallelism().map_or(1, usize::from),
            busy_before: rounded(self.busy_before),
            seconds: rounded(self.start.elapsed().as_secs_f64()),
        }
    }
}

/// The middle of several values.
#[derive(Debug, Clone, Copy)]
pub struct Median {
    median: f64,
    /// (largest - smallest) / median.
    spread: f64,
    runs: usize,
}

impl Median {
    /// Of these values; `None` if they are fewer than the runs of a bench, or not above zero.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (sorted.first()?, sorted.last()?);
        let (median, runs) = (*sorted.get(sorted.len() / 2)?, sorted.len());
        (runs >= RUNS && median > 0.0).then_some(Self { median, spread: (last - first) / median, runs })
    }

    /// A value that was not measured, such as a limit or what others published.
    #[must_use]
    pub const fn given(value: f64) -> Self {
        Self { median: value, spread: 0.0, runs: 0 }
    }

    /// The middle value.
    #[must_use]
    pub const fn value(&self) -> f64 {
        self.median
    }
}

/// Share of the machine that others use now.
fn busy_before() -> Result<f64, LabError> {
    Cpu::share_busy(Duration::from_millis(500))
}

/// What `only` asks for and no bench has.
fn no_row(only: &str, there_are: &str) -> LabError {
    LabError::Plan(format!("no row starts with {only}; there are {there_are}"))
}

/// Measures each figure in each lab, [`RUNS`] times, in turn: whatever disturbs the machine disturbs all of them. The
/// values come by figure and lab; what fails twice is left out and said by `name`.
fn measured<L: Send, F: Sync, V: Clone + Send>(
    (labs, figures): (&mut [L], &[F]),
    name: impl Fn(&F, &L) -> String + Sync,
    mut measure: impl FnMut(&mut L, &F, usize) -> Result<V, LabError> + Send,
    missing: &mut Vec<String>,
) -> Result<Vec<Vec<Vec<V>>>, LabError> {
    let in_turn = || {
        load::bind_to_first_cpu()?;
        let mut values = vec![vec![Vec::new(); labs.len()]; figures.len()];
        for run in 0..RUNS {
            for (figure, of_labs) in figures.iter().zip(&mut values) {
                for (lab, values) in labs.iter_mut().zip(of_labs) {
                    // Whatever else runs on the machine may disturb one; twice is no accident.
                    match measure(lab, figure, run).or_else(|_| measure(lab, figure, run)) {
                        Ok(value) => values.push(value),
                        Err(error) => missing.push(format!("{}: {error}", name(figure, lab))),
                    }
                }
            }
        }
        Ok(values)
    };
    // A thread of its own: it is bound to one processor, and the daemons must not inherit that.
    thread::scope(|scope| scope.spawn(in_turn).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A figure of the bench.
#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
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
}

/// Builds the labs, measures, and hands each row to `tell`. Nodes are processes of `binary`, whose directory is of this user
/// alone.
///
/// # Errors
/// [`LabError::Namespace`] without root; [`LabError::Plan`] for a row that does not exist; [`LabError::Process`] without
/// the `nft` program. A back end that does not start is no error: its rows are [`Summary::missing`].
pub fn gate(binary: &Binary, options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let figures = wanted(options.only.as_deref())?;
    let mut run = Run::begin("gate", busy_before()?, tell);
    let mut labs = vec![peer::kernel_forward()?, peer::nft_masquerade(&binary.directory)?];
    let peers_len = labs.len();
    for backend in BACKENDS.iter().filter(|backend| figures.iter().any(|figure| is_wanted(options, figure, backend))) {
        match site::start(binary, backend) {
            Ok(lab) => labs.push(lab),
            Err(error) => run.miss(format!("{backend}: {error}")),
        }
    }
    labs.iter_mut().try_for_each(load::warm_up)?;
    let time = Duration::from_millis(if options.short { 200 } else { 1_000 });
    let name = |figure: &Figure, lab: &BenchLab| format!("{}.{}", figure.name, lab.name);
    let measure = |lab: &mut BenchLab, figure: &Figure, run| load::measure(lab, figure.measurement, run, time);
    let samples = measured((&mut labs, &figures), name, measure, &mut run.missing)?;
    for (figure, of_labs) in figures.iter().zip(&samples) {
        let lossless = of_labs.iter().zip(&labs).filter(|(samples, _)| samples.iter().any(|sample| sample.lossless));
        run.generator_bound.extend(lossless.map(|(_, lab)| name(figure, lab)));
        let medians: Vec<_> = of_labs.iter().map(|samples| Sample::median(samples)).zip(&labs).collect();
        let (peers, ours) = medians.split_at(peers_len);
        for (ours, lab) in ours.iter().filter(|(_, lab)| is_wanted(options, figure, &lab.name)) {
            for (peer, peer_lab) in peers {
                let (Some(ours), Some(peer)) = (*ours, *peer) else { continue };
                run.row(&figure.row(&lab.name), figure.unit, ours, Some((peer, &peer_lab.name)), None);
            }
        }
    }
    Ok(run.end())
}

fn wanted(only: Option<&str>) -> Result<Vec<Figure>, LabError> {
    let fits = |figure: &Figure| {
        let only = only.unwrap_or_default();
        BACKENDS.iter().any(|backend| figure.row(backend).starts_with(only))
    };
    let figures: Vec<_> = FIGURES.into_iter().filter(fits).collect();
    if figures.is_empty() {
        let names = FIGURES.map(|figure| figure.name).join(", ");
        return Err(no_row(only.unwrap_or_default(), &names));
    }
    Ok(figures)
}

fn is_wanted(options: &Options, figure: &Figure, backend: &str) -> bool {
    options.only.as_deref().is_none_or(|only| figure.row(backend).starts_with(only))
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Processor and kernel.
fn machine() -> String {
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
        let ratio = |name: &str, ours: f64, peer: f64| {
            let figure = FIGURES.into_iter().find(|figure| figure.name == name).unwrap();
            let mut rows = Vec::new();
            let mut keep = |row| rows.push(row);
            let mut run = Run::begin("gate", 0.0, &mut keep);
            run.row("row", figure.unit, Median::given(ours), Some((Median::given(peer), "peer")), None);
            assert_eq!(run.end().rows, 1);
            rows[0].ratio.unwrap()
        };
        assert!(ratio("new_flows", 300.0, 200.0) > 1.0);
        assert!(ratio("latency_p99", 300.0, 200.0) < 1.0);
        assert!(ratio("established_64b_cpu", 100.0, 200.0) > 1.0);
    }

    #[test]
    fn a_figure_counts_only_if_every_run_gave_a_value() {
        let median = Median::of(&[30.0, 10.0, 20.0]).unwrap();
        assert_eq!((median.median, median.spread, median.runs), (20.0, 1.0, 3));
        assert!(Median::of(&[10.0, 20.0]).is_none());
        assert!(Median::of(&[0.0; RUNS]).is_none());
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
