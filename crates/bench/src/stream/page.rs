//! The report as it is shown, and as cells.

use super::table;
use crate::metric::{Fate, LatencyPoint, Metric};
use crate::report::{StreamReport, StreamSystem};
use crate::study::chart::{Chart, ChartLine, Panel, colour};
use crate::study::published::{self, Published, of_chart};
use crate::study::report::{Axis, CellReport, Measured};
use crate::study::section::Section;

/// The results as they are shown: rates over time, distributions of latency, tables.
pub(crate) fn section(report: &StreamReport) -> Section {
    let charts = [
        over_time(report),
        distribution(report, "latency", "from publish to delivery", Metric::Latency),
        distribution(report, "confirms", "from publish to confirm", Metric::ConfirmLatency),
    ];
    let system = |s: &StreamSystem| format!("{}: {} at {}", s.name, s.server, s.uri);
    let workload = table::describe(&report.workload);
    Section {
        machine: report.machine.clone(),
        facts: std::iter::once(workload).chain(report.systems.iter().map(system)).collect(),
        charts: charts.into_iter().flatten().collect(),
        tables: vec![table::figures(report), table::fates(report)],
        notes: match published_rate(report).is_empty() {
            true => report.notes.clone(),
            false => report.notes.iter().cloned().chain(published::notes("stream")).collect(),
        },
        comparison: None,
        verdicts: report.expectations.clone(),
    }
}

/// Messages per second in each part of a round: median, minimum and maximum over the rounds.
fn over_time(report: &StreamReport) -> Option<Chart> {
    let parts = report.systems.iter().flat_map(|s| &s.rounds).map(|round| round.timeline.len()).max()?;
    let seconds = report.systems.first()?.rounds.first()?.seconds;
    let line = |(number, system): (usize, &StreamSystem)| {
        let points = (0..parts).filter_map(|part| {
            let values = system.rounds.iter().filter_map(|round| round.timeline.get(part).copied());
            let s = crate::stats::Summary::of(values)?;
            Some((part, s.median, s.min..s.max))
        });
        ChartLine { name: system.name.clone(), colour: colour(number), points: points.collect() }
    };
    (parts > 1).then(|| Chart {
        places: (1..=parts).map(|part| format!("{:.1}", seconds * part as f64 / parts as f64)).collect(),
        x_label: "seconds".into(),
        y_label: "messages per second".into(),
        metric: Metric::Rate,
        panels: vec![Panel {
            title: "rate over the measured time".into(),
            lines: report.systems.iter().enumerate().map(line).collect(),
        }],
        published: published_rate(report),
        logarithmic: false,
    })
}

/// The published rates, which are those of one producer and one consumer.
fn published_rate(report: &StreamReport) -> Vec<Published> {
    match (report.workload.producers, report.workload.consumers) {
        (1, 1) => of_chart("stream", "stream", Metric::Rate),
        _ => Vec::new(),
    }
}

/// A distribution by its percentiles; `None` if none was measured.
fn distribution(
    report: &StreamReport,
    title: &str,
    what: &str,
    of: fn(LatencyPoint) -> Metric,
) -> Option<Chart> {
    let line = |(number, system): (usize, &StreamSystem)| {
        let points = LatencyPoint::REPORTED.iter().enumerate().filter_map(|(place, point)| {
            let s = system.summary_of(of(*point))?;
            Some((place, s.median, s.min..s.max))
        });
        ChartLine { name: system.name.clone(), colour: colour(number), points: points.collect() }
    };
    let lines: Vec<ChartLine> = report.systems.iter().enumerate().map(line).collect();
    let lines: Vec<ChartLine> = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    (!lines.is_empty()).then(|| Chart {
        places: LatencyPoint::REPORTED.iter().map(|point| Metric::Latency(*point).to_string()).collect(),
        x_label: what.into(),
        y_label: "time".into(),
        metric: Metric::Latency(LatencyPoint::P50),
        panels: vec![Panel { title: format!("{title}: percentiles"), lines }],
        published: Vec::new(),
        logarithmic: false,
    })
}

/// One cell for each system.
pub(crate) fn cells(report: &StreamReport) -> Vec<CellReport> {
    let metrics: Vec<Metric> = [Metric::Rate, Metric::Publish, Metric::Consume]
        .into_iter()
        .chain(LatencyPoint::REPORTED.map(Metric::Latency))
        .chain(LatencyPoint::REPORTED.map(Metric::ConfirmLatency))
        .chain([Metric::CpuPerMessage, Metric::Cpu, Metric::Rss])
        .chain(
            [Fate::Lost, Fate::Duplicated, Fate::Reordered, Fate::Nacked, Fate::Returned].map(Metric::Count),
        )
        .collect();
    let cell = |system: &StreamSystem| CellReport {
        scenario: "stream".into(),
        axis: Axis::Publishers,
        at: report.workload.producers as f64,
        system: system.name.clone(),
        figures: metrics
            .iter()
            .filter_map(|metric| Measured::of(*metric, system.values_of(*metric)))
            .collect(),
    };
    report.systems.iter().map(cell).collect()
}
