//! The study against brokers that accept all messages.

use super::*;
use crate::metric::LatencyPoint;
use crate::stream::fake_broker::{FakeBroker, ScriptedFate};
use crate::usage::parse;

fn plan(arguments: &[&str]) -> Result<PublishPlan, Error> {
    parse::<PublishArguments>(arguments).unwrap().plan()
}

#[test]
fn every_style_is_measured_with_more_publishers_and_farther_away() {
    let (a, b) = (FakeBroker::start(|_| ScriptedFate::Dropped), FakeBroker::start(|_| ScriptedFate::Dropped));
    let own = std::process::id();
    let (a, b) = (format!("a={},pid={own}", a.uri()), format!("b={}", b.uri()));
    let arguments = ["--quick", "--time", "0.05", "--latency", "20", "--publishers", "2", "--size", "4000"];
    let plan = plan(&[&arguments[..], &["--system", &a, "--system", &b]].concat()).unwrap();
    let report = run(&plan, &mut |_, _| {}).unwrap();
    assert_eq!(report.cells.len(), 5 * 2 * 2);
    for cell in &report.cells {
        let of = |metric| cell.summary(metric).map(|summary| summary.median);
        assert!(of(Metric::Rate).is_some(), "{cell:?}");
        assert_eq!(of(Metric::CpuPerMessage).is_some(), cell.system == "a");
        let confirmed = of(Metric::ConfirmLatency(LatencyPoint::P50));
        assert!(confirmed.is_none() || cell.scenario.contains("confirm"), "{cell:?}");
        if cell.axis == Axis::RoundTrip {
            assert!(confirmed.is_none_or(|time| time >= 0.0199), "{cell:?}");
        }
        // Publishers that connect for each message send some, however slow the machine is.
        if cell.scenario.starts_with("connection") {
            assert!(of(Metric::Rate).unwrap() > 0.0, "{cell:?}");
            assert_eq!(confirmed.is_some(), cell.scenario.ends_with("confirm"), "{cell:?}");
        }
    }
}

#[test]
fn only_the_requested_styles_publishers_and_latencies_are_measured() {
    let plan = plan(&["--style", "async", "--publishers", "7", "--latency", "3", "--size", "5"]).unwrap();
    assert_eq!(
        cells(&plan),
        [
            Cell { scenario: "async", axis: Axis::Publishers, at: 7.0 },
            Cell { scenario: "async", axis: Axis::RoundTrip, at: 3.0 },
        ]
    );
    assert_eq!(plan.body.len(), 5);
}

#[test]
fn invalid_arguments_are_usage_errors() {
    for arguments in [
        &["--publishers", "0"][..],
        &["--latency=-1"],
        &["--size", "999999999"],
        &["--system", "spool=amqp://h", "--near", "spool"],
        &["--uri", "amqps://h", "--near", "pool"],
    ] {
        assert!(plan(arguments).unwrap_err().is_usage(), "{arguments:?}");
    }
}
