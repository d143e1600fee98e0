//! The paths that a WebSocket listener serves.

use std::sync::Arc;

use super::webroot::Webroot;
use crate::relay::Relay;

/// The paths of AMQP: websocket-tcp-relay's, and the one that browser clients use.
const AMQP_PATHS: [&str; 2] = ["/", "/ws/amqp"];

/// The protocols and files that a WebSocket listener serves, by path.
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
    /// The relay for all other paths.
    pub everywhere: Option<Arc<Relay>>,
    /// Files, for requests that are not upgrades.
    pub webroot: Option<Arc<Webroot>>,
}

/// The target of a path.
pub(super) enum Route<'r> {
    Amqp,
    Mqtt,
    Stomp,
    Relay(&'r Arc<Relay>),
}

impl Routes {
    /// Subprotocols that mean MQTT, in order of preference.
    pub const MQTT_SUBPROTOCOLS: [&'static str; 2] = ["mqtt", "mqttv3.1"];

    /// Subprotocols that mean STOMP, in order of preference.
    pub const STOMP_SUBPROTOCOLS: [&'static str; 3] = ["v12.stomp", "v11.stomp", "v10.stomp"];

    /// The paths of MQTT on listeners that also serve AMQP.
    pub const MQTT_BESIDE_AMQP: &'static [&'static str] = &["/ws/mqtt"];

    /// The paths of MQTT on its own listeners: that of RabbitMQ's Web-MQTT, those of other brokers, which are
    /// also the defaults of clients and their examples (`/mqtt`, and `/` for a URL without a path), and the one
    /// used beside AMQP.
    pub const WEB_MQTT: &'static [&'static str] = &["/ws", "/mqtt", "/", "/ws/mqtt"];

    /// The paths of STOMP on listeners that also serve AMQP.
    pub const STOMP_BESIDE_AMQP: &'static [&'static str] = &["/ws/stomp"];

    /// The paths of STOMP on its own listeners: that of RabbitMQ's Web-STOMP, and the one used beside AMQP.
    pub const WEB_STOMP: &'static [&'static str] = &["/ws", "/ws/stomp"];

    /// Whether this is a path of AMQP on listeners that serve it.
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
