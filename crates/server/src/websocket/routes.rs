//! The paths that a WebSocket listener serves.

use std::sync::Arc;

use broker::FrontEnd;

use super::webroot::Webroot;
use crate::relay::Relay;

/// The protocols and files that a WebSocket listener serves, by path.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// Protocols by their paths, in the order of [`crate::PROTOCOLS`].
    pub protocols: Vec<(&'static str, FrontEnd)>,
    /// Relays by their paths.
    pub relays: Vec<(String, Arc<Relay>)>,
    /// The relay for all other paths.
    pub everywhere: Option<Arc<Relay>>,
    /// Files, for requests that are not upgrades.
    pub webroot: Option<Arc<Webroot>>,
}

/// The target of a path.
pub(super) enum Route<'r> {
    Protocol(FrontEnd),
    Relay(&'r Arc<Relay>),
}

impl Routes {
    pub(super) fn find(&self, path: &str) -> Option<Route<'_>> {
        if let Some((_, protocol)) = self.protocols.iter().find(|(own, _)| *own == path) {
            return Some(Route::Protocol(*protocol));
        }
        let by_path = self.relays.iter().find(|(own, _)| own == path).map(|(_, relay)| relay);
        by_path.or(self.everywhere.as_ref()).map(Route::Relay)
    }

    pub(super) fn serves(&self, protocol: FrontEnd) -> bool {
        self.protocols.iter().any(|(_, served)| *served == protocol)
    }
}
