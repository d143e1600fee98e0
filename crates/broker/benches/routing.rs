//! The cost of routing and binding, with one, a thousand and a million bindings on the exchange.
//!
//! `cargo bench -p broker`. Each publish uses a routing key that was not used recently, so that no route is
//! cached and every message is routed again; it matches one binding. A consumer discards the messages.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::*;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const SIZES: [u32; 3] = [1, 1_000, 1_000_000];
const KINDS: [&str; 4] = ["direct", "fanout", "topic", "headers"];
const SESSION: SessionId = SessionId(1);

struct Discard;

impl Consumer for Discard {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        while offer.next().is_some() {}
        ConsumerCapacity::More
    }

    fn cancelled(&self) {}
}

struct Bench {
    vhost: Arc<VirtualHost>,
    publisher: Publisher,
    kind: &'static str,
}

/// The key and arguments of one binding.
fn pattern(kind: &str, number: u32) -> (String, Vec<u8>) {
    match kind {
        "headers" => {
            let table: FieldTable =
                [("kind", FieldValue::text("order")), ("number", FieldValue::I32(number as i32))]
                    .into_iter()
                    .collect();
            (String::new(), table.encode())
        }
        "topic" => (format!("order.*.{number}.#"), Vec::new()),
        _ => (format!("order.{number}"), Vec::new()),
    }
}

impl Bench {
    fn new(kind: &'static str) -> Self {
        let broker = Broker::new(BrokerConfig::default());
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&guest, "/").unwrap();
        vhost.declare_exchange(&ExchangeDeclare { name: "e", kind, ..Default::default() }).unwrap();
        let declare = QueueDeclare { name: "q", ..Default::default() };
        let queue = vhost.declare_queue(SESSION, &declare, Timestamp(0)).unwrap().queue;
        let spec = ConsumerSpec {
            consumer: Arc::new(Discard),
            session: SESSION,
            tag: "",
            no_ack: true,
            exclusive: false,
            arguments: RawTable::default(),
        };
        let consumer = queue.consume(spec).unwrap();
        queue.resume(consumer, Timestamp(0));
        Self { publisher: vhost.publisher(&guest), vhost, kind }
    }

    fn with_binding(&self, number: u32, act: impl Fn(&VirtualHost, &Binding<'_>)) {
        let (key, arguments) = pattern(self.kind, number);
        let arguments = RawTable::check(&arguments).unwrap();
        act(&self.vhost, &Binding { source: "e", destination: "q", routing_key: &key, arguments });
    }

    fn bind(&self, number: u32) {
        self.with_binding(number, |vhost, binding| {
            vhost.bind_queue(SESSION, binding).unwrap();
        });
    }

    fn unbind(&self, number: u32) {
        self.with_binding(number, |vhost, binding| {
            vhost.unbind_queue(SESSION, binding).unwrap();
        });
    }

    fn publish(&mut self, number: u32) {
        let (key, headers) = match self.kind {
            "topic" => (format!("order.eu.{number}.new"), Vec::new()),
            kind => pattern(kind, number),
        };
        let mut properties = vec![0, 0];
        if !headers.is_empty() {
            properties.clear();
            Properties::default().with_headers(RawTable::check(&headers).unwrap()).encode(&mut properties);
        }
        let body = Body::Copied(&[0; 16]);
        let publish = Publish { exchange: "e", routing_key: &key, properties: &properties, body };
        assert!(self.publisher.publish(publish, Timestamp(0)).unwrap());
    }
}

fn routing(criterion: &mut Criterion) {
    for kind in KINDS {
        let mut group = criterion.benchmark_group(kind);
        group
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1))
            .sample_size(20);
        let (mut bench, mut bound) = (Bench::new(kind), 0);
        for size in SIZES {
            (bound..size).for_each(|number| bench.bind(number));
            bound = size;
            // A stride coprime to all sizes visits every key before any repeats.
            let mut number = 0;
            group.bench_function(BenchmarkId::new("publish", size), |bencher| {
                bencher.iter(|| {
                    number = (number + 7_919) % size;
                    bench.publish(black_box(number));
                });
            });
            group.bench_function(BenchmarkId::new("bind and unbind", size), |bencher| {
                bencher.iter(|| {
                    bench.bind(black_box(u32::MAX >> 1));
                    bench.unbind(u32::MAX >> 1);
                });
            });
        }
    }
}

fn same_route(criterion: &mut Criterion) {
    let mut bench = Bench::new("direct");
    bench.bind(1);
    let publish = Publish {
        exchange: "e",
        routing_key: "order.1",
        properties: &[0x10, 0, 2],
        body: Body::Copied(&[0; 16]),
    };
    criterion.bench_function("publish and deliver, same route", |bencher| {
        bencher.iter(|| bench.publisher.publish(black_box(publish), Timestamp(0)).unwrap());
    });
}

criterion_group!(benches, routing, same_route);
criterion_main!(benches);
