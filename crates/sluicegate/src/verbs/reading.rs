//! `status`, `trace`, `observe`: what a running node does and why.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use hyper::Method;
use serde_json::{Value, json};

use super::control::{Node, cell, print_json};
use crate::{
    cli::{NodeAddress, Reading, Switch, Trace},
    out,
};

pub(crate) fn status(reading: &Reading) -> Result<()> {
    let status = Node::of(&reading.node.config)?.call(Method::GET, "/v1/status", None)?;
    if reading.json {
        return print_json(&status);
    }
    for role in ["frontend", "gate"] {
        if let Some(Value::Object(part)) = status.get(role) {
            out::line(format_args!("{role}"));
            // Tables are for graphs and alarms, which say when one fills up.
            for (key, value) in part.iter().filter(|(key, _)| *key != "tables") {
                print_part(key, value, 1);
            }
        }
    }
    Ok(())
}

/// One setting of a status, as an indented tree.
fn print_part(key: &str, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            out::line(format_args!("{indent}{key}"));
            for (key, value) in map {
                print_part(key, value, depth + 1);
            }
        }
        Value::Array(rows) if rows.iter().any(Value::is_object) => {
            out::line(format_args!("{indent}{key}"));
            for row in rows {
                let cells = row.as_object().into_iter().flatten();
                let cells: Vec<String> = cells.map(|(key, value)| format!("{key} {}", cell(Some(value)))).collect();
                out::line(format_args!("{indent}  {}", cells.join("  ")));
            }
        }
        other => out::line(format_args!("{indent}{key} {}", cell(Some(other)))),
    }
}

pub(crate) fn trace(trace: &Trace) -> Result<()> {
    let node = Node::of(&trace.node.config)?;
    let answer = match (&trace.user, &trace.flow) {
        (Some(user), _) => node.call(Method::GET, &format!("/v1/trace/user/{user}"), None)?,
        (None, Some(flow)) => node.call(Method::POST, "/v1/trace/flow", Some(probe(flow, trace.inside)?))?,
        (None, None) => bail!("say which user (--user) or flow (--flow)"),
    };
    if trace.json {
        return print_json(&answer);
    }
    match &answer {
        Value::Array(decisions) if decisions.is_empty() => {
            out::line(format_args!("nothing was decided about this user lately"));
        }
        Value::Array(decisions) => {
            for decision in decisions {
                let of = |key: &str| cell(decision.get(key));
                out::line(format_args!(
                    "{} {} from {}: {} ({})",
                    of("unix"),
                    of("service"),
                    of("client"),
                    of("outcome"),
                    of("status")
                ));
                for step in decision.get("steps").and_then(Value::as_array).into_iter().flatten() {
                    out::line(format_args!("  {}", cell(Some(step))));
                }
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                print_part(key, value, 0);
            }
        }
        other => out::line(format_args!("{other}")),
    }
    Ok(())
}

/// `PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT]`.
fn probe(flow: &str, inside: bool) -> Result<Value> {
    let wrong = || anyhow::anyhow!("`{flow}` is no flow; write it like \"tcp 198.51.100.7:40000 > 203.0.113.1:22\"");
    let (protocol, ends) = flow.trim().split_once(' ').ok_or_else(wrong)?;
    let protocol = match protocol {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        other => other.parse::<u8>().map_err(|_| wrong())?,
    };
    let (source, destination) = ends.split_once('>').ok_or_else(wrong)?;
    let end = |text: &str| {
        let text = text.trim();
        text.parse::<SocketAddr>().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, 0))).map_err(|_| wrong())
    };
    let (source, destination) = (end(source)?, end(destination)?);
    Ok(json!({
        "protocol": protocol, "source": source.ip(), "source_port": source.port(),
        "destination": destination.ip(), "destination_port": destination.port(), "inside": inside,
    }))
}

pub(crate) fn observe(state: Switch, node: &NodeAddress) -> Result<()> {
    let on = matches!(state, Switch::On);
    Node::of(&node.config)?.call(Method::POST, "/v1/observe", Some(json!({ "on": on })))?;
    out::line(format_args!(
        "{}",
        if on {
            "observing: strangers' packets are counted, not dropped"
        } else {
            "enforcing: strangers' packets are dropped"
        }
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_written_as_people_write_it() {
        let value = probe("tcp 198.51.100.7:40000 > 203.0.113.1:22", false).unwrap();
        assert_eq!(value["protocol"], 6);
        assert_eq!(value["destination_port"], 22);
        assert_eq!(probe("icmp 198.51.100.7 > 203.0.113.1", true).unwrap()["source_port"], 0);
        for wrong in ["", "tcp", "tcp a > b", "tcp 1.2.3.4:1", "sctpx 1.2.3.4:1 > 1.2.3.4:1"] {
            assert!(probe(wrong, false).is_err(), "{wrong}");
        }
    }
}
