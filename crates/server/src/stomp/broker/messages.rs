//! Encodes MESSAGE frames.

use std::sync::Arc;

use amqp::Properties;
use broker::{BodyView, Delivery, Queue};
use stomp::END_OF_FRAME;
use stomp::destination::PublishedTo;
use stomp::server::MessageForm;
use transport::OutBuf;

use crate::amqp::content::Destination;
use crate::amqp::deliveries::Form;
use crate::registry::OpenConnection;
use crate::stomp::properties::write_headers;

/// Encodes the messages of one subscription, and counts them.
pub(super) struct Messages {
    pub(super) form: MessageForm,
    /// The connection's entry in the registry; `None` until it is open.
    pub(super) view: Option<Arc<OpenConnection>>,
}

impl Form for Messages {
    fn write(
        &self,
        buf: &mut OutBuf,
        _: Destination,
        _: &str,
        delivery_tag: u64,
        delivery: &Delivery,
        from: &Queue,
    ) {
        let message = delivery.message();
        let published = PublishedTo { exchange: message.exchange(), routing_key: message.routing_key() };
        let mut frame = self.form.begin(buf.tail(), published, delivery_tag, delivery.redelivered());
        let properties = delivery.properties(from, false);
        // The broker only stores properties that it has validated.
        write_headers(&mut frame, &Properties::decode(&properties).unwrap_or_default());
        frame.end_head(message.body_len());
        match message.body() {
            BodyView::Inline(bytes) => buf.tail().extend_from_slice(bytes),
            BodyView::Chunks(chunks) => chunks.iter().for_each(|chunk| buf.push(chunk.clone())),
        }
        buf.tail().extend_from_slice(END_OF_FRAME);
        let session = self.view.as_ref().and_then(|view| view.session());
        session.inspect(|session| session.count_delivered());
    }
}
