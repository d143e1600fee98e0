use super::super::answers::MAX_UNREAD;
use super::super::tests::{gated_world, moved_world, moving_world, world};
use super::super::{LARGE_DEFINITIONS, LARGE_MESSAGES, REQUESTS_AT_ONCE};
use super::*;

fn parts(method: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().method(method).uri("/api/overview");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap().into_parts().0
}

#[test]
fn a_page_of_somebody_else_changes_nothing() {
    let foreign = [("host", "127.0.0.1:15672"), ("origin", "http://evil.example")];
    assert!(check_origin(&parts("POST", &foreign)).is_err());
    assert!(check_origin(&parts("DELETE", &[("host", "a:1"), ("origin", "null")])).is_err());
    assert!(check_origin(&parts("GET", &foreign)).is_ok(), "which it cannot read");
    assert!(check_origin(&parts("POST", &[("host", "a:1"), ("origin", "http://a:1")])).is_ok());
    assert!(check_origin(&parts("POST", &[("host", "a:1")])).is_ok(), "no browser");
}

#[test]
fn over_tls_a_page_without_tls_is_somebody_elses() {
    let changed = |origin| {
        let mut head = parts("POST", &[("host", "a:1"), ("origin", origin)]);
        let without = check_origin(&head).is_ok();
        head.extensions.insert(OverTls);
        (without, check_origin(&head).is_ok())
    };
    assert_eq!(changed("https://a:1"), (true, true));
    assert_eq!(changed("http://a:1"), (true, false));
    assert_eq!(changed("https://b:1"), (false, false));
}

#[test]
fn a_borrowed_name_is_not_this_machine() {
    let named = |host| names_this_machine(&parts("GET", &[("host", host)]).headers);
    for host in ["localhost", "localhost:15673", "127.0.0.1", "127.0.0.1:1", "[::1]:15673", "[::1]"] {
        assert!(named(host), "{host}");
    }
    assert!(!named("rebound.example:15673"));
    assert!(!named("127.0.0.1.example"));
}

async fn guest(headers: &[(&str, &str)]) -> Result<User, ApiError> {
    let (_, api) = world();
    log_in_here(&api, [&[("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")], headers].concat().as_slice()).await
}

async fn nobody(headers: &[(&str, &str)]) -> Result<User, ApiError> {
    log_in_here(&Api::new(None, Arc::clone(&world().1.process)), headers).await
}

/// Logs in over the loopback interface.
async fn log_in_here(api: &Api, headers: &[(&str, &str)]) -> Result<User, ApiError> {
    let mut head = parts("GET", headers);
    head.extensions.insert(Caller { ip: "127.0.0.1".parse().ok(), is_local: true });
    let found = routes::find("/api/overview", api.served()).unwrap();
    log_in(api, &head, found.action(&Method::GET).unwrap().who).await
}

#[tokio::test]
async fn guest_is_not_let_in_under_a_borrowed_name() {
    assert!(guest(&[("host", "localhost:15672")]).await.is_ok());
    assert!(guest(&[("host", "rebound.example:15672")]).await.is_err());
    assert!(nobody(&[("host", "127.0.0.1:15673")]).await.is_ok());
    assert!(nobody(&[("host", "rebound.example:15673")]).await.is_err());
}

#[tokio::test]
async fn proxied_requests_do_not_count_as_local() {
    for name in ["forwarded", "via", "x-real-ip", "x-forwarded-for", "X-Forwarded-Host"] {
        let headers = [("host", "127.0.0.1"), (name, "10.0.0.1")];
        assert!(guest(&headers).await.is_err() && nobody(&headers).await.is_err(), "{name}");
    }
}

/// The answer to a request of user guest.
async fn ask(api: &Arc<Api>, method: Method, path: &str, body: &'static str) -> Response {
    let mut head = parts(method.as_str(), &[("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")]);
    head.extensions.insert(Caller { ip: None, is_local: true });
    let found = routes::find(path, api.served());
    let answer = answer(Arc::clone(api), found, NO_ROUTE, &head, Body::from(body)).await;
    answer.unwrap_or_else(IntoResponse::into_response)
}

#[tokio::test]
async fn a_request_waits_for_others_as_long_as_is_said_and_may_come_again() {
    let (_, api) = world();
    let at_once = Duration::ZERO;
    let others = Arc::clone(&api.threads).acquire_many_owned(REQUESTS_AT_ONCE as u32).await.unwrap();
    let change = Arc::clone(&api.changes).lock_owned().await;
    let refused = [
        thread(&api, &Method::GET, at_once).await.unwrap_err(),
        begin_changing(&api, at_once).await.unwrap_err(),
    ];
    for response in refused.map(IntoResponse::into_response) {
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    }
    drop((others, change));
    assert!(thread(&api, &Method::GET, at_once).await.is_ok());
    assert!(begin_changing(&api, at_once).await.is_ok());
}

#[tokio::test]
async fn changes_that_wait_for_another_keep_nobody_else_waiting() {
    let (_, api) = world();
    let import = Arc::clone(&api.changes).lock_owned().await;
    let put = |number: usize| {
        let api = Arc::clone(&api);
        let path = format!("/api/users/u{number}");
        tokio::spawn(async move { ask(&api, Method::PUT, &path, r#"{"tags": ""}"#).await.status() })
    };
    let waiting: Vec<_> = (0..REQUESTS_AT_ONCE).map(put).collect();
    // Each has the lock in its hands while it waits, as have the API and the import.
    while Arc::strong_count(&api.changes) < waiting.len() + 2 {
        tokio::task::yield_now().await;
    }
    for path in ["/api/whoami", "/api/health/checks/alarms", "/api/users"] {
        assert_eq!(ask(&api, Method::GET, path, "").await.status(), StatusCode::OK, "{path}");
    }
    let declared = ask(&api, Method::PUT, "/api/queues/%2F/q", "{}").await;
    assert_eq!(declared.status(), StatusCode::CREATED, "a queue is no definition in this sense");
    drop(import);
    for change in waiting {
        assert_eq!(change.await.unwrap(), StatusCode::CREATED);
    }
}

#[tokio::test]
async fn imports_that_wait_for_one_another_keep_no_large_message_waiting() {
    let (_, api) = world();
    let first = Arc::clone(&api.changes).lock_owned().await;
    let import = |_| {
        let api = Arc::clone(&api);
        // A body of unknown length counts as a large one.
        tokio::spawn(async move { ask(&api, Method::POST, "/api/definitions", "{}").await.status() })
    };
    let waiting: Vec<_> = (0..LARGE_MESSAGES + LARGE_DEFINITIONS).map(import).collect();
    while Arc::strong_count(&api.changes) < 3 {
        tokio::task::yield_now().await;
    }
    let message = r#"{"routing_key": "", "payload": "", "payload_encoding": "string", "properties": {}}"#;
    let published = ask(&api, Method::POST, "/api/exchanges/%2F/amq.fanout/publish", message).await;
    assert_eq!(published.status(), StatusCode::OK);
    assert!(permit_for_large(&api.large_definitions, Duration::ZERO).await.is_err(), "given up in the end");
    drop(first);
    for import in waiting {
        assert_eq!(import.await.unwrap(), StatusCode::NO_CONTENT);
    }
}

#[tokio::test]
async fn the_end_of_a_move_does_not_wait_for_changes_that_wait_for_another() {
    let (api, has_moved) = moving_world();
    let import = Arc::clone(&api.changes).lock_owned().await;
    let waiting = tokio::spawn({
        let api = Arc::clone(&api);
        async move { ask(&api, Method::PUT, "/api/users/u", r#"{"tags": ""}"#).await.status() }
    });
    while Arc::strong_count(&api.changes) < 3 {
        tokio::task::yield_now().await;
    }
    // It holds no permit for which the end would wait, and is refused one now.
    has_moved.store(true, Ordering::Relaxed);
    drop(import);
    assert_eq!(waiting.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_list_is_not_finished_for_a_client_that_has_gone() {
    let (api, gate, shown) = gated_world();
    let request = tokio::spawn({
        let api = Arc::clone(&api);
        async move { ask(&api, Method::GET, "/api/connections", "").await }
    });
    let meet = || {
        tokio::task::spawn_blocking({
            let gate = Arc::clone(&gate);
            move || gate.wait()
        })
    };
    meet().await.unwrap();
    // The server drops a request whose connection has ended.
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    meet().await.unwrap();
    // The thread has ended once it has given its permit back.
    let _ended = api.threads.acquire_many(REQUESTS_AT_ONCE as u32).await.unwrap();
    assert_eq!(shown.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_request_waits_for_capacity_for_its_answer_and_one_without_does_not() {
    let (_, api) = world();
    let unread = api.answers.keep(vec![0; MAX_UNREAD].into(), None);
    let (at_once, an_hour) = (Duration::ZERO, Duration::from_secs(3600));
    assert!(thread(&api, &Method::GET, at_once).await.is_err(), "given up in the end");
    assert!(thread(&api, &Method::DELETE, at_once).await.is_ok());
    let (got, ()) = tokio::join!(thread(&api, &Method::GET, an_hour), async { drop(unread) });
    assert!(got.is_ok());
}

#[tokio::test]
async fn an_answer_is_counted_until_it_is_gone() {
    let (_, api) = world();
    let mut head = parts("GET", &[("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")]);
    head.extensions.insert(Caller { ip: None, is_local: true });
    let found = routes::find(head.uri.path(), api.served());
    let response = answer(Arc::clone(&api), found, NO_ROUTE, &head, Body::empty()).await.unwrap();
    assert!(api.answers.unread() > 0);
    drop(response);
    assert_eq!(api.answers.unread(), 0);
}

#[test]
fn queries_are_decoded_as_forms_are() {
    let uri = "/api/queues?name=a%2Fb+c&use_regex&page=1".parse().unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(query(&uri), [pair("name", "a/b c"), pair("use_regex", ""), pair("page", "1")]);
}

#[tokio::test]
async fn requests_whose_effect_a_move_would_lose_are_refused() {
    let api = moved_world();
    let status = async |method, path| ask(&api, method, path, "{}").await.status();
    let publish = "/api/exchanges/%2F/amq.default/publish";
    assert_eq!(status(Method::POST, publish).await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status(Method::PUT, "/api/queues/%2F/q").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status(Method::GET, "/api/queues").await, StatusCode::OK);
    // It answers that a test moves nothing.
    assert_eq!(status(Method::POST, "/api/leveret/migration/finish").await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_step_of_another_move_than_the_one_that_is_named_is_a_conflict() {
    let api = moved_world();
    for (body, expected) in [
        ("", StatusCode::BAD_REQUEST),
        ("{}", StatusCode::BAD_REQUEST),
        (r#"{"addresses": ["amqp://other"]}"#, StatusCode::CONFLICT),
    ] {
        let answer = ask(&api, Method::POST, "/api/leveret/migration/cut-over", body).await;
        assert_eq!(answer.status(), expected, "{body}");
    }
}
