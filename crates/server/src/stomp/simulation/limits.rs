//! Logins, timeouts, alarms and drain.

use std::time::Duration;

use transport::Intent;

use super::*;

fn refused(shared: &Arc<Shared>, peer: Peer, connect: &str) -> String {
    let mut conversation = Conversation::connect(shared, peer);
    let reported = conversation.call(connect);
    assert_eq!(conversation.connection.intent(), Intent::Finish);
    reported.join("")
}

#[test]
fn a_connect_without_valid_credentials_vhost_or_address_is_refused() {
    let shared = server();
    let connect = |lines: &str| format!("CONNECT\naccept-version:1.2\n{lines}\n");
    for (lines, text) in [
        ("", "ERROR Bad CONNECT Missing login or passcode header(s)"),
        ("login:guest\n", "ERROR Bad CONNECT Missing login or passcode header(s)"),
        ("login:guest\npasscode:\n", "ERROR Bad CONNECT Access refused for user 'guest'"),
        ("login:guest\npasscode:x\n", "ERROR Bad CONNECT Access refused for user 'guest'"),
        ("login:guest\npasscode:guest\nhost:v\n", "ERROR Bad CONNECT Virtual host 'v' access denied"),
    ] {
        assert_eq!(refused(&shared, Peer::Unix, &connect(lines)), text);
    }
    let far = Peer::Ip("192.0.2.1:1".parse().unwrap());
    let reported = refused(&shared, far, &connect("login:guest\npasscode:guest\n"));
    assert_eq!(reported, "ERROR Bad CONNECT non-loopback access denied");
    assert_eq!(
        shared.metrics.logins_refused.get(),
        4,
        "only logins with credentials count, like in RabbitMQ"
    );
}

#[test]
fn a_client_that_does_not_log_in_in_time_is_disconnected() {
    let mut conversation = Conversation::connect(&server(), Peer::Unix);
    conversation.send(b"CONN");
    let deadline = conversation.connection.next_deadline().unwrap();
    assert_eq!(deadline, conversation.now + HANDSHAKE_TIMEOUT);
    conversation.connection.handle_deadline(deadline);
    assert_eq!(conversation.connection.intent(), Intent::Finish);
}

#[test]
fn a_delivery_that_nobody_settles_ends_the_connection() {
    let mut conversation = Conversation::open(&server());
    conversation.call(
        &["SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n", &send("/queue/q", "r", "x")].join("\0"),
    );
    while conversation.connection.intent() == Intent::Run {
        conversation.now = conversation.connection.next_deadline().unwrap();
        let now = conversation.now;
        conversation.connection.handle_deadline(now);
    }
    let reported = conversation.received();
    assert!(
        reported[0].starts_with("ERROR precondition_failed PRECONDITION_FAILED - delivery acknowledgement"),
        "{reported:?}"
    );
}

#[test]
fn publishers_wait_during_an_alarm_and_consumers_do_not() {
    let shared = server();
    let (mut sender, mut receiver) = (Conversation::open(&shared), Conversation::open(&shared));
    receiver.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    shared.alarms.raise(Resource::Memory);
    let reported = sender.call(&[send("/queue/q", "a", "1"), send("/queue/q", "b", "2")].join("\0"));
    assert_eq!(reported, ["RECEIPT a "], "as in RabbitMQ the first is taken");
    assert_eq!(sender.connection.intent(), Intent::Pause);
    assert_eq!(receiver.received(), ["MESSAGE 1 false 1"]);
    assert_eq!(receiver.call("BEGIN\ntransaction:t\nreceipt:r\n\n"), ["RECEIPT r "]);
    shared.alarms.clear(Resource::Memory);
    assert_eq!(sender.nudge(), ["RECEIPT b "]);
    assert_eq!(sender.connection.intent(), Intent::Run);
}

#[test]
fn a_draining_server_tells_its_clients() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    shared.start_draining(Duration::ZERO, Duration::ZERO);
    let reported = conversation.nudge();
    let text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    assert_eq!(reported, [format!("ERROR connection_forced {text}")]);
    assert_eq!(conversation.connection.intent(), Intent::Finish);
}

#[test]
fn a_message_over_the_limit_is_refused_by_its_announcement_alone() {
    let mut conversation = Conversation::open(&server());
    conversation.send(b"SEND\ndestination:/queue/q\ncontent-length:20001\n\n");
    let text = "PRECONDITION_FAILED - message size 20001 is larger than configured max size 20000";
    assert_eq!(conversation.received(), [format!("ERROR precondition_failed {text}")]);
}

#[test]
fn a_client_that_does_not_read_is_sent_no_more_than_the_limit() {
    let shared = server();
    let mut sender = Conversation::open(&shared);
    let mut receiver = Conversation::open(&shared);
    receiver.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    let body = "x".repeat(19_000);
    for _ in 0..100 {
        sender.call(&send("/queue/q", "r", &body));
    }
    let limit = receiver.outbox.limit();
    assert!(receiver.outbox.backlog() < limit + 20_000, "{} bytes", receiver.outbox.backlog());
    let mut got = 0;
    while got < 100 {
        let some = receiver.received().len();
        assert!(some > 0, "stuck after {got} messages");
        got += some;
        receiver.connection.handle_capacity();
    }
}

#[test]
fn a_closed_connection_is_removed_from_all_counts() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    conversation.call("SUBSCRIBE\nid:1\ndestination:/topic/a\n\n");
    drop(conversation);
    let metrics = &shared.metrics;
    assert_eq!((metrics.channels_opened.get(), metrics.channels_closed.get()), (1, 1));
    let Backend::Broker(broker) = &shared.backend else { panic!("no broker") };
    assert_eq!((broker.metrics().consumers.get(), broker.metrics().queues.get()), (0, 0));
}

#[test]
fn headers_that_consumers_of_amqp_cannot_be_sent_are_refused() {
    let mut conversation = Conversation::open(&server());
    let headers = |count: usize| -> String {
        (0..count).map(|number| format!("name{number}:{}\n", "x".repeat(500))).collect()
    };
    // The maximum frame size is 4 KiB here.
    let send = |count: usize| format!("SEND\ndestination:/topic/t\nreceipt:r\n{}\n", headers(count));
    assert_eq!(conversation.call(&send(5)), ["RECEIPT r "]);
    let answers = conversation.call(&send(8));
    assert!(answers[0].starts_with("ERROR") && answers[0].contains("bytes at most"), "{answers:?}");
}
