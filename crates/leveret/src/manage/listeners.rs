//! Listeners as the API shows them.

use std::net::SocketAddr;

use admin::ListenerInfo;

/// A listener from the line that announced it; `None` for one whose protocol RabbitMQ has no name for.
pub(super) fn read(name: &str, url: &str) -> Option<ListenerInfo> {
    let protocol = match name {
        "amqp" => "amqp",
        "amqps" => "amqp/ssl",
        "mqtt" => "mqtt",
        "mqtts" => "mqtt/ssl",
        "stomp" => "stomp",
        "stomps" => "stomp/ssl",
        "ws" => "http/web-amqp",
        "wss" => "https/web-amqp",
        "web-mqtt" => "http/web-mqtt",
        "web-mqtts" => "https/web-mqtt",
        "web-stomp" => "http/web-stomp",
        "web-stomps" => "https/web-stomp",
        "http" => "http",
        "prometheus" => "http/prometheus",
        _ => return None,
    };
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    Some(match place.parse::<SocketAddr>() {
        Ok(address) => ListenerInfo { protocol, host: address.ip().to_string(), port: address.port() },
        // A Unix socket.
        Err(_) => ListenerInfo { protocol, host: place.to_owned(), port: 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_where_it_was_announced() {
        let told = |name, url| read(name, url).map(|info| (info.protocol, info.host, info.port));
        assert_eq!(told("amqps", "amqps://127.0.0.1:1"), Some(("amqp/ssl", "127.0.0.1".into(), 1)));
        assert_eq!(told("ws", "ws://[::1]:2"), Some(("http/web-amqp", "::1".into(), 2)));
        assert_eq!(told("http", "unix:/run/x"), Some(("http", "unix:/run/x".into(), 0)));
        assert_eq!(told("relay", "ws://127.0.0.1:1"), None);
    }
}
