//! Messages that clients never complete: their memory is bounded, and no other client waits for long.

use super::*;

/// Bytes of a body that each channel of a hostile client sends, one less than it announces.
const SENT: usize = 19_999;

/// More channels than fit into the simulated server's budget of 1 MiB.
const CHANNELS: u16 = 60;

fn begin(out: &mut Vec<u8>, channel: u16, bytes: usize) {
    frame::write_method(out, channel, basic::Publish { routing_key: "q", ..Default::default() });
    frame::write_content_header(out, channel, bytes as u64 + 1, NO_PROPERTIES);
    for piece in vec![7; bytes].chunks(FRAME_MAX as usize - 8) {
        frame::write_body(out, channel, piece);
    }
}

/// A client that uses up the budget and then stops sending.
fn hostile(shared: &Arc<Shared>) -> Conversation {
    let mut hostile = Conversation::open(shared, 0);
    let channels = 2..2 + CHANNELS;
    hostile.call(|out| {
        for channel in channels.clone() {
            frame::write_method(out, channel, channel::Open { reserved_1: "" });
        }
    });
    for channel in channels {
        hostile.call(|out| begin(out, channel, SENT));
    }
    hostile
}

impl Conversation {
    fn fall_due(&mut self) -> Vec<String> {
        self.now = self.connection.next_deadline().expect("the message has a deadline");
        self.connection.handle_deadline(self.now);
        self.received()
    }

    fn nudge(&mut self) {
        self.connection.handle_nudge(self.now);
        self.send(&[]);
    }
}

#[test]
fn s2_a_client_filling_the_capacity_is_closed_and_small_messages_never_wait() {
    let shared = server();
    let mut filling = hostile(&shared);
    filling.nudge();
    let mut small = Conversation::open(&shared, 0);
    small.call(|out| declare(out, "q"));
    small.call(|out| publish(out, "q", &[1; 19_000], true));
    let get = |out: &mut Vec<u8>| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    };
    assert_eq!(small.call(get), ["basic.get-ok 0"]);
    let answers = filling.fall_due();
    let text = "connection.close RESOURCE_ERROR - messages have been incomplete for 10 s while those of all clients \
                take 1048576 bytes";
    assert_eq!(answers, [text]);
}

#[test]
fn a_client_paused_for_capacity_resumes_when_another_client_is_closed() {
    let shared = server();
    let mut filling = hostile(&shared);
    filling.nudge();
    let mut waiting = Conversation::open(&shared, 0);
    waiting.call(|out| declare(out, "q"));
    waiting.call(|out| {
        (2..8).for_each(|channel| frame::write_method(out, channel, channel::Open { reserved_1: "" }));
    });
    (2..8).for_each(|channel| {
        waiting.call(|out| begin(out, channel, SENT));
    });
    // The first client was admitted with its last message, so this client waits.
    assert_eq!(waiting.connection.intent(), Intent::Pause);
    assert!(!waiting.unconsumed.is_empty());
    filling.fall_due();
    waiting.nudge();
    assert_eq!(waiting.connection.intent(), Intent::Run);
    let answers = waiting.call(|out| {
        (2..8).for_each(|channel| frame::write_body(out, channel, b"!"));
        declare(out, "q");
    });
    assert_eq!(answers, ["queue.declare-ok"]);
}
