//! The release of RabbitMQ whose answers the broker gives.

use amqp::{ArgumentSpec, PolicyKey, ReplyCode};

use crate::arguments::{QueueArguments, QueueKind};
use crate::message::Message;

/// A release of RabbitMQ, as far as clients can tell it from another. All else is the same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compatibility {
    /// RabbitMQ 3.10.8.
    #[default]
    V3_10,
    /// RabbitMQ 4.3.6.
    V4,
}

impl Compatibility {
    /// The version that clients, tools and scripts read to learn which features they may use.
    pub fn version(self) -> &'static str {
        match self {
            Self::V3_10 => "3.10.8",
            Self::V4 => "4.3.6",
        }
    }

    /// How often a message may be returned as a failure to a quorum queue with this `x-delivery-limit`; `None` for any
    /// number of times.
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
            // Messages with a priority pass those without.
            (Self::V4, QueueKind::Classic, Some(0)) => (1, 0, false),
            (_, _, max_priority) => (max_priority.unwrap_or(0), 0, false),
        };
        DeliveryOrder { highest, unset, returned_first }
    }

    /// Whether a message that a client gives back without fault (basic.nack and basic.recover with requeue) counts as
    /// little as if it had not been delivered (quorum queues).
    pub(crate) fn requeue_ignores_delivery_limit(self) -> bool {
        self == Self::V4
    }

    /// Whether the history of a dead letter is the broker's own, and headers of that name that a client has set are not
    /// taken for it; its last death is in headers of its own, and CC stays.
    pub(crate) fn protects_x_death(self) -> bool {
        self == Self::V4
    }

    /// Whether a connection ends when its token does; otherwise it stays, without rights.
    pub fn closes_on_token_expiry(self) -> bool {
        self == Self::V4
    }

    /// Whether a refusal names which permission is missing.
    pub(crate) fn refusal_names_permission(self) -> bool {
        self == Self::V4
    }

    /// Whether the type of a queue that the server is to name is looked for before all else, and refused in other words.
    pub(crate) fn checks_queue_type_first(self) -> bool {
        self == Self::V4
    }

    /// Whether a passive declaration is refused to those who have no permission for what it asks after.
    pub(crate) fn passive_declare_needs_permission(self) -> bool {
        self == Self::V4
    }

    /// Whether a queue that was declared without a type has the argument `x-queue-type`, too.
    pub(crate) fn stores_queue_type_argument(self) -> bool {
        self == Self::V4
    }

    /// How the refusal of a channel writes the limit of its user.
    pub(crate) fn channel_limit(self, limit: u64) -> String {
        match self {
            Self::V3_10 => format!("({limit})"),
            Self::V4 => limit.to_string(),
        }
    }

    /// How the refusal of a basic.get names the type of the queue.
    pub fn quorum_queue_error_label(self) -> &'static str {
        match self {
            Self::V3_10 => "quorum",
            // The Erlang term.
            Self::V4 => "<<\"quorum\">>",
        }
    }

    /// Whether the right to publish with a routing key, also one in CC or BCC, and then to be called by user_id, is looked at
    /// behind all other properties; otherwise before them, and only that of the message's own key.
    pub(crate) fn checks_topic_permission_last(self) -> bool {
        self == Self::V4
    }

    /// Whether delivery_mode may only be 1 or 2.
    pub(crate) fn checks_delivery_mode(self) -> bool {
        self == Self::V3_10
    }

    /// Why an exchange of an unknown type is refused.
    pub(crate) fn unknown_exchange_type(self) -> ReplyCode {
        match self {
            Self::V3_10 => ReplyCode::CommandInvalid,
            Self::V4 => ReplyCode::PreconditionFailed,
        }
    }

    /// Whether a reply queue (RabbitMQ, "Direct Reply-to") is said to be one to whoever gets from it or binds it, instead of
    /// not to exist; a message to one is never returned as unroutable, and a request that is returned has its name.
    pub fn reveals_reply_queues(self) -> bool {
        self == Self::V4
    }

    /// Whether AMQP clients see nothing in an MQTT message's headers but its user properties and the parts that an answer
    /// needs, and MQTT clients see an AMQP message's headers likewise; otherwise `x-mqtt-` headers tell how it was published.
    pub fn annotates_mqtt(self) -> bool {
        self == Self::V4
    }

    /// Whether the queues of an MQTT session, also that of QoS 0, last as long as the session, and are its connection's alone
    /// if that is no longer; otherwise messages of QoS 0 do not wait for clients that are away, and all clients may use its
    /// queues.
    pub fn mqtt_queues_follow_session(self) -> bool {
        self == Self::V4
    }

    /// The consumer tag of all MQTT clients; otherwise it is their client identifier.
    pub fn mqtt_consumer_tag(self) -> Option<&'static str> {
        (self == Self::V4).then_some("mqtt")
    }

    /// Whether an MQTT 5.0 client is sent its session's expiry even if it has got what it asked for.
    pub fn always_sends_session_expiry(self) -> bool {
        self == Self::V4
    }

    /// Whether the queue of a STOMP subscription to `/topic` or `/exchange` is its connection's alone, unless it is durable or
    /// the client wants it otherwise.
    pub fn has_exclusive_stomp_subscriptions(self) -> bool {
        self == Self::V4
    }

    /// Whether a STOMP subscription may have a priority.
    pub fn has_stomp_priorities(self) -> bool {
        self == Self::V4
    }

    /// The last characters of the text that refuses a STOMP client's login.
    pub fn stomp_login_error_suffix(self) -> &'static str {
        match self {
            Self::V3_10 => "\n",
            Self::V4 => "",
        }
    }

    /// Whether it knows this argument of queues.
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

    /// Whether metrics tell the sizes of messages.
    pub fn has_message_size_metrics(self) -> bool {
        self == Self::V4
    }

    /// Whether basic.qos with `global` limits a whole channel; otherwise it is taken for a limit of each consumer.
    pub fn has_global_qos(self) -> bool {
        self == Self::V3_10
    }
}

/// The order in which a queue delivers messages: those of the highest rank first. The rank of a message is its priority,
/// or, if returned messages come first, one that is above all priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryOrder {
    /// A higher priority counts as this one.
    pub(crate) highest: u8,
    /// The priority of messages that have none.
    pub(crate) unset: u8,
    /// Whether returned messages precede all others, in the order in which they returned. Otherwise they return to
    /// their positions among those of their priority.
    pub(crate) returned_first: bool,
}

impl DeliveryOrder {
    /// Whether messages of several ranks may be in the queue.
    pub(crate) fn has_priorities(self) -> bool {
        self.highest > 0
    }

    /// The rank of a message that has not been delivered.
    #[inline]
    pub(crate) fn priority_of(self, message: &Message) -> u8 {
        message.broker_properties().priority.unwrap_or(self.unset).min(self.highest)
    }

    /// The rank of a returned message.
    pub(crate) fn returned_rank(self, message: &Message) -> u8 {
        if self.returned_first { self.highest.saturating_add(1) } else { self.priority_of(message) }
    }

    /// The rank of a message that a restart has found, and that was delivered so often before. If returned messages come
    /// first, those that a restart gives back precede later ones, in the order in which they had been delivered.
    pub(crate) fn restored_rank(self, message: &Message, deliveries: u32) -> u8 {
        let priority = self.priority_of(message);
        match deliveries {
            1.. if self.returned_first => self.returned_rank(message).saturating_add(1 + priority),
            _ => priority,
        }
    }
}
