//! Sets of small numbers that count how often each was added.

use hashbrown::HashTable;

/// A counted set of `u32`. A single member is stored inline; a few are stored in a vector; more are found
/// through an index. Adding and removing cost O(1).
#[derive(Debug)]
pub(crate) enum IdSet {
    /// One member, or none when the count is 0.
    One {
        id: u32,
        count: u32,
    },
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub(crate) struct Many {
    members: Vec<(u32, u32)>,
    /// Positions in `members`; present only above [`MAX_UNINDEXED`] members.
    index: Option<HashTable<u32>>,
}

impl Default for IdSet {
    fn default() -> Self {
        Self::One { id: 0, count: 0 }
    }
}

impl IdSet {
    /// The number of distinct members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One { count, .. } => usize::from(*count > 0),
            Self::Many(many) => many.members.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one occurrence of `id`.
    pub(crate) fn insert(&mut self, id: u32) {
        match self {
            Self::One { id: only, count } if *count == 0 => (*only, *count) = (id, 1),
            Self::One { id: only, count } if *only == id => *count += 1,
            Self::One { id: only, count } => {
                let members = vec![(*only, *count), (id, 1)];
                *self = Self::Many(Box::new(Many { members, index: None }));
            }
            Self::Many(many) => many.insert(id),
        }
    }

    /// Removes one occurrence of `id`; returns whether there was one.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        match self {
            Self::One { id: only, count } => {
                let found = *only == id && *count > 0;
                *count -= u32::from(found);
                found
            }
            Self::Many(many) => {
                let found = many.remove(id);
                // Frees the memory of a set that was large once.
                if many.members.len() <= 1 {
                    let (id, count) = many.members.first().copied().unwrap_or_default();
                    *self = Self::One { id, count };
                }
                found
            }
        }
    }

    /// The member at this position below [`IdSet::len`]; positions change when members are removed.
    pub(crate) fn get(&self, at: usize) -> Option<u32> {
        match self {
            Self::One { id, count } => (at == 0 && *count > 0).then_some(*id),
            Self::Many(many) => many.members.get(at).map(|&(id, _)| id),
        }
    }

    /// The members, without repetition.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let (one, many) = match self {
            Self::One { id, count } => ((*count > 0).then_some(*id), &[][..]),
            Self::Many(many) => (None, many.members.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|&(id, _)| id))
    }
}

impl Many {
    fn insert(&mut self, id: u32) {
        if let Some(at) = self.position(id) {
            self.members[at].1 += 1;
            return;
        }
        self.members.push((id, 1));
        let Self { members, index } = self;
        match index {
            Some(index) => {
                index.insert_unique(hash(id), members.len() as u32 - 1, |&at| hash(members[at as usize].0));
            }
            None if members.len() > MAX_UNINDEXED => {
                let mut new = HashTable::with_capacity(members.len() * 2);
                for (at, &(id, _)) in members.iter().enumerate() {
                    new.insert_unique(hash(id), at as u32, |&at: &u32| hash(members[at as usize].0));
                }
                *index = Some(new);
            }
            None => {}
        }
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(at) = self.position(id) else { return false };
        self.members[at].1 -= 1;
        if self.members[at].1 > 0 {
            return true;
        }
        let last = self.members.len() - 1;
        if let Some(index) = &mut self.index {
            if let Ok(entry) = index.find_entry(hash(id), |&found| found as usize == at) {
                entry.remove();
            }
            if at != last
                && let Some(moved) =
                    index.find_mut(hash(self.members[last].0), |&found| found as usize == last)
            {
                *moved = at as u32;
            }
        }
        self.members.swap_remove(at);
        // Half of the threshold, so that a set near it is not indexed over and over.
        if self.members.len() <= MAX_UNINDEXED / 2 {
            self.index = None;
        }
        true
    }

    fn position(&self, id: u32) -> Option<usize> {
        match &self.index {
            Some(index) => {
                index.find(hash(id), |&at| self.members[at as usize].0 == id).map(|&at| at as usize)
            }
            None => self.members.iter().position(|&(member, _)| member == id),
        }
    }
}

/// Members are slot numbers assigned by the broker, so clients cannot choose them to collide.
fn hash(id: u32) -> u64 {
    u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Up to this size a scan of the vector (64 bytes, one cache line) is as fast as the index.
const MAX_UNINDEXED: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_counted_set(steps in proptest::collection::vec((any::<bool>(), 0u32..24), 0..400)) {
            let (mut set, mut model) = (IdSet::default(), BTreeMap::<u32, u32>::new());
            for (add, id) in steps {
                if add {
                    set.insert(id);
                    *model.entry(id).or_default() += 1;
                } else {
                    let count = model.get(&id).copied().unwrap_or(0);
                    prop_assert_eq!(set.remove(id), count > 0);
                    if count > 1 { model.insert(id, count - 1); } else { model.remove(&id); }
                }
                let mut members: Vec<u32> = set.iter().collect();
                members.sort_unstable();
                prop_assert_eq!(&members, &model.keys().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.len(), model.len());
                prop_assert!((0..set.len()).map_while(|at| set.get(at)).eq(set.iter()));
                prop_assert_eq!(set.get(set.len()), None);
            }
        }
    }

    #[test]
    fn takes_sixteen_bytes_when_it_has_one_member() {
        assert_eq!(size_of::<IdSet>(), 16);
    }
}
