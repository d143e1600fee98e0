//! A connection of a queue whose events are handled one by one.

use std::task::Waker;
use std::time::Instant;

use amqp::Fault;
use sync::work;

use super::link::{LinkEnd, LinkStep};
use super::task::UpstreamLink;
use crate::upstream::client::{AmqpClient, ClientEvent};

/// The dialogue on an upstream connection.
pub(crate) trait Dialogue: Send {
    /// Handles timeouts that have passed by `now`.
    fn expire(&mut self, now: Instant);
    /// Handles an event, unless [`Self::end`] is set.
    fn handle(&mut self, event: ClientEvent<'_>, client: &mut AmqpClient);
    /// Sends pending methods.
    fn send(&mut self, client: &mut AmqpClient, now: Instant);
    /// Set when the connection has to be closed.
    fn end(&mut self) -> &mut Option<LinkEnd>;
    /// The next time at which to call [`Self::expire`] or [`Self::send`].
    fn next_deadline(&self) -> Option<Instant>;
}

/// An upstream connection with its dialogue.
pub(crate) struct DialogueLink<D> {
    pub(crate) client: AmqpClient,
    pub(crate) dialogue: D,
}

impl<D: Dialogue> DialogueLink<D> {
    /// Handles received events as long as the turn lasts. Returns their number.
    fn receive(&mut self) -> Result<usize, Fault> {
        let Self { client, dialogue } = self;
        let mut received = client.take_received();
        let mut handled = 0;
        while dialogue.end().is_none()
            && !work::is_turn_over()
            && let Some(event) = received.next(client)?
        {
            handled += 1;
            dialogue.handle(event, client);
        }
        client.put_back(received);
        Ok(handled)
    }
}

impl<D: Dialogue> UpstreamLink for DialogueLink<D> {
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<LinkStep, LinkEnd> {
        self.dialogue.expire(now);
        self.client.handle_nudge(waker, now).map_err(LinkEnd::Lost)?;
        loop {
            let handled = self.receive().map_err(LinkEnd::Lost)?;
            if let Some(end) = self.dialogue.end().take() {
                return Err(end);
            }
            self.dialogue.send(&mut self.client, now);
            self.client.flush(now).map_err(LinkEnd::Lost)?;
            if work::is_turn_over() {
                return Ok(LinkStep::TurnOver);
            }
            if handled == 0 && !self.client.has_received() {
                return Ok(LinkStep::Idle);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.client.next_deadline().into_iter().chain(self.dialogue.next_deadline()).min()
    }

    fn close(&mut self, waker: &Waker, now: Instant) -> bool {
        self.client.close_unread(waker, now)
    }
}

impl<D> Drop for DialogueLink<D> {
    fn drop(&mut self) {
        self.client.end(transport::now());
    }
}
