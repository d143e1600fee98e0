//! The tables of the study.

use super::report::{Dropped, WebSocketsReport};
use crate::latency::Percentiles;
use crate::metric::{bytes, duration, grouped};
use crate::study::grid::Grid;

/// A row for each level of each system.
pub(super) fn levels(report: &WebSocketsReport) -> Grid {
    let mut table = Grid::new(&[
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
            let mut row = vec![report.title(system), grouped(level.connections as f64)];
            row.push(duration(level.opening_seconds));
            row.push(kibibytes(level.bytes_per_connection));
            row.push(bytes(level.rss_bytes as f64));
            row.push(kibibytes(level.kernel_bytes_per_connection));
            row.push(format!("{:.3} cores", level.cpu_cores));
            row.push(duration(level.opening_cpu_seconds));
            row.push(grouped(level.published as f64));
            row.push(grouped(level.published.saturating_sub(level.received) as f64));
            row.extend(latencies(level.latency.as_ref()));
            row.push(format!("{:.2} cores", level.generator_cores));
            table.rows.push(row);
        }
    }
    table
}

/// Two rows for each system: before and after its connections are dropped.
pub(super) fn drops(report: &WebSocketsReport) -> Grid {
    let mut table =
        Grid::new(&["system", "dropped", "when", "messages", "missing", "p50", "p99", "max", "memory after"]);
    table.caption = Some("Ten other connections while all of these are dropped at once");
    for system in &report.systems {
        let Some(Dropped { connections, before, during, missing, rss_bytes }) = &system.dropped else {
            continue;
        };
        for (when, percentiles, after) in [("before", before, None), ("then", during, Some(rss_bytes))] {
            let messages = percentiles.as_ref().map_or(0, |percentiles| percentiles.count);
            let mut row = vec![report.title(system), grouped(*connections as f64), when.to_owned()];
            row.push(grouped(messages as f64));
            row.push(after.map_or(String::new(), |_| grouped(*missing as f64)));
            row.extend(latencies(percentiles.as_ref()));
            row.push(after.map_or(String::new(), |size| bytes(*size as f64)));
            table.rows.push(row);
        }
    }
    table
}

fn latencies(percentiles: Option<&Percentiles>) -> [String; 3] {
    let of = |value: fn(&Percentiles) -> f64| percentiles.map_or(String::new(), |p| duration(value(p)));
    [of(|p| p.p50), of(|p| p.p99), of(|p| p.max)]
}

fn kibibytes(bytes: f64) -> String {
    format!("{:.2} KiB", bytes / 1024.0)
}
