//! The report as a section of a page, and as cells.

use super::arguments::{BindingLevel, StudiedExchange};
use super::report::{Figure, FigureGrowth, RoutingReport, Series};
use super::{panels, plot, table};
use crate::metric::{LatencyPoint, Metric};
use crate::study::grid::Grid;
use crate::study::page::Section;
use crate::study::report::{Axis, CellReport, Compared, Measured, StudyReport};

/// Renders the section of a page: log-log plots, verdicts, tables.
pub(crate) fn section(report: &RoutingReport) -> Result<Section, String> {
    let mut plots = Vec::new();
    for (kind, figure, panels) in panels(report) {
        plots.push(plot::svg(&format!("{} exchange", kind.name()), figure, &panels)?);
    }
    let mut facts = vec![report.settings.to_string()];
    facts.extend(
        report.systems.iter().map(|system| format!("{}: {} at {}", system.name, system.server, system.uri)),
    );
    Ok(Section {
        machine: report.machine.to_string(),
        facts,
        verdicts: report.expectations.clone(),
        plots,
        tables: table::tables(report).iter().map(Grid::of).collect(),
        notes: report.notes.clone(),
    })
}

/// The scenario name of cells about a figure over all numbers of queues.
fn growing(kind: StudiedExchange, figure: Figure) -> String {
    format!("{} {}", kind.name(), figure.name())
}

/// The scenario name of cells about one number of bindings.
fn of_level(kind: StudiedExchange, figure: Figure, bindings: u64) -> String {
    format!("{}, {bindings} bindings per queue", growing(kind, figure))
}

/// The scenario names of all cells of a plan.
pub(super) fn scenarios(kinds: &[StudiedExchange], levels: &[BindingLevel]) -> Vec<String> {
    let each = |(kind, figure): (StudiedExchange, Figure)| {
        let points = levels.iter().map(move |level| of_level(kind, figure, level.bindings));
        std::iter::once(growing(kind, figure)).chain(points)
    };
    kinds.iter().flat_map(|&kind| Figure::ALL.map(|figure| (kind, figure))).flat_map(each).collect()
}

/// A cell for each point of each plot, and one for the growth of each figure on each system.
pub(crate) fn cells(report: &RoutingReport) -> Vec<CellReport> {
    let of_series = |series: &Series| {
        let cell = |point: &super::report::RoutingPoint, figure: Figure| CellReport {
            scenario: of_level(series.exchange, figure, series.bindings),
            axis: Axis::Queues,
            at: point.queues as f64,
            system: series.system.clone(),
            figures: Measured::of(Metric::Latency(LatencyPoint::Mean), vec![figure.micros(point) / 1e6])
                .into_iter()
                .collect(),
        };
        Figure::ALL
            .into_iter()
            .flat_map(|figure| series.points.iter().map(move |point| cell(point, figure)))
            .collect::<Vec<_>>()
    };
    let most = report.series.iter().flat_map(|series| &series.points).map(|point| point.queues).max();
    let of_growth = |growth: &FigureGrowth| {
        let exponents = [
            (Metric::GrowthWithQueues, growth.with_queues),
            (Metric::GrowthWithBindings, growth.with_bindings),
        ];
        let measured = exponents.into_iter().filter_map(|(metric, growths)| {
            growths.and_then(|growths| Measured::of(metric, vec![growths.median.exponent]))
        });
        CellReport {
            scenario: growing(growth.exchange, growth.figure),
            axis: Axis::Queues,
            at: most.unwrap_or_default() as f64,
            system: growth.system.clone(),
            figures: measured.collect(),
        }
    };
    report.series.iter().flat_map(of_series).chain(report.growth.iter().map(of_growth)).collect()
}

/// The cells as a study report, to evaluate expectations.
pub(super) fn as_study(report: &RoutingReport) -> StudyReport {
    StudyReport {
        study: "routing".into(),
        title: String::new(),
        compared: Compared::Systems,
        machine: report.machine.clone(),
        parameters: Vec::new(),
        systems: report.systems.clone(),
        cells: cells(report),
        notes: Vec::new(),
        expectations: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::RoutingSettings;
    use super::super::report::growth;
    use super::super::report::tests::series;
    use super::*;
    use crate::machine::Machine;
    use crate::study::expect::Condition;
    use crate::study::report::SystemAbout;

    #[test]
    fn growth_and_points_can_be_held_to_conditions() {
        let systems = vec![SystemAbout { name: "a".into(), uri: String::new(), server: String::new() }];
        let series = vec![series(0, |_| 5e4), series(2, |queues| queues as f64 * 1e4)];
        let growth = growth(&series, &[StudiedExchange::Direct], &systems);
        let (base, messages, copies, pipelined, limit_seconds, bulk) = (2, 10, 100, false, 1.0, 1);
        let settings = RoutingSettings { base, messages, copies, pipelined, limit_seconds, bulk };
        let (machine, bulk, notes, expectations) = (Machine::describe(), vec![], vec![], vec![]);
        let report = as_study(&RoutingReport {
            machine,
            settings,
            systems,
            series,
            growth,
            bulk,
            notes,
            expectations,
        });
        let met = |text: &str| text.parse::<Condition>().unwrap().validate(&report).met;
        assert!(met("direct publish: growth<1.1") && !met("direct publish: growth<0.9"));
        assert!(met("direct create, 1 bindings per queue@8: mean<51ms"));
        assert!(!met("direct create, 4 bindings per queue@8: mean<51ms"));
        assert!(!met("growth_with_bindings<9"), "two levels tell nothing");
    }
}
