//! The pool's limits in one table: ARCHITECTURE.md contains it, and a test compares the two.

use std::time::Duration;

use crate::auth_gate::{
    HANDSHAKES_AT_ONCE, HANDSHAKES_TO_NODE, HANDSHAKES_TO_VHOST, REFUSAL_TTL, REFUSED_MAX, VERIFIED_MAX,
};
use crate::config::{PoolConfig, QUEUED_CLIENT_MAX, STREAM_SHARE, WAITING_BUDGET_MIN, WAITING_BUDGETS};
use crate::pool::OPENING_MAX;
use crate::session::{MAX_UNANSWERED_SECRETS, STAGING_BUDGET};
use crate::topology::{CLIENT_BYTES_MAX, TOTAL_BYTES_MAX};
use crate::upstream::{HARD_LIMIT, OVERDUE_AFTER, WINDOW};
use crate::{staging, waiting};

/// The columns: the resource, the limits of one client and of all, what happens there, and whom that wakes again.
type Row = [String; 5];

/// Limits of bytes on their way. `upstream_*` are settings, with their defaults.
fn bytes(config: &PoolConfig) -> Vec<Row> {
    assert_eq!([STREAM_SHARE, waiting::SHARE], [8, 8], "an eighth");
    vec![
        row(
            "incomplete messages (`proxy::staging`)",
            &size(STAGING_BUDGET),
            &format!(
                "{}, {} each, and a read for each that waits",
                size(config.staging_total_max),
                size(staging::ALWAYS)
            ),
            "over its own limit a client streams on a connection of its own; over the total it is not read, or \
             streams, for which an eighth of the connections may be used",
            &format!(
                "space or a stream that is released, in order; a client that has held either for {} gives way while \
                 others wait",
                time(config.staging_patience)
            ),
        ),
        row(
            "frames that wait for an upstream connection (`proxy::quota`)",
            &format!("{} and a read", size(QUEUED_CLIENT_MAX)),
            &format!("{}, and a read each", size(config.queued_total_max)),
            "at either limit a client that has any is not read",
            "the placement of its frames",
        ),
        row(
            "unconfirmed publishes and unanswered methods kept for an upstream's return, including overhead (`proxy::replay_buffer`)",
            &format!("`upstream_replay_client`, {}", size(config.replay_client_max)),
            &format!("`upstream_replay_total`, {}", size(config.replay_total_max)),
            "at either limit a client that has any is not read",
            "each answer of the upstream to it",
        ),
        row(
            "data sent by clients that are gone, including overhead, kept until an upstream answers something after it (P11)",
            "none",
            &size(config.departed_total_max),
            "a close waits for the upstream; data of clients that vanish is not kept, but counted",
            "the upstream's close-ok",
        ),
        row(
            "deliveries waiting for a client of a shared upstream connection, the next one included",
            &format!("`upstream_consumer_budget`, {}", size(config.consumer_budget)),
            "as below",
            "its consumers move to a connection of its own",
            "nobody waits",
        ),
        row(
            "deliveries and answers that wait for clients to read (`proxy::waiting`)",
            &format!("an eighth of what all others leave, at least {}", size(waiting::ALWAYS)),
            &format!(
                "{WAITING_BUDGETS} × `upstream_consumer_budget`, each as {} at least; {} each, a read for each own connection, \
                 and answers under way",
                size(WAITING_BUDGET_MIN),
                size(waiting::ALWAYS)
            ),
            "a client that does not read is not read, nor is its own upstream connection; its consumers move",
            "the client, when it reads",
        ),
    ]
}

/// Limits of bytes that an upstream has not read yet.
fn towards_upstreams(config: &PoolConfig) -> Vec<Row> {
    vec![
        row(
            "bytes that wait for a shared upstream connection",
            &format!("{} and a read", size(WINDOW as usize)),
            &format!("{} × {} for each connection", HARD_LIMIT, size(config.outbox_limit)),
            "the client is not read",
            "half of its bytes being written",
        ),
        row(
            "bytes that wait for a client's own upstream connection",
            &format!("{} and a read", size(config.outbox_limit)),
            "none",
            "the client is not read",
            "half of them being written",
        ),
    ]
}

/// Limits of connections and of what is remembered.
fn others(config: &PoolConfig) -> Vec<Row> {
    vec![
        row(
            "upstream connections",
            "none",
            &format!(
                "`upstream_connections_total`, {}; an eighth of them for streams",
                config.max_connections
            ),
            &format!("a client waits for `upstream_arrival_max`, {}, then 506", time(config.arrival_max)),
            "a connection that ends, in order, or one that becomes unused and serves the client",
        ),
        row(
            "channels of shared upstream connections for one login and virtual host, of either role",
            "none",
            &format!(
                "`upstream_connections_max`, {}, times `upstream_channels_max`, {}",
                config.max_shared_connections, config.max_channels_per_connection
            ),
            &format!(
                "a client waits for `upstream_arrival_max`, {}, then 506; during an alarm it waits until that ends",
                time(config.arrival_max)
            ),
            &format!(
                "a channel that becomes idle, or one of a departed client that has waited {} for confirms",
                time(OVERDUE_AFTER)
            ),
        ),
        row(
            "handshakes with upstreams (`proxy::auth_gate`)",
            "none",
            &format!(
                "{HANDSHAKES_AT_ONCE} with credentials that were accepted before, {HANDSHAKES_TO_VHOST} of them to the same virtual \
                 host and {HANDSHAKES_TO_NODE} of these to the same of several nodes, and {HANDSHAKES_AT_ONCE} with others"
            ),
            "the login waits for `upstream_arrival_max`",
            "another handshake's end, in order",
        ),
        row(
            "logins remembered",
            "one of a user",
            &format!("{VERIFIED_MAX} accepted; {REFUSED_MAX} refused, for {}", time(REFUSAL_TTL)),
            "the oldest refused one, or any accepted one, is forgotten",
            "nobody waits",
        ),
        row(
            "channels being opened upstream for the same credentials and virtual host",
            "none",
            &OPENING_MAX.to_string(),
            &format!(
                "a client waits up to {} for an idle one, then one more is opened",
                time(config.opening_patience)
            ),
            "a channel that becomes idle, or is open",
        ),
        row(
            "declarations that end with the upstream (`proxy::topology`)",
            &size(CLIENT_BYTES_MAX),
            &size(TOTAL_BYTES_MAX),
            "nothing of that client is remembered: 320 when the upstream restarts",
            "nobody waits",
        ),
        row(
            "new secrets without an answer",
            &MAX_UNANSWERED_SECRETS.to_string(),
            "none",
            "506",
            "nobody waits",
        ),
    ]
}

fn row(resource: &str, each: &str, all: &str, at_limit: &str, wakes: &str) -> Row {
    [resource, each, all, at_limit, wakes].map(str::to_owned)
}

fn size(bytes: usize) -> String {
    let mib = 1024 * 1024;
    if bytes >= mib { format!("{} MiB", bytes / mib) } else { format!("{} KiB", bytes / 1024) }
}

fn time(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}

#[test]
fn the_document_has_the_limits_of_the_code() {
    let config = PoolConfig::new(Vec::new());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md");
    let document = std::fs::read_to_string(path).unwrap();
    let begin = "| what the pool limits | for one client | for all | what happens at the limit | what ends the wait |\n|---|---|---|---|---|\n";
    let table: String = bytes(&config)
        .iter()
        .chain(&towards_upstreams(&config))
        .chain(&others(&config))
        .map(|row| format!("| {} |\n", row.join(" | ")))
        .collect();
    let expected = format!("{begin}{table}\n");
    assert!(document.contains(&expected), "ARCHITECTURE.md should contain\n\n{expected}");
}
