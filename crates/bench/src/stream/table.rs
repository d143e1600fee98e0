//! The tables of `bench stream`, and its workload in words.

use crate::metric::{Fate, LatencyPoint, Metric, grouped};
use crate::report::{StreamReport, StreamSystem};
use crate::stream::arguments::LIMIT_BACKLOG;
use crate::stream::workload::{Acks, Length, Workload};
use crate::study::grid::Grid;

/// The workload in one line: what every round has, and each other setting that is not the default.
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
    if workload.mandatory {
        parts.push("mandatory".into());
    }
    if workload.durable != workload.persistent {
        parts.push((if workload.durable { "durable queues" } else { "transient queues" }).into());
    }
    parts.extend(workload.rate.as_ref().map(|rate| match rate.fixed() {
        Some(rate) => format!("{} messages/s per producer", grouped(rate)),
        None => format!("{rate} messages/s per producer"),
    }));
    parts.extend(workload.queue_type().map(|kind| format!("{kind} queues")));
    parts
        .extend(workload.exchange.as_ref().map(|name| format!("{} exchange {name}", workload.exchange_type)));
    parts.extend(
        workload.routing_key.as_ref().map(|key| format!("{} with key {key}", many(workload.keys, "binding"))),
    );
    parts.extend(workload.queue.as_ref().map(|name| match workload.first_queue {
        1 => format!("queue {name}"),
        first => format!("queue {name} from {first} on"),
    }));
    if workload.predeclared {
        parts.push("predeclared".into());
    }
    let arguments = workload.queue_arguments.iter().filter(|(name, _)| name != "x-queue-type");
    parts.extend(named("queue arguments", arguments));
    parts.extend(named("consumer arguments", &workload.consumer_arguments));
    parts.extend(named("properties", &workload.properties.named));
    parts.extend(named("headers", &workload.properties.headers));
    if workload.limit_backlog != LIMIT_BACKLOG {
        parts.push(match workload.limit_backlog {
            0 => "no limit of the backlog".into(),
            limit => format!("backlog of at most {}", grouped(limit as f64)),
        });
    }
    parts.join("; ")
}

/// Settings that have names of their own; `None` if there are none.
fn named<'p>(what: &str, pairs: impl IntoIterator<Item = &'p (String, String)>) -> Option<String> {
    let all: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    (!all.is_empty()).then(|| format!("{what} {}", all.join(", ")))
}

fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Median and spread of each figure for each system, and ratios to the first.
pub(crate) fn figures(report: &StreamReport) -> Grid {
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
    let mut table = Grid::new(&header);
    for metric in metrics {
        for system in &report.systems {
            let Some(s) = system.summary_of(metric) else { continue };
            let values = [s.median, s.min, s.max, s.stddev, s.mad];
            let mut row = vec![system.name.clone(), name_of(metric)];
            row.extend(values.map(|value| metric.show(value)));
            row.extend(ratios.then(|| ratio(metric, system, &report.systems[0])));
            table.rows.push(row);
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
pub(crate) fn fates(report: &StreamReport) -> Grid {
    let mut table = Grid::new(&[
        "system",
        "published",
        "lost",
        "duplicated",
        "reordered",
        "nacked",
        "returned",
        "unconfirmed",
        "unexpected confirms",
        "unsent",
        "blocked",
        "generator",
        "busiest",
    ]);
    for system in &report.systems {
        let sum = |of: fn(&crate::report::Counts) -> u64| {
            grouped(system.rounds.iter().map(|round| of(&round.counts)).sum::<u64>() as f64)
        };
        let fate = |fate| system.figure(Metric::Count(fate)).map_or("–".to_owned(), grouped);
        let largest = |of: fn(&crate::report::GeneratorUsage) -> f64| {
            system.rounds.iter().map(|round| of(&round.generator)).fold(0.0, f64::max)
        };
        let mut row = vec![system.name.clone(), sum(|counts| counts.published)];
        let all = [Fate::Lost, Fate::Duplicated, Fate::Reordered, Fate::Nacked, Fate::Returned];
        row.extend(all.map(fate));
        row.extend([Fate::Unconfirmed, Fate::OddConfirms, Fate::Unsent].map(fate));
        row.push(sum(|counts| counts.blocked));
        row.push(format!("{:.2} cores", largest(|usage| usage.cpu_cores)));
        row.push(format!("{:.0} %", 100.0 * largest(|usage| usage.busiest_thread)));
        table.rows.push(row);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::tests::{round, system};
    use crate::stream::arguments::tests::workload;
    use crate::stream::page::section;

    #[test]
    fn systems_are_compared_with_the_first() {
        let report = StreamReport {
            machine: Machine::describe(),
            workload: workload(&[]),
            systems: vec![system("old", vec![round(1000.0, 2)]), system("new", vec![round(3500.0, 0)])],
            notes: vec!["Mind this.".into()],
            expectations: vec![],
        };
        let text = section(&report).to_string();
        let row = text.lines().find(|line| line.contains("new") && line.contains("end-to-end")).unwrap();
        assert!(row.contains("3,500/s") && row.contains("3.50"), "{text}");
        assert!(text.contains("* Mind this."));
    }

    #[test]
    fn every_setting_that_is_not_the_default_is_named() {
        let plain = describe(&workload(&[]));
        for arguments in [
            &["--mandatory"][..],
            &["--queue-type", "quorum"],
            &["--queue", "q"],
            &["--queue", "q", "--first-queue", "7"],
            &["--queue", "q", "--predeclared"],
            &["--queue-argument", "x-max-length=5"],
            &["--consumer-argument", "x-priority=5"],
            &["--property", "priority=5"],
            &["--property", "header.a=5"],
            &["--exchange", "e"],
            &["--exchange", "e", "--exchange-type", "topic"],
            &["--exchange", "e", "--routing-key", "k"],
            &["--exchange", "e", "--routing-key", "k", "--routing-keys", "2"],
            &["--limit-backlog", "5"],
            &["--limit-backlog", "0"],
            &["--channels", "2"],
            &["--rate", "5"],
        ] {
            let (last, others) = arguments.split_last().unwrap();
            let others = if last.starts_with("--") { others } else { &others[..others.len() - 1] };
            let [with, without] = [arguments, others].map(|each| describe(&workload(each)));
            assert!(with != without && with != plain, "{arguments:?}: {with}");
        }
    }

    #[test]
    fn names_of_confirm_figures_keep_their_percentile() {
        assert_eq!(name_of(Metric::ConfirmLatency(LatencyPoint::P99_9)), "confirm p99.9");
        assert_eq!(name_of(Metric::ConfirmLatency(LatencyPoint::P99_99)), "confirm p99.99");
    }
}
