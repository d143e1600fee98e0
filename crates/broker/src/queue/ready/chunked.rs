//! A double-ended queue that never moves its elements when it grows.

use std::collections::VecDeque;

/// A queue in chunks. Reallocating a contiguous one would copy 96 MB for four million messages, while the publishers and
/// consumers of the queue wait for its lock.
#[derive(Debug)]
pub(super) struct ChunkedDeque<T> {
    /// The first elements. Empty only if there are no others.
    first: VecDeque<T>,
    /// The others, in order; none of these is empty.
    more: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> ChunkedDeque<T> {
    /// An empty one, without memory.
    pub(super) fn new() -> Self {
        Self { first: VecDeque::new(), more: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.first.front()
    }

    pub(super) fn back(&self) -> Option<&T> {
        self.more.back().unwrap_or(&self.first).back()
    }

    #[inline]
    pub(super) fn push_back(&mut self, element: T) {
        self.len += 1;
        if self.more.is_empty() && self.first.len() < CHUNK {
            return self.first.push_back(element);
        }
        match self.more.back_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push_back(element),
            None => self.add_chunk(element),
        }
    }

    #[cold]
    fn add_chunk(&mut self, element: T) {
        let mut chunk = VecDeque::with_capacity(CHUNK);
        chunk.push_back(element);
        self.more.push_back(chunk);
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let element = self.first.pop_front()?;
        self.len -= 1;
        if self.first.is_empty() {
            self.next_chunk();
        }
        Some(element)
    }

    pub(super) fn pop_back(&mut self) -> Option<T> {
        let last = self.more.back_mut().unwrap_or(&mut self.first);
        let element = last.pop_back()?;
        self.len -= 1;
        self.more.pop_back_if(|last| last.is_empty());
        Some(element)
    }

    /// Moves a chunk to the front if that is empty. If all are empty, a little memory is retained.
    fn next_chunk(&mut self) {
        match self.more.pop_front() {
            Some(next) => self.first = next,
            None if self.more.capacity() > 0 => {
                (self.first, self.more) = (VecDeque::with_capacity(MIN_CAPACITY), VecDeque::new());
            }
            None => {}
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.more.iter().flatten())
    }

    /// Removes the elements for which `keep` is false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.first.retain(&mut keep);
        self.more.iter_mut().for_each(|chunk| chunk.retain(&mut keep));
        self.more.retain(|chunk| !chunk.is_empty());
        self.len = self.first.len() + self.more.iter().map(VecDeque::len).sum::<usize>();
        if self.first.is_empty() {
            self.next_chunk();
        }
    }

    /// Appends all elements of another one, in time proportional to their number of chunks.
    pub(super) fn append(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            self.len += other.len;
            self.more.push_back(other.first);
            self.more.extend(other.more);
        }
    }
}

/// Elements for which an empty queue retains memory after it was long.
const MIN_CAPACITY: usize = 64;

/// Elements of a chunk. A short queue has only the first one, which takes no more memory than it needs.
const CHUNK: usize = 512;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_moves_when_a_long_queue_grows() {
        let mut deque = ChunkedDeque::new();
        (0..CHUNK).for_each(|number| deque.push_back(number));
        let first = std::ptr::from_ref(deque.front().unwrap());
        (0..1_000_000).for_each(|number| deque.push_back(number));
        assert_eq!(std::ptr::from_ref(deque.front().unwrap()), first);
        assert!(deque.more.iter().all(|chunk| chunk.capacity() < 2 * CHUNK));
    }

    #[test]
    fn an_empty_queue_keeps_little_memory_if_it_was_long() {
        let mut deque = ChunkedDeque::new();
        assert_eq!(deque.first.capacity(), 0);
        (0..100_000).for_each(|number| deque.push_back(number));
        while deque.pop_front().is_some() {}
        assert_eq!((deque.first.capacity(), deque.more.capacity()), (MIN_CAPACITY, 0));
    }

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec((0..7_usize, 0..1500_usize), 0..30)) {
            let (mut deque, mut model, mut next) = (ChunkedDeque::new(), VecDeque::new(), 0);
            for (step, count) in steps {
                match step {
                    0 | 1 => for _ in 0..count {
                        deque.push_back(next);
                        model.push_back(next);
                        next += 1;
                    },
                    2 | 3 => for _ in 0..count {
                        prop_assert_eq!(deque.pop_front(), model.pop_front());
                    },
                    4 => for _ in 0..count {
                        prop_assert_eq!(deque.pop_back(), model.pop_back());
                    },
                    5 => {
                        let keep = |number: &usize| number % 7 != count % 7 && *number > count;
                        deque.retain(keep);
                        model.retain(keep);
                    }
                    _ => {
                        let mut other = ChunkedDeque::new();
                        (0..count).for_each(|number| other.push_back(number));
                        deque.append(other);
                        model.extend(0..count);
                    }
                }
                prop_assert_eq!((deque.len(), deque.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(deque.front(), model.front());
                prop_assert_eq!(deque.back(), model.back());
                prop_assert!(deque.iter().eq(&model));
            }
        }
    }
}
