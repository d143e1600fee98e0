//! Explains why a server has nothing at a path of its API.

use percent_encoding::percent_decode_str;

use crate::http_client::Endpoint;

/// The reason in words: `no queue 'q' in vhost '/'`. `mode` is what a Leveret says of itself, `broker` or `proxy`; other
/// servers say nothing. `None` if there is no better reason than the server's own.
pub(super) fn explain(path: &str, mode: Option<&str>, server: &Endpoint) -> Option<String> {
    let path = path.strip_prefix("/api/")?.split('?').next()?;
    let parts: Vec<String> =
        path.split('/').map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (mode, &parts[..]) {
        (_, ["leveret", "multiplexed-queues", queue, ..]) if mode == Some("proxy") => {
            Some(format!("no multiplexed queue '{queue}'"))
        }
        (None, ["leveret", ..]) => {
            Some(format!("{server} is not a Leveret, and only Leveret has this command"))
        }
        (Some("broker"), ["leveret", ..]) => Some(only_for_a_pool(&parts[1..].join(" "))),
        (_, ["leveret", ..]) => None,
        (Some("proxy"), ["connections", _] | ["connections", "username", _]) => object(&parts),
        (Some("proxy"), [what, ..]) => Some(format!(
            "this is a pool, which has no {} of its own: ask the upstream (--url http://UPSTREAM:15672)",
            what.replace('-', " ")
        )),
        (_, parts) => object(parts),
    }
}

/// The reason why a broker has nothing to answer.
pub(super) fn only_for_a_pool(what: &str) -> String {
    format!("{what}: only for a pool; this server is a broker")
}

/// The paths of what a binding needs, the virtual host first; empty for the path of something else.
pub(super) fn needed_by(path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["", "api", "bindings", vhost, "e", source, end, destination, ..] => {
            let kind = if end == "q" { "queues" } else { "exchanges" };
            vec![
                format!("/api/vhosts/{vhost}"),
                format!("/api/exchanges/{vhost}/{source}"),
                format!("/api/{kind}/{vhost}/{destination}"),
            ]
        }
        _ => Vec::new(),
    }
}

/// The object of a path that does not exist.
fn object(parts: &[&str]) -> Option<String> {
    Some(match parts {
        ["queues", vhost, queue, ..] => format!("no queue '{queue}' in vhost '{vhost}'"),
        ["exchanges", vhost, exchange, ..] => format!("no exchange '{exchange}' in vhost '{vhost}'"),
        ["bindings", vhost, "e", source, end, destination, ..] => {
            let kind = if *end == "q" { "queue" } else { "exchange" };
            format!("no such binding of {kind} '{destination}' to exchange '{source}' in vhost '{vhost}'")
        }
        ["policies", vhost, policy] => format!("no policy '{policy}' in vhost '{vhost}'"),
        ["operator-policies", vhost, policy] => format!("no operator policy '{policy}' in vhost '{vhost}'"),
        ["permissions", vhost, user] | ["topic-permissions", vhost, user] => {
            format!("no permissions of user '{user}' in vhost '{vhost}'")
        }
        ["vhost-limits", vhost, limit] => format!("no limit '{limit}' of vhost '{vhost}'"),
        ["user-limits", user, limit] => format!("no limit '{limit}' of user '{user}'"),
        ["users" | "user-limits", user, ..] | ["connections", "username", user] => {
            format!("no user '{user}'")
        }
        ["connections", connection] => format!("no connection '{connection}'"),
        [
            "vhosts" | "queues" | "exchanges" | "bindings" | "consumers" | "policies" | "operator-policies"
            | "vhost-limits" | "definitions",
            vhost,
            ..,
        ] => format!("no vhost '{vhost}'"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(path: &str, mode: Option<&str>) -> Option<String> {
        explain(path, mode, &Endpoint::parse("http://here:15672").unwrap())
    }

    #[test]
    fn the_object_is_named_as_a_broker_would() {
        for (path, line) in [
            ("/api/queues/%2F/a%20b/contents", "no queue 'a b' in vhost '/'"),
            ("/api/queues/%2F/q?if-empty=true", "no queue 'q' in vhost '/'"),
            ("/api/queues/nope?page=1&page_size=500", "no vhost 'nope'"),
            ("/api/bindings/nope", "no vhost 'nope'"),
            (
                "/api/bindings/%2F/e/a%20b/q/c/k",
                "no such binding of queue 'c' to exchange 'a b' in vhost '/'",
            ),
            ("/api/vhosts/nope/permissions", "no vhost 'nope'"),
            ("/api/users/ann/permissions", "no user 'ann'"),
            ("/api/permissions/%2F/ann", "no permissions of user 'ann' in vhost '/'"),
            ("/api/connections/127.0.0.1%3A1", "no connection '127.0.0.1:1'"),
        ] {
            for mode in [None, Some("broker")] {
                assert_eq!(explained(path, mode).as_deref(), Some(line), "{path}");
            }
        }
        assert_eq!(explained("/api/extensions", Some("broker")), None);
    }

    #[test]
    fn a_binding_needs_both_of_its_ends() {
        let needed = needed_by("/api/bindings/%2F/e/a%20b/e/c");
        assert_eq!(needed, ["/api/vhosts/%2F", "/api/exchanges/%2F/a%20b", "/api/exchanges/%2F/c"]);
        let needed = needed_by("/api/bindings/v/e/a/q/c/key");
        assert_eq!(needed, ["/api/vhosts/v", "/api/exchanges/v/a", "/api/queues/v/c"]);
        assert_eq!(needed_by("/api/queues/v/q/bindings"), Vec::<String>::new());
    }

    #[test]
    fn a_server_of_another_kind_says_where_to_ask() {
        let pool = explained("/api/queues/%2F", Some("proxy")).unwrap();
        assert!(
            pool.starts_with("this is a pool, which has no queues of its own: ask the upstream"),
            "{pool}"
        );
        let broker = explained("/api/leveret/leases", Some("broker")).unwrap();
        assert_eq!(broker, "leases: only for a pool; this server is a broker");
        let rabbitmq = explained("/api/leveret/clients", None).unwrap();
        assert_eq!(rabbitmq, "http://here:15672 is not a Leveret, and only Leveret has this command");
    }
}
