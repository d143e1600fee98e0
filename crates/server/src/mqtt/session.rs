//! A client's session on a backend, as its connection sees it: on the embedded broker or in front of an upstream.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use mqtt::packet::{PublishPacket, SubscribeOptions};
use mqtt::server::{MqttEnd, ServerConnection as Engine, SubscribeEvent};
use mqtt::session::{Session, Subscription};
use mqtt::{QoS, ReasonCode};

use crate::registry::OpenConnection;

/// An admitted client's state on its backend. It writes the client's messages to the connection's outbox itself.
///
/// Each step of the connection first passes on the client's requests and calls [`MqttSession::flush`]. Then it calls
/// [`MqttSession::next_answer`] and [`MqttSession::deliver`] until nothing is left.
pub(super) trait MqttSession: Send {
    /// The names that operators see.
    fn identity(&self) -> ClientIdentity<'_>;
    /// Called when the connection is open and visible to operators.
    fn opened(&mut self, view: &Arc<OpenConnection>);
    /// Called before any other call at `now`.
    fn set_time(&mut self, now: Instant);
    /// Publishes a message. At QoS 1 and 2 the answer follows from [`MqttSession::next_answer`].
    ///
    /// # Errors
    /// The message is refused. At QoS 1 and 2 the caller answers it with [`MqttSession::refuse`].
    fn publish(&mut self, publish: &PublishPacket<'_>) -> Result<(), Refusal>;
    /// Refuses a message of QoS 1 or 2. Acknowledgements are sent in the order of their messages (MQTT-4.6.0-2).
    fn refuse(&mut self, packet_id: u16, refusal: Refusal);
    /// Called when the client has released a message of QoS 2.
    fn released(&mut self, packet_id: u16);
    /// Called when the client has acknowledged a message: by PUBACK, or by PUBREC if it is `to_be_released`.
    fn delivered(&mut self, tag: u64, packet_id: u16, to_be_released: bool);
    /// Called when a QoS 2 message to the client is complete; if the client has refused a message, also at QoS 1.
    fn completed(&mut self, packet_id: u16);
    /// Subscribes; the SUBACK has a reason code for each request.
    fn subscribe(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>);
    /// Unsubscribes; the UNSUBACK has a reason code for each filter.
    fn unsubscribe(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>);
    /// Called at the end of a batch of input. Publishes that do not fit into the turn follow in the next turn, before the
    /// client is read again.
    fn flush(&mut self, engine: &mut Engine);
    /// The next answer that is due.
    fn next_answer(&mut self) -> Option<PendingReply>;
    /// Sends the messages that the client can take now.
    fn deliver(&mut self, engine: &mut Engine);
    /// Whether answers are due, or messages can be delivered as soon as the outbox has capacity.
    fn has_deliverable(&self, engine: &Engine) -> bool;
    /// Whether the client may be read. If not, the outbox is nudged once it may.
    fn has_capacity(&self) -> bool;
    /// Whether all requests have been answered.
    fn is_settled(&self) -> bool;
    /// Called after the outbox was nudged. Returns a reason if the connection must close; otherwise [`Self::flush`]
    /// follows.
    fn handle_nudge(&mut self) -> Option<CloseReason>;
    /// The latest time at which to call [`MqttSession::handle_nudge`], if nothing nudges the outbox before.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Called when the connection has ended: detaches the session or ends it.
    fn end(self: Box<Self>, session: Session, end: MqttEnd);
}

/// A client's names for operators.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientIdentity<'a> {
    pub(super) user: &'a str,
    pub(super) vhost: &'a str,
    pub(super) client_id: &'a str,
}

/// The maximum of filters per session. All of them are written to disk whenever one changes.
pub(super) const MAX_SUBSCRIPTIONS: usize = 16_384;

/// The maximum of shared subscriptions per session: each has its own queue, and each batch of messages visits all these
/// queues.
pub(super) const MAX_SHARED: usize = 1_024;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: ReasonCode,
    pub(super) text: &'static str,
}

impl Refusal {
    /// The user's auth backend must be asked first. The request has changed nothing, and is repeated once the answer is
    /// there.
    pub(super) const UNASKED: Self =
        Self { reason: ReasonCode::NotAuthorized, text: "authorization pending" };
}

pub(super) const INVALID_FILTER: Refusal =
    Refusal { reason: ReasonCode::TopicFilterInvalid, text: "invalid topic filter" };

/// The reason string of a client whose session another connection has taken over.
pub(super) const TAKEN_OVER: &str = "another connection has the client identifier";

/// The reason string for a client that publishes or subscribes while the exchange is missing.
pub(super) const MISSING_EXCHANGE: &str = "the exchange of MQTT clients does not exist";

/// Why the server ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CloseReason {
    pub(super) reason: ReasonCode,
    /// The reason string for an MQTT 5.0 client.
    pub(super) text: Cow<'static, str>,
}

impl CloseReason {
    pub(super) fn new(reason: ReasonCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// An answer or another output that waits for the disk or for the upstream.
#[derive(Debug)]
pub(super) enum PendingReply {
    /// Sends PUBACK or PUBREC.
    Accept { packet_id: u16, matched: bool },
    /// Sends PUBACK or PUBREC with a failure.
    Refuse { packet_id: u16, reason: ReasonCode, text: &'static str },
    /// Refuses a message that a full queue has refused. Clients before MQTT 5.0 get no answer.
    QueueFull { packet_id: u16 },
    /// Sends PUBREL.
    Release { packet_id: u16 },
    /// Sends PUBCOMP.
    Complete { packet_id: u16 },
    /// Sends SUBACK, before the retained messages.
    Subscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends UNSUBACK.
    Unsubscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends packets with messages whose identifiers had to be recorded first.
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

    /// The requested subscription. A bridge gets RETAIN as published and never its own messages. No Local does not apply
    /// to a group, whose messages go to one member regardless of their publisher.
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
