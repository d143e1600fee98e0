//! Publishing and getting messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::ReplyCode;
use amqp::content::max_properties_len;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::{
    AuthorisedSession, Body, Compatibility, Delivery, Fetched, Got, Publish, Publisher, Queue, Returned,
    TracedConnection, Waiter,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::SESSION;
use super::call::{ApiAnswer, Call, Reply, number, object, require, short, text};
use super::durable::Parked;
use super::error::ApiError;
use super::exchanges;
use super::properties;

/// `POST /api/exchanges/{vhost}/{name}/publish`: responds at the point where a publisher would receive its
/// confirm.
pub(super) fn publish(call: &Call) -> ApiAnswer {
    let authorised = call.authorised()?;
    let exchange = exchanges::name(call.at("name"));
    if call.compatibility() == Compatibility::V4
        && !exchange.is_empty()
        && authorised.vhost().exchange_view(exchange).is_none()
    {
        return Err(ApiError::missing("exchange_not_found"));
    }
    let mut body = call.parts(OF_A_MESSAGE)?;
    require(&body, OF_A_MESSAGE)?;
    let payload = payload(&mut body)?;
    if payload.len() as u64 > call.api.process.max_message_size() {
        return Err(ApiError::too_large());
    }
    let properties = properties::read(object(&mut body, "properties")?)?;
    let most = max_properties_len(call.api.process.frame_max());
    if properties.len() > most {
        let length = properties.len();
        let reason =
            format!("the properties have {length} bytes, but {most} are the most that a frame takes");
        return Err(ApiError::bad_request(reason));
    }
    // An AMQP client would wait, but a waiting request would block others.
    if call.api.process.blocks_publishers() || !authorised.vhost().has_capacity() {
        return Err(ApiError::not_yet(
            "publishers are blocked: out of memory, out of disk space, or the disk is too slow",
        ));
    }
    let mut publisher = publisher(&authorised);
    let publish = Publish {
        exchange,
        routing_key: short("routing_key", text(&body, "routing_key", "")?)?,
        properties: &properties,
        body: Body::Chunks(&[payload]),
    };
    let routed = publisher.publish(publish, call.now()).map_err(|error| ApiError::of_publish(&error))?;
    if !routed {
        authorised.vhost().count_dropped();
    }
    let flushed = publisher.flush(call.now());
    if !flushed.refused.is_empty() {
        return Err(ApiError::bad_request("rejected"));
    }
    Ok(Reply::json(json!({"routed": routed})).when_stored(flushed.until))
}

/// Creates the publisher of a request.
pub(super) fn publisher(authorised: &AuthorisedSession) -> Publisher {
    let mut publisher = authorised.publisher();
    publisher.set_connection(Arc::new(Request), 1);
    publisher
}

/// Takes the payload out of the body instead of copying it, since it may be large.
fn payload(body: &mut Map<String, Value>) -> Result<Bytes, ApiError> {
    let payload = match body.remove("payload") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(payload)) => payload,
        Some(_) => return Err(ApiError::bad_request("payload is not a string")),
    };
    match text(body, "payload_encoding", "")? {
        "string" => Ok(Bytes::from(payload)),
        "base64" => match STANDARD.decode(&payload) {
            Ok(decoded) => Ok(Bytes::from(decoded)),
            Err(_) => Err(ApiError::bad_request(json!(["not_base64", payload]))),
        },
        other => Err(ApiError::bad_request(json!(["unsupported_encoding", other]))),
    }
}

/// `POST /api/queues/{vhost}/{name}/get`.
pub(super) fn get(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["ackmode", "count", "encoding"])?;
    let wanted = WantedMessages::of(&body)?;
    let authorised = call.authorised()?;
    let name = call.at("name");
    authorised.check_read_queue(name).map_err(|error| ApiError::of_operation(&error))?;
    let queue = open(call, &authorised, name)?;
    let taken = take(call, &queue, &wanted);
    trace(call, &authorised, &queue, taken.iter().map(|(delivery, _)| delivery));
    // The messages are settled or requeued below, so nothing in between may fail.
    let shown =
        taken.iter().map(|(delivery, left)| show(delivery, &queue, *left, &wanted)).collect::<Vec<_>>();
    let taken = taken.into_iter().map(|(delivery, _)| delivery).collect();
    match wanted.after {
        After::Ack => {}
        After::Requeue => queue.requeue(taken, Returned::Failed, call.now()),
        After::Reject => queue.reject(taken, Returned::Failed, call.now()),
    }
    Ok(Reply::json(shown))
}

fn open(call: &Call, authorised: &AuthorisedSession, name: &str) -> Result<Arc<Queue>, ApiError> {
    authorised.vhost().queue(SESSION, name).map_err(|error| {
        match (call.compatibility(), error.reply_code()) {
            (Compatibility::V4, ReplyCode::NotFound) => ApiError::missing("queue_not_found"),
            _ => ApiError::of_operation(&error),
        }
    })
}

/// The options of a request to get messages.
struct WantedMessages {
    count: usize,
    after: After,
    is_base64: bool,
    /// Maximum bytes of a payload that are shown.
    truncate: usize,
}

/// How fetched messages are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Ack,
    Requeue,
    Reject,
}

impl WantedMessages {
    fn of(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let count = body.get("count").and_then(number).and_then(|count| usize::try_from(count).ok());
        let count = count.ok_or_else(|| ApiError::bad_request("count is not a number of messages"))?;
        let after = match text(body, "ackmode", "")? {
            "ack_requeue_false" => After::Ack,
            "ack_requeue_true" | "reject_requeue_true" => After::Requeue,
            "reject_requeue_false" => After::Reject,
            other => return Err(ApiError::bad_request(json!(["unsupported_ackmode", other]))),
        };
        let is_base64 = match text(body, "encoding", "")? {
            "auto" => false,
            "base64" => true,
            other => return Err(ApiError::bad_request(json!(["unsupported_encoding", other]))),
        };
        let truncate = match body.get("truncate") {
            None | Some(Value::Null) => usize::MAX,
            Some(most) => number(most)
                .and_then(|most| usize::try_from(most).ok())
                .ok_or_else(|| ApiError::bad_request("truncate is not a number of bytes"))?,
        };
        Ok(Self { count: count.min(MAX_MESSAGES), after, is_base64, truncate })
    }
}

/// Takes one message and acknowledges it.
pub(super) fn take_one(call: &Call, authorised: &AuthorisedSession, queue: &Queue) -> Option<Got> {
    let got = fetch(call, queue, true, Instant::now() + LOAD_TIMEOUT);
    trace(call, authorised, queue, got.iter().map(|got| &got.delivery));
    got
}

/// Reports the fetched messages to the firehose, if the virtual host is traced.
fn trace<'d>(
    call: &Call,
    authorised: &AuthorisedSession,
    queue: &Queue,
    got: impl Iterator<Item = &'d Delivery>,
) {
    if authorised.vhost().is_traced() {
        let mut tracer = authorised.vhost().tracer(authorised.identity(), Some(&Request));
        got.for_each(|delivery| tracer.delivered(1, queue, delivery, true, call.now()));
        tracer.flush_all(call.now());
    }
}

/// Stands in for a client's connection. RabbitMQ opens an internal one for each request, which has no address
/// either.
struct Request;

impl TracedConnection for Request {
    fn name(&self) -> String {
        "HTTP API".to_owned()
    }
}

/// Takes messages, each with the number of messages then left in the queue.
fn take(call: &Call, queue: &Queue, wanted: &WantedMessages) -> Vec<(Delivery, u64)> {
    let deadline = Instant::now() + LOAD_TIMEOUT;
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < wanted.count
        && bytes < MAX_BYTES
        && let Some(got) = fetch(call, queue, wanted.after == After::Ack, deadline)
    {
        bytes += got.delivery.message().body_len();
        taken.push((got.delivery, got.remaining));
    }
    taken
}

/// Fetches the next message, waiting for it if it has to be read from disk.
fn fetch(call: &Call, queue: &Queue, no_ack: bool, deadline: Instant) -> Option<Got> {
    let parked = Arc::new(Parked::default());
    loop {
        let waiter = Arc::clone(&parked) as Arc<dyn Waiter>;
        match queue.fetch(no_ack, call.now(), &waiter) {
            Fetched::Got(got) => return Some(got),
            Fetched::Later if parked.wait(deadline) => {}
            Fetched::Later | Fetched::Empty => return None,
        }
    }
}

fn show(delivery: &Delivery, queue: &Queue, left: u64, wanted: &WantedMessages) -> Value {
    let message = delivery.message();
    let mut body = message.body().to_vec();
    let length = body.len();
    body.truncate(wanted.truncate);
    let (payload, encoding) = payload_of(body, wanted.is_base64, wanted.truncate < length);
    json!({
        "payload_bytes": length, "redelivered": delivery.redelivered(), "exchange": message.exchange(),
        "routing_key": message.routing_key(), "message_count": left,
        "properties": properties::show(&delivery.properties(queue, true)),
        "payload": payload, "payload_encoding": encoding,
    })
}

/// A payload as the text that it is, or else in base64, and the name of its encoding. A text that was truncated within a
/// character ends before it; RabbitMQ sends all of such a text in base64.
fn payload_of(mut body: Vec<u8>, is_base64: bool, is_truncated: bool) -> (String, &'static str) {
    if is_base64 {
        return (STANDARD.encode(body), "base64");
    }
    if is_truncated
        && let Err(error) = std::str::from_utf8(&body)
        && error.error_len().is_none()
    {
        body.truncate(error.valid_up_to());
    }
    match String::from_utf8(body) {
        Ok(text) => (text, "string"),
        Err(error) => (STANDARD.encode(error.as_bytes()), "base64"),
    }
}

/// The required members of a message to publish.
const OF_A_MESSAGE: &[&str] = &["properties", "routing_key", "payload", "payload_encoding"];

/// Maximum number of messages per request: more than a person reads, and a script can ask again.
const MAX_MESSAGES: usize = 10_000;

/// Total bytes of bodies at which a request gets no more messages.
const MAX_BYTES: usize = 32 << 20;

/// Time for messages to be read from disk.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_truncated_within_a_character_remains_a_text() {
        let cut = |bytes: &[u8]| payload_of(bytes.to_vec(), false, true);
        assert_eq!(cut("a🐇".as_bytes()), ("a🐇".to_owned(), "string"));
        for length in 1..5 {
            assert_eq!(cut(&"a🐇".as_bytes()[..length]), ("a".to_owned(), "string"), "{length}");
        }
        // Neither what is binary before the cut, nor what was not cut, is a text.
        assert_eq!(cut(b"\xff\xf0"), (STANDARD.encode(b"\xff\xf0"), "base64"));
        assert_eq!(payload_of(b"a\xf0".to_vec(), false, false), (STANDARD.encode(b"a\xf0"), "base64"));
        assert_eq!(payload_of(b"a\xf0".to_vec(), true, true), (STANDARD.encode(b"a\xf0"), "base64"));
    }
}
