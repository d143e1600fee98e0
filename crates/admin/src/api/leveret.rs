//! Leveret's own resources: the pool between clients and upstream, limits, and the drain.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use super::listing::list;
use super::process::{MigrationError, MigrationStep};
use super::sessions;

/// `GET /api/leveret/clients`.
pub(super) fn clients(call: &Call) -> ApiAnswer {
    let served = served(&call.api.process.upstream_connections());
    let mut items = Vec::new();
    for connection in call.api.process.connections() {
        items.push((connection.name(), connection));
    }
    list(
        call,
        items,
        |(name, connection)| (connection.vhost(), name),
        |(name, connection)| {
            let info = connection.info();
            let mut shown = json!({
                "id": connection.id(), "name": name, "user": connection.user(), "vhost": connection.vhost(),
                "protocol": info.protocol, "peer_host": info.peer_host, "peer_port": info.peer_port, "ssl": info.tls,
                "websocket": info.websocket, "connected_at": info.connected_at, "received_bytes": info.received,
                "sent_bytes": info.sent, "waiting_bytes": info.backlog,
                "connection_name": info.client_properties.get("connection_name"),
                "product": info.client_properties.get("product"),
                "upstream_connections": served.get(&connection.id()).cloned().unwrap_or_default(),
            });
            if let Some(session) = connection.session() {
                shown["client_id"] = json!(session.client_id);
                shown["keep_alive"] = json!(info.heartbeat);
                shown["session"] = sessions::of_connection(&session);
            }
            shown
        },
    )
}

/// `DELETE /api/leveret/auth-cache`: as `rabbitmqctl clear_auth_backend_cache`, and for what sessions have been told, too.
pub(super) fn clear_cache(call: &Call) -> ApiAnswer {
    if !call.broker()?.clear_cache() {
        return Err(ApiError::bad_request("auth_backends does not include http: no cache to clear"));
    }
    tracing::info!(user = call.user.name(), "auth_backends cache cleared");
    Ok(Reply::no_content())
}

/// The names of the upstream connections that serve each client.
fn served(connections: &[Value]) -> HashMap<u64, Vec<Value>> {
    let mut served: HashMap<u64, Vec<Value>> = HashMap::new();
    for connection in connections {
        for client in connection["clients"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
            served.entry(client).or_default().push(connection["name"].clone());
        }
    }
    served
}

/// `GET /api/leveret/upstreams`.
pub(super) fn upstreams(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.upstreams(), "address")
}

/// `GET /api/leveret/connections`.
pub(super) fn connections(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.upstream_connections(), "name")
}

/// `GET /api/leveret/multiplexed-queues`.
pub(super) fn multiplexed_queues(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.multiplexed_queues(), "name")
}

/// `GET /api/leveret/spool`.
pub(super) fn spool(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.spool_queues(), "user")
}

/// The user and the virtual host that select spooled messages.
fn selection(call: &Call) -> Result<(Option<&str>, Option<&str>), ApiError> {
    call.queries_only(&["user", "vhost"])?;
    Ok((call.query("user"), call.query("vhost")))
}

/// Replies with an object that only some processes have.
fn found(object: Option<Value>) -> ApiAnswer {
    object.map(Reply::json).ok_or_else(ApiError::not_found)
}

/// The same for what was changed in the spool: sent once that is on disk.
fn changed(call: &Call, object: Option<Value>) -> ApiAnswer {
    found(object).map(|reply| reply.when_stored_in(call.api.process.spool_store()))
}

/// `GET /api/leveret/spool/parked`.
pub(super) fn parked(call: &Call) -> ApiAnswer {
    objects(call, call.api.process.parked_messages(), "exchange")
}

/// `POST /api/leveret/spool/parked/requeue`.
pub(super) fn requeue_parked(call: &Call) -> ApiAnswer {
    let (user, vhost) = selection(call)?;
    changed(call, call.api.process.requeue_parked(user, vhost))
}

/// `POST /api/leveret/spool/pause`.
pub(super) fn pause_spool(call: &Call) -> ApiAnswer {
    steer_spool(call, "pause")
}

/// `POST /api/leveret/spool/resume`.
pub(super) fn resume_spool(call: &Call) -> ApiAnswer {
    steer_spool(call, "resume")
}

/// `POST /api/leveret/spool/drain`.
pub(super) fn drain_spool(call: &Call) -> ApiAnswer {
    steer_spool(call, "drain")
}

fn steer_spool(call: &Call, action: &str) -> ApiAnswer {
    found(call.api.process.steer_spool(action))
}

/// `DELETE /api/leveret/spool/parked`.
pub(super) fn purge_parked(call: &Call) -> ApiAnswer {
    let (user, vhost) = selection(call)?;
    changed(call, call.api.process.purge_parked(user, vhost))
}

/// `DELETE /api/leveret/spool/waiting`. The user has to be given, so that nobody drops everything by accident.
pub(super) fn purge_waiting(call: &Call) -> ApiAnswer {
    let (user, vhost) = selection(call)?;
    let user = user.ok_or_else(|| ApiError::bad_request("user is missing"))?;
    changed(call, call.api.process.purge_waiting(user, vhost))
}

/// `GET /api/leveret/leases`.
pub(super) fn leases(call: &Call) -> ApiAnswer {
    found(call.api.process.leases())
}

/// `GET /api/leveret/limits`.
pub(super) fn limits(call: &Call) -> ApiAnswer {
    Ok(Reply::json(call.api.process.limits()))
}

/// `GET /api/leveret/environment`.
pub(super) fn environment(call: &Call) -> ApiAnswer {
    Ok(Reply::json(call.api.process.environment()))
}

/// `POST /api/leveret/drain`: responds once the drain has begun.
pub(super) fn drain(call: &Call) -> ApiAnswer {
    tracing::info!(user = call.user.name(), "shutdown requested over HTTP");
    call.api.process.drain();
    Ok(Reply::no_content())
}

/// `POST /api/leveret/upgrade`: responds once the successor has been started.
pub(super) fn upgrade(call: &Call) -> ApiAnswer {
    tracing::info!(user = call.user.name(), "upgrade requested over HTTP");
    call.api.process.upgrade().map(Reply::json).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// `GET /api/leveret/upgrade`.
pub(super) fn upgrade_status(call: &Call) -> ApiAnswer {
    Ok(Reply::json(call.api.process.upgrade_status()))
}

/// `GET /api/leveret/migration`.
pub(super) fn migration(call: &Call) -> ApiAnswer {
    Ok(Reply::json(call.api.process.migration()))
}

/// `POST /api/leveret/migration`.
pub(super) fn start_migration(call: &Call) -> ApiAnswer {
    steer_migration(call, MigrationStep::Start(&call.object()?))
}

/// `POST /api/leveret/migration/check-login`.
pub(super) fn check_migration_login(call: &Call) -> ApiAnswer {
    steer_migration(call, MigrationStep::CheckLogin(&call.object()?))
}

/// `DELETE /api/leveret/migration`.
pub(super) fn stop_migration(call: &Call) -> ApiAnswer {
    steer_migration(call, MigrationStep::Stop)
}

/// `POST /api/leveret/migration/cut-over`.
pub(super) fn cut_over(call: &Call) -> ApiAnswer {
    steer_migration(call, MigrationStep::CutOver(&call.object()?))
}

/// `POST /api/leveret/migration/finish`.
pub(super) fn finish_migration(call: &Call) -> ApiAnswer {
    steer_migration(call, MigrationStep::Finish(&call.object()?))
}

fn steer_migration(call: &Call, step: MigrationStep<'_>) -> ApiAnswer {
    let step = call.api.process.steer_migration(step);
    step.map(Reply::json).map_err(|error| match error {
        MigrationError::Refused(_) => ApiError::bad_request(error.to_string()),
        MigrationError::OtherMove(_) => ApiError::conflict(error.to_string()),
    })
}

/// Replies with objects that are sorted by the member that is their name.
pub(super) fn objects(call: &Call, objects: Vec<Value>, name: &str) -> ApiAnswer {
    let items: Vec<_> = objects
        .into_iter()
        .map(|object| (object[name].as_str().unwrap_or_default().to_owned(), object))
        .collect();
    list(call, items, |(name, _)| ("", name), |(_, object)| object.clone())
}
