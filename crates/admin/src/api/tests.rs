//! Tests of routes on a broker, without sockets.

use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use broker::{BrokerConfig, QueueDeclare, Store, Timestamp};
use bytes::Bytes;
use serde_json::{Value, json};

use super::call::Call;
use super::listing::list_sorted;
use super::login::User;
use super::snapshot::CollectedItem;
use super::*;

mod channels;
mod lists;
mod rates;
mod refused;

/// A process without listeners, with the connections that the test adds.
#[derive(Default)]
struct Quiet {
    /// Whether an alarm is in effect.
    alarm: AtomicBool,
    /// Milliseconds by which the clock is advanced.
    later: AtomicU64,
    connection_limit: Option<u64>,
    /// Whether everything is about to have moved to another broker.
    has_moved: Arc<AtomicBool>,
    /// The open connections.
    connections: Vec<Arc<dyn ClientConnection>>,
    /// A barrier reached when the connections are requested, and again before they are listed.
    gate: Option<Arc<Barrier>>,
}

impl Process for Quiet {
    fn now(&self) -> Timestamp {
        Timestamp(1).after(self.later.load(Ordering::Relaxed))
    }

    fn version(&self) -> &str {
        "1"
    }

    fn node_name(&self) -> &str {
        "leveret@here"
    }

    fn node(&self) -> NodeInfo {
        NodeInfo::default()
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        Vec::new()
    }

    fn tls_listeners(&self) -> Vec<TlsListener> {
        Vec::new()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn connection_count(&self) -> u64 {
        0
    }

    fn connections(&self) -> Vec<Arc<dyn ClientConnection>> {
        if let Some(gate) = &self.gate {
            gate.wait();
            gate.wait();
        }
        self.connections.clone()
    }

    fn connection(&self, _: u64) -> Option<Arc<dyn ClientConnection>> {
        None
    }

    fn connection_named(&self, _: &str) -> Option<Arc<dyn ClientConnection>> {
        None
    }

    fn upstreams(&self) -> Vec<Value> {
        Vec::new()
    }

    fn upstream_connections(&self) -> Vec<Value> {
        Vec::new()
    }

    fn multiplexed_queues(&self) -> Vec<Value> {
        Vec::new()
    }

    fn multiplexed_bindings(&self, _: &str) -> Option<Vec<Value>> {
        None
    }

    fn detached_sessions(&self) -> Vec<DetachedSession> {
        Vec::new()
    }

    fn shared_groups(&self) -> Vec<Value> {
        Vec::new()
    }

    fn retained_messages(&self) -> Vec<Value> {
        Vec::new()
    }

    fn spool_queues(&self) -> Vec<Value> {
        Vec::new()
    }

    fn spool_store(&self) -> Option<Arc<Store>> {
        None
    }

    fn parked_messages(&self) -> Vec<Value> {
        Vec::new()
    }

    fn requeue_parked(&self, _: Option<&str>, _: Option<&str>) -> Option<Value> {
        None
    }

    fn steer_spool(&self, _: &str) -> Option<Value> {
        None
    }

    fn purge_parked(&self, _: Option<&str>, _: Option<&str>) -> Option<Value> {
        None
    }

    fn purge_waiting(&self, _: &str, _: Option<&str>) -> Option<Value> {
        None
    }

    fn leases(&self) -> Option<Value> {
        None
    }

    fn max_message_size(&self) -> u64 {
        1 << 20
    }

    fn frame_max(&self) -> u32 {
        FRAME_MAX
    }

    fn consumer_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn blocks_publishers(&self) -> bool {
        self.alarm.load(Ordering::Relaxed)
    }

    fn connections_in_use(&self) -> u64 {
        self.connections.len() as u64
    }

    fn connection_limit(&self) -> Option<u64> {
        self.connection_limit
    }

    fn limits(&self) -> Value {
        Value::Null
    }

    fn environment(&self) -> Value {
        Value::Null
    }

    fn drain(&self) {}

    fn upgrade(&self) -> Result<Value, UpgradeRefused> {
        Err(UpgradeRefused("a test has no successor".into()))
    }

    fn upgrade_status(&self) -> Value {
        json!({})
    }

    fn migration(&self) -> Value {
        json!({})
    }

    fn begin_change(&self) -> Option<ChangePermit> {
        (!self.has_moved.load(Ordering::Relaxed)).then(ChangePermit::default)
    }

    fn steer_migration(&self, step: MigrationStep<'_>) -> Result<Value, MigrationError> {
        match step {
            MigrationStep::CutOver(named) if !named.is_empty() => {
                Err(MigrationError::OtherMove("a test moves nothing there".into()))
            }
            _ => Err(MigrationError::Refused("a test moves nothing".into())),
        }
    }
}

/// An API whose broker is about to have moved.
pub(super) fn moved_world() -> Arc<Api> {
    let (api, has_moved) = moving_world();
    has_moved.store(true, Ordering::Relaxed);
    api
}

/// An API whose broker is about to have moved once the flag is set.
pub(super) fn moving_world() -> (Arc<Api>, Arc<AtomicBool>) {
    let has_moved = Arc::default();
    let quiet = Quiet { has_moved: Arc::clone(&has_moved), ..Quiet::default() };
    (Api::new(Some(world().0), Arc::new(quiet)), has_moved)
}

/// An API of a process with one connection, which meets the gate when it is asked for its connections, and the number of
/// times that the connection has been shown.
pub(super) fn gated_world() -> (Arc<Api>, Arc<Barrier>, Arc<AtomicUsize>) {
    let (gate, shown) = (Arc::new(Barrier::new(2)), Arc::default());
    let connection = channels::Connected { shown: Arc::clone(&shown), ..channels::Connected::default() };
    let quiet =
        Quiet { connections: vec![Arc::new(connection)], gate: Some(Arc::clone(&gate)), ..Quiet::default() };
    (Api::new(Some(world().0), Arc::new(quiet)), gate, shown)
}

pub(super) fn world() -> (Arc<Broker>, Arc<Api>) {
    let broker = Broker::new(BrokerConfig::default());
    let api = Api::new(Some(Arc::clone(&broker)), Arc::new(Quiet::default()));
    (broker, api)
}

fn declare(broker: &Broker, name: &str) {
    let declare = QueueDeclare { name, ..QueueDeclare::default() };
    broker.vhost("/").unwrap().declare_queue(SESSION, &declare, Timestamp(1)).unwrap();
}

/// A request of user guest.
fn call(api: &Arc<Api>, names: &[(&'static str, &str)], query: &[(&str, &str)], body: &Value) -> Call {
    let here = Caller { ip: None, is_local: true };
    let broker = api.broker.as_ref().unwrap();
    let user = User::of(broker, broker.authenticate("guest", b"guest", true).unwrap(), here);
    let user = user.unwrap_or_else(|_| panic!("guest"));
    Call {
        api: Arc::clone(api),
        user,
        names: names.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
        query: query.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        body: Bytes::from(body.to_string()),
        reason: None,
        is_abandoned: Arc::default(),
    }
}

fn shown(answer: call::ApiAnswer) -> Value {
    let reply = answer.unwrap_or_else(|error| panic!("{error:?}"));
    serde_json::from_slice(&reply.body.unwrap().into_bytes()).unwrap()
}

#[test]
fn a_page_of_a_hundred_thousand_queues_costs_that_page() {
    let (broker, api) = world();
    for number in 0..100_000 {
        declare(&broker, &format!("q{number:06}"));
    }
    let looked_at = Cell::new(0);
    let page = |number: &str| {
        let query = [("page", number), ("page_size", "100")];
        let call = call(&api, &[], &query, &json!({}));
        let show = |listed: &CollectedItem| {
            looked_at.set(looked_at.get() + 1);
            json!({"name": &**listed.queue.name()})
        };
        shown(list_sorted(&call, &api.queues.get(&broker), CollectedItem::key, show))
    };
    let first = page("1");
    assert_eq!(
        (first["items"][0]["name"].as_str(), first["total_count"].as_u64()),
        (Some("q000000"), Some(100_000))
    );
    for number in 2..=10 {
        page(&number.to_string());
    }
    assert_eq!(page("1000")["items"][99]["name"], "q099999");
    assert_eq!(looked_at.get(), 1100, "eleven pages of a hundred");
    assert_eq!(api.queues.walks(), 1, "walked through once, for none has come or gone");
    declare(&broker, "a");
    assert_eq!(page("1")["items"][0]["name"], "a", "what is new is there");
    assert_eq!(api.queues.walks(), 2);
}

#[test]
fn a_deleted_queue_is_listed_no_more() {
    let (broker, api) = world();
    declare(&broker, "q");
    let all = || shown(queues::all(&call(&api, &[], &[], &json!({}))));
    assert_eq!(all()[0]["name"], "q");
    let names = [("vhost", "/"), ("name", "q")];
    assert!(queues::delete(&call(&api, &names, &[], &json!({}))).is_ok());
    assert_eq!(all(), json!([]));
}

#[test]
fn lists_are_sorted_and_filtered_as_requested() {
    let (broker, api) = world();
    for name in ["b", "a", "c"] {
        declare(&broker, name);
    }
    let message = json!({"properties": {}, "routing_key": "b", "payload": "x", "payload_encoding": "string"});
    let publish = call(&api, &[("vhost", "/"), ("name", "amq.default")], &[], &message);
    assert_eq!(shown(messages::publish(&publish)), json!({"routed": true}));
    let names = |query: &[(&str, &str)]| {
        let all = shown(queues::all(&call(&api, &[], query, &json!({}))));
        let names = all.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&[]), "a b c");
    assert_eq!(names(&[("sort_reverse", "true")]), "c b a");
    assert_eq!(names(&[("sort", "messages"), ("sort_reverse", "true")]).split(' ').next(), Some("b"));
    assert_eq!(names(&[("name", "B")]), "b");
}

#[test]
fn messages_got_with_requeue_stay_in_the_queue_as_redelivered() {
    let (broker, api) = world();
    declare(&broker, "q");
    for payload in ["one", "two"] {
        let message =
            json!({"properties": {}, "routing_key": "q", "payload": payload, "payload_encoding": "string"});
        let at = [("vhost", "/"), ("name", "amq.default")];
        assert!(messages::publish(&call(&api, &at, &[], &message)).is_ok());
    }
    let get = |mode: &str| {
        let wanted = json!({"count": 5, "ackmode": mode, "encoding": "auto"});
        let got = shown(messages::get(&call(&api, &[("vhost", "/"), ("name", "q")], &[], &wanted)));
        let got = got.as_array().unwrap().clone();
        got.iter().map(|got| (got["payload"].clone(), got["redelivered"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(get("ack_requeue_true"), [(json!("one"), json!(false)), (json!("two"), json!(false))]);
    assert_eq!(get("ack_requeue_false"), [(json!("one"), json!(true)), (json!("two"), json!(true))]);
    assert_eq!(get("ack_requeue_true"), []);
}

/// The process's `frame_max`, in bytes.
const FRAME_MAX: u32 = 131_072;
