//! Random acknowledgements of a client, in order or not, valid or not, with other methods in between. After each read, a
//! model of a broker's channel that receives the client's methods is compared with one that receives what the pool sends:
//! the same deliveries must be settled in the same way, in an equivalent order, with the same refusal.

use amqp::method::{basic, queue, tx};
use sync::work::Turn;

use super::*;
use crate::test_random::TestRandom;
use crate::upstream::{ChannelDeliveries, Effect, Peer};

const CHANNEL: u16 = 1;

struct World {
    random: TestRandom,
    session: ProxySession,
    peers: Vec<Peer>,
    now: Instant,
    /// The broker's channel if it were the client's own.
    direct: ChannelDeliveries,
    /// The last delivery tag that the client got on earlier upstream channels.
    earlier: u64,
    /// Whether the client may have settled deliveries of the current upstream channel in a way that cannot be tracked.
    is_unsure: bool,
}

impl World {
    /// A client with a consumer, and one without acknowledgements if `automatic`.
    fn new(seed: u64, automatic: bool) -> Self {
        let mut world = Self::empty(seed);
        world.open_channel(CHANNEL, Some(100), automatic);
        world
    }

    fn empty(seed: u64) -> Self {
        Self {
            random: TestRandom::new(seed),
            session: session_of(Pool::new(PoolConfig::new(Vec::new()))),
            peers: Vec::new(),
            now: Instant::now(),
            direct: ChannelDeliveries::default(),
            earlier: 0,
            is_unsure: false,
        }
    }

    /// Opens a channel with consumers as in [`Self::new`], without a limit if `prefetch_count` is `None`.
    fn open_channel(&mut self, number: u16, prefetch_count: Option<u16>, automatic: bool) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, number, channel_methods::Open::default());
        if let Some(prefetch_count) = prefetch_count {
            write_method(&mut bytes, number, basic::Qos { prefetch_count, ..Default::default() });
        }
        for (consumer_tag, no_ack) in [("manual", false), ("automatic", true)] {
            if automatic || !no_ack {
                let consume = basic::Consume { queue: "q", consumer_tag, no_ack, ..Default::default() };
                write_method(&mut bytes, number, consume);
            }
        }
        self.read(&bytes);
        self.settle();
    }

    /// The client sends a method, and receives the reply if it has one.
    fn call<'m>(&mut self, method: impl Into<Method<'m>>) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, CHANNEL, method);
        self.read(&bytes);
        self.settle();
    }

    /// The session receives this in one read.
    fn read(&mut self, bytes: &[u8]) {
        let mut taken = 0;
        while let Some(frame) = Frame::parse(&bytes[taken..], 0).unwrap() {
            taken += frame.wire_len();
            taken += self.session.handle_frame(frame, &bytes[taken..], self.now).unwrap();
        }
        self.session.flush(self.now);
        for peer in &mut self.peers {
            peer.read();
        }
    }

    /// Delivers all replies and opens connections until nothing changes.
    fn settle(&mut self) {
        loop {
            self.session.handle_nudge(self.now).unwrap();
            let mut changes = usize::from(self.open());
            for peer in &mut self.peers {
                changes += usize::from(peer.read());
                changes += std::iter::from_fn(|| peer.deliver(self.now)).count();
            }
            if changes == 0 {
                return;
            }
        }
    }

    fn open(&mut self) -> bool {
        let session = &self.session;
        let links = [(true, &session.own), (false, &session.general)];
        let Some((own, _)) = links.into_iter().find(|(_, link)| matches!(link, UpstreamLink::Opening)) else {
            return false;
        };
        let (owner, role) = (own.then(|| session.link.clone()), Role::General);
        let peer = Peer::new(&session.pool, &session.credentials, owner, role, self.now);
        let result = Ok(peer.connection.upstream.clone());
        session.link.notify(Event::Ready { own, role, result });
        self.peers.push(peer);
        true
    }

    /// The broker's end of the channel.
    fn peer(&mut self) -> (&mut Peer, u16) {
        self.peer_of(CHANNEL)
    }

    fn peer_of(&mut self, number: u16) -> (&mut Peer, u16) {
        let side = &self.session.channels.get(number).unwrap().general;
        let route = side.route().unwrap().clone();
        let is_it = |peer: &&mut Peer| Arc::ptr_eq(&peer.connection.upstream, &route.upstream);
        (self.peers.iter_mut().find(is_it).unwrap(), route.channel)
    }

    fn deliver(&mut self, automatic: bool) {
        let (consumer_tag, now) = (if automatic { "automatic" } else { "manual" }, self.now);
        let (peer, number) = self.peer();
        peer.send_delivery(number, consumer_tag, automatic, now);
        self.direct.deliver(automatic);
    }

    /// The connection is lost, and another one takes over.
    fn lose(&mut self) {
        let (peer, _) = self.peer();
        let lost = peer.connection.upstream.clone();
        peer.cut();
        self.peers.retain(|peer| !Arc::ptr_eq(&peer.connection.upstream, &lost));
        self.settle();
        self.earlier += std::mem::take(&mut self.direct).last;
        self.is_unsure = false;
    }

    /// Adds a method to the client's bytes, and applies it to the direct model. Its delivery tag is the broker's.
    fn send(&mut self, bytes: &mut Vec<u8>, method: &Method<'_>) {
        self.direct.take(method);
        let client = |tag: u64| if tag == 0 { 0 } else { tag + self.earlier };
        match *method {
            Method::BasicAck(ack) => {
                let delivery_tag = client(ack.delivery_tag);
                write_method(bytes, CHANNEL, basic::Ack { delivery_tag, ..ack });
            }
            Method::BasicNack(nack) => {
                let delivery_tag = client(nack.delivery_tag);
                write_method(bytes, CHANNEL, basic::Nack { delivery_tag, ..nack });
            }
            Method::BasicReject(reject) => {
                let delivery_tag = client(reject.delivery_tag);
                write_method(bytes, CHANNEL, basic::Reject { delivery_tag, ..reject });
            }
            other => write_method(bytes, CHANNEL, other),
        }
    }

    /// The next method of the client. How often each comes is in thousandths; `disorder` is how far from the oldest unsettled
    /// delivery its tag may be.
    fn method(&mut self, disorder: u64) -> Method<'static> {
        let unsettled = self.direct.unsettled();
        let near = self.random.below(disorder.min(unsettled.len() as u64).max(1)) as usize;
        let Some(delivery_tag) = unsettled.get(near).copied() else {
            return basic::Qos { prefetch_count: 100, ..Default::default() }.into();
        };
        let (multiple, requeue) = (self.random.chance(300), self.random.chance(500));
        let drawn = self.random.below(1000);
        self.is_unsure |= drawn >= 991;
        match drawn {
            0..900 => basic::Ack { delivery_tag, multiple: false }.into(),
            900..930 => basic::Ack { delivery_tag, multiple: true }.into(),
            930..950 => basic::Nack { delivery_tag, multiple, requeue }.into(),
            950..970 => basic::Reject { delivery_tag, requeue }.into(),
            970..985 => basic::Qos { prefetch_count: 100, ..Default::default() }.into(),
            // Otherwise the channel would move.
            985..988 if !self.is_unsure => basic::Ack { delivery_tag: 0, multiple: true }.into(),
            988..991 if !self.is_unsure => basic::Nack { delivery_tag: 0, multiple: true, requeue }.into(),
            985..991 => basic::Ack { delivery_tag, multiple: false }.into(),
            991..994 => basic::Recover { requeue: true }.into(),
            // Refused, unless the tag happens to be unsettled.
            994..997 => {
                basic::Ack { delivery_tag: 1 + self.random.below(self.direct.last + 2), multiple }.into()
            }
            _ => basic::Reject { delivery_tag: self.direct.last + 1, requeue }.into(),
        }
    }
}

#[tokio::test]
async fn gathered_acknowledgements_have_the_same_effect_as_when_sent_directly() {
    let (mut settled, mut refused) = (0, 0);
    for seed in 0..200 {
        let automatic = seed % 5 == 0;
        let mut world = World::new(seed, automatic);
        let disorder = [1, 1, 3, 20][seed as usize % 4];
        for _ in 0..60 {
            for _ in 0..world.random.below(20) {
                let automatic = automatic && world.random.chance(200);
                world.deliver(automatic);
            }
            let mut bytes = Vec::new();
            if world.earlier > 0 && world.random.chance(50) {
                // Settles a delivery of a lost upstream channel.
                let delivery_tag = 1 + world.random.below(world.earlier);
                write_method(
                    &mut bytes,
                    CHANNEL,
                    basic::Ack { delivery_tag, multiple: world.random.chance(500) },
                );
            }
            for _ in 0..world.random.below(20) {
                let method = world.method(disorder);
                world.send(&mut bytes, &method);
            }
            world.read(&bytes);
            let (peer, number) = world.peer();
            let effects = peer.effects(number);
            let expected = std::mem::take(&mut world.direct.effects);
            assert_eq!(effects, expected, "seed {seed}");
            settled += effects.iter().filter(|effect| matches!(effect, Effect::Acked(_))).count();
            if let Some(Effect::Refused(_)) = effects.last() {
                refused += 1;
                break;
            }
            world.settle();
            if world.random.chance(30) {
                world.lose();
            }
        }
    }
    assert!(settled > 1000 && refused > 20, "{settled} times settled, {refused} refused");
}

/// The acknowledgements that the pool sends when the client sends these, for ten deliveries, in one read.
fn gathered(tags: &[u64], prepare: impl FnOnce(&mut World)) -> Vec<(u64, bool)> {
    let mut world = World::new(0, false);
    (0..10).for_each(|_| world.deliver(false));
    prepare(&mut world);
    sent(&mut world, tags)
}

/// The acknowledgements that the pool sends when the client acknowledges these tags.
fn sent(world: &mut World, tags: &[u64]) -> Vec<(u64, bool)> {
    let mut bytes = Vec::new();
    for delivery_tag in tags {
        write_method(&mut bytes, CHANNEL, basic::Ack { delivery_tag: *delivery_tag, multiple: false });
    }
    take(&mut world.session, &bytes);
    world.session.flush(world.now);
    acks(&world.peer().0.connection.upstream.outbox.read_all())
}

fn acks(mut bytes: &[u8]) -> Vec<(u64, bool)> {
    let mut acks = Vec::new();
    while let Some(frame) = Frame::parse(bytes, 0).unwrap() {
        bytes = &bytes[frame.wire_len()..];
        if let Ok(Method::BasicAck(ack)) = Method::decode(frame.payload) {
            acks.push((ack.delivery_tag, ack.multiple));
        }
    }
    acks
}

#[tokio::test]
async fn acknowledgements_of_one_read_go_out_as_one_if_nothing_in_front_of_them_is_unsettled() {
    assert_eq!(gathered(&[1, 2, 3, 4], |_| {}), [(4, true)]);
    assert_eq!(gathered(&[1], |_| {}), [(1, false)]);
    assert_eq!(gathered(&[2, 3, 4], |_| {}), [(2, false), (3, false), (4, false)]);
    assert_eq!(gathered(&[1, 2, 4, 3, 6], |_| {}), [(2, true), (4, true), (6, false)]);
    assert_eq!(gathered(&[3, 2, 1, 4], |_| {}), [(3, false), (4, true)]);
    assert_eq!(
        gathered(&[1, 2, 2, 3], |_| {}),
        [(2, true), (2, false), (3, false)],
        "the second 2 is refused"
    );
    assert_eq!(
        gathered(&[9, 10, 11], |_| {}),
        [(9, false), (10, false), (11, false)],
        "11 was not delivered"
    );
}

#[tokio::test]
async fn deliveries_settled_by_other_methods_count_as_settled_when_gathering() {
    let settle = |method: Method<'static>| move |world: &mut World| world.call(method);
    let reject = basic::Reject { delivery_tag: 1, requeue: true };
    assert_eq!(gathered(&[2, 3], settle(reject.into())), [(3, true)]);
    let nack = basic::Nack { delivery_tag: 4, multiple: true, requeue: false };
    assert_eq!(gathered(&[5, 6], settle(nack.into())), [(6, true)]);
    let recover = basic::Recover { requeue: true };
    assert_eq!(gathered(&[1, 2], settle(recover.into())), [(1, false), (2, false)], "they are refused");
    let all = basic::Ack { delivery_tag: 0, multiple: true };
    assert_eq!(gathered(&[1, 2], settle(all.into())), [(1, false), (2, false)], "they are refused");
}

/// Deliveries that the pool has not passed on, or not read yet, must not be settled by the client.
#[tokio::test]
async fn settling_all_covers_only_deliveries_passed_on_to_the_client() {
    let all = || basic::Ack { delivery_tag: 0, multiple: true };
    assert_eq!(gathered(&[1, 2, 3], |_| {}), [(3, true)]);
    let mut world = World::new(0, false);
    (0..4).for_each(|_| world.deliver(false));
    assert_eq!(sent_all(&mut world, &[4, 2], all()), [(4, false), (3, true)]);
    assert_eq!(sent_all(&mut world, &[], all()), [], "nothing is left");
    world.deliver(false);
    assert_eq!(sent_all(&mut world, &[], all()), [(5, true)]);
    world.deliver(false);
    world.lose();
    world.deliver(false);
    assert_eq!(sent_all(&mut world, &[], all()), [(1, true)], "of the current upstream channel");

    world.deliver(false);
    let mut bytes = Vec::new();
    let nack = basic::Nack { delivery_tag: 0, multiple: true, requeue: false };
    write_method(&mut bytes, CHANNEL, nack);
    take(&mut world.session, &bytes);
    world.session.flush(world.now);
    let sent = world.peer().0.connection.upstream.outbox.read_all();
    let frame = Frame::parse(&sent, 0).unwrap().unwrap();
    assert_eq!(Method::decode(frame.payload).unwrap(), basic::Nack { delivery_tag: 2, ..nack }.into());
}

/// The acknowledgements that the pool sends when the client acknowledges these tags and then sends `last`, in one read.
fn sent_all(world: &mut World, tags: &[u64], last: basic::Ack) -> Vec<(u64, bool)> {
    let mut bytes = Vec::new();
    for delivery_tag in tags {
        write_method(&mut bytes, CHANNEL, basic::Ack { delivery_tag: *delivery_tag, multiple: false });
    }
    write_method(&mut bytes, CHANNEL, last);
    take(&mut world.session, &bytes);
    world.session.flush(world.now);
    acks(&world.peer().0.connection.upstream.outbox.read_all())
}

#[tokio::test]
async fn settling_everything_moves_to_the_own_connection_where_deliveries_cannot_be_tracked() {
    let mut world = World::new(0, false);
    (0..2).for_each(|_| world.deliver(false));
    world.call(basic::Recover { requeue: true });
    (0..2).for_each(|_| world.deliver(false));
    assert!(!world.session.channels.get(CHANNEL).unwrap().is_own());
    let mut bytes = Vec::new();
    let all = basic::Ack { delivery_tag: 0, multiple: true };
    for ack in [basic::Ack { delivery_tag: 3, multiple: false }, all] {
        write_method(&mut bytes, CHANNEL, ack);
    }
    world.read(&bytes);
    let (peer, number) = world.peer();
    let is_acked = |effect: &Effect| matches!(effect, Effect::Acked(tags) if tags.contains(&4));
    assert!(!peer.effects(number).iter().any(is_acked), "it is redelivered");
    world.settle();
    assert!(world.session.channels.get(CHANNEL).unwrap().is_own());
    world.deliver(false);
    assert_eq!(sent_all(&mut world, &[], all), [(0, true)]);
}

#[tokio::test]
async fn acknowledgements_of_a_transaction_are_not_gathered() {
    let in_transaction = |world: &mut World| {
        world.call(tx::Select {});
        // The first ten deliveries were requeued when the channel moved to its own connection.
        (0..10).for_each(|_| world.deliver(false));
    };
    assert_eq!(gathered(&[11, 12], in_transaction), [(1, false), (2, false)]);
}

#[tokio::test]
async fn acknowledgements_keep_their_place_among_other_methods() {
    let mut world = World::new(0, false);
    (0..10).for_each(|_| world.deliver(false));
    let mut bytes = Vec::new();
    let ack = |bytes: &mut Vec<u8>, delivery_tag| {
        write_method(bytes, CHANNEL, basic::Ack { delivery_tag, multiple: false });
    };
    ack(&mut bytes, 1);
    ack(&mut bytes, 2);
    write_method(&mut bytes, CHANNEL, queue::Declare { queue: "q", passive: true, ..Default::default() });
    ack(&mut bytes, 3);
    ack(&mut bytes, 4);
    take(&mut world.session, &bytes);
    world.session.flush(world.now);
    let sent = world.peer().0.connection.upstream.outbox.read_all();
    let mut names = Vec::new();
    let mut rest = &sent[..];
    while let Some(frame) = Frame::parse(rest, 0).unwrap() {
        rest = &rest[frame.wire_len()..];
        names.push(Method::decode(frame.payload).unwrap().name());
    }
    assert_eq!(names, ["basic.ack", "queue.declare", "basic.ack"]);
    assert_eq!(acks(&sent), [(2, true), (4, true)]);
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_leaves_its_deliveries_unsettled() {
    // Without a prefetch limit the channel is on its own connection from the start.
    let mut world = World::empty(0);
    world.open_channel(CHANNEL, None, false);
    (0..4).for_each(|_| world.deliver(false));
    world.call(tx::Select {});
    assert_eq!(sent(&mut world, &[1]), [(1, false)]);
    world.call(tx::Rollback {});
    assert_eq!(sent(&mut world, &[2, 3]), [(2, false), (3, false)]);
}

#[tokio::test]
async fn automatically_acknowledged_deliveries_cannot_be_acknowledged() {
    let mut world = World::new(0, true);
    world.deliver(false);
    world.deliver(true);
    assert_eq!(sent(&mut world, &[1, 2]), [(1, false), (2, false)], "2 is refused");
    // The consumers are recreated.
    let mut world = World::new(0, true);
    world.deliver(false);
    world.lose();
    world.deliver(false);
    world.deliver(true);
    assert_eq!(sent(&mut world, &[2, 3]), [(1, false), (2, false)], "the third is refused");
    for (no_ack, expected) in [(false, &[(2, true)][..]), (true, &[(1, false), (2, false)])] {
        let mut world = World::empty(0);
        world.open_channel(CHANNEL, None, false);
        world.deliver(false);
        world.peer().0.has_messages = true;
        world.call(basic::Get { queue: "q", no_ack, ..Default::default() });
        assert_eq!(sent(&mut world, &[1, 2]), expected, "basic.get, no_ack {no_ack}");
    }
}

#[tokio::test]
async fn nothing_is_gathered_once_the_broker_has_cancelled_a_consumer() {
    let cancel = |world: &mut World| {
        let now = world.now;
        let (peer, number) = world.peer();
        peer.cancel(number, "manual", now);
    };
    assert_eq!(gathered(&[1, 2, 3], cancel), [(1, false), (2, false), (3, false)]);
    let after_others = |world: &mut World| {
        assert_eq!(sent(world, &[1, 2]), [(2, true)]);
        cancel(world);
        world.call(basic::Nack { delivery_tag: 3, multiple: false, requeue: true });
    };
    assert_eq!(gathered(&[4, 5], after_others), [(4, false), (5, false)]);
}

#[tokio::test]
async fn acknowledgements_of_lost_deliveries_leave_the_channel_clean() {
    let mut world = World::new(0, false);
    world.deliver(false);
    world.call(basic::Cancel { consumer_tag: "manual", no_wait: false });
    world.lose();
    world.call(queue::Declare { queue: "q", passive: true, ..Default::default() });
    let is_suspect = |world: &World| world.session.channels.get(CHANNEL).unwrap().general.is_suspect();
    assert!(!is_suspect(&world));
    assert_eq!(sent(&mut world, &[1]), []);
    assert!(!is_suspect(&world), "the channel can be reused without a close");
    assert_eq!(sent(&mut world, &[1, 2]), [(1, false)]);
    assert!(is_suspect(&world), "it is unknown whether it was refused");
}

#[tokio::test]
async fn acknowledgements_of_several_channels_are_gathered_for_each_in_turn() {
    let mut world = World::new(0, false);
    for number in [3, 2] {
        world.open_channel(number, Some(100), false);
        let now = world.now;
        let (peer, upstream) = world.peer_of(number);
        assert_eq!(upstream, 5 - number, "as they were opened");
        (0..4).for_each(|_| peer.send_delivery(upstream, "manual", false, now));
    }
    let mut bytes = Vec::new();
    for (number, delivery_tag) in [(2, 1), (2, 2), (3, 1), (2, 3), (3, 2), (3, 3), (2, 4), (3, 4)] {
        write_method(&mut bytes, number, basic::Ack { delivery_tag, multiple: false });
    }
    take(&mut world.session, &bytes);
    world.session.flush(world.now);
    let sent = world.peer().0.connection.upstream.outbox.read_all();
    let (mut rest, mut acks) = (&sent[..], Vec::new());
    while let Some(frame) = Frame::parse(rest, 0).unwrap() {
        rest = &rest[frame.wire_len()..];
        let Ok(Method::BasicAck(ack)) = Method::decode(frame.payload) else { panic!("{frame:?}") };
        acks.push((frame.channel, ack.delivery_tag, ack.multiple));
    }
    assert_eq!(
        acks,
        [(3, 2, true), (2, 1, false), (3, 3, false), (2, 3, true), (3, 4, false), (2, 4, false)]
    );
}

#[tokio::test]
async fn every_acknowledgement_is_charged_however_many_are_taken_at_once() {
    let spent = |count: u64| {
        let mut world = World::new(0, false);
        (0..count).for_each(|_| world.deliver(false));
        let tags: Vec<u64> = (1..=count).collect();
        let turn = Turn::begin();
        sent(&mut world, &tags);
        turn.spent()
    };
    // The first one is charged by the code that parses frames.
    assert_eq!(spent(1), 0);
    assert!(spent(2) > 0);
    assert_eq!(spent(10), 9 * spent(2));
}
