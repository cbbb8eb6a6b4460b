//! `lab check`: the papers' claims, one line each.

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use sluicegate_sim::claims::{self, Claim, Setting};

use crate::{cli::LabCheck, out};

/// One claim, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    claim: &'a str,
    source: &'a str,
    expected: &'a str,
    ours: &'a str,
    tolerance: &'a str,
    level: &'a str,
    pass: bool,
    seconds: f64,
    command: String,
}

/// The last line.
#[derive(Debug, Default, Serialize)]
struct Summary {
    claims: usize,
    passed: usize,
    missed: Vec<&'static str>,
    seconds: f64,
}

pub(crate) fn check(options: &LabCheck) -> Result<ExitCode> {
    let chosen = choose(options)?;
    let setting = Setting { seed: options.seed, short: options.short };
    let mut summary = Summary::default();
    for claim in chosen {
        let started = Instant::now();
        let outcome = (claim.run)(&setting);
        let seconds = rounded(started.elapsed().as_secs_f64());
        let line = Line {
            claim: claim.id,
            source: claim.source,
            expected: claim.expected,
            ours: &outcome.ours,
            tolerance: claim.tolerance,
            level: claim.level.letter(),
            pass: outcome.pass,
            seconds,
            command: claim.command(&setting),
        };
        out::line(if options.json { serde_json::to_string(&line)? } else { row(&line) });
        summary.claims += 1;
        summary.passed += usize::from(outcome.pass);
        summary.seconds = rounded(summary.seconds + seconds);
        if !outcome.pass {
            summary.missed.push(claim.id);
        }
    }
    if options.json {
        out::line(serde_json::to_string(&summary)?);
    } else {
        out::line(format_args!("{} of {} claims hold ({} s)", summary.passed, summary.claims, summary.seconds));
    }
    Ok(if summary.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn choose(options: &LabCheck) -> Result<Vec<&'static Claim>> {
    for id in &options.only {
        ensure!(
            claims::find(id).is_some(),
            "no claim is called {id}; `sluicegate lab check --help` says how to choose"
        );
    }
    let chosen: Vec<&Claim> = claims::ALL
        .iter()
        .filter(|claim| options.paper.is_none_or(|paper| claim.paper == paper))
        .filter(|claim| options.only.is_empty() || options.only.iter().any(|id| id.eq_ignore_ascii_case(claim.id)))
        .collect();
    ensure!(!chosen.is_empty(), "no claim of that paper is among those that `--only` names");
    Ok(chosen)
}

fn row(line: &Line<'_>) -> String {
    let verdict = if line.pass { "holds" } else { "MISS" };
    format!(
        "{:<7} {:<6} level {}  {:<14} {:>7.2} s\n    expected  {}\n    ours      {}\n    tolerance {}",
        line.claim, verdict, line.level, line.source, line.seconds, line.expected, line.ours, line.tolerance
    )
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1_000.0).round() / 1_000.0
}
