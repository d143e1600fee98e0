//! Requests of clients and their answers.

use transport::Intent;

use super::*;

#[test]
fn a_message_arrives_however_its_frame_is_read() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    conversation.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    for body in ["", "x", &"y".repeat(9000)] {
        let wire = format!("SEND\ndestination:/queue/q\ncontent-length:{}\n\n{body}\0", body.len());
        for cut in [1, 7, wire.find("\n\n").unwrap() + 1, wire.len() - 1] {
            conversation.send(&wire.as_bytes()[..cut]);
            conversation.send(&wire.as_bytes()[cut..]);
            assert_eq!(conversation.received(), [format!("MESSAGE 1 false {body}")], "cut at {cut}");
        }
    }
}

#[test]
fn receipts_come_in_the_order_of_their_requests() {
    let mut conversation = Conversation::open(&server());
    let reported = conversation.call(
        &[
            &send("/queue/q", "a", "1"),
            "SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:b\n\n",
            &send("/queue/q", "c", "2"),
            "UNSUBSCRIBE\nid:1\nreceipt:d\n\n",
        ]
        .join("\0"),
    );
    let receipts: Vec<_> = reported.iter().filter(|frame| frame.starts_with("RECEIPT")).collect();
    assert_eq!(receipts, ["RECEIPT a ", "RECEIPT b ", "RECEIPT c ", "RECEIPT d "]);
    let messages: Vec<_> = reported.iter().filter(|frame| frame.starts_with("MESSAGE")).collect();
    assert_eq!(messages, ["MESSAGE 1 false 1", "MESSAGE 1 false 2"]);
}

#[test]
fn acknowledging_with_all_before_it_is_about_one_subscription() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    let subscribe =
        |id: &str, queue: &str| format!("SUBSCRIBE\nid:{id}\ndestination:/queue/{queue}\nack:client\n\n");
    conversation.call(&[subscribe("1", "a"), subscribe("2", "b")].join("\0"));
    conversation.call(
        &[send("/queue/a", "r", "a"), send("/queue/b", "r", "b"), send("/queue/b", "r", "c")].join("\0"),
    );
    let session = conversation.connection.protocol().session_name();
    let reported = conversation.call(&format!("ACK\nid:T_2@@{session}@@2\nreceipt:r\n\n"));
    assert_eq!(reported, ["RECEIPT r "]);
    drop(conversation);
    let mut other = Conversation::open(&shared);
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0SUBSCRIBE\nid:2\ndestination:/queue/b\n\n";
    assert_eq!(other.call(subscribe), ["MESSAGE 1 true a"]);
}

#[test]
fn a_message_requeued_by_an_ending_session_skips_its_other_subscriptions() {
    let shared = server();
    let subscribe = |id: u8, ack: &str| format!("SUBSCRIBE\nid:{id}\ndestination:/queue/q\nack:{ack}\n\n");
    let mut ending = Conversation::open(&shared);
    ending.call(&subscribe(1, "client"));
    assert_eq!(ending.call(&send("/queue/q", "r", "a")), ["MESSAGE 1 false a", "RECEIPT r "]);
    // These subscriptions would accept the message without requeueing it.
    ending.call(&(2..30).map(|id| subscribe(id, "auto")).collect::<Vec<_>>().join("\0"));
    drop(ending);
    assert_eq!(Conversation::open(&shared).call(&subscribe(1, "auto")), ["MESSAGE 1 true a"]);
}

#[test]
fn the_next_single_active_consumer_starts_with_its_predecessors_messages() {
    let shared = server();
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nx-single-active-consumer:true\n";
    let mut first = Conversation::open(&shared);
    first.call(&format!("{subscribe}prefetch-count:1\n\n"));
    let mut second = Conversation::open(&shared);
    second.call(&format!("{subscribe}\n"));
    let sends = ["a", "b"].map(|body| format!("SEND\ndestination:/amq/queue/q\n\n{body}"));
    assert_eq!(first.call(&sends.join("\0")), ["MESSAGE 1 false a"]);
    first.call("UNSUBSCRIBE\nid:1\n\n");
    assert_eq!(second.received(), ["MESSAGE 1 true a", "MESSAGE 1 false b"]);
}

#[test]
fn identifiers_of_messages_are_not_repeated_by_a_subscription_of_the_same_name() {
    let mut conversation = Conversation::open(&server());
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n";
    conversation.call(&[subscribe, &send("/queue/q", "r", "x")].join("\0"));
    let reported = conversation.call(&["UNSUBSCRIBE\nid:1\n\n", subscribe].join("\0"));
    assert_eq!(reported, ["MESSAGE 1 true x"], "what was not acknowledged came back");
    let session = conversation.connection.protocol().session_name();
    let reported = conversation.call(&format!("ACK\nid:T_1@@{session}@@1\n\n"));
    assert_eq!(reported, ["ERROR precondition_failed PRECONDITION_FAILED - unknown delivery tag 1"]);
}

#[test]
fn a_transaction_that_fails_has_done_nothing() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    let send = |destination: &str| format!("SEND\ndestination:{destination}\ntransaction:t\n\nx");
    let reported = conversation.call(
        &[
            "SUBSCRIBE\nid:1\ndestination:/exchange/amq.fanout\nx-queue-name:f\nauto-delete:false\n\n",
            "BEGIN\ntransaction:t\n\n",
            &send("/exchange/amq.fanout"),
            &send("/exchange/missing"),
        ]
        .join("\0"),
    );
    assert_eq!(reported, ["ERROR not_found NOT_FOUND - no exchange 'missing' in vhost '/'"]);
    let mut other = Conversation::open(&shared);
    assert_eq!(other.call("SUBSCRIBE\nid:1\ndestination:/amq/queue/f\nreceipt:r\n\n"), ["RECEIPT r "]);
}

#[test]
fn after_abort_the_client_can_ack_messages_of_the_transaction_again() {
    let mut conversation = Conversation::open(&server());
    conversation.call(
        &["SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n", &send("/queue/q", "r", "x")].join("\0"),
    );
    let session = conversation.connection.protocol().session_name();
    let ack = |more: &str| format!("ACK\nid:T_1@@{session}@@1\n{more}receipt:a\n\n");
    let in_transaction = ["BEGIN\ntransaction:t\n\n", &ack("transaction:t\n")].join("\0");
    assert_eq!(conversation.call(&in_transaction), ["RECEIPT a "]);
    assert_eq!(conversation.call("ABORT\ntransaction:t\nreceipt:b\n\n"), ["RECEIPT b "]);
    assert_eq!(conversation.call(&ack("")), ["RECEIPT a "]);
    assert!(conversation.call(&ack(""))[0].contains("unknown delivery tag 1"));
}

#[test]
fn a_transaction_outlives_the_subscription_whose_message_it_acknowledges() {
    let shared = server();
    for (end, left) in [("COMMIT", ""), ("ABORT", "MESSAGE 1 true x")] {
        let mut conversation = Conversation::open(&shared);
        conversation.call(
            &["SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n", &send("/queue/q", "r", "x")]
                .join("\0"),
        );
        let session = conversation.connection.protocol().session_name();
        conversation.call(
            &[
                "BEGIN\ntransaction:t\n\n".to_owned(),
                format!("ACK\nid:T_1@@{session}@@1\ntransaction:t\n\n"),
                "UNSUBSCRIBE\nid:1\n\n".to_owned(),
                format!("{end}\ntransaction:t\n\n"),
            ]
            .join("\0"),
        );
        let reported = conversation.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
        assert_eq!(reported.join(""), left, "{end}");
    }
}

#[test]
fn a_full_queue_refuses_and_the_connection_goes_on() {
    let mut conversation = Conversation::open(&server());
    let limited = |receipt: &str| {
        format!(
            "SEND\ndestination:/queue/q\nx-max-length:1\nx-overflow:reject-publish\nreceipt:{receipt}\n\nx"
        )
    };
    let reported = conversation.call(&[limited("a"), limited("b")].join("\0"));
    assert_eq!(
        reported,
        [
            "RECEIPT a ",
            "ERROR b Message refused A queue that the message was routed to is full and has not taken it.",
        ]
    );
    let reported = conversation.call("SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:c\n\n");
    assert_eq!(reported, ["RECEIPT c ", "MESSAGE 1 false x"]);
}

#[test]
fn the_receipt_of_a_commit_is_refused_if_one_of_its_messages_is() {
    let mut conversation = Conversation::open(&server());
    let limited = "/queue/full\nx-max-length:1\nx-overflow:reject-publish";
    assert_eq!(conversation.call(&send(limited, "r", "x")), ["RECEIPT r "]);
    for (destination, answer) in [
        (
            limited,
            "ERROR c Message refused A queue that the message was routed to is full and has not taken it.",
        ),
        ("/queue/q", "RECEIPT c "),
    ] {
        let sent = |destination: &str| format!("SEND\ndestination:{destination}\ntransaction:t\n\nx");
        let reported = conversation.call(
            &[
                "BEGIN\ntransaction:t\n\n",
                &sent(destination),
                &sent("/queue/q"),
                "COMMIT\ntransaction:t\nreceipt:c\n\n",
            ]
            .join("\0"),
        );
        assert_eq!(reported, [answer]);
    }
}

#[test]
fn a_subscription_that_cannot_be_bound_leaves_no_queue() {
    let broker = Broker::new(BrokerConfig::default());
    let mut conversation = Conversation::open(&server_of(Arc::clone(&broker)));
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/exchange/missing/k\ndurable:true\nauto-delete:false\n\n";
    let reported = conversation.call(subscribe);
    assert_eq!(reported, ["ERROR not_found NOT_FOUND - no exchange 'missing' in vhost '/'"]);
    assert_eq!(broker.metrics().queues.get(), 0);
}

#[test]
fn headers_that_are_not_understood_are_refused_where_they_would_matter() {
    for (header, text) in [
        ("selector:a = 1", "NOT_IMPLEMENTED - selector: messages cannot be selected"),
        ("x-stream-offset:first", "NOT_IMPLEMENTED - x-stream-offset: there are no streams"),
        ("prefetch-count:-1", "'prefetch-count' must be a number, not '-1'"),
        ("durable:maybe", "'durable' must be true or false, not 'maybe'"),
    ] {
        let mut conversation = Conversation::open(&server());
        let reported = conversation.call(&format!("SUBSCRIBE\nid:1\ndestination:/queue/q\n{header}\n\n"));
        assert!(reported[0].contains(text), "{reported:?}");
        assert_eq!(conversation.connection.intent(), Intent::Finish);
    }
}

#[test]
fn a_disconnect_is_answered_last_and_gives_everything_back() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    conversation.call(
        &["SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n", &send("/queue/q", "r", "x")].join("\0"),
    );
    let reported = conversation.call(&[&send("/queue/q", "a", "y"), "DISCONNECT\nreceipt:b\n\n"].join("\0"));
    assert_eq!(reported.last().unwrap(), "RECEIPT b ");
    assert!(reported.contains(&"RECEIPT a ".to_owned()), "{reported:?}");
    assert_eq!(conversation.connection.intent(), Intent::Finish);
    let mut other = Conversation::open(&shared);
    let reported = other.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported[0].ends_with(" x") && reported[1].ends_with(" y"), "{reported:?}");
}

#[test]
fn replies_reach_the_requester_and_no_other_client_can_read_them() {
    let shared = server();
    let (mut asker, mut answerer) = (Conversation::open(&shared), Conversation::open(&shared));
    answerer.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    asker.call("SEND\ndestination:/queue/q\nreply-to:/temp-queue/x\n\nquestion");
    let bytes = answerer.outbox.read_all();
    let text = String::from_utf8(bytes).unwrap();
    let reply_to = text.lines().find_map(|line| line.strip_prefix("reply-to:")).unwrap().to_owned();
    let locked = answerer.call(&format!("SUBSCRIBE\nid:2\ndestination:{reply_to}\n\n"));
    assert!(locked[0].starts_with("ERROR resource_locked"), "{locked:?}");
    let mut answerer = Conversation::open(&shared);
    answerer.call(&format!("SEND\ndestination:{reply_to}\n\nanswer"));
    assert_eq!(asker.received(), ["MESSAGE /temp-queue/x false answer"]);
}

#[test]
fn a_subscription_that_fails_leaves_no_queue_and_takes_none_away() {
    let shared = server();
    let Backend::Broker(broker) = &shared.backend else { panic!() };
    let vhost = broker.vhost("/").unwrap();
    let subscribe = |exchange: &str| {
        let mut client = Conversation::open(&shared);
        let headers = "id:1\nx-queue-name:mine\ndurable:true\nauto-delete:false\nreceipt:r";
        client.call(&format!("SUBSCRIBE\ndestination:/exchange/{exchange}/k\n{headers}\n\n"))
    };
    let queues = || vhost.all_queues().len();
    assert!(subscribe("nowhere")[0].starts_with("ERROR"));
    assert_eq!(queues(), 0);
    assert!(subscribe("amq.topic")[0].starts_with("RECEIPT"));
    assert_eq!(queues(), 1);
    assert!(subscribe("nowhere")[0].starts_with("ERROR"));
    assert_eq!(queues(), 1, "its subscriber still uses the queue");
}
