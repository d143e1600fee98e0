//! The exact totals of a queue's segments, for a restart.

use std::sync::Arc;

use super::error::{PagesError, at};
use super::files::SegmentFileName;
use super::queue::{QueueSegments, QueueState};
use super::segment::PageSegment;
use super::walk::{Walk, WalkedItem};

/// The live messages of a queue's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// How many there are.
    pub live: u64,
    /// The sum of their weights, as passed to `append`.
    pub weight: u64,
    /// Positions of the first and of the last one; `None` if there are none.
    pub positions: Option<(u64, u64)>,
    /// A lower bound for their expiry times, in milliseconds since 1970; `u64::MAX` if none ever expires.
    pub expires: u64,
}

/// A part of a segment in which some messages are settled, so that the others have to be read.
struct Mixed {
    file: Arc<SegmentFileName>,
    offset: u64,
    end: u64,
    /// Higher positions belong to another segment.
    last: u64,
}

impl Default for Survey {
    fn default() -> Self {
        Self { live: 0, weight: 0, positions: None, expires: u64::MAX }
    }
}

impl QueueSegments {
    /// Counts the live messages. Where some messages within 64 KiB of a segment are settled, the others are read; no
    /// message may be appended or settled meanwhile.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn survey(&self) -> Result<Survey, PagesError> {
        let (mut survey, mixed) = self.state.lock().survey();
        for stretch in mixed {
            survey.weight += self.weigh(&stretch)?;
        }
        Ok(survey)
    }

    fn weigh(&self, stretch: &Mixed) -> Result<u64, PagesError> {
        let Some(handle) = stretch.file.open(&self.files)? else { return Ok(0) };
        let mut walk = Walk::file(&*handle, stretch.file.salt, stretch.offset, stretch.end, u64::MAX);
        let mut weight = 0;
        // Damage was handled when the segment was opened, or will be found when it is read.
        loop {
            match walk.next().map_err(at(&stretch.file.path()))? {
                WalkedItem::Record(record)
                    if record.position <= stretch.last && self.is_live(record.position) =>
                {
                    weight += u64::from(record.weight);
                }
                WalkedItem::Record(_) | WalkedItem::Mark => {}
                WalkedItem::End | WalkedItem::Bad(_) => return Ok(weight),
            }
        }
    }
}

impl QueueState {
    fn survey(&self) -> (Survey, Vec<Mixed>) {
        let mut survey = Survey { live: self.live, ..Survey::default() };
        let mut mixed = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.live.count() > 0) {
            survey.expires = survey.expires.min(segment.shape.expires);
            survey.weight += segment.weight_of_whole_blocks(&mut mixed);
            let first = survey.positions.map(|(first, _)| first).or_else(|| segment.live.next(0));
            survey.positions = first.zip(segment.live.ranges().last().map(|(_, last)| last));
        }
        (survey, mixed)
    }
}

impl PageSegment {
    /// Weight of the live messages in blocks without settled ones; blocks with some settled messages are added to
    /// `mixed`.
    fn weight_of_whole_blocks(&self, mixed: &mut Vec<Mixed>) -> u64 {
        if self.live.count() == self.shape.records {
            return self.shape.weight;
        }
        let mut weight = 0;
        for (at, block) in self.blocks.iter().enumerate() {
            let next = self.blocks.get(at + 1);
            let last = next.map_or(self.shape.last, |next| self.first + u64::from(next.position) - 1);
            let live = self.live.count_in(self.first + u64::from(block.position), last);
            if live == u64::from(block.records) {
                weight += u64::from(block.weight);
            } else if live > 0 {
                let end = next.map_or(self.shape.length, |next| next.offset.into());
                let (file, last) = (self.file.clone(), self.shape.last);
                mixed.push(Mixed { file, offset: block.offset.into(), end, last });
            }
        }
        weight
    }
}
