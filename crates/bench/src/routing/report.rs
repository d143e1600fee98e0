//! The results of the study, and the figures derived from them.

use serde::{Deserialize, Serialize};

use super::arguments::{RoutingSettings, RoutingStudy, StudiedExchange};
use super::fit::Growth;
use crate::expect::Verdict;
use crate::latency::Percentiles;
use crate::machine::Machine;
use crate::study::report::SystemAbout;

/// All results of one run of `bench routing`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RoutingReport {
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// Settings common to all points.
    pub(crate) settings: RoutingSettings,
    /// The systems, in the order given.
    pub(crate) systems: Vec<SystemAbout>,
    /// The levels, by exchange type, level and system.
    pub(crate) series: Vec<Series>,
    /// The growth of costs, by exchange type, figure and system.
    pub(crate) growth: Vec<FigureGrowth>,
    /// The results of the deletion and exclusive studies.
    pub(crate) bulk: Vec<Bulk>,
    /// Notes that a reader needs to interpret the figures.
    pub(crate) notes: Vec<String>,
    /// The outcomes of the expectations.
    pub(crate) expectations: Vec<Verdict>,
}

/// A level on a system: growing numbers of queues with the same number of bindings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Type of the exchange.
    pub(crate) exchange: StudiedExchange,
    /// Exponent of the base that gives `bindings`.
    pub(crate) level: u32,
    /// Bindings of each queue.
    pub(crate) bindings: u64,
    /// Name of the system.
    pub(crate) system: String,
    /// The points, by ascending number of queues.
    pub(crate) points: Vec<RoutingPoint>,
}

/// The measurements at one number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoutingPoint {
    /// Queues bound to the exchange, each of which a message matches.
    pub(crate) queues: u64,
    /// Queues created at this point; they are the first to be deleted again.
    pub(crate) created: u64,
    /// Time to create these with all their bindings, in seconds.
    pub(crate) create_seconds: f64,
    /// Messages published.
    pub(crate) messages: u64,
    /// Time until all were known to be routed, in seconds.
    pub(crate) publish_seconds: f64,
    /// Time to delete the queues created here, in seconds.
    pub(crate) delete_seconds: f64,
    /// Growth of resident memory since before the level, in bytes; `None` if no process was named.
    pub(crate) rss_bytes: Option<u64>,
}

/// A quantity that is plotted over the number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Microseconds to create a queue with its bindings.
    Create,
    /// Microseconds to route a message to all queues.
    Publish,
    /// Microseconds to delete a queue with its bindings.
    Delete,
}

impl Figure {
    /// All figures.
    pub(crate) const ALL: [Self; 3] = [Self::Create, Self::Publish, Self::Delete];

    /// The name in scenarios and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Publish => "publish",
            Self::Delete => "delete",
        }
    }

    /// The unit that its values are times of, for axes.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Create => "per queue created with its bindings",
            Self::Publish => "per message routed to all queues",
            Self::Delete => "per queue deleted with its bindings",
        }
    }

    /// Its value at a point, in microseconds.
    pub(crate) fn micros(self, point: &RoutingPoint) -> f64 {
        let count = if self == Self::Publish { point.messages } else { point.created };
        self.seconds(point) * 1e6 / count.max(1) as f64
    }

    /// The duration that its value is derived from.
    fn seconds(self, point: &RoutingPoint) -> f64 {
        match self {
            Self::Create => point.create_seconds,
            Self::Publish => point.publish_seconds,
            Self::Delete => point.delete_seconds,
        }
    }
}

/// In a shorter time, in seconds, one late wake-up dominates: such a point is drawn, but not used in a fit.
const MIN_SECONDS: f64 = 0.002;

/// The growth of a figure on one system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FigureGrowth {
    /// Type of the exchange.
    pub(crate) exchange: StudiedExchange,
    /// The figure that grows.
    pub(crate) figure: Figure,
    /// Name of the system.
    pub(crate) system: String,
    /// Growth of the total time (for messages: of the time per message) with the number of queues, for the levels.
    pub(crate) with_queues: Option<Growths>,
    /// Growth of the time per queue or message with the bindings of each queue, for the numbers of queues.
    pub(crate) with_bindings: Option<Growths>,
}

/// Growth seen along several lines of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growths {
    /// The line with the median exponent, which decides the verdict.
    pub(crate) median: Growth,
    /// The steepest line.
    pub(crate) steepest: Growth,
    /// The number of lines that could be fitted.
    pub(crate) lines: usize,
}

/// The result of one deletion or exclusive study.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Bulk {
    /// The study.
    pub(crate) study: RoutingStudy,
    /// Type of the exchange.
    pub(crate) exchange: StudiedExchange,
    /// Name of the system.
    pub(crate) system: String,
    /// The number of bindings, or of queues.
    pub(crate) count: u64,
    /// Time to create them, in seconds.
    pub(crate) make_seconds: f64,
    /// Time from the request, or the connection's end, until all were gone; in seconds.
    pub(crate) gone_seconds: f64,
    /// Waits for confirms before the deletion; `None` if no messages were published.
    pub(crate) confirms_before: Option<Percentiles>,
    /// Waits for confirms that were due during it.
    pub(crate) confirms_during: Option<Percentiles>,
}

/// The growth of each figure for each exchange type and system.
pub(super) fn growth(
    series: &[Series],
    kinds: &[StudiedExchange],
    systems: &[SystemAbout],
) -> Vec<FigureGrowth> {
    let mut all = Vec::new();
    for &exchange in kinds {
        for figure in Figure::ALL {
            for system in systems {
                let own: Vec<&Series> =
                    series.iter().filter(|s| s.exchange == exchange && s.system == system.name).collect();
                let with_queues = own.iter().filter_map(|series| with_queues(series, figure));
                let with_bindings =
                    queue_counts(&own).into_iter().filter_map(|q| with_bindings(&own, q, figure));
                let (with_queues, with_bindings) = (summarise(with_queues), summarise(with_bindings));
                let system = system.name.clone();
                all.push(FigureGrowth { exchange, figure, system, with_queues, with_bindings });
            }
        }
    }
    all
}

fn with_queues(series: &Series, figure: Figure) -> Option<Growth> {
    let points = series.points.iter().filter(|point| figure.seconds(point) >= MIN_SECONDS);
    let points: Vec<(f64, f64)> = points
        .map(|point| match figure {
            Figure::Publish => (point.queues as f64, figure.micros(point)),
            Figure::Create | Figure::Delete => (point.created as f64, figure.seconds(point)),
        })
        .collect();
    Growth::fit(&points)
}

fn with_bindings(levels: &[&Series], queues: u64, figure: Figure) -> Option<Growth> {
    let at = |series: &&Series| {
        let point = series.points.iter().find(|point| point.queues == queues)?;
        (figure.seconds(point) >= MIN_SECONDS).then(|| (series.bindings as f64, figure.micros(point)))
    };
    Growth::fit(&levels.iter().filter_map(at).collect::<Vec<_>>())
}

fn queue_counts(levels: &[&Series]) -> Vec<u64> {
    let mut counts: Vec<u64> =
        levels.iter().flat_map(|s| s.points.iter().map(|point| point.queues)).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn summarise(growths: impl Iterator<Item = Growth>) -> Option<Growths> {
    let mut sorted: Vec<Growth> = growths.collect();
    sorted.sort_by(|a, b| a.exponent.total_cmp(&b.exponent));
    Some(Growths { median: *sorted.get(sorted.len() / 2)?, steepest: *sorted.last()?, lines: sorted.len() })
}

/// The data of one figure as text for gnuplot: a block for each level, a line for each number of queues with
/// the microseconds.
pub(super) fn data_text(series: &[&Series], figure: Figure) -> String {
    let mut out = format!("# queues  µs {}\n", figure.unit());
    for level in series {
        out += &format!("\n\n# level {} ({} bindings per queue)\n", level.level, level.bindings);
        for point in &level.points {
            out += &format!("{} {:.3}\n", point.queues, figure.micros(point));
        }
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn series(level: u32, micros_per_queue: impl Fn(u64) -> f64) -> Series {
        let point = |e: u32| {
            let queues = 1u64 << e;
            let created = if e == 0 { 1 } else { queues / 2 };
            let seconds = created as f64 * micros_per_queue(queues) / 1e6;
            RoutingPoint {
                queues,
                created,
                create_seconds: seconds,
                messages: 10,
                publish_seconds: queues as f64 / 100.0,
                delete_seconds: seconds / 2.0,
                rss_bytes: None,
            }
        };
        let points = (0..8).map(point).collect();
        Series { exchange: StudiedExchange::Direct, level, bindings: 1 << level, system: "a".into(), points }
    }

    #[test]
    fn data_has_a_block_for_each_level_that_gnuplot_tells_apart() {
        let (mut one, mut two) = (series(0, |_| 12.5), series(3, |_| 99.0));
        one.points.truncate(3);
        two.points.truncate(1);
        let expected = "# queues  µs per queue created with its bindings\n\
            \n\n# level 0 (1 bindings per queue)\n1 12.500\n2 12.500\n4 12.500\n\
            \n\n# level 3 (8 bindings per queue)\n1 99.000\n";
        assert_eq!(data_text(&[&one, &two], Figure::Create), expected);
    }

    #[test]
    fn the_median_level_decides_and_the_steepest_is_reported() {
        let systems = [SystemAbout { name: "a".into(), uri: String::new(), server: String::new() }];
        let (flat, steep) = (|_| 5e4, |queues| queues as f64 * 1e4);
        let levels = [series(0, flat), series(1, flat), series(2, steep)];
        let growth = growth(&levels, &[StudiedExchange::Direct], &systems);
        let of = |figure| growth.iter().find(|g| g.figure == figure).unwrap().with_queues.unwrap();
        let create = of(Figure::Create);
        assert!((create.median.exponent - 1.0).abs() < 0.01, "{create:?}");
        assert!((create.steepest.exponent - 2.0).abs() < 0.01, "{create:?}");
        assert!((of(Figure::Publish).steepest.exponent - 1.0).abs() < 0.01, "{growth:?}");
        assert_eq!(growth[0].with_bindings, None, "three levels tell nothing");
    }

    #[test]
    fn figures_too_short_to_measure_are_left_out_of_a_fit() {
        assert_eq!(with_queues(&series(0, |_| 5.0), Figure::Create), None);
    }
}
