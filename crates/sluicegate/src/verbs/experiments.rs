//! `lab run`: experiments on real nodes.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use sluicegate_netlab::{
    Scratch,
    report::Threshold,
    tva::{self, Attack, Figure},
};

use crate::{
    cli::{Experiment, LabAttack, LabRun},
    out,
};

pub(crate) fn run(options: &LabRun) -> Result<ExitCode> {
    let Experiment::TvaLive = options.name;
    ensure!(nix::unistd::geteuid().is_root(), "lab run builds network namespaces and gates in them: run it as root");
    let directory = Scratch::make("sluicegate-lab").context("cannot make a directory for the lab's files")?;
    let lab = tva::Options {
        program: std::env::current_exe()?,
        directory: directory.path().to_owned(),
        attack: match options.attack {
            LabAttack::Legacy => Attack::Legacy,
            LabAttack::Request => Attack::Request,
            LabAttack::Authorized => Attack::Authorized,
            LabAttack::Imprecise => Attack::Imprecise,
        },
        ratio: options.ratio,
        seed: options.seed,
        datapath: options.datapath.clone(),
    };
    let report = tva::run(&lab, &mut |step| eprintln!("{step}"))?;
    if options.json {
        out::line(report.to_json_lines().trim_end());
    } else {
        report.figures.iter().for_each(|figure| out::line(row(figure)));
        out::line(if report.passes() { "every threshold holds" } else { "a threshold does not hold; see MISS above" });
    }
    if let Some(path) = &options.svg {
        std::fs::write(path, report.to_svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if report.passes() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(figure: &Figure) -> String {
    let verdict = match figure.pass {
        None => "",
        Some(true) => "holds",
        Some(false) => "MISS",
    };
    let threshold = figure.threshold.as_ref().map_or_else(String::new, Threshold::to_string);
    format!(
        "{:<15} {:<6} {:<36} {:>12.3}  {:<8} {verdict}",
        figure.case, figure.scheme, figure.metric, figure.value, threshold
    )
}
