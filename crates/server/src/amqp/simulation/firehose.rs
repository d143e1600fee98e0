//! Publishes and deliveries of a connection are traced to the firehose in the connection's own turns.

use broker::VirtualHost;
use sync::work::TURN;

use super::fairness::{ENDLESS, STEP, turn};
use super::*;

/// A traced virtual host and a client of it. The queue `hears` is bound to the firehose.
fn traced() -> (Arc<VirtualHost>, Conversation) {
    let broker = Broker::new(BrokerConfig::default());
    let vhost = broker.vhost("/").unwrap();
    let mut client = Conversation::open(&simulated::server_of(broker, Clock::start(), 0).shared(), 0);
    client.call(|out| {
        declare(out, "hears");
        declare(out, "q");
        let exchange = "amq.rabbitmq.trace";
        let bind = queue::Bind { queue: "hears", exchange, routing_key: "#", ..Default::default() };
        frame::write_method(out, 1, bind);
    });
    vhost.set_traced(true);
    (vhost, client)
}

/// Number of messages in the queue `hears`.
fn heard(vhost: &VirtualHost) -> u64 {
    vhost.queue(broker::SessionId(u64::MAX), "hears").unwrap().message_count()
}

fn deliveries(methods: &[String]) -> usize {
    methods.iter().filter(|method| *method == "basic.deliver").count()
}

#[test]
fn traces_of_a_large_load_are_published_in_turns_of_normal_length() {
    const MESSAGES: usize = 10_000;
    let (vhost, mut client) = traced();
    let mut input = Vec::new();
    (0..MESSAGES).for_each(|_| publish(&mut input, "q", b"", false));
    let consume = basic::Consume { queue: "q", no_ack: true, ..Default::default() };
    frame::write_method(&mut input, 1, consume);
    client.unconsumed = input;
    let (mut delivered, mut turns) = (0, 0);
    while delivered < MESSAGES || heard(&vhost) < 2 * MESSAGES as u64 {
        let spent = turn(&mut client);
        assert!(spent <= u64::from(TURN) + 2 * STEP, "{spent} ns in one turn");
        delivered += deliveries(&client.received());
        turns += 1;
        assert!(turns < ENDLESS, "{delivered} delivered, {} heard", heard(&vhost));
    }
    assert_eq!(heard(&vhost), 2 * MESSAGES as u64);
    // Each costs some microseconds.
    assert!(turns > 2 * MESSAGES / 250, "{turns}");
}

#[test]
fn a_get_and_deliveries_pending_at_disconnect_are_traced() {
    let (vhost, mut client) = traced();
    client.call(|out| (0..5).for_each(|_| publish(out, "q", b"x", false)));
    assert_eq!(heard(&vhost), 5);
    client.call(|out| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
        frame::write_method(out, 1, basic::Consume { queue: "q", no_ack: true, ..Default::default() });
    });
    // The connection breaks before its next turn.
    drop(client.connection);
    assert_eq!(heard(&vhost), 10);
}
