//! The state of one upstream channel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::ledger::{Ledger, Remains};
use crate::link::ClientLink;

/// What an upstream channel number stands for.
#[derive(Debug)]
pub(crate) enum Slot {
    /// Closed at both ends.
    Free,
    /// A client's channel is here.
    Leased(Box<Lease>),
    /// Nobody's, and not proven clean yet: answers are under way.
    Settling(Box<Settling>),
    /// Nobody's, open and clean (P5). In confirm mode if there is a count of its confirms.
    Resting(Option<Box<Confirms>>),
    /// The broker closed it. The session is to answer, after everything else it may have on its way.
    PeerClosed,
    /// `channel.close` was sent and nobody waits for the answer; what comes is discarded. With what a client had under way
    /// that has given the channel up.
    Closing(Option<Arc<Ledger>>),
}

impl Slot {
    /// Whether the channel will be free before long, without the client's doing.
    pub(crate) fn is_closing(&self) -> bool {
        match self {
            Self::Leased(lease) => lease.close_sent,
            Self::Settling(_) | Self::PeerClosed | Self::Closing(_) => true,
            Self::Resting(_) | Self::Free => false,
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
    /// When the channel was opened at the broker.
    pub(crate) opened_at: Instant,
    /// `channel.open-ok` is still to come, and not for the client.
    pub(crate) opening: bool,
    /// `basic.qos-ok` that are still to come and not for the client.
    pub(crate) own_qos_ok: u16,
    /// `channel.flow-ok` that are still to come and not for the client: the ledger's proofs.
    pub(crate) own_flow_ok: u32,
    /// Answers that the client waits for.
    pub(crate) replies_due: u32,
    /// What the client has under way, and how its confirms are numbered.
    pub(crate) ledger: Arc<Ledger>,
    /// Added to the broker's delivery tags: what the client was given where its channel was before.
    pub(crate) delivery_offset: u64,
    /// The broker's last delivery tag.
    pub(crate) delivered: u64,
    /// A message for the client is passed on as it comes, and this is still missing.
    pub(crate) missing: Missing,
    /// The client did not take its deliveries fast enough: the channel is about to be left, and what still comes goes back
    /// to its queue then.
    pub(crate) overflowed: bool,
    /// The message that is coming is not passed on.
    pub(crate) dropping: bool,
    /// What is confirmed, in confirm mode.
    pub(crate) confirms: Option<Box<Confirms>>,
    /// The session sent `channel.close` and waits for the answer.
    pub(crate) close_sent: bool,
    /// What an empty queue name means on the channel.
    pub(crate) last_queue: Option<Box<str>>,
}

impl Lease {
    pub(crate) fn new(link: Arc<ClientLink>, ledger: Arc<Ledger>, id: u64, client_channel: u16) -> Self {
        Self {
            link,
            id,
            client_channel,
            opened_at: Instant::now(),
            opening: true,
            own_qos_ok: 0,
            own_flow_ok: 0,
            replies_due: 0,
            ledger,
            delivery_offset: 0,
            delivered: 0,
            missing: Missing::Nothing,
            overflowed: false,
            dropping: false,
            confirms: None,
            close_sent: false,
            last_queue: None,
        }
    }
}

/// What a client that is gone had under way on a channel whose connection is lost.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) remains: Remains,
    /// It was published in confirm mode.
    pub(crate) confirming: bool,
}

/// What is still missing of a message that is passed on to a client as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Nothing,
    /// The content header, and whatever it announces.
    Header,
    /// So many bytes of body.
    Body(u64),
}

/// What a session did on a channel that it gives back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Messages published in confirm mode.
    pub(crate) published: u64,
    /// Something went out whose success no answer tells: a publish outside confirm mode, a method with no-wait.
    pub(crate) unproven: bool,
    /// A limit for the whole channel was set.
    pub(crate) global_prefetch: bool,
    /// Something else than these, which only a close at the broker undoes.
    pub(crate) touched: bool,
}

/// What has to come before a channel that was given back is clean.
#[derive(Debug)]
pub(crate) struct Settling {
    /// Answers, nobody's any more.
    replies_due: u32,
    /// How many of them come in front of those that the ledger counts.
    own_due: u32,
    /// What the client that gave the channel back had under way, if anything, kept until it is answered.
    left: Option<Arc<Ledger>>,
    confirms: Option<Box<Confirms>>,
    opened_at: Instant,
    /// It was given back before the broker had opened it.
    opening: bool,
}

impl Settling {
    /// From the lease that ends, with this many answers due that the pool asked for itself.
    pub(crate) fn new(lease: Lease, published: u64, fences: u32) -> Self {
        let own = u32::from(lease.opening) + u32::from(lease.own_qos_ok);
        let mut confirms = lease.confirms;
        if let Some(confirms) = &mut confirms {
            confirms.published += published;
        }
        (0..fences).for_each(|_| lease.ledger.prove());
        Self {
            replies_due: lease.replies_due + own + lease.own_flow_ok + fences,
            own_due: own,
            left: lease.ledger.has_entries().then_some(lease.ledger),
            confirms,
            opened_at: lease.opened_at,
            opening: lease.opening,
        }
    }

    /// When the channel was opened at the broker.
    pub(crate) fn opened_at(&self) -> Instant {
        self.opened_at
    }

    /// Whether the channel was given back before the broker had opened it.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening
    }

    /// An answer has come.
    pub(crate) fn replied(&mut self) {
        self.replies_due = self.replies_due.saturating_sub(1);
        if self.own_due > 0 {
            self.own_due -= 1;
        } else if let Some(ledger) = &self.left
            && !ledger.answers_proof()
        {
            ledger.answered(None, None);
        }
    }

    /// A confirm has come.
    pub(crate) fn confirmed(&mut self, tag: u64, multiple: bool) {
        if let Some(confirms) = &mut self.confirms {
            confirms.confirmed(tag, multiple);
        }
        if let Some(ledger) = &self.left {
            ledger.confirmed(tag, multiple);
        }
    }

    /// What is left of it when its connection is lost.
    pub(crate) fn into_left(self) -> Option<Left> {
        let confirming = self.confirms.is_some();
        self.left.map(|ledger| Left { remains: ledger.take(), confirming })
    }

    /// Whether nothing is under way any more: then it rests.
    pub(crate) fn is_clean(&self) -> bool {
        self.replies_due == 0 && self.confirms.as_ref().is_none_or(|confirms| confirms.is_complete())
    }

    /// What is kept of it while it rests.
    pub(crate) fn into_confirms(self) -> Option<Box<Confirms>> {
        self.confirms
    }
}

/// Which publishes of a channel have been confirmed, positively or negatively.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// How many were published by those who have given the channel back.
    published: u64,
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

    /// Everything up to here is confirmed.
    pub(crate) fn up_to(&self) -> u64 {
        self.up_to
    }

    /// Whether something behind that is.
    pub(crate) fn is_gappy(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Whether this very message is.
    pub(crate) fn has(&self, tag: u64) -> bool {
        tag <= self.up_to || self.beyond.contains(&tag)
    }

    /// How many were published before the present lease began.
    pub(crate) fn base(&self) -> u64 {
        self.published
    }

    /// Whether everything is confirmed that was published by those who have given the channel back.
    fn is_complete(&self) -> bool {
        self.up_to >= self.published
    }

    /// Whether the first `published` messages of the present lease are confirmed; if not, [`Self::confirmed`] will tell.
    pub(crate) fn await_up_to(&mut self, published: u64) -> bool {
        let sequence = self.published + published;
        let confirmed = self.up_to >= sequence;
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
