//! Messages that the upstream refuses for good go to a local queue, with the reason in their headers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use amqp::{FieldTable, FieldValue};
use broker::{Body, Delivery, Lsn, Publish, Publisher, Waiter};
use bytes::Bytes;
use spool::{Envelope, MessageRefusal};

use super::local::{LocalSpool, persistent};

/// The headers of a parked message, whose body is its record.
const CODE: &str = "x-leveret-refused-code";
const REASON: &str = "x-leveret-refused-reason";
const REFUSED_AT: &str = "x-leveret-refused-at";
const ACCEPTED_AT: &str = "x-leveret-accepted-at";
const VHOST: &str = "x-leveret-vhost";
const USER: &str = "x-leveret-user";
const EXCHANGE: &str = "x-leveret-exchange";
const ROUTING_KEY: &str = "x-leveret-routing-key";

/// Parks messages of one local queue. They may leave that queue once they are on disk as parked ones.
pub(super) struct Parking {
    local: Arc<LocalSpool>,
    publisher: Publisher,
    /// Woken when parked messages are on disk.
    waiter: Arc<dyn Waiter>,
    /// Parked messages that are not on disk as such, in order.
    waiting: VecDeque<(Option<Lsn>, Delivery)>,
}

impl Parking {
    pub(super) fn new(local: &Arc<LocalSpool>, waiter: &Arc<dyn Waiter>) -> Self {
        Self {
            publisher: local.publisher(),
            local: Arc::clone(local),
            waiter: Arc::clone(waiter),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn park(
        &mut self,
        envelope: &Envelope,
        refusal: &MessageRefusal,
        delivery: Delivery,
        now: Instant,
    ) {
        let time = |ms: u64| FieldValue::I64(i64::try_from(ms).unwrap_or(i64::MAX));
        let headers: FieldTable = [
            (CODE, FieldValue::I64(refusal.code.into())),
            (REASON, FieldValue::text(&*refusal.text)),
            (REFUSED_AT, time(self.local.timestamp(now).0)),
            (ACCEPTED_AT, time(envelope.accepted_at())),
            (VHOST, FieldValue::text(envelope.vhost())),
            (USER, FieldValue::text(envelope.user())),
            (EXCHANGE, FieldValue::text(envelope.exchange())),
            (ROUTING_KEY, FieldValue::text(envelope.routing_key())),
        ]
        .into_iter()
        .collect();
        self.store(envelope.bytes().clone(), &headers, delivery, now);
    }

    /// Parks a message that is no record of this release.
    pub(super) fn park_unknown(&mut self, bytes: Bytes, reason: &str, delivery: Delivery, now: Instant) {
        let headers = [(REASON, FieldValue::text(reason))].into_iter().collect();
        self.store(bytes, &headers, delivery, now);
    }

    fn store(&mut self, bytes: Bytes, headers: &FieldTable, delivery: Delivery, now: Instant) {
        let now = self.local.timestamp(now);
        let properties = persistent(Some(headers));
        let (chunks, routing_key) = ([bytes], Arc::clone(self.local.parked().name()));
        let (exchange, body) = ("", Body::Chunks(&chunks));
        let publish = Publish { exchange, routing_key: &routing_key, properties: &properties, body };
        if let Err(error) = self.publisher.publish(publish, now) {
            // It stays in its queue until the next start.
            tracing::error!(%error, "message could not be parked");
            return;
        }
        let until = self.publisher.flush_all(now).until;
        if let (Some(until), Some(store)) = (until, self.local.store()) {
            store.wait(until, Arc::clone(&self.waiter));
        }
        self.waiting.push_back((until, delivery));
    }

    /// Takes the messages that are on disk as parked ones by now.
    pub(super) fn take_stored(&mut self) -> Vec<Delivery> {
        let durable = self.local.store().map(|store| store.durable());
        let is_stored =
            |until: Option<Lsn>| until.is_none_or(|until| durable.is_none_or(|durable| until <= durable));
        let count = self.waiting.iter().take_while(|(until, _)| is_stored(*until)).count();
        self.waiting.drain(..count).map(|(_, delivery)| delivery).collect()
    }
}
