//! The report as text for a terminal.

use std::fmt::Write;

use comfy_table::{Cell, Row, Table};

use super::arguments::RoutingStudy;
use super::report::{Bulk, Figure, FigureGrowth, Growths, RoutingReport, Series};
use crate::latency::Percentiles;
use crate::metric::{duration, grouped};
use crate::table::{new_table, number};

/// Renders the whole report: machine, parameters, tables, notes.
pub(crate) fn render(report: &RoutingReport) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", report.machine);
    let _ = writeln!(out, "{}", report.settings);
    for system in &report.systems {
        let _ = writeln!(out, "{}: {} at {}", system.name, system.server, system.uri);
    }
    if !report.series.is_empty() {
        let _ =
            writeln!(out, "\nMicroseconds at the most queues of each level:\n\n{}", figures(&report.series));
        let _ = writeln!(
            out,
            "\nGrowth, as the power of the number; the line in the middle, and the steepest:\n\n{}",
            growth(&report.growth)
        );
    }
    if !report.bulk.is_empty() {
        let _ = writeln!(out, "\n{}", bulk(&report.bulk));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "* {note}");
    }
    for verdict in &report.expectations {
        let _ = writeln!(out, "\n{verdict}");
    }
    out
}

/// All tables of the report.
pub(super) fn tables(report: &RoutingReport) -> Vec<Table> {
    let mut tables = Vec::new();
    if !report.series.is_empty() {
        tables.push(growth(&report.growth));
        tables.push(figures(&report.series));
    }
    if !report.bulk.is_empty() {
        tables.push(bulk(&report.bulk));
    }
    tables
}

fn figures(series: &[Series]) -> Table {
    let mut table = new_table(&[
        "exchange",
        "bindings/queue",
        "queues",
        "system",
        "create queue",
        "per binding",
        "route message",
        "per queue",
        "delete queue",
        "per binding",
        "bytes/binding",
    ]);
    for series in series {
        let Some(point) = series.points.last() else { continue };
        let [create, publish, delete] = Figure::ALL.map(|figure| figure.micros(point));
        let mut row = vec![Cell::new(series.exchange.name())];
        row.extend([series.bindings, point.queues].map(|count| number(grouped(count as f64))));
        row.push(Cell::new(&series.system));
        let bindings = series.bindings as f64;
        let values =
            [create, create / bindings, publish, publish / point.queues as f64, delete, delete / bindings];
        row.extend(values.map(|value| number(micros(value))));
        let memory = point.rss_bytes.map(|rss| grouped(rss as f64 / (bindings * point.queues as f64)));
        row.push(number(memory.unwrap_or_default()));
        table.add_row(Row::from(row));
    }
    table
}

/// Three digits, or all digits before the decimal point if there are more.
fn micros(value: f64) -> String {
    let decimals = if value < 1.0 { 3 } else { 2 - (value.log10() as usize).min(2) };
    if decimals == 0 { grouped(value) } else { format!("{value:.decimals$}") }
}

fn growth(growth: &[FigureGrowth]) -> Table {
    let mut table = new_table(&["exchange", "figure", "system", "with queues", "with bindings", "verdict"]);
    for figure in growth {
        let fits = [figure.with_queues, figure.with_bindings];
        let medians = fits.into_iter().flatten().map(|growths| growths.median);
        let verdict = match medians.max_by(|a, b| a.exponent.total_cmp(&b.exponent)) {
            Some(larger) => larger.verdict(),
            None => "too few points",
        };
        let mut row = vec![
            Cell::new(figure.exchange.name()),
            Cell::new(figure.figure.name()),
            Cell::new(&figure.system),
        ];
        row.extend(fits.map(|fit| number(exponent(fit))));
        row.push(Cell::new(verdict));
        table.add_row(Row::from(row));
    }
    table
}

fn exponent(growths: Option<Growths>) -> String {
    growths.map_or(String::new(), |g| format!("{:.2} (to {:.2})", g.median.exponent, g.steepest.exponent))
}

fn bulk(results: &[Bulk]) -> Table {
    let mut table = new_table(&[
        "study",
        "exchange",
        "system",
        "made",
        "in",
        "gone after",
        "longest confirm before",
        "longest confirm during",
        "confirms",
    ]);
    for result in results {
        let what = match result.study {
            RoutingStudy::Exclusive => "exclusive queues",
            RoutingStudy::Deletion | RoutingStudy::Scaling => "bindings of a queue",
        };
        let longest = |p: Option<Percentiles>| number(p.map_or(String::new(), |p| duration(p.max)));
        table.add_row(Row::from(vec![
            Cell::new(what),
            Cell::new(result.exchange.name()),
            Cell::new(&result.system),
            number(grouped(result.count as f64)),
            number(duration(result.make_seconds)),
            number(duration(result.gone_seconds)),
            longest(result.confirms_before),
            longest(result.confirms_during),
            number(result.confirms_during.map_or(String::new(), |p| grouped(p.count as f64))),
        ]));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_have_three_digits() {
        let view = [0.1234, 1.234, 12.34, 123.4, 1_234.0, 123_456.0].map(micros);
        assert_eq!(view, ["0.123", "1.23", "12.3", "123", "1,234", "123,456"]);
    }
}
