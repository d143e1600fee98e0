//! The state of a side that continues in another process: see [`crate::SessionState`].

use serde::{Deserialize, Serialize};

use super::{Setup, Side, SidePlacement};
use crate::upstream::{ConfirmNumbers, Consumer, MovedState, PrefetchState};

/// The state of a side that has no upstream channel any more.
#[derive(Serialize, Deserialize)]
pub(in crate::session) struct SideState {
    /// Set if the side has to be placed at once: whether on the client's own connection.
    own: Option<bool>,
    #[serde(with = "crate::encoded")]
    #[serde(rename = "held")]
    queued: Vec<u8>,
    touched: bool,
    confirm: bool,
    prefetch: PrefetchState,
    numbers: ConfirmNumbers,
    consumers: Vec<Consumer>,
    /// The last delivery tag that the client has received.
    delivered: u64,
    last_queue: Option<Box<str>>,
}

impl Side {
    /// Whether the side has no upstream channel.
    pub(in crate::session) fn has_left(&self) -> bool {
        matches!(self.place, SidePlacement::Unplaced | SidePlacement::Waiting { .. })
    }

    /// Unplaces a side without waiting frames and consumers: it is placed with its next frame, not before.
    pub(in crate::session) fn skip_if_idle(&mut self) {
        if self.queued.is_empty() && self.carried.consumers.is_empty() {
            self.touched = false;
            self.place = SidePlacement::Unplaced;
        }
    }

    /// Whether it has state that ends, or changes, when its upstream channel is closed.
    pub(in crate::session) fn depends_on_its_channel(&self) -> bool {
        self.transactional || self.ledger.as_ref().is_some_and(|ledger| ledger.has_dependent_consumers())
    }

    /// Whether no late answer, such as that to `basic.consume`, is pending; if one is, an event follows.
    pub(in crate::session) fn poll_late_answers(&self) -> bool {
        !self.is_placed() || self.ledger.as_ref().is_none_or(|ledger| ledger.poll_late_answers())
    }

    /// The state of a side that [has left](Self::has_left).
    pub(in crate::session) fn into_state(self) -> SideState {
        let Self { place, queued, touched, setup, carried, last_queue, .. } = self;
        let own = match place {
            SidePlacement::Waiting { own, .. } => Some(own),
            _ => None,
        };
        SideState {
            own,
            queued,
            touched,
            confirm: setup.confirm,
            prefetch: setup.prefetch,
            numbers: carried.numbers,
            consumers: carried.consumers,
            delivered: carried.delivered,
            last_queue: last_queue.or(carried.last_queue),
        }
    }

    /// Restores a side, which waits for placement if `own` is set.
    pub(in crate::session) fn from_state(state: SideState) -> Self {
        let SideState { own, queued, touched, confirm, prefetch, numbers, consumers, delivered, last_queue } =
            state;
        let resuming = !consumers.is_empty();
        Self {
            place: own.map_or(SidePlacement::Unplaced, |own| SidePlacement::Waiting { own, resuming }),
            queued,
            touched,
            setup: Setup { confirm, prefetch },
            carried: MovedState {
                numbers,
                confirming: confirm,
                consumers,
                prefetch,
                delivered,
                ..MovedState::default()
            },
            last_queue,
            ..Self::default()
        }
    }
}
