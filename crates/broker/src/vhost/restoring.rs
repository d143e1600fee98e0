//! Restores exchanges, queues and bindings from the store, many at a time.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use store::Store;
use store::journal::QueueId;

use super::VirtualHost;
use crate::arguments::QueueArguments;
use crate::broker::Broker;
use crate::queue::{NewQueue, Queue, QueueProperties};
use crate::time::Timestamp;
use crate::topology::{BindingKey, Destination, Exchange, NumberedEnd};
use crate::topology_recorder::{WrittenBinding, WrittenEnd};

/// Restores exchanges and queues.
pub(crate) struct TopologyRecovery<'b> {
    broker: &'b Broker,
    store: &'b Store,
    vhosts: Vec<Arc<VirtualHost>>,
    /// The indexes in `vhosts`, by name.
    places: HashMap<String, usize>,
    /// The index of the virtual host and the slot, for everything restored so far.
    ends: HashMap<NumberedEnd, (usize, Destination)>,
    /// Queues by their numbers on disk.
    queues: HashMap<u64, Arc<Queue>>,
}

/// Restores bindings, after exchanges and queues.
pub(crate) struct RestoringBindings {
    vhosts: Vec<Arc<VirtualHost>>,
    ends: HashMap<NumberedEnd, (usize, Destination)>,
}

impl<'b> TopologyRecovery<'b> {
    pub(crate) fn new(broker: &'b Broker, store: &'b Store) -> Self {
        let (places, ends, queues) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { broker, store, vhosts: Vec::new(), places, ends, queues }
    }

    /// Restores an exchange; `None` if that is impossible.
    pub(crate) fn exchange(&mut self, written: &WrittenEnd<'_>) -> Option<()> {
        let at = self.vhost(written.vhost)?;
        let vhost = &self.vhosts[at];
        let arguments = written.arguments.decode();
        let alternate = vhost.current_policies().alternate_of(written.name, &arguments);
        let mut topology = vhost.topology.write();
        // A new virtual host already has the standard ones.
        let found = topology.exchange(written.name).map(|(slot, _)| slot);
        let kind = written.kind?;
        let slot = found.unwrap_or_else(|| {
            vhost.metrics.exchanges.add(1);
            topology.insert_exchange(Exchange {
                name: written.name.into(),
                kind,
                durable: true,
                auto_delete: written.auto_delete,
                internal: written.internal,
                alternate,
                arguments,
                flow: OnceLock::new(),
            })
        });
        topology.set_number(slot, written.number);
        let end = NumberedEnd { is_exchange: true, number: written.number };
        self.ends.insert(end, (at, Destination::exchange(slot)));
        Some(())
    }

    /// Restores a queue; `None` if that is impossible.
    pub(crate) fn queue(&mut self, written: &WrittenEnd<'_>, now: Timestamp) -> Option<()> {
        let at = self.vhost(written.vhost)?;
        let vhost = &self.vhosts[at];
        let arguments = written.arguments.decode();
        // They were checked when it was declared, perhaps following another release.
        let parsed = QueueArguments::read(&arguments, &[], vhost.compatibility());
        let queue = Queue::new(NewQueue {
            name: written.name.into(),
            context: Arc::clone(&vhost.queue_context),
            properties: QueueProperties {
                durable: true,
                auto_delete: written.auto_delete,
                owner: None,
                arguments,
                type_name: None,
                capacity: None,
            },
            arguments: parsed,
            number: Some(written.number),
            stored: Some(self.store.queue(QueueId(written.number))),
        });
        queue.set_arguments(vhost.current_policies().arguments_of(&queue));
        vhost.topology.write().insert_queue(queue.clone());
        vhost.metrics.queues.add(1);
        queue.touch(now);
        let end = NumberedEnd { is_exchange: false, number: written.number };
        self.ends.insert(end, (at, Destination::queue(queue.slot())));
        self.queues.insert(written.number, queue);
        Some(())
    }

    /// Continues with the bindings; also returns the queues by their numbers on disk.
    pub(crate) fn into_bindings(self) -> (RestoringBindings, HashMap<u64, Arc<Queue>>) {
        (RestoringBindings { vhosts: self.vhosts, ends: self.ends }, self.queues)
    }

    fn vhost(&mut self, name: &str) -> Option<usize> {
        if let Some(&place) = self.places.get(name) {
            return Some(place);
        }
        let place = self.vhosts.len();
        self.vhosts.push(self.broker.vhost(name)?);
        self.places.insert(name.to_owned(), place);
        Some(place)
    }
}

impl RestoringBindings {
    /// Restores a binding; returns false if one of its ends is gone.
    pub(crate) fn bind(&mut self, written: &WrittenBinding<'_>) -> bool {
        let source = NumberedEnd { is_exchange: true, number: written.source };
        let ends = self.ends.get(&source).zip(self.ends.get(&written.to));
        let Some((&(at, source), &(_, destination))) = ends else { return false };
        let key = BindingKey {
            source: source.slot().1,
            destination,
            key: written.routing_key,
            arguments: written.arguments,
        };
        let vhost = &self.vhosts[at];
        if vhost.topology.write().bind(key) {
            vhost.metrics.bindings.add(1);
        }
        true
    }

    /// Invalidates cached routes.
    pub(crate) fn finish(self) {
        for vhost in self.vhosts {
            let topology = vhost.topology.write();
            vhost.topology_changed();
            drop(topology);
        }
    }
}
