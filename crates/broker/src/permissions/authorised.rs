//! A connection's authorised session in a virtual host, with RabbitMQ's permission checks for each operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amqp::FieldValue;
use amqp::error::ReplyCode;
use store::catalogue::Ticket;

use super::{Access, Grant};
use crate::SessionId;
use crate::arguments::{QueueKind, check_queue_type};
use crate::error::BrokerError;
use crate::limits::{too_many_channels, too_many_connections, vhost_is_full};
use crate::names::{Resource, generate_queue_name, strip_line_ends};
use crate::publisher::Publisher;
use crate::routing::ExchangeKind;
use crate::time::Timestamp;
use crate::users::{Account, Identity};
use crate::vhost::{
    Binding, DeclaredQueue, ExchangeDeclare, QueueDeclare, VirtualHost, check_deletable, check_not_default,
};

/// A connection's authorised session in a virtual host, counted against the limits of the user and the
/// virtual host until it is dropped.
///
/// The virtual host checks whether an operation is valid; the methods here check whether the user may request it. Call a
/// `check_*` first: it depends on the name alone. The virtual host calls the other checks during the operation, since they
/// depend on whether something exists, or on its type, so that nothing can change in between. The methods refuse operations
/// in the order of RabbitMQ 3.10.
///
/// A check fails with [`BrokerError::Unasked`] if another auth backend authorizes the user's operations and has not been
/// queried. Nothing has changed then, and the session repeats the operation once that has answered
/// ([`Identity::take_authz_request`]).
pub struct AuthorisedSession {
    vhost: Arc<VirtualHost>,
    identity: Identity,
    grant: Arc<Grant>,
    account: Arc<Account>,
    /// Channels of this connection that count against the user's limit.
    channels: AtomicU64,
    /// The user's token has expired, so every operation is refused.
    is_expired: bool,
}

impl AuthorisedSession {
    pub(crate) fn take(
        vhost: Arc<VirtualHost>,
        identity: Identity,
        account: Arc<Account>,
    ) -> Result<Self, BrokerError> {
        let user = identity.user();
        let limit = vhost.limits().max_connections;
        vhost.connections().enter(limit).map_err(|limit| vhost_is_full(vhost.name(), user, limit))?;
        if let Err(limit) = account.connections.enter(account.limits().max_connections) {
            vhost.connections().leave(1);
            return Err(too_many_connections(user, limit));
        }
        let grant = vhost.grant_of(&identity);
        Ok(Self { vhost, identity, grant, account, channels: AtomicU64::new(0), is_expired: false })
    }

    /// The virtual host that the connection has open.
    pub fn vhost(&self) -> &Arc<VirtualHost> {
        &self.vhost
    }

    /// The user whose permissions every operation of the session is checked against.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Creates a publisher with the session's permissions, for one channel. Expiry and renewal of the user's token apply to
    /// it as to the session.
    pub fn publisher(&self) -> Publisher {
        Publisher::new(self.vhost.clone(), self.identity.clone(), self.grant.clone())
    }

    /// When the user's permissions expire, unless they are renewed.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.identity.expires_at().filter(|_| !self.is_expired)
    }

    /// Revokes the user's permissions if they have expired: from then on every operation that needs any is refused.
    /// Messages still reach the session's consumers, as in RabbitMQ. Returns whether they have just expired.
    pub fn check_expiry(&mut self, now: Timestamp) -> bool {
        let Some(end) = self.expires_at().filter(|end| *end <= now) else { return false };
        self.is_expired = true;
        self.grant.expire(self.vhost.wall_time(end), self.vhost.wall_time(now));
        true
    }

    /// Replaces the permissions by those of a new token of the same user.
    pub fn renew(&mut self, identity: Identity) {
        self.grant.renew(&identity);
        self.identity = identity;
        self.is_expired = false;
    }

    /// Counts an opened channel.
    ///
    /// # Errors
    /// 530 if the user has reached the limit of channels.
    pub fn open_channel(&self) -> Result<(), BrokerError> {
        let limit = self.account.limits().max_channels;
        let entered = self.account.channels.enter(limit);
        let compatibility = self.vhost.compatibility();
        entered.map_err(|limit| too_many_channels(self.grant.user(), limit, compatibility))?;
        self.channels.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a closed channel.
    pub fn close_channel(&self) {
        self.channels.fetch_sub(1, Ordering::Relaxed);
        self.account.channels.leave(1);
    }

    /// Declares a queue, as [`VirtualHost::declare_queue`]. A passive declaration needs any permission
    /// on it to follow RabbitMQ 4, and none for 3.10.
    ///
    /// # Errors
    /// 403 without configure on the queue, or, if it is to be created with a dead-letter exchange, without
    /// read on it and write on that exchange; and the errors of the virtual host.
    pub fn declare_queue(
        &self,
        session: SessionId,
        declare: &QueueDeclare<'_>,
        now: Timestamp,
    ) -> Result<DeclaredQueue, BrokerError> {
        if declare.passive {
            self.check_may_ask(Resource::Queue, &strip_line_ends(declare.name))?;
            return self.vhost.declare_queue(session, declare, now);
        }
        let name = strip_line_ends(declare.name);
        let name = if name.is_empty() {
            check_may_be_server_named(&self.vhost, declare)?;
            self.generated_name(generate_queue_name)
        } else {
            Resource::Queue.check_reserved(&name)?;
            name.into_owned()
        };
        self.queue(Access::Configure, &name)?;
        self.vhost.declare_named_queue(session, &name, declare, now, |name, arguments| {
            let Some(exchange) = arguments.get("x-dead-letter-exchange").and_then(FieldValue::as_text) else {
                return Ok(());
            };
            self.queue(Access::Read, name)?;
            self.exchange(Access::Write, exchange)
        })
    }

    /// A generated name for an object that an operation creates. If the operation is repeated after the user's auth backend
    /// has answered, it gets the same name.
    pub fn generated_name(&self, generate: impl FnOnce() -> String) -> String {
        match self.identity.asked() {
            Some(asked) => asked.generated(generate),
            None => generate(),
        }
    }

    /// Queries the user's auth backend, if there is one, about declaring a queue, binding it and reading from it, so that
    /// all answers are known before the queue is created. Errors other than a refusal are left to the operations
    /// themselves.
    ///
    /// # Errors
    /// 403, and [`BrokerError::Unasked`].
    pub fn authorise_subscription(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        if !self.identity.is_asked() {
            return Ok(());
        }
        let checks: [&dyn Fn() -> Result<(), BrokerError>; 4] = [
            &|| self.check_delete_queue(binding.destination),
            &|| self.check_bind_queue(binding),
            &|| self.check_topic_of_binding(binding),
            &|| self.check_read_queue(binding.destination),
        ];
        match checks.iter().try_for_each(|check| check()) {
            Err(error) if error.reply_code() == ReplyCode::AccessRefused => Err(error),
            _ => Ok(()),
        }
    }

    /// Like [`Self::authorise_subscription`], but sends all requests at once: for many subscriptions, each of which may be
    /// refused separately.
    ///
    /// # Errors
    /// [`BrokerError::Unasked`].
    pub fn authorise_subscriptions(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        let checked = [
            self.check_delete_queue(binding.destination),
            self.queue(Access::Write, &strip_line_ends(binding.destination)),
            self.check_source(binding),
            self.check_topic_of_binding(binding),
            self.check_read_queue(binding.destination),
        ];
        if checked.contains(&Err(BrokerError::Unasked)) { Err(BrokerError::Unasked) } else { Ok(()) }
    }

    /// Queries the user's auth backend, if there is one, about a queue with a generated name and about reading from it, so
    /// that the answers are known before the queue is created.
    ///
    /// # Errors
    /// 403, and [`BrokerError::Unasked`].
    pub fn authorise_generated_queue(&self) -> Result<(), BrokerError> {
        if !self.identity.is_asked() {
            return Ok(());
        }
        let name = self.generated_name(generate_queue_name);
        self.check_delete_queue(&name)?;
        self.check_read_queue(&name)
    }

    /// Whether the user may bind with the routing key, if the exchange exists and is a topic exchange.
    ///
    /// # Errors
    /// 403 without read on the topic.
    pub fn check_topic_of_binding(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        let kind = self.vhost.kind_of_exchange(&strip_line_ends(binding.source));
        kind.map_or(Ok(()), |kind| self.check_topic(kind, binding))
    }

    /// Whether the user may delete the queue.
    ///
    /// # Errors
    /// 403 without configure.
    pub fn check_delete_queue(&self, name: &str) -> Result<(), BrokerError> {
        self.queue(Access::Configure, &strip_line_ends(name))
    }

    /// Whether the user may read from the queue: consume, get and purge.
    ///
    /// # Errors
    /// 403 without read.
    pub fn check_read_queue(&self, name: &str) -> Result<(), BrokerError> {
        self.queue(Access::Read, &strip_line_ends(name))
    }

    /// Whether the user may bind or unbind the queue, regardless of the type of the exchange.
    ///
    /// # Errors
    /// 403 without write on the queue and read on the exchange.
    pub fn check_bind_queue(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        self.queue(Access::Write, &strip_line_ends(binding.destination))?;
        self.check_source(binding)
    }

    /// Binds a queue to an exchange, as [`VirtualHost::bind_queue`].
    ///
    /// # Errors
    /// 403 without write on the queue and read on the exchange and topic; and the errors of the virtual host.
    pub fn bind_queue(&self, session: SessionId, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.check_bind_queue(binding)?;
        self.vhost.bind_queue_if(Some(session), binding, |kind| self.check_topic(kind, binding))
    }

    /// Unbinds a queue from an exchange, as [`VirtualHost::unbind_queue`].
    ///
    /// # Errors
    /// 403 without write on the queue and read on the exchange and topic; and the errors of the virtual host.
    pub fn unbind_queue(&self, session: SessionId, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.check_bind_queue(binding)?;
        self.vhost.unbind_queue_if(session, binding, |kind| self.check_topic(kind, binding))
    }

    /// Binds an exchange to another, as [`VirtualHost::bind_exchange`].
    ///
    /// # Errors
    /// 403 without write on the destination and read on the source and topic; and the errors of the virtual
    /// host.
    pub fn bind_exchange(&self, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.check_bind_exchange(binding)?;
        self.vhost.bind_exchange_if(binding, |kind| self.check_topic(kind, binding))
    }

    /// Unbinds an exchange from another, as [`VirtualHost::unbind_exchange`].
    ///
    /// # Errors
    /// 403 without write on the destination and read on the source and topic; and the errors of the virtual
    /// host.
    pub fn unbind_exchange(&self, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.check_bind_exchange(binding)?;
        self.vhost.unbind_exchange_if(binding, |kind| self.check_topic(kind, binding))
    }

    fn check_bind_exchange(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        let destination = strip_line_ends(binding.destination);
        self.exchange(Access::Write, &destination)?;
        check_not_default(&destination)?;
        self.check_source(binding)
    }

    fn check_source(&self, binding: &Binding<'_>) -> Result<(), BrokerError> {
        let source = strip_line_ends(binding.source);
        check_not_default(&source)?;
        self.exchange(Access::Read, &source)
    }

    /// Called under the lock under which the binding is created: otherwise the exchange could be deleted and declared again
    /// as a topic exchange in between.
    fn check_topic(&self, kind: ExchangeKind, binding: &Binding<'_>) -> Result<(), BrokerError> {
        if kind != ExchangeKind::Topic {
            return Ok(());
        }
        let (source, client) = (strip_line_ends(binding.source), self.identity.client());
        self.grant.check_topic(Access::Read, &source, binding.routing_key, client)
    }

    /// Declares an exchange, as [`VirtualHost::declare_exchange`]. A passive declaration needs any permission
    /// on it to follow RabbitMQ 4, and none for 3.10.
    ///
    /// # Errors
    /// 403 without configure on the exchange, or, if it is to be created with an alternate exchange, without
    /// read on it and write on the other; 403 the default exchange; 503 unknown type; and the errors of the
    /// virtual host.
    pub fn declare_exchange(&self, declare: &ExchangeDeclare<'_>) -> Result<Ticket, BrokerError> {
        let name = strip_line_ends(declare.name);
        if declare.passive {
            self.check_may_ask(Resource::Exchange, &name)?;
            return self.vhost.declare_exchange(declare);
        }
        declare.parse_kind(self.vhost.compatibility())?;
        check_not_default(&name)?;
        self.exchange(Access::Configure, &name)?;
        self.vhost.declare_exchange_if(declare, |name, arguments| {
            let Some(alternate) = arguments.get("alternate-exchange").and_then(FieldValue::as_text) else {
                return Ok(());
            };
            self.exchange(Access::Read, name)?;
            self.exchange(Access::Write, alternate)
        })
    }

    /// Whether the user may delete the exchange.
    ///
    /// # Errors
    /// 403 without configure; 403 for exchanges that cannot be deleted.
    pub fn check_delete_exchange(&self, name: &str) -> Result<(), BrokerError> {
        let name = strip_line_ends(name);
        check_deletable(&name, self.vhost.name())?;
        self.exchange(Access::Configure, &name)
    }

    /// Whether the user may learn by a passive declaration that an object exists.
    fn check_may_ask(&self, resource: Resource, name: &str) -> Result<(), BrokerError> {
        if !self.vhost.compatibility().passive_declare_needs_permission() {
            return Ok(());
        }
        let mut refused = None;
        for access in [Access::Configure, Access::Write, Access::Read] {
            match self.grant.check(access, resource, name) {
                Err(BrokerError::Unasked) => return Err(BrokerError::Unasked),
                Err(error) => refused = refused.or(Some(error)),
                Ok(()) => return Ok(()),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn queue(&self, access: Access, name: &str) -> Result<(), BrokerError> {
        self.grant.check(access, Resource::Queue, name)
    }

    fn exchange(&self, access: Access, name: &str) -> Result<(), BrokerError> {
        self.grant.check(access, Resource::Exchange, name)
    }
}

impl Drop for AuthorisedSession {
    fn drop(&mut self) {
        self.account.channels.leave(*self.channels.get_mut());
        self.account.connections.leave(1);
        self.vhost.connections().leave(1);
    }
}

/// Quorum queues cannot be server-named, whether a declaration asks for one or the virtual host has them as default.
fn check_may_be_server_named(vhost: &VirtualHost, declare: &QueueDeclare<'_>) -> Result<(), BrokerError> {
    let arguments = vhost.arguments_with_type(declare);
    if vhost.compatibility().checks_queue_type_first() {
        check_queue_type(&arguments)?;
    }
    match QueueKind::of(&arguments) {
        QueueKind::Quorum => {
            let text = "Cannot declare a server-named queue for type rabbit_quorum_queue";
            Err(BrokerError::precondition(text))
        }
        QueueKind::Classic => Ok(()),
    }
}

#[cfg(test)]
#[path = "authorised_tests.rs"]
mod tests;
