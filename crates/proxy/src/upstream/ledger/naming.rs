//! The meaning of an empty queue name: the queue that was declared last on the channel. The broker may have made its name
//! up, which then comes with the answer.
//!
//! A method that is answered may be sent again only while it is not, behind the declaration or with the name that has come.
//! One with no-wait is on record at once, and what it makes may be made again much later, on a channel where an empty name
//! means the queue of another client. So it waits for the name.

use super::{Ledger, Record};

impl Ledger {
    /// Whether no declaration of a queue is still to be answered; if one is, [`crate::link::Event::Answered`] follows.
    pub(crate) fn poll_declarations(&self) -> bool {
        let mut record = self.record.lock();
        record.awaits_declarations = record.has_declarations();
        !record.awaits_declarations
    }
}

impl Record {
    pub(super) fn has_declarations(&self) -> bool {
        let asked = self.entries.iter().filter(|entry| entry.is_asked() && !self.is_done(&entry.what));
        asked
            .flat_map(|entry| entry.unanswered(self.answered))
            .any(|(_, payload)| payload.starts_with(&DECLARE))
    }
}

/// Class and method of `queue.declare`, as they begin a payload.
const DECLARE: [u8; 4] = [0, 50, 0, 10];
