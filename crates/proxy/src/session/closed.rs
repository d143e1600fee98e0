//! Channels that the client has closed and whose messages the broker may not have processed yet, because a close does not
//! wait for them (P6). A later method about queues or exchanges, on another channel, is sent only after these messages are
//! processed, so that the order is the same as without a pool.
//!
//! For example, a client publishes on channel 1, closes it, and declares the queue on channel 2 to read its message
//! count. The count includes its messages, although they were sent on another upstream channel.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::link::ClientLink;
use crate::upstream::Upstream;

/// These channels, in the order of their closes.
#[derive(Debug, Default)]
pub(super) struct ClosedChannels {
    /// The client's link. Set when the first channel is added.
    link: Option<Arc<ClientLink>>,
    under_way: VecDeque<ClosedChannel>,
    /// The number of the channel added last.
    last: u64,
    /// The number of the last channel for which a proof was requested.
    asked: u64,
}

#[derive(Debug)]
struct ClosedChannel {
    /// Unique in the session, and ascending.
    number: u64,
    upstream: Weak<Upstream>,
    /// The number of the upstream channel.
    channel: u16,
    /// The number of its lease.
    lease: u64,
}

impl ClosedChannels {
    /// Adds an upstream channel that was given back.
    pub(super) fn add(&mut self, link: &Arc<ClientLink>, upstream: &Arc<Upstream>, channel: u16, lease: u64) {
        self.link.get_or_insert_with(|| link.clone());
        if self.under_way.len() == self.under_way.capacity() {
            // If none can be removed, the capacity doubles, so this is amortised.
            self.under_way.retain(|closed| closed.is_under_way(link));
        }
        self.last += 1;
        let upstream = Arc::downgrade(upstream);
        self.under_way.push_back(ClosedChannel { number: self.last, upstream, channel, lease });
    }

    /// Requests proofs, where no other reply is pending, that the broker has processed the messages of all channels.
    /// Returns the number of the last channel, for [`Self::poll_up_to`], or 0 if all are processed.
    pub(super) fn ask(&mut self) -> u64 {
        let Some(link) = self.link.as_ref().filter(|_| !self.under_way.is_empty()) else { return 0 };
        // All proofs are requested at once, because each reply takes a round trip.
        let new = self.under_way.iter().rev().take_while(|closed| closed.number > self.asked);
        new.for_each(|closed| _ = closed.is_processed(link));
        self.asked = self.last;
        if self.poll_up_to(self.last) { 0 } else { self.last }
    }

    /// Whether the broker has processed the messages of all channels up to this number. If not, an event follows.
    pub(super) fn poll_up_to(&mut self, number: u64) -> bool {
        let Some(link) = &self.link else { return true };
        while let Some(first) = self.under_way.front().filter(|first| first.number <= number) {
            if !first.is_processed(link) {
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
    fn is_processed(&self, link: &Arc<ClientLink>) -> bool {
        self.upstream
            .upgrade()
            .is_none_or(|upstream| upstream.poll_given_back(link, self.channel, self.lease))
    }

    /// Whether the upstream channel is still being proven clean.
    fn is_under_way(&self, link: &Arc<ClientLink>) -> bool {
        self.upstream.upgrade().is_some_and(|upstream| upstream.is_given_back(link, self.channel, self.lease))
    }
}
