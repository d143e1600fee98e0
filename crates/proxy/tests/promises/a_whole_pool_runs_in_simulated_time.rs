//! A pool, its clients and its brokers without sockets, in simulated time: tokio's clock is paused, and advances when
//! no task can progress. All random numbers come from a seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amqp::frame::{HEARTBEAT, write_method};
use amqp::method::{basic, channel, confirm};
use amqp::{ContentHeader, FrameKind, Method};
use parking_lot::Mutex;
use proxy::{Connecting, Connector, Pool, PoolConfig, UpstreamAddress};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use transport::Stream;

use crate::common::{Client, Manners, OwnedFrame, handshake, obedient_answer, read_frame};

/// The brokers, which share their messages as a cluster does.
#[derive(Debug)]
struct Brokers {
    began: Instant,
    random: Mutex<u64>,
    is_down: Mutex<bool>,
    /// The messages in the order in which a broker accepted them, duplicates included, with the time.
    taken: Mutex<Vec<(Duration, Vec<u8>)>>,
    connections: Mutex<Vec<AbortHandle>>,
}

/// Connects the pool to them.
#[derive(Debug)]
struct Cables(Arc<Brokers>);

impl Connector for Cables {
    fn connect(&self, _socket: SocketAddr, _timeout: Duration) -> Connecting<'_> {
        Box::pin(async {
            sleep(self.0.delay(5)).await;
            if *self.0.is_down.lock() {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(16 * 1024);
            let serving = tokio::spawn(serve(self.0.clone(), far));
            self.0.connections.lock().push(serving.abort_handle());
            Ok(Stream::Memory(near))
        })
    }
}

impl Brokers {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            random: Mutex::new(seed),
            is_down: Mutex::new(false),
            taken: Mutex::default(),
            connections: Mutex::default(),
        })
    }

    /// The settings of a pool of which these are the brokers.
    fn config(self: &Arc<Self>) -> PoolConfig {
        let address = |n| UpstreamAddress { host: format!("10.0.0.{n}"), port: 5672, tls: false };
        PoolConfig {
            connector: Arc::new(Cables(self.clone())),
            random: || u64::MAX / 3,
            ..PoolConfig::new(vec![address(1), address(2)])
        }
    }

    /// A random number (splitmix64).
    fn below(&self, limit: u64) -> u64 {
        let mut random = self.random.lock();
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn delay(&self, below_ms: u64) -> Duration {
        Duration::from_millis(self.below(below_ms))
    }

    /// Cuts a connection, if there is one.
    fn cut(&self) {
        let mut connections = self.connections.lock();
        connections.retain(|serving| !serving.is_finished());
        if !connections.is_empty() {
            let at = self.below(connections.len() as u64) as usize;
            connections.swap_remove(at).abort();
        }
    }

    /// Cuts all, and takes no new ones until it is called again.
    fn set_down(&self, is_down: bool) {
        *self.is_down.lock() = is_down;
        if is_down {
            self.connections.lock().drain(..).for_each(|serving| serving.abort());
        }
    }

    /// Takes a message; it is on disk.
    fn take(&self, body: Vec<u8>) {
        self.taken.lock().push((self.began.elapsed(), body));
    }

    fn has(&self, body: &[u8]) -> bool {
        self.taken.lock().iter().any(|(_, taken)| taken == body)
    }
}

/// A channel, as the broker sees it.
#[derive(Default)]
struct BrokerChannel {
    is_confirming: bool,
    published: u64,
    missing: u64,
    body: Vec<u8>,
}

/// The broker's end of a connection.
async fn serve(brokers: Arc<Brokers>, mut stream: DuplexStream) {
    if handshake(&mut stream, &Manners::default()).await.is_none() {
        return;
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (answers, mut outgoing) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async {
        let mut channels = BTreeMap::<u16, BrokerChannel>::new();
        while let Some(frame) = read_frame(&mut reader).await {
            let answer = answer(&brokers, channels.entry(frame.channel).or_default(), &frame);
            if !answer.is_empty() && answers.send((Instant::now() + brokers.delay(30), answer)).is_err() {
                return;
            }
        }
    };
    let writing = async {
        loop {
            let bytes = match timeout(Duration::from_secs(20), outgoing.recv()).await {
                Ok(Some((due, bytes))) => {
                    sleep_until(due).await;
                    bytes
                }
                Ok(None) => return,
                Err(_) => HEARTBEAT.to_vec(),
            };
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { biased; () = reading => {}, () = writing => {} }
}

fn answer(brokers: &Brokers, known: &mut BrokerChannel, frame: &OwnedFrame) -> Vec<u8> {
    let mut out = Vec::new();
    match frame.kind {
        FrameKind::Method => match frame.method() {
            Method::ChannelFlow(_) => write_method(&mut out, frame.channel, channel::FlowOk { active: true }),
            Method::ChannelOpen(_) => {
                *known = BrokerChannel::default();
                out = obedient_answer(frame, true);
            }
            Method::ConfirmSelect(_) => {
                known.is_confirming = true;
                out = obedient_answer(frame, true);
            }
            _ => out = obedient_answer(frame, true),
        },
        FrameKind::Header => known.missing = ContentHeader::decode(&frame.payload).unwrap().body_size,
        FrameKind::Body => {
            known.missing -= frame.payload.len() as u64;
            known.body.extend_from_slice(&frame.payload);
        }
        FrameKind::Heartbeat => {}
    }
    if frame.kind == FrameKind::Body && known.missing == 0 {
        brokers.take(std::mem::take(&mut known.body));
        known.published += 1;
        if known.is_confirming {
            let delivery_tag = known.published;
            write_method(&mut out, frame.channel, basic::Ack { delivery_tag, multiple: false });
        }
    }
    out
}

/// Runs a scene in simulated time.
fn run<T>(scene: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(scene)
}

/// Publishes in bursts, and checks that the brokers have every confirmed message. Starts in the first of these processes, and
/// moves to the next now and then.
async fn publish(brokers: Arc<Brokers>, processes: Vec<Arc<Pool>>, name: u64) -> Vec<Vec<u8>> {
    let (is_replaced, mut processes) = (processes.len() > 1, processes.iter().cycle());
    let mut client = Client::connect(processes.next().unwrap()).await;
    client.open_channel(1).await;
    client.send(1, confirm::Select { no_wait: false }).await;
    client.expect("confirm.select-ok").await;
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for _ in 0..6 {
        let mut unconfirmed = BTreeMap::new();
        for _ in 0..1 + brokers.below(20) {
            let size = if brokers.below(10) == 0 { 40_000 } else { 20 };
            let body = format!("{name} {:>size$}", bodies.len()).into_bytes();
            client.publish(1, &body).await;
            bodies.push(body.clone());
            unconfirmed.insert(bodies.len() as u64, body);
            if is_replaced && brokers.below(12) == 0 {
                client = client.go_on_in(processes.next().unwrap()).await;
            }
            sleep(brokers.delay(10)).await;
        }
        while !unconfirmed.is_empty() {
            let (tag, multiple) = client.expect_ack().await;
            let from = if multiple { 0 } else { tag };
            for tag in from..=tag {
                if let Some(body) = unconfirmed.remove(&tag) {
                    assert!(brokers.has(&body), "message {tag} of {name} is confirmed and lost");
                }
            }
        }
        sleep(brokers.delay(200)).await;
    }
    bodies
}

/// Three clients publish while connections are cut, in this number of processes. Returns what the brokers took and
/// when, and how many messages the pools have sent again.
async fn cut_at_random(seed: u64, processes: usize) -> (Vec<(Duration, Vec<u8>)>, u64) {
    let brokers = Brokers::new(seed);
    let config = PoolConfig { max_channels_per_connection: 2, ..brokers.config() };
    let pools: Vec<_> = (0..processes).map(|_| Pool::new(config.clone())).collect();
    let clients: Vec<_> =
        (0..3).map(|name| tokio::spawn(publish(brokers.clone(), pools.clone(), name))).collect();
    for _ in 0..4 {
        sleep(brokers.delay(400)).await;
        brokers.cut();
    }
    if seed.is_multiple_of(4) {
        brokers.set_down(true);
        sleep(brokers.delay(10_000)).await;
        brokers.set_down(false);
    }
    for client in clients {
        let bodies = client.await.unwrap();
        let taken = brokers.taken.lock();
        let firsts = bodies.iter().map(|body| taken.iter().position(|(_, taken)| taken == body).unwrap());
        assert!(firsts.is_sorted(), "seed {seed}: the order of a client's messages changed");
    }
    let taken = brokers.taken.lock().clone();
    (taken, pools.iter().map(|pool| pool.metrics().messages_replayed).sum())
}

#[test]
fn p7_nothing_confirmed_is_lost_wherever_connections_are_cut() {
    let replayed: u64 = (0..40).map(|seed| run(cut_at_random(seed, 1)).1).sum();
    assert!(replayed > 100, "{replayed}");
}

#[test]
fn nothing_confirmed_is_lost_whenever_processes_are_replaced_and_connections_cut() {
    for seed in 100..140 {
        run(cut_at_random(seed, 3));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..8 {
        let ((one, _), (other, _)) = (run(cut_at_random(seed, 1)), run(cut_at_random(seed, 1)));
        let difference = one.iter().zip(&other).position(|(one, other)| one != other);
        assert_eq!((difference, one.len()), (None, other.len()), "seed {seed}");
    }
}

/// The time until a condition holds, looked at every 10 ms.
async fn time_until(holds: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(3600), "the condition never holds");
        sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

#[test]
fn idle_connections_are_closed_and_kept_as_configured() {
    for kept in [0, 1] {
        run(async {
            let brokers = Brokers::new(7);
            let config = PoolConfig {
                max_channels_per_connection: 1,
                min_shared_connections: kept,
                idle_timeout: Duration::from_secs(300),
                ..brokers.config()
            };
            let pool = Pool::new(config);
            let mut clients = Vec::new();
            for _ in 0..3 {
                let mut client = Client::connect(&pool).await;
                client.open_channel(1).await;
                client.publish(1, b"message").await;
                clients.push(client);
            }
            time_until(|| brokers.taken.lock().len() == 3).await;
            sleep(Duration::from_secs(3600)).await;
            assert_eq!(pool.connections().len(), 3, "they are in use");
            drop(clients);
            let idle = time_until(|| pool.connections().len() < 3).await;
            assert!(idle >= Duration::from_secs(300) && idle < Duration::from_secs(302), "{idle:?}");
            time_until(|| pool.connections().len() == kept).await;
            sleep(Duration::from_secs(24 * 3600)).await;
            assert_eq!(pool.connections().len(), kept);
            assert_eq!(pool.metrics().connections_lost, 0);
        });
    }
}

#[test]
fn a_client_waiting_for_an_upstream_is_closed_at_exactly_the_timeout() {
    run(async {
        let brokers = Brokers::new(7);
        let config = PoolConfig { outage_max: Duration::from_secs(90), ..brokers.config() };
        let pool = Pool::new(config);
        let mut clients = [Client::connect(&pool).await, Client::connect(&pool).await];
        brokers.set_down(true);
        for client in &mut clients {
            sleep(Duration::from_secs(10)).await;
            client.open_channel(1).await;
            client.publish(1, b"message").await;
        }
        let began = Instant::now();
        let [first, second] = &mut clients;
        first.expect("connection.close").await;
        let waited = began.elapsed();
        assert!(waited.abs_diff(Duration::from_secs(80)) < Duration::from_millis(10), "{waited:?}");
        second.expect("connection.close").await;
        let waited = began.elapsed();
        assert!(waited.abs_diff(Duration::from_secs(90)) < Duration::from_millis(10), "{waited:?}");
    });
}

#[test]
fn a_client_waiting_for_a_free_connection_is_closed_at_exactly_the_timeout() {
    run(async {
        let brokers = Brokers::new(7);
        let config =
            PoolConfig { max_connections: 1, arrival_max: Duration::from_secs(7), ..brokers.config() };
        let pool = Pool::new(config);
        let mut clients = [Client::connect(&pool).await, Client::connect(&pool).await];
        for client in &mut clients {
            client.open_channel(1).await;
        }
        let [holder, waiting] = &mut clients;
        holder.send(1, basic::Consume { queue: "q", no_ack: true, ..Default::default() }).await;
        holder.expect("basic.consume-ok").await;
        let began = Instant::now();
        waiting.publish(1, b"message").await;
        waiting.expect("connection.close").await;
        let waited = began.elapsed();
        assert!(waited.abs_diff(Duration::from_secs(7)) < Duration::from_millis(10), "{waited:?}");
    });
}
