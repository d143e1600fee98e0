//! The format of a definitions file. Fields other than those below are ignored, as in RabbitMQ.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::error::{DefinitionsError, EntryError};
use crate::arguments::QueueKind;
use crate::compatibility::Compatibility;

#[derive(Debug, Clone, Default)]
pub(super) struct DefinitionsFile {
    pub(super) vhosts: Vec<Vhost>,
    pub(super) users: Vec<User>,
    pub(super) permissions: Vec<Permission>,
    pub(super) topic_permissions: Vec<TopicPermission>,
    pub(super) policies: Vec<PolicyEntry>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) global_parameters: Vec<GlobalParameter>,
    pub(super) queues: Vec<QueueEntry>,
    pub(super) exchanges: Vec<ExchangeEntry>,
    pub(super) bindings: Vec<BindingEntry>,
    /// Keys of the file that are not sections.
    pub(super) unknown: Vec<String>,
}

/// The sections of a file.
pub(super) const SECTIONS: [&str; 10] = [
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
    "queues",
    "exchanges",
    "bindings",
];

/// Keys that are not sections: they name the origin of the file, or describe a single virtual host.
const REMARKS: [&str; 13] = [
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
    "name",
    "description",
    "tags",
    "metadata",
    "limits",
];

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "VhostEntry")]
pub(super) struct Vhost {
    pub(super) name: String,
    /// For humans only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) description: String,
    /// For humans only.
    #[serde(skip_serializing_if = "Tags::is_empty")]
    pub(super) tags: Tags,
    /// The type of queues that are declared without one; `None` for classic queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) default_queue_type: Option<String>,
    /// `None` leaves it unchanged. Operators have to lift the protection before a deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protected_from_deletion: Option<bool>,
    /// Switches tracing on or off, as in RabbitMQ. It lasts until the broker stops, and is not stored.
    #[serde(skip_serializing)]
    pub(super) tracing: Option<bool>,
}

impl Vhost {
    /// The kind of queues that are declared without one (RabbitMQ, "Virtual Hosts", "Default Queue Type"). RabbitMQ 3.10
    /// ignores the key, and with it unknown types.
    pub(super) fn default_queue_kind(&self, release: Option<Compatibility>) -> Result<QueueKind, EntryError> {
        match self.default_queue_type.as_deref() {
            // RabbitMQ writes `undefined` if none was set.
            None | Some("classic" | "undefined") => Ok(QueueKind::Classic),
            Some("quorum") => Ok(QueueKind::Quorum),
            Some(_) if release == Some(Compatibility::V3_10) => Ok(QueueKind::Classic),
            Some(other) => Err(EntryError::DefaultQueueType(other.to_owned())),
        }
    }
}

/// A virtual host as it is in a file. RabbitMQ 4 writes under `metadata` what 3.10 writes beside the name.
#[derive(Deserialize)]
struct VhostEntry {
    name: String,
    #[serde(flatten)]
    plain: VhostMetadata,
    #[serde(default)]
    metadata: VhostMetadata,
    #[serde(default, deserialize_with = "flag")]
    tracing: Option<bool>,
}

#[derive(Default, Deserialize)]
struct VhostMetadata {
    description: Option<String>,
    tags: Option<Tags>,
    default_queue_type: Option<String>,
    protected_from_deletion: Option<bool>,
}

impl From<VhostEntry> for Vhost {
    fn from(entry: VhostEntry) -> Self {
        let VhostEntry { name, plain, metadata, tracing } = entry;
        Self {
            name,
            description: metadata.description.or(plain.description).unwrap_or_default(),
            tags: metadata.tags.or(plain.tags).unwrap_or_default(),
            default_queue_type: metadata.default_queue_type.or(plain.default_queue_type),
            protected_from_deletion: metadata.protected_from_deletion.or(plain.protected_from_deletion),
            tracing,
        }
    }
}

/// A string that must not be `null`.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    String::deserialize(from).map(Some)
}

/// A boolean, also accepted as text, as over HTTP.
fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Bool(bool),
        Text(String),
    }
    Ok(match Option::deserialize(from)? {
        None => None,
        Some(Flag::Bool(flag)) => Some(flag),
        Some(Flag::Text(text)) => Some(text.parse().map_err(D::Error::custom)?),
    })
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) name: String,
    /// Absent or empty means no password.
    #[serde(default)]
    pub(super) password_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hashing_algorithm: Option<String>,
    /// In clear text, which RabbitMQ accepts as well; never written. `null` is refused, as in RabbitMQ, because it would
    /// erase the password.
    #[serde(skip_serializing, default, deserialize_with = "text")]
    pub(super) password: Option<String>,
    #[serde(default)]
    pub(super) tags: Tags,
    #[serde(default)]
    pub(super) limits: Limits,
}

/// A list, or, before RabbitMQ 3.9, a string with commas.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Tags {
    List(Vec<String>),
    Text(String),
}

impl Default for Tags {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Tags {
    fn is_empty(&self) -> bool {
        self.to_vec().is_empty()
    }

    pub(super) fn to_vec(&self) -> Vec<String> {
        match self {
            Self::List(tags) => tags.clone(),
            Self::Text(tags) => {
                tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(Into::into).collect()
            }
        }
    }
}

/// Limits of a user or a virtual host; a negative limit means no limit.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_connections: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_channels: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_queues: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Permission {
    pub(super) user: String,
    pub(super) vhost: String,
    pub(super) configure: String,
    pub(super) write: String,
    pub(super) read: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TopicPermission {
    pub(super) user: String,
    pub(super) vhost: String,
    pub(super) exchange: String,
    pub(super) write: String,
    pub(super) read: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PolicyEntry {
    pub(super) name: String,
    pub(super) vhost: String,
    #[serde(flatten)]
    pub(super) body: PolicyBody,
}

/// The fields that policies and operator policies have in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct PolicyBody {
    pub(super) pattern: String,
    pub(super) definition: Map<String, Value>,
    #[serde(default)]
    pub(super) priority: i64,
    #[serde(default)]
    pub(super) apply_to: DefinitionsScope,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DefinitionsScope {
    #[default]
    All,
    Queues,
    ClassicQueues,
    QuorumQueues,
    Streams,
    Exchanges,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Parameter {
    pub(super) component: String,
    pub(super) vhost: String,
    pub(super) name: String,
    pub(super) value: Value,
}

/// Stored for other programs; the broker does not read it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GlobalParameter {
    pub(super) name: String,
    pub(super) value: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct QueueEntry {
    pub(super) name: String,
    pub(super) vhost: String,
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    #[serde(default)]
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ExchangeEntry {
    pub(super) name: String,
    pub(super) vhost: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    #[serde(default)]
    pub(super) internal: bool,
    #[serde(default)]
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BindingEntry {
    pub(super) source: String,
    pub(super) vhost: String,
    pub(super) destination: String,
    pub(super) destination_type: DestinationType,
    pub(super) routing_key: String,
    #[serde(default)]
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DestinationType {
    Queue,
    Exchange,
}

impl DefinitionsFile {
    /// The contents of a new broker.
    pub(super) fn first(user: &str, password: &str, vhost: &str) -> Self {
        let (user, vhost) = (user.to_owned(), vhost.to_owned());
        let all = || ".*".to_owned();
        Self {
            users: vec![User {
                name: user.clone(),
                password_hash: String::new(),
                hashing_algorithm: None,
                password: Some(password.to_owned()),
                tags: Tags::List(vec!["administrator".to_owned()]),
                limits: Limits::default(),
            }],
            vhosts: vec![Vhost {
                name: vhost.clone(),
                description: "Default virtual host".to_owned(),
                ..Vhost::default()
            }],
            permissions: vec![Permission { user, vhost, configure: all(), write: all(), read: all() }],
            ..Self::default()
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, DefinitionsError> {
        let file: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| DefinitionsError::new("", error.into()))?;
        Self::from_map(&file)
    }

    pub(super) fn from_map(file: &Map<String, Value>) -> Result<Self, DefinitionsError> {
        let is_known = |key: &str| SECTIONS.contains(&key) || REMARKS.contains(&key);
        Ok(Self {
            unknown: file.keys().filter(|key| !is_known(key)).cloned().collect(),
            vhosts: section(file, "vhosts")?,
            users: section(file, "users")?,
            permissions: section(file, "permissions")?,
            topic_permissions: section(file, "topic_permissions")?,
            policies: section(file, "policies")?,
            parameters: section(file, "parameters")?,
            global_parameters: section(file, "global_parameters")?,
            queues: section(file, "queues")?,
            exchanges: section(file, "exchanges")?,
            bindings: section(file, "bindings")?,
        })
    }
}

/// The entries of one section, which may be absent.
fn section<T: DeserializeOwned>(file: &Map<String, Value>, name: &str) -> Result<Vec<T>, DefinitionsError> {
    let entries = match file.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(DefinitionsError::new(name, EntryError::NotAList)),
    };
    let read = |(at, entry): (usize, &Value)| {
        T::deserialize(entry).map_err(|error| {
            let view = entry.get("name").and_then(Value::as_str);
            let entry =
                view.map_or_else(|| format!("{name}[{at}]"), |view| format!("{name}[{at}] ('{view}')"));
            DefinitionsError::new(entry, error.into())
        })
    };
    entries.iter().enumerate().map(read).collect()
}
