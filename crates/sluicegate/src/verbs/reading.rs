//! `trace`, `observe`: what becomes of packets and users, and why.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use sluicegate_api::{
    self as api, CallEnd, CallStep, CallStory, Decision, Flow, FlowTrace, GrantStatus, Observe, RecentDrop,
};
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
    match (&trace.user, &trace.call, &trace.flow) {
        (Some(user), ..) if let Some(file) = &trace.pcap => pcap::write(&node, user, file, trace.seconds)?,
        (Some(user), ..) => {
            let decisions = node.ask(&api::TRACE_USER.ask_of(user, &()))?;
            if trace.reading.json {
                return print_json(&decisions);
            }
            if decisions.is_empty() {
                out::line("nothing was decided about this user lately");
            }
            decisions.iter().for_each(print_decision);
        }
        (None, Some(call), _) => {
            let stories = node.ask(&api::TRACE_CALL.ask_of(call, &()))?;
            if trace.reading.json {
                return print_json(&stories);
            }
            if stories.is_empty() {
                out::line(
                    "no such call is known: it may be long over (see the call log), or never have got as far as a password",
                );
            }
            stories.iter().for_each(print_story);
        }
        (None, None, Some(flow)) => {
            let answer = node.ask(&api::TRACE_FLOW.ask(&probe(flow, trace.inside)?))?;
            if trace.reading.json {
                return print_json(&answer);
            }
            print_flow(&answer);
        }
        (None, None, None) => bail!("say which user (--user), call (--call) or flow (--flow)"),
    }
    Ok(())
}

/// A time as a person reads it.
fn at(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| unix.to_string())
}

/// What was decided about a sign-in, when, and why.
fn print_decision(decision: &Decision) {
    let Decision { unix, service, client, outcome, status, call, steps, .. } = decision;
    let call = call.as_ref().map_or_else(String::new, |call| format!(", call {call}"));
    out::line(format_args!("{} {service} from {client}: {outcome} ({status}){call}", at(*unix)));
    steps.iter().for_each(|step| out::line(format_args!("  {step}")));
}

/// What became of a call.
fn print_story(story: &CallStory) {
    let CallStory { call, call_id, user, service, client, setup_ms, answered_unix, end, .. } = story;
    let (from, to) = if story.caller == "user" { (user, service) } else { (service, user) };
    out::line(format_args!(
        "call {} from {from} to {to}, the user at {client}, Call-ID {}",
        or_dash(call),
        or_dash(call_id)
    ));
    for CallStep { unix, last_unix, times, text } in &story.steps {
        let again = if *times > 1 { format!(" ({times} times, last {})", at(*last_unix)) } else { String::new() };
        out::line(format_args!("  {} {text}{again}", at(*unix)));
    }
    if story.steps_left_out > 0 {
        out::line(format_args!("  and {} more", story.steps_left_out));
    }
    story.grants.iter().for_each(print_grant);
    let set_up = setup_ms.map_or_else(String::new, |ms| format!(", set up in {ms} ms"));
    out::line(match end {
        None if answered_unix.is_some() => format!("  goes on{set_up}"),
        None => "  is not answered yet".to_owned(),
        Some(CallEnd { unix, why, by, status }) => {
            let lasted = answered_unix.map_or_else(String::new, |from| {
                let bytes = story.bytes_to_service;
                format!(", after {} s{set_up}, {bytes} bytes to the service", unix.saturating_sub(from))
            });
            let status = status.map_or_else(String::new, |status| format!(" ({status})"));
            format!("  {} over: {why} by the {by}{status}{lasted}", at(*unix))
        }
    });
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// What becomes of a packet, why, under which grant, and what became of those like it.
fn print_flow(trace: &FlowTrace) {
    match &trace.reason {
        Some(reason) => out::line(format_args!("{}: {reason}. {}", trace.verdict, cell(&trace.explanation))),
        None => out::line(&trace.verdict),
    }
    trace.steps.iter().for_each(|step| out::line(format_args!("  {step}")));
    trace.grant.iter().for_each(print_grant);
    for RecentDrop { ago_ms, reason, protocol, source, destination, .. } in &trace.recent {
        let (protocol, from, to) = (cell(protocol), cell(source), cell(destination));
        out::line(format_args!("  {} s ago: {protocol} {from} > {to} dropped: {reason}", ago_ms / 1_000));
    }
}

/// What a grant opens, and how much of it is used.
fn print_grant(grant: &GrantStatus) {
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
