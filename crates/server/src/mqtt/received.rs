//! Records on disk of received messages of QoS 2 that their clients have not released.
//!
//! A record reaches the disk before its message, in the same round. So it states the log position that the
//! message log must have reached for it to count; if a crash left the log shorter, the client sends the message
//! again. A message is logged with a separate record for each of its queues, and a torn log may hold only some
//! of them: then the message is published to the other queues alone.

use broker::Share;

use super::disk;
use super::hub::Owner;

/// The stored record of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// The log position at which the message is complete.
    until: u64,
    /// The log position for each of its queues, if there are several.
    shares: Vec<(u64, Box<str>)>,
}

/// State of a message after a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterCrash {
    There,
    Lost,
    /// Only these queues have it.
    InSome(Vec<Box<str>>),
}

/// A client's message that only some of its queues have after a crash.
pub(super) struct Partial {
    pub(super) packet_id: u16,
    /// The queues that have it.
    pub(super) queues: Vec<Box<str>>,
}

impl Note {
    /// A record for a message whose last log record ends at `until`. The queues `before` had it already;
    /// `shares` are new.
    pub(super) fn new(until: u64, before: &[Box<str>], shares: &[Share]) -> Self {
        let before = before.iter().map(|queue| (0, queue.clone()));
        let shares = shares.iter().map(|share| (share.until.0, (*share.queue).into()));
        let all: Vec<_> = before.chain(shares).collect();
        Self { until, shares: if all.len() > 1 { all } else { Vec::new() } }
    }

    /// A record for a message that only some queues have.
    pub(super) fn partial(queues: &[Box<str>]) -> Self {
        Self { until: u64::MAX, shares: queues.iter().map(|queue| (0, queue.clone())).collect() }
    }

    /// State of the message if the message log ends at `end`.
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

    /// Decodes the output of [`Note::encode`]; `None` if malformed.
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

/// The key of a message's record.
pub(super) fn received_key(owner: &Owner, packet_id: u16) -> Vec<u8> {
    let mut key = disk::key(&[&owner.vhost, &owner.client_id]);
    key.extend_from_slice(&packet_id.to_be_bytes());
    key
}

/// Decodes a key of [`received_key`]; `None` if malformed.
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
