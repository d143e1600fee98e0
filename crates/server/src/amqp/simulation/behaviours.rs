//! Behaviours of a connection that brokers tend to get wrong, and that no client library can show by itself.

use amqp::method::tx;
use amqp::{FieldValue, RawTable};

use super::*;

fn get(out: &mut Vec<u8>, no_ack: bool) {
    frame::write_method(out, 1, basic::Get { queue: "q", no_ack, ..Default::default() });
}

fn consume(out: &mut Vec<u8>, tag: &str, no_ack: bool) {
    let consume = basic::Consume { queue: "q", consumer_tag: tag, no_ack, ..Default::default() };
    frame::write_method(out, 1, consume);
}

fn qos(out: &mut Vec<u8>, prefetch_count: u16, global: bool) {
    frame::write_method(out, 1, basic::Qos { prefetch_size: 0, prefetch_count, global });
}

fn ack(out: &mut Vec<u8>, delivery_tag: u64, multiple: bool) {
    frame::write_method(out, 1, basic::Ack { delivery_tag, multiple });
}

/// A conversation whose queue `q` has `count` messages.
fn stocked(count: usize) -> Conversation {
    stocked_at(&server(), count)
}

fn stocked_at(shared: &Arc<Shared>, count: usize) -> Conversation {
    let mut conversation = Conversation::open(shared, 0);
    conversation.call(|out| {
        declare(out, "q");
        (0..count).for_each(|_| publish(out, "q", b"x", false));
    });
    conversation
}

fn delivered(methods: &[String]) -> usize {
    methods.iter().filter(|method| *method == "basic.deliver").count()
}

#[test]
fn gets_and_deliveries_share_the_tags_of_their_channel() {
    let mut conversation = stocked(2);
    assert_eq!(conversation.call(|out| get(out, false)), ["basic.get-ok 1"]);
    assert_eq!(conversation.call(|out| consume(out, "c", false)), ["basic.consume-ok", "basic.deliver"]);
    assert_eq!(conversation.call(|out| ack(out, 2, false)), [""; 0]);
    assert_eq!(conversation.call(|out| ack(out, 1, false)), [""; 0]);
    let text = "channel.close PRECONDITION_FAILED - unknown delivery tag 1";
    assert_eq!(conversation.call(|out| ack(out, 1, false)), [text], "a second time");
}

#[test]
fn prefetch_limits_no_gets_and_consumers_without_acknowledgement_wait_for_the_channels() {
    let mut conversation = stocked(4);
    conversation.call(|out| {
        qos(out, 1, false);
        qos(out, 1, true);
    });
    assert_eq!(delivered(&conversation.call(|out| consume(out, "limited", false))), 1);
    assert_eq!(conversation.call(|out| get(out, false)), ["basic.get-ok 2"]);
    assert_eq!(delivered(&conversation.call(|out| consume(out, "free", true))), 0);
    assert_eq!(delivered(&conversation.call(|out| ack(out, 1, false))), 2);
}

#[test]
fn raising_the_channels_limit_lets_deliveries_go_on() {
    let mut conversation = stocked(10);
    conversation.call(|out| qos(out, 2, true));
    assert_eq!(delivered(&conversation.call(|out| consume(out, "c", false))), 2);
    assert_eq!(delivered(&conversation.call(|out| qos(out, 5, true))), 3);
    assert_eq!(delivered(&conversation.call(|out| qos(out, 1, true))), 0);
    assert_eq!(delivered(&conversation.call(|out| ack(out, 0, true))), 1);
    assert_eq!(delivered(&conversation.call(|out| qos(out, 0, true))), 4);
}

#[test]
fn cancelling_an_unknown_consumer_is_answered() {
    let mut conversation = stocked(0);
    let cancel = basic::Cancel { consumer_tag: "nobody", no_wait: false };
    assert_eq!(conversation.call(|out| frame::write_method(out, 1, cancel)), ["basic.cancel-ok"]);
}

#[test]
fn without_consumer_cancel_notify_no_cancel_is_sent_for_a_deleted_queue() {
    let mut conversation = stocked(0);
    conversation.call(|out| consume(out, "c", false));
    let delete = queue::Delete { queue: "q", ..Default::default() };
    assert_eq!(conversation.call(|out| frame::write_method(out, 1, delete)), ["queue.delete-ok"]);
    let now = conversation.now;
    conversation.connection.handle_nudge(now);
    assert_eq!(conversation.received(), [""; 0]);
    // The consumer tag is free again.
    conversation.call(|out| declare(out, "q"));
    assert_eq!(conversation.call(|out| consume(out, "c", false)), ["basic.consume-ok"]);
}

#[test]
fn errors_of_methods_that_want_no_answer_close_the_channel() {
    let mut conversation = stocked(0);
    let declare = queue::Declare { queue: "q", durable: true, no_wait: true, ..Default::default() };
    let answers = conversation.call(|out| frame::write_method(out, 1, declare));
    let text = "channel.close PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received \
                'true' but current is 'false'";
    assert_eq!(answers, [text]);
}

#[test]
fn returns_come_before_the_commit_is_answered_and_settling_waits_for_it() {
    let mut conversation = stocked(1);
    conversation.call(|out| frame::write_method(out, 1, tx::Select {}));
    conversation.call(|out| get(out, false));
    let answers = conversation.call(|out| {
        publish(out, "nowhere", b"x", true);
        frame::write_method(out, 1, basic::Reject { delivery_tag: 1, requeue: true });
        get(out, false);
    });
    assert_eq!(answers, ["basic.get-empty"]);
    let answers = conversation.call(|out| frame::write_method(out, 1, tx::Commit {}));
    assert_eq!(answers, ["basic.return", "tx.commit-ok"]);
    assert_eq!(conversation.call(|out| get(out, false)), ["basic.get-ok 0"]);
}

#[test]
fn unsettled_messages_are_back_before_the_channels_end_is_answered() {
    let mut conversation = stocked(1);
    conversation.call(|out| get(out, false));
    let close = channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
    let answers = conversation.call(|out| {
        frame::write_method(out, 1, close);
        frame::write_method(out, 1, channel::Open { reserved_1: "" });
        get(out, false);
    });
    assert_eq!(answers, ["channel.close-ok", "channel.open-ok", "basic.get-ok 0"]);
}

/// A client with consumers of `q` on each of `channels`, with `no_ack` or not. The first has received a message.
fn consuming_from_one_queue(
    shared: &Arc<Shared>,
    channels: &[(u16, bool)],
    arguments: &[u8],
) -> Conversation {
    let mut client = Conversation::open(shared, 0);
    let arguments = RawTable::check(arguments).unwrap();
    client.call(|out| {
        let declare = queue::Declare { queue: "q", durable: true, arguments, ..Default::default() };
        frame::write_method(out, 1, declare);
    });
    for (number, no_ack) in channels {
        client.call(|out| {
            if *number > 1 {
                frame::write_method(out, *number, channel::Open { reserved_1: "" });
            }
            let consume = basic::Consume { queue: "q", no_ack: *no_ack, ..Default::default() };
            frame::write_method(out, *number, consume);
        });
        if *number == channels[0].0 {
            client.call(|out| publish(out, "q", b"x", false));
        }
    }
    client
}

#[test]
fn a_closing_connection_does_not_deliver_requeued_messages_to_itself() {
    let limit = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I64(1))];
    let limit = limit.into_iter().collect::<FieldTable>().encode();
    // A failed delivery counts against the delivery limit if it is to be acknowledged; without acknowledgements it is
    // lost.
    for (channels, arguments) in
        [([(1, false), (2, false), (3, false)], &limit[..]), ([(1, false), (2, true), (3, true)], &[])]
    {
        let shared = server();
        drop(consuming_from_one_queue(&shared, &channels, arguments));
        let mut other = Conversation::open(&shared, 0);
        assert_eq!(other.call(|out| get(out, true)), ["basic.get-ok 0"], "{channels:?}");
    }
}

#[test]
fn an_uncommitted_reject_is_requeued_with_the_rest_on_disconnect() {
    let shared = server();
    let mut client = stocked_at(&shared, 3);
    client.call(|out| frame::write_method(out, 1, tx::Select {}));
    client.call(|out| qos(out, 2, false));
    assert_eq!(delivered(&client.call(|out| consume(out, "c", false))), 2);
    client.call(|out| frame::write_method(out, 1, basic::Reject { delivery_tag: 1, requeue: false }));
    drop(client);
    let mut other = Conversation::open(&shared, 0);
    assert_eq!(other.call(|out| get(out, true)), ["basic.get-ok 2"]);
}

#[test]
fn a_nack_of_several_queues_returns_all_messages_of_one_before_these_are_delivered() {
    let mut conversation = Conversation::open(&server(), 0);
    let arguments = [("x-max-priority", FieldValue::I64(1))].into_iter().collect::<FieldTable>().encode();
    let arguments = RawTable::check(&arguments).unwrap();
    let mut high = Vec::new();
    amqp::Properties::default().with_priority(1).encode(&mut high);
    conversation.call(|out| {
        frame::write_method(out, 1, queue::Declare { queue: "q", arguments, ..Default::default() });
        declare(out, "other");
        publish(out, "q", b"<low>", false);
        publish(out, "other", b"x", false);
        get(out, false);
        frame::write_method(out, 1, basic::Get { queue: "other", ..Default::default() });
        let publish = basic::Publish { routing_key: "q", ..Default::default() };
        write_content(out, 1, publish, &high, b"<high>", FRAME_MAX);
        get(out, false);
    });
    let mut reader = Conversation::open(&conversation.shared, 0);
    assert_eq!(reader.call(|out| consume(out, "c", false)), ["basic.consume-ok"]);
    let nack = basic::Nack { delivery_tag: 0, multiple: true, requeue: true };
    conversation.call(|out| frame::write_method(out, 1, nack));
    let delivered = reader.outbox.read_all();
    let at = |body: &[u8]| delivered.windows(body.len()).position(|window| window == body).unwrap();
    assert!(at(b"<high>") < at(b"<low>"));
}

#[test]
fn any_new_secret_is_accepted_by_a_connection_that_is_open() {
    let mut conversation = stocked(0);
    for new_secret in [&b"guest"[..], b"a token that is no password", b""] {
        let update = amqp::method::connection::UpdateSecret { new_secret, reason: "renewed" };
        let answers = conversation.call(|out| frame::write_method(out, 0, update));
        assert_eq!(answers, ["connection.update-secret-ok"]);
    }
}
