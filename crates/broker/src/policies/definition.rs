//! The definition of a policy: its keys and values, validated as in RabbitMQ.

use std::fmt;
use std::sync::Arc;

use amqp::{ArgumentSpec, ArgumentValue, FieldTable, FieldValue};
use serde_json::{Map, Value};

use super::mirroring;
use crate::arguments::QueueKind;
use crate::compatibility::Compatibility;

/// The keys of a policy that have an effect here; other keys that RabbitMQ supports are accepted and ignored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyDefinition {
    /// The queue arguments that it sets.
    pub(super) arguments: FieldTable,
    /// `alternate-exchange`.
    pub(super) alternate_exchange: Option<Arc<str>>,
    /// The queue types to which it does not apply because they do not support one of its keys, by release.
    unsupported_by: Vec<(QueueKind, Compatibility)>,
}

/// A definition of a policy that is refused. `Display` begins with the key at fault.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub struct PolicyError {
    key: String,
    fault: PolicyFault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PolicyFault {
    NoKeys,
    Unknown,
    NotForOperators,
    /// The value is not a whole number of at least this.
    Below(u64, Value),
    NotText(Value),
    /// The value is more than this.
    Above(i64, Value),
    /// The value is not one of the key's choices.
    Choice(String),
    /// The key has to come with this one.
    Needs(&'static str),
}

impl PolicyDefinition {
    /// Parses the definition of a policy, which may have the keys of this release. `None` stands for a stored policy, which
    /// may have those of any release.
    ///
    /// # Errors
    /// A key is unknown or its value invalid, or there are no keys.
    pub fn parse(
        entries: &Map<String, Value>,
        release: impl Into<Option<Compatibility>>,
    ) -> Result<Self, PolicyError> {
        let release = release.into();
        if entries.is_empty() {
            return Err(PolicyError { key: String::new(), fault: PolicyFault::NoKeys });
        }
        let mut definition = Self { unsupported_by: unsupported_by(entries), ..Self::default() };
        for (key, value) in entries {
            definition.read(key, value, release).map_err(|fault| PolicyError { key: key.clone(), fault })?;
        }
        let checked = match release {
            Some(Compatibility::V3_10) => mirroring::check(entries),
            Some(Compatibility::V4) => check_delayed_retry(entries),
            None => Ok(()),
        };
        checked.map_err(|(key, fault)| PolicyError { key: key.to_owned(), fault })?;
        Ok(definition)
    }

    /// Reads the definition of an operator policy, which supports only some of the keys.
    ///
    /// # Errors
    /// As of [`PolicyDefinition::parse`], or a key is not one of those.
    pub(crate) fn parse_operator(
        entries: &Map<String, Value>,
        release: impl Into<Option<Compatibility>>,
    ) -> Result<Self, PolicyError> {
        let release = release.into();
        let is_allowed = |key: &str| match key {
            TARGET_GROUP_SIZE => release.is_none_or(|release| release == Compatibility::V4),
            _ => ArgumentSpec::of_policy(key)
                .is_some_and(|spec| release.is_none_or(|release| release.allows_operator_key(spec))),
        };
        match entries.keys().find(|key| !is_allowed(key)) {
            Some(key) => Err(PolicyError { key: key.clone(), fault: PolicyFault::NotForOperators }),
            None => Self::parse(entries, release),
        }
    }

    pub(super) fn applies_to(&self, kind: QueueKind, release: Compatibility) -> bool {
        !self.unsupported_by.contains(&(kind, release))
    }

    fn read(&mut self, key: &str, value: &Value, release: Option<Compatibility>) -> Result<(), PolicyFault> {
        if key == "alternate-exchange" {
            self.alternate_exchange = Some(text(value)?.into());
            return Ok(());
        }
        if mirroring::is_key(key) && release.is_none_or(|release| release == Compatibility::V3_10)
            || key == TARGET_GROUP_SIZE && release.is_none()
        {
            return Ok(());
        }
        if key == TARGET_GROUP_SIZE && release == Some(Compatibility::V4) {
            return least(1, value).map(drop);
        }
        let spec = ArgumentSpec::of_policy(key)
            .filter(|spec| release.is_none_or(|release| release.allows_policy_key(spec)));
        let spec = spec.ok_or(PolicyFault::Unknown)?;
        let checked =
            if spec.has_effect { argument(&spec.value, value).map(Some) } else { check(spec, value) };
        match checked {
            Ok(Some(value)) => self.arguments.insert(spec.name, value),
            Ok(None) => {}
            // It was stored by a build that did not check the value.
            Err(_) if release.is_none() => {}
            Err(fault) => return Err(fault),
        }
        Ok(())
    }
}

/// The types of queues, by release, to which a policy with these keys does not apply.
fn unsupported_by(entries: &Map<String, Value>) -> Vec<(QueueKind, Compatibility)> {
    let kinds = [QueueKind::Classic, QueueKind::Quorum].into_iter();
    let all = kinds.flat_map(|kind| [Compatibility::V3_10, Compatibility::V4].map(|release| (kind, release)));
    all.filter(|(kind, release)| entries.keys().any(|key| !supports(*kind, key, *release))).collect()
}

/// Whether a policy with this key applies to queues of this type. The excluded keys are those in `unsupported_policies` of
/// RabbitMQ's `rabbit_classic_queue` and `rabbit_quorum_queue`, which differ from the arguments that the type does not
/// support.
fn supports(kind: QueueKind, key: &str, release: Compatibility) -> bool {
    use QueueKind::{Classic, Quorum};
    match (kind, key) {
        (_, "max-age" | "stream-max-segment-size-bytes" | "initial-cluster-size") => false,
        (Classic, "delivery-limit" | "dead-letter-strategy") => false,
        (Classic, "queue-leader-locator") => release == Compatibility::V4,
        (Classic, "max-in-memory-length" | "max-in-memory-bytes" | TARGET_GROUP_SIZE) => {
            release == Compatibility::V3_10
        }
        (Quorum, "queue-mode" | "queue-master-locator") => false,
        (Quorum, key) => !mirroring::is_key(key),
        (Classic, _) => true,
    }
}

/// The value that a policy gives to an argument.
fn argument(valid: &ArgumentValue, value: &Value) -> Result<FieldValue, PolicyFault> {
    match valid {
        ArgumentValue::Count { zero, .. } => {
            let number = least(u64::from(zero.is_some()), value)?;
            Ok(FieldValue::I64(i64::try_from(number).unwrap_or(i64::MAX)))
        }
        ArgumentValue::Choice(known, _) => match text(value)? {
            text if known.contains(&text) => Ok(FieldValue::text(text)),
            other => Err(PolicyFault::Choice(other.to_owned())),
        },
        _ => text(value).map(FieldValue::text),
    }
}

/// Checks the value of a key without effect. There are no streams here, whose keys may have any.
fn check(spec: &ArgumentSpec, value: &Value) -> Result<Option<FieldValue>, PolicyFault> {
    match (&spec.value, value.as_i64()) {
        (ArgumentValue::Unspecified, _) => {}
        (ArgumentValue::Count { most: Some((most, _)), .. }, Some(number)) if number > *most => {
            return Err(PolicyFault::Above(*most, value.clone()));
        }
        (valid, _) => _ = argument(valid, value)?,
    }
    Ok(None)
}

/// Checks the keys for the delays of redelivery that RabbitMQ 4 has, which have no effect here.
fn check_delayed_retry(entries: &Map<String, Value>) -> Result<(), (&'static str, PolicyFault)> {
    const TYPE: &str = "delayed-retry-type";
    const MIN: &str = "delayed-retry-min";
    const MAX: &str = "delayed-retry-max";
    let number = |key| entries.get(key).and_then(Value::as_u64);
    if entries.get(TYPE).is_some_and(|kind| kind != "disabled") && !entries.contains_key(MIN) {
        return Err((TYPE, PolicyFault::Needs(MIN)));
    }
    match (number(MIN), number(MAX)) {
        (Some(min), Some(max)) if max < min => Err((MAX, PolicyFault::Below(min, max.into()))),
        _ => Ok(()),
    }
}

/// A whole number of at least `least`.
pub(super) fn least(least: u64, value: &Value) -> Result<u64, PolicyFault> {
    let number = value.as_u64().filter(|number| *number >= least);
    number.ok_or_else(|| PolicyFault::Below(least, value.clone()))
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
            PolicyFault::Above(most, value) => write!(f, "{key}: {value} is more than {most}"),
            PolicyFault::Needs(other) => write!(f, "{key}: {other} must be specified, too"),
            PolicyFault::NotText(value) => write!(f, "{key}: {value} is not a text"),
            // RabbitMQ has another text for this key.
            PolicyFault::Choice(value) if key == "overflow" => {
                write!(f, "{key}: '{value}' is not a valid overflow")
            }
            PolicyFault::Choice(value) => write!(f, "{key}: '{value}' is not a valid {key} value"),
        }
    }
}

/// The key for the number of a quorum queue's replicas, which has no effect on a single node.
const TARGET_GROUP_SIZE: &str = "target-group-size";

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
            unsupported_by: vec![
                (QueueKind::Classic, Compatibility::V3_10),
                (QueueKind::Classic, Compatibility::V4),
                (QueueKind::Quorum, Compatibility::V3_10),
                (QueueKind::Quorum, Compatibility::V4),
            ],
        };
        assert_eq!(definition, Ok(expected));
    }

    #[test]
    fn a_policy_does_not_apply_to_queue_types_that_do_not_support_its_keys() {
        use Compatibility::{V3_10, V4};
        use QueueKind::{Classic, Quorum};
        let all = [(Classic, V3_10), (Classic, V4), (Quorum, V3_10), (Quorum, V4)];
        let cases: &[(&str, &[(QueueKind, Compatibility)])] = &[
            (r#"{"queue-version": 2}"#, &all),
            (r#"{"overflow": "drop-head"}"#, &all),
            (r#"{"max-in-memory-length": 4}"#, &[all[0], all[2], all[3]]),
            (r#"{"max-in-memory-bytes": 4}"#, &[all[0], all[2], all[3]]),
            (r#"{"target-group-size": 3}"#, &[all[0], all[2], all[3]]),
            (r#"{"queue-leader-locator": "balanced"}"#, &all[1..]),
            (r#"{"delivery-limit": 3}"#, &all[2..]),
            (r#"{"dead-letter-strategy": "at-least-once"}"#, &all[2..]),
            (r#"{"queue-mode": "lazy"}"#, &all[..2]),
            (r#"{"ha-mode": "all"}"#, &all[..2]),
            (r#"{"max-age": "1h"}"#, &[]),
        ];
        for (json, suited) in cases {
            let definition = PolicyDefinition::parse(&serde_json::from_str(json).unwrap(), None).unwrap();
            let found: Vec<_> =
                all.into_iter().filter(|(kind, release)| definition.applies_to(*kind, *release)).collect();
            assert_eq!(found, *suited, "{json}");
        }
    }

    #[test]
    fn each_release_has_keys_that_the_other_refuses() {
        let entries = |json: &str| serde_json::from_str(json).unwrap();
        for json in [r#"{"ha-mode": "all"}"#, r#"{"queue-master-locator": "random"}"#] {
            assert!(PolicyDefinition::parse(&entries(json), Compatibility::V3_10).is_ok());
            let refused = PolicyDefinition::parse(&entries(json), Compatibility::V4).unwrap_err();
            assert!(refused.to_string().ends_with(": not a recognised policy setting"), "{refused}");
            assert!(PolicyDefinition::parse(&entries(json), None).is_ok(), "accepted before");
        }
        let odd = entries(r#"{"dead-letter-strategy": "odd"}"#);
        assert!(PolicyDefinition::parse(&odd, Compatibility::V4).is_err());
        assert!(PolicyDefinition::parse(&odd, None).is_ok(), "by a build that did not check it");
        for json in [r#"{"overflow": "drop-head"}"#, r#"{"queue-version": 2}"#, r#"{"target-group-size": 3}"#]
        {
            assert!(PolicyDefinition::parse_operator(&entries(json), Compatibility::V4).is_ok(), "{json}");
            assert!(PolicyDefinition::parse_operator(&entries(json), None).is_ok(), "{json}");
            let refused = PolicyDefinition::parse_operator(&entries(json), Compatibility::V3_10).unwrap_err();
            assert!(refused.to_string().ends_with(": not recognised in operator policies"), "{refused}");
        }
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
    fn values_of_keys_without_effect_are_checked_as_well() {
        for (json, reason) in [
            (r#"{"target-group-size": 0}"#, "target-group-size: 0 is not a whole number of at least 1"),
            (r#"{"queue-version": 3}"#, "queue-version: 3 is more than 2"),
            (r#"{"consumer-timeout": -1}"#, "consumer-timeout: -1 is not a whole number of at least 0"),
            (
                r#"{"delayed-retry-type": "all"}"#,
                "delayed-retry-type: delayed-retry-min must be specified, too",
            ),
            (
                r#"{"delayed-retry-min": 2, "delayed-retry-max": 1}"#,
                "delayed-retry-max: 1 is not a whole number of at least 2",
            ),
        ] {
            let entries = serde_json::from_str(json).unwrap();
            let refused = PolicyDefinition::parse(&entries, Compatibility::V4).unwrap_err();
            assert_eq!(refused.to_string(), reason);
            assert!(PolicyDefinition::parse(&entries, None).is_ok(), "{json}: stored before");
        }
    }

    #[test]
    fn keys_that_only_rabbitmq_4_knows_are_unknown_to_3_10() {
        let operator =
            [("delayed-retry-min", "1"), ("delayed-retry-max", "1"), ("delayed-retry-type", r#""disabled""#)];
        let others = [
            ("consumer-timeout", "1"),
            ("consumer-disconnected-timeout", "1"),
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
