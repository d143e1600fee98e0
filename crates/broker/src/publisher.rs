//! Publishing: finds the queues of a message, caches routes, and hands messages over in batches.

mod handing_over;
mod held;
mod traced;

use handing_over::PartialFlush;
pub use held::HeldRoute;
use held::RoutedPublish;

use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use store::journal::Lsn;
use sync::work;

use crate::SessionId;
use crate::error::BrokerError;
use crate::firehose::{TracedConnection, Tracer};
use crate::inspect::{Inspected, has_annotation, inspect};
use crate::message::{Body, BrokerProperties, Message};
use crate::metrics::{FrontEnd, Published, SizesOfBatch};
use crate::names::ExchangeName;
use crate::permissions::Grant;
use crate::persistence::LastStoring;
use crate::queue::{PublisherLoad, Queue, ThrottledPublisher};
use crate::rates::ExchangeFlow;
use crate::replies::{is_reply_name, may_have_been_reply_queue, with_reply_queue};
use crate::routing::Routed;
use crate::time::Timestamp;
use crate::users::Identity;
use crate::vhost::{Allowed, Found, VirtualHost};

/// The arguments and content of `basic.publish`.
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// The exchange; empty for the default one.
    pub exchange: &'a str,
    /// Matched against the bindings of the exchange; the name of a queue with the default exchange.
    pub routing_key: &'a str,
    /// Property flags and list, as in the content header.
    pub properties: &'a [u8],
    /// The body without its frames; it may be empty.
    pub body: Body<'a>,
}

/// The outcome of the publishes since the last flush, from which confirms are made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flushed {
    /// The number of publishes. Unroutable ones count; those that ended in an error do not.
    pub count: u64,
    /// The publishes, counted from 0 and ascending, that a full queue refused (`x-overflow=reject-publish`):
    /// these are to be nacked, all others acked.
    pub refused: Vec<u64>,
    /// The log position that has to be on disk before they are confirmed; `None` if they need not wait.
    pub until: Option<Lsn>,
    /// The backlog of unwritten messages exceeds its limit: the session accepts no more publishes until
    /// [`VirtualHost::wait_for_capacity`] wakes it.
    pub full: bool,
    /// Set if the publisher has used up its credit of a queue whose backlog grows although consumers could take more. The
    /// session accepts no more publishes until it [is woken](ThrottledPublisher::wait).
    pub hold: Option<Box<ThrottledPublisher>>,
    /// The turn was over before all queues had their messages ([`sync::work`]). Nothing is reported, and the
    /// session has to flush again in its next turn, before it processes anything more from its client.
    pub unfinished: bool,
}

/// A durable queue that was given a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The name of the queue.
    pub queue: Arc<str>,
    /// The log position that has to be on disk before the queue has the message permanently.
    pub until: Lsn,
}

/// The publishing side of one channel.
///
/// Messages wait in a batch, as long as they take the same route, until [`Publisher::flush`]. The session
/// flushes at the end of each batch of input, and before any other operation on a queue, so that it always
/// finds its own messages there. Dropping the publisher flushes.
pub struct Publisher {
    vhost: Arc<VirtualHost>,
    identity: Identity,
    grant: Arc<Grant>,
    routes: RouteCache,
    /// Messages on [`Publisher::route`] that have not been handed over.
    batch: Vec<Arc<Message>>,
    batch_bytes: usize,
    /// An earlier batch that only some queues of its route have: set when a turn ends while it is being
    /// handed over, cleared when the last queue has it.
    handing_over: Option<Box<PartialFlush>>,
    /// The route of the last message.
    route: Option<Arc<Route>>,
    flushed: Flushed,
    /// Reset when it is held.
    overdraft: PublisherLoad,
    /// The log position from which each queue has its message permanently, since the last flush, if the caller
    /// needs it.
    shares: Option<Vec<Share>>,
    /// The reply queue to put into requests.
    reply_queue: Option<Arc<str>>,
    now: Timestamp,
    /// Messages that went through the exchange of the last route and have not been counted there yet.
    through: ExchangeCounts,
    /// Sizes of messages that have not been counted yet; `None` if the metrics do not include sizes.
    sizes: Option<Box<SizesOfBatch>>,
    front_end: FrontEnd,
    /// The number of its client's session, if there is one.
    session: Option<NonZeroU64>,
    /// Its messages may have an annotation of the front end.
    annotates: bool,
    /// It is counted among the channels that have published.
    has_published: bool,
    /// The connection and channel number to which the firehose attributes these publishes.
    connection: Option<(Arc<dyn TracedConnection>, u16)>,
    /// Set by the first publish that is traced, cleared by a flush after tracing has been switched off.
    tracer: Option<Box<Tracer>>,
    /// The current publish is not to be traced: it has been traced already, or it is itself a trace.
    is_reported: bool,
    /// It publishes traces: to an internal exchange, and without being counted.
    is_tracer: bool,
}

/// Messages published to an exchange, and queue entries that resulted.
#[derive(Default)]
struct ExchangeCounts {
    published: u64,
    enqueued: u64,
}

/// The queues for messages with one exchange and routing key, and perhaps the same headers.
struct Route {
    /// The name that the exchange shares with all publishers.
    exchange: ExchangeName,
    /// A copy of the name, once the route is busy. Each message holds a reference to the name, and concurrent publishers
    /// would contend for one shared reference count.
    own_exchange: OnceLock<ExchangeName>,
    /// The counters of the exchange.
    flow: Arc<ExchangeFlow>,
    key: Box<str>,
    queues: Vec<Arc<Queue>>,
    storing: LastStoring,
    /// False for a route to nothing, or to reply queues only: replies do not count as routed (RabbitMQ, "Direct Reply-to"),
    /// unless [`Compatibility::reveals_reply_queues`](crate::Compatibility::reveals_reply_queues).
    counts: bool,
    scope: RouteScope,
}

/// The messages for which a route is valid.
enum RouteScope {
    /// One message only.
    Once,
    /// All messages with its exchange and key.
    Key,
    /// Messages with its exchange and key and exactly these headers, encoded.
    Headers(Box<[u8]>),
}

impl Publisher {
    pub(crate) fn new(vhost: Arc<VirtualHost>, identity: Identity, grant: Arc<Grant>) -> Self {
        let sizes = vhost.compatibility().has_message_size_metrics().then(Box::default);
        Self {
            vhost,
            identity,
            grant,
            routes: RouteCache::default(),
            batch: Vec::new(),
            batch_bytes: 0,
            handing_over: None,
            route: None,
            flushed: Flushed::default(),
            overdraft: PublisherLoad::default(),
            shares: None,
            reply_queue: None,
            now: Timestamp::default(),
            through: ExchangeCounts::default(),
            sizes,
            front_end: FrontEnd::default(),
            session: None,
            annotates: false,
            has_published: false,
            connection: None,
            tracer: None,
            is_reported: false,
            is_tracer: false,
        }
    }

    /// Sets the front end that the client uses.
    #[must_use]
    pub fn of(mut self, front_end: FrontEnd) -> Self {
        self.front_end = front_end;
        self
    }

    /// Sets the session whose client publishes: a queue that it consumes from does not hold it. Session 0 is nobody's.
    #[must_use]
    pub fn in_session(mut self, session: SessionId) -> Self {
        self.session = NonZeroU64::new(session.0);
        self
    }

    /// Makes the header [`ANNOTATION`](crate::ANNOTATION) of its messages one that only the front end sees.
    #[must_use]
    pub fn with_mqtt_annotation(mut self) -> Self {
        self.annotates = true;
        self
    }

    /// The counters of this front end.
    fn published(&self) -> &Published {
        self.vhost.metrics().published(self.front_end)
    }

    /// Sets the queue that replaces [`crate::REPLY_QUEUE`] in reply_to: that of the channel's consumer of
    /// replies.
    pub fn set_reply_queue(&mut self, name: Option<Arc<str>>) {
        self.reply_queue = name;
    }

    /// Returns the error that [`Publisher::publish`] would return, and publishes nothing.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn check(&self, publish: Publish<'_>) -> Result<(), BrokerError> {
        self.check_route(&publish)?;
        with_reply_queue(publish.properties, self.reply_queue.as_deref())?;
        self.inspect(&publish, true).map(drop)
    }

    fn check_route(&self, publish: &Publish<'_>) -> Result<(), BrokerError> {
        if self.is_tracer {
            return Ok(());
        }
        if self.vhost.compatibility().checks_topic_permission_last() {
            return self.vhost.check_publish_exchange(&self.grant, publish.exchange);
        }
        let client = self.identity.client();
        self.vhost.check_publish(&self.grant, client, publish.exchange, publish.routing_key)
    }

    /// Inspects the properties; `is_new` if the user's right to publish with the routing key has not been checked.
    fn inspect<'a>(&self, publish: &Publish<'a>, is_new: bool) -> Result<Inspected<'a>, BrokerError> {
        let compatibility = self.vhost.compatibility();
        let may_impersonate = || self.grant.may_impersonate(&self.identity);
        let mut inspected =
            inspect(publish.properties, self.identity.user(), may_impersonate, compatibility)?;
        if compatibility.checks_topic_permission_last() && !self.is_tracer {
            let (client, own) = (self.identity.client(), is_new.then_some(publish.routing_key));
            let copies = inspected.copies.iter().chain(&inspected.blind_copies).copied();
            for key in own.into_iter().chain(copies) {
                self.vhost.check_publish(&self.grant, client, publish.exchange, key)?;
            }
        }
        inspected.foreign_user.take().map_or(Ok(inspected), |refused| Err(BrokerError::precondition(refused)))
    }

    /// Routes a message and adds it to the batch. Returns whether any queue will receive it (reply queues do
    /// not count); if not, and the publish was mandatory, the session returns it with 312 NO_ROUTE.
    ///
    /// # Errors
    /// 404 no such exchange; 403 an internal exchange, or one that the user may not write to; 406 properties
    /// that RabbitMQ refuses; 502 malformed ones.
    pub fn publish(&mut self, publish: Publish<'_>, now: Timestamp) -> Result<bool, BrokerError> {
        self.now = now;
        let mut answerable = None;
        let RoutedPublish { publish, inspected, route, .. } = self.find(publish, &mut answerable)?;
        self.follow(route, publish, &inspected)
    }

    /// Checks and routes a message. `answerable` is set to its properties with the publisher's reply queue inserted, if
    /// reply_to is [`crate::REPLY_QUEUE`].
    fn find<'p>(
        &mut self,
        publish: Publish<'p>,
        answerable: &'p mut Option<Vec<u8>>,
    ) -> Result<RoutedPublish<'p>, BrokerError> {
        let generation = self.vhost.generation();
        let fresh = self.routes.is_fresh(generation, self.grant.renewals());
        let known = match &self.route {
            _ if !fresh => Known::Nothing,
            Some(route) if route.leads(publish.exchange, publish.routing_key, None) => {
                Known::Route(route.clone())
            }
            _ => self.routes.find(publish.exchange, publish.routing_key),
        };
        // RabbitMQ checks the exchange before the properties.
        let is_new = matches!(known, Known::Nothing);
        if is_new {
            self.check_route(&publish)?;
        }
        *answerable = with_reply_queue(publish.properties, self.reply_queue.as_deref())?;
        let properties = answerable.as_deref().unwrap_or(publish.properties);
        let publish = Publish { properties, ..publish };
        let inspected = self.inspect(&publish, is_new)?;
        let copied = !inspected.copies.is_empty() || !inspected.blind_copies.is_empty();
        let known = match known {
            Known::Route(route) if !copied => Some(route),
            Known::ByHeaders if !copied => self.route_by_headers(&publish, inspected.headers),
            _ => None,
        };
        let is_new = known.is_none();
        let route = match known {
            Some(route) => route,
            None => self.find_route(&publish, &inspected, generation)?,
        };
        Ok(RoutedPublish { publish, inspected, route, is_new })
    }

    /// Adds a message to the batch, handing over the current batch first if its route is another one.
    fn follow(
        &mut self,
        route: Arc<Route>,
        publish: Publish<'_>,
        inspected: &Inspected<'_>,
    ) -> Result<bool, BrokerError> {
        work::charge(PUBLISH, 1);
        let same = self.route.as_ref().is_some_and(|last| Arc::ptr_eq(last, &route));
        if !same {
            // All messages of a batch have the same route.
            while !self.batch.is_empty() {
                self.hand_over();
            }
            if self.route.as_ref().is_some_and(|last| !Arc::ptr_eq(&last.flow, &route.flow)) {
                self.count_through();
            }
            self.route = Some(route.clone());
        }
        self.flushed.count += 1;
        if self.vhost.is_traced() && !self.is_reported {
            self.trace(&route, &publish, inspected);
        }
        if !self.has_published && !self.is_tracer {
            self.has_published = true;
            self.published().publishers.add(1);
        }
        if let Some(sizes) = self.sizes.as_mut().filter(|_| !self.is_tracer) {
            sizes.count(publish.body.len());
        }
        if route.queues.is_empty() {
            if !self.is_tracer {
                self.through.published += 1;
            }
            // A reply to a departed requester may count as routed although there is no queue.
            if !self.is_tracer && !route.counts {
                self.vhost.metrics().messages_unroutable.add(1);
                self.published().unroutable.add(1);
                if self.front_end != FrontEnd::Amqp {
                    self.published().dropped.add(1);
                }
            }
            return Ok(route.counts);
        }
        // One message for all queues of the route.
        let properties = inspected.rewritten.as_deref().unwrap_or(publish.properties);
        let exchange = route.own_exchange.get().unwrap_or(&route.exchange).clone();
        let is_annotated = self.annotates && has_annotation(inspected.headers);
        let broker_properties = BrokerProperties { is_annotated, ..inspected.broker_properties };
        let mut message =
            Message::new(exchange, publish.routing_key, properties, publish.body, broker_properties)
                .with_blind_copies(&inspected.blind_copies);
        message.share(route.queues.len());
        self.batch_bytes += message.body_len();
        self.batch.push(Arc::new(message));
        work::charge_bytes(BODY_BYTE, self.batch.last().map_or(0, |message| message.body_len()));
        // A batch is bounded in messages, in bytes, and in entries of queues.
        let wide = self.batch.len() * route.queues.len() >= MAX_BATCH_PLACES;
        if wide || self.batch.len() >= MAX_BATCH || self.batch_bytes >= MAX_BATCH_BYTES {
            self.hand_over();
        }
        Ok(route.counts)
    }

    /// Publishes a message at once, for a publisher that may have to repeat it after a crash and needs
    /// exactly-once semantics. The batch must be empty. Returns whether any queue will receive it, the report
    /// of [`Publisher::flush`], and the log position for each durable queue: after a crash only the first of
    /// them may have it. `without` are the queues that have it already.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn publish_exactly_once(
        &mut self,
        publish: Publish<'_>,
        without: &[Box<str>],
        now: Timestamp,
    ) -> Result<(bool, Flushed, Vec<Share>), BrokerError> {
        debug_assert!(self.batch.is_empty(), "earlier publishes are flushed");
        self.now = now;
        let matched = if without.is_empty() {
            self.shares = Some(Vec::new());
            self.publish(publish, now)
        } else {
            let generation = self.vhost.generation();
            self.check(publish)?;
            self.shares = Some(Vec::new());
            self.publish_without(publish, without, generation)
        };
        let flushed = self.flush_all(now);
        let shares = self.shares.take().unwrap_or_default();
        matched.map(|matched| (matched, flushed, shares))
    }

    /// Publishes to a route without some queues, which is not cached.
    fn publish_without(
        &mut self,
        publish: Publish<'_>,
        without: &[Box<str>],
        allowed_at: u64,
    ) -> Result<bool, BrokerError> {
        let inspected = self.inspect(&publish, false)?;
        let whole = self.find_route(&publish, &inspected, allowed_at)?;
        let lacks = |queue: &&Arc<Queue>| !without.iter().any(|name| **name == **queue.name());
        let queues = whole.queues.iter().filter(lacks).cloned().collect();
        self.follow(Arc::new(whole.with_queues(queues, whole.counts)), publish, &inspected)
    }

    /// Hands the batch to its queues, and reports on everything since the last flush. If that does not fit
    /// into the turn, the result is [unfinished](Flushed::unfinished).
    pub fn flush(&mut self, now: Timestamp) -> Flushed {
        self.now = now;
        if !self.hand_over() {
            return Flushed { unfinished: true, ..Flushed::default() };
        }
        self.count_through();
        if let Some(tracer) = &mut self.tracer {
            self.flushed.full |= tracer.flush(now).full;
            if !self.vhost.is_traced() {
                self.tracer = None;
            }
        }
        let mut flushed = std::mem::take(&mut self.flushed);
        if flushed.hold.is_some() {
            self.overdraft = PublisherLoad::default();
        }
        flushed.refused.sort_unstable();
        flushed.refused.dedup();
        flushed
    }

    /// The last route, or a cached one, if it is for these headers.
    fn route_by_headers(&self, publish: &Publish<'_>, headers: &[u8]) -> Option<Arc<Route>> {
        match &self.route {
            Some(last) if last.leads(publish.exchange, publish.routing_key, Some(headers)) => {
                Some(last.clone())
            }
            _ => self.routes.find_by_headers(publish.exchange, publish.routing_key, headers),
        }
    }

    /// Finds the queues, for a user who was allowed to publish at generation `allowed_at`.
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
        let (grant, client, routing_key) = (&*self.grant, self.identity.client(), publish.routing_key);
        let allowed = Allowed { grant, client, routing_key, at: allowed_at, may_be_internal: self.is_tracer };
        let found = self.vhost.route(publish.exchange, routed, &allowed)?;
        let Found { exchange, flow, mut routes, generation } = found;
        work::charge(ROUTE, 1);
        work::charge(MATCH, routes.queues.len());
        let counts = !routes.queues.is_empty();
        let replies = publish.exchange.is_empty() && keys.iter().any(|key| is_reply_name(key));
        if replies {
            keys.sort_unstable();
            keys.dedup();
            routes.queues.extend(keys.iter().filter_map(|key| self.vhost.reply_queue(key)));
        }
        let counts = counts
            || replies
                && self.vhost.compatibility().reveals_reply_queues()
                && keys.iter().any(|key| may_have_been_reply_queue(key));
        // Reply queues are not part of the topology, so a route to them cannot be cached.
        let scope = match routes.by_headers {
            _ if keys.len() > 1 || routes.by_message || replies => RouteScope::Once,
            true if inspected.headers.len() > MAX_HEADERS => RouteScope::Once,
            true => RouteScope::Headers(inspected.headers.into()),
            false => RouteScope::Key,
        };
        let key = publish.routing_key.into();
        let storing = LastStoring::of(&routes.queues);
        let (own_exchange, queues) = (OnceLock::new(), routes.queues);
        let route = Arc::new(Route { exchange, own_exchange, flow, key, queues, storing, counts, scope });
        // Changed permissions start a new generation: a route allowed at an older one is not cached.
        if !matches!(route.scope, RouteScope::Once) && generation == allowed_at {
            self.routes.insert(&route, generation);
        }
        Ok(route)
    }

    /// Counts the messages that went through an exchange, once per batch, since other threads update the same
    /// counters.
    fn count_through(&mut self) {
        let ExchangeCounts { published, enqueued } = std::mem::take(&mut self.through);
        if published > 0
            && let Some(route) = &self.route
        {
            route.flow.add(published, enqueued, self.now);
        }
        if let Some(sizes) = &mut self.sizes {
            let sizes = std::mem::take(&mut **sizes);
            self.published().sizes.add(&sizes);
        }
    }

    /// [`Publisher::flush`], regardless of how long it takes: for the end of a session, and where no work can
    /// be left for later. Only dead letters are left to the broker's timer once the turn is over.
    pub fn flush_all(&mut self, now: Timestamp) -> Flushed {
        loop {
            let flushed = self.flush(now);
            if !flushed.unfinished {
                return flushed;
            }
            self.leave_dead_letters();
        }
    }

    fn leave_dead_letters(&mut self) {
        self.handing_over.iter_mut().for_each(|handing| handing.leave_dead_letters());
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        while !self.hand_over() {
            self.leave_dead_letters();
        }
        self.count_through();
        if self.has_published {
            self.published().publishers.sub(1);
        }
    }
}

impl Route {
    /// Whether it is for this exchange and key, and either for these headers or, if `headers` is `None`, for
    /// any headers.
    fn leads(&self, exchange: &str, key: &str, headers: Option<&[u8]>) -> bool {
        self.headers_in_scope() == Some(headers) && *self.key == *key && *self.exchange == *exchange
    }

    /// `None` if the route is for one message only.
    fn headers_in_scope(&self) -> Option<Option<&[u8]>> {
        match &self.scope {
            RouteScope::Once => None,
            RouteScope::Key => Some(None),
            RouteScope::Headers(headers) => Some(Some(headers)),
        }
    }
}

/// The result of looking up an exchange and a key in the cache.
enum Known {
    Nothing,
    Route(Arc<Route>),
    /// The route depends on headers.
    ByHeaders,
}

/// A cache of routes, valid as long as the virtual host's topology is unchanged.
#[derive(Default)]
struct RouteCache {
    /// Keyed by exchange and key. If routing depends on headers, the entry only says so.
    routes: HashTable<Arc<Route>>,
    /// Keyed by exchange, key and headers.
    by_headers: HashTable<Arc<Route>>,
    /// Number of queues in all cached routes.
    destinations: u32,
    /// [`Grant::renewals`] at the time of the last publish.
    renewals: u32,
    generation: u64,
    hasher: RandomState,
}

impl RouteCache {
    /// Whether the routes, and the publisher's last one, are still valid. If not, the cache is cleared.
    ///
    /// The new generation is adopted with the first route that is found in it: a refused publish finds none, and must
    /// leave the last route invalid.
    fn is_fresh(&mut self, generation: u64, renewals: u32) -> bool {
        if std::mem::replace(&mut self.renewals, renewals) != renewals {
            self.generation = NO_GENERATION;
        }
        let fresh = self.generation == generation;
        if !fresh {
            self.clear();
        }
        fresh
    }

    fn find(&self, exchange: &str, key: &str) -> Known {
        let hash = self.hasher.hash_one((exchange, key));
        match self.routes.find(hash, |route| *route.key == *key && *route.exchange == *exchange) {
            None => Known::Nothing,
            Some(route) if matches!(route.scope, RouteScope::Headers(_)) => Known::ByHeaders,
            Some(route) => Known::Route(route.clone()),
        }
    }

    fn find_by_headers(&self, exchange: &str, key: &str, headers: &[u8]) -> Option<Arc<Route>> {
        let hash = self.hasher.hash_one((exchange, key, headers));
        self.by_headers.find(hash, |route| route.leads(exchange, key, Some(headers))).cloned()
    }

    fn insert(&mut self, route: &Arc<Route>, generation: u64) {
        if generation != self.generation {
            self.clear();
            self.generation = generation;
        }
        let count = self.routes.len() + self.by_headers.len();
        let has_capacity = count < MAX_ROUTES && self.destinations < MAX_DESTINATIONS;
        if !has_capacity {
            self.clear();
        }
        let destinations = u32::try_from(route.queues.len()).unwrap_or(u32::MAX);
        self.destinations = self.destinations.saturating_add(destinations);
        let Self { routes, by_headers, hasher, .. } = self;
        let hash = |route: &Arc<Route>| hasher.hash_one((&*route.exchange, &*route.key));
        let same = |other: &Arc<Route>| other.key == route.key && other.exchange == route.exchange;
        routes.entry(hash(route), same, hash).or_insert_with(|| route.clone());
        if let RouteScope::Headers(headers) = &route.scope {
            let hash = hasher.hash_one((&*route.exchange, &*route.key, &**headers));
            by_headers.insert_unique(hash, route.clone(), |route| {
                let headers = route.headers_in_scope().flatten().unwrap_or_default();
                hasher.hash_one((&*route.exchange, &*route.key, headers))
            });
        }
    }

    fn clear(&mut self) {
        self.routes.clear();
        self.by_headers.clear();
        self.destinations = 0;
    }
}

/// Precedes the first generation of every virtual host.
const NO_GENERATION: u64 = 0;

/// Most messages that wait for the end of a batch of input, so that deliveries start early and the memory
/// that they take is bounded.
const MAX_BATCH: usize = 256;

/// Most bytes of their bodies.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Most queue entries that result from a batch: handing it over then takes at most a millisecond, except for a single
/// message with more queues than this.
const MAX_BATCH_PLACES: usize = 16 * 1024;

/// Nanoseconds charged for looking up a route.
const ROUTE: u32 = 1_000;
/// Nanoseconds charged for each queue that a lookup finds.
const MATCH: u32 = 30;
/// Nanoseconds charged for a message whose route is known.
const PUBLISH: u32 = 120;
/// Picoseconds charged for copying a byte of a body.
const BODY_BYTE: u32 = 150;

/// Routes that one channel caches; when there are more, the cache is cleared. About 100 bytes each.
const MAX_ROUTES: usize = 1024;

/// Queues in the routes that one channel caches, at 8 bytes each.
const MAX_DESTINATIONS: u32 = 1 << 16;

/// Bytes of headers up to which a route by headers is cached. Longer headers rarely recur.
const MAX_HEADERS: usize = 1024;
