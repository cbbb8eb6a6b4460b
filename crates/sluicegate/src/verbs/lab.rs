//! `demo`, `attack`, `bench` and the lab's worker processes.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use sluicegate_experiments::{bench, demo};
use sluicegate_site::{Scratch, enter_user_namespace};
use sluicegate_traffic::{attack, worker};

use super::{
    claims,
    experiments::{self, binary, status},
};
use crate::{
    cli::{Bench, Demo, LabAction, LabVerb},
    out,
    view::demo::{View, figure},
};

/// Runs a verb of the lab to its end.
pub(crate) fn run(verb: LabVerb) -> Result<ExitCode> {
    match verb {
        LabVerb::Demo(options) => return demo(&options),
        LabVerb::Attack { spec, example } => attack(spec.as_deref(), example)?,
        LabVerb::Bench { bench: what } => return bench(what),
        LabVerb::Lab { action: LabAction::Check(check) } => return claims::check(&check),
        LabVerb::Lab { action: LabAction::Run(run) } => return experiments::run(&run),
        LabVerb::LabWorker { role, spec } => worker::run(&role, &spec)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn demo(options: &Demo) -> Result<ExitCode> {
    let without_root = !nix::unistd::geteuid().is_root();
    if without_root {
        enter_user_namespace()?;
    }
    let scratch = Scratch::make("sluicegate").context("cannot make a directory for the demo's files")?;
    let mut lab = demo::Options::new(binary(&scratch)?);
    lab.seed = options.seed;
    if without_root {
        // The kernel does not load XDP programs from a user namespace.
        lab.datapath = "packet".to_owned();
    }
    let mut view = View::open(options.headless, scratch.path())?;
    let report = demo::run(&lab, &mut |event| view.tell(&event));
    view.close(report.is_err());
    let report = report?;
    for missed in report.figures.failed() {
        out::line(figure(missed));
    }
    if let Some(path) = &options.json {
        write(path, &report.to_json_lines())?;
    }
    if let Some(path) = &options.svg {
        write(path, &report.to_svg()?)?;
    }
    write(&options.report, &report.to_html()?)?;
    report.story.iter().for_each(out::line);
    out::line(format_args!("The whole report: {}", options.report.display()));
    Ok(status(report.figures.verdict()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What `attack --example` prints: ten seconds of mixed packets, to be sent from a lab's `eth0`.
const EXAMPLE: &str = r#"{
  "role": "flood", "interface": "eth0",
  "destination_mac": [2, 0, 0, 0, 0, 1], "source_mac": [2, 0, 0, 0, 0, 2],
  "targets": [{ "address": "203.0.113.1", "first": 1, "last": 65535 }],
  "mix": [["syn", 4], ["udp", 4], ["icmp", 1], ["fragment", 1], ["garbage", 1]],
  "sources": ["100.64.0.0/10"], "clients": [], "clients_percent": 0,
  "frame_bytes": [60, 1000], "per_s": 10000, "seconds": 10, "frames_max": 100000, "seed": 1
}"#;

fn attack(spec: Option<&str>, example: bool) -> Result<()> {
    let Some(spec) = spec.filter(|_| !example) else {
        out::line(EXAMPLE);
        return Ok(());
    };
    attack::require_lab()?;
    let mut spec: serde_json::Value = serde_json::from_str(spec).context("the flood's description is no JSON")?;
    let role = spec.as_object_mut().and_then(|map| map.remove("role"));
    let role = role.as_ref().and_then(serde_json::Value::as_str).context("the description names no role")?;
    worker::run_by_hand(role, &spec.to_string())?;
    Ok(())
}

fn bench(bench: Bench) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut keep = |row| rows.push(row);
    let scratch = Scratch::make("sluicegate").context("cannot make a directory for the bench's files")?;
    let mut binary = binary(&scratch)?;
    let (json, summary) = match bench {
        Bench::Gate { types, measure } => {
            let is_root = nix::unistd::geteuid().is_root();
            anyhow::ensure!(is_root, "bench gate loads XDP programs into namespaces: run it as root");
            let run = if types { bench::types } else { bench::gate };
            (measure.json, run(&binary, &measure.options, &mut keep)?)
        }
        Bench::Capability(measure) => (measure.json, bench::capability(&measure.options, &mut keep)?),
        Bench::Node(measure) => (measure.json, bench::node(&measure.options, &mut keep)?),
        Bench::Signin { measure, program } => {
            binary.program = program.unwrap_or(binary.program);
            (measure.json, bench::signin(&binary, &measure.options, &mut keep)?)
        }
        Bench::Sip(measure) => {
            let is_root = nix::unistd::geteuid().is_root();
            anyhow::ensure!(is_root, "bench sip builds network namespaces and servers in them: run it as root");
            (measure.json, bench::sip(&binary, &measure.options, &mut |step| eprintln!("{step}"), &mut keep)?)
        }
        Bench::Turns { json } => (json, turns(&mut keep)?),
    };
    if json {
        for row in &rows {
            out::line(serde_json::to_string(row)?);
        }
        out::line(serde_json::to_string(&summary)?);
    } else {
        show(&rows, &summary);
    }
    Ok(if summary.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// No packet may wait longer than this for what its gate looks after besides.
const TURN_US_MAX: f64 = 2_000.0;
/// How often the tables are filled; the median counts.
const TURN_RUNS: usize = 3;

/// The longest turns of the packet thread with full tables of default size, in microseconds of its processor's time.
fn turns(keep: &mut dyn FnMut(bench::Row)) -> Result<bench::Summary> {
    let runs = (0..TURN_RUNS).map(|_| sluicegate_gate::longest_turns()).collect::<Result<Vec<_>, _>>()?;
    let mut bench = bench::Run::begin("turns", 0.0, keep);
    for (at, turn) in runs[0].iter().enumerate() {
        let us: Vec<_> = runs.iter().map(|run| run[at].us).collect();
        let Some(longest) = bench::Median::of(&us) else { continue };
        let limit = (bench::Median::given(TURN_US_MAX), "limit");
        bench.row(turn.work, "us", longest, Some(limit), Some(turn.looks.into()));
        // A build with debug assertions says nothing about time.
        if longest.value() > TURN_US_MAX && !cfg!(debug_assertions) {
            bench.miss(format!("{}: a turn of {:.0} us, more than {TURN_US_MAX}", turn.work, longest.value()));
        }
    }
    Ok(bench.end())
}

fn show(rows: &[bench::Row], summary: &bench::Summary) {
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    out::line(format_args!(
        "{:<32} {:<10} {:>10} {:>10} {:>6} {:>7}  peer",
        "row", "unit", "ours", "peer", "ratio", "spread"
    ));
    // The points of curves are for programs.
    for row in rows.iter().filter(|row| !row.row.contains('@')) {
        out::line(format_args!(
            "{:<32} {:<10} {:>10} {:>10} {:>6} {:>6.0}%  {}",
            row.row,
            row.unit,
            row.ours,
            optional(row.peer),
            optional(row.ratio),
            row.spread * 100.0,
            row.peer_name.as_deref().unwrap_or("-")
        ));
    }
    for missing in &summary.missing {
        out::line(format_args!("not measured: {missing}"));
    }
    out::line(format_args!(
        "{} rows in {} s; {:.0} % of {} processors were busy before",
        summary.rows,
        summary.seconds,
        summary.busy_before * 100.0,
        summary.cpus
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_flood_is_one() {
        let mut example: serde_json::Value = serde_json::from_str(EXAMPLE).unwrap();
        assert_eq!(example.as_object_mut().unwrap().remove("role").unwrap(), "flood");
        serde_json::from_value::<attack::FloodSpec>(example).unwrap();
    }

    #[test]
    fn no_attack_starts_outside_a_lab() {
        let error = attack(Some(EXAMPLE), false).unwrap_err().to_string();
        assert!(error.contains("lab"), "{error}");
    }
}
