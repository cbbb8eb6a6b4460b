//! The gate's metrics, defined once: name, help and kind. Names are those of `status`.

use sluicegate_api::{
    FeedStage, FeedStatus, GateStatus, Label, LaneStatus, PortStatus, Role, ServiceStatus, TableStatus,
};
use sluicegate_wire::Reason;

/// A table is nearly full from this share on, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;
/// A heartbeat older than this is an alarm, in milliseconds; the kernel program closes at 2,000.
const HEARTBEAT_LATE_MS: u64 = 1_000;

/// Whether a metric only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, until the gate restarts.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric with all its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Its name; counters end in `_total`.
    pub name: &'static str,
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// Name of the label that tells the samples apart; empty if there is only one.
    pub label: &'static str,
    /// Label value and number.
    pub samples: Vec<(String, f64)>,
}

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
    for table in &status.tables {
        // A full ring of recent drops is its normal state, and a full queue that of a busy link.
        let is_queue = table.table.starts_with("link_") || table.table.starts_with("outside_");
        if table.table != "recent_drops"
            && !is_queue
            && table.used * 100 >= table.max * NEARLY_FULL_PERCENT
            && table.max > 0
        {
            alarms.push(format!("table {} is nearly full: {} of {}", table.table, table.used, table.max));
        }
    }
    alarms
}

/// All metrics of a status.
pub(crate) fn of(status: &GateStatus) -> Vec<Metric> {
    let mut metrics = packets(status);
    metrics.extend(tables(status));
    metrics.extend(feeds(status));
    metrics.extend(lanes(status));
    metrics.extend(router(status));
    metrics.push(single("sluicegate_gate_grants", "Grants that are open.", status.grants as f64));
    metrics.push(single(
        "sluicegate_gate_services",
        "Services that the feeds announced.",
        status.services.len() as f64,
    ));
    metrics.push(single("sluicegate_gate_uptime_seconds", "Time since the gate started.", status.uptime_s as f64));
    metrics.push(single(
        "sluicegate_gate_alarms",
        "Things that an operator should look at; `status` lists them.",
        status.alarms.len() as f64,
    ));
    metrics.push(single(
        "sluicegate_gate_closed",
        "1 while nothing is forwarded because an interface is gone, was replaced or is down.",
        f64::from(u8::from(status.closed.is_some())),
    ));
    metrics.push(single(
        "sluicegate_gate_longest_turn_seconds",
        "Longest turn of the packet thread in the last one to two minutes.",
        status.longest_turn_us as f64 / 1e6,
    ));
    metrics.push(single(
        "sluicegate_gate_turn_looks",
        "Most lines, words of ports and pinholes that one turn looked at in the last one to two minutes.",
        status.turn_looks as f64,
    ));
    if let Some(age) = status.heartbeat_age_ms {
        let help = "Time since the packet thread last gave a sign of life.";
        metrics.push(single("sluicegate_gate_heartbeat_age_seconds", help, age as f64 / 1e3));
    }
    if let Some(age) = status.saved.checkpoint_age_ms {
        let help = "Time since the state was last saved.";
        metrics.push(single("sluicegate_gate_checkpoint_age_seconds", help, age as f64 / 1e3));
    }
    metrics
}

fn packets(status: &GateStatus) -> Vec<Metric> {
    let counter = |name, help, label, samples| Metric { name, help, kind: MetricKind::Counter, label, samples };
    let by_reason = |counts: &std::collections::BTreeMap<Label, u64>| {
        let count = |reason: &Reason| counts.get(reason.label()).copied().unwrap_or(0) as f64;
        Reason::ALL.iter().map(|reason| (reason.label().to_owned(), count(reason))).collect()
    };
    let by_port = |value: fn(&PortStatus) -> u64| {
        status.ports.iter().map(|port| (port.port.to_string(), value(port) as f64)).collect()
    };
    vec![
        counter(
            "sluicegate_gate_received_packets_total",
            "Frames received on both ports.",
            "",
            vec![(String::new(), status.received_packets as f64)],
        ),
        counter(
            "sluicegate_gate_sent_packets_total",
            "Packets sent, by the port that they left by.",
            "port",
            by_port(|port| port.sent_packets),
        ),
        counter(
            "sluicegate_gate_sent_bytes_total",
            "Bytes sent, Ethernet headers included, by the port that they left by.",
            "port",
            by_port(|port| port.sent_bytes),
        ),
        counter(
            "sluicegate_gate_dropped_packets_total",
            "Packets dropped, by reason.",
            "reason",
            by_reason(&status.dropped),
        ),
        counter(
            "sluicegate_gate_observed_packets_total",
            "Packets forwarded in observe mode that would have been dropped, by reason.",
            "reason",
            by_reason(&status.observed),
        ),
    ]
}

/// Of the lanes of scheduled links; the label is port and lane.
fn lanes(status: &GateStatus) -> Vec<Metric> {
    let lane = |name, help, kind, value: fn(&LaneStatus) -> u64| Metric {
        name,
        help,
        kind,
        label: "lane",
        samples: status.lanes.iter().map(|lane| (format!("{}/{}", lane.port, lane.lane), value(lane) as f64)).collect(),
    };
    let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
    vec![
        lane(
            "sluicegate_gate_lane_packets_total",
            "Packets sent, by the port and lane of a scheduled link.",
            counter,
            |lane| lane.packets,
        ),
        lane("sluicegate_gate_lane_bytes_total", "Bytes sent with framing, by port and lane.", counter, |lane| {
            lane.bytes
        }),
        lane(
            "sluicegate_gate_lane_dropped_packets_total",
            "Packets without room, by port and lane.",
            counter,
            |lane| lane.dropped,
        ),
        lane("sluicegate_gate_lane_waiting_packets", "Packets that wait, by port and lane.", gauge, |lane| {
            lane.waiting
        }),
    ]
}

/// Of the capability router.
fn router(status: &GateStatus) -> Vec<Metric> {
    let Some(router) = &status.router else { return Vec::new() };
    let kinds = router.passed.iter().map(|(kind, count)| (kind.to_string(), *count as f64)).collect();
    let demoted = Reason::ALL
        .iter()
        .map(|reason| (reason.label().to_owned(), router.demoted.get(reason.label()).copied().unwrap_or(0) as f64));
    let counter = |name, help, label, samples| Metric { name, help, kind: MetricKind::Counter, label, samples };
    vec![
        counter(
            "sluicegate_gate_router_passed_packets_total",
            "Packets that the capability router let pass, by kind.",
            "kind",
            kinds,
        ),
        counter(
            "sluicegate_gate_router_demoted_packets_total",
            "Packets that the capability router demoted to legacy, by reason.",
            "reason",
            demoted.collect(),
        ),
    ]
}

fn tables(status: &GateStatus) -> [Metric; 2] {
    let gauge = |name, help, value: fn(&TableStatus) -> u64| Metric {
        name,
        help,
        kind: MetricKind::Gauge,
        label: "table",
        samples: status.tables.iter().map(|table| (table.table.to_string(), value(table) as f64)).collect(),
    };
    [
        gauge("sluicegate_gate_table_used", "Entries in use, by table.", |table| table.used),
        gauge("sluicegate_gate_table_max", "Entries possible, by table.", |table| table.max),
    ]
}

fn feeds(status: &GateStatus) -> [Metric; 4] {
    let feed = |name, help, kind, value: fn(&FeedStatus) -> f64| Metric {
        name,
        help,
        kind,
        label: "feed",
        samples: status.feeds.iter().map(|feed| (feed.address.clone(), value(feed))).collect(),
    };
    [
        feed("sluicegate_gate_feed_connected", "1 while the feed is up to date.", MetricKind::Gauge, |feed| {
            f64::from(u8::from(feed.state == FeedStage::Connected))
        }),
        feed("sluicegate_gate_feed_opened_total", "Grants opened for the feed.", MetricKind::Counter, |feed| {
            feed.opened as f64
        }),
        feed("sluicegate_gate_feed_refused_total", "Grants refused to the feed.", MetricKind::Counter, |feed| {
            feed.refused as f64
        }),
        feed(
            "sluicegate_gate_feed_skew_seconds",
            "Difference of the frontend's clock from the gate's; 0 while it is small.",
            MetricKind::Gauge,
            |feed| feed.skew_s.unwrap_or(0) as f64,
        ),
    ]
}

fn single(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric { name, help, kind: MetricKind::Gauge, label: "", samples: vec![(String::new(), value)] }
}
