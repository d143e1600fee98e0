//! Random programs of methods on several channels, none of which waits for an answer, while channels move to the client's own
//! connection and upstream connections are lost. Each method with an answer gets exactly one, in order; each message in
//! confirm mode is confirmed once, and not before a broker has it; all messages arrive; and in the end the broker has the
//! consumers that the client has. The broker's end
//! answers like RabbitMQ, and checks that it is asked for nothing for which RabbitMQ would close the connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use amqp::RawTable;
use amqp::method::{basic, channel, confirm, exchange, queue, tx};

use super::*;
use crate::refusal::Refusal;
use crate::test_random::TestRandom;
use crate::upstream::Peer;

const CHANNELS: u16 = 3;
/// Maximum methods that a client has in flight on a channel.
const IN_FLIGHT_MAX: usize = 30;

struct World {
    random: TestRandom,
    session: ProxySession,
    peers: Vec<Peer>,
    now: Instant,
    /// The client's view of its channels.
    channels: BTreeMap<u16, Expected>,
    names: u64,
    answers_seen: u64,
    /// Bodies of messages that a broker has.
    arrived: BTreeSet<u64>,
    /// Bodies of messages that the client has published.
    sent: u64,
    /// Number of messages in confirm mode that were confirmed behind others outside it.
    confirmed_behind: u64,
}

/// The client's view of a channel.
#[derive(Default)]
struct Expected {
    /// Expected replies, each with the name that it contains.
    answers: VecDeque<(&'static str, String)>,
    /// Tags of the consumers that it has requested and not cancelled.
    consumers: BTreeSet<String>,
    /// Tags that it has used before.
    cancelled: Vec<String>,
    has_declared: bool,
    is_confirming: bool,
    is_transactional: bool,
    /// Bodies of messages outside confirm mode and transactions.
    plain: BTreeSet<u64>,
    published: u64,
    /// Messages to be confirmed, by their numbers, with their bodies.
    unconfirmed: BTreeMap<u64, u64>,
    is_closing: bool,
}

impl Expected {
    fn expect(&mut self, answer: &'static str, name: &str) {
        self.answers.push_back((answer, name.to_owned()));
    }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: TestRandom::new(seed),
            session: session_of(Pool::new(PoolConfig::new(Vec::new()))),
            peers: Vec::new(),
            now: Instant::now(),
            channels: BTreeMap::new(),
            names: 0,
            answers_seen: 0,
            arrived: BTreeSet::new(),
            sent: 0,
            confirmed_behind: 0,
        }
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    /// Performs one random event and everything that follows from it at once.
    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(100));
        let result = match self.random.below(100) {
            0..60 => self.client(),
            60..70 => {
                self.ready();
                Ok(())
            }
            70..80 => {
                if let Some(at) = self.pick_peer() {
                    self.peers[at].come_around();
                }
                Ok(())
            }
            80..98 => {
                if let Some(at) = self.pick_peer() {
                    _ = self.random.chance(300) && self.peers[at].confirm(self.now).is_some();
                    self.peers[at].deliver(self.now);
                }
                Ok(())
            }
            98 => {
                self.disturb();
                Ok(())
            }
            _ => {
                self.peers.iter().for_each(|peer| peer.connection.upstream.ask_for_proofs());
                Ok(())
            }
        };
        if let Err(fault) = result.and_then(|()| self.react()) {
            return self.ended(&fault);
        }
        if self.random.chance(10) {
            self.settle();
        }
    }

    /// The session handles its events, and the brokers and the client read.
    fn react(&mut self) -> Result<(), Fault> {
        self.session.handle_nudge(self.now)?;
        self.peers_read();
        self.client_reads();
        Ok(())
    }

    /// Whether a broker has read anything.
    fn peers_read(&mut self) -> bool {
        let mut has_read = false;
        for peer in &mut self.peers {
            has_read |= peer.read();
            self.arrived.extend(peer.bodies());
        }
        has_read
    }

    /// The only fault that may end the client, which then starts again.
    fn ended(&mut self, fault: &Fault) {
        assert!(fault.text.contains("an exclusive queue cannot be carried over"), "{fault:?}");
        self.session = session_of(self.session.pool.clone());
        self.channels.clear();
        self.peers_read();
    }

    fn pick_peer(&mut self) -> Option<usize> {
        let count = self.peers.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// A connection that the session has asked for is ready.
    fn ready(&mut self) -> bool {
        let session = &self.session;
        let wanted = [
            (true, Role::General, &session.own),
            (false, Role::General, &session.general),
            (false, Role::Publishing, &session.publishing),
        ];
        let opening = wanted.into_iter().find(|(_, _, link)| matches!(link, UpstreamLink::Opening));
        let Some((own, role, _)) = opening else { return false };
        let owner = own.then(|| session.link.clone());
        let peer = Peer::new(&session.pool, &session.credentials, owner, role, self.now);
        let result: Result<_, Refusal> = Ok(peer.connection.upstream.clone());
        session.link.notify(Event::Ready { own, role, result });
        self.peers.push(peer);
        true
    }

    /// A connection is lost, or a channel has to move.
    fn disturb(&mut self) {
        if self.random.chance(700) {
            let placed = self.session.channels.iter().find(|(_, channel)| channel.general.is_placed());
            if let Some((channel, lease)) = placed.map(|(number, channel)| (number, channel.general.lease)) {
                self.session.link.notify(Event::DeliveriesOverflowed { channel, lease });
            }
        } else if let Some(at) = self.pick_peer() {
            // The broker loses the messages that it has not confirmed.
            let lost: Vec<u64> =
                self.channels.values().flat_map(|expected| expected.unconfirmed.values().copied()).collect();
            let mut peer = self.peers.swap_remove(at);
            let bodies = peer.bodies().clone();
            self.arrived.retain(|body| !(lost.contains(body) && bodies.contains(body)));
            peer.cut();
        }
    }

    /// The client sends something on one of its channels.
    fn client(&mut self) -> Result<(), Fault> {
        let number = 1 + self.random.below(CHANNELS.into()) as u16;
        let mut bytes = Vec::new();
        let Some(mut expected) = self.channels.remove(&number) else {
            write_method(&mut bytes, number, channel::Open::default());
            let mut expected = Expected::default();
            expected.expect("channel.open-ok", "");
            self.channels.insert(number, expected);
            return self.feed(&bytes);
        };
        if !expected.is_closing && expected.answers.len() < IN_FLIGHT_MAX {
            match self.random.below(20) {
                0..4 => self.publish(number, &mut expected, &mut bytes),
                4..12 => self.consumers(number, &mut expected, &mut bytes),
                _ => self.other(number, &mut expected, &mut bytes),
            }
        }
        self.channels.insert(number, expected);
        self.feed(&bytes)
    }

    fn publish(&mut self, number: u16, expected: &mut Expected, bytes: &mut Vec<u8>) {
        for _ in 0..=self.random.below(3) {
            self.sent += 1;
            write_method(bytes, number, basic::Publish { routing_key: "q", ..Default::default() });
            write_content_header(bytes, number, 8, NO_PROPERTIES);
            let body = self.sent.to_be_bytes();
            write_frame(bytes, FrameKind::Body, number, |out| out.extend_from_slice(&body));
            if expected.is_confirming {
                expected.published += 1;
                expected.unconfirmed.insert(expected.published, self.sent);
            } else if !expected.is_transactional {
                expected.plain.insert(self.sent);
            }
        }
    }

    fn consumers(&mut self, number: u16, expected: &mut Expected, bytes: &mut Vec<u8>) {
        let no_wait = self.random.chance(250);
        if self.random.chance(400) {
            let unknown = self.name("unknown");
            let consumer_tag = match expected.consumers.pop_first() {
                Some(tag) if self.random.chance(900) => tag,
                known => {
                    expected.consumers.extend(known);
                    unknown
                }
            };
            write_method(bytes, number, basic::Cancel { consumer_tag: &consumer_tag, no_wait });
            if !no_wait {
                expected.expect("basic.cancel-ok", &consumer_tag);
            }
            expected.cancelled.push(consumer_tag);
            return;
        }
        let new = self.name("tag");
        let consumer_tag = match expected.cancelled.pop() {
            Some(tag) if self.random.chance(500) => tag,
            _ => new,
        };
        let no_ack = self.random.chance(30);
        let consume =
            basic::Consume { queue: "q", consumer_tag: &consumer_tag, no_ack, no_wait, ..Default::default() };
        write_method(bytes, number, consume);
        if !no_wait {
            expected.expect("basic.consume-ok", &consumer_tag);
        }
        expected.consumers.insert(consumer_tag);
    }

    fn other(&mut self, number: u16, expected: &mut Expected, bytes: &mut Vec<u8>) {
        match self.random.below(100) {
            0..25 => {
                let global = self.random.chance(30);
                write_method(bytes, number, basic::Qos { prefetch_size: 0, prefetch_count: 1, global });
                expected.expect("basic.qos-ok", "");
            }
            25..40 => {
                let name = self.name("queue");
                let no_wait = self.random.chance(250);
                let declare = queue::Declare { queue: &name, durable: true, no_wait, ..Default::default() };
                write_method(bytes, number, declare);
                if !no_wait {
                    expected.expect("queue.declare-ok", &name);
                }
                expected.has_declared = true;
            }
            40..46 => {
                let exclusive = self.random.chance(300);
                write_method(bytes, number, queue::Declare { exclusive, ..Default::default() });
                expected.expect("queue.declare-ok", "amq.gen");
                expected.has_declared = true;
            }
            46..56 if expected.has_declared => {
                let bind = queue::Bind { exchange: "e", routing_key: "k", ..Default::default() };
                write_method(bytes, number, bind);
                expected.expect("queue.bind-ok", "");
            }
            56..66 => {
                let declare = exchange::Declare {
                    exchange: "e",
                    kind: "direct",
                    arguments: RawTable::EMPTY,
                    ..Default::default()
                };
                write_method(bytes, number, declare);
                expected.expect("exchange.declare-ok", "");
            }
            66..69 => {
                write_method(bytes, number, basic::Get { queue: "q", ..Default::default() });
                expected.expect("basic.get-empty", "");
            }
            69..76 => {
                write_method(bytes, number, basic::Recover { requeue: true });
                expected.expect("basic.recover-ok", "");
            }
            76..84 if !expected.is_transactional => {
                let no_wait = self.random.chance(500);
                write_method(bytes, number, confirm::Select { no_wait });
                if !no_wait {
                    expected.expect("confirm.select-ok", "");
                }
                expected.is_confirming = true;
            }
            84..86 if !expected.is_confirming => {
                write_method(bytes, number, tx::Select {});
                expected.expect("tx.select-ok", "");
                expected.is_transactional = true;
            }
            86..94 => {
                write_method(bytes, number, channel::Flow { active: true });
                expected.expect("channel.flow-ok", "");
            }
            94..97 => {
                write_method(bytes, number, channel::Close::default());
                expected.is_closing = true;
            }
            _ => {}
        }
    }

    /// Sends the client's bytes, as one batch.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut taken = 0;
        while let Some(frame) = Frame::parse(&bytes[taken..], 0).unwrap() {
            taken += frame.wire_len();
            taken += self.session.handle_frame(frame, &bytes[taken..], self.now)?;
        }
        self.session.flush(self.now);
        Ok(())
    }

    fn client_reads(&mut self) {
        let bytes = self.session.link.outbox.read_all();
        let mut rest = &bytes[..];
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            rest = &rest[frame.wire_len()..];
            self.client_gets(frame.channel, &Method::decode(frame.payload).unwrap());
        }
    }

    fn client_gets(&mut self, number: u16, method: &Method<'_>) {
        let expected = self.channels.get_mut(&number).expect("an answer on a channel that is open");
        let name = match method {
            Method::ChannelClose(close) => {
                let text = close.reply_text;
                assert!(
                    expected.is_transactional && text.contains("a transaction cannot be carried"),
                    "{text}"
                );
                self.channels.remove(&number);
                let mut bytes = Vec::new();
                write_method(&mut bytes, number, channel::CloseOk {});
                return self.feed(&bytes).unwrap();
            }
            Method::ChannelCloseOk(_) => {
                assert!(expected.is_closing);
                self.channels.remove(&number);
                return;
            }
            // A client that closes its channel discards the rest.
            _ if expected.is_closing => return,
            Method::BasicAck(ack) => {
                let (tag, multiple) = (ack.delivery_tag, ack.multiple);
                let is_meant = |number: u64| if multiple { number <= tag } else { number == tag };
                let confirmed: Vec<_> =
                    expected.unconfirmed.extract_if(.., |number, _| is_meant(*number)).collect();
                assert!(!confirmed.is_empty(), "{number}: {tag} is confirmed twice");
                for (tag, body) in confirmed {
                    assert!(
                        self.arrived.contains(&body),
                        "{number}: {tag} is confirmed before it has arrived"
                    );
                    self.confirmed_behind += u64::from(!expected.plain.is_empty());
                }
                return;
            }
            Method::BasicConsumeOk(ok) => ok.consumer_tag,
            Method::BasicCancelOk(ok) => ok.consumer_tag,
            Method::QueueDeclareOk(ok) => ok.queue,
            _ => "",
        };
        let Some((answer, wanted)) = expected.answers.pop_front() else {
            panic!("{number}: unexpected reply {method:?}")
        };
        let is_it = if wanted == "amq.gen" { name.starts_with("amq.gen-") } else { name == wanted };
        assert!(method.name() == answer && is_it, "{number}: {method:?} instead of {answer} {wanted}");
        self.answers_seen += 1;
    }

    /// Lets brokers answer everything, and connections become ready, until nothing changes. Then no reply may be missing.
    fn settle(&mut self) {
        let mut is_changing = true;
        while is_changing {
            is_changing = self.ready();
            is_changing |= self.peers_read();
            for peer in &mut self.peers {
                is_changing |= std::iter::from_fn(|| peer.deliver(self.now)).count() > 0;
                is_changing |= std::iter::from_fn(|| peer.confirm(self.now)).count() > 0;
            }
            if let Err(fault) = self.react() {
                return self.ended(&fault);
            }
        }
        for (number, expected) in &self.channels {
            assert!(!expected.is_closing, "{number} is never closed");
            assert!(expected.answers.is_empty(), "{number}: {:?} never come", expected.answers);
            assert!(expected.unconfirmed.is_empty(), "{number}: {:?} never confirmed", expected.unconfirmed);
            assert!(expected.plain.is_subset(&self.arrived), "{number}: messages that never arrive");
            let side = &self.session.channels.get(*number).unwrap().general;
            let consumers = side.route().map(|route| self.consumers_at(route.upstream.id, route.channel));
            assert_eq!(consumers.unwrap_or_default(), expected.consumers, "consumers of {number}");
        }
        assert_eq!(self.session.queued, 0, "bytes that wait");
    }

    fn consumers_at(&self, upstream: u64, channel: u16) -> BTreeSet<String> {
        let peer = self.peers.iter().find(|peer| peer.connection.upstream.id == upstream).unwrap();
        peer.consumers(channel)
    }
}

#[tokio::test]
async fn every_method_is_answered_once_and_in_order_in_random_histories() {
    let (mut answers, mut confirmed_behind) = (0, 0);
    for seed in 0..150 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.settle();
        answers += world.answers_seen;
        confirmed_behind += world.confirmed_behind;
    }
    assert!(confirmed_behind > 1000, "only {confirmed_behind} messages behind others that have no confirm");
    assert!(answers > 10_000, "only {answers} answers");
}
