//! Whole conversations with the embedded broker, stepped without sockets and on a simulated clock.

mod alarms;
mod behaviours;
mod counting;
mod disk;
mod external_authz;
mod fairness;
mod firehose;
mod flow;
mod incomplete;
// Only debug builds record the locks that a thread takes.
#[cfg(debug_assertions)]
mod locks;
mod memory;
mod paging;
mod semantics;
mod settling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::content::write_content;
use amqp::frame::{self, Frame, PROTOCOL_HEADER};
use amqp::handshake::{ClientEvent, ClientHandshake, ClientOffer};
use amqp::method::{Method, basic, channel, confirm, exchange, queue, tx};
use amqp::properties::NO_PROPERTIES;
use amqp::sasl::Credentials;
use amqp::{FieldTable, FrameKind};
use broker::{Broker, BrokerConfig, FrontEnd};
use transport::{Intent, Outbox, Peer, Protocol};

use super::connection::AmqpConnection;
use crate::client::ClientConnection;
use crate::clock::Clock;
use crate::server::Shared;
use crate::simulated::{self, CONSUMER_TIMEOUT, FRAME_MAX, HANDSHAKE_TIMEOUT};

fn server() -> Arc<Shared> {
    server_of(Broker::new(BrokerConfig::default()))
}

fn server_of(broker: Arc<Broker>) -> Arc<Shared> {
    simulated::server_of(broker, Clock::start(), 1).shared()
}

/// A client, and the server's side of its connection.
struct Conversation {
    shared: Arc<Shared>,
    connection: ClientConnection<AmqpConnection>,
    outbox: Arc<Outbox>,
    now: Instant,
    /// Bytes sent that the server has not taken yet.
    unconsumed: Vec<u8>,
}

impl Conversation {
    fn connect(shared: &Arc<Shared>) -> Self {
        let now = Instant::now();
        let (connection, outbox) = simulated::connection(shared, 1, Peer::Unix, FrontEnd::Amqp, now);
        Self { shared: Arc::clone(shared), connection, outbox, now, unconsumed: Vec::new() }
    }

    /// Connects and logs in, with a heartbeat of `heartbeat` seconds.
    fn open(shared: &Arc<Shared>, heartbeat: u16) -> Self {
        Self::open_as(shared, heartbeat, FieldTable::new())
    }

    fn open_as(shared: &Arc<Shared>, heartbeat: u16, client_properties: FieldTable) -> Self {
        let mut conversation = Self::connect(shared);
        let mut client = ClientHandshake::new(ClientOffer {
            credentials: Arc::new(Credentials::plain("guest", *b"guest")),
            virtual_host: "/".into(),
            client_properties,
            channel_max: 0,
            frame_max: 0,
            heartbeat,
        });
        while !client.is_open() {
            let mut output = Vec::new();
            client.poll_output(&mut output);
            conversation.send(&output);
            client.handle_input(&conversation.outbox.read_all());
            assert!(!matches!(client.poll_event(), Some(ClientEvent::Refused(_) | ClientEvent::Failed(_))));
        }
        conversation.call(|out| frame::write_method(out, 1, channel::Open { reserved_1: "" }));
        conversation
    }

    /// Sends bytes that the server reads at once.
    fn send(&mut self, bytes: &[u8]) {
        self.unconsumed.extend_from_slice(bytes);
        let taken = self.connection.handle_input(&self.unconsumed, self.now);
        self.unconsumed.drain(..taken);
    }

    /// Sends frames in one read, and returns descriptions of the received methods.
    fn call(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Vec<String> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.send(&bytes);
        self.received()
    }

    /// Reads what has come, and returns the bodies of the messages in it, each of which has one frame.
    fn bodies(&mut self) -> Vec<Vec<u8>> {
        let bytes = self.outbox.read_all();
        let mut rest = &bytes[..];
        let mut bodies = Vec::new();
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            if frame.kind == FrameKind::Body {
                bodies.push(frame.payload.to_vec());
            }
            rest = &rest[frame.wire_len()..];
        }
        bodies
    }

    fn received(&mut self) -> Vec<String> {
        let bytes = self.outbox.read_all();
        let mut rest = &bytes[..];
        let mut methods = Vec::new();
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            match frame.kind {
                FrameKind::Method => methods.push(describe(Method::decode(frame.payload).unwrap())),
                FrameKind::Heartbeat => methods.push("heartbeat".to_owned()),
                FrameKind::Header | FrameKind::Body => {}
            }
            rest = &rest[frame.wire_len()..];
        }
        methods
    }
}

fn describe(method: Method<'_>) -> String {
    match method {
        Method::ConnectionClose(close) => format!("connection.close {}", close.reply_text),
        Method::ConnectionBlocked(blocked) => format!("connection.blocked {}", blocked.reason),
        Method::ChannelClose(close) => format!("channel.close {}", close.reply_text),
        Method::BasicAck(ack) => {
            format!("basic.ack {}{}", ack.delivery_tag, if ack.multiple { " multiple" } else { "" })
        }
        Method::BasicGetOk(ok) => format!("basic.get-ok {}", ok.message_count),
        other => other.name().to_owned(),
    }
}

fn declare(out: &mut Vec<u8>, name: &str) {
    frame::write_method(out, 1, queue::Declare { queue: name, ..Default::default() });
}

fn publish(out: &mut Vec<u8>, key: &str, body: &[u8], mandatory: bool) {
    let publish = basic::Publish { routing_key: key, mandatory, ..Default::default() };
    write_content(out, 1, publish, NO_PROPERTIES, body, FRAME_MAX);
}

#[test]
fn a_message_arrives_however_its_frames_are_read() {
    let shared = server();
    for body in [&b""[..], b"x", &[7; 9000]] {
        let mut conversation = Conversation::open(&shared, 0);
        conversation.call(|out| declare(out, "q"));
        conversation.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
        let mut bytes = Vec::new();
        publish(&mut bytes, "q", body, false);
        // Cut in two at points near frame boundaries, and into single bytes.
        let cuts = [1, 7, 25, 26, 27, 33, 47, 48, 49, 55];
        for cut in cuts.into_iter().filter(|cut| *cut < bytes.len()) {
            conversation.send(&bytes[..cut]);
            conversation.send(&bytes[cut..]);
            assert!(
                conversation.received()[0].starts_with("basic.ack"),
                "{} bytes, cut at {cut}",
                body.len()
            );
        }
        bytes.iter().for_each(|byte| conversation.send(&[*byte]));
        assert!(conversation.received()[0].starts_with("basic.ack"), "{} bytes", body.len());
        conversation.call(|out| {
            frame::write_method(out, 1, queue::Delete { queue: "q", ..Default::default() });
        });
    }
}

#[test]
fn publishes_read_at_once_share_one_confirm() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| declare(out, "q"));
    conversation.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    let batch = |out: &mut Vec<u8>| (0..3).for_each(|_| publish(out, "q", b"x", false));
    assert_eq!(conversation.call(batch), ["basic.ack 3 multiple"]);
    assert_eq!(conversation.call(|out| publish(out, "q", b"x", false)), ["basic.ack 4"]);
}

#[test]
fn a_return_precedes_its_confirm_and_the_unroutable_message_is_acked() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    let answers = conversation.call(|out| publish(out, "nowhere", b"x", true));
    assert_eq!(answers, ["basic.return", "basic.ack 1"]);
}

#[test]
fn methods_after_a_publish_in_the_same_read_see_the_message() {
    let mut conversation = Conversation::open(&server(), 0);
    let answers = conversation.call(|out| {
        declare(out, "q");
        publish(out, "q", b"1", false);
        publish(out, "q", b"2", false);
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    });
    assert_eq!(answers, ["queue.declare-ok", "basic.get-ok 1"]);
}

#[test]
fn frames_after_a_channel_error_are_discarded_and_the_connection_is_kept() {
    let mut conversation = Conversation::open(&server(), 0);
    let answers = conversation.call(|out| {
        frame::write_method(out, 1, queue::Purge { queue: "nope", ..Default::default() });
        declare(out, "late");
        publish(out, "late", b"x", true);
        frame::write_method(out, 1, channel::CloseOk {});
        frame::write_method(out, 1, channel::Open { reserved_1: "" });
    });
    assert_eq!(answers, ["channel.close NOT_FOUND - no queue 'nope' in vhost '/'", "channel.open-ok"]);
}

#[test]
fn a_message_over_the_limit_ends_its_channel_by_its_header_alone() {
    let mut conversation = Conversation::open(&server(), 0);
    let answers = conversation.call(|out| {
        frame::write_method(out, 1, basic::Publish { routing_key: "q", ..Default::default() });
        frame::write_content_header(out, 1, 20_001, NO_PROPERTIES);
    });
    let text =
        "channel.close PRECONDITION_FAILED - message size 20001 is larger than configured max size 20000";
    assert_eq!(answers, [text]);
}

#[test]
fn a_hard_error_closes_the_connection_and_waits_for_close_ok() {
    let mut conversation = Conversation::open(&server(), 0);
    let answers = conversation.call(|out| declare_on(out, 7));
    assert_eq!(answers, ["connection.close CHANNEL_ERROR - expected 'channel.open'"]);
    assert_eq!(conversation.call(|out| declare(out, "q")), [""; 0], "discarded");
    assert_eq!(conversation.connection.intent(), Intent::Run);
    conversation.call(|out| frame::write_method(out, 0, amqp::method::connection::CloseOk {}));
    assert_eq!(conversation.connection.intent(), Intent::Finish);
}

fn declare_on(out: &mut Vec<u8>, channel: u16) {
    frame::write_method(out, channel, queue::Declare { queue: "q", ..Default::default() });
}

#[test]
fn heartbeats_are_sent_when_idle_and_a_silent_peer_is_disconnected() {
    let mut conversation = Conversation::open(&server(), 2);
    let mut heartbeats = 0;
    while conversation.connection.intent() == Intent::Run {
        conversation.now = conversation.connection.next_deadline().unwrap();
        let now = conversation.now;
        conversation.connection.handle_deadline(now);
        heartbeats += conversation.received().len();
        assert!(heartbeats < 10, "a silent peer is still connected");
    }
    assert!((3..=5).contains(&heartbeats), "{heartbeats} heartbeats in two intervals");
}

#[test]
fn a_client_that_does_not_log_in_in_time_is_disconnected() {
    let mut conversation = Conversation::connect(&server());
    conversation.send(&PROTOCOL_HEADER[..4]);
    let deadline = conversation.connection.next_deadline().unwrap();
    assert_eq!(deadline, conversation.now + HANDSHAKE_TIMEOUT);
    conversation.connection.handle_deadline(deadline);
    assert_eq!(conversation.connection.intent(), Intent::Finish);
}

#[test]
fn messages_published_before_the_client_vanished_are_kept() {
    let shared = server();
    let mut gone = Conversation::open(&shared, 0);
    let mut bytes = Vec::new();
    declare(&mut bytes, "q");
    publish(&mut bytes, "q", b"x", false);
    gone.send(&bytes);
    drop(gone);
    let mut other = Conversation::open(&shared, 0);
    let get = |out: &mut Vec<u8>| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    };
    assert_eq!(other.call(get), ["basic.get-ok 0"]);
    assert_eq!(other.shared.metrics.channels_closed.get(), 1);
}

#[test]
fn a_draining_server_tells_its_clients() {
    let shared = server();
    let mut conversation = Conversation::open(&shared, 0);
    shared.start_draining(Duration::ZERO, Duration::ZERO);
    let now = conversation.now;
    conversation.connection.handle_nudge(now);
    let text = "connection.close CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    assert_eq!(conversation.received(), [text]);
}

#[test]
fn a_consumer_cancelled_by_the_broker_is_not_taken_for_the_one_in_its_place() {
    let shared = server();
    let mut conversation = Conversation::open(&shared, 0);
    let consume = |out: &mut Vec<u8>, name| {
        declare(out, name);
        let consume = basic::Consume { queue: name, consumer_tag: name, no_ack: true, ..Default::default() };
        frame::write_method(out, 1, consume);
    };
    // The notice that "one" was cancelled arrives after "two" has reused its slot.
    conversation.call(|out| {
        consume(out, "one");
        frame::write_method(out, 1, queue::Delete { queue: "one", ..Default::default() });
        frame::write_method(out, 1, basic::Cancel { consumer_tag: "one", no_wait: true });
        consume(out, "two");
    });
    let now = conversation.now;
    conversation.connection.handle_nudge(now);
    let answers = conversation.call(|out| publish(out, "two", b"x", false));
    assert_eq!(answers, ["basic.deliver"]);
}

#[test]
fn one_read_of_small_requests_cannot_fill_memory_with_answers() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| {
        declare(out, "q");
        publish(out, "q", &[7; 19_000], false);
    });
    let mut requests = Vec::new();
    for tag in 1..=500 {
        frame::write_method(&mut requests, 1, basic::Get { queue: "q", ..Default::default() });
        frame::write_method(
            &mut requests,
            1,
            basic::Nack { delivery_tag: tag, multiple: false, requeue: true },
        );
    }
    conversation.send(&requests);
    let limit = conversation.shared.config.outbox_limit;
    assert!(conversation.outbox.backlog() < limit + 20_000, "{} bytes", conversation.outbox.backlog());
    let mut answered = 0;
    while answered < 500 {
        let some = conversation.received().len();
        assert!(some > 0, "stuck after {answered} answers");
        answered += some;
        conversation.send(&[]);
    }
}

#[test]
fn a_commit_carries_out_everything_though_an_exchange_is_gone() {
    let shared = server();
    let mut conversation = Conversation::open(&shared, 0);
    let answers = conversation.call(|out| {
        frame::write_method(
            out,
            1,
            exchange::Declare { exchange: "e", kind: "fanout", ..Default::default() },
        );
        declare(out, "q");
        publish(out, "q", b"x", false);
        frame::write_method(out, 1, tx::Select {});
        frame::write_method(out, 1, basic::Get { queue: "q", ..Default::default() });
        frame::write_method(out, 1, basic::Ack { delivery_tag: 1, multiple: false });
        let publish = basic::Publish { exchange: "e", ..Default::default() };
        write_content(out, 1, publish, NO_PROPERTIES, b"y", FRAME_MAX);
    });
    assert_eq!(answers[..2], ["exchange.declare-ok", "queue.declare-ok"]);
    let mut other = Conversation::open(&shared, 0);
    other.call(|out| frame::write_method(out, 1, exchange::Delete { exchange: "e", ..Default::default() }));
    let answers = conversation.call(|out| frame::write_method(out, 1, tx::Commit {}));
    // Messages are routed when they are published, as in RabbitMQ.
    assert_eq!(answers, ["tx.commit-ok"]);
    let get = |out: &mut Vec<u8>| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    };
    assert_eq!(other.call(get), ["basic.get-empty"]);
}

#[test]
fn a_client_that_is_not_read_is_not_held_to_its_heartbeats() {
    let mut conversation = Conversation::open(&server(), 2);
    let limit = conversation.shared.config.outbox_limit;
    conversation.outbox.append(|buf| buf.tail().resize(limit, 0));
    for _ in 0..10 {
        conversation.now = conversation.connection.next_deadline().unwrap();
        let now = conversation.now;
        conversation.connection.handle_deadline(now);
        assert_eq!(conversation.connection.intent(), Intent::Run);
    }
}
