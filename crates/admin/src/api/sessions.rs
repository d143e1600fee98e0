//! MQTT and STOMP sessions in front of an upstream, and what they share there.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::{ApiAnswer, Call};
use super::error::ApiError;
use super::leveret::objects;
use super::listing::list;
use super::process::{ClientConnection, DetachedSession, SessionInfo};

/// `GET /api/leveret/sessions`.
pub(super) fn sessions(call: &Call) -> ApiAnswer {
    list(call, all(call), |session| (session.vhost(), session.name()), show)
}

/// `GET /api/leveret/multiplexed-queues/{name}/bindings`.
pub(super) fn multiplexed_bindings(call: &Call) -> ApiAnswer {
    let bindings = call.api.process.multiplexed_bindings(call.at("name")).ok_or_else(ApiError::not_found)?;
    objects(call, bindings, "key")
}

/// `GET /api/leveret/shared-groups`.
pub(super) fn shared_groups(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.shared_groups(), "name")
}

/// `GET /api/leveret/retained`.
pub(super) fn retained(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.retained_messages(), "vhost")
}

/// The session of a connection as it appears in that: RabbitMQ has no such member.
pub(super) fn of_connection(session: &SessionInfo) -> Value {
    let SessionInfo { expiry, subscriptions, published, delivered, .. } = session;
    json!({
        "persistent": *expiry > 0, "expiry_seconds": seconds(*expiry), "subscriptions": subscriptions,
        "messages_published": published, "messages_delivered": delivered,
    })
}

/// A session that a connection has, or one without a connection.
enum ListedSession {
    Connected { name: String, session: SessionInfo, connection: Arc<dyn ClientConnection> },
    Detached(DetachedSession),
}

impl ListedSession {
    /// The client's identifier, or else the name of the connection.
    fn name(&self) -> &str {
        match self {
            Self::Connected { name, .. } => name,
            Self::Detached(session) => &session.client_id,
        }
    }

    fn vhost(&self) -> &str {
        match self {
            Self::Connected { connection, .. } => connection.vhost(),
            Self::Detached(session) => &session.vhost,
        }
    }
}

/// Without an upstream there are none.
fn all(call: &Call) -> Vec<ListedSession> {
    if call.api.broker.is_some() {
        return Vec::new();
    }
    let process = &call.api.process;
    let connected = process.connections().into_iter().filter_map(|connection| {
        let session = connection.session()?;
        let name = session.client_id.clone().unwrap_or_else(|| connection.name());
        Some(ListedSession::Connected { name, session, connection })
    });
    connected.chain(process.detached_sessions().into_iter().map(ListedSession::Detached)).collect()
}

fn show(listed: &ListedSession) -> Value {
    match listed {
        ListedSession::Connected { name, session, connection } => {
            let info = connection.info();
            json!({
                "name": name, "client_id": session.client_id, "user": connection.user(),
                "vhost": connection.vhost(), "state": "connected", "protocol": info.protocol,
                "connection": connection.name(), "peer_host": info.peer_host, "peer_port": info.peer_port,
                "since": info.connected_at, "keep_alive": info.heartbeat, "persistent": session.expiry > 0,
                "expiry_seconds": seconds(session.expiry), "subscriptions": session.subscriptions,
                "messages_published": session.published, "messages_delivered": session.delivered,
                "received_bytes": info.received, "sent_bytes": info.sent,
            })
        }
        ListedSession::Detached(session) => json!({
            "name": session.client_id, "client_id": session.client_id, "user": session.user,
            "vhost": session.vhost, "state": "detached", "protocol": null, "connection": null,
            "since": session.since, "persistent": true, "expiry_seconds": seconds(session.expiry),
            "subscriptions": session.subscriptions,
        }),
    }
}

/// `null` forever.
fn seconds(expiry: u32) -> Value {
    if expiry == u32::MAX { Value::Null } else { expiry.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_for_ever_for_some_time_or_not_at_all() {
        let shown = |expiry| of_connection(&SessionInfo { expiry, ..SessionInfo::default() });
        let reported =
            |expiry| (shown(expiry)["persistent"].clone(), shown(expiry)["expiry_seconds"].clone());
        assert_eq!(reported(0), (json!(false), json!(0)));
        assert_eq!(reported(60), (json!(true), json!(60)));
        assert_eq!(reported(u32::MAX), (json!(true), Value::Null));
    }
}
