//! Exchanges for which the broker has refused messages permanently.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::envelope::Envelope;
use crate::item::{DestinationKey, DestinationKeys};
use crate::refusal::MessageRefusal;

/// How long a refusal applies to further messages of an exchange without a new attempt: otherwise a queue full of messages
/// for a deleted exchange would take a round trip for each.
pub(crate) const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// The most refusals stored at once.
const MAX_REFUSALS: usize = 64;

/// The most exchanges tracked at once: enough for the exchanges and queues of one user.
const MAX_REFUSED_EXCHANGES: usize = 1_024;

/// Confirms in a row after which an exchange is treated as before. Each further refusal for the same exchange doubles the
/// number: after a refusal on the fast channel, all of the many messages in flight need another attempt.
pub(crate) const CONFIRMS_TO_CLEAR: u32 = 256;

/// Upper limit of that doubling.
const MAX_CONFIRMS: u32 = 1 << 16;

/// The exchanges whose messages are published with few in flight, and refusals that apply without a new attempt.
#[derive(Debug)]
pub(crate) struct RefusedExchanges {
    /// Confirms in a row that clear an exchange after its first refusal.
    confirms_to_clear: u32,
    /// By exchange, or by destination for the default exchange, whose keys are independent queues.
    by_key: HashMap<DestinationKey, RefusedExchange>,
    refusals: Vec<KnownRefusal>,
}

#[derive(Debug)]
struct RefusedExchange {
    is_active: bool,
    /// Confirms since the last refusal.
    confirms: u32,
    /// Confirms in a row that clear it.
    needed: u32,
}

#[derive(Debug)]
struct KnownRefusal {
    exchange: Box<str>,
    /// `None` for all keys.
    routing_key: Option<Box<str>>,
    refusal: MessageRefusal,
    until: Instant,
}

impl RefusedExchanges {
    pub(crate) fn new(confirms_to_clear: u32) -> Self {
        Self { confirms_to_clear, by_key: HashMap::new(), refusals: Vec::new() }
    }

    /// Whether to publish a message on the careful channel.
    pub(crate) fn needs_care(
        &self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
    ) -> bool {
        if self.by_key.is_empty() {
            return false;
        }
        self.found(keys, destination, envelope).is_some_and(|refused_exchange| refused_exchange.is_active)
    }

    /// Records that the broker has refused a message of an exchange; `is_named` if the refusal names the exchange. Returns
    /// false if there are too many such exchanges.
    pub(crate) fn add(
        &mut self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
        is_named: bool,
    ) -> bool {
        let exchange = envelope.exchange();
        let key = if exchange.is_empty() && !is_named { destination } else { keys.of_exchange(exchange) };
        if !self.by_key.contains_key(&key) && self.by_key.len() >= MAX_REFUSED_EXCHANGES {
            self.by_key.retain(|_, refused_exchange| refused_exchange.is_active);
            if self.by_key.len() >= MAX_REFUSED_EXCHANGES {
                return false;
            }
        }
        let refused_exchange = self.by_key.entry(key).or_insert(RefusedExchange {
            is_active: true,
            confirms: 0,
            needed: self.confirms_to_clear,
        });
        if !std::mem::replace(&mut refused_exchange.is_active, true) {
            refused_exchange.needed = MAX_CONFIRMS.min(2 * refused_exchange.needed);
        }
        refused_exchange.confirms = 0;
        true
    }

    /// Records the confirm of a message that was published with few others in flight.
    pub(crate) fn confirmed(
        &mut self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
    ) {
        for key in [destination, keys.of_exchange(envelope.exchange())] {
            if let Some(refused_exchange) = self.by_key.get_mut(&key) {
                refused_exchange.confirms += 1;
                refused_exchange.is_active &= refused_exchange.confirms < refused_exchange.needed;
            }
        }
    }

    fn found(
        &self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
    ) -> Option<&RefusedExchange> {
        let own = self.by_key.get(&destination).filter(|refused_exchange| refused_exchange.is_active);
        own.or_else(|| self.by_key.get(&keys.of_exchange(envelope.exchange())))
    }

    /// The refusal that applies to a message at present.
    pub(crate) fn known_refusal(&mut self, envelope: &Envelope, now: Instant) -> Option<MessageRefusal> {
        if self.refusals.is_empty() {
            return None;
        }
        self.refusals.retain(|known| known.until > now);
        let concerns = |known: &&KnownRefusal| {
            *known.exchange == *envelope.exchange()
                && known.routing_key.as_ref().is_none_or(|key| **key == *envelope.routing_key())
        };
        self.refusals.iter().find(concerns).map(|known| known.refusal.clone())
    }

    /// Stores a refusal that certainly applies to other messages.
    pub(crate) fn remember(&mut self, envelope: &Envelope, refusal: &MessageRefusal, now: Instant) {
        if !refusal.names_exchange_of(envelope) || self.refusals.len() >= MAX_REFUSALS {
            return;
        }
        let Some(is_for_all_keys) = refusal.holds_for_all_keys() else { return };
        let routing_key = (!is_for_all_keys).then(|| envelope.routing_key().into());
        let (exchange, until) = (envelope.exchange().into(), now + REFUSAL_TTL);
        self.refusals.push(KnownRefusal { exchange, routing_key, refusal: refusal.clone(), until });
    }

    /// Discards all refusals, so that the broker decides again about each exchange.
    pub(crate) fn forget_refusals(&mut self) {
        self.refusals.clear();
    }
}
