//! The internals of a virtual host that `crate::manage` needs.

use std::sync::Arc;

use store::catalogue::{Catalogue, Ticket};

use super::VirtualHost;
use sync::atomic::Ordering;

use crate::arguments::QueueKind;
use crate::error::BrokerError;
use crate::queue::Queue;
use crate::rates::{ExchangeFlow, MessageCounts};
use crate::time::Timestamp;
use crate::topology::{Destination, Topology};

impl VirtualHost {
    /// Calls `look` with the topology read-locked; `look` must be brief.
    pub(crate) fn with_topology<R>(&self, look: impl FnOnce(&Topology) -> R) -> R {
        look(&self.topology.read())
    }

    pub(crate) fn default_flow(&self) -> &Arc<ExchangeFlow> {
        &self.default_flow
    }

    /// Adds the counts of a deleted queue.
    pub(crate) fn add_counts_of_deleted_queue(&self, counts: MessageCounts) {
        *self.gone.lock() += counts;
    }

    /// The kind of queues declared without a type, if the followed release has such a setting.
    pub(crate) fn default_queue_kind(&self) -> QueueKind {
        if self.prefers_quorum.load(Ordering::Relaxed) { QueueKind::Quorum } else { QueueKind::Classic }
    }

    /// Changes the kind of queues declared without a type from now on.
    pub(crate) fn set_default_queue_kind(&self, kind: QueueKind) {
        self.prefers_quorum.store(kind == QueueKind::Quorum, Ordering::Relaxed);
    }

    /// Counters of messages in queues that have been deleted.
    pub fn counts_of_deleted_queues(&self) -> MessageCounts {
        *self.gone.lock()
    }

    /// The names of the policy and the operator policy in effect for a queue.
    pub(crate) fn policy_names_for(&self, queue: &Queue) -> (Option<String>, Option<String>) {
        self.current_policies().names_for(queue)
    }

    /// The name of the policy in effect for an exchange.
    pub fn policy_of_exchange(&self, exchange: &str) -> Option<String> {
        self.current_policies().name_for_exchange(exchange)
    }

    /// Removes the restriction of a user's topics on one exchange.
    pub(crate) fn remove_topic_permissions(&self, user: &str, exchange: &str) {
        self.grant(user).remove_topic(exchange);
        self.forget_routes();
    }

    /// Removes an operator policy.
    pub(crate) fn remove_operator_policy(self: &Arc<Self>, name: &str, now: Timestamp) {
        self.change_policies(|policies| policies.remove_operator(name));
        self.apply_policies(now);
    }

    /// Whether it has been deleted, which may happen while a connection has it open.
    pub fn is_gone(&self) -> bool {
        self.topology.read().is_closed()
    }

    /// Calls `note` to store an entry under the virtual host's name, unless the virtual host has been deleted, after
    /// which the name on disk may belong to a new one. `note` must not call the virtual host.
    pub fn note(&self, note: impl FnOnce(&Catalogue) -> Ticket) -> Option<Ticket> {
        let catalogue = self.catalogue()?;
        // Locked during the call, so that a deletion happens either before or after it.
        let topology = self.topology.read();
        (!topology.is_closed()).then(|| note(catalogue))
    }

    /// Refuses additions to a deleted virtual host. Called with the topology locked.
    pub(super) fn check_not_deleted(&self, topology: &Topology) -> Result<(), BrokerError> {
        if topology.is_closed() { Err(BrokerError::NoVirtualHost(self.name.to_string())) } else { Ok(()) }
    }

    /// Removes the names of all exchanges and queues permanently: from now on nothing can be declared.
    pub(crate) fn close(&self) -> Vec<Destination> {
        let mut topology = self.topology.write();
        let doomed = topology.close();
        self.topology_changed();
        doomed
    }

    /// Removes exchanges that have lost their names, with their bindings.
    pub(crate) fn finish_exchanges(&self, doomed: Vec<Destination>) {
        self.metrics.exchanges.sub(doomed.len());
        self.delete_in_steps(doomed);
    }
}
