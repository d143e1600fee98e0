//! Positions in the log, and the identifiers of queues and messages.

/// A position in the log: the number of bytes before it since the start of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The location of a message's record. It does not change while the message is in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRef(u64);

/// A durable queue. The catalogue assigns the number, and never reuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

/// A message's entry in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Ascends in publishing order, below 2^52.
    pub position: u64,
    /// Its payload in the journal, which all queues with the message share.
    pub message: MessageRef,
    /// When it expires, in milliseconds since 1970; 0 for never.
    pub expires: u64,
    /// Whether no further queue will get the message: see `Journal::append`.
    pub last: bool,
}

/// Positions from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The lowest position of the range.
    pub first: u64,
    /// The last one, not below the first.
    pub last: u64,
}

impl MessageRef {
    /// The reference as a number, for compact storage; never 0.
    pub(crate) fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`MessageRef::to_u64`]. A number without a message is detected when it is read.
    pub(crate) fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

impl Range {
    /// The range of this position alone.
    pub fn one(position: u64) -> Self {
        Self { first: position, last: position }
    }
}

/// Positions are below this: the index stores a delivery count in the upper bits. At a million messages a second a queue
/// reaches it in 142 years.
pub(crate) const MAX_POSITION: u64 = 1 << 52;

/// LSN of the start of the log. Not 0, so that 0 can represent "no message".
pub(super) const LOG_START: u64 = 4096;
