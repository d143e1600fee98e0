//! Exchanges and the bindings between them, and the binding code that queues share.

use std::borrow::Cow;
use std::ops::DerefMut;
use std::sync::OnceLock;

use amqp::{FieldTable, RawTable};
use store::catalogue::Ticket;

use super::{Binding, ExchangeDeclare, VirtualHost};
use crate::arguments::{QueueKind, check_argument, check_exchange_name_argument, check_field, check_flag};
use crate::compatibility::Compatibility;
use crate::error::BrokerError;
use crate::names::{Resource, strip_line_ends};
use crate::routing::{
    ExchangeKind, check_hash_arguments, check_headers_arguments, check_local_random_binding, weight_of,
};
use crate::table_view::entries;
use crate::topology::{BindingKey, Destination, Exchange, Topology};

impl VirtualHost {
    /// Declares an exchange. A durable one is on disk when the ticket is done.
    ///
    /// # Errors
    /// 503 unknown type; 403 the default exchange or a reserved name; 404 passive and missing; 406
    /// inequivalent or invalid arguments; 530 the virtual host has been deleted.
    pub fn declare_exchange(&self, declare: &ExchangeDeclare<'_>) -> Result<Ticket, BrokerError> {
        self.declare_exchange_if(declare, |_, _| Ok(()))
    }

    /// Declares an exchange, for a user. `may_create` is called with its name and arguments before an
    /// exchange is created, but not if an exchange of that name exists, which then stays unchanged.
    pub(crate) fn declare_exchange_if(
        &self,
        declare: &ExchangeDeclare<'_>,
        may_create: impl FnOnce(&str, &FieldTable) -> Result<(), BrokerError>,
    ) -> Result<Ticket, BrokerError> {
        let name = &*strip_line_ends(declare.name);
        if declare.passive {
            check_not_default(name)?;
            let found = self.topology.read().exchange(name).is_some();
            return if found {
                Ok(Ticket::default())
            } else {
                Err(BrokerError::no_exchange(name, &self.name))
            };
        }
        let kind = declare.parse_kind(self.compatibility)?;
        check_not_default(name)?;
        let arguments = declare.arguments.decode();
        // The common case first: the exchange exists, and no write lock is needed.
        if let Some((_, exchange)) = self.topology.read().exchange(name) {
            self.check_equivalent(exchange, kind, declare, &arguments)?;
            return Ok(self.ticket(declare.durable));
        }
        Resource::Exchange.check_reserved(name)?;
        may_create(name, &arguments)?;
        check_exchange_name_argument(&arguments, "alternate-exchange", Resource::Exchange, name, &self.name)?;
        if kind == ExchangeKind::ConsistentHash {
            check_exchange_name_argument(&arguments, "hash-header", Resource::Exchange, name, &self.name)?;
            check_exchange_name_argument(&arguments, "hash-property", Resource::Exchange, name, &self.name)?;
            check_hash_arguments(&arguments)?;
        }
        let exchange = Exchange {
            name: name.into(),
            kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            alternate: None,
            arguments,
            flow: OnceLock::new(),
        };
        // The policies cannot change until the exchange can be found, so that a change does not miss it.
        let is_new = self.with_policies(
            |policies| policies.alternate_of(name, &exchange.arguments),
            |alternate| {
                let mut topology = self.topology.write();
                self.check_not_deleted(&topology)?;
                // Again under the lock: another thread may have declared the exchange in the meantime.
                if let Some((_, other)) = topology.exchange(name) {
                    self.check_equivalent(other, kind, declare, &exchange.arguments)?;
                    return Ok(false);
                }
                topology.insert_exchange(Exchange { alternate, ..exchange.clone() });
                self.topology_changed();
                Ok::<_, BrokerError>(true)
            },
        )?;
        self.metrics.exchanges.add(usize::from(is_new));
        Ok(self.ticket(declare.durable))
    }

    /// Deletes an exchange with all its bindings. A missing one is not an error. It is gone from the disk
    /// when the ticket is done.
    ///
    /// # Errors
    /// 403 the default exchange or one of the standard ones; 406 in use (it is the source of bindings) with
    /// `if_unused`.
    pub fn delete_exchange(&self, name: &str, if_unused: bool) -> Result<Ticket, BrokerError> {
        let name = &*strip_line_ends(name);
        check_deletable(name, &self.name)?;
        let mut topology = self.topology.write();
        // Another thread may have deleted it, which may not be on disk yet.
        let Some((slot, exchange)) = topology.exchange(name) else { return Ok(self.ticket(true)) };
        let durable = exchange.durable;
        if if_unused && topology.is_source(slot) {
            let exchange = Resource::Exchange.describe(name, &self.name);
            return Err(BrokerError::precondition(format!("{exchange} in use")));
        }
        let doomed = topology.unlink_exchange(slot);
        self.topology_changed();
        drop(topology);
        self.metrics.exchanges.sub(1);
        self.delete_in_steps(vec![doomed]);
        Ok(self.ticket(durable))
    }

    /// Binds an exchange to another. A binding between durable ends is on disk when the ticket is done.
    ///
    /// # Errors
    /// 404 either is missing; 403 either is the default exchange; 406 an unknown `x-match`, an invalid
    /// weight, or a local random exchange as the source.
    pub fn bind_exchange(&self, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.bind_exchange_if(binding, |_| Ok(()))
    }

    /// Binds an exchange to another, for a user. `may_bind` is called with the type of the source before the
    /// binding is added.
    pub(crate) fn bind_exchange_if(
        &self,
        binding: &Binding<'_>,
        may_bind: impl FnOnce(ExchangeKind) -> Result<(), BrokerError>,
    ) -> Result<Ticket, BrokerError> {
        let (source, destination) = (strip_line_ends(binding.source), strip_line_ends(binding.destination));
        check_not_default(&destination)?;
        check_not_default(&source)?;
        let mut topology = self.topology.write();
        let source = self.find_exchange(&topology, &source)?;
        may_bind(topology.exchange_at(source).kind)?;
        let destination = self.find_exchange(&topology, &destination)?;
        check_binding(&topology, source, None, binding)?;
        self.add_binding(&mut topology, source, Destination::exchange(destination), binding)
    }

    /// Unbinds an exchange from another. Missing exchanges or bindings are not an error. The binding is gone
    /// from the disk when the ticket is done.
    ///
    /// # Errors
    /// 403 either is the default exchange.
    pub fn unbind_exchange(&self, binding: &Binding<'_>) -> Result<Ticket, BrokerError> {
        self.unbind_exchange_if(binding, |_| Ok(()))
    }

    /// Unbinds an exchange from another, for a user. `may_unbind` is called with the type of the source, if
    /// both exchanges exist, before the binding is removed.
    pub(crate) fn unbind_exchange_if(
        &self,
        binding: &Binding<'_>,
        may_unbind: impl FnOnce(ExchangeKind) -> Result<(), BrokerError>,
    ) -> Result<Ticket, BrokerError> {
        let (source, destination) = (strip_line_ends(binding.source), strip_line_ends(binding.destination));
        check_not_default(&destination)?;
        check_not_default(&source)?;
        let topology = self.topology.write();
        let slots = topology.exchange(&source).zip(topology.exchange(&destination));
        // The deletion of an exchange deletes its bindings, and may not be on disk yet.
        let Some(((source, exchange), (destination, _))) = slots else { return Ok(self.ticket(true)) };
        may_unbind(exchange.kind)?;
        let destination = Destination::exchange(destination);
        let arguments = canonical(binding.arguments);
        Ok(self.remove_binding(topology, key_of(source, destination, binding, &arguments)))
    }

    /// Removes a binding, if there is one. Unlocks `topology` before exchanges are removed that are deleted with their last
    /// binding.
    pub(super) fn remove_binding(
        &self,
        mut topology: impl DerefMut<Target = Topology>,
        key: BindingKey<'_>,
    ) -> Ticket {
        let is_recorded = topology.is_recorded(key.source, key.destination);
        let mut doomed = Vec::new();
        let removed = topology.unbind(key, &mut doomed);
        if removed {
            self.topology_changed();
        }
        drop(topology);
        self.metrics.bindings.sub(usize::from(removed));
        self.metrics.exchanges.sub(doomed.len());
        self.delete_in_steps(doomed);
        self.ticket(is_recorded)
    }

    pub(super) fn find_exchange(&self, topology: &Topology, name: &str) -> Result<u32, BrokerError> {
        let found = topology.exchange(name).map(|(slot, _)| slot);
        found.ok_or_else(|| BrokerError::no_exchange(name, &self.name))
    }

    pub(super) fn add_binding(
        &self,
        topology: &mut Topology,
        source: u32,
        destination: Destination,
        binding: &Binding<'_>,
    ) -> Result<Ticket, BrokerError> {
        let arguments = canonical(binding.arguments);
        if topology.bind(key_of(source, destination, binding, &arguments)) {
            self.topology_changed();
            self.metrics.bindings.add(1);
        }
        Ok(self.ticket(topology.is_recorded(source, destination)))
    }

    fn check_equivalent(
        &self,
        current: &Exchange,
        kind: ExchangeKind,
        declare: &ExchangeDeclare<'_>,
        arguments: &FieldTable,
    ) -> Result<(), BrokerError> {
        let resource = Resource::Exchange.describe(&current.name, &self.name);
        check_field("type", &as_atom(current.kind.name()), &as_atom(kind.name()), &resource)?;
        check_flag("durable", current.durable, declare.durable, &resource)?;
        check_flag("auto_delete", current.auto_delete, declare.auto_delete, &resource)?;
        check_flag("internal", current.internal, declare.internal, &resource)?;
        check_argument("alternate-exchange", &current.arguments, arguments, &resource)
    }
}

impl ExchangeDeclare<'_> {
    /// The requested type; an unknown one is refused.
    pub(crate) fn parse_kind(&self, compatibility: Compatibility) -> Result<ExchangeKind, BrokerError> {
        let kind = ExchangeKind::from_name(self.kind).filter(|kind| kind.exists_in(compatibility));
        kind.ok_or_else(|| BrokerError::Refused {
            code: compatibility.unknown_exchange_type(),
            text: format!("unknown exchange type '{}'", self.kind),
        })
    }
}

/// Validates a binding of a queue of some type, or of an exchange (`None`), for the type of the source. Called before
/// checking the queue's owner.
pub(super) fn check_binding(
    topology: &Topology,
    source: u32,
    queue: Option<QueueKind>,
    binding: &Binding<'_>,
) -> Result<(), BrokerError> {
    match topology.exchange_at(source).kind {
        ExchangeKind::Headers => check_headers_arguments(binding.arguments),
        ExchangeKind::ConsistentHash => weight_of(binding.routing_key).map(drop),
        ExchangeKind::LocalRandom => check_local_random_binding(binding.routing_key, queue),
        ExchangeKind::Direct | ExchangeKind::Fanout | ExchangeKind::Topic => Ok(()),
    }
}

/// The name of an exchange type as Erlang prints it: quoted if it contains a hyphen.
fn as_atom(kind: &str) -> Cow<'_, str> {
    if kind.contains('-') { format!("'{kind}'").into() } else { kind.into() }
}

pub(super) fn key_of<'a>(
    source: u32,
    destination: Destination,
    binding: &Binding<'a>,
    arguments: &'a [u8],
) -> BindingKey<'a> {
    BindingKey { source, destination, key: binding.routing_key, arguments }
}

/// Arguments as part of a binding's identity: encoded, and sorted by name.
pub(super) fn canonical(arguments: RawTable<'_>) -> Cow<'_, [u8]> {
    if entries(arguments.bytes()).map(|(name, _)| name).is_sorted_by(|one, next| one < next) {
        return arguments.bytes().into();
    }
    let table = arguments.decode();
    let mut entries: Vec<_> = table.iter().map(|(name, value)| (name, value.clone())).collect();
    entries.sort_by_key(|(name, _)| *name);
    entries.into_iter().collect::<FieldTable>().encode().into()
}

/// Refuses the deletion of the default exchange and the standard ones.
pub(crate) fn check_deletable(exchange: &str, vhost: &str) -> Result<(), BrokerError> {
    check_not_default(exchange)?;
    if exchange.starts_with("amq.") {
        let exchange = Resource::Exchange.describe(exchange, vhost);
        return Err(BrokerError::access(format!("deletion of system {exchange} not allowed")));
    }
    Ok(())
}

pub(crate) fn check_not_default(exchange: &str) -> Result<(), BrokerError> {
    if exchange.is_empty() {
        return Err(BrokerError::access("operation not permitted on the default exchange"));
    }
    Ok(())
}
