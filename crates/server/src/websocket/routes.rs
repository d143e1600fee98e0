//! The paths that a WebSocket listener serves.

use std::sync::Arc;

use broker::FrontEnd;

use super::webroot::Webroot;
use crate::protocols::{ClientProtocol, PROTOCOLS};
use crate::relay::Relay;

/// The protocols and files that a WebSocket listener serves, by path.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// Protocols by their paths, in the order of [`crate::PROTOCOLS`].
    pub protocols: Vec<(&'static str, FrontEnd)>,
    /// Protocols whose clients are relayed to the upstream's port for them, by their paths, in the same order.
    pub upstream: Vec<(&'static str, FrontEnd, Arc<Relay>)>,
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
        let upstream = || self.upstream.iter().find(|(own, ..)| *own == path).map(|(.., relay)| relay);
        by_path.or_else(upstream).or(self.everywhere.as_ref()).map(Route::Relay)
    }

    /// The response for an unknown path, which lists the protocols' paths: `nothing here: AMQP is at / and /ws/amqp, MQTT
    /// is at /ws/mqtt`. The paths of relays are not disclosed.
    pub(super) fn nothing_here(&self) -> String {
        let upstream = self.upstream.iter().map(|(path, protocol, _)| (*path, *protocol));
        let all: Vec<_> = self.protocols.iter().copied().chain(upstream).collect();
        let place = |protocol: &ClientProtocol| {
            let of = |(path, own): &(&'static str, FrontEnd)| (*own == protocol.front_end).then_some(*path);
            let paths: Vec<&str> = all.iter().filter_map(of).collect();
            let (last, others) = paths.split_last()?;
            let others =
                if others.is_empty() { String::new() } else { format!("{} and ", others.join(", ")) };
            Some(format!("{} is at {others}{last}", protocol.name))
        };
        match PROTOCOLS.iter().filter_map(place).collect::<Vec<_>>() {
            places if places.is_empty() => "nothing here".to_owned(),
            places => format!("nothing here: {}", places.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_an_unknown_path_is_answered_with_the_known_ones() {
        let amqp = [("/", FrontEnd::Amqp), ("/ws/amqp", FrontEnd::Amqp)];
        let of = |protocols: &[(&'static str, FrontEnd)]| {
            Routes { protocols: protocols.to_vec(), ..Routes::default() }.nothing_here()
        };
        assert_eq!(of(&amqp), "nothing here: AMQP is at / and /ws/amqp");
        assert_eq!(
            of(&[amqp[0], amqp[1], ("/ws/mqtt", FrontEnd::Mqtt), ("/ws/stomp", FrontEnd::Stomp)]),
            "nothing here: AMQP is at / and /ws/amqp, MQTT is at /ws/mqtt, STOMP is at /ws/stomp"
        );
        let mqtt = ["/ws", "/mqtt", "/"].map(|path| (path, FrontEnd::Mqtt));
        assert_eq!(of(&mqtt), "nothing here: MQTT is at /ws, /mqtt and /");
        assert_eq!(of(&[]), "nothing here");
    }
}
