//! The state of one upstream channel.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::link::ClientLink;

/// What an upstream channel number stands for.
#[derive(Debug)]
pub(crate) enum Slot {
    /// Closed at both ends.
    Free,
    /// A client's channel is here.
    Leased(Box<Lease>),
    /// The broker closed it. The session is to answer, after everything else it may have on its way.
    PeerClosed,
    /// `channel.close` was sent and nobody waits for the answer; what comes is discarded.
    Closing,
}

impl Slot {
    /// Whether the channel will be free before long, without the client's doing.
    pub(crate) fn is_closing(&self) -> bool {
        match self {
            Self::Leased(lease) => lease.close_sent,
            Self::PeerClosed | Self::Closing => true,
            Self::Free => false,
        }
    }
}

/// A client's channel on an upstream channel.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) link: Arc<ClientLink>,
    /// Unique in the session, so that late events are recognised.
    pub(crate) id: u64,
    /// The client's channel number.
    pub(crate) client_channel: u16,
    /// `channel.open-ok` is still to come, and not for the client.
    pub(crate) opening: bool,
    /// `basic.qos-ok` that are still to come and not for the client.
    pub(crate) own_qos_ok: u8,
    /// Added to the broker's confirm sequence: what was confirmed where the channel was before.
    pub(crate) confirm_offset: u64,
    /// What is confirmed, in confirm mode.
    pub(crate) confirms: Option<Confirms>,
    /// The session sent `channel.close` and waits for the answer.
    pub(crate) close_sent: bool,
    /// What an empty queue name means on the channel.
    pub(crate) last_queue: Option<Box<str>>,
}

impl Lease {
    pub(crate) fn new(link: Arc<ClientLink>, id: u64, client_channel: u16) -> Self {
        Self {
            link,
            id,
            client_channel,
            opening: true,
            own_qos_ok: 0,
            confirm_offset: 0,
            confirms: None,
            close_sent: false,
            last_queue: None,
        }
    }
}

/// Which publishes of a channel have been confirmed, positively or negatively.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// Everything up to here.
    up_to: u64,
    /// And these. As many as the broker confirms out of order, which publishers bound by their own window.
    beyond: BTreeSet<u64>,
    /// Somebody waits until everything up to here is confirmed.
    awaited: Option<u64>,
}

impl Confirms {
    /// Takes a confirm; returns whether it is the one that somebody waits for.
    pub(crate) fn confirmed(&mut self, tag: u64, multiple: bool) -> bool {
        if multiple {
            self.up_to = self.up_to.max(tag);
            self.beyond = self.beyond.split_off(&(tag.saturating_add(1)));
        } else if tag == self.up_to + 1 {
            self.up_to = tag;
        } else {
            self.beyond.insert(tag);
        }
        while self.beyond.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
        let reached = self.awaited.is_some_and(|sequence| self.up_to >= sequence);
        if reached {
            self.awaited = None;
        }
        reached
    }

    fn is_confirmed(&self, sequence: u64) -> bool {
        self.up_to >= sequence
    }

    /// Whether everything up to `sequence` is confirmed; if not, [`Self::confirmed`] will tell.
    pub(crate) fn await_up_to(&mut self, sequence: u64) -> bool {
        let confirmed = self.is_confirmed(sequence);
        self.awaited = (!confirmed).then_some(sequence);
        confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_in_any_order_add_up() {
        let mut confirms = Confirms::default();
        assert!(!confirms.await_up_to(5));
        for (tag, multiple) in [(2, false), (4, false), (1, false), (5, false)] {
            assert!(!confirms.confirmed(tag, multiple), "3 is missing");
        }
        assert!(confirms.confirmed(3, true));
        assert!(confirms.await_up_to(5));
        assert!(!confirms.await_up_to(6));
        assert!(confirms.confirmed(6, false));
        assert!(confirms.beyond.is_empty());
    }
}
