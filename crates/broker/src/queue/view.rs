//! What a queue shows of itself.

use super::Queue;
use crate::manage::QueueView;

impl Queue {
    /// Its counts, read at one moment.
    pub fn view(&self) -> QueueView {
        let state = self.state.lock();
        QueueView {
            ready: state.ready.len() as u64,
            unacknowledged: state.unacked,
            ready_bytes: state.ready.bytes(),
            paged: state.ready.on_disk().messages,
            consumers: state.consumers.len() as u64,
        }
    }

    /// The tag of the consumer that alone is served (`x-single-active-consumer`), and of the one that keeps others out.
    pub fn special_consumers(&self) -> (Option<String>, Option<String>) {
        let state = self.state.lock();
        let active = state.consumers.active_tag().map(str::to_owned);
        let exclusive =
            state.consumers.iter().find(|entry| entry.exclusive).map(|entry| entry.tag.to_string());
        (active, exclusive)
    }
}
