//! Records on disk of messages of QoS 2 that are in flight to clients of persistent sessions.
//!
//! Each message has its own record, so that a step (PUBLISH, PUBREC, PUBCOMP) does not rewrite the session: that may have
//! thousands of subscriptions, and other clients wait for the same disk.

use broker::{CatalogueError, Change, Lsn, Section, Store};
use hashbrown::HashMap;
use mqtt::session::{InFlight, Session};

use super::detached::DetachedSession;
use super::disk;
use super::session_ownership::Owner;

/// A message as it was stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InFlightRecord {
    pub(super) entry: InFlight,
    /// For a message from a shared queue: the log position at which that queue has released it
    /// ([`DetachedSession::moving`]).
    pub(super) until: Option<Lsn>,
}

impl InFlightRecord {
    /// The bytes for the disk.
    fn encode(entry: &InFlight, until: Option<Lsn>) -> Vec<u8> {
        let mut bytes = entry.sequence.to_be_bytes().to_vec();
        bytes.extend_from_slice(&until.unwrap_or_default().0.to_be_bytes());
        entry.encode(&mut bytes);
        bytes
    }

    /// Decodes the output of [`Self::encode`]; `None` if malformed.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (sequence, rest) = bytes.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let entry = InFlight::decode(rest, u64::from_be_bytes(*sequence)).ok()?;
        let until = Some(Lsn(u64::from_be_bytes(*until))).filter(|until| until.0 != 0);
        Some(Self { entry, until })
    }
}

/// A session whose messages in flight are written.
#[derive(Clone, Copy)]
pub(super) struct InFlightOf<'a> {
    pub(super) owner: &'a Owner,
    pub(super) session: &'a Session,
    /// See [`DetachedSession::moving`].
    pub(super) moving: &'a [(u64, Lsn)],
}

impl InFlightOf<'_> {
    /// The change that brings the record of this message up to date.
    pub(super) fn change(self, packet_id: u16) -> Change {
        let entry = self.session.in_flight_with(packet_id).filter(|entry| entry.is_exactly_once());
        entry.map_or_else(
            || Change::delete(Section::MqttInFlight, disk::packet_key(self.owner, packet_id)),
            |entry| self.put(entry),
        )
    }

    /// The changes that bring the records of all messages up to date.
    pub(super) fn all_changes(self) -> Vec<Change> {
        let all = self.session.in_flight().filter(|entry| entry.is_exactly_once());
        [delete_all(self.owner)].into_iter().chain(all.map(|entry| self.put(entry))).collect()
    }

    fn put(self, entry: &InFlight) -> Change {
        let moving = self.moving.iter().find(|(tag, _)| *tag == entry.tag);
        let value = InFlightRecord::encode(entry, moving.map(|(_, until)| *until));
        Change::put(Section::MqttInFlight, disk::packet_key(self.owner, entry.packet_id), value)
    }
}

/// The change that deletes the records of a session.
pub(super) fn delete_all(owner: &Owner) -> Change {
    Change::delete_all(Section::MqttInFlight, disk::key(&[&owner.vhost, &owner.client_id]))
}

/// Restores the messages in flight of stored sessions, and adds the keys of records without a session to `orphans`.
/// Returns the key of a malformed record, if there is one.
///
/// # Errors
/// The records cannot be read.
pub(super) fn load(
    store: &Store,
    found: &mut HashMap<Owner, DetachedSession>,
    orphans: &mut Vec<(Section, Vec<u8>)>,
) -> Result<Option<Vec<u8>>, CatalogueError> {
    let (mut records, mut wrong) = (HashMap::<Owner, Vec<_>>::new(), None);
    store.catalogue().scan(Section::MqttInFlight, |key, value| {
        match disk::read_packet_key(key).zip(InFlightRecord::decode(value)) {
            Some(((owner, _), _)) if !found.contains_key(&owner) => {
                orphans.push((Section::MqttInFlight, key.to_vec()));
            }
            Some(((owner, _), record)) => records.entry(owner).or_default().push(record),
            None => wrong = Some(key.to_vec()),
        }
    })?;
    for (owner, mut records) in records {
        records.sort_unstable_by_key(|record| record.entry.sequence);
        if let Some(detached_session) = found.get_mut(&owner) {
            detached_session.restore_in_flight(records);
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mqtt::session::{OutgoingMessage, Stage};
    use mqtt::{PropertyList, QoS};

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let message = OutgoingMessage {
            topic: "t".into(),
            qos: QoS::ExactlyOnce,
            retain: false,
            redelivered: false,
            properties: PropertyList::new(),
            payload: Bytes::from_static(b"x"),
        };
        for (stage, until) in [(Stage::Published(message), Some(Lsn(7))), (Stage::Released, None)] {
            let entry = InFlight { packet_id: 5, tag: 1 << 63, sequence: 9, stage };
            let bytes = InFlightRecord::encode(&entry, until);
            for cut in 0..bytes.len() {
                assert_eq!(InFlightRecord::decode(&bytes[..cut]), None, "{cut} bytes");
            }
            assert_eq!(InFlightRecord::decode(&bytes), Some(InFlightRecord { entry, until }));
        }
    }
}
