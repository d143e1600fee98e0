//! The study of WebSocket connections as a section of a page, and as cells.

use super::chart::charts;
use super::grid::Grid;
use super::page::Section;
use super::report::{Axis, CellReport, Compared, Measured, StudyReport, SystemAbout};
use crate::metric::{Fate, LatencyPoint, Metric, bytes, duration};
use crate::websockets::report::{ConnectionLevel, Dropped, WebSocketsReport, WebSocketsSystem};
use crate::websockets::{HELD, drops_table, levels_table};

/// Renders the section of a page.
pub(super) fn section(report: &WebSocketsReport) -> Result<Section, String> {
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
    let svgs = charts(&as_study(report)).iter().map(super::chart::Chart::svg).collect::<Result<_, _>>()?;
    let mut tables = vec![Grid::of(&levels_table(report))];
    if report.systems.iter().any(|system| system.dropped.is_some()) {
        tables.push(Grid::of(&drops_table(report)));
    }
    let reported = report.systems.iter().flat_map(|system| notes(&report.title(system), system));
    Ok(Section {
        machine: report.machine.to_string(),
        facts,
        verdicts: report.expectations.clone(),
        plots: svgs,
        tables,
        notes: report.notes.iter().cloned().chain(reported).collect(),
    })
}

fn notes(name: &str, system: &WebSocketsSystem) -> Vec<String> {
    let mut notes: Vec<String> = system.stopped.iter().map(|why| format!("{name}: {why}")).collect();
    for level in &system.levels {
        if let Some(why) = &level.lost_because {
            let ConnectionLevel { connections, lost, .. } = level;
            notes.push(format!("{name}, {connections} connections: {lost} were lost: {why}"));
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
pub(crate) fn as_study(report: &WebSocketsReport) -> StudyReport {
    let about = |system: &WebSocketsSystem| SystemAbout {
        name: system.name.clone(),
        uri: system.target.to_string(),
        server: String::new(),
    };
    StudyReport {
        study: "websockets".into(),
        title: String::new(),
        compared: Compared::Systems,
        machine: report.machine.clone(),
        parameters: Vec::new(),
        systems: report.systems.iter().filter(|system| system.round == 1).map(about).collect(),
        cells: cells(report),
        notes: Vec::new(),
        expectations: Vec::new(),
    }
}

/// The values of each round, by metric.
type Rounds = Vec<(Metric, Vec<f64>)>;

/// A cell for each number of connections that a system reached, over all rounds.
pub(super) fn cells(report: &WebSocketsReport) -> Vec<CellReport> {
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
    // Without processes to sample these are unknown.
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
