//! What a connection tells its server.

use std::time::Duration;

use super::StoredWill;
use crate::fault::Fault;
use crate::packet::{Connect, Filters, Publish, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe};
use crate::properties::Properties;
use crate::reason::ReasonCode;
use crate::session::Session;
use crate::topic::TopicFilter;

use super::Settings;

/// What a client wants, or what has become of a message.
#[derive(Debug)]
pub enum Event<'a> {
    /// The first event. To be answered with [`Connection::accept`](super::Connection::accept) or
    /// [`Connection::refuse`](super::Connection::refuse); nothing is read until then.
    Connect(Box<Connect<'a>>),
    /// A message. Topic aliases are resolved: its topic is never empty. At QoS 1 and 2 to be answered with
    /// [`Connection::accepted`](super::Connection::accepted) or
    /// [`Connection::refuse_publish`](super::Connection::refuse_publish), in any order. At QoS 2 it is told once,
    /// however often the client sends it.
    Publish(Publish<'a>),
    /// The client released a message of QoS 2. Once that is noted, and not before: what has the same identifier from
    /// now on is another message, [`Connection::complete`](super::Connection::complete).
    Released {
        /// The message's identifier.
        packet_id: u16,
    },
    /// The client has a message: it belongs to no queue any more. A failure is the client's: it will not take it.
    Delivered {
        /// As given to [`Connection::deliver`](super::Connection::deliver).
        tag: u64,
        /// The message's identifier. At QoS 2 and with success, to be answered with
        /// [`Connection::release`](super::Connection::release) once it is noted.
        packet_id: u16,
        /// Success or not.
        reason: ReasonCode,
        /// Whether the server is to release it.
        to_be_released: bool,
    },
    /// A message of QoS 2 is over and done with.
    Completed {
        /// As given to [`Connection::deliver`](super::Connection::deliver).
        tag: u64,
    },
    /// To be answered with [`Connection::subscribed`](super::Connection::subscribed).
    Subscribe(SubscribeEvent<'a>),
    /// To be answered with [`Connection::unsubscribed`](super::Connection::unsubscribed).
    Unsubscribe {
        /// For the answer.
        packet_id: u16,
        /// As they were sent; that no such subscription exists is no failure.
        filters: Filters<'a>,
    },
    /// The last event: what is to be sent is to be written, and the socket closed.
    Ended(End),
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// To be published after its delay, or at the end of the session if that comes first, unless the client is back by
    /// then (section 3.1.3.2.2).
    pub will: Option<StoredWill>,
    /// Seconds that the session is to be kept; 0 ends it at once, `u32::MAX` never.
    pub session_expiry: u32,
}

impl End {
    /// How long the will is to wait: for its delay, but not beyond the session's end (section 3.1.3.2.2).
    pub fn will_delay(&self) -> Option<Duration> {
        self.will.as_ref().map(|will| Duration::from_secs(will.delay.min(self.session_expiry).into()))
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The client sent a DISCONNECT with this reason.
    Client(ReasonCode),
    /// The client broke the protocol, or asked for too much.
    Fault(Fault),
    /// The client was silent for too long.
    KeepAlive,
    /// The client closed its socket.
    Eof,
    /// The server refused the CONNECT, or ended the connection.
    Server(ReasonCode),
}

/// A SUBSCRIBE, each line of which is judged.
#[derive(Debug)]
pub struct SubscribeEvent<'a> {
    pub(super) packet: Subscribe<'a>,
    pub(super) session: &'a Session,
    pub(super) settings: &'a Settings,
    pub(super) is_5: bool,
}

/// A line of a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested<'a> {
    /// As it was sent, and as the session knows it.
    pub text: &'a str,
    /// The filter, or why there can be no such subscription.
    pub filter: Result<TopicFilter<'a>, ReasonCode>,
    /// How messages are to be sent.
    pub options: SubscribeOptions,
    /// Whether there was no subscription with this filter.
    pub is_new: bool,
    /// Whether retained messages are to be sent (sections 3.8.3.1 and 4.8.2).
    pub wants_retained: bool,
}

impl<'a> SubscribeEvent<'a> {
    /// For the answer.
    pub fn packet_id(&self) -> u16 {
        self.packet.packet_id
    }

    /// To be sent with every message of these subscriptions.
    pub fn identifier(&self) -> Option<u32> {
        self.packet.properties.subscription_identifier()
    }

    /// User Properties and whatever else there may be.
    pub fn properties(&self) -> Properties<'a> {
        self.packet.properties
    }

    /// The lines in their order, to be answered by as many reason codes.
    pub fn requests(&self) -> impl Iterator<Item = Requested<'a>> + '_ {
        self.packet.requests.iter().map(|request| {
            let filter = self.judge(request.filter);
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

    fn judge(&self, text: &'a str) -> Result<TopicFilter<'a>, ReasonCode> {
        let filter = TopicFilter::parse(text, self.is_5).map_err(|fault| fault.code)?;
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

impl<'a> Event<'a> {
    pub(super) fn unsubscribe(packet: Unsubscribe<'a>) -> Self {
        Self::Unsubscribe { packet_id: packet.packet_id, filters: packet.filters }
    }
}
