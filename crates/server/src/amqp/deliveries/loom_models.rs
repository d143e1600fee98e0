//! Consumers of a connection whose outbox fills repeatedly, in every interleaving of publishers, the connection's task
//! and its settlements (`make loom`). A lost delivery leaves the connection waiting forever, which the model reports. The
//! tests are in `tests/interleavings.rs`, where dependencies have the features of the other crates' tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use amqp::RawTable;
use broker::{Body, Broker, BrokerConfig, ConsumerSpec, Publish, Publisher, QueueDeclare, SessionId};
use sync::explore;
use sync::loom::future::block_on;
use sync::loom::thread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{Ended, Intent, Outbox, PeerWatch, Protocol, drive};

use super::*;

const NOW: Timestamp = Timestamp(1);
const SESSION: SessionId = SessionId(1);

/// Bytes of each delivery in these tests; one of them fills the outbox.
const DELIVERY: usize = 65;

/// A client that acknowledges nothing, and disconnects when it has received all expected bytes.
struct Client {
    got: usize,
    goal: usize,
}

impl PeerWatch for Client {}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.got >= self.goal { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.got += bytes.windows(BODY.len()).filter(|window| *window == BODY).count();
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

const BODY: &[u8] = b"<message>";

/// A connection's task, as far as consumers depend on it; it settles deliveries once they have been written.
struct Session {
    connection: Arc<ConnectionConsumers>,
    deliveries: Arc<Deliveries>,
    intent: Intent,
}

impl Protocol for Session {
    fn handle_input(&mut self, input: &[u8], _: Instant) -> usize {
        input.len()
    }
    fn handle_eof(&mut self) {
        self.intent = Intent::Finish;
    }
    fn handle_nudge(&mut self, _: Instant) {}
    fn handle_capacity(&mut self) {
        self.connection.resume(NOW);
    }
    fn handle_written(&mut self, _: Instant) {
        for (_, entry) in self.deliveries.settle(0, true, DeliverySettlement::Ack, None).unwrap_or_default() {
            entry.queue.ack(vec![entry.delivery], NOW);
        }
        self.deliveries.resume(NOW);
    }
    fn handle_deadline(&mut self, _: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        self.intent
    }
}

/// Two queues with one message and one consumer each, on one channel whose outbox holds one delivery. Messages are
/// published to both while the connection runs.
fn two_queues(own_limit: usize, channel_limit: usize, no_ack: bool) {
    let broker = Broker::new(BrokerConfig::default());
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    let outbox = Arc::new(Outbox::new(DELIVERY));
    let connection = Arc::new(ConnectionConsumers::new(Arc::clone(&outbox)));
    let destination = Destination { channel: 1, frame_max: 4096 };
    let deliveries = Arc::new(Deliveries::new(Arc::clone(&connection), destination));
    deliveries.set_channel_limit(channel_limit);
    let mut publisher = vhost.publisher(&guest);
    let consumers = ["a", "b"].map(|name| {
        let declare = QueueDeclare { name, ..Default::default() };
        let queue = vhost.declare_queue(SESSION, &declare, NOW).unwrap().queue;
        let key = deliveries.add_consumer(own_limit, Settling::of_queue(no_ack));
        let consumer = ChannelConsumer {
            deliveries: Arc::clone(&deliveries),
            key,
            tag: name.into(),
            no_ack,
            prefetch: 0,
            queue: Arc::clone(&queue),
            form: BasicDeliver,
        };
        let (consumer, arguments) = (Arc::new(consumer), RawTable::default());
        let spec =
            ConsumerSpec { consumer, session: SESSION, tag: name, no_ack, exclusive: false, arguments };
        let id = queue.consume(spec).unwrap();
        deliveries.activate(key, &queue, id);
        queue.resume(id, NOW);
        (queue, id)
    });
    publish(&mut publisher, "a");
    assert_eq!(outbox.backlog(), DELIVERY);
    let publishing = thread::spawn(move || {
        publish(&mut publisher, "b");
        publish(&mut publisher, "a");
    });
    let mut session = Session { connection, deliveries: Arc::clone(&deliveries), intent: Intent::Run };
    let mut client = Client { got: 0, goal: 3 };
    let ended = block_on(drive(&mut client, &mut session, &outbox, 1 << 20, Duration::from_secs(1)));
    assert!(matches!(ended, Ended::Eof), "{ended:?}");
    publishing.join().unwrap();
    assert_eq!(client.got, 3);
    consumers.into_iter().for_each(|(queue, id)| queue.cancel(id, NOW));
}

fn publish(publisher: &mut Publisher, routing_key: &str) {
    let publish = Publish { exchange: "", routing_key, properties: &[0, 0], body: Body::Copied(BODY) };
    publisher.publish(publish, NOW).unwrap();
    publisher.flush(NOW);
}

/// Consumers without limits of their own: an outbox that has room again resumes each that waits for it.
pub fn outbox_capacity() {
    explore(3, || two_queues(0, 0, true));
}

/// Consumers with a prefetch of one, on a channel with the same: settled deliveries resume each that waits for credit.
pub fn credit() {
    explore(3, || two_queues(1, 1, false));
}
