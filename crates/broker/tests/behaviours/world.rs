//! A broker for tests, and a consumer that records its deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::*;
use parking_lot::Mutex;

/// A broker, one virtual host, one publisher, and a clock that the test moves.
pub(crate) struct World {
    pub(crate) broker: Arc<Broker>,
    pub(crate) vhost: Arc<VirtualHost>,
    pub(crate) publisher: Publisher,
    pub(crate) now: Timestamp,
}

pub(crate) const ME: SessionId = SessionId(1);
pub(crate) const OTHER: SessionId = SessionId(2);

pub(crate) fn world() -> World {
    world_of(BrokerConfig::default())
}

pub(crate) fn world_of(config: BrokerConfig) -> World {
    let broker = Broker::new(config);
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    let publisher = vhost.publisher(&guest);
    World { broker, vhost, publisher, now: Timestamp(1_000_000) }
}

impl World {
    pub(crate) fn declare(&self, declare: QueueDeclare<'_>) -> Result<DeclaredQueue, BrokerError> {
        self.vhost.declare_queue(ME, &declare, self.now)
    }

    /// Declares a queue without any properties.
    pub(crate) fn queue(&self, name: &str) -> Arc<Queue> {
        self.declare(QueueDeclare { name, ..Default::default() }).unwrap().queue
    }

    pub(crate) fn queue_with(&self, name: &str, arguments: &[(&str, FieldValue)]) -> Arc<Queue> {
        let arguments = table(arguments);
        self.declare(QueueDeclare { name, arguments: raw(&arguments), ..Default::default() }).unwrap().queue
    }

    pub(crate) fn exchange(&self, name: &str, kind: &str) {
        self.vhost.declare_exchange(&ExchangeDeclare { name, kind, ..Default::default() }).unwrap();
    }

    pub(crate) fn bind(&self, queue: &str, exchange: &str, key: &str) {
        self.vhost.bind_queue(ME, &binding(exchange, queue, key)).unwrap();
    }

    /// Publishes and flushes; returns whether any queue took the message.
    pub(crate) fn publish(&mut self, exchange: &str, key: &str, body: &str) -> bool {
        self.try_publish(exchange, key, body, Properties::default()).unwrap()
    }

    pub(crate) fn try_publish(
        &mut self,
        exchange: &str,
        routing_key: &str,
        body: &str,
        properties: Properties<'_>,
    ) -> Result<bool, BrokerError> {
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        let body = Body::Copied(body.as_bytes());
        let publish = Publish { exchange, routing_key, properties: &bytes, body };
        let routed = self.publisher.publish(publish, self.now)?;
        self.publisher.flush(self.now);
        Ok(routed)
    }

    pub(crate) fn publish_all(&mut self, queue: &str, bodies: &[&str]) {
        bodies.iter().for_each(|body| assert!(self.publish("", queue, body)));
    }

    /// Takes all ready messages without acknowledgement.
    pub(crate) fn drain(&self, queue: &Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.get(true, self.now)).map(|got| text(&got.delivery)).collect()
    }

    pub(crate) fn get(&self, queue: &Queue) -> Delivery {
        queue.get(false, self.now).expect("a message").delivery
    }

    /// Advances the clock, and lets the broker handle due deadlines.
    pub(crate) fn wait(&mut self, millis: u64) {
        self.now = self.now.after(millis);
        while self.broker.next_deadline().is_some_and(|due| due <= self.now) {
            self.broker.expire(self.now);
        }
    }

    /// Registers a consumer with a capacity of `capacity` messages, and resumes it.
    pub(crate) fn consume(
        &self,
        queue: &Queue,
        capacity: usize,
        priority: i32,
    ) -> (ConsumerId, Arc<Recorder>) {
        let recorder = Recorder::new(capacity);
        let id =
            queue.consume(spec(&recorder, &table(&[("x-priority", FieldValue::I32(priority))]))).unwrap();
        queue.resume(id, self.now);
        (id, recorder)
    }
}

/// Records its deliveries, up to its capacity.
pub(crate) struct Recorder {
    pub(crate) capacity: Mutex<usize>,
    pub(crate) got: Mutex<Vec<Delivery>>,
    pub(crate) cancelled: AtomicBool,
}

impl Recorder {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity: Mutex::new(capacity),
            got: Mutex::default(),
            cancelled: AtomicBool::new(false),
        })
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.got.lock().iter().map(text).collect()
    }

    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

impl Consumer for Recorder {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let mut capacity = self.capacity.lock();
        while *capacity > 0 {
            let Some(delivery) = offer.next() else { return ConsumerCapacity::More };
            self.got.lock().push(delivery);
            *capacity -= 1;
        }
        ConsumerCapacity::Full
    }

    fn cancelled(&self) {
        assert!(!self.cancelled.swap(true, Ordering::SeqCst), "cancelled twice");
    }
}

pub(crate) fn spec<'a>(consumer: &Arc<Recorder>, arguments: &'a [u8]) -> ConsumerSpec<'a> {
    ConsumerSpec {
        consumer: consumer.clone(),
        session: ME,
        tag: "tag",
        no_ack: false,
        exclusive: false,
        arguments: raw(arguments),
    }
}

pub(crate) fn binding<'a>(source: &'a str, destination: &'a str, routing_key: &'a str) -> Binding<'a> {
    Binding { source, destination, routing_key, arguments: RawTable::default() }
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message().body().to_vec()).unwrap()
}

pub(crate) fn headers_of(delivery: &Delivery) -> FieldTable {
    let properties = Properties::decode(delivery.message().properties()).unwrap();
    properties.headers.map(|headers| headers.decode()).unwrap_or_default()
}

pub(crate) fn table(entries: &[(&str, FieldValue)]) -> Vec<u8> {
    entries.iter().cloned().collect::<FieldTable>().encode()
}

pub(crate) fn raw(bytes: &[u8]) -> RawTable<'_> {
    RawTable::check(bytes).unwrap()
}

/// The reply code and text of a refusal.
pub(crate) fn refusal<T>(result: Result<T, BrokerError>) -> (u16, String) {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => (error.reply_code().code(), error.to_string()),
    }
}
