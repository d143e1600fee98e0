//! Policies: arguments that the operator gives to queues and exchanges by name (RabbitMQ, "Parameters and Policies").

mod definition;

use std::sync::Arc;

use amqp::{FieldTable, FieldValue};

pub use definition::{PolicyDefinition, PolicyError};

use crate::arguments::{QueueArguments, QueueKind};
use crate::permissions::Pattern;
use crate::queue::Queue;

/// A policy or an operator policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Unique in the virtual host, among policies or among operator policies.
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
    /// Queues of one kind.
    QueuesOf(QueueKind),
    /// Nothing: streams, of which there are none.
    Streams,
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
        let name = |ranking: &Ranking| ranking.of_queue(queue).map(|policy| policy.name.clone());
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
        let [policy, operator] = [&self.policies, &self.operator].map(|ranking| {
            ranking.of_queue(queue).map_or(&NO_ARGUMENTS, |policy| &policy.definition.arguments)
        });
        let arguments = QueueArguments::read(&queue.own_arguments(), &[policy, operator]);
        match &queue.properties().capacity {
            Some(capacity) => arguments.within(**capacity),
            None => arguments,
        }
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

    /// The policy that applies to a queue.
    fn of_queue(&self, queue: &Queue) -> Option<&Policy> {
        self.0.iter().find(|policy| policy.applies_to_queue(queue.name(), queue.kind()))
    }
}

impl Policy {
    /// A policy with a key that this type of queue does not support does not apply at all.
    fn applies_to_queue(&self, name: &str, kind: QueueKind) -> bool {
        let is_meant = match self.apply_to {
            ApplyTo::All | ApplyTo::Queues => true,
            ApplyTo::QueuesOf(meant) => meant == kind,
            ApplyTo::Streams | ApplyTo::Exchanges => false,
        };
        is_meant && self.definition.suits(kind) && self.pattern.matches(name)
    }

    fn applies_to_exchange(&self, name: &str) -> bool {
        matches!(self.apply_to, ApplyTo::All | ApplyTo::Exchanges) && self.pattern.matches(name)
    }
}

static NO_ARGUMENTS: FieldTable = FieldTable::new();

#[cfg(test)]
mod tests;
