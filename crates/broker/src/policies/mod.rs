//! Policies: arguments that the operator gives to queues and exchanges by name (RabbitMQ, "Parameters and Policies").

mod definition;

use std::sync::Arc;

use amqp::{FieldTable, FieldValue};

pub use definition::PolicyDefinition;

use crate::arguments::{DeadLettering, QueueArguments, QueueKind};
use crate::permissions::Pattern;
use crate::queue::Queue;

/// A policy or an operator policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The policy's name.
    pub name: String,
    /// Matches the names it applies to.
    pub pattern: Pattern,
    /// Only the matching policy with the highest priority is applied.
    pub priority: i64,
    /// Queues, exchanges, or both.
    pub apply_to: ApplyTo,
    /// The arguments that it sets.
    pub definition: PolicyDefinition,
}

/// The types of objects that a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApplyTo {
    /// Queues and exchanges.
    #[default]
    All,
    /// Queues.
    Queues,
    /// Exchanges.
    Exchanges,
}

/// All policies of a virtual host.
#[derive(Default)]
pub(crate) struct PolicyTable {
    policies: Ranking,
    operator: Ranking,
}

/// Policies in descending order of priority.
#[derive(Default)]
struct Ranking(Vec<Policy>);

impl PolicyTable {
    pub(crate) fn set(&mut self, policy: Policy) {
        self.policies.set(policy);
    }

    pub(crate) fn set_operator(&mut self, policy: Policy) {
        self.operator.set(policy);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.policies.0.retain(|policy| policy.name != name);
    }

    pub(crate) fn remove_operator(&mut self, name: &str) {
        self.operator.0.retain(|policy| policy.name != name);
    }

    /// The names of the policy and the operator policy in effect for a queue.
    pub(crate) fn names_for(&self, queue: &Queue) -> (Option<String>, Option<String>) {
        let fits = |policy: &&Policy| policy.applies_to_queue(queue.name(), queue.kind());
        let name = |ranking: &Ranking| ranking.0.iter().find(fits).map(|policy| policy.name.clone());
        (name(&self.policies), name(&self.operator))
    }

    /// The name of the policy in effect for an exchange.
    pub(crate) fn name_for_exchange(&self, exchange: &str) -> Option<String> {
        let policy = self.policies.0.iter().find(|policy| policy.applies_to_exchange(exchange))?;
        Some(policy.name.clone())
    }

    /// The arguments in effect for a queue: its own, merged with those of its policies. Of two numbers the
    /// lower one is used; otherwise an argument takes precedence over a policy, and a policy over an operator
    /// policy.
    pub(crate) fn arguments_of(&self, queue: &Queue) -> QueueArguments {
        let own = queue.declared_arguments();
        let fits = |policy: &&Policy| policy.applies_to_queue(queue.name(), own.kind);
        let policies = [self.policies.0.iter().find(fits), self.operator.0.iter().find(fits)];
        let overflow_is_set = queue.properties().arguments.get("x-overflow").is_some();
        let mut arguments = own.clone();
        arguments.expires = queue.own_expires();
        let mut overflow_is_set = overflow_is_set;
        let mut lazy = queue.properties().arguments.get("x-queue-mode").map(|_| own.lazy);
        let mut letters_to = own.dead_lettering.as_ref().map(|letters| letters.exchange.clone());
        let mut letter_key = own.dead_lettering.as_ref().and_then(|letters| letters.routing_key.clone());
        for policy in policies.into_iter().flatten() {
            let definition = &policy.definition;
            lower(&mut arguments.message_ttl, definition.message_ttl);
            lower(&mut arguments.expires, definition.expires);
            lower(&mut arguments.max_length, definition.max_length);
            lower(&mut arguments.max_length_bytes, definition.max_length_bytes);
            lower(&mut arguments.delivery_limit, definition.delivery_limit);
            if let Some(overflow) = definition.overflow
                && !overflow_is_set
            {
                arguments.overflow = overflow;
                overflow_is_set = true;
            }
            lazy = lazy.or(definition.lazy);
            letters_to = letters_to.or_else(|| definition.dead_letter_exchange.clone());
            letter_key = letter_key.or_else(|| definition.dead_letter_routing_key.clone());
        }
        arguments.lazy = lazy.unwrap_or_default();
        arguments.dead_lettering =
            letters_to.map(|exchange| DeadLettering { exchange, routing_key: letter_key });
        arguments
    }

    /// The alternate exchange of an exchange, from its arguments or by policy.
    pub(crate) fn alternate_of(&self, exchange: &str, arguments: &FieldTable) -> Option<Arc<str>> {
        if let Some(own) = arguments.get("alternate-exchange").and_then(FieldValue::as_text) {
            return Some(own.into());
        }
        let policy = self.policies.0.iter().find(|policy| policy.applies_to_exchange(exchange))?;
        policy.definition.alternate_exchange.clone()
    }
}

impl Ranking {
    fn set(&mut self, policy: Policy) {
        self.0.retain(|other| other.name != policy.name);
        let at = self.0.partition_point(|other| other.priority >= policy.priority);
        self.0.insert(at, policy);
    }
}

impl Policy {
    /// A policy with a key that this type of queue does not support does not apply at all.
    fn applies_to_queue(&self, name: &str, kind: QueueKind) -> bool {
        self.apply_to != ApplyTo::Exchanges && self.definition.suits(kind) && self.pattern.matches(name)
    }

    fn applies_to_exchange(&self, name: &str) -> bool {
        self.apply_to != ApplyTo::Queues && self.pattern.matches(name)
    }
}

fn lower(value: &mut Option<u64>, other: Option<u64>) {
    *value = match (*value, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

#[cfg(test)]
mod tests;
