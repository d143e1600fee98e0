//! Incomplete messages while there is no buffer space for them: the client waits, streams on its own connection, or gives way.

use std::sync::Arc;
use std::time::Instant;

use amqp::{Fault, ReplyCode};

use super::placement::UpstreamLink;
use super::side::SidePlacement;
use super::{Life, ProxySession};
use crate::staging::Grant;
use crate::upstream::Role;

impl ProxySession {
    /// Handles a lack of space for the messages held at the end of a batch.
    pub(super) fn wait_for_staging(&mut self) -> Result<(), Fault> {
        if self.life != Life::Open
            || self.is_exporting
            || self.budget.waits()
            || self.budget.settle(self.staged, &self.link, self.output.now)
        {
            return Ok(());
        }
        if matches!(self.own, UpstreamLink::None) {
            self.budget.line_up(&self.link);
            return self.take_grant();
        }
        // A client with its own connection streams instead of buffering.
        self.stream_largest()
    }

    /// Continues with the grant that the client has waited for, if there is one.
    pub(super) fn take_grant(&mut self) -> Result<(), Fault> {
        if !self.budget.waits() || self.is_exporting {
            return Ok(());
        }
        let Some(Grant::Stream) = self.budget.take_grant(&self.link, self.output.now) else { return Ok(()) };
        if self.life != Life::Open {
            self.keep_own();
            return Ok(());
        }
        if !matches!(self.own, UpstreamLink::None) {
            // The client needs its own connection for another purpose by now, which may outlast this message.
            self.keep_own();
        }
        self.stream_largest()?;
        self.leave_stream()
    }

    /// Streams the incomplete message with the most bytes held.
    pub(super) fn stream_largest(&mut self) -> Result<(), Fault> {
        let staged = self.channels.iter().filter(|(_, channel)| channel.staged() > 0);
        let largest = staged.max_by_key(|(_, channel)| channel.staged()).map(|(number, _)| number);
        largest.map_or(Ok(()), |number| self.stream(number))
    }

    /// The client needs its own connection for other purposes as well, so it no longer counts as a stream.
    pub(super) fn keep_own(&mut self) {
        self.budget.give_up_stream(&self.link);
    }

    /// Gives the connection of a stream back when nothing is in flight on it: its channels return to shared
    /// connections, then the connection is given back. Called again with each event until that is done.
    pub(super) fn leave_stream(&mut self) -> Result<(), Fault> {
        if !self.budget.has_stream() || self.life != Life::Open || self.is_streaming() {
            return Ok(());
        }
        if self.suspect || self.exclusive {
            // A suspect stays on its own connection, where it affects no other client, and so does a client with
            // exclusive queues.
            self.keep_own();
            return Ok(());
        }
        // The client's channels leave once their publishes are confirmed.
        let mut leaving = Vec::new();
        for (number, channel) in self.channels.iter() {
            if let SidePlacement::Placed(route) = &channel.general.place
                && route.own
                && !channel.is_closing()
            {
                leaving.push(number);
            }
        }
        for number in leaving {
            self.leave(number, Role::General, false)?;
        }
        // The connection is given back when the last channel has left it.
        let is_there = |channel: &super::Channel| {
            channel.is_own() || channel.general.route().is_some_and(|route| route.own)
        };
        if self.channels.iter().any(|(_, channel)| is_there(channel)) {
            return Ok(());
        }
        match std::mem::replace(&mut self.own, UpstreamLink::None) {
            UpstreamLink::Ready(upstream) => {
                self.attached.retain(|other| !Arc::ptr_eq(other, &upstream));
                upstream.detach(&self.link);
                upstream.take_back(self.rekeyed, self.output.now);
                self.rekeyed = false;
            }
            UpstreamLink::None => {}
            UpstreamLink::Opening => {
                // The connection is given back once it is open.
                self.own = UpstreamLink::Opening;
                return Ok(());
            }
        }
        self.keep_own();
        Ok(())
    }

    /// Whether a message is being streamed, or streamed frames wait for the connection.
    pub(super) fn is_streaming(&self) -> bool {
        self.channels.iter().any(|(_, channel)| channel.is_streaming())
    }

    /// Called when other clients wait for the space or the stream that this client holds.
    ///
    /// # Errors
    /// 506 RESOURCE_ERROR when a message has been incomplete for longer than the patience.
    pub(super) fn give_way(&mut self, now: Instant) -> Result<(), Fault> {
        if self.life != Life::Open || self.is_exporting {
            return Ok(());
        }
        let (began, is_read) = (self.oldest(), self.has_capacity());
        let Some(stuck) = self.budget.overdue(began, is_read, &self.link, now) else { return Ok(()) };
        if !self.budget.has_stream() && !matches!(self.own, UpstreamLink::None) {
            // The client has needed its own connection since for another purpose.
            return self.stream_largest();
        }
        if !self.budget.must_be_evicted(now) {
            return Ok(());
        }
        let text = format!("message incomplete for {} s while the staging buffer is full", stuck.as_secs());
        Err(Fault::new(ReplyCode::ResourceError, text))
    }

    /// The start of the oldest incomplete message: of those that are streamed, if there is a stream, otherwise of those
    /// that hold space.
    fn oldest(&self) -> Option<Instant> {
        let is_streaming = self.budget.has_stream();
        let incomplete = self.channels.iter().filter_map(|(_, channel)| channel.incoming());
        incomplete.filter(|message| message.is_streaming() == is_streaming).map(|message| message.began).min()
    }
}
