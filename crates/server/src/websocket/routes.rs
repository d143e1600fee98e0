//! What a WebSocket listener serves, and where.

use std::sync::Arc;

use super::webroot::Webroot;
use crate::relay::Relay;

/// The paths where AMQP is served: websocket-tcp-relay's, and the one that browser clients use.
const AMQP_PATHS: [&str; 2] = ["/", "/ws/amqp"];

/// What a WebSocket listener serves.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// AMQP at `/` and `/ws/amqp`.
    pub amqp: bool,
    /// Relays by their paths.
    pub relays: Vec<(String, Arc<Relay>)>,
    /// The relay at every other path.
    pub everywhere: Option<Arc<Relay>>,
    /// Files, for requests that are no upgrades.
    pub webroot: Option<Arc<Webroot>>,
}

/// What is at a path.
pub(super) enum Route<'r> {
    Amqp,
    Relay(&'r Arc<Relay>),
}

impl Routes {
    /// Whether AMQP has this path where it is served.
    pub fn is_amqp_path(path: &str) -> bool {
        AMQP_PATHS.contains(&path)
    }

    pub(super) fn find(&self, path: &str) -> Option<Route<'_>> {
        if self.amqp && Self::is_amqp_path(path) {
            return Some(Route::Amqp);
        }
        let by_path = self.relays.iter().find(|(own, _)| own == path).map(|(_, relay)| relay);
        by_path.or(self.everywhere.as_ref()).map(Route::Relay)
    }
}
