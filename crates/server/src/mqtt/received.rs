//! Records on disk of received messages of QoS 2 that their clients have not released.
//!
//! The note of a message reaches the disk before the message, since the catalogue is committed first
//! (`store::Store::begin_ordered_round`). So the note states the log position from which on it counts; if a crash left
//! the log shorter, the client sends the message again. Each queue's copy of a message has a log record of its own, and a
//! torn log may have only some of them: then the message is published to the other queues alone.
//!
//! # States
//! The states of a packet identifier of a stored session, on the server's side:
//!
//! | state | note on disk | message in its queues | in memory |
//! |---|---|---|---|
//! | free | none | not, or consumed long ago | nothing |
//! | noted | [`ReceivedRecord::Whole`], or none yet | once the log is on disk up to `until` | `PendingReply::Accept` waits for the disk |
//! | received | [`ReceivedRecord::Whole`] | in all | the session has the identifier; PUBREC was sent |
//! | released | being deleted | in all | `PendingReply::Complete` waits for the disk |
//! | partial | [`ReceivedRecord::Partial`] | in the queues that it names | `DetachedSession::partial` or `MqttClient::partial` |
//!
//! | state | event | next state |
//! |---|---|---|
//! | free | PUBLISH | noted |
//! | noted | note and log are on disk | received, and PUBREC is sent |
//! | received | PUBLISH again | received, and PUBREC is sent again |
//! | received | PUBREL | released |
//! | released | the deletion is on disk | free, and PUBCOMP is sent |
//! | partial | PUBLISH with DUP | noted; only the other queues get the message |
//! | partial | PUBLISH without DUP: the client has given the message up | noted |
//! | noted | crash | free (no note, or the log has nothing of it), partial, or received (the log has all of it) |
//! | received | crash | received |
//! | released | crash | received (the client sends PUBREL again), or free |
//! | partial | crash | partial |
//!
//! # Example
//! The log ends at 1000. A client publishes packet 7, which goes to the queues `a` and `b`: the message's record
//! ends at 1100, the record that it is in `a` at 1120, and in `b` at 1140. The note says `until` 1140, `a` at
//! 1120, `b` at 1140, and is committed. Then the log is written, and the power fails. The next start finds that
//! the log ends at
//!
//! - 1000 to 1119: no queue has the message. The note is deleted, and packet 7 is free when the client sends it
//!   again.
//! - 1120 to 1139: `a` has it. The note becomes a partial one that names `a`, before the log grows beyond 1140
//!   and makes the old note look complete. When the client sends packet 7 again only `b` gets it.
//! - 1140: the message is complete, and the client's PUBLISH is answered without publishing it again.

use broker::Share;
use hashbrown::HashMap;

use super::disk;

/// The stored record of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceivedRecord {
    /// It was published to all of its queues.
    Whole {
        /// The log position at which the message is complete.
        until: u64,
        /// If there are several queues, the log position for each; 0 if it had the message before.
        shares: Vec<(u64, Box<str>)>,
    },
    /// After a crash only these queues have the message, and the client has not sent it again since.
    Partial(Vec<Box<str>>),
}

/// State of a message after a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterCrash {
    Complete,
    Lost,
    /// Only these queues have it.
    InSome(Vec<Box<str>>),
}

/// For each packet identifier of a partial message, the queues that have it.
pub(super) type PartialMessages = HashMap<u16, Vec<Box<str>>>;

impl ReceivedRecord {
    /// The record of a message whose last log record ends at `until`. The queues `before` had it already; `shares` are
    /// new.
    pub(super) fn new(until: u64, before: &[Box<str>], shares: &[Share]) -> Self {
        let before = before.iter().map(|queue| (0, queue.clone()));
        let shares = shares.iter().map(|share| (share.until.0, (*share.queue).into()));
        let all: Vec<_> = before.chain(shares).collect();
        Self::Whole { until, shares: if all.len() > 1 { all } else { Vec::new() } }
    }

    /// State of the message if the message log ends at `end`.
    pub(super) fn after_crash(self, end: u64) -> AfterCrash {
        let queues: Vec<_> = match self {
            Self::Whole { until, .. } if until <= end => return AfterCrash::Complete,
            Self::Whole { shares, .. } => {
                let there = shares.into_iter().filter(|(until, _)| *until <= end);
                there.map(|(_, queue)| queue).collect()
            }
            Self::Partial(queues) => queues,
        };
        if queues.is_empty() { AfterCrash::Lost } else { AfterCrash::InSome(queues) }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let put = |bytes: &mut Vec<u8>, until: u64, queue: &str| {
            bytes.extend_from_slice(&until.to_be_bytes());
            bytes.extend_from_slice(&disk::key(&[queue]));
        };
        let mut bytes = Vec::new();
        match self {
            Self::Whole { until, shares } => {
                bytes.extend_from_slice(&until.to_be_bytes());
                shares.iter().for_each(|(until, queue)| put(&mut bytes, *until, queue));
            }
            Self::Partial(queues) => {
                bytes.extend_from_slice(&NEVER.to_be_bytes());
                queues.iter().for_each(|queue| put(&mut bytes, 0, queue));
            }
        }
        bytes
    }

    /// Decodes the output of [`ReceivedRecord::encode`]; `None` if malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (until, mut rest) = bytes.split_first_chunk()?;
        let mut shares = Vec::new();
        while !rest.is_empty() {
            let (until, named) = rest.split_first_chunk()?;
            let ([queue], left) = disk::names_and_rest::<1>(named)?;
            shares.push((u64::from_be_bytes(*until), queue.into()));
            rest = left;
        }
        Some(match u64::from_be_bytes(*until) {
            NEVER => Self::Partial(shares.into_iter().map(|(_, queue)| queue).collect()),
            until => Self::Whole { until, shares },
        })
    }
}

/// The `until` of a stored partial message: no log becomes that long.
const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use broker::Lsn;

    use super::*;

    fn share(queue: &str, until: u64) -> Share {
        Share { queue: queue.into(), until: Lsn(until) }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = || ReceivedRecord::new(30, &["a".into()], &[share("b", 20), share("c", 30)]);
        let bytes = note().encode();
        assert_eq!(ReceivedRecord::decode(&bytes), Some(note()));
        for cut in 1..bytes.len() {
            assert_ne!(ReceivedRecord::decode(&bytes[..cut]), Some(note()), "{cut} bytes");
        }
        assert_eq!(ReceivedRecord::decode(&bytes[..7]), None);
    }

    #[test]
    fn queues_that_have_a_message_do_not_get_it_again() {
        let note = || ReceivedRecord::new(30, &[], &[share("a", 20), share("b", 30)]);
        assert_eq!(note().after_crash(30), AfterCrash::Complete);
        assert_eq!(note().after_crash(29), AfterCrash::InSome(vec!["a".into()]));
        assert_eq!(note().after_crash(19), AfterCrash::Lost);
        assert_eq!(ReceivedRecord::new(20, &[], &[share("a", 20)]).after_crash(19), AfterCrash::Lost);
        // Regardless of the log's length.
        let partial = ReceivedRecord::Partial(vec!["a".into()]);
        let read = ReceivedRecord::decode(&partial.encode()).unwrap();
        assert_eq!(read, partial);
        assert_eq!(read.after_crash(u64::MAX), AfterCrash::InSome(vec!["a".into()]));
    }
}
