//! The result of loading definitions, for the operator's log.

use std::fmt;

use super::Definitions;
use super::format::SECTIONS;

/// The objects that a load has created or changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedDefinitions {
    /// The numbers of created objects, and of entries that set something, by section; none is zero.
    counts: Vec<(EntryKind, usize)>,
    /// The users that had another password before.
    pub overwritten_passwords: Vec<String>,
}

/// The name of a kind of entry, for one and for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryKind {
    pub(super) one: &'static str,
    pub(super) many: &'static str,
}

/// Whether an entry has created or set something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Done,
    /// The object existed already, or is the broker's own.
    Existed,
}

impl LoadedDefinitions {
    /// Logs what has been loaded, and what its author may not have intended. `from` is the file or user that it comes from.
    pub fn log(&self, definitions: &Definitions, from: &str) {
        tracing::info!(from, "definitions loaded: {self}");
        for section in definitions.unknown_sections() {
            let known = SECTIONS.join(", ");
            tracing::warn!(
                from,
                section,
                "definitions: an unknown section is ignored; the sections are {known}"
            );
        }
        for user in &self.overwritten_passwords {
            tracing::warn!(from, user, "definitions: the password of a user was overwritten");
        }
    }

    pub(super) fn count(&mut self, what: EntryKind, count: usize) {
        if count > 0 {
            self.counts.push((what, count));
        }
    }
}

/// `2 vhosts, 1 user, 3 queues`, or `nothing new`.
impl fmt::Display for LoadedDefinitions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.counts.is_empty() {
            return formatter.write_str("nothing new");
        }
        for (at, (what, count)) in self.counts.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let name = if *count == 1 { what.one } else { what.many };
            write!(formatter, "{comma}{count} {name}")?;
        }
        Ok(())
    }
}
