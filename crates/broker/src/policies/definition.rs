//! The definition of a policy: its keys and values, validated as in RabbitMQ.

use std::fmt;
use std::sync::Arc;

use amqp::{ArgumentSpec, ArgumentValue, FieldTable, FieldValue, PolicyKey};
use serde_json::{Map, Value};

use crate::arguments::QueueKind;
use crate::compatibility::Compatibility;

/// The keys of a policy that have an effect here; other keys that RabbitMQ supports are accepted and ignored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyDefinition {
    /// The queue arguments that it sets.
    pub(super) arguments: FieldTable,
    /// `alternate-exchange`.
    pub(super) alternate_exchange: Option<Arc<str>>,
    /// Contains a key that classic queues do not support.
    not_for_classic: bool,
    /// Contains a key that quorum queues do not support.
    not_for_quorum: bool,
}

/// A definition of a policy that is refused. `Display` begins with the key at fault.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub struct PolicyError {
    key: String,
    fault: PolicyFault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PolicyFault {
    NoKeys,
    Unknown,
    NotForOperators,
    /// The value is not a whole number of at least this.
    Below(u64, Value),
    NotText(Value),
    /// The value is none of the key's choices.
    Choice(String),
}

impl PolicyDefinition {
    /// Parses the definition of a policy, which may have the keys of this release.
    ///
    /// # Errors
    /// A key is unknown or its value invalid, or there are no keys.
    pub fn parse(entries: &Map<String, Value>, release: Compatibility) -> Result<Self, PolicyError> {
        if entries.is_empty() {
            return Err(PolicyError { key: String::new(), fault: PolicyFault::NoKeys });
        }
        let mut definition = Self::default();
        for (key, value) in entries {
            definition.read(key, value, release).map_err(|fault| PolicyError { key: key.clone(), fault })?;
        }
        Ok(definition)
    }

    /// Reads the definition of an operator policy, which supports only some of the numeric keys.
    ///
    /// # Errors
    /// As of [`PolicyDefinition::parse`], or a key is not one of those.
    pub(crate) fn parse_operator(
        entries: &Map<String, Value>,
        release: Compatibility,
    ) -> Result<Self, PolicyError> {
        let is_allowed =
            |key: &str| spec_of(key, release).is_some_and(|spec| spec.policy == PolicyKey::Operator);
        match entries.keys().find(|key| !is_allowed(key)) {
            Some(key) => Err(PolicyError { key: key.clone(), fault: PolicyFault::NotForOperators }),
            None => Self::parse(entries, release),
        }
    }

    pub(super) fn suits(&self, kind: QueueKind) -> bool {
        match kind {
            QueueKind::Classic => !self.not_for_classic,
            QueueKind::Quorum => !self.not_for_quorum,
        }
    }

    fn read(&mut self, key: &str, value: &Value, release: Compatibility) -> Result<(), PolicyFault> {
        if key == "alternate-exchange" {
            self.alternate_exchange = Some(text(value)?.into());
            return Ok(());
        }
        if key == "target-group-size" && release == Compatibility::V4 {
            return Ok(());
        }
        if MIRRORING.contains(&key) {
            self.not_for_quorum = true;
            return Ok(());
        }
        let spec = spec_of(key, release).ok_or(PolicyFault::Unknown)?;
        // The releases agree on the keys that exclude a policy from a type of queue.
        self.not_for_classic |= QueueKind::Classic.refuses(spec, Compatibility::V3_10);
        self.not_for_quorum |= QueueKind::Quorum.refuses(spec, Compatibility::V3_10);
        if spec.has_effect {
            self.arguments.insert(spec.name, argument(&spec.value, value)?);
        }
        Ok(())
    }
}

/// The argument that a policy's key sets, if the release supports the key.
fn spec_of(key: &str, release: Compatibility) -> Option<&'static ArgumentSpec> {
    ArgumentSpec::of_policy(key).filter(|spec| release.knows(spec))
}

/// The value that a policy gives to an argument.
fn argument(valid: &ArgumentValue, value: &Value) -> Result<FieldValue, PolicyFault> {
    match valid {
        ArgumentValue::Count { zero, .. } => {
            let least = u64::from(zero.is_some());
            let number = value.as_u64().filter(|number| *number >= least);
            let number = number.ok_or_else(|| PolicyFault::Below(least, value.clone()))?;
            Ok(FieldValue::I64(i64::try_from(number).unwrap_or(i64::MAX)))
        }
        ArgumentValue::Choice(known, _) => match text(value)? {
            text if known.contains(&text) => Ok(FieldValue::text(text)),
            other => Err(PolicyFault::Choice(other.to_owned())),
        },
        _ => text(value).map(FieldValue::text),
    }
}

fn text(value: &Value) -> Result<&str, PolicyFault> {
    value.as_str().ok_or_else(|| PolicyFault::NotText(value.clone()))
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, fault } = self;
        match fault {
            PolicyFault::NoKeys => f.write_str("no policy provided"),
            PolicyFault::Unknown => write!(f, "{key}: not a recognised policy setting"),
            PolicyFault::NotForOperators => write!(f, "{key}: not recognised in operator policies"),
            PolicyFault::Below(least, value) => {
                write!(f, "{key}: {value} is not a whole number of at least {least}")
            }
            PolicyFault::NotText(value) => write!(f, "{key}: {value} is not a text"),
            // RabbitMQ has another text for this key.
            PolicyFault::Choice(value) if key == "overflow" => {
                write!(f, "{key}: '{value}' is not a valid overflow")
            }
            PolicyFault::Choice(value) => write!(f, "{key}: '{value}' is not a valid {key} value"),
        }
    }
}

/// Keys for mirrored classic queues, which have no effect on a single node.
const MIRRORING: &[&str] = &[
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-batch-size",
    "ha-sync-mode",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<PolicyDefinition, PolicyError> {
        PolicyDefinition::parse(&serde_json::from_str(json).unwrap(), Compatibility::V3_10)
    }

    #[test]
    fn known_keys_are_read() {
        let definition = parse(
            r#"{"message-ttl": 1, "expires": 2, "max-length": 3, "max-length-bytes": 4, "delivery-limit": 5,
                "overflow": "reject-publish", "dead-letter-exchange": "", "dead-letter-routing-key": "k",
                "alternate-exchange": "a", "queue-mode": "lazy"}"#,
        );
        let expected = PolicyDefinition {
            arguments: [
                ("x-dead-letter-exchange", FieldValue::text("")),
                ("x-dead-letter-routing-key", FieldValue::text("k")),
                ("x-delivery-limit", FieldValue::I64(5)),
                ("x-expires", FieldValue::I64(2)),
                ("x-max-length", FieldValue::I64(3)),
                ("x-max-length-bytes", FieldValue::I64(4)),
                ("x-message-ttl", FieldValue::I64(1)),
                ("x-overflow", FieldValue::text("reject-publish")),
                ("x-queue-mode", FieldValue::text("lazy")),
            ]
            .into_iter()
            .collect(),
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
            assert_eq!(parse(json).unwrap_err().to_string(), reason);
        }
        let operator = serde_json::from_str(r#"{"overflow": "drop-head"}"#).unwrap();
        let refused = PolicyDefinition::parse_operator(&operator, Compatibility::V3_10).unwrap_err();
        assert!(refused.to_string().starts_with("overflow: "));
    }

    #[test]
    fn keys_that_only_rabbitmq_4_knows_are_unknown_to_3_10() {
        let operator = [("delayed-retry-min", "1"), ("delayed-retry-max", "1")];
        let others = [
            ("consumer-timeout", "1"),
            ("consumer-disconnected-timeout", "1"),
            ("delayed-retry-type", r#""all""#),
            ("stream-filter-size-bytes", "20"),
            ("target-group-size", "3"),
        ];
        let entries =
            |key: &str, value: &str| serde_json::from_str(&format!(r#"{{"{key}": {value}}}"#)).unwrap();
        for (key, value) in operator.into_iter().chain(others) {
            let parse = |release| PolicyDefinition::parse(&entries(key, value), release);
            let text = format!("{key}: not a recognised policy setting");
            assert_eq!(parse(Compatibility::V3_10).unwrap_err().to_string(), text);
            assert!(parse(Compatibility::V4).is_ok(), "{key}");
        }
        for (key, value) in operator {
            let parse = |release| PolicyDefinition::parse_operator(&entries(key, value), release);
            let text = format!("{key}: not recognised in operator policies");
            assert_eq!(parse(Compatibility::V3_10).unwrap_err().to_string(), text);
            assert!(parse(Compatibility::V4).is_ok(), "{key}");
        }
    }
}
