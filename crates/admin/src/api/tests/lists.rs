//! Bounds on the work of a list.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;

use super::*;

/// As many queues, each with a number behind this name.
fn queues_named(name: &str, count: usize) -> Arc<Api> {
    let (broker, api) = world();
    for number in 0..count {
        declare(&broker, &format!("{name}{number}"));
    }
    api
}

/// The status of a list of queues, and how many it has.
fn listed(api: &Arc<Api>, query: &[(&str, &str)]) -> (StatusCode, usize) {
    match queues::all(&call(api, &[], query, &json!({}))) {
        Ok(reply) => {
            let items: Value = serde_json::from_slice(&reply.body.unwrap().into_bytes()).unwrap();
            (reply.status, items.as_array().unwrap().len())
        }
        Err(error) => (error.into_response().status(), 0),
    }
}

fn matching(pattern: &str) -> [(&'static str, &str); 2] {
    [("name", pattern), ("use_regex", "true")]
}

#[test]
fn an_expression_that_explodes_is_refused_at_the_first_name() {
    let api = queues_named(&"a".repeat(200), 50);
    for pattern in [r"(a*)*\1b", r"(?=(a+))(a+)+(?!a)b"] {
        assert_eq!(listed(&api, &matching(pattern)), (StatusCode::BAD_REQUEST, 0), "{pattern}");
    }
    assert_eq!(listed(&api, &matching("A0$")), (StatusCode::OK, 1));
    assert_eq!(listed(&api, &matching("(a|aa)+b")), (StatusCode::OK, 0), "this one needs no steps");
}

#[test]
fn the_more_names_there_are_the_fewer_steps_each_may_take() {
    // For 150 times the letter a, this takes some 11,000 steps.
    let (name, pattern) = ("a".repeat(150), r"(a+)\1b");
    assert_eq!(listed(&queues_named(&name, 100), &matching(pattern)), (StatusCode::OK, 0));
    assert_eq!(listed(&queues_named(&name, 5000), &matching(pattern)), (StatusCode::BAD_REQUEST, 0));
}

#[test]
fn a_list_has_so_many_columns_and_no_more() {
    let api = queues_named("q", 1);
    let columns = |count| ["name"].repeat(count).join(",");
    assert_eq!(listed(&api, &[("columns", &columns(256))]), (StatusCode::OK, 1));
    assert_eq!(listed(&api, &[("columns", &columns(257))]), (StatusCode::BAD_REQUEST, 0));
}

#[test]
fn a_list_that_nobody_waits_for_ends_at_the_next_item() {
    let api = queues_named("q", 3);
    for query in [&[][..], &matching("(?=q)"), &[("sort", "messages")], &[("name", "q"), ("page", "1")]] {
        let call = call(&api, &[], query, &json!({}));
        let looked_at = Cell::new(0);
        let show = |_: &CollectedItem| {
            looked_at.set(looked_at.get() + 1);
            call.is_abandoned.store(true, Ordering::Relaxed);
            json!({"messages": 0})
        };
        let queues = api.queues.get(api.broker.as_ref().unwrap());
        assert!(list_sorted(&call, &queues, CollectedItem::key, show).is_err());
        assert_eq!(looked_at.get(), 1, "{query:?}");
        assert!(list_sorted(&call, &queues, CollectedItem::key, show).is_err());
        assert_eq!(looked_at.get(), 1, "{query:?}, where it was known before");
    }
}
