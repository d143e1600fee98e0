//! Limits of unacknowledged deliveries, as `basic.qos` sets them, and how they are set again on another channel.
//!
//! Brokers interpret the flag `global` in two ways, and their replies do not tell which. RabbitMQ 3.10 has a limit for
//! the whole channel besides those of the consumers. RabbitMQ 4 gives each later consumer the latest limit, whatever
//! its flag. So before each consumer is recreated, the limits are set to those in force when the client created it, in
//! both interpretations.

use serde::{Deserialize, Serialize};

/// The limits of a channel; 0 is none. The default is that of a channel that nobody has used. Part of
/// [`crate::SessionState`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefetchState {
    /// The latest limit without the flag `global`.
    pub(crate) each: u16,
    /// The latest limit with the flag `global`.
    pub(crate) all: u16,
    /// The latest limit of either kind.
    latest: u16,
}

impl PrefetchState {
    /// Applies a `basic.qos`.
    pub(crate) fn set(&mut self, prefetch_count: u16, global: bool) {
        *(if global { &mut self.all } else { &mut self.each }) = prefetch_count;
        self.latest = prefetch_count;
    }

    /// Applies and sends a `basic.qos`.
    fn send(&mut self, prefetch_count: u16, global: bool, qos: &mut impl FnMut(u16, bool)) {
        self.set(prefetch_count, global);
        qos(prefetch_count, global);
    }

    /// Sets the limit of the whole channel to that of `target`. Called before the consumers are recreated, so that none
    /// exceeds it.
    pub(crate) fn limit_channel(&mut self, target: Self, qos: &mut impl FnMut(u16, bool)) {
        if self.all != target.all {
            self.send(target.all, true, qos);
        }
    }

    /// Sets the limits of later consumers as in `target`. If a client has changed the channel's limit between two
    /// consumers, the older limit is in force until the next [`Self::limit_channel`].
    pub(crate) fn limit_consumers(&mut self, target: Self, qos: &mut impl FnMut(u16, bool)) {
        if self.each != target.each {
            self.send(target.each, false, qos);
        }
        if self.latest == target.latest {
            return;
        }
        if target.latest == target.each {
            self.send(target.each, false, qos);
        } else {
            self.send(target.latest, true, qos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(qos: &[(u16, bool)]) -> PrefetchState {
        let mut state = PrefetchState::default();
        qos.iter().for_each(|(prefetch_count, global)| state.set(*prefetch_count, *global));
        state
    }

    /// A method of a client: `basic.qos`, or `None` for a consumer.
    type Sent = Option<(u16, bool)>;

    /// The limit of each consumer, and of the channel, where `global` means the channel if `of_channel`, and later
    /// consumers otherwise.
    fn limits(sent: &[Sent], of_channel: bool) -> (Vec<u16>, u16) {
        let (mut each, mut all, mut consumers) = (0, 0, Vec::new());
        for qos in sent {
            match qos {
                Some((prefetch_count, true)) if of_channel => all = *prefetch_count,
                Some((prefetch_count, _)) => each = *prefetch_count,
                None => consumers.push(each),
            }
        }
        (consumers, all)
    }

    fn restored(sent: &[Sent]) -> (Vec<Sent>, PrefetchState) {
        let (mut state, mut consumers) = (PrefetchState::default(), Vec::new());
        for qos in sent {
            match qos {
                Some((prefetch_count, global)) => state.set(*prefetch_count, *global),
                None => consumers.push(state),
            }
        }
        (restore(&consumers, state), state)
    }

    fn restore(consumers: &[PrefetchState], last: PrefetchState) -> Vec<Sent> {
        let out = std::cell::RefCell::new(Vec::new());
        let mut qos = |prefetch_count, global| out.borrow_mut().push(Some((prefetch_count, global)));
        let mut present = PrefetchState::default();
        present.limit_channel(last, &mut qos);
        for consumer in consumers {
            present.limit_consumers(*consumer, &mut qos);
            out.borrow_mut().push(None);
        }
        present.limit_channel(last, &mut qos);
        present.limit_consumers(last, &mut qos);
        assert_eq!(present, last);
        out.into_inner()
    }

    #[test]
    fn restored_consumers_get_the_same_prefetch_limits_for_any_global_flags() {
        let steps =
            [Some((0, false)), Some((3, false)), Some((0, true)), Some((5, true)), Some((8, true)), None];
        let length = 5;
        for number in 0..steps.len().pow(length) {
            let digit = |place| number / steps.len().pow(place) % steps.len();
            // Followed by consumers that the client creates later.
            let sent: Vec<Sent> = (0..length).map(|place| steps[digit(place)]).collect();
            let (mut again, _) = restored(&sent);
            let mut once = sent.clone();
            once.push(None);
            again.push(None);
            for of_channel in [true, false] {
                assert_eq!(limits(&again, of_channel), limits(&once, of_channel), "{sent:?}: {again:?}");
            }
        }
    }

    #[test]
    fn nothing_is_sent_that_is_in_force_already() {
        assert_eq!(restored(&[None, None]).0, [None, None]);
        assert_eq!(restored(&[Some((7, false)), None, None]).0, [Some((7, false)), None, None]);
        assert_eq!(restored(&[Some((7, true)), None]).0, [Some((7, true)), None]);
        assert_eq!(state(&[(7, true), (0, true)]), PrefetchState::default());
    }
}
