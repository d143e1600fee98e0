//! Waiting for quorum queues, which act only when a write to disk is done: no round trip on a channel shows that.

use std::io;

use amqp::method::{basic, confirm, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{FieldTable, FieldValue, RawTable, frame};

use crate::event::Event;
use crate::link::Link;

/// Waits until quorum queues have done what was given to them before. RabbitMQ writes the logs of all of them to one file, in
/// the order in which they come, so a message that another quorum queue confirms is on disk after theirs.
///
/// # Errors
/// As [`Link::sync`].
pub(crate) fn wait_for_quorum_queues(link: &mut Link) -> io::Result<()> {
    if !link.channels.contains(&CHANNEL) {
        link.open_channel(CHANNEL);
        link.send(CHANNEL, confirm::Select { no_wait: false });
        let mut arguments = FieldTable::new();
        arguments.insert("x-queue-type", FieldValue::LongString(b"quorum".to_vec()));
        arguments.insert("x-max-length", FieldValue::I32(1));
        let arguments = arguments.encode();
        let arguments = RawTable::check(&arguments).unwrap_or_default();
        link.send(CHANNEL, queue::Declare { queue: QUEUE, durable: true, arguments, ..Default::default() });
    }
    link.send(CHANNEL, basic::Publish { routing_key: QUEUE, ..Default::default() });
    frame::write_content_header(link.output(), CHANNEL, 0, NO_PROPERTIES);
    let is_confirm = |(id, event): &(u16, Event)| *id == CHANNEL && matches!(event, Event::Confirmed { .. });
    link.wait_for(is_confirm)?;
    link.events.retain(|(id, _)| *id != CHANNEL);
    Ok(())
}

/// The channel of the link that this takes; programs use lower ones.
const CHANNEL: u16 = 10;
/// The quorum queue that confirms.
const QUEUE: &str = "last-to-confirm";
