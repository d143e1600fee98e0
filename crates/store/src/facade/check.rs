//! Verifies a data directory that no process has open, and discards its damaged parts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::StoreError;
use super::inventory::Inventory;
use crate::catalogue::{self, Catalogue, DefinitionsReport, Section};
use crate::disk::Disk;
use crate::journal;
use crate::pages::{Damage, DirectoryReport, Durability, Pages, Repair};

/// Findings about a data directory.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Descriptions of the contents, one line per part.
    pub facts: Vec<String>,
    /// Descriptions of the damage, one line per location. A broker refuses to start with any.
    pub problems: Vec<String>,
}

/// Reads everything in a data directory and verifies all checksums, without changes. The caller must hold the
/// [lock](crate::DirectoryLock) of the directory.
///
/// # Errors
/// A part that cannot be read at all. Damage is not an error: it is in the report.
pub fn check(disk: &Arc<dyn Disk>) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    report.add_definitions(catalogue::check(&**disk));
    let mut inventory = Inventory::default();
    catalogue::entries(&**disk, Section::StoreFiles, |key, value| inventory.take(key, value));
    report.add_journal(&check_journal(&**disk, &inventory)?);
    let pages = Pages::new(disk.clone(), 1);
    for missing in missing_segments(&pages, &inventory)? {
        report.problems.push(missing.to_string());
    }
    let mut queues = pages.queues(Durability::Durable)?;
    queues.sort_unstable();
    let mut all = DirectoryReport::default();
    for queue in &queues {
        let found = pages.check(*queue)?;
        all.segments.extend(found.segments);
        all.leftovers += found.leftovers;
    }
    report.add_queues(queues.len(), &all);
    Ok(report)
}

/// Discards the damaged parts of a data directory, and nothing else, so that a broker can start again. The caller must hold
/// the [lock](crate::DirectoryLock) of the directory. Returns one line per change.
///
/// # Errors
/// A part that cannot be read or written, and definitions that cannot be repaired.
pub fn repair(disk: &Arc<dyn Disk>) -> Result<Vec<String>, StoreError> {
    let mut done = Vec::new();
    match catalogue::repair(disk.clone())? {
        DefinitionsReport { rebuilt: true, put_aside, entries, .. } => {
            let definitions = entries.iter().filter(|(section, _)| section.is_defined());
            let readable: u64 = definitions.map(|(_, count)| count).sum();
            let left = put_aside.map(|file| format!("; the damaged file is now {file}")).unwrap_or_default();
            done.push(format!("definitions: rebuilt from the {readable} that can be read{left}"));
            let users = entries.iter().any(|(section, count)| *section == Section::Users && *count > 0);
            if !users {
                done.push(NO_USERS.to_owned());
            }
        }
        DefinitionsReport { damaged: true, .. } => {
            done.push("definitions: the database's structure was repaired".to_owned());
        }
        DefinitionsReport { .. } => {}
    }
    let mut inventory = Inventory::default();
    catalogue::entries(&**disk, Section::StoreFiles, |key, value| inventory.take(key, value));
    let given_up = check_journal(&**disk, &inventory)?.problems;
    journal::repair(&**disk)?;
    done.extend(given_up.iter().map(|problem| format!("journal: discarded {problem}")));
    let pages = Pages::new(disk.clone(), 1);
    done.extend(missing_segments(&pages, &inventory)?.iter().map(|missing| format!("discarded {missing}")));
    for queue in pages.queues(Durability::Durable)? {
        if pages.check(queue)?.is_sound() {
            continue;
        }
        let (_, recovered) = pages.open(queue, Repair::Skip)?;
        done.extend(recovered.damaged.iter().map(|damage| format!("queue {queue}: discarded {damage}")));
    }
    if !done.is_empty() {
        // The remaining files are complete from now on: the next start lists them again.
        let catalogue = Catalogue::open(disk.clone())?;
        // A catalogue that was just created must still count as new.
        if !catalogue.was_empty() {
            catalogue.delete_all(Section::StoreFiles, Vec::new());
            catalogue.commit_pending()?;
        }
    }
    Ok(done)
}

fn check_journal(disk: &dyn Disk, inventory: &Inventory) -> Result<journal::JournalReport, StoreError> {
    Ok(inventory.compare_journal(journal::check(disk)?))
}

fn missing_segments(pages: &Pages, inventory: &Inventory) -> Result<Vec<Damage>, StoreError> {
    let mut missing = Vec::new();
    for queue in inventory.queues().collect::<BTreeSet<_>>() {
        missing.extend(pages.missing(queue, inventory.segments_of(queue))?);
    }
    Ok(missing)
}

/// Reported if a repair has found no users.
const NO_USERS: &str = "definitions: no user is left, so the next start adds what a new broker has (guest, from this machine \
                        only); messages of queues that are not declared go then: put definitions.redb back from a backup now if there is one";

impl CheckReport {
    /// Whether there is no damage.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn add_definitions(&mut self, checked: Result<DefinitionsReport, catalogue::CatalogueError>) {
        match checked {
            Err(error) => self.problems.push(error.to_string()),
            Ok(report) if report.missing => {
                self.problems.push(catalogue::CatalogueError::Missing.to_string());
            }
            Ok(report) if !report.exists => self.facts.push("definitions: none".to_owned()),
            Ok(report) => {
                let view = |(section, count): &&(Section, u64)| *count > 0 && section.is_defined();
                let named = report.entries.iter().filter(view);
                let named: Vec<_> =
                    named.map(|(section, count)| format!("{count} in {}", section.name())).collect();
                self.facts.push(format!("definitions: {}", named.join(", ")));
                if report.damaged {
                    self.problems.push("definitions: the database's structure is damaged".to_owned());
                }
            }
        }
    }

    fn add_journal(&mut self, report: &journal::JournalReport) {
        let journal::JournalReport { segments, bytes, records, torn, .. } = report;
        self.facts.push(format!("journal: {records} records, {bytes} bytes, {segments} segments"));
        self.facts.extend(torn.iter().map(|torn| format!("{torn}{CUT_OFF}")));
        self.problems.extend(report.problems.iter().map(|problem| format!("journal: {problem}")));
    }

    fn add_queues(&mut self, directories: usize, report: &DirectoryReport) {
        let live: u64 = report.segments.iter().map(|segment| segment.live).sum();
        let bytes: u64 = report.segments.iter().map(|segment| segment.length).sum();
        let segments = report.segments.len();
        self.facts.push(format!(
            "queues' own segments: {live} messages, {bytes} bytes, {segments} segments of {directories} queues"
        ));
        for segment in &report.segments {
            let file = &segment.file;
            if let Some(torn) = segment.torn {
                self.facts.push(format!("{file}: torn at byte {torn}{CUT_OFF}"));
            }
            self.problems.extend(segment.damage.iter().map(|damage| format!("{file}: {damage}")));
        }
    }
}

/// Explains a torn end.
const CUT_OFF: &str = ", as a crash leaves it: cut off at the next start";

impl fmt::Display for CheckReport {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts.iter().try_for_each(|fact| writeln!(into, "{fact}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(into, "DAMAGED {problem}"))?;
        match self.problems.len() {
            0 => writeln!(into, "no damage found"),
            1 => writeln!(into, "1 damaged place"),
            count => writeln!(into, "{count} damaged places"),
        }
    }
}
