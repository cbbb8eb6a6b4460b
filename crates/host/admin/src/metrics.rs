//! The metrics of a node as OpenMetrics text.

use std::fmt;

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use sluicegate_gate::{Metric, MetricKind};
use sluicegate_proxy::SETUP_BUCKETS_MS;

use crate::{Api, beside::METRICS};

/// Type of [`text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the last line of an exposition says.
const END: &str = "# EOF\n";

/// The metrics as an HTTP answer; those of a frontend in a process beside this one follow this one's.
pub(crate) async fn answer(api: Api) -> impl IntoResponse {
    let mut text = text(&api);
    if let Some(beside) = &api.beside
        && let Some(theirs) = beside.metrics().await
    {
        text.truncate(text.strip_suffix(END).map_or(text.len(), str::len));
        text.push_str(&theirs);
    }
    ([("content-type", CONTENT_TYPE)], text)
}

/// Adds the route by which the process beside this one reads its metrics.
pub(crate) fn beside(router: Router<Api>) -> Router<Api> {
    router.route(METRICS, get(async |State(api): State<Api>| answer(api).await))
}

/// All metrics of this process, read now.
pub(crate) fn text(api: &Api) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Now(api.metrics())));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// The frontend's counters and tables under the names of `status`.
pub(crate) fn of_frontend(control: &sluicegate_frontend::Control) -> Vec<Series> {
    let snapshot = control.metrics();
    let mut series: Vec<Series> = Vec::new();
    for sample in snapshot.samples {
        let (help, kind) = match sample.name {
            "requests_total" => ("SIP requests, by method and outcome.", MetricKind::Counter),
            "events_total" => ("What else happened, by event.", MetricKind::Counter),
            "table_used" => ("Entries in use, by table.", MetricKind::Gauge),
            _ => ("Entries possible, by table.", MetricKind::Gauge),
        };
        let name = format!("sluicegate_frontend_{}", sample.name);
        let value = (sample.labels, sample.value as f64);
        match series.iter_mut().find(|known| known.name == name) {
            Some(known) => known.samples.push(value),
            None => series.push(Series { name, help, kind, samples: vec![value] }),
        }
    }
    let mut below = 0;
    let bounds = SETUP_BUCKETS_MS.iter().map(|ms| format!("{}", *ms as f64 / 1e3)).chain(["+Inf".to_owned()]);
    let samples = bounds.zip(snapshot.setup.buckets).map(|(bound, count)| {
        below += count;
        (vec![("le", bound)], below as f64)
    });
    series.push(Series {
        name: "sluicegate_frontend_setups_total".to_owned(),
        help: "Set-ups from the authenticated INVITE to its 200 OK, by upper bound in seconds.",
        kind: MetricKind::Counter,
        samples: samples.collect(),
    });
    series
}

/// One metric with all its samples.
#[derive(Debug)]
pub(crate) struct Series {
    name: String,
    help: &'static str,
    kind: MetricKind,
    samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl From<Metric> for Series {
    fn from(metric: Metric) -> Self {
        let label = |value: String| if metric.label.is_empty() { Vec::new() } else { vec![(metric.label, value)] };
        let samples = metric.samples.into_iter().map(|(value, number)| (label(value), number)).collect();
        Self { name: metric.name.to_owned(), help: metric.help, kind: metric.kind, samples }
    }
}

#[derive(Debug)]
struct Now(Vec<Series>);

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &self.0 {
            // The encoder adds `_total` to counters and a full stop to the help text itself.
            let name = metric.name.strip_suffix("_total").unwrap_or(&metric.name);
            let help = metric.help.trim_end_matches('.');
            let metric_type = match metric.kind {
                MetricKind::Counter => prometheus_client::metrics::MetricType::Counter,
                MetricKind::Gauge => prometheus_client::metrics::MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (labels, number) in &metric.samples {
                let sample = family.encode_family(labels)?;
                match metric.kind {
                    MetricKind::Counter => ConstCounter::new(*number).encode(sample)?,
                    MetricKind::Gauge => ConstGauge::new(*number).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}
