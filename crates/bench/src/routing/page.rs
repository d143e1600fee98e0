//! The report as a part of a page, and as cells.

use super::report::{Figure, RoutingReport, Series};
use super::{panels, plot, table};
use crate::metric::{Metric, Point};
use crate::study::grid::Grid;
use crate::study::page::Section;
use crate::study::report::{Axis, CellReport, Measured};

/// As a part of a page: log-log plots, verdicts, tables.
pub(crate) fn section(report: &RoutingReport) -> Result<Section, String> {
    let mut plots = Vec::new();
    for (kind, figure, panels) in panels(report) {
        plots.push(plot::svg(&format!("{} exchange", kind.name()), figure, &panels)?);
    }
    let s = &report.settings;
    let mode = if s.pipelined { "pipelined" } else { "one operation at a time" };
    let mut facts = vec![format!("Powers of {}; {} messages a point; {mode}", s.base, s.messages)];
    facts.extend(
        report.systems.iter().map(|system| format!("{}: {} at {}", system.name, system.server, system.uri)),
    );
    Ok(Section {
        machine: report.machine.to_string(),
        facts,
        verdicts: Vec::new(),
        plots,
        tables: table::tables(report).iter().map(Grid::of).collect(),
        notes: report.notes.clone(),
    })
}

/// A cell for each point of each plot.
pub(crate) fn cells(report: &RoutingReport) -> Vec<CellReport> {
    let of_series = |series: &Series| {
        let (exchange, bindings) = (series.exchange.name(), series.bindings);
        let cell = |point: &super::report::Point, figure: Figure| CellReport {
            scenario: format!("{exchange}, {bindings} bindings per queue: {}", figure.name()),
            axis: Axis::Queues,
            at: point.queues as f64,
            system: series.system.clone(),
            figures: Measured::of(Metric::Latency(Point::Mean), vec![figure.micros(point) / 1e6])
                .into_iter()
                .collect(),
        };
        Figure::ALL
            .into_iter()
            .flat_map(|figure| series.points.iter().map(move |point| cell(point, figure)))
            .collect::<Vec<_>>()
    };
    report.series.iter().flat_map(of_series).collect()
}
