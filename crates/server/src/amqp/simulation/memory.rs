//! What open channels take. A client opens as many as it likes with a few bytes each, and idles.

use allocation_counter::measure;

use super::*;

/// Channels of one client in these tests. Their bytes are counted as they were asked for; jemalloc makes up to a quarter more
/// of them.
const CHANNELS: u16 = 200;

/// Bytes that a channel may take on which nothing has been done: what the session and operators know of it, and its places in
/// the connection's tables. A client with 200 such channels is to take less than one that stops in a large message.
const IDLE: usize = 256;

/// Bytes that a channel may take that has published to a queue, and rests: with the route that it remembers, and what it
/// counts.
const PUBLISHING: usize = 1024;

/// Bytes that a channel may take with a consumer that has been given nothing, the queue's part included.
const CONSUMING: usize = 1024;

/// Bytes that each channel takes after these frames, their answers being read.
fn bytes_each(conversation: &mut Conversation, write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let taken = measure(|| {
        conversation.call(write);
        // What was published is not the channels'.
        conversation.call(|out| {
            frame::write_method(out, 1, queue::Purge { queue: "q", ..Default::default() });
        });
        conversation.unconsumed = Vec::new();
    });
    usize::try_from(taken.bytes_current).unwrap_or_default() / usize::from(CHANNELS)
}

/// All but channel 1, which is open.
fn channels() -> impl Iterator<Item = u16> {
    2..2 + CHANNELS
}

fn open_all(out: &mut Vec<u8>) {
    channels().for_each(|channel| frame::write_method(out, channel, channel::Open { reserved_1: "" }));
}

#[test]
fn a_channel_on_which_nothing_was_done_takes_little() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| declare(out, "q"));
    let idle = bytes_each(&mut conversation, open_all);
    assert!((1..=IDLE).contains(&idle), "{idle} bytes");
    assert_eq!(conversation.shared.registry.all()[0].channel_count(), 1 + usize::from(CHANNELS));
}

#[test]
fn a_channel_that_has_published_takes_what_that_needs() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| declare(out, "q"));
    let publishing = bytes_each(&mut conversation, |out| {
        open_all(out);
        for channel in channels() {
            let publish = basic::Publish { routing_key: "q", ..Default::default() };
            write_content(out, channel, publish, NO_PROPERTIES, b"x", FRAME_MAX);
        }
    });
    assert!((IDLE..=PUBLISHING).contains(&publishing), "{publishing} bytes");
}

#[test]
fn a_channel_that_consumes_takes_what_that_needs() {
    let mut conversation = Conversation::open(&server(), 0);
    conversation.call(|out| declare(out, "q"));
    let consuming = bytes_each(&mut conversation, |out| {
        open_all(out);
        for channel in channels() {
            frame::write_method(out, channel, basic::Consume { queue: "q", ..Default::default() });
        }
    });
    assert!((IDLE..=CONSUMING).contains(&consuming), "{consuming} bytes");
}
