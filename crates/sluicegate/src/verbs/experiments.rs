//! `lab run`: experiments on real nodes.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use sluicegate_netlab::{
    Scratch,
    demo::{self, threats},
    report::Threshold,
    tva::{
        self, Attack, Mutant,
        paths::{self, Row},
    },
};

use crate::{
    cli::{Experiment, LabAttack, LabMutant, PathsMutant, PathsRow, Threats, TvaLive, TvaPaths},
    out,
};

pub(crate) fn run(experiment: &Experiment) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "lab run builds network namespaces and gates in them: run it as root");
    match experiment {
        Experiment::TvaLive(options) => tva_live(options),
        Experiment::TvaPaths(options) => tva_paths(options),
        Experiment::Threats(options) => threats(options),
    }
}

fn threats(options: &Threats) -> Result<ExitCode> {
    let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
    let mut lab = demo::Options::new(std::env::current_exe()?, directory.path().to_owned());
    (lab.seed, lab.phase_s, lab.scheduled) = (options.seed, options.seconds, true);
    lab.datapath.clone_from(&options.datapath);
    let report = threats::run(&lab, options.only.as_deref(), &mut |event| match event {
        demo::Event::Step(text) | demo::Event::Phase(text) => eprintln!("{text}"),
        demo::Event::Second(_) | demo::Event::Figure(_) => {}
    })?;
    if options.json {
        out::line(report.to_json_lines().trim_end());
    } else {
        for figure in &report.figures {
            let (case, scheme, metric) = (&figure.case, &figure.scheme, &figure.metric);
            out::line(row((case, scheme, metric), figure.value, figure.threshold.as_ref(), figure.pass));
        }
        out::line(verdict(report.passes()));
    }
    Ok(if report.passes() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tva_live(options: &TvaLive) -> Result<ExitCode> {
    let mut holds = true;
    for run in 0..options.runs {
        holds &= tva_live_once(options, options.seed.wrapping_add(run))?;
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run; whether every threshold holds.
fn tva_live_once(options: &TvaLive, seed: u64) -> Result<bool> {
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
    };
    let report = tva::run(&lab, &mut |step| eprintln!("{step}"))?;
    print(&report, options.json);
    if let Some(path) = &options.svg {
        std::fs::write(path, report.to_svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.passes())
}

fn tva_paths(options: &TvaPaths) -> Result<ExitCode> {
    let chosen = |row: &Row| match options.only {
        Some(only) => *row == row_of(only),
        None => *row != Row::Soak || options.soak > 0,
    };
    let rows: Vec<Row> = Row::ALL.into_iter().filter(chosen).collect();
    let mut holds = true;
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
        holds &= report.passes();
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

fn print(report: &tva::Report, json: bool) {
    if json {
        out::line(report.to_json_lines().trim_end());
        return;
    }
    for figure in &report.figures {
        let (case, scheme, metric) = (&figure.case, figure.scheme, &figure.metric);
        out::line(row((case, scheme, metric), figure.value, figure.threshold.as_ref(), figure.pass));
    }
    out::line(verdict(report.passes()));
}

const fn verdict(passes: bool) -> &'static str {
    if passes { "every threshold holds" } else { "a threshold does not hold; see MISS above" }
}

/// One line for a person: case, scheme, metric, value, threshold, verdict.
fn row(
    (case, scheme, metric): (&str, &str, &str),
    value: f64,
    threshold: Option<&Threshold>,
    pass: Option<bool>,
) -> String {
    let verdict = match pass {
        None => "",
        Some(true) => "holds",
        Some(false) => "MISS",
    };
    let threshold = threshold.map_or_else(String::new, Threshold::to_string);
    format!("{case:<26} {scheme:<6} {metric:<36} {value:>12.3}  {threshold:<8} {verdict}")
}
