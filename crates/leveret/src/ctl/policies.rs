//! Policies and operator policies.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Vhost;
use super::api::{Api, path};
use super::output::Output;
use crate::Failure;

/// Actions on policies.
#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Set a policy for the queues and exchanges whose names match
    #[command(name = "set_policy")]
    Set(Policy),
    /// Remove a policy
    #[command(name = "clear_policy")]
    Clear(PolicyName),
    /// Set an operator policy for the queues whose names match
    #[command(name = "set_operator_policy")]
    SetOperator(Policy),
    /// Remove an operator policy
    #[command(name = "clear_operator_policy")]
    ClearOperator(PolicyName),
}

#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(flatten)]
    vhost: Vhost,
    /// Of several policies that match, the one with the highest priority applies
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    priority: i64,
    /// queues, exchanges or all; an operator policy is for queues unless this says otherwise
    #[arg(long, value_name = "WHAT", value_parser = SCOPES, hide_possible_values = true)]
    apply_to: Option<String>,
    /// The policy
    name: String,
    /// A regular expression for names
    pattern: String,
    /// The definition as JSON, such as {"max-length": 1000}
    definition: String,
}

/// The values that RabbitMQ 4 takes. 3.10 lacks those of one type of queue.
const SCOPES: [&str; 6] = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];

#[derive(Debug, Args)]
pub(super) struct PolicyName {
    #[command(flatten)]
    vhost: Vhost,
    /// The policy
    name: String,
}

pub(super) fn run(command: &PolicyCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        PolicyCommand::Set(policy) => policy.set("policies", "all", api, output),
        PolicyCommand::SetOperator(policy) => policy.set("operator-policies", "queues", api, output),
        PolicyCommand::Clear(name) => name.clear("policies", api, output),
        PolicyCommand::ClearOperator(name) => name.clear("operator-policies", api, output),
    }
}

impl Policy {
    fn set(&self, kind: &str, usual: &str, api: &Api, output: &Output) -> Result<(), Failure> {
        let definition = json_argument("definition", &self.definition)?;
        let value = json!({
            "pattern": self.pattern,
            "definition": definition,
            "priority": self.priority,
            "apply-to": self.apply_to.as_deref().unwrap_or(usual),
        });
        api.put(&path(&[kind, &self.vhost.vhost, &self.name]), &value)?;
        output.done(&format!("policy '{}' of virtual host '{}' set", self.name, self.vhost.vhost))
    }
}

impl PolicyName {
    fn clear(&self, kind: &str, api: &Api, output: &Output) -> Result<(), Failure> {
        api.delete(&path(&[kind, &self.vhost.vhost, &self.name]))?;
        output.done(&format!("policy '{}' of virtual host '{}' cleared", self.name, self.vhost.vhost))
    }
}

/// Parses an argument that must be a JSON object.
pub(super) fn json_argument(name: &str, text: &str) -> Result<Value, Failure> {
    let fault = |reason: String| Failure::Usage(format!("{name}: {reason}"));
    let value: Value = serde_json::from_str(text).map_err(|error| fault(format!("is not JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(fault("is not a JSON object".to_owned())) }
}
