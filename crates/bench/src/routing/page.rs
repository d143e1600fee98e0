//! The report as it is shown, and as cells.

use super::arguments::{BindingLevel, StudiedExchange};
use super::report::{Figure, FigureGrowth, RoutingReport, Series};
use super::table;
use crate::metric::{LatencyPoint, Metric};
use crate::study::chart::{Chart, ChartLine, Panel, ordered_colour};
use crate::study::report::{Axis, CellReport, Measured, StudyReport};
use crate::study::section::{Section, facts};

/// The results as they are shown: log-log plots, verdicts, tables.
pub(crate) fn section(report: &RoutingReport) -> Section {
    Section {
        machine: report.machine.clone(),
        facts: facts(report.settings.to_string(), &report.systems),
        charts: plots(report).into_iter().map(|plot| plot.chart()).collect(),
        tables: table::tables(report),
        notes: report.notes.clone(),
        comparison: None,
        verdicts: report.expectations.clone(),
    }
}

/// A figure of an exchange type, and the levels of each system.
pub(super) struct Plot<'r> {
    pub(super) kind: StudiedExchange,
    pub(super) figure: Figure,
    pub(super) systems: Vec<(&'r str, Vec<&'r Series>)>,
}

/// Every plot.
pub(super) fn plots(report: &RoutingReport) -> Vec<Plot<'_>> {
    let mut kinds: Vec<StudiedExchange> = report.series.iter().map(|series| series.exchange).collect();
    kinds.dedup();
    let plot = |(kind, figure): (StudiedExchange, Figure)| {
        let levels = |system: &str| {
            report.series.iter().filter(|series| series.exchange == kind && series.system == system).collect()
        };
        let names = report.systems.iter().map(|system| system.name.as_str());
        Plot { kind, figure, systems: names.map(|name| (name, levels(name))).collect() }
    };
    kinds.iter().flat_map(|&kind| Figure::ALL.map(|figure| (kind, figure))).map(plot).collect()
}

impl Plot<'_> {
    /// A panel for each system, with a line for each level.
    pub(super) fn chart(&self) -> Chart {
        let series = || self.systems.iter().flat_map(|(_, series)| series);
        let mut queues: Vec<u64> =
            series().flat_map(|level| &level.points).map(|point| point.queues).collect();
        let mut bindings: Vec<u64> = series().map(|level| level.bindings).collect();
        for counts in [&mut queues, &mut bindings] {
            counts.sort_unstable();
            counts.dedup();
        }
        let line = |level: &&Series| {
            let points = level.points.iter().filter_map(|point| {
                let (place, value) =
                    (queues.binary_search(&point.queues).ok()?, self.figure.micros(point) / 1e6);
                Some((place, value, value..value))
            });
            let number = bindings.binary_search(&level.bindings).unwrap_or_default();
            ChartLine {
                name: level.bindings.to_string(),
                colour: ordered_colour(number, bindings.len()),
                points: points.collect(),
            }
        };
        let panel = |(system, series): &(&str, Vec<&Series>)| Panel {
            title: format!("{system}: {} exchange, by bindings per queue", self.kind.name()),
            lines: series.iter().map(line).collect(),
        };
        Chart {
            places: queues.iter().map(u64::to_string).collect(),
            x_label: "queues".into(),
            y_label: format!("time {}", self.figure.unit()),
            metric: Metric::Latency(LatencyPoint::Mean),
            panels: self.systems.iter().map(panel).collect(),
            published: Vec::new(),
            logarithmic: true,
        }
    }
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
    StudyReport::of_cells(report.machine.clone(), report.systems.clone(), cells(report))
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

    #[test]
    fn a_plot_has_a_panel_for_each_system_and_a_line_for_each_level() {
        let (one, two) = (series(0, |_| 12.5), series(3, |queues| 99.0 + queues as f64));
        let systems = vec![("a", vec![&one, &two]), ("b", vec![&one])];
        let plot = Plot { kind: StudiedExchange::Direct, figure: Figure::Create, systems };
        let svg = plot.chart().svg_file().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains(crate::study::draw::STYLE));
        for text in
            ["a: direct exchange", "b: direct exchange", "bindings per queue", "time per queue created"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 3 * 8);
        let labels: Vec<i32> = svg
            .split("<text x=\"")
            .filter(|text| text.contains("\n128\n"))
            .map(|text| text.split_once('"').unwrap().0.parse().unwrap())
            .collect();
        assert!(labels.len() == 2 && labels[1] == labels[0] + 480, "{labels:?}");
        let nothing = Plot { systems: vec![("a", vec![])], ..plot };
        assert_eq!(nothing.chart().svg().unwrap(), "");
    }
}
