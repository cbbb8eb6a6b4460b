//! `status`: what is well, what is not, and the figures behind it.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;
use sluicegate_api::{
    self as api, Enforcement, FeedStage, FeedStatus, FrontendStatus, GateStatus, JoinedGate, Label, NodeStatus,
};

use super::control::{Node, cell, print_json, written};
use crate::{cli::Reading, out};

/// Reasons for drops that the summary names, the most frequent first.
const REASONS_SHOWN: usize = 4;

pub(crate) fn run(reading: &Reading) -> Result<()> {
    let status = Node::of(&reading.node.config)?.ask(&api::STATUS.ask(&()))?;
    if reading.json {
        return print_json(&status);
    }
    summary(&status).iter().for_each(|line| out::line(format_args!("{line}")));
    for (role, part) in
        [("frontend", serde_json::to_value(&status.frontend)?), ("gate", serde_json::to_value(&status.gate)?)]
    {
        if let Value::Object(part) = part {
            out::line(format_args!("\n{role}"));
            // Tables are for graphs and alarms, which say when one fills up.
            for (key, value) in part.iter().filter(|(key, _)| *key != "tables") {
                print_part(key, value, 1);
            }
        }
    }
    Ok(())
}

/// The state of the node in a few lines, what needs somebody first.
fn summary(NodeStatus { gate, frontend }: &NodeStatus) -> Vec<String> {
    let wrong: Vec<String> = gate.iter().flat_map(of_gate).chain(frontend.iter().flat_map(of_frontend)).collect();
    let mut lines = match wrong.len() {
        0 => vec!["all is well".to_owned()],
        1 => vec!["one thing is not well".to_owned()],
        count => vec![format!("{count} things are not well")],
    };
    lines.extend(wrong.iter().map(|what| format!("  {what}")));
    if let Some(GateStatus { gate, uptime_s, backend, mode, grants, dropped, .. }) = gate {
        let (lasted, mode) = (lasted(*uptime_s), cell(mode));
        lines.push(format!("gate {gate}: up for {lasted}, {backend}, {mode}, {grants} grants open"));
        lines.extend(most(dropped));
    }
    if let Some(FrontendStatus { name, uptime_s, realm, users, services, grants, .. }) = frontend {
        let holds = format!("{users} users, {services} services, {grants} grants");
        lines.push(format!("frontend {name}: up for {}, realm {realm}, {holds}", lasted(*uptime_s)));
    }
    lines
}

/// What is wrong with a gate, since when, and what to do where that is not in the words themselves.
fn of_gate(gate: &GateStatus) -> Vec<String> {
    let mut wrong = gate.alarms.clone();
    if let Some(why) = gate.closed.as_ref().filter(|why| !wrong.iter().any(|known| known.contains(*why))) {
        wrong.push(format!("nothing is forwarded: {why}"));
    }
    if gate.mode == Enforcement::Observe {
        wrong.push("strangers' packets are counted, not dropped; `sluicegate observe off` drops them".to_owned());
    }
    let is_told = |feed: &&FeedStatus| wrong.iter().any(|known| known.contains(&feed.address));
    let away = gate.feeds.iter().filter(|feed| feed.state != FeedStage::Connected && !is_told(feed));
    let away: Vec<String> = away
        .map(|feed| {
            let who = feed.frontend.as_ref().unwrap_or(&feed.address);
            let why = feed.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let since = lasted(feed.state_s);
            format!("the frontend {who} is not connected, for {since}{why}; what is open stays open until it ends")
        })
        .collect();
    wrong.extend(away);
    wrong
}

/// The same of a frontend.
fn of_frontend(frontend: &FrontendStatus) -> Vec<String> {
    let (mut wrong, gates) = (frontend.alarms.clone(), &frontend.gates);
    if gates.is_empty() {
        let next = "`sluicegate gate-join --new` here makes a token for one";
        wrong.push(format!("no gate has joined, so nobody can be let in; {next}"));
    }
    for JoinedGate { gate: name, connected, refused, .. } in gates {
        if !connected {
            wrong.push(format!("the gate {name} is not connected; `sluicegate gate rm {name}` if it is gone for good"));
        }
        let unprotected = |(service, why)| format!("the gate {name} does not protect {service}: {why}");
        wrong.extend(refused.iter().map(unprotected));
    }
    // With several gates, each usually reaches a part.
    let reach_none = |service: &String| gates.iter().all(|gate| gate.unreached.contains_key(service));
    let first = gates.first().into_iter().flat_map(|gate| &gate.unreached);
    for (service, why) in first.filter(|(service, _)| reach_none(service)) {
        wrong.push(format!("no gate reaches {service}: {why}; `ip route` on the gate's host"));
    }
    wrong
}

/// What was dropped most, with the way to the reasons.
fn most(dropped: &BTreeMap<Label, u64>) -> Option<String> {
    let mut counts: Vec<(u64, &Label)> = dropped.iter().map(|(reason, count)| (*count, reason)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = dropped.values().sum();
    let most: Vec<String> =
        counts.iter().take(REASONS_SHOWN).map(|(count, reason)| format!("{count} {reason}")).collect();
    let more = if counts.len() > REASONS_SHOWN { ", ..." } else { "" };
    (all > 0).then(|| format!("  dropped {all} packets: {}{more}", most.join(", ")))
}

/// A time in the two largest of its units.
fn lasted(all: u64) -> String {
    match (all / 86_400, all / 3_600 % 24, all / 60 % 60, all % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
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
                let cells: Vec<String> = cells.map(|(key, value)| format!("{key} {}", written(value))).collect();
                out::line(format_args!("{indent}  {}", cells.join("  ")));
            }
        }
        other => out::line(format_args!("{indent}{key} {}", written(other))),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_api::{Role, SavedStatus};

    use super::*;

    fn gate() -> GateStatus {
        GateStatus {
            gate: "g".into(),
            role: Role::Gate,
            mode: Enforcement::Enforce,
            backend: "xdp".into(),
            backend_why: String::new(),
            outside: "out".into(),
            inside: "in".into(),
            addresses: Vec::new(),
            uptime_s: 90_061,
            heartbeat_age_ms: Some(1),
            closed: None,
            longest_turn_us: 0,
            turn_looks: 0,
            received_packets: 0,
            ports: Vec::new(),
            dropped: [("no_pinhole".into(), 7), ("checksum".into(), 1)].into(),
            observed: BTreeMap::new(),
            lanes: Vec::new(),
            router: None,
            tables: Vec::new(),
            services: Vec::new(),
            grants: 2,
            feeds: vec![feed(FeedStage::Connected, 5, None)],
            saved: SavedStatus { checkpoint_age_ms: None, checkpoint_bytes: 0, export_us: 0, error: None },
            alarms: Vec::new(),
        }
    }

    fn feed(state: FeedStage, state_s: u64, error: Option<&str>) -> FeedStatus {
        FeedStatus {
            address: "192.0.2.1:7443".into(),
            frontend: None,
            issuer: String::new(),
            state,
            state_s,
            sequence: None,
            silent_ms: None,
            skew_s: None,
            opened: 0,
            refused: 0,
            refusals: BTreeMap::new(),
            connects: 0,
            last_error: error.map(str::to_owned),
        }
    }

    fn frontend(gate: JoinedGate) -> FrontendStatus {
        FrontendStatus {
            name: "f".into(),
            realm: "example.net".into(),
            listen: Vec::new(),
            site_key: String::new(),
            frontend_key: String::new(),
            agent_epochs: Vec::new(),
            users_taken: None,
            replicas: Vec::new(),
            feed: "192.0.2.1:7443".parse().unwrap(),
            shards: 1,
            uptime_s: 61,
            gates: vec![gate],
            users: 1,
            services: 1,
            grants: 2,
            requests: BTreeMap::new(),
            events: BTreeMap::new(),
            connections: BTreeMap::new(),
            frames: BTreeMap::new(),
            tables: Vec::new(),
            alarms: Vec::new(),
        }
    }

    #[test]
    fn a_node_that_is_well_says_so_and_for_how_long() {
        let known = JoinedGate { gate: "g".into(), connected: true, ..JoinedGate::default() };
        let status = NodeStatus { gate: Some(gate()), frontend: Some(frontend(known)) };
        let expected = [
            "all is well",
            "gate g: up for 1 d 1 h, xdp, enforce, 2 grants open",
            "  dropped 8 packets: 7 no_pinhole, 1 checksum",
            "frontend f: up for 1 min 1 s, realm example.net, 1 users, 1 services, 2 grants",
        ];
        assert_eq!(summary(&status), expected);
    }

    #[test]
    fn what_is_not_well_comes_first_with_its_cause_and_the_next_step() {
        let gate = GateStatus {
            alarms: vec!["the clock is wrong".into()],
            mode: Enforcement::Observe,
            closed: Some("`inside` is gone".into()),
            feeds: vec![feed(FeedStage::Waiting, 3_720, Some("refused"))],
            ..gate()
        };
        let old = JoinedGate {
            gate: "old".into(),
            refused: [("web".into(), "no route".into())].into(),
            unreached: [("mail".into(), "no route to 10.6.0.2".into())].into(),
            ..JoinedGate::default()
        };
        let said = summary(&NodeStatus { gate: Some(gate), frontend: Some(frontend(old)) });
        assert_eq!(said[0], "7 things are not well");
        for (line, part) in said[1..].iter().zip([
            "the clock is wrong",
            "nothing is forwarded: `inside` is gone",
            "`sluicegate observe off`",
            "192.0.2.1:7443 is not connected, for 1 h 2 min: refused",
            "`sluicegate gate rm old`",
            "the gate old does not protect web: no route",
            "no gate reaches mail: no route to 10.6.0.2",
        ]) {
            assert!(line.contains(part), "{line}");
        }
    }
}
