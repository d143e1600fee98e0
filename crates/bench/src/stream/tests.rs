//! The whole load generator against a fake broker with faults.

use super::fake_broker::{FakeBroker, Script, ScriptedFate};
use super::*;
use crate::metric;
use crate::report::{Counts, Round};
use crate::usage::parse;

fn plan(uri: &str, arguments: &[&str]) -> StreamPlan {
    let all = [&["--uri", uri, "--rounds", "1"], arguments].concat();
    parse::<StreamArguments>(&all).unwrap().plan().unwrap()
}

fn one_round(script: Script, arguments: &[&str]) -> Round {
    let broker = FakeBroker::start(script);
    let mut report = run(&plan(&broker.uri(), arguments), |_, _, _| {}).unwrap();
    report.systems[0].rounds.remove(0)
}

fn honest(_: u64) -> ScriptedFate {
    ScriptedFate::Delivered
}

#[test]
fn no_loss_or_duplicate_is_reported_of_a_correct_broker() {
    let round = one_round(honest, &["--messages", "10000", "--auto-ack"]);
    assert_eq!(round.counts, Counts { published: 10_000, consumed: 10_000, ..Counts::default() });
    assert_eq!(round.latency.unwrap().count, 10_000);
    assert!(round.publish_rate > 0.0 && round.consume_rate.unwrap() > 0.0);
}

#[test]
fn losses_are_counted() {
    let script = |n| if n % 1000 == 7 { ScriptedFate::Dropped } else { ScriptedFate::Delivered };
    let counts = one_round(script, &["--messages", "10000", "--auto-ack"]).counts;
    assert_eq!(counts, Counts { published: 10_000, consumed: 9_990, lost: 10, ..Counts::default() });
}

#[test]
fn repeats_do_not_hide_losses() {
    let script = |n| match n % 1000 {
        1 => ScriptedFate::Repeated,
        2 => ScriptedFate::Dropped,
        _ => ScriptedFate::Delivered,
    };
    let counts = one_round(script, &["--messages", "10000", "--auto-ack"]).counts;
    let expected =
        Counts { published: 10_000, consumed: 10_000, lost: 10, duplicated: 10, ..Counts::default() };
    assert_eq!(counts, expected);
}

#[test]
fn copies_of_a_message_in_several_queues_are_no_duplicates() {
    let copied = ["--exchange", "e", "--exchange-type", "fanout", "--queues", "2"];
    let arguments = [&["--messages", "1000"], &copied[..]].concat();
    let broker = FakeBroker::start(|_| ScriptedFate::Repeated);
    let report = run(&plan(&broker.uri(), &arguments), |_, _, _| {}).unwrap();
    let counts = report.systems[0].rounds[0].counts;
    assert_eq!(counts, Counts { published: 1000, consumed: 2000, copied: true, ..Counts::default() });
    assert_eq!(report.systems[0].figure(Metric::Count(metric::Fate::Duplicated)), None, "it is not known");
    let table = table::fates(&report).to_string();
    assert!(table.contains('–'), "{table}");
}

#[test]
fn reordering_is_neither_loss_nor_repetition() {
    let script = |n| if n % 1000 == 500 { ScriptedFate::Late } else { ScriptedFate::Delivered };
    let counts = one_round(script, &["--messages", "10000", "--auto-ack"]).counts;
    assert_eq!(counts, Counts { published: 10_000, consumed: 10_000, reordered: 10, ..Counts::default() });
}

#[test]
fn producers_are_distinguished_when_duplicates_are_counted() {
    let script = |n| if n == 3000 { ScriptedFate::Repeated } else { ScriptedFate::Delivered };
    let counts = one_round(script, &["--messages", "1000", "--producers", "5", "--consumers", "1"]).counts;
    assert_eq!(counts, Counts { published: 5_000, consumed: 5_001, duplicated: 1, ..Counts::default() });
}

#[test]
fn nacks_and_returns_are_counted_and_are_no_losses() {
    let script = |n| match n % 1000 {
        1 => ScriptedFate::Nacked,
        2 | 3 => ScriptedFate::Returned,
        _ => ScriptedFate::Delivered,
    };
    let arguments = ["--messages", "10000", "--auto-ack", "--confirms", "100", "--mandatory"];
    let round = one_round(script, &arguments);
    let expected = Counts {
        published: 10_000,
        consumed: 9_970,
        confirmed: 9_990,
        nacked: 10,
        returned: 20,
        ..Counts::default()
    };
    assert_eq!(round.counts, expected);
    assert_eq!(round.confirm_latency.unwrap().count, 10_000);
}

#[test]
fn confirms_deliveries_and_order_are_tracked_by_channel() {
    let script = |n| match n % 1000 {
        1 => ScriptedFate::Nacked,
        2 => ScriptedFate::Dropped,
        3 => ScriptedFate::Repeated,
        _ => ScriptedFate::Delivered,
    };
    let arguments = ["--messages", "5000", "--producers", "2", "--channels", "3", "--confirms", "50"];
    let counts = one_round(script, &arguments).counts;
    let (published, consumed, confirmed) = (10_000, 9_990, 9_990);
    let expected =
        Counts { published, consumed, confirmed, nacked: 10, lost: 10, duplicated: 10, ..Counts::default() };
    assert_eq!(counts, expected);
}

#[test]
fn a_producer_that_waits_for_each_confirm_gets_them_all() {
    let script = |n| if n == 7 { ScriptedFate::Nacked } else { ScriptedFate::Delivered };
    let round = one_round(script, &["--messages", "300", "--confirms", "1"]);
    let expected = Counts { published: 300, consumed: 299, confirmed: 299, nacked: 1, ..Counts::default() };
    assert_eq!(round.counts, expected);
    assert_eq!(round.confirm_latency.unwrap().count, 300);
}

#[test]
fn the_disk_is_measured_in_turn_with_the_systems_and_leaves_nothing_behind() {
    let (broker, directory) = (FakeBroker::start(honest), tempfile::tempdir().unwrap());
    let path = directory.path().to_str().unwrap();
    let uri = broker.uri();
    let arguments =
        ["--uri", &uri, "--messages", "20", "--rounds", "2", "--disk", path, "--expect", "disk.lost==0"];
    let plan = parse::<StreamArguments>(&arguments).unwrap().plan().unwrap();
    let mut order = Vec::new();
    let report = run(&plan, |round, system, _| order.push((round, system.to_owned())));
    order.dedup();
    let names: Vec<_> = order.iter().map(|(round, name)| (*round, name.as_str())).collect();
    assert_eq!(names, [(0, "default"), (0, "disk"), (1, "default"), (1, "disk")]);
    let report = report.unwrap();
    assert!(report.expectations[0].met);
    for round in &report.systems[1].rounds {
        assert_eq!(round.counts, Counts { published: 20, confirmed: 20, ..Counts::default() });
        assert_eq!(round.confirm_latency.unwrap().count, 20);
    }
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn acknowledgements_are_batched_by_multi_ack_and_none_is_left_out() {
    for (every, expected) in [("1", 1000), ("300", 4)] {
        let broker = FakeBroker::start(honest);
        let arguments = ["--messages", "1000", "--prefetch", "0", "--multi-ack", every];
        run(&plan(&broker.uri(), &arguments), |_, _, _| {}).unwrap();
        // A pause in the deliveries flushes a smaller batch earlier.
        assert!(broker.acks() >= expected && broker.acks() < expected + 20, "{}", broker.acks());
    }
}

#[test]
fn bodies_of_all_sizes_arrive() {
    for size in ["0", "4", "8", "15", "16", "131064", "131065", "1000000"] {
        let counts = one_round(honest, &["--messages", "20", "--size", size]).counts;
        assert_eq!(counts, Counts { published: 20, consumed: 20, ..Counts::default() }, "{size} bytes");
    }
}

#[test]
fn timed_rounds_of_several_systems_are_interleaved_and_compared() {
    let (a, b) = (FakeBroker::start(honest), FakeBroker::start(|_| ScriptedFate::Dropped));
    let (a, b) = (format!("a={},pid={}", a.uri(), std::process::id()), format!("b={}", b.uri()));
    let mut arguments = vec!["--system", &a, "--system", &b, "--rounds", "2"];
    arguments.extend(["--warmup", "0.05", "--time", "0.2", "--rate", "2000", "--auto-ack"]);
    arguments.extend(["--expect", "a.lost==0", "--expect", "b.lost==0"]);
    let plan = parse::<StreamArguments>(&arguments).unwrap().plan().unwrap();
    let mut order = Vec::new();
    let report = run(&plan, |round, system, _| order.push((round, system.to_owned()))).unwrap();
    order.dedup();
    let names: Vec<_> = order.iter().map(|(round, name)| (*round, name.as_str())).collect();
    assert_eq!(names, [(0, "a"), (0, "b"), (1, "a"), (1, "b")]);
    assert_eq!(report.expectations.iter().map(|verdict| verdict.met).collect::<Vec<_>>(), [true, false]);
    assert!(report.systems[0].rounds[0].processes.unwrap().rss_bytes.unwrap() > 0);
    assert_eq!(report.systems[1].rounds[0].consume_rate, Some(0.0));
    assert_eq!(report.systems[0].server, "Fake");
}

#[test]
fn a_stall_that_lasts_until_the_end_counts_against_all_that_was_due() {
    let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
    let arguments = ["--rate", "1000", "--warmup", "0", "--time", "1", "--limit-backlog", "5", "--auto-ack"];
    let report = run(&plan(&broker.uri(), &arguments), |_, _, _| {}).unwrap();
    let round = &report.systems[0].rounds[0];
    assert_eq!(
        round.counts.published, 5,
        "no message is delivered, so publishing stops at the backlog limit"
    );
    assert!(round.counts.unsent > 0, "{:?}", round.counts);
    // One was due in every millisecond; each is late by the time from then to the end.
    let (latency, unsent) = (round.latency.unwrap(), round.counts.unsent);
    assert!((1..=unsent).contains(&latency.count), "{latency:?}");
    assert!((latency.max * 1000.0 - latency.count as f64).abs() < 10.0, "{latency:?}");
    assert!(latency.p50 > latency.max / 3.0, "{latency:?}");
    assert!(report.notes.iter().any(|note| note.contains("due before the end and not sent")));
}

#[test]
fn a_system_that_stops_reading_ends_the_run() {
    // The second message is larger than all buffers between the two.
    let broker = FakeBroker::start(|_| ScriptedFate::Stalled);
    let arguments = ["--size", "16000000", "--time", "2", "--warmup", "0"];
    let error = run(&plan(&broker.uri(), &arguments), |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("the system reads no more"), "{error}");
}

#[test]
fn a_system_that_stops_ends_a_round_that_is_counted_in_messages() {
    fn failure(script: Script, arguments: &[&str]) -> String {
        let broker = FakeBroker::start(script);
        run(&plan(&broker.uri(), arguments), |_, _, _| {}).unwrap_err().to_string()
    }
    let begin = "system default: the system has stopped: nothing has happened for 5 s; of";
    std::thread::scope(|scope| {
        // It reads the first message, and of the next one, which is larger, what fits into the buffers.
        scope.spawn(|| {
            let arguments = ["--messages", "5", "--size", "16000000", "--consumers", "0"];
            let error = failure(|_| ScriptedFate::Stalled, &arguments);
            assert!(error.starts_with(&format!("{begin} 5 messages ")), "{error}");
            assert!(error.ends_with(" published"), "{error}");
        });
        // First each message is confirmed, later none.
        for window in ["1", "10"] {
            scope.spawn(move || {
                let script = |n| if n < 20 { ScriptedFate::Delivered } else { ScriptedFate::Forgotten };
                let error = failure(script, &["--messages", "500", "--confirms", window]);
                let published = 20 + window.parse::<u64>().unwrap();
                let done = format!("{published} published, 20 confirmed, 20 delivered");
                assert_eq!(error, format!("{begin} 500 messages {done}"));
            });
        }
        // Publishers wait for consumers.
        scope.spawn(|| {
            let arguments = ["--messages", "500", "--limit-backlog", "5", "--auto-ack"];
            let error = failure(|_| ScriptedFate::Dropped, &arguments);
            assert_eq!(error, format!("{begin} 500 messages 5 published, 0 delivered"));
        });
    });
}

/// The pause in the schedule is longer than the stall timeout.
#[test]
fn a_pause_in_the_schedule_is_no_stall() {
    let counts = one_round(honest, &["--messages", "20", "--rate", "10:1,0:6", "--confirms", "5"]).counts;
    assert_eq!(counts, Counts { published: 20, consumed: 20, confirmed: 20, ..Counts::default() });
}

#[test]
fn existing_queues_and_exchanges_are_neither_changed_nor_deleted() {
    let broker = FakeBroker::start(honest);
    let common = ["--messages", "5", "--queue", "q"];
    let round = |more: &[&str]| run(&plan(&broker.uri(), &[&common, more].concat()), |_, _, _| {});
    round(&["--exchange", "e"]).unwrap();
    assert!(!broker.exists("q") && !broker.exists("e"), "a round deletes what it has made");
    broker.create("e");
    let error = round(&["--exchange", "e"]).unwrap_err().to_string();
    assert!(error.contains("exchange 'e' already exists") && !broker.exists("q"), "{error}");
    broker.create("q");
    let error = round(&[]).unwrap_err().to_string();
    assert!(error.contains("queue 'q' already exists"), "{error}");
    round(&["--predeclared", "--exchange", "e"]).unwrap();
    assert!(broker.exists("q") && broker.exists("e"));
}

#[test]
fn a_system_that_cannot_be_reached_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("amqp://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = run(&plan(&uri, &[]), |_, _, _| {}).unwrap_err();
    assert!(error.to_string().starts_with("system default: connecting:"), "{error}");
    assert!(!error.is_usage());
}

#[test]
fn a_connection_closed_by_the_broker_ends_the_run_in_its_words() {
    let broker = FakeBroker::start(|n| if n == 500 { ScriptedFate::Forced } else { ScriptedFate::Delivered });
    let error = run(&plan(&broker.uri(), &["--time", "60"]), |_, _, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "system default: closed by the server: 320 CONNECTION_FORCED - told to");
}
