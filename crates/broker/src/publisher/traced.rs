//! Reports publishes to the firehose: see [`crate::firehose`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Publish, Publisher, Route};
use crate::firehose::{EventKind, TracedConnection, TracedEvent, Tracer};
use crate::inspect::{Inspected, without_annotation};
use crate::replies::is_reply_name;
use crate::users::Identity;
use crate::vhost::VirtualHost;

impl Publisher {
    /// The publisher of a [`Tracer`].
    pub(crate) fn of_traces(vhost: &Arc<VirtualHost>, identity: &Identity) -> Self {
        let mut publisher = vhost.publisher(identity);
        (publisher.is_reported, publisher.is_tracer) = (true, true);
        publisher
    }

    /// Sets the connection and the channel to which the firehose attributes these publishes; `channel` is 1
    /// if the protocol has no channels.
    pub fn set_connection(&mut self, connection: Arc<dyn TracedConnection>, channel: u16) {
        self.connection = Some((connection, channel));
    }

    /// Reports a message that takes this route to the firehose.
    #[cold]
    pub(super) fn trace(&mut self, route: &Route, publish: &Publish<'_>, inspected: &Inspected<'_>) {
        let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
        keys.push(publish.routing_key);
        keys.extend(inspected.copies.iter().chain(&inspected.blind_copies).copied());
        // For the default exchange RabbitMQ reports the routing keys as queues without looking them up.
        let mut queues: Vec<&str> = match &*route.exchange {
            "" => keys.to_vec(),
            _ => route.queues.iter().map(|queue| &**queue.name()).collect(),
        };
        queues.retain(|name| !is_reply_name(name));
        queues.sort_unstable();
        queues.dedup();
        let channel = self.connection.as_ref().map_or(1, |(_, channel)| *channel);
        let tracer = self.tracer.get_or_insert_with(|| {
            let connection = self.connection.as_ref().map(|(connection, _)| &**connection);
            Box::new(Tracer::new(&self.vhost, &self.identity, connection))
        });
        let properties = inspected.rewritten.as_deref().unwrap_or(publish.properties);
        let visible = self.annotates.then(|| without_annotation(properties));
        let event = TracedEvent {
            channel,
            exchange: &route.exchange,
            routing_keys: &keys,
            properties: visible.as_deref().unwrap_or(properties),
            body: publish.body,
            kind: EventKind::Publish { routed_queues: &queues },
        };
        tracer.publish(&event, self.now);
    }
}
