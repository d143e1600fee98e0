//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

mod routes;
mod wanted;

use std::fmt::{self, Write};

pub(crate) use self::routes::{router, router_beside};
pub use self::wanted::{Detail, Families, WantedMetrics};
use crate::pieces::Pieces;

/// Writes metric families: their `# HELP` and `# TYPE` lines and their samples.
///
/// Names and labels come from the program and are checked in debug builds; help texts and label values may hold
/// anything and are escaped. Write each family only once, or a scraper rejects the whole response.
#[derive(Debug, Default)]
pub struct MetricsWriter {
    text: Pieces,
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only ever rises, except when the process restarts. The family's name ends in `_total`.
    Counter,
    /// A value that rises and falls.
    Gauge,
}

/// The observations of a histogram with one set of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSeries<'l> {
    /// Names of labels and their values, the same in all samples of the series.
    pub labels: Vec<(&'l str, &'l str)>,
    /// Upper bounds in rising order, each with the number of observations in that bucket alone; observations above the last
    /// bound are in none.
    pub buckets: Vec<(f64, u64)>,
    /// The number of all observations.
    pub count: u64,
    /// The sum of all observations.
    pub sum: f64,
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A count, or a whole number of units.
    Whole(u64),
    /// A measure, such as seconds.
    Real(f64),
}

impl MetricsWriter {
    /// Creates an empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a counter with one sample and no labels.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(name, help, MetricKind::Counter).sample(&[], value);
    }

    /// Writes a gauge with one sample and no labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(name, help, MetricKind::Gauge).sample(&[], value);
    }

    /// Starts a family whose samples differ in their labels; write the samples on the returned value.
    pub fn family<'w>(&'w mut self, name: &'w str, help: &str, kind: MetricKind) -> Family<'w> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        self.head(name, help, kind);
        Family { writer: self, name }
    }

    /// Writes a histogram, with series that differ in their labels.
    pub fn histogram(&mut self, name: &str, help: &str, series: &[HistogramSeries<'_>]) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for HistogramSeries { labels, buckets, count, sum } in series {
            let mut so_far = 0;
            for (bound, observations) in buckets {
                so_far += observations;
                let bound = Number::Real(*bound).to_string();
                self.sample(&bucket, labels, Some(("le", &bound)), so_far.into());
            }
            self.sample(&bucket, labels, Some(("le", "+Inf")), (*count).into());
            self.sample(&format!("{name}_sum"), labels, None, (*sum).into());
            self.sample(&format!("{name}_count"), labels, None, (*count).into());
        }
    }

    /// Returns the text written so far.
    #[must_use]
    pub fn into_text(self) -> String {
        String::from_utf8(self.text.into_bytes()).unwrap_or_default()
    }

    /// The text written so far.
    pub(crate) fn into_pieces(self) -> Pieces {
        self.text
    }

    /// Writes samples of several families, all of which exist for each object, so that each object is looked at once. The
    /// families come one behind the other, in their order.
    pub fn families<'w>(&'w mut self, families: &[(&'w str, &str, MetricKind)]) -> FamiliesOfObjects<'w> {
        let begun = families.iter().map(|&(name, help, kind)| {
            let mut writer = Self::new();
            writer.family(name, help, kind);
            (name, writer)
        });
        FamiliesOfObjects { families: begun.collect(), labels: String::new(), into: self }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        debug_assert!(is_name(name), "{name:?} is not a name for a metric");
        let _ = write!(self.text, "# HELP {name} ");
        escape(&mut self.text, help, false);
        let _ = writeln!(self.text, "\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], last: Option<(&str, &str)>, value: Number) {
        self.text.add(name.as_bytes());
        write_labels(&mut self.text, labels.iter().copied().chain(last));
        let _ = writeln!(self.text, " {value}");
    }
}

fn write_labels<'l>(text: &mut impl Write, labels: impl Iterator<Item = (&'l str, &'l str)>) {
    let mut opening = "{";
    for (label, value) in labels {
        debug_assert!(is_name(label) && !label.contains(':'), "{label:?} is not a name for a label");
        for part in [opening, label, "=\""] {
            let _ = text.write_str(part);
        }
        escape(text, value, true);
        let _ = text.write_str("\"");
        opening = ",";
    }
    if opening == "," {
        let _ = text.write_str("}");
    }
}

/// Families of which each object has a sample, while they are written.
#[derive(Debug)]
pub struct FamiliesOfObjects<'w> {
    families: Vec<(&'w str, MetricsWriter)>,
    /// The labels of the last object, written once for all of its samples.
    labels: String,
    /// The text that they become a part of.
    into: &'w mut MetricsWriter,
}

impl FamiliesOfObjects<'_> {
    /// Writes the samples of an object, whose labels must differ from those of all others: one for each family, in their order.
    pub fn object(&mut self, labels: &[(&str, &str)], values: impl Iterator<Item = u64>) {
        self.labels.clear();
        write_labels(&mut self.labels, labels.iter().copied());
        for ((name, writer), value) in self.families.iter_mut().zip(values) {
            writer.text.add(name.as_bytes());
            writer.text.add(self.labels.as_bytes());
            let _ = writeln!(writer.text, " {value}");
        }
    }
}

impl Drop for FamiliesOfObjects<'_> {
    fn drop(&mut self) {
        for (_, writer) in self.families.drain(..) {
            self.into.text.append(writer.text);
        }
    }
}

/// A family whose samples are being written.
#[derive(Debug)]
pub struct Family<'w> {
    writer: &'w mut MetricsWriter,
    name: &'w str,
}

impl Family<'_> {
    /// Writes a sample. Its labels must differ from those of the family's other samples.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> &mut Self {
        self.writer.sample(self.name, labels, None, value.into());
        self
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => write!(formatter, "{value}"),
            Self::Real(value) if value.is_nan() => formatter.write_str("NaN"),
            Self::Real(f64::INFINITY) => formatter.write_str("+Inf"),
            Self::Real(f64::NEG_INFINITY) => formatter.write_str("-Inf"),
            Self::Real(value) => write!(formatter, "{value}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let fits = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    name.chars().all(fits) && name.starts_with(|first: char| !first.is_ascii_digit())
}

/// Escapes characters that would end the line or, in a label's value, the quotes.
fn escape(text: &mut impl Write, raw: &str, in_quotes: bool) {
    let mut from = 0;
    for (at, byte) in raw.bytes().enumerate() {
        let escaped = match byte {
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'"' if in_quotes => "\\\"",
            _ => continue,
        };
        let _ = text.write_str(&raw[from..at]).and_then(|()| text.write_str(escaped));
        from = at + 1;
    }
    let _ = text.write_str(&raw[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut MetricsWriter)) -> String {
        let mut out = MetricsWriter::new();
        write(&mut out);
        out.into_text()
    }

    #[test]
    fn a_family_has_help_type_and_samples() {
        let text = written(|out| {
            out.counter("leveret_accepted_total", "Connections accepted.", 7_u64);
            out.gauge("leveret_load", "Load.", 0.5);
            out.family("leveret_sessions", "Sessions.", MetricKind::Gauge)
                .sample(&[("protocol", "amqp"), ("transport", "tcp")], 1_u64)
                .sample(&[("protocol", "amqp"), ("transport", "unix")], 0_u64);
        });
        assert_eq!(
            text,
            "# HELP leveret_accepted_total Connections accepted.\n\
             # TYPE leveret_accepted_total counter\n\
             leveret_accepted_total 7\n\
             # HELP leveret_load Load.\n\
             # TYPE leveret_load gauge\n\
             leveret_load 0.5\n\
             # HELP leveret_sessions Sessions.\n\
             # TYPE leveret_sessions gauge\n\
             leveret_sessions{protocol=\"amqp\",transport=\"tcp\"} 1\n\
             leveret_sessions{protocol=\"amqp\",transport=\"unix\"} 0\n"
        );
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_at_infinity() {
        let text = written(|out| {
            let (labels, buckets) = (vec![("vhost", "/")], vec![(64.0, 2), (4096.0, 3)]);
            let series = HistogramSeries { labels, buckets, count: 6, sum: 9000.5 };
            out.histogram("size_bytes", "Sizes.", &[series]);
        });
        assert_eq!(
            text,
            "# HELP size_bytes Sizes.\n\
             # TYPE size_bytes histogram\n\
             size_bytes_bucket{vhost=\"/\",le=\"64\"} 2\n\
             size_bytes_bucket{vhost=\"/\",le=\"4096\"} 5\n\
             size_bytes_bucket{vhost=\"/\",le=\"+Inf\"} 6\n\
             size_bytes_sum{vhost=\"/\"} 9000.5\n\
             size_bytes_count{vhost=\"/\"} 6\n"
        );
    }

    #[test]
    fn nothing_in_a_label_or_help_can_forge_a_line() {
        let text = written(|out| {
            out.family("a", "one\ntwo \\ \"three\"", MetricKind::Gauge)
                .sample(&[("q", "x\"} 1\nb 2\\")], 0_u64);
        });
        assert_eq!(
            text,
            "# HELP a one\\ntwo \\\\ \"three\"\n# TYPE a gauge\na{q=\"x\\\"} 1\\nb 2\\\\\"} 0\n"
        );
    }

    #[test]
    fn objects_that_are_looked_at_once_have_the_samples_of_each_family() {
        let (one, other) = ([("vhost", "/"), ("queue", "a\"b")], [("vhost", "/"), ("queue", "c")]);
        let by_family = written(|out| {
            out.gauge("before", "help", 7_u64);
            out.family("a", "of a", MetricKind::Gauge).sample(&one, 1_u64).sample(&other, 2_u64);
            out.family("b", "of b", MetricKind::Counter).sample(&one, 10_u64).sample(&other, 20_u64);
            out.gauge("behind", "help", 8_u64);
        });
        let by_object = written(|out| {
            out.gauge("before", "help", 7_u64);
            let mut families =
                out.families(&[("a", "of a", MetricKind::Gauge), ("b", "of b", MetricKind::Counter)]);
            families.object(&one, [1, 10].into_iter());
            families.object(&other, [2, 20].into_iter());
            drop(families);
            out.gauge("behind", "help", 8_u64);
        });
        assert_eq!(by_object, by_family);
    }

    #[test]
    fn every_number_has_prometheus_spelling() {
        for (number, text) in [
            (Number::from(u64::MAX), "18446744073709551615"),
            (Number::from(1.0), "1"),
            (Number::from(0.001), "0.001"),
            (Number::from(f64::NAN), "NaN"),
            (Number::from(f64::INFINITY), "+Inf"),
            (Number::from(f64::NEG_INFINITY), "-Inf"),
        ] {
            assert_eq!(number.to_string(), text);
        }
    }

    #[test]
    fn names_are_letters_digits_underscores_and_colons() {
        assert!(is_name("leveret_x:y1"));
        for name in ["", "1a", "a-b", "a b", "é"] {
            assert!(!is_name(name), "{name}");
        }
    }
}
