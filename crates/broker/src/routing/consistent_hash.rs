//! Consistent hash exchanges: each message goes to one binding, the same for the same routing key (or header,
//! or property), and the bindings share messages in proportion to their weights, which are their binding keys
//! (RabbitMQ, "Consistent Hash Exchange").
//!
//! The number of a destination's buckets is its weight, and a jump hash (Lamping and Veach, 2014) picks the
//! bucket: shares are exact for all weights, a new bucket takes its share evenly from all others, and nothing
//! else moves. A removed bucket is replaced by the last one, so that unbinding costs its own size; only the
//! keys of these two move.

use std::collections::BTreeMap;

use amqp::{FieldTable, FieldValue, Properties};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;

use super::Routed;
use crate::error::BrokerError;
use crate::table_view::{ValueView, entries};

/// The bindings of a consistent hash exchange.
#[derive(Debug)]
pub(crate) struct ConsistentHash {
    hash_of: Hashed,
    buckets: Vec<Bucket>,
    members: HashMap<u32, Member, RandomState>,
}

/// The part of a message that is hashed.
#[derive(Debug)]
enum Hashed {
    RoutingKey,
    Header(Box<str>),
    Property(Property),
}

#[derive(Debug, Clone, Copy)]
enum Property {
    CorrelationId,
    MessageId,
    Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    destination: u32,
    /// The index in its destination's `places` that refers to this bucket.
    place: u32,
}

/// A destination. Its first binding determines the weight, as in RabbitMQ; others take over when that is
/// removed.
#[derive(Debug)]
struct Member {
    binding: u32,
    /// The indexes of its buckets.
    places: Vec<u32>,
    /// Weights of its other bindings, keyed by binding.
    waiting: BTreeMap<u32, u32>,
}

impl ConsistentHash {
    /// Creates the table of an exchange whose arguments [`check_arguments`] has accepted.
    pub(super) fn new(arguments: &FieldTable) -> Self {
        let text = |key| arguments.get(key).and_then(FieldValue::as_text);
        let hash_of = match (text(HASH_HEADER), text(HASH_PROPERTY).and_then(Property::from_name)) {
            (Some(header), _) => Hashed::Header(header.into()),
            (None, Some(property)) => Hashed::Property(property),
            (None, None) => Hashed::RoutingKey,
        };
        Self { hash_of, buckets: Vec::new(), members: HashMap::default() }
    }

    pub(super) fn looks_at_properties(&self) -> bool {
        !matches!(self.hash_of, Hashed::RoutingKey)
    }

    pub(super) fn insert(&mut self, binding: u32, destination: u32, weight: u32) {
        match self.members.entry(destination) {
            MapEntry::Occupied(mut member) => {
                member.get_mut().waiting.insert(binding, weight);
            }
            MapEntry::Vacant(vacant) => {
                let waiting = BTreeMap::new();
                let places = add_buckets(&mut self.buckets, destination, weight);
                vacant.insert(Member { binding, places, waiting });
            }
        }
    }

    pub(super) fn remove(&mut self, binding: u32, destination: u32) {
        let Some(member) = self.members.get_mut(&destination) else { return };
        if member.binding != binding {
            member.waiting.remove(&binding);
            return;
        }
        let next = member.waiting.pop_first();
        self.remove_buckets(destination);
        match (next, self.members.get_mut(&destination)) {
            (Some((binding, weight)), Some(member)) => {
                member.binding = binding;
                member.places = add_buckets(&mut self.buckets, destination, weight);
            }
            _ => drop(self.members.remove(&destination)),
        }
    }

    /// The destination of a message, if there is any binding.
    pub(super) fn choose(&self, routed: Routed<'_>) -> Option<u32> {
        let buckets = u32::try_from(self.buckets.len()).unwrap_or(u32::MAX);
        if buckets == 0 {
            return None;
        }
        let bucket = jump_hash(self.hash(routed), buckets);
        self.buckets.get(bucket as usize).map(|bucket| bucket.destination)
    }

    fn hash(&self, routed: Routed<'_>) -> u64 {
        match &self.hash_of {
            // Keys from CC are ignored.
            Hashed::RoutingKey => hash_bytes(routed.keys.first().map_or(b"", |key| key.as_bytes())),
            Hashed::Header(name) => {
                match entries(routed.headers).find(|(found, _)| *found == &**name).map(|(_, value)| value) {
                    None | Some(ValueView::Void) => hash_bytes(b""),
                    Some(ValueView::Text(bytes) | ValueView::Array(bytes) | ValueView::Other(_, bytes)) => {
                        hash_bytes(bytes)
                    }
                    Some(ValueView::Integer(number)) => hash_bytes(&number.to_le_bytes()),
                    Some(ValueView::Float(number)) => hash_bytes(&number.to_le_bytes()),
                    Some(ValueView::Boolean(value)) => hash_bytes(&[u8::from(value)]),
                }
            }
            Hashed::Property(property) => {
                let properties = Properties::decode(routed.properties).unwrap_or_default();
                match property {
                    Property::CorrelationId => hash_bytes(properties.correlation_id.map_or(b"", |id| id.0)),
                    Property::MessageId => hash_bytes(properties.message_id.map_or(b"", |id| id.0)),
                    Property::Timestamp => properties
                        .timestamp
                        .map_or_else(|| hash_bytes(b""), |at| hash_bytes(&at.to_le_bytes())),
                }
            }
        }
    }

    fn remove_buckets(&mut self, destination: u32) {
        while let Some(at) = self.members.get_mut(&destination).and_then(|member| member.places.pop()) {
            self.buckets.swap_remove(at as usize);
            if let Some(moved) = self.buckets.get(at as usize)
                && let Some(member) = self.members.get_mut(&moved.destination)
            {
                member.places[moved.place as usize] = at;
            }
        }
    }
}

impl Property {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "correlation_id" => Self::CorrelationId,
            "message_id" => Self::MessageId,
            "timestamp" => Self::Timestamp,
            _ => return None,
        })
    }
}

/// Refuses arguments of a new exchange that name an unknown property, or both a header and a property.
pub(crate) fn check_arguments(arguments: &FieldTable) -> Result<(), BrokerError> {
    if arguments.get(HASH_HEADER).is_some() && arguments.get(HASH_PROPERTY).is_some() {
        return Err(BrokerError::precondition("hash-header and hash-property are mutually exclusive"));
    }
    match arguments.get(HASH_PROPERTY).map(|name| name.as_text().unwrap_or_default()) {
        Some(name) if Property::from_name(name).is_none() => {
            Err(BrokerError::precondition(format!("Unsupported property: {name}")))
        }
        _ => Ok(()),
    }
}

/// The weight given by a binding key.
///
/// # Errors
/// 406 if it is not a number, or not between 1 and [`MAX_WEIGHT`].
pub(crate) fn weight_of(key: &str) -> Result<u32, BrokerError> {
    let refuse = |why: String| Err(BrokerError::precondition(format!("The binding key must be {why}")));
    let digits = key.strip_prefix(['+', '-']).unwrap_or(key);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let quoted = if key.is_empty() { String::new() } else { format!("\"{key}\"") };
        return refuse(format!("an integer: <<{quoted}>>"));
    }
    match key.parse::<i64>() {
        Ok(..=0) => refuse("greater than 0".into()),
        Ok(weight @ 1..=MAX_WEIGHT) => Ok(weight as u32),
        _ if key.starts_with('-') => refuse("greater than 0".into()),
        _ => refuse(format!("at most {MAX_WEIGHT}")),
    }
}

fn add_buckets(buckets: &mut Vec<Bucket>, destination: u32, weight: u32) -> Vec<u32> {
    let first = buckets.len() as u32;
    buckets.extend((0..weight).map(|place| Bucket { destination, place }));
    (first..first + weight).collect()
}

/// FNV-1a, with a finalizer that spreads it to all bits. Keys must lead to the same destination after a
/// restart, which the hashes of hash tables do not guarantee.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

fn jump_hash(mut key: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (0, 0);
    while next < u64::from(buckets) {
        bucket = next as u32;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let jump = f64::from(1u32 << 31) / ((key >> 33) + 1) as f64;
        next = ((next + 1) as f64 * jump) as u64;
    }
    bucket
}

const HASH_HEADER: &str = "hash-header";
const HASH_PROPERTY: &str = "hash-property";

/// The largest weight, at 12 bytes of memory for each unit. RabbitMQ has no limit but recommends small numbers.
const MAX_WEIGHT: i64 = 1024;

#[cfg(test)]
mod tests {
    use amqp::properties::NO_PROPERTIES;

    use super::*;

    struct Bound {
        table: ConsistentHash,
    }

    impl Bound {
        /// One binding to each destination, numbered from 0, with these weights.
        fn new(weights: &[u32]) -> Self {
            let mut table = ConsistentHash::new(&FieldTable::new());
            (0..).zip(weights).for_each(|(at, weight)| table.insert(at, at, *weight));
            Self { table }
        }

        fn destinations(&self) -> Vec<u32> {
            let choose = |key: u32| {
                let key = key.to_string();
                let routed = Routed { keys: &[&key], headers: &[], properties: NO_PROPERTIES };
                self.table.choose(routed).unwrap()
            };
            (0..MESSAGES).map(choose).collect()
        }

        fn shares(&self, destinations: u32) -> Vec<f64> {
            let chosen = self.destinations();
            let count = |of: u32| chosen.iter().filter(|&&destination| destination == of).count();
            (0..destinations).map(|of| count(of) as f64 / f64::from(MESSAGES)).collect()
        }
    }

    const MESSAGES: u32 = 20_000;

    fn close_to(shares: &[f64], expected: &[f64]) {
        let near = shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 0.02);
        assert!(near, "{shares:?} instead of {expected:?}");
    }

    #[test]
    fn messages_spread_by_weight() {
        close_to(&Bound::new(&[1, 2, 3, 4]).shares(4), &[0.1, 0.2, 0.3, 0.4]);
        close_to(&Bound::new(&[100, 100]).shares(2), &[0.5, 0.5]);
    }

    #[test]
    fn a_new_destination_takes_its_share_and_moves_nothing_else() {
        let mut bound = Bound::new(&[1, 1, 1]);
        let before = bound.destinations();
        bound.table.insert(3, 3, 1);
        let after = bound.destinations();
        assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == 3));
        close_to(&bound.shares(4), &[0.25; 4]);
    }

    #[test]
    fn removing_a_destination_moves_few_messages_of_the_others() {
        let mut bound = Bound::new(&[2; 10]);
        let before = bound.destinations();
        bound.table.remove(4, 4);
        let after = bound.destinations();
        assert!(!after.contains(&4));
        let moved =
            before.iter().zip(&after).filter(|(before, after)| **before != 4 && before != after).count();
        assert!(moved as f64 / f64::from(MESSAGES) < 0.12, "{moved} of {MESSAGES} moved for nothing");
    }

    #[test]
    fn a_destination_has_the_weight_of_its_first_binding_until_that_goes() {
        let mut bound = Bound::new(&[1, 1]);
        bound.table.insert(7, 0, 3);
        close_to(&bound.shares(2), &[0.5, 0.5]);
        bound.table.remove(0, 0);
        close_to(&bound.shares(2), &[0.75, 0.25]);
        bound.table.remove(7, 0);
        bound.table.remove(1, 1);
        assert!(bound.table.buckets.is_empty() && bound.table.members.is_empty());
    }

    #[test]
    fn buckets_and_places_agree_however_bindings_come_and_go() {
        let mut bound = Bound::new(&[3, 1, 7, 2, 5]);
        for (binding, destination) in [(2, 2), (0, 0), (4, 4)] {
            bound.table.remove(binding, destination);
            bound.table.insert(binding + 10, destination, 2);
            for (destination, member) in &bound.table.members {
                for (place, at) in member.places.iter().enumerate() {
                    let bucket = bound.table.buckets[*at as usize];
                    assert_eq!((bucket.destination, bucket.place as usize), (*destination, place));
                }
            }
        }
        assert_eq!(bound.table.buckets.len(), 2 + 1 + 2 + 2 + 2);
    }

    #[test]
    fn a_header_or_a_property_can_decide_instead_of_the_key() {
        let table = |key: &str, value: &str| {
            let arguments: FieldTable = [(key, FieldValue::text(value))].into_iter().collect();
            let mut table = ConsistentHash::new(&arguments);
            for destination in 0..8 {
                table.insert(destination, destination, 1);
            }
            table
        };
        let header = |key: &str, value: FieldValue| {
            let headers: FieldTable = [("h", value)].into_iter().collect();
            let headers = headers.encode();
            let routed = Routed { keys: &[key], headers: &headers, properties: NO_PROPERTIES };
            table("hash-header", "h").choose(routed).unwrap()
        };
        let types: [fn(i32) -> FieldValue; 4] = [
            FieldValue::I32,
            |value| FieldValue::F64(value.into()),
            |value| FieldValue::text(value.to_string()),
            |value| FieldValue::Array(vec![FieldValue::I32(value)]),
        ];
        for value_of in types {
            let on = |key: &str, value: i32| header(key, value_of(value));
            assert_eq!(on("a", 1), on("b", 1));
            assert!((0..20).any(|value| on("a", value) != on("a", 20)), "{:?}", value_of(1));
        }
        assert_ne!(header("a", FieldValue::Boolean(false)), header("a", FieldValue::Boolean(true)));
        assert_eq!(header("a", FieldValue::Void), header("b", FieldValue::text("")));

        let property = |name: &str, key: &str, id: &str| {
            let mut properties = Vec::new();
            let ids = Properties::default().with_message_id(id.into()).with_correlation_id(id.into());
            ids.encode(&mut properties);
            let routed = Routed { keys: &[key], headers: &[], properties: &properties };
            table("hash-property", name).choose(routed).unwrap()
        };
        for name in ["message_id", "correlation_id"] {
            assert_eq!(property(name, "a", "1"), property(name, "b", "1"));
            assert!((0..20).any(|id| property(name, "a", &id.to_string()) != property(name, "a", "20")));
        }
    }

    #[test]
    fn weights_are_refused_in_rabbitmqs_words() {
        let refusal = |key: &str| weight_of(key).unwrap_err().to_string();
        assert_eq!(refusal("abc"), "The binding key must be an integer: <<\"abc\">>");
        assert_eq!(refusal(""), "The binding key must be an integer: <<>>");
        assert_eq!(refusal("1.5"), "The binding key must be an integer: <<\"1.5\">>");
        assert_eq!(refusal("0"), "The binding key must be greater than 0");
        assert_eq!(refusal("-1"), "The binding key must be greater than 0");
        assert_eq!(refusal("1025"), "The binding key must be at most 1024");
        assert_eq!(refusal("99999999999999999999"), "The binding key must be at most 1024");
        assert_eq!(weight_of("100"), Ok(100));
    }

    #[test]
    fn arguments_are_refused_in_rabbitmqs_words() {
        let refusal = |entries: &[(&str, &str)]| {
            let table = entries.iter().map(|(key, value)| (*key, FieldValue::text(*value))).collect();
            check_arguments(&table).unwrap_err().to_string()
        };
        assert_eq!(refusal(&[("hash-property", "reply_to")]), "Unsupported property: reply_to");
        let both = refusal(&[("hash-property", "message_id"), ("hash-header", "h")]);
        assert_eq!(both, "hash-header and hash-property are mutually exclusive");
        for name in ["correlation_id", "message_id", "timestamp"] {
            let table = [(HASH_PROPERTY, FieldValue::text(name))].into_iter().collect();
            assert_eq!(check_arguments(&table), Ok(()));
        }
    }
}
