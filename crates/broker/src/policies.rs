//! Policies: arguments that the operator gives to queues and exchanges by name (RabbitMQ, "Parameters and Policies").

mod definition;
mod mirroring;

use std::cmp::Reverse;
use std::sync::Arc;

use amqp::{FieldTable, FieldValue};
use sync::Rank;

pub use definition::{PolicyDefinition, PolicyError};

use crate::arguments::{QueueArguments, QueueKind};
use crate::permissions::Pattern;
use crate::queue::Queue;

/// A policy or an operator policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Unique in the virtual host, among policies or among operator policies.
    pub name: String,
    /// Matches the names to which it applies.
    pub pattern: Pattern,
    /// Only the matching policy with the highest priority is applied; of several, the one whose name comes first.
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

/// All policies of a virtual host. Do not match names under a lock that others wait for: expressions may take long, and
/// their authors need no permissions in other virtual hosts.
#[derive(Clone, Default)]
pub(crate) struct PolicyTable {
    policies: Ranking,
    operator: Ranking,
}

/// Policies in descending order of priority, and those of equal priority ordered by name, so that a restart does not
/// change which one is in effect.
#[derive(Clone, Default)]
struct Ranking(Vec<Arc<Policy>>);

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

    /// The number of policies and operator policies.
    pub(crate) fn len(&self) -> usize {
        self.policies.0.len() + self.operator.0.len()
    }

    /// The names of the policy and the operator policy in effect for a queue.
    pub(crate) fn names_for(&self, queue: &Queue) -> (Option<String>, Option<String>) {
        let name = |ranking: &Ranking| ranking.of_queue(queue).map(|policy| policy.name.clone());
        (name(&self.policies), name(&self.operator))
    }

    /// The name of the policy in effect for an exchange.
    pub(crate) fn name_for_exchange(&self, exchange: &str) -> Option<String> {
        self.policies.of_exchange(exchange).map(|policy| policy.name.clone())
    }

    /// The arguments in effect for a queue: its own, merged with those of its policies, as [`QueueArguments::read`] does.
    /// An argument takes precedence over a policy, and a policy over an operator policy.
    pub(crate) fn arguments_of(&self, queue: &Queue) -> QueueArguments {
        let [policy, operator] = [&self.policies, &self.operator].map(|ranking| {
            ranking.of_queue(queue).map_or(&NO_ARGUMENTS, |policy| &policy.definition.arguments)
        });
        let arguments =
            QueueArguments::read(&queue.own_arguments(), &[policy, operator], queue.compatibility());
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
        self.policies.of_exchange(exchange)?.definition.alternate_exchange.clone()
    }
}

impl Ranking {
    fn set(&mut self, policy: Policy) {
        self.0.retain(|other| other.name != policy.name);
        let rank = (Reverse(policy.priority), &policy.name);
        let at = self.0.partition_point(|other| (Reverse(other.priority), &other.name) < rank);
        self.0.insert(at, Arc::new(policy));
    }

    /// The policy that applies to a queue.
    fn of_queue(&self, queue: &Queue) -> Option<&Policy> {
        self.first(|policy| policy.applies_to_queue(queue))
    }

    /// The policy that applies to an exchange.
    fn of_exchange(&self, exchange: &str) -> Option<&Policy> {
        self.first(|policy| policy.applies_to_exchange(exchange))
    }

    fn first(&self, applies: impl Fn(&Policy) -> bool) -> Option<&Policy> {
        sync::check_may_take(Rank::Policies);
        self.0.iter().map(|policy| &**policy).find(|policy| applies(policy))
    }
}

impl Policy {
    /// A policy with a key that this type of queue does not support does not apply at all.
    fn applies_to_queue(&self, queue: &Queue) -> bool {
        let kind = queue.kind();
        let is_meant = match self.apply_to {
            ApplyTo::All | ApplyTo::Queues => true,
            ApplyTo::QueuesOf(meant) => meant == kind,
            ApplyTo::Streams | ApplyTo::Exchanges => false,
        };
        is_meant
            && self.definition.applies_to(kind, queue.compatibility())
            && self.pattern.matches(queue.name())
    }

    fn applies_to_exchange(&self, name: &str) -> bool {
        self.is_for_exchanges() && self.pattern.matches(name)
    }

    pub(crate) fn is_for_queues(&self) -> bool {
        matches!(self.apply_to, ApplyTo::All | ApplyTo::Queues | ApplyTo::QueuesOf(_))
    }

    pub(crate) fn is_for_exchanges(&self) -> bool {
        matches!(self.apply_to, ApplyTo::All | ApplyTo::Exchanges)
    }
}

static NO_ARGUMENTS: FieldTable = FieldTable::new();

#[cfg(test)]
mod tests;
