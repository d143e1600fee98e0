//! Indices by which the filters that match a topic are found.

use hashbrown::HashMap;
use mqtt::topic::merged;

/// The shapes of a set of filters. For each shape, at most one filter can match a given topic.
#[derive(Debug, Default)]
pub(super) struct FilterShapes {
    /// The shapes of filters with wildcards, and the number of filters of each.
    counts: HashMap<Box<str>, usize>,
}

/// Filters with dots, found by topics that have slashes in place of dots.
#[derive(Debug, Default)]
pub(super) struct DottedFilters {
    /// By [merged] form, which several filters can share.
    filters: HashMap<Box<str>, Vec<Box<str>>>,
    /// The shapes of the merged forms, one for each filter.
    shapes: FilterShapes,
}

impl FilterShapes {
    /// Adds a filter.
    pub(super) fn add(&mut self, filter: &str) {
        if let Some(shape) = shape(filter) {
            *self.counts.entry_ref(shape.as_str()).or_default() += 1;
        }
    }

    /// Removes a filter, which was added.
    pub(super) fn remove(&mut self, filter: &str) {
        let Some(shape) = shape(filter) else { return };
        let Some(count) = self.counts.get_mut(shape.as_str()) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(shape.as_str());
        }
    }

    /// Number of distinct shapes: the lookups that a topic takes at most, besides the lookup of the topic itself.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Passes the filters that can match a topic to `each`, whether or not they were added.
    pub(super) fn each_candidate(&self, topic: &str, mut each: impl FnMut(&str)) {
        each(topic);
        let mut filter = String::new();
        for shape in self.counts.keys() {
            if fill(shape, topic, &mut filter) {
                each(&filter);
            }
        }
    }
}

impl DottedFilters {
    /// Adds a filter that has a dot.
    pub(super) fn add(&mut self, filter: &str) {
        let merged = merged(filter);
        self.shapes.add(&merged);
        self.filters.entry_ref(&*merged).or_default().push(filter.into());
    }

    /// Removes a filter, which was added.
    pub(super) fn remove(&mut self, filter: &str) {
        let merged = merged(filter);
        let Some(filters) = self.filters.get_mut(&*merged) else { return };
        let Some(at) = filters.iter().position(|other| **other == *filter) else { return };
        filters.swap_remove(at);
        if filters.is_empty() {
            self.filters.remove(&*merged);
        }
        self.shapes.remove(&merged);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// As [`FilterShapes::len`].
    pub(super) fn shapes(&self) -> usize {
        self.shapes.len()
    }

    /// Passes the filters that match a topic to `each`.
    pub(super) fn each_match(&self, topic: &str, mut each: impl FnMut(&str)) {
        if !self.is_empty() {
            self.shapes.each_candidate(topic, |candidate| {
                self.filters.get(candidate).into_iter().flatten().for_each(|filter| each(filter));
            });
        }
    }
}

/// A filter's wildcards at their levels, with all other levels empty. `None` if it has no wildcards.
fn shape(filter: &str) -> Option<String> {
    if !filter.contains(['+', '#']) {
        return None;
    }
    let levels = filter.split('/').map(|level| if matches!(level, "+" | "#") { level } else { "" });
    Some(levels.collect::<Vec<_>>().join("/"))
}

/// Builds the only filter of a shape that can match a topic; returns false if there is none (sections 4.7.1 and 4.7.2).
fn fill(shape: &str, topic: &str, filter: &mut String) -> bool {
    filter.clear();
    if topic.starts_with('$') && shape.starts_with(['+', '#']) {
        return false;
    }
    let mut names = topic.split('/');
    for (at, wanted) in shape.split('/').enumerate() {
        if at > 0 {
            filter.push('/');
        }
        if wanted == "#" {
            // It matches the parent level as well.
            filter.push('#');
            return true;
        }
        let Some(name) = names.next() else { return false };
        filter.push_str(if wanted == "+" { wanted } else { name });
    }
    names.next().is_none()
}
