//! The wait for the consumer of a client's connection to another server.

use std::sync::Arc;
use std::time::Duration;

use transport::Outbox;

use crate::client::BackendRequest;

/// Time between two checks of the queue: some round trips to an upstream nearby.
const PAUSE: Duration = Duration::from_millis(20);

/// The maximum of pauses, one second in all. The other connection may be one that no announcement reaches, such as to
/// RabbitMQ's own listener or to a server that is cut off.
const MAX_PAUSES: u32 = 50;

/// Waits until the client's earlier connection has stopped consuming, so that its messages are back in the queue in their
/// order.
#[derive(Default)]
pub(in super::super) struct EarlierConsumer {
    pauses: u32,
    pause: Option<BackendRequest<()>>,
    /// Whether the consumer had gone at the last check.
    has_gone: bool,
}

impl EarlierConsumer {
    /// Whether there may be another pause.
    pub(in super::super) fn may_pause(&self) -> bool {
        self.pauses < MAX_PAUSES
    }

    /// Begins a pause if the queue has a consumer, and one more after that has gone, since its messages are requeued a
    /// moment later. Returns false if there is nothing to wait for. `outbox` is nudged when the pause ends.
    pub(in super::super) fn pause(&mut self, is_used: bool, outbox: &Arc<Outbox>) -> bool {
        let has_waited = self.pauses > 0 && !self.has_gone;
        self.has_gone = !is_used;
        let pauses = (is_used || has_waited) && self.may_pause();
        if pauses {
            self.pauses += 1;
            self.pause = Some(BackendRequest::new(outbox, tokio::time::sleep(PAUSE)));
        }
        pauses
    }

    /// Whether a pause is in progress.
    pub(in super::super) fn is_pausing(&self) -> bool {
        self.pause.is_some()
    }

    /// Whether a pause has ended, so that the queue has to be checked again.
    pub(in super::super) fn poll_pause(&mut self) -> bool {
        let is_over = self.pause.as_ref().is_some_and(|pause| pause.take_answer().is_some());
        if is_over {
            self.pause = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_looked_at_until_its_consumer_has_gone_and_once_more() {
        let outbox = Arc::new(Outbox::new(1));
        let mut earlier = EarlierConsumer::default();
        assert!(!earlier.pause(false, &outbox), "the queue had no consumer");
        for _ in 0..3 {
            assert!(earlier.pause(true, &outbox) && !earlier.poll_pause());
            tokio::time::sleep(2 * PAUSE).await;
            assert!(earlier.poll_pause() && !earlier.poll_pause());
        }
        assert!(earlier.pause(false, &outbox));
        assert!(!earlier.pause(false, &outbox));
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_stays_is_waited_for_a_second() {
        let outbox = Arc::new(Outbox::new(1));
        let mut earlier = EarlierConsumer::default();
        assert_eq!((0..1000).take_while(|_| earlier.pause(true, &outbox)).count() as u32, MAX_PAUSES);
        assert!(!earlier.may_pause());
    }
}
