//! The sections of the catalogue, each a separate table.

use redb::TableDefinition;

/// A kind of definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Users with their password hashes, tags and limits.
    Users,
    /// Virtual hosts.
    VirtualHosts,
    /// Permissions of users in virtual hosts.
    Permissions,
    /// Permissions of users for routing keys.
    TopicPermissions,
    /// Parameters of virtual hosts: operator policies and limits.
    Parameters,
    /// Parameters of the broker as a whole.
    GlobalParameters,
    /// Policies.
    Policies,
    /// Durable exchanges.
    Exchanges,
    /// Durable queues.
    Queues,
    /// Bindings between durable exchanges and queues.
    Bindings,
    /// Sessions of MQTT clients that outlive their connections.
    MqttSessions,
    /// Messages of QoS 2 that MQTT clients have published and not released.
    MqttReceived,
    /// Messages of QoS 2 in flight to MQTT clients.
    MqttInFlight,
    /// Retained messages of MQTT.
    MqttRetained,
    /// Topics of which a session has yet to receive the retained message.
    MqttPendingRetained,
    /// Queues of shared subscriptions that MQTT has declared.
    MqttGroups,
    /// The last reading of the broker's clock, for the next start.
    Clock,
    /// The list of the store's files, by which missing ones are detected. Used only by the store.
    StoreFiles,
}

pub(super) type Table = TableDefinition<'static, &'static [u8], &'static [u8]>;

impl Section {
    /// All sections in loading order: none depends on a later one.
    pub const ALL: [Self; 18] = [
        Self::Users,
        Self::VirtualHosts,
        Self::Permissions,
        Self::TopicPermissions,
        Self::Parameters,
        Self::GlobalParameters,
        Self::Policies,
        Self::Exchanges,
        Self::Queues,
        Self::Bindings,
        Self::MqttSessions,
        Self::MqttReceived,
        Self::MqttInFlight,
        Self::MqttRetained,
        Self::MqttPendingRetained,
        Self::MqttGroups,
        Self::Clock,
        Self::StoreFiles,
    ];

    /// Whether clients and operators define its entries, as opposed to the broker's own records.
    pub(crate) fn is_defined(self) -> bool {
        !matches!(self, Self::Clock | Self::StoreFiles)
    }

    pub(super) fn table(self) -> Table {
        TableDefinition::new(self.name())
    }

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Users => "users",
            Self::VirtualHosts => "vhosts",
            Self::Permissions => "permissions",
            Self::TopicPermissions => "topic_permissions",
            Self::Parameters => "parameters",
            Self::GlobalParameters => "global_parameters",
            Self::Policies => "policies",
            Self::Exchanges => "exchanges",
            Self::Queues => "queues",
            Self::Bindings => "bindings",
            Self::MqttSessions => "mqtt_sessions",
            Self::MqttReceived => "mqtt_received",
            Self::MqttInFlight => "mqtt_in_flight",
            Self::MqttRetained => "mqtt_retained",
            Self::MqttPendingRetained => "mqtt_owed",
            Self::MqttGroups => "mqtt_groups",
            Self::Clock => "clock",
            Self::StoreFiles => "store_files",
        }
    }
}
