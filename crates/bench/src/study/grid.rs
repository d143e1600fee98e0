//! Tables, as text for a terminal and for pages, and those of a study of cells.

use std::fmt;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{Cell, CellAlignment, Table};

use super::report::{Axis, CellReport, StudyReport};
use crate::metric::Metric;

/// A table.
#[derive(Debug, PartialEq)]
pub(crate) struct Grid {
    /// The subject of the table, where its header does not tell.
    pub(crate) caption: Option<&'static str>,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// An empty table.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { caption: None, header: header.iter().map(|&name| name.into()).collect(), rows: Vec::new() }
    }
}

/// A table that is also Markdown, under its caption. Numbers are aligned to the right.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(caption) = self.caption {
            writeln!(f, "{caption}:\n")?;
        }
        let cell = |text: &String| match text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            true => Cell::new(text).set_alignment(CellAlignment::Right),
            false => Cell::new(text),
        };
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header(&self.header);
        table.add_rows(self.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>()));
        write!(f, "{table}")
    }
}

/// All cells along an axis: medians, the spread of the rate, and its ratio to the first system's.
pub(crate) fn of_axis(report: &StudyReport, axis: Axis) -> Grid {
    let metrics = report.metrics(axis);
    let ratios = report.systems.len() > 1;
    let mut header = vec!["scenario".to_owned(), axis.label().to_owned(), "system".to_owned()];
    for metric in &metrics {
        header.push(name_of(*metric));
        if *metric == Metric::Rate {
            header.extend(["min".into(), "max".into(), "mean ± 95 %".into()]);
            header.extend(ratios.then(|| "ratio".into()));
        }
    }
    let first = report.systems.first().map_or("", |system| &system.name);
    let cells = report.cells.iter().filter(|cell| cell.axis == axis);
    let rows = cells.map(|cell| {
        let mut row = vec![cell.scenario.clone(), cell.at.to_string(), cell.system.clone()];
        for metric in &metrics {
            let show = |value: Option<f64>| value.map_or(String::new(), |value| metric.show(value));
            row.push(show(cell.figure(*metric)));
            if *metric == Metric::Rate {
                let summary = cell.summary(*metric);
                row.extend([show(summary.map(|s| s.min)), show(summary.map(|s| s.max))]);
                // A single round has no spread.
                row.push(summary.filter(|s| s.count > 1).map_or(String::new(), |s| {
                    format!("{} ± {}", metric.show(s.mean), metric.show(s.ci95).trim_end_matches("/s"))
                }));
                let base = report.cell(&cell.scenario, axis, cell.at, first);
                row.extend(ratios.then(|| ratio(cell, base)));
            }
        }
        row
    });
    Grid { caption: None, header, rows: rows.collect() }
}

fn ratio(cell: &CellReport, base: Option<&CellReport>) -> String {
    let base = base.and_then(|base| base.figure(Metric::Rate)).filter(|rate| *rate > 0.0);
    match cell.figure(Metric::Rate).zip(base) {
        Some((ours, theirs)) => format!("{:.2}", ours / theirs),
        None => String::new(),
    }
}

/// The name of a metric in tables and plots.
pub(crate) fn name_of(metric: Metric) -> String {
    match metric {
        Metric::Latency(_) => format!("time {metric}"),
        Metric::ConfirmLatency(_) => metric.to_string().replacen('.', " ", 1),
        Metric::Cpu => "CPU".into(),
        Metric::CpuPerMessage => "CPU each".into(),
        Metric::BrokerCpuPerMessage => "broker CPU each".into(),
        Metric::Rss => "memory".into(),
        Metric::RssEach => "memory each".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::report::{Measured, Parameter, SystemAbout};
    use super::*;
    use crate::machine::Machine;
    use crate::metric::{Fate, LatencyPoint};
    use crate::study::section::section;

    /// Two systems, one of which slows down with the round trip.
    pub(crate) fn report() -> StudyReport {
        let about =
            |name: &str| SystemAbout { name: name.into(), uri: "amqp://h".into(), server: "Fake <1>".into() };
        let mut cells = Vec::new();
        for scenario in ["publish", "publish & confirm"] {
            for at in [0.0, 50.0] {
                for (system, rate) in [("direct", 100.0 / (1.0 + at)), ("proxy", 300.0)] {
                    let figures = [
                        (Metric::Rate, vec![rate * 0.9, rate * 1.1, rate]),
                        (Metric::Latency(LatencyPoint::P99), vec![0.002, 0.001, 0.003]),
                        (Metric::Count(Fate::Lost), vec![0.0, 2.0, 0.0]),
                    ];
                    let (scenario, system) = (scenario.into(), system.into());
                    let figures =
                        figures.into_iter().filter_map(|(m, values)| Measured::of(m, values)).collect();
                    cells.push(CellReport { scenario, axis: Axis::RoundTrip, at, system, figures });
                }
            }
        }
        StudyReport {
            study: "proxy".into(),
            title: "A connection for each message".into(),
            machine: Machine::describe(),
            parameters: vec![Parameter::new("body", "16 bytes")],
            systems: vec![about("direct"), about("proxy")],
            cells,
            notes: vec!["Mind <this>.".into()],
            expectations: vec![],
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_cell_with_medians_spread_and_ratio() {
        let text = section(&report()).to_string();
        let row = text.lines().find(|line| line.contains("50") && line.contains("proxy")).unwrap();
        for part in ["300/s", "270/s", "330/s", "153.00", "2.00 ms", "300/s ± 74.5"] {
            assert!(row.contains(part), "{part} in {row}");
        }
        assert!(row.trim_end().ends_with("2 |"), "losses are added up: {row}");
        assert!(text.contains("* Mind <this>.") && text.contains("body 16 bytes"), "{text}");
    }
}
