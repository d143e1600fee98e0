//! Log-log plots as SVG that follow the reader's light or dark scheme.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Figure, Series};
use crate::metric::grouped;
use crate::study::svg::{FONT, GRID, INK, PAPER, tidy};

/// Draws one figure: a panel for each system on the same axes, with a line for each level. `title` names the exchange.
///
/// # Errors
/// An error of the plotting library; none is expected.
pub(super) fn svg(title: &str, figure: Figure, panels: &[(&str, Vec<&Series>)]) -> Result<String, String> {
    let mut out = String::new();
    draw(&mut out, title, figure, panels).map_err(|error| error.to_string())?;
    Ok(tidy(&out))
}

fn draw(
    out: &mut String,
    title: &str,
    figure: Figure,
    panels: &[(&str, Vec<&Series>)],
) -> Result<(), Box<dyn Error>> {
    let all: Vec<&Series> = panels.iter().flat_map(|(_, series)| series.iter().copied()).collect();
    let Some(axes) = Axes::around(&all, figure) else { return Ok(()) };
    let width = PANEL.0 * panels.len() as u32 + LEGEND_WIDTH;
    let root = SVGBackend::with_string(out, (width, PANEL.1)).into_drawing_area();
    root.fill(&PAPER)?;
    let (left, legend) = root.split_horizontally(PANEL.0 * panels.len() as u32);
    for (area, (system, series)) in left.split_evenly((1, panels.len())).iter().zip(panels) {
        draw_panel(area, &format!("{system}: {title}"), figure, series, &axes)?;
    }
    draw_legend(&legend, &axes)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel(
    area: &Area<'_>,
    caption: &str,
    figure: Figure,
    series: &[&Series],
    axes: &Axes,
) -> Result<(), Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 16).into_font().color(&INK))
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(axes.x.clone().log_scale(), axes.y.clone().log_scale())?;
    let plain = |value: &f64| if *value < 1.0 { format!("{value:.2}") } else { grouped(*value) };
    chart
        .configure_mesh()
        .x_labels(6)
        .x_desc("queues")
        .y_desc(figure.unit())
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(PAPER)
        .label_style((FONT, 12).into_font().color(&INK))
        .axis_desc_style((FONT, 13).into_font().color(&INK))
        .x_label_formatter(&plain)
        .y_label_formatter(&plain)
        .draw()?;
    for level in series {
        let points: Vec<(f64, f64)> = level
            .points
            .iter()
            .map(|point| (point.queues as f64, figure.micros(point)))
            .filter(|(_, micros)| *micros > 0.0)
            .collect();
        let style = axes.colour(level.bindings).stroke_width(2);
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 2, style.filled())))?;
        chart.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, axes: &Axes) -> Result<(), Box<dyn Error>> {
    let text = (FONT, 12).into_font().color(&INK);
    area.draw(&Text::new("bindings per queue", (4, 20), text.clone()))?;
    for (row, &bindings) in axes.bindings.iter().enumerate() {
        let y = 42 + row as i32 * 18;
        let style = axes.colour(bindings).stroke_width(3);
        area.draw(&PathElement::new([(4, y + 5), (28, y + 5)], style))?;
        area.draw(&Text::new(bindings.to_string(), (36, y), text.clone()))?;
    }
    Ok(())
}

/// The axes shared by all panels.
struct Axes {
    x: Range<f64>,
    y: Range<f64>,
    /// Bindings of the levels, ascending.
    bindings: Vec<u64>,
}

impl Axes {
    /// Axes that cover all points; `None` without points.
    fn around(series: &[&Series], figure: Figure) -> Option<Self> {
        let points = || series.iter().flat_map(|series| &series.points);
        let most = points().map(|point| point.queues).max()?;
        let values = || points().map(|point| figure.micros(point)).filter(|micros| *micros > 0.0);
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        let mut bindings: Vec<u64> = series.iter().map(|series| series.bindings).collect();
        bindings.sort_unstable();
        bindings.dedup();
        // Whole decades, so that both ends of the axis have a label.
        let decades = 10f64.powf(low.log10().floor())..10f64.powf(high.log10().ceil().max(low.log10() + 1.0));
        (high > 0.0).then(|| Self { x: 1.0..(most as f64 * 1.2).max(2.0), y: decades, bindings })
    }

    /// From blue over green to red; bright enough for a dark background and dark enough for a bright one.
    fn colour(&self, bindings: u64) -> HSLColor {
        let place = self.bindings.iter().position(|&known| known == bindings).unwrap_or(0);
        let share = place as f64 / (self.bindings.len().max(2) - 1) as f64;
        HSLColor((1.0 - share) * 0.66, 0.75, 0.45)
    }
}

/// Pixels of a panel.
const PANEL: (u32, u32) = (480, 380);
const LEGEND_WIDTH: u32 = 130;

#[cfg(test)]
mod tests {
    use super::super::report::tests::series;
    use super::*;
    use crate::study::svg::STYLE;

    #[test]
    fn a_plot_has_a_panel_for_each_system_and_a_line_for_each_level() {
        let (one, two) = (series(0, |_| 12.5), series(3, |queues| 99.0 + queues as f64));
        let svg =
            svg("direct exchange", Figure::Create, &[("a", vec![&one, &two]), ("b", vec![&one])]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in ["a: direct exchange", "b: direct exchange", "bindings per queue", "µs per queue created"]
        {
            assert!(svg.contains(text), "{text}");
        }
        let points = svg.matches("h0").count();
        assert_eq!(points, 3 * 8);
    }

    #[test]
    fn paper_ink_and_grid_follow_the_scheme() {
        let one = series(0, |_| 12.5);
        let svg = svg("direct exchange", Figure::Delete, &[("a", vec![&one])]).unwrap();
        for colour in ["fill=\"#FEFEFE\"", "fill=\"#222223\"", "stroke=\"#222223\"", "stroke=\"#DDDDDE\""] {
            assert!(svg.contains(colour) && STYLE.contains(&format!("[{colour}]{{")), "{colour}");
        }
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        assert_eq!(svg("direct exchange", Figure::Create, &[("a", vec![])]).unwrap(), "");
    }
}
