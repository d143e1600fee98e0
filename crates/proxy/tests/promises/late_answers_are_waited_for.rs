//! RabbitMQ answers `basic.consume` and `basic.cancel` behind methods that it has received meanwhile, and not at all on a
//! channel that is closed by then; a `basic.cancel` in front of the consume-ok ends its connection (P2).

use amqp::method::{basic, channel, queue};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners};

const CONSUME: basic::Consume<'static> = basic::Consume {
    reserved_1: 0,
    queue: "q",
    consumer_tag: "t",
    no_local: false,
    no_ack: false,
    exclusive: false,
    no_wait: false,
    arguments: amqp::RawTable::EMPTY,
};

/// A client whose consumer is still to be answered on a shared connection, by a broker that is silent.
async fn consuming(broker: &mut Broker) -> (Client, BrokerEnd, u16) {
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut shared = broker.next_connection().await;
    client.open_channel(1).await;
    client.send(1, basic::Qos { prefetch_count: 1, ..Default::default() }).await;
    client.expect("basic.qos-ok").await;
    broker.fall_silent();
    client.send(1, CONSUME).await;
    for name in ["channel.open", "basic.qos"] {
        shared.expect(name).await;
    }
    let number = shared.expect("basic.consume").await.channel;
    (client, shared, number)
}

#[tokio::test(start_paused = true)]
async fn a_channel_moves_once_its_consumer_is_answered() {
    let mut broker = Broker::start(Manners::default());
    let (mut client, mut shared, number) = consuming(&mut broker).await;
    client.send(1, queue::Declare { exclusive: true, ..Default::default() }).await;
    assert!(!shared.has_more().await, "the consumer is not answered yet");
    shared.send(number, basic::ConsumeOk { consumer_tag: "t" });
    client.expect("basic.consume-ok").await;
    shared.expect("channel.close").await;
    shared.send(number, channel::CloseOk {});
    let mut own = broker.next_connection().await;
    for name in ["channel.open", "basic.qos", "basic.consume", "queue.declare"] {
        own.expect(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_consumer_is_cancelled_and_made_again_once_it_is_answered() {
    let mut broker = Broker::start(Manners::default());
    let (mut client, mut shared, number) = consuming(&mut broker).await;
    client.send(1, basic::Cancel { consumer_tag: "t", no_wait: false }).await;
    client.send(1, CONSUME).await;
    assert!(!shared.has_more().await, "the consumer is not answered yet");
    shared.send(number, basic::ConsumeOk { consumer_tag: "t" });
    client.expect("basic.consume-ok").await;
    shared.expect("basic.cancel").await;
    assert!(!shared.has_more().await, "the cancel is not answered yet");
    shared.send(number, basic::CancelOk { consumer_tag: "t" });
    client.expect("basic.cancel-ok").await;
    shared.expect("basic.consume").await;
}
