//! Traced deliveries wait for the connection's task, and consumers wait for the traces.

use amqp::RawTable;
use broker::{Binding, Tracer};

use super::super::super::publish_gate::PublishGate;
use super::*;

/// The maximum of waiting deliveries: the limit plus one consumer's batch.
const MAX_WAITING: usize = 2 * 1024;

/// A channel on a traced virtual host, and the queue that receives the traces.
fn traced() -> (Fixture, Arc<Queue>) {
    let mut fixture = Fixture::new(AMPLE);
    let connection = ConnectionConsumers::new(Arc::clone(&fixture.outbox)).of(Arc::clone(&fixture.vhost));
    fixture.connection = Arc::new(connection);
    let destination = Destination { channel: 1, frame_max: 4096 };
    fixture.deliveries = Arc::new(Deliveries::new(Arc::clone(&fixture.connection), destination));
    let declare = QueueDeclare { name: "hears", ..Default::default() };
    let hears = fixture.vhost.declare_queue(SESSION, &declare, NOW).unwrap().queue;
    let (source, destination) = ("amq.rabbitmq.trace", "hears");
    let binding = Binding { source, destination, routing_key: "deliver.#", arguments: RawTable::default() };
    fixture.vhost.bind_queue(SESSION, &binding).unwrap();
    fixture.vhost.set_traced(true);
    (fixture, hears)
}

impl Fixture {
    fn tracer(&self) -> Tracer {
        self.vhost.tracer(&self.identity, None)
    }

    /// The work of the connection's task after a nudge.
    fn notify(&self, publisher: &mut TracePublisher, publish_gate: &PublishGate) {
        publish_gate.resume(&self.vhost);
        publisher.publish(self.connection.traces(), publish_gate, NOW, || self.tracer());
        self.connection.resume_deferred(NOW);
    }
}

#[test]
fn consumers_wait_while_many_traces_are_pending_and_get_every_message() {
    const MESSAGES: usize = 10_000;
    let (mut fixture, hears) = traced();
    fixture.consume("c", 0, true);
    fixture.publish(MESSAGES);
    let mut delivered = fixture.delivered().len();
    assert!((1024..=MAX_WAITING).contains(&delivered), "{delivered} delivered before any trace is published");
    fixture.connection.resume(NOW);
    fixture.connection.resume_deferred(NOW);
    assert_eq!(fixture.delivered().len(), 0, "no trace has been published meanwhile");
    let (mut publisher, publish_gate) =
        (TracePublisher::default(), PublishGate::new(Arc::clone(&fixture.outbox)));
    while delivered < MESSAGES {
        fixture.notify(&mut publisher, &publish_gate);
        let more = fixture.delivered().len();
        assert!((1..=MAX_WAITING).contains(&more), "{more} after {delivered}");
        delivered += more;
    }
    fixture.notify(&mut publisher, &publish_gate);
    assert!(fixture.connection.traces().is_empty());
    assert_eq!(hears.message_count(), MESSAGES as u64);
}

#[test]
fn pending_traces_are_published_when_the_connection_ends() {
    let (mut fixture, hears) = traced();
    fixture.consume("c", 0, true);
    fixture.publish(10);
    assert_eq!(hears.message_count(), 0);
    TracePublisher::default().finish(fixture.connection.traces(), NOW, || fixture.tracer());
    assert_eq!(hears.message_count(), 10);
}

#[test]
fn the_firehose_does_not_hold_up_its_own_consumers() {
    const MESSAGES: usize = 3_000;
    let (mut fixture, hears) = traced();
    fixture.consume("c", 0, true);
    let (mut publisher, publish_gate) =
        (TracePublisher::default(), PublishGate::new(Arc::clone(&fixture.outbox)));
    fixture.publish(MESSAGES);
    while fixture.queue.message_count() > 0 || !fixture.connection.traces().is_empty() {
        fixture.notify(&mut publisher, &publish_gate);
        fixture.delivered();
    }
    // On the same connection: deliveries of traces are not traced.
    fixture.queue = hears;
    fixture.consume("listens", 0, true);
    assert_eq!(fixture.delivered().len(), MESSAGES);
    assert!(fixture.connection.traces().is_empty());
}

#[test]
fn nothing_waits_while_nothing_is_traced() {
    let (mut fixture, hears) = traced();
    fixture.vhost.set_traced(false);
    fixture.consume("c", 0, true);
    fixture.publish(5_000);
    assert_eq!(fixture.delivered().len(), 5_000);
    assert!(fixture.connection.traces().is_empty() && hears.message_count() == 0);
}
