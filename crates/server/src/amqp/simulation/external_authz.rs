//! Users whose operations another auth backend authorises: what waits for an answer, and what does not.

use super::*;
use crate::simulated::SimulatedAuthzBackend;
use broker::AuthzDecision;

/// A client whose auth backend answers each question at once, until the test stops it.
struct AskedClient {
    authz: SimulatedAuthzBackend,
    client: Conversation,
}

impl AskedClient {
    fn open(heartbeat: u16) -> Self {
        let broker = Broker::new(BrokerConfig::default());
        let authz = SimulatedAuthzBackend::of(&broker);
        let shared = server_of(broker);
        let mut client = Conversation::connect(&shared);
        let mut handshake = ClientHandshake::new(ClientOffer {
            credentials: Arc::new(Credentials::plain("alice", *b"secret")),
            virtual_host: "/".into(),
            client_properties: FieldTable::new(),
            channel_max: 0,
            frame_max: 0,
            heartbeat,
        });
        while !handshake.is_open() {
            let mut output = Vec::new();
            handshake.poll_output(&mut output);
            authz.run(|| client.send(&output));
            client.resume();
            handshake.handle_input(&client.outbox.read_all());
            assert!(!matches!(
                handshake.poll_event(),
                Some(ClientEvent::Refused(_) | ClientEvent::Failed(_))
            ));
        }
        let mut asked = Self { authz, client };
        asked.call(|out| {
            for number in [1, 2] {
                frame::write_method(out, number, channel::Open { reserved_1: "" });
            }
        });
        asked
    }

    /// Sends frames in one read, and returns the answers until only the auth backend's is outstanding.
    fn call(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Vec<String> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.authz.run(|| self.client.send(&bytes));
        self.received()
    }

    fn received(&mut self) -> Vec<String> {
        // Each frame may need a question.
        for _ in 0..16 {
            self.authz.run(|| self.client.resume());
        }
        self.client.received()
    }

    fn release(&mut self, verdict: AuthzDecision) -> Vec<String> {
        self.authz.release(verdict);
        self.received()
    }
}

impl Conversation {
    /// Does what the driver does after a nudge: the session continues, and the bytes that it has not taken are passed in
    /// again.
    fn resume(&mut self) {
        self.connection.handle_nudge(self.now);
        if self.connection.intent() == Intent::Run {
            self.send(b"");
        }
    }
}

fn declare_on(out: &mut Vec<u8>, channel: u16, name: &str) {
    frame::write_method(out, channel, queue::Declare { queue: name, ..Default::default() });
}

fn publish_to(out: &mut Vec<u8>, channel: u16, exchange: &str, key: &str) {
    let publish = basic::Publish { exchange, routing_key: key, ..Default::default() };
    write_content(out, channel, publish, NO_PROPERTIES, b"x", FRAME_MAX);
}

#[test]
fn frames_of_other_channels_wait_behind_the_question_in_their_order() {
    let mut asked = AskedClient::open(0);
    asked.authz.hold_back();
    let answers = asked.call(|out| {
        declare_on(out, 1, "first");
        declare_on(out, 2, "second");
        declare_on(out, 1, "third");
    });
    assert_eq!(answers, [""; 0]);
    assert_eq!(asked.authz.asked(), ["configure queue first"]);
    assert_eq!(asked.release(AuthzDecision::Allowed), ["queue.declare-ok"; 3]);
    assert_eq!(asked.authz.asked(), ["configure queue second", "configure queue third"]);
}

#[test]
fn a_refusal_closes_its_channel_and_frames_of_another_channel_continue() {
    let mut asked = AskedClient::open(0);
    asked.authz.hold_back();
    asked.call(|out| {
        declare_on(out, 1, "first");
        declare_on(out, 2, "second");
    });
    let answers = asked.release(AuthzDecision::Refused);
    assert!(answers[0].starts_with("channel.close ACCESS_REFUSED"), "{answers:?}");
    assert_eq!(answers[1..], ["queue.declare-ok"]);
}

#[test]
fn a_publish_whose_frames_came_apart_waits_and_is_published_once() {
    let mut asked = AskedClient::open(0);
    asked.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, confirm::Select { no_wait: false });
    });
    asked.authz.hold_back();
    let mut bytes = Vec::new();
    publish(&mut bytes, "q", &[7; 9000], false);
    for byte in &bytes {
        asked.authz.run(|| asked.client.send(std::slice::from_ref(byte)));
    }
    assert_eq!(asked.received(), [""; 0]);
    assert_eq!(asked.release(AuthzDecision::Allowed), ["basic.ack 1"]);
    let got = asked.call(|out| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    });
    assert_eq!(got, ["basic.get-ok 0"]);
}

#[test]
fn heartbeats_are_sent_while_a_question_is_open() {
    let mut asked = AskedClient::open(10);
    asked.authz.hold_back();
    asked.call(|out| declare(out, "q"));
    asked.client.now += Duration::from_secs(6);
    asked.client.connection.handle_deadline(asked.client.now);
    assert_eq!(asked.client.received(), ["heartbeat"]);
    // The same holds for a client that is not read.
    asked.client.now += Duration::from_secs(60);
    asked.client.connection.handle_deadline(asked.client.now);
    assert_eq!(asked.client.received(), ["heartbeat"]);
    assert_eq!(asked.release(AuthzDecision::Allowed), ["queue.declare-ok"]);
}

#[test]
fn a_consumer_time_out_on_another_channel_leaves_the_question_open() {
    let mut asked = AskedClient::open(0);
    asked.call(|out| {
        declare(out, "q");
        publish(out, "q", b"x", false);
        frame::write_method(out, 2, basic::Consume { queue: "q", ..Default::default() });
    });
    asked.authz.asked();
    asked.authz.hold_back();
    assert_eq!(asked.call(|out| declare_on(out, 1, "refused")), [""; 0]);
    let closed = asked.client.wait(CONSUMER_TIMEOUT + Duration::from_secs(180));
    assert!(closed[0].starts_with("channel.close PRECONDITION_FAILED"), "{closed:?}");
    // The refused operation is not asked about again.
    let answers = asked.release(AuthzDecision::Refused);
    assert!(answers[0].starts_with("channel.close ACCESS_REFUSED"), "{answers:?}");
    assert_eq!(asked.authz.asked(), ["configure queue refused"]);
}

#[test]
fn a_transaction_with_a_refused_message_publishes_none() {
    let mut asked = AskedClient::open(0);
    asked.authz.refuse(&["write topic amq.topic news"]);
    let answers = asked.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, tx::Select {});
        publish(out, "q", b"x", false);
        publish_to(out, 1, "amq.topic", "news");
    });
    assert!(answers[2].starts_with("channel.close ACCESS_REFUSED"), "{answers:?}");
    let got = asked.call(|out| frame::write_method(out, 2, basic::Get { queue: "q", ..Default::default() }));
    assert_eq!(got, ["basic.get-empty"]);
}

#[test]
fn a_commit_asks_nothing_though_all_answers_are_forgotten() {
    let mut asked = AskedClient::open(0);
    asked.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, tx::Select {});
        publish(out, "q", b"x", false);
        publish_to(out, 1, "amq.topic", "news");
    });
    asked.authz.forget();
    asked.authz.asked();
    assert_eq!(asked.call(|out| frame::write_method(out, 1, tx::Commit {})), ["tx.commit-ok"]);
    assert!(asked.authz.asked().is_empty());
    let got = asked.call(|out| frame::write_method(out, 2, basic::Get { queue: "q", ..Default::default() }));
    assert_eq!(got, ["basic.get-ok 0"]);
}
