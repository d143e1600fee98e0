//! The memory of open channels. A client can open many of them with a few bytes each, and leave them idle.

use allocation_counter::measure;

use super::*;

/// Channels of one client in these tests. Bytes are counted as requested; jemalloc adds up to a quarter.
const CHANNELS: u16 = 200;

/// Bytes of an unused channel: its state in the session and the registry, and its entries in the connection's
/// tables. 200 such channels of a client are to take less than a large message that is never completed.
const IDLE: usize = 256;

/// Bytes of an idle channel that has published to a queue, including its cached route and its counts.
const PUBLISHING: usize = 1024;

/// Bytes of a channel with a consumer that has received nothing, including the queue's share.
const CONSUMING: usize = 1024;

/// Bytes that each channel takes after these frames, with their answers read.
fn bytes_each(conversation: &mut Conversation, write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let taken = measure(|| {
        conversation.call(write);
        // Published messages are not the channels' memory.
        conversation.call(|out| {
            frame::write_method(out, 1, queue::Purge { queue: "q", ..Default::default() });
        });
        conversation.unconsumed = Vec::new();
    });
    usize::try_from(taken.bytes_current).unwrap_or_default() / usize::from(CHANNELS)
}

/// All channels but channel 1, which is open.
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
fn a_channel_that_has_published_stays_within_its_memory_budget() {
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
fn a_channel_with_a_consumer_stays_within_its_memory_budget() {
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
