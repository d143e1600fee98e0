//! State queues with a consumer that no connection has any more.
//!
//! When nodes of a RabbitMQ cluster are killed, a quorum queue may keep the consumer of a closed channel (issue 15473 of
//! rabbitmq-server). Its client would be refused forever, so after some time the queue is deleted instead.

use std::collections::HashMap;
use std::sync::Arc;

use broker::Timestamp;

use crate::mqtt::session_ownership::Owner;

/// Milliseconds for which a client is refused. A server that is cut off has lost its consumers by then: RabbitMQ closes a
/// silent connection after its heartbeat timeout, 60 s by default.
pub(in super::super) const STALE_TIMEOUT: u64 = 3 * 60 * 1000;

/// Milliseconds between two attempts of a client after which its time starts again: another server may have admitted it
/// meanwhile.
const MAX_GAP: u64 = 2 * 60 * 1000;

/// The maximum of remembered refused clients. The time of further ones is not measured.
const MAX_REFUSED: usize = 10_000;

/// The clients that were refused because another connection consumes from their state queue.
#[derive(Debug, Default)]
pub(in super::super) struct StaleConsumers {
    refused: HashMap<Arc<Owner>, Refused>,
}

#[derive(Debug, Clone, Copy)]
struct Refused {
    first: Timestamp,
    last: Timestamp,
}

impl StaleConsumers {
    /// Called before a client is refused. Returns true if it has been refused for [`STALE_TIMEOUT`] without a long gap.
    pub(in super::super) fn refuse(&mut self, owner: &Arc<Owner>, now: Timestamp) -> bool {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.retain(|_, refused| now < refused.last.after(MAX_GAP));
        }
        if let Some(refused) = self.refused.get_mut(owner) {
            if now >= refused.last.after(MAX_GAP) {
                refused.first = now;
            }
            refused.last = now;
            return now >= refused.first.after(STALE_TIMEOUT);
        }
        if self.refused.len() < MAX_REFUSED {
            self.refused.insert(Arc::clone(owner), Refused { first: now, last: now });
        }
        false
    }

    /// Called when the client has its state queue again.
    pub(in super::super) fn forget(&mut self, owner: &Owner) {
        self.refused.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: usize) -> Arc<Owner> {
        Arc::new(Owner { vhost: "/".into(), client_id: number.to_string().into() })
    }

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp(0).after(seconds * 1000)
    }

    #[test]
    fn a_client_is_refused_for_a_while_and_a_long_gap_begins_it_anew() {
        let (mut stale, me) = (StaleConsumers::default(), owner(1));
        assert!(!stale.refuse(&me, seconds(0)) && !stale.refuse(&me, seconds(100)));
        assert!(!stale.refuse(&owner(2), seconds(179)) && stale.refuse(&me, seconds(180)));
        assert!(!stale.refuse(&me, seconds(300)), "after a gap");
        assert!(!stale.refuse(&me, seconds(400)) && !stale.refuse(&me, seconds(479)));
        assert!(stale.refuse(&me, seconds(480)));
        stale.forget(&me);
        assert!(!stale.refuse(&me, seconds(481)));
    }

    #[test]
    fn the_number_of_clients_is_limited_to_those_that_are_still_refused() {
        let mut stale = StaleConsumers::default();
        for number in 0..=MAX_REFUSED {
            assert!(!stale.refuse(&owner(number), seconds(0)));
        }
        assert_eq!(stale.refused.len(), MAX_REFUSED);
        assert!(!stale.refuse(&owner(MAX_REFUSED), seconds(180)));
        assert_eq!(stale.refused.len(), 1);
    }
}
