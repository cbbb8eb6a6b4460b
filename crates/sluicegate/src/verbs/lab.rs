//! `demo`, `attack`, `bench` and the lab's worker processes.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::{Bench, Demo};

pub(crate) fn demo(_demo: &Demo) -> Result<ExitCode> {
    bail!("being wired")
}

pub(crate) fn attack(spec: Option<&str>, _example: bool) -> Result<()> {
    sluicegate_netlab::worker::run("flood", spec.unwrap_or_default())?;
    Ok(())
}

pub(crate) fn bench(_bench: Bench) -> Result<ExitCode> {
    bail!("being wired")
}

pub(crate) fn worker(role: &str, spec: &str) -> Result<()> {
    sluicegate_netlab::worker::run(role, spec)?;
    Ok(())
}
