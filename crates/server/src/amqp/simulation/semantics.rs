//! Behaviour that takes a whole channel: direct reply-to, and deliveries that are never settled.

use amqp::properties::{ContentHeader, Properties};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

impl Conversation {
    /// Advances the clock and handles deadlines as they fall due; returns the methods received.
    pub(super) fn wait(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        while let Some(due) = self.connection.next_deadline().filter(|due| *due <= end) {
            self.now = due;
            self.connection.handle_deadline(due);
        }
        self.now = end;
        self.received()
    }

    fn get(&mut self, no_ack: bool) -> Vec<String> {
        self.call(|out| frame::write_method(out, 1, basic::Get { queue: "q", no_ack, ..Default::default() }))
    }

    fn consume(&mut self, queue: &str) -> Vec<String> {
        let consume = basic::Consume { queue, consumer_tag: "tag", no_ack: true, ..Default::default() };
        self.call(|out| frame::write_method(out, 1, consume))
    }

    /// Sends a request that asks for a direct reply; returns the reply-to address.
    fn request(&mut self) -> String {
        let mut properties = Vec::new();
        Properties::default().with_reply_to(broker::REPLY_QUEUE).encode(&mut properties);
        let publish = basic::Publish { routing_key: "q", ..Default::default() };
        let mut bytes = Vec::new();
        write_content(&mut bytes, 1, publish, &properties, b"request", FRAME_MAX);
        frame::write_method(&mut bytes, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
        self.send(&bytes);
        let answer = self.outbox.read_all();
        let mut rest = &answer[..];
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            if frame.kind == FrameKind::Header {
                let header = ContentHeader::decode(frame.payload).unwrap();
                return Properties::decode(header.properties).unwrap().reply_to.unwrap().to_owned();
            }
            rest = &rest[frame.wire_len()..];
        }
        panic!("no message");
    }
}

#[test]
fn a_delivery_that_nobody_settles_ends_its_channel_and_returns() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        publish(out, "q", b"x", false);
    });
    assert_eq!(conversation.get(false), ["basic.get-ok 0"]);
    assert_eq!(conversation.wait(CONSUMER_TIMEOUT - MINUTE), [""; 0]);
    let text = "channel.close PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: \
                1800000 ms. This timeout value can be configured, see consumers doc guide to learn more";
    assert_eq!(conversation.wait(3 * MINUTE), [text]);
    let answers = conversation.call(|out| {
        frame::write_method(out, 1, channel::CloseOk {});
        frame::write_method(out, 1, channel::Open { reserved_1: "" });
    });
    assert_eq!(answers, ["channel.open-ok"]);
    assert_eq!(conversation.get(true), ["basic.get-ok 0"]);
}

#[test]
fn each_delivery_has_a_time_of_its_own() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        (0..2).for_each(|_| publish(out, "q", b"x", false));
    });
    conversation.get(false);
    assert_eq!(conversation.wait(20 * MINUTE), [""; 0]);
    conversation.get(false);
    conversation.call(|out| frame::write_method(out, 1, basic::Ack { delivery_tag: 1, multiple: false }));
    assert_eq!(conversation.wait(28 * MINUTE), [""; 0], "the second has two minutes left");
    assert!(conversation.wait(4 * MINUTE)[0].starts_with("channel.close PRECONDITION_FAILED"));
}

#[test]
fn a_connection_without_deliveries_needs_no_timer() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        publish(out, "q", b"x", false);
    });
    conversation.get(false);
    conversation.call(|out| frame::write_method(out, 1, basic::Ack { delivery_tag: 1, multiple: false }));
    assert_eq!(conversation.wait(3 * CONSUMER_TIMEOUT), [""; 0]);
    assert_eq!(conversation.connection.next_deadline(), None);
}

#[test]
fn replies_wait_for_a_requester_that_reads_slowly() {
    let shared = server();
    let mut requester = Conversation::open(&shared, 0);
    requester.call(|out| declare(out, "q"));
    assert_eq!(requester.consume(broker::REPLY_QUEUE), ["basic.consume-ok"]);
    let reply_to = requester.request();
    let mut replier = Conversation::open(&shared, 0);
    let body = [7; 1000];
    for _ in 0..300 {
        replier.call(|out| (0..10).for_each(|_| publish(out, &reply_to, &body, false)));
    }
    assert!(requester.outbox.backlog() < 2 << 20, "{} bytes wait", requester.outbox.backlog());
    let mut delivered = 0;
    loop {
        let methods = requester.received();
        if methods.is_empty() {
            break;
        }
        delivered += methods.iter().filter(|method| *method == "basic.deliver").count();
        requester.connection.handle_capacity();
    }
    assert_eq!(delivered, 3000);
}

#[test]
fn a_reply_is_confirmed_and_counts_as_unroutable_whether_the_requester_is_there_or_not() {
    let shared = server();
    let mut requester = Conversation::open(&shared, 0);
    requester.call(|out| declare(out, "q"));
    requester.consume(broker::REPLY_QUEUE);
    let reply_to = requester.request();
    let mut replier = Conversation::open(&shared, 0);
    replier.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    assert_eq!(replier.call(|out| publish(out, &reply_to, b"x", false)), ["basic.ack 1"]);
    assert_eq!(replier.call(|out| publish(out, &reply_to, b"x", true)), ["basic.return", "basic.ack 2"]);
    assert_eq!(requester.received(), ["basic.deliver", "basic.deliver"]);
    drop(requester);
    assert_eq!(replier.call(|out| publish(out, &reply_to, b"x", false)), ["basic.ack 3"]);
    let declare_again = |out: &mut Vec<u8>| {
        let declare = queue::Declare { queue: &reply_to, passive: true, ..Default::default() };
        frame::write_method(out, 1, declare);
    };
    let gone = format!("channel.close NOT_FOUND - no queue '{reply_to}' in vhost '/'");
    assert_eq!(replier.call(declare_again), [gone]);
}

#[test]
fn a_transaction_refuses_an_invalid_expiration_and_publishes_nothing() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, amqp::method::tx::Select {});
        publish(out, "q", b"x", false);
    });
    let mut properties = Vec::new();
    Properties::default().with_expiration("soon").encode(&mut properties);
    let answers = conversation.call(|out| {
        let publish = basic::Publish { routing_key: "q", ..Default::default() };
        write_content(out, 1, publish, &properties, b"x", FRAME_MAX);
        frame::write_method(out, 1, amqp::method::tx::Commit {});
    });
    assert_eq!(answers, ["channel.close PRECONDITION_FAILED - invalid expiration 'soon': no_integer"]);
    conversation.call(|out| {
        frame::write_method(out, 1, channel::CloseOk {});
        frame::write_method(out, 1, channel::Open { reserved_1: "" });
    });
    assert_eq!(conversation.get(true), ["basic.get-empty"]);
}

#[test]
fn a_direct_reply_consume_is_validated_before_its_tag() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.consume(broker::REPLY_QUEUE);
    let text = "channel.close PRECONDITION_FAILED - reply consumer cannot acknowledge";
    let again = basic::Consume { queue: broker::REPLY_QUEUE, consumer_tag: "tag", ..Default::default() };
    assert_eq!(conversation.call(|out| frame::write_method(out, 1, again)), [text]);
}

#[test]
fn a_missing_last_declared_queue_is_reported_before_an_invalid_tag() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.consume(broker::REPLY_QUEUE);
    let text = "channel.close NOT_FOUND - no previously declared queue";
    assert_eq!(conversation.consume(""), [text]);
}

#[test]
fn a_prefetch_for_consumers_lifts_the_limit_of_the_channel() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        (0..3).for_each(|_| publish(out, "q", b"x", false));
        frame::write_method(out, 1, basic::Qos { prefetch_size: 0, prefetch_count: 1, global: true });
    });
    let consume = basic::Consume { queue: "q", ..Default::default() };
    let limited = conversation.call(|out| frame::write_method(out, 1, consume));
    assert_eq!(limited, ["basic.consume-ok", "basic.deliver"]);
    let lift = basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false };
    let delivered = conversation.call(|out| frame::write_method(out, 1, lift));
    assert_eq!(delivered.iter().filter(|method| *method == "basic.deliver").count(), 2);
}

#[test]
fn quorum_queues_refuse_global_qos_and_get_with_single_active_consumer() {
    let arguments: amqp::FieldTable = [
        ("x-queue-type", amqp::FieldValue::text("quorum")),
        ("x-single-active-consumer", amqp::FieldValue::Boolean(true)),
    ]
    .into_iter()
    .collect();
    let arguments = arguments.encode();
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        let arguments = amqp::RawTable::check(&arguments).unwrap_or_default();
        let declare = queue::Declare { queue: "q", durable: true, arguments, ..Default::default() };
        frame::write_method(out, 1, declare);
    });
    let text = "channel.close RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'. basic.get \
                operations are not supported by quorum queues with single active consumer";
    assert_eq!(conversation.get(true), [text]);
    conversation.call(|out| {
        frame::write_method(out, 1, channel::CloseOk {});
        frame::write_method(out, 1, channel::Open { reserved_1: "" });
        frame::write_method(out, 1, basic::Qos { prefetch_size: 0, prefetch_count: 1, global: true });
    });
    let text = "connection.close NOT_IMPLEMENTED - queue 'q' in vhost '/' does not support global qos";
    assert_eq!(conversation.consume("q"), [text]);
}
