//! The report as it is shown, and as cells.

use super::arguments::HELD;
use super::report::{ConnectionLevel, Dropped, WebSocketsReport, WebSocketsSystem};
use super::table;
use crate::metric::{Fate, LatencyPoint, Metric, bytes, duration};
use crate::study::chart::charts;
use crate::study::report::{Axis, CellReport, Measured, StudyReport, SystemAbout};
use crate::study::section::Section;

/// The results as they are shown.
pub(crate) fn section(report: &WebSocketsReport) -> Section {
    let settings = &report.settings;
    let mut facts = vec![
        settings.to_string(),
        "The rate is that of connections opened, each with its login and subscription".to_owned(),
    ];
    let about = |s: &WebSocketsSystem| {
        format!("{}: {}, {} without connections", s.name, s.target, bytes(s.baseline_bytes as f64))
    };
    facts.extend(report.systems.iter().filter(|system| system.round == 1).map(about));
    if settings.rounds > 1 {
        facts.push(format!("{} rounds; a mark is the median of a number of connections", settings.rounds));
    }
    let mut tables = vec![table::levels(report)];
    if report.systems.iter().any(|system| system.dropped.is_some()) {
        tables.push(table::drops(report));
    }
    let reported = report.systems.iter().flat_map(|system| notes(&report.title(system), system));
    Section {
        machine: report.machine.clone(),
        facts,
        charts: charts(&as_study(report)),
        tables,
        notes: report.notes.iter().cloned().chain(reported).collect(),
        comparison: None,
        verdicts: report.expectations.clone(),
    }
}

fn notes(name: &str, system: &WebSocketsSystem) -> Vec<String> {
    let stopped = |why| format!("{name}: no more than these could be opened: {why}");
    let mut notes: Vec<String> = system.stopped.iter().map(stopped).collect();
    for level in &system.levels {
        if let Some(why) = &level.lost_because {
            let ConnectionLevel { connections, lost, .. } = level;
            notes.push(format!("{name}: at {connections}, {lost} connections were lost: {why}"));
        }
    }
    if let Some(Dropped { connections, before, during, missing, .. }) = &system.dropped
        && let (Some(before), Some(during)) = (before, during)
    {
        notes.push(format!(
            "{name}: when {connections} connections were dropped at once, the slowest message of ten others took {} ({} \
             before), and {missing} were missing.",
            duration(during.max),
            duration(before.max)
        ));
    }
    notes
}

/// The levels as cells, for plots and expectations.
pub(super) fn as_study(report: &WebSocketsReport) -> StudyReport {
    let about = |system: &WebSocketsSystem| SystemAbout {
        name: system.name.clone(),
        uri: system.target.to_string(),
        server: String::new(),
    };
    let systems = report.systems.iter().filter(|system| system.round == 1).map(about).collect();
    StudyReport::of_cells(report.machine.clone(), systems, cells(report))
}

/// The values of each round, by metric.
type Rounds = Vec<(Metric, Vec<f64>)>;

/// A cell for each number of connections that a system reached, over all rounds.
pub(crate) fn cells(report: &WebSocketsReport) -> Vec<CellReport> {
    let mut cells: Vec<(CellReport, Rounds)> = Vec::new();
    let levels = report.systems.iter().flat_map(|s| s.levels.iter().map(move |level| (&s.name, level)));
    for (system, level) in levels {
        let at = level.connections as f64;
        let known = cells.iter().position(|(cell, _)| cell.at == at && cell.system == *system);
        let place = known.unwrap_or_else(|| {
            let (scenario, system) = (HELD.into(), system.clone());
            let cell = CellReport { scenario, axis: Axis::Connections, at, system, figures: Vec::new() };
            cells.push((cell, Vec::new()));
            cells.len() - 1
        });
        let values = &mut cells[place].1;
        for (metric, value) in figures(level) {
            match values.iter_mut().find(|(known, _)| *known == metric) {
                Some((_, rounds)) => rounds.push(value),
                None => values.push((metric, vec![value])),
            }
        }
    }
    let summarised = |(mut cell, values): (CellReport, Rounds)| {
        cell.figures =
            values.into_iter().filter_map(|(metric, rounds)| Measured::of(metric, rounds)).collect();
        cell
    };
    cells.into_iter().map(summarised).collect()
}

/// The figures of one level of one round.
fn figures(level: &ConnectionLevel) -> Vec<(Metric, f64)> {
    let mut figures = vec![
        (Metric::Rate, level.opened as f64 / level.opening_seconds.max(f64::MIN_POSITIVE)),
        (Metric::Count(Fate::Lost), level.published.saturating_sub(level.received) as f64),
    ];
    // Without processes to sample, memory and CPU time are unknown.
    if level.rss_bytes > 0 {
        figures.push((Metric::RssEach, level.bytes_per_connection));
        figures.push((Metric::Rss, level.rss_bytes as f64));
        figures.push((Metric::Cpu, level.cpu_cores));
    }
    if let Some(latency) = &level.latency {
        let points = [
            (LatencyPoint::P50, latency.p50),
            (LatencyPoint::P99, latency.p99),
            (LatencyPoint::Max, latency.max),
        ];
        figures.extend(points.map(|(point, value)| (Metric::Latency(point), value)));
    }
    figures
}
