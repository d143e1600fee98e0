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
    /// Paths of MQTT.
    pub mqtt: &'static [&'static str],
    /// Paths of STOMP.
    pub stomp: &'static [&'static str],
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
    Mqtt,
    Stomp,
    Relay(&'r Arc<Relay>),
}

impl Routes {
    /// Subprotocols that mean MQTT, the dearest first.
    pub const MQTT_SUBPROTOCOLS: [&'static str; 2] = ["mqtt", "mqttv3.1"];

    /// Subprotocols that mean STOMP, the dearest first.
    pub const STOMP_SUBPROTOCOLS: [&'static str; 3] = ["v12.stomp", "v11.stomp", "v10.stomp"];

    /// Where MQTT is on the listeners that serve AMQP, too.
    pub const MQTT_BESIDE_AMQP: &'static [&'static str] = &["/ws/mqtt"];

    /// Where RabbitMQ's Web-MQTT has it, where other brokers do, which clients and their examples have as their default
    /// (`/mqtt`, and `/` of a URL without a path), and where it is beside AMQP.
    pub const WEB_MQTT: &'static [&'static str] = &["/ws", "/mqtt", "/", "/ws/mqtt"];

    /// Where STOMP is on the listeners that serve AMQP, too.
    pub const STOMP_BESIDE_AMQP: &'static [&'static str] = &["/ws/stomp"];

    /// Where RabbitMQ's Web-STOMP has it.
    pub const WEB_STOMP: &'static [&'static str] = &["/ws", "/ws/stomp"];

    /// Whether AMQP has this path where it is served.
    pub fn is_amqp_path(path: &str) -> bool {
        AMQP_PATHS.contains(&path)
    }

    pub(super) fn find(&self, path: &str) -> Option<Route<'_>> {
        if self.amqp && Self::is_amqp_path(path) {
            return Some(Route::Amqp);
        }
        if self.mqtt.contains(&path) {
            return Some(Route::Mqtt);
        }
        if self.stomp.contains(&path) {
            return Some(Route::Stomp);
        }
        let by_path = self.relays.iter().find(|(own, _)| own == path).map(|(_, relay)| relay);
        by_path.or(self.everywhere.as_ref()).map(Route::Relay)
    }
}
