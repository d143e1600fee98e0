//! A set of positions: as ranges while they are few, or as a bitmap if that is smaller.
//!
//! A queue that is consumed in order costs one range per segment. With any pattern of acknowledgements, a message costs
//! at most eight bytes; if positions are close together, one byte per eight of them.

/// Positions at or above a base, at most [`MAX_SPAN`] apart.
#[derive(Clone, Debug)]
pub(super) struct PositionSet {
    base: u64,
    count: u64,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// First and last, both relative to the base and inclusive; ascending and not touching.
    Ranges(Vec<(u32, u32)>),
    /// One bit per position.
    Bits(Vec<u64>),
}

impl PositionSet {
    pub(super) fn new(base: u64) -> Self {
        Self { base, count: 0, form: Form::Ranges(Vec::new()) }
    }

    /// Whether `position` can be added to a set with this base.
    pub(super) fn reaches(base: u64, position: u64) -> bool {
        position >= base && position - base < MAX_SPAN
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a position above all earlier ones. [`PositionSet::reaches`] must hold.
    pub(super) fn push(&mut self, position: u64) {
        let relative = (position - self.base) as u32;
        self.count += 1;
        match &mut self.form {
            Form::Ranges(ranges) => {
                match ranges.last_mut() {
                    Some(last) if last.1 + 1 == relative => last.1 = relative,
                    _ => ranges.push((relative, relative)),
                }
                self.shrink();
            }
            Form::Bits(words) => {
                let word = relative as usize / 64;
                if word >= words.len() {
                    words.resize(word + 1, 0);
                }
                words[word] |= 1 << (relative % 64);
            }
        }
    }

    pub(super) fn contains(&self, position: u64) -> bool {
        self.next(position) == Some(position)
    }

    /// The lowest position at or above `from`.
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let from = self.relative(from)?;
        let found = match &self.form {
            Form::Ranges(ranges) => {
                let at = ranges.partition_point(|range| range.1 < from);
                ranges.get(at)?.0.max(from)
            }
            Form::Bits(words) => next_bit(words, from)?,
        };
        Some(self.base + u64::from(found))
    }

    /// Number of positions from `from` to `to`, inclusive.
    pub(super) fn count_in(&self, from: u64, to: u64) -> u64 {
        let Some((from, to)) = self.clamp(from, to) else { return 0 };
        match &self.form {
            Form::Ranges(ranges) => ranges[ranges.partition_point(|range| range.1 < from)..]
                .iter()
                .take_while(|range| range.0 <= to)
                .map(|range| u64::from(range.1.min(to) - range.0.max(from)) + 1)
                .sum(),
            Form::Bits(words) => masks(words.len(), from, to)
                .map(|(word, mask)| u64::from((words[word] & mask).count_ones()))
                .sum(),
        }
    }

    /// Removes the positions from `from` to `to`, inclusive, and returns how many there were.
    pub(super) fn remove(&mut self, from: u64, to: u64) -> u64 {
        let removed = self.count_in(from, to);
        let Some((from, to)) = self.clamp(from, to).filter(|_| removed > 0) else { return 0 };
        self.count -= removed;
        match &mut self.form {
            Form::Ranges(ranges) => {
                let start = ranges.partition_point(|range| range.1 < from);
                let end = ranges.partition_point(|range| range.0 <= to);
                let left = (ranges[start].0 < from).then(|| (ranges[start].0, from - 1));
                let right = (ranges[end - 1].1 > to).then(|| (to + 1, ranges[end - 1].1));
                ranges.splice(start..end, left.into_iter().chain(right));
                self.shrink();
            }
            Form::Bits(words) => {
                for (word, mask) in masks(words.len(), from, to) {
                    words[word] &= !mask;
                }
            }
        }
        if self.count == 0 {
            self.form = Form::Ranges(Vec::new());
        }
        removed
    }

    /// The positions as ranges, both ends inclusive.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges_from(self.base)
    }

    /// The ranges of the positions at or above `from`.
    pub(super) fn ranges_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = Some(from);
        std::iter::from_fn(move || {
            let first = self.next(from?)?;
            let last = self.last_of_run(first);
            from = last.checked_add(1);
            Some((first, last))
        })
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        match &self.form {
            Form::Ranges(ranges) => ranges.capacity() * 8,
            Form::Bits(words) => words.capacity() * 8,
        }
    }

    fn last_of_run(&self, first: u64) -> u64 {
        let relative = (first - self.base) as u32;
        let last = match &self.form {
            Form::Ranges(ranges) => ranges[ranges.partition_point(|range| range.1 < relative)].1,
            Form::Bits(words) => {
                let mut last = relative;
                while words
                    .get((last + 1) as usize / 64)
                    .is_some_and(|word| word >> ((last + 1) % 64) & 1 == 1)
                {
                    last += 1;
                }
                last
            }
        };
        self.base + u64::from(last)
    }

    /// A position relative to the base; `None` above the span.
    fn relative(&self, position: u64) -> Option<u32> {
        let relative = position.saturating_sub(self.base);
        (relative < MAX_SPAN).then_some(relative as u32)
    }

    fn clamp(&self, from: u64, to: u64) -> Option<(u32, u32)> {
        if to < self.base || from > to {
            return None;
        }
        Some((self.relative(from)?, (to - self.base).min(MAX_SPAN - 1) as u32))
    }

    /// Converts ranges into a bitmap if that takes less memory.
    fn shrink(&mut self) {
        let Form::Ranges(ranges) = &self.form else { return };
        let Some(last) = ranges.last().filter(|_| ranges.len() > FEW_RANGES) else { return };
        let words = last.1 as usize / 64 + 1;
        if ranges.len() <= words {
            return;
        }
        let mut bits = vec![0; words];
        for &(from, to) in ranges {
            for (word, mask) in masks(words, from, to) {
                bits[word] |= mask;
            }
        }
        self.form = Form::Bits(bits);
    }
}

/// The words that contain the bits `from` to `to`, each with a mask of them.
fn masks(words: usize, from: u32, to: u32) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (from as usize / 64, to as usize / 64);
    (first..words.min(last + 1)).map(move |word| {
        let low = if word == first { u64::MAX << (from % 64) } else { u64::MAX };
        let high = if word == last { u64::MAX >> (63 - to % 64) } else { u64::MAX };
        (word, low & high)
    })
}

fn next_bit(words: &[u64], from: u32) -> Option<u32> {
    let mut word = from as usize / 64;
    let mut rest = words.get(word)? & (u64::MAX << (from % 64));
    while rest == 0 {
        word += 1;
        rest = *words.get(word)?;
    }
    Some((word * 64) as u32 + rest.trailing_zeros())
}

/// Greatest distance between positions of a segment: a bitmap then never takes more than 2 MiB, and relative positions fit
/// in four bytes.
const MAX_SPAN: u64 = 1 << 24;
/// A bitmap never pays off for this many ranges or fewer.
const FEW_RANGES: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            gaps in prop::collection::vec(1_u64..5, 1..400),
            removals in prop::collection::vec((0_u64..1000, 0_u64..40), 0..120),
        ) {
            let mut set = PositionSet::new(7);
            let mut model = BTreeSet::new();
            let mut position = 6;
            for gap in gaps {
                position += gap;
                set.push(position);
                model.insert(position);
            }
            for (from, width) in removals {
                let gone: Vec<u64> = model.range(from..=from + width).copied().collect();
                prop_assert_eq!(set.count_in(from, from + width), gone.len() as u64);
                prop_assert_eq!(set.remove(from, from + width), gone.len() as u64);
                for position in gone {
                    model.remove(&position);
                }
                prop_assert_eq!(set.count(), model.len() as u64);
                prop_assert_eq!(set.next(from), model.range(from..).next().copied());
                prop_assert_eq!(set.contains(from), model.contains(&from));
            }
            let listed: Vec<u64> = set.ranges().flat_map(|(from, to)| from..=to).collect();
            prop_assert_eq!(listed, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_second_one_of_many_takes_a_bit_each() {
        let mut set = PositionSet::new(0);
        (0..100_000).for_each(|position| set.push(position));
        assert!(set.memory() < 100);
        (0..100_000).step_by(2).for_each(|position| assert_eq!(set.remove(position, position), 1));
        assert_eq!(set.count(), 50_000);
        assert!(set.memory() < 20_000, "{}", set.memory());
    }
}
