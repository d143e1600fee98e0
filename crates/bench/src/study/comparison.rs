//! The verdict that opens a report: how the systems compare with the first one, in sentences and as ratios.

use super::grid::Grid;
use super::report::CellReport;
use crate::metric::{LatencyPoint, Metric};
use crate::stats::Summary;

/// The comparison of several systems.
#[derive(Debug)]
pub(crate) struct SystemComparison {
    /// Which system is best, by how much, and how reliable the figures are.
    pub(crate) sentences: [String; 3],
    /// A row for each scenario, a column for each system.
    pub(crate) ratios: Grid,
    /// The ratio of each system but the first over everything that was measured.
    pub(crate) overall: Vec<(String, Ratios)>,
}

/// How many times as good as the first system, over several measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratios {
    /// Geometric mean.
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl SystemComparison {
    /// The sentence that says by how much the systems differ.
    pub(crate) fn factors(&self) -> &str {
        &self.sentences[1]
    }
}

/// The figures by which systems are compared; the first one that was measured is used. Memory precedes the rate, since
/// the study of connections measures both.
const COMPARED: [(Metric, Better, &str); 4] = [
    (Metric::RssEach, Better::Smaller, "times as many connections in the same memory"),
    (Metric::Rate, Better::Larger, "times its rate"),
    (Metric::Latency(LatencyPoint::Mean), Better::Smaller, "times as much in the same time"),
    (Metric::Latency(LatencyPoint::P50), Better::Smaller, "times as much in the same time"),
];

#[derive(Clone, Copy, PartialEq)]
enum Better {
    Larger,
    Smaller,
}

impl Ratios {
    fn of(values: &[f64]) -> Option<Self> {
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
        Some(Self { mean: (logarithms / values.len() as f64).exp(), min, max })
    }

    /// The mean, and the range unless that is the mean.
    pub(crate) fn show(self) -> String {
        let (mean, min, max) = (times(self.mean), times(self.min), times(self.max));
        if min == max { mean } else { format!("{mean} ({min} to {max})") }
    }
}

/// Compares the systems, whose first is the base. Returns `None` if there is only one, or nothing that all have.
pub(crate) fn compare(cells: &[CellReport], systems: &[&str]) -> Option<SystemComparison> {
    let (base, others) = systems.split_first().filter(|(_, others)| !others.is_empty())?;
    let (metric, better, words) = COMPARED.into_iter().find(|(metric, ..)| {
        let measured =
            |system: &str| cells.iter().any(|cell| cell.system == system && value(cell, *metric).is_some());
        systems.iter().all(|system| measured(system))
    })?;
    let mut scenarios: Vec<&str> = Vec::new();
    for cell in cells.iter().filter(|cell| value(cell, metric).is_some()) {
        if !scenarios.contains(&cell.scenario.as_str()) {
            scenarios.push(&cell.scenario);
        }
    }
    let of = |system: &str, scenario: Option<&str>| {
        let own = cells.iter().filter(|cell| cell.system == system);
        let own = own.filter(|cell| scenario.is_none_or(|scenario| cell.scenario == scenario));
        let ratios: Vec<f64> = own.filter_map(|cell| ratio(cells, cell, base, metric, better)).collect();
        Ratios::of(&ratios)
    };
    let overall: Vec<(String, Ratios)> =
        others.iter().filter_map(|other| Some(((*other).to_owned(), of(other, None)?))).collect();
    if overall.is_empty() {
        return None;
    }
    let mut ratios = Grid::new(&[]);
    ratios.header.push(format!("compared with {base}"));
    ratios.header.extend(others.iter().map(|&other| other.to_owned()));
    ratios.rows = scenarios
        .iter()
        .map(|scenario| {
            let show = |other: &&str| of(other, Some(scenario)).map_or("-".to_owned(), Ratios::show);
            std::iter::once((*scenario).to_owned()).chain(others.iter().map(show)).collect()
        })
        .collect();
    let sentences = [
        best(cells, systems, metric, better),
        factors(base, &overall, words),
        precision(cells.iter().filter_map(|cell| cell.summary(metric))),
    ];
    Some(SystemComparison { sentences, ratios, overall })
}

fn value(cell: &CellReport, metric: Metric) -> Option<f64> {
    cell.figure(metric).filter(|value| *value > 0.0)
}

/// How many times as good a cell is as that of the first system.
fn ratio(cells: &[CellReport], cell: &CellReport, base: &str, metric: Metric, better: Better) -> Option<f64> {
    let own = value(cell, metric)?;
    let same = |other: &&CellReport| {
        other.system == base
            && (&other.scenario, other.axis) == (&cell.scenario, cell.axis)
            && other.at == cell.at
    };
    let base = value(cells.iter().find(same)?, metric)?;
    Some(if better == Better::Larger { own / base } else { base / own })
}

/// The first sentence: in how many measurements each system was the best.
fn best(cells: &[CellReport], systems: &[&str], metric: Metric, better: Better) -> String {
    let mut wins = vec![0_usize; systems.len()];
    let base = cells.iter().filter(|cell| cell.system == systems[0] && value(cell, metric).is_some());
    for place in base {
        let at_place = |cell: &&CellReport| {
            (&cell.scenario, cell.axis) == (&place.scenario, place.axis) && cell.at == place.at
        };
        let goodness = |cell: &CellReport| {
            value(cell, metric).map(|value| if better == Better::Larger { value } else { 1.0 / value })
        };
        let all = cells.iter().filter(at_place).filter_map(|cell| Some((goodness(cell)?, &cell.system)));
        let winner = all.max_by(|one, other| one.0.total_cmp(&other.0));
        let winner = winner.and_then(|(_, name)| systems.iter().position(|system| system == name));
        if let Some(winner) = winner {
            wins[winner] += 1;
        }
    }
    let mut won: Vec<(&str, usize)> =
        systems.iter().copied().zip(wins).filter(|(_, wins)| *wins > 0).collect();
    won.sort_by_key(|(_, wins)| std::cmp::Reverse(*wins));
    let all: usize = won.iter().map(|(_, wins)| wins).sum();
    let parts: Vec<String> = won.iter().map(|(name, wins)| format!("{name} in {wins}")).collect();
    let measurements = if all == 1 { "measurement" } else { "measurements" };
    format!("Best of all in {all} {measurements}: {}.", parts.join(", "))
}

/// The second sentence: the factor between each system and the first.
fn factors(base: &str, overall: &[(String, Ratios)], words: &str) -> String {
    let parts: Vec<String> =
        overall.iter().map(|(name, ratios)| format!("{name} reaches {}", ratios.show())).collect();
    format!("Compared with {base}, {} {words}, on geometric average (and in range).", parts.join(", "))
}

/// The third sentence: how much the rounds differ.
fn precision(summaries: impl Iterator<Item = Summary>) -> String {
    let (mut spreads, mut rounds) = (Vec::new(), 0);
    for summary in summaries {
        rounds = rounds.max(summary.count);
        if summary.median > 0.0 {
            spreads.push((summary.max - summary.min) / summary.median);
        }
    }
    if rounds < 2 {
        return "Each was measured once, so a difference of some percent means nothing.".to_owned();
    }
    let typical = Summary::of(spreads).map_or(0.0, |summary| summary.median);
    format!(
        "From its slowest to its fastest of {rounds} rounds, a figure typically differs by {:.0} %: smaller differences \
         mean nothing.",
        typical * 100.0
    )
}

/// Formats a ratio with two or three figures.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio < 9.995 => format!("{ratio:.2}"),
        _ if ratio < 99.95 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::super::report::{Axis, Measured};
    use super::*;

    fn cell(system: &str, at: f64, metric: Metric, values: &[f64]) -> CellReport {
        let figures = vec![Measured::of(metric, values.to_vec()).unwrap()];
        CellReport { scenario: "s".into(), axis: Axis::Workers, at, system: system.into(), figures }
    }

    #[test]
    fn a_study_is_summed_up_in_three_sentences_and_a_table() {
        let SystemComparison { sentences, ratios, overall } =
            compare(&report().cells, &["direct", "proxy"]).unwrap();
        assert_eq!(
            sentences,
            [
                "Best of all in 4 measurements: proxy in 4.",
                "Compared with direct, proxy reaches 21.4 (3.00 to 153) times its rate, on geometric average (and in \
                 range).",
                "From its slowest to its fastest of 3 rounds, a figure typically differs by 20 %: smaller differences \
                 mean nothing.",
            ]
        );
        assert_eq!(ratios.header, ["compared with direct", "proxy"]);
        assert_eq!(ratios.rows[0], ["publish", "21.4 (3.00 to 153)"]);
        assert_eq!(overall.len(), 1);
    }

    #[test]
    fn less_time_and_less_memory_are_better() {
        for metric in [Metric::RssEach, Metric::Latency(LatencyPoint::Mean)] {
            let cells = [cell("a", 1.0, metric, &[8.0]), cell("b", 1.0, metric, &[2.0])];
            let compared = compare(&cells, &["a", "b"]).unwrap();
            assert_eq!(compared.overall[0].1, Ratios { mean: 4.0, min: 4.0, max: 4.0 });
            assert!(compared.sentences[0].ends_with("1 measurement: b in 1."), "{:?}", compared.sentences);
            assert!(compared.sentences[2].starts_with("Each was measured once"));
        }
    }

    #[test]
    fn a_single_system_and_unmatched_cells_are_not_compared() {
        let cells = [cell("a", 1.0, Metric::Rate, &[1.0]), cell("b", 2.0, Metric::Rate, &[1.0])];
        assert!(compare(&cells[..1], &["a"]).is_none());
        assert!(compare(&cells, &["a", "b"]).is_none(), "at another place");
        assert!(compare(&cells[..1], &["a", "b"]).is_none());
    }
}
