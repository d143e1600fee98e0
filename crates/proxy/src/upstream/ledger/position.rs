//! The position of a consumer in a stream, so that it continues from there on another channel.
//!
//! A stream keeps delivered messages. If a consumer were recreated with the client's arguments, it would receive
//! everything again, or miss what was published meanwhile. Each delivery from a stream has its offset in a header, from
//! which the next offset follows.

use std::time::{SystemTime, UNIX_EPOCH};

use amqp::{ContentHeader, FieldTable, FieldValue, Properties, RawTable};
use memchr::memmem;
use serde::{Deserialize, Serialize};

/// The position of a consumer. Part of [`crate::SessionState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StreamPosition {
    /// It started at `next`, at this time in seconds since 1970, and nothing was delivered yet.
    Next(u64),
    /// If its queue is a stream, it started at the offset that the client gave, and nothing was delivered yet.
    Begun,
    /// The offset of the next message for the client. The queue is a stream if the client gave an offset. Otherwise it
    /// may not be: messages that once were in a stream keep the header in other queues.
    At(u64),
    /// Its queue is not a stream.
    None,
}

impl StreamPosition {
    /// The position of a new consumer with these arguments.
    pub(super) fn new(arguments: &RawTable<'_>) -> Self {
        // Most have none.
        if arguments.is_empty()
            || arguments.decode().get(OFFSET).and_then(FieldValue::as_text) != Some("next")
        {
            return Self::Begun;
        }
        // Stream offsets may be given as wall-clock time, which the session does not have.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::Next(since.as_secs())
    }

    /// Records that a message with this offset arrived, and was passed on to the client or withheld.
    pub(super) fn came(&mut self, offset: u64, is_passed_on: bool) {
        match self {
            Self::None => {}
            _ if is_passed_on => *self = Self::At(offset.saturating_add(1)),
            Self::Next(_) | Self::Begun => *self = Self::At(offset),
            Self::At(_) => {}
        }
    }

    /// Records that the queue is not a stream; returns whether it was taken for one.
    pub(super) fn mark_not_stream(&mut self) -> bool {
        matches!(std::mem::replace(self, Self::None), Self::At(_))
    }

    /// The arguments to continue with; `None` if they are those that the client gave.
    pub(super) fn again(self, arguments: &RawTable<'_>) -> Option<FieldTable> {
        let from = match self {
            Self::Next(since) => FieldValue::Timestamp(since),
            Self::At(offset) => FieldValue::I64(i64::try_from(offset).ok()?),
            Self::Begun | Self::None => return None,
        };
        let mut arguments = arguments.decode();
        arguments.insert(OFFSET, from);
        Some(arguments)
    }
}

/// The offset of a message from a stream, from the payload of its content header.
#[inline]
pub(crate) fn stream_offset(header: &[u8]) -> Option<u64> {
    // Few messages have headers, and fewer this one: the tables of others are not decoded.
    if !has_headers(header)? {
        return None;
    }
    memmem::find(header, OFFSET.as_bytes())?;
    let header = ContentHeader::decode(header).ok()?;
    let headers = Properties::decode(header.properties).ok()?.headers?.decode();
    u64::try_from(headers.get(OFFSET)?.as_integer()?).ok()
}

/// Whether a message has headers, from the payload of its content header; `None` if it ends before its flags.
#[inline]
pub(crate) fn has_headers(header: &[u8]) -> Option<bool> {
    header.get(PROPERTY_FLAGS_AT).map(|flags| flags & HAS_HEADERS != 0)
}

/// Whether this is the text with which RabbitMQ refuses a consumer with an offset because this queue is not a stream. A
/// text of more than 255 bytes is truncated and ends in three dots: it then matches every queue whose name starts with
/// what is left of the name.
pub(super) fn refuses_offset(text: &str, queue: &str) -> bool {
    let Some((_, named)) = text.split_once("invalid arg 'x-stream-offset' for queue '") else { return false };
    let whole = format!("{queue}' in vhost '");
    named.starts_with(&whole) || named.strip_suffix("...").is_some_and(|begun| whole.starts_with(begun))
}

/// Offset of the property flags in the payload of a content header: behind class, weight and body size.
const PROPERTY_FLAGS_AT: usize = 12;
/// The flag of the headers, bit 13 (AMQP 0-9-1, 4.2.6.1), in the first byte of the flags.
const HAS_HEADERS: u8 = 0x20;
/// The argument with which a consumer says where in a stream to begin, and the header of a delivery with its offset.
const OFFSET: &str = "x-stream-offset";

#[cfg(test)]
mod tests {
    use super::*;

    /// RabbitMQ's text, truncated as by `rabbit_binary_generator`.
    fn refusal(queue: &str, virtual_host: &str) -> String {
        let text = format!(
            "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{queue}' in vhost '{virtual_host}' of queue type rabbit_classic_queue"
        );
        if text.len() > 255 { format!("{}...", &text[..252]) } else { text }
    }

    #[test]
    fn the_queue_of_a_refusal_is_found_even_if_the_text_is_cut() {
        assert!(refuses_offset(&refusal("q", "/"), "q"));
        assert!(!refuses_offset(&refusal("queue", "/"), "q"));
        assert!(!refuses_offset(&refusal("q", "/"), "queue"));
        assert!(!refuses_offset("PRECONDITION_FAILED - unknown delivery tag 1", "q"));
        // Truncated in the queue's name, after it, and in the vhost's name.
        for length in 150..=255 {
            let queue = "q".repeat(length);
            let text = refusal(&queue, &"v".repeat(80));
            assert!(text.ends_with("..."), "{text}");
            assert!(refuses_offset(&text, &queue), "{length} bytes");
            assert!(!refuses_offset(&text, "q"), "{length} bytes");
            assert!(!refuses_offset(&text, &format!("p{queue}")), "{length} bytes");
        }
    }
}
