//! What a run measured: figures with thresholds, a time series, and their JSON, SVG and HTML forms.

mod page;
pub mod rows;
mod svg;

pub(crate) use svg::{COLOURS, GREY};

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    ops::Deref,
};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use sluicegate_site::{LabError, cpu::Taken};

/// Seconds of one run that are kept.
const SECONDS_MAX: usize = 3_600;

/// What a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Threshold {
    /// Whether `value` satisfies it. What is no number satisfies nothing.
    #[must_use]
    pub fn accepts(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// What became of a threshold, or of all thresholds of a run: the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is satisfied.
    Holds,
    /// It is not, and others disturbed the machine meanwhile: nothing was shown.
    Disturbed,
    /// It is not.
    Missed,
}

impl Verdict {
    /// Of a whole run, for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holds => "passed",
            Self::Disturbed => "inconclusive",
            Self::Missed => "failed",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Missed => "MISS",
            Self::Disturbed => "disturbed",
        })
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {}", round(*least)),
            Self::AtMost(most) => write!(f, "<= {}", round(*most)),
        }
    }
}

impl Serialize for Threshold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One measured figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure<A> {
    /// What it is about.
    #[serde(flatten)]
    pub about: A,
    /// What was measured; its unit is last in the name.
    pub metric: String,
    /// The value.
    pub value: f64,
    /// What it has to be; `None` if it is only reported.
    pub threshold: Option<Threshold>,
    /// Whether it is so; `None` without a threshold.
    pub verdict: Option<Verdict>,
}

/// The phase of the demo that a figure is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InPhase {
    /// Its name.
    pub phase: String,
}

/// The figures of a run, in the order in which they were measured.
#[derive(Debug, Clone)]
pub struct Figures<A>(Vec<Figure<A>>);

impl<A> Default for Figures<A> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<A> Deref for Figures<A> {
    type Target = [Figure<A>];

    fn deref(&self) -> &[Figure<A>] {
        &self.0
    }
}

impl<A> Figures<A> {
    /// Adds figures about this.
    pub(crate) const fn about(&mut self, about: A) -> Judge<'_, A> {
        Judge { figures: &mut self.0, about, is_disturbed: false }
    }

    /// Of all thresholds. A run without one has shown nothing and does not pass.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.0.iter().filter_map(|figure| figure.verdict).max().unwrap_or(Verdict::Missed)
    }

    /// Those that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Figure<A>> {
        self.0.iter().filter(|one| one.verdict.is_some_and(|verdict| verdict != Verdict::Holds))
    }
}

/// Adds figures about one thing to a run, and judges them.
pub(crate) struct Judge<'f, A> {
    figures: &'f mut Vec<Figure<A>>,
    about: A,
    is_disturbed: bool,
}

impl<A: Clone> Judge<'_, A> {
    /// For what others may have disturbed: what holds even so holds, and what does not is not judged.
    pub(crate) fn disturbed(self, is_disturbed: bool) -> Self {
        Self { is_disturbed, ..self }
    }

    /// The same beside this judge.
    pub(crate) fn timed(&mut self, is_disturbed: bool) -> Judge<'_, A> {
        Judge { figures: self.figures, about: self.about.clone(), is_disturbed }
    }

    /// Adds a figure that is only reported.
    pub(crate) fn note(&mut self, metric: &str, value: f64) {
        self.add(metric, value, None);
    }

    /// Reports what the machine's host and other programs took.
    pub(crate) fn note_taken(&mut self, taken: &Taken) {
        self.note("taken_share", taken.share);
        self.note("taken_share_in_a_second", taken.in_a_second);
        self.note("busy_share", taken.busy);
    }

    /// Adds a figure that has to be so much or more.
    pub(crate) fn at_least(&mut self, metric: &str, value: f64, least: f64) {
        self.add(metric, value, Some(Threshold::AtLeast(least)));
    }

    /// Adds a figure that has to be so much or less.
    pub(crate) fn at_most(&mut self, metric: &str, value: f64, most: f64) {
        self.add(metric, value, Some(Threshold::AtMost(most)));
    }

    fn add(&mut self, metric: &str, value: f64, threshold: Option<Threshold>) {
        let verdict = threshold.map(|threshold| match (threshold.accepts(value), self.is_disturbed) {
            (true, _) => Verdict::Holds,
            (false, false) => Verdict::Missed,
            (false, true) => Verdict::Disturbed,
        });
        let (about, metric) = (self.about.clone(), metric.to_owned());
        self.figures.push(Figure { about, metric, value, threshold, verdict });
    }
}

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// What happens in it, in a sentence.
    pub about: String,
    /// When it began, seconds since the start of the run.
    pub from_s: u32,
    /// When it ended.
    pub to_s: u32,
}

/// One second of a run. What was not measured in it is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the start of the run.
    pub at_s: u32,
    /// Bits of honest clients that reached the services.
    pub goodput_bps: Option<f64>,
    /// Bits offered at the gate's outside port.
    pub offered_bps: Option<f64>,
    /// Share of the calls' packets that were lost, 0 to 1.
    pub loss: Option<f64>,
    /// 99th percentile of the calls' delay, milliseconds.
    pub delay_p99_ms: Option<f64>,
    /// SIP set-ups established.
    pub setups: Option<f64>,
    /// Packets that the gate dropped, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// A whole run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What ran.
    pub title: String,
    /// What was asked, in a sentence.
    pub about: String,
    /// What came out, in three lines that need no other knowledge.
    pub story: Vec<String>,
    /// The seed that repeats it.
    pub seed: u64,
    /// Rate of the protected link, bits a second.
    pub link_rate_bps: u64,
    /// The gate's packet I/O back end and why that one; empty if unknown.
    pub backend: String,
    /// Its parts, in order.
    pub phases: Vec<Phase>,
    /// Its seconds, in order.
    pub seconds: Vec<Second>,
    /// Its figures, in the order in which they were measured.
    pub figures: Figures<InPhase>,
}

impl Report {
    /// Adds figures about a phase.
    pub(crate) fn of(&mut self, phase: &str) -> Judge<'_, InPhase> {
        self.figures.about(InPhase { phase: phase.to_owned() })
    }

    /// The second `at_s`, made if it is not there yet; `None` beyond the longest run.
    pub fn second(&mut self, at_s: u32) -> Option<&mut Second> {
        let index = usize::try_from(at_s).ok().filter(|index| *index < SECONDS_MAX)?;
        for missing in self.seconds.len()..=index {
            self.seconds.push(Second { at_s: u32::try_from(missing).unwrap_or(u32::MAX), ..Second::default() });
        }
        self.seconds.get_mut(index)
    }

    /// One JSON object a line: every figure, and last a summary with the time series.
    #[must_use]
    pub fn to_json_lines(&self) -> String {
        let mut text = String::new();
        for figure in self.figures.iter() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{}", json!(figure));
        }
        let failed: Vec<_> = self.figures.failed().collect();
        let summary = json!({
            "summary": self.title, "story": self.story, "verdict": self.figures.verdict(), "seed": self.seed, "link_rate_bps": self.link_rate_bps, "backend": self.backend,
            "figures": self.figures.len(), "failed": failed, "phases": self.phases, "series": self.seconds,
        });
        let _ = writeln!(text, "{summary}");
        text
    }

    /// The time series as a picture: goodput and flood, loss, delay, drops by reason; above them what came out, below what
    /// the phases are. Dark where its reader prefers that.
    ///
    /// # Errors
    /// [`LabError::Report`] if it cannot be drawn.
    pub fn to_svg(&self) -> Result<String, LabError> {
        svg::draw(self, true)
    }

    /// The picture and every figure on one page that needs no other file.
    ///
    /// # Errors
    /// As [`Report::to_svg`].
    pub fn to_html(&self) -> Result<String, LabError> {
        page::write(self)
    }
}

/// To three decimals: more are noise to a person.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report { title: "demo".to_owned(), seed: 7, link_rate_bps: 5_000_000, ..Report::default() };
        report.phases = vec![
            Phase { name: "calm".to_owned(), about: "Nobody attacks.".to_owned(), from_s: 0, to_s: 5 },
            Phase { name: "gate <off>".to_owned(), about: "A & B.".to_owned(), from_s: 5, to_s: 10 },
        ];
        for at_s in 0..10 {
            let second = report.second(at_s).unwrap();
            second.goodput_bps = Some(160_000.0);
            second.offered_bps = Some(if at_s < 5 { 0.0 } else { 6.0e7 });
            second.loss = (at_s > 0).then_some(0.1);
            second.delay_p99_ms = Some(0.3);
            second.drops = BTreeMap::from([("no_pinhole".to_owned(), u64::from(at_s) * 1_000)]);
        }
        report
    }

    #[test]
    fn a_run_passes_only_if_it_has_thresholds_and_all_hold() {
        let mut report = report();
        report.of("calm").note("offered_bps", 1.0);
        assert_eq!(report.figures.verdict(), Verdict::Missed, "nothing was required");
        report.of("calm").at_most("loss", 0.0, 0.005);
        assert_eq!(report.figures.verdict(), Verdict::Holds);
        report.of("calm").at_most("loss", f64::NAN, 0.005);
        assert_eq!(report.figures.verdict(), Verdict::Missed);
    }

    #[test]
    fn what_holds_although_others_disturbed_it_holds_and_what_does_not_shows_nothing() {
        let judged = |value: f64| {
            let mut report = Report::default();
            report.of("calm").disturbed(true).at_most("loss", value, 0.005);
            report.figures.verdict()
        };
        assert_eq!(judged(0.0), Verdict::Holds);
        assert_eq!(judged(0.1), Verdict::Disturbed);
    }

    #[test]
    fn every_json_line_is_an_object_and_the_last_is_the_summary() {
        let mut report = report();
        report.of("gate off").at_least("call_loss", 0.9, 0.5);
        let text = report.to_json_lines();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["phase"], &lines[0]["metric"]), (&json!("gate off"), &json!("call_loss")));
        assert_eq!(lines[0]["threshold"], ">= 0.5");
        assert_eq!(lines[0]["verdict"], "holds");
        assert_eq!((&lines[1]["verdict"], &lines[1]["seed"]), (&json!("holds"), &json!(7)));
        assert_eq!(lines[1]["series"].as_array().unwrap().len(), 10);
    }

    #[test]
    fn the_picture_names_every_phase_and_reason_and_is_well_formed() {
        let svg = report().to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in
            ["calm", "gate &lt;off&gt;", "A &amp; B.", "no_pinhole", "goodput", "arriving at the gate", "the link"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(Report::default().to_svg().is_ok(), "an empty run is an empty picture");
    }

    #[test]
    fn the_page_has_the_verdict_first_every_figure_and_nothing_from_elsewhere() {
        let mut report = report();
        report.story = vec!["It <holds>.".to_owned()];
        report.of("gate <off>").at_least("call_loss", 0.9, 0.5);
        report.of("calm").at_most("call_loss", 0.9, 0.5);
        let page = report.to_html().unwrap();
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(place("It &lt;holds&gt;.") < place("<svg") && place("<svg") < place("gate &lt;off&gt;"));
        assert!(place("MISS") < place("holds</td>"), "what missed comes first");
        for other in ["http://", "https://", "src=", "<script", "@import", "url("] {
            assert!(!page.replace("http://www.w3.org/", "").contains(other), "{other}");
        }
    }

    #[test]
    fn seconds_are_filled_up_and_bounded() {
        let mut report = Report::default();
        report.second(3).unwrap().setups = Some(1.0);
        assert_eq!(report.seconds.iter().map(|second| second.at_s).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(report.second(u32::MAX).is_none());
    }
}
