//! The plots of a study, before they are drawn.

use std::ops::Range;

use plotters::style::{Color, HSLColor, RGBColor};

use super::grid::name_of;
use super::published::{Published, of_chart};
use super::report::{Axis, StudyReport};
use crate::metric::{LatencyPoint, Metric};

/// Panels side by side on the same axes. On the x axis are named positions: 0, 1, 5, 10, 50 and 100 ms stand at equal
/// distances.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) places: Vec<String>,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    pub(crate) metric: Metric,
    pub(crate) panels: Vec<Panel>,
    /// Published figures, as dotted lines.
    pub(crate) published: Vec<Published>,
    /// Whether the scale is logarithmic even if the values are close together, so that slopes show growth.
    pub(crate) logarithmic: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<ChartLine>,
}

#[derive(Debug, Clone)]
pub(crate) struct ChartLine {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    /// Position, median, minimum and maximum.
    pub(crate) points: Vec<(usize, f64, Range<f64>)>,
}

/// The charts of a report, in order: one for each metric and scenario, with a line for each system.
pub(crate) fn charts(report: &StudyReport) -> Vec<Chart> {
    let mut charts = Vec::new();
    for axis in report.axes() {
        let mut scenarios: Vec<&str> =
            report.cells.iter().filter(|c| c.axis == axis).map(|c| &*c.scenario).collect();
        distinct(&mut scenarios);
        for metric in report.metrics(axis).into_iter().filter(|metric| is_charted(axis, *metric)) {
            charts.extend(scenarios.iter().filter_map(|scenario| chart(report, axis, metric, scenario)));
        }
    }
    charts
}

/// The metrics that are drawn if they were measured.
const CHARTED: [Metric; 7] = [
    Metric::Rate,
    Metric::Forward,
    Metric::Latency(LatencyPoint::P50),
    Metric::Latency(LatencyPoint::P99),
    Metric::ConfirmLatency(LatencyPoint::P99),
    Metric::CpuPerMessage,
    Metric::BrokerCpuPerMessage,
];

fn is_charted(axis: Axis, metric: Metric) -> bool {
    // Idle connections cost memory, and little else.
    CHARTED.contains(&metric)
        || axis == Axis::Connections && [Metric::RssEach, Metric::Rss, Metric::Cpu].contains(&metric)
}

/// The factor from a metric's unit to that of its axis, which makes the labels round.
fn scale_of(metric: Metric) -> f64 {
    match metric {
        Metric::Rss => 1.0 / f64::from(1 << 20),
        Metric::RssEach => 1.0 / 1024.0,
        _ => 1.0,
    }
}

/// A value on the axis, the median, the minimum and the maximum.
type Measure = (f64, f64, Range<f64>);

/// One chart; `None` if nothing was measured for it.
fn chart(report: &StudyReport, axis: Axis, metric: Metric, scenario: &str) -> Option<Chart> {
    let mut places: Vec<f64> = Vec::new();
    let mut drawn: Vec<(usize, &str, Vec<Measure>)> = Vec::new();
    let scale = scale_of(metric);
    // A line has its colour by its index among all systems of the report, so that it has the same one in all charts.
    for (number, system) in report.systems.iter().enumerate() {
        let cells = report
            .cells
            .iter()
            .filter(|cell| cell.axis == axis && cell.scenario == scenario && cell.system == system.name);
        let points: Vec<Measure> = cells
            .filter_map(|cell| {
                cell.summary(metric).map(|s| (cell.at, scale * s.median, scale * s.min..scale * s.max))
            })
            .collect();
        places.extend(points.iter().map(|(at, ..)| *at));
        if !points.is_empty() {
            drawn.push((number, &system.name, points));
        }
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    let place = |at: f64| places.iter().position(|known| *known == at).unwrap_or(0);
    let lines = drawn.into_iter().map(|(number, name, points)| ChartLine {
        name: name.to_owned(),
        colour: colour(number),
        points: points.into_iter().map(|(at, middle, spread)| (place(at), middle, spread)).collect(),
    });
    (!places.is_empty()).then(|| Chart {
        places: places.iter().map(f64::to_string).collect(),
        x_label: axis.label().to_owned(),
        y_label: unit_of(metric).to_owned(),
        metric,
        panels: vec![Panel { title: format!("{scenario}: {}", name_of(metric)), lines: lines.collect() }],
        published: of_chart(&report.study, scenario, metric),
        logarithmic: false,
    })
}

fn distinct(names: &mut Vec<&str>) {
    let all = std::mem::take(names);
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

fn unit_of(metric: Metric) -> &'static str {
    match metric {
        Metric::Rate => "per second",
        Metric::Rss => "resident memory in MiB",
        Metric::RssEach => "resident memory in KiB",
        Metric::Cpu => "cores",
        _ => "time",
    }
}

impl Chart {
    /// The lines of all panels.
    pub(super) fn lines(&self) -> impl Iterator<Item = &ChartLine> {
        self.panels.iter().flat_map(|panel| &panel.lines)
    }

    /// The least value above zero, and the largest, published figures included; `None` if nothing was measured.
    pub(super) fn extremes(&self) -> Option<(f64, f64)> {
        let values = || self.lines().flat_map(|line| line.points.iter().map(|(_, middle, _)| *middle));
        if !values().any(|value| value > 0.0) {
            return None;
        }
        let values = values().chain(self.published.iter().map(|published| published.value));
        let positive = values.filter(|value| *value > 0.0).map(|value| (value, value));
        positive.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Distinguishable with a colour vision deficiency, on bright and on dark backgrounds.
pub(crate) fn colour(number: usize) -> RGBColor {
    const COLOURS: [RGBColor; 7] = [
        RGBColor(0, 114, 178),
        RGBColor(213, 94, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
        RGBColor(150, 120, 20),
        RGBColor(86, 160, 213),
        RGBColor(120, 120, 125),
    ];
    COLOURS[number % COLOURS.len()]
}

/// A colour for one of several lines that have an order: from blue for the first to red for the last.
pub(crate) fn ordered_colour(number: usize, count: usize) -> RGBColor {
    let share = number as f64 / (count.max(2) - 1) as f64;
    let (red, green, blue) = HSLColor((1.0 - share) * 0.66, 0.75, 0.45).to_backend_color().rgb;
    RGBColor(red, green, blue)
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;

    #[test]
    fn systems_share_a_chart_for_each_scenario_and_metric() {
        let report = report();
        let titles: Vec<String> =
            charts(&report).into_iter().flat_map(|c| c.panels).map(|panel| panel.title).collect();
        let expected =
            ["publish: rate", "publish & confirm: rate", "publish: time p99", "publish & confirm: time p99"];
        assert_eq!(titles, expected);
        let lines: Vec<_> = charts(&report)[0].lines().map(|line| line.name.clone()).collect();
        assert_eq!(lines, ["direct", "proxy"]);
    }
}
