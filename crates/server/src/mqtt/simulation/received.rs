//! The states of a received QoS 2 message, checked with random clients and crashes at every point: between an operation
//! and its round, between the commit of the notes and the write of the log, and within that write.

use store::disk::simulated::SimRandom;

use super::torn::{log_end, torn_at};
use super::*;

const READERS: [&str; 2] = ["r1", "r2"];

/// A client that keeps the protocol, and its server.
struct Life {
    disk: SimDisk,
    world: World,
    writer: Client,
    /// The packets in flight in the order of sending, each with whether PUBREC has come.
    in_flight: Vec<(u16, bool)>,
    published: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed, 1 << 30);
        let mut world = World::on(&disk);
        for name in READERS {
            let mut reader = world.connected(MqttVersion::V311, name, 1);
            reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
        }
        let mut writer = world.connected(MqttVersion::V311, "writer", 1);
        // The log begins with a message that is safe.
        assert_eq!(writer.publish(&mut world, "t", QoS::AtLeastOnce, 9), ["puback 9 success"]);
        Self { disk, world, writer, in_flight: Vec::new(), published: 1 }
    }

    fn put(&mut self, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(MqttVersion::V311, &mut bytes);
        assert_eq!(self.writer.connection.handle_input(&bytes, self.writer.now), bytes.len());
    }

    /// Sends a packet as the client has to: PUBREL after a PUBREC, otherwise PUBLISH.
    fn send(&mut self, packet_id: u16, recorded: bool, dup: bool) {
        match recorded {
            true => self.put(Packet::Ack(Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success))),
            false => {
                let publish = PublishPacket { dup, ..message("t", QoS::ExactlyOnce, packet_id) };
                self.put(Packet::Publish(publish));
            }
        }
    }

    fn publish(&mut self) {
        // The lowest free one, so that identifiers are reused early.
        let free = |packet_id: &u16| self.in_flight.iter().all(|(used, _)| used != packet_id);
        let packet_id = (1..).find(free).unwrap();
        self.in_flight.push((packet_id, false));
        self.published += 1;
        self.send(packet_id, false, false);
    }

    fn look(&mut self) {
        for packet in self.writer.look() {
            let words: Vec<_> = packet.split(' ').collect();
            let packet_id: u16 = words[1].parse().unwrap();
            let at = self.in_flight.iter().position(|(used, _)| *used == packet_id).unwrap();
            match words[0] {
                "pubrec" => {
                    self.in_flight[at].1 = true;
                    self.send(packet_id, true, false);
                }
                "pubcomp" => _ = self.in_flight.remove(at),
                _ => panic!("{packet}"),
            }
            assert_eq!(words[2], "success", "{packet}");
        }
    }

    /// The process is killed, or the power fails while a round writes the log; and the client comes back.
    fn crash(mut self, random: &mut SimRandom) -> Self {
        let disk = if random.chance(300) {
            self.disk.kill()
        } else {
            let before = log_end(&self.disk);
            self.world.round();
            let written = log_end(&self.disk).saturating_sub(before) as u64;
            torn_at(&self.disk, before + random.below(written + 1) as usize)
        };
        drop(self.writer);
        drop(self.world);
        let mut world = World::on(&disk);
        for name in READERS {
            assert!(count(&world, name) <= self.published, "a message was duplicated");
        }
        let mut writer = world.client(MqttVersion::V311);
        let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "writer") };
        writer.send(&mut world, Packet::Connect(Box::new(connect)));
        let mut life = Self { disk, world, writer, ..self };
        for (packet_id, recorded) in life.in_flight.clone() {
            life.send(packet_id, recorded, true);
        }
        life
    }

    fn step(mut self, random: &mut SimRandom) -> Self {
        match random.below(20) {
            0..6 if self.in_flight.len() < 3 => self.publish(),
            6..11 => self.look(),
            11..15 => self.world.round(),
            // Commits the notes before the log is written, as a round does.
            15..18 => self.world.hub.store().unwrap().catalogue().commit_pending().unwrap(),
            18.. => return self.crash(random),
            _ => {}
        }
        self
    }
}

fn count(world: &World, reader: &str) -> u64 {
    let vhost = world.hub.broker().vhost("/").unwrap();
    vhost.queue(broker::SessionId(0), &format!("mqtt-subscription-{reader}qos1")).unwrap().message_count()
}

#[test]
fn a_message_of_qos_2_reaches_each_queue_once_wherever_crashes_come() {
    for seed in 0..20 {
        let mut random = SimRandom::new(seed);
        let mut life = Life::new(seed);
        for _ in 0..60 {
            life = life.step(&mut random);
        }
        for _ in 0..10 {
            life.world.round();
            life.look();
        }
        assert!(life.in_flight.is_empty(), "seed {seed}: {:?}", life.in_flight);
        for name in READERS {
            assert_eq!(count(&life.world, name), life.published, "seed {seed}: {name}");
        }
    }
}

/// Reconnects a client to its session, before anything more is written to disk.
fn back(world: &mut World, name: &str) -> Client {
    let mut client = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, name) };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(MqttVersion::V311, &mut bytes);
    client.connection.handle_input(&bytes, client.now);
    client
}

/// Sends a packet from the client, before anything more is written to disk.
fn send_unwritten(client: &mut Client, packet: Packet<'_>) -> Vec<String> {
    let mut bytes = Vec::new();
    packet.encode(MqttVersion::V311, &mut bytes);
    client.connection.handle_input(&bytes, client.now);
    client.look()
}

#[test]
fn a_reconnecting_client_gets_nothing_until_its_messages_are_on_disk() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V311, "reader", 1);
    reader.subscribe_at(&mut world, "t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    let publish = message("t", QoS::ExactlyOnce, 5);
    assert_eq!(send_unwritten(&mut writer, Packet::Publish(publish)), [""; 0]);
    drop(writer);
    let mut writer = back(&mut world, "writer");
    assert_eq!(writer.look(), [""; 0], "CONNACK waits until its message is on disk");
    assert_eq!(writer.received(&mut world), ["connack Success present"]);
    let again = PublishPacket { dup: true, ..publish };
    assert_eq!(send_unwritten(&mut writer, Packet::Publish(again)), ["pubrec 5 success"]);

    // The other way round, the message and its release.
    assert_eq!(reader.look(), [""; 0]);
    drop(reader);
    let mut reader = back(&mut world, "reader");
    assert_eq!(reader.look(), [""; 0], "it would be sent the message");
    let answers = reader.received(&mut world);
    assert_eq!(answers, ["connack Success present", "publish t ExactlyOnce 1 dup"]);
    let received = Ack::new(AckKind::PubRec, 1, ReasonCode::Success);
    assert_eq!(send_unwritten(&mut reader, Packet::Ack(received)), [""; 0]);
    drop(reader);
    let mut reader = back(&mut world, "reader");
    assert_eq!(reader.look(), [""; 0], "it would be sent PUBREL");
    assert_eq!(reader.received(&mut world), ["connack Success present", "pubrel 1 success"]);
}
