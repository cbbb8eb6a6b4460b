//! `lab run`: experiments on real nodes.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use sluicegate_experiments::{
    demo::{self, threats},
    longlife,
    report::{
        Verdict,
        rows::{Figure, Report},
    },
    transports,
    tva::{
        self, Attack, Family, Mutant,
        paths::{self, Row},
    },
};
use sluicegate_site::Scratch;

use crate::{
    cli::{
        Experiment, LabAttack, LabCarriage, LabFamily, LabMutant, LongLife, LongLifeMutant, LongLifeRow, PathsMutant,
        PathsRow, Threats, Transports, TransportsMutant, TvaLive, TvaPaths,
    },
    out,
};

pub(crate) fn run(experiment: &Experiment) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "lab run builds network namespaces and gates in them: run it as root");
    match experiment {
        Experiment::TvaLive(options) => tva_live(options),
        Experiment::TvaPaths(options) => tva_paths(options),
        Experiment::Threats(options) => threats(options),
        Experiment::LongLife(options) => long_life(options),
        Experiment::Transports(options) => all_transports(options),
    }
}

fn threats(options: &Threats) -> Result<ExitCode> {
    let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
    let mut lab = demo::Options::new(std::env::current_exe()?, directory.path().to_owned());
    (lab.seed, lab.phase_s, lab.scheduled) = (options.seed, options.seconds, true);
    lab.datapath.clone_from(&options.datapath);
    let report = threats::run(&lab, options.only.as_deref(), &mut |event| match event {
        demo::Event::Step(text) => eprintln!("{text}"),
        demo::Event::Phase(name, _) => eprintln!("{name}"),
        demo::Event::Second(_) | demo::Event::Figure(_) => {}
    })?;
    print(&report, options.json);
    Ok(status(report.verdict()))
}

fn tva_live(options: &TvaLive) -> Result<ExitCode> {
    let mut worst = Verdict::Holds;
    for run in 0..options.runs {
        worst = worst.max(tva_live_once(options, options.seed.wrapping_add(run))?);
    }
    Ok(status(worst))
}

/// One run.
fn tva_live_once(options: &TvaLive, seed: u64) -> Result<Verdict> {
    let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
    let lab = tva::Options {
        program: std::env::current_exe()?,
        directory: directory.path().to_owned(),
        attack: match options.attack {
            LabAttack::Legacy => Attack::Legacy,
            LabAttack::Request => Attack::Request,
            LabAttack::Authorized => Attack::Authorized,
            LabAttack::Imprecise => Attack::Imprecise,
            LabAttack::Reasking => Attack::Reasking,
        },
        ratio: options.ratio,
        seed,
        mutant: match options.mutant {
            LabMutant::None => Mutant::None,
            LabMutant::NoFlood => Mutant::NoFlood,
            LabMutant::SelfLimiting => Mutant::SelfLimiting,
            LabMutant::Renews => Mutant::Renews,
        },
        datapath: options.datapath.clone(),
        family: match options.family {
            LabFamily::V4 => Family::V4,
            LabFamily::V6 => Family::V6,
        },
        encapsulated: options.carriage == LabCarriage::Udp,
    };
    let report = tva::run(&lab, &mut |step| eprintln!("{step}"))?;
    print(&report, options.json);
    if let Some(path) = &options.svg {
        std::fs::write(path, report.to_svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.verdict())
}

fn tva_paths(options: &TvaPaths) -> Result<ExitCode> {
    let chosen = |row: &Row| match options.only {
        Some(only) => *row == row_of(only),
        None => *row != Row::Soak || options.soak > 0,
    };
    let rows: Vec<Row> = Row::ALL.into_iter().filter(chosen).collect();
    let mut worst = Verdict::Holds;
    for _ in 0..options.runs {
        let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
        let lab = paths::Options {
            program: std::env::current_exe()?,
            directory: directory.path().to_owned(),
            rows: rows.clone(),
            soak_s: options.soak,
            mutant: match options.mutant {
                PathsMutant::None => paths::Mutant::None,
                PathsMutant::Still => paths::Mutant::Still,
                PathsMutant::Hole => paths::Mutant::Hole,
            },
            datapath: options.datapath.clone(),
        };
        let report = paths::run(&lab, &mut |step| eprintln!("{step}"))?;
        print(&report, options.json);
        worst = worst.max(report.verdict());
    }
    Ok(status(worst))
}

const fn row_of(row: PathsRow) -> Row {
    match row {
        PathsRow::Switch => Row::Switch,
        PathsRow::Flap => Row::Flap,
        PathsRow::Asymmetric => Row::Asymmetric,
        PathsRow::Clocks => Row::Clocks,
        PathsRow::Soak => Row::Soak,
    }
}

fn long_life(options: &LongLife) -> Result<ExitCode> {
    let chosen = |row: &longlife::Row| options.only.is_none_or(|only| *row == long_row_of(only));
    let rows: Vec<longlife::Row> = longlife::Row::ALL.into_iter().filter(chosen).collect();
    let mut worst = Verdict::Holds;
    for _ in 0..options.runs {
        let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
        let lab = longlife::Options {
            program: std::env::current_exe()?,
            directory: directory.path().to_owned(),
            rows: rows.clone(),
            short: options.short,
            mutant: match options.mutant {
                LongLifeMutant::None => longlife::Mutant::None,
                LongLifeMutant::Still => longlife::Mutant::Still,
                LongLifeMutant::Dead => longlife::Mutant::Dead,
            },
            datapath: options.datapath.clone(),
        };
        let report = longlife::run(&lab, &mut |step| eprintln!("{step}"))?;
        print(&report, options.json);
        worst = worst.max(report.verdict());
    }
    Ok(status(worst))
}

fn all_transports(options: &Transports) -> Result<ExitCode> {
    let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
    let lab = transports::Options {
        program: std::env::current_exe()?,
        directory: directory.path().to_owned(),
        mutant: match options.mutant {
            TransportsMutant::None => transports::Mutant::None,
            TransportsMutant::Unopened => transports::Mutant::Unopened,
            TransportsMutant::Observing => transports::Mutant::Observing,
        },
        datapath: options.datapath.clone(),
    };
    let report = transports::run(&lab, &mut |step| eprintln!("{step}"))?;
    print(&report, options.json);
    Ok(status(report.verdict()))
}

const fn long_row_of(row: LongLifeRow) -> longlife::Row {
    match row {
        LongLifeRow::Volume => longlife::Row::Volume,
        LongLifeRow::Session => longlife::Row::Session,
        LongLifeRow::Roaming => longlife::Row::Roaming,
        LongLifeRow::Clocks => longlife::Row::Clocks,
        LongLifeRow::Throughput => longlife::Row::Throughput,
    }
}

fn print(report: &Report, json: bool) {
    if json {
        out::line(report.to_json_lines().trim_end());
        return;
    }
    report.figures.iter().map(row).for_each(out::line);
    out::line(sentence(report.verdict()));
}

/// The last line for a person.
const fn sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "every threshold holds",
        Verdict::Disturbed => {
            "inconclusive: others had too much of this machine; what missed meanwhile is marked \"disturbed\" above"
        }
        Verdict::Missed => "a threshold does not hold; see MISS above",
    }
}

/// 0 if every threshold holds, 1 if one does not, 3 if nobody can say because others disturbed the machine.
pub(super) fn status(verdict: Verdict) -> ExitCode {
    match verdict {
        Verdict::Holds => ExitCode::SUCCESS,
        Verdict::Disturbed => ExitCode::from(3),
        Verdict::Missed => ExitCode::FAILURE,
    }
}

/// One line for a person: case, scheme, metric, value, threshold, verdict.
fn row(figure: &Figure) -> String {
    let (case, scheme, metric, value) = (&figure.case, figure.scheme, &figure.metric, figure.value);
    let threshold = figure.threshold.map(|threshold| threshold.to_string()).unwrap_or_default();
    let verdict = figure.verdict.map(|verdict| verdict.to_string()).unwrap_or_default();
    format!("{case:<26} {scheme:<6} {metric:<36} {value:>12.3}  {threshold:<8} {verdict}")
}
