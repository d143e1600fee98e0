//! Subscriptions to topics without acknowledgements and without their own queue: all such subscriptions of a user in a
//! virtual host share a queue upstream ([`crate::upstream::multiplexing`]).

use std::sync::Arc;

use amqp::Credentials;
use broker::Compatibility;
use hashbrown::HashSet;
use stomp::destination::{PublishedTo, TOPIC_EXCHANGE};
use stomp::{Headers, StompFault};
use sync::work;
use transport::Outbox;

use super::session::{MESSAGE, UpstreamStompSession, write_message};
use crate::backend::Backend;
use crate::server::Shared;
use crate::stomp::declaring::{Declaration, SUBSCRIPTION_QUEUE};
use crate::stomp::session::of_fault;
use crate::upstream::multiplexing::{
    Copies, InboxLimits, MultiplexedMessage, MultiplexedSubscriber, SubscriberEvent, SubscriberInbox,
    UpstreamLogin,
};

/// The subscriptions of one connection that use the shared queue.
pub(super) struct LiveSubscriptions {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    login: UpstreamLogin,
    /// `None` until the first such subscription.
    joined: Option<(MultiplexedSubscriber, Arc<SubscriberInbox>)>,
    /// Subscriptions whose binding keys are not bound yet.
    pending: HashSet<u64>,
    /// The subscription whose receipt has to be sent before further messages are taken.
    starting: Option<u64>,
    /// Number of messages sent to the client.
    sent: u64,
}

/// The first number in message identifiers: above all delivery tags of the channel.
const FIRST_TAG: u64 = 1 << 40;

impl LiveSubscriptions {
    pub(super) fn new(
        shared: &Arc<Shared>,
        outbox: &Arc<Outbox>,
        credentials: Arc<Credentials>,
        vhost: &str,
    ) -> Self {
        let login = UpstreamLogin { prefix: SUBSCRIPTION_QUEUE, credentials, vhost: vhost.into() };
        let (shared, outbox) = (Arc::clone(shared), Arc::clone(outbox));
        Self { shared, outbox, login, joined: None, pending: HashSet::new(), starting: None, sent: 0 }
    }

    /// The user that the client has logged in as.
    pub(super) fn user(&self) -> &str {
        &self.login.credentials.username
    }

    pub(super) fn vhost(&self) -> &str {
        &self.login.vhost
    }

    /// Whether a subscription to a topic with these headers can use the shared queue.
    ///
    /// # Errors
    /// A header is invalid.
    pub(super) fn may_share(
        &self,
        headers: &Headers<'_>,
        compatibility: Compatibility,
    ) -> Result<bool, StompFault> {
        let wanted = Declaration::of_subscription(headers, compatibility)?;
        let is_named = ["x-queue-name", "x-stream-offset"].iter().any(|name| headers.get(name).is_some());
        Ok(matches!(self.shared.backend, Backend::Upstream(_))
            && !is_named
            && !wanted.durable
            && wanted.auto_delete
            && wanted.arguments.is_empty())
    }

    /// Requests the binding of a subscription's key.
    pub(super) fn subscribe(&mut self, key: &str, number: u64) {
        let Backend::Upstream(pool) = &self.shared.backend else { return };
        let (subscriber, _) = self.joined.get_or_insert_with(|| {
            let inbox = {
                let budget = self.shared.subscriptions.budget();
                SubscriberInbox::new(
                    &self.outbox,
                    InboxLimits::default(),
                    budget,
                    Copies::PerSubscription,
                    None,
                )
            };
            (self.shared.subscriptions.join(pool, (&self.login, &TOPIC_EXCHANGE.into()), &inbox), inbox)
        });
        self.pending.insert(number);
        subscriber.subscribe(key, number);
    }

    pub(super) fn unsubscribe(&mut self, key: &str, number: u64) {
        self.pending.remove(&number);
        if let Some((subscriber, _)) = &self.joined {
            subscriber.unsubscribe(key, number);
        }
        self.start(number);
    }

    /// Whether a subscription's key is not bound yet.
    pub(super) fn is_pending(&self, number: u64) -> bool {
        self.pending.contains(&number)
    }

    /// Called when a subscription's receipt was sent.
    pub(super) fn start(&mut self, number: u64) {
        if self.starting == Some(number) {
            self.starting = None;
        }
    }

    /// The next event, unless a receipt has to be sent first.
    fn take(&self) -> Option<SubscriberEvent> {
        let (_, inbox) = self.joined.as_ref().filter(|_| self.starting.is_none())?;
        inbox.take(self.outbox.has_capacity())
    }

    /// Whether the client may be read.
    pub(super) fn has_capacity(&self) -> bool {
        self.joined.as_ref().is_none_or(|(subscriber, _)| subscriber.has_capacity())
    }

    /// Leaves the shared queue.
    pub(super) fn end(&mut self) {
        self.joined = None;
    }
}

impl UpstreamStompSession {
    /// Handles events of the shared queue.
    ///
    /// # Errors
    /// A key was refused, the client is too slow, or the shared queue is lost for good.
    pub(super) fn receive_live(&mut self) -> Result<(), StompFault> {
        while let Some(event) = self.live.take() {
            match event {
                SubscriberEvent::Subscribed(number) => {
                    self.live.pending.remove(&number);
                    let waits = self.subscriptions.get(&number).is_some_and(|own| own.has_receipt);
                    if waits {
                        self.live.starting = Some(number);
                    }
                }
                SubscriberEvent::Refused(_, fault) | SubscriberEvent::Ended(fault) => {
                    return Err(of_fault(fault));
                }
                SubscriberEvent::Overflowed => {
                    let detail = "The client has not taken the messages of its subscriptions in time.\n";
                    return Err(StompFault::new("Client too slow", detail));
                }
                SubscriberEvent::Message(numbers, message) => {
                    numbers.iter().for_each(|number| self.live_message(*number, &message));
                }
            }
            if work::is_turn_over() {
                // The rest follows in the next turn.
                self.outbox.nudge();
                break;
            }
        }
        Ok(())
    }

    fn live_message(&mut self, number: u64, message: &MultiplexedMessage) {
        let Some(own) = self.subscriptions.get(&number).filter(|own| own.live.is_some()) else { return };
        self.live.sent += 1;
        work::charge(MESSAGE, 1);
        let published = PublishedTo { exchange: &message.exchange, routing_key: &message.routing_key };
        let head = (published, FIRST_TAG + self.live.sent, message.redelivered);
        write_message(&self.outbox, &own.form, head, &message.properties, &message.body);
        self.count_delivered();
    }
}
