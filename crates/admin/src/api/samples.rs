//! Rates, of counters that are looked at now and then.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// What counters stood at when somebody last looked.
#[derive(Default)]
pub(super) struct Samples {
    series: Mutex<HashMap<&'static str, VecDeque<(Instant, u64)>>>,
}

impl Samples {
    /// Adds a counter and its rate to an object, as RabbitMQ shows them: `name`, and `name_details` with the rate per
    /// second. `series` tells it from counters of the same name elsewhere.
    pub(super) fn show(&self, into: &mut Map<String, Value>, series: &'static str, name: &str, count: u64) {
        let rate = self.rate(series, count, Instant::now());
        into.insert(name.to_owned(), Value::from(count));
        into.insert(format!("{name}_details"), json!({"rate": rate}));
    }

    /// The change per second over the last [`SPAN`] or a little more, as far as somebody looked.
    fn rate(&self, series: &'static str, count: u64, now: Instant) -> f64 {
        let mut all = self.series.lock();
        let seen = all.entry(series).or_default();
        // Those that are older than the span are needed no more once there is a younger one that is old enough.
        while seen.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= SPAN) {
            seen.pop_front();
        }
        let rate = seen.front().map_or(0.0, |&(at, before)| {
            let seconds = now.saturating_duration_since(at).as_secs_f64();
            if seconds < SHORTEST.as_secs_f64() { 0.0 } else { (count as f64 - before as f64) / seconds }
        });
        let due = seen.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= STEP);
        if due {
            seen.push_back((now, count));
        }
        (rate * 10.0).round() / 10.0
    }
}

/// What a rate is about, as in RabbitMQ.
const SPAN: Duration = Duration::from_secs(5);

/// Between two samples that are kept: six to a span.
const STEP: Duration = Duration::from_secs(1);

/// Over less than this a rate says nothing.
const SHORTEST: Duration = Duration::from_millis(500);

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
