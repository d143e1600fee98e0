//! The report as text for a terminal.

use std::fmt::Write;

use comfy_table::{Cell, Row, Table};

use super::report::{ConnectionLevel, Dropped, WebSocketsReport, WebSocketsSystem};
use crate::latency::Percentiles;
use crate::metric::{bytes, duration, grouped};
use crate::table::{new_table, number};

/// Renders the whole report.
pub(crate) fn render(report: &WebSocketsReport) -> String {
    let mut out = String::new();
    let (m, s) = (&report.machine, &report.settings);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{m}");
    let _ = writeln!(out, "{s}");
    for system in &report.systems {
        let baseline = bytes(system.baseline_bytes as f64);
        let _ = writeln!(out, "{}: {}, {baseline} without connections", system.name, system.target);
    }
    let _ = writeln!(out, "\n{}", levels(report));
    if report.systems.iter().any(|system| system.dropped.is_some()) {
        let _ = writeln!(
            out,
            "\nTen other connections while all of these are dropped at once:\n\n{}",
            drops(report)
        );
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n* {note}");
    }
    for system in &report.systems {
        let (name, WebSocketsSystem { stopped, levels, .. }) = (report.title(system), system);
        if let Some(why) = stopped {
            let _ = writeln!(out, "\n* {name}: no more than these could be opened: {why}");
        }
        for ConnectionLevel { connections, lost, lost_because, .. } in levels {
            if let Some(why) = lost_because {
                let _ = writeln!(out, "\n* {name}: at {connections}, {lost} connections were lost: {why}");
            }
        }
    }
    for verdict in &report.expectations {
        let _ = writeln!(out, "\n{verdict}");
    }
    out
}

pub(crate) fn levels(report: &WebSocketsReport) -> Table {
    let mut table = new_table(&[
        "system",
        "connections",
        "opened in",
        "memory each",
        "memory",
        "kernel each",
        "CPU",
        "CPU opening",
        "messages",
        "missing",
        "p50",
        "p99",
        "max",
        "generator",
    ]);
    for system in &report.systems {
        for level in &system.levels {
            let mut row = vec![Cell::new(report.title(system)), number(grouped(level.connections as f64))];
            row.push(number(duration(level.opening_seconds)));
            row.push(number(kibibytes(level.bytes_per_connection)));
            row.push(number(bytes(level.rss_bytes as f64)));
            row.push(number(kibibytes(level.kernel_bytes_per_connection)));
            row.push(number(format!("{:.3} cores", level.cpu_cores)));
            row.push(number(duration(level.opening_cpu_seconds)));
            row.push(number(grouped(level.published as f64)));
            row.push(number(grouped(level.published.saturating_sub(level.received) as f64)));
            row.extend(latencies(level.latency.as_ref()));
            row.push(number(format!("{:.2} cores", level.generator_cores)));
            table.add_row(Row::from(row));
        }
    }
    table
}

pub(crate) fn drops(report: &WebSocketsReport) -> Table {
    let mut table =
        new_table(&["system", "dropped", "when", "messages", "missing", "p50", "p99", "max", "memory after"]);
    for system in &report.systems {
        let Some(Dropped { connections, before, during, missing, rss_bytes }) = &system.dropped else {
            continue;
        };
        for (when, percentiles, after) in [("before", before, None), ("then", during, Some(rss_bytes))] {
            let messages = percentiles.as_ref().map_or(0, |percentiles| percentiles.count);
            let mut row =
                vec![Cell::new(report.title(system)), number(grouped(*connections as f64)), Cell::new(when)];
            row.push(number(grouped(messages as f64)));
            row.push(number(after.map_or(String::new(), |_| grouped(*missing as f64))));
            row.extend(latencies(percentiles.as_ref()));
            row.push(number(after.map_or(String::new(), |size| bytes(*size as f64))));
            table.add_row(Row::from(row));
        }
    }
    table
}

fn latencies(percentiles: Option<&Percentiles>) -> [Cell; 3] {
    let of =
        |value: fn(&Percentiles) -> f64| number(percentiles.map_or(String::new(), |p| duration(value(p))));
    [of(|p| p.p50), of(|p| p.p99), of(|p| p.max)]
}

fn kibibytes(bytes: f64) -> String {
    format!("{:.2} KiB", bytes / 1024.0)
}
