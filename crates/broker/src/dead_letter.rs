//! Dead-lettering: the message that is published in place of a dropped one (RabbitMQ, "Dead Letter
//! Exchanges").

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::inspect::with_headers;
use crate::message::{Body, BodyView, BrokerProperties, Message};
use crate::names::ExchangeName;
use crate::queue::{DeadLetter, DeathReason, Queue};
use crate::table_view::{ValueView, entries, texts_in};
use crate::time::Timestamp;

/// A dead letter, ready to be routed.
pub(crate) struct DeadLetterPublish {
    pub(crate) message: Message,
    /// The routing keys; the first is the message's own.
    pub(crate) keys: Vec<Box<str>>,
    deaths: Vec<FieldValue>,
    reason: DeathReason,
}

impl DeadLetterPublish {
    /// Creates the dead letter that `queue` sends to its dead-letter exchange. `at` is the wall clock's time.
    pub(crate) fn write(
        queue: &Queue,
        exchange: &ExchangeName,
        routing_key: Option<&str>,
        dead: &DeadLetter,
        at: Timestamp,
    ) -> Self {
        let old = &dead.message;
        let properties = Properties::decode(old.properties()).unwrap_or_default();
        let mut headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
        let apart = queue.compatibility().protects_x_death();
        if apart && !old.broker_properties().is_dead_letter {
            headers.remove("x-death");
        }
        let info = death(queue, dead, &properties, at);
        let deaths = record(&mut headers, info, queue, old, dead.reason);
        let mut keys: Vec<Box<str>> = Vec::new();
        match routing_key {
            Some(key) => {
                if !apart {
                    headers.remove("CC");
                }
                keys.push(key.into());
            }
            None => {
                keys.push(old.routing_key().into());
                keys.extend(copies(&properties).into_iter().chain(old.blind_copies()).map(Into::into));
            }
        }
        let without_expiration = Properties { expiration: None, ..properties };
        let bytes = with_headers(&without_expiration, &headers);
        let body = match old.body() {
            BodyView::Inline(bytes) => Body::Copied(bytes),
            BodyView::Chunks(chunks) => Body::Chunks(chunks),
        };
        let failures = if apart { dead.failures } else { 0 };
        let broker_properties =
            BrokerProperties { expiration: None, is_dead_letter: apart, failures, ..old.broker_properties() };
        let mut message = Message::new(exchange.clone(), &keys[0], &bytes, body, broker_properties);
        if routing_key.is_none() {
            let blind: SmallVec<[&str; 2]> = old.blind_copies().collect();
            message = message.with_blind_copies(&blind);
        }
        Self { message, keys, deaths, reason: dead.reason }
    }

    /// The decoded headers, for routing.
    pub(crate) fn headers(&self) -> FieldTable {
        let properties = Properties::decode(self.message.properties()).unwrap_or_default();
        properties.headers.map(|headers| headers.decode()).unwrap_or_default()
    }

    /// Whether the letter has been in `queue` before and no client has rejected it since: such a letter would cycle
    /// forever, so it is dropped.
    pub(crate) fn would_cycle(&self, queue: &str) -> bool {
        if self.reason == DeathReason::Rejected {
            return false;
        }
        let field = |death: &FieldValue, key: &str, text: &str| match death {
            FieldValue::Table(table) => table.get(key).and_then(FieldValue::as_text) == Some(text),
            _ => false,
        };
        let Some(at) = self.deaths.iter().position(|death| field(death, "queue", queue)) else {
            return false;
        };
        !self.deaths[..=at].iter().any(|death| field(death, "reason", DeathReason::Rejected.name()))
    }
}

impl DeathReason {
    fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLength => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// The `x-death` entry for this death.
fn death(queue: &Queue, dead: &DeadLetter, properties: &Properties<'_>, at: Timestamp) -> FieldTable {
    let old = &dead.message;
    let mut keys = vec![FieldValue::text(old.routing_key())];
    keys.extend(copies(properties).into_iter().map(FieldValue::text));
    let mut info: FieldTable = [
        ("count", FieldValue::I64(1)),
        ("reason", FieldValue::text(dead.reason.name())),
        ("queue", FieldValue::text(&**queue.name())),
        ("time", FieldValue::Timestamp(at.seconds())),
        ("exchange", FieldValue::text(old.exchange())),
        ("routing-keys", FieldValue::Array(keys)),
    ]
    .into_iter()
    .collect();
    if let Some(expiration) = properties.expiration {
        info.insert("original-expiration", FieldValue::text(expiration));
    }
    info
}

/// Puts a death at the front of the header `x-death`. It replaces an earlier one of the same queue and
/// reason, whose count it increments. Returns the whole list.
fn record(
    headers: &mut FieldTable,
    info: FieldTable,
    queue: &Queue,
    old: &Message,
    reason: DeathReason,
) -> Vec<FieldValue> {
    let mut deaths = match headers.get("x-death") {
        Some(FieldValue::Array(deaths)) => merged(deaths),
        None => {
            headers.insert("x-first-death-reason", FieldValue::text(reason.name()));
            headers.insert("x-first-death-queue", FieldValue::text(&**queue.name()));
            headers.insert("x-first-death-exchange", FieldValue::text(old.exchange()));
            Vec::new()
        }
        Some(_) => Vec::new(),
    };
    let same = |death: &FieldValue| {
        event_of(death) == Some((Some(queue.name().as_bytes()), Some(reason.name().as_bytes())))
    };
    if queue.compatibility().protects_x_death() {
        headers.insert("x-last-death-reason", FieldValue::text(reason.name()));
        headers.insert("x-last-death-queue", FieldValue::text(&**queue.name()));
        headers.insert("x-last-death-exchange", FieldValue::text(old.exchange()));
    }
    let newest = match deaths.iter().position(same) {
        None => info,
        Some(at) => match deaths.remove(at) {
            FieldValue::Table(mut again) => {
                // For the only entry, RabbitMQ takes a missing count as zero.
                let count = again.get("count").and_then(FieldValue::as_integer).unwrap_or(0);
                again.insert("count", FieldValue::I64(count.saturating_add(1)));
                again
            }
            _ => info,
        },
    };
    deaths.insert(0, FieldValue::Table(newest));
    headers.insert("x-death", FieldValue::Array(deaths.clone()));
    // RabbitMQ sorts the headers whenever it sets one.
    headers.sort();
    deaths
}

/// Merges the deaths of the header `x-death`, so that each queue and reason occurs once. Brokers before RabbitMQ 3.5 wrote
/// one entry for each death, without a count, and publishers send such headers back: entries without a count are counted.
/// The first of equal entries, the newest, is retained, with its count if it has one.
fn merged(deaths: &[FieldValue]) -> Vec<FieldValue> {
    if deaths.len() < 2 {
        return deaths.to_vec();
    }
    let mut entries: HashMap<DeathKey<'_>, (usize, i64), RandomState> = HashMap::default();
    let mut merged: Vec<FieldValue> = Vec::new();
    for death in deaths {
        let Some(event) = event_of(death) else {
            merged.push(death.clone());
            continue;
        };
        let (_, alike) = entries.entry(event).or_insert_with(|| {
            merged.push(death.clone());
            (merged.len() - 1, 0)
        });
        *alike += 1;
    }
    for (at, alike) in entries.into_values() {
        if let FieldValue::Table(table) = &mut merged[at]
            && table.get("count").is_none()
        {
            table.insert("count", FieldValue::I64(alike));
        }
    }
    merged
}

/// Queue and reason, if present.
type DeathKey<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// The key by which deaths are merged; `None` for an array element that is not a death.
fn event_of(death: &FieldValue) -> Option<DeathKey<'_>> {
    let FieldValue::Table(table) = death else { return None };
    let text = |key| match table.get(key) {
        Some(FieldValue::LongString(text)) => Some(&**text),
        _ => None,
    };
    Some((text("queue"), text("reason")))
}

/// The routing keys in the header CC.
pub(crate) fn copies<'a>(properties: &Properties<'a>) -> SmallVec<[&'a str; 2]> {
    let headers: RawTable<'a> = properties.headers.unwrap_or_default();
    let array = entries(headers.bytes()).find(|(name, _)| *name == "CC").and_then(|(_, value)| match value {
        ValueView::Array(array) => Some(array),
        _ => None,
    });
    let texts = array.into_iter().flat_map(texts_in);
    texts.filter_map(|text| std::str::from_utf8(text).ok()).collect()
}
