//! `trace`, `observe`: what becomes of packets and users, and why.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use hyper::Method;
use serde_json::{Value, json};
use sluicegate_policy::PortProtocol;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::control::{Node, cell, print_json};
use crate::{
    cli::{NodeAddress, Switch, Trace},
    out,
};

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
        Value::Array(decisions) => decisions.iter().for_each(print_decision),
        Value::Object(_) => print_flow(&answer),
        other => out::line(format_args!("{other}")),
    }
    Ok(())
}

/// What was decided about a sign-in, when, and why.
fn print_decision(decision: &Value) {
    let of = |key: &str| cell(decision.get(key));
    let at = decision["unix"].as_i64().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    let at = at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| of("unix"));
    out::line(format_args!("{at} {} from {}: {} ({})", of("service"), of("client"), of("outcome"), of("status")));
    for step in decision["steps"].as_array().into_iter().flatten() {
        out::line(format_args!("  {}", cell(Some(step))));
    }
}

/// What becomes of a packet, why, under which grant, and what became of those like it.
fn print_flow(trace: &Value) {
    let of = |value: &Value, key: &str| cell(value.get(key));
    match trace["reason"].as_str() {
        Some(reason) => out::line(format_args!("{}: {reason}. {}", of(trace, "verdict"), of(trace, "explanation"))),
        None => out::line(format_args!("{}", of(trace, "verdict"))),
    }
    for step in trace["steps"].as_array().into_iter().flatten() {
        out::line(format_args!("  {}", cell(Some(step))));
    }
    let grant = &trace["grant"];
    if grant.is_object() {
        let place = |value: &Value| match (value[1].as_u64(), value[2].as_u64()) {
            (Some(first), Some(last)) if first != last => format!("{} ports {first}-{last}", cell(value.get(0))),
            (first, _) => format!("{} port {}", cell(value.get(0)), first.unwrap_or_default()),
        };
        out::line(format_args!(
            "  grant of {} for {}: {} stands for {}; {} of {} bytes used, ends in {} s",
            of(grant, "user"),
            of(grant, "service"),
            place(&grant["gate"]),
            place(&grant["target"]),
            of(grant, "bytes_used"),
            of(grant, "bytes_max"),
            of(grant, "expires_s")
        ));
    }
    for drop in trace["recent"].as_array().into_iter().flatten() {
        let ago = drop["ago_ms"].as_u64().unwrap_or_default() / 1_000;
        let (from, to) = (of(drop, "source"), of(drop, "destination"));
        out::line(format_args!(
            "  {ago} s ago: {} {from} > {to} dropped: {}",
            of(drop, "protocol"),
            of(drop, "reason")
        ));
    }
}

/// `PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT]`.
fn probe(flow: &str, inside: bool) -> Result<Value> {
    let wrong = || anyhow::anyhow!("`{flow}` is no flow; write it like \"tcp 198.51.100.7:40000 > 203.0.113.1:22\"");
    let (protocol, ends) = flow.trim().split_once(' ').ok_or_else(wrong)?;
    let protocol = PortProtocol::named(protocol).ok_or_else(wrong)?;
    let (source, destination) = ends.split_once('>').ok_or_else(wrong)?;
    let end = |text: &str| {
        let text = text.trim();
        text.parse::<SocketAddr>().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, 0))).map_err(|_| wrong())
    };
    let (source, destination) = (end(source)?, end(destination)?);
    Ok(json!({
        "protocol": protocol.number(destination.ip()), "source": source.ip(), "source_port": source.port(),
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
        assert_eq!(probe("icmp 2001:db8::1 > 2001:db8::2", true).unwrap()["protocol"], 58);
        assert_eq!(probe("esp 198.51.100.7 > 203.0.113.1", true).unwrap()["protocol"], 50);
        for wrong in ["", "tcp", "tcp a > b", "tcp 1.2.3.4:1", "sctpx 1.2.3.4:1 > 1.2.3.4:1"] {
            assert!(probe(wrong, false).is_err(), "{wrong}");
        }
    }
}
