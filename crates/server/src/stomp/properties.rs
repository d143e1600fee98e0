//! Maps STOMP headers to properties of AMQP messages, and back, as RabbitMQ's adapter does.
//!
//! | STOMP | AMQP |
//! |---|---|
//! | `content-type`, `content-encoding`, `correlation-id`, `expiration`, `priority`, `reply-to`, `timestamp`, `type`, `user-id`, `app-id` | the property of that name |
//! | `amqp-message-id` | message_id, since STOMP's own `message-id` identifies a delivery |
//! | `persistent` | delivery_mode 2 |
//! | any other | the header of that name, as text |
//!
//! Headers of the frame itself are not mapped: `content-length`, `destination`, `receipt`, `transaction`. Clients receive
//! headers that are text, numbers or booleans; tables, arrays and bytes have no form in STOMP. RabbitMQ's `reply-to` for
//! queues, `/reply-queue/…`, is a destination for replies.

use std::borrow::Cow;

use amqp::properties::{PERSISTENT, ShortBytes};
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use stomp::destination::{PREFIXES, REPLY_QUEUE_PREFIX};
use stomp::{FrameWriter, Headers, StompFault};

/// The maximum length of an AMQP short string, in bytes.
pub(super) const MAX_SHORT: usize = 255;

/// Encodes the AMQP properties (flags and list) of a SEND. `reply_to`, if given, replaces the header.
///
/// # Errors
/// Fails for a header that AMQP cannot hold.
pub(super) fn to_amqp(headers: &Headers<'_>, reply_to: Option<&str>) -> Result<Vec<u8>, StompFault> {
    let mut table = FieldTable::new();
    for (name, value) in headers.iter().filter(|(name, _)| !OF_THE_FRAME.contains(name) && !is_property(name))
    {
        check_short("the name of a header", name)?;
        table.insert(name, FieldValue::text(value));
    }
    let encoded = table.encode();
    let short = |name: &'static str| {
        let value = headers.get(name);
        value.map(|value| check_short(name, value)).transpose().map(|_| value)
    };
    if let Some(reply_to) = reply_to {
        check_short("reply-to", reply_to)?;
    }
    let properties = Properties {
        content_type: short("content-type")?,
        content_encoding: short("content-encoding")?,
        headers: if table.is_empty() { None } else { RawTable::check(&encoded).ok() },
        delivery_mode: headers.flag("persistent")?.unwrap_or_default().then_some(PERSISTENT),
        priority: headers.number("priority")?,
        correlation_id: short("correlation-id")?.map(ShortBytes::from),
        reply_to: if reply_to.is_some() { reply_to } else { short("reply-to")? },
        expiration: short("expiration")?,
        message_id: short("amqp-message-id")?.map(ShortBytes::from),
        timestamp: headers.number("timestamp")?,
        kind: short("type")?,
        user_id: short("user-id")?,
        app_id: short("app-id")?,
        cluster_id: None,
    };
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    Ok(bytes)
}

/// Refuses properties with more bytes than AMQP consumers can be sent
/// ([`ServerConfig::most_properties`](crate::ServerConfig)).
pub(super) fn check_length(properties: &[u8], most: usize) -> Result<(), StompFault> {
    if properties.len() <= most {
        return Ok(());
    }
    Err(StompFault::header(format!("the headers may have {most} bytes at most\n")))
}

/// Refuses text that is too long for an AMQP short string.
pub(super) fn check_short(what: &str, text: &str) -> Result<(), StompFault> {
    if text.len() <= MAX_SHORT {
        return Ok(());
    }
    Err(StompFault::header(format!("{what} may have {MAX_SHORT} bytes at most\n")))
}

/// Adds the headers of a MESSAGE that come from the message itself.
pub(super) fn write_headers(frame: &mut FrameWriter<'_>, properties: &Properties<'_>) {
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            frame.header(name, value);
        }
    };
    add("content-type", properties.content_type);
    add("content-encoding", properties.content_encoding);
    add("persistent", (properties.delivery_mode == Some(PERSISTENT)).then_some("true"));
    let text = |bytes: Option<ShortBytes<'_>>| bytes.map(|id| String::from_utf8_lossy(id.0).into_owned());
    add("correlation-id", text(properties.correlation_id).as_deref());
    add("reply-to", properties.reply_to.map(destination_of_reply).as_deref());
    add("expiration", properties.expiration);
    add("amqp-message-id", text(properties.message_id).as_deref());
    add("type", properties.kind);
    add("user-id", properties.user_id);
    add("app-id", properties.app_id);
    if let Some(priority) = properties.priority {
        frame.display("priority", priority);
    }
    if let Some(timestamp) = properties.timestamp {
        frame.display("timestamp", timestamp);
    }
    let Some(headers) = properties.headers.filter(|headers| !headers.is_empty()) else { return };
    for (name, value) in headers.decode().iter() {
        // The first of repeated headers counts, so a publisher must not set a header of the broker's.
        if !name.is_empty() && !OF_A_DELIVERY.contains(&name) && !is_property(name) {
            write_value(frame, name, value);
        }
    }
}

fn write_value(frame: &mut FrameWriter<'_>, name: &str, value: &FieldValue) {
    match value {
        FieldValue::LongString(bytes) => _ = frame.header(name, &String::from_utf8_lossy(bytes)),
        FieldValue::Boolean(flag) => _ = frame.display(name, flag),
        FieldValue::F32(number) => _ = frame.display(name, number),
        FieldValue::F64(number) => _ = frame.display(name, number),
        FieldValue::Timestamp(seconds) => _ = frame.display(name, seconds),
        other => {
            if let Some(number) = other.as_integer() {
                frame.display(name, number);
            }
        }
    }
}

/// The destination of a reply: a plain name means a queue.
fn destination_of_reply(reply_to: &str) -> Cow<'_, str> {
    if PREFIXES.iter().any(|prefix| reply_to.starts_with(prefix)) {
        reply_to.into()
    } else {
        format!("{REPLY_QUEUE_PREFIX}{reply_to}").into()
    }
}

fn is_property(name: &str) -> bool {
    matches!(
        name,
        "content-type"
            | "content-encoding"
            | "persistent"
            | "priority"
            | "correlation-id"
            | "reply-to"
            | "expiration"
            | "amqp-message-id"
            | "timestamp"
            | "type"
            | "user-id"
            | "app-id"
    )
}

const OF_THE_FRAME: [&str; 4] = ["content-length", "destination", "receipt", "transaction"];

const OF_A_DELIVERY: [&str; 6] =
    ["subscription", "destination", "message-id", "redelivered", "ack", "content-length"];

#[cfg(test)]
mod tests {
    use stomp::{StompDecoder, StompVersion};

    use super::*;

    /// Parses a client's frame with these header lines.
    fn with_headers<R>(lines: &str, work: impl FnOnce(&Headers<'_>) -> R) -> R {
        let wire = format!("SEND\n{lines}\n\0");
        let mut decoder = StompDecoder::of_clients(100);
        decoder.set_version(StompVersion::V12);
        work(&decoder.decode(wire.as_bytes()).unwrap().frame.unwrap().headers)
    }

    fn reported(properties: &Properties<'_>) -> String {
        let mut out = Vec::new();
        let mut frame = FrameWriter::new(&mut out, StompVersion::V12, "MESSAGE");
        write_headers(&mut frame, properties);
        frame.end_head(0);
        String::from_utf8(out).unwrap()
    }

    const ALL: &str = "content-type:text/plain\ncontent-encoding:gzip\npersistent:true\ncorrelation-id:c\nreply-to:/queue/r\n\
                       expiration:1000\namqp-message-id:m\ntype:t\nuser-id:guest\napp-id:a\npriority:5\n\
                       timestamp:1700000000\ncustom\\cname:a\\nb\n";

    #[test]
    fn every_header_comes_back() {
        let extra = format!("destination:/queue/q\nreceipt:1\ntransaction:t\ncontent-length:0\n{ALL}");
        let bytes = with_headers(&extra, |headers| to_amqp(headers, None)).unwrap();
        let properties = Properties::decode(&bytes).unwrap();
        assert_eq!((properties.priority, properties.timestamp), (Some(5), Some(1_700_000_000)));
        assert_eq!((properties.delivery_mode, properties.kind), (Some(2), Some("t")));
        assert_eq!(properties.headers.unwrap().decode().len(), 1);
        assert_eq!(reported(&properties), format!("MESSAGE\n{ALL}\n"));
    }

    #[test]
    fn headers_that_amqp_cannot_hold_are_refused() {
        let long = "x".repeat(256);
        for lines in [
            "priority:256\n",
            "priority:high\n",
            "timestamp:now\n",
            "persistent:yes\n",
            &format!("type:{long}\n"),
            &format!("{long}:1\n"),
        ] {
            let fault = with_headers(lines, |headers| to_amqp(headers, None)).unwrap_err();
            assert_eq!(fault.message, "Invalid header", "{lines}");
        }
    }

    #[test]
    fn amqp_headers_cannot_forge_the_brokers_and_scalar_values_are_sent() {
        let table: FieldTable = [
            ("message-id", FieldValue::text("forged")),
            ("ack", FieldValue::text("forged")),
            ("priority", FieldValue::text("forged")),
            ("n", FieldValue::I32(-5)),
            ("flag", FieldValue::Boolean(true)),
            ("array", FieldValue::Array(vec![])),
            ("evil\nname", FieldValue::text("x\nsubscription:1")),
        ]
        .into_iter()
        .collect();
        let encoded = table.encode();
        let properties = Properties::default()
            .with_headers(RawTable::check(&encoded).unwrap())
            .with_correlation_id(ShortBytes(&[0xff]))
            .with_reply_to("amq.gen-x");
        assert_eq!(
            reported(&properties),
            "MESSAGE\ncorrelation-id:\u{fffd}\nreply-to:/reply-queue/amq.gen-x\nn:-5\nflag:true\n\
             evil\\nname:x\\nsubscription\\c1\n\n"
        );
    }
}
