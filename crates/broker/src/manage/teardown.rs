//! Deletes the contents of a virtual host.

use store::catalogue::Section;

use crate::topology_recorder::key;
use crate::vhost::VirtualHost;

/// The sections whose keys begin with the name of a virtual host; bindings are stored under numbers that are
/// never reused.
const NAMED: [Section; 8] = [
    Section::Exchanges,
    Section::Queues,
    Section::MqttSessions,
    Section::MqttReceived,
    Section::MqttInFlight,
    Section::MqttRetained,
    Section::MqttPendingRetained,
    Section::MqttGroups,
];

impl VirtualHost {
    /// Deletes everything in a virtual host whose name has been removed. Connections that are still open can
    /// no longer declare anything in it, nor store anything for it, so nothing is left for a later virtual
    /// host of that name.
    pub(crate) fn tear_down(&self) {
        let exchanges = self.close();
        if let Some(catalogue) = self.catalogue() {
            for section in NAMED {
                catalogue.delete_all(section, key(&[self.name()]));
            }
        }
        for queue in self.all_queues() {
            // If another thread has deleted it, that thread removes it from the topology.
            if queue.delete(false, false).is_ok() {
                self.forget_queue(&queue);
            }
        }
        self.finish_exchanges(exchanges);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::disk::simulated::SimDisk;
    use store::journal::JournalSettings;
    use store::{Store, StoreSettings};

    use super::*;
    use crate::{Broker, BrokerConfig, QueueDeclare, SessionId, Timestamp};

    fn durable() -> QueueDeclare<'static> {
        QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }
    }

    /// A broker with a store, and the number of queues there once everything is written.
    fn stored_broker() -> (Arc<Broker>, impl FnMut() -> usize) {
        let settings = StoreSettings::from(JournalSettings::default());
        let (store, mut rounds, recovered) =
            Store::open(Arc::new(SimDisk::new(1, 1 << 30)), settings).unwrap();
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        broker.restore(&store, recovered, Timestamp(1)).unwrap();
        let written = move || {
            rounds.step();
            let mut count = 0;
            store.catalogue().scan(Section::Queues, |_, _| count += 1).unwrap();
            count
        };
        (broker, written)
    }

    #[test]
    fn a_stored_queue_whose_name_another_took_during_its_deletion_does_not_come_back() {
        let (broker, mut written) = stored_broker();
        let vhost = broker.add_vhost("v");
        let mut stored_after = |durable_successor: bool| {
            let old = vhost.declare_queue(SessionId(1), &durable(), Timestamp(1)).unwrap().queue;
            // Marked as deleted; its name is free, and it is not yet removed from the topology.
            assert!(old.delete(false, false).is_ok());
            let successor = QueueDeclare { durable: durable_successor, ..durable() };
            let new = vhost.declare_queue(SessionId(1), &successor, Timestamp(1)).unwrap().queue;
            vhost.forget_queue(&old);
            let count = written();
            assert!(new.delete(false, false).is_ok());
            vhost.forget_queue(&new);
            count
        };
        assert_eq!(stored_after(false), 0);
        assert_eq!(stored_after(true), 1);
    }

    #[test]
    fn a_queue_deleted_by_another_thread_does_not_stay_on_disk_but_its_successor_does() {
        let (broker, mut written) = stored_broker();
        let old = broker.add_vhost("v");
        let queue = old.declare_queue(SessionId(1), &durable(), Timestamp(1)).unwrap().queue;
        assert_eq!(written(), 1);
        // Marked as deleted, and not yet removed from the topology.
        assert!(queue.delete(false, false).is_ok());
        broker.remove_vhost("v");
        old.tear_down();
        assert_eq!(written(), 0);
        let new = broker.add_vhost("v");
        new.declare_queue(SessionId(1), &durable(), Timestamp(1)).unwrap();
        old.forget_queue(&queue);
        assert_eq!(written(), 1);
    }
}
