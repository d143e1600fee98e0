//! Takeovers between two processes, with the embedded broker as their upstream, on tokio's paused clock.

use std::sync::Arc;
use std::time::Duration;

use amqp::method::{basic, channel};
use amqp::properties::Properties;
use amqp::{Credentials, Fault, ReplyCode};
use broker::Permissions;
use mqtt::server::MqttSettings;
use mqtt::session::Session;
use tokio::sync::oneshot;
use transport::Outbox;

use super::announcement::Announcement;
use super::watch::{IDLE_TIMEOUT, MAX_WAIT, REFUSAL_TTL, TakenBy, Watch, Watched, Watcher};
use super::{EXCHANGE, Takeovers};
use crate::clock::Clock;
use crate::mqtt::MqttConfig;
use crate::mqtt::session_ownership::{Claim, Owner, SessionUser};
use crate::mqtt::upstream::hub::{DetachedUpstream, UpstreamClaim, UpstreamHub};
use crate::mqtt::upstream::teardown::leave;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::task::OpenError;
use crate::upstream::multiplexing::tests::{USER, Upstream, settle};

/// A separate server process.
struct Process {
    upstream: Upstream,
    hub: Arc<UpstreamHub>,
}

/// A client's connection.
struct TestConnection {
    owner: Arc<Owner>,
    claim: Arc<UpstreamClaim>,
    watched: Watched,
}

impl Process {
    fn new(upstream: &Upstream) -> Self {
        let settings = Arc::new(MqttSettings::default());
        let config = MqttConfig::of_test(settings);
        Self { upstream: upstream.clone(), hub: UpstreamHub::new(config, Clock::start()) }
    }

    fn takeovers(&self) -> &Arc<Takeovers> {
        &self.hub.takeovers
    }

    /// Connects a client at a time of the process's wall clock.
    fn connect(&self, client_id: &str, at: u64) -> TestConnection {
        self.connect_as(USER, client_id, at, true)
    }

    fn connect_as(&self, user: &str, client_id: &str, at: u64, resumes: bool) -> TestConnection {
        let (claim, watcher) = self.watcher(user, client_id, at, resumes);
        let owner = Arc::clone(&watcher.owner);
        let upstream = |_: &UpstreamLogin| self.upstream.clone();
        let watched = self.takeovers().announce_by(&self.hub.weak, &login(user), watcher, upstream);
        TestConnection { owner, claim, watched }
    }

    /// Detaches a connection's session with a will. The receiver reports the will's fate.
    fn detach(&self, connection: &TestConnection) -> oneshot::Receiver<()> {
        let (will, is_due) = oneshot::channel();
        let since = self.hub.clock.timestamp(transport::now());
        let left = DetachedUpstream {
            user: USER.into(),
            session: Session::new(),
            has_queue: true,
            expiry: u32::MAX,
            since,
            will: Some(will),
            age: None,
            is_forgotten: false,
        };
        self.hub.release(&connection.owner, &connection.claim, Some(Box::new(left)));
        is_due
    }

    fn watcher(&self, user: &str, client_id: &str, at: u64, resumes: bool) -> (Arc<UpstreamClaim>, Watcher) {
        let owner = Arc::new(Owner { vhost: "/".into(), client_id: client_id.into() });
        let outbox = Arc::new(Outbox::new(1));
        let claim = Claim::new(&outbox, Some(SessionUser::named(user)));
        self.hub.claim(&owner, &claim).ok().unwrap();
        (Arc::clone(&claim), Watcher { owner, claim, outbox, resumes, at })
    }
}

fn login(user: &str) -> UpstreamLogin {
    let credentials = Arc::new(Credentials::plain(user, "secret"));
    UpstreamLogin { prefix: "mqtt-subscription-", credentials, vhost: "/".into() }
}

impl TestConnection {
    fn is_closed(&self) -> bool {
        self.claim.is_superseded()
    }
}

/// Publishes to the exchange like any other program.
fn publish(client: &mut AmqpClient, user_id: Option<&str>, body: &[u8]) {
    let mut properties = Vec::new();
    Properties { user_id, ..Properties::default() }.encode(&mut properties);
    client.publish(1, basic::Publish { exchange: EXCHANGE, ..Default::default() }, &properties, body);
    client.flush(transport::now()).unwrap();
}

fn publisher(upstream: &Upstream, user: &str) -> AmqpClient {
    let (mut client, _) = upstream.client(user);
    client.send(1, channel::Open { reserved_1: "" });
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_that_connects_elsewhere_is_closed_here_and_back() {
    let upstream = Upstream::new();
    let (one, other) = (Process::new(&upstream), Process::new(&upstream));
    let first = one.connect("me", 1000);
    let bystander = one.connect("you", 1000);
    assert!(!first.watched.is_answered(), "it waits");
    settle().await;
    assert!(first.watched.is_answered() && first.watched.is_announced() && !first.is_closed());
    let second = other.connect_as(USER, "me", 500, false);
    settle().await;
    assert!(second.watched.is_announced() && !second.is_closed());
    assert!(first.is_closed(), "even if the other server's clock is behind");
    assert_eq!((first.watched.taken(), bystander.watched.taken()), (Some(TakenBy::Clean), None));
    // Its connection ends, and the client connects here again.
    one.hub.release(&first.owner, &first.claim, None);
    drop(first);
    let third = one.connect("me", 1001);
    settle().await;
    assert_eq!((second.watched.taken(), third.watched.taken()), (Some(TakenBy::Resuming), None));
    assert!(!bystander.is_closed());
    let queues = upstream.queues();
    assert_eq!(queues.len(), 2, "one for each process");
    assert!(queues.iter().all(|queue| queue.name().starts_with("leveret.mqtt.takeover-")));
}

#[tokio::test(start_paused = true)]
async fn of_two_simultaneous_connections_the_later_stays() {
    for clocks in [(1000, 2000), (1000, 1000), (2000, 1000)] {
        let upstream = Upstream::new();
        let (one, other) = (Process::new(&upstream), Process::new(&upstream));
        // Makes both queues exist.
        let _bystanders = [one.connect("you", 0), other.connect("you too", 0)];
        settle().await;
        let (first, second) = (one.connect("me", clocks.0), other.connect("me", clocks.1));
        settle().await;
        assert!(first.is_closed(), "{clocks:?}");
        // If the clocks differ by more than the time between the connections, the client has to connect once more.
        assert!(clocks.0 >= clocks.1 || !second.is_closed(), "{clocks:?}");
    }
}

#[test]
fn announcements_in_another_order_at_each_process_leave_one_connection() {
    for (numbers, closed) in [((1, 2), [true, false]), ((2, 1), [false, true]), ((1, 1), [true, false])] {
        let upstream = Upstream::new();
        let connected = |process: &str, at| {
            let one = Process::new(&upstream);
            let (claim, watcher) = one.watcher(USER, "me", at, true);
            let watch = Watch::new(process, login(USER), &one.hub.weak, false);
            let watched = watch.begin(watcher);
            (watch, claim, watched)
        };
        let (one, other) = (connected("a", numbers.0), connected("b", numbers.1));
        let announcement = |process, number| Announcement { process, number, resumes: true, client_id: "me" };
        let (first, second) = (announcement("a", numbers.0), announcement("b", numbers.1));
        // Each process receives the other's announcement first.
        [&second, &first].into_iter().for_each(|each| one.0.handle_announcement(each));
        [&first, &second].into_iter().for_each(|each| other.0.handle_announcement(each));
        assert_eq!([one.1.is_superseded(), other.1.is_superseded()], closed, "{numbers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_session_is_forgotten_when_its_client_connects_elsewhere() {
    let upstream = Upstream::new();
    let (one, other) = (Process::new(&upstream), Process::new(&upstream));
    let _bystander = one.connect("you", 0);
    for (resumes, will) in [(true, Err(oneshot::error::TryRecvError::Closed)), (false, Ok(()))] {
        let first = one.connect("me", 1000);
        settle().await;
        let mut is_due = one.detach(&first);
        drop(first);
        let second = other.connect_as(USER, "me", 1000, resumes);
        settle().await;
        assert_eq!(is_due.try_recv(), will, "{resumes}");
        other.hub.release(&second.owner, &second.claim, None);
        drop(second);
        let third = one.connect("me", 1000);
        assert!(third.claim.take_granted().unwrap().is_none(), "the session is asked for upstream");
        one.hub.release(&third.owner, &third.claim, None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_announcement_that_arrives_while_a_connection_leaves_is_handled() {
    use oneshot::error::TryRecvError::{Closed, Empty};
    let upstream = Upstream::new();
    let (one, other) = (Process::new(&upstream), Process::new(&upstream));
    for (resumes, fate) in [(true, Err(Closed)), (false, Ok(()))] {
        let first = one.connect("me", 1000);
        settle().await;
        // No other server has taken it over so far.
        let mut will = one.detach(&first);
        let second = other.connect_as(USER, "me", 1000, resumes);
        settle().await;
        assert_eq!((first.watched.taken().is_some(), will.try_recv()), (true, Err(Empty)));
        leave(&one.hub, &first.owner, Some(USER), Some(first.watched));
        assert_eq!(will.try_recv(), fate);
        other.hub.release(&second.owner, &second.claim, None);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_closes_the_connections_of_another_user() {
    let upstream = Upstream::new();
    let one = Process::new(&upstream);
    let mine = one.connect("me", 1000);
    settle().await;
    let body = Announcement { process: "z", number: u64::MAX, resumes: true, client_id: "me" }.encode();
    let mut stranger = publisher(&upstream, "guest");
    // Without a user, with its own user, and with a malformed body.
    publish(&mut stranger, None, body.as_bytes());
    publish(&mut stranger, Some("guest"), body.as_bytes());
    publish(&mut stranger, Some("guest"), &vec![b'x'; 1 << 20]);
    settle().await;
    // The broker refuses another user's name.
    publish(&mut stranger, Some(USER), body.as_bytes());
    settle().await;
    assert!(!mine.is_closed());
    let mut own = publisher(&upstream, USER);
    for body in [&b""[..], b"leveret-takeover-1", &body.as_bytes()[1..], &[0xFF; 100]] {
        publish(&mut own, Some(USER), body);
    }
    settle().await;
    assert!(!mine.is_closed() && upstream.queues()[0].view().ready == 0);
    publish(&mut own, Some(USER), body.as_bytes());
    settle().await;
    assert!(mine.is_closed(), "its own user may");
}

#[tokio::test(start_paused = true)]
async fn a_queue_follows_its_clients_and_lost_connections() {
    let upstream = Upstream::new();
    let (one, other) = (Process::new(&upstream), Process::new(&upstream));
    let first = one.connect("me", 1000);
    settle().await;
    upstream.lose();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(upstream.queues().len(), 1);
    let second = other.connect("me", 1000);
    settle().await;
    assert!(first.is_closed());
    drop(first);
    tokio::time::sleep(IDLE_TIMEOUT / 2).await;
    assert_eq!((one.takeovers().watches(), other.takeovers().watches()), (1, 1));
    tokio::time::sleep(IDLE_TIMEOUT).await;
    assert_eq!((one.takeovers().watches(), other.takeovers().watches()), (0, 1));
    other.hub.drain();
    settle().await;
    assert_eq!(other.takeovers().watches(), 1);
    drop(second);
    settle().await;
    assert!(other.takeovers().watches() == 0 && upstream.queues().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_answer_is_waited_for_in_bounds() {
    let upstream = Upstream::new();
    let fault = Fault::new(ReplyCode::ConnectionForced, "away");
    *upstream.refusal.lock() = Some(OpenError::Unreachable(fault));
    let one = Process::new(&upstream);
    let first = one.connect("me", 1000);
    tokio::time::sleep(MAX_WAIT / 2).await;
    assert!(!first.watched.is_answered());
    tokio::time::sleep(MAX_WAIT).await;
    assert!(first.watched.is_answered() && !first.watched.is_announced());
    *upstream.refusal.lock() = None;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let second = one.connect("you", 1000);
    settle().await;
    assert!(second.watched.is_announced() && !first.watched.is_announced());
}

#[tokio::test(start_paused = true)]
async fn a_user_without_permission_is_not_held_up_and_is_asked_for_again() {
    let upstream = Upstream::new();
    let permit = |write: &str, configure: &str| {
        let permissions =
            Permissions { write: write.into(), configure: configure.into(), ..Permissions::all() };
        upstream.vhost().set_permissions(USER, Some(&permissions)).unwrap();
    };
    permit("^leveret.mqtt.takeover-", ".*");
    let (one, other) = (Process::new(&upstream), Process::new(&upstream));
    let first = one.connect("me", 1000);
    settle().await;
    assert!(first.watched.is_answered() && !first.watched.is_announced(), "it may not publish");
    permit("^$", "^$");
    let second = other.connect("me", 1000);
    settle().await;
    assert!(second.watched.is_answered() && !second.watched.is_announced(), "it may not declare");
    let third = other.connect("you", 1000);
    assert!(third.watched.is_answered(), "at once");
    assert!(!first.is_closed());
    assert_eq!((one.takeovers().logged(), other.takeovers().logged()), (1, 1));
    // The exchange exists, and need not be declared.
    permit(".*", "^leveret.mqtt.takeover-");
    tokio::time::sleep(REFUSAL_TTL + IDLE_TIMEOUT).await;
    let fourth = other.connect("me", 2000);
    settle().await;
    assert!(fourth.watched.is_announced() && first.is_closed());
}
