//! Fill of the front end's bounded tables: metrics, and alarms before one is full.

use sluicegate_api::TableStatus;
use sluicegate_bounded::Gauge;
use sluicegate_telemetry::{Family, Metric};

const USED: Family = Family::gauge("sluicegate_frontend_table_used", &["table"], "Entries in use, by table.");
const MAX: Family = Family::gauge("sluicegate_frontend_table_max", &["table"], "Entries possible, by table.");

/// These refuse nothing: what is new takes the place of what is worth least, so that full is their normal state.
const MEMORIES: [&str; 9] = [
    "decisions",
    "guesses",
    "guesses_known",
    "hung_up",
    "limits_held",
    "lingering",
    "members",
    "peer_rates",
    "responses_passed",
];

/// The fill of each table; those that each shard has are summed.
pub(crate) fn summed(gauges: impl IntoIterator<Item = Gauge>) -> Vec<TableStatus> {
    let mut sums: Vec<TableStatus> = Vec::new();
    for Gauge { name, used, max } in gauges {
        match sums.iter_mut().find(|known| known.table == name) {
            Some(sum) => (sum.used, sum.max) = (sum.used + used, sum.max + max),
            None => sums.push(TableStatus { table: name.into(), used, max }),
        }
    }
    sums
}

/// What is not well with them.
pub(crate) fn alarms(tables: &[TableStatus]) -> impl Iterator<Item = String> {
    tables.iter().filter(|table| !MEMORIES.contains(&&*table.table)).filter_map(TableStatus::alarm)
}

pub(crate) fn metrics(tables: &[TableStatus]) -> [Metric; 2] {
    let by = |family: &'static Family, value: fn(&TableStatus) -> u64| {
        family.by(tables.iter().map(|table| (table.table.clone(), value(table))))
    };
    [by(&USED, |table| table.used), by(&MAX, |table| table.max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_nearly_full_in_all_threads_together_is_an_alarm() {
        let of = |used| [Gauge::of("exchanges", used, 10), Gauge::of("exchanges", 9, 10), Gauge::of("nothing", 0, 0)];
        let alarmed = |used| alarms(&summed(of(used))).collect::<Vec<_>>();
        assert_eq!((alarmed(8), alarmed(9)), (vec![], vec!["table exchanges is nearly full: 18 of 20".to_owned()]));
        assert_eq!(metrics(&summed(of(9))).map(|metric| metric.samples[0].1), [18.0, 20.0]);
    }

    #[test]
    fn a_memory_that_forgets_what_is_worth_least_may_be_full() {
        let full = summed(MEMORIES.map(|name| Gauge::of(name, 10, 10)));
        assert_eq!((full.len(), alarms(&full).count()), (MEMORIES.len(), 0));
    }
}
