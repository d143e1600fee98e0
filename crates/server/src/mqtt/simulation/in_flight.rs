//! Messages of QoS 2 in flight to clients of persistent sessions, on disk.

use ::mqtt::session::{InFlight, Session};
use broker::Section;

use super::*;
use crate::mqtt::detached::DetachedSession;
use crate::mqtt::disk;

/// A client with a persistent session.
const READER: &str = "reader";

/// The records of a section on disk.
fn records(world: &World, section: Section) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let catalogue = world.hub.store().unwrap().catalogue();
    catalogue.scan(section, |key, value| found.push((key.to_vec(), value.to_vec()))).unwrap();
    found
}

fn put(world: &World, section: Section, key: Vec<u8>, value: Vec<u8>) {
    world.hub.store().unwrap().catalogue().put(section, key, value);
}

/// A QoS 2 subscriber with `count` messages in flight, and the packets that it received.
fn reader_with_messages(world: &mut World, count: u16) -> (Client, Vec<String>) {
    let (mut reader, _) = resumed(world, READER, 60);
    reader.subscribe_at(world, "t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    (1..=count).for_each(|packet_id| _ = writer.publish(world, "t", QoS::ExactlyOnce, packet_id));
    let came = reader.received(world);
    assert_eq!(came.len(), usize::from(count));
    (reader, came)
}

#[test]
fn a_step_of_a_message_writes_that_message_and_not_its_session() {
    let mut world = World::on(&SimDisk::new(1, 1 << 30));
    let (mut reader, _) = resumed(&mut world, READER, 60);
    reader.subscribe_at(&mut world, "t", QoS::ExactlyOnce);
    // A sentinel: a rewritten session would replace it.
    let (key, untouched) = (disk::key(&["/", READER]), b"untouched".to_vec());
    put(&world, Section::MqttSessions, key.clone(), untouched.clone());
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    for packet_id in 1..=2 {
        writer.publish(&mut world, "t", QoS::ExactlyOnce, packet_id);
    }
    assert_eq!(reader.received(&mut world), ["publish t ExactlyOnce 1", "publish t ExactlyOnce 2"]);
    let stored = |world: &World| records(world, Section::MqttInFlight);
    let published = stored(&world);
    assert_eq!(reader.ack(&mut world, AckKind::PubRec, 1), ["pubrel 1 success"]);
    let released = stored(&world);
    assert!(published.len() == 2 && released[0] != published[0] && released[1] == published[1]);
    reader.ack(&mut world, AckKind::PubComp, 1);
    assert_eq!(stored(&world), published[1..]);
    assert_eq!(records(&world, Section::MqttSessions), [(key, untouched)]);
}

#[test]
fn a_subscribe_writes_the_session_and_none_of_its_messages() {
    let mut world = World::on(&SimDisk::new(1, 1 << 30));
    let (mut reader, _) = reader_with_messages(&mut world, 1);
    let (key, _) = records(&world, Section::MqttInFlight).pop().unwrap();
    let untouched = [(key.clone(), b"untouched".to_vec())];
    put(&world, Section::MqttInFlight, key, untouched[0].1.clone());
    let before = records(&world, Section::MqttSessions);
    reader.subscribe_at(&mut world, "u", QoS::ExactlyOnce);
    assert_ne!(records(&world, Section::MqttSessions), before);
    assert_eq!(records(&world, Section::MqttInFlight), untouched);
}

#[test]
fn each_message_is_after_a_crash_where_it_was_and_a_refused_one_is_over() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut reader, _) = reader_with_messages(&mut world, 5);
    // In another order than that of their identifiers.
    reader.ack(&mut world, AckKind::PubRec, 4);
    reader.ack(&mut world, AckKind::PubRec, 2);
    reader.ack(&mut world, AckKind::PubComp, 2);
    let refused = Ack::new(AckKind::PubRec, 5, ReasonCode::QuotaExceeded);
    reader.send(&mut world, Packet::Ack(refused));
    std::mem::forget(reader);
    let disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    let (reader, came) = resumed(&mut world, READER, 60);
    let expected = [
        "connack Success present",
        "publish t ExactlyOnce 1 dup",
        "publish t ExactlyOnce 3 dup",
        "pubrel 4 success",
    ];
    assert_eq!(came, expected);
    // The session ends, and its records are deleted with it.
    drop(reader);
    drop(world.connected(MqttVersion::V5, READER, 0));
    world.round();
    assert_eq!(records(&world, Section::MqttInFlight), []);
}

#[test]
fn messages_that_an_earlier_version_stored_with_their_session_get_records_of_their_own() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut reader, _) = reader_with_messages(&mut world, 2);
    reader.ack(&mut world, AckKind::PubRec, 1);
    std::mem::forget(reader);
    let now = records(&world, Section::MqttInFlight);
    let (key, value) = records(&world, Section::MqttSessions).pop().unwrap();
    // The session in the earlier version's format.
    let mut session: Session = DetachedSession::decode(&value, broker::Timestamp(1)).unwrap().session;
    let mut plain = Vec::new();
    session.encode_without_messages(&mut plain);
    for (sequence, (_, record)) in now.iter().enumerate() {
        session.restore_in_flight(InFlight::decode(&record[16..], sequence as u64).unwrap());
    }
    let mut before = [&[3], &value[1..value.len() - plain.len()]].concat();
    session.encode(&mut before);
    put(&world, Section::MqttSessions, key, before);
    for (key, _) in &now {
        world.hub.store().unwrap().catalogue().delete(Section::MqttInFlight, key.clone());
    }
    world.round();
    let disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    world.round();
    assert_eq!(records(&world, Section::MqttInFlight), now);
    let (mut reader, came) = resumed(&mut world, READER, 60);
    assert_eq!(came, ["connack Success present", "pubrel 1 success", "publish t ExactlyOnce 2 dup"]);
    reader.ack(&mut world, AckKind::PubComp, 1);
    assert_eq!(reader.ack(&mut world, AckKind::PubRec, 2), ["pubrel 2 success"]);
    std::mem::forget(reader);
    let disk = disk.kill();
    drop(world);
    let mut world = World::on(&disk);
    assert_eq!(resumed(&mut world, READER, 60).1, ["connack Success present", "pubrel 2 success"]);
}

#[test]
fn a_start_that_refuses_a_session_of_a_later_version_keeps_its_messages() {
    let mut world = World::on(&SimDisk::new(1, 1 << 30));
    let (reader, _) = reader_with_messages(&mut world, 2);
    std::mem::forget(reader);
    let (key, mut value) = records(&world, Section::MqttSessions).pop().unwrap();
    value[0] = u8::MAX;
    put(&world, Section::MqttSessions, key, value);
    world.round();
    let before = records(&world, Section::MqttInFlight);
    assert!(world.hub.load(broker::Timestamp(1)).is_err());
    world.round();
    assert_eq!((records(&world, Section::MqttInFlight), before.len()), (before.clone(), 2));
}
