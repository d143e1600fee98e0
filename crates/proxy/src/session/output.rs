//! Frames that a session gathers for upstream connections during one batch of reads.

use std::sync::Arc;
use std::time::Instant;

use super::closed::ClosedChannels;
use crate::metrics::{Counters, add};
use crate::upstream::{Share, Upstream};

/// Bytes for one upstream connection at a time, usually the only one, so that a batch costs one lock.
#[derive(Debug)]
pub(super) struct Output {
    /// The time of the current call, as given by the caller.
    pub(super) now: Instant,
    target: Option<Arc<Upstream>>,
    bytes: Vec<u8>,
    /// The client's windows on the last two shared connections: one for publishing, one for everything else.
    shares: [Share; 2],
    /// Bytes handed over and not yet counted.
    uncounted: usize,
    /// Messages taken and not yet counted.
    messages: u64,
    /// Closed channels whose messages must be processed before methods of other channels are sent.
    pub(super) closed: ClosedChannels,
}

impl Output {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            now,
            target: None,
            bytes: Vec::new(),
            shares: Default::default(),
            uncounted: 0,
            messages: 0,
            closed: ClosedChannels::default(),
        }
    }

    /// The buffer to which frames for this upstream are appended. Hands over bytes gathered for another one.
    #[inline]
    pub(super) fn to(&mut self, upstream: &Arc<Upstream>) -> &mut Vec<u8> {
        if !self.target.as_ref().is_some_and(|target| Arc::ptr_eq(target, upstream)) {
            self.hand_over();
            self.target = Some(upstream.clone());
        } else if self.bytes.len() > HAND_OVER_ABOVE {
            self.hand_over();
        }
        &mut self.bytes
    }

    /// Hands everything over. Keeps no memory: an idle session holds no buffer.
    pub(super) fn hand_over(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        if let Some(target) = &self.target {
            self.uncounted += self.bytes.len();
            let bytes = std::mem::take(&mut self.bytes);
            let len = bytes.len();
            let end = target.hand_over(bytes, self.now);
            let [latest, other] = &mut self.shares;
            if !latest.is_of(target.id) {
                std::mem::swap(latest, other);
            }
            latest.sent(target.id, len, end);
        }
    }

    /// The client's share of an upstream connection.
    pub(super) fn share(&self, upstream: u64) -> Share {
        self.shares.into_iter().find(|share| share.is_of(upstream)).unwrap_or_default()
    }

    /// Adds the bytes and messages handed over to the pool's metrics, once per batch.
    pub(super) fn count(&mut self, counters: &Counters) {
        if self.uncounted > 0 {
            add(&counters.bytes_to_upstreams, std::mem::take(&mut self.uncounted) as u64);
        }
        if self.messages > 0 {
            add(&counters.messages_to_upstreams, std::mem::take(&mut self.messages));
        }
    }

    /// Counts messages taken from the client.
    #[inline]
    pub(super) fn count_messages(&mut self, messages: u64) {
        self.messages += messages;
    }
}

/// A batch of at least this many bytes is handed over before it ends, so that the broker gets work early and the vector
/// does not keep doubling.
const HAND_OVER_ABOVE: usize = 64 * 1024;
