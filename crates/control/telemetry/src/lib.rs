//! One way for figures. A [`Family`] is a constant: what is counted, its name, labels and help stand in one place. Where
//! something happens it is counted in [`Counters`] or a [`Histogram`], by as many threads as like, or published whole by the
//! one thread that owns it ([`Published`]). Whoever shows figures makes [`Metric`]s of both; [`text`] writes them.

mod count;
mod text;

use std::{borrow::Cow, collections::BTreeMap};

pub use count::{Counters, Histogram, Published};
pub use text::{CONTENT_TYPE, text};

/// The value of a label.
pub type Label = Cow<'static, str>;

/// Whether a figure only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until a restart.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// What is counted: registered once, as a constant.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, with the unit in it; counters end in `_total`.
    pub name: &'static str,
    /// Names of the labels that tell its samples apart.
    pub labels: &'static [&'static str],
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
}

impl Family {
    /// Something that is counted.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, labels, help, kind: Kind::Counter }
    }

    /// Something that is measured.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, labels, help, kind: Kind::Gauge }
    }

    /// Its only sample.
    #[must_use]
    pub fn single(&'static self, value: f64) -> Metric {
        Metric { family: self, samples: vec![(Vec::new(), value)] }
    }

    /// Its samples by the value of their one label.
    pub fn by(&'static self, samples: impl IntoIterator<Item = (impl Into<Label>, u64)>) -> Metric {
        let samples = samples.into_iter().map(|(label, value)| (vec![label.into()], value as f64));
        Metric { family: self, samples: samples.collect() }
    }

    /// Its samples by the values of all of its labels.
    pub fn by_all<const N: usize>(
        &'static self,
        samples: impl IntoIterator<Item = ([&'static str; N], u64)>,
    ) -> Metric {
        let samples = samples.into_iter().map(|(labels, value)| (labels.map(Label::from).into(), value as f64));
        Metric { family: self, samples: samples.collect() }
    }
}

/// A family with all its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// What it is.
    pub family: &'static Family,
    /// Values of the labels, in the family's order, and the figure.
    pub samples: Vec<(Vec<Label>, f64)>,
}

impl Metric {
    /// Its samples as a person reads them, by all label values in one text; zeros are left out.
    #[must_use]
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let counted = self.samples.iter().filter(|(_, value)| *value > 0.0);
        counted.map(|(labels, value)| (labels.join(" "), *value as u64)).collect()
    }
}
