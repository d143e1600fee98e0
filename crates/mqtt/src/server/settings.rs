//! Settings that apply to all clients of a server.

use crate::packet::QoS;

/// Limits and capabilities, announced to clients of 5.0 in the CONNACK (section 3.2.2.3) and enforced for all.
#[derive(Debug, Clone)]
pub struct MqttSettings {
    /// The largest packet before a client is connected, in bytes: a CONNECT with its will.
    pub connect_packet_size: u32,
    /// The largest packet of a connected client, in bytes.
    pub maximum_packet_size: u32,
    /// Messages of QoS 1 and 2 that a client of 5.0 may have in flight to the server.
    pub receive_maximum: u16,
    /// Messages of QoS 1 and 2 that the server has in flight to a client; the client may ask for less.
    pub in_flight: u16,
    /// The highest Topic Alias that clients may use; each takes memory for a topic.
    pub topic_alias_maximum: u16,
    /// The highest Topic Alias that the server uses when it sends to a client.
    pub send_topic_aliases: u16,
    /// The longest Keep Alive in seconds, which replaces a longer one, or none, of a client of 5.0. 0 lets clients choose.
    pub keep_alive_maximum: u16,
    /// Seconds for which a session may outlive its connection; `u32::MAX` means forever.
    pub session_expiry_maximum: u32,
    /// Whether CONNACK always has the Session Expiry Interval, instead of only if it differs from the requested one.
    pub always_sends_session_expiry: bool,
    /// The highest quality at which clients may publish.
    pub maximum_qos: QoS,
    /// Whether messages may be retained.
    pub retain: bool,
    /// Whether filters may have wildcards.
    pub wildcards: bool,
    /// Whether subscriptions may be shared.
    pub shared: bool,
    /// Whether subscriptions may have identifiers.
    pub subscription_identifiers: bool,
}

impl Default for MqttSettings {
    fn default() -> Self {
        Self {
            // Fits a client identifier, a user, a long token as password and a moderate will.
            connect_packet_size: 64 * 1024,
            // The broker's largest message.
            maximum_packet_size: 16 * 1024 * 1024,
            // The maximum of the protocol: a lower value would cut off clients that ignore it, as MQTT.js does.
            // If a client sends faster than the server accepts, the server stops reading from it, and an
            // identifier costs only a few bytes.
            receive_maximum: u16::MAX,
            // Twice RabbitMQ's prefetch of 10 for MQTT. On one machine a larger window made no client faster.
            in_flight: 20,
            // RabbitMQ's value.
            topic_alias_maximum: 16,
            send_topic_aliases: 16,
            keep_alive_maximum: 0,
            session_expiry_maximum: u32::MAX,
            always_sends_session_expiry: false,
            maximum_qos: QoS::ExactlyOnce,
            retain: true,
            wildcards: true,
            shared: true,
            subscription_identifiers: true,
        }
    }
}
