//! Requests that take more than a turn, and clients that are paused because they send more than the disk takes.

use ::mqtt::packet::{Filters, Unsubscribe};
use sync::work::{self, TURN};

use super::*;
use crate::mqtt::client::MAX_WAITING;
use crate::mqtt::session::{MAX_SHARED, MAX_SUBSCRIPTIONS};

fn subscribe<'b>(client: &Client, filters: impl IntoIterator<Item = &'b str>) -> Vec<u8> {
    let (mut buffer, mut bytes) = (Vec::new(), Vec::new());
    let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
    let requests = filters.into_iter().map(|filter| SubscribeRequest { filter, options });
    let requests = Requests::write(&mut buffer, requests);
    let packet = Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests };
    Packet::Subscribe(packet).encode(client.version, &mut bytes);
    bytes
}

/// Sends bytes from the client, and runs turns until it is answered. Returns the answers and the number of turns, none of
/// which is long.
fn in_turns(client: &mut Client, bytes: &[u8]) -> (Vec<String>, usize) {
    let turn = work::Turn::begin();
    assert_eq!(client.connection.handle_input(bytes, client.now), bytes.len());
    let mut spent = turn.spent();
    drop(turn);
    let (mut turns, mut came) = (1, Vec::new());
    loop {
        assert!(spent < 2 * u64::from(TURN), "turn {turns} took {spent} ns");
        if client.connection.intent() != Intent::Pause {
            came.append(&mut client.look());
            return (came, turns);
        }
        let turn = work::Turn::begin();
        came.append(&mut client.look());
        spent = turn.spent();
        turns += 1;
    }
}

fn count(answer: &str, reason: &str) -> usize {
    answer.matches(reason).count()
}

#[test]
fn a_subscribe_with_many_filters_leaves_others_their_turns_and_is_bounded() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    let filters: Vec<String> = (0..MAX_SUBSCRIPTIONS).map(|number| format!("t/{number}")).collect();
    let all = || filters.iter().map(String::as_str);
    let packet = subscribe(&client, all().chain(["one/too/many", "t/0"]));
    let (came, turns) = in_turns(&mut client, &packet);
    assert!(turns > 20 && came.len() == 1, "{turns} turns, {came:?}");
    assert_eq!(
        count(&came[0], "Granted QoS 1"),
        MAX_SUBSCRIPTIONS + 1,
        "the existing subscriptions, granted again"
    );
    assert!(came[0].ends_with("Quota exceeded,Granted QoS 1"));
    // The same holds for a client that resumes its session.
    drop(client);
    let mut client = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let properties = list.as_properties();
    let connect =
        ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(MqttVersion::V5, "me") };
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    // The first and the last filter, in the session's order.
    for topic in ["t/0", "t/9999"] {
        writer.publish(&mut world, topic, QoS::AtLeastOnce, 1);
    }
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(MqttVersion::V5, &mut bytes);
    let (came, turns) = in_turns(&mut client, &bytes);
    assert!(turns > 20, "{turns} turns");
    let expected = ["connack Success present", "publish t/0 AtLeastOnce 1", "publish t/9999 AtLeastOnce 2"];
    assert_eq!(came, expected);

    let (mut buffer, mut bytes) = (Vec::new(), Vec::new());
    let filters = Filters::write(&mut buffer, all());
    let packet = Unsubscribe { packet_id: 1, properties: PacketProperties::NONE, filters };
    Packet::Unsubscribe(packet).encode(MqttVersion::V5, &mut bytes);
    let (came, turns) = in_turns(&mut client, &bytes);
    assert!(turns > 20, "{turns} turns");
    assert_eq!(count(&came[0], "Success"), MAX_SUBSCRIPTIONS);
    assert_eq!(world.hub.broker().metrics().bindings.get(), 0);
}

#[test]
fn a_partly_resumed_session_loses_nothing() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    let filters: Vec<String> = (0..1_000).map(|number| format!("t/{number:03}")).collect();
    let packet = subscribe(&client, filters.iter().map(String::as_str));
    in_turns(&mut client, &packet);
    drop(client);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    writer.publish(&mut world, "t/999", QoS::AtLeastOnce, 1);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let properties = list.as_properties();
    let connect =
        ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(MqttVersion::V5, "me") };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(MqttVersion::V5, &mut bytes);
    let begun = |world: &mut World| {
        let mut client = world.client(MqttVersion::V5);
        let _turn = work::Turn::begin();
        client.connection.handle_input(&bytes, client.now);
        assert_eq!(client.connection.intent(), Intent::Pause);
        client
    };
    // The client disconnects in the middle.
    drop(begun(&mut world));
    // The client loses its permissions in the middle.
    let mut client = begun(&mut world);
    let vhost = world.hub.broker().vhost("/").unwrap();
    vhost.set_permissions("guest", None).unwrap();
    assert_eq!(client.look(), ["connack Success present"]);
    assert_eq!(client.look(), ["disconnect Not authorized"]);
    assert_eq!(client.connection.intent(), Intent::Finish);
    vhost.set_permissions("guest", Some(&broker::Permissions::all())).unwrap();
    let mut client = world.client(MqttVersion::V5);
    let (came, _) = in_turns(&mut client, &bytes);
    // `dup`, since the queue had delivered the message to the earlier connection, which never sent it.
    assert_eq!(came, ["connack Success present", "publish t/999 AtLeastOnce 1 dup"]);
}

#[test]
fn shared_subscriptions_have_their_own_limit() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    let filters: Vec<String> = (0..=MAX_SHARED).map(|number| format!("$share/g/{number}")).collect();
    let packet = subscribe(&client, filters.iter().map(String::as_str).chain(["t", "$share/g/0"]));
    let (came, turns) = in_turns(&mut client, &packet);
    assert!(turns > 5, "{turns} turns");
    assert_eq!(count(&came[0], "Granted QoS 1"), MAX_SHARED + 2);
    assert!(came[0].ends_with("Quota exceeded,Granted QoS 1,Granted QoS 1"));
}

#[test]
fn retained_messages_are_looked_for_in_turns_and_follow_the_answer() {
    const MANY: usize = 5_000;
    let mut world = World::new();
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    for number in 0..MANY {
        let topic = format!("{number}/{}", number % 100);
        let kept = PublishPacket { retain: true, ..message(&topic, QoS::AtMostOnce, 0) };
        writer.send(&mut world, Packet::Publish(kept));
    }
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    // Each filter visits all of the tree, and matches some of its topics.
    let filters = ["+/7", "+/8", "+/9", "+/10"];
    let packet = subscribe(&client, filters);
    let (mut came, turns) = in_turns(&mut client, &packet);
    assert!(turns > filters.len(), "{turns} turns");
    came.append(&mut client.received(&mut world));
    assert!(came[0].starts_with("suback"), "{}", came[0]);
    assert_eq!(came.len(), 1 + filters.len() * MANY / 100);
}

#[test]
fn sessions_that_end_at_once_end_in_turns() {
    const MANY: usize = 200;
    let mut world = World::new();
    for number in 0..MANY {
        let mut client = world.connected(MqttVersion::V5, &format!("client-{number}"), 60);
        client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    }
    let vhost = world.hub.broker().vhost("/").unwrap();
    assert_eq!(vhost.all_queues().len(), MANY);
    let mut turns = 1;
    while let Some(due) = world.hub.next_deadline()
        && world.hub.expire_some(due.after(60_000))
    {
        turns += 1;
    }
    assert!(turns > 5, "{turns} turns");
    assert_eq!((world.hub.next_deadline(), vhost.all_queues().len()), (None, 0));
}

#[test]
fn a_client_that_retains_waits_for_the_disk_even_at_qos_0() {
    const LIMIT: usize = 64 * 1024;
    let disk = SimDisk::new(1, 1 << 30);
    let settings =
        JournalSettings { segment_size: 1 << 20, pending_limit: LIMIT, ..JournalSettings::default() };
    let mut world = World::with(&disk, settings);
    let mut client = world.connected(MqttVersion::V5, "me", 0);
    world.round();
    let payload = vec![0; 1024];
    let kept =
        PublishPacket { retain: true, payload: Payload::new(&payload), ..message("t", QoS::AtMostOnce, 0) };
    let (mut one, mut bytes) = (Vec::new(), Vec::new());
    Packet::Publish(kept).encode(MqttVersion::V5, &mut one);
    (0..200).for_each(|_| bytes.extend_from_slice(&one));
    let mut rounds = 0;
    while !bytes.is_empty() {
        let taken = client.connection.handle_input(&bytes, client.now);
        assert!(taken <= LIMIT + one.len(), "{taken} bytes wait for the disk");
        bytes.drain(..taken);
        client.look();
        if !bytes.is_empty() {
            assert_eq!(client.connection.intent(), Intent::Pause);
            world.round();
            client.look();
            assert_eq!(client.connection.intent(), Intent::Run, "there is room again");
            rounds += 1;
        }
    }
    assert!(rounds > 1);
}

/// Runs turns until the client has `expected` messages. Returns the number of turns, none of which is long, although one
/// message may take as long as `each`.
fn messages_in_turns(client: &mut Client, expected: usize, each: u64) -> usize {
    let (mut turns, mut came) = (0, 0);
    while came < expected {
        let turn = work::Turn::begin();
        let packets = client.look();
        assert!(turn.spent() < 2 * u64::from(TURN) + each, "turn {turns} took {} ns", turn.spent());
        came += packets.iter().filter(|packet| packet.starts_with("publish ")).count();
        turns += 1;
        assert!(turns < 100 * expected, "{came} of {expected} messages came");
    }
    assert_eq!(came, expected);
    turns
}

/// As many filters as a session may have, each with its own shape, that all match a topic with as many levels.
fn filters_of_all_shapes(count: usize) -> Vec<String> {
    let level = |filter: usize, level: usize| if filter >> level & 1 == 0 { "+" } else { "x" };
    (0..count).map(|filter| (0..14).map(|at| level(filter, at)).collect::<Vec<_>>().join("/")).collect()
}

#[test]
fn messages_to_a_client_with_filters_of_very_many_shapes_leave_others_their_turns() {
    const SHAPES: usize = 4_096;
    const MANY: usize = 40;
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    let filters = filters_of_all_shapes(SHAPES);
    let packet = subscribe(&client, filters.iter().map(String::as_str));
    in_turns(&mut client, &packet);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    let topic = ["x"; 14].join("/");
    (0..MANY).for_each(|_| _ = writer.publish(&mut world, &topic, QoS::AtMostOnce, 0));
    let turns = messages_in_turns(&mut client, MANY, SHAPES as u64 * 200);
    assert!(turns >= MANY / 2, "{turns} turns");
}

#[test]
fn retained_messages_that_are_not_acknowledged_are_bounded_by_the_disk_and_by_the_turn() {
    const MESSAGES: usize = 3_000;
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut client = world.connected(MqttVersion::V311, "me", 0);
    let topics: Vec<_> = (0..MESSAGES).map(|number| format!("t/{number:04}")).collect();
    let mut bytes = Vec::new();
    for topic in &topics {
        let publish = PublishPacket { retain: true, ..message(topic, QoS::AtMostOnce, 0) };
        Packet::Publish(publish).encode(client.version, &mut bytes);
    }
    let each = bytes.len() / MESSAGES;
    let (mut turns, mut rounds, mut since_round) = (0, 0, 0);
    while !bytes.is_empty() {
        let turn = work::Turn::begin();
        let taken = client.connection.handle_input(&bytes, client.now);
        assert!(turn.spent() < 2 * u64::from(TURN), "{} ns in one turn", turn.spent());
        drop(turn);
        bytes.drain(..taken);
        since_round += taken / each;
        assert!(since_round <= MAX_WAITING, "{since_round} retained messages wait for the disk");
        if client.connection.intent() == Intent::Pause {
            world.round();
            client.look();
            assert_eq!(client.connection.intent(), Intent::Run);
            (rounds, since_round) = (rounds + 1, 0);
        }
        turns += 1;
    }
    assert!(rounds >= 2 && turns > 10, "{rounds} rounds, {turns} turns");
}
