//! A consumer, as called by its queue.

use std::sync::Arc;

use broker::{Consumer, ConsumerCapacity, Delivery, Offer, Queue, Tracer};
use transport::OutBuf;

use super::super::content::{Destination, write_deliver};
use super::inner::{DeliveringChannel, Standing};
use super::{Cancelled, ConsumerKey, Deliveries, Unsettled};

/// A protocol's encoding of deliveries.
pub(crate) trait Form: Send + Sync {
    /// Appends the whole delivery. Called under the outbox's lock.
    fn write(
        &self,
        buf: &mut OutBuf,
        to: Destination,
        consumer_tag: &str,
        delivery_tag: u64,
        delivery: &Delivery,
        from: &Queue,
    );
}

/// Encodes a delivery as basic.deliver.
pub(crate) struct BasicDeliver;

impl Form for BasicDeliver {
    fn write(
        &self,
        buf: &mut OutBuf,
        to: Destination,
        consumer_tag: &str,
        delivery_tag: u64,
        delivery: &Delivery,
        from: &Queue,
    ) {
        write_deliver(buf, to, consumer_tag, delivery_tag, delivery, from);
    }
}

/// A consumer of a channel.
pub(crate) struct ChannelConsumer<F = BasicDeliver> {
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) key: ConsumerKey,
    pub(crate) tag: Box<str>,
    pub(crate) no_ack: bool,
    /// The prefetch when the consumer began; 0 means no limit.
    pub(crate) prefetch: u16,
    pub(crate) queue: Arc<Queue>,
    pub(crate) form: F,
}

impl<F: Form> Consumer for ChannelConsumer<F> {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let mut inner = self.deliveries.inner.lock();
        let inner = inner.get_or_insert_default();
        let capacity = self.take(inner, offer);
        let (taken, now) = offer.taken();
        if taken.deliver + taken.deliver_no_ack > 0 {
            inner.passing.add(0, taken, now);
        }
        capacity
    }

    fn channel(&self) -> u16 {
        self.deliveries.channel()
    }

    fn prefetch(&self) -> u16 {
        self.prefetch
    }

    fn busy_since_rest(&self) -> Option<u32> {
        self.deliveries.connection.outbox.busy_since_rest()
    }

    fn cancelled(&self) {
        let (deliveries, tag) = (Arc::clone(&self.deliveries), self.tag.clone());
        self.deliveries.connection.cancel(Cancelled { deliveries, key: self.key, tag });
    }
}

impl<F: Form> ChannelConsumer<F> {
    /// Takes deliveries while there is credit and outbox capacity.
    fn take(&self, inner: &mut DeliveringChannel, offer: &mut Offer<'_>) -> ConsumerCapacity {
        let connection = &self.deliveries.connection;
        let outbox = &connection.outbox;
        let is_traced = connection.traces().are_wanted();
        let in_turn = inner.credit_mut(self.key).is_some_and(|credit| std::mem::take(&mut credit.in_turn));
        loop {
            if !inner.has_credit(self.key) {
                inner.exhaust(self.key);
                return ConsumerCapacity::Full;
            }
            // Asked before each batch: after a negative answer the outbox calls the session when it has capacity again.
            if let Some(ticket) = connection.enter(&self.deliveries, self.key, in_turn, offer.is_urgent()) {
                if let Some(credit) = inner.credit_mut(self.key) {
                    credit.standing = Standing::OutboxFull(ticket);
                }
                return ConsumerCapacity::Full;
            }
            let allowance = outbox.limit().saturating_sub(outbox.backlog());
            let mut traced = Vec::new();
            let emptied = outbox.append(|buf| {
                let start = buf.len();
                while buf.len() - start <= allowance && inner.has_credit(self.key) {
                    let Some(delivery) = offer.next() else { return true };
                    if is_traced && Tracer::reports(&self.queue, &delivery) {
                        traced.push(delivery.clone());
                    }
                    self.write(inner, buf, delivery);
                }
                false
            });
            // After unlocking the outbox, since no other lock may be taken under its lock.
            if !traced.is_empty() {
                connection.trace(self.deliveries.channel(), &self.queue, false, traced);
            }
            match emptied {
                Some(true) => return ConsumerCapacity::More,
                Some(false) => {}
                // The connection has ended; its session is about to cancel the consumer.
                None => return ConsumerCapacity::Full,
            }
        }
    }

    fn write(&self, inner: &mut DeliveringChannel, buf: &mut OutBuf, delivery: Delivery) {
        let tag = inner.take_tag();
        let destination = self.deliveries.destination;
        self.form.write(buf, destination, &self.tag, tag, &delivery, &self.queue);
        if !self.no_ack {
            let queue = Arc::clone(&self.queue);
            inner.push(tag, Unsettled { queue, delivery, consumer: Some(self.key) });
        }
    }
}
