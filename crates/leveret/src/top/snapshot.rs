//! A server at one moment, as its API describes it.

use std::time::Instant;

use serde_json::Value;

use super::tables::{ServerKind, TableKind, duration, grouped};
use crate::Failure;
use crate::ctl::{Api, encode, path, printable, size};

/// Which rows are to be shown. The server is asked for no others, as it may have millions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Index among the tables of the server's kind.
    pub(super) table: usize,
    /// Index of the column to sort by; `None` for that of the table.
    pub(super) sort: Option<usize>,
    /// Whether the order is turned round.
    pub(super) reverse: bool,
    /// A part of the name, or where the server does not filter, of any text of the row; in any case. Empty for all rows.
    pub(super) filter: String,
}

/// A server at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    pub(super) kind: ServerKind,
    /// Product, version, mode and node.
    pub(super) title: String,
    /// Counts and resources: label and formatted value.
    pub(super) facts: Vec<(&'static str, String)>,
    /// One sentence for each problem that the server reports.
    pub(super) alarms: Vec<String>,
    pub(super) rates: Vec<(&'static str, Reading)>,
    /// The query that the rows answer.
    pub(super) query: Query,
    pub(super) rows: Vec<Value>,
    /// How many there are, of which the rows are the first.
    pub(super) total: usize,
}

/// How a rate is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Per second, over the server's own window.
    PerSecond(f64),
    /// Events since the server's start: the rate takes two snapshots.
    Counter(u64),
}

/// Rows that are asked for at most.
const PAGE: usize = 200;

/// Rates of a broker: what is shown, and its name in `message_stats`.
const OF_BROKER: [(&str, &str); 5] = [
    ("Publish", "publish"),
    ("Confirm", "confirm"),
    ("Deliver / get", "deliver_get"),
    ("Acknowledge", "ack"),
    ("Unroutable", "drop_unroutable"),
];

/// Counters of a pool, with their names in its leases.
const OF_POOL: [(&str, &str); 3] = [
    ("To upstreams", "messages_to_upstreams"),
    ("From upstreams", "messages_from_upstreams"),
    ("Channels leased", "leases"),
];

/// Counts in the overview: label and path.
const COUNTS: [(&str, &str); 7] = [
    ("Ready", "/queue_totals/messages_ready"),
    ("Unacked", "/queue_totals/messages_unacknowledged"),
    ("Connections", "/object_totals/connections"),
    ("Channels", "/object_totals/channels"),
    ("Queues", "/object_totals/queues"),
    ("Exchanges", "/object_totals/exchanges"),
    ("Consumers", "/object_totals/consumers"),
];

/// Counts of a pool, with their names in its leases.
const SHARING: [(&str, &str); 4] = [
    ("Upstream connections", "upstream_connections"),
    ("Upstream channels", "channels"),
    ("Handshakes avoided", "handshakes_avoided"),
    ("Round trips saved", "round_trips_saved"),
];

impl Snapshot {
    /// Asks the server.
    ///
    /// # Errors
    /// It does not answer, or refuses the user.
    pub(super) fn take(api: &Api, query: &Query) -> Result<Self, Failure> {
        let overview = api.get(&path(&["overview"]))?;
        let kind = kind(&overview);
        let leases = match kind {
            ServerKind::Pool => api.get(&path(&["leveret", "leases"]))?,
            ServerKind::Broker | ServerKind::Other => Value::Null,
        };
        // A pool has none, and a user without the tag monitoring is refused.
        let nodes = api.found(&path(&["nodes"])).ok().flatten().unwrap_or_default();
        let table = kind.tables()[query.table.min(kind.tables().len() - 1)];
        let answer = api.get(&query.path(table))?;
        let mut snapshot = Self::of(kind, &overview, &leases, &nodes);
        snapshot.query = query.clone();
        snapshot.list(table, answer);
        Ok(snapshot)
    }

    /// Everything but the rows.
    fn of(kind: ServerKind, overview: &Value, leases: &Value, nodes: &Value) -> Self {
        let node = node(overview, nodes);
        let mut facts: Vec<(&str, String)> = Vec::new();
        for (label, pointer) in COUNTS {
            facts.extend(
                overview.pointer(pointer).and_then(Value::as_u64).map(|count| (label, grouped(count))),
            );
        }
        for (label, name) in SHARING {
            facts.extend(leases.get(name).and_then(Value::as_u64).map(|count| (label, grouped(count))));
        }
        facts.extend(used(node, "mem_used", "mem_limit").map(|text| ("Memory", text)));
        facts.extend(node["disk_free"].as_u64().map(|bytes| ("Disk free", size(bytes))));
        Self {
            at: Instant::now(),
            kind,
            title: title(kind, overview, node),
            facts,
            alarms: alarms(leases, nodes),
            rates: rates(kind, overview, leases),
            query: Query::default(),
            rows: Vec::new(),
            total: 0,
        }
    }

    /// Takes the rows of an answer, which a server that returns no pages has not sorted.
    fn list(&mut self, table: &TableKind, answer: Value) {
        let counted = answer.get("filtered_count").and_then(Value::as_u64);
        let mut rows = match answer {
            Value::Array(rows) => rows,
            Value::Object(mut page) => match page.remove("items") {
                Some(Value::Array(rows)) => rows,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        if counted.is_none() {
            let filter = self.query.filter.to_lowercase();
            let texts = || table.columns.iter().filter(|column| !column.unit.is_number());
            rows.retain(|row| texts().any(|column| column.show(row).to_lowercase().contains(&filter)));
            let column = &table.columns[self.query.sorted_by(table)];
            rows.sort_by(|one, other| column.compare(one, other));
            if self.query.is_descending(table) {
                rows.reverse();
            }
        }
        self.total = counted.map_or(rows.len(), |count| count as usize);
        self.rows = rows;
    }
}

impl Query {
    /// Index of the column that the rows of `table` are sorted by.
    pub(super) fn sorted_by(&self, table: &TableKind) -> usize {
        self.sort.unwrap_or(table.sort).min(table.columns.len() - 1)
    }

    /// Whether the largest comes first.
    pub(super) fn is_descending(&self, table: &TableKind) -> bool {
        table.columns[self.sorted_by(table)].unit.is_number() != self.reverse
    }

    fn path(&self, table: &TableKind) -> String {
        if !table.is_paged {
            return table.path.to_owned();
        }
        let columns: Vec<&str> = table.columns.iter().map(super::tables::TableColumn::path).collect();
        let (sort, reverse) = (table.columns[self.sorted_by(table)].path(), self.is_descending(table));
        let columns = encode(&columns.join(","));
        let order = format!("sort={sort}&sort_reverse={reverse}&columns={columns}");
        let mut path = format!("{}?page=1&page_size={PAGE}&pagination=true&{order}", table.path);
        if !self.filter.is_empty() {
            path.push_str("&use_regex=false&name=");
            path.push_str(&encode(&self.filter));
        }
        path
    }
}

fn kind(overview: &Value) -> ServerKind {
    match overview["mode"].as_str() {
        Some("proxy") => ServerKind::Pool,
        Some(_) => ServerKind::Broker,
        None => ServerKind::Other,
    }
}

/// The node that answers, or else the first one.
fn node<'v>(overview: &Value, nodes: &'v Value) -> &'v Value {
    let all = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    let own = all.iter().find(|node| node["name"] == overview["node"]);
    own.or(all.first()).unwrap_or(&Value::Null)
}

fn title(kind: ServerKind, overview: &Value, node: &Value) -> String {
    let text = |key: &str| overview[key].as_str().map(printable).unwrap_or_default();
    let mut title = match kind {
        ServerKind::Broker => format!("{} {}, broker", text("product_name"), text("product_version")),
        ServerKind::Pool => format!("{} {}, pool", text("product_name"), text("product_version")),
        // RabbitMQ 3.8 and later say their product.
        ServerKind::Other if overview["product_name"].is_string() => {
            format!("{} {}", text("product_name"), text("product_version"))
        }
        ServerKind::Other => format!("RabbitMQ {}", text("rabbitmq_version")),
    };
    title.push_str(", ");
    title.push_str(&text("node"));
    if let Some(milliseconds) = node["uptime"].as_u64() {
        title.push_str(", up ");
        title.push_str(&duration(milliseconds / 1000));
    }
    title
}

/// An amount with its limit, if there is one.
fn used(node: &Value, used: &str, limit: &str) -> Option<String> {
    let used = size(node[used].as_u64()?);
    Some(match node[limit].as_u64() {
        Some(limit) => format!("{used} of {}", size(limit)),
        None => used,
    })
}

fn alarms(leases: &Value, nodes: &Value) -> Vec<String> {
    let mut alarms = Vec::new();
    for node in nodes.as_array().into_iter().flatten() {
        let name = node["name"].as_str().map(printable).unwrap_or_default();
        for (key, what) in [("mem_alarm", "memory alarm"), ("disk_free_alarm", "disk alarm")] {
            if node[key] == true {
                alarms.push(format!("{what} on {name}: publishers are blocked"));
            }
        }
        if node["running"] == false {
            alarms.push(format!("{name} is not running"));
        }
    }
    if leases["reachable"] == false {
        alarms.push("no upstream is reachable".to_owned());
    }
    if let Some(blocked) = leases["blocked_connections"].as_u64().filter(|count| *count > 0) {
        alarms.push(format!("the upstream blocks publishers on {blocked} connections"));
    }
    alarms
}

fn rates(kind: ServerKind, overview: &Value, leases: &Value) -> Vec<(&'static str, Reading)> {
    if kind == ServerKind::Pool {
        let counter = |(label, name): (&'static str, &str)| {
            (label, Reading::Counter(leases[name].as_u64().unwrap_or(0)))
        };
        return OF_POOL.map(counter).to_vec();
    }
    let rate = |(label, name): (&'static str, &str)| {
        let rate = overview["message_stats"][format!("{name}_details")]["rate"].as_f64();
        (label, Reading::PerSecond(rate.unwrap_or(0.0)))
    };
    OF_BROKER.map(rate).to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_known_by_its_overview() {
        assert_eq!(kind(&json!({"mode": "broker"})), ServerKind::Broker);
        assert_eq!(kind(&json!({"mode": "proxy"})), ServerKind::Pool);
        let overview = json!({"product_name": "RabbitMQ", "product_version": "4.3.6", "node": "rabbit@a"});
        let snapshot = Snapshot::of(
            kind(&overview),
            &overview,
            &Value::Null,
            &json!([{"name": "rabbit@a", "uptime": 61_000}]),
        );
        assert_eq!(snapshot.title, "RabbitMQ 4.3.6, rabbit@a, up 1 min 1 s");
    }

    #[test]
    fn problems_are_alarms() {
        let nodes =
            json!([{"name": "a", "mem_alarm": true, "running": true}, {"name": "b", "running": false}]);
        let alarms = alarms(&json!({"reachable": false, "blocked_connections": 2}), &nodes);
        assert_eq!(
            alarms,
            [
                "memory alarm on a: publishers are blocked",
                "b is not running",
                "no upstream is reachable",
                "the upstream blocks publishers on 2 connections",
            ]
        );
    }

    #[test]
    fn pages_are_sorted_and_filtered_by_the_server() {
        let queues = ServerKind::Broker.tables()[0];
        let query = Query { filter: "a b".to_owned(), ..Query::default() };
        let path = query.path(queues);
        assert!(path.contains("&sort=messages_ready&sort_reverse=true&"), "{path}");
        assert!(path.ends_with("&use_regex=false&name=a%20b"), "{path}");
        let by_name = Query { sort: Some(1), ..Query::default() };
        assert!(by_name.path(queues).contains("&sort=name&sort_reverse=false&"));
        let mut snapshot = Snapshot::of(ServerKind::Broker, &Value::Null, &Value::Null, &Value::Null);
        let page = json!({"filtered_count": 1000, "items": [{"name": "b"}, {"name": "a"}]});
        snapshot.list(queues, page);
        assert_eq!((snapshot.rows.len(), snapshot.total), (2, 1000));
        assert_eq!(snapshot.rows[0]["name"], "b");
    }

    #[test]
    fn other_rows_are_sorted_and_filtered_here() {
        let connections = ServerKind::Pool.tables()[2];
        let mut snapshot = Snapshot::of(ServerKind::Pool, &Value::Null, &Value::Null, &Value::Null);
        snapshot.query.filter = "Ann".to_owned();
        snapshot.list(
            connections,
            json!([
                {"user": "ann", "channels": 1},
                {"user": "bob", "channels": 9},
                {"user": "ann", "channels": 5},
            ]),
        );
        let channels: Vec<&Value> = snapshot.rows.iter().map(|row| &row["channels"]).collect();
        assert_eq!(channels, [5, 1]);
        assert_eq!(snapshot.total, 2);
    }
}
