//! Events that a connection reports to its server.

use std::time::Duration;

use super::StoredWill;
use crate::fault::MqttFault;
use crate::packet::{
    ConnectPacket, Filters, PublishPacket, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe,
};
use crate::properties::PacketProperties;
use crate::reason::ReasonCode;
use crate::session::Session;
use crate::topic::TopicFilter;

use super::MqttSettings;

/// A request of the client, or news of a message.
#[derive(Debug)]
pub enum MqttEvent<'a> {
    /// The first event. The server answers with [`ServerConnection::accept`](super::ServerConnection::accept) or
    /// [`ServerConnection::refuse`](super::ServerConnection::refuse); nothing is read until then.
    Connect(Box<ConnectPacket<'a>>),
    /// A message. Topic aliases are resolved: its topic is never empty. At QoS 1 and 2 the server answers
    /// with [`ServerConnection::accepted`](super::ServerConnection::accepted) or
    /// [`ServerConnection::refuse_publish`](super::ServerConnection::refuse_publish), in any order. At QoS 2 it is
    /// reported once, however often the client sends it on this connection.
    Publish(PublishPacket<'a>),
    /// The client released a message of QoS 2: its identifier denotes another message from now on. The server
    /// calls [`ServerConnection::complete`](super::ServerConnection::complete) once it has stored that, and not before.
    Released {
        /// The packet identifier of the message.
        packet_id: u16,
    },
    /// The client has received a message, which leaves its queue. A failure means that the client refuses the message.
    Delivered {
        /// The tag given to [`ServerConnection::deliver`](super::ServerConnection::deliver).
        tag: u64,
        /// The packet identifier of the message. At QoS 2 and on success, the server calls
        /// [`ServerConnection::release`](super::ServerConnection::release) once it has stored that.
        packet_id: u16,
        /// The reason code of the client's acknowledgement.
        reason: ReasonCode,
        /// Whether the server has to release it.
        to_be_released: bool,
    },
    /// A message of QoS 2 is complete.
    Completed {
        /// The tag given to [`ServerConnection::deliver`](super::ServerConnection::deliver).
        tag: u64,
        /// The packet identifier that the message had.
        packet_id: u16,
    },
    /// The server answers with [`ServerConnection::subscribed`](super::ServerConnection::subscribed).
    Subscribe(SubscribeEvent<'a>),
    /// The server answers with [`ServerConnection::unsubscribed`](super::ServerConnection::unsubscribed).
    Unsubscribe {
        /// The packet identifier for the answer.
        packet_id: u16,
        /// The filters as they were sent; it is not an error if a filter has no subscription.
        filters: Filters<'a>,
    },
    /// The last event: the server writes the remaining output and closes the socket.
    Ended(MqttEnd),
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttEnd {
    /// The reason of the end.
    pub cause: Cause,
    /// The will to publish after its delay, or at the end of the session if that comes first, unless the
    /// client has reconnected by then (section 3.1.3.2.2).
    pub will: Option<StoredWill>,
    /// Seconds for which to store the session; 0 ends it at once, `u32::MAX` never.
    pub session_expiry: u32,
}

impl MqttEnd {
    /// How long to delay the will: by its delay, but not beyond the session's end (section 3.1.3.2.2).
    pub fn will_delay(&self) -> Option<Duration> {
        self.will.as_ref().map(|will| Duration::from_secs(will.delay.min(self.session_expiry).into()))
    }
}

/// The reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The client sent a DISCONNECT with this reason.
    Client(ReasonCode),
    /// The client violated the protocol or exceeded a limit.
    Fault(MqttFault),
    /// The client was silent for too long.
    KeepAlive,
    /// The client closed its socket.
    Eof,
    /// The server refused the CONNECT, or ended the connection.
    Server(ReasonCode),
}

/// A SUBSCRIBE, each entry of which is validated separately.
#[derive(Debug)]
pub struct SubscribeEvent<'a> {
    pub(super) packet: Subscribe<'a>,
    pub(super) session: &'a Session,
    pub(super) settings: &'a MqttSettings,
    pub(super) is_5: bool,
}

/// An entry of a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested<'a> {
    /// The filter as it was sent, which is its key in the session.
    pub text: &'a str,
    /// The filter, or the reason why it cannot be subscribed to.
    pub filter: Result<TopicFilter<'a>, ReasonCode>,
    /// The options of the subscription.
    pub options: SubscribeOptions,
    /// Whether the session had no subscription with this filter.
    pub is_new: bool,
    /// Whether retained messages are to be sent (sections 3.8.3.1 and 4.8.2).
    pub wants_retained: bool,
}

impl<'a> SubscribeEvent<'a> {
    /// The packet identifier for the answer.
    pub fn packet_id(&self) -> u16 {
        self.packet.packet_id
    }

    /// The Subscription Identifier, to be sent with every message of these subscriptions.
    pub fn identifier(&self) -> Option<u32> {
        self.packet.properties.subscription_identifier()
    }

    /// All properties, including User Properties.
    pub fn properties(&self) -> PacketProperties<'a> {
        self.packet.properties
    }

    /// The entries in order; the answer has one reason code for each.
    pub fn requests(&self) -> impl Iterator<Item = Requested<'a>> + '_ {
        self.packet.requests.iter().map(|request| {
            let filter = self.validate(request.filter);
            let is_new = self.session.subscription(request.filter).is_none();
            let is_shared = filter.is_ok_and(|filter| filter.group().is_some());
            let wants_retained = !is_shared
                && match request.options.retain_handling {
                    RetainHandling::Always => true,
                    RetainHandling::IfNew => is_new,
                    RetainHandling::Never => false,
                };
            Requested { text: request.filter, filter, options: request.options, is_new, wants_retained }
        })
    }

    fn validate(&self, text: &'a str) -> Result<TopicFilter<'a>, ReasonCode> {
        let filter = self.session.parse_filter(text, self.is_5).map_err(|fault| fault.code)?;
        match filter {
            _ if filter.group().is_some() && !self.settings.shared => {
                Err(ReasonCode::SharedSubscriptionsNotSupported)
            }
            _ if filter.has_wildcard() && !self.settings.wildcards => {
                Err(ReasonCode::WildcardSubscriptionsNotSupported)
            }
            _ if self.identifier().is_some() && !self.settings.subscription_identifiers => {
                Err(ReasonCode::SubscriptionIdentifiersNotSupported)
            }
            _ => Ok(filter),
        }
    }
}

impl<'a> MqttEvent<'a> {
    pub(super) fn unsubscribe(packet: Unsubscribe<'a>) -> Self {
        Self::Unsubscribe { packet_id: packet.packet_id, filters: packet.filters }
    }
}
