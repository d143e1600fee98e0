//! The whole study against a broker that accepts every request.

use std::fs;

use super::*;
use crate::stream::fake_broker::{FakeBroker, ScriptedFate};
use crate::usage::parse;

fn plan(arguments: &[&str]) -> RoutingPlan {
    parse::<RoutingArguments>(arguments).unwrap().plan().unwrap()
}

#[test]
fn a_quick_run_measures_every_point_on_each_system_in_both_modes() {
    let (a, b) = (FakeBroker::start(|_| ScriptedFate::Dropped), FakeBroker::start(|_| ScriptedFate::Dropped));
    let (a, b) = (format!("a={},pid={}", a.uri(), std::process::id()), format!("b={}", b.uri()));
    for mode in [&[][..], &["--pipelined"]] {
        let arguments =
            [&["--quick", "--limit-seconds", "3600", "--system", &a, "--system", &b], mode].concat();
        let plan = plan(&arguments);
        let report = run(&plan, &mut |_, _| {}).unwrap();
        let order: Vec<_> = report.series.iter().map(|s| (s.exchange, s.level, s.system.as_str())).collect();
        assert_eq!(order.len(), 4 * 5 * 2);
        assert_eq!(
            order[..3],
            [
                (StudiedExchange::Direct, 0, "a"),
                (StudiedExchange::Direct, 0, "b"),
                (StudiedExchange::Direct, 1, "a")
            ]
        );
        for series in &report.series {
            assert_eq!(series.points.len() as u32, 7 - series.level);
            for point in &series.points {
                assert!(
                    point.create_seconds > 0.0 && point.publish_seconds > 0.0 && point.delete_seconds > 0.0
                );
                assert_eq!(point.rss_bytes.is_some(), series.system == "a");
            }
        }
        assert_eq!((report.growth.len(), report.notes.len()), (4 * 3 * 2, 0));
        let text = page::section(&report).to_string();
        assert!(text.contains("a: Fake at amqp://") && text.contains("Growth, as"), "{text}");
    }
}

#[test]
fn files_are_written_for_each_figure() {
    let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
    let directory = std::env::temp_dir().join(format!("leveret-bench-routing-{}", std::process::id()));
    let plan = plan(&["--quick", "--uri", &broker.uri(), "--exchange", "topic", "--pipelined"]);
    write_figures(&run(&plan, &mut |_, _| {}).unwrap(), &directory).unwrap();
    let mut names: Vec<String> =
        fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    fs::remove_dir_all(&directory).unwrap();
    let expected = ["create", "delete", "publish"]
        .map(|figure| [format!("topic-{figure}-default.txt"), format!("topic-{figure}.svg")]);
    assert_eq!(names, expected.concat());
}

#[test]
fn points_that_would_take_too_long_are_skipped_and_noted() {
    let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
    let plan = plan(&["--quick", "--uri", &broker.uri(), "--exchange", "direct", "--limit-seconds", "0"]);
    let report = run(&plan, &mut |_, _| {}).unwrap();
    assert_eq!(report.series.len(), 1, "the first point of all has no forecast");
    assert_eq!(report.series[0].points.len(), 1);
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    assert_eq!(report.notes[0].matches("bindings each").count(), 5, "{:?}", report.notes);
}

#[test]
fn a_message_that_reaches_no_queue_ends_the_study() {
    let broker = FakeBroker::start(|_| ScriptedFate::Returned);
    let plan = plan(&["--quick", "--uri", &broker.uri()]);
    let error = run(&plan, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("unroutable"), "{error}");
}

#[test]
fn a_system_that_confirms_no_more_ends_the_study() {
    for (mode, unconfirmed) in [(&[][..], 1), (&["--pipelined"], 20)] {
        let broker =
            FakeBroker::start(|n| if n < 20 { ScriptedFate::Dropped } else { ScriptedFate::Forgotten });
        let uri = broker.uri();
        let arguments = [&["--quick", "--uri", &uri, "--exchange", "direct"], mode].concat();
        let error = run(&plan(&arguments), &mut |_, _| {}).unwrap_err().to_string();
        let expected = format!(
            "the system has stopped: {unconfirmed} messages are unconfirmed, and none was confirmed for 5 s"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
}

#[test]
fn deletion_is_timed_while_another_connection_publishes() {
    let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
    let plan = plan(&["--quick", "--uri", &broker.uri(), "--study", "deletion", "--exchange", "headers"]);
    let report = run(&plan, &mut |_, _| {}).unwrap();
    let result = &report.bulk[0];
    assert_eq!((report.bulk.len(), result.count), (1, 2_000));
    assert!(result.confirms_before.unwrap().count > 0 && result.confirms_during.unwrap().count > 0);
    assert!(page::section(&report).to_string().contains("bindings of a queue"));
}
