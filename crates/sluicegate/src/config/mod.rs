//! The configuration file: read, checked against itself and against this host, and turned into what the daemons take.

mod check;
mod file;
mod host;
mod source;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Deserialize;
use sluicegate_policy::Service;

pub(crate) use check::{AgentPlan, FrontendPlan, GatePlan, Plan, Role};
pub(crate) use source::{Finding, Severity};
use source::Source;

/// Everything that is wrong with the file at `path` for a node of these roles, and what to run if nothing is.
///
/// Looks at the host (interfaces, addresses, files, forwarding) but changes nothing.
pub(crate) fn plan(path: &Path, role: Option<Role>) -> (Vec<Finding>, Option<Plan>) {
    let source = match Source::read(path) {
        Ok(source) => source,
        Err(finding) => return (vec![finding], None),
    };
    match toml::from_str::<file::File>(source.text()) {
        Ok(file) => check::check(&source, file, role),
        Err(error) => (vec![source.parse_error(&error)], None),
    }
}

/// What to run for `role`; prints warnings, and fails with every error.
pub(crate) fn load(path: &Path, role: Role) -> Result<Plan> {
    let (findings, plan) = plan(path, Some(role));
    for finding in &findings {
        eprintln!("{finding}");
    }
    match plan {
        Some(plan) => Ok(plan),
        None => bail!("nothing was started or changed; correct {} and try again", path.display()),
    }
}

/// The state directory that the file at `path` names.
pub(crate) fn state_dir(path: &Path) -> Result<PathBuf> {
    let source = Source::read(path).map_err(|finding| anyhow::anyhow!("{finding}"))?;
    match toml::from_str::<file::File>(source.text()) {
        Ok(file) => Ok(file.node.state),
        Err(error) => bail!("{}", source.parse_error(&error)),
    }
}

/// The `[[service]]` tables of the file at `path`, which holds nothing else.
pub(crate) fn services(path: &Path) -> Result<Vec<Service>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Services {
        service: Vec<Service>,
    }
    let source = Source::read(path).map_err(|finding| anyhow::anyhow!("{finding}"))?;
    match toml::from_str::<Services>(source.text()) {
        Ok(file) => Ok(file.service),
        Err(error) => bail!("{}", source.parse_error(&error)),
    }
}
