//! Queues, their bindings and their owners.

use std::sync::Arc;

use amqp::{FieldTable, FieldValue, ReplyCode};
use hashbrown::hash_map;

use super::exchanges::{canonical, check_binding, check_not_default, key_of};
use super::{Binding, DeclaredQueue, QueueDeclare, VirtualHost};
use store::catalogue::Ticket;
use store::journal::{Lsn, QueueId};
use sync::work;

use crate::SessionId;
use crate::arguments::{QueueArguments, QueueKind, check_flag, check_queue_redeclared};
use crate::error::BrokerError;
use crate::names::{Resource, generate_queue_name, strip_line_ends};
use crate::queue::{DeleteRefused, NewQueue, Queue, QueueProperties};
use crate::routing::ExchangeKind;
use crate::time::Timestamp;
use crate::topology::Destination;

impl VirtualHost {
    /// Declares a queue.
    ///
    /// # Errors
    /// 403 a reserved name; 404 passive and missing; 405 the queue is exclusive to another session; 406
    /// inequivalent or invalid arguments; 530 the virtual host has been deleted.
    pub fn declare_queue(
        self: &Arc<Self>,
        session: SessionId,
        declare: &QueueDeclare<'_>,
        now: Timestamp,
    ) -> Result<DeclaredQueue, BrokerError> {
        self.declare_queue_if(session, declare, now, |_, _| Ok(()))
    }

    /// Declares a queue, for a user. `may_create` is called with its name and arguments before a queue is
    /// created, but not if a queue of that name exists, which then stays unchanged.
    pub(crate) fn declare_queue_if(
        self: &Arc<Self>,
        session: SessionId,
        declare: &QueueDeclare<'_>,
        now: Timestamp,
        may_create: impl FnOnce(&str, &FieldTable) -> Result<(), BrokerError>,
    ) -> Result<DeclaredQueue, BrokerError> {
        let stripped = strip_line_ends(declare.name);
        if declare.passive {
            // In a passive declaration the empty name is an ordinary name; it does not mean the last declared queue.
            let queue = self.queue(session, &stripped).map_err(|error| match error {
                BrokerError::NoPreviousQueue => BrokerError::no_queue(&stripped, &self.name),
                error => error,
            })?;
            queue.touch(now);
            return Ok(describe(queue, Ticket::default()));
        }
        let name = if stripped.is_empty() {
            generate_queue_name()
        } else {
            Resource::Queue.check_reserved(&stripped)?;
            stripped.into_owned()
        };
        self.declare_named_queue(session, &name, declare, now, may_create)
    }

    /// Declares a queue whose name has been checked, or generated, as [`Self::declare_queue_if`].
    pub(crate) fn declare_named_queue(
        self: &Arc<Self>,
        session: SessionId,
        name: &str,
        declare: &QueueDeclare<'_>,
        now: Timestamp,
        may_create: impl FnOnce(&str, &FieldTable) -> Result<(), BrokerError>,
    ) -> Result<DeclaredQueue, BrokerError> {
        // An exclusive queue cannot survive a restart; if a client asks for both, RabbitMQ silently ignores
        // `durable`.
        let declare = &QueueDeclare { durable: declare.durable && !declare.exclusive, ..*declare };
        let arguments = self.arguments_with_type(declare);
        // The common case first: the queue exists, and no write lock is needed.
        let found = self.topology.read().queue(name).map(|(_, queue)| queue.clone());
        if let Some(queue) = found {
            return self.redeclare(queue, session, declare, &arguments, now);
        }
        self.check_queue_limit(name, || self.topology.read().queue_count())?;
        may_create(name, &arguments)?;
        self.create_queue(session, name, declare, arguments, now)
    }

    /// The type of an exchange, if there is one of this name.
    pub(crate) fn kind_of_exchange(&self, name: &str) -> Option<ExchangeKind> {
        self.topology.read().exchange(name).map(|(_, exchange)| exchange.kind)
    }

    /// The arguments of a declaration, and the type that it gets if it asks for none: the default of the virtual host, unless
    /// only classic queues have such properties.
    pub(crate) fn arguments_with_type(&self, declare: &QueueDeclare<'_>) -> FieldTable {
        let mut arguments = declare.arguments.decode();
        let is_without = declare.type_name.is_none() && arguments.get("x-queue-type").is_none();
        if is_without && self.compatibility.stores_queue_type_argument() {
            let may_be_other = declare.durable && !declare.exclusive && !declare.auto_delete;
            let kind = if may_be_other { self.default_queue_kind() } else { QueueKind::Classic };
            arguments.insert("x-queue-type", FieldValue::text(kind.name()));
        }
        arguments
    }

    /// Creates a queue, unless another thread has done so in the meantime.
    fn create_queue(
        self: &Arc<Self>,
        session: SessionId,
        name: &str,
        declare: &QueueDeclare<'_>,
        arguments: FieldTable,
        now: Timestamp,
    ) -> Result<DeclaredQueue, BrokerError> {
        let parsed = QueueArguments::parse(&arguments, name, &self.name, self.compatibility)?;
        self.check_kind(name, declare, &parsed)?;
        let owner = declare.exclusive.then_some(session);
        let properties = QueueProperties {
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            owner,
            arguments: arguments.clone(),
            type_name: declare.type_name,
            capacity: declare.capacity.map(Box::new),
        };
        // Only a durable queue is in the store, under a number that is never reused.
        let number = self.catalogue().filter(|_| declare.durable).map(|catalogue| catalogue.new_id());
        let new = NewQueue {
            name: name.into(),
            context: Arc::clone(&self.queue_context),
            properties,
            arguments: parsed,
            number,
            stored: self.store().zip(number).map(|(store, number)| store.queue(QueueId(number))),
        };
        let queue = Queue::new(new);
        // The policies cannot change until the queue can be found, so no change misses it.
        let existing = self.with_policies(
            |policies| policies.arguments_of(&queue),
            |arguments| {
                queue.set_arguments(arguments);
                let mut topology = self.topology.write();
                self.check_not_deleted(&topology)?;
                let existing = topology.queue(name).map(|(_, other)| other.clone());
                if existing.is_none() {
                    // Again: other threads may have created queues since.
                    self.check_queue_limit(name, || topology.queue_count())?;
                    topology.insert_queue(queue.clone());
                    self.topology_changed();
                }
                Ok::<_, BrokerError>(existing)
            },
        )?;
        if let Some(existing) = existing {
            return self.redeclare(existing, session, declare, &arguments, now);
        }
        // Only now that the queue is in the topology, since its lease may expire at once.
        queue.touch(now);
        self.metrics.queues.add(1);
        self.metrics.queues_declared.add(1);
        self.metrics.queues_created.add(1);
        if let Some(owner) = owner {
            self.exclusive.lock().entry(owner).or_default().insert(queue.id(), queue.clone());
        }
        Ok(DeclaredQueue { queue, messages: 0, consumers: 0, ticket: self.ticket(declare.durable) })
    }

    /// Deletes a queue with its messages, consumers and bindings; returns the number of ready messages it
    /// had, and a ticket that is done when it is gone from the disk. A missing queue is not an error, and
    /// counts as empty.
    ///
    /// # Errors
    /// 405 the queue is exclusive to another session; 406 in use or not empty, with `if_unused` or
    /// `if_empty`; 540 either of these conditions for a quorum queue.
    pub fn delete_queue(
        &self,
        session: SessionId,
        name: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<(u64, Ticket), BrokerError> {
        let queue = match self.queue(session, name) {
            Ok(queue) => queue,
            Err(BrokerError::NoQueue { .. }) => return Ok((0, self.ticket_of_gone(name))),
            Err(error) => return Err(error),
        };
        let unsupported = match queue.kind() {
            QueueKind::Quorum if if_unused => Some("if-unused"),
            QueueKind::Quorum if if_empty => Some("if-empty"),
            _ => None,
        };
        if let Some(flag) = unsupported {
            let queue = Resource::Queue.describe(queue.name(), &self.name);
            let text = format!(
                "cannot delete {queue}. queue.delete operations with {flag} flag set are not supported by quorum queues"
            );
            return Err(BrokerError::Refused { code: ReplyCode::NotImplemented, text });
        }
        let refuse = |why: &str| {
            let queue = Resource::Queue.describe(queue.name(), &self.name);
            Err(BrokerError::precondition(format!("{queue} {why}")))
        };
        match queue.delete(if_unused, if_empty) {
            Ok(messages) => {
                self.forget_queue(&queue);
                Ok((messages, self.ticket(queue.properties().durable)))
            }
            Err(DeleteRefused::InUse) => refuse("in use"),
            Err(DeleteRefused::NotEmpty) => refuse("not empty"),
            Err(DeleteRefused::Gone) => Ok((0, self.ticket_of_gone(name))),
        }
    }

    /// Binds a queue to an exchange. A binding between durable ends is on disk when the ticket is done.
    ///
    /// # Errors
    /// 403 the default exchange; 404 either is missing, the exchange named first; 405 the queue is exclusive
    /// to another session; 406 an unknown `x-match`, an invalid weight, or what a local
    /// random exchange refuses.
    pub fn bind_queue(&self, session: SessionId, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.bind_queue_if(Some(session), binding, |_| Ok(()))
    }

    /// As [`VirtualHost::bind_queue`], for an import of definitions, which may bind a queue that is exclusive to a session.
    pub(crate) fn bind_defined_queue(&self, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.bind_queue_if(None, binding, |_| Ok(()))
    }

    /// Binds a queue, for a user's session. `may_bind` is called with the type of the exchange before the binding is
    /// added.
    pub(crate) fn bind_queue_if(
        &self,
        session: Option<SessionId>,
        binding: &Binding<'_>,
        may_bind: impl FnOnce(ExchangeKind) -> Result<(), BrokerError>,
    ) -> Result<Ticket, BrokerError> {
        let (source, name) = (strip_line_ends(binding.source), strip_line_ends(binding.destination));
        check_not_default(&source)?;
        let mut topology = self.topology.write();
        let source = self.find_exchange(&topology, &source)?;
        may_bind(topology.exchange_at(source).kind)?;
        let (slot, queue) = topology.queue(&name).ok_or_else(|| self.missing(&name))?;
        check_binding(&topology, source, Some(queue.kind()), binding)?;
        session.map_or(Ok(()), |session| queue.check_access(session))?;
        self.add_binding(&mut topology, source, Destination::queue(slot), binding)
    }

    /// Unbinds a queue from an exchange. A missing queue, exchange or binding is not an error. The binding is
    /// gone from the disk when the ticket is done.
    ///
    /// # Errors
    /// 403 the default exchange; 405 the queue is exclusive to another session.
    pub fn unbind_queue(&self, session: SessionId, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.unbind_queue_if(session, binding, |_| Ok(()))
    }

    /// Unbinds a queue, for a user. `may_unbind` is called with the type of the exchange, if that exists,
    /// before the binding is removed.
    pub(crate) fn unbind_queue_if(
        &self,
        session: SessionId,
        binding: &Binding<'_>,
        may_unbind: impl FnOnce(ExchangeKind) -> Result<(), BrokerError>,
    ) -> Result<Ticket, BrokerError> {
        let (source, name) = (strip_line_ends(binding.source), strip_line_ends(binding.destination));
        check_not_default(&source)?;
        let arguments = canonical(binding.arguments);
        let topology = self.topology.write();
        // The deletion of an exchange or a queue deletes its bindings, and may not be on disk yet.
        let Some((source, exchange)) = topology.exchange(&source) else { return Ok(self.ticket(true)) };
        may_unbind(exchange.kind)?;
        let Some((slot, queue)) = topology.queue(&name) else {
            drop(topology);
            return Ok(self.ticket_of_gone(&name));
        };
        let key = key_of(source, Destination::queue(slot), binding, &arguments);
        if topology.is_bound(key) {
            queue.check_access(session)?;
        }
        Ok(self.remove_binding(topology, key))
    }

    /// Drops the ready messages of a queue, and returns their number, and the log position to wait for so
    /// that they do not come back.
    ///
    /// # Errors
    /// 404 missing; 405 the queue is exclusive to another session.
    pub fn purge(&self, session: SessionId, name: &str) -> Result<(u64, Option<Lsn>), BrokerError> {
        Ok(self.queue(session, name)?.purge())
    }

    /// The queue with this name, for consuming or getting from it.
    ///
    /// # Errors
    /// 404 missing; 405 the queue is exclusive to another session.
    pub fn queue(&self, session: SessionId, name: &str) -> Result<Arc<Queue>, BrokerError> {
        let name = strip_line_ends(name);
        let found = self.topology.read().queue(&name).map(|(_, queue)| queue.clone());
        let queue = found.ok_or_else(|| self.missing(&name))?;
        queue.check_access(session)?;
        Ok(queue)
    }

    /// Changes the `x-expires` of a queue, in milliseconds, and starts its lease again: for a front end whose queues live
    /// as long as its sessions, whose expiry may change. Returns a ticket to wait for.
    pub fn set_queue_expires(&self, queue: &Arc<Queue>, expires: Option<u64>, now: Timestamp) -> Ticket {
        if !queue.set_own_expires(expires) {
            return Ticket::default();
        }
        self.with_policies(
            |policies| policies.arguments_of(queue),
            |arguments| {
                queue.set_arguments(arguments);
                // Under the read lock the queue cannot lose its name.
                self.topology.read().write_queue_down(queue);
            },
        );
        queue.touch(now);
        self.ticket(queue.properties().durable)
    }

    /// Deletes the exclusive queues of a session that has ended.
    pub fn end_session(self: &Arc<Self>, session: SessionId) {
        let mut owned = self.owned_queues(session);
        while !owned.delete_some() {}
    }

    /// The exclusive queues of a session that has ended, to be deleted.
    pub fn owned_queues(self: &Arc<Self>, session: SessionId) -> OwnedQueues {
        let queues = self.exclusive.lock().remove(&session).unwrap_or_default();
        OwnedQueues { vhost: Arc::clone(self), queues: queues.into_values() }
    }

    /// Removes a queue that was marked as deleted from the topology: exactly this one, even if another queue has its name
    /// by now. Called once, by the thread that marked it.
    pub(crate) fn forget_queue(&self, queue: &Queue) {
        work::charge(DELETED_QUEUE, 1);
        self.metrics.queues.sub(1);
        self.metrics.queues_deleted.add(1);
        if let Some(owner) = queue.properties().owner {
            let mut exclusive = self.exclusive.lock();
            if let Some(owned) = exclusive.get_mut(&owner) {
                owned.remove(&queue.id());
                if owned.is_empty() {
                    exclusive.remove(&owner);
                }
            }
        }
        let mut topology = self.topology.write();
        let doomed = topology.unlink_queue(queue.slot());
        self.topology_changed();
        drop(topology);
        queue.forget_stored();
        self.delete_in_steps(vec![doomed]);
    }

    /// A ticket that is done when a missing queue is gone from disk as well. If another thread has marked the queue as
    /// deleted but not yet deleted the entries stored under its name, this deletes them.
    fn ticket_of_gone(&self, name: &str) -> Ticket {
        let name = &*strip_line_ends(name);
        if self.topology.read().deleted_queue(name).is_some() {
            let mut topology = self.topology.write();
            if let Some(slot) = topology.deleted_queue(name) {
                // The other thread removes the rest.
                topology.unlink_queue(slot);
                self.topology_changed();
            }
        }
        self.ticket(true)
    }

    fn redeclare(
        &self,
        queue: Arc<Queue>,
        session: SessionId,
        declare: &QueueDeclare<'_>,
        arguments: &FieldTable,
        now: Timestamp,
    ) -> Result<DeclaredQueue, BrokerError> {
        let current = queue.properties();
        if current.owner != declare.exclusive.then_some(session) {
            return Err(BrokerError::locked(queue.name(), &self.name));
        }
        let resource = Resource::Queue.describe(queue.name(), &self.name);
        check_flag("durable", current.durable, declare.durable, &resource)?;
        check_flag("auto_delete", current.auto_delete, declare.auto_delete, &resource)?;
        let own = queue.own_arguments();
        check_queue_redeclared(queue.kind(), self.compatibility, &own, arguments, &resource)?;
        queue.touch(now);
        self.metrics.queues_declared.add(1);
        Ok(describe(queue, self.ticket(declare.durable)))
    }

    /// A quorum queue cannot be transient, exclusive or auto-delete.
    fn check_kind(
        &self,
        name: &str,
        declare: &QueueDeclare<'_>,
        arguments: &QueueArguments,
    ) -> Result<(), BrokerError> {
        let wrong = match arguments.kind {
            QueueKind::Classic => return Ok(()),
            QueueKind::Quorum if declare.auto_delete => "auto-delete",
            QueueKind::Quorum if declare.exclusive => "exclusive-owner",
            QueueKind::Quorum if !declare.durable => "non-durable",
            QueueKind::Quorum => return Ok(()),
        };
        let queue = Resource::Queue.describe(name, &self.name);
        Err(BrokerError::precondition(format!("invalid property '{wrong}' for {queue}")))
    }

    fn missing(&self, queue: &str) -> BrokerError {
        match queue {
            "" => BrokerError::NoPreviousQueue,
            name => BrokerError::no_queue(name, &self.name),
        }
    }
}

fn describe(queue: Arc<Queue>, ticket: Ticket) -> DeclaredQueue {
    let (messages, consumers) = queue.counts();
    DeclaredQueue { queue, messages, consumers, ticket }
}

/// The exclusive queues of a session that has ended, which have yet to be deleted.
pub struct OwnedQueues {
    vhost: Arc<VirtualHost>,
    queues: hash_map::IntoValues<u64, Arc<Queue>>,
}

impl OwnedQueues {
    /// Deletes queues until the turn is over; returns whether all are deleted.
    #[must_use]
    pub fn delete_some(&mut self) -> bool {
        while let Some(queue) = self.queues.next() {
            if queue.delete(false, false).is_ok() {
                self.vhost.forget_queue(&queue);
            }
            if work::is_turn_over() && self.queues.len() > 0 {
                return false;
            }
        }
        true
    }
}

/// Nanoseconds charged for the deletion of a queue, without its messages and bindings.
const DELETED_QUEUE: u32 = 3_000;

#[cfg(test)]
mod tests;
