//! `group`, `service`, `grant`, `policy`: objects of a running node, through its control socket.

use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sluicegate_policy::PortProtocol;

use super::control::{Node, print_json, table};
use crate::{
    cli::{GateAction, GrantAction, GroupAction, PolicyAction, ServiceAction},
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
            let services = crate::config::services(&file)?;
            node.call(Method::POST, "/v1/services", Some(serde_json::to_value(&services)?))?;
            services.iter().for_each(|service| out::line(format_args!("added service {}", service.name)));
        }
        ServiceAction::Mod { file, node } => {
            let node = Node::of(&node.config)?;
            let services = crate::config::services(&file)?;
            let moved = node.call(Method::PUT, "/v1/services", Some(serde_json::to_value(&services)?))?;
            for service in &services {
                let moved = moved.as_array().is_some_and(|moved| moved.iter().any(|name| *name == service.name));
                let ended = if moved { "; its grants were revoked" } else { "" };
                out::line(format_args!("changed service {}{ended}", service.name));
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

pub(crate) fn gate(action: GateAction) -> Result<()> {
    match action {
        GateAction::Ls(reading) => {
            let gates = Node::of(&reading.node.config)?.call(Method::GET, "/v1/gates", None)?;
            if reading.json {
                return print_json(&gates);
            }
            table(&gates, &[("GATE", "name"), ("CONNECTED", "connected"), ("LAST FROM", "seen_at")]);
        }
        GateAction::Rm { name, node } => remove("gates", "gate", &name, &Node::of(&node.config)?)?,
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
                ("PORTS", "ports"),
                ("MODE", "mode"),
                ("CLIENT", "client"),
                ("GATE", "gate"),
                ("USED", "bytes_used"),
                ("OF", "bytes_max"),
                ("ENDS IN", "ends_in"),
            ];
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let told = grants.as_array().into_iter().flatten().map(|grant| for_people(grant, unix));
            table(&Value::Array(told.collect()), &columns);
        }
        GrantAction::Revoke { id, user, service, node } => {
            let of = [("grant", &id), ("user", &user), ("service", &service)];
            let of = of.into_iter().filter_map(|(what, which)| Some(format!("{what} {}", which.as_ref()?)));
            let of = of.collect::<Vec<_>>().join(", ");
            let selector = json!({ "grant": id, "user": user, "service": service });
            let answer = Node::of(&node.config)?.call(Method::POST, "/v1/grants/revoke", Some(selector))?;
            let count = answer.get("revoked").and_then(Value::as_u64).context("the node's answer has no count")?;
            ensure!(count > 0, "nothing revoked: no grant is open of {of}; `sluicegate grant ls` shows those that are");
            out::line(format_args!("revoked {count} grants"));
        }
    }
    Ok(())
}

/// A grant with its ports and its end as a person writes them.
fn for_people(grant: &Value, unix: u64) -> Value {
    let number = |key: &str| grant.get(key).and_then(Value::as_u64);
    let port = |at: usize| grant.get("target_ports").and_then(|ports| ports.get(at)).and_then(Value::as_u64);
    let protocol = number("protocol").and_then(|number| u8::try_from(number).ok()).unwrap_or_default();
    let protocol = PortProtocol::from_number(protocol).map_or_else(String::new, |known| known.to_string());
    let ports = match (port(0).unwrap_or(0), port(1).unwrap_or(0)) {
        (0, _) => protocol,
        (first, last) if first == last => format!("{protocol}/{first}"),
        (first, last) => format!("{protocol}/{first}-{last}"),
    };
    let left = number("not_after").unwrap_or(0).saturating_sub(unix);
    let ends_in = if left < 60 { format!("{left}s") } else { format!("{}m{:02}s", left / 60, left % 60) };
    let mut told = grant.clone();
    told["ports"] = ports.into();
    told["ends_in"] = ends_in.into();
    told
}

/// Asks whether a user may use a service; exit status 1 if not.
pub(crate) fn policy(action: PolicyAction) -> Result<ExitCode> {
    let PolicyAction::Test { user, service, proves, reading } = action;
    let uri = format!("/v1/policy/test?user={user}&service={service}&proves={proves}");
    let decision = Node::of(&reading.node.config)?.call(Method::GET, &uri, None)?;
    let outcome = decision.get("outcome").and_then(Value::as_str).unwrap_or("?");
    let status = if outcome == "allow" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if reading.json {
        return print_json(&decision).map(|()| status);
    }
    out::line(outcome);
    for step in decision.get("steps").and_then(Value::as_array).into_iter().flatten() {
        out::line(format_args!("  {}", step.as_str().unwrap_or("?")));
    }
    Ok(status)
}
