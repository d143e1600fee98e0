//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

mod routes;
mod wanted;

use std::fmt::{self, Write as _};

pub(crate) use self::routes::{router, router_beside};
pub use self::wanted::{Detail, Families, WantedMetrics};

/// Writes metric families: their `# HELP` and `# TYPE` lines and their samples.
///
/// Names and labels come from the program and are checked in debug builds; help texts and label values may hold
/// anything and are escaped. Write each family only once, or a scraper rejects the whole response.
#[derive(Debug, Default)]
pub struct MetricsWriter {
    text: String,
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
        self.text
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        debug_assert!(is_name(name), "{name:?} is no name for a metric");
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(&mut self.text, help, false);
        self.text.push_str("\n# TYPE ");
        self.text.push_str(name);
        self.text.push(' ');
        self.text.push_str(kind);
        self.text.push('\n');
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], last: Option<(&str, &str)>, value: Number) {
        self.text.push_str(name);
        write_labels(&mut self.text, labels.iter().copied().chain(last));
        let _ = writeln!(self.text, " {value}");
    }
}

fn write_labels<'l>(text: &mut String, labels: impl Iterator<Item = (&'l str, &'l str)>) {
    let mut opening = '{';
    for (label, value) in labels {
        debug_assert!(is_name(label) && !label.contains(':'), "{label:?} is no name for a label");
        text.push(opening);
        text.push_str(label);
        text.push_str("=\"");
        escape(text, value, true);
        text.push('"');
        opening = ',';
    }
    if opening == ',' {
        text.push('}');
    }
}

/// Labels in their written form, for an object with samples in several families.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// Formats the labels once.
    #[must_use]
    pub fn new(labels: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        write_labels(&mut text, labels.iter().copied());
        Self(text)
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

    /// Writes a sample with labels that have been formatted already.
    pub fn sample_of(&mut self, labels: &Labels, value: impl Into<Number>) -> &mut Self {
        let text = &mut self.writer.text;
        text.push_str(self.name);
        text.push_str(&labels.0);
        let _ = writeln!(text, " {}", value.into());
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
fn escape(text: &mut String, raw: &str, in_quotes: bool) {
    for character in raw.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if in_quotes => text.push_str("\\\""),
            _ => text.push(character),
        }
    }
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
    fn labels_written_once_are_those_written_each_time() {
        let labels = [("vhost", "/"), ("queue", "a\"b")];
        let each_time = written(|out| {
            out.family("a", "help", MetricKind::Gauge).sample(&labels, 1_u64).sample(&labels, 2_u64);
        });
        let once = written(|out| {
            let labels = Labels::new(&labels);
            out.family("a", "help", MetricKind::Gauge).sample_of(&labels, 1_u64).sample_of(&labels, 2_u64);
        });
        assert_eq!(once, each_time);
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
