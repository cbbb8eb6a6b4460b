//! `link`: what a user hands to `connect`, in one line.

use std::path::Path;

use anyhow::{Context, Result, bail};
use sluicegate_api as api;

use super::control::Node;
use crate::{config::profile::Link, out};

pub(crate) fn run(service: &str, user: &str, frontend: Option<String>, config: &Path) -> Result<()> {
    let node = Node::of(config)?;
    let realm = node.realm()?.to_owned();
    if !node.ask(&api::SERVICES.ask(&()))?.iter().any(|known| known.name == service) {
        bail!("there is no service {service:?}; `sluicegate service ls` lists them");
    }
    if !node.ask(&api::USERS.ask(&()))?.iter().any(|known| known.name == user) {
        bail!("there is no user {user:?}; `sluicegate user ls` lists them, `sluicegate user add {user}` adds one");
    }
    let status =
        node.ask(&api::STATUS.ask(&()))?.frontend.context("this node is no frontend; ask the frontend's node")?;
    let mut udp = status.listen.iter().filter_map(|listen| listen.strip_prefix("udp/"));
    let frontend = frontend.or_else(|| udp.next().map(str::to_owned));
    let frontend =
        frontend.context("this frontend does not listen on UDP, which agents speak; name one with --frontend")?;
    let (user, service, site_key) = (user.to_owned(), service.to_owned(), Some(status.site_key));
    out::line(format_args!("{}", Link { user, frontend, service, realm, site_key }));
    Ok(())
}
