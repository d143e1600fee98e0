//! Plots as SVG that follow the reader's light or dark scheme.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::grid::name_of;
use super::report::{Axis, Compared, StudyReport};
use super::svg::{FONT, GRID, INK, PAPER, tidy};
use crate::metric::{LatencyPoint, Metric, grouped};

/// Lines over named positions on the x axis: 0, 1, 5, 10, 50 and 100 ms stand at equal distances.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) places: Vec<String>,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    pub(crate) metric: Metric,
    pub(crate) lines: Vec<ChartLine>,
    /// The least value above zero and the largest that the scale must cover, for charts that stand side by side.
    pub(crate) bounds: Option<(f64, f64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct ChartLine {
    pub(crate) name: String,
    /// The index among all lines of the report, so that a line has one colour in all charts.
    pub(crate) colour: usize,
    /// Position, median, minimum and maximum.
    pub(crate) points: Vec<(usize, f64, Range<f64>)>,
}

/// The charts of a report, in order.
pub(crate) fn charts(report: &StudyReport) -> Vec<Chart> {
    let mut charts = Vec::new();
    for axis in report.axes() {
        let mut scenarios: Vec<&str> =
            report.cells.iter().filter(|c| c.axis == axis).map(|c| &*c.scenario).collect();
        distinct(&mut scenarios);
        let systems: Vec<&str> = report.systems.iter().map(|system| system.name.as_str()).collect();
        let (charted, lines) = match report.compared {
            Compared::Systems => (&scenarios, &systems),
            Compared::Scenarios => (&systems, &scenarios),
        };
        for metric in report.metrics(axis).into_iter().filter(|metric| is_charted(axis, *metric)) {
            let first = charts.len();
            for one in charted {
                let name = |line: &str| match report.compared {
                    Compared::Systems => (one.to_string(), line.to_owned()),
                    Compared::Scenarios => (line.to_owned(), one.to_string()),
                };
                charts.extend(chart(report, axis, metric, one, lines, &name));
            }
            if report.compared == Compared::Scenarios {
                // Systems are compared across these charts, so they share a scale.
                let all = charts[first..].iter().filter_map(Chart::extremes);
                let bounds = all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
                charts[first..].iter_mut().for_each(|chart| chart.bounds = bounds);
            }
        }
    }
    charts
}

/// The metrics that are drawn if they were measured.
const CHARTED: [Metric; 6] = [
    Metric::Rate,
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

/// One chart; `None` if nothing was measured for it. `name` returns scenario and system of a line.
fn chart(
    report: &StudyReport,
    axis: Axis,
    metric: Metric,
    title: &str,
    lines: &[&str],
    name: &dyn Fn(&str) -> (String, String),
) -> Option<Chart> {
    let mut places: Vec<f64> = Vec::new();
    let mut drawn: Vec<(usize, &str, Vec<Measure>)> = Vec::new();
    let scale = scale_of(metric);
    for (colour, line) in lines.iter().enumerate() {
        let (scenario, system) = name(line);
        let cells = report
            .cells
            .iter()
            .filter(|cell| cell.axis == axis && cell.scenario == scenario && cell.system == system);
        let points: Vec<Measure> = cells
            .filter_map(|cell| {
                cell.summary(metric).map(|s| (cell.at, scale * s.median, scale * s.min..scale * s.max))
            })
            .collect();
        places.extend(points.iter().map(|(at, ..)| *at));
        if !points.is_empty() {
            drawn.push((colour, line, points));
        }
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    let place = |at: f64| places.iter().position(|known| *known == at).unwrap_or(0);
    let lines = drawn.into_iter().map(|(colour, name, points)| ChartLine {
        name: name.to_owned(),
        colour,
        points: points.into_iter().map(|(at, middle, spread)| (place(at), middle, spread)).collect(),
    });
    (!places.is_empty()).then(|| Chart {
        title: format!("{title}: {}", name_of(metric)),
        places: places.iter().map(f64::to_string).collect(),
        x_label: axis.label().to_owned(),
        y_label: unit_of(metric).to_owned(),
        metric,
        lines: lines.collect(),
        bounds: None,
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
    /// Draws the chart; draws nothing if no value is above zero.
    ///
    /// # Errors
    /// An error of the plotting library; none is expected.
    pub(crate) fn svg(&self) -> Result<String, String> {
        let mut out = String::new();
        self.draw(&mut out).map_err(|error| error.to_string())?;
        Ok(tidy(&out))
    }

    /// The least value above zero, and the largest.
    fn extremes(&self) -> Option<(f64, f64)> {
        let values = self.lines.iter().flat_map(|line| line.points.iter().map(|(_, middle, _)| *middle));
        let positive = values.filter(|value| *value > 0.0).map(|value| (value, value));
        positive.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// The end of a linear scale, with room for whiskers within reason.
    fn highest(&self, high: f64) -> f64 {
        let ends = self.lines.iter().flat_map(|line| line.points.iter().map(|(_, _, spread)| spread.end));
        ends.fold(high, f64::max).min(high * MOST_FOR_WHISKERS)
    }

    fn draw(&self, out: &mut String) -> Result<(), Box<dyn Error>> {
        let Some((low, high)) = self.extremes().map(|own| self.bounds.unwrap_or(own)) else { return Ok(()) };
        let height = PANEL.1 + LEGEND_ROW * self.lines.len() as u32;
        let root = SVGBackend::with_string(out, (PANEL.0, height)).into_drawing_area();
        root.fill(&PAPER)?;
        let (panel, legend) = root.split_vertically(PANEL.1);
        let x = -0.4..self.places.len() as f64 - 0.6;
        if high / low > LOGARITHMIC_FROM {
            self.draw_panel(&panel, x, decades(low, high).log_scale())?;
        } else {
            self.draw_panel(&panel, x, 0.0..self.highest(high) * 1.08)?;
        }
        self.draw_legend(&legend)?;
        root.present()?;
        Ok(())
    }

    fn draw_panel<Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: Range<f64>,
        y: Y,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 16).into_font().color(&INK))
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        let least = chart.as_coord_spec().y_spec().range().start;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(&self.y_label)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(PAPER)
            .label_style((FONT, 12).into_font().color(&INK))
            .axis_desc_style((FONT, 13).into_font().color(&INK))
            .y_label_formatter(&|value| self.show(*value))
            .draw()?;
        for line in &self.lines {
            let style = colour(line.colour).stroke_width(2);
            // Zero cannot be shown on a logarithmic scale.
            let drawn = || line.points.iter().filter(|(_, middle, _)| *middle >= least);
            let middles: Vec<(f64, f64)> =
                drawn().map(|(place, middle, _)| (*place as f64, *middle)).collect();
            for (place, _, spread) in drawn() {
                let whisker =
                    [(*place as f64, spread.start.max(least)), (*place as f64, spread.end.max(least))];
                chart.draw_series([PathElement::new(whisker, colour(line.colour).stroke_width(1))])?;
            }
            chart.draw_series(middles.iter().map(|&at| Circle::new(at, 3, style.filled())))?;
            chart.draw_series(LineSeries::new(middles, style))?;
        }
        self.draw_places(area, &chart)
    }

    /// The names of the places below the axis.
    fn draw_places<'a, Y: Ranged<ValueType = f64>>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, Shift>,
        chart: &ChartContext<'a, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
    ) -> Result<(), Box<dyn Error>> {
        use plotters::style::text_anchor::{HPos, Pos, VPos};
        let centred = |size: u32| (FONT, size).into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
        let (from, to) = chart.plotting_area().get_pixel_range();
        for (place, name) in self.places.iter().enumerate() {
            let share = (place as f64 + 0.4) / (self.places.len() as f64 - 0.2);
            let x = from.start + (share * f64::from(from.end - from.start)) as i32;
            area.draw(&Text::new(name.clone(), (x, to.end + 5), centred(12)))?;
        }
        let middle = (from.start + from.end) / 2;
        area.draw(&Text::new(self.x_label.clone(), (middle, to.end + 22), centred(13)))?;
        Ok(())
    }

    fn draw_legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        for (row, line) in self.lines.iter().enumerate() {
            let y = row as i32 * LEGEND_ROW as i32;
            let style = colour(line.colour).stroke_width(3);
            area.draw(&PathElement::new([(80, y + 6), (108, y + 6)], style))?;
            let text = (FONT, 12).into_font().color(&INK);
            area.draw(&Text::new(line.name.clone(), (116, y), text))?;
        }
        Ok(())
    }

    fn show(&self, value: f64) -> String {
        if value == 0.0 {
            return "0".into();
        }
        // A value that rounding has left just below a round number is that number.
        let value = value * (1.0 + 1e-9);
        match self.metric {
            Metric::Rate | Metric::Rss | Metric::RssEach | Metric::Cpu if value < 1000.0 => {
                format!("{}", (value * 1000.0).round() / 1000.0)
            }
            Metric::Rss | Metric::RssEach => grouped(value),
            metric => metric.show(value).trim_end_matches("/s").to_owned(),
        }
    }
}

/// Whole decades around values, and slightly more: rounding must not omit the label at an end.
fn decades(low: f64, high: f64) -> Range<f64> {
    const TRIFLE: f64 = 1e-9;
    10f64.powf(low.log10().floor()) * (1.0 - TRIFLE)..10f64.powf(high.log10().ceil()) * (1.0 + TRIFLE)
}

/// Distinguishable with a colour vision deficiency, on bright and on dark backgrounds.
fn colour(number: usize) -> RGBColor {
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

/// Pixels of the part above the legend.
const PANEL: (u32, u32) = (480, 340);
const LEGEND_ROW: u32 = 18;
/// A single bad round must not flatten all the others: whiskers longer than this, in largest medians, are cut.
const MOST_FOR_WHISKERS: f64 = 1.5;
/// The scale is logarithmic if the largest value is more than this many times the least one.
const LOGARITHMIC_FROM: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::super::svg::STYLE;
    use super::*;

    #[test]
    fn systems_share_a_chart_for_each_scenario_or_the_other_way_round() {
        let mut report = report();
        let titles = |report: &StudyReport| charts(report).into_iter().map(|c| c.title).collect::<Vec<_>>();
        let expected =
            ["publish: rate", "publish & confirm: rate", "publish: time p99", "publish & confirm: time p99"];
        assert_eq!(titles(&report), expected);
        report.compared = Compared::Scenarios;
        assert_eq!(titles(&report)[..2], ["direct: rate", "proxy: rate"]);
        let lines: Vec<_> = charts(&report)[0].lines.iter().map(|line| line.name.clone()).collect();
        assert_eq!(lines, ["publish", "publish & confirm"]);
    }

    #[test]
    fn a_chart_has_a_line_for_each_and_names_its_places() {
        let charts = charts(&report());
        let svg = charts[0].svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(svg.matches("h0").count(), 4);
        for text in ["publish: rate", "direct", "proxy", "round trip in ms", "per second", "50"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(charts[1].svg().unwrap().contains("publish &amp; confirm"), "what is not SVG is escaped");
    }

    #[test]
    fn paper_ink_and_grid_follow_the_scheme() {
        let svg = charts(&report())[0].svg().unwrap();
        for colour in ["fill=\"#FEFEFE\"", "fill=\"#222223\"", "stroke=\"#DDDDDE\""] {
            assert!(svg.contains(colour) && STYLE.contains(&format!("[{colour}]{{")), "{colour}");
        }
    }

    #[test]
    fn a_scale_of_decades_has_labels_at_both_ends_and_no_place_for_nothing() {
        let mut chart = charts(&report()).remove(0);
        chart.metric = Metric::Latency(LatencyPoint::P99);
        chart.lines[0].points = vec![(0, 0.0, 0.0..0.0), (1, 0.000_002, 0.0..0.5)];
        chart.lines[1].points = vec![(0, 0.05, 0.05..0.05), (1, 0.9, 0.8..0.9)];
        let svg = chart.svg().unwrap();
        assert!(svg.contains(">1.00 µs<") && svg.contains(">1.00 s<"), "{svg}");
        assert_eq!(svg.matches("h0").count(), 3, "{svg}");
    }

    #[test]
    fn memory_is_counted_in_what_makes_round_labels() {
        let mut chart = charts(&report()).remove(0);
        chart.metric = Metric::Rss;
        assert_eq!([0.0, 99.999_999_999, 2500.0].map(|value| chart.show(value)), ["0", "100", "2,500"]);
        chart.metric = Metric::Cpu;
        assert_eq!(chart.show(0.0025), "0.003");
        chart.metric = Metric::Latency(LatencyPoint::P50);
        assert_eq!(chart.show(0.000_099_999_999_99), "100 µs");
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        let mut chart = charts(&report()).remove(0);
        chart.lines.clear();
        assert_eq!(chart.svg().unwrap(), "");
    }
}
