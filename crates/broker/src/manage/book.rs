//! Users, virtual hosts, permissions, parameters and policies as they were entered, for display and export.

use std::collections::BTreeMap;

use serde_json::Value;
use store::catalogue::Section;
use sync::{Rank, RwLock};

/// Entries in the format of a definitions file, ordered by section and names as they are displayed.
#[derive(Default)]
pub(crate) struct DefinitionBook {
    entries: RwLock<BTreeMap<(Section, Vec<String>), Value>, { Rank::DefinitionBook as u8 }>,
}

impl DefinitionBook {
    /// Adds an entry, or replaces one with the same names, then calls `written` before any other change to the book, so
    /// that copies elsewhere have the same order. Returns whether the entry is new.
    pub(crate) fn put(&self, section: Section, names: &[&str], entry: Value, written: impl FnOnce()) -> bool {
        let mut entries = self.entries.write();
        let is_new = entries.insert((section, owned(names)), entry).is_none();
        written();
        is_new
    }

    /// Removes an entry, and calls `written` if it existed.
    pub(crate) fn remove(&self, section: Section, names: &[&str], written: impl FnOnce()) -> Option<Value> {
        let mut entries = self.entries.write();
        let removed = entries.remove(&(section, owned(names)))?;
        written();
        Some(removed)
    }

    pub(crate) fn get(&self, section: Section, names: &[&str]) -> Option<Value> {
        self.entries.read().get(&(section, owned(names))).cloned()
    }

    /// The entries whose names begin with `prefix`, in order, with their names.
    pub(crate) fn list(&self, section: Section, prefix: &[&str]) -> Vec<(Vec<String>, Value)> {
        let prefix = owned(prefix);
        let entries = self.entries.read();
        let from = entries.range((section, prefix.clone())..);
        from.take_while(|((of, names), _)| *of == section && names.starts_with(&prefix))
            .map(|((_, names), entry)| (names.clone(), entry.clone()))
            .collect()
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
