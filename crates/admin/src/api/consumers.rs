//! Consumers, as lists and as parts of queues and channels.

use std::collections::HashMap;
use std::sync::Arc;

use broker::{Compatibility, ConsumerInfo, Queue, SessionId};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call};
use super::connections::details;
use super::listing::list;
use super::process::ClientConnection;
use super::snapshot::of_vhost;

/// `GET /api/consumers`, and those of a virtual host. As in RabbitMQ, users who may not see everybody's connections see the
/// consumers of their own.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let broker = call.broker()?;
    let queues = call.api.queues.get(broker);
    let mut items = Vec::new();
    let known = ConnectionViews::default();
    let is_seen = |info: &ConsumerInfo| {
        call.user.is_monitor()
            || known.get(call, info.session.0).is_some_and(|(_, user)| call.user.sees_connections_of(&user))
    };
    for vhost in call.visible_vhosts()? {
        for listed in of_vhost(&queues, vhost.name()) {
            let consumers = listed.queue.consumers().into_iter().filter(is_seen);
            items.extend(consumers.map(|info| (vhost.name().to_owned(), Arc::clone(&listed.queue), info)));
        }
    }
    list(
        call,
        items,
        |(vhost, _, info)| (vhost, &info.tag),
        |(vhost, queue, info)| show(call, vhost, queue, info, &known),
    )
}

/// The consumers of a queue.
pub(super) fn consumers_of_queue(call: &Call, vhost: &str, queue: &Queue) -> Vec<Value> {
    let known = ConnectionViews::default();
    queue.consumers().iter().map(|info| show(call, vhost, queue, info, &known)).collect()
}

/// The consumers of a channel. The search through the queues ends when `count` of them are found.
pub(super) fn consumers_of_channel(call: &Call, connection: u64, channel: u16, count: u64) -> Vec<Value> {
    let (Ok(broker), Some(found)) = (call.broker(), call.api.process.connection(connection)) else {
        return Vec::new();
    };
    let queues = call.api.queues.get(broker);
    let known = ConnectionViews::default();
    let mut shown = Vec::new();
    for listed in of_vhost(&queues, found.vhost()) {
        if shown.len() as u64 >= count {
            break;
        }
        let own = listed.queue.consumers_of(SessionId(connection), channel);
        shown.extend(own.iter().map(|info| show(call, found.vhost(), &listed.queue, info, &known)));
    }
    shown
}

/// Details of connections, each computed once, since many consumers may share one.
#[derive(Default)]
struct ConnectionViews(std::cell::RefCell<HashMap<u64, Option<(Value, String)>>>);

impl ConnectionViews {
    fn get(&self, call: &Call, id: u64) -> Option<(Value, String)> {
        let look =
            |connection: Arc<dyn ClientConnection>| (details(&*connection), connection.user().to_owned());
        let mut known = self.0.borrow_mut();
        known.entry(id).or_insert_with(|| call.api.process.connection(id).map(look)).clone()
    }
}

fn show(call: &Call, vhost: &str, queue: &Queue, info: &ConsumerInfo, known: &ConnectionViews) -> Value {
    let mut channel = Map::new();
    if let Some((connection, user)) = known.get(call, info.session.0) {
        let name = connection["name"].as_str().unwrap_or_default();
        channel.insert("name".into(), format!("{name} ({})", info.channel).into());
        channel.insert("connection_name".into(), name.into());
        channel.insert("number".into(), info.channel.into());
        channel.insert("node".into(), call.api.process.node_name().into());
        channel.insert("peer_host".into(), connection["peer_host"].clone());
        channel.insert("peer_port".into(), connection["peer_port"].clone());
        channel.insert("user".into(), user.into());
    }
    let arguments = match info.priority {
        0 => json!({}),
        priority => json!({"x-priority": priority}),
    };
    let mut shown = json!({
        "arguments": arguments, "ack_required": !info.no_ack, "active": info.active,
        "activity_status": if info.active { "up" } else { "waiting" }, "channel_details": channel,
        "consumer_tag": info.tag, "exclusive": info.exclusive, "prefetch_count": info.prefetch,
        "queue": {"name": &**queue.name(), "vhost": vhost},
    });
    if call.compatibility() == Compatibility::V4 {
        let milliseconds = call.api.process.consumer_timeout().as_millis();
        shown["consumer_timeout"] = u64::try_from(milliseconds).unwrap_or(u64::MAX).into();
    }
    shown
}
