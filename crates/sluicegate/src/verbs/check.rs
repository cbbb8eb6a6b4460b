//! `check`: validates a configuration and changes nothing.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use serde_json::json;

use crate::{
    config::{self, Severity},
    out,
};

pub(crate) fn run(file: &Path, as_json: bool) -> Result<ExitCode> {
    let (findings, plan) = config::plan(file, None);
    for finding in &findings {
        if as_json {
            let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
            out::line(format_args!(
                "{}",
                json!({ "file": finding.file, "line": finding.line, "severity": severity, "what": finding.what, "hint": finding.hint })
            ));
        } else {
            out::line(format_args!("{finding}"));
        }
    }
    if plan.is_none() {
        return Ok(ExitCode::FAILURE);
    }
    if !as_json {
        out::line(format_args!("{}: no errors", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}
