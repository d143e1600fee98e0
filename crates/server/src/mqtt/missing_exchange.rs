//! Logs, at a limited rate, that the exchange of MQTT messages is missing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sync::{Mutex, Rank};

/// Time until the log repeats that a virtual host's exchange is missing. Every client that publishes or subscribes there
/// would log it otherwise.
const SAID_AGAIN: Duration = Duration::from_secs(3600);

/// When it was last logged, by virtual host that clients are connected to.
#[derive(Default)]
pub(super) struct MissingExchange {
    logged: Mutex<HashMap<Box<str>, Instant>, { Rank::Leaf as u8 }>,
}

impl MissingExchange {
    /// Called when a client could not publish or subscribe because the exchange is missing.
    pub(super) fn found(&self, vhost: &str, exchange: &str) {
        if self.is_due(vhost, transport::now()) {
            tracing::warn!(
                vhost,
                exchange,
                "mqtt_exchange does not exist: MQTT clients cannot publish or subscribe"
            );
        }
    }

    fn is_due(&self, vhost: &str, now: Instant) -> bool {
        let mut logged = self.logged.lock();
        match logged.get_mut(vhost) {
            Some(at) if now < *at + SAID_AGAIN => return false,
            Some(at) => *at = now,
            None => _ = logged.insert(vhost.into(), now),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_exchange_is_logged_once_an_hour_per_virtual_host() {
        let (missing, now) = (MissingExchange::default(), Instant::now());
        let later = now + SAID_AGAIN;
        assert!(missing.is_due("a", now) && missing.is_due("b", now));
        assert!(!missing.is_due("a", later - Duration::from_secs(1)));
        assert!(missing.is_due("a", later) && !missing.is_due("a", later));
    }
}
