//! What `crate::manage` needs of a virtual host's inside.

use std::sync::Arc;

use store::catalogue::{Catalogue, Ticket};

use super::VirtualHost;
use crate::error::BrokerError;
use crate::queue::Queue;
use crate::rates::{ExchangeFlow, MessageCounts};
use crate::time::Timestamp;
use crate::topology::{Destination, Topology};

impl VirtualHost {
    /// Looks at the topology, with its lock held: briefly.
    pub(crate) fn with_topology<R>(&self, look: impl FnOnce(&Topology) -> R) -> R {
        look(&self.topology.read())
    }

    pub(crate) fn default_flow(&self) -> &Arc<ExchangeFlow> {
        &self.default_flow
    }

    /// A queue is gone in which so much came and went.
    pub(crate) fn queue_has_passed(&self, counts: MessageCounts) {
        *self.gone.lock() += counts;
    }

    /// What came and went in queues that are gone.
    pub fn counts_of_gone_queues(&self) -> MessageCounts {
        *self.gone.lock()
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

    /// Whether it has been deleted. A connection that has it open may find that at any time.
    pub fn is_gone(&self) -> bool {
        self.topology.read().is_closed()
    }

    /// Lets `note` write something down that belongs to the virtual host, unless that has been deleted: what bears its name
    /// on disk is another's then. `note` must not call anything of the virtual host.
    pub fn note(&self, note: impl FnOnce(&Catalogue) -> Ticket) -> Option<Ticket> {
        let catalogue = self.catalogue()?;
        // Held meanwhile, so that the deletion comes before this or after it.
        let topology = self.topology.read();
        (!topology.is_closed()).then(|| note(catalogue))
    }

    /// Refuses what would add to a virtual host that has been deleted. Asked with the topology locked.
    pub(super) fn check_stands(&self, topology: &Topology) -> Result<(), BrokerError> {
        if topology.is_closed() { Err(BrokerError::NoVirtualHost(self.name.to_string())) } else { Ok(()) }
    }

    /// Takes the names of all exchanges and queues away, for good: from now on nothing can be declared.
    pub(crate) fn close(&self) -> Vec<Destination> {
        let mut topology = self.topology.write();
        let doomed = topology.close();
        self.topology_changed();
        doomed
    }

    /// Removes exchanges that have lost their names.
    pub(crate) fn finish_exchanges(&self, doomed: Vec<Destination>) {
        self.metrics.exchanges.sub(doomed.len());
        self.demolish(doomed);
    }
}
