//! The operator's settings for a virtual host: permissions, policies and limits.

use std::sync::Arc;

use super::VirtualHost;
use crate::error::BrokerError;
use crate::limits::{Tally, VirtualHostLimits, too_many_queues};
use crate::permissions::{Grant, PatternError, Permissions, TooManySteps, TopicPermissions};
use crate::policies::{Policy, PolicyTable};
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
        self.put_policy(policy);
        self.apply_policies(now);
    }

    /// Like [`Self::set_policy`], but existing queues and exchanges change only when policies are
    /// [applied](Self::apply_policies).
    pub(crate) fn put_policy(&self, policy: Policy) {
        self.change_policies(|policies| policies.set(policy));
    }

    /// As [`Self::put_policy`].
    pub(crate) fn put_operator_policy(&self, policy: Policy) {
        self.change_policies(|policies| policies.set_operator(policy));
    }

    /// Removes a policy. Queues and exchanges get the next one that matches, at once.
    pub(crate) fn remove_policy(self: &Arc<Self>, name: &str, now: Timestamp) {
        self.change_policies(|policies| policies.remove(name));
        self.apply_policies(now);
    }

    /// Tries the pattern of a policy or operator policy on the existing names. Each policy has a share of the steps, which
    /// bounds the time for all of them together.
    ///
    /// # Errors
    /// It takes too many steps.
    pub(crate) fn try_policy(&self, policy: &Policy) -> Result<(), TooManySteps> {
        let queues = if policy.is_for_queues() { self.all_queues() } else { Vec::new() };
        let exchanges = if policy.is_for_exchanges() { self.exchanges() } else { Vec::new() };
        let policies = 1 + self.current_policies().len();
        let pattern = policy.pattern.for_walk(policies * (queues.len() + exchanges.len()));
        let mut names = queues
            .iter()
            .map(|queue| &**queue.name())
            .chain(exchanges.iter().map(|exchange| &*exchange.name));
        names.try_for_each(|name| pattern.try_matches(name).map(drop))
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

    /// The permissions of a user who has logged in: internal users share theirs, which change with the operator's
    /// definitions.
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

    /// Refuses another queue if `count` has reached the limit.
    pub(super) fn check_queue_limit(
        &self,
        queue: &str,
        count: impl FnOnce() -> usize,
    ) -> Result<(), BrokerError> {
        match self.limits().max_queues {
            Some(limit) if count() as u64 >= limit => Err(too_many_queues(queue, &self.name, limit)),
            _ => Ok(()),
        }
    }

    /// The policies as they are now.
    pub(super) fn current_policies(&self) -> Arc<PolicyTable> {
        Arc::clone(&self.policies.read())
    }

    /// Calls `find` with the policies, without a lock, and passes its result to `then` if they are still the same. They
    /// cannot change until that has returned.
    pub(crate) fn with_policies<F, R>(
        &self,
        find: impl Fn(&PolicyTable) -> F,
        then: impl FnOnce(F) -> R,
    ) -> R {
        loop {
            let snapshot = self.current_policies();
            let found = find(&snapshot);
            let policies = self.policies.read();
            if Arc::ptr_eq(&policies, &snapshot) {
                return then(found);
            }
        }
    }

    /// Changes the policies. Call [`Self::apply_policies`] afterwards.
    pub(super) fn change_policies(&self, change: impl FnOnce(&mut PolicyTable)) {
        // Copies the policies if a snapshot is in use.
        change(Arc::make_mut(&mut self.policies.write()));
    }

    /// Applies the policies to every queue and exchange, one after the other. A concurrent declaration is either early
    /// enough to be included, or finds the new policies.
    pub(crate) fn apply_policies(&self, now: Timestamp) {
        for exchange in self.exchanges() {
            self.with_policies(
                |policies| policies.alternate_of(&exchange.name, &exchange.arguments),
                |alternate| {
                    if alternate != exchange.alternate {
                        let mut topology = self.topology.write();
                        topology.set_alternate(&exchange, alternate);
                        self.topology_changed();
                    }
                },
            );
        }
        for queue in self.all_queues() {
            let has_changed = self.with_policies(
                |policies| policies.arguments_of(&queue),
                |arguments| queue.set_arguments(arguments),
            );
            if has_changed {
                queue.arguments_changed(now);
            }
        }
    }

    /// Makes publishers check permissions again.
    pub(super) fn forget_routes(&self) {
        let topology = self.topology.write();
        self.topology_changed();
        drop(topology);
    }
}
