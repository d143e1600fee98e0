//! A message that was not delivered since the broker started, in 24 bytes.

use std::sync::Arc;

use crate::message::Message;
use crate::queue::delivery::Delivery;

/// An entry of a level's head or tail. A queue may have millions of them, so it has no field for values that the message
/// has. A [`Delivery`] counts failures separately from deliveries, but before its first delivery here both equal the number
/// found after a restart, or that of the original message of a dead letter.
pub(super) struct Waiting {
    /// The position in the lower bits, and above it the number of deliveries before the restart. As in the journal's index
    /// it is at most 4095: higher numbers of failures are reduced to that.
    place: u64,
    expires: u64,
    message: Arc<Message>,
}

/// Position and expiry of a message, read without taking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::queue) struct Next {
    pub(in crate::queue) position: u64,
    /// As [`Delivery::expires`].
    pub(in crate::queue) expires: u64,
}

impl Waiting {
    #[inline]
    pub(super) fn next(&self) -> Next {
        Next { position: self.place % MAX_POSITION, expires: self.expires }
    }

    #[inline]
    pub(super) fn message(&self) -> &Arc<Message> {
        &self.message
    }

    #[inline]
    pub(super) fn into_delivery(self) -> Delivery {
        let Next { position, expires } = self.next();
        let deliveries = (self.place / MAX_POSITION) as u32;
        let failures = deliveries.max(self.message.broker_properties().failures);
        Delivery { position, expires, message: self.message, deliveries, failures }
    }

    /// The message as a delivery.
    pub(super) fn to_delivery(&self) -> Delivery {
        Self { message: Arc::clone(&self.message), ..*self }.into_delivery()
    }
}

impl From<Delivery> for Waiting {
    #[inline]
    fn from(delivery: Delivery) -> Self {
        let Delivery { position, expires, message, deliveries, failures } = delivery;
        debug_assert!(position < MAX_POSITION);
        debug_assert_eq!(
            failures,
            deliveries.max(message.broker_properties().failures),
            "it has not been delivered since"
        );
        Self { place: position + u64::from(deliveries.min(MAX_DELIVERIES)) * MAX_POSITION, expires, message }
    }
}

impl Next {
    pub(super) fn of(delivery: &Delivery) -> Self {
        Self { position: delivery.position, expires: delivery.expires }
    }
}

/// The journal has none above it.
const MAX_POSITION: u64 = 1 << 52;

const MAX_DELIVERIES: u32 = (1 << 12) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Body, BrokerProperties};
    use crate::queue::delivery::NEVER;

    fn message(failures: u32) -> Arc<Message> {
        let broker_properties = BrokerProperties { failures, ..BrokerProperties::default() };
        Arc::new(Message::new("".into(), "k", &[0, 0], Body::Copied(b"body"), broker_properties))
    }

    #[test]
    fn it_is_small_and_nothing_is_lost() {
        assert_eq!(size_of::<Waiting>(), 24);
        for (position, expires) in [(0, NEVER), (MAX_POSITION - 1, 1)] {
            for (found, of_dead_letter) in [(0, 0), (0, 9), (7, 0), (MAX_DELIVERIES, 0)] {
                let (deliveries, failures) = (found, found.max(of_dead_letter));
                let message = message(of_dead_letter);
                let delivery = Delivery { position, expires, message, deliveries, failures };
                let waiting = Waiting::from(delivery);
                assert_eq!(waiting.next(), Next { position, expires });
                for back in [waiting.to_delivery(), waiting.into_delivery()] {
                    assert_eq!((back.position, back.expires), (position, expires));
                    assert_eq!((back.deliveries, back.failures), (deliveries, failures));
                }
            }
        }
    }
}
