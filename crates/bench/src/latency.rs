//! Latency histograms (HDR) and the percentiles that reports show.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is resolved, in nanoseconds: ten minutes. Longer ones count as this.
const MAX_LATENCY: u64 = 600_000_000_000;
/// Significant decimal digits: values are exact to one in a thousand.
const DIGITS: u8 = 3;

/// Latencies of one thread, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty histogram, about 200 KiB.
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, MAX_LATENCY, DIGITS).expect("constant bounds are valid"))
    }

    /// Records one latency in nanoseconds.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Adds what another thread recorded.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// The percentiles; `None` when nothing was recorded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let h = &self.0;
        (!h.is_empty()).then(|| Percentiles {
            count: h.len(),
            min: seconds(h.min()),
            mean: h.mean() / 1e9,
            p50: seconds(h.value_at_quantile(0.5)),
            p90: seconds(h.value_at_quantile(0.9)),
            p99: seconds(h.value_at_quantile(0.99)),
            p99_9: seconds(h.value_at_quantile(0.999)),
            p99_99: seconds(h.value_at_quantile(0.9999)),
            max: seconds(h.max()),
        })
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// Latency figures in seconds, each within a thousandth of the true value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    /// Messages measured.
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p99_9: f64,
    #[serde(rename = "p99.99")]
    pub(crate) p99_99: f64,
    pub(crate) max: f64,
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() <= expected * 0.002
    }

    #[test]
    fn a_uniform_distribution_has_its_percentiles() {
        let mut latencies = Latencies::new();
        (1..=100_000).for_each(|micros| latencies.record(micros * 1000));
        let p = latencies.percentiles().unwrap();
        for (actual, expected) in [
            (p.p50, 0.050),
            (p.p90, 0.090),
            (p.p99, 0.099),
            (p.p99_9, 0.0999),
            (p.p99_99, 0.09999),
            (p.max, 0.1),
            (p.mean, 0.05),
            (p.min, 1e-6),
        ] {
            assert!(near(actual, expected), "{actual} is not {expected}");
        }
    }

    #[test]
    fn merging_equals_recording_in_one_place() {
        let (mut both, mut odd, mut even) = (Latencies::new(), Latencies::new(), Latencies::new());
        for n in 1..=10_000u64 {
            both.record(n * n);
            if n % 2 == 0 { even.record(n * n) } else { odd.record(n * n) }
        }
        odd.add(&even);
        assert_eq!(odd.percentiles(), both.percentiles());
    }

    #[test]
    fn an_empty_histogram_has_no_percentiles_and_values_above_the_maximum_count_as_it() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentiles(), None);
        latencies.record(u64::MAX);
        assert!(near(latencies.percentiles().unwrap().max, 600.0));
    }
}
