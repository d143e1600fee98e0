//! MQTT: the listeners, and the settings offered to clients.

use std::sync::Arc;

use mqtt::server::MqttSettings;
use server::{Listener, MqttConfig, Server};

use crate::config::Config;
use crate::listen::{bind, serve_both};
use crate::relays::ServedRelays;
use crate::serve::{ServeError, websocket_config};
use crate::tls::Tls;

/// Bytes of a packet in addition to its message, for topic and properties.
const ROOM_FOR_PROPERTIES: u64 = 128 * 1024;

/// The bound MQTT listeners.
pub(crate) struct MqttListeners {
    mqtt: Option<Listener>,
    mqtts: Option<Listener>,
    web_mqtt: Option<Listener>,
    web_mqtts: Option<Listener>,
}

impl MqttListeners {
    /// Binds and announces the configured listeners.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn bind(config: &Config) -> Result<Self, ServeError> {
        Ok(Self {
            mqtt: bind("mqtt", "mqtt", &config.mqtt).await?,
            mqtts: bind("mqtts", "mqtts", &config.mqtts).await?,
            web_mqtt: bind("web_mqtt", "ws", &config.web_mqtt).await?,
            web_mqtts: bind("web_mqtts", "wss", &config.web_mqtts).await?,
        })
    }

    /// Starts accepting.
    pub(crate) fn serve(self, server: &Server, config: &Config, relays: &ServedRelays, tls: &Tls) {
        if let Some(relay) = relays.mqtt() {
            server.relay_mqtt(Arc::clone(relay));
        }
        serve_both((self.mqtt, self.mqtts), config, tls, |listener, preface| {
            server.listen_mqtt(listener, preface);
        });
        serve_both((self.web_mqtt, self.web_mqtts), config, tls, |listener, preface| {
            server.listen_websocket(
                listener,
                preface,
                websocket_config(config, relays.web_mqtt_routes(config)),
            );
        });
    }
}

/// The settings that MQTT clients of the embedded broker are offered.
pub(crate) fn mqtt_config(config: &Config) -> MqttConfig {
    let largest = config.max_message_size.of_broker().min(server::MAX_UNSPLIT_MESSAGE) + ROOM_FOR_PROPERTIES;
    let expiry = config.mqtt_session_expiry_max.as_secs();
    // Rounded up, since 0 would mean off.
    let keep_alive = config.mqtt_keep_alive_max.as_millis().div_ceil(1000);
    MqttConfig {
        vhost: config.mqtt_vhost.0.clone(),
        anonymous_user: config.mqtt_anonymous_user.0.clone(),
        settings: Arc::new(MqttSettings {
            maximum_packet_size: u32::try_from(largest).unwrap_or(u32::MAX),
            session_expiry_maximum: u32::try_from(expiry).unwrap_or(u32::MAX),
            keep_alive_maximum: u16::try_from(keep_alive).unwrap_or(u16::MAX),
            ..MqttSettings::default()
        }),
    }
}
