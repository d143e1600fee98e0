//! The protocols of clients: the table from which listeners, WebSocket routes, relays and metrics are derived.

use std::sync::Arc;
use std::time::Duration;

use broker::FrontEnd;
use transport::Stream;

use crate::amqp::connection::AmqpConnection;
use crate::client::ProtocolState;
use crate::mqtt::MqttConnection;
use crate::relay::TextRule;
use crate::server::{AcceptedConnection, Shared, run};
use crate::stomp::StompConnection;
use crate::websocket::{AcceptedUpgrade, join};

/// A protocol of clients: its names, its listeners, its place in WebSockets, and how a connection is built.
#[derive(Debug)]
pub struct ClientProtocol {
    /// Its place in [`PROTOCOLS`], and among the counters.
    pub front_end: FrontEnd,
    /// Its name for operators: `STOMP`.
    pub name: &'static str,
    /// RabbitMQ's label for it in metrics; versions of MQTT and STOMP are not distinguished.
    pub metrics_label: &'static str,
    /// Its listeners: over TCP, TLS, WebSocket, and WebSocket over TLS.
    pub listeners: [ListenerKind; 4],
    /// The setting of the upstream's port that clients are relayed to, if it is set.
    pub upstream_port: Option<&'static str>,
    /// Whether its sessions can end here in front of an upstream; if not, its clients are only relayed.
    pub is_pooled: bool,
    /// Its paths on its own WebSocket listeners.
    pub paths: &'static [&'static str],
    /// Its paths on AMQP's WebSocket listeners.
    pub paths_beside_amqp: &'static [&'static str],
    /// Its WebSocket subprotocols, in order of preference.
    pub subprotocols: &'static [&'static str],
    /// How text messages are handled when it is relayed.
    pub relayed_text: TextRule,
    /// Starts the task of a connection.
    pub(crate) start: fn(Arc<Shared>, Stream, AcceptedConnection),
    /// Starts the task of a connection over WebSocket, which is pinged at this interval.
    pub(crate) start_in_websocket: fn(Arc<Shared>, Stream, AcceptedConnection, AcceptedUpgrade, Duration),
}

/// A kind of listener: its names, and the layers below its protocol.
#[derive(Debug, Clone, Copy)]
pub struct ListenerKind {
    /// Its setting: `web_stomp`.
    pub setting: &'static str,
    /// The scheme of its URLs: `ws`.
    pub scheme: &'static str,
    /// RabbitMQ's name of its protocol: `http/web-stomp`.
    pub rabbitmq_name: &'static str,
    /// Whether its clients use WebSocket.
    pub websocket: bool,
    /// Whether its clients use TLS.
    pub tls: bool,
}

/// The listeners of a protocol, by its name and the setting of its WebSocket listener.
macro_rules! listeners {
    ($name:literal, $web:literal) => {
        [
            ListenerKind {
                setting: $name,
                scheme: $name,
                rabbitmq_name: $name,
                websocket: false,
                tls: false,
            },
            ListenerKind {
                setting: concat!($name, "s"),
                scheme: concat!($name, "s"),
                rabbitmq_name: concat!($name, "/ssl"),
                websocket: false,
                tls: true,
            },
            ListenerKind {
                setting: $web,
                scheme: "ws",
                rabbitmq_name: concat!("http/web-", $name),
                websocket: true,
                tls: false,
            },
            ListenerKind {
                setting: concat!($web, "s"),
                scheme: "wss",
                rabbitmq_name: concat!("https/web-", $name),
                websocket: true,
                tls: true,
            },
        ]
    };
}

/// The paths of AMQP: websocket-tcp-relay's, and the one that browser clients use.
const AMQP_PATHS: &[&str] = &["/", "/ws/amqp"];

/// All protocols, in the order in which their listeners are announced.
pub static PROTOCOLS: [ClientProtocol; FrontEnd::COUNT] = [
    ClientProtocol {
        front_end: FrontEnd::Amqp,
        name: "AMQP",
        metrics_label: "amqp091",
        listeners: listeners!("amqp", "ws"),
        upstream_port: None,
        is_pooled: true,
        paths: AMQP_PATHS,
        paths_beside_amqp: AMQP_PATHS,
        subprotocols: &["amqp091", "amqp"],
        relayed_text: TextRule::Refuse,
        start: start::<AmqpConnection>,
        start_in_websocket: start_in_websocket::<AmqpConnection>,
    },
    ClientProtocol {
        front_end: FrontEnd::Mqtt,
        name: "MQTT",
        metrics_label: "mqtt",
        listeners: listeners!("mqtt", "web_mqtt"),
        upstream_port: Some("upstream_mqtt"),
        is_pooled: true,
        // That of RabbitMQ's Web-MQTT, those of other brokers, which are also the defaults of clients and their
        // examples (`/mqtt`, and `/` for a URL without a path), and the one used beside AMQP.
        paths: &["/ws", "/mqtt", "/", "/ws/mqtt"],
        paths_beside_amqp: &["/ws/mqtt"],
        subprotocols: &["mqtt", "mqttv3.1"],
        relayed_text: TextRule::Refuse,
        start: start::<MqttConnection>,
        start_in_websocket: start_in_websocket::<MqttConnection>,
    },
    ClientProtocol {
        front_end: FrontEnd::Stomp,
        name: "STOMP",
        metrics_label: "stomp",
        listeners: listeners!("stomp", "web_stomp"),
        upstream_port: Some("upstream_stomp"),
        is_pooled: true,
        // That of RabbitMQ's Web-STOMP, and the one used beside AMQP.
        paths: &["/ws", "/ws/stomp"],
        paths_beside_amqp: &["/ws/stomp"],
        subprotocols: &["v12.stomp", "v11.stomp", "v10.stomp"],
        relayed_text: TextRule::Accept,
        start: start::<StompConnection>,
        start_in_websocket: start_in_websocket::<StompConnection>,
    },
];

impl ClientProtocol {
    /// The entry of a front end.
    pub fn of(front_end: FrontEnd) -> &'static Self {
        &PROTOCOLS[front_end as usize]
    }

    /// The scheme of its URLs, by which the access log names it: `stomp`.
    pub(crate) fn scheme(&self) -> &'static str {
        self.listeners[0].scheme
    }
}

// Each protocol has a task type of its own: a task is as large as its largest state, and an idle connection keeps
// its task for as long as the client stays.

fn start<P: ProtocolState>(shared: Arc<Shared>, stream: Stream, accepted: AcceptedConnection) {
    tokio::spawn(run::<P>(shared, stream, accepted));
}

fn start_in_websocket<P: ProtocolState>(
    shared: Arc<Shared>,
    stream: Stream,
    accepted: AcceptedConnection,
    granted: AcceptedUpgrade,
    ping_interval: Duration,
) {
    tokio::spawn(join::<P, _>(shared, stream, accepted, granted, ping_interval));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_is_the_index_of_its_protocol() {
        for (index, protocol) in PROTOCOLS.iter().enumerate() {
            assert_eq!(protocol.front_end as usize, index, "{}", protocol.name);
        }
    }
}
