//! `check`: validates a configuration, tries what can be tried, and changes nothing.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use serde_json::json;
use sluicegate_api as api;

use super::control::Node;
use crate::{
    config::{self, Finding, Known, label},
    out,
};

pub(crate) fn run(file: &Path, as_json: bool) -> Result<ExitCode> {
    let (findings, plan, untried) = config::try_out(file, known(file).as_ref());
    for finding in &findings {
        if as_json {
            let Finding { file, line, severity, what, hint } = finding;
            let severity = label(*severity);
            let finding = json!({ "file": file, "line": line, "severity": severity, "what": what, "hint": hint });
            out::line(format_args!("{finding}"));
        } else {
            out::line(format_args!("{finding}"));
        }
    }
    for what in &untried {
        if as_json {
            out::line(format_args!("{}", json!({ "file": file, "severity": "untried", "what": what })));
        } else {
            out::line(format_args!("{}: not tried: {what}", file.display()));
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

/// What the frontend of this file knows, if it runs.
fn known(file: &Path) -> Option<Known> {
    let outline = config::outline(file).ok()?;
    outline.realm.as_ref()?;
    if !outline.control_socket().exists() {
        return None;
    }
    let node = Node::of(file).ok()?;
    let users = node.ask(&api::USERS.ask(&())).ok()?.into_iter().map(|user| user.name).collect();
    let groups = node.ask(&api::GROUPS.ask(&())).ok()?.into_iter().map(|group| group.name).collect();
    Some(Known { users, groups })
}
