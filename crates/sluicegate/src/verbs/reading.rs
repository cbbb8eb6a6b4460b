//! `trace`, `observe`: what becomes of packets and users, and why.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use sluicegate_api::{self as api, Decision, Flow, FlowTrace, Observe, RecentDrop};
use sluicegate_policy::PortProtocol;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    control::{Node, cell, print_json},
    keys, pcap,
};
use crate::{
    cli::{NodeAddress, Switch, Trace},
    out,
};

pub(crate) fn trace(trace: &Trace) -> Result<()> {
    let node = Node::of(&trace.reading.node.config)?;
    match (&trace.user, &trace.flow) {
        (Some(user), _) if let Some(file) = &trace.pcap => pcap::write(&node, user, file, trace.seconds)?,
        (Some(user), _) => {
            let decisions = node.ask(&api::TRACE_USER.ask_of(user, &()))?;
            if trace.reading.json {
                return print_json(&decisions);
            }
            if decisions.is_empty() {
                out::line("nothing was decided about this user lately");
            }
            decisions.iter().for_each(print_decision);
        }
        (None, Some(flow)) => {
            let answer = node.ask(&api::TRACE_FLOW.ask(&probe(flow, trace.inside)?))?;
            if trace.reading.json {
                return print_json(&answer);
            }
            print_flow(&answer);
        }
        (None, None) => bail!("say which user (--user) or flow (--flow)"),
    }
    Ok(())
}

/// What was decided about a sign-in, when, and why.
fn print_decision(decision: &Decision) {
    let Decision { unix, service, client, outcome, status, steps, .. } = decision;
    let at = i64::try_from(*unix).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    let at = at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| unix.to_string());
    out::line(format_args!("{at} {service} from {client}: {outcome} ({status})"));
    steps.iter().for_each(|step| out::line(format_args!("  {step}")));
}

/// What becomes of a packet, why, under which grant, and what became of those like it.
fn print_flow(trace: &FlowTrace) {
    match &trace.reason {
        Some(reason) => out::line(format_args!("{}: {reason}. {}", trace.verdict, cell(&trace.explanation))),
        None => out::line(&trace.verdict),
    }
    trace.steps.iter().for_each(|step| out::line(format_args!("  {step}")));
    if let Some(grant) = &trace.grant {
        let place = |address: String, (first, last): (u16, u16)| {
            if first == last { format!("{address} port {first}") } else { format!("{address} ports {first}-{last}") }
        };
        out::line(format_args!(
            "  grant of {} for {}: {} stands for {}; {} of {} bytes used, ends in {} s",
            grant.user,
            grant.service,
            place(cell(&grant.gate_address), grant.gate_ports),
            place(grant.target.to_string(), grant.target_ports),
            cell(&grant.bytes_used),
            grant.bytes_max,
            grant.not_after.saturating_sub(keys::now().0)
        ));
    }
    for RecentDrop { ago_ms, reason, protocol, source, destination, .. } in &trace.recent {
        let (protocol, from, to) = (cell(protocol), cell(source), cell(destination));
        out::line(format_args!("  {} s ago: {protocol} {from} > {to} dropped: {reason}", ago_ms / 1_000));
    }
}

/// `PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT]`.
fn probe(flow: &str, inside: bool) -> Result<Flow> {
    let wrong = || anyhow::anyhow!("`{flow}` is no flow; write it like \"tcp 198.51.100.7:40000 > 203.0.113.1:22\"");
    let (protocol, ends) = flow.trim().split_once(' ').ok_or_else(wrong)?;
    let protocol = PortProtocol::named(protocol).ok_or_else(wrong)?;
    let (source, destination) = ends.split_once('>').ok_or_else(wrong)?;
    let end = |text: &str| {
        let text = text.trim();
        text.parse::<SocketAddr>().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, 0))).map_err(|_| wrong())
    };
    let (source, destination) = (end(source)?, end(destination)?);
    Ok(Flow {
        protocol: protocol.number(destination.ip()),
        source: source.ip(),
        source_port: source.port(),
        destination: destination.ip(),
        destination_port: destination.port(),
        inside,
    })
}

pub(crate) fn observe(state: Switch, node: &NodeAddress) -> Result<()> {
    let on = matches!(state, Switch::On);
    let Observe { on } = Node::of(&node.config)?.ask(&api::OBSERVE.ask(&Observe { on }))?;
    out::line(if on {
        "observing: strangers' packets are counted, not dropped"
    } else {
        "enforcing: strangers' packets are dropped"
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_written_as_people_write_it() {
        let value = probe("tcp 198.51.100.7:40000 > 203.0.113.1:22", false).unwrap();
        assert_eq!(value.protocol, 6);
        assert_eq!(value.destination_port, 22);
        assert_eq!(probe("icmp 198.51.100.7 > 203.0.113.1", true).unwrap().source_port, 0);
        assert_eq!(probe("icmp 2001:db8::1 > 2001:db8::2", true).unwrap().protocol, 58);
        assert_eq!(probe("esp 198.51.100.7 > 203.0.113.1", true).unwrap().protocol, 50);
        for wrong in ["", "tcp", "tcp a > b", "tcp 1.2.3.4:1", "sctpx 1.2.3.4:1 > 1.2.3.4:1"] {
            assert!(probe(wrong, false).is_err(), "{wrong}");
        }
    }
}
