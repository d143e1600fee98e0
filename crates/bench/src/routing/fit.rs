//! Estimates how a cost grows: the slope of a straight line through points on log-log axes.
//!
//! The line is that of Theil and Sen: its slope is the median of the slopes between any two points, so that
//! it is robust against single points that another program has disturbed.

use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// How a cost grows with a number of things.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// The cost grows as the number to the power of this.
    pub(crate) exponent: f64,
    /// The number of points it was fitted to.
    pub(crate) points: usize,
}

impl Growth {
    /// Fits `cost = c * number^exponent` to the upper half of these points, at least four: constant costs
    /// hide the growth in the lower half. `None` if there are fewer. Expects ascending numbers.
    pub(crate) fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let points: Vec<_> = points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
        let taken = (points.len() / 2).max(FEWEST);
        let upper = points.get(points.len().checked_sub(taken)?..)?;
        let logs: Vec<(f64, f64)> = upper.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        let pairs = logs.iter().enumerate().flat_map(|(n, a)| logs[n + 1..].iter().map(move |b| (a, b)));
        let slopes = pairs.filter(|(a, b)| a.0 < b.0).map(|(a, b)| (b.1 - a.1) / (b.0 - a.0));
        Summary::of(slopes).map(|slopes| Self { exponent: slopes.median, points: logs.len() })
    }

    /// Whether it grows no faster than the number, within the measuring error.
    pub(crate) fn is_linear_or_better(&self) -> bool {
        self.exponent <= 1.0 + TOLERANCE
    }

    /// The verdict in words.
    pub(crate) fn verdict(&self) -> &'static str {
        if self.is_linear_or_better() { "linear or better" } else { "worse than linear" }
    }
}

/// Fewer points do not constrain the fit.
const FEWEST: usize = 4;
/// The amount that exhausted caches and other programs add to an exponent over a few octaves. A quadratic
/// cost is far above it.
const TOLERANCE: f64 = 0.15;

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(count: i32, cost: impl Fn(f64) -> f64) -> Growth {
        let points: Vec<_> = (0..count).map(|e| 2f64.powi(e)).map(|x| (x, cost(x))).collect();
        Growth::fit(&points).unwrap()
    }

    #[test]
    fn powers_have_their_exponents() {
        for exponent in [0.0, 0.5, 1.0, 1.5, 2.0] {
            let growth = grown(8, |x| 7.0 * x.powf(exponent));
            assert!((growth.exponent - exponent).abs() < 1e-9, "{growth:?}");
            assert_eq!(growth.is_linear_or_better(), exponent <= 1.0);
        }
    }

    #[test]
    fn a_constant_at_the_start_does_not_hide_a_quadratic_end() {
        let growth = grown(16, |x| 1000.0 + x * x);
        assert!(growth.exponent > 1.8, "{growth:?}");
        assert_eq!(growth.points, 8);
        assert_eq!(growth.verdict(), "worse than linear");
    }

    #[test]
    fn one_disturbed_point_does_not_turn_the_line() {
        let growth = grown(12, |x| if x == 1024.0 { 9.0 * x } else { x });
        assert!((growth.exponent - 1.0).abs() < 0.01, "{growth:?}");
    }

    #[test]
    fn n_log_n_passes_as_linear_over_many_octaves() {
        assert_eq!(grown(16, |x| x * (x + 1.0).ln()).verdict(), "linear or better");
    }

    #[test]
    fn too_few_points_or_a_single_number_fit_nothing() {
        assert_eq!(Growth::fit(&[]), None);
        assert_eq!(Growth::fit(&[(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]), None);
        assert_eq!(Growth::fit(&[(2.0, 1.0); 6]), None);
        assert_eq!(Growth::fit(&[(0.0, 1.0), (1.0, 1.0), (2.0, 0.0), (3.0, 1.0), (4.0, 1.0)]), None);
    }
}
