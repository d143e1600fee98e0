//! Draws charts as SVG that follows the reader's light or dark scheme.

use std::io;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Chart, ChartLine, Panel};
use super::page::escaped;
use crate::metric::{Metric, grouped};

const FONT: &str = "sans-serif";
// Each of these colours has a single use: the style sheet below selects elements by it.
const PAPER: RGBColor = RGBColor(254, 254, 254);
const INK: RGBColor = RGBColor(34, 34, 35);
const GRID: RGBColor = RGBColor(221, 221, 222);

/// Exchanges paper, ink and grid colours in the reader's dark scheme. In print, and where style sheets are
/// not supported, the paper stays bright.
pub(crate) const STYLE: &str = "@media screen and (prefers-color-scheme:dark){\
    [fill=\"#FEFEFE\"]{fill:#14171c}\
    [fill=\"#222223\"]{fill:#d8dce2}[stroke=\"#222223\"]{stroke:#d8dce2}\
    [stroke=\"#DDDDDE\"]{stroke:#3a3f48}}";

/// An SVG without attributes that repeat a default or its parent's: a page of all studies has thousands of elements.
fn shortened(svg: &str) -> String {
    let family = r#" font-family="sans-serif""#;
    let short = [r#" opacity="1""#, r#" stroke-width="1""#, family]
        .iter()
        .fold(svg.to_owned(), |svg, repeated| svg.replace(repeated, ""));
    short.replacen("<svg", &format!("<svg{family}"), 1)
}

/// An error of the plotting library; none is expected.
pub(crate) type DrawError = DrawingAreaErrorKind<io::Error>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart {
    /// Draws the chart for a page, which has [`STYLE`]; draws nothing if no value is above zero.
    pub(crate) fn svg(&self) -> Result<String, DrawError> {
        let mut out = String::new();
        let marks = self.draw(&mut out)?;
        let titles: String = marks.iter().map(Mark::title).collect();
        Ok(shortened(&out).replacen("</svg>", &format!("{titles}</svg>"), 1))
    }

    /// Draws the chart as a separate file, with its style sheet.
    pub(crate) fn svg_file(&self) -> Result<String, DrawError> {
        Ok(self.svg()?.replacen(">\n", &format!(">\n<style>{STYLE}</style>\n"), 1))
    }

    /// The end of a linear scale, with room for whiskers within reason.
    fn highest(&self, high: f64) -> f64 {
        let ends = self.lines().flat_map(|line| line.points.iter().map(|(_, _, spread)| spread.end));
        ends.fold(high, f64::max).min(high * MAX_WHISKER_LENGTH)
    }

    /// Draws it; returns its marks.
    fn draw(&self, out: &mut String) -> Result<Vec<Mark>, DrawError> {
        let Some((low, high)) = self.extremes() else { return Ok(Vec::new()) };
        let mut marks = Vec::new();
        let legend = Legend::of(self);
        let size = (PANEL.0 * self.panels.len() as u32, PANEL.1 + legend.height());
        let root = SVGBackend::with_string(out, size).into_drawing_area();
        root.fill(&PAPER)?;
        let (panels, below) = root.split_vertically(PANEL.1);
        let x = -0.4..self.places.len() as f64 - 0.6;
        for (area, panel) in panels.split_evenly((1, self.panels.len())).iter().zip(&self.panels) {
            if self.logarithmic || high / low > LOGARITHMIC_FROM {
                self.draw_panel(area, panel, x.clone(), decades(low, high).log_scale(), &mut marks)?;
            } else {
                self.draw_panel(area, panel, x.clone(), 0.0..self.highest(high) * 1.08, &mut marks)?;
            }
        }
        legend.draw(&below)?;
        root.present()?;
        Ok(marks)
    }

    fn draw_panel<Y>(
        &self,
        area: &Area<'_>,
        panel: &Panel,
        x_range: Range<f64>,
        y: Y,
        marks: &mut Vec<Mark>,
    ) -> Result<(), DrawError>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, (FONT, 16).into_font().color(&INK))
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(x_range.clone(), y)?;
        let least = chart.as_coord_spec().y_spec().range().start;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(&self.y_label)
            .axis_style(INK)
            .bold_line_style(GRID)
            .max_light_lines(0)
            .label_style((FONT, 12).into_font().color(&INK))
            .axis_desc_style((FONT, 13).into_font().color(&INK))
            .y_label_formatter(&|value| self.show(*value))
            .draw()?;
        let ends = (x_range.start, x_range.end);
        for published in &self.published {
            let dots = [(ends.0, published.value), (ends.1, published.value)];
            chart.draw_series(DashedLineSeries::new(dots, 2, 4, INK.stroke_width(1)))?;
            let small = (FONT, 11).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Bottom));
            chart.draw_series([Text::new(published.label, (ends.1, published.value), small)])?;
        }
        for line in &panel.lines {
            let style = line.colour.stroke_width(2);
            // Zero cannot be shown on a logarithmic scale.
            let drawn = || line.points.iter().filter(|(_, middle, _)| *middle >= least);
            let middles: Vec<(f64, f64)> =
                drawn().map(|(place, middle, _)| (*place as f64, *middle)).collect();
            for (place, _, spread) in drawn().filter(|(_, _, spread)| spread.start < spread.end) {
                let whisker =
                    [(*place as f64, spread.start.max(least)), (*place as f64, spread.end.max(least))];
                chart.draw_series([PathElement::new(whisker, line.colour.stroke_width(1))])?;
            }
            marks.extend(drawn().map(|(place, middle, spread)| Mark {
                at: chart.backend_coord(&(*place as f64, *middle)),
                text: self.describe(line, *place, *middle, spread),
            }));
            chart.draw_series(middles.iter().map(|&at| Circle::new(at, 3, style.filled())))?;
            chart.draw_series(LineSeries::new(middles, style))?;
        }
        self.draw_places(area, &chart)
    }

    /// The tooltip of a mark: `broker, 50: 408/s (400/s to 412/s)`.
    fn describe(&self, line: &ChartLine, place: usize, middle: f64, spread: &Range<f64>) -> String {
        let place = self.places.get(place).map_or("", String::as_str);
        let range = match spread.start < spread.end {
            true => format!(" ({} to {})", self.show(spread.start), self.show(spread.end)),
            false => String::new(),
        };
        format!("{}, {place}: {}{range}", line.name, self.show(middle))
    }

    /// The labels below the axis; if there are many, only each second, third and so on.
    fn draw_places<'a, Y: Ranged<ValueType = f64>>(
        &self,
        area: &Area<'a>,
        chart: &ChartContext<'a, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
    ) -> Result<(), DrawError> {
        let centred = |size: u32| (FONT, size).into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
        let (columns, rows) = chart.plotting_area().get_pixel_range();
        let width = columns.end - columns.start;
        // The range is that of the whole drawing; drawing is relative to the panel.
        let (left, top) = area.get_base_pixel();
        let (left, bottom) = (columns.start - left, rows.end - top);
        let needed: i32 = self.places.iter().map(|name| text_width(name) + CHARACTER_WIDTH).sum();
        for (place, name) in self.places.iter().enumerate().step_by(1 + (needed / width) as usize) {
            let share = (place as f64 + 0.4) / (self.places.len() as f64 - 0.2);
            let x = left + (share * f64::from(width)) as i32;
            area.draw(&Text::new(name.clone(), (x, bottom + 5), centred(12)))?;
        }
        area.draw(&Text::new(self.x_label.clone(), (left + width / 2, bottom + 22), centred(13)))
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

/// A mark of a line, in pixels of the drawing, and its tooltip.
struct Mark {
    at: (i32, i32),
    text: String,
}

impl Mark {
    /// An invisible area around it, with its tooltip.
    fn title(&self) -> String {
        let ((x, y), text) = (self.at, escaped(&self.text));
        let (left, top, size) = (x - MARK_REACH, y - MARK_REACH, 2 * MARK_REACH);
        format!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{size}\" height=\"{size}\" fill-opacity=\"0\"><title>{text}</title></rect>\n"
        )
    }
}

/// The lines of all panels, each once, in a row, or in several if they do not fit into one.
struct Legend<'c> {
    /// Each with its position: pixels from the left, and row.
    lines: Vec<(&'c ChartLine, i32, u32)>,
    rows: u32,
}

impl<'c> Legend<'c> {
    fn of(chart: &'c Chart) -> Self {
        let right = (PANEL.0 * chart.panels.len() as u32) as i32;
        let (mut x, mut row) = (LEGEND_LEFT, 0);
        let mut lines: Vec<(&ChartLine, i32, u32)> = Vec::new();
        for line in chart.lines() {
            if lines.iter().any(|(known, ..)| known.name == line.name) {
                continue;
            }
            let width = LEGEND_TEXT + text_width(&line.name) + 2 * CHARACTER_WIDTH;
            if x > LEGEND_LEFT && x + width > right {
                (x, row) = (LEGEND_LEFT, row + 1);
            }
            lines.push((line, x, row));
            x += width;
        }
        Self { lines, rows: row + 1 }
    }

    fn height(&self) -> u32 {
        LEGEND_ROW * self.rows
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        for (line, x, row) in &self.lines {
            let y = (row * LEGEND_ROW) as i32;
            area.draw(&PathElement::new([(*x, y + 6), (x + 28, y + 6)], line.colour.stroke_width(3)))?;
            let text = (FONT, 12).into_font().color(&INK);
            area.draw(&Text::new(line.name.clone(), (x + LEGEND_TEXT, y), text))?;
        }
        Ok(())
    }
}

/// Whole decades around values, and slightly more: rounding must not omit the label at an end.
fn decades(low: f64, high: f64) -> Range<f64> {
    const EPSILON: f64 = 1e-9;
    10f64.powf(low.log10().floor()) * (1.0 - EPSILON)..10f64.powf(high.log10().ceil()) * (1.0 + EPSILON)
}

/// Pixels that a label takes, roughly: viewers choose the font.
fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * CHARACTER_WIDTH
}

/// Pixels of a letter of a label.
const CHARACTER_WIDTH: i32 = 7;
/// Pixels of one panel.
const PANEL: (u32, u32) = (480, 340);
const LEGEND_ROW: u32 = 18;
/// Pixels to the left of the legend, and from an entry's beginning to its text.
const LEGEND_LEFT: i32 = 80;
const LEGEND_TEXT: i32 = 36;
/// Pixels around a mark within which its tooltip appears.
const MARK_REACH: i32 = 8;
/// A single bad round must not flatten all the others: whiskers longer than this, in largest medians, are cut.
const MAX_WHISKER_LENGTH: f64 = 1.5;
/// The scale is logarithmic if the largest value is more than this many times the least one.
const LOGARITHMIC_FROM: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::super::chart::charts;
    use super::super::grid::tests::report;
    use super::super::published::of_chart;
    use super::*;
    use crate::metric::LatencyPoint;

    #[test]
    fn a_chart_has_a_line_for_each_and_names_its_places() {
        let charts = charts(&report());
        let svg = charts[0].svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 4);
        for text in ["publish: rate", "direct", "proxy", "round trip in ms", "per second", "50"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(charts[1].svg().unwrap().contains("publish &amp; confirm"), "what is not SVG is escaped");
    }

    #[test]
    fn a_mark_has_a_tooltip_with_its_figures() {
        let svg = charts(&report())[0].svg().unwrap();
        assert!(svg.contains("<title>proxy, 50: 300 (270 to 330)</title>"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4);
    }

    #[test]
    fn published_figures_are_dotted_and_named() {
        let mut chart = charts(&report()).remove(0);
        chart.published = of_chart("stream", "stream", Metric::Rate);
        let svg = chart.svg().unwrap();
        assert!(svg.contains("LavinMQ, published") && svg.contains("1,000,000"), "{svg}");
        chart.panels[0].lines.clear();
        assert_eq!(chart.svg().unwrap(), "", "nothing was measured");
    }

    #[test]
    fn a_legend_is_one_row_if_it_fits() {
        let mut chart = charts(&report()).remove(0);
        assert_eq!(Legend::of(&chart).rows, 1);
        for line in &mut chart.panels[0].lines {
            line.name = format!("{} {}", line.name, "x".repeat(40));
        }
        assert_eq!(Legend::of(&chart).rows, 2);
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
        chart.panels[0].lines[0].points = vec![(0, 0.0, 0.0..0.0), (1, 0.000_002, 0.0..0.5)];
        chart.panels[0].lines[1].points = vec![(0, 0.05, 0.05..0.05), (1, 0.9, 0.8..0.9)];
        let svg = chart.svg().unwrap();
        assert!(svg.contains("\n1.00 µs\n") && svg.contains("\n1.00 s\n"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }

    #[test]
    fn chart_labels_are_rounded() {
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
        chart.panels[0].lines.clear();
        assert_eq!(chart.svg().unwrap(), "");
    }
}
