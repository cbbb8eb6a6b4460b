//! How many bytes a capability carries, against an adversary and a model that forgets nothing.

use sluicegate_capability::lines::model::{Site, tva_12};

use super::{Claim, Level, Outcome, Paper, Setting};

/// Packets over all sites: in a full run, and in a short one.
const PACKETS: u64 = 100_000_000;
const PACKETS_SHORT: u64 = 1_000_000;

pub(super) const TVA_12: Claim = Claim {
    id: "TVA-12",
    paper: Paper::Tva,
    source: "III-F",
    expected: "a capability carries at most N bytes without memory pressure and at most 2N ever: 0 violations",
    tolerance: "exact, in 10^8 packets of an adversary",
    level: Level::Exact,
    run: against_the_model,
};

fn against_the_model(setting: &Setting) -> Outcome {
    let packets = if setting.short { PACKETS_SHORT } else { PACKETS };
    let (mut sent, mut capabilities, mut reclaimed, mut violations) = (0, 0, 0, 0);
    let (mut calm, mut pressed) = (0.0_f64, 0.0_f64);
    for site in Site::ALL {
        let outcome = tva_12(site, packets / Site::ALL.len() as u64, setting.seed);
        sent += outcome.packets;
        capabilities += outcome.capabilities;
        reclaimed += outcome.reclaimed;
        violations += outcome.violations;
        let most = if site.has_memory_pressure() { &mut pressed } else { &mut calm };
        *most = most.max(outcome.most);
    }
    Outcome::new(
        violations == 0 && sent >= packets && capabilities > 0 && reclaimed > 0,
        format!(
            "{violations} violations in {sent} packets of {capabilities} capabilities, {reclaimed} lines reclaimed; \
             most {calm:.3} N without memory pressure, {pressed:.3} N with it"
        ),
    )
}
