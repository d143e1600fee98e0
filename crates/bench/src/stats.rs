//! Statistics over the rounds of a run.

use serde::Serialize;

/// Location and spread of one figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Number of rounds.
    pub count: usize,
    /// The middle value; the mean of the two middle ones when `count` is even.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divided by n - 1); 0 for a single round.
    pub stddev: f64,
    /// Median absolute deviation from the median, not scaled: half of the rounds lie within it.
    pub mad: f64,
}

impl Summary {
    /// Summarises `values`; `None` when there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let squares: f64 = sorted.iter().map(|v| (v - mean).powi(2)).sum();
        let median = median_of_sorted(&sorted);
        let mut deviations: Vec<f64> = sorted.iter().map(|v| (v - median).abs()).collect();
        deviations.sort_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            median,
            min,
            max,
            mean,
            stddev: if sorted.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 },
            mad: median_of_sorted(&deviations),
        })
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

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
}
