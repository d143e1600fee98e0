//! Thresholds that decide the exit code: `p99<5ms`, `a.rate>=100k`, `ratio(a/b)>3`, `ratio(a/b, p99)<0.5`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::metric::Metric;

/// A condition on the results of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expectation {
    text: String,
    subject: Subject,
    comparison: Comparison,
    threshold: f64,
}

/// The outcome of an expectation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The expectation as given.
    pub(crate) expectation: String,
    /// Whether every system that it applies to met it.
    pub(crate) met: bool,
    /// The measured values as text.
    pub(crate) measured: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expectation, met, measured } = self;
        let word = if *met { "met" } else { "NOT MET" };
        write!(formatter, "expected {expectation}: {word} ({measured})")
    }
}

/// The results that expectations are evaluated against.
pub(crate) trait MetricSource {
    /// Names of the systems, in order.
    fn systems(&self) -> Vec<&str>;
    /// A system's figure over all rounds; `None` if it was not measured.
    fn figure(&self, system: &str, metric: Metric) -> Option<f64>;
}

impl Expectation {
    /// Checks that the systems it names are among `known`.
    ///
    /// # Errors
    /// [`ExpectError`] with the unknown name.
    pub(crate) fn check_systems(&self, known: &[&str]) -> Result<(), ExpectError> {
        let named: &[&str] = match &self.subject {
            Subject::Every(_) => &[],
            Subject::One(system, _) => &[system],
            Subject::Ratio(a, b, _) => &[a, b],
        };
        match named.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(self.error(Reason::UnknownSystem((*name).to_owned()))),
            None => Ok(()),
        }
    }

    /// The metric that it applies to.
    pub(crate) fn metric(&self) -> Metric {
        match &self.subject {
            Subject::Every(metric) | Subject::One(_, metric) | Subject::Ratio(_, _, metric) => *metric,
        }
    }

    /// Evaluates the results of a run. A figure that was not measured does not meet any expectation.
    pub(crate) fn validate(&self, figures: &impl MetricSource) -> Verdict {
        let mut met = true;
        let mut measured = Vec::new();
        let mut validate = |name: String, value: Option<f64>, show: &dyn Fn(f64) -> String| {
            met &= value.is_some_and(|value| self.comparison.holds(value, self.threshold));
            measured.push(format!("{name} = {}", value.map_or("not measured".into(), show)));
        };
        match &self.subject {
            Subject::Every(metric) => {
                for system in figures.systems() {
                    let value = figures.figure(system, *metric);
                    validate(format!("{system}.{metric}"), value, &|v| metric.show(v));
                }
            }
            Subject::One(system, metric) => {
                validate(format!("{system}.{metric}"), figures.figure(system, *metric), &|v| metric.show(v));
            }
            Subject::Ratio(a, b, metric) => {
                let (a_value, b_value) = (figures.figure(a, *metric), figures.figure(b, *metric));
                let ratio = a_value.zip(b_value).map(|(a, b)| a / b).filter(|ratio| ratio.is_finite());
                validate(format!("ratio({a}/{b}, {metric})"), ratio, &|v| format!("{v:.2}"));
            }
        }
        Verdict { expectation: self.text.clone(), met, measured: measured.join(", ") }
    }

    fn error(&self, reason: Reason) -> ExpectError {
        ExpectError { text: self.text.clone(), reason }
    }
}

impl FromStr for Expectation {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let fail = |reason| ExpectError { text: text.to_owned(), reason };
        let at = text.find(['<', '>', '=']).ok_or_else(|| fail(Reason::NoComparison))?;
        let (left, right) = text.split_at(at);
        let (comparison, right) = Comparison::take(right).ok_or_else(|| fail(Reason::NoComparison))?;
        let subject = Subject::parse(left.trim()).map_err(fail)?;
        let right = right.trim();
        let threshold = parse_value(right).ok_or_else(|| fail(Reason::BadValue(right.to_owned())))?;
        Ok(Self { text: text.to_owned(), subject, comparison, threshold })
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An expectation that cannot be parsed or evaluated.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub struct ExpectError {
    text: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    NoComparison,
    UnknownMetric(String),
    BadRatio,
    BadValue(String),
    UnknownSystem(String),
}

impl fmt::Display for ExpectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid expectation {:?}: ", self.text)?;
        match &self.reason {
            Reason::NoComparison => f.write_str("there is no <, <=, >, >= or == in it"),
            Reason::UnknownMetric(name) => {
                write!(f, "there is no metric {name:?}; metrics are: {}", Metric::names())
            }
            Reason::BadRatio => f.write_str("a ratio is written ratio(a/b) or ratio(a/b, metric)"),
            Reason::BadValue(value) => write!(f, "{value:?} is not a number with a known unit"),
            Reason::UnknownSystem(name) => write!(f, "no system is named {name:?}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Subject {
    /// Every system on its own.
    Every(Metric),
    One(String, Metric),
    Ratio(String, String, Metric),
}

impl Subject {
    fn parse(text: &str) -> Result<Self, Reason> {
        if let Some(inside) = text.strip_prefix("ratio(") {
            let inside = inside.strip_suffix(')').ok_or(Reason::BadRatio)?;
            let (systems, metric) = inside.split_once(',').unwrap_or((inside, "rate"));
            let (a, b) = systems.split_once('/').ok_or(Reason::BadRatio)?;
            let (a, b) = (a.trim(), b.trim());
            if a.is_empty() || b.is_empty() {
                return Err(Reason::BadRatio);
            }
            return Ok(Self::Ratio(a.into(), b.into(), metric_named(metric.trim())?));
        }
        // Names of systems contain no dot, names of metrics may.
        if let Some(metric) = Metric::from_name(text) {
            return Ok(Self::Every(metric));
        }
        match text.split_once('.') {
            Some((system, metric)) => Ok(Self::One(system.trim().into(), metric_named(metric.trim())?)),
            None => Err(Reason::UnknownMetric(text.into())),
        }
    }
}

fn metric_named(name: &str) -> Result<Metric, Reason> {
    Metric::from_name(name).ok_or_else(|| Reason::UnknownMetric(name.into()))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
}

impl Comparison {
    fn take(text: &str) -> Option<(Self, &str)> {
        // Longer ones first, since `<=` starts with `<`.
        const ALL: [(&str, Comparison); 6] = [
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("==", Comparison::Equal),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
            ("=", Comparison::Equal),
        ];
        ALL.iter().find_map(|&(sign, comparison)| Some((comparison, text.strip_prefix(sign)?)))
    }

    fn holds(self, value: f64, threshold: f64) -> bool {
        match self {
            Self::Less => value < threshold,
            Self::LessOrEqual => value <= threshold,
            Self::Greater => value > threshold,
            Self::GreaterOrEqual => value >= threshold,
            Self::Equal => value == threshold,
        }
    }
}

/// A number with an optional unit, in the metric's base unit: seconds, bytes, messages per second.
fn parse_value(text: &str) -> Option<f64> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim().strip_suffix("/s").unwrap_or(unit.trim()) {
        "" | "s" | "B" | "x" => 1.0,
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "%" => 1e-2,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl MetricSource for Fixed {
        fn systems(&self) -> Vec<&str> {
            vec!["fast", "slow"]
        }

        fn figure(&self, system: &str, metric: Metric) -> Option<f64> {
            let fast = system == "fast";
            match metric.to_string().as_str() {
                "rate" => Some(if fast { 400_000.0 } else { 100_000.0 }),
                "p99" => Some(if fast { 0.001 } else { 0.006 }),
                "p99.9" => Some(0.02),
                "lost" => Some(0.0),
                "rss" => Some(50.0 * 1_048_576.0),
                _ => None,
            }
        }
    }

    fn met(text: &str) -> bool {
        text.parse::<Expectation>().unwrap().validate(&Fixed).met
    }

    fn reason(text: &str) -> Reason {
        text.parse::<Expectation>().unwrap_err().reason
    }

    #[test]
    fn a_ratio_compares_rates_by_default() {
        assert!(met("ratio(fast/slow)>3"));
        assert!(met("ratio( fast / slow ) >= 4x"));
        assert!(!met("ratio(slow/fast)>1"));
        assert!(met("ratio(fast/slow, p99)<0.2"));
    }

    #[test]
    fn a_bare_metric_must_hold_for_every_system() {
        assert!(!met("p99<5ms") && met("p99<=6000us") && met("p99.9<25ms"));
        assert!(met("lost==0") && met("lost=0"));
    }

    #[test]
    fn one_system_can_be_named() {
        assert!(met("fast.p99<5ms") && !met("slow.p99<5ms"));
        assert!(met("fast.rate>399k/s") && met("fast.rate>0.3M") && met("fast.p99.9<1s"));
        assert!(met("slow.rss<64MiB"));
    }

    #[test]
    fn a_metric_that_was_not_measured_meets_no_expectation() {
        assert!(!met("cpu<100") && !met("cpu>=0"));
        let verdict = "fast.cpu<1".parse::<Expectation>().unwrap().validate(&Fixed);
        assert_eq!(verdict.measured, "fast.cpu = not measured");
    }

    #[test]
    fn malformed_expectations_are_refused_with_the_reason() {
        assert_eq!(reason("p99"), Reason::NoComparison);
        assert_eq!(reason("p98<1ms"), Reason::UnknownMetric("p98".into()));
        assert_eq!(reason("a.speed>1"), Reason::UnknownMetric("speed".into()));
        assert_eq!(reason("ratio(a)>1"), Reason::BadRatio);
        assert_eq!(reason("ratio(a/b>1"), Reason::BadRatio);
        assert_eq!(reason("p99<5parsecs"), Reason::BadValue("5parsecs".into()));
        assert_eq!(reason("p99<"), Reason::BadValue(String::new()));
    }

    #[test]
    fn unknown_systems_are_found_before_the_run() {
        let expectation: Expectation = "ratio(fast/typo)>1".parse().unwrap();
        let error = expectation.check_systems(&["fast", "slow"]).unwrap_err();
        assert_eq!(error.reason, Reason::UnknownSystem("typo".into()));
    }
}
