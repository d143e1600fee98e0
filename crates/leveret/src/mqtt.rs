//! The settings offered to MQTT clients.

use std::sync::Arc;

use mqtt::server::MqttSettings;
use server::{MqttConfig, MqttVhosts};

use crate::config::Config;

/// Bytes of a packet in addition to its message, for topic and properties.
const PROPERTIES_BYTES: u64 = 128 * 1024;

/// The settings that MQTT clients are offered.
pub(crate) fn mqtt_config(config: &Config) -> MqttConfig {
    let largest = config.max_message_size.of_broker().min(server::MAX_UNSPLIT_MESSAGE) + PROPERTIES_BYTES;
    let expiry = config.mqtt_session_expiry_max.as_secs();
    // Rounded up, since 0 would mean off.
    let keep_alive = config.mqtt_keep_alive_max.as_millis().div_ceil(1000);
    MqttConfig {
        vhosts: MqttVhosts {
            by_certificate: config.mqtt_certificate_vhosts.0.iter().cloned().collect(),
            by_port: config.mqtt_port_vhosts.0.iter().cloned().collect(),
            default: config.mqtt_vhost.0.clone(),
        },
        anonymous_user: config.mqtt_anonymous_user.0.clone(),
        exchange: config.mqtt_exchange.0.as_str().into(),
        durable_queue_type: config.mqtt_durable_queue_type,
        queue_max: config.mqtt_queue_max.0,
        settings: Arc::new(MqttSettings {
            in_flight: config.mqtt_prefetch,
            maximum_packet_size: u32::try_from(largest).unwrap_or(u32::MAX),
            session_expiry_maximum: u32::try_from(expiry).unwrap_or(u32::MAX),
            always_sends_session_expiry: config.compatibility.always_sends_session_expiry(),
            keep_alive_maximum: u16::try_from(keep_alive).unwrap_or(u16::MAX),
            ..MqttSettings::default()
        }),
    }
}
