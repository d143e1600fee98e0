//! Publishing: from a message to its queues, with routes remembered and messages handed over in batches.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::error::BrokerError;
use crate::inspect::{Inspected, inspect};
use crate::message::{Body, Message};
use crate::permissions::Grant;
use crate::queue::Queue;
use crate::replies::{is_reply_name, with_reply_queue};
use crate::routing::Routed;
use crate::time::Timestamp;
use crate::users::Identity;
use crate::vhost::VirtualHost;

/// `basic.publish` with its content.
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// The exchange; empty for the default one.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Property flags and list, as in the content header.
    pub properties: &'a [u8],
    /// The body.
    pub body: Body<'a>,
}

/// What became of the publishes since the last flush: what confirms are made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flushed {
    /// How many there were. Unroutable ones count; those that ended in an error do not.
    pub count: u64,
    /// Which of them, counted from 0 and ascending, a full queue refused (`x-overflow=reject-publish`): these are to
    /// be nacked, all others acked.
    pub refused: Vec<u64>,
}

/// The publishing side of one channel.
///
/// Messages wait in a batch, as long as they take the same route, until [`Publisher::flush`]. The session flushes at
/// the end of each batch of input, and before anything else it does with a queue, so that it always finds its own
/// messages there. Dropping the publisher flushes.
pub struct Publisher {
    vhost: Arc<VirtualHost>,
    identity: Identity,
    grant: Arc<Grant>,
    routes: RouteCache,
    /// Messages of [`Publisher::route`] that have not been handed over.
    batch: Vec<Arc<Message>>,
    batch_bytes: usize,
    /// Where the last message went.
    route: Option<Arc<Route>>,
    flushed: Flushed,
    /// What requests are to be answered to.
    reply_queue: Option<Arc<str>>,
    now: Timestamp,
}

/// Where messages with one exchange and routing key go.
struct Route {
    exchange: Arc<str>,
    key: Box<str>,
    queues: Vec<Arc<Queue>>,
    /// Replies alone do not count as routed (RabbitMQ, "Direct Reply-to").
    counts: bool,
    /// Whether it holds for all messages with this exchange and key.
    fixed: bool,
}

impl Publisher {
    pub(crate) fn new(vhost: Arc<VirtualHost>, identity: Identity, grant: Arc<Grant>) -> Self {
        Self {
            vhost,
            identity,
            grant,
            routes: RouteCache::default(),
            batch: Vec::new(),
            batch_bytes: 0,
            route: None,
            flushed: Flushed::default(),
            reply_queue: None,
            now: Timestamp::default(),
        }
    }

    /// The queue that takes the place of [`crate::REPLY_QUEUE`] in reply_to, of the channel's consumer of replies.
    pub fn set_reply_queue(&mut self, name: Option<Arc<str>>) {
        self.reply_queue = name;
    }

    /// Finds what [`Publisher::publish`] would find wrong, and publishes nothing.
    ///
    /// # Errors
    /// The same.
    pub fn check(&self, publish: Publish<'_>) -> Result<(), BrokerError> {
        self.vhost.check_publish(&self.grant, publish.exchange, publish.routing_key)?;
        with_reply_queue(publish.properties, self.reply_queue.as_deref())?;
        inspect(publish.properties, &self.identity).map(drop)
    }

    /// Routes a message and puts it into the batch. Returns whether any queue is to get it (queues for replies do not
    /// count); if not, and the publish was mandatory, the session returns it with 312 NO_ROUTE.
    ///
    /// # Errors
    /// 404 no such exchange; 403 an internal exchange, or one that the user may not write to; 406 properties that RabbitMQ refuses; 502 malformed ones.
    pub fn publish(&mut self, publish: Publish<'_>, now: Timestamp) -> Result<bool, BrokerError> {
        self.now = now;
        let generation = self.vhost.generation();
        let fresh = self.routes.is_fresh(generation);
        let known = match &self.route {
            _ if !fresh => None,
            Some(route) if route.fixed && route.leads(publish.exchange, publish.routing_key) => {
                Some(route.clone())
            }
            _ => self.routes.find(publish.exchange, publish.routing_key),
        };
        // RabbitMQ looks for the exchange before it looks at the properties.
        if known.is_none() {
            self.vhost.check_publish(&self.grant, publish.exchange, publish.routing_key)?;
        }
        let answerable = with_reply_queue(publish.properties, self.reply_queue.as_deref())?;
        let properties = answerable.as_deref().unwrap_or(publish.properties);
        let publish = Publish { properties, ..publish };
        let inspected = inspect(publish.properties, &self.identity)?;
        let copied = !inspected.copies.is_empty() || !inspected.blind_copies.is_empty();
        let route = match known {
            Some(route) if !copied => route,
            _ => self.find_route(&publish, &inspected, generation)?,
        };
        let same = self.route.as_ref().is_some_and(|last| Arc::ptr_eq(last, &route));
        if !same {
            self.hand_over();
            self.route = Some(route.clone());
        }
        self.flushed.count += 1;
        if route.queues.is_empty() {
            self.vhost.metrics().messages_unroutable.add(1);
            return Ok(false);
        }
        let properties = inspected.rewritten.as_deref().unwrap_or(publish.properties);
        let exchange = route.exchange.clone();
        let message = Message::new(exchange, publish.routing_key, properties, publish.body, inspected.traits)
            .with_blind_copies(&inspected.blind_copies);
        self.batch_bytes += message.body_len();
        self.batch.push(Arc::new(message));
        if self.batch.len() >= MAX_BATCH || self.batch_bytes >= MAX_BATCH_BYTES {
            self.hand_over();
        }
        Ok(route.counts)
    }

    /// Hands the batch to its queues, and reports on everything since the last flush.
    pub fn flush(&mut self, now: Timestamp) -> Flushed {
        self.now = now;
        self.hand_over();
        let mut flushed = std::mem::take(&mut self.flushed);
        flushed.refused.sort_unstable();
        flushed.refused.dedup();
        flushed
    }

    /// Looks for the queues, now that the user was allowed at the generation `allowed_at` to publish.
    fn find_route(
        &mut self,
        publish: &Publish<'_>,
        inspected: &Inspected<'_>,
        allowed_at: u64,
    ) -> Result<Arc<Route>, BrokerError> {
        let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
        keys.push(publish.routing_key);
        keys.extend(inspected.copies.iter().chain(&inspected.blind_copies).copied());
        let routed = Routed { keys: &keys, headers: inspected.headers, properties: publish.properties };
        let (exchange, mut routes, generation) = self.vhost.route(publish.exchange, routed)?;
        let counts = !routes.queues.is_empty();
        let replies = publish.exchange.is_empty() && keys.iter().any(|key| is_reply_name(key));
        if replies {
            keys.sort_unstable();
            keys.dedup();
            routes.queues.extend(keys.iter().filter_map(|key| self.vhost.reply_queue(key)));
        }
        // Reply queues come and go without the topology's knowing.
        let fixed = keys.len() == 1 && !routes.by_properties && !replies;
        let key = publish.routing_key.into();
        let route = Arc::new(Route { exchange, key, queues: routes.queues, counts, fixed });
        // Changed permissions make for a new generation: what was allowed at an older one is not remembered.
        if fixed && generation == allowed_at {
            self.routes.insert(&route, generation);
        }
        Ok(route)
    }

    /// Gives the batch to each queue of its route, in order, taking each queue's lock once.
    fn hand_over(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let Some(route) = self.route.clone() else { return };
        // The batch holds the latest publishes, one after the other: an unroutable one takes another route.
        let first = self.flushed.count - self.batch.len() as u64;
        self.batch_bytes = 0;
        self.vhost.metrics().messages_routed.add(self.batch.len());
        let Some((last, others)) = route.queues.split_last() else { return };
        for queue in others {
            let refused = &mut self.flushed.refused;
            let messages = self.batch.iter().cloned();
            let dead = queue.append(messages, self.now, |at| refused.push(first + at as u64));
            self.vhost.dead_letter(queue, dead, self.now);
        }
        let refused = &mut self.flushed.refused;
        let dead = last.append(self.batch.drain(..), self.now, |at| refused.push(first + at as u64));
        self.vhost.dead_letter(last, dead, self.now);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Route {
    fn leads(&self, exchange: &str, key: &str) -> bool {
        *self.key == *key && *self.exchange == *exchange
    }
}

/// Routes found before, good as long as the virtual host's topology stays the same.
#[derive(Default)]
struct RouteCache {
    routes: HashTable<Arc<Route>>,
    /// Queues in all routes.
    destinations: usize,
    generation: u64,
    hasher: RandomState,
}

impl RouteCache {
    /// Whether the routes still hold. If not, they are forgotten.
    fn is_fresh(&mut self, generation: u64) -> bool {
        let fresh = self.generation == generation;
        if !fresh {
            self.clear();
            self.generation = generation;
        }
        fresh
    }

    fn find(&self, exchange: &str, key: &str) -> Option<Arc<Route>> {
        let hash = self.hasher.hash_one((exchange, key));
        self.routes.find(hash, |route| route.leads(exchange, key)).cloned()
    }

    fn insert(&mut self, route: &Arc<Route>, generation: u64) {
        if generation != self.generation {
            self.clear();
            self.generation = generation;
        }
        let room = self.routes.len() < MAX_ROUTES && self.destinations < MAX_DESTINATIONS;
        if !room {
            self.clear();
        }
        self.destinations += route.queues.len();
        let hasher = &self.hasher;
        let hash = |route: &Arc<Route>| hasher.hash_one((&*route.exchange, &*route.key));
        self.routes.insert_unique(hash(route), route.clone(), hash);
    }

    fn clear(&mut self) {
        self.routes.clear();
        self.destinations = 0;
    }
}

/// Messages that wait at most for the end of a batch of input, so that deliveries start early and the memory that
/// they take is bounded.
const MAX_BATCH: usize = 256;

/// The same in octets of bodies.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Routes that one channel remembers; when there are more, it starts anew. About 100 octets each.
const MAX_ROUTES: usize = 1024;

/// Queues in the routes that one channel remembers, at 8 octets each.
const MAX_DESTINATIONS: usize = 1 << 16;
