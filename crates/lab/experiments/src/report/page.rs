use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Figure, InPhase, Report, Verdict, svg};
use sluicegate_site::LabError;

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2024; --soft: #5c6670; --line: #d9dee3; --good: #1b7f4b;
  --bad: #c62828; --unsure: #9a6a00; }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #dfe4ea; --soft: #aab2bb; --line: #343b43;
  --good: #5ccf94; --bad: #ff7a70; --unsure: #e8b84a; } }
body { margin: 0 auto; max-width: 1000px; padding: 2rem 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.holds { color: var(--good); } .missed { color: var(--bad); } .disturbed { color: var(--unsure); }
.about { color: var(--soft); } .story { font-size: 1.1rem; } .story p { margin: .3rem 0; }
svg { width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; } dt { font-weight: 600; } dd { margin: 0; }
.figures { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
";

pub(super) fn write(report: &Report) -> Result<String, LabError> {
    let picture = svg::draw(report, false)?;
    let verdict = report.figures.verdict();
    let failed: Vec<_> = report.figures.failed().collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (report.title) ": " (verdict.word()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.title) ": " span class=(class(verdict)) { (verdict.word()) } }
                p.about { (report.about) }
                div.story { @for line in &report.story { p { (line) } } }
                (PreEscaped(picture))
                h2 { "Phases" }
                dl { @for phase in &report.phases {
                    dt { (phase.name) } dd { (phase.about) " Seconds " (phase.from_s) " to " (phase.to_s) "." }
                } }
                @if !failed.is_empty() {
                    h2 { "What does not hold" }
                    (table(&failed))
                }
                h2 { "Every figure" }
                details { summary { (report.figures.len()) " figures" } (table(&report.figures.iter().collect::<Vec<_>>())) }
                p.about { "Seed " (report.seed) ". The gate's packets: " (report.backend) "." }
            }
        }
    };
    Ok(page.into_string())
}

const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Disturbed => "disturbed",
        Verdict::Missed => "missed",
    }
}

fn table(figures: &[&Figure<InPhase>]) -> Markup {
    html! {
        div.figures { table {
            thead { tr { th { "phase" } th { "figure" } th { "value" } th { "has to be" } th { "" } } }
            tbody { @for figure in figures { tr {
                td { (figure.about.phase) }
                td { (figure.metric) }
                td.number { (super::round(figure.value)) }
                td { @if let Some(threshold) = figure.threshold { (threshold) } }
                td class=[figure.verdict.map(class)] { @if let Some(verdict) = figure.verdict { (verdict) } }
            } } }
        } }
    }
}
