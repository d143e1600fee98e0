//! A client's session on a backend, as its connection sees it: on the embedded broker or in front of an upstream.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use mqtt::packet::{PublishPacket, SubscribeOptions};
use mqtt::server::{MqttEnd, ServerConnection as Engine, SubscribeEvent};
use mqtt::session::{Session, Subscription};
use mqtt::{QoS, ReasonCode};

use crate::registry::OpenConnection;

/// An admitted client's state on its backend. It writes the messages for the client to the connection's outbox itself.
///
/// Each round of the connection: the client's requests, [`MqttSession::flush`], and [`MqttSession::next_answer`] and
/// [`MqttSession::deliver`] until nothing is left.
pub(super) trait MqttSession: Send {
    /// The names by which operators know the client.
    fn identity(&self) -> ClientIdentity<'_>;
    /// Called when the connection is open and visible to operators.
    fn opened(&mut self, view: &Arc<OpenConnection>);
    /// Called before everything that happens at `now`.
    fn set_time(&mut self, now: Instant);
    /// Publishes a message. At QoS 1 and 2 it is answered later.
    ///
    /// # Errors
    /// The message is refused, and has to be answered by [`MqttSession::refuse`].
    fn publish(&mut self, publish: &PublishPacket<'_>) -> Result<(), Refusal>;
    /// Refuses a message of QoS 1 or 2. Acknowledgements are sent in the order of their messages (MQTT-4.6.0-2).
    fn refuse(&mut self, packet_id: u16, refusal: Refusal);
    /// Called when the client has released a message of QoS 2.
    fn released(&mut self, packet_id: u16);
    /// Called when the client has a message.
    fn delivered(&mut self, tag: u64, packet_id: u16, to_be_released: bool);
    /// Called when a message of QoS 2 to the client is complete; at a failure, also for one of QoS 1.
    fn completed(&mut self, packet_id: u16);
    /// Subscribes; the answer has a reason code for each request.
    fn subscribe(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>);
    /// Unsubscribes; the answer has a reason code for each filter.
    fn unsubscribe(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>);
    /// Called at the end of a batch of input. Publishes that do not fit into the turn follow in the next, before the client
    /// is read again.
    fn flush(&mut self, engine: &mut Engine);
    /// The next answer that is due.
    fn next_answer(&mut self) -> Option<PendingReply>;
    /// Sends the messages that the client can take now.
    fn deliver(&mut self, engine: &mut Engine);
    /// Whether there are messages that can be delivered now, if the outbox has room, or answers that are due.
    fn has_deliverable(&self, engine: &Engine) -> bool;
    /// Whether the client may be read. If not, the outbox is nudged when it may.
    fn has_capacity(&self) -> bool;
    /// Whether everything that was asked has been answered.
    fn is_settled(&self) -> bool;
    /// Called after the outbox was nudged; unless the connection has to end, [`Self::flush`] follows.
    fn handle_nudge(&mut self) -> Option<CloseReason>;
    /// The latest time at which to call [`MqttSession::handle_nudge`], if nothing nudges the outbox before.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Called when the connection has ended: detaches the session or ends it.
    fn end(self: Box<Self>, session: Session, end: MqttEnd);
}

/// The names by which operators know a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientIdentity<'a> {
    pub(super) user: &'a str,
    pub(super) vhost: &'a str,
    pub(super) client_id: &'a str,
}

/// The most filters that a session subscribes to. All of them are written to disk whenever one changes.
pub(super) const MAX_SUBSCRIPTIONS: usize = 16_384;

/// The most shared subscriptions of them: each has a queue of its own, and all these are looked at for each batch of messages.
pub(super) const MAX_SHARED: usize = 1_024;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: ReasonCode,
    pub(super) text: &'static str,
}

impl Refusal {
    /// None yet: the user's auth backend is to be asked first. The request has changed nothing, and is repeated with the
    /// answer.
    pub(super) const UNASKED: Self =
        Self { reason: ReasonCode::NotAuthorized, text: "authorization pending" };
}

pub(super) const INVALID_FILTER: Refusal =
    Refusal { reason: ReasonCode::TopicFilterInvalid, text: "invalid topic filter" };

/// The reason string of a client whose session another connection has taken over.
pub(super) const TAKEN_OVER: &str = "another connection has the client identifier";

/// The reason string of a client that publishes or subscribes while the exchange is missing.
pub(super) const MISSING_EXCHANGE: &str = "the exchange of MQTT clients does not exist";

/// Why the server ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CloseReason {
    pub(super) reason: ReasonCode,
    /// For a client of 5.0.
    pub(super) text: Cow<'static, str>,
}

impl CloseReason {
    pub(super) fn new(reason: ReasonCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// An action that follows once everything it waits for is done: on disk, or answered by the upstream.
#[derive(Debug)]
pub(super) enum PendingReply {
    /// Sends PUBACK or PUBREC.
    Accept { packet_id: u16, matched: bool },
    /// Sends PUBACK or PUBREC with a failure.
    Refuse { packet_id: u16, reason: ReasonCode, text: &'static str },
    /// Refuses a message that a full queue has refused. Clients before 5.0 get no answer.
    QueueFull { packet_id: u16 },
    /// Sends PUBREL.
    Release { packet_id: u16 },
    /// Sends PUBCOMP.
    Complete { packet_id: u16 },
    /// Sends SUBACK, which retained messages follow.
    Subscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends UNSUBACK.
    Unsubscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends messages to the client whose identifiers had to be recorded first.
    Send { bytes: Vec<u8> },
}

/// An entry of a SUBSCRIBE, to be answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) text: Box<str>,
    /// Why the entry is invalid, if it is.
    pub(super) fault: Option<ReasonCode>,
    pub(super) options: SubscribeOptions,
    /// Whether retained messages are to be sent.
    pub(super) wants_retained: bool,
    pub(super) identifier: Option<u32>,
}

impl Request {
    /// The entries of a SUBSCRIBE.
    pub(super) fn all(event: &SubscribeEvent<'_>) -> Vec<Self> {
        let identifier = event.identifier();
        let requests = event.requests().map(|request| Self {
            text: request.text.into(),
            fault: request.filter.err(),
            options: request.options,
            wants_retained: request.wants_retained,
            identifier,
        });
        requests.collect()
    }

    /// The subscription that is asked for. A bridge gets RETAIN as published, and none of its own messages; but those of a
    /// group come to one member whoever has published them.
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub(super) fn subscription(&self, engine: &Engine, is_bridge: bool) -> Result<Subscription, Refusal> {
        let filter = engine.session().parse_filter(&self.text, engine.version().is_5());
        let is_shared = filter.map_err(|_| INVALID_FILTER)?.group().is_some();
        let mut options = self.options;
        if is_bridge && !is_shared {
            (options.no_local, options.retain_as_published) = (true, true);
        }
        Ok(Subscription { options, identifier: self.identifier, is_shared })
    }
}

/// The reason code of a granted subscription.
pub(super) fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQos1,
        QoS::ExactlyOnce => ReasonCode::GrantedQos2,
    }
}
