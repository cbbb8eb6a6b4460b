//! The gate's metrics, each registered once: name, labels and help. Their figures are those of `status`.

use sluicegate_api::{
    FeedStage, FeedStatus, GateStatus, Label, LaneStatus, PortStatus, Role, ServiceStatus, TableStatus,
};
use sluicegate_telemetry::{Family, Metric};
use sluicegate_wire::Reason;
use std::collections::BTreeMap;

/// A heartbeat older than this is an alarm, in milliseconds; the kernel program closes at 2,000.
const HEARTBEAT_LATE_MS: u64 = 1_000;

const RECEIVED_PACKETS: Family =
    Family::counter("sluicegate_gate_received_packets_total", &[], "Frames received on both ports.");
const SENT_PACKETS: Family =
    Family::counter("sluicegate_gate_sent_packets_total", &["port"], "Packets sent, by the port that they left by.");
const SENT_BYTES: Family = Family::counter(
    "sluicegate_gate_sent_bytes_total",
    &["port"],
    "Bytes sent, Ethernet headers included, by the port that they left by.",
);
const DROPPED_PACKETS: Family =
    Family::counter("sluicegate_gate_dropped_packets_total", &["reason"], "Packets dropped, by reason.");
const OBSERVED_PACKETS: Family = Family::counter(
    "sluicegate_gate_observed_packets_total",
    &["reason"],
    "Packets forwarded in observe mode that would have been dropped, by reason.",
);
const TABLE_USED: Family = Family::gauge("sluicegate_gate_table_used", &["table"], "Entries in use, by table.");
const TABLE_MAX: Family = Family::gauge("sluicegate_gate_table_max", &["table"], "Entries possible, by table.");
const FEED_CONNECTED: Family =
    Family::gauge("sluicegate_gate_feed_connected", &["feed"], "1 while the feed is up to date.");
const FEED_OPENED: Family =
    Family::counter("sluicegate_gate_feed_opened_total", &["feed"], "Grants opened for the feed.");
const FEED_REFUSED: Family = Family::counter(
    "sluicegate_gate_feed_refused_total",
    &["feed", "reason"],
    "Grants refused to the feed, by reason.",
);
const FEED_SKEW: Family = Family::gauge(
    "sluicegate_gate_feed_skew_seconds",
    &["feed"],
    "Difference of the frontend's clock from the gate's; 0 while it is small.",
);
const LANE_PACKETS: Family = Family::counter(
    "sluicegate_gate_lane_packets_total",
    &["lane"],
    "Packets sent, by the port and lane of a scheduled link.",
);
const LANE_BYTES: Family =
    Family::counter("sluicegate_gate_lane_bytes_total", &["lane"], "Bytes sent with framing, by port and lane.");
const LANE_DROPPED: Family =
    Family::counter("sluicegate_gate_lane_dropped_packets_total", &["lane"], "Packets without room, by port and lane.");
const LANE_WAITING: Family =
    Family::gauge("sluicegate_gate_lane_waiting_packets", &["lane"], "Packets that wait, by port and lane.");
const ROUTER_PASSED: Family = Family::counter(
    "sluicegate_gate_router_passed_packets_total",
    &["kind"],
    "Packets that the capability router let pass, by kind.",
);
const ROUTER_DEMOTED: Family = Family::counter(
    "sluicegate_gate_router_demoted_packets_total",
    &["reason"],
    "Packets that the capability router demoted to legacy, by reason.",
);
const GRANTS: Family = Family::gauge("sluicegate_gate_grants", &[], "Grants that are open.");
const SERVICES: Family = Family::gauge("sluicegate_gate_services", &[], "Services that the feeds announced.");
const UPTIME: Family = Family::gauge("sluicegate_gate_uptime_seconds", &[], "Time since the gate started.");
const ALARMS: Family =
    Family::gauge("sluicegate_gate_alarms", &[], "Things that an operator should look at; `status` lists them.");
const CLOSED: Family = Family::gauge(
    "sluicegate_gate_closed",
    &[],
    "1 while nothing is forwarded because an interface is gone, was replaced or is down.",
);
const LONGEST_TURN: Family = Family::gauge(
    "sluicegate_gate_longest_turn_seconds",
    &[],
    "Longest turn of the packet thread in the last one to two minutes.",
);
const TURN_LOOKS: Family = Family::gauge(
    "sluicegate_gate_turn_looks",
    &[],
    "Most lines, words of ports and pinholes that one turn looked at in the last one to two minutes.",
);
const HEARTBEAT_AGE: Family = Family::gauge(
    "sluicegate_gate_heartbeat_age_seconds",
    &[],
    "Time since the packet thread last gave a sign of life.",
);
const CHECKPOINT_AGE: Family =
    Family::gauge("sluicegate_gate_checkpoint_age_seconds", &[], "Time since the state was last saved.");

/// What an operator should look at.
pub(crate) fn alarms(status: &GateStatus) -> Vec<String> {
    let mut alarms = Vec::new();
    match status.heartbeat_age_ms {
        None => alarms.push("the packet thread has not started yet".into()),
        Some(age) if age > HEARTBEAT_LATE_MS => {
            alarms.push(format!("the packet thread is stuck for {age} ms; nothing passes after 2,000"));
        }
        Some(_) => {}
    }
    if let Some(problem) = &status.closed {
        alarms.push(format!("nothing is forwarded: {problem}; the gate goes on as soon as both interfaces are there"));
    }
    for feed in &status.feeds {
        if let Some(error) = &feed.last_error {
            alarms.push(format!("feed {} is {}: {error}", feed.address, feed.state.label()));
        }
        if let Some(skew_s) = feed.skew_s {
            alarms.push(format!("the clock of frontend {} differs by {skew_s} s; set both by NTP", feed.address));
        }
    }
    let is_open = |service: &ServiceStatus| service.open;
    let needs_feed = status.role == Role::Gate && !status.services.iter().any(is_open);
    if status.feeds.is_empty() && needs_feed {
        alarms.push("no frontend is joined; get a token with `sluicegate gate-join` there".into());
    }
    if let Some(error) = &status.saved.error {
        alarms.push(format!("the state is not saved ({error}); what is opened now is lost at a restart"));
    }
    // A full ring of recent drops is its normal state, and a full queue that of a busy link.
    let may_be_full = |table: &&TableStatus| {
        ["link_", "outside_"].iter().any(|queue| table.table.starts_with(queue)) || table.table == "recent_drops"
    };
    alarms.extend(status.tables.iter().filter(|table| !may_be_full(table)).filter_map(TableStatus::alarm));
    alarms
}

/// All metrics of a status.
pub(crate) fn of(status: &GateStatus) -> Vec<Metric> {
    let ports = |value: fn(&PortStatus) -> u64| status.ports.iter().map(move |port| (port.port.clone(), value(port)));
    let tables =
        |value: fn(&TableStatus) -> u64| status.tables.iter().map(move |table| (table.table.clone(), value(table)));
    let feeds =
        |value: fn(&FeedStatus) -> u64| status.feeds.iter().map(move |feed| (feed.address.clone(), value(feed)));
    let lanes = |value: fn(&LaneStatus) -> u64| {
        status.lanes.iter().map(move |lane| (format!("{}/{}", lane.port, lane.lane), value(lane)))
    };
    let refusals = status.feeds.iter().flat_map(|feed| {
        let of = |(reason, count): (&String, &u64)| {
            (vec![feed.address.clone().into(), reason.clone().into()], *count as f64)
        };
        feed.refusals.iter().map(of)
    });
    let skews = status.feeds.iter().map(|feed| (vec![feed.address.clone().into()], feed.skew_s.unwrap_or(0) as f64));
    let mut metrics = vec![
        RECEIVED_PACKETS.single(status.received_packets as f64),
        SENT_PACKETS.by(ports(|port| port.sent_packets)),
        SENT_BYTES.by(ports(|port| port.sent_bytes)),
        DROPPED_PACKETS.by(by_reason(&status.dropped)),
        OBSERVED_PACKETS.by(by_reason(&status.observed)),
        TABLE_USED.by(tables(|table| table.used)),
        TABLE_MAX.by(tables(|table| table.max)),
        FEED_CONNECTED.by(feeds(|feed| u64::from(feed.state == FeedStage::Connected))),
        FEED_OPENED.by(feeds(|feed| feed.opened)),
        Metric { family: &FEED_REFUSED, samples: refusals.collect() },
        Metric { family: &FEED_SKEW, samples: skews.collect() },
        LANE_PACKETS.by(lanes(|lane| lane.packets)),
        LANE_BYTES.by(lanes(|lane| lane.bytes)),
        LANE_DROPPED.by(lanes(|lane| lane.dropped)),
        LANE_WAITING.by(lanes(|lane| lane.waiting)),
        GRANTS.single(status.grants as f64),
        SERVICES.single(status.services.len() as f64),
        UPTIME.single(status.uptime_s as f64),
        ALARMS.single(status.alarms.len() as f64),
        CLOSED.single(f64::from(u8::from(status.closed.is_some()))),
        LONGEST_TURN.single(status.longest_turn_us as f64 / 1e6),
        TURN_LOOKS.single(status.turn_looks as f64),
    ];
    if let Some(router) = &status.router {
        metrics.push(ROUTER_PASSED.by(router.passed.clone()));
        metrics.push(ROUTER_DEMOTED.by(by_reason(&router.demoted)));
    }
    metrics.extend(status.heartbeat_age_ms.map(|age| HEARTBEAT_AGE.single(age as f64 / 1e3)));
    metrics.extend(status.saved.checkpoint_age_ms.map(|age| CHECKPOINT_AGE.single(age as f64 / 1e3)));
    metrics
}

/// Every reason, with 0 for those that never happened.
fn by_reason(counts: &BTreeMap<Label, u64>) -> impl Iterator<Item = (&'static str, u64)> {
    let count = |reason: &Reason| counts.get(reason.label()).copied().unwrap_or(0);
    Reason::ALL.iter().map(move |reason| (reason.label(), count(reason)))
}
