//! Which columns lists have: a name that is none is a mistake, and not an empty column.

use serde_json::Value;

use super::api::Api;
use crate::Failure;
use crate::config::nearest;

/// Refuses a chosen column that no row has, unless servers leave it out where it does not apply. A list without rows does not
/// tell which it may have: then only a name that is nearly a known one is refused. `path` is the list's, and `usual` are the
/// columns that are shown by default.
pub(super) fn check(
    api: &Api,
    path: &str,
    chosen: &[String],
    usual: &[&str],
    rows: &[Value],
) -> Result<(), Failure> {
    let Some(unknown) = first_unknown(chosen, usual, rows, in_some_rows(path)) else { return Ok(()) };
    if rows.is_empty() {
        return match mistyped(unknown, usual) {
            Some(meant) => Err(Failure::Usage(unknown_but_near(unknown, meant))),
            None => Ok(()),
        };
    }
    // Lists in pages have the chosen columns alone.
    let whole = api.get(path).ok().and_then(|whole| whole.get(0).cloned());
    let row = whole.as_ref().and_then(Value::as_object);
    let mut known: Vec<&str> = match row {
        Some(row) => row.keys().map(String::as_str).collect(),
        None => usual.to_vec(),
    };
    known.sort_unstable();
    Err(Failure::Usage(match nearest(unknown, known.iter().copied()) {
        Some(meant) => unknown_but_near(unknown, meant),
        None => format!("unknown column '{unknown}'; some columns are: {}", known.join(", ")),
    }))
}

/// The intended column for a name that is clearly mistyped, rather than a column of another release.
fn mistyped<'k>(unknown: &str, usual: &[&'k str]) -> Option<&'k str> {
    let meant = nearest(unknown, usual.iter().copied().chain(IN_SOME_ROWS.split(' ')))?;
    (strsim::osa_distance(unknown, meant) <= MISTYPED).then_some(meant)
}

/// Letters that are missing, wrong or exchanged in a mistyped name.
const MISTYPED: usize = 2;

fn unknown_but_near(unknown: &str, meant: &str) -> String {
    format!("unknown column '{unknown}'; did you mean '{meant}'?")
}

/// The columns that rows of the list at a path may lack.
fn in_some_rows(path: &str) -> &'static str {
    let list = path.trim_start_matches("/api/");
    // Virtual hosts and pages follow the name of a list of RabbitMQ.
    let is_list = |name: &str| {
        list.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    };
    // None of its rows lacks a member.
    if COMPLETE.iter().any(|name| is_list(name)) { "" } else { IN_SOME_ROWS }
}

/// Lists each of whose rows has all members.
const COMPLETE: [&str; 4] = ["bindings", "leveret/environment", "leveret/upstreams", "leveret/connections"];

fn first_unknown<'c>(
    chosen: &'c [String],
    usual: &[&str],
    rows: &[Value],
    in_some_rows: &str,
) -> Option<&'c str> {
    let is_known = |place: &str| {
        let key = first_key(place);
        rows.iter().any(|row| row.get(place).or_else(|| row.get(key)).is_some())
            || usual.iter().any(|usual| first_key(usual) == key)
            || in_some_rows
                .split(' ')
                .any(|known| known == key || Some(known) == key.strip_suffix("_details"))
    };
    chosen.iter().map(String::as_str).find(|place| !is_known(place))
}

/// The member of a row that holds the value at a place such as `queue.name`.
fn first_key(place: &str) -> &str {
    place.split('.').next().unwrap_or(place)
}

/// Columns of lists of RabbitMQ and Leveret, which rows may lack, and lists without rows cannot tell.
const IN_SOME_ROWS: &str = "ack_required active activity_status arguments auth_mechanism auto_delete backing_queue_status \
     channel_details channel_max channels client_id client_properties cluster_state configure confirm \
     connected_at connection_details connection_name consumer_capacity consumer_count consumer_details \
     consumer_tag consumer_utilisation consumers default_queue_type delivery_limit description \
     durable effective_policy_definition exclusive exclusive_consumer_tag \
     frame_max global_prefetch_count hashing_algorithm head_message_timestamp host id idle_since internal \
     leader limits members memory message_bytes message_bytes_ready message_bytes_unacknowledged \
     message_stats messages messages_paged_out messages_persistent messages_ram messages_ready \
     messages_unacknowledged messages_unconfirmed metadata name node number operator_policy \
     owner_pid_details password_hash peer_cert_issuer peer_cert_subject peer_cert_validity peer_host \
     peer_port policy port prefetch_count product protocol queue read received_bytes \
     recoverable_slaves recv_cnt recv_oct reductions send_cnt send_oct send_pend sent_bytes \
     session single_active_consumer_tag slave_nodes ssl ssl_cipher ssl_hash ssl_key_exchange \
     ssl_protocol state synchronised_slave_nodes tags timeout tracing transactional type \
     upstream_connections user user_provided_name user_who_performed_action vhost waiting_bytes websocket \
     write";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_is_known_by_a_row_by_default_or_by_name() {
        let rows = [json!({"own": 1, "nested": {"name": 2}, "with.dot": 3})];
        let unknown = |place: &str, rows: &[Value]| {
            first_unknown(&[place.to_owned()], &["shown.name"], rows, IN_SOME_ROWS).map(str::to_owned)
        };
        for place in [
            "own",
            "nested.name",
            "with.dot",
            "shown.name",
            "idle_since",
            "message_stats.publish",
            "messages_ready_details.rate",
        ] {
            assert_eq!(unknown(place, &rows), None, "{place}");
        }
        assert_eq!(unknown("nmae", &rows).as_deref(), Some("nmae"));
        assert_eq!(unknown("own", &[]).as_deref(), Some("own"), "an empty list knows no columns of its own");
        assert_eq!(unknown("messages", &[]), None);
    }

    #[test]
    fn a_column_of_another_list_is_unknown() {
        let unknown = |path: &str, place: &str| {
            let rows = [json!({"key": "amqp", "name_of_a_row": 1})];
            first_unknown(&[place.to_owned()], &["key"], &rows, in_some_rows(path)).is_some()
        };
        assert!(unknown("/api/leveret/environment", "name") && unknown("/api/queues/%2F", "source"));
        assert!(!unknown("/api/leveret/environment", "key") && !unknown("/api/queues/%2F", "policy"));
        assert!(unknown("/api/bindings/%2F", "name") && unknown("/api/bindings", "name"));
    }

    #[test]
    fn mistyped_columns_are_distinguished_from_columns_of_other_releases() {
        assert_eq!(mistyped("nmae", &["name"]), Some("name"));
        assert_eq!(mistyped("mesages_ready", &["name"]), Some("messages_ready"));
        for other in ["segments", "pid", "garbage_collection", "slave_pids", "storage_version"] {
            assert_eq!(mistyped(other, &["name"]), None, "{other}");
        }
    }
}
