//! One or more frames that were sent, and the condition under which they are settled.

use amqp::FrameKind;
use amqp::frame::OVERHEAD;

use super::prefetch::PrefetchState;
use crate::frames::{put_frame, stored_frames};

/// One or more frames that were sent. Consecutive methods share an entry, so that a client that sends
/// thousands of them takes little more memory than their bytes.
#[derive(Debug)]
pub(super) struct SentEntry {
    pub(super) what: EntryKind,
    pub(super) frames: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum EntryKind {
    /// Messages in confirm mode, numbered from `first`. The frames of one that is too large are not kept.
    Messages { first: u64, count: u64, too_large: bool },
    /// Methods with a reply, numbered from `first`, of one frame each. `prefetch` is that of the consumers
    /// among them.
    Asked { first: u64, count: u64, prefetch: PrefetchState },
    /// `count` methods with no-wait, of one frame each, sent after `published` messages and `asked` requests.
    Unanswered { published: u64, asked: u64, count: u64 },
    /// `count` messages outside confirm mode, sent after `published` messages and `asked` requests. The frames of one
    /// that is too large are not kept.
    Unconfirmed { published: u64, asked: u64, count: u64, too_large: bool },
    /// A `confirm.select` with no-wait after such messages, sent after `asked` requests.
    Selected { asked: u64 },
}

impl SentEntry {
    pub(super) fn new(what: EntryKind, frames: Vec<u8>) -> Self {
        Self { what, frames }
    }

    /// Memory used, in bytes.
    pub(super) fn bytes(&self) -> usize {
        ENTRY_BYTES + self.frames.capacity()
    }

    /// Appends a method that was sent after this entry, if it is of the same kind and there is room.
    /// `answered` is the number of the channel's methods that have been answered.
    pub(super) fn join(&mut self, method: &EntryKind, payload: &[u8], answered: u64) -> bool {
        let has_capacity = self.frames.len() + payload.len() + OVERHEAD <= SHARED_BYTES;
        match (&mut self.what, method) {
            (
                EntryKind::Asked { first, count, prefetch },
                &EntryKind::Asked { first: number, prefetch: present, .. },
            ) => {
                if answered + 1 >= *first + *count {
                    // All methods in the entry are answered; it only waits for earlier entries.
                    self.frames.clear();
                    (*first, *count, *prefetch) = (number, 1, present);
                } else if has_capacity
                    && number == *first + *count
                    && (*prefetch == present || !is_consume(payload))
                {
                    *count += 1;
                } else {
                    return false;
                }
            }
            (
                EntryKind::Unanswered { published, asked, count },
                EntryKind::Unanswered { published: messages, asked: answers, .. },
            ) if has_capacity && (&*published, &*asked) == (messages, answers) => *count += 1,
            _ => return false,
        }
        self.put(payload);
        true
    }

    /// Counts messages in confirm mode that were sent after this entry, if neither has frames.
    pub(super) fn count_unbuffered(&mut self, messages: &EntryKind) -> bool {
        let (
            EntryKind::Messages { first, count, too_large: false },
            &EntryKind::Messages { first: number, count: more, .. },
        ) = (&mut self.what, messages)
        else {
            return false;
        };
        let is_joined = self.frames.is_empty() && number == *first + *count;
        if is_joined {
            *count += more;
        }
        is_joined
    }

    /// Appends whole messages that were sent after this entry, if they are of the same kind and there is room.
    pub(super) fn join_messages(&mut self, messages: &EntryKind, frames: &[u8]) -> bool {
        let (
            EntryKind::Unconfirmed { published, asked, count, too_large: false },
            &EntryKind::Unconfirmed { published: confirmed, asked: answers, count: more, .. },
        ) = (&mut self.what, messages)
        else {
            return false;
        };
        if (*published, *asked) != (confirmed, answers) || self.frames.len() + frames.len() > SHARED_BYTES {
            return false;
        }
        *count += more;
        self.reserve(frames.len());
        self.frames.extend_from_slice(frames);
        true
    }

    /// Appends a method.
    fn put(&mut self, payload: &[u8]) {
        self.reserve(payload.len() + OVERHEAD);
        put_frame(&mut self.frames, FrameKind::Method, 0, payload, 0);
    }

    /// Grows the buffer up to [`SHARED_BYTES`] only: [`Vec`] might reserve more than is ever used.
    fn reserve(&mut self, more: usize) {
        let needed = self.frames.len() + more;
        if needed > self.frames.capacity() {
            let capacity = (2 * self.frames.capacity()).min(SHARED_BYTES).max(needed);
            self.frames.reserve_exact(capacity - self.frames.len());
        }
    }

    /// Removes its first method; returns false if there is only one.
    pub(super) fn forget_first(&mut self) -> bool {
        let EntryKind::Unanswered { count: count @ 2.., .. } = &mut self.what else { return false };
        *count -= 1;
        let first = stored_frames(&self.frames).next().map_or(0, |(_, payload)| payload.len() + OVERHEAD);
        self.frames.drain(..first);
        true
    }

    /// Whether it consists of methods with a reply.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.what, EntryKind::Asked { .. })
    }

    /// Number of no-wait methods in the entry.
    pub(super) fn reported(&self) -> u64 {
        if let EntryKind::Unanswered { count, .. } = self.what { count } else { 0 }
    }

    /// Its frames, without the methods that have been answered.
    pub(super) fn unanswered(&self, answered: u64) -> impl Iterator<Item = (FrameKind, &[u8])> {
        let over = match self.what {
            EntryKind::Asked { first, .. } => (answered + 1).saturating_sub(first),
            _ => 0,
        };
        stored_frames(&self.frames).skip(over as usize)
    }

    /// The payload of the request with this number, and the limits of the consumer that it makes.
    pub(super) fn asked(&self, number: u64) -> Option<(&[u8], PrefetchState)> {
        match self.what {
            EntryKind::Asked { first, count, prefetch } if (first..first + count).contains(&number) => {
                let (_, payload) = self.unanswered(number - 1).next()?;
                Some((payload, prefetch))
            }
            _ => None,
        }
    }
}

pub(super) fn is_consume(payload: &[u8]) -> bool {
    matches!(payload, [0, 60, 0, 20, ..])
}

/// Size of an entry without its frames: an element of a queue that may be half empty.
const ENTRY_BYTES: usize = 2 * size_of::<SentEntry>();
/// Maximum bytes of an entry that methods share. Small, so that answered methods are freed soon although later ones in
/// the entry are unanswered.
pub(super) const SHARED_BYTES: usize = 4096;
