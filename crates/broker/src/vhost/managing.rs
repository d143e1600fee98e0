//! What `crate::manage` needs of a virtual host's inside.

use super::VirtualHost;
use crate::queue::Queue;
use crate::time::Timestamp;
use crate::topology::{Destination, Topology};
use std::sync::Arc;

impl VirtualHost {
    /// Looks at the topology, with its lock held: briefly.
    pub(crate) fn with_topology<R>(&self, look: impl FnOnce(&Topology) -> R) -> R {
        look(&self.topology.read())
    }

    /// The names of the policy and the operator policy that hold for a queue.
    pub(crate) fn policy_names_for(&self, queue: &Queue) -> (Option<String>, Option<String>) {
        self.policies.read().names_for(queue)
    }

    /// The name of the policy that holds for an exchange.
    pub fn policy_of_exchange(&self, exchange: &str) -> Option<String> {
        self.policies.read().name_for_exchange(exchange)
    }

    /// Lifts the restriction of a user's topics on one exchange.
    pub(crate) fn remove_topic_permissions(&self, user: &str, exchange: &str) {
        self.grant(user).remove_topic(exchange);
        self.forget_routes();
    }

    /// Removes an operator policy.
    pub(crate) fn remove_operator_policy(self: &Arc<Self>, name: &str, now: Timestamp) {
        self.policies.write().remove_operator(name);
        self.apply_policies(now);
    }

    /// Takes the names of all exchanges away.
    pub(crate) fn doom_exchanges(&self) -> Vec<Destination> {
        let mut topology = self.topology.write();
        let doomed = topology.doom_all_exchanges();
        self.topology_changed();
        doomed
    }

    /// Removes exchanges that have lost their names.
    pub(crate) fn finish_exchanges(&self, doomed: Vec<Destination>) {
        self.metrics.exchanges.sub(doomed.len());
        self.demolish(doomed);
    }

    /// From now on nothing of it is written down: its name may be another's by then.
    pub(crate) fn keep_no_more(&self) {
        self.topology.write().keep_no_more();
    }
}
