//! Messages of channels that the client has closed, and that the broker may still have to process: a close does not wait for
//! them (P6). A method about queues or exchanges that follows on another channel comes behind them, as without a pool.
//!
//! For example a client publishes on channel 1, closes it, and declares the queue on channel 2 to learn its number of
//! messages. Its messages are counted, although they went out on another upstream channel.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::link::ClientLink;
use crate::upstream::Upstream;

/// The channels with such messages, in the order of their closes.
#[derive(Debug, Default)]
pub(super) struct ClosedChannels {
    /// The client. Set with the first one.
    link: Option<Arc<ClientLink>>,
    under_way: VecDeque<ClosedChannel>,
    /// The number of the last one.
    last: u64,
    /// The number of the last one whose upstream connection was asked when it is through.
    asked: u64,
}

#[derive(Debug)]
struct ClosedChannel {
    /// Unique in the session, and ascending.
    number: u64,
    upstream: Weak<Upstream>,
    /// The number of the upstream channel.
    channel: u16,
    /// That of its lease.
    lease: u64,
}

impl ClosedChannels {
    /// Adds an upstream channel that was given back.
    pub(super) fn add(&mut self, link: &Arc<ClientLink>, upstream: &Arc<Upstream>, channel: u16, lease: u64) {
        self.link.get_or_insert_with(|| link.clone());
        if self.under_way.len() == self.under_way.capacity() {
            // There is twice the room afterwards, if all of them are still under way.
            self.under_way.retain(|closed| closed.is_under_way(link));
        }
        self.last += 1;
        let upstream = Arc::downgrade(upstream);
        self.under_way.push_back(ClosedChannel { number: self.last, upstream, channel, lease });
    }

    /// Requests a proof that the broker has processed the messages of all, if nothing else shows it.
    /// Returns the number of the last one, for [`Self::poll_up_to`], or 0 if none is under way.
    pub(super) fn ask(&mut self) -> u64 {
        let Some(link) = self.link.as_ref().filter(|_| !self.under_way.is_empty()) else { return 0 };
        // All at once: each answer takes a round trip.
        let new = self.under_way.iter().rev().take_while(|closed| closed.number > self.asked);
        new.for_each(|closed| _ = closed.is_through(link));
        self.asked = self.last;
        if self.poll_up_to(self.last) { 0 } else { self.last }
    }

    /// Whether the broker has processed the messages of all up to this one. If not, an event follows.
    pub(super) fn poll_up_to(&mut self, number: u64) -> bool {
        let Some(link) = &self.link else { return true };
        while let Some(first) = self.under_way.front().filter(|first| first.number <= number) {
            if !first.is_through(link) {
                return false;
            }
            self.under_way.pop_front();
        }
        if self.under_way.is_empty() {
            self.under_way = VecDeque::new();
        }
        true
    }
}

impl ClosedChannel {
    /// Whether the broker has processed its messages, or never will. If not, an event follows.
    fn is_through(&self, link: &Arc<ClientLink>) -> bool {
        self.upstream
            .upgrade()
            .is_none_or(|upstream| upstream.poll_given_back(link, self.channel, self.lease))
    }

    /// Whether the upstream channel is still to become clean.
    fn is_under_way(&self, link: &Arc<ClientLink>) -> bool {
        self.upstream.upgrade().is_some_and(|upstream| upstream.is_given_back(link, self.channel, self.lease))
    }
}
