//! The study against brokers that accept all messages, or drop them.

use super::*;
use crate::stream::fake_broker::{FakeBroker, ScriptedFate as Script};
use crate::usage::parse;

fn plan(arguments: &[&str]) -> Result<ProxyPlan, Error> {
    parse::<ProxyArguments>(arguments).unwrap().plan()
}

#[test]
fn direct_clients_pay_for_every_round_trip_and_losses_are_reported() {
    let broker = FakeBroker::start(|_| Script::Dropped);
    let arguments = ["--uri", &broker.uri(), "--no-pool", "--quick", "--time", "0.05", "--latency", "0,20"];
    let report = run(&plan(&arguments).unwrap(), &mut |_, _| {}).unwrap();
    assert_eq!(report.cells.len(), 4);
    let figure = |scenario, at, metric| {
        report.cell(scenario, Axis::RoundTrip, at, DIRECT).unwrap().figure(metric).unwrap()
    };
    use crate::metric::LatencyPoint;
    // Round trips: TCP, three for the login, the channel, the close; with confirms, two more.
    let six = figure(NO_CONFIRM, 20.0, Metric::Latency(LatencyPoint::P50));
    let eight = figure(CONFIRM, 20.0, Metric::Latency(LatencyPoint::P50));
    assert!(six >= 0.119 && eight >= 0.159, "{six} {eight}");
    assert!(figure(NO_CONFIRM, 20.0, Metric::Rate) <= 1.0 / 0.119);
    assert!(figure(CONFIRM, 20.0, Metric::ConfirmLatency(LatencyPoint::P50)) >= 0.019);
    // This broker never reports a message in its queue.
    assert!(figure(NO_CONFIRM, 0.0, Metric::Count(Fate::Lost)) >= 4.0);
}

#[test]
fn brokers_beside_each_other_have_a_link_and_a_queue_each() {
    let brokers = [FakeBroker::start(|_| Script::Dropped), FakeBroker::start(|_| Script::Dropped)];
    let beside = format!("near={}", brokers[1].uri());
    let arguments =
        ["--uri", &brokers[0].uri(), "--beside", &beside, "--no-pool", "--quick", "--time", "0.05"];
    let arguments = [&arguments[..], &["--latency", "20"]].concat();
    let report = run(&plan(&arguments).unwrap(), &mut |_, _| {}).unwrap();
    let names: Vec<&str> = report.systems.iter().map(|system| system.name.as_str()).collect();
    assert_eq!(names, ["direct", "direct-near"]);
    for name in names {
        let cell = report.cell(NO_CONFIRM, Axis::RoundTrip, 20.0, name).unwrap();
        let time = cell.figure(Metric::Latency(crate::metric::LatencyPoint::P50)).unwrap();
        assert!(time >= 0.119, "{name}: {time}");
    }
    let [broker, ..] = &report.parameters[..] else { panic!("{report:?}") };
    for uri in brokers.each_ref().map(FakeBroker::uri) {
        assert!(
            broker.value.contains(uri.rsplit('@').next().unwrap().trim_start_matches("amqp://")),
            "{broker:?}"
        );
    }
}

#[test]
fn a_pool_with_a_spool_takes_part_unless_it_is_not_wanted() {
    let spools = |arguments: &[&str]| plan(arguments).unwrap().spool;
    assert!(spools(&[]) && spools(&["--no-direct"]));
    assert!(!spools(&["--no-spool"]) && !spools(&["--no-pool"]));
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        &["--no-pool", "--no-direct"][..],
        &["--system", "direct=amqp://h"],
        &["--system", "leveret=amqp://h"],
        &["--beside", "other=amqp://h", "--system", "spool-other=amqp://h"],
        &["--beside", "other=amqp://h", "--system", "direct-other=amqp://h"],
        &["--beside", "no name"],
        &["--clients", "0"],
        &["--latency", "-1"],
        &["--latency=1,-1"],
        &["--listen", "nowhere"],
        &["--pid", "4294967295"],
        &["--uri", "http://h"],
    ] {
        match parse::<ProxyArguments>(arguments) {
            Ok(proxy) => assert!(proxy.plan().unwrap_err().is_usage(), "{arguments:?}"),
            Err(error) => assert!(error.use_stderr(), "{arguments:?}"),
        }
    }
}

#[test]
fn the_link_is_where_the_broker_seems_to_be() {
    let uri = Uri::parse("amqp://u:p@far.example:5672/v").unwrap();
    let near = through(&uri, "127.0.0.1:99".parse().unwrap());
    assert_eq!(
        (&*near.host, near.port, &*near.user, &*near.password, &*near.vhost),
        ("127.0.0.1", 99, "u", "p", "v")
    );
}
