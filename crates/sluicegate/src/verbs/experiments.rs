//! `lab run`: experiments on real nodes.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use sluicegate_experiments::{
    demo::threats,
    longlife,
    report::{
        Figure, Verdict,
        rows::{Case, Report},
    },
    rsoca, sipattack, sipflood, sipload, transports,
    tva::{self, paths},
};
use sluicegate_site::{LabError, Scratch, binary::Binary};

use crate::{
    cli::{Experiment, Play, RsocaLive, TvaLive},
    out,
};

pub(crate) fn run(experiment: &Experiment) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "lab run builds network namespaces and gates in them: run it as root");
    match experiment {
        Experiment::TvaLive(options) => tva_live(options),
        Experiment::TvaPaths(play) => all_runs(play, |binary, _, tell| paths::run(binary, &play.options, tell)),
        Experiment::Threats(play) => all_runs(play, |binary, _, tell| threats::run(binary, &play.options, tell)),
        Experiment::LongLife(play) => all_runs(play, |binary, _, tell| longlife::run(binary, &play.options, tell)),
        Experiment::Transports(play) => all_runs(play, |binary, _, tell| transports::run(binary, &play.options, tell)),
        Experiment::SipAttack(play) => all_runs(play, |binary, _, tell| sipattack::run(binary, &play.options, tell)),
        Experiment::SipSweep(play) => all_runs(play, |binary, _, tell| sipload::run(binary, &play.options, tell)),
        Experiment::SipFlood(play) => all_runs(play, |binary, _, tell| sipflood::run(binary, &play.options, tell)),
        Experiment::RsocaLive(options) => rsoca_live(options),
    }
}

fn rsoca_live(options: &RsocaLive) -> Result<ExitCode> {
    let mut last = Vec::new();
    let status = all_runs(&options.play, |binary, _, tell| {
        let (report, pictures) = rsoca::run(binary, &options.play.options, tell)?;
        last = pictures;
        Ok(report)
    })?;
    if let Some(directory) = &options.svg {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        for picture in last {
            let path = directory.join(picture.name).with_extension("svg");
            std::fs::write(&path, picture.svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(status)
}

fn tva_live(options: &TvaLive) -> Result<ExitCode> {
    let mut last = None;
    let status = all_runs(&options.play, |binary, run, tell| {
        let seed = options.play.options.seed.wrapping_add(run);
        let report = tva::run(binary, &tva::Options { seed, ..options.play.options.clone() }, tell)?;
        last = Some(report.clone());
        Ok(report)
    })?;
    if let (Some(path), Some(report)) = (&options.svg, last) {
        std::fs::write(path, report.to_svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(status)
}

/// Runs an experiment as often as asked, each time in a directory of its own, and prints what each measured.
fn all_runs<O: Args>(
    play: &Play<O>,
    mut run: impl FnMut(&Binary, u64, &mut dyn FnMut(&str)) -> Result<Report, LabError>,
) -> Result<ExitCode> {
    let mut worst = Verdict::Holds;
    for number in 0..play.runs {
        let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
        let binary = binary(&directory)?;
        let report = run(&binary, number, &mut |step| eprintln!("{step}"))?;
        print(&report, play.json);
        worst = worst.max(report.figures.verdict());
    }
    Ok(status(worst))
}

/// This program, with its files in a directory that ends with the lab.
pub(super) fn binary(scratch: &Scratch) -> Result<Binary> {
    Ok(Binary { program: std::env::current_exe()?, directory: scratch.path().to_owned() })
}

fn print(report: &Report, json: bool) {
    if json {
        out::line(report.to_json_lines().trim_end());
        return;
    }
    report.figures.iter().map(row).for_each(out::line);
    out::line(sentence(report.figures.verdict()));
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

/// One line for a person: case, scheme, metric, value, threshold, verdict, and what a paper has there.
fn row(figure: &Figure<Case>) -> String {
    let (Case { case, scheme, .. }, metric, value) = (&figure.about, &figure.metric, figure.value);
    let threshold = figure.threshold.map(|threshold| threshold.to_string()).unwrap_or_default();
    let verdict = figure.verdict.map(|verdict| verdict.to_string()).unwrap_or_default();
    let paper = figure.about.paper.map(|paper| format!("  paper: {paper}")).unwrap_or_default();
    format!("{case:<26} {scheme:<6} {metric:<36} {value:>12.3}  {threshold:<8} {verdict}{paper}")
}
