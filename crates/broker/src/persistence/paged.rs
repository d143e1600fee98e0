//! Moves messages between a queue's memory and the disk.

use std::iter::Peekable;
use std::vec::IntoIter;

use store::pages::{PagesError, QueueSegments, Record, Stored};
use store::{StoreError, StoredQueue};

use super::payload::{Decoder, with_parts};
use crate::queue::{Delivery, NEVER, Plan, stored_expiry};

/// Messages loaded from the front of a run.
pub(crate) struct Loaded {
    /// The messages in order, each with whether it is in the store.
    pub(crate) deliveries: Vec<(Delivery, bool)>,
    /// All messages of the run up to this position have been loaded.
    pub(crate) through: u64,
}

/// A failure to read or write messages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagingError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// The write would use disk space that must stay free; the memory alarm handles the rest.
    #[error("{bytes} bytes would leave less free on the disk than disk_free_limit")]
    NoSpace { bytes: u64 },
    /// A message has a format that this version does not know.
    #[error("the message at position {position} was written by a newer version")]
    UnknownForm { position: u64 },
    /// No message was found from this position on.
    #[error("no messages from position {position} on")]
    Missing { position: u64 },
}

/// Reads the messages of a plan. Blocks on the disk.
pub(crate) fn load(plan: &Plan, stored: Option<&StoredQueue>) -> Result<Loaded, PagingError> {
    let (mut in_store, mut through) = (Vec::new(), plan.last());
    if let Some(stored) = stored.filter(|_| plan.has_stored) {
        let part = part(plan, |from, most| Ok(stored.read(from, most, LOAD_BYTES)?))?;
        (in_store, through) = (part.0, through.min(part.1));
    }
    let mut written = Vec::new();
    if let Some(page_segments) = &plan.page_segments {
        let part = part(plan, |from, most| Ok(page_segments.read(from, most, LOAD_BYTES)?))?;
        (written, through) = (part.0, through.min(part.1));
    }
    let mut deliveries = Vec::with_capacity(in_store.len() + written.len());
    let mut decoder = Decoder::default();
    let (mut in_store, mut written) = (in_store.into_iter().peekable(), written.into_iter().peekable());
    while let Some((message, stored)) = next(&mut in_store, &mut written, through) {
        let position = message.position;
        let decoded = decoder.decode(&message.payload).ok_or(PagingError::UnknownForm { position })?;
        let delivery = Delivery {
            position,
            expires: message.expires.unwrap_or(NEVER),
            message: decoded.into(),
            deliveries: message.deliveries,
            failures: message.deliveries,
        };
        deliveries.push((delivery, stored));
    }
    match plan.next(0) {
        Some(position) if deliveries.is_empty() => Err(PagingError::Missing { position }),
        _ => Ok(Loaded { deliveries, through }),
    }
}

/// The next message of both parts, and whether it is in the store.
fn next(
    in_store: &mut Peekable<IntoIter<Stored>>,
    written: &mut Peekable<IntoIter<Stored>>,
    through: u64,
) -> Option<(Stored, bool)> {
    let of_store = in_store.peek().map_or(u64::MAX, |message| message.position);
    let of_written = written.peek().map_or(u64::MAX, |message| message.position);
    let first = of_store.min(of_written);
    if first > through {
        return None;
    }
    let is_in_store = of_store == first;
    let message = if is_in_store { in_store.next() } else { written.next() };
    message.map(|message| (message, is_in_store))
}

/// The first messages of the plan from one source, and the position up to which they are complete.
fn part(
    plan: &Plan,
    read: impl Fn(u64, usize) -> Result<Vec<Stored>, PagingError>,
) -> Result<(Vec<Stored>, u64), PagingError> {
    let mut from = 0;
    loop {
        let Some(first) = plan.next(from) else { return Ok((Vec::new(), plan.last())) };
        let mut found = read(first, plan.stretch(first, LOAD_MESSAGES) as usize)?;
        let Some(last) = found.last().map(|message| message.position) else {
            return Ok((Vec::new(), plan.last()));
        };
        found.retain(|message| plan.contains(message.position));
        if !found.is_empty() || last >= plan.last() {
            return Ok((found, last.min(plan.last())));
        }
        from = last + 1;
    }
}

/// Writes messages that are not in the store to `page_segments`, if they fit into `space` bytes. Blocks on the disk.
pub(crate) fn write<'d>(
    page_segments: &QueueSegments,
    space: u64,
    deliveries: impl Iterator<Item = &'d Delivery>,
) -> Result<(), PagingError> {
    let payloads: Vec<_> = deliveries
        .map(|delivery| (delivery, with_parts(&delivery.message, |parts| parts.concat())))
        .collect();
    let bytes = payloads.iter().map(|(_, payload)| payload.len() as u64).sum();
    if bytes > space {
        return Err(PagingError::NoSpace { bytes });
    }
    let records: Vec<_> = payloads
        .iter()
        .map(|(delivery, payload)| Record {
            position: delivery.position,
            expires: Some(stored_expiry(delivery.expires)).filter(|expires| *expires != 0),
            deliveries: delivery.deliveries,
            transient: true,
            weight: delivery.message.body_len() as u32,
            payload,
        })
        .collect();
    page_segments.append(&records).map_err(|failed| PagingError::Pages(failed.error))?;
    Ok(page_segments.flush()?)
}

/// Bytes per read, briefly held twice: a disk reads them in about a millisecond.
const LOAD_BYTES: usize = 1 << 20;

/// Messages per read, for small ones.
const LOAD_MESSAGES: u64 = 2048;
