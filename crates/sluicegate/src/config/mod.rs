//! The configuration file: read, checked against itself and against this host, and turned into what the daemons take.

pub(crate) mod capture;
mod check;
mod file;
mod gate;
mod host;
pub(crate) mod profile;
mod source;
mod ways;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, de::DeserializeOwned};
use sluicegate_api::Configured;
use sluicegate_policy::Service;

pub(crate) use check::{Plan, Role};
pub(crate) use file::{KeyHolder, STATE_DEFAULT};
use source::Source;
pub(crate) use source::{Finding, label};

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

/// Users and groups that a running frontend knows.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) users: BTreeSet<String>,
    pub(crate) groups: BTreeSet<String>,
}

/// As [`plan`], and tries what can be tried: whether neighbours answer, and whether users and groups are among those that the
/// running frontend knows. Also gives what could not be tried.
pub(crate) fn try_out(path: &Path, known: Option<&Known>) -> (Vec<Finding>, Option<Plan>, Vec<String>) {
    let (mut findings, plan) = plan(path, None);
    let mut untried = Vec::new();
    if let (Some(plan), Ok(source), Ok(file)) = (&plan, Source::read(path), parse::<file::File>(path)) {
        findings.extend(check::try_out(&source, &file, (plan, known), &mut untried));
    }
    (findings, plan, untried)
}

/// What to run for `role`; prints warnings, and fails with every error.
pub(crate) fn load(path: &Path, role: Role) -> Result<Plan> {
    let (findings, plan) = plan(path, Some(role));
    told(path, &findings, plan)
}

/// Prints what was found in the file at `path`; fails if that left nothing to run.
fn told<T>(path: &Path, findings: &[Finding], found: Option<T>) -> Result<T> {
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    found.with_context(|| format!("nothing was started or changed; correct {} and try again", path.display()))
}

/// As much of a configuration file as it takes to find its node.
#[derive(Debug)]
pub(crate) struct Outline {
    pub(crate) state: PathBuf,
    /// Of the frontend, if the file describes one.
    pub(crate) realm: Option<String>,
    /// Its services, rules and peers.
    pub(crate) configured: Configured,
    /// Where keys of agents come from, if the frontend's key holder is on another host.
    pub(crate) keys: Option<file::Keys>,
    /// Names of the frontends that have this one's users.
    pub(crate) replicas: Vec<String>,
    /// The key holder for other hosts that it is.
    pub(crate) keyholder: Option<KeyHolder>,
    /// Where operators' changes are written down.
    pub(crate) audit: Option<sluicegate_store::audit::Options>,
}

impl Outline {
    /// The socket that a running node listens on.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// Where the frontend keeps its keys and store.
    pub(crate) fn frontend_state(&self) -> PathBuf {
        self.state.join("frontend")
    }
}

/// The outline of the file at `path`.
pub(crate) fn outline(path: &Path) -> Result<Outline> {
    let file: file::File = parse(path)?;
    let of_frontend = |frontend: file::Frontend| {
        let replicas = frontend.replicas.into_iter().map(|replica| replica.name).collect();
        (Some(frontend.realm), frontend.keys, replicas)
    };
    let (realm, keys, replicas) = file.frontend.map(of_frontend).unwrap_or_default();
    Ok(Outline {
        audit: file.audit.options(&file.node.state),
        state: file.node.state,
        keys,
        replicas,
        keyholder: file.keyholder,
        realm,
        configured: Configured { services: file.services, rules: file.rules, peers: file.peers },
    })
}

/// Outside and inside interface of the gate that the file at `path` describes. Looks at nothing else: neither need exist.
pub(crate) fn interfaces(path: &Path) -> Result<[String; 2]> {
    let file: file::File = parse(path)?;
    match file.gate {
        Some(gate) => Ok([gate.outside, gate.inside]),
        None => bail!("{} describes no gate", path.display()),
    }
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let source = Source::read(path).map_err(|finding| anyhow::anyhow!("{finding}"))?;
    toml::from_str(source.text()).map_err(|error| anyhow::anyhow!("{}", source.parse_error(&error)))
}

/// The `[[service]]` tables of the file at `path`, which holds nothing else.
pub(crate) fn services(path: &Path) -> Result<Vec<Service>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Services {
        service: Vec<Service>,
    }
    Ok(parse::<Services>(path)?.service)
}
