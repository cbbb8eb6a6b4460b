//! What a packet costs in the capability router: TVA's Table I, and two floors measured in the same run.
//!
//! Each row is the time from an IP packet in memory to its class: parse, look up, check, change. Packets are as short
//! as a 64-byte Ethernet frame allows. They are written in batches before the clock starts, so that what is measured
//! is the router alone; reading the clock twice is included (well below 1 ns a packet). `.hot`: everything the router
//! needs is in the processor's cache. `.random_1m`: packets of 2^20 flows in random order.

mod floor;
mod stage;

use self::{
    floor::Floors,
    stage::{Order, Stage, Work},
};
use super::{Median, Options, RUNS, Row, Run, Summary, busy_before, no_row};
use sluicegate_site::LabError;

const UNIT: &str = "ns";
const PAPER: &str = "paper (2.6 GHz Opteron, 2006)";
/// Packets of a row over all runs, and of a short one.
const PACKETS: u64 = 10_200_000;
const PACKETS_SHORT: u64 = 1_020_000;
/// Packets of a run through a table that is empty at first: they fill an eighth of it.
const TABLE_PACKETS: u64 = 1 << 18;

/// A row: what the router is given, and what the paper's prototype took for it (Table I).
#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
    work: Work,
    paper_ns: f64,
}

const FIGURES: [Figure; 6] = [
    Figure { name: "regular_cached", work: Work::RegularCached, paper_ns: 9.0 },
    Figure { name: "request", work: Work::Request, paper_ns: 313.0 },
    Figure { name: "renewal_cached", work: Work::RenewalCached, paper_ns: 341.0 },
    Figure { name: "regular_uncached", work: Work::RegularUncached, paper_ns: 628.0 },
    Figure { name: "renewal_uncached", work: Work::RenewalUncached, paper_ns: 852.0 },
    Figure { name: "request_under_attack", work: Work::RequestUnderAttack, paper_ns: 1_378.0 },
];
const ORDERS: [Order; 2] = [Order::Hot, Order::Random];
/// What a packet of an unknown flow costs when every line is taken, beside what it costs when none is: 1 M lines.
const FULL_TABLE: &str = "full_table";

impl Figure {
    fn row(&self, order: Order) -> String {
        format!("{}.{}", self.name, order.into_str())
    }
}

/// Measures, and hands each row to `tell`.
///
/// # Errors
/// [`LabError::Plan`] for a row that does not exist. A row whose packets did not pass as they should is no error: it is
/// [`Summary::missing`].
pub fn capability(options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let wanted = wanted(options.only.as_deref())?;
    let mut run = Run::begin("capability", busy_before()?, tell);
    let packets = if options.short { PACKETS_SHORT } else { PACKETS };
    let mut floors = Floors::new();
    let mut measured = Vec::new();
    for (figure, order) in wanted {
        let mut stage = Stage::new(figure.work, order);
        let mut costs = Vec::new();
        for _ in 0..RUNS {
            floors.measure();
            match stage.run(packets / RUNS as u64) {
                Ok(cost) => costs.push(cost),
                Err(error) => run.miss(format!("{}: {error}", figure.row(order))),
            }
        }
        measured.extend(Median::of(&costs).map(|median| (figure, order, median)));
    }
    let mut tables = [Vec::new(), Vec::new()];
    if is_full_table_wanted(options.only.as_deref()) {
        let mut stages = [(), ()].map(|()| Stage::new(Work::RegularUncached, Order::Random));
        for _ in 0..RUNS {
            stages[1].empty();
            for (stage, costs) in stages.iter_mut().zip(&mut tables) {
                match stage.run(TABLE_PACKETS) {
                    Ok(cost) => costs.push(cost),
                    Err(error) => run.miss(format!("{FULL_TABLE}: {error}")),
                }
            }
        }
    }
    let floors: Vec<_> = floors.values().filter_map(|(name, costs)| Some((Median::of(costs)?, name))).collect();
    for (median, name) in &floors {
        run.row(name, UNIT, *median, None, None);
    }
    for (figure, order, median) in measured {
        for peer in [(Median::given(figure.paper_ns), PAPER)].into_iter().chain(floors.iter().map(without_spread)) {
            run.row(&figure.row(order), UNIT, median, Some(peer), None);
        }
    }
    if let [Some(full), Some(empty)] = tables.map(|costs| Median::of(&costs)) {
        run.row(FULL_TABLE, UNIT, full, Some(without_spread(&(empty, "empty_table"))), None);
    }
    Ok(run.end())
}

/// The spread of a row is ours.
fn without_spread<'n>((peer, name): &(Median, &'n str)) -> (Median, &'n str) {
    (Median::given(peer.value()), name)
}

fn is_full_table_wanted(only: Option<&str>) -> bool {
    FULL_TABLE.starts_with(only.unwrap_or_default())
}

/// The rows of Table I that start with `only`.
fn wanted(only: Option<&str>) -> Result<Vec<(Figure, Order)>, LabError> {
    let only = only.unwrap_or_default();
    let all = FIGURES.into_iter().flat_map(|figure| ORDERS.map(|order| (figure, order)));
    let wanted: Vec<_> = all.filter(|(figure, order)| figure.row(*order).starts_with(only)).collect();
    if wanted.is_empty() && !is_full_table_wanted(Some(only)) {
        let names = FIGURES.map(|figure| figure.name).join(", ");
        return Err(no_row(only, &format!("{names}, each .hot and .random_1m, and {FULL_TABLE}")));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_takes_the_way_through_the_router_that_its_name_says() {
        for figure in FIGURES {
            let cost = Stage::new(figure.work, Order::Hot).run(10_000);
            assert!(cost.as_ref().is_ok_and(|cost| *cost > 0.0), "{}: {cost:?}", figure.name);
        }
    }

    #[test]
    fn one_row_can_be_asked_for_and_an_unknown_one_is_refused_with_the_names() {
        assert_eq!(wanted(None).unwrap().len(), 12);
        assert_eq!(wanted(Some("request.hot")).unwrap().len(), 1);
        assert_eq!(wanted(Some("request")).unwrap().len(), 4);
        assert_eq!(wanted(Some("full_table")).unwrap().len(), 0);
        assert!(wanted(Some("speed")).unwrap_err().to_string().contains("regular_cached"));
    }
}
