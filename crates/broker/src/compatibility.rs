//! The RabbitMQ release whose behaviour the broker follows.

use amqp::{ArgumentSpec, PolicyKey, ReplyCode};

use crate::arguments::{QueueArguments, QueueKind};
use crate::message::Message;

/// A release of RabbitMQ, as far as clients can distinguish it from another. Everything else is the same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compatibility {
    /// RabbitMQ 3.10.8.
    #[default]
    V3_10,
    /// RabbitMQ 4.3.6.
    V4,
}

impl Compatibility {
    /// The version by which clients, tools and scripts decide which features they may use.
    pub fn version(self) -> &'static str {
        match self {
            Self::V3_10 => "3.10.8",
            Self::V4 => "4.3.6",
        }
    }

    /// How often a message may return to a quorum queue as a failure with this `x-delivery-limit`; `None` for no limit.
    pub(crate) fn delivery_limit(self, argument: Option<i64>) -> Option<u64> {
        match (self, argument) {
            (Self::V3_10, None) | (Self::V4, Some(..0)) => None,
            (Self::V4, None) => Some(20),
            (_, Some(limit)) => Some(limit.max(0) as u64),
        }
    }

    /// The delivery limit in effect where an argument gives one and a policy another. In RabbitMQ 4 a negative one, which
    /// means none, does not lift the other.
    pub(crate) fn merged_delivery_limit(self, one: i64, other: i64) -> i64 {
        if self == Self::V4 && (one < 0 || other < 0) { one.max(other) } else { one.min(other) }
    }

    /// The order in which a queue with these arguments of its own delivers messages.
    pub(crate) fn delivery_order(self, arguments: &QueueArguments) -> DeliveryOrder {
        let (highest, unset, returned_first) = match (self, arguments.kind, arguments.max_priority) {
            (Self::V4, QueueKind::Quorum, _) => (31, 4, true),
            // Messages with a priority precede those without.
            (Self::V4, QueueKind::Classic, Some(0)) => (1, 0, false),
            (_, _, max_priority) => (max_priority.unwrap_or(0), 0, false),
        };
        DeliveryOrder { highest, unset, returned_first }
    }

    /// Whether a message that a client requeues without a failure (basic.nack and basic.recover with requeue) does not
    /// count towards the delivery limit of quorum queues.
    pub(crate) fn requeue_ignores_delivery_limit(self) -> bool {
        self == Self::V4
    }

    /// Whether only the broker itself writes the history of a dead letter, so that headers of that name set by a client are
    /// not part of it. The last death is then in separate headers, and CC stays.
    pub(crate) fn protects_x_death(self) -> bool {
        self == Self::V4
    }

    /// Whether a connection ends when its token expires; otherwise it stays open without permissions.
    pub fn closes_on_token_expiry(self) -> bool {
        self == Self::V4
    }

    /// Whether a refusal names the missing permission.
    pub(crate) fn refusal_names_permission(self) -> bool {
        self == Self::V4
    }

    /// Whether the type of a server-named queue is checked before everything else, with other error texts.
    pub(crate) fn checks_queue_type_first(self) -> bool {
        self == Self::V4
    }

    /// Whether a passive declaration requires a permission on the queue or exchange.
    pub(crate) fn passive_declare_needs_permission(self) -> bool {
        self == Self::V4
    }

    /// Whether a queue that was declared without a type gets the argument `x-queue-type`.
    pub(crate) fn stores_queue_type_argument(self) -> bool {
        self == Self::V4
    }

    /// The user's channel limit as the refusal of a channel formats it.
    pub(crate) fn channel_limit(self, limit: u64) -> String {
        match self {
            Self::V3_10 => format!("({limit})"),
            Self::V4 => limit.to_string(),
        }
    }

    /// The name of the queue type in the refusal of a basic.get.
    pub fn quorum_queue_error_label(self) -> &'static str {
        match self {
            Self::V3_10 => "quorum",
            // The Erlang term.
            Self::V4 => "<<\"quorum\">>",
        }
    }

    /// Whether the permissions for routing keys (including CC and BCC) and for `user_id` are checked after all other
    /// properties. Otherwise they are checked before them, and only for the message's own routing key.
    pub(crate) fn checks_topic_permission_last(self) -> bool {
        self == Self::V4
    }

    /// Whether delivery_mode may only be 1 or 2.
    pub(crate) fn checks_delivery_mode(self) -> bool {
        self == Self::V3_10
    }

    /// The reply code that refuses an exchange of an unknown type.
    pub(crate) fn unknown_exchange_type(self) -> ReplyCode {
        match self {
            Self::V3_10 => ReplyCode::CommandInvalid,
            Self::V4 => ReplyCode::PreconditionFailed,
        }
    }

    /// Whether operations on a reply queue (RabbitMQ, "Direct Reply-to"), such as basic.get and queue.bind, are refused as
    /// on a reply queue instead of a missing queue; a message to one is then never returned as unroutable, and a returned
    /// request contains its name.
    pub fn reveals_reply_queues(self) -> bool {
        self == Self::V4
    }

    /// Whether AMQP clients see only the user properties and the request/response properties of an MQTT message in its
    /// headers, and MQTT clients see an AMQP message's headers likewise. Otherwise `x-mqtt-` headers describe how it was
    /// published.
    pub fn annotates_mqtt(self) -> bool {
        self == Self::V4
    }

    /// Whether all queues of an MQTT session, including the one for QoS 0, live as long as the session, and are exclusive
    /// to its connection if the session lives no longer. Otherwise messages of QoS 0 do not wait for disconnected clients,
    /// and all clients may use its queues.
    pub fn mqtt_queues_follow_session(self) -> bool {
        self == Self::V4
    }

    /// The consumer tag of all MQTT clients; otherwise it is their client identifier.
    pub fn mqtt_consumer_tag(self) -> Option<&'static str> {
        (self == Self::V4).then_some("mqtt")
    }

    /// Whether a CONNACK to an MQTT 5.0 client always has the session expiry, even if it equals the requested one.
    pub fn always_sends_session_expiry(self) -> bool {
        self == Self::V4
    }

    /// Whether the queue of a STOMP subscription to `/topic` or `/exchange` is exclusive to its connection, unless it is
    /// durable or the client requests otherwise.
    pub fn has_exclusive_stomp_subscriptions(self) -> bool {
        self == Self::V4
    }

    /// Whether a STOMP subscription may have a priority.
    pub fn has_stomp_priorities(self) -> bool {
        self == Self::V4
    }

    /// The end of the text that refuses a STOMP client's login.
    pub fn stomp_login_error_suffix(self) -> &'static str {
        match self {
            Self::V3_10 => "\n",
            Self::V4 => "",
        }
    }

    /// Whether the release supports this queue argument.
    pub(crate) fn knows(self, spec: &ArgumentSpec) -> bool {
        self == Self::V4 || !spec.is_since_4
    }

    /// Whether a policy may have the key that sets this argument.
    pub(crate) fn allows_policy_key(self, spec: &ArgumentSpec) -> bool {
        let is_allowed = match spec.policy {
            PolicyKey::No => false,
            PolicyKey::PolicyUntil4 => self == Self::V3_10,
            PolicyKey::Policy | PolicyKey::OperatorSince4 | PolicyKey::Operator => true,
        };
        is_allowed && self.knows(spec)
    }

    /// Whether an operator policy may have the key that sets this argument.
    pub(crate) fn allows_operator_key(self, spec: &ArgumentSpec) -> bool {
        let is_allowed = match spec.policy {
            PolicyKey::No | PolicyKey::Policy | PolicyKey::PolicyUntil4 => false,
            PolicyKey::OperatorSince4 => self == Self::V4,
            PolicyKey::Operator => true,
        };
        is_allowed && self.knows(spec)
    }

    /// Whether virtual hosts may be protected from deletion, and operators can lift the protection.
    pub fn has_vhost_deletion_protection(self) -> bool {
        self == Self::V4
    }

    /// Whether metrics include the sizes of messages.
    pub fn has_message_size_metrics(self) -> bool {
        self == Self::V4
    }

    /// Whether basic.qos with `global` limits a whole channel; otherwise it limits each consumer.
    pub fn has_global_qos(self) -> bool {
        self == Self::V3_10
    }
}

/// The order in which a queue delivers messages: the highest rank first. The rank of a message is its priority, or a rank
/// above all priorities if returned messages come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryOrder {
    /// Higher priorities are reduced to this one.
    pub(crate) highest: u8,
    /// The priority of messages that have none.
    pub(crate) unset: u8,
    /// Whether returned messages precede all others, in the order of their return. Otherwise they return to their positions
    /// within their priority.
    pub(crate) returned_first: bool,
}

impl DeliveryOrder {
    /// Whether messages in the queue can have different ranks.
    pub(crate) fn has_priorities(self) -> bool {
        self.highest > 0
    }

    /// The rank of a message that has not been delivered yet.
    #[inline]
    pub(crate) fn priority_of(self, message: &Message) -> u8 {
        message.broker_properties().priority.unwrap_or(self.unset).min(self.highest)
    }

    /// The rank of a returned message.
    pub(crate) fn returned_rank(self, message: &Message) -> u8 {
        if self.returned_first { self.highest.saturating_add(1) } else { self.priority_of(message) }
    }

    /// The rank of a message recovered after a restart, with its number of deliveries. If returned messages come first,
    /// those returned by the restart precede later ones, in the order in which they had been delivered.
    pub(crate) fn restored_rank(self, message: &Message, deliveries: u32) -> u8 {
        let priority = self.priority_of(message);
        match deliveries {
            1.. if self.returned_first => self.returned_rank(message).saturating_add(1 + priority),
            _ => priority,
        }
    }
}
