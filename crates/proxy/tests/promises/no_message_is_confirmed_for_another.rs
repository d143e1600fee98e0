//! P7: messages in front of `confirm.select` have no confirms, on whatever upstream channel they are sent again. If they
//! had, the broker's number of each message behind it would be one that the client takes for a later message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amqp::Method;
use amqp::frame::write_method;
use amqp::method::{basic, confirm};
use proxy::Pool;

use crate::common::{Broker, BrokerEnd, Client, Manners, OwnedFrame, Stalled, all_is_quiet, message, until};

/// Messages with these bodies, behind each other.
fn messages(bodies: &[&str]) -> Vec<u8> {
    bodies.iter().flat_map(|body| message(1, body.as_bytes(), 131_072)).collect()
}

/// A `confirm.select` of the client.
fn select(no_wait: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_method(&mut bytes, 1, confirm::Select { no_wait });
    bytes
}

async fn expect_messages(upstream: &mut BrokerEnd, bodies: &[&str]) {
    for body in bodies {
        assert_eq!(upstream.expect_message().await.1, body.as_bytes());
    }
}

fn ack(delivery_tag: u64) -> basic::Ack {
    basic::Ack { delivery_tag, multiple: false }
}

/// A client that sends two messages, `confirm.select` and two more at once, on a channel that is placed if `is_placed`, to
/// a broker that is silent from then on.
async fn selecting(broker: &mut Broker, is_placed: bool, no_wait: bool) -> (Arc<Pool>, Client, BrokerEnd) {
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let mut upstream = broker.next_connection().await;
    client.open_channel(1).await;
    let all = [messages(&["a", "b"]), select(no_wait), messages(&["1", "2"])].concat();
    if is_placed {
        client.publish(1, b"proven").await;
        upstream.expect("channel.open").await;
        expect_messages(&mut upstream, &["proven"]).await;
        let proofs = || broker.manners.proofs.load(Ordering::SeqCst);
        until("the proof of the first message", || proofs() > 0 && pool.metrics().replay_buffer_bytes == 0)
            .await;
        broker.fall_silent();
        client.write(&all).await;
        return (pool, client, upstream);
    }
    broker.stall(Stalled::All);
    drop(upstream);
    until("the connection to be lost", || pool.metrics().upstream_connections == 0).await;
    broker.fall_silent();
    client.write(&all).await;
    all_is_quiet().await;
    broker.stall(Stalled::Nobodys);
    let upstream = broker.next_connection().await;
    (pool, client, upstream)
}

/// Has the broker's end answer the client's own `confirm.select`, if that went out.
fn answer_select(upstream: &BrokerEnd, number: u16, select: &OwnedFrame) {
    let Method::ConfirmSelect(select) = select.method() else { panic!("{select:?}") };
    if !select.no_wait {
        upstream.send(number, confirm::SelectOk {});
    }
}

#[tokio::test(start_paused = true)]
async fn p7_messages_in_front_of_confirm_select_are_sent_again_in_front_of_it() {
    for (is_placed, no_wait) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut broker = Broker::start(Manners::default());
        let (pool, mut client, mut upstream) = selecting(&mut broker, is_placed, no_wait).await;
        // Lost three times: the channels in between have proven nothing either.
        for attempt in 0..4 {
            let has_opened = attempt > 0 || !is_placed;
            let number = if has_opened { upstream.expect("channel.open").await.channel } else { 1 };
            expect_messages(&mut upstream, &["a", "b"]).await;
            let select = upstream.expect("confirm.select").await;
            expect_messages(&mut upstream, &["1", "2"]).await;
            if attempt < 3 {
                drop(upstream);
                upstream = broker.next_connection().await;
                continue;
            }
            answer_select(&upstream, number, &select);
            if !no_wait {
                client.expect("confirm.select-ok").await;
            }
            for tag in [1, 2] {
                upstream.send(number, ack(tag));
                assert_eq!(client.expect_ack().await, (tag, false));
            }
            break;
        }
        assert_eq!(pool.metrics().replay_buffer_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn p7_messages_behind_a_confirm_select_that_is_repeated_keep_their_confirms() {
    let mut broker = Broker::start(Manners::default());
    let (_pool, mut client, mut upstream) = selecting(&mut broker, true, true).await;
    expect_messages(&mut upstream, &["a", "b"]).await;
    upstream.expect("confirm.select").await;
    expect_messages(&mut upstream, &["1", "2"]).await;
    client.write(&[select(true), select(false), messages(&["3"])].concat()).await;
    client.expect("confirm.select-ok").await;
    expect_messages(&mut upstream, &["3"]).await;
    upstream.send(1, ack(1));
    assert_eq!(client.expect_ack().await, (1, false));
    // The first confirm proves the messages in front of it, so that the next channel begins in confirm mode.
    drop(upstream);
    let mut next = broker.next_connection().await;
    let number = next.expect("channel.open").await.channel;
    next.expect("confirm.select").await;
    expect_messages(&mut next, &["2", "3"]).await;
    for tag in [1, 2] {
        next.send(number, ack(tag));
        assert_eq!(client.expect_ack().await, (tag + 1, false));
    }
}
