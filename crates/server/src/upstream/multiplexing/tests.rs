//! Shared queues with the embedded broker as their upstream, on tokio's paused clock.

mod delivering;
mod losing;
mod pooled;
mod threads;
mod topology;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::handshake::OpenRequest;
use amqp::method::{basic, channel};
use amqp::properties::NO_PROPERTIES;
use amqp::{Capabilities, Credentials, Fault, FieldTable, Frame, Negotiated, ReplyCode};
use broker::{
    Broker, BrokerConfig, ExchangeDeclare, Permissions, Queue, TopicPermissions, UserSpec, VirtualHost,
};
use parking_lot::Mutex;
use transport::{InnerOutbox, Outbox, Peer};

use super::inbox::{Copies, InboxLimits, SubscriberEvent, SubscriberInbox};
use super::queue::{MultiplexedQueueStatus, MultiplexedSubscriber, UpstreamLogin};
use super::subscriptions::MultiplexedSubscriptions;
use super::task::{OpenError, OpenUpstream};
use crate::amqp::session::BackendSession;
use crate::clock::Clock;
use crate::registry::{ConnectionEndpoints, NewConnection, OpenConnection};
use crate::server::Shared;
use crate::simulated::{self, FRAME_MAX};
use crate::upstream::client::AmqpClient;

/// The user whose clients subscribe. It may not bind `private.#`.
pub(crate) const USER: &str = "subscriber";

/// The embedded broker as an upstream that can fail.
#[derive(Clone)]
pub(crate) struct Upstream {
    shared: Arc<Shared>,
    /// The connections of shared queues that are open.
    open: Arc<Mutex<Vec<FlakyLink>>>,
    /// The error returned instead of a connection.
    pub(crate) refusal: Arc<Mutex<Option<OpenError>>>,
    /// Publishes that contain these bytes close the connection with a fault.
    poison: Poison,
    /// Whether it accepts everything and answers no publish.
    is_silent: Arc<AtomicBool>,
    /// Number of requested connections.
    attempts: Arc<AtomicU64>,
    next_session: Arc<AtomicU64>,
}

/// Bytes in a publish that close the connection, and the fault with which they do.
type Poison = Arc<Mutex<Option<(Vec<u8>, Fault)>>>;

pub(crate) struct FlakyLink {
    is_lost: Arc<AtomicBool>,
    outbox: Arc<Outbox>,
}

impl Upstream {
    pub(crate) fn new() -> Self {
        let broker = Broker::new(BrokerConfig::default());
        broker.put_user(UserSpec { name: USER.to_owned(), ..UserSpec::guest() });
        let vhost = broker.vhost("/").unwrap();
        vhost.set_permissions(USER, Some(&Permissions::all())).unwrap();
        let (exchange, write, read) = ("amq.topic".into(), ".*".into(), "^(?!private)".into());
        vhost.set_topic_permissions(USER, &TopicPermissions { exchange, write, read }).unwrap();
        Self {
            shared: simulated::server_of(broker, Clock::start(), 0).shared(),
            open: Arc::default(),
            refusal: Arc::default(),
            poison: Arc::default(),
            is_silent: Arc::default(),
            attempts: Arc::default(),
            next_session: Arc::new(AtomicU64::new(1)),
        }
    }

    fn broker(&self) -> &Arc<Broker> {
        let crate::backend::Backend::Broker(broker) = &self.shared.backend else { unreachable!() };
        broker
    }

    pub(crate) fn vhost(&self) -> Arc<VirtualHost> {
        self.broker().vhost("/").unwrap()
    }

    /// Opens a connection in a virtual host; only `/` exists.
    pub(crate) async fn open_in(&self, vhost: &str) -> Result<AmqpClient, OpenError> {
        match self.broker().vhost(vhost) {
            Some(_) => self.open().await,
            None => {
                let text = format!("vhost {vhost} not found");
                Err(OpenError::Refused(Fault::new(ReplyCode::NotAllowed, text)))
            }
        }
    }

    /// Expires queues and messages that are due.
    pub(crate) fn expire(&self) {
        let now = self.shared.clock.timestamp(transport::now());
        self.broker().expire(now);
    }

    /// A client of the broker, and its outbox.
    pub(crate) fn client(&self, user: &str) -> (AmqpClient, FlakyLink) {
        let inner = InnerOutbox::new(1 << 20);
        let outbox = Arc::clone(inner.outbox());
        let negotiated = Negotiated { channel_max: 0, frame_max: FRAME_MAX, heartbeat_secs: 0 };
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let view = OpenConnection::new(NewConnection {
            id,
            arrival: ConnectionEndpoints { peer: Peer::Unix, local: None, tls: false, websocket: false },
            protocol: "AMQP 0-9-1",
            user,
            vhost: "/",
            mechanism: "PLAIN",
            connected_at: 0,
            negotiated,
            client_properties: &FieldTable::new(),
            session: None,
            outbox: &outbox,
        });
        let identity = self.broker().authenticate_external(user, true).unwrap();
        let request = OpenRequest {
            virtual_host: "/".to_owned(),
            negotiated,
            client_properties: FieldTable::new(),
            capabilities: Capabilities::ALL,
        };
        let joined = (Arc::clone(&outbox), view);
        let session = self.shared.backend.open_broker(&self.shared, identity, id, &request, joined).unwrap();
        let is_lost = Arc::new(AtomicBool::new(false));
        let (poison, is_silent) = (Arc::clone(&self.poison), Arc::clone(&self.is_silent));
        let flaky = FlakySession { session, is_lost: Arc::clone(&is_lost), poison, is_silent };
        (AmqpClient::new(Box::new(flaky), inner, FRAME_MAX), FlakyLink { is_lost, outbox })
    }

    /// Closes each connection over which these bytes are published.
    pub(crate) fn closes_for(&self, text: &str, fault: Fault) {
        *self.poison.lock() = Some((text.as_bytes().to_vec(), fault));
    }

    /// Accepts publishes from now on, but neither stores nor confirms them.
    pub(crate) fn stop_confirming(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Stores and confirms publishes again.
    pub(crate) fn resume_confirming(&self) {
        self.is_silent.store(false, Ordering::Relaxed);
    }

    /// Loses the connections of all shared queues.
    pub(crate) fn lose(&self) {
        for link in self.open.lock().drain(..) {
            link.is_lost.store(true, Ordering::Relaxed);
            link.outbox.nudge();
        }
    }

    /// The broker's shared queues.
    pub(crate) fn queues(&self) -> Vec<Arc<Queue>> {
        self.vhost().all_queues()
    }

    fn declare_exchange(&self, name: &str) {
        let declare = ExchangeDeclare { name, kind: "topic", durable: true, ..ExchangeDeclare::default() };
        self.vhost().declare_exchange(&declare).unwrap();
    }

    fn delete_exchange(&self, name: &str) {
        self.vhost().delete_exchange(name, false).unwrap();
    }

    /// The keys that the only shared queue is bound to, sorted.
    fn bindings(&self) -> Vec<String> {
        let [queue] = &self.queues()[..] else { panic!("{} queues", self.queues().len()) };
        let bindings = self.vhost().bindings_to_queue(queue.name()).unwrap();
        let of_topic = bindings.into_iter().filter(|binding| &*binding.source == "amq.topic");
        let mut keys: Vec<_> = of_topic.map(|binding| binding.routing_key).collect();
        keys.sort_unstable();
        keys
    }
}

impl OpenUpstream for Upstream {
    async fn open(&self) -> Result<AmqpClient, OpenError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(refusal) = self.refusal.lock().clone() {
            return Err(refusal);
        }
        let (client, link) = self.client(USER);
        self.open.lock().push(link);
        Ok(client)
    }
}

/// A session that can be lost like one of the pool.
struct FlakySession {
    session: Box<dyn BackendSession>,
    is_lost: Arc<AtomicBool>,
    poison: Poison,
    is_silent: Arc<AtomicBool>,
}

impl FlakySession {
    /// Whether a frame starts a publish.
    fn publishes(frame: &Frame<'_>) -> bool {
        frame.payload.starts_with(&[0, 60, 0, 40])
    }

    fn check(&mut self, now: Instant) -> Result<(), Fault> {
        if self.is_lost.load(Ordering::Relaxed) {
            self.session.end(now);
            return Err(Fault::new(ReplyCode::ConnectionForced, "upstream connection lost"));
        }
        Ok(())
    }
}

impl BackendSession for FlakySession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        self.check(now)?;
        let is_publish = Self::publishes(&frame);
        if let Some((text, fault)) = &*self.poison.lock()
            && is_publish
            && frame.payload.windows(text.len()).any(|part| part == text)
        {
            self.session.end(now);
            return Err(fault.clone());
        }
        let is_content = frame.kind != amqp::FrameKind::Method;
        if self.is_silent.load(Ordering::Relaxed) && (is_publish || is_content) {
            return Ok(0);
        }
        self.session.handle_frame(frame, rest, now)
    }

    fn takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
        self.session.takes(frame, now)
    }

    fn flush(&mut self, now: Instant) {
        self.session.flush(now);
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault> {
        self.check(now)?;
        self.session.handle_nudge(now)
    }

    fn handle_capacity(&mut self, now: Instant) {
        self.session.handle_capacity(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.session.next_deadline()
    }

    fn handle_deadline(&mut self, now: Instant) -> Result<(), Fault> {
        self.session.handle_deadline(now)
    }

    fn has_capacity(&self) -> bool {
        self.session.has_capacity()
    }

    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault> {
        self.session.update_secret(secret)
    }

    fn channel_count(&self) -> usize {
        self.session.channel_count()
    }

    fn is_settled(&self) -> bool {
        self.session.is_settled()
    }

    fn close(&mut self, now: Instant) -> bool {
        self.session.close(now)
    }

    fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    fn end(&mut self, now: Instant) {
        self.session.end(now);
    }
}

/// A server's shared queues, the upstream, and a publisher there.
struct Site {
    upstream: Upstream,
    all: Arc<MultiplexedSubscriptions>,
    publisher: AmqpClient,
}

impl Site {
    fn new() -> Self {
        Self::of(Upstream::new(), Arc::new(MultiplexedSubscriptions::new(256 << 20)))
    }

    /// A second site with the same queues, and its own publisher.
    fn another(&self) -> Self {
        Self::of(self.upstream.clone(), Arc::clone(&self.all))
    }

    fn of(upstream: Upstream, all: Arc<MultiplexedSubscriptions>) -> Self {
        let (mut publisher, _link) = upstream.client("guest");
        publisher.send(1, channel::Open { reserved_1: "" });
        publisher.flush(transport::now()).unwrap();
        Self { upstream, all, publisher }
    }

    /// Publishes, and waits until the copies are in the inboxes.
    async fn publish(&mut self, routing_key: &str, body: &str) {
        self.publish_to("amq.topic", routing_key, body);
        settle().await;
    }

    fn publish_to(&mut self, exchange: &str, routing_key: &str, body: &str) {
        let publish = basic::Publish { exchange, routing_key, ..Default::default() };
        self.publisher.publish(1, publish, NO_PROPERTIES, body.as_bytes());
        self.publisher.flush(transport::now()).unwrap();
    }

    fn join(&self) -> Subscriber {
        self.join_with(InboxLimits::default(), Copies::PerSubscription)
    }

    fn join_with(&self, limits: InboxLimits, copies: Copies) -> Subscriber {
        self.join_as(b"secret", limits, copies)
    }

    fn join_as(&self, secret: &[u8], limits: InboxLimits, copies: Copies) -> Subscriber {
        self.join_all(secret, "amq.topic", limits, copies)
    }

    /// A subscriber to keys of an exchange.
    fn join_at(&self, exchange: &str) -> Subscriber {
        self.join_all(b"secret", exchange, InboxLimits::default(), Copies::PerSubscription)
    }

    fn join_all(&self, secret: &[u8], exchange: &str, limits: InboxLimits, copies: Copies) -> Subscriber {
        let carrier = InnerOutbox::new(1);
        let inbox = SubscriberInbox::of_test(carrier.outbox(), limits, copies);
        let login = UpstreamLogin {
            prefix: "stomp-subscription-",
            credentials: Arc::new(Credentials::plain(USER, secret)),
            vhost: "/".into(),
        };
        let hold = self.all.join_by((&login, &exchange.into()), &inbox, || self.upstream.clone());
        Subscriber { carrier, inbox, hold }
    }

    /// The status of the only shared queue.
    fn status(&self) -> MultiplexedQueueStatus {
        let [status] = <[_; 1]>::try_from(self.all.status()).unwrap();
        status
    }
}

struct Subscriber {
    carrier: InnerOutbox,
    inbox: Arc<SubscriberInbox>,
    hold: MultiplexedSubscriber,
}

impl Subscriber {
    /// Subscribes, and waits for the answer.
    async fn subscribe(&self, key: &str, number: u64) {
        self.hold.subscribe(key, number);
        settle().await;
        assert_eq!(self.events(), [format!("subscribed {number}")]);
    }

    /// The events that a nudge has announced.
    fn events(&self) -> Vec<String> {
        if !self.carrier.take_nudge() {
            assert!(self.inbox.take(true).is_none(), "an event without a nudge");
        }
        std::iter::from_fn(|| self.inbox.take(true)).map(|event| describe(&event)).collect()
    }
}

fn describe(event: &SubscriberEvent) -> String {
    match event {
        SubscriberEvent::Subscribed(number) => format!("subscribed {number}"),
        SubscriberEvent::Refused(number, fault) => format!("refused {number}: {}", fault.reply_text()),
        SubscriberEvent::Message(numbers, message) => {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            format!("{}: {}", numbers.join("+"), message.body.escape_ascii())
        }
        SubscriberEvent::Overflowed => "overflowed".to_owned(),
        SubscriberEvent::Ended(fault) => format!("ended: {}", fault.reply_text()),
    }
}

/// Waits until all tasks are idle, which is when the paused clock advances.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
