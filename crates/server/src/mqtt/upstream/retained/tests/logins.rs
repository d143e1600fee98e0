//! The choice of the login that reads a log.

use std::time::Instant;

use amqp::ReplyCode;
use transport::InnerOutbox;

use super::stream::{StreamLogin, TestStream};
use super::*;
use crate::mqtt::upstream::retained::log::MAX_DECISION;
use crate::mqtt::upstream::retained::logins::{LogLogins, MAX_REFUSALS};
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::task::{OpenError, OpenUpstream};

fn login(user: impl ToString) -> UpstreamLogin {
    let credentials = Arc::new(Credentials::plain(user.to_string(), "secret"));
    UpstreamLogin { prefix: LOG, credentials, vhost: "/".into() }
}

fn next(logins: &LogLogins, now: Instant) -> Option<String> {
    logins.next(now).map(|login| login.credentials.username.clone())
}

#[test]
fn an_accepted_login_is_preferred_and_each_login_is_tried_once() {
    let (mut logins, now) = (LogLogins::default(), Instant::now());
    assert!(logins.join(&login("good"), now) && next(&logins, now).is_some());
    logins.handle_accepted(&login("good"));
    logins.leave(&login("good"));
    for number in 0..100 {
        assert_eq!(logins.join(&login(number), now), number < MAX_REFUSALS, "{number}");
        assert_eq!(next(&logins, now), Some(number.to_string()), "earlier logins were refused");
        logins.handle_refused(&login(number), now);
        assert!(!logins.is_worth_waiting(now));
        // The client reconnects at once.
        logins.leave(&login(number));
        assert!(!logins.join(&login(number), now));
        assert_eq!((next(&logins, now), logins.needs(&login("good"))), (None, true));
    }
    logins.join(&login(1000), now);
    assert!(logins.join(&login("good"), now) && logins.is_worth_waiting(now));
    assert_eq!(next(&logins, now).as_deref(), Some("good"));
    logins.leave(&login(1000));
    assert!(!logins.needs(&login(1000)) && logins.needs(&login("good")));
    // Until the first login is refused as well.
    logins.handle_refused(&login("good"), now);
    assert_eq!((next(&logins, now), logins.needs(&login(1000))), (None, true));
    let later = now + REFUSAL_TTL;
    assert_eq!(logins.next_retry(now), Some(later));
    assert!(next(&logins, later).is_some() && logins.is_worth_waiting(later));
    logins.leave(&login("good"));
    for number in 0..100 {
        logins.leave(&login(number));
    }
    assert!(!logins.has_clients() && next(&logins, later).is_none() && logins.next_retry(now).is_none());
}

#[test]
fn logins_that_were_refused_are_tried_again_in_their_order_and_a_few_at_a_time() {
    let (mut logins, now) = (LogLogins::default(), Instant::now());
    for number in 0..20 {
        logins.join(&login(number), now);
        logins.handle_refused(&login(number), now + Duration::from_millis(number));
    }
    let mut later = now + Duration::from_secs(3600);
    for round in 0..20 {
        if round > 0 && round % MAX_REFUSALS == 0 {
            assert_eq!(next(&logins, later), None, "{round}");
            later += REFUSAL_TTL;
        }
        assert_eq!(next(&logins, later), Some(round.to_string()));
        logins.handle_refused(&login(round), later);
    }
}

#[test]
fn a_login_that_was_refused_is_tried_again_however_many_come_that_are_refused() {
    let (mut logins, begun) = (LogLogins::default(), Instant::now());
    let (mut refused, mut again) = (Vec::new(), Vec::new());
    for second in 0..200_u64 {
        let now = begun + Duration::from_secs(second);
        logins.join(&login(second), now);
        let next = logins.next(now).unwrap();
        if refused.contains(&next.credentials.username) {
            again.push((second, next.credentials.username.clone()));
        }
        refused.push(next.credentials.username.clone());
        logins.handle_refused(&next, now);
    }
    let again: Vec<_> = again.iter().map(|(second, user)| (*second, &**user)).collect();
    assert_eq!(again, [(60, "0"), (120, "1"), (180, "2")]);
}

fn join(logs: &Arc<RetainedLogs>, stream: &TestStream, user: &str) -> (LogClient, Arc<Outbox>) {
    let (outbox, stream) = (Arc::new(Outbox::new(1)), stream.clone());
    (logs.join_by(&login(user), &outbox, move |login| stream.opener(login)), outbox)
}

#[tokio::test(start_paused = true)]
async fn the_log_stays_open_for_other_logins_and_reopens_after_a_refusal() {
    let (logs, stream) =
        (RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS), TestStream::default());
    stream.permit("good");
    let (good, outbox) = join(&logs, &stream, "good");
    settle().await;
    assert!(good.is_decided(&outbox) && good.is_available());
    let others: Vec<_> = (0..20).map(|number| join(&logs, &stream, &number.to_string())).collect();
    drop(good);
    settle().await;
    let (other, outbox) = &others[0];
    let ticket = other.ticket(outbox).unwrap();
    settle().await;
    assert!(other.has_reached(ticket) && other.is_available());
    assert_eq!((stream.readers(), stream.asked()), (vec!["good".to_owned()], vec!["good".to_owned()]));
    // The user loses its permission, and no other user has it.
    stream.forbid("good");
    stream.lose();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!other.is_available() && !other.must_wait(outbox));
    assert_eq!(stream.asked().len(), 21, "each is tried");
    // The user gets the permission again within the minute.
    stream.permit("good");
    let (joining, outbox) = join(&logs, &stream, "newcomer");
    settle().await;
    assert!(joining.is_decided(&outbox) && !joining.is_available(), "a refused login is not retried yet");
    tokio::time::sleep(REFUSAL_TTL).await;
    let (good, _outbox) = join(&logs, &stream, "good");
    settle().await;
    assert!(good.is_available() && other.is_available());
}

#[tokio::test(start_paused = true)]
async fn a_login_that_leaves_before_it_is_answered_leaves_nobody_waiting() {
    let (logs, stream) =
        (RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS), TestStream::default());
    let (client, outbox) = join(&logs, &stream, "client");
    settle().await;
    assert!(!client.is_available() && !client.must_wait(&outbox));
    let (stranger, _outbox) = join(&logs, &stream, "stranger");
    assert!(client.must_wait(&outbox));
    drop(stranger);
    settle().await;
    assert!(client.is_decided(&outbox) && !client.must_wait(&outbox));
    let (next, outbox) = join(&logs, &stream, "client");
    assert!(next.is_decided(&outbox));
}

/// A login that the upstream does not answer, unless it has a stream.
struct MaybeSilent(Option<StreamLogin>);

impl OpenUpstream for MaybeSilent {
    async fn open(&self) -> Result<AmqpClient, OpenError> {
        match &self.0 {
            Some(login) => login.open().await,
            None => std::future::pending().await,
        }
    }
}

/// The client waits for something else first, and asks while another login is being tried, so no wait is registered for
/// it yet.
#[tokio::test(start_paused = true)]
async fn a_client_that_did_not_have_to_wait_is_nudged_when_another_login_is_decided() {
    for silent in [false, true] {
        let logs = RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS);
        let stream = TestStream::default();
        let join = |user: &str| {
            let (inner, stream) = (InnerOutbox::new(1), stream.clone());
            let opener = move |login: &UpstreamLogin| {
                let is_silent = silent && login.credentials.username == "stranger";
                MaybeSilent((!is_silent).then(|| stream.opener(login)))
            };
            (logs.join_by(&login(user), inner.outbox(), opener), inner)
        };
        let _first = join("client");
        settle().await;
        let (client, inner) = join("client");
        tokio::time::sleep(MAX_DECISION / 2).await;
        inner.take_nudge();
        let _stranger = join("stranger");
        if silent {
            // The log's task now sleeps until the end of the first client's wait.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..3 {
            assert!(!client.is_decided(inner.outbox()), "{silent}");
        }
        if silent {
            // The wait counts from the client's own start, although the other client came later.
            tokio::time::sleep(MAX_DECISION / 2 - Duration::from_millis(20)).await;
            assert!(!inner.take_nudge() && !client.is_decided(inner.outbox()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        } else {
            settle().await;
        }
        assert!(inner.take_nudge() && client.is_decided(inner.outbox()), "{silent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_has_the_logs_key_whether_this_server_reads_the_log_or_not() {
    let (logs, stream) =
        (RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS), TestStream::default());
    let (client, _outbox) = join(&logs, &stream, "client");
    settle().await;
    assert!(!client.is_available());
    let none = PropertyList::new();
    let properties = none.as_properties();
    let message = Incoming { qos: QoS::AtLeastOnce, dup: false, retain: true, properties, client_id: None };
    let mut copies = BlindCopies::default();
    client.retain(&message, "a.b", usize::MAX >> 1, &mut copies).unwrap();
    let applied = copies.apply(amqp::properties::NO_PROPERTIES.to_vec());
    let headers = Properties::decode(&applied).unwrap().headers.unwrap().decode();
    let key = FieldValue::Array(vec![FieldValue::text("%leveret-retained.b")]);
    assert_eq!(headers.get("BCC"), Some(&key));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_not_been_started_yet_is_asked_for_again_soon() {
    for consumer in [ReplyCode::NotFound, ReplyCode::PreconditionFailed] {
        let (logs, stream) =
            (RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS), TestStream::default());
        stream.permit("client");
        stream.starts_slowly(ReplyCode::NotFound, consumer);
        let (client, outbox) = join(&logs, &stream, "client");
        settle().await;
        assert!(client.must_wait(&outbox), "the stream may still start");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(client.is_available() && !client.must_wait(&outbox));
        assert_eq!(stream.asked().len(), 3);
    }
}
