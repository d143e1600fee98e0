//! Publishers that a queue holds to let its consumers catch up.

use std::time::Duration;

use amqp::RawTable;
use broker::{Consumer, ConsumerCapacity, ConsumerSpec, Offer, Queue, SessionId};

use super::*;

/// More than a turn's messages and than a queue's backlog may grow while its consumers are behind.
const MANY: usize = 9_000;
/// The longest time for which a publisher is held.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// A consumer that takes no messages; the flag says whether its connection is busy.
struct Late(bool);

impl Consumer for Late {
    fn accept(&self, _: &mut Offer<'_>) -> ConsumerCapacity {
        ConsumerCapacity::Full
    }

    fn cancelled(&self) {}

    fn busy_since_rest(&self) -> Option<u32> {
        self.0.then_some(0)
    }
}

/// A client that has published many messages to a queue with this consumer.
fn publish_many(broker: &Arc<Broker>, consumer: Late) -> (Conversation, Arc<Queue>) {
    let mut client = Conversation::open(&server_of(Arc::clone(broker)), 0);
    client.call(|out| declare(out, "q"));
    let queue = broker.vhost("/").unwrap().find_queue("q").unwrap();
    let spec = ConsumerSpec {
        consumer: Arc::new(consumer),
        session: SessionId(9),
        tag: "late",
        no_ack: true,
        exclusive: false,
        arguments: RawTable::EMPTY,
    };
    queue.consume(spec).unwrap();
    for _ in 0..MANY / 100 {
        client.now += Duration::from_millis(2);
        client.call(|out| (0..100).for_each(|_| publish(out, "q", b"x", false)));
    }
    (client, queue)
}

/// Whether the client's connection and channel are listed as in flow.
fn is_in_flow(client: &Conversation) -> (bool, bool) {
    let now = client.shared.clock.timestamp(client.now);
    let [connection] = &client.shared.registry.all()[..] else { panic!("one connection") };
    (connection.is_in_flow(now), connection.channels_counted(now)[0].0.is_in_flow)
}

fn nudged(client: &mut Conversation) -> Intent {
    let now = client.now;
    client.connection.handle_nudge(now);
    client.connection.intent()
}

#[test]
fn a_held_publisher_is_not_read_for_50_ms_and_in_flow_for_a_second() {
    let broker = Broker::new(BrokerConfig::default());
    let (mut client, queue) = publish_many(&broker, Late(true));
    assert_eq!((client.connection.intent(), is_in_flow(&client)), (Intent::Pause, (true, true)));
    let held = queue.message_count();
    client.call(|out| publish(out, "q", b"x", false));
    assert_eq!(queue.message_count(), held, "a held publisher is not read");
    client.now += MAX_PAUSE - Duration::from_millis(2);
    broker.expire(client.shared.clock.timestamp(client.now));
    assert_eq!(nudged(&mut client), Intent::Pause);
    client.now += Duration::from_millis(2);
    broker.expire(client.shared.clock.timestamp(client.now));
    assert_eq!((nudged(&mut client), is_in_flow(&client)), (Intent::Run, (true, true)));
    client.send(&[]);
    assert_eq!(queue.message_count(), MANY as u64 + 1);
    client.now += Duration::from_secs(1);
    assert_eq!(is_in_flow(&client), (false, false));
}

#[test]
fn a_held_publisher_goes_on_when_the_queue_is_short_or_gone() {
    for is_deleted in [false, true] {
        let broker = Broker::new(BrokerConfig::default());
        let (mut client, queue) = publish_many(&broker, Late(true));
        assert_eq!(nudged(&mut client), Intent::Pause);
        if is_deleted {
            broker.vhost("/").unwrap().delete_queue(SessionId(1), "q", false, false).unwrap();
        } else {
            queue.purge();
        }
        assert_eq!(nudged(&mut client), Intent::Run);
    }
}

#[test]
fn consumers_that_wait_for_their_clients_hold_no_publisher() {
    let broker = Broker::new(BrokerConfig::default());
    let (client, queue) = publish_many(&broker, Late(false));
    assert_eq!((client.connection.intent(), is_in_flow(&client)), (Intent::Run, (false, false)));
    assert_eq!((queue.message_count(), broker.metrics().publisher_holds.get()), (MANY as u64, 0));
}
