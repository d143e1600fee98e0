//! What is on disk of messages of QoS 2 that have come and that their clients have not released.
//!
//! A note gets to the disk before its message does, in the same round. So it says how far the log of messages must have got
//! for it to count; after a crash that left the log shorter, the client sends the message again. A message goes to each of
//! its queues by a record of its own, and a log that is torn may hold some of these: then it goes to the others alone.

use broker::Share;

use super::disk;
use super::hub::Owner;

/// What is noted of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// How far the log must have got for the message to be there.
    until: u64,
    /// The same for each of its queues, if there are several.
    shares: Vec<(u64, Box<str>)>,
}

/// What a crash has left of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterCrash {
    There,
    Lost,
    /// These queues have it.
    InSome(Vec<Box<str>>),
}

/// A message from a client that a crash has left to some of its queues.
pub(super) struct Partial {
    pub(super) packet_id: u16,
    /// Those that have it.
    pub(super) queues: Vec<Box<str>>,
}

impl Note {
    /// Of a message whose last record is before `until`. The queues `before` have had it, `shares` were given it.
    pub(super) fn new(until: u64, before: &[Box<str>], shares: &[Share]) -> Self {
        let before = before.iter().map(|queue| (0, queue.clone()));
        let shares = shares.iter().map(|share| (share.until.0, (*share.queue).into()));
        let all: Vec<_> = before.chain(shares).collect();
        Self { until, shares: if all.len() > 1 { all } else { Vec::new() } }
    }

    /// Of a message that some queues alone have.
    pub(super) fn partial(queues: &[Box<str>]) -> Self {
        Self { until: u64::MAX, shares: queues.iter().map(|queue| (0, queue.clone())).collect() }
    }

    /// What there is of the message if the log of messages ends at `end`.
    pub(super) fn after_crash(self, end: u64) -> AfterCrash {
        if self.until <= end {
            return AfterCrash::There;
        }
        let there = self.shares.into_iter().filter(|(until, _)| *until <= end);
        let queues: Vec<_> = there.map(|(_, queue)| queue).collect();
        if queues.is_empty() { AfterCrash::Lost } else { AfterCrash::InSome(queues) }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.until.to_be_bytes().to_vec();
        for (until, queue) in &self.shares {
            bytes.extend_from_slice(&until.to_be_bytes());
            bytes.extend_from_slice(&disk::key(&[queue]));
        }
        bytes
    }

    /// What [`Note::encode`] wrote; `None` if it is not well-formed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (until, mut rest) = bytes.split_first_chunk()?;
        let mut shares = Vec::new();
        while !rest.is_empty() {
            let (until, named) = rest.split_first_chunk()?;
            let ([queue], left) = disk::names_and_rest::<1>(named)?;
            shares.push((u64::from_be_bytes(*until), queue.into()));
            rest = left;
        }
        Some(Self { until: u64::from_be_bytes(*until), shares })
    }
}

/// The key of the note of a message.
pub(super) fn received_key(owner: &Owner, packet_id: u16) -> Vec<u8> {
    let mut key = disk::key(&[&owner.vhost, &owner.client_id]);
    key.extend_from_slice(&packet_id.to_be_bytes());
    key
}

/// What [`received_key`] made a key of; `None` if it is not well-formed.
pub(super) fn read_key(key: &[u8]) -> Option<(Owner, u16)> {
    let ([vhost, client_id], rest) = disk::names_and_rest::<2>(key)?;
    let owner = Owner { vhost: vhost.into(), client_id: client_id.into() };
    Some((owner, u16::from_be_bytes(rest.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use broker::Lsn;

    use super::*;

    fn share(queue: &str, until: u64) -> Share {
        Share { queue: queue.into(), until: Lsn(until) }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let owner = Owner { vhost: "/".into(), client_id: "größe".into() };
        assert_eq!(read_key(&received_key(&owner, 7)), Some((owner, 7)));
        let note = || Note::new(30, &["a".into()], &[share("b", 20), share("c", 30)]);
        let bytes = note().encode();
        assert_eq!(Note::decode(&bytes), Some(note()));
        for cut in 1..bytes.len() {
            assert_ne!(Note::decode(&bytes[..cut]), Some(note()), "{cut} bytes");
        }
        assert_eq!(Note::decode(&bytes[..7]), None);
    }

    #[test]
    fn queues_that_have_a_message_do_not_get_it_again() {
        let note = || Note::new(30, &[], &[share("a", 20), share("b", 30)]);
        assert_eq!(note().after_crash(30), AfterCrash::There);
        assert_eq!(note().after_crash(29), AfterCrash::InSome(vec!["a".into()]));
        assert_eq!(note().after_crash(19), AfterCrash::Lost);
        assert_eq!(Note::new(20, &[], &[share("a", 20)]).after_crash(19), AfterCrash::Lost);
        // However long the log has become since.
        let partial = Note::partial(&["a".into()]);
        assert_eq!(partial.after_crash(u64::MAX - 1), AfterCrash::InSome(vec!["a".into()]));
    }
}
