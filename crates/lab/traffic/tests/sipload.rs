//! The load of calls, straight from callers to callees: what it counts, and how it repeats itself.

use std::{net::SocketAddr, path::Path, time::Duration};

use serde::Serialize;
use sluicegate_site::{
    Lab, Process,
    namespace::may_make_namespaces,
    topology::{End, Host, Plan, Via, Wire},
    worker,
};
use sluicegate_traffic::sipload::{CallRate, CalleesSpec, CallersSpec, LoadSum, Replying};

const PATIENCE: Duration = Duration::from_secs(60);
const CALLEES: &str = "10.4.0.2:5060";

/// ```text
/// callers ── callees
/// ```
fn lab() -> Lab {
    let sources = "198.51.101.0/24".parse().unwrap();
    let ends = [
        End::new("callers", "eth0", &["10.4.0.1/24".parse().unwrap()]),
        End::new("callees", "eth0", &["10.4.0.2/24".parse().unwrap()]),
    ];
    let hosts = vec![
        Host::new("callers").route(sources, Via::Itself),
        Host::new("callees").route(sources, Via::Gateway("10.4.0.1".parse().unwrap())),
    ];
    Plan { hosts, wires: vec![Wire { ends }] }.build().unwrap()
}

fn start<S: Serialize>(lab: &Lab, host: &str, role: &str, spec: &S) -> Process {
    let command = worker::command(Path::new(env!("CARGO_BIN_EXE_lab-worker")), role, spec);
    let process = lab.host(host).unwrap().spawn(&format!("{role} on {host}"), command).unwrap();
    process.event("ready", PATIENCE).unwrap();
    process
}

fn callers(rates: &[(u32, u32)]) -> CallersSpec {
    CallersSpec {
        to: vec![CALLEES.parse().unwrap()],
        lines: 4,
        sources: Some("198.51.101.0/24".parse().unwrap()),
        realm: "lab.example".to_owned(),
        service: "office".to_owned(),
        users: vec![("alice".to_owned(), String::new())],
        rates: rates.iter().map(|(per_s, ms)| CallRate { per_s: *per_s, ms: *ms }).collect(),
        hold_ms: Some(0),
        calls_max: 10_000,
        drain_ms: 3_000,
        tick_ms: 500,
        windows_ms: vec![(0, 3_600_000)],
        seed: 1,
        ..CallersSpec::default()
    }
}

/// Plays a load; all that happened, and how many calls were not over.
fn play(manner: Replying, spec: &CallersSpec) -> Option<(LoadSum, u64)> {
    if !may_make_namespaces() {
        println!("skipped: needs root");
        return None;
    }
    let lab = lab();
    let (listen, media): (SocketAddr, SocketAddr) = (CALLEES.parse().unwrap(), "10.4.0.2:5004".parse().unwrap());
    let _callees = start(&lab, "callees", "callees", &CalleesSpec { listen, media, manner, seconds: 120 });
    let callers = start(&lab, "callers", "callers", spec);
    let result = callers.event("result", PATIENCE).unwrap();
    let all = serde_json::from_value(result["windows"][0].clone()).unwrap();
    println!("{result}");
    Some((all, result["open"].as_u64().unwrap()))
}

#[test]
fn every_call_is_set_up_and_ended_and_counted() {
    let Some((all, open)) = play(Replying::Answers, &callers(&[(200, 1_000), (400, 500)])) else { return };
    assert_eq!(all.offered + all.not_begun, 400);
    assert_eq!(
        (all.established, all.established_of_offered, all.completed, open),
        (all.offered, all.offered, all.offered, 0)
    );
    assert_eq!((all.timeouts, all.unsent, all.refused.len()), (0, 0, 0));
}

#[test]
fn a_call_rings_until_it_is_answered_and_lasts_until_it_is_hung_up() {
    let spec = CallersSpec { hold_ms: Some(300), media_port: 4_000, ..callers(&[(50, 1_000)]) };
    let Some((all, open)) = play(Replying::Rings(700), &spec) else { return };
    assert_eq!((all.completed, open, all.retransmissions), (all.offered, 0, 0), "what rings is not sent again");
    assert!(all.setup_us.p50 >= 700_000, "{all:?}");
}

#[test]
fn what_nobody_answers_is_sent_again_as_often_as_rfc_3261_has_it() {
    let spec = CallersSpec { drain_ms: 40_000, ..callers(&[(20, 500)]) };
    let Some((all, open)) = play(Replying::Silent, &spec) else { return };
    assert_eq!((all.timeouts, all.established, open), (all.offered, 0, 0));
    assert_eq!(all.retransmissions, all.offered * 6, "section 17.1.1.2");
}

#[test]
fn calls_that_nobody_hangs_up_are_open_together_until_the_end() {
    let spec = CallersSpec { hold_ms: None, calls_max: 150, drain_ms: 10_000, ..callers(&[(400, 500)]) };
    let Some((all, open)) = play(Replying::Answers, &spec) else { return };
    assert_eq!((all.established, all.completed, open), (150, 150, 0), "no more than may be open");
    assert_eq!(all.not_begun, 50);
}
