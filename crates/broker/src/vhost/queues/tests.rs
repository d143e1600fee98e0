use store::catalogue::Section;
use store::disk::simulated::SimDisk;
use store::journal::JournalSettings;
use store::{Rounds, Store, StoreSettings};

use super::*;
use crate::vhost::ExchangeDeclare;
use crate::{Broker, BrokerConfig};

const ME: SessionId = SessionId(1);
const NOW: Timestamp = Timestamp(1);

/// A virtual host with a simulated disk, to which the test itself writes.
struct Stored {
    vhost: Arc<VirtualHost>,
    store: Arc<Store>,
    rounds: Rounds,
    _broker: Arc<Broker>,
}

fn stored() -> Stored {
    let broker = Broker::new(BrokerConfig::default());
    let settings = StoreSettings::from(JournalSettings::default());
    let (store, rounds, recovered) = Store::open(Arc::new(SimDisk::new(1, 1 << 30)), settings).unwrap();
    broker.restore(&store, recovered, NOW).unwrap();
    let vhost = broker.vhost("/").unwrap();
    Stored { vhost, store, rounds, _broker: broker }
}

impl Stored {
    fn declare(&self, name: &str, durable: bool) -> DeclaredQueue {
        let declare = QueueDeclare { name, durable, ..QueueDeclare::default() };
        self.vhost.declare_queue(ME, &declare, NOW).unwrap()
    }

    fn is_on_disk(&self, ticket: Ticket) -> bool {
        self.store.catalogue().is_committed(ticket)
    }

    fn write(&mut self) {
        self.rounds.step();
    }

    fn queues_on_disk(&self) -> usize {
        let mut found = 0;
        self.store.catalogue().scan(Section::Queues, |_, _| found += 1).unwrap();
        found
    }

    /// Marks a queue as deleted, as a thread does that then waits for the topology.
    fn begin_to_delete(&self, queue: &Queue) {
        assert!(queue.delete(false, false).is_ok());
    }
}

const BINDING: Binding<'static> =
    Binding { source: "e", destination: "q", routing_key: "k", arguments: amqp::RawTable::EMPTY };

#[test]
fn a_second_deletion_of_a_queue_waits_until_the_first_is_on_disk() {
    let mut stored = stored();
    let queue = stored.declare("q", true).queue;
    stored.write();
    assert_eq!(stored.queues_on_disk(), 1);
    stored.begin_to_delete(&queue);
    let (messages, ticket) = stored.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert!(messages == 0 && !stored.is_on_disk(ticket));
    stored.write();
    assert!(stored.is_on_disk(ticket));
    assert_eq!(stored.queues_on_disk(), 0, "the answer may be sent");
    // The name may be used again before the first thread continues.
    let again = stored.declare("q", true);
    stored.vhost.forget_queue(&queue);
    stored.write();
    assert!(stored.is_on_disk(again.ticket) && stored.queues_on_disk() == 1);
    assert!(Arc::ptr_eq(&stored.vhost.queue(ME, "q").unwrap(), &again.queue));
}

#[test]
fn a_deletion_of_a_missing_queue_waits_for_the_one_that_has_just_removed_it() {
    let mut stored = stored();
    stored.declare("q", true);
    stored.write();
    let (_, first) = stored.vhost.delete_queue(ME, "q", false, false).unwrap();
    let (_, second) = stored.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert!(second >= first && !stored.is_on_disk(first));
    stored.write();
    let (_, third) = stored.vhost.delete_queue(ME, "q", false, false).unwrap();
    assert!(stored.is_on_disk(second) && stored.is_on_disk(third), "nothing to wait for");
}

#[test]
fn an_unbinding_waits_until_the_deletion_of_either_end_is_on_disk() {
    for exchange_goes in [false, true] {
        let mut stored = stored();
        let exchange = ExchangeDeclare { name: "e", kind: "direct", durable: true, ..Default::default() };
        stored.vhost.declare_exchange(&exchange).unwrap();
        let queue = stored.declare("q", true).queue;
        stored.vhost.bind_queue(ME, &BINDING).unwrap();
        stored.write();
        if exchange_goes {
            stored.vhost.delete_exchange("e", false).unwrap();
        } else {
            stored.begin_to_delete(&queue);
        }
        let ticket = stored.vhost.unbind_queue(ME, &BINDING).unwrap();
        assert!(!stored.is_on_disk(ticket));
        stored.write();
        assert!(stored.is_on_disk(ticket));
        assert_eq!(stored.queues_on_disk(), usize::from(exchange_goes));
    }
}

#[test]
fn a_deletion_or_an_unbinding_of_a_missing_exchange_waits_for_the_deletion_of_another_client() {
    let stored = stored();
    let exchange = ExchangeDeclare { name: "e", kind: "direct", durable: true, ..Default::default() };
    stored.vhost.declare_exchange(&exchange).unwrap();
    let first = stored.vhost.delete_exchange("e", false).unwrap();
    let second = stored.vhost.delete_exchange("e", false).unwrap();
    let unbound = stored.vhost.unbind_exchange(&Binding { destination: "amq.direct", ..BINDING }).unwrap();
    assert!(second >= first && unbound >= first && !stored.is_on_disk(first));
}
