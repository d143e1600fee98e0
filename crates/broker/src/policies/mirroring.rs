//! The keys of RabbitMQ 3.10 for mirrored classic queues, which have no effect on a single node. Mistakes in them are found all
//! the same, as in `rabbit_mirror_queue_misc`.

use serde_json::{Map, Value};

use super::definition::{PolicyFault, least};

/// The keys, in the order in which they are checked.
const KEYS: [&str; 6] =
    [MODE, PARAMS, "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure"];

const MODE: &str = "ha-mode";
const PARAMS: &str = "ha-params";

/// Whether a policy's key is one of these.
pub(super) fn is_key(key: &str) -> bool {
    KEYS.contains(&key)
}

/// Checks the values of these keys.
///
/// # Errors
/// One of them is wrong, which is named.
pub(super) fn check(entries: &Map<String, Value>) -> Result<(), (&'static str, PolicyFault)> {
    for key in KEYS {
        let Some(value) = entries.get(key) else { continue };
        let mode = entries.get(MODE).ok_or((key, PolicyFault::Needs(MODE)))?;
        let checked = match key {
            MODE => check_mode(mode, entries.get(PARAMS)),
            PARAMS => check_params(mode, value),
            "ha-sync-mode" => one_of(value, &["manual", "automatic"]),
            "ha-sync-batch-size" => least(1, value).map(drop),
            _ => one_of(value, &["always", "when-synced"]),
        };
        checked.map_err(|fault| (key, fault))?;
    }
    Ok(())
}

fn check_mode(mode: &Value, params: Option<&Value>) -> Result<(), PolicyFault> {
    one_of(mode, &["all", "exactly", "nodes"])?;
    if *mode != "all" && params.is_none() { Err(PolicyFault::Needs(PARAMS)) } else { Ok(()) }
}

fn check_params(mode: &Value, params: &Value) -> Result<(), PolicyFault> {
    let is_valid = match mode.as_str() {
        Some("exactly") => return least(1, params).map(drop),
        Some("nodes") => {
            params.as_array().is_some_and(|nodes| !nodes.is_empty() && nodes.iter().all(Value::is_string))
        }
        _ => false,
    };
    if is_valid { Ok(()) } else { Err(PolicyFault::Choice(params.to_string())) }
}

fn one_of(value: &Value, choices: &[&str]) -> Result<(), PolicyFault> {
    match value.as_str() {
        Some(text) if choices.contains(&text) => Ok(()),
        Some(text) => Err(PolicyFault::Choice(text.to_owned())),
        None => Err(PolicyFault::NotText(value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        let cases = [
            (r#"{"ha-mode": "all"}"#, Ok(())),
            (r#"{"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}"#, Ok(())),
            (r#"{"ha-mode": "nodes", "ha-params": ["a"], "ha-promote-on-failure": "always"}"#, Ok(())),
            (r#"{"ha-sync-mode": "automatic"}"#, Err("ha-sync-mode")),
            (r#"{"ha-params": 2}"#, Err("ha-params")),
            (r#"{"ha-mode": "odd"}"#, Err("ha-mode")),
            (r#"{"ha-mode": 5}"#, Err("ha-mode")),
            (r#"{"ha-mode": "exactly"}"#, Err("ha-mode")),
            (r#"{"ha-mode": "exactly", "ha-params": 0}"#, Err("ha-params")),
            (r#"{"ha-mode": "all", "ha-params": 2}"#, Err("ha-params")),
            (r#"{"ha-mode": "nodes", "ha-params": []}"#, Err("ha-params")),
            (r#"{"ha-mode": "nodes", "ha-params": [1]}"#, Err("ha-params")),
            (r#"{"ha-mode": "all", "ha-sync-batch-size": 0}"#, Err("ha-sync-batch-size")),
            (r#"{"ha-mode": "all", "ha-promote-on-shutdown": "never"}"#, Err("ha-promote-on-shutdown")),
        ];
        for (json, expected) in cases {
            let entries = serde_json::from_str(json).unwrap();
            assert_eq!(check(&entries).map_err(|(key, _)| key), expected, "{json}");
        }
    }
}
