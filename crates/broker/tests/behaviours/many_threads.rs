use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use amqp::FieldValue;
use broker::*;
use parking_lot::Mutex;

use crate::world::*;

const PUBLISHERS: u64 = 3;
const MESSAGES: u64 = 4_000;

/// Requeues every third message once and acknowledges the rest, from another thread, as sessions do.
struct Worker {
    queue: Arc<Queue>,
    inbox: Mutex<Vec<Delivery>>,
    full: AtomicBool,
    cancelled: AtomicBool,
}

const PREFETCH: usize = 50;

impl Consumer for Worker {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let mut inbox = self.inbox.lock();
        while inbox.len() < PREFETCH {
            let Some(delivery) = offer.next() else { return ConsumerCapacity::More };
            inbox.push(delivery);
        }
        self.full.store(true, Ordering::SeqCst);
        ConsumerCapacity::Full
    }

    fn cancelled(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

fn work(worker: &Worker, id: ConsumerId, seen: &Mutex<Vec<String>>, settled: &AtomicU64, goal: u64) {
    while settled.load(Ordering::SeqCst) < goal {
        let taken = std::mem::take(&mut *worker.inbox.lock());
        let (back, done): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|d| !d.redelivered() && text(d).ends_with('3'));
        seen.lock().extend(done.iter().map(text));
        settled.fetch_add(done.len() as u64, Ordering::SeqCst);
        worker.queue.ack(done, Timestamp(1));
        worker.queue.requeue(back, Returned::Failed, Timestamp(1));
        if worker.full.swap(false, Ordering::SeqCst) {
            worker.queue.resume(id, Timestamp(1));
        }
        thread::yield_now();
    }
}

/// Declares, binds to, publishes to and deletes its own queues and exchanges, concurrently with the others.
fn disturb(world: &World, number: u64, stop: &AtomicBool) {
    let session = SessionId(100 + number);
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    let mut publisher = world.vhost.publisher(&guest);
    while !stop.load(Ordering::SeqCst) {
        let declare = QueueDeclare { name: "shared-name", ..Default::default() };
        let _ = world.vhost.declare_queue(session, &declare, Timestamp(1));
        let own = world
            .vhost
            .declare_queue(session, &QueueDeclare { exclusive: true, ..Default::default() }, Timestamp(1))
            .unwrap()
            .queue;
        for key in ["x.#", "x.*.y", "#"] {
            world.vhost.bind_queue(session, &binding("busy", own.name(), key)).unwrap();
            let _ = world.vhost.bind_queue(session, &binding("busy", "shared-name", key));
        }
        let body = Body::Copied(b"noise");
        let publish = Publish { exchange: "busy", routing_key: "x.a.y", properties: &[0, 0], body };
        assert!(publisher.publish(publish, Timestamp(1)).unwrap());
        publisher.flush(Timestamp(1));
        assert!(own.message_count() >= 1, "one's own publish is there after a flush");
        let _ = world.vhost.delete_queue(session, "shared-name", false, false);
        world.vhost.end_session(session);
    }
}

#[test]
fn nothing_is_lost_doubled_or_stuck() {
    let world = world();
    world.exchange("busy", "topic");
    let queue = world.queue("work");
    world.bind("work", "amq.direct", "work");
    let (seen, settled, stop) = (Mutex::new(Vec::new()), AtomicU64::new(0), AtomicBool::new(false));
    let goal = PUBLISHERS * MESSAGES;
    thread::scope(|scope| {
        for number in 0..2 {
            let (world, stop) = (&world, &stop);
            scope.spawn(move || disturb(world, number, stop));
        }
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let worker = Arc::new(Worker {
                    queue: queue.clone(),
                    inbox: Mutex::default(),
                    full: AtomicBool::new(false),
                    cancelled: AtomicBool::new(false),
                });
                let spec = ConsumerSpec {
                    consumer: worker.clone(),
                    session: ME,
                    tag: "worker",
                    no_ack: false,
                    exclusive: false,
                    arguments: raw(&[]),
                };
                let id = queue.consume(spec).unwrap();
                queue.resume(id, Timestamp(1));
                let (seen, settled) = (&seen, &settled);
                scope.spawn(move || work(&worker, id, seen, settled, goal))
            })
            .collect();
        for publisher in 0..PUBLISHERS {
            let world = &world;
            scope.spawn(move || publish_numbers(world, publisher));
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::SeqCst);
    });
    let mut seen = seen.into_inner();
    assert_eq!(seen.len() as u64, goal);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len() as u64, goal, "something was settled twice");
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
    let metrics = world.broker.metrics();
    assert_eq!(metrics.bindings.get(), 1, "only the worker's binding is left");
    assert_eq!(metrics.queues_created.get() - metrics.queues_deleted.get(), metrics.queues.get());
}

fn publish_numbers(world: &World, publisher: u64) {
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    let mut channel = world.vhost.publisher(&guest);
    for number in 0..MESSAGES {
        let body = format!("{publisher}/{number}");
        let (exchange, routing_key) = if number % 2 == 0 { ("", "work") } else { ("amq.direct", "work") };
        let body = Body::Copied(body.as_bytes());
        let publish = Publish { exchange, routing_key, properties: &[0, 0], body };
        assert!(channel.publish(publish, Timestamp(1)).unwrap());
        if number % 17 == 0 {
            channel.flush(Timestamp(1));
        }
    }
    channel.flush(Timestamp(1));
}

#[test]
fn many_exclusive_queues_vanish_while_others_publish() {
    let world = world();
    let others = 2_000;
    for number in 0..others {
        let name = format!("own{number}");
        let declare = QueueDeclare { name: &name, exclusive: true, ..Default::default() };
        world.vhost.declare_queue(ME, &declare, world.now).unwrap();
        world.bind(&name, "amq.fanout", "");
    }
    let disk_world =
        world.vhost.declare_queue(OTHER, &QueueDeclare { name: "kept", ..Default::default() }, world.now);
    let disk_world = disk_world.unwrap().queue;
    world.bind("kept", "amq.fanout", "");
    thread::scope(|scope| {
        let world = &world;
        scope.spawn(|| world.vhost.end_session(ME));
        scope.spawn(|| {
            let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
            let mut publisher = world.vhost.publisher(&guest);
            for _ in 0..200 {
                let body = Body::Copied(b"m");
                let publish = Publish { exchange: "amq.fanout", routing_key: "", properties: &[0, 0], body };
                assert!(publisher.publish(publish, Timestamp(1)).unwrap());
                publisher.flush(Timestamp(1));
            }
        });
    });
    assert_eq!(disk_world.message_count(), 200);
    assert_eq!((world.broker.metrics().queues.get(), world.broker.metrics().bindings.get()), (1, 1));
}

/// Takes a message only once all other consumers have reached theirs.
struct Rendezvous(Arc<Barrier>);

impl Consumer for Rendezvous {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        while offer.next().is_some() {
            self.0.wait();
        }
        ConsumerCapacity::More
    }

    fn cancelled(&self) {}
}

#[test]
fn ten_queues_are_served_at_the_same_moment_and_none_is_left_behind() {
    const QUEUES: usize = 10;
    let world = world();
    let barrier = Arc::new(Barrier::new(QUEUES));
    let (done, all_done) = mpsc::sync_channel(QUEUES);
    for number in 0..QUEUES {
        let queue = world.queue(&number.to_string());
        let consumer = Arc::new(Rendezvous(barrier.clone()));
        let arguments = raw(&[]);
        let spec =
            ConsumerSpec { consumer, session: ME, tag: "c", no_ack: true, exclusive: false, arguments };
        queue.resume(queue.consume(spec).unwrap(), world.now);
        let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
        let mut publisher = world.vhost.publisher(&guest);
        let done = done.clone();
        // Not scoped, so that the test fails instead of hanging if the threads deadlock.
        thread::spawn(move || {
            for _ in 0..100 {
                let body = Body::Copied(b"m");
                let publish = Publish { exchange: "", routing_key: queue.name(), properties: &[0, 0], body };
                publisher.publish(publish, Timestamp(1)).unwrap();
                publisher.flush(Timestamp(1));
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..QUEUES {
        all_done.recv_timeout(Duration::from_secs(60)).expect("one queue's delivery waits for another's");
    }
}

/// Blocks the thread that sends dead letters to its queue until another thread has dropped its message as well, and has
/// had the opportunity to send that dead letter.
struct Gate {
    entered: mpsc::SyncSender<()>,
    dropping: Arc<Queue>,
    end: Arc<Queue>,
}

impl Consumer for Gate {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        while offer.next().is_some() {
            self.entered.send(()).unwrap();
            // On a separate thread, because this one has locked a queue.
            let wait = || {
                while self.dropping.unacked_count() > 0 {
                    thread::yield_now();
                }
                (0..10_000).take_while(|_| self.end.message_count() == 0).for_each(|_| thread::yield_now());
            };
            thread::scope(|scope| scope.spawn(wait).join().unwrap());
        }
        ConsumerCapacity::More
    }

    fn cancelled(&self) {}
}

#[test]
fn b5_dead_letters_leave_in_order_whichever_thread_drops_them() {
    let mut world = world();
    let dropping = world.queue_with("q", &[("x-dead-letter-exchange", FieldValue::text("amq.topic"))]);
    let [gate, end] = ["gate", "end"].map(|name| world.queue(name));
    world.bind("gate", "amq.topic", "gate");
    world.bind("end", "amq.topic", "end");
    world.bind("q", "amq.direct", "gate");
    world.bind("q", "amq.direct", "end");
    for (key, body) in [("gate", "0"), ("end", "1"), ("end", "2")] {
        world.publish("amq.direct", key, body);
    }
    let mut deliveries: Vec<Delivery> = (0..3).map(|_| world.get(&dropping)).collect();
    let last = deliveries.split_off(2);
    let (entered, at_gate) = mpsc::sync_channel(1);
    let consumer = Arc::new(Gate { entered, dropping: dropping.clone(), end: end.clone() });
    let arguments = raw(&[]);
    let spec = ConsumerSpec { consumer, session: ME, tag: "c", no_ack: true, exclusive: false, arguments };
    gate.resume(gate.consume(spec).unwrap(), world.now);
    thread::scope(|scope| {
        let (dropping, now) = (&dropping, world.now);
        scope.spawn(move || dropping.reject(deliveries, Returned::Failed, now));
        scope.spawn(move || {
            at_gate.recv().unwrap();
            dropping.reject(last, Returned::Failed, now);
        });
    });
    assert_eq!(world.drain(&end), ["1", "2"]);
}
