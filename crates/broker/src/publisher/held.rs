//! Publishes that wait for the commit of their transaction. As in RabbitMQ, a message is checked, routed and traced when it is
//! published; bindings and permissions that change before the commit do not matter. If a queue of the route is deleted before
//! the commit, a queue that has its name by then gets the message.

use std::sync::{Arc, OnceLock};

use super::{NO_GENERATION, Publish, Publisher, Route, RouteScope};
use crate::error::BrokerError;
use crate::inspect::{Inspected, inspect};
use crate::persistence::LastStoring;
use crate::queue::Queue;
use crate::time::Timestamp;
use crate::vhost::VirtualHost;

/// The route of a held message, as [`Publisher::hold`] has found it.
pub struct HeldRoute {
    route: Arc<Route>,
    /// The message's properties, if the publisher's reply queue was inserted into them.
    answerable: Option<Vec<u8>>,
    /// The route was found for this message, and was not in the cache.
    is_new: bool,
    /// Generations of the route cache when the route was found.
    generation: u64,
    renewals: u32,
}

/// A message that has been checked, and its route.
pub(super) struct RoutedPublish<'p> {
    pub(super) publish: Publish<'p>,
    pub(super) inspected: Inspected<'p>,
    pub(super) route: Arc<Route>,
    /// The route was neither the last one nor in the cache.
    pub(super) is_new: bool,
}

impl HeldRoute {
    /// Bytes of memory that it takes, excluding this struct and the publisher's cache.
    pub fn bytes(&self) -> usize {
        let answerable = self.answerable.as_ref().map_or(0, Vec::len);
        // Messages that follow a route from the cache share it with the one that it was found for.
        let route = if self.is_new { self.route.bytes() } else { 0 };
        answerable + route
    }
}

impl Publisher {
    /// Checks and routes a message that is to be held until its transaction is committed, and then published by
    /// [`Publisher::publish_held`]. It is traced now, whatever the outcome of the transaction.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn hold(&mut self, publish: Publish<'_>, now: Timestamp) -> Result<HeldRoute, BrokerError> {
        self.now = now;
        let mut answerable = None;
        let RoutedPublish { publish, inspected, route, is_new } = self.find(publish, &mut answerable)?;
        if self.vhost.is_traced() {
            self.trace(&route, &publish, &inspected);
        }
        drop(inspected);
        let (generation, renewals) = (self.routes.generation, self.routes.renewals);
        Ok(HeldRoute { route, answerable, is_new, generation, renewals })
    }

    /// Publishes a message that was [held](Publisher::hold) to the queues that were found then, or that have the names of those
    /// which have been deleted. Returns whether there are any, as [`Publisher::publish`] does; `None` if the turn is over
    /// before all queues have what precedes the message: the caller tries again in the next turn.
    ///
    /// # Errors
    /// 502 malformed properties; never for those which were held.
    pub fn publish_held(
        &mut self,
        publish: Publish<'_>,
        held: &HeldRoute,
        now: Timestamp,
    ) -> Result<Option<bool>, BrokerError> {
        self.now = now;
        let route = held.route.at_commit(&self.vhost);
        let leads_elsewhere = self.route.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &route));
        if (leads_elsewhere || self.handing_over.is_some()) && !self.hand_over() {
            return Ok(None);
        }
        let properties = held.answerable.as_deref().unwrap_or(publish.properties);
        let publish = Publish { properties, ..publish };
        // The user's right to set them was checked when the message was published.
        let inspected = inspect(properties, self.identity.user(), || true, self.vhost.compatibility())?;
        self.is_reported = true;
        let routed = self.follow(route, publish, &inspected);
        self.is_reported = false;
        if (held.generation, held.renewals) != (self.routes.generation, self.routes.renewals) {
            // It becomes the last route, which must not count as valid.
            self.routes.generation = NO_GENERATION;
        }
        routed.map(Some)
    }
}

impl Route {
    /// A copy of this route to other queues, for one message only.
    pub(super) fn with_queues(&self, queues: Vec<Arc<Queue>>, counts: bool) -> Self {
        Self {
            exchange: self.exchange.clone(),
            own_exchange: OnceLock::new(),
            flow: self.flow.clone(),
            key: self.key.clone(),
            storing: LastStoring::of(&queues),
            queues,
            counts,
            scope: RouteScope::Once,
        }
    }

    /// The route to the queues that have the names of its queues now: deleted ones may have been declared again.
    fn at_commit(self: &Arc<Self>, vhost: &VirtualHost) -> Arc<Self> {
        if !self.queues.iter().any(|queue| queue.is_deleted()) {
            return self.clone();
        }
        let current = |queue: &Arc<Queue>| match queue.is_deleted() {
            false => Some(queue.clone()),
            true => vhost.find_queue(queue.name()),
        };
        let queues: Vec<_> = self.queues.iter().filter_map(current).collect();
        let counts = self.counts && !queues.is_empty();
        Arc::new(self.with_queues(queues, counts))
    }

    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize {
        let headers = self.headers_in_scope().flatten().map_or(0, <[u8]>::len);
        size_of::<Self>() + self.key.len() + headers + self.queues.len() * size_of::<Arc<Queue>>()
    }
}
