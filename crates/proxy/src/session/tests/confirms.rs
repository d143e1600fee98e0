//! A broker's confirms on their way to a client. However the broker batches them, and however the pool merges them, each
//! message must be confirmed to the client in the same way as by the broker itself.

use std::collections::BTreeMap;

use amqp::method::{basic, confirm};
use transport::Protocol as _;

use super::*;
use crate::test_random::TestRandom;
use crate::upstream::Peer;

const CHANNEL: u16 = 1;

/// A client that publishes with confirms, and the broker that its channel is on.
struct World {
    session: ProxySession,
    peer: Option<Peer>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let session = session_of(Pool::new(PoolConfig::new(Vec::new())));
        let mut world = Self { session, peer: None, now: Instant::now() };
        let mut bytes = Vec::new();
        write_method(&mut bytes, CHANNEL, channel_methods::Open::default());
        write_method(&mut bytes, CHANNEL, confirm::Select { no_wait: true });
        take(&mut world.session, &bytes);
        world.publish(0);
        world
    }

    /// The client publishes messages, and everything but their confirms is delivered.
    fn publish(&mut self, count: usize) {
        take(&mut self.session, &frames(&vec![CHANNEL; count]));
        self.session.flush(self.now);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            self.session.handle_nudge(self.now).unwrap();
            if self.peer.is_none() && matches!(self.session.publishing, UpstreamLink::Opening) {
                let role = Role::Publishing;
                let peer = Peer::new(&self.session.pool, &self.session.credentials, None, role, self.now);
                let result = Ok(peer.connection.upstream.clone());
                self.session.link.notify(Event::Ready { own: false, role, result });
                self.peer = Some(peer);
                continue;
            }
            let Some(peer) = &mut self.peer else { return };
            if !peer.read() && peer.deliver(self.now).is_none() {
                return;
            }
        }
    }

    /// The connection is lost, and another one takes over.
    fn lose(&mut self) {
        self.peer.take().unwrap().cut();
        self.settle();
    }

    /// Delivers the broker's confirms, with the broker's numbers, in one read; returns what the client receives.
    fn confirm(&mut self, confirms: &[Method<'_>]) -> Vec<Method<'static>> {
        let channel = self.session.channels.get(CHANNEL).unwrap();
        let number = channel.publishing.as_deref().and_then(Side::route).unwrap().channel;
        let mut bytes = Vec::new();
        confirms.iter().for_each(|method| write_method(&mut bytes, number, *method));
        self.session.link.outbox.read_all();
        self.peer.as_mut().unwrap().connection.handle_input(&bytes, self.now);
        let bytes = self.session.link.outbox.read_all();
        let (mut got, mut rest) = (Vec::new(), &bytes[..]);
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            rest = &rest[frame.wire_len()..];
            got.push(match Method::decode(frame.payload).unwrap() {
                Method::BasicAck(ack) => ack.into(),
                Method::BasicNack(nack) => nack.into(),
                other => panic!("{other:?}"),
            });
        }
        got
    }

    /// Like [`Self::confirm`], with a separate ack for each of these messages.
    fn ack(&mut self, tags: &[u64]) -> Vec<(u64, bool)> {
        let confirms: Vec<_> = tags.iter().map(|tag| ack(*tag, false)).collect();
        let got = self.confirm(&confirms);
        got.iter()
            .map(|method| match method {
                Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn ack(delivery_tag: u64, multiple: bool) -> Method<'static> {
    basic::Ack { delivery_tag, multiple }.into()
}

/// Adds the messages that these methods confirm, each with whether it was an ack.
fn learn(confirmed: &mut BTreeMap<u64, bool>, methods: &[Method<'_>]) {
    for method in methods {
        let (tag, multiple, is_ack) = match method {
            Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, true),
            Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, false),
            other => panic!("{other:?}"),
        };
        for number in if multiple { 1 } else { tag }..=tag {
            confirmed.entry(number).or_insert(is_ack);
        }
    }
}

#[tokio::test]
async fn confirms_of_one_read_come_as_one_if_no_message_in_front_of_them_is_unconfirmed() {
    let mut world = World::new();
    world.publish(20);
    assert_eq!(world.ack(&[1]), [(1, false)]);
    assert_eq!(world.ack(&[2, 3, 4]), [(4, true)]);
    assert_eq!(world.ack(&[6, 7]), [(6, false), (7, false)], "5 is not");
    assert_eq!(world.ack(&[9, 5]), [(9, false), (5, false)], "8 is not");
    assert_eq!(world.ack(&[8, 10]), [(10, true)]);
}

#[tokio::test]
async fn a_client_learns_the_same_of_each_message_as_from_the_broker() {
    let (mut fewer, mut refused) = (0, 0);
    for seed in 0..200 {
        let (mut random, mut world) = (TestRandom::new(seed), World::new());
        let (mut published, mut direct, mut through) = (0, BTreeMap::new(), BTreeMap::new());
        for _ in 0..20 {
            let count = 1 + random.below(12);
            world.publish(count as usize);
            published += count;
            let mut confirms = Vec::new();
            for _ in 0..random.below(10) {
                let open: Vec<u64> = (1..=published).filter(|number| !direct.contains_key(number)).collect();
                let near = random.below([1, 3, 20][seed as usize % 3]) as usize;
                let Some(&delivery_tag) = open.get(near) else { continue };
                let multiple = random.chance(200);
                let method = match random.chance(100) {
                    true => basic::Nack { delivery_tag, multiple, requeue: false }.into(),
                    false => ack(delivery_tag, multiple),
                };
                learn(&mut direct, &[method]);
                confirms.push(method);
            }
            let got = world.confirm(&confirms);
            learn(&mut through, &got);
            assert_eq!(through, direct, "seed {seed}: {confirms:?} came as {got:?}");
            fewer += confirms.len() - got.len();
        }
        refused += direct.values().filter(|is_ack| !**is_ack).count();
    }
    assert!(fewer > 1000 && refused > 1000, "{fewer} fewer, {refused} refused");
}

#[tokio::test]
async fn messages_that_are_sent_again_are_confirmed_by_the_numbers_that_the_client_knows() {
    let mut world = World::new();
    world.publish(10);
    assert_eq!(world.ack(&[2, 4, 5]), [(2, false), (4, false), (5, false)]);
    world.lose();
    // Messages 1, 3, 6 and later ones are sent again.
    assert_eq!(world.ack(&[2, 3]), [(3, false), (6, false)], "1 is not confirmed");
    assert_eq!(world.ack(&[1, 4]), [(7, true)]);
    assert_eq!(world.ack(&[5, 6, 7]), [(10, true)]);
}
