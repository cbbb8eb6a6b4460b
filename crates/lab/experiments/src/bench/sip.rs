//! What calls cost a SIP server: this build's front end beside Kamailio, a processor each.
//!
//! Each server runs alone on the first processor, callers and callees on the others, before all else on the machine that lets them.
//! What each row is, and what it does not show: `docs/src/internals/cost.md`.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{Median, Options, RUNS, Row, Run, Summary, busy_before, no_row};
use crate::{
    family,
    sipload::{Does, FrontendDatapath, Load, REFUSE, RefusesAt, Rig, Scheme, Trial, Wanted, capacity},
};
use sluicegate_site::{During as _, LabError, binary::Binary};
use sluicegate_traffic::{
    attack::SipKind,
    sipload::{CallRate, Replying},
    stream::Over,
};

/// Refusals a second, and messages that nothing comes of; the NUTSS paper's load of bad requests.
const REFUSED_PER_S: u32 = 20_000;
const BAD_PER_S: u64 = 25_000;
/// Good calls beside them.
const GOOD_PER_S: u32 = 300;
/// INVITEs that nobody answers.
const SILENT_PER_S: u32 = 2_000;
/// Calls that are open together, and how many of them begin a second.
const OPEN_PER_S: u32 = 2_000;
const OPEN_S: u32 = 30;
const OPEN_S_SHORT: u32 = 4;

/// Rows of a figure with their units, and how they are measured.
struct Figure {
    rows: &'static [(&'static str, &'static str)],
    measure: fn(&mut Bench<'_>, &Rig, Scheme) -> Result<Vec<f64>, LabError>,
    /// Whether a gate on a host of its own opens the media of our calls.
    is_gated: bool,
}

const FIGURES: [Figure; 11] = [
    Figure {
        rows: &[
            ("stateful_per_core", "calls/s"),
            ("stateful_cpu", "us/call"),
            ("stateful_cpu_half", "us/call"),
            ("stateful_setup_p50_half", "us"),
            ("stateful_setup_p99_half", "us"),
        ],
        measure: |bench, rig, scheme| bench.served(rig, "stateful", wanted(rig, scheme, Does::Relays)),
        is_gated: false,
    },
    Figure {
        rows: &[
            ("digest_per_core", "calls/s"),
            ("digest_cpu", "us/call"),
            ("digest_cpu_half", "us/call"),
            ("digest_setup_p50_half", "us"),
            ("digest_setup_p99_half", "us"),
        ],
        measure: |bench, rig, scheme| bench.served(rig, "digest", wanted(rig, scheme, Does::AsksFirst)),
        is_gated: false,
    },
    Figure {
        rows: &[
            ("grant_per_core", "calls/s"),
            ("grant_cpu", "us/call"),
            ("grant_cpu_half", "us/call"),
            ("grant_setup_p50_half", "us"),
            ("grant_setup_p99_half", "us"),
        ],
        measure: |bench, rig, scheme| {
            let wanted = Wanted { grants: scheme.is_ours(), ..wanted(rig, scheme, Does::AsksFirst) };
            bench.served(rig, "grant", wanted)
        },
        is_gated: true,
    },
    Figure {
        rows: &[("refused_500_cpu", "us/refusal")],
        measure: |bench, rig, scheme| {
            bench.refused(rig, Wanted { overload: REFUSE, ..wanted(rig, scheme, Does::Refuses) })
        },
        is_gated: false,
    },
    Figure {
        rows: &[("refused_407_cpu", "us/refusal")],
        measure: |bench, rig, scheme| bench.refused(rig, wanted(rig, scheme, Does::Challenges)),
        is_gated: false,
    },
    Figure {
        rows: &[("refused_500_xdp_cpu", "us/refusal")],
        measure: |bench, rig, scheme| {
            let wanted = wanted(rig, scheme, Does::Refuses);
            bench.refused(rig, Wanted { overload: REFUSE, datapath: FrontendDatapath::Xdp, ..wanted })
        },
        is_gated: false,
    },
    Figure {
        rows: &[("refused_407_xdp_cpu", "us/refusal")],
        measure: |bench, rig, scheme| {
            let wanted = wanted(rig, scheme, Does::Challenges);
            bench.refused(rig, Wanted { datapath: FrontendDatapath::Xdp, ..wanted })
        },
        is_gated: false,
    },
    Figure {
        rows: &[("dropped_cpu", "us/message")],
        measure: |bench, rig, scheme| bench.dropped(rig, &wanted(rig, scheme, Does::Drops)),
        is_gated: false,
    },
    Figure {
        rows: &[("memory_per_invite", "bytes")],
        measure: |bench, rig, scheme| bench.memory(rig, scheme),
        is_gated: false,
    },
    Figure {
        rows: &[("flooded_busy", "share"), ("flooded_completed", "calls/s"), ("flooded_setup_p99", "us")],
        measure: |bench, rig, scheme| bench.flooded(rig, scheme),
        is_gated: false,
    },
    Figure {
        rows: &[("open_60000_cpu", "us/call")],
        measure: |bench, rig, scheme| bench.open(rig, scheme),
        is_gated: false,
    },
];
/// Measured apart: the load has no processor of its own then.
const TWO: (&str, &str) = ("two_workers", "calls/s");

struct Bench<'t> {
    binary: &'t Binary,
    is_short: bool,
    /// Labs that were built so far.
    labs: u32,
    /// Capacities that were found before, by figure and server.
    found: BTreeMap<(&'static str, Scheme), f64>,
    tell: &'t mut dyn FnMut(&str),
}

/// Measures, says each step to `say`, and hands each row to `tell`.
///
/// # Errors
/// [`LabError::Plan`] for a row that does not exist; [`LabError::Namespace`] without root; [`LabError::Process`] if our own
/// server does not start. A peer that is not there is no error: its rows are [`Summary::missing`].
pub fn sip(
    binary: &Binary,
    options: &Options,
    say: &mut dyn FnMut(&str),
    tell: &mut dyn FnMut(Row),
) -> Result<Summary, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let is_wanted = |figure: &Figure| figure.rows.iter().any(|(row, _)| row.starts_with(only));
    let figures: Vec<&Figure> = FIGURES.iter().filter(|figure| is_wanted(figure)).collect();
    let has_two = TWO.0.starts_with(only);
    if figures.is_empty() && !has_two {
        let names: Vec<_> = FIGURES.iter().flat_map(|figure| figure.rows).chain([&TWO]).map(|(row, _)| *row).collect();
        return Err(no_row(only, &names.join(", ")));
    }
    let mut run = Run::begin("sip", busy_before()?, tell);
    let two = Figure { rows: &[TWO], measure: |bench, rig, scheme| bench.two(rig, scheme), is_gated: false };
    let mut bench = Bench { binary, is_short: options.short, labs: 0, found: BTreeMap::new(), tell: say };
    let most = {
        let rig = bench.lab(false)?;
        let load = |per_s| bench.constant(per_s);
        capacity(|load| rig.reflected(load), load, None, &mut |_| ())?.per_s
    };
    run.row("generator_ceiling", "calls/s", Median::given(most), None, None);
    for figure in figures.into_iter().chain(has_two.then_some(&two)) {
        bench.row(figure, only, &mut run)?;
    }
    Ok(run.end())
}

impl Bench<'_> {
    /// Measures a figure with both servers in turn: whatever disturbs the machine disturbs both.
    fn row(&mut self, figure: &Figure, only: &str, run: &mut Run<'_>) -> Result<(), LabError> {
        let schemes = [Scheme::Sluicegate, Scheme::KamailioTlsf];
        let mut values: [Vec<Vec<f64>>; 2] = Default::default();
        for _ in 0..RUNS {
            for (scheme, values) in schemes.into_iter().zip(&mut values) {
                (self.tell)(&format!("{}: {}", figure.rows[0].0, scheme.name()));
                let rig = self.lab(figure.is_gated && scheme.is_ours())?;
                match (figure.measure)(self, &rig, scheme) {
                    Ok(found) => values.push(found),
                    Err(error) if scheme.is_ours() => return Err(error),
                    Err(error) => run.miss(format!("{} of {}: {error}", figure.rows[0].0, scheme.name())),
                }
            }
        }
        for (place, (row, unit)) in figure.rows.iter().enumerate().filter(|(_, (row, _))| row.starts_with(only)) {
            let median = |values: &[Vec<f64>]| {
                Median::of(&values.iter().filter_map(|one| one.get(place).copied()).collect::<Vec<_>>())
            };
            let [ours, peer] = values.each_ref().map(|values| median(values));
            match ours {
                Some(ours) => run.row(row, unit, ours, peer.map(|peer| (peer, schemes[1].name())), None),
                None => run.miss(format!("{row}: nothing was used or served")),
            }
        }
        Ok(())
    }

    /// A lab for one figure of one server, in a directory of its own. What a gate leaves on its interfaces when it ends, so that
    /// its link stays closed, would keep whoever is measured next off them.
    fn lab(&mut self, has_gate: bool) -> Result<Rig, LabError> {
        self.labs += 1;
        let directory = self.binary.directory.join(self.labs.to_string());
        std::fs::create_dir_all(&directory).during(|| format!("making {}", directory.display()))?;
        Rig::build(&Binary { directory, ..self.binary.clone() }, 1, has_gate)
    }

    fn constant(&self, per_s: u32) -> Load {
        let (settle_ms, ms) = self.times();
        Load::constant(per_s, settle_ms, ms)
    }

    /// How long a load lasts before anything counts, and what counts, in milliseconds.
    const fn times(&self) -> (u32, u32) {
        if self.is_short { (500, 1_000) } else { (1_500, 3_000) }
    }

    /// The capacity, what a call costs there and at half of it, and how long set-ups take then.
    fn served(&mut self, rig: &Rig, name: &'static str, wanted: Wanted) -> Result<Vec<f64>, LabError> {
        let (media, scheme, (settle_ms, ms)) = (wanted.grants, wanted.scheme, self.times());
        let load = |per_s| Load { media, ..Load::constant(per_s, settle_ms, ms) };
        let near = self.found.get(&(name, scheme)).copied();
        let found = capacity(|load| rig.trial(&wanted, load), load, near, self.tell)?;
        self.found.insert((name, scheme), found.per_s);
        let half = rig.trial(&wanted, &load((found.per_s / 2.0) as u32))?;
        let setup = half.first().setup_us;
        Ok(vec![found.per_s, each(&found.trial), each(&half), setup.p50 as f64, setup.p99 as f64])
    }

    fn two(&mut self, rig: &Rig, scheme: Scheme) -> Result<Vec<f64>, LabError> {
        let wanted = Wanted { workers: 2, cpus: vec![0, 1], ..wanted(rig, scheme, Does::AsksFirst) };
        let (settle_ms, ms) = self.times();
        let load = |per_s| Load::constant(per_s, settle_ms, ms);
        let near = self.found.get(&("two", scheme)).copied();
        let found = capacity(|load| rig.trial(&wanted, load), load, near, self.tell)?;
        self.found.insert(("two", scheme), found.per_s);
        Ok(vec![found.per_s])
    }

    /// Processor time of a refusal: an INVITE, its answer, and the ACK to that.
    fn refused(&mut self, rig: &Rig, wanted: Wanted) -> Result<Vec<f64>, LabError> {
        let load = Load { has_password: false, ..self.constant(REFUSED_PER_S) };
        let trial = rig.trial(&wanted, &load)?;
        let refused: u64 = trial.first().refused.values().sum();
        self.say(&trial);
        Ok(vec![trial.cpu_s * 1e6 / refused.max(1) as f64])
    }

    fn dropped(&mut self, rig: &Rig, wanted: &Wanted) -> Result<Vec<f64>, LabError> {
        let server = rig.start(wanted)?;
        let mut flood = rig.flood(SipKind::Ack, BAD_PER_S)?;
        thread::sleep(Duration::from_millis(500));
        let time = Duration::from_millis(if self.is_short { 1_000 } else { 3_000 });
        let received = || rig.lab.counters("server", "left").map(|counters| counters.rx_packets);
        let (cpu, came) = (family::cpu(server.pid())?, received()?);
        thread::sleep(time);
        let (cpu, came) = (family::cpu(server.pid())?.saturating_sub(cpu), received()?.saturating_sub(came));
        flood.close_input();
        Ok(vec![cpu.as_secs_f64() * 1e6 / came.max(1) as f64])
    }

    /// What a server's memory grows by for each INVITE that nobody answers.
    fn memory(&mut self, rig: &Rig, scheme: Scheme) -> Result<Vec<f64>, LabError> {
        let ms = if self.is_short { 1_500 } else { 4_000 };
        let load = Load { manner: Replying::Silent, ..Load::constant(SILENT_PER_S, 0, ms) };
        let trial = rig.trial(&wanted(rig, scheme, Does::AsksFirst), &load)?;
        let [before, after] = trial.memory_kb;
        let first = trial.first();
        let open = first.challenged.max(1);
        Ok(vec![after.saturating_sub(before) as f64 * 1_024.0 / open as f64])
    }

    /// Good calls among INVITEs of strangers.
    fn flooded(&mut self, rig: &Rig, scheme: Scheme) -> Result<Vec<f64>, LabError> {
        let wanted = Wanted { overload: "adaptive", ..wanted(rig, scheme, Does::AsksFirst) };
        let server = rig.start(&wanted)?;
        let flood = rig.flood(SipKind::Invite, BAD_PER_S)?;
        let trial = rig.load(Some(&server), Over::Udp, &self.constant(GOOD_PER_S))?;
        drop(flood);
        self.say(&trial);
        Ok(vec![trial.cpu_s / trial.seconds, trial.goodput(), trial.first().setup_us.p99 as f64])
    }

    /// What a call costs while 60,000 are open; in the short form fewer.
    fn open(&mut self, rig: &Rig, scheme: Scheme) -> Result<Vec<f64>, LabError> {
        let hold_s = if self.is_short { OPEN_S_SHORT } else { OPEN_S };
        let (hold_ms, ms) = (hold_s * 1_000, 3_000);
        let load = Load {
            hold_ms: Some(hold_ms),
            rates: vec![CallRate { per_s: OPEN_PER_S, ms: hold_ms + ms }],
            ..Load::constant(OPEN_PER_S, hold_ms, ms)
        };
        let trial = rig.trial(&wanted(rig, scheme, Does::AsksFirst), &load)?;
        self.say(&trial);
        Ok(vec![each(&trial)])
    }

    fn say(&mut self, trial: &Trial) {
        let sum = trial.first();
        let refused: u64 = sum.refused.values().sum();
        let (offered, completed, again) = (sum.offered, sum.completed, sum.retransmissions);
        (self.tell)(&format!("  {offered} offered, {completed} completed, {refused} refused, {again} again"));
    }
}

fn wanted(rig: &Rig, scheme: Scheme, does: Does) -> Wanted {
    Wanted {
        scheme,
        does,
        over: Over::Udp,
        overload: "off",
        datapath: FrontendDatapath::Socket,
        refuses: RefusesAt::Process,
        grants: false,
        workers: 1,
        cpus: rig.cpus[0].clone(),
        share: None,
    }
}

/// Processor time of a call, in microseconds.
fn each(trial: &Trial) -> f64 {
    trial.cpu_s * 1e6 / trial.first().completed.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<_> = FIGURES.iter().flat_map(|figure| figure.rows).chain([&TWO]).collect();
        let names: std::collections::BTreeSet<_> = rows.iter().map(|(row, _)| row).collect();
        assert_eq!(names.len(), rows.len());
    }
}
