//! Tests for which a fake broker suffices; the others run against a real one.

use super::*;
use crate::metric::Metric;
use crate::stream::fake_broker::{FakeBroker, ScriptedFate};
use crate::usage::parse;

fn plan(arguments: &[&str]) -> Result<ChurnPlan, Error> {
    parse::<ChurnArguments>(arguments).unwrap().plan()
}

#[test]
fn connections_and_queues_are_opened_and_closed() {
    let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
    let arguments =
        ["--quick", "--time", "0.05", "--kind", "connection", "--kind", "queue", "--uri", &broker.uri()];
    let report = run(&plan(&arguments).unwrap(), &mut |_, _| {}).unwrap();
    assert_eq!(report.cells.len(), 4);
    assert!(report.cells.iter().all(|cell| cell.figure(Metric::Rate).unwrap() > 0.0));
}

#[test]
fn every_kind_is_known_by_its_name() {
    for &kind in ChurnKind::value_variants() {
        assert_eq!(ChurnKind::named(kind.name()), kind);
    }
    assert!(plan(&["--workers", "0"]).unwrap_err().is_usage());
}
