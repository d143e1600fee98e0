//! The tables of `leveret top`: where in the API their rows are, and what is shown of each.

use std::cmp::Ordering;

use serde_json::Value;

use crate::ctl::{printable, size};

/// The kind of the server, which determines the tables and figures that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// A Leveret without an upstream.
    Broker,
    /// A Leveret in front of an upstream.
    Pool,
    /// A server with the same API, such as RabbitMQ.
    Other,
}

/// A table.
#[derive(Debug)]
pub(super) struct TableKind {
    /// The heading of its tab.
    pub(super) name: &'static str,
    /// Where its rows are.
    pub(super) path: &'static str,
    /// Whether the server sorts the rows, filters them by name, and returns a page of them.
    pub(super) is_paged: bool,
    pub(super) columns: &'static [TableColumn],
    /// Index of the column that the rows are sorted by at first.
    pub(super) sort: usize,
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct TableColumn {
    pub(super) heading: &'static str,
    /// Where the value is in a row.
    path: &'static str,
    pub(super) unit: Unit,
}

/// How a value is shown, and sorted at first: numbers from the largest, texts from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Text,
    /// A number, or a list whose elements are counted.
    Count,
    /// Events per second.
    Rate,
    Bytes,
    /// Bytes per second.
    ByteRate,
    Seconds,
}

const fn column(heading: &'static str, path: &'static str, unit: Unit) -> TableColumn {
    TableColumn { heading, path, unit }
}

const QUEUES: TableKind = TableKind {
    name: "Queues",
    path: "/api/queues",
    is_paged: true,
    columns: &[
        column("vhost", "vhost", Unit::Text),
        column("name", "name", Unit::Text),
        column("type", "type", Unit::Text),
        column("state", "state", Unit::Text),
        column("ready", "messages_ready", Unit::Count),
        column("unacked", "messages_unacknowledged", Unit::Count),
        column("publish/s", "message_stats.publish_details.rate", Unit::Rate),
        column("deliver/s", "message_stats.deliver_get_details.rate", Unit::Rate),
        column("ack/s", "message_stats.ack_details.rate", Unit::Rate),
        column("consumers", "consumers", Unit::Count),
    ],
    sort: 4,
};

const CONNECTIONS: TableKind = TableKind {
    name: "Connections",
    path: "/api/connections",
    is_paged: true,
    columns: &[
        column("name", "name", Unit::Text),
        column("client's name", "user_provided_name", Unit::Text),
        column("user", "user", Unit::Text),
        column("vhost", "vhost", Unit::Text),
        column("protocol", "protocol", Unit::Text),
        column("state", "state", Unit::Text),
        column("channels", "channels", Unit::Count),
        column("received/s", "recv_oct_details.rate", Unit::ByteRate),
        column("sent/s", "send_oct_details.rate", Unit::ByteRate),
    ],
    sort: 7,
};

const CHANNELS: TableKind = TableKind {
    name: "Channels",
    path: "/api/channels",
    is_paged: true,
    columns: &[
        column("name", "name", Unit::Text),
        column("user", "user", Unit::Text),
        column("vhost", "vhost", Unit::Text),
        column("state", "state", Unit::Text),
        column("prefetch", "prefetch_count", Unit::Count),
        column("consumers", "consumer_count", Unit::Count),
        column("unacked", "messages_unacknowledged", Unit::Count),
        column("unconfirmed", "messages_unconfirmed", Unit::Count),
        column("publish/s", "message_stats.publish_details.rate", Unit::Rate),
        column("deliver/s", "message_stats.deliver_get_details.rate", Unit::Rate),
    ],
    sort: 6,
};

const NODES: TableKind = TableKind {
    name: "Nodes",
    path: "/api/nodes",
    is_paged: false,
    columns: &[
        column("name", "name", Unit::Text),
        column("running", "running", Unit::Text),
        column("memory", "mem_used", Unit::Bytes),
        column("memory limit", "mem_limit", Unit::Bytes),
        column("memory alarm", "mem_alarm", Unit::Text),
        column("disk free", "disk_free", Unit::Bytes),
        column("disk limit", "disk_free_limit", Unit::Bytes),
        column("disk alarm", "disk_free_alarm", Unit::Text),
    ],
    sort: 0,
};

const UPSTREAMS: TableKind = TableKind {
    name: "Upstreams",
    path: "/api/leveret/upstreams",
    is_paged: false,
    columns: &[
        column("address", "address", Unit::Text),
        column("up", "up", Unit::Text),
        column("connections", "connections", Unit::Count),
        column("cause", "cause", Unit::Text),
    ],
    sort: 0,
};

const UPSTREAM_CONNECTIONS: TableKind = TableKind {
    name: "Upstream connections",
    path: "/api/leveret/connections",
    is_paged: false,
    columns: &[
        column("name", "name", Unit::Text),
        column("address", "address", Unit::Text),
        column("user", "user", Unit::Text),
        column("vhost", "vhost", Unit::Text),
        column("clients", "clients", Unit::Count),
        column("channels", "channels", Unit::Count),
        column("waiting", "waiting_bytes", Unit::Bytes),
        column("blocked", "blocked", Unit::Text),
        column("age", "age_seconds", Unit::Seconds),
    ],
    sort: 5,
};

const SPOOL: TableKind = TableKind {
    name: "Spool",
    path: "/api/leveret/spool",
    is_paged: false,
    columns: &[
        column("vhost", "vhost", Unit::Text),
        column("user", "user", Unit::Text),
        column("messages", "messages", Unit::Count),
        column("bytes", "bytes", Unit::Bytes),
        column("oldest", "oldest_seconds", Unit::Seconds),
        column("accept/s", "accept_rate", Unit::Rate),
        column("forward/s", "forward_rate", Unit::Rate),
        column("state", "state", Unit::Text),
        column("waits for", "waits_for", Unit::Text),
    ],
    sort: 2,
};

const OF_BROKER: [&TableKind; 4] = [&QUEUES, &CONNECTIONS, &CHANNELS, &NODES];
const OF_POOL: [&TableKind; 4] = [&CONNECTIONS, &UPSTREAMS, &UPSTREAM_CONNECTIONS, &SPOOL];

impl ServerKind {
    /// The tables that there are, in the order of their tabs.
    pub(super) fn tables(self) -> &'static [&'static TableKind] {
        match self {
            Self::Broker | Self::Other => &OF_BROKER,
            Self::Pool => &OF_POOL,
        }
    }
}

impl Unit {
    pub(super) fn is_number(self) -> bool {
        self != Self::Text
    }

    /// Formats a value; a missing one is empty.
    fn show(self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Null) => String::new(),
            (Self::Text, Value::String(text)) => printable(text),
            (Self::Text, Value::Bool(true)) => "yes".to_owned(),
            (Self::Text, Value::Bool(false)) => "no".to_owned(),
            (Self::Count, value) => number(value).map(|count| grouped(whole(count))).unwrap_or_default(),
            (Self::Rate, value) => value.as_f64().map(rate).unwrap_or_default(),
            (Self::Bytes, value) => value.as_u64().map(size).unwrap_or_default(),
            (Self::ByteRate, value) => value.as_f64().map(|rate| size(whole(rate))).unwrap_or_default(),
            (Self::Seconds, value) => value.as_u64().map(duration).unwrap_or_default(),
            (Self::Text, value) => printable(&value.to_string()),
        }
    }
}

impl TableColumn {
    /// The value in a row.
    pub(super) fn value<'v>(&self, row: &'v Value) -> &'v Value {
        self.path.split('.').try_fold(row, |value, key| value.get(key)).unwrap_or(&Value::Null)
    }

    pub(super) fn show(&self, row: &Value) -> String {
        self.unit.show(self.value(row))
    }

    /// The path as a query of the API names it.
    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// The order of two rows by this column, from the smallest.
    pub(super) fn compare(&self, one: &Value, other: &Value) -> Ordering {
        if self.unit.is_number() {
            let value = |row| number(self.value(row)).unwrap_or(0.0);
            value(one).total_cmp(&value(other))
        } else {
            self.show(one).cmp(&self.show(other))
        }
    }
}

/// The number that a value is, or the number of elements that it has.
fn number(value: &Value) -> Option<f64> {
    value.as_array().map(|all| all.len() as f64).or_else(|| value.as_f64())
}

/// Formats a rate: whole from 10 a second on, with one decimal below.
pub(super) fn rate(rate: f64) -> String {
    if rate >= 9.95 || rate <= 0.0 { grouped(whole(rate)) } else { format!("{rate:.1}") }
}

/// The nearest whole number; 0 for what is negative.
pub(super) fn whole(number: f64) -> u64 {
    // Casts of floats saturate.
    number.round() as u64
}

/// Formats a number with its thousands apart.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of seconds in the two largest units that it has.
pub(super) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        (_, _, _) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_shown_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.25, 9.94, 9.96, 1234.5, -1.0].map(rate), ["0", "0.2", "9.9", "10", "1,235", "0"]);
        assert_eq!(
            [59, 60, 3_599, 3_600, 90_000].map(duration),
            ["59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "1 d 1 h"]
        );
        assert_eq!(Unit::Bytes.show(&json!(1024)), "1.0 KiB");
        assert_eq!(Unit::Text.show(&json!("a\u{1b}[2J")), "a\\u{1b}[2J");
        assert_eq!([json!(true), json!(null)].map(|value| Unit::Text.show(&value)), ["yes", ""]);
    }

    #[test]
    fn rows_are_compared_by_their_displayed_values() {
        let [ready, rate] = [&QUEUES.columns[4], &QUEUES.columns[6]];
        assert_eq!(
            ready.compare(&json!({"messages_ready": 9}), &json!({"messages_ready": 10})),
            Ordering::Less
        );
        let busy = json!({"message_stats": {"publish_details": {"rate": 0.5}}});
        assert_eq!(rate.compare(&busy, &json!({})), Ordering::Greater);
        assert_eq!(rate.show(&busy), "0.5");
        let clients = &UPSTREAM_CONNECTIONS.columns[4];
        let [none, two] = [json!({"clients": []}), json!({"clients": [7, 9]})];
        assert_eq!((clients.show(&two).as_str(), clients.compare(&none, &two)), ("2", Ordering::Less));
    }

    #[test]
    fn every_table_is_sorted_by_a_column_of_its_own() {
        for kind in [ServerKind::Broker, ServerKind::Pool, ServerKind::Other] {
            assert!(kind.tables().iter().all(|table| table.sort < table.columns.len()));
        }
    }
}
