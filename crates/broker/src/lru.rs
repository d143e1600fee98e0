//! The most recently used values, shared by callers that need an equal one.

/// Number of cached values: equal ones are usually requested together.
const MAX_VALUES: usize = 16;

/// The cached values, the most recently used first.
#[derive(Debug)]
pub(crate) struct LruList<T>(Vec<T>);

impl<T> Default for LruList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> LruList<T> {
    /// The cached value that `matches`, or a new one, which replaces the least recently used one.
    pub(crate) fn get_or_insert_with(
        &mut self,
        matches: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> &T {
        match self.0.iter().position(matches) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                self.0.truncate(MAX_VALUES - 1);
                self.0.insert(0, make());
            }
        }
        &self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recently_used_values_are_cached() {
        let mut recent = LruList::default();
        // Whether the value had to be created.
        let mut is_new = |value: usize| {
            let mut made = false;
            let found = recent.get_or_insert_with(
                |&known| known == value,
                || {
                    made = true;
                    value
                },
            );
            assert_eq!(*found, value);
            made
        };
        assert!((0..MAX_VALUES).all(&mut is_new));
        assert!(!(0..MAX_VALUES).any(&mut is_new));
        assert!(is_new(MAX_VALUES));
        assert!(!is_new(1) && is_new(0) && !is_new(1));
    }
}
