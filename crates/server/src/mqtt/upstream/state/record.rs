//! The format of the messages of a state queue.
//!
//! ```text
//! u8   layout
//! u8   kind
//! u64  the connection that wrote it
//! u64  its number among those of this connection
//!      by kind:
//!      list      u8 whether the session has a queue
//!                u16 number of messages received, and for each: u16 packet identifier, u64 digest
//!                u32 number of subscriptions, and for each: u16 length of the filter, and it,
//!                u8 options (`Subscription::stored_byte`), u32 identifier or 0
//!      received  u16 packet identifier, u64 digest
//!      released  u16 packet identifier
//! ```
//!
//! Integers are big-endian. Other clients with permission may publish anything to the queue: invalid messages are
//! ignored.

use mqtt::session::Subscription;

/// The first byte; later layouts have higher ones.
const LAYOUT: u8 = 1;

const LIST: u8 = 0;
const RECEIVED: u8 = 1;
const RELEASED: u8 = 2;

/// The maximum of unreleased QoS 2 messages of a client, all of which are in each list.
pub(in super::super) const MAX_RECEIVED: u16 = 1024;

/// The maximum size of a list in bytes: it is held in memory as a whole, and passes through shared connections.
pub(super) const MAX_LIST: usize = 512 * 1024;

/// The highest Subscription Identifier (MQTT 5.0, section 3.8.2.1.2).
const MAX_IDENTIFIER: u32 = 268_435_455;

/// The identity of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RecordId {
    /// The random number of the connection that wrote it.
    pub(super) connection: u64,
    pub(super) number: u64,
}

/// A message of a state queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StateRecord {
    /// The whole state.
    List(StateList),
    /// The client has published a QoS 2 message.
    Received { packet_id: u16, digest: u64 },
    /// The client has released the message.
    Released { packet_id: u16 },
}

/// The whole state of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StateList {
    /// Whether the session has a queue for QoS 1 messages.
    pub(super) has_queue: bool,
    /// The packet identifier and digest of each unreleased QoS 2 message.
    pub(super) received: Vec<(u16, u64)>,
    pub(super) subscriptions: Vec<(Box<str>, Subscription)>,
}

impl StateRecord {
    pub(super) fn encode(&self, id: RecordId) -> Vec<u8> {
        match self {
            Self::List(list) => {
                let subscriptions = list.subscriptions.iter().map(|(filter, one)| (&**filter, *one));
                encode_list(id, list.has_queue, list.received.iter().copied(), subscriptions)
            }
            Self::Received { packet_id, digest } => {
                let mut out = head(RECEIVED, id);
                out.extend(packet_id.to_be_bytes());
                out.extend(digest.to_be_bytes());
                out
            }
            Self::Released { packet_id } => {
                let mut out = head(RELEASED, id);
                out.extend(packet_id.to_be_bytes());
                out
            }
        }
    }

    /// Decodes a message; `None` if it is invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<(RecordId, Self)> {
        let mut reader = RecordReader(bytes);
        let [LAYOUT, kind] = reader.array()? else { return None };
        let id = RecordId { connection: reader.u64()?, number: reader.u64()? };
        let record = match kind {
            LIST if bytes.len() <= MAX_LIST => Self::List(reader.list()?),
            RECEIVED => Self::Received { packet_id: reader.packet_id()?, digest: reader.u64()? },
            RELEASED => Self::Released { packet_id: reader.packet_id()? },
            _ => return None,
        };
        reader.0.is_empty().then_some((id, record))
    }
}

/// Encodes a list. Filters are no longer than MQTT's strings.
pub(super) fn encode_list<'s>(
    id: RecordId,
    has_queue: bool,
    received: impl ExactSizeIterator<Item = (u16, u64)>,
    subscriptions: impl Iterator<Item = (&'s str, Subscription)>,
) -> Vec<u8> {
    let mut out = head(LIST, id);
    out.push(u8::from(has_queue));
    out.extend((received.len() as u16).to_be_bytes());
    for (packet_id, digest) in received {
        out.extend(packet_id.to_be_bytes());
        out.extend(digest.to_be_bytes());
    }
    let count_at = out.len();
    out.extend([0; 4]);
    let mut count = 0_u32;
    for (filter, subscription) in subscriptions {
        count += 1;
        out.extend((filter.len() as u16).to_be_bytes());
        out.extend_from_slice(filter.as_bytes());
        out.push(subscription.stored_byte(filter));
        out.extend(subscription.identifier.unwrap_or(0).to_be_bytes());
    }
    out[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
    out
}

/// Bytes that a subscription takes in a list.
pub(super) fn listed_bytes(filter: &str) -> usize {
    2 + filter.len() + 1 + 4
}

fn head(kind: u8, id: RecordId) -> Vec<u8> {
    let mut out = vec![LAYOUT, kind];
    out.extend(id.connection.to_be_bytes());
    out.extend(id.number.to_be_bytes());
    out
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn packet_id(&mut self) -> Option<u16> {
        self.u16().filter(|packet_id| *packet_id != 0)
    }

    fn list(&mut self) -> Option<StateList> {
        let [has_queue] = self.array()?;
        let count = self.u16().filter(|count| *count <= MAX_RECEIVED)?;
        let received =
            (0..count).map(|_| Some((self.packet_id()?, self.u64()?))).collect::<Option<Vec<_>>>()?;
        let count = u32::from_be_bytes(self.array()?);
        // Not preallocated: the number may be larger than the rest of the message.
        let mut subscriptions = Vec::new();
        for _ in 0..count {
            subscriptions.push(self.subscription()?);
        }
        Some(StateList { has_queue: has_queue != 0, received, subscriptions })
    }

    fn subscription(&mut self) -> Option<(Box<str>, Subscription)> {
        let length = self.u16()?;
        let (filter, rest) = self.0.split_at_checked(length.into())?;
        self.0 = rest;
        let filter = std::str::from_utf8(filter).ok().filter(|filter| !filter.contains('\0'))?;
        let [byte] = self.array()?;
        let identifier = Some(u32::from_be_bytes(self.array()?)).filter(|id| *id != 0);
        let is_valid = identifier.is_none_or(|id| id <= MAX_IDENTIFIER);
        let subscription = Subscription::from_stored(filter, byte, identifier)?;
        (is_valid && subscription.filter(filter).is_some()).then(|| (filter.into(), subscription))
    }
}

/// A digest of a message's topic and payload, which distinguishes a client's messages with one packet identifier. FNV-1a
/// with 64 bits, so that all servers agree on it; a client that forges collisions harms only itself.
pub(super) fn digest(topic: &str, payload: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(PRIME);
    // A topic contains no zero byte.
    [topic.as_bytes(), &[0], payload].into_iter().flatten().fold(OFFSET, step)
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;
    use mqtt::packet::{RetainHandling, SubscribeOptions};

    use super::*;

    const ID: RecordId = RecordId { connection: 0x0102, number: 7 };

    fn list() -> StateRecord {
        let plain = Subscription::of(SubscribeOptions::of_qos(QoS::AtMostOnce));
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::Never,
        };
        let rich = Subscription { options, identifier: Some(MAX_IDENTIFIER), is_shared: false };
        let subscriptions = vec![("a/+".into(), plain), ("größe/#".into(), rich)];
        StateRecord::List(StateList {
            has_queue: true,
            received: vec![(1, u64::MAX), (65535, 0)],
            subscriptions,
        })
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_shorter_or_longer_is_one() {
        let empty = StateRecord::List(StateList::default());
        let received = StateRecord::Received { packet_id: 9, digest: 1 << 40 };
        for record in [list(), empty, received, StateRecord::Released { packet_id: 9 }] {
            let mut bytes = record.encode(ID);
            for cut in 0..bytes.len() {
                assert_eq!(StateRecord::decode(&bytes[..cut]), None, "{cut} bytes of {record:?}");
            }
            assert_eq!(StateRecord::decode(&bytes), Some((ID, record)));
            bytes.push(0);
            assert_eq!(StateRecord::decode(&bytes), None);
        }
    }

    #[test]
    fn corrupted_records_decode_to_valid_lists_or_nothing() {
        let bytes = list().encode(ID);
        for at in 0..bytes.len() {
            for value in [0, 1, 0x2b, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let Some((_, StateRecord::List(list))) = StateRecord::decode(&changed) else { continue };
                assert!(list.received.len() + list.subscriptions.len() <= 4);
                for (filter, subscription) in &list.subscriptions {
                    assert!(subscription.filter(filter).is_some());
                    assert!(subscription.identifier.is_none_or(|id| (1..=MAX_IDENTIFIER).contains(&id)));
                }
            }
        }
    }

    #[test]
    fn a_filter_of_an_older_client_may_begin_as_that_of_a_shared_subscription() {
        for filter in ["$share/x", "$share/+/a", "$share", "$share/group/a/#"] {
            let StateRecord::List(mut written) = list() else { unreachable!() };
            written.subscriptions[0].0 = filter.into();
            let record = StateRecord::List(written);
            assert_eq!(StateRecord::decode(&record.encode(ID)), Some((ID, record)));
        }
    }

    #[test]
    fn records_that_a_server_would_not_write_are_rejected() {
        let with = |change: fn(&mut StateList)| {
            let StateRecord::List(mut list) = list() else { unreachable!() };
            change(&mut list);
            StateRecord::List(list).encode(ID)
        };
        for hostile in [
            b"".to_vec(),
            b"hello".to_vec(),
            vec![0xff; 64],
            with(|list| list.subscriptions[0].0 = "a/#/b".into()),
            with(|list| list.subscriptions[0].0 = "".into()),
            with(|list| list.subscriptions[0].0 = "a\0b".into()),
            with(|list| list.subscriptions[0].1.identifier = Some(MAX_IDENTIFIER + 1)),
            with(|list| list.received = vec![(1, 1); usize::from(MAX_RECEIVED) + 1]),
            with(|list| list.received[0].0 = 0),
            with(|list| list.subscriptions = vec![("x".repeat(60_000).into(), list.subscriptions[0].1); 10]),
            StateRecord::Released { packet_id: 0 }.encode(ID),
        ] {
            assert_eq!(StateRecord::decode(&hostile), None, "{:.60}", hostile.escape_ascii());
        }
        // A count above the number of subscriptions.
        let mut bytes = StateRecord::List(StateList::default()).encode(ID);
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(StateRecord::decode(&bytes), None);
    }

    #[test]
    fn messages_that_differ_have_different_digests() {
        let all = [("a", "bc"), ("ab", "c"), ("a", ""), ("a", "bd"), ("b", "bc")];
        let digests: std::collections::BTreeSet<u64> =
            all.iter().map(|(topic, payload)| digest(topic, payload.as_bytes())).collect();
        assert_eq!(digests.len(), all.len());
        // Every release must compute the same.
        assert_eq!(digest("", b""), 0xaf63_bd4c_8601_b7df);
    }
}
