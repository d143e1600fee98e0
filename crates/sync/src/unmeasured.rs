//! Replaces the measurements of [`ranked`](crate::ranked) in builds without them.

/// Nothing is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured;

#[expect(clippy::extra_unused_type_parameters, reason = "the names of locks are types")]
impl Measured {
    pub(crate) fn of<T>(_rank: u8) -> Self {
        Self
    }

    pub(crate) fn take<G>(self, _at_once: impl FnOnce() -> Option<G>, later: impl FnOnce() -> G) -> G {
        later()
    }

    pub(crate) fn try_take<G>(self, at_once: impl FnOnce() -> Option<G>) -> Option<G> {
        at_once()
    }

    pub(crate) fn start_hold_timer(self) -> Held {
        Held
    }
}

/// Nothing is timed.
#[derive(Debug)]
pub(crate) struct Held;

impl Held {
    pub(crate) fn pause(&mut self) {}
}
