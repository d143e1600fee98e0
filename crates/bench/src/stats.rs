//! Statistics over the rounds of a run.

use serde::{Deserialize, Serialize};

use crate::metric::{LatencyPoint, Metric};

/// Location and spread of one figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Number of rounds.
    pub(crate) count: usize,
    /// The middle value; the mean of the two middle ones when `count` is even.
    pub(crate) median: f64,
    /// The smallest value.
    pub(crate) min: f64,
    /// The largest value.
    pub(crate) max: f64,
    /// Arithmetic mean.
    pub(crate) mean: f64,
    /// Sample standard deviation (divided by n - 1); 0 for a single round.
    pub(crate) stddev: f64,
    /// Median absolute deviation from the median, not scaled: half of the rounds lie within it.
    pub(crate) mad: f64,
    /// Half the width of the 95 % confidence interval of the mean, by Student's t; 0 for a single round.
    pub(crate) ci95: f64,
}

impl Summary {
    /// Summarises `values`; `None` when there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let squares: f64 = sorted.iter().map(|v| (v - mean).powi(2)).sum();
        let median = median_of_sorted(&sorted);
        let mut deviations: Vec<f64> = sorted.iter().map(|v| (v - median).abs()).collect();
        deviations.sort_by(f64::total_cmp);
        let stddev = if sorted.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Some(Self {
            count: sorted.len(),
            median,
            min,
            max,
            mean,
            stddev,
            mad: median_of_sorted(&deviations),
            ci95: t_quantile(sorted.len() - 1) * stddev / n.sqrt(),
        })
    }

    /// One value for all rounds: the sum of counts, the worst of extremes, the median of all other figures.
    pub(crate) fn figure(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Count(_) => self.mean * self.count as f64,
            Metric::Latency(LatencyPoint::Max) | Metric::ConfirmLatency(LatencyPoint::Max) | Metric::Rss => {
                self.max
            }
            Metric::Latency(LatencyPoint::Min) | Metric::ConfirmLatency(LatencyPoint::Min) => self.min,
            _ => self.median,
        }
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The quantile at 0.975 of Student's t distribution. Between tabulated degrees of freedom the lower one is
/// used, so that an interval is never too narrow.
fn t_quantile(degrees: usize) -> f64 {
    let at = T_QUANTILES.partition_point(|(known, _)| *known <= degrees);
    at.checked_sub(1).map_or(0.0, |index| T_QUANTILES[index].1)
}

/// Degrees of freedom and quantile, from any table of the distribution.
const T_QUANTILES: [(usize, f64); 24] = [
    (1, 12.706),
    (2, 4.303),
    (3, 3.182),
    (4, 2.776),
    (5, 2.571),
    (6, 2.447),
    (7, 2.365),
    (8, 2.306),
    (9, 2.262),
    (10, 2.228),
    (11, 2.201),
    (12, 2.179),
    (13, 2.160),
    (14, 2.145),
    (15, 2.131),
    (16, 2.120),
    (17, 2.110),
    (18, 2.101),
    (19, 2.093),
    (20, 2.086),
    (25, 2.060),
    (30, 2.042),
    (60, 2.000),
    (120, 1.980),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn a_known_sample_has_its_known_figures() {
        // Mean 5, sum of squared deviations 32.
        let s = Summary::of([9.0, 2.0, 4.0, 4.0, 5.0, 4.0, 7.0, 5.0]).unwrap();
        assert!(close(s.mean, 5.0) && close(s.median, 4.5));
        assert!(close(s.stddev, (32.0f64 / 7.0).sqrt()));
        assert!(close(s.mad, 0.5), "{}", s.mad);
        assert_eq!((s.count, s.min, s.max), (8, 2.0, 9.0));
    }

    #[test]
    fn one_outlier_moves_the_mean_but_neither_median_nor_mad() {
        let s = Summary::of([10.0, 11.0, 12.0, 13.0, 1e6]).unwrap();
        assert!(close(s.median, 12.0) && close(s.mad, 1.0));
        assert!(s.mean > 1e5 && s.stddev > 1e5);
    }

    #[test]
    fn a_uniform_distribution_has_its_textbook_spread() {
        let s = Summary::of((0..=1000).map(f64::from)).unwrap();
        assert!(close(s.median, 500.0) && close(s.mean, 500.0) && close(s.mad, 250.0));
        // Discrete uniform on n points: variance n(n + 1)/12 with the n - 1 divisor.
        assert!(close(s.stddev, (1001.0f64 * 1002.0 / 12.0).sqrt()));
    }

    #[test]
    fn one_round_has_no_spread_and_none_has_no_summary() {
        let s = Summary::of([3.0]).unwrap();
        assert_eq!((s.median, s.stddev, s.mad), (3.0, 0.0, 0.0));
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn the_confidence_interval_is_students() {
        // The mean of n values with standard deviation s lies within t s / sqrt(n).
        let s = Summary::of([9.0, 2.0, 4.0, 4.0, 5.0, 4.0, 7.0, 5.0]).unwrap();
        assert!(close(s.ci95, 2.365 * (32.0f64 / 7.0).sqrt() / 8.0f64.sqrt()));
        let s = Summary::of([1.0, 3.0]).unwrap();
        assert!(close(s.ci95, 12.706), "two values, s = sqrt 2");
        assert_eq!((t_quantile(0), t_quantile(24), t_quantile(29)), (0.0, 2.086, 2.060));
    }

    #[test]
    fn the_confidence_interval_holds_the_true_mean_as_often_as_it_says() {
        // Sums of twelve uniform values are very nearly normal; each trial has ten of them, as a study of ten rounds has.
        let mut random = crate::random::Random::new(42);
        let mut normal = || (0..12).map(|_| random.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0;
        let trials = 20_000;
        let held = (0..trials)
            .filter(|_| {
                let s = Summary::of((0..10).map(|_| normal())).unwrap();
                s.mean.abs() <= s.ci95
            })
            .count();
        let share = held as f64 / f64::from(trials);
        assert!((0.943..0.957).contains(&share), "{share}");
    }
}
