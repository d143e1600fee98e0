//! Views of the existing exchanges, queues and bindings.

use std::sync::Arc;

use amqp::{FieldTable, RawTable};
use serde_json::Value;
use store::catalogue::Section;
use sync::pace::pace;

use crate::broker::Broker;
use crate::queue::Queue;
use crate::rates::{Count, ExchangeFlow};
use crate::time::Timestamp;
use crate::topology::{Destination, Exchange, Topology};
use crate::vhost::VirtualHost;

/// An exchange, for display.
#[derive(Debug, Clone)]
pub struct ExchangeView {
    /// Its name; empty for the default exchange.
    pub name: Arc<str>,
    /// The name of its type.
    pub kind: &'static str,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it is deleted with the last binding from it.
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// The arguments as they were sent.
    pub arguments: FieldTable,
    flow: Option<Arc<ExchangeFlow>>,
}

impl ExchangeView {
    /// Messages published to it, and messages that queues received from it, as of `now`; `None` if nothing
    /// was ever published.
    pub fn flow(&self, now: Timestamp) -> Option<(Count, Count)> {
        self.flow.as_ref()?.read(now)
    }
}

/// The contents of a queue at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueView {
    /// The number of ready messages.
    pub ready: u64,
    /// Messages delivered and not settled.
    pub unacknowledged: u64,
    /// Bytes of the ready messages' bodies.
    pub ready_bytes: u64,
    /// The number of ready messages that are on disk only.
    pub paged: u64,
    /// The number of consumers.
    pub consumers: u64,
}

/// The ready messages of a queue that delivers returned messages first, then by priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityCounts {
    /// Each priority that occurs, ascending, with its number of messages, without returned ones.
    pub by_priority: Vec<(u8, u64)>,
    /// The number of returned messages.
    pub returned: u64,
}

/// A binding, for display.
#[derive(Debug, Clone, PartialEq)]
pub struct BindingView {
    /// The source exchange; empty for the default one.
    pub source: Arc<str>,
    /// The queue or exchange at its other end.
    pub destination: Arc<str>,
    /// The type of the destination.
    pub destination_type: BindingEnd,
    /// The binding key, or any text where the type of the source ignores it.
    pub routing_key: String,
    /// The binding's arguments, decoded.
    pub arguments: FieldTable,
}

/// The type of a binding's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingEnd {
    /// The binding leads to a queue.
    Queue,
    /// The binding leads to an exchange.
    Exchange,
}

impl VirtualHost {
    /// All queues, in no particular order.
    pub fn all_queues(&self) -> Vec<Arc<Queue>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.with_topology(|topology| topology.queues_from(at, STEP, &mut all));
            pace(STEPPED);
        }
        all
    }

    /// All exchanges including the default one, in no particular order.
    pub fn all_exchanges(&self) -> Vec<ExchangeView> {
        let mut all = vec![self.default_exchange()];
        all.extend(self.exchanges().iter().map(|exchange| view_of(exchange)));
        all
    }

    /// All exchanges but the default one, in no particular order.
    pub(crate) fn exchanges(&self) -> Vec<Arc<Exchange>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.with_topology(|topology| topology.exchanges_from(at, STEP, &mut all));
            pace(STEPPED);
        }
        all
    }

    /// The exchange with this name, if it exists.
    pub fn exchange_view(&self, name: &str) -> Option<ExchangeView> {
        if name.is_empty() {
            return Some(self.default_exchange());
        }
        self.with_topology(|topology| topology.exchange(name).map(|(_, exchange)| view_of(exchange)))
    }

    /// The default exchange, which differs between virtual hosts only in its counts.
    fn default_exchange(&self) -> ExchangeView {
        ExchangeView {
            name: "".into(),
            kind: "direct",
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: FieldTable::new(),
            flow: Some(self.default_flow().clone()),
        }
    }

    /// Messages published in the virtual host, as of `now`. It visits all exchanges.
    pub fn published(&self, now: Timestamp) -> Count {
        let total = self.with_topology(|topology| topology.published_before());
        let mut published = Count { total, recent: 0 };
        let mut add = |flow: &ExchangeFlow| published += flow.read(now).unwrap_or_default().0;
        add(self.default_flow());
        self.exchanges().iter().filter_map(|exchange| exchange.flow.get()).for_each(|flow| add(flow));
        published
    }

    /// The queue with this name, regardless of its owner: for display only, not for use.
    pub fn find_queue(&self, name: &str) -> Option<Arc<Queue>> {
        self.with_topology(|topology| topology.queue(name).map(|(_, queue)| queue.clone()))
    }

    /// Bindings other than those of the default exchange, from at most `most` slots of the table of bindings
    /// beginning with slot `from`; and the slot from which there may be more.
    pub fn bindings_from(&self, from: usize, most: usize) -> (Vec<BindingView>, Option<usize>) {
        let mut found = Vec::new();
        let next = self.with_topology(|topology| topology.bindings_from(from, most, &mut found));
        (found, next)
    }

    /// The bindings to a queue except the one from the default exchange; `None` if there is no such queue.
    pub fn bindings_to_queue(&self, name: &str) -> Option<Vec<BindingView>> {
        let ids = self.with_topology(|topology| {
            let (slot, _) = topology.queue(name)?;
            Some(topology.incoming(Destination::queue(slot)))
        })?;
        Some(self.resolve(&ids, |binding| {
            binding.destination_type == BindingEnd::Queue && &*binding.destination == name
        }))
    }

    /// The bindings to an exchange; `None` if there is no such exchange.
    pub fn bindings_to_exchange(&self, name: &str) -> Option<Vec<BindingView>> {
        let ids = self.with_topology(|topology| {
            let (slot, _) = topology.exchange(name)?;
            Some(topology.incoming(Destination::exchange(slot)))
        })?;
        Some(self.resolve(&ids, |binding| {
            binding.destination_type == BindingEnd::Exchange && &*binding.destination == name
        }))
    }

    /// The bindings from an exchange; `None` if there is no such exchange.
    pub fn bindings_of_exchange(&self, name: &str) -> Option<Vec<BindingView>> {
        let ids = self.with_topology(|topology| {
            let (slot, _) = topology.exchange(name)?;
            Some(topology.outgoing(slot))
        })?;
        Some(self.resolve(&ids, |binding| &*binding.source == name))
    }

    /// Looks up bindings by slot; a slot may have been reused for another binding in the meantime.
    fn resolve(&self, ids: &[u32], wanted: impl Fn(&BindingView) -> bool) -> Vec<BindingView> {
        let mut found = Vec::new();
        for step in ids.chunks(STEP) {
            self.with_topology(|topology| {
                found.extend(step.iter().filter_map(|&id| topology.binding_view(id)));
            });
        }
        found.retain(wanted);
        found
    }
}

impl Broker {
    /// The names of the policy and the operator policy in effect for a queue, and their merged definition.
    pub fn policies_of_queue(
        &self,
        vhost: &VirtualHost,
        queue: &Queue,
    ) -> (Option<String>, Option<String>, Value) {
        let (policy, operator) = vhost.policy_names_for(queue);
        let read = |section, names: &[&str], pointer: &str| {
            let entry = self.definition(section, names)?;
            entry.pointer(pointer).and_then(Value::as_object).cloned()
        };
        let own =
            policy.as_ref().and_then(|name| read(Section::Policies, &[vhost.name(), name], "/definition"));
        let operators = operator.as_ref().and_then(|name| {
            read(Section::Parameters, &[vhost.name(), "operator_policy", name], "/value/definition")
        });
        let mut merged = own.unwrap_or_default();
        for (key, value) in operators.unwrap_or_default() {
            let lower = merged.get(&key).and_then(Value::as_u64).zip(value.as_u64());
            if lower.is_none_or(|(own, operators)| operators < own) {
                merged.insert(key, value);
            }
        }
        (policy, operator, Value::Object(merged))
    }
}

fn view_of(exchange: &Exchange) -> ExchangeView {
    ExchangeView {
        name: Arc::clone(exchange.name.text()),
        kind: exchange.kind.name(),
        durable: exchange.durable,
        auto_delete: exchange.auto_delete,
        internal: exchange.internal,
        arguments: exchange.arguments.clone(),
        flow: exchange.flow.get().cloned(),
    }
}

impl Topology {
    fn binding_view(&self, id: u32) -> Option<BindingView> {
        let (source, destination, key, arguments) = self.binding_parts(id)?;
        let (is_exchange, slot) = destination.slot();
        let source = self.exchange_at(source);
        let (destination, destination_type) = match is_exchange {
            true => (self.exchange_at(slot).name.text().clone(), BindingEnd::Exchange),
            false => (self.queue_at(slot).name().clone(), BindingEnd::Queue),
        };
        Some(BindingView {
            source: source.name.text().clone(),
            destination,
            destination_type,
            routing_key: key.to_owned(),
            // It was validated when it was bound.
            arguments: RawTable::check(&arguments).map(|table| table.decode()).unwrap_or_default(),
        })
    }

    fn bindings_from(&self, from: usize, most: usize, into: &mut Vec<BindingView>) -> Option<usize> {
        let (ids, next) = self.binding_ids(from, most);
        into.extend(ids.into_iter().filter_map(|id| self.binding_view(id)));
        next
    }
}

/// Slots visited while the topology is locked: well below a millisecond.
pub(crate) const STEP: usize = 1000;

/// Nanoseconds for that many slots.
const STEPPED: u32 = 100_000;
