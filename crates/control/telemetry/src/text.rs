//! Figures as OpenMetrics text.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::{Kind, Metric};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `metrics` as OpenMetrics text, which ends in `# EOF`.
#[must_use]
pub fn text(metrics: Vec<Metric>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Now(metrics)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Now(Vec<Metric>);

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Metric { family, samples } in &self.0 {
            // The encoder adds `_total` to counters itself.
            let name = family.name.strip_suffix("_total").unwrap_or(family.name);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut encoder = encoder.encode_descriptor(name, family.help, None, kind)?;
            // An empty list of labels would be written as `{}`.
            if let ([], [(_, number)]) = (family.labels, &samples[..]) {
                encode_sample(family.kind, *number, encoder)?;
                continue;
            }
            for (values, number) in samples {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(values.iter().map(AsRef::as_ref)).collect();
                encode_sample(family.kind, *number, encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode_sample(kind: Kind, number: f64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Counter => ConstCounter::new(number).encode(encoder),
        Kind::Gauge => ConstGauge::new(number).encode(encoder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Family;

    const SEEN: Family = Family::counter("seen_total", &["method", "outcome"], "What was seen.");
    const OPEN: Family = Family::gauge("open", &[], "What is open.");

    #[test]
    fn names_labels_and_help_are_those_of_the_family() {
        let text = text(vec![SEEN.by_all([(["invite", "stale"], 3)]), OPEN.single(0.5)]);
        let expected = [
            "# HELP seen What was seen.",
            "# TYPE seen counter",
            "seen_total{method=\"invite\",outcome=\"stale\"} 3.0",
            "# HELP open What is open.",
            "# TYPE open gauge",
            "open 0.5",
            "# EOF",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
