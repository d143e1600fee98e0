//! Checks of destinations and subscriptions for every backend.

use amqp::FieldValue;
use amqp::error::ReplyCode;
use stomp::destination::Destination;
use stomp::server::MessageForm;
use stomp::{Headers, StompFault};

use super::properties::check_short;
use super::session::of_fault;

/// The maximum of reply queues of a connection, whose names the client chooses.
const MAX_REPLIES: usize = 1024;

/// Parses a destination, and checks that its names fit AMQP.
pub(super) fn parse(destination: &str) -> Result<Destination<'_>, StompFault> {
    let parsed = Destination::parse(destination)?;
    let (exchange, routing_key) = parsed.route();
    check_short("each name in a destination", exchange)?;
    check_short("each name in a destination", routing_key)?;
    Ok(parsed)
}

/// Checks that the tag of a subscription fits AMQP.
pub(super) fn check_tag(form: &MessageForm) -> Result<(), StompFault> {
    check_short("the id of a subscription, or a destination that stands for it,", form.tag())
}

/// The fault for a valid destination that the command does not support.
pub(super) fn not_for(destination: &str, command: &str) -> StompFault {
    StompFault::new(
        "Invalid destination",
        format!("'{destination}' is not a valid destination for '{command}'\n"),
    )
}

/// Refuses a new reply queue to a connection that has [`MAX_REPLIES`].
pub(super) fn check_replies(count: usize) -> Result<(), StompFault> {
    if count < MAX_REPLIES {
        return Ok(());
    }
    let detail = format!("A connection may have {MAX_REPLIES} temporary queues at most.\n");
    Err(StompFault::new("Too many temporary queues", detail))
}

/// Refuses a SUBSCRIBE header that has no effect here, but would change which messages are delivered.
pub(super) fn refuse_header(headers: &Headers<'_>, name: &str, why: &str) -> Result<(), StompFault> {
    if headers.get(name).is_none() {
        return Ok(());
    }
    Err(of_fault(amqp::Fault::new(ReplyCode::NotImplemented, format!("{name}: {why}"))))
}

/// The consumer argument for the header `x-priority`.
pub(super) fn consumer_priority(
    headers: &Headers<'_>,
) -> Result<Option<(&'static str, FieldValue)>, StompFault> {
    let priority: Option<i32> = headers.number("x-priority")?;
    Ok(priority.map(|priority| ("x-priority", FieldValue::I32(priority))))
}

/// Refuses a selector, which RabbitMQ would ignore.
pub(super) fn refuse_selector(headers: &Headers<'_>) -> Result<(), StompFault> {
    let why = "messages cannot be selected by their headers: bind to an exchange of type headers";
    refuse_header(headers, "selector", why)
}
