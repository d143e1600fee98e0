//! The study of WebSocket connections on a page, and as cells.

use super::chart::charts;
use super::grid::Grid;
use super::page::Section;
use super::report::{Axis, CellReport, Compared, Measured, StudyReport, SystemAbout};
use crate::metric::{Fate, Metric, Point, bytes, duration};
use crate::websockets::report::{Dropped, Level, SystemReport, WebSocketsReport};
use crate::websockets::{drops_table, levels_table};

/// As a part of a page.
pub(super) fn section(report: &WebSocketsReport) -> Result<Section, String> {
    let settings = &report.settings;
    let mut facts = vec![
        format!(
            "Each connection publishes a message to itself every {} s, a tenth more or less; heartbeats of {} s; measured \
             for {} s at each number",
            settings.interval.as_secs_f64(),
            settings.heartbeat.as_secs(),
            settings.hold.as_secs_f64()
        ),
        "The rate is that of connections opened, each with its login and subscription".to_owned(),
    ];
    let about = |s: &SystemReport| {
        format!("{}: {}, {} without connections", s.name, s.target, bytes(s.baseline_bytes as f64))
    };
    facts.extend(report.systems.iter().map(about));
    let svgs = charts(&as_study(report)).iter().map(super::chart::Chart::svg).collect::<Result<_, _>>()?;
    let mut tables = vec![Grid::of(&levels_table(&report.systems))];
    if report.systems.iter().any(|system| system.dropped.is_some()) {
        tables.push(Grid::of(&drops_table(report)));
    }
    Ok(Section {
        machine: report.machine.to_string(),
        facts,
        verdicts: Vec::new(),
        plots: svgs,
        tables,
        notes: report.systems.iter().flat_map(notes).collect(),
    })
}

fn notes(system: &SystemReport) -> Vec<String> {
    let mut notes: Vec<String> = system.stopped.iter().map(|why| format!("{}: {why}", system.name)).collect();
    for level in &system.levels {
        if let Some(why) = &level.lost_because {
            let Level { connections, lost, .. } = level;
            notes.push(format!("{}, {connections} connections: {lost} were lost: {why}", system.name));
        }
    }
    if let Some(Dropped { connections, before, during, missing, .. }) = &system.dropped
        && let (Some(before), Some(during)) = (before, during)
    {
        notes.push(format!(
            "{}: when {connections} connections were dropped at once, the slowest message of ten others took {} ({} \
             before), and {missing} were missing.",
            system.name,
            duration(during.max),
            duration(before.max)
        ));
    }
    notes
}

/// The levels as cells, for plots.
fn as_study(report: &WebSocketsReport) -> StudyReport {
    let about = |system: &SystemReport| SystemAbout {
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
        systems: report.systems.iter().map(about).collect(),
        cells: cells(report),
        notes: Vec::new(),
        expectations: Vec::new(),
    }
}

/// A cell for each number of connections that was reached.
pub(super) fn cells(report: &WebSocketsReport) -> Vec<CellReport> {
    let cell = |system: &SystemReport, level: &Level| CellReport {
        scenario: "held".into(),
        axis: Axis::Connections,
        at: level.connections as f64,
        system: system.name.clone(),
        figures: figures(level),
    };
    report
        .systems
        .iter()
        .flat_map(|system| system.levels.iter().map(move |level| cell(system, level)))
        .collect()
}

fn figures(level: &Level) -> Vec<Measured> {
    let mut figures = vec![
        (Metric::Rate, level.opened as f64 / level.opening_seconds.max(f64::MIN_POSITIVE)),
        (Metric::Count(Fate::Lost), level.published.saturating_sub(level.received) as f64),
    ];
    // Without processes to sample there is neither.
    if level.rss_bytes > 0 {
        figures.push((Metric::RssEach, level.bytes_per_connection));
        figures.push((Metric::Rss, level.rss_bytes as f64));
        figures.push((Metric::Cpu, level.cpu_cores));
    }
    if let Some(latency) = &level.latency {
        let points = [(Point::P50, latency.p50), (Point::P99, latency.p99), (Point::Max, latency.max)];
        figures.extend(points.map(|(point, value)| (Metric::Latency(point), value)));
    }
    figures.into_iter().filter_map(|(metric, value)| Measured::of(metric, vec![value])).collect()
}
