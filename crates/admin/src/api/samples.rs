//! Rates of counters that are only read now and then.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// Recent values of counters, recorded whenever they are shown.
#[derive(Default)]
pub(super) struct Samples {
    series: Mutex<HashMap<&'static str, VecDeque<(Instant, u64)>>>,
}

impl Samples {
    /// Adds a counter and its rate to an object, as RabbitMQ shows them: `name`, and `name_details` with the
    /// rate per second. `series` distinguishes it from counters of the same name elsewhere.
    pub(super) fn show(&self, into: &mut Map<String, Value>, series: &'static str, name: &str, count: u64) {
        let rate = self.rate(series, count, Instant::now());
        into.insert(name.to_owned(), Value::from(count));
        into.insert(format!("{name}_details"), json!({"rate": rate}));
    }

    /// The change per second over the last [`SPAN`] or a little more, as far as samples exist.
    fn rate(&self, series: &'static str, count: u64, now: Instant) -> f64 {
        let mut all = self.series.lock();
        let seen = all.entry(series).or_default();
        // A sample is dropped once the next one is at least as old as the span.
        while seen.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= SPAN) {
            seen.pop_front();
        }
        let rate = seen.front().map_or(0.0, |&(at, before)| {
            let seconds = now.saturating_duration_since(at).as_secs_f64();
            if seconds < MIN_PERIOD.as_secs_f64() { 0.0 } else { (count as f64 - before as f64) / seconds }
        });
        let due = seen.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= STEP);
        if due {
            seen.push_back((now, count));
        }
        (rate * 10.0).round() / 10.0
    }
}

/// The time that a rate covers, as in RabbitMQ.
const SPAN: Duration = Duration::from_secs(5);

/// Minimum time between two samples: about six per span.
const STEP: Duration = Duration::from_secs(1);

/// A rate over less time than this is meaningless and shown as 0.
const MIN_PERIOD: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_about_the_last_seconds() {
        let (samples, start) = (Samples::default(), Instant::now());
        let mut rates = Vec::new();
        for second in 0..20_u64 {
            let count = if second < 10 { second * 100 } else { 1000 };
            rates.push(samples.rate("x", count, start + Duration::from_secs(second)));
        }
        assert_eq!((rates[0], rates[1], rates[9]), (0.0, 100.0, 100.0));
        assert_eq!(rates[19], 0.0, "nothing for a while");
        assert!(samples.series.lock()["x"].len() <= 8, "what is old is forgotten");
    }
}
