//! `reload`: puts in place what was changed in a running node's configuration file, as far as that needs no restart.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use sluicegate_api as api;
use sluicegate_policy::{Outbound, Service};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use super::control::Node;
use crate::{config, file, out};

/// Tables that change while a node runs.
const CHANGING: [&str; 3] = ["service", "rule", "peer"];

/// `reload`.
pub(crate) fn run(file: &Path) -> Result<()> {
    let ended = apply(file)?;
    out::line(format_args!("{}: in place", file.display()));
    for name in ended {
        out::line(format_args!("the grants of {name} have ended: it is gone, or reached otherwise"));
    }
    Ok(())
}

/// `confirm`.
pub(crate) fn confirm(file: &Path) -> Result<()> {
    Node::of(file)?.ask(&api::CONFIRM.ask(&()))?;
    out::line(format_args!("confirmed"));
    Ok(())
}

/// Does the same when the process is told to by a signal.
pub(super) fn on_hangup(file: &Path) -> Result<()> {
    let (mut hangup, file) = (signal(SignalKind::hangup())?, file.to_owned());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let file = file.clone();
            let done = tokio::task::spawn_blocking(move || apply(&file)).await;
            match done.map_err(anyhow::Error::from).flatten() {
                Ok(ended) => info!(?ended, "the changed configuration is in place"),
                Err(error) => error!("not reloaded: {error:#}; `sluicegate reload` may read more than this process"),
            }
        }
    });
    Ok(())
}

/// Keeps what a node starts with, so that later changes can be told.
pub(super) fn remember(configuration: &Path, state: &Path) -> Result<()> {
    let text = fs::read(configuration).with_context(|| format!("reading {}", configuration.display()))?;
    let path = running(state);
    file::replace(&path, &text).with_context(|| format!("writing {}", path.display()))
}

fn running(state: &Path) -> PathBuf {
    state.join("running.toml")
}

/// Has the running node take over what was changed in `file`; gives the services whose grants had to end. Whatever is wrong,
/// or needs a restart, is named, and then nothing is changed.
fn apply(file: &Path) -> Result<Vec<String>> {
    let (findings, plan) = config::plan(file, None);
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    let Some(plan) = plan else { bail!("nothing was changed; correct {} and try again", file.display()) };
    let kept = running(&plan.state);
    let before = fs::read_to_string(&kept).with_context(|| {
        format!("no node runs with the state in {} (`sluicegate up` starts one)", plan.state.display())
    })?;
    let after = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let needs_restart = differences(&before.parse()?, &after.parse()?, plan.frontend.is_some());
    let (old, new) = (config::outline(&kept)?, config::outline(file)?);
    let openness = opened(&old.configured.services, &new.configured.services);
    let needs_restart: Vec<String> = needs_restart.into_iter().chain(openness).collect();
    if !needs_restart.is_empty() {
        bail!("nothing was changed, because this needs a restart: {}", needs_restart.join(", "));
    }
    if plan.frontend.is_none() {
        return Ok(Vec::new());
    }
    let ended = Node::of(file)?.ask(&api::CONFIGURE.ask(&new.configured))?;
    remember(file, &plan.state)?;
    Ok(ended)
}

/// Settings that differ and do not change while a node runs, such as `[gate] local`.
fn differences(before: &toml::Table, after: &toml::Table, is_frontend: bool) -> Vec<String> {
    let sections: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let fixed = sections.into_iter().filter(|name| !(is_frontend && CHANGING.contains(&name.as_str())));
    let mut found = Vec::new();
    for section in fixed.filter(|name| before.get(*name) != after.get(*name)) {
        let tables = [before, after].map(|file| file.get(section).and_then(toml::Value::as_table));
        let settings: BTreeSet<&String> = tables.iter().flatten().flat_map(|table| table.keys()).collect();
        let [old, new] = tables;
        let changed = settings
            .into_iter()
            .filter(|name| old.and_then(|table| table.get(*name)) != new.and_then(|table| table.get(*name)));
        let changed: Vec<String> = changed.map(|name| format!("[{section}] {name}")).collect();
        if changed.is_empty() {
            found.push(format!("[{section}]"));
        }
        found.extend(changed);
    }
    found
}

/// Services that become open or start flows of their own, or cease to: that is the gate's to say, at its start.
fn opened(before: &[Service], after: &[Service]) -> Vec<String> {
    let openness = |services: &[Service]| -> BTreeSet<(String, std::net::IpAddr, bool, bool)> {
        let says = services.iter().map(|service| {
            (service.name.clone(), service.address, service.is_open(), service.outbound == Outbound::All)
        });
        says.filter(|(_, _, is_open, starts)| *is_open || *starts).collect()
    };
    let (before, after) = (openness(before), openness(after));
    before.symmetric_difference(&after).map(|(name, ..)| format!("default or outbound of {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_named_by_section_and_setting() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let before = table("[node]\nname = \"a\"\n[gate]\nlocal = [\"tcp/22\"]\n[[service]]\nname = \"web\"\n");
        let after = table("[gate]\nlocal = []\nflows_max = 5\n[[service]]\nname = \"mail\"\n");
        let found = differences(&before, &after, true);
        assert_eq!(found, ["[gate] flows_max", "[gate] local", "[node] name"]);
        assert!(differences(&before, &before, false).is_empty());
        assert!(differences(&before, &after, false).contains(&"[service]".to_owned()), "a gate's own file");
    }
}
