//! The link that reads the log, in front of a stream.

use std::task::Waker;

use amqp::properties::PERSISTENT;

use super::stream::TestStream;
use super::*;
use crate::mqtt::upstream::retained::link::{LogLink, MARKER_TIMEOUT};
use crate::mqtt::upstream::retained::log::{LogProgress, RetainedLog};
use crate::upstream::multiplexing::link::LinkStep;
use crate::upstream::multiplexing::task::UpstreamLink;

pub(super) fn log() -> Arc<RetainedLog> {
    RetainedLog::new("/", &EXCHANGE.into(), LIMITS, Clock::start(), false)
}

fn login(user: &str) -> UpstreamLogin {
    let credentials = Arc::new(Credentials::plain(user, "secret"));
    UpstreamLogin { prefix: LOG, credentials, vhost: "/".into() }
}

pub(super) fn client(log: &Arc<RetainedLog>, user: &str) -> (LogClient, Arc<Outbox>) {
    let outbox = Arc::new(Outbox::new(1));
    (log.join(&login(user), &outbox).unwrap(), outbox)
}

/// A link that has read the whole stream.
pub(super) fn link(log: &Arc<RetainedLog>, stream: &TestStream) -> LogLink {
    stream.permit(USER);
    let mut link = LogLink::new(log, &login(USER), stream.client(USER));
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    link
}

pub(super) fn turn(link: &mut LogLink) -> Result<LinkStep, crate::upstream::multiplexing::link::LinkEnd> {
    link.take_turn(Waker::noop(), transport::now())
}

fn payloads(client: &LogClient, filter: &str) -> Vec<String> {
    let (mut progress, mut found) = (LogProgress::default(), Vec::new());
    while !progress.is_done() {
        found.extend(client.matching(filter, &mut progress, NOW));
    }
    found.iter().map(|message| message.payload.escape_ascii().to_string()).collect()
}

pub(super) fn retain(stream: &TestStream, topic: &str, payload: &[u8]) {
    stream.append(EXCHANGE, original(topic, payload, &PropertyList::new(), QoS::AtLeastOnce));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_the_marker_of_an_earlier_one_publishes_its_own() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    drop(link(&log, &stream));
    // The link of another login has published a marker that it has not read back.
    let published = stream.len();
    let unread = client.ticket(&outbox).unwrap();
    stream.append(LOG, record::marker(log.process, unread));
    retain(&stream, "a", b"x");
    let mut link = link(&log, &stream);
    assert!(stream.len() > published + 2, "it has published one");
    assert!(client.has_reached(unread));
    for _ in 0..3 {
        let ticket = client.ticket(&outbox).unwrap();
        assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
        assert!(client.has_reached(ticket));
    }
    assert_eq!(payloads(&client, "a"), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_with_malformed_properties_does_not_end_the_log() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    let offset = stream.len() as i64;
    let headers: FieldTable =
        [("xx", FieldValue::Void), ("x-stream-offset", FieldValue::I64(offset))].into_iter().collect();
    let headers = headers.encode();
    let mut properties = Vec::new();
    Properties { delivery_mode: Some(PERSISTENT), ..Properties::default() }
        .with_content_type("\u{1}")
        .with_headers(RawTable::check(&headers).unwrap())
        .encode(&mut properties);
    let name = properties.windows(3).position(|bytes| bytes == b"\x02xx").unwrap();
    properties[name + 1] = 0xff;
    // An invalid content type.
    properties[3] = 0xfe;
    stream.append(EXCHANGE, Encoded { routing_key: "a".into(), properties, body: Bytes::new() });
    retain(&stream, "b", b"x");
    let ticket = client.ticket(&outbox).unwrap();
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    assert!(client.has_reached(ticket));
    assert_eq!(payloads(&client, "#"), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_client_outlast_a_log_that_is_read_again() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut first = link(&log, &stream);
    retain(&stream, "a", b"x");
    retain(&stream, "b", b"x");
    let ticket = client.ticket(&outbox).unwrap();
    assert_eq!(turn(&mut first), Ok(LinkStep::Idle));
    assert!(client.has_reached(ticket));
    stream.delete();
    turn(&mut first).unwrap_err();
    // The new log has messages and a marker from before the replacement.
    retain(&stream, "a", b"y");
    stream.append(LOG, record::marker(log.process, ticket));
    assert_eq!(
        (payloads(&client, "a"), payloads(&client, "b")),
        (vec!["x".to_owned()], vec!["x".to_owned()])
    );
    let mut second = LogLink::new(&log, &login(USER), stream.client(USER));
    assert_eq!(payloads(&client, "#").len(), 2);
    assert!(client.get("b", NOW).is_some() && client.must_wait(&outbox));
    assert_eq!(turn(&mut second), Ok(LinkStep::Idle));
    assert_eq!(payloads(&client, "#"), ["y"], "all of it has been read");
    assert!(client.get("b", NOW).is_none() && !client.must_wait(&outbox));
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_was_not_asked_for_reaches_no_ticket() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    stream.append(LOG, record::marker(log.process, u64::MAX));
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    let ticket = client.ticket(&outbox).unwrap();
    assert!(!client.has_reached(ticket));
    retain(&stream, "a", b"x");
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    assert!(client.has_reached(ticket) && payloads(&client, "a") == ["x"]);
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_the_upstream_has_dropped_is_published_again() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    stream.drop_next(2);
    let ticket = client.ticket(&outbox).unwrap();
    for _ in 0..2 {
        assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
        assert!(!client.has_reached(ticket));
        assert_eq!(link.next_deadline(), Some(transport::now() + MARKER_TIMEOUT));
        tokio::time::advance(MARKER_TIMEOUT).await;
    }
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    assert!(client.has_reached(ticket));
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_once_however_often_it_asks() {
    let log = log();
    let clients = [client(&log, USER), client(&log, USER)];
    for _ in 0..10 {
        log.expire(transport::now());
        for (client, outbox) in &clients {
            assert!(client.must_wait(outbox));
            client.is_decided(outbox);
        }
        assert_eq!(clients[0].0.waits(), clients.len());
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}
