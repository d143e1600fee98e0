//! Compares the records that a journal is known to have had with those that a start finds.

use super::Journal;
use super::address::Lsn;
use super::scan::{GAP, JournalReport, Problem};
use super::segment::{self, DATA_START};

/// The files of a journal, as recorded outside of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JournalFiles {
    /// The first record that is needed.
    pub(crate) first: Lsn,
    /// All records from `first` to here were on disk.
    pub(crate) end: Lsn,
    /// LSN of the first record, and number, of each file.
    pub(crate) files: Vec<(Lsn, u64)>,
}

impl Journal {
    /// The current files, for a journal that starts at `first`, or where it starts now. For the last file only the presence
    /// of some record is promised, unless the log has been `closed`: a torn end after a crash is not damage.
    pub(crate) fn files_on_disk(&self, first: Option<Lsn>, closed: bool) -> JournalFiles {
        // Before the list: records that are durable now are in files that are listed.
        let durable = self.durable();
        let first = first.unwrap_or_else(|| {
            let pending = self.pending.lock();
            Lsn(pending.extents().next().map_or(durable.0, |oldest| oldest.first.min(durable.0)))
        });
        let files = self.files.read();
        let last = files.last().map_or(0, |last| last.header.first);
        let end = if closed { durable } else { durable.min(Lsn(last + 1)) };
        let needed = files.iter().filter(|file| file.header.first >= first.0);
        JournalFiles {
            first,
            end,
            files: needed.map(|file| (Lsn(file.header.first), file.header.sequence)).collect(),
        }
    }
}

impl JournalReport {
    /// Adds records that existed once and are missing now. A gap between two files was found without this; it is attributed
    /// to the file that caused it.
    pub(crate) fn compare(&mut self, promised: &JournalFiles) {
        let Self { problems, files, .. } = self;
        let is_there = |sequence: u64| files.iter().any(|(_, found)| *found == sequence);
        for problem in problems.iter_mut().filter(|problem| problem.what == GAP) {
            let within = problem.at..Lsn(problem.at.0.saturating_add(problem.lost));
            let missing =
                promised.files.iter().find(|(first, number)| within.contains(first) && !is_there(*number));
            let cut_off = files.iter().rev().find(|(first, _)| *first < problem.at);
            if let Some((_, sequence)) = missing {
                (problem.file, problem.offset, problem.what) = (segment::path(*sequence), 0, MISSING);
            } else if let Some((first, sequence)) = cut_off {
                problem.file = segment::path(*sequence);
                (problem.offset, problem.what) = (DATA_START + problem.at.0 - first.0, CUT_OFF);
            }
        }
        if promised.end <= promised.first {
            return;
        }
        if self.files.is_empty() || self.first > promised.first {
            let until = if self.files.is_empty() { promised.end } else { self.first };
            self.miss(promised, promised.first, until.min(promised.end));
        }
        if !self.files.is_empty() && self.end < promised.end {
            self.miss(promised, self.end.max(promised.first), promised.end);
        }
    }

    /// Reports records between two LSNs as missing: from their file, if there is one, otherwise from the end of the last
    /// one.
    fn miss(&mut self, promised: &JournalFiles, from: Lsn, to: Lsn) {
        let gone =
            promised.files.iter().rev().find(|(first, sequence)| {
                *first < to && !self.files.iter().any(|(_, found)| found == sequence)
            });
        let (sequence, offset, what) = match (gone, self.files.last()) {
            (Some((_, sequence)), _) => (*sequence, 0, MISSING),
            (None, Some((first, sequence))) => {
                (*sequence, DATA_START + self.end.0.saturating_sub(first.0), CUT_OFF)
            }
            (None, None) => (0, 0, MISSING),
        };
        let (file, lost) = (segment::path(sequence), to.0.saturating_sub(from.0));
        self.problems.push(Problem { file, offset, at: from, lost, what });
    }
}

pub(super) const MISSING: &str = "the file is missing";
const CUT_OFF: &str = "the file is cut off";
