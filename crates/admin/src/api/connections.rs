//! Connections and channels.

use std::sync::Arc;

use broker::Compatibility;
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::consumers::consumers_of_channel;
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;
use super::process::{ChannelInfo, ClientConnection, ConnectionInfo};
use super::{sessions, stats};

/// `GET /api/connections`, and those of a virtual host.
pub(super) fn all(call: &Call) -> ApiAnswer {
    check_vhost(call)?;
    show_all(call, visible(call))
}

/// `GET /api/connections/username/{user}`.
pub(super) fn of_user(call: &Call) -> ApiAnswer {
    check_visible(call, call.at("user"))?;
    show_all(call, of_user_named(call))
}

/// `DELETE /api/connections/username/{user}`.
pub(super) fn close_of_user(call: &Call) -> ApiAnswer {
    check_may_close(call, call.at("user"))?;
    for named in of_user_named(call) {
        named.connection.close(reason(call));
    }
    Ok(Reply::no_content())
}

/// `GET /api/connections/{name}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let connection = find(call)?;
    Ok(Reply::json(columns(call, show(call, &NamedConnection::of(connection)))))
}

/// `DELETE /api/connections/{name}`.
pub(super) fn close(call: &Call) -> ApiAnswer {
    let connection = find(call)?;
    check_may_close(call, connection.user())?;
    connection.close(reason(call));
    Ok(Reply::no_content())
}

/// `GET /api/connections/{name}/channels`.
pub(super) fn channels_of(call: &Call) -> ApiAnswer {
    let named = NamedConnection::of(find(call)?);
    show_channels(call, channels_in(call, &named))
}

/// `GET /api/channels`, and those of a virtual host.
pub(super) fn channels(call: &Call) -> ApiAnswer {
    check_vhost(call)?;
    show_channels(call, visible(call).iter().flat_map(|named| channels_in(call, named)).collect())
}

/// `GET /api/channels/{name}`.
pub(super) fn channel(call: &Call) -> ApiAnswer {
    let missing = ApiError::not_found;
    let (connection, number) = call.at("name").rsplit_once(" (").ok_or_else(missing)?;
    let number: u16 = number.trim_end_matches(')').parse().map_err(|_| missing())?;
    let connection = call.api.process.connection_named(connection).ok_or_else(missing)?;
    check_visible(call, connection.user())?;
    let channels = channels_in(call, &NamedConnection::of(connection));
    let channel = channels.iter().find(|channel| channel.info.number == number).ok_or_else(missing)?;
    let mut shown = show_channel(call, channel);
    if let Some(shown) = shown.as_object_mut() {
        let consumers = consumers_of_channel(call, channel.id, number, channel.info.consumers);
        shown.insert("consumer_details".into(), consumers.into());
        shown.insert("deliveries".into(), json!([]));
        shown.insert("publishes".into(), json!([]));
    }
    Ok(Reply::json(columns(call, shown)))
}

/// A connection's details as they appear in other objects.
pub(super) fn details(connection: &dyn ClientConnection) -> Value {
    let info = connection.info();
    json!({"name": connection.name(), "peer_host": info.peer_host, "peer_port": info.peer_port})
}

/// A connection and its name, which `name()` would format again on each call.
struct NamedConnection {
    name: String,
    connection: Arc<dyn ClientConnection>,
}

impl NamedConnection {
    fn of(connection: Arc<dyn ClientConnection>) -> Self {
        Self { name: connection.name(), connection }
    }
}

fn reason(call: &Call) -> &str {
    call.reason.as_deref().unwrap_or("Closed via management plugin")
}

/// Refuses a path with an unknown virtual host.
fn check_vhost(call: &Call) -> Result<(), ApiError> {
    if call.at("vhost").is_empty() { Ok(()) } else { call.vhost().map(drop) }
}

/// The connections that the user may see; only those in the path's virtual host, if it names one.
fn visible(call: &Call) -> Vec<NamedConnection> {
    let vhost = Some(call.at("vhost")).filter(|vhost| !vhost.is_empty());
    let mut connections = call.api.process.connections();
    connections.retain(|connection| {
        vhost.is_none_or(|vhost| connection.vhost() == vhost)
            && call.user.sees_connections_of(connection.user())
    });
    connections.into_iter().map(NamedConnection::of).collect()
}

fn of_user_named(call: &Call) -> Vec<NamedConnection> {
    let mut connections = visible(call);
    connections.retain(|named| named.connection.user() == call.at("user"));
    connections
}

fn find(call: &Call) -> Result<Arc<dyn ClientConnection>, ApiError> {
    let connection = call.api.process.connection_named(call.at("name")).ok_or_else(ApiError::not_found)?;
    check_visible(call, connection.user())?;
    Ok(connection)
}

fn check_visible(call: &Call, user: &str) -> Result<(), ApiError> {
    allow(call.user.sees_connections_of(user))
}

fn check_may_close(call: &Call, user: &str) -> Result<(), ApiError> {
    allow(call.user.may_close_connections_of(user))
}

fn allow(is_allowed: bool) -> Result<(), ApiError> {
    if is_allowed { Ok(()) } else { Err(ApiError::not_authorised("User not authorised to access object")) }
}

fn show_all(call: &Call, connections: Vec<NamedConnection>) -> ApiAnswer {
    list(call, connections, |named| (named.connection.vhost(), &named.name), |named| show(call, named))
}

fn show(call: &Call, named: &NamedConnection) -> Value {
    let connection = &*named.connection;
    let info = connection.info();
    let (received, sent) = connection.byte_rates(call.now());
    let user_provided_name = info.client_properties.get("connection_name").cloned();
    let mut shown = json!({
        "name": named.name, "node": call.api.process.node_name(), "state": connection_state(call, connection, &info),
        "type": "network",
        "protocol": info.protocol, "user": connection.user(), "user_who_performed_action": connection.user(),
        "vhost": connection.vhost(), "host": info.host, "port": info.port, "peer_host": info.peer_host,
        "peer_port": info.peer_port, "auth_mechanism": info.mechanism, "channel_max": info.channel_max,
        "frame_max": info.frame_max, "timeout": info.heartbeat, "connected_at": info.connected_at,
        "channels": info.channels, "client_properties": info.client_properties, "recv_oct": info.received,
        "send_oct": info.sent, "recv_oct_details": {"rate": received}, "send_oct_details": {"rate": sent},
        "send_pend": info.backlog, "ssl": info.tls, "ssl_cipher": null, "ssl_hash": null,
        "ssl_key_exchange": null, "ssl_protocol": null, "peer_cert_issuer": null, "peer_cert_subject": null,
        "peer_cert_validity": null, "websocket": info.websocket,
    });
    if let Some(session) = connection.session() {
        shown["session"] = sessions::of_connection(&session);
    }
    if call.compatibility() == Compatibility::V4 {
        shown["peer_cert_serial_number"] = Value::Null;
    }
    if let (Some(shown), Some(name)) = (shown.as_object_mut(), user_provided_name) {
        shown.insert("user_provided_name".to_owned(), name);
    }
    shown
}

/// The state of a connection. Once an alarm is raised, an AMQP or STOMP connection is `blocking` until it publishes, and then
/// `blocked`. RabbitMQ has no `blocking` for MQTT.
fn connection_state(call: &Call, connection: &dyn ClientConnection, info: &ConnectionInfo) -> &'static str {
    if connection.is_blocked() {
        "blocked"
    } else if !info.protocol.starts_with("MQTT") && call.api.process.blocks_publishers() {
        "blocking"
    } else {
        state(connection.is_in_flow(call.now()))
    }
}

/// RabbitMQ's name of the state of a channel, or of a connection without an alarm.
fn state(is_in_flow: bool) -> &'static str {
    if is_in_flow { "flow" } else { "running" }
}

/// A channel, and the details of its connection.
struct Channel {
    id: u64,
    name: String,
    user: String,
    vhost: String,
    connection: Value,
    info: ChannelInfo,
}

fn channels_in(call: &Call, named: &NamedConnection) -> Vec<Channel> {
    let connection = &*named.connection;
    let details = details(connection);
    let show = |info: ChannelInfo| Channel {
        id: connection.id(),
        name: format!("{} ({})", named.name, info.number),
        user: connection.user().to_owned(),
        vhost: connection.vhost().to_owned(),
        connection: details.clone(),
        info,
    };
    connection.channels(call.now()).into_iter().map(show).collect()
}

fn show_channels(call: &Call, channels: Vec<Channel>) -> ApiAnswer {
    list(call, channels, |channel| (&channel.vhost, &channel.name), |channel| show_channel(call, channel))
}

fn show_channel(call: &Call, channel: &Channel) -> Value {
    let info = channel.info;
    let mut shown = Map::new();
    let mut put = |key: &str, value: Value| shown.insert(key.to_owned(), value);
    put("name", json!(channel.name));
    put("number", json!(info.number));
    put("node", json!(call.api.process.node_name()));
    put("state", json!(state(info.is_in_flow)));
    put("user", json!(channel.user));
    put("user_who_performed_action", json!(channel.user));
    put("vhost", json!(channel.vhost));
    put("connection_details", channel.connection.clone());
    put("confirm", json!(info.confirms));
    put("transactional", json!(info.transactional));
    put("prefetch_count", json!(info.prefetch));
    if call.compatibility() == Compatibility::V3_10 {
        put("global_prefetch_count", json!(info.global_prefetch));
    }
    put("consumer_count", json!(info.consumers));
    put("messages_unacknowledged", json!(info.unacknowledged));
    put("messages_unconfirmed", json!(info.unconfirmed));
    if let Some(stats) = info.counts.as_ref().and_then(stats::of_channel) {
        put("message_stats", stats);
    }
    Value::Object(shown)
}
