//! What an experiment measured: a row for each figure of each case under each scheme, and how long transfers took.

use plotters::{
    chart::ChartBuilder,
    drawing::IntoDrawingArea,
    prelude::{LineSeries, PathElement, SVGBackend},
    style::{Color, WHITE},
};
use serde::Serialize;
use serde_json::json;

use super::{COLOURS, Figures, GREY, Judge};
use sluicegate_site::LabError;
use sluicegate_traffic::client::transfer::Transfer;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 480;

/// What a figure is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Name of the run.
    pub run: &'static str,
    /// What happened: `calm`, or the attack.
    pub case: String,
    /// What forwarded: `plain` or `tva`, or the gate's back end.
    pub scheme: &'static str,
    /// What a paper has in this place, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<&'static str>,
}

/// All figures of a run, and the times of its transfers.
#[derive(Debug, Clone, Default)]
pub struct Report {
    run: &'static str,
    /// In the order in which they were measured.
    pub figures: Figures<Case>,
    distributions: Vec<Distribution>,
}

/// Times of transfers under one scheme in one case; those that failed are in the number only.
#[derive(Debug, Clone)]
struct Distribution {
    label: String,
    started: usize,
    ms: Vec<u64>,
}

impl Report {
    /// Of the run of this name, which nothing was measured of yet.
    pub(crate) fn new(run: &'static str) -> Self {
        Self { run, ..Self::default() }
    }

    /// Adds figures about a case under a scheme.
    pub(crate) fn of(&mut self, (case, scheme): (&str, &'static str)) -> Judge<'_, Case> {
        self.figures.about(Case { run: self.run, case: case.to_owned(), scheme, paper: None })
    }

    pub(crate) fn add_distribution(&mut self, (case, scheme): (&str, &'static str), transfers: &[Transfer]) {
        let mut ms: Vec<u64> = transfers.iter().filter(|one| one.error.is_none()).map(|one| one.ms).collect();
        ms.sort_unstable();
        self.distributions.push(Distribution { label: format!("{scheme}, {case}"), started: transfers.len(), ms });
    }

    /// One JSON object a line; the last is a summary.
    #[must_use]
    pub fn to_json_lines(&self) -> String {
        let lines = self.figures.iter().map(|figure| json!(figure).to_string());
        let summary =
            json!({ "run": self.run, "figures": self.figures.len(), "verdict": self.figures.verdict() }).to_string();
        lines.chain([summary]).map(|line| line + "\n").collect()
    }

    /// Cumulative share of the started transfers that were complete after a time.
    ///
    /// # Errors
    /// If the picture cannot be drawn.
    pub fn to_svg(&self) -> Result<String, LabError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| LabError::Report(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let longest = self.distributions.iter().filter_map(|one| one.ms.last()).max().copied().unwrap_or(1).max(1);
        let mut chart = ChartBuilder::on(&root)
            .caption("20 KB transfers: share complete within a time", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..longest as f64 / 1_000.0, 0.0..1.0)?;
        chart.configure_mesh().x_desc("seconds").y_desc("share of started transfers").draw()?;
        for (distribution, colour) in self.distributions.iter().zip(COLOURS.iter().cycle()) {
            let points = distribution.points(longest);
            let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            let colour = *colour;
            series
                .label(distribution.label.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GREY).draw()?;
        root.present()?;
        Ok(())
    }
}

impl Judge<'_, Case> {
    /// The same for a figure that a paper has, too.
    pub(crate) fn beside(&mut self, paper: &'static str) -> Judge<'_, Case> {
        let mut judge = self.timed(self.is_disturbed);
        judge.about.paper = Some(paper);
        judge
    }
}

impl Distribution {
    /// Steps of the cumulative distribution, drawn on to the longest time of all.
    fn points(&self, longest_ms: u64) -> Vec<(f64, f64)> {
        let started = self.started.max(1) as f64;
        let mut points = vec![(0.0, 0.0)];
        for (index, ms) in self.ms.iter().enumerate() {
            let at = *ms as f64 / 1_000.0;
            points.push((at, index as f64 / started));
            points.push((at, (index + 1) as f64 / started));
        }
        points.push((longest_ms as f64 / 1_000.0, self.ms.len() as f64 / started));
        points
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn transfer(ms: u64, complete: bool) -> Transfer {
        let error = (!complete).then(|| "late".to_owned());
        Transfer { started_ns: 0, ms, connect_ms: Some(1), error }
    }

    #[test]
    fn a_missed_threshold_fails_the_run_and_a_reported_figure_does_not() {
        let mut report = Report::default();
        report.of(("legacy", "tva")).at_least("complete_share", 1.0, 1.0);
        report.of(("legacy", "tva")).note("p99_ms", 1e9);
        assert_eq!(report.figures.verdict(), Verdict::Holds);
        report.of(("legacy", "plain")).at_most("complete_share", 0.2, 0.05);
        assert_eq!(report.figures.verdict(), Verdict::Missed);
        let lines = report.to_json_lines();
        assert_eq!(lines.lines().count(), 4);
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!((&first["case"], &first["scheme"], &first["run"]), (&json!("legacy"), &json!("tva"), &json!("")));
        assert!(lines.lines().last().unwrap().contains("\"verdict\":\"missed\""));
    }

    #[test]
    fn transfers_that_failed_lower_the_end_of_the_curve() {
        let mut report = Report::default();
        report.add_distribution(("legacy", "plain"), &[transfer(100, true), transfer(10_000, false)]);
        assert_eq!(report.distributions[0].points(500).last(), Some(&(0.5, 0.5)));
        assert!(report.to_svg().unwrap().contains("plain, legacy"));
    }
}
