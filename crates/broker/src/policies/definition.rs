//! The definition of a policy: its keys and values, validated as in RabbitMQ.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::arguments::{Overflow, QueueKind};

/// The keys of a policy that have an effect here; the others that RabbitMQ knows are accepted and ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyDefinition {
    /// `message-ttl` in milliseconds.
    pub message_ttl: Option<u64>,
    /// `expires` in milliseconds.
    pub expires: Option<u64>,
    /// `max-length` in ready messages.
    pub max_length: Option<u64>,
    /// `max-length-bytes` in bytes of ready messages' bodies.
    pub max_length_bytes: Option<u64>,
    /// `overflow`.
    pub overflow: Option<Overflow>,
    /// `dead-letter-exchange`.
    pub dead_letter_exchange: Option<Arc<str>>,
    /// `dead-letter-routing-key`.
    pub dead_letter_routing_key: Option<Arc<str>>,
    /// `alternate-exchange`.
    pub alternate_exchange: Option<Arc<str>>,
    /// `delivery-limit` of quorum queues.
    pub delivery_limit: Option<u64>,
    /// `queue-mode`: whether it is `lazy`.
    pub lazy: Option<bool>,
    /// Contains a key that classic queues do not support.
    not_for_classic: bool,
    /// Contains a key that quorum queues do not support.
    not_for_quorum: bool,
}

impl PolicyDefinition {
    /// Reads the definition of a policy.
    ///
    /// # Errors
    /// The invalid key, and the reason.
    pub fn parse(entries: &Map<String, Value>) -> Result<Self, String> {
        if entries.is_empty() {
            return Err("no policy provided".into());
        }
        let mut definition = Self::default();
        for (key, value) in entries {
            definition.read(key, value).map_err(|reason| format!("{key}: {reason}"))?;
        }
        Ok(definition)
    }

    /// Reads the definition of an operator policy, which supports only some of the numeric keys.
    ///
    /// # Errors
    /// The invalid key, and the reason.
    pub fn parse_operator(entries: &Map<String, Value>) -> Result<Self, String> {
        match entries.keys().find(|key| !OPERATOR_KEYS.contains(&key.as_str())) {
            Some(key) => Err(format!("{key}: not recognised in operator policies")),
            None => Self::parse(entries),
        }
    }

    pub(super) fn suits(&self, kind: QueueKind) -> bool {
        match kind {
            QueueKind::Classic => !self.not_for_classic,
            QueueKind::Quorum => !self.not_for_quorum,
        }
    }

    fn read(&mut self, key: &str, value: &Value) -> Result<(), String> {
        self.not_for_classic |= NOT_FOR_CLASSIC.contains(&key);
        self.not_for_quorum |= NOT_FOR_QUORUM.contains(&key);
        match key {
            "message-ttl" => self.message_ttl = Some(number(value, 0)?),
            "expires" => self.expires = Some(number(value, 1)?),
            "max-length" => self.max_length = Some(number(value, 0)?),
            "max-length-bytes" => self.max_length_bytes = Some(number(value, 0)?),
            "delivery-limit" => self.delivery_limit = Some(number(value, 0)?),
            "dead-letter-exchange" => self.dead_letter_exchange = Some(text(value)?.into()),
            "dead-letter-routing-key" => self.dead_letter_routing_key = Some(text(value)?.into()),
            "alternate-exchange" => self.alternate_exchange = Some(text(value)?.into()),
            "overflow" => {
                self.overflow = Some(match text(value)? {
                    "drop-head" => Overflow::DropHead,
                    "reject-publish" => Overflow::RejectPublish,
                    "reject-publish-dlx" => Overflow::RejectPublishDlx,
                    other => return Err(format!("'{other}' is not a valid overflow")),
                });
            }
            "queue-mode" => {
                self.lazy = Some(match text(value)? {
                    "default" => false,
                    "lazy" => true,
                    other => return Err(format!("'{other}' is not a valid queue-mode value")),
                });
            }
            _ if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Err("not a recognised policy setting".into()),
        }
        Ok(())
    }
}

fn number(value: &Value, least: u64) -> Result<u64, String> {
    let found = value.as_u64().filter(|number| *number >= least);
    found.ok_or_else(|| format!("{value} is not a whole number of at least {least}"))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is not a text"))
}

const OPERATOR_KEYS: &[&str] = &[
    "expires",
    "message-ttl",
    "max-length",
    "max-length-bytes",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "delivery-limit",
];

/// Keys about replication and memory, which have no effect here.
const WITHOUT_EFFECT: &[&str] = &[
    "consumer-timeout",
    "dead-letter-strategy",
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-batch-size",
    "ha-sync-mode",
    "initial-cluster-size",
    "max-age",
    "max-in-memory-bytes",
    "max-in-memory-length",
    "queue-leader-locator",
    "queue-master-locator",
    "queue-version",
    "stream-max-segment-size-bytes",
];

const NOT_FOR_CLASSIC: &[&str] = &[
    "dead-letter-strategy",
    "delivery-limit",
    "initial-cluster-size",
    "max-age",
    "max-in-memory-bytes",
    "max-in-memory-length",
    "queue-leader-locator",
    "stream-max-segment-size-bytes",
];

const NOT_FOR_QUORUM: &[&str] = &[
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-batch-size",
    "ha-sync-mode",
    "initial-cluster-size",
    "max-age",
    "queue-master-locator",
    "queue-mode",
    "queue-version",
    "stream-max-segment-size-bytes",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<PolicyDefinition, String> {
        PolicyDefinition::parse(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn known_keys_are_read() {
        let definition = parse(
            r#"{"message-ttl": 1, "expires": 2, "max-length": 3, "max-length-bytes": 4, "delivery-limit": 5,
                "overflow": "reject-publish", "dead-letter-exchange": "", "dead-letter-routing-key": "k",
                "alternate-exchange": "a", "queue-mode": "lazy"}"#,
        );
        let expected = PolicyDefinition {
            lazy: Some(true),
            message_ttl: Some(1),
            expires: Some(2),
            max_length: Some(3),
            max_length_bytes: Some(4),
            delivery_limit: Some(5),
            overflow: Some(Overflow::RejectPublish),
            dead_letter_exchange: Some("".into()),
            dead_letter_routing_key: Some("k".into()),
            alternate_exchange: Some("a".into()),
            not_for_classic: true,
            not_for_quorum: true,
        };
        assert_eq!(definition, Ok(expected));
    }

    #[test]
    fn wrong_definitions_name_the_key_at_fault() {
        let cases = [
            ("{}", "no policy provided"),
            (r#"{"nope": 1}"#, "nope: not a recognised policy setting"),
            (r#"{"max-length": -1}"#, "max-length: -1 is not a whole number of at least 0"),
            (r#"{"expires": 0}"#, "expires: 0 is not a whole number of at least 1"),
            (r#"{"overflow": "maybe"}"#, "overflow: 'maybe' is not a valid overflow"),
            (r#"{"dead-letter-exchange": 5}"#, "dead-letter-exchange: 5 is not a text"),
        ];
        for (json, reason) in cases {
            assert_eq!(parse(json), Err(reason.to_owned()));
        }
        let operator = serde_json::from_str(r#"{"overflow": "drop-head"}"#).unwrap();
        assert!(PolicyDefinition::parse_operator(&operator).unwrap_err().starts_with("overflow: "));
    }
}
