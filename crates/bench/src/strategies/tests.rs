//! The study against brokers that accept all messages.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::stream::fake_broker::{FakeBroker, ScriptedFate as Script};
use crate::uri::Uri;
use crate::usage::parse;

fn plan(arguments: &[&str]) -> Result<StrategiesPlan, Error> {
    parse::<StrategiesArguments>(arguments).unwrap().plan()
}

#[test]
fn every_strategy_sends_all_messages_and_losses_are_reported() {
    let broker = FakeBroker::start(|_| Script::Dropped);
    let uri = broker.uri();
    let plan = plan(&["--uri", &uri, "--workers", "3", "--messages", "7", "--rounds", "1", "--pool", "2"]);
    let report = run(&plan.unwrap(), &mut |_, _| {}).unwrap();
    assert_eq!(report.cells.len(), 3);
    for cell in &report.cells {
        assert!(cell.figure(Metric::Rate).unwrap() > 0.0, "{cell:?}");
        assert_eq!(
            cell.figure(Metric::Count(Fate::Lost)),
            Some(21.0),
            "this broker never has any in its queues"
        );
    }
    assert_eq!(broker.messages(), 3 * 21);
}

#[test]
fn no_two_workers_have_a_channel_of_the_pool_at_the_same_time() {
    let broker = FakeBroker::start(|_| Script::Dropped);
    let channels = WorkerChannels::open(&Uri::parse(&broker.uri()).unwrap(), Strategy::Pool, 8, 2).unwrap();
    let (users, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let use_one = |worker| {
        channels.with(worker, |_| {
            most.fetch_max(users.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::yield_now();
            users.fetch_sub(1, SeqCst);
        });
    };
    thread::scope(|scope| {
        (0..8).for_each(|worker| drop(scope.spawn(move || (0..200).for_each(|_| use_one(worker)))));
    });
    assert!((1..=2).contains(&most.load(SeqCst)));
    channels.close();
}

#[test]
fn a_system_that_stops_reading_ends_the_study() {
    // The messages behind the first one are larger than all buffers between the two.
    let broker = FakeBroker::start(|_| Script::Stalled);
    let (uri, size) = (broker.uri(), "16000000");
    let plan = plan(&[
        "--uri",
        &uri,
        "--workers",
        "8",
        "--messages",
        "2",
        "--size",
        size,
        "--strategy",
        "one-connection",
    ]);
    let error = run(&plan.unwrap(), &mut |_, _| {}).unwrap_err().to_string();
    let expected = "system default: the system has stopped: publishing: it has read nothing for 5 s";
    assert_eq!(error, expected);
}

#[test]
fn invalid_arguments_are_usage_errors() {
    for arguments in [
        &["--workers", "0"][..],
        &["--pool", "0"],
        &["--messages", "0"],
        &["--size", "999999999"],
        &["--time", "1"],
    ] {
        assert!(plan(arguments).unwrap_err().is_usage(), "{arguments:?}");
    }
}
