//! The tables of the study.

use super::arguments::RoutingStudy;
use super::report::{Bulk, Figure, FigureGrowth, Growths, RoutingReport, Series};
use crate::latency::Percentiles;
use crate::metric::{duration, grouped};
use crate::study::grid::Grid;

/// All tables of the report.
pub(super) fn tables(report: &RoutingReport) -> Vec<Grid> {
    let mut tables = Vec::new();
    if !report.series.is_empty() {
        tables.push(figures(&report.series));
        tables.push(growth(&report.growth));
    }
    if !report.bulk.is_empty() {
        tables.push(bulk(&report.bulk));
    }
    tables
}

fn figures(series: &[Series]) -> Grid {
    let mut table = Grid::new(&[
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
    table.caption = Some("Microseconds at the most queues of each level");
    for series in series {
        let Some(point) = series.points.last() else { continue };
        let [create, publish, delete] = Figure::ALL.map(|figure| figure.micros(point));
        let mut row = vec![series.exchange.name().to_owned()];
        row.extend([series.bindings, point.queues].map(|count| grouped(count as f64)));
        row.push(series.system.clone());
        let bindings = series.bindings as f64;
        let values =
            [create, create / bindings, publish, publish / point.queues as f64, delete, delete / bindings];
        row.extend(values.map(micros));
        let memory = point.rss_bytes.map(|rss| grouped(rss as f64 / (bindings * point.queues as f64)));
        row.push(memory.unwrap_or_default());
        table.rows.push(row);
    }
    table
}

/// Three digits, or all digits before the decimal point if there are more.
fn micros(value: f64) -> String {
    let decimals = if value < 1.0 { 3 } else { 2 - (value.log10() as usize).min(2) };
    if decimals == 0 { grouped(value) } else { format!("{value:.decimals$}") }
}

fn growth(growth: &[FigureGrowth]) -> Grid {
    let mut table = Grid::new(&["exchange", "figure", "system", "with queues", "with bindings", "verdict"]);
    table.caption = Some("Growth, as the power of the number; the line in the middle, and the steepest");
    for figure in growth {
        let fits = [figure.with_queues, figure.with_bindings];
        let medians = fits.into_iter().flatten().map(|growths| growths.median);
        let verdict = match medians.max_by(|a, b| a.exponent.total_cmp(&b.exponent)) {
            Some(larger) => larger.verdict(),
            None => "too few points",
        };
        let mut row =
            vec![figure.exchange.name().to_owned(), figure.figure.name().to_owned(), figure.system.clone()];
        row.extend(fits.map(exponent));
        row.push(verdict.to_owned());
        table.rows.push(row);
    }
    table
}

fn exponent(growths: Option<Growths>) -> String {
    growths.map_or(String::new(), |g| format!("{:.2} (to {:.2})", g.median.exponent, g.steepest.exponent))
}

fn bulk(results: &[Bulk]) -> Grid {
    let mut table = Grid::new(&[
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
        let longest = |p: Option<Percentiles>| p.map_or(String::new(), |p| duration(p.max));
        table.rows.push(vec![
            what.to_owned(),
            result.exchange.name().to_owned(),
            result.system.clone(),
            grouped(result.count as f64),
            duration(result.make_seconds),
            duration(result.gone_seconds),
            longest(result.confirms_before),
            longest(result.confirms_during),
            result.confirms_during.map_or(String::new(), |p| grouped(p.count as f64)),
        ]);
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
