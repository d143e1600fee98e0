//! P2: clients that flood a shared connection leave others their share of it.

use proxy::{Pool, PoolConfig};

use crate::common::{Broker, Client, Manners, all_is_quiet, message, until};

const FLOODERS: usize = 4;
const SMALL: u64 = 50;
const FLOOD: &[u8] = &[7; 100_000];

#[tokio::test(start_paused = true)]
async fn p2_small_messages_are_taken_while_others_flood_and_the_broker_reads_nothing() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(PoolConfig { max_shared_connections: 1, ..broker.config() });
    let mut small = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    small.open_channel(1).await;
    small.publish(1, b"small").await;
    shared.expect("channel.open").await;
    shared.expect_message().await;
    shared.set_reading(false);
    let mut floods = Vec::new();
    for _ in 0..FLOODERS {
        let mut flooder = Client::connect(&pool).await;
        flooder.open_channel(1).await;
        let flood = message(1, FLOOD, 131_072).repeat(400);
        floods.push(tokio::spawn(async move { flooder.write(&flood).await }));
    }
    // The buffers on the way to the broker are full, so is the out-buffer, and the broker does not read.
    all_is_quiet().await;
    let taken = || pool.metrics().messages_to_upstreams;
    assert!(floods.iter().all(|flood| !flood.is_finished()), "the flood fits into buffers");
    // All small messages together are shorter than one message of the flood, and a shared connection takes only whole
    // messages. So the number of flood messages taken follows from the bytes.
    let length = |body| message(1, body, 131_072).len() as u64;
    let before = pool.metrics().bytes_to_upstreams;
    let small_taken = || (pool.metrics().bytes_to_upstreams - before) % length(FLOOD) / length(b"small");
    for n in 1..=SMALL {
        small.publish(1, b"small").await;
        until("a small message to be taken", || small_taken() == n).await;
    }
    let flood_taken = taken() - SMALL - 1;

    // When the broker reads again, all small messages arrive, ahead of the flood messages that had not been taken.
    shared.set_reading(true);
    let (mut small_arrived, mut flood_arrived) = (1, 0);
    while small_arrived <= SMALL {
        let frame = shared.next().await;
        small_arrived += u64::from(frame.payload == b"small");
        flood_arrived += u64::from(frame.payload == FLOOD);
    }
    assert!(
        flood_arrived <= flood_taken,
        "{flood_arrived} of the flood came first, {flood_taken} were taken"
    );
    for flood in floods {
        flood.abort();
    }
}
