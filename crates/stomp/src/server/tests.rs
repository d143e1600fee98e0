use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::decode::StompDecoder;
use crate::limits::MAX_CANCELLED;
use crate::version::StompVersion;

/// A client and the server's end of its connection.
struct World {
    connection: StompServerConnection,
    now: Instant,
    out: Vec<u8>,
    ended: Option<StompEnd>,
}

impl World {
    fn new() -> Self {
        let settings = StompSettings { body_limit: 1000, server: "Test/1".into() };
        let now = Instant::now();
        Self {
            connection: StompServerConnection::new(Arc::new(settings), now),
            now,
            out: Vec::new(),
            ended: None,
        }
    }

    fn connected(version: &str) -> Self {
        let mut world = Self::new();
        let connect = format!("CONNECT\naccept-version:{version}\nhost:/\nlogin:a\npasscode:b\n\n\0");
        assert_eq!(world.send(&connect), ["connect"]);
        world.connection.accept("session-s".into(), world.now, &mut world.out);
        world.reported();
        world
    }

    /// Sends frames, and returns the requests that the connection reported.
    fn send(&mut self, bytes: &str) -> Vec<String> {
        let mut rest = bytes.as_bytes();
        let mut events = Vec::new();
        loop {
            let step = self.connection.handle_input(rest, self.now, &mut self.out);
            let taken = step.taken;
            let Some(event) = step.event else {
                if taken == 0 || taken == rest.len() {
                    return events;
                }
                rest = &rest[taken..];
                continue;
            };
            match event {
                StompEvent::Connect(_) => events.push("connect".to_owned()),
                StompEvent::Request(request) => events.push(format!("{:?}", request.kind)),
                StompEvent::Ended(end) => self.ended = Some(end),
            }
            rest = &rest[taken..];
        }
    }

    /// Takes the frames that were sent to the client.
    fn reported(&mut self) -> Vec<String> {
        let out = std::mem::take(&mut self.out);
        let mut decoder = StompDecoder::of_servers(10_000);
        decoder.set_version(self.connection.version());
        let mut frames = Vec::new();
        let mut rest = &out[..];
        loop {
            let step = decoder.decode(rest).unwrap();
            if let Some(frame) = &step.frame {
                let body = String::from_utf8_lossy(frame.body.bytes());
                frames.push(format!("{} {:?} {body}", frame.command, frame.headers));
            }
            if step.taken == 0 {
                return frames;
            }
            rest = &rest[step.taken..];
        }
    }

    /// Sends an invalid frame; returns the message of the ERROR and its body.
    fn refused(&mut self, bytes: &str) -> String {
        assert_eq!(self.send(bytes), [""; 0]);
        assert!(self.reported()[0].starts_with("ERROR"));
        match self.ended.take() {
            Some(StompEnd::Fault(fault)) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn connected_reports_the_negotiated_values() {
    let mut world = World::new();
    world.send("STOMP\naccept-version:1.1,1.2\nheart-beat:3000,10000\nhost:v\n\n\0\n");
    world.connection.accept("session-s".into(), world.now, &mut world.out);
    assert_eq!(
        world.reported(),
        [
            r#"CONNECTED {"server": "Test/1", "session": "session-s", "heart-beat": "10000,3000", "version": "1.2"} "#
        ]
    );
    assert_eq!(world.connection.next_deadline(), Some(world.now + Duration::from_secs(5)));
}

#[test]
fn nothing_is_read_during_a_login_and_nothing_is_done_without_one() {
    let mut world = World::new();
    let both = "CONNECT\nlogin:a\n\n\0BEGIN\ntransaction:t\n\n\0";
    let connect = both.find('\0').unwrap() + 1;
    let taken = world.connection.handle_input(both.as_bytes(), world.now, &mut world.out).taken;
    assert_eq!(taken, connect);
    let rest = &both.as_bytes()[connect..];
    assert!(world.connection.handle_input(rest, world.now, &mut Vec::new()).event.is_none());
    assert!(
        World::new().refused("BEGIN\ntransaction:t\n\n\0").starts_with("Illegal command: You must log in")
    );
    assert!(World::connected("1.2").refused("CONNECT\n\n\0").starts_with("Illegal command"));
    assert!(World::new().refused("CONNECT\naccept-version:3.0\n\n\0").starts_with("Version mismatch"));
    assert!(World::new().refused("CONNECT\nheart-beat:x\n\n\0").starts_with("Invalid header"));
}

#[test]
fn an_error_names_its_request_and_ends_the_connection() {
    let mut world = World::connected("1.2");
    world.send("SEND\nreceipt:r-1\n\nbody\0BEGIN\ntransaction:t\n\n\0");
    let reported = world.reported();
    assert_eq!(
        reported,
        [concat!(
            r#"ERROR {"message": "Missing destination", "content-type": "text/plain", "version": "1.0,1.1,1.2", "#,
            r#""receipt-id": "r-1", "content-length": "45"} "#,
            "\"SEND\" must include a 'destination' header\n",
        )
        .replace("45", &"\"SEND\" must include a 'destination' header\n".len().to_string())]
    );
    assert!(world.connection.fail(crate::StompFault::new("x", "y"), None, &mut world.out).is_none());
    assert!(world.out.is_empty());
}

#[test]
fn messages_are_acknowledged_by_the_header_of_their_version() {
    for (version, name) in [("1.0", "message-id"), ("1.1", "message-id"), ("1.2", "id")] {
        let mut world = World::connected(version);
        world.send("SUBSCRIBE\nid:a@@b\ndestination:/queue/q\nack:client\n\n\0");
        let wrong = if name == "id" { "message-id" } else { "id" };
        let settle =
            |name: &str, tag: &str| format!("ACK\n{name}:T_a@@b@@session-s@@{tag}\nsubscription:a@@b\n\n\0");
        let asked = world.send(&settle(name, "7"));
        assert!(asked[0].contains("delivery_tag: 7, cumulative: true, is_ack: true"), "{asked:?}");
        assert!(world.refused(&settle(wrong, "7")).starts_with("Missing header"));
    }
}

#[test]
fn nacks_without_a_valid_delivery_of_this_session_are_refused() {
    let nack = |id: &str, more: &str| {
        let mut world = World::connected("1.2");
        world.send("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        let asked = world.send(&format!("NACK\nid:{id}\n{more}\n\0"));
        asked.into_iter().next().unwrap_or_else(|| format!("{:?}", world.ended))
    };
    assert!(nack("T_1@@session-s@@3", "requeue:false\n").contains("is_ack: false, requeue: false"));
    assert!(nack("T_1@@session-s@@3", "requeue:maybe\n").contains("Invalid header"));
    for id in ["T_1@@session-x@@3", "T_1@@session-s@@x", "T_1@@session-s@@0", "3", ""] {
        assert!(nack(id, "").contains("must include a valid"), "{id}");
    }
    assert!(nack("T_2@@session-s@@3", "").contains("has no subscription"));
}

#[test]
fn an_acknowledgement_of_1_1_is_identified_by_its_message_id() {
    let mut world = World::connected("1.1");
    world.send("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0");
    for other in ["", "subscription:1\n", "subscription:2\n"] {
        let asked = world.send(&format!("ACK\n{other}message-id:T_1@@session-s@@1\n\n\0"));
        assert!(asked[0].contains("subscription: 1, delivery_tag: 1"), "{asked:?}");
    }
}

#[test]
fn subscriptions_are_identified_by_ids_or_destinations() {
    let mut world = World::connected("1.2");
    let subscribe = "SUBSCRIBE\ndestination:/queue/q\n\n\0";
    assert!(world.send(subscribe)[0].contains("number: 1"));
    assert!(world.send("UNSUBSCRIBE\ndestination:/queue/q\n\n\0")[0].contains("Unsubscribe { number: 1"));
    assert!(world.send(subscribe)[0].contains("number: 2"));
    let twice = world.refused(subscribe);
    assert_eq!(
        twice,
        "Duplicated subscription identifier: A subscription identified by 'Q_/queue/q' already exists."
    );
    for (frame, fault) in [
        (
            "UNSUBSCRIBE\nid:1\n\n\0",
            "No subscription found: UNSUBSCRIBE must refer to an existing subscription.",
        ),
        ("UNSUBSCRIBE\n\n\0", "Missing destination or id"),
        (
            "SUBSCRIBE\nid:/temp-queue/a\ndestination:/queue/q\n\n\0",
            "Invalid id: SUBSCRIBE 'id' may not start",
        ),
        ("SUBSCRIBE\nid:1\n\n\0", "Missing destination"),
        ("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:both\n\n\0", "Invalid header: 'ack' must be"),
        ("SUBSCRIBE\ndestination:/topic/q\ndurable:true\n\n\0", "Missing Header: Header 'id' is required"),
        (
            "SEND\ndestination:/queue/q\nmessage-id:1\n\n\0",
            "Invalid header: 'message-id' is not allowed on 'SEND'.",
        ),
    ] {
        let reported = World::connected("1.2").refused(frame);
        assert!(reported.starts_with(fault), "{reported}");
    }
}

#[test]
fn transactions_exist_from_begin_to_commit_or_abort() {
    let mut world = World::connected("1.2");
    assert_eq!(world.send("BEGIN\ntransaction:t\n\n\0"), ["Begin(TransactionId(1))"]);
    let sent = world.send("SEND\ndestination:/queue/q\ntransaction:t\n\nx\0");
    assert!(sent[0].contains("transaction: Some(TransactionId(1))"), "{sent:?}");
    assert_eq!(world.send("COMMIT\ntransaction:t\n\n\0"), ["Commit(TransactionId(1))"]);
    assert_eq!(world.send("BEGIN\ntransaction:t\n\n\0"), ["Begin(TransactionId(2))"]);
    assert!(world.refused("BEGIN\ntransaction:t\n\n\0").contains("has begun already"));
    for frame in ["COMMIT\ntransaction:t\n\n\0", "SEND\ndestination:/queue/q\ntransaction:t\n\nx\0"] {
        let fault = World::connected("1.2").refused(frame);
        assert_eq!(fault, "Bad transaction: Invalid transaction identifier: \"t\"");
    }
    assert!(World::connected("1.2").refused("ABORT\n\n\0").starts_with("Missing transaction: \"ABORT\""));
}

#[test]
fn a_disconnect_is_answered_and_nothing_after_it_is_read() {
    let mut world = World::connected("1.2");
    assert_eq!(world.send("DISCONNECT\nreceipt:1\n\n\0BEGIN\n\n\0"), ["Disconnect"]);
    world.connection.receipt("1", &mut world.out);
    assert_eq!(world.reported(), [r#"RECEIPT {"receipt-id": "1"} "#]);
    assert_eq!(world.connection.leave(), Some(StompEnd::Disconnected));
    assert_eq!(world.connection.handle_eof(), None);
}

#[test]
fn messages_carry_their_subscription_and_the_name_of_their_delivery() {
    let mut world = World::connected("1.2");
    for (ack, has_ack) in [("auto", false), ("client", true)] {
        let subscribe = format!("SUBSCRIBE\nid:{ack}\ndestination:/queue/q\nack:{ack}\n\n\0");
        let form = match world.connection.handle_input(subscribe.as_bytes(), world.now, &mut Vec::new()).event
        {
            Some(StompEvent::Request(request)) => match request.kind {
                EventKind::Subscribe(event) => event.form,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        form.begin(&mut world.out, "/queue/q", 5, true).end(b"x");
        let reported = world.reported().remove(0);
        assert!(
            reported.contains(&format!(r#""message-id": "T_{ack}@@session-s@@5", "redelivered": "true""#)),
            "{reported}"
        );
        assert_eq!(reported.contains(r#""ack":"#), has_ack, "{reported}");
    }
    let replies = MessageForm::of_replies(StompVersion::V12, "session-s".into(), "x");
    replies.begin(&mut world.out, "/queue/r", 1, false).end(b"");
    assert!(world.reported()[0].starts_with(r#"MESSAGE {"subscription": "/temp-queue/x""#));
}

#[test]
fn a_subscription_cancelled_by_the_broker_is_reported_and_can_be_made_again() {
    let mut world = World::connected("1.1");
    world.send("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
    world.connection.cancelled("T_1", 9, 1, &mut world.out);
    assert!(world.out.is_empty(), "another one");
    world.connection.cancelled("T_1", 1, 1, &mut world.out);
    let reported = world.reported();
    assert!(reported[0].contains(r#""message": "Server cancelled subscription""#), "{reported:?}");
    assert!(reported[0].contains(r#""subscription": "1""#), "{reported:?}");
    assert!(world.send("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0")[0].contains("number: 2"));
}

#[test]
fn messages_of_a_cancelled_subscription_may_still_be_acknowledged() {
    let mut world = World::connected("1.2");
    let subscribe = |id: &str| format!("SUBSCRIBE\nid:{id}\ndestination:/queue/q\nack:client\n\n\0");
    let ack = |id: &str, tag: u64| format!("ACK\nid:T_{id}@@session-s@@{tag}\n\n\0");
    world.send(&subscribe("1"));
    world.connection.cancelled("T_1", 1, 8, &mut world.out);
    assert_eq!(world.send(&ack("1", 7)), ["SettleCancelled"]);
    assert_eq!(world.send("NACK\nid:T_1@@session-s@@1\nrequeue:false\n\n\0"), ["SettleCancelled"]);
    // Another subscription reuses the tag.
    world.send(&subscribe("1"));
    assert_eq!(world.send(&ack("1", 7)), ["SettleCancelled"]);
    assert!(world.send(&ack("1", 8))[0].contains("subscription: 2, delivery_tag: 8"));
    world.connection.cancelled("T_1", 2, 0, &mut world.out);
    assert_eq!(world.send(&ack("1", 7)), ["SettleCancelled"], "nothing of the second was unacknowledged");
    // The connection records at most `MAX_CANCELLED`, and drops the oldest.
    for next in 9..=8 + MAX_CANCELLED as u64 {
        let number = next - 6;
        world.send(&subscribe("n"));
        world.connection.cancelled("T_n", number, next, &mut world.out);
    }
    assert_eq!(world.send(&ack("1", 7)), ["SettleCancelled"], "they are two tags");
    for number in 0..MAX_CANCELLED as u64 {
        let id = format!("many-{number}");
        world.send(&subscribe(&id));
        let of = number + 3 + MAX_CANCELLED as u64;
        world.connection.cancelled(&format!("T_{id}"), of, 5000 + number, &mut world.out);
    }
    assert_eq!(world.send(&ack("many-0", 7)), ["SettleCancelled"]);
    assert!(world.refused(&ack("1", 7)).contains("has no subscription"));
}

#[test]
fn heart_beats_are_sent_and_a_silent_client_is_disconnected() {
    let mut world = World::new();
    world.send("CONNECT\naccept-version:1.1\nheart-beat:2000,2000\n\n\0");
    world.connection.accept("s".into(), world.now, &mut world.out);
    world.out.clear();
    let start = world.now;
    let mut beats = 0;
    let end = loop {
        world.now = world.connection.next_deadline().unwrap();
        let now = world.now;
        match world.connection.handle_deadline(now, &mut world.out) {
            None => beats += 1,
            Some(end) => break end,
        }
        assert!(beats < 10);
    };
    assert_eq!((end, world.now), (StompEnd::Silent, start + Duration::from_secs(4)));
    assert_eq!(world.out, b"\n".repeat(beats));
    assert_eq!(world.connection.version(), StompVersion::V11);
}

#[test]
fn limits_hold() {
    let mut world = World::connected("1.2");
    for number in 0..crate::limits::MAX_TRANSACTIONS {
        world.send(&format!("BEGIN\ntransaction:{number}\n\n\0"));
    }
    assert!(world.refused("BEGIN\ntransaction:x\n\n\0").contains("64 transactions at most"));
}
