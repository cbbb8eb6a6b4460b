//! `link`: what a user hands to `connect`, in one line.

use std::path::Path;

use anyhow::{Result, bail};
use hyper::Method;

use super::control::{Node, cell};
use crate::{config::profile::Link, out};

pub(crate) fn run(service: &str, user: &str, frontend: Option<String>, config: &Path) -> Result<()> {
    let node = Node::of(config)?;
    let realm = node.realm()?.to_owned();
    let has = |collection: &str, name: &str| -> Result<bool> {
        let rows = node.call(Method::GET, &format!("/v1/{collection}"), None)?;
        Ok(rows.as_array().into_iter().flatten().any(|row| row["name"] == name))
    };
    if !has("services", service)? {
        bail!("there is no service {service:?}; `sluicegate service ls` lists them");
    }
    if !has("users", user)? {
        bail!("there is no user {user:?}; `sluicegate user ls` lists them, `sluicegate user add {user}` adds one");
    }
    let status = node.call(Method::GET, "/v1/status", None)?;
    let of = |key: &str| cell(status["frontend"].get(key));
    let frontend = frontend.unwrap_or_else(|| cell(status["frontend"]["listen"].get(0)));
    let link =
        Link { user: user.to_owned(), frontend, service: service.to_owned(), realm, site_key: Some(of("site_key")) };
    out::line(format_args!("{link}"));
    Ok(())
}
