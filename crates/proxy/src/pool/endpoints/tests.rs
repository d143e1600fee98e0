use std::io;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::resolver::{Resolving, SystemResolver};

#[test]
fn the_back_off_grows_up_to_a_limit_and_jitters_downwards_only() {
    for random in [0, u64::MAX / 2, u64::MAX] {
        for (failures, longest) in [(1, BACKOFF_MIN), (2, BACKOFF_MIN * 2), (100, BACKOFF_MAX)] {
            let pause = backoff(failures, random);
            assert!(pause >= longest / 2 && pause <= longest, "{failures}: {pause:?}");
        }
    }
}

fn address(host: &str, port: u16) -> UpstreamAddress {
    UpstreamAddress { host: host.to_owned(), port, tls: false }
}

/// Resolves names to the configured sockets; answers are not cached.
#[derive(Debug, Default)]
struct Names {
    sockets: parking_lot::Mutex<Vec<SocketAddr>>,
    fails: AtomicBool,
    hangs: AtomicBool,
    asked: AtomicUsize,
}

impl Resolver for Names {
    fn resolve<'r>(&'r self, _host: &'r str, _port: u16) -> Resolving<'r> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            if self.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(self.sockets.lock().clone())
        })
    }

    fn holds(&self) -> Duration {
        Duration::ZERO
    }
}

impl Names {
    fn new(ports: &[u16]) -> (Arc<Self>, Arc<Endpoints>) {
        let names = Arc::new(Self::default());
        names.stand_for(ports);
        (names.clone(), Arc::new(Endpoints::new(names)))
    }

    fn stand_for(&self, ports: &[u16]) {
        *self.sockets.lock() = ports.iter().map(|&port| ([127, 0, 0, 1], port).into()).collect();
    }
}

async fn ports(endpoints: &Arc<Endpoints>, configured: &[UpstreamAddress]) -> Vec<u16> {
    let order = endpoints.in_order(configured).await;
    order.into_iter().map(|endpoint| endpoint.socket.port()).collect()
}

#[tokio::test]
async fn answering_addresses_come_first_ordered_by_number_of_connections() {
    let endpoints = Arc::new(Endpoints::new(Arc::new(SystemResolver)));
    let configured = [address("127.0.0.1", 1), address("127.0.0.1", 2), address("::1", 3)];
    let all = endpoints.in_order(&configured).await;
    let by_port = |port| all.iter().find(|endpoint| endpoint.socket.port() == port).unwrap();
    endpoints.opened(by_port(1));
    endpoints.opened(by_port(1));
    endpoints.opened(by_port(2));
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    endpoints.failed(&pool, by_port(3));
    assert_eq!(ports(&endpoints, &configured).await, [2, 1, 3]);
    assert_eq!(endpoints.count(), (3, 1));
    assert!(endpoints.has_answered(by_port(3), endpoints.asked_at(by_port(3))));
    assert_eq!(ports(&endpoints, &configured).await[0], 3);
}

#[tokio::test]
async fn a_probe_reply_from_before_a_lost_connection_is_ignored() {
    let (_, endpoints) = Names::new(&[1]);
    let endpoint = endpoints.in_order(&[address("brokers", 9)]).await.remove(0);
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    let before = endpoints.asked_at(&endpoint);
    endpoints.opened(&endpoint);
    endpoints.opened(&endpoint);
    assert!(endpoints.has_answered(&endpoint, before));
    for (left, down) in [(Reachability::Answers, 0), (Reachability::Unknown, 1)] {
        let before = endpoints.asked_at(&endpoint);
        endpoints.lost(&pool, &endpoint);
        assert!(!endpoints.has_answered(&endpoint, before));
        assert_eq!((endpoints.reach(), endpoints.count()), (left, (1, down)));
    }
    assert!(endpoints.has_answered(&endpoint, endpoints.asked_at(&endpoint)));
    assert_eq!((endpoints.reach(), endpoints.count()), (Reachability::Answers, (1, 0)));
}

/// A broker may close a single connection. Logins of other clients do not wait for that.
#[tokio::test]
async fn addresses_where_connections_are_open_do_not_keep_failing_however_many_are_lost() {
    let (_, endpoints) = Names::new(&[1]);
    let endpoint = endpoints.in_order(&[address("brokers", 9)]).await.remove(0);
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    endpoints.opened(&endpoint);
    for _ in 0..3 {
        endpoints.opened(&endpoint);
        endpoints.lost(&pool, &endpoint);
        assert_eq!(endpoints.count(), (1, 0));
        assert!(endpoints.is_up(endpoint.socket));
    }
    // Nor if new connections fail there.
    for _ in 0..2 {
        endpoints.with(&endpoint, EndpointState::count_failure);
    }
    assert!(!endpoints.all_failing());
    endpoints.lost(&pool, &endpoint);
    assert!(endpoints.all_failing());
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_tried_last_even_while_connections_are_open() {
    let (_, endpoints) = Names::new(&[1, 2]);
    let configured = [address("brokers", 9)];
    let all = endpoints.in_order(&configured).await;
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    endpoints.opened(&all[0]);
    endpoints.record_no_answer(&pool, &all[0]);
    assert!(!endpoints.is_up(all[0].socket) && endpoints.is_up(all[1].socket));
    assert!(endpoints.has_answered(&all[0], endpoints.asked_at(&all[0])));
    assert!(endpoints.is_up(all[0].socket));
}

#[tokio::test(start_paused = true)]
async fn an_address_where_a_virtual_host_is_down_is_tried_last_for_a_while() {
    let (_, endpoints) = Names::new(&[1, 2]);
    let configured = [address("brokers", 9)];
    let all = endpoints.in_order(&configured).await;
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    endpoints.opened(&all[1]);
    let text = "access to vhost '/' refused for user 'user': vhost '/' is down";
    let down = Refusal::Fault(amqp::Fault::new(amqp::ReplyCode::InternalError, text));
    endpoints.blame(&pool, &all[0], &down);
    let [lacking, other] = [0, 1].map(|n| all[n].socket.port());
    assert_eq!(ports(&endpoints, &configured).await, [other, lacking]);
    assert!(!endpoints.is_up(all[0].socket));
    assert_eq!(endpoints.count(), (2, 0), "it answers");
    tokio::time::advance(LACKS_FOR).await;
    assert_eq!(ports(&endpoints, &configured).await, [lacking, other]);
    assert!(endpoints.is_up(all[0].socket));
}

#[tokio::test]
async fn a_name_yields_all_of_its_addresses() {
    let endpoints = Arc::new(Endpoints::new(Arc::new(SystemResolver)));
    let configured = [address("localhost", 1)];
    let expected: Vec<_> = tokio::net::lookup_host(("localhost", 1)).await.unwrap().collect();
    let found: Vec<_> =
        endpoints.in_order(&configured).await.into_iter().map(|endpoint| endpoint.socket).collect();
    assert!(!found.is_empty() && expected.iter().all(|socket| found.contains(socket)), "{found:?}");
}

#[tokio::test]
async fn the_addresses_of_a_name_take_turns() {
    let (_, endpoints) = Names::new(&[1, 2, 3]);
    let mut counts = [0; 4];
    for _ in 0..30 {
        let next = endpoints.in_order(&[address("brokers", 9)]).await.remove(0);
        counts[usize::from(next.socket.port())] += 1;
        endpoints.opened(&next);
    }
    assert_eq!(counts[1..], [10, 10, 10]);
}

#[tokio::test]
async fn an_address_that_its_name_no_longer_resolves_to_is_dropped_with_its_last_connection() {
    let (names, endpoints) = Names::new(&[1, 2, 3]);
    let configured = [address("brokers", 9)];
    let all = endpoints.in_order(&configured).await;
    endpoints.opened(&all[0]);
    let in_use = all[0].socket.port();
    names.stand_for(&[4]);
    assert_eq!(ports(&endpoints, &configured).await, [4, in_use]);
    // It comes first, however many connections the other addresses have.
    let new = endpoints.in_order(&configured).await.remove(0);
    (0..3).for_each(|_| endpoints.opened(&new));
    assert_eq!(ports(&endpoints, &configured).await, [4, in_use]);
    assert!(endpoints.is_up(new.socket) && !endpoints.is_up(all[0].socket));
    names.stand_for(&[4, in_use]);
    assert_eq!(ports(&endpoints, &configured).await, [in_use, 4]);
    assert!(endpoints.is_up(all[0].socket));
    names.stand_for(&[4]);
    assert_eq!(ports(&endpoints, &configured).await, [4, in_use]);
    endpoints.closed(&Pool::new(crate::PoolConfig::new(Vec::new())), &all[0]);
    assert_eq!(ports(&endpoints, &configured).await, [4]);
}

#[tokio::test]
async fn a_down_address_that_its_name_no_longer_resolves_to_is_forgotten_after_a_while() {
    let (names, endpoints) = Names::new(&[1]);
    let configured = [address("brokers", 9)];
    let gone = endpoints.in_order(&configured).await.remove(0);
    endpoints.with(&gone, EndpointState::count_failure);
    names.stand_for(&[2]);
    assert_eq!(ports(&endpoints, &configured).await, [2, 1]);
    endpoints.with(&gone, |known| known.resolved_at -= FORGOTTEN_AFTER);
    assert_eq!(ports(&endpoints, &configured).await, [2]);
}

#[tokio::test]
async fn a_lookup_that_fails_or_hangs_keeps_the_known_addresses() {
    let (names, endpoints) = Names::new(&[1]);
    let configured = [address("brokers", 9)];
    assert_eq!(ports(&endpoints, &configured).await, [1]);
    names.stand_for(&[]);
    assert_eq!(ports(&endpoints, &configured).await, [1]);
    names.fails.store(true, Ordering::SeqCst);
    assert_eq!(ports(&endpoints, &configured).await, [1]);
    names.hangs.store(true, Ordering::SeqCst);
    assert_eq!(ports(&endpoints, &configured).await, [1]);
    assert_eq!(names.asked.load(Ordering::SeqCst), 4);
}

/// A pool with a client that has declared a queue.
fn with_a_queue() -> Arc<Pool> {
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    let client = crate::link::ClientLink::nobody();
    let credentials = Arc::new(amqp::Credentials::plain("user", "right"));
    let declarer = crate::topology::Declarer::new(pool.topologies.clone(), "/", credentials);
    let declare = amqp::method::queue::Declare { queue: "q", ..Default::default() };
    declarer.carried_out(Some(&client), &declare.into(), None);

    pool
}

#[tokio::test]
async fn an_address_with_open_connections_stays_up_when_others_get_no_answer() {
    let pool = with_a_queue();
    let (_, endpoints) = Names::new(&[1]);
    let endpoint = endpoints.in_order(&[address("brokers", 9)]).await.remove(0);
    endpoints.opened(&endpoint);
    endpoints.record_no_answer(&pool, &endpoint);
    assert_eq!(endpoints.reach(), Reachability::Answers);
    assert!(endpoints.any_up());
    assert!(!pool.topologies.is_torn("/", 0), "nothing is lost");
    endpoints.closed(&pool, &endpoint);
    assert_eq!(endpoints.reach(), Reachability::Silent);
    assert!(pool.topologies.is_torn("/", 0), "it did not answer, and its last connection is closed");
}

#[tokio::test]
async fn an_address_that_never_answered_has_nothing_to_lose() {
    let pool = with_a_queue();
    let (_, endpoints) = Names::new(&[1]);
    let endpoint = endpoints.in_order(&[address("brokers", 9)]).await.remove(0);
    assert!(endpoints.record_no_answer(&pool, &endpoint));
    assert!(!pool.topologies.is_torn("/", 0));
    endpoints.heard(&endpoint);
    assert!(endpoints.record_no_answer(&pool, &endpoint));
    assert!(pool.topologies.is_torn("/", 0));
}

fn states(endpoints: &Endpoints) -> Vec<(Option<bool>, usize, Option<String>)> {
    endpoints.states().into_iter().map(|state| (state.is_up, state.connections, state.cause)).collect()
}

#[tokio::test]
async fn an_address_is_up_while_its_connections_work_and_unknown_until_it_is_asked() {
    let endpoints = Arc::new(Endpoints::new(Arc::new(SystemResolver)));
    let one = endpoints.in_order(&[address("127.0.0.1", 1)]).await.remove(0);
    let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
    assert_eq!(states(&endpoints), [(None, 0, Some("not asked yet".to_owned()))]);
    assert!(!endpoints.any_up());
    // Its connections work, but it accepts no further connections.
    endpoints.opened(&one);
    endpoints.failed(&pool, &one);
    assert_eq!(states(&endpoints), [(Some(true), 1, None)]);
    assert!(endpoints.any_up());
    endpoints.set_failure_cause(&one, &Refusal::unreachable("127.0.0.1:1: handshake timed out"));
    let cause = || Some("handshake timed out".to_owned());
    assert_eq!(states(&endpoints), [(Some(true), 1, cause())]);
    endpoints.heard(&one);
    assert_eq!(states(&endpoints), [(Some(true), 1, None)]);
    endpoints.failed(&pool, &one);
    endpoints.closed(&pool, &one);
    assert_eq!(states(&endpoints), [(Some(false), 0, Some("not responding".to_owned()))]);
    assert!(!endpoints.any_up() && endpoints.reach() != Reachability::Answers);
}

#[tokio::test]
async fn idle_addresses_are_probed_all_at_once() {
    use tokio::io::AsyncReadExt as _;

    let mut listeners = Vec::new();
    for _ in 0..2 {
        listeners.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let of = |listener: &tokio::net::TcpListener| address("127.0.0.1", listener.local_addr().unwrap().port());
    let pool = Pool::new(crate::PoolConfig::new(listeners.iter().map(of).collect()));
    let both_hang = async {
        let mut streams = Vec::new();
        for listener in &listeners {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 8]).await.unwrap();
            streams.push(stream);
        }
        // The first probe has not been abandoned.
        let unread = streams[0].try_read(&mut [0]);
        assert!(matches!(&unread, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "{unread:?}");
    };
    tokio::join!(pool.probe_idle(), both_hang);
    assert!(pool.endpoints.states().iter().all(|state| state.is_up == Some(false)));
}
