//! What follows from the paper by arithmetic alone, against the sizes that the software has.

use sluicegate_capability::lines::lines_needed;
use sluicegate_flow::Line4;
use sluicegate_wire::capability::Limits;

use super::{Claim, Level, Outcome, Paper, Setting};

/// The paper's router: input link in bits per second.
const LINK_BPS: u64 = 1_000_000_000;
/// The paper's slowest capability: bytes, and seconds.
const SLOWEST: (u64, u64) = (4_000, 10);

pub(super) const TVA_13: Claim = Claim {
    id: "TVA-13",
    paper: Paper::Tva,
    source: "III-F",
    expected: "C/(N/T)min = 312500 records at 1 Gb/s and 4 kB/10 s; at most 100 B each, at most 32 MB",
    tolerance: "exact",
    level: Level::Exact,
    run: router_state,
};

/// The records that a router needs so that none has to be reclaimed early, and their size here.
fn router_state(_: &Setting) -> Outcome {
    let records = records(LINK_BPS, SLOWEST);
    let needed = Limits::new(4, 10).map_or(0, |least| lines_needed(LINK_BPS, least));
    let line_bytes = size_of::<Line4>() as u64;
    let megabytes = records * line_bytes / 1_000_000;
    // The paper's sentence about 4K bytes means thousands: with 4,096 bytes the bound would be another.
    let with_kib = LINK_BPS / 8 * SLOWEST.1 / 4_096;
    Outcome::new(
        records == 312_500
            && needed == records
            && with_kib == 305_175
            && line_bytes <= 100
            && records * line_bytes <= 32_000_000,
        format!("{records} records of {line_bytes} B = {megabytes} MB"),
    )
}

/// How many capabilities can be used faster than their N/T at once: link rate over the slowest N/T.
const fn records(link_bps: u64, (bytes, seconds): (u64, u64)) -> u64 {
    link_bps / 8 * seconds / bytes
}
