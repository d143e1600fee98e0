//! Random programs of a client, a server, a network that loses data in transit, and power failures: nothing
//! of QoS 1 is lost, nothing of QoS 2 is lost or duplicated, and the windows are respected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use mqtt::packet::{Ack, AckKind, ConnectPacket, Payload, PublishPacket};
use mqtt::server::{MqttEvent, MqttSettings, ServerConnection};
use mqtt::session::{OutgoingMessage, Session};
use mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, Property, PropertyList, QoS, ReasonCode};
use mutations::Random;

/// Programs per version; half a second each in a debug build.
const PROGRAMS: u64 = 150;
/// Steps of a program before failures stop.
const STEPS: usize = 400;
/// Messages of QoS 1 and 2 that may be in flight, in each direction.
const WINDOW: u16 = 3;

#[test]
fn nothing_is_lost_and_nothing_of_qos_2_comes_twice() {
    for version in [MqttVersion::V31, MqttVersion::V311, MqttVersion::V5] {
        for seed in 1..=PROGRAMS {
            World::new(version, seed).run();
        }
    }
}

/// The state that survives a power failure of the server.
#[derive(Clone, Default)]
struct Disk {
    session: Option<Vec<u8>>,
    /// Messages for the client by tag.
    queue: BTreeMap<u64, QoS>,
    /// Messages from the client in the order of their publication.
    published: Vec<(QoS, u32)>,
}

struct World {
    version: MqttVersion,
    random: Random,
    now: Instant,
    client: Client,
    server: Option<ServerConnection>,
    /// The session between two connections.
    resumed: Option<Session>,
    memory: Disk,
    disk: Disk,
    /// Bytes in transit.
    up: Vec<u8>,
    down: Vec<u8>,
    /// PUBRECs and PUBRELs that the server has not stored yet.
    undecided: Vec<Decision>,
    next_message: u32,
    rounds: usize,
    sent: BTreeMap<u32, QoS>,
}

#[derive(Clone, Copy)]
enum Decision {
    Release(u16),
    Complete(u16),
}

/// A client that follows the specification.
#[derive(Default)]
struct Client {
    /// In the order of their first sending: identifier, number, quality, released.
    outgoing: Vec<(u16, u32, QoS, bool)>,
    last_id: u16,
    /// Messages of QoS 2 that were received and not released.
    incoming: BTreeSet<u16>,
    received: Vec<(QoS, u64)>,
    is_connected: bool,
}

impl World {
    fn new(version: MqttVersion, seed: u64) -> Self {
        Self {
            version,
            random: Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            now: Instant::now(),
            client: Client::default(),
            server: None,
            resumed: None,
            memory: Disk::default(),
            disk: Disk::default(),
            up: Vec::new(),
            down: Vec::new(),
            undecided: Vec::new(),
            next_message: 0,
            rounds: 0,
            sent: BTreeMap::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..20 => self.publish(),
                20..40 => self.enqueue(),
                40..60 => self.move_up(),
                60..80 => self.move_down(),
                80..93 => self.decide(),
                93..95 => self.cut(),
                95 => self.power_failure(),
                _ => self.connect(),
            }
        }
        // Without further failures every message is completed.
        while !self.is_quiet() {
            self.connect();
            self.move_up();
            self.decide();
            self.move_down();
            self.deliver();
        }
        self.check();
    }

    /// Whether all messages are complete. Fails if that takes too many rounds.
    fn is_quiet(&mut self) -> bool {
        self.rounds += 1;
        assert!(self.rounds < 100_000, "something got stuck");
        let session = self.server.as_ref().map(ServerConnection::session);
        self.client.outgoing.is_empty()
            && self.memory.queue.is_empty()
            && session.is_some_and(|session| session.in_flight().count() + session.received().count() == 0)
    }

    fn check(&self) {
        for (number, qos) in &self.sent {
            let times = self.memory.published.iter().filter(|(_, published)| published == number).count();
            match qos {
                QoS::ExactlyOnce => assert_eq!(times, 1, "message {number} of the client"),
                _ => assert!(times >= 1, "message {number} of the client was lost"),
            }
        }
        let twice =
            self.memory.published.iter().filter(|(_, number)| !self.sent.contains_key(number)).count();
        assert_eq!(twice, 0);
        for tag in 1..=u64::from(self.next_message) {
            let of_tag = self.client.received.iter().filter(|(_, received)| *received == tag);
            let qos: Vec<_> = of_tag.map(|(qos, _)| *qos).collect();
            match qos.first() {
                Some(QoS::ExactlyOnce) => assert_eq!(qos.len(), 1, "message {tag} for the client"),
                Some(_) => {}
                None => {
                    assert!(self.sent.contains_key(&(tag as u32)), "message {tag} for the client was lost")
                }
            }
        }
    }

    fn any_qos(&mut self) -> QoS {
        if self.random.below(2) == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce }
    }

    /// The client publishes; numbers and tags come from one sequence.
    fn publish(&mut self) {
        if !self.client.is_connected || self.client.outgoing.len() >= usize::from(WINDOW) {
            return;
        }
        let qos = self.any_qos();
        self.next_message += 1;
        self.sent.insert(self.next_message, qos);
        let client = &mut self.client;
        loop {
            client.last_id = client.last_id % 7 + 1;
            if !client.outgoing.iter().any(|entry| entry.0 == client.last_id) {
                break;
            }
        }
        client.outgoing.push((client.last_id, self.next_message, qos, false));
        put_publish(self.version, &mut self.up, client.last_id, self.next_message, qos, false);
    }

    /// Another client publishes a message for the client.
    fn enqueue(&mut self) {
        let qos = self.any_qos();
        self.next_message += 1;
        self.memory.queue.insert(self.next_message.into(), qos);
        self.deliver();
    }

    fn deliver(&mut self) {
        let mut out = Vec::new();
        if let Some(server) = &mut self.server {
            while server.free_window() > 0
                && let Some((tag, qos)) =
                    self.memory.queue.iter().find(|(tag, _)| !server.session().holds(**tag))
            {
                let message = OutgoingMessage {
                    topic: "to/client".into(),
                    qos: *qos,
                    retain: false,
                    redelivered: false,
                    properties: PropertyList::new(),
                    payload: Bytes::copy_from_slice(&(*tag as u32).to_be_bytes()),
                };
                server
                    .deliver(message, *tag, &mut out)
                    .expect("there is room")
                    .expect("it has an identifier");
                assert!(server.session().in_flight().count() <= usize::from(WINDOW) + 1);
            }
        }
        self.commit(out);
    }

    /// Writes the server's state to disk before its output is sent.
    fn commit(&mut self, out: Vec<u8>) {
        let session = self.server.as_ref().map(ServerConnection::session).or(self.resumed.as_ref());
        self.memory.session = session.map(|session| {
            let mut bytes = Vec::new();
            session.encode(&mut bytes);
            bytes
        });
        self.disk = self.memory.clone();
        self.down.extend(out);
    }

    fn connect(&mut self) {
        if self.client.is_connected {
            return;
        }
        let settings =
            MqttSettings { receive_maximum: WINDOW, in_flight: WINDOW + 1, ..MqttSettings::default() };
        let mut server = ServerConnection::new(settings);
        let asked = PropertyList::new()
            .with(Property::ReceiveMaximum(WINDOW))
            .with(Property::SessionExpiryInterval(u32::MAX));
        let properties = if self.version.is_5() { asked.as_properties() } else { PacketProperties::NONE };
        let connect =
            ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(self.version, "c") };
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        Packet::Connect(Box::new(connect)).encode(self.version, &mut bytes);
        let step = server.handle_input(&bytes, self.now, &mut out);
        assert!(matches!(step.event, Some(MqttEvent::Connect(_))));
        assert!(server.wants_session());
        let resumed = self.resumed.take();
        // A session that was never stored is equivalent to a lost one: the client has sent nothing by then.
        assert!(server.accept(resumed, None, self.now, &mut out).is_empty());
        self.server = Some(server);
        self.client.is_connected = true;
        self.commit(out);
        for (id, number, qos, released) in &self.client.outgoing {
            match released {
                false => put_publish(self.version, &mut self.up, *id, *number, *qos, true),
                true => put_ack(self.version, &mut self.up, AckKind::PubRel, *id),
            }
        }
        self.deliver();
    }

    /// A random part of the client's bytes arrives at the server.
    fn move_up(&mut self) {
        let Some(server) = &mut self.server else { return };
        let mut out = Vec::new();
        let len = self.random.below(self.up.len() + 1);
        let (mut at, mut accepted) = (0, Vec::new());
        loop {
            let step = server.handle_input(&self.up[at..len], self.now, &mut out);
            at += step.taken;
            match step.event {
                Some(MqttEvent::Publish(publish)) => {
                    let number =
                        u32::from_be_bytes(publish.payload.bytes().try_into().expect("it is a number"));
                    self.memory.published.push((publish.qos, number));
                    accepted.push(publish.packet_id);
                }
                Some(MqttEvent::Released { packet_id }) => self.undecided.push(Decision::Complete(packet_id)),
                Some(MqttEvent::Delivered { tag, packet_id, reason, to_be_released }) => {
                    assert_eq!(reason, ReasonCode::Success);
                    self.memory.queue.remove(&tag);
                    if to_be_released {
                        self.undecided.push(Decision::Release(packet_id));
                    }
                }
                Some(MqttEvent::Completed { .. }) => {}
                Some(other) => panic!("{other:?}"),
                None if step.taken == 0 => break,
                None => {}
            }
        }
        self.up.drain(..at);
        // A message is stored together with its identifier: both are part of this commit.
        accepted.iter().for_each(|packet_id| server.accepted(*packet_id, true, &mut out));
        self.commit(out);
        self.deliver();
    }

    fn decide(&mut self) {
        let mut out = Vec::new();
        self.decide_into(&mut out);
        self.commit(out);
        self.deliver();
    }

    fn decide_into(&mut self, out: &mut Vec<u8>) {
        let Some(server) = self.server.as_mut().filter(|_| !self.undecided.is_empty()) else { return };
        let at = self.random.below(self.undecided.len());
        match self.undecided.remove(at) {
            Decision::Release(packet_id) => server.release(packet_id, out),
            Decision::Complete(packet_id) => server.complete(packet_id, out),
        }
    }

    /// A random part of the server's bytes arrives at the client.
    fn move_down(&mut self) {
        let len = self.random.below(self.down.len() + 1);
        let mut decoder = PacketDecoder::new(self.version, u32::MAX);
        let mut at = 0;
        while let step = decoder.decode(&self.down[at..len]).expect("the server speaks the protocol")
            && let Some(packet) = step.packet
        {
            at += step.taken;
            self.client.hear(self.version, &packet, &mut self.up);
        }
        self.down.drain(..at);
    }

    /// The network fails, and the data in transit is lost.
    fn cut(&mut self) {
        self.client.is_connected = false;
        self.up.clear();
        self.down.clear();
        self.undecided.clear();
        if let Some(mut server) = self.server.take() {
            assert!(server.handle_eof().is_some_and(|end| end.session_expiry == u32::MAX));
            self.resumed = Some(server.take_session());
        }
    }

    /// The server loses all state that is not on disk.
    fn power_failure(&mut self) {
        self.cut();
        self.memory = self.disk.clone();
        self.resumed = self.disk.session.as_deref().map(|bytes| Session::decode(bytes).expect("it was kept"));
    }
}

impl Client {
    fn hear(&mut self, version: MqttVersion, packet: &Packet<'_>, up: &mut Vec<u8>) {
        match packet {
            Packet::ConnAck(connack) => assert_eq!(connack.reason, ReasonCode::Success),
            Packet::Publish(publish) => {
                let tag = u32::from_be_bytes(publish.payload.bytes().try_into().expect("it is a tag")).into();
                let id = publish.packet_id;
                if publish.qos == QoS::AtLeastOnce {
                    self.received.push((publish.qos, tag));
                    return put_ack(version, up, AckKind::PubAck, id);
                }
                if self.incoming.insert(id) {
                    self.received.push((publish.qos, tag));
                }
                put_ack(version, up, AckKind::PubRec, id);
            }
            Packet::Ack(ack) if ack.kind == AckKind::PubRel => {
                self.incoming.remove(&ack.packet_id);
                put_ack(version, up, AckKind::PubComp, ack.packet_id);
            }
            Packet::Ack(ack) if ack.kind == AckKind::PubRec => {
                if let Some(entry) = self.outgoing.iter_mut().find(|entry| entry.0 == ack.packet_id) {
                    entry.3 = true;
                }
                put_ack(version, up, AckKind::PubRel, ack.packet_id);
            }
            Packet::Ack(ack) => self.outgoing.retain(|entry| entry.0 != ack.packet_id),
            other => panic!("{other:?}"),
        }
        assert!(self.incoming.len() <= usize::from(WINDOW) + 1, "Receive Maximum");
    }
}

fn put_publish(version: MqttVersion, out: &mut Vec<u8>, packet_id: u16, number: u32, qos: QoS, dup: bool) {
    let payload = &number.to_be_bytes();
    let publish = PublishPacket {
        dup,
        qos,
        retain: false,
        topic: "from/client",
        packet_id,
        properties: PacketProperties::NONE,
        payload: Payload::new(payload),
    };
    publish.encode(version, out);
}

fn put_ack(version: MqttVersion, out: &mut Vec<u8>, kind: AckKind, packet_id: u16) {
    Ack::new(kind, packet_id, ReasonCode::Success).encode(version, out);
}
