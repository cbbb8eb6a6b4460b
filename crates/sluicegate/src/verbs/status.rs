//! `status`: what is well, what is not, and the figures behind it.

use anyhow::Result;
use hyper::Method;
use serde_json::Value;

use super::control::{Node, cell, print_json};
use crate::{cli::Reading, out};

/// Reasons for drops that the summary names, the most frequent first.
const REASONS_SHOWN: usize = 4;

pub(crate) fn run(reading: &Reading) -> Result<()> {
    let status = Node::of(&reading.node.config)?.call(Method::GET, "/v1/status", None)?;
    if reading.json {
        return print_json(&status);
    }
    summary(&status).iter().for_each(|line| out::line(format_args!("{line}")));
    for role in ["frontend", "gate"] {
        if let Some(Value::Object(part)) = status.get(role) {
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
fn summary(status: &Value) -> Vec<String> {
    let (gate, frontend) = (&status["gate"], &status["frontend"]);
    let mut wrong = of_gate(gate);
    wrong.extend(of_frontend(frontend));
    let mut lines = match wrong.len() {
        0 => vec!["all is well".to_owned()],
        1 => vec!["one thing is not well".to_owned()],
        count => vec![format!("{count} things are not well")],
    };
    lines.extend(wrong.iter().map(|what| format!("  {what}")));
    if gate.is_object() {
        lines.push(format!(
            "gate {}: up for {}, {}, {}, {} grants open",
            cell(gate.get("gate")),
            lasted(&gate["uptime_s"]),
            cell(gate.get("backend")),
            cell(gate.get("mode")),
            cell(gate.get("grants"))
        ));
        lines.extend(dropped(&gate["dropped"]));
    }
    if frontend.is_object() {
        lines.push(format!(
            "frontend {}: up for {}, realm {}, {} users, {} services, {} grants",
            cell(frontend.get("name")),
            lasted(&frontend["uptime_s"]),
            cell(frontend.get("realm")),
            cell(frontend.get("users")),
            cell(frontend.get("services")),
            cell(frontend.get("grants"))
        ));
    }
    lines
}

/// What is wrong with a gate, since when, and what to do where that is not in the words themselves.
fn of_gate(gate: &Value) -> Vec<String> {
    let mut wrong: Vec<String> =
        gate["alarms"].as_array().into_iter().flatten().map(|alarm| cell(Some(alarm))).collect();
    if let Some(why) = gate["closed"].as_str().filter(|why| !wrong.iter().any(|known| known.contains(*why))) {
        wrong.push(format!("nothing is forwarded: {why}"));
    }
    if gate["mode"] == "observe" {
        wrong.push("strangers' packets are counted, not dropped; `sluicegate observe off` drops them".to_owned());
    }
    let is_told = |feed: &Value| {
        let address = feed["address"].as_str().unwrap_or_default();
        wrong.iter().any(|known| known.contains(address))
    };
    let feeds = gate["feeds"].as_array().into_iter().flatten();
    let feeds: Vec<&Value> = feeds.filter(|feed| feed["state"] != "connected" && !is_told(feed)).collect();
    for feed in feeds {
        let who = feed["frontend"].as_str().or_else(|| feed["address"].as_str()).unwrap_or_default();
        let why = feed["last_error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
        let since = lasted(&feed["state_s"]);
        wrong.push(format!(
            "the frontend {who} is not connected, for {since}{why}; what is open stays open until it ends"
        ));
    }
    wrong
}

/// The same of a frontend.
fn of_frontend(frontend: &Value) -> Vec<String> {
    let mut wrong: Vec<String> =
        frontend["alarms"].as_array().into_iter().flatten().map(|alarm| cell(Some(alarm))).collect();
    let gates = frontend["gates"].as_array();
    if gates.is_some_and(Vec::is_empty) {
        let next = "`sluicegate gate-join --new` here makes a token for one";
        wrong.push(format!("no gate has joined, so nobody can be let in; {next}"));
    }
    for gate in gates.into_iter().flatten() {
        let name = cell(gate.get("gate"));
        if gate["connected"] == false {
            wrong.push(format!("the gate {name} is not connected; `sluicegate gate rm {name}` if it is gone for good"));
        }
        for (service, why) in gate["refused"].as_object().into_iter().flatten() {
            wrong.push(format!("the gate {name} does not protect {service}: {}", cell(Some(why))));
        }
    }
    // With several gates, each usually reaches a part.
    let reach_none =
        |service: &str| gates.is_some_and(|all| all.iter().all(|gate| gate["unreached"].get(service).is_some()));
    let first = gates.and_then(|all| all.first()?["unreached"].as_object());
    for (service, why) in first.into_iter().flatten().filter(|(service, _)| reach_none(service)) {
        wrong.push(format!("no gate reaches {service}: {}; `ip route` on the gate's host", cell(Some(why))));
    }
    wrong
}

/// What was dropped most, with the way to the reasons.
fn dropped(reasons: &Value) -> Option<String> {
    let mut counts: Vec<(u64, &String)> =
        reasons.as_object()?.iter().filter_map(|(reason, count)| Some((count.as_u64()?, reason))).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = counts.iter().map(|(count, _)| count).sum();
    let most: Vec<String> =
        counts.iter().take(REASONS_SHOWN).map(|(count, reason)| format!("{count} {reason}")).collect();
    let more = if counts.len() > REASONS_SHOWN { ", ..." } else { "" };
    (all > 0).then(|| format!("  dropped {all} packets: {}{more}", most.join(", ")))
}

/// A time in the two largest of its units.
fn lasted(seconds: &Value) -> String {
    let all = seconds.as_u64().unwrap_or_default();
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
                let cells: Vec<String> = cells.map(|(key, value)| format!("{key} {}", cell(Some(value)))).collect();
                out::line(format_args!("{indent}  {}", cells.join("  ")));
            }
        }
        other => out::line(format_args!("{indent}{key} {}", cell(Some(other)))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_that_is_well_says_so_and_for_how_long() {
        let status = json!({
            "gate": { "gate": "g", "uptime_s": 90_061, "backend": "xdp", "mode": "enforce", "grants": 2, "alarms": [],
                "closed": null, "dropped": { "no_pinhole": 7, "checksum": 1 },
                "feeds": [{ "state": "connected", "address": "127.0.0.1:7443" }] },
            "frontend": { "name": "f", "uptime_s": 61, "realm": "example.net", "users": 1, "services": 1, "grants": 2,
                "gates": [{ "gate": "g", "connected": true, "refused": {} }] },
        });
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
        let status = json!({
            "gate": { "gate": "g", "alarms": ["the clock is wrong"], "mode": "observe", "closed": "`inside` is gone",
                "feeds": [{ "state": "waiting", "state_s": 3_720, "address": "192.0.2.1:7443", "last_error": "refused" }] },
            "frontend": { "gates": [{ "gate": "old", "connected": false, "refused": { "web": "no route" },
                "unreached": { "mail": "no route to 10.6.0.2" } }] },
        });
        let said = summary(&status);
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
