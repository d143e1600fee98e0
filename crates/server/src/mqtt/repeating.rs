//! Requests that are repeated after the user's auth backend has been asked about them, and requests that take more than a
//! turn.

use std::collections::VecDeque;

use amqp::RawTable;
use amqp::properties::NO_PROPERTIES;
use broker::{AuthorisedSession, Binding, Body, BrokerError, Publish, Ticket};
use bytes::Bytes;
use mqtt::packet::{Payload, PublishPacket};
use mqtt::server::ServerConnection as Engine;
use mqtt::session::{Session, Subscription};
use mqtt::topic::filter_to_binding_key;
use mqtt::{PacketProperties, PropertyList, QoS, ReasonCode};
use sync::work;

use super::client::MqttClient;
use super::hub::{NOBODY, group_queue, queue_name};
use super::merging::merged_group_queue;
use super::retained::RetainedSearch;
use super::session::{CloseReason, MqttSession as _, Request};
use super::subscriptions::Class;

/// A request that waits for an auth backend's answer or for the next turn.
pub(super) enum WaitingRequest {
    Publish(Box<WaitingPacket>),
    Subscribe(WaitingSubscribe),
    Unsubscribe(WaitingUnsubscribe),
    /// The subscriptions of the client's session that have not been restored yet.
    Resume(VecDeque<(Box<str>, Subscription)>),
}

/// A PUBLISH with its own copy of the data, since the input buffer is reused.
pub(super) struct WaitingPacket {
    dup: bool,
    qos: QoS,
    retain: bool,
    topic: Box<str>,
    packet_id: u16,
    properties: PropertyList,
    payload: Bytes,
}

/// A SUBSCRIBE of which some filters may have been processed.
pub(super) struct WaitingSubscribe {
    pub(super) packet_id: u16,
    /// The requests that have not been processed yet.
    pub(super) requests: VecDeque<Request>,
    /// The last processed filter, while its retained messages are being searched.
    pub(super) search: Option<(Request, RetainedSearch)>,
    /// The reason codes of the processed filters.
    pub(super) reasons: Vec<ReasonCode>,
    /// The last change that the answer waits for.
    pub(super) ticket: Option<Ticket>,
}

/// An UNSUBSCRIBE of which some filters may have been processed.
pub(super) struct WaitingUnsubscribe {
    pub(super) packet_id: u16,
    /// The filters that have not been processed yet.
    pub(super) filters: VecDeque<Box<str>>,
    /// The reason codes of the processed filters.
    pub(super) reasons: Vec<ReasonCode>,
    /// The last change that the answer waits for.
    pub(super) ticket: Option<Ticket>,
}

impl WaitingRequest {
    pub(super) fn publish(publish: &PublishPacket<'_>) -> Self {
        Self::Publish(Box::new(WaitingPacket {
            dup: publish.dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: publish.topic.into(),
            packet_id: publish.packet_id,
            properties: publish.properties.iter().fold(PropertyList::new(), PropertyList::with),
            payload: publish.payload.to_bytes(),
        }))
    }
}

impl WaitingPacket {
    fn packet(&self) -> PublishPacket<'_> {
        let properties = self.properties.as_properties();
        PublishPacket {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: self.packet_id,
            properties: if properties.is_empty() { PacketProperties::NONE } else { properties },
            payload: Payload::new(&self.payload),
        }
    }
}

impl MqttClient {
    /// Repeats the waiting PUBLISH once its question is answered. Returns a reason if the connection must close.
    pub(super) fn repeat_publish(&mut self) -> Option<CloseReason> {
        if !self.question.take_answered() {
            return None;
        }
        match self.repeated.take()? {
            WaitingRequest::Publish(waiting) => {
                let refusal = self.publish(&waiting.packet()).err()?;
                if waiting.packet_id == 0 {
                    return Some(CloseReason::new(refusal.reason, refusal.text));
                }
                self.refuse(waiting.packet_id, refusal);
            }
            // The others need the connection's engine: [`MqttClient::continue_request`] continues them.
            other => self.repeated = Some(other),
        }
        None
    }

    /// Continues with the waiting request, unless its question is open or the turn is over.
    pub(super) fn continue_request(&mut self, engine: &mut Engine) {
        if self.question.is_open() || work::is_turn_over() {
            return;
        }
        match self.repeated.take() {
            Some(WaitingRequest::Subscribe(subscribing)) => self.subscribe_rest(engine, subscribing),
            Some(WaitingRequest::Unsubscribe(unsubscribing)) => self.unsubscribe_rest(engine, unsubscribing),
            Some(WaitingRequest::Resume(subscriptions)) => {
                let resumed = self.resume_rest(engine, subscriptions);
                if !self.is_resuming() {
                    self.authorised.identity().end_operation();
                }
                if let Err(refusal) = resumed {
                    self.not_resumed = Some(refusal);
                    self.outbox.nudge();
                }
            }
            // [`MqttClient::repeat_publish`] handles it.
            publish @ Some(WaitingRequest::Publish(_)) => self.repeated = publish,
            None => {}
        }
    }

    /// Defers the rest of a request to the next turn.
    pub(super) fn leave_for_turn(&mut self, rest: WaitingRequest) {
        self.repeated = Some(rest);
        self.publish_gate.pause_for_turn();
    }

    /// Whether the resumed session's subscriptions are not all restored yet, so that its messages have to wait.
    pub(super) fn is_resuming(&self) -> bool {
        self.not_resumed.is_some() || matches!(self.repeated, Some(WaitingRequest::Resume(_)))
    }

    /// Whether a SUBSCRIBE is in progress: its SUBACK precedes its retained messages.
    pub(super) fn is_subscribing(&self) -> bool {
        matches!(self.repeated, Some(WaitingRequest::Subscribe(_)))
    }
}

/// A client that connects, perhaps with a session to resume.
pub(super) struct Returning<'a> {
    pub(super) client_id: &'a str,
    /// The `mqtt_exchange`.
    pub(super) exchange: &'a str,
    /// The earlier session, if the client wants to resume it.
    pub(super) session: Option<&'a Session>,
    /// Whether the client has queues without a session, which it resumes or deletes.
    pub(super) is_found: bool,
    /// The routing key of the client's will.
    pub(super) will_key: Option<&'a str>,
}

impl Returning<'_> {
    /// Asks the user's auth backend about all that [`MqttClient::resume`] needs, since that cannot be repeated: the
    /// subscriptions, the queues that exist, with or without a session, and the will, which is published as soon as the
    /// client disconnects. All questions are asked at once, except that a topic's follows its exchange's.
    ///
    /// # Errors
    /// [`BrokerError::Unasked`] if an answer is outstanding. Refusals are reported by [`MqttClient::resume`].
    pub(super) fn ask(&self, authorised: &AuthorisedSession) -> Result<(), BrokerError> {
        let mut is_unasked = false;
        let mut note = |checked: Result<(), BrokerError>| is_unasked |= checked == Err(BrokerError::Unasked);
        let own_queue = |class: Class| queue_name(self.client_id, class.queue());
        let is_there = |name: &str| authorised.vhost().queue(NOBODY, name).is_ok();
        for (filter, subscription) in self.session.iter().flat_map(|session| session.subscriptions()) {
            let Some(filter) = subscription.filter(filter) else { continue };
            let name = group_queue(filter).unwrap_or_else(|| own_queue(Class::of(subscription.options.qos)));
            let routing_key = filter_to_binding_key(filter.filter());
            let binding = Binding {
                source: self.exchange,
                destination: &name,
                routing_key: &routing_key,
                arguments: RawTable::default(),
            };
            note(authorised.authorise_subscriptions(&binding));
            if let Some(before) = merged_group_queue(filter).filter(|name| is_there(name)) {
                note(authorised.check_read_queue(&before));
            }
        }
        for name in Class::ALL.map(own_queue) {
            if is_there(&name) {
                note(authorised.check_read_queue(&name));
                if self.is_found {
                    note(authorised.check_delete_queue(&name));
                }
            }
        }
        if let Some(routing_key) = self.will_key {
            let (properties, body) = (NO_PROPERTIES, Body::Copied(b""));
            let will = Publish { exchange: self.exchange, routing_key, properties, body };
            note(authorised.publisher().check(will));
        }
        if is_unasked { Err(BrokerError::Unasked) } else { Ok(()) }
    }
}
