//! A close waits for no message (P6), and yet what a client asks about queues afterwards, on another channel, finds its
//! messages there.

use amqp::Method;
use amqp::method::{basic, channel, confirm, queue};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners, all_is_quiet};

/// How the broker processes the messages of a channel that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answers,
    ConfirmsLater,
    ClosesTheChannel,
    IsLost,
}

/// A client that has published on a channel and closed it, while the broker says nothing; with the connection, and the number
/// of the upstream channel there.
async fn closed(broker: &mut Broker, client: &mut Client, confirms: bool) -> (BrokerEnd, u16) {
    let mut publishing = broker.next_connection().await;
    client.open_channel(1).await;
    if confirms {
        client.send(1, confirm::Select::default()).await;
        client.expect("confirm.select-ok").await;
    }
    client.publish(1, b"x").await;
    publishing.expect("channel.open").await;
    if confirms {
        publishing.expect("confirm.select").await;
    }
    let (number, _) = publishing.expect_message().await;
    broker.fall_silent();
    client.send(1, channel::Close::default()).await;
    client.expect("channel.close-ok").await;
    if !confirms {
        publishing.expect("basic.qos").await;
    }
    (publishing, number)
}

fn passive() -> queue::Declare<'static> {
    queue::Declare { queue: "q", passive: true, ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn queue_methods_wait_for_the_messages_of_a_closed_channel() {
    for end in [End::Answers, End::ConfirmsLater, End::ClosesTheChannel, End::IsLost] {
        let methods: [Method<'_>; 3] =
            [passive().into(), basic::Get { queue: "q", ..Default::default() }.into(), {
                queue::Purge { queue: "q", ..Default::default() }.into()
            }];
        for method in methods {
            let mut broker = Broker::start(Manners::default());
            let pool = Pool::new(broker.config());
            let mut client = Client::connect(&pool).await;
            let (publishing, number) = closed(&mut broker, &mut client, end == End::ConfirmsLater).await;
            client.open_channel(2).await;
            client.send(2, method).await;
            let mut other = broker.next_connection().await;
            other.expect("channel.open").await;
            assert!(!other.has_more().await, "{} has overtaken a message: {end:?}", method.name());
            match end {
                End::Answers => publishing.send(number, basic::QosOk {}),
                // The answer to a request that has nothing to do with the confirm, which may take long.
                End::ConfirmsLater => publishing.send(number, channel::FlowOk { active: true }),
                End::ClosesTheChannel => {
                    let close =
                        channel::Close { reply_code: 404, reply_text: "NOT_FOUND", ..Default::default() };
                    publishing.send(number, close);
                }
                End::IsLost => drop(publishing),
            }
            assert_eq!(other.next().await.name(), method.name(), "{end:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p6_nothing_waits_once_the_messages_of_a_closed_channel_are_processed() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let (mut publishing, number) = closed(&mut broker, &mut client, false).await;
    publishing.send(number, basic::QosOk {});
    client.open_channel(2).await;
    assert!(!broker.has_new_connection().await);
    let proofs = broker.manners.proofs.load(std::sync::atomic::Ordering::SeqCst);
    client.send(2, passive()).await;
    // On the channel that rests there.
    publishing.expect("queue.declare").await;
    assert_eq!(broker.manners.proofs.load(std::sync::atomic::Ordering::SeqCst), proofs);
}

#[tokio::test(start_paused = true)]
async fn another_client_waits_for_none_of_it() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let (mut client, mut neighbour) = (Client::connect(&pool).await, Client::connect(&pool).await);
    let (_publishing, _) = closed(&mut broker, &mut client, false).await;
    neighbour.open_channel(1).await;
    neighbour.send(1, passive()).await;
    let mut other = broker.next_connection().await;
    other.expect("channel.open").await;
    other.expect("queue.declare").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_goes_on_in_another_process_once_the_messages_are_processed() {
    let mut broker = Broker::start(Manners::default());
    let (old, new) = (Pool::new(broker.config()), Pool::new(broker.config()));
    let mut client = Client::connect(&old).await;
    let (mut publishing, number) = closed(&mut broker, &mut client, true).await;
    client.leave();
    // The pool asks, although the confirm may come any time.
    all_is_quiet().await;
    assert_eq!(broker.manners.proofs.load(std::sync::atomic::Ordering::SeqCst), 1);
    // It is still here, and served.
    client.open_channel(2).await;
    assert!(!publishing.has_more().await);
    publishing.send(number, channel::FlowOk { active: true });
    let mut client = client.go_on_in(&new).await;
    let mut next = broker.next_connection().await;
    client.send(2, passive()).await;
    next.expect("channel.open").await;
    next.expect("queue.declare").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_goes_on_in_another_process_if_the_messages_are_lost() {
    let mut broker = Broker::start(Manners::default());
    let (old, new) = (Pool::new(broker.config()), Pool::new(broker.config()));
    let mut client = Client::connect(&old).await;
    let (publishing, _) = closed(&mut broker, &mut client, false).await;
    client.leave();
    client.open_channel(2).await;
    drop(publishing);
    client.go_on_in(&new).await.open_channel(3).await;
}
