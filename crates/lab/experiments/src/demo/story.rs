//! What the demo asks and what came out, in words.

use super::{
    Options,
    files::SERVICES,
    verdict::{FLOOD_RATIO_MIN, Measured},
};
use crate::report::{Figure, InPhase, Report, Verdict};

/// What was asked of the whole run.
pub(super) fn about(options: &Options) -> String {
    let (services, link) = (SERVICES.len(), options.site.link_rate_bps as f64 / 1e6);
    format!(
        "{services} services stand behind a real gate and a link of {link} Mbit/s. Callers, phones and downloads use them \
         while a flood of more than {FLOOD_RATIO_MIN} times the link comes in: strangers' packets, and forgeries of every kind. \
         Everything is measured outside the programs under test."
    )
}

/// What happens in a phase; empty of one that is nobody's.
pub(super) fn of(phase: &str) -> &'static str {
    match phase {
        "calm" => "Nobody attacks: what is usual here.",
        "gate off" => "The flood begins, and a plain router stands in the gate's place: a service without protection.",
        "gate on" => "The same flood, and the gate: what has no permission is dropped before the link.",
        "both" => "The same, and the front end that phones sign in at is flooded as well.",
        "insider" => "The flood is over. Mallory, who may call, floods inside her grant: she gets what it is worth.",
        _ => "",
    }
}

/// Three lines for somebody who reads nothing else.
pub(super) fn tell(report: &Report, measured: &[Measured]) -> Vec<String> {
    let [_, off, on, both, _] = measured else { return vec![verdict(report)] };
    let ratio = off.offered_bps / report.link_rate_bps.max(1) as f64;
    let gate_off = format!(
        "Without the gate, a flood of {:.0} Mbit/s, {ratio:.0} times the link, took {:.0} % of all call packets.",
        off.offered_bps / 1e6,
        lost_percent(&[off])
    );
    let with = [on, both];
    let strangers: u64 = with.iter().map(|phase| phase.stranger_bytes).sum();
    let (mut files, mut arrived, mut calls, mut answered) = (0, 0, 0, 0);
    for (transfers, setups) in with.iter().flat_map(|phase| phase.transfers.iter().zip(&phase.setups)) {
        (files, arrived) = (files + transfers.started, arrived + transfers.complete);
        (calls, answered) = (calls + setups.started, answered + setups.established);
    }
    let gate_on = format!(
        "With it, under the same flood, {:.2} % were lost; {arrived} of {files} files and {answered} of {calls} sign-ins \
         succeeded; {strangers} bytes of strangers reached a service.",
        lost_percent(&with)
    );
    vec![gate_off, gate_on, verdict(report)]
}

fn lost_percent(phases: &[&Measured]) -> f64 {
    let calls = phases.iter().flat_map(|phase| &phase.calls);
    let (sent, received) = calls.fold((0, 0), |(sent, received), call| (sent + call.sent, received + call.received));
    if sent == 0 { 100.0 } else { sent.saturating_sub(received) as f64 * 100.0 / sent as f64 }
}

fn verdict(report: &Report) -> String {
    let of = |verdict: Verdict| report.figures.failed().filter(move |figure| figure.verdict == Some(verdict));
    let promises = report.figures.iter().filter(|figure| figure.verdict.is_some()).count();
    let named = |figures: &mut dyn Iterator<Item = &Figure<InPhase>>| {
        let names: Vec<_> =
            figures.take(3).map(|figure| format!("{} in \"{}\"", figure.metric, figure.about.phase)).collect();
        names.join(", ")
    };
    match report.figures.verdict() {
        Verdict::Holds => format!("Passed: all {promises} thresholds hold."),
        Verdict::Missed => {
            let missed = of(Verdict::Missed).count();
            format!("Failed: {missed} of {promises} thresholds do not hold: {}.", named(&mut of(Verdict::Missed)))
        }
        Verdict::Disturbed => format!(
            "Inconclusive: others had too much of this machine to judge {} of {promises} thresholds ({}). Run it again when \
             the machine is quiet.",
            of(Verdict::Disturbed).count(),
            named(&mut of(Verdict::Disturbed))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_many_hold_and_names_what_does_not() {
        let mut report = Report::default();
        report.of("calm").at_most("loss", 0.0, 0.5);
        assert_eq!(tell(&report, &[]), ["Passed: all 1 thresholds hold."]);
        report.of("calm").disturbed(true).at_most("delay", 1.0, 0.5);
        assert!(tell(&report, &[])[0].starts_with("Inconclusive: "), "{:?}", tell(&report, &[]));
        report.of("both").at_most("loss", 1.0, 0.5);
        assert_eq!(tell(&report, &[]), ["Failed: 1 of 3 thresholds do not hold: loss in \"both\"."]);
    }

    #[test]
    fn every_phase_says_what_happens_in_it() {
        for phase in ["calm", "gate off", "gate on", "both", "insider"] {
            assert!(!of(phase).is_empty(), "{phase}");
        }
    }
}
