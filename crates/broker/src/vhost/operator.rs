//! The operator's settings for a virtual host: permissions, policies and limits.

use std::sync::Arc;

use super::VirtualHost;
use crate::error::BrokerError;
use crate::limits::{Tally, VirtualHostLimits, too_many_queues};
use crate::permissions::{Grant, PatternError, Permissions, TopicPermissions};
use crate::policies::Policy;
use crate::time::Timestamp;
use crate::users::Identity;

impl VirtualHost {
    /// Sets the permissions of a user, or removes them. They take effect at once, also for open connections;
    /// those stay open.
    ///
    /// # Errors
    /// An expression is invalid. Nothing has changed then.
    pub fn set_permissions(&self, user: &str, permissions: Option<&Permissions>) -> Result<(), PatternError> {
        self.grant(user).set(permissions)?;
        self.forget_routes();
        Ok(())
    }

    /// Restricts the topics of a user on one exchange.
    ///
    /// # Errors
    /// An expression is invalid. Nothing has changed then.
    pub fn set_topic_permissions(
        &self,
        user: &str,
        permissions: &TopicPermissions,
    ) -> Result<(), PatternError> {
        self.grant(user).set_topic(permissions)?;
        self.forget_routes();
        Ok(())
    }

    /// Adds a policy, or changes the one with its name. It applies to existing queues and exchanges at once.
    pub fn set_policy(self: &Arc<Self>, policy: Policy, now: Timestamp) {
        self.policies.write().set(policy);
        self.apply_policies(now);
    }

    /// Adds an operator policy, or changes the one with its name.
    pub fn set_operator_policy(self: &Arc<Self>, policy: Policy, now: Timestamp) {
        self.policies.write().set_operator(policy);
        self.apply_policies(now);
    }

    /// Removes a policy. Queues and exchanges get the next one that matches, at once.
    pub(crate) fn remove_policy(self: &Arc<Self>, name: &str, now: Timestamp) {
        self.policies.write().remove(name);
        self.apply_policies(now);
    }

    /// Sets the limits of connections and queues. Existing ones stay.
    pub fn set_limits(&self, limits: VirtualHostLimits) {
        *self.limits.write() = limits;
    }

    pub(crate) fn limits(&self) -> VirtualHostLimits {
        *self.limits.read()
    }

    pub(crate) fn connections(&self) -> &Tally {
        &self.connections
    }

    pub(crate) fn grant(&self, user: &str) -> Arc<Grant> {
        self.grants.of(user, &self.name, self.compatibility)
    }

    /// The rights of a user who has logged in: those of the broker's own users are shared, and change with what the
    /// operator defines.
    pub(crate) fn grant_of(&self, identity: &Identity) -> Arc<Grant> {
        let external = Grant::of_external(identity, &self.name, self.compatibility);
        external.unwrap_or_else(|| self.grant(identity.user()))
    }

    /// Refuses a user who has no permissions in this virtual host.
    ///
    /// # Errors
    /// 530.
    pub(crate) fn check_open(&self, identity: &Identity) -> Result<(), BrokerError> {
        match Grant::of_external(identity, &self.name, self.compatibility) {
            Some(grant) => grant.check_open(),
            None if self.grants.may_open(identity.user()) => Ok(()),
            None => {
                let (vhost, user) = (self.name.to_string(), identity.user().to_owned());
                Err(BrokerError::VirtualHostRefused { vhost, user })
            }
        }
    }

    pub(crate) fn has_queue(&self, name: &str) -> bool {
        self.topology.read().queue(name).is_some()
    }

    pub(crate) fn has_exchange(&self, name: &str) -> bool {
        self.topology.read().exchange(name).is_some()
    }

    pub(super) fn check_queue_limit(&self, queue: &str) -> Result<(), BrokerError> {
        match self.limits().max_queues {
            Some(limit) if self.topology.read().queue_count() as u64 >= limit => {
                Err(too_many_queues(queue, &self.name, limit))
            }
            _ => Ok(()),
        }
    }

    /// Applies the current policies to every queue and exchange. A concurrent declaration either waits for
    /// this, or precedes it and is included.
    pub(super) fn apply_policies(&self, now: Timestamp) {
        let policies = self.policies.read();
        let mut topology = self.topology.write();
        topology.set_alternates(|exchange| policies.alternate_of(&exchange.name, &exchange.arguments));
        let queues: Vec<_> = topology.queues().cloned().collect();
        self.topology_changed();
        drop(topology);
        let changed: Vec<_> =
            queues.into_iter().filter(|queue| queue.set_arguments(policies.arguments_of(queue))).collect();
        drop(policies);
        for queue in changed {
            queue.arguments_changed(now);
        }
    }

    /// Makes publishers check permissions again.
    pub(super) fn forget_routes(&self) {
        let topology = self.topology.write();
        self.topology_changed();
        drop(topology);
    }
}
