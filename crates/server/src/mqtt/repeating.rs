//! Requests that are repeated once the authority of the client's user has been asked about them.

use std::collections::VecDeque;

use amqp::RawTable;
use broker::{AuthorisedSession, Binding, BrokerError, Ticket};
use bytes::Bytes;
use mqtt::packet::{Payload, PublishPacket};
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Session;
use mqtt::topic::{TopicFilter, filter_to_binding_key};
use mqtt::{PacketProperties, PropertyList, QoS, ReasonCode};

use super::client::MqttClient;
use super::hub::{group_queue, queue_name};
use super::session::{Dismissal, MqttSession as _, Request};
use super::subscriptions::Class;

/// A request that waits for the answer.
pub(super) enum WaitingRequest {
    Publish(Box<WaitingPacket>),
    Subscribe(WaitingSubscribe),
}

/// A PUBLISH that outlives the client's bytes.
pub(super) struct WaitingPacket {
    dup: bool,
    qos: QoS,
    retain: bool,
    topic: Box<str>,
    packet_id: u16,
    properties: PropertyList,
    payload: Bytes,
}

/// A SUBSCRIBE of which some requests may have been carried out.
pub(super) struct WaitingSubscribe {
    pub(super) packet_id: u16,
    /// Those that have not.
    pub(super) requests: VecDeque<Request>,
    /// The answers to those that have.
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
    /// Repeats the PUBLISH that waits, once it has been asked about. Returns why the connection has to end, if it has.
    pub(super) fn repeat_publish(&mut self) -> Option<Dismissal> {
        if !self.question.take_answered() {
            return None;
        }
        match self.repeated.take()? {
            WaitingRequest::Publish(waiting) => {
                let refusal = self.publish(&waiting.packet()).err()?;
                if waiting.packet_id == 0 {
                    return Some(Dismissal::new(refusal.reason, refusal.text));
                }
                self.refuse(waiting.packet_id, refusal);
            }
            // Needs the connection's engine.
            subscribe @ WaitingRequest::Subscribe(_) => self.repeated = Some(subscribe),
        }
        None
    }

    /// Repeats the SUBSCRIBE that waits, once it has been asked about.
    pub(super) fn repeat_subscribe(&mut self, engine: &mut Engine) {
        if self.question.is_open() || !matches!(self.repeated, Some(WaitingRequest::Subscribe(_))) {
            return;
        }
        if let Some(WaitingRequest::Subscribe(subscribing)) = self.repeated.take() {
            self.subscribe_rest(engine, subscribing);
        }
    }
}

/// Has the user's authority asked about all that the client's return to a session needs: that is not repeated.
///
/// # Errors
/// [`BrokerError::Unasked`]. A refusal is left to the return itself.
pub(super) fn ask_about_session(
    authorised: &AuthorisedSession,
    session: &Session,
    exchange: &str,
    client_id: &str,
) -> Result<(), BrokerError> {
    let own_queue = |class| queue_name(client_id, if class == Class::Qos0 { 0 } else { 1 });
    for (filter, subscription) in session.subscriptions() {
        let Ok(parsed) = TopicFilter::parse(filter, true) else { continue };
        let name = match parsed.group() {
            None => own_queue(Class::of(subscription.options.qos)),
            Some(_) => group_queue(filter).unwrap_or_default(),
        };
        let key = filter_to_binding_key(parsed.filter());
        let arguments = RawTable::default();
        let binding = Binding { source: exchange, destination: &name, routing_key: &key, arguments };
        authorised.ask_about_binding(&binding)?;
        ask_about_reading(authorised, &name)?;
    }
    Class::ALL.iter().try_for_each(|class| ask_about_reading(authorised, &own_queue(*class)))
}

fn ask_about_reading(authorised: &AuthorisedSession, queue: &str) -> Result<(), BrokerError> {
    match authorised.check_read_queue(queue) {
        Err(BrokerError::Unasked) => Err(BrokerError::Unasked),
        _ => Ok(()),
    }
}
