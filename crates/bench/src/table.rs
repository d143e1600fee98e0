//! The report as text for a terminal.

use std::fmt::Write;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{Cell, CellAlignment, Row, Table};

use crate::metric::{Fate, LatencyPoint, Metric, grouped};
use crate::report::{StreamReport, StreamSystem};
use crate::stream::workload::{Acks, Length, Workload};

/// Renders the whole report: machine, parameters, tables, notes, verdicts.
pub(crate) fn render(report: &StreamReport) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", report.machine);
    let _ = writeln!(out, "{}", describe(&report.workload));
    for system in &report.systems {
        let _ = writeln!(out, "{}: {} at {}", system.name, system.server, system.uri);
    }
    let _ = writeln!(out, "\n{}\n", figures(report));
    let _ = writeln!(out, "{}\n", fates(report));
    for note in &report.notes {
        let _ = writeln!(out, "* {note}");
    }
    for verdict in &report.expectations {
        let _ = writeln!(out, "{verdict}");
    }
    out
}

pub(crate) fn describe(workload: &Workload) -> String {
    let mut parts = vec![
        format!(
            "{}, {}, {}",
            many(workload.producers, "producer"),
            many(workload.consumers, "consumer"),
            many(workload.queues, "queue")
        ),
        match &workload.bodies[..] {
            [] => format!("{} bytes", workload.size),
            files => format!("bodies from {}", files.iter().map(|f| &*f.path).collect::<Vec<_>>().join(", ")),
        },
        (if workload.persistent { "persistent" } else { "transient" }).into(),
        match workload.confirms {
            0 => "no confirms".into(),
            window => format!("confirms, window {window}"),
        },
        match workload.acks {
            Acks::Automatic => "automatic acks".into(),
            Acks::Manual { prefetch, every } => format!("manual acks, prefetch {prefetch}, every {every}"),
        },
        match workload.length {
            Length::Timed { warmup, measure } => {
                format!("rounds of {} s after {} s", measure.as_secs_f64(), warmup.as_secs_f64())
            }
            Length::Messages(messages) => format!("rounds of {} messages", grouped(messages as f64)),
        },
    ];
    if workload.channels > 1 {
        parts.push(format!("{} channels each", workload.channels));
    }
    parts.extend(workload.rate.as_ref().map(|rate| match rate.fixed() {
        Some(rate) => format!("{} messages/s per producer", grouped(rate)),
        None => format!("{rate} messages/s per producer"),
    }));
    parts.extend(workload.queue_type().map(|kind| format!("{kind} queues")));
    parts
        .extend(workload.exchange.as_ref().map(|name| format!("{} exchange {name}", workload.exchange_type)));
    parts.join("; ")
}

fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Median and spread of each figure for each system, and ratios to the first.
pub(crate) fn figures(report: &StreamReport) -> Table {
    let points = LatencyPoint::REPORTED;
    let metrics = [Metric::Rate, Metric::Publish]
        .into_iter()
        .chain(points.map(Metric::Latency))
        .chain(points.map(Metric::ConfirmLatency))
        .chain([Metric::Cpu, Metric::CpuPerMessage, Metric::Rss]);
    let ratios = report.systems.len() > 1;
    let mut header = vec!["system", "figure", "median", "min", "max", "stddev", "MAD"];
    if ratios {
        header.push("ratio");
    }
    let mut table = new_table(&header);
    for metric in metrics {
        for system in &report.systems {
            let Some(s) = system.summary_of(metric) else { continue };
            let values = [s.median, s.min, s.max, s.stddev, s.mad];
            let mut row = vec![Cell::new(&system.name), Cell::new(name_of(metric))];
            row.extend(values.map(|value| number(metric.show(value))));
            if ratios {
                row.push(number(ratio(metric, system, &report.systems[0])));
            }
            table.add_row(Row::from(row));
        }
    }
    table
}

fn ratio(metric: Metric, system: &StreamSystem, first: &StreamSystem) -> String {
    match (system.figure(metric), first.figure(metric)) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => String::new(),
    }
}

/// The fates of the messages, over all rounds, and the usage of the generator itself.
pub(crate) fn fates(report: &StreamReport) -> Table {
    let mut table = new_table(&[
        "system",
        "published",
        "lost",
        "duplicated",
        "reordered",
        "nacked",
        "returned",
        "blocked",
        "generator",
        "busiest",
    ]);
    for system in &report.systems {
        let sum = |of: fn(&crate::report::Counts) -> u64| {
            grouped(system.rounds.iter().map(|round| of(&round.counts)).sum::<u64>() as f64)
        };
        let fate = |fate| grouped(system.figure(Metric::Count(fate)).unwrap_or_default());
        let largest = |of: fn(&crate::report::GeneratorUsage) -> f64| {
            system.rounds.iter().map(|round| of(&round.generator)).fold(0.0, f64::max)
        };
        let mut row = vec![Cell::new(&system.name), number(sum(|counts| counts.published))];
        let all = [Fate::Lost, Fate::Duplicated, Fate::Reordered, Fate::Nacked, Fate::Returned];
        row.extend(all.map(|which| number(fate(which))));
        row.push(number(sum(|counts| counts.blocked)));
        row.push(number(format!("{:.2} cores", largest(|usage| usage.cpu_cores))));
        row.push(number(format!("{:.0} %", 100.0 * largest(|usage| usage.busiest_thread))));
        table.add_row(Row::from(row));
    }
    table
}

fn name_of(metric: Metric) -> String {
    match metric {
        Metric::Rate => "end-to-end rate".into(),
        Metric::Publish => "publish rate".into(),
        Metric::Latency(_) => format!("latency {metric}"),
        Metric::Cpu => "CPU".into(),
        Metric::CpuPerMessage => "CPU per message".into(),
        Metric::Rss => "memory".into(),
        other => other.to_string().replace('.', " ").replace("99 9", "99.9"),
    }
}

/// A cell for a number.
pub(crate) fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A table that is also Markdown.
pub(crate) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::tests::{round, system};
    use crate::stream::StreamArguments;

    #[test]
    fn systems_are_compared_with_the_first() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            stream: StreamArguments,
        }
        let cli: Cli = clap::Parser::parse_from(["stream"]);
        let report = StreamReport {
            machine: Machine::describe(),
            workload: cli.stream.plan().unwrap().workload,
            systems: vec![system("old", vec![round(1000.0, 2)]), system("new", vec![round(3500.0, 0)])],
            notes: vec!["Mind this.".into()],
            expectations: vec![],
        };
        let text = render(&report);
        let row = text.lines().find(|line| line.contains("new") && line.contains("end-to-end")).unwrap();
        assert!(row.contains("3,500/s") && row.contains("3.50"), "{text}");
        assert!(text.contains("* Mind this."));
    }

    #[test]
    fn names_of_confirm_figures_keep_their_percentile() {
        assert_eq!(name_of(Metric::ConfirmLatency(LatencyPoint::P99_9)), "confirm p99.9");
        assert_eq!(name_of(Metric::ConfirmLatency(LatencyPoint::P99_99)), "confirm p99.99");
    }
}
