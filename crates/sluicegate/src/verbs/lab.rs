//! `demo`, `attack`, `bench` and the lab's worker processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use sluicegate_netlab::{attack, demo, enter_user_namespace, worker};

use crate::{
    cli::{Bench, Demo},
    out,
    view::demo::{View, figure},
};

pub(crate) fn demo(options: &Demo) -> Result<ExitCode> {
    let without_root = !nix::unistd::geteuid().is_root();
    if without_root {
        enter_user_namespace()?;
    }
    let directory = Scratch::make()?;
    let mut lab = demo::Options::new(std::env::current_exe()?, directory.0.clone());
    lab.seed = options.seed;
    if without_root {
        // The kernel does not load XDP programs from a user namespace.
        lab.datapath = "packet".to_owned();
    }
    let mut view = View::open(options.headless);
    let report = demo::run(&lab, &mut |event| view.tell(&event));
    view.close();
    let report = report?;
    for measured in &report.figures {
        out::line(figure(measured));
    }
    if let Some(path) = &options.json {
        write(path, &report.to_json_lines())?;
    }
    write(&options.svg, &report.to_svg()?)?;
    out::line(format_args!("time series: {}", options.svg.display()));
    if report.passes() {
        out::line("every threshold holds");
        return Ok(ExitCode::SUCCESS);
    }
    out::line("a threshold does not hold; see FAIL above");
    Ok(ExitCode::FAILURE)
}

/// A directory that only this user can read, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("sluicegate-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A flood of the kind `attack --example` prints.
const EXAMPLE: &str = r#"{"role":"flood","kinds":["syn","udp"],"note":"see docs: internals/lab"}"#;

pub(crate) fn attack(spec: Option<&str>, example: bool) -> Result<()> {
    let Some(spec) = spec.filter(|_| !example) else {
        out::line(EXAMPLE);
        return Ok(());
    };
    attack::require_lab()?;
    let mut spec: serde_json::Value = serde_json::from_str(spec).context("the flood's description is no JSON")?;
    let role = spec.as_object_mut().and_then(|map| map.remove("role"));
    let role = role.as_ref().and_then(serde_json::Value::as_str).context("the description names no role")?;
    worker::run(role, &spec.to_string())?;
    Ok(())
}

pub(crate) fn bench(_bench: Bench) -> Result<ExitCode> {
    anyhow::bail!("being wired")
}

pub(crate) fn worker(role: &str, spec: &str) -> Result<()> {
    worker::run(role, spec)?;
    Ok(())
}
