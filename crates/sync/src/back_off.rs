//! Exponential back-off between failed attempts.

use std::time::Duration;

/// Pauses that double with each failure, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    next: Duration,
    first: Duration,
    longest: Duration,
}

impl BackOff {
    /// Starts with the pause `first`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, first, longest }
    }

    /// The pause before the next attempt, to be called after a failed one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.longest.min(2 * pause);
        pause
    }

    /// Starts again with the first pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// [Resets](Self::reset) it if the attempt lasted longer than the longest pause: it did not fail at once.
    pub fn reset_after(&mut self, lasted: Duration) {
        if lasted > self.longest {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_the_longest_until_a_reset() {
        let mut back_off = BackOff::new(ms(100), ms(500));
        let pauses: Vec<_> = (0..5).map(|_| back_off.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 500, 500]);
        back_off.reset_after(ms(500));
        assert_eq!(back_off.pause(), ms(500));
        back_off.reset_after(ms(501));
        assert_eq!(back_off.pause(), ms(100));
        back_off.reset();
        assert_eq!(back_off.pause(), ms(100));
    }
}
