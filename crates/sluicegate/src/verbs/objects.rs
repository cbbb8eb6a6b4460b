//! `group`, `service`, `grant`, `policy`: objects of a running node, through its control socket.

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};

use super::control::{Node, print_json, table};
use crate::{
    cli::{GrantAction, GroupAction, PolicyAction, ServiceAction},
    out,
};

pub(crate) fn group(action: GroupAction) -> Result<()> {
    match action {
        GroupAction::Add { name, node } => {
            Node::of(&node.config)?.call(Method::POST, "/v1/groups", Some(json!({ "name": name })))?;
            out::line(format_args!("added group {name}"));
        }
        GroupAction::Ls(reading) => {
            let groups = Node::of(&reading.node.config)?.call(Method::GET, "/v1/groups", None)?;
            if reading.json {
                return print_json(&groups);
            }
            table(&groups, &[("GROUP", "name")]);
        }
        GroupAction::Rm { name, node } => remove("groups", "group", &name, &Node::of(&node.config)?)?,
    }
    Ok(())
}

pub(crate) fn service(action: ServiceAction) -> Result<()> {
    match action {
        ServiceAction::Add { file, node } => {
            let node = Node::of(&node.config)?;
            for service in crate::config::services(&file)? {
                node.call(Method::POST, "/v1/services", Some(serde_json::to_value(&service)?))?;
                out::line(format_args!("added service {}", service.name));
            }
        }
        ServiceAction::Ls(reading) => {
            let services = Node::of(&reading.node.config)?.call(Method::GET, "/v1/services", None)?;
            if reading.json {
                return print_json(&services);
            }
            let columns = [
                ("SERVICE", "name"),
                ("KIND", "kind"),
                ("MODE", "mode"),
                ("ADDRESS", "address"),
                ("PORTS", "ports"),
                ("ALLOW", "allow"),
            ];
            table(&services, &columns);
        }
        ServiceAction::Rm { name, node } => remove("services", "service", &name, &Node::of(&node.config)?)?,
    }
    Ok(())
}

pub(super) fn remove(collection: &str, kind: &str, name: &str, node: &Node) -> Result<()> {
    node.call(Method::DELETE, &format!("/v1/{collection}/{name}"), None)?;
    out::line(format_args!("removed {kind} {name}"));
    Ok(())
}

pub(crate) fn grant(action: GrantAction) -> Result<()> {
    match action {
        GrantAction::Ls(reading) => {
            let grants = Node::of(&reading.node.config)?.call(Method::GET, "/v1/grants", None)?;
            if reading.json {
                return print_json(&grants);
            }
            let columns = [
                ("GRANT", "id"),
                ("USER", "user"),
                ("SERVICE", "service"),
                ("MODE", "mode"),
                ("CLIENT", "client"),
                ("GATE", "gate"),
                ("USED", "bytes_used"),
                ("OF", "bytes_max"),
                ("ENDS IN", "seconds_left"),
            ];
            table(&grants, &columns);
        }
        GrantAction::Revoke { id, user, service, node } => {
            let selector = json!({ "grant": id, "user": user, "service": service });
            let answer = Node::of(&node.config)?.call(Method::POST, "/v1/grants/revoke", Some(selector))?;
            let count = answer.get("revoked").and_then(Value::as_u64).context("the node's answer has no count")?;
            out::line(format_args!("revoked {count} grants"));
        }
    }
    Ok(())
}

pub(crate) fn policy(action: PolicyAction) -> Result<()> {
    let PolicyAction::Test { user, service, proves, reading } = action;
    let uri = format!("/v1/policy/test?user={user}&service={service}&proves={proves}");
    let decision = Node::of(&reading.node.config)?.call(Method::GET, &uri, None)?;
    if reading.json {
        return print_json(&decision);
    }
    out::line(format_args!("{}", decision.get("outcome").and_then(Value::as_str).unwrap_or("?")));
    for step in decision.get("steps").and_then(Value::as_array).into_iter().flatten() {
        out::line(format_args!("  {}", step.as_str().unwrap_or("?")));
    }
    Ok(())
}
