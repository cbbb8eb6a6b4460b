//! The long form: memory of each daemon while transfers and renewals go on.

use std::{collections::BTreeMap, fs};

use super::Row;
use crate::report::rows::Report;
use sluicegate_site::{During, LabError, Process};

/// A soak has at least two lives of a secret.
pub(super) const LEAST_S: u32 = 270;
/// Memory may grow by this much between the first and the last fifth: a hundredth, or what one allocator's arena is.
const GROWTH: f64 = 0.01;
const GROWTH_KB: f64 = 256.0;

/// Resident memory of each daemon, kB, a value a second.
#[derive(Debug, Default)]
pub(super) struct Memory(BTreeMap<String, Vec<u64>>);

impl Memory {
    /// Reads what each of these processes has now.
    pub(super) fn read<'a>(&mut self, processes: impl Iterator<Item = (&'a str, &'a Process)>) -> Result<(), LabError> {
        for (name, process) in processes {
            let path = format!("/proc/{}/status", process.pid());
            let status = fs::read_to_string(&path).during(|| format!("reading {path}"))?;
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kb = resident.and_then(|value| value.split_whitespace().next()?.parse().ok());
            let kb = kb.ok_or_else(|| LabError::process(name, "has no memory any more"))?;
            self.0.entry(name.to_owned()).or_default().push(kb);
        }
        Ok(())
    }

    /// Compares the first and the last fifth of what was read.
    pub(super) fn judge(&self, report: &mut Report) {
        for (name, kb) in &self.0 {
            let fifth = (kb.len() / 5).max(1);
            let (first, last) = (median(&kb[..fifth]), median(&kb[kb.len() - fifth..]));
            let about = (Row::Soak.label(), "tva");
            report.of(about).note(&format!("memory_first_kb.{name}"), first);
            let most = (first * GROWTH).max(GROWTH_KB);
            report.of(about).at_most(&format!("memory_growth_kb.{name}"), last - first, most);
        }
    }
}

fn median(values: &[u64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).map_or(f64::NAN, |value| *value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    fn grows_by(kb_each: u64) -> bool {
        let mut report = Report::default();
        Memory(BTreeMap::from([("a1".to_owned(), (0..100).map(|n| 20_000 + n * kb_each).collect())]))
            .judge(&mut report);
        report.figures.verdict() == Verdict::Holds
    }

    #[test]
    fn memory_that_grows_all_the_time_fails_and_a_flat_one_passes() {
        assert!(grows_by(0));
        assert!(grows_by(1));
        assert!(!grows_by(5));
        let mut report = Report::default();
        Memory::default().judge(&mut report);
        assert_eq!(report.figures.verdict(), Verdict::Missed);
    }
}
