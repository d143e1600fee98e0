//! Conversations of a client with the embedded broker as its upstream, stepped without sockets.

use std::sync::Arc;
use std::time::Instant;

use amqp::Credentials;
use broker::{Broker, BrokerConfig};
use stomp::server::{StompEvent, StompServerConnection, StompSettings};
use stomp::{StompFault, StompVersion};
use transport::Outbox;

use super::UpstreamStompSession;
use crate::clock::Clock;
use crate::server::Shared;
use crate::simulated;
use crate::stomp::session::{CancelledSubscription, StompSession};
use crate::stomp::simulation::frames_in;
use crate::upstream::OpenedUpstream;

/// Rounds after which everything that was sent has been answered.
const ROUNDS: usize = 8;

struct Conversation {
    machine: StompServerConnection,
    session: UpstreamStompSession,
    outbox: Arc<Outbox>,
    now: Instant,
    fault: Option<StompFault>,
}

fn server() -> Arc<Shared> {
    simulated::server_of(Broker::new(BrokerConfig::default()), Clock::start(), 0).shared()
}

impl Conversation {
    fn open(shared: &Arc<Shared>) -> Self {
        let now = Instant::now();
        let id = 1 + shared.metrics.connections_opened.get();
        shared.metrics.connections_opened.add(1);
        let outbox = Arc::new(Outbox::new(1 << 16));
        let client = simulated::amqp_client(shared, id, "guest");
        let credentials = Arc::new(Credentials::plain("guest", *b"guest"));
        let opened = OpenedUpstream { client, credentials };
        let session = UpstreamStompSession::new(shared, &outbox, opened, "/", StompVersion::V12);
        let settings = StompSettings { body_limit: 1 << 20, server: "Leveret".to_owned() };
        let mut machine = StompServerConnection::new(Arc::new(settings), now);
        let mut out = Vec::new();
        let connect = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0";
        assert!(matches!(machine.handle_input(connect, now, &mut out).event, Some(StompEvent::Connect(_))));
        machine.accept(Arc::clone(session.name()), now, &mut out);
        let mut conversation = Self { machine, session, outbox, now, fault: None };
        conversation.settle();
        conversation
    }

    /// Sends frames, separated by NUL, in one read; returns the answers.
    fn call(&mut self, frames: &str) -> Vec<String> {
        self.send(frames);
        self.settle();
        self.received()
    }

    fn send(&mut self, frames: &str) {
        let bytes = format!("{frames}\0");
        let (mut rest, mut out) = (bytes.as_bytes(), Vec::new());
        while !rest.is_empty() && self.fault.is_none() {
            let taken = {
                let step = self.machine.handle_input(rest, self.now, &mut out);
                if let Some(StompEvent::Request(request)) = &step.event {
                    self.fault = self.session.handle(request, self.now).err();
                }
                step.taken
            };
            rest = &rest[taken..];
            // A deferred message has to be sent before other requests are taken.
            if !self.session.has_capacity() {
                self.session.flush(self.now);
                self.settle();
            }
        }
        self.session.flush(self.now);
    }

    /// Runs both sides until they are idle.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            let mut out = Vec::new();
            match self.session.handle_nudge(self.now) {
                Ok(cancelled) => {
                    for CancelledSubscription { tag, number, next_delivery_tag } in cancelled {
                        self.machine.cancelled(&tag, number, next_delivery_tag, &mut out);
                    }
                }
                Err(fault) => self.fault = Some(fault),
            }
            while let Some(receipt) = self.session.next_receipt() {
                if receipt.is_refused {
                    let refused = StompFault::new("Message refused", "");
                    self.machine.refused(&refused, &receipt.id, &mut out);
                } else {
                    self.machine.receipt(&receipt.id, &mut out);
                }
                self.outbox.append(|buf| buf.tail().append(&mut out));
                receipt.starts.into_iter().for_each(|number| self.session.start(number));
            }
            self.outbox.append(|buf| buf.tail().append(&mut out));
        }
    }

    /// The frames received, each with its command, distinguishing headers, and body.
    fn received(&mut self) -> Vec<String> {
        frames_in(&self.outbox.read_all(), StompVersion::V12)
    }

    fn ack(&mut self, delivery_tag: u64, more: &str) -> Vec<String> {
        let name = Arc::clone(self.session.name());
        self.call(&format!("ACK\nid:T_1@@{name}@@{delivery_tag}\nreceipt:a\n{more}\n"))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.session.end(self.now);
    }
}

fn send(destination: &str, receipt: &str, body: &str) -> String {
    format!("SEND\ndestination:{destination}\nreceipt:{receipt}\n\n{body}")
}

#[test]
fn receipts_come_in_the_order_of_their_requests_and_before_the_messages() {
    let mut conversation = Conversation::open(&server());
    let reported = conversation.call(
        &[
            &send("/queue/q", "a", "1"),
            "SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:b\n\n",
            &send("/queue/q", "c", "2"),
        ]
        .join("\0"),
    );
    let receipts: Vec<_> = reported.iter().filter(|frame| frame.starts_with("RECEIPT")).collect();
    assert_eq!(receipts, ["RECEIPT a ", "RECEIPT b ", "RECEIPT c "]);
    let messages: Vec<_> = reported.iter().skip_while(|frame| *frame != "RECEIPT b ").collect();
    let messages: Vec<_> = messages.into_iter().filter(|frame| frame.starts_with("MESSAGE")).collect();
    assert_eq!(messages, ["MESSAGE 1 false 1", "MESSAGE 1 false 2"]);
    assert_eq!(conversation.call("UNSUBSCRIBE\nid:1\nreceipt:d\n\n"), ["RECEIPT d "]);
}

#[test]
fn messages_without_acknowledgement_are_acknowledged_upstream_once_they_are_written() {
    let shared = server();
    let mut first = Conversation::open(&shared);
    first.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    assert_eq!(first.call("SEND\ndestination:/queue/q\n\nx"), ["MESSAGE 1 false x"]);
    first.settle();
    drop(first);
    let mut second = Conversation::open(&shared);
    assert_eq!(second.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n"), [""; 0]);
}

#[test]
fn a_slow_client_gets_no_more_than_fits_into_its_outbox() {
    let shared = server();
    let mut slow = Conversation::open(&shared);
    slow.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    let body = "x".repeat(20_000);
    for _ in 0..20 {
        let mut other = Conversation::open(&shared);
        assert_eq!(other.call(&send("/queue/q", "r", &body)), ["RECEIPT r "]);
        slow.settle();
        assert!(slow.outbox.backlog() < (1 << 16) + 21_000);
    }
    let mut received = 0;
    for _ in 0..20 {
        received += slow.received().len();
        slow.session.handle_capacity(slow.now);
        slow.settle();
    }
    assert_eq!(received, 20);
}

#[test]
fn unacknowledged_messages_are_requeued_and_acknowledged_ones_are_not() {
    let shared = server();
    let mut first = Conversation::open(&shared);
    for body in ["1", "2", "3"] {
        first.call(&send("/queue/q", "r", body));
    }
    let reported = first.call("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n");
    assert_eq!(reported, ["MESSAGE 1 false 1", "MESSAGE 1 false 2", "MESSAGE 1 false 3"]);
    assert_eq!(first.ack(2, ""), ["RECEIPT a "]);
    first.call("UNSUBSCRIBE\nid:1\n\n");
    let mut second = Conversation::open(&shared);
    let reported = second.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n");
    assert_eq!(reported, ["MESSAGE 1 true 3"]);
    assert_eq!(second.ack(9, ""), [""; 0]);
    assert!(second.fault.take().is_some_and(|fault| fault.to_string().contains("unknown delivery tag 9")));
}

#[test]
fn a_transaction_takes_effect_with_its_commit() {
    let shared = server();
    let mut conversation = Conversation::open(&shared);
    conversation.call(&send("/queue/q", "r", "0"));
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n";
    assert_eq!(conversation.call(subscribe), ["MESSAGE 1 false 0"]);
    for end in ["ABORT", "COMMIT"] {
        let sent = format!("SEND\ndestination:/queue/q\ntransaction:{end}\n\n{end}");
        assert_eq!(conversation.call(&format!("BEGIN\ntransaction:{end}\n\n\0{sent}")), [""; 0]);
        assert_eq!(conversation.ack(1, &format!("transaction:{end}\n")), ["RECEIPT a "]);
        let reported = conversation.call(&format!("{end}\ntransaction:{end}\nreceipt:e\n\n"));
        let expected =
            if end == "COMMIT" { vec!["RECEIPT e ", "MESSAGE 1 false COMMIT"] } else { vec!["RECEIPT e "] };
        let mut reported: Vec<_> = reported.iter().map(String::as_str).collect();
        reported.sort_by_key(|frame| frame.starts_with("MESSAGE"));
        assert_eq!(reported, expected);
    }
    drop(conversation);
    let mut other = Conversation::open(&shared);
    assert_eq!(other.call("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n"), ["MESSAGE 1 true COMMIT"]);
}

#[test]
fn a_full_queue_refuses_the_message_and_nothing_else() {
    let mut conversation = Conversation::open(&server());
    let full = "SUBSCRIBE\nid:1\ndestination:/queue/full\nack:client\nprefetch-count:1\nx-max-length:1\nx-overflow:reject-publish\n\n";
    conversation.call(full);
    let reported =
        conversation.call(&["a", "b", "c"].map(|receipt| send("/queue/full", receipt, receipt)).join("\0"));
    let receipts: Vec<_> = reported.iter().filter(|frame| !frame.starts_with("MESSAGE")).collect();
    assert_eq!(receipts, ["RECEIPT a ", "RECEIPT b ", "ERROR c Message refused "]);
    assert!(conversation.fault.is_none());
}

#[test]
fn the_receipt_of_a_commit_is_refused_if_one_of_its_messages_is() {
    let mut conversation = Conversation::open(&server());
    let full = "/queue/full\nx-max-length:1\nx-overflow:reject-publish";
    assert_eq!(conversation.call(&send(full, "r", "x")), ["RECEIPT r "]);
    // The second commit takes several turns: its first message is refused before its last is published.
    for (first, body, answer) in [
        (full, 1, "ERROR c Message refused "),
        (full, 20_000, "ERROR c Message refused "),
        ("/queue/q", 1, "RECEIPT c "),
    ] {
        let sent = |destination: &str, body: &str| {
            format!("SEND\ndestination:{destination}\ntransaction:t\n\n{body}")
        };
        let mut frames = vec!["BEGIN\ntransaction:t\n\n".to_owned(), sent(first, "x")];
        frames.extend((0..16).map(|_| sent("/queue/q", &"x".repeat(body))));
        frames.push("COMMIT\ntransaction:t\nreceipt:c\n\n".to_owned());
        let mut reported = conversation.call(&frames.join("\0"));
        conversation.settle();
        reported.extend(conversation.received());
        assert_eq!(reported, [answer], "{body}");
    }
}

#[test]
fn a_request_is_answered_through_a_queue_of_the_connections_own() {
    let shared = server();
    let (mut asker, mut answerer) = (Conversation::open(&shared), Conversation::open(&shared));
    answerer.call("SUBSCRIBE\nid:1\ndestination:/queue/questions\n\n");
    let question = "SEND\ndestination:/queue/questions\nreply-to:/temp-queue/r\nreceipt:q\n\nquestion";
    assert_eq!(asker.call(&[question, question].join("\0")), ["RECEIPT q ", "RECEIPT q "]);
    answerer.settle();
    let bytes = String::from_utf8(answerer.outbox.read_all()).unwrap();
    let reply_to: Vec<_> = bytes.lines().filter_map(|line| line.strip_prefix("reply-to:")).collect();
    assert_eq!(reply_to.len(), 2, "{bytes}");
    assert_eq!(reply_to[0], reply_to[1]);
    answerer.call(&format!("SEND\ndestination:{}\n\nanswer", reply_to[0]));
    asker.settle();
    assert_eq!(asker.received(), ["MESSAGE /temp-queue/r false answer"]);
}

#[test]
fn an_upstream_refusal_closes_the_connection_with_the_upstreams_message() {
    let mut conversation = Conversation::open(&server());
    conversation.call("SUBSCRIBE\nid:1\ndestination:/amq/queue/missing\n\n");
    let fault = conversation.fault.take().unwrap();
    assert_eq!(fault.message, "not_found");
    assert!(fault.to_string().contains("NOT_FOUND - no queue 'missing' in vhost '/'"), "{fault}");
}

#[test]
fn the_receipt_of_disconnect_comes_when_everything_before_it_is_done() {
    let mut conversation = Conversation::open(&server());
    conversation.call("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n");
    conversation.send(&[&send("/queue/q", "s", "x"), "DISCONNECT\nreceipt:d\n\n"].join("\0"));
    assert!(!conversation.session.is_settled());
    conversation.settle();
    let reported = conversation.received();
    let receipts: Vec<_> = reported.iter().filter(|frame| frame.starts_with("RECEIPT")).collect();
    assert_eq!(receipts, ["RECEIPT s ", "RECEIPT d "]);
    assert!(conversation.session.is_settled());
}
