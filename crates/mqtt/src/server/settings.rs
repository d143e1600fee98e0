//! What a server offers to all its clients.

use crate::packet::QoS;

/// Limits and abilities, told to clients of 5.0 in the CONNACK (section 3.2.2.3) and held against all.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of the largest packet before a client is connected: a CONNECT with its will.
    pub connect_packet_size: u32,
    /// Bytes of the largest packet of a connected client.
    pub maximum_packet_size: u32,
    /// Messages of QoS 1 and 2 that a client of 5.0 may have under way to the server.
    pub receive_maximum: u16,
    /// Messages of QoS 1 and 2 that the server has under way to a client, who may ask for less.
    pub in_flight: u16,
    /// The highest Topic Alias that clients may use; each keeps a topic in memory.
    pub topic_alias_maximum: u16,
    /// The highest Topic Alias that the server uses towards a client.
    pub send_topic_aliases: u16,
    /// Seconds; a client of 5.0 that asks for a longer Keep Alive, or none, is told to use this. 0 lets clients choose.
    pub keep_alive_maximum: u16,
    /// Seconds that a session may outlive its connection; `u32::MAX` is for ever.
    pub session_expiry_maximum: u32,
    /// The highest quality of clients' messages.
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

impl Default for Settings {
    fn default() -> Self {
        Self {
            // A client identifier, a user, a long token as password and a will of some size.
            connect_packet_size: 64 * 1024,
            // As the broker's largest message.
            maximum_packet_size: 16 * 1024 * 1024,
            // All that there can be: clients that publish without counting, as MQTT.js does, would be cut off at less.
            // Of one who sends faster than the server takes nothing more is read, and an identifier costs a few bytes.
            receive_maximum: u16::MAX,
            // Twice RabbitMQ's prefetch of 10 for MQTT, so that a round trip does not starve a client.
            in_flight: 20,
            // RabbitMQ's.
            topic_alias_maximum: 16,
            send_topic_aliases: 16,
            keep_alive_maximum: 0,
            session_expiry_maximum: u32::MAX,
            maximum_qos: QoS::ExactlyOnce,
            retain: true,
            wildcards: true,
            shared: true,
            subscription_identifiers: true,
        }
    }
}
