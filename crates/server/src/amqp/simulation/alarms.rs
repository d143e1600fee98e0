//! The effect of an alarm on a connection, as in RabbitMQ: only publishers wait.

use amqp::handshake::Capabilities;
use amqp::method::connection;

use super::*;
use crate::alarms::Resource;

/// A client that supports `connection.blocked`.
fn knowing(shared: &Arc<Shared>, heartbeat: u16) -> Conversation {
    let mut properties = FieldTable::new();
    Capabilities { connection_blocked: true, ..Default::default() }.add_to(&mut properties);
    Conversation::open_as(shared, heartbeat, properties)
}

fn confirming(shared: &Arc<Shared>) -> Conversation {
    let mut publisher = knowing(shared, 0);
    publisher.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, confirm::Select { no_wait: false });
    });
    publisher
}

fn publish_one(out: &mut Vec<u8>) {
    publish(out, "q", b"x", false);
}

fn close(out: &mut Vec<u8>) {
    frame::write_method(out, 0, connection::Close { reply_code: 200, ..Default::default() });
}

impl Conversation {
    /// Nudges the connection and passes pending input in again.
    fn woken(&mut self) -> Vec<String> {
        let now = self.now;
        self.connection.handle_nudge(now);
        if self.connection.intent() == Intent::Run {
            self.send(&[]);
        }
        self.received()
    }
}

#[test]
fn a_publisher_waits_from_its_next_message_on_and_then_loses_nothing() {
    let shared = server();
    let mut publisher = confirming(&shared);
    assert_eq!(publisher.call(publish_one), ["basic.ack 1"]);
    shared.alarms.raise(Resource::Memory);
    assert_eq!(publisher.woken(), [""; 0], "connection.blocked is sent only to publishers");
    assert_eq!(publisher.call(|out| declare(out, "r")), ["queue.declare-ok"]);
    let held = publisher.call(|out| {
        declare(out, "r");
        publish_one(out);
        publish_one(out);
        declare(out, "r");
    });
    assert_eq!(held, ["queue.declare-ok", "connection.blocked low on memory"]);
    assert_eq!(publisher.connection.intent(), Intent::Pause);
    assert_eq!(shared.alarms.blocked_connections(), 1);
    let [view] = &shared.registry.all()[..] else { panic!("one connection") };
    assert!(view.is_blocked());
    // A second alarm, and clearing one of the two, change nothing.
    shared.alarms.raise(Resource::Disk);
    shared.alarms.clear(Resource::Memory);
    assert_eq!(publisher.woken(), [""; 0]);
    shared.alarms.clear(Resource::Disk);
    assert_eq!(publisher.woken(), ["connection.unblocked", "basic.ack 3 multiple", "queue.declare-ok"]);
    assert_eq!(shared.alarms.blocked_connections(), 0);
    assert!(!view.is_blocked());
    assert_eq!(publisher.call(publish_one), ["basic.ack 4"]);
}

#[test]
fn a_client_without_the_blocked_capability_gets_no_notification() {
    let shared = server();
    let mut publisher = Conversation::open(&shared, 0);
    shared.alarms.raise(Resource::Memory);
    let held = publisher.call(|out| {
        publish_one(out);
        declare(out, "q");
    });
    assert_eq!(held, [""; 0]);
    shared.alarms.clear(Resource::Memory);
    assert_eq!(publisher.woken(), ["queue.declare-ok"]);
}

#[test]
fn a_client_that_connects_during_an_alarm_is_blocked_when_it_publishes() {
    let shared = server();
    shared.alarms.raise(Resource::Memory);
    shared.alarms.raise(Resource::Disk);
    let mut late = confirming(&shared);
    assert_eq!(late.call(publish_one), ["connection.blocked low on disk & memory"]);
    shared.alarms.clear(Resource::Memory);
    let mut later = confirming(&shared);
    assert_eq!(later.call(publish_one), ["connection.blocked low on disk"]);
}

#[test]
fn a_partly_received_message_is_read_to_its_end() {
    let shared = server();
    let mut publisher = confirming(&shared);
    let mut bytes = Vec::new();
    publish(&mut bytes, "q", &[7; 9000], false);
    publisher.send(&bytes[..5000]);
    shared.alarms.raise(Resource::Disk);
    publisher.send(&bytes[5000..]);
    assert_eq!(publisher.received(), ["connection.blocked low on disk"]);
    shared.alarms.clear(Resource::Disk);
    assert_eq!(publisher.woken(), ["connection.unblocked", "basic.ack 1"]);
}

#[test]
fn a_client_that_only_consumes_is_not_affected_by_an_alarm() {
    let shared = server();
    let mut publisher = confirming(&shared);
    publisher.call(|out| (0..4).for_each(|_| publish_one(out)));
    let mut consumer = knowing(&shared, 0);
    shared.alarms.raise(Resource::Memory);
    publisher.call(publish_one);
    let first = consumer.call(|out| {
        frame::write_method(out, 1, basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false });
        frame::write_method(out, 1, basic::Consume { queue: "q", ..Default::default() });
    });
    assert_eq!(first, ["basic.qos-ok", "basic.consume-ok", "basic.deliver"]);
    for delivery_tag in 1..=3 {
        let ack = |out: &mut Vec<u8>| {
            frame::write_method(out, 1, basic::Ack { delivery_tag, multiple: false });
        };
        assert_eq!(consumer.call(ack), ["basic.deliver"]);
    }
    assert_eq!(consumer.call(close), ["connection.close-ok"]);
}

#[test]
fn a_blocked_connection_is_sent_deliveries_and_heartbeats_and_its_silence_is_forgiven() {
    let shared = server();
    let mut both = knowing(&shared, 2);
    both.call(|out| {
        declare(out, "q");
        publish_one(out);
        publish_one(out);
    });
    both.call(|out| {
        frame::write_method(out, 1, basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false });
        frame::write_method(out, 1, basic::Consume { queue: "q", ..Default::default() });
    });
    shared.alarms.raise(Resource::Memory);
    both.call(publish_one);
    // Its acknowledgements wait behind its publishes.
    let ack =
        |out: &mut Vec<u8>| frame::write_method(out, 1, basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(both.call(ack), [""; 0]);
    let mut heartbeats = 0;
    for _ in 0..20 {
        both.now = both.connection.next_deadline().unwrap();
        let now = both.now;
        both.connection.handle_deadline(now);
        assert_eq!(both.connection.intent(), Intent::Pause);
        let sent = both.received().len();
        heartbeats += sent;
        if sent > 0 {
            both.connection.handle_written(now);
        }
    }
    assert!(heartbeats > 4, "{heartbeats}");
    shared.alarms.clear(Resource::Memory);
    assert_eq!(both.woken(), ["connection.unblocked", "basic.deliver"]);
}

#[test]
fn a_transaction_waits_as_well() {
    let shared = server();
    let mut publisher = knowing(&shared, 0);
    publisher.call(|out| frame::write_method(out, 1, tx::Select {}));
    shared.alarms.raise(Resource::Memory);
    let held = publisher.call(|out| {
        publish_one(out);
        frame::write_method(out, 1, tx::Commit {});
    });
    assert_eq!(held, ["connection.blocked low on memory"]);
    shared.alarms.clear(Resource::Memory);
    assert_eq!(publisher.woken(), ["connection.unblocked", "tx.commit-ok"]);
}

#[test]
fn a_draining_server_does_not_wait_for_the_alarm() {
    let shared = server();
    let mut publisher = confirming(&shared);
    shared.alarms.raise(Resource::Memory);
    publisher.call(publish_one);
    shared.start_draining(Duration::ZERO, Duration::ZERO);
    let text = "connection.close CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    assert_eq!(publisher.woken(), [text]);
    assert_eq!(shared.alarms.blocked_connections(), 0);
    publisher.call(|out| frame::write_method(out, 0, connection::CloseOk {}));
    assert_eq!(publisher.connection.intent(), Intent::Finish);
}

#[test]
fn a_blocked_client_that_disconnects_leaves_nothing_behind() {
    let shared = server();
    let mut publisher = confirming(&shared);
    shared.alarms.raise(Resource::Memory);
    publisher.call(publish_one);
    // As in RabbitMQ, connection.close waits behind earlier publishes.
    assert_eq!(publisher.call(close), [""; 0]);
    drop(publisher);
    assert_eq!(shared.alarms.blocked_connections(), 0);
}
