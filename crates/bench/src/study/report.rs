//! The results of a study, for people and programs.

use serde::{Deserialize, Serialize};

use crate::expect::Verdict;
use crate::machine::Machine;
use crate::metric::{Fate, LatencyPoint, Metric};
use crate::stats::Summary;

/// All results of one run of a study.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StudyReport {
    /// The command's name.
    pub(crate) study: String,
    /// The heading of the report.
    pub(crate) title: String,
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// The parameters common to all cells.
    pub(crate) parameters: Vec<Parameter>,
    /// The systems, in the order given; ratios are relative to the first.
    pub(crate) systems: Vec<SystemAbout>,
    /// The cells, by scenario, value on the axis, and system.
    pub(crate) cells: Vec<CellReport>,
    /// Notes that a reader needs to interpret the figures.
    pub(crate) notes: Vec<String>,
    /// The outcomes of the expectations.
    pub(crate) expectations: Vec<Verdict>,
}

/// A setting that characterises the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl Parameter {
    /// A parameter with its value as text.
    pub(crate) fn new(name: &str, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}

/// A system under test.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SystemAbout {
    /// Its name on the command line.
    pub(crate) name: String,
    /// Its URI, without the password.
    pub(crate) uri: String,
    /// Product and version, as it announces them.
    pub(crate) server: String,
}

/// The quantity that differs between the cells of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Axis {
    /// Milliseconds of a round trip to the broker.
    RoundTrip,
    /// Connections that publish.
    Publishers,
    /// Threads that work side by side.
    Workers,
    /// Connections that are open.
    Connections,
    /// Queues that exist.
    Queues,
}

impl Axis {
    /// The label of its values, for tables and plots.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::RoundTrip => "round trip in ms",
            Self::Publishers => "publishers",
            Self::Workers => "workers",
            Self::Connections => "connections",
            Self::Queues => "queues",
        }
    }

    /// Formats a value with its unit.
    pub(crate) fn show(self, at: f64) -> String {
        match self {
            Self::RoundTrip => format!("{at} ms"),
            _ => format!("{at} {}", self.label()),
        }
    }
}

/// All rounds of a cell on a system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CellReport {
    /// The scenario that was measured.
    pub(crate) scenario: String,
    /// The axis along which the cells of the scenario differ.
    pub(crate) axis: Axis,
    /// The value on the axis.
    pub(crate) at: f64,
    /// The name of the system.
    pub(crate) system: String,
    /// The figures that were measured.
    pub(crate) figures: Vec<Measured>,
}

/// A figure over all rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The metric's name, as in expectations.
    pub(crate) metric: String,
    /// Location and spread; seconds, bytes, cores, or a number per second.
    #[serde(flatten)]
    pub(crate) summary: Summary,
    /// Each round, in order; empty in a stream's results of earlier versions.
    #[serde(default)]
    pub(crate) values: Vec<f64>,
}

impl Measured {
    /// Summarises the rounds; `None` when there were none.
    pub(crate) fn of(metric: Metric, values: Vec<f64>) -> Option<Self> {
        let summary = Summary::of(values.iter().copied())?;
        Some(Self { metric: metric.to_string(), summary, values })
    }
}

impl CellReport {
    /// Location and spread of a figure; `None` unless it was measured.
    pub(crate) fn summary(&self, metric: Metric) -> Option<Summary> {
        let name = metric.to_string();
        self.figures.iter().find(|measured| measured.metric == name).map(|measured| measured.summary)
    }

    /// One value for all rounds, see [`Summary::figure`].
    pub(crate) fn figure(&self, metric: Metric) -> Option<f64> {
        self.summary(metric).map(|summary| summary.figure(metric))
    }
}

impl StudyReport {
    /// A report of cells that were computed from another form of results.
    pub(crate) fn of_cells(machine: Machine, systems: Vec<SystemAbout>, cells: Vec<CellReport>) -> Self {
        Self {
            study: String::new(),
            title: String::new(),
            machine,
            parameters: Vec::new(),
            systems,
            cells,
            notes: Vec::new(),
            expectations: Vec::new(),
        }
    }

    /// The parameters in one line.
    pub(crate) fn parameters_text(&self) -> String {
        let each = self.parameters.iter().map(|p| format!("{} {}", p.name, p.value));
        each.collect::<Vec<_>>().join("; ")
    }

    /// The rounds of one cell on one system.
    pub(crate) fn cell(&self, scenario: &str, axis: Axis, at: f64, system: &str) -> Option<&CellReport> {
        self.cells.iter().find(|cell| {
            cell.scenario == scenario && cell.axis == axis && cell.at == at && cell.system == system
        })
    }

    /// Every cell once, regardless of the system, in order.
    pub(crate) fn distinct_cells(&self) -> Vec<(&str, Axis, f64)> {
        let mut all: Vec<(&str, Axis, f64)> = Vec::new();
        for cell in &self.cells {
            let known = (cell.scenario.as_str(), cell.axis, cell.at);
            if !all.contains(&known) {
                all.push(known);
            }
        }
        all
    }

    /// The axes of the cells, in order.
    pub(crate) fn axes(&self) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        for cell in &self.cells {
            if !axes.contains(&cell.axis) {
                axes.push(cell.axis);
            }
        }
        axes
    }

    /// The metrics measured in some cell of an axis, in the order in which reports show them.
    pub(crate) fn metrics(&self, axis: Axis) -> Vec<Metric> {
        let measured = |metric: &Metric| {
            self.cells.iter().any(|cell| cell.axis == axis && cell.summary(*metric).is_some())
        };
        SHOWN.iter().copied().filter(measured).collect()
    }
}

/// The metrics in reports, in order.
const SHOWN: [Metric; 14] = [
    Metric::Rate,
    Metric::Latency(LatencyPoint::P50),
    Metric::Latency(LatencyPoint::P99),
    Metric::Latency(LatencyPoint::Max),
    Metric::ConfirmLatency(LatencyPoint::P50),
    Metric::ConfirmLatency(LatencyPoint::P99),
    Metric::ConfirmLatency(LatencyPoint::P99_9),
    Metric::ConfirmLatency(LatencyPoint::Max),
    Metric::CpuPerMessage,
    Metric::BrokerCpuPerMessage,
    Metric::Cpu,
    Metric::Rss,
    Metric::RssEach,
    Metric::Count(Fate::Lost),
];
