//! A session belongs to its user: no other user can take it over, end it or get its messages.

use broker::{
    AuthBackends, Definitions, Identity, LoginAnswer, LoginAttempt, LoginRefused, PasswordHash, Permissions,
    QueueDeclare, Section, SessionId, Timestamp, TokenPermissions, TopicPermissions,
};

use super::*;
use crate::mqtt::detached::DetachedSession;

const USERS: [&str; 2] = ["alice", "bob"];

/// Creates both users with all permissions.
fn make_users(world: &World) {
    let mut users = Vec::new();
    for name in USERS {
        let (hash, algorithm) = PasswordHash::new(name.as_bytes()).write();
        users.push(format!(
            r#"{{"name": "{name}", "password_hash": "{hash}", "hashing_algorithm": "{algorithm}", "tags": []}}"#
        ));
    }
    let definitions = format!(r#"{{"users": [{}]}}"#, users.join(","));
    let definitions = Definitions::from_json(definitions.as_bytes()).unwrap();
    world.hub.broker().load(&definitions, Timestamp(1)).unwrap();
    for name in USERS {
        permit(world, name, &Permissions::all());
    }
}

fn permit(world: &World, user: &str, permissions: &Permissions) {
    world.hub.broker().vhost("/").unwrap().set_permissions(user, Some(permissions)).unwrap();
}

/// Connects a client that asks for its session; returns its packets.
fn connect_as(world: &mut World, version: MqttVersion, user: &str, expiry: u32) -> (Client, Vec<String>) {
    let mut client = world.client(version);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(expiry));
    let properties = if version.is_5() { list.as_properties() } else { PacketProperties::NONE };
    let connect = ConnectPacket {
        clean_start: expiry == 0,
        user_name: Some(user),
        password: Some(user.as_bytes()),
        properties,
        ..ConnectPacket::new(version, "thing")
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(version, &mut bytes);
    client.connection.handle_input(&bytes, client.now);
    let answers = client.received(world);
    (client, answers)
}

#[test]
fn another_user_neither_ends_nor_takes_over_a_connected_clients_session() {
    let mut world = World::new();
    make_users(&world);
    let (mut alice, answers) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    assert_eq!(answers, ["connack Success"]);
    alice.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    for (version, expected) in
        [(MqttVersion::V5, "connack Not authorized"), (MqttVersion::V311, "connack Server unavailable")]
    {
        for expiry in [0, 60] {
            let (bob, answers) = connect_as(&mut world, version, "bob", expiry);
            assert_eq!(answers, [expected]);
            assert_eq!(bob.connection.intent(), Intent::Finish);
        }
    }
    assert_eq!(alice.publish(&mut world, "t", QoS::AtMostOnce, 0), ["publish t AtMostOnce 0"]);
    let (mut again, answers) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    assert!(answers.is_empty(), "it waits for the session");
    assert_eq!(alice.taken_over(), ["disconnect Session taken over"]);
    assert_eq!(again.look(), ["connack Success present"], "the same user takes the session over");
}

#[test]
fn a_session_that_is_kept_is_its_users_after_a_restart_too() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    make_users(&world);
    let (mut alice, _) = connect_as(&mut world, MqttVersion::V311, "alice", 60);
    alice.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    for restarts in [false, true] {
        if restarts {
            // Killed while its client was connected.
            let (client, answers) = connect_as(&mut world, MqttVersion::V311, "alice", 60);
            assert_eq!(answers[0], "connack Success present");
            std::mem::forget(client);
            let killed = disk.kill();
            drop(world);
            world = World::on(&killed);
            make_users(&world);
            writer = world.connected(MqttVersion::V311, "writer", 0);
        } else {
            drop(std::mem::replace(&mut alice, world.client(MqttVersion::V311)));
        }
        writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
        for expiry in [0, 60] {
            assert_eq!(connect_as(&mut world, MqttVersion::V5, "bob", expiry).1, ["connack Not authorized"]);
        }
    }
    let (_, answers) = connect_as(&mut world, MqttVersion::V311, "alice", 60);
    assert_eq!(answers.iter().filter(|answer| answer.starts_with("publish t")).count(), 2, "{answers:?}");
}

/// Lets in `token-NAME` as a user NAME with all rights, and everybody else by the broker's own list.
struct Tokens;

impl AuthBackends for Tokens {
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer {
        LoginAnswer::Now(match attempt.user.strip_prefix("token-") {
            Some(name) => {
                let scopes = ["configure:*/*", "write:*/*/*", "read:*/*/*"].map(Box::from).to_vec();
                let expires_at = Timestamp(u64::MAX / 2);
                Ok(Identity::of_token(name, TokenPermissions { scopes, tags: Vec::new(), expires_at }))
            }
            None => broker.authenticate(&attempt.user, &attempt.secret, true),
        })
    }

    fn renew(&self, _: &Identity, _: &[u8]) -> LoginAnswer {
        LoginAnswer::Now(Err(LoginRefused::UnknownUser))
    }

    fn allows_internal_users(&self) -> bool {
        true
    }
}

#[test]
fn a_session_of_a_token_user_unknown_to_the_broker_is_refused_to_others() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    make_users(&world);
    world.hub.broker().set_auth_backends(Arc::new(Tokens));
    let others = ["token-bob", "token-carol", "alice", "bob"];
    let (mut alice, answers) = connect_as(&mut world, MqttVersion::V5, "token-alice", 60);
    assert_eq!(answers, ["connack Success"]);
    alice.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    let all_are_refused = |world: &mut World| {
        for (other, expiry) in others.into_iter().flat_map(|other| [(other, 0), (other, 60)]) {
            assert_eq!(
                connect_as(world, MqttVersion::V5, other, expiry).1,
                ["connack Not authorized"],
                "{other}"
            );
        }
    };
    all_are_refused(&mut world);
    drop(alice);
    all_are_refused(&mut world);
    world.round();
    drop(world);
    let mut world = World::on(&disk);
    make_users(&world);
    world.hub.broker().set_auth_backends(Arc::new(Tokens));
    all_are_refused(&mut world);
    let (_, answers) = connect_as(&mut world, MqttVersion::V5, "token-alice", 60);
    assert_eq!(answers, ["connack Success present"]);
}

#[test]
fn a_session_of_the_brokers_own_user_is_not_that_of_a_token_with_its_name() {
    let mut world = World::new();
    make_users(&world);
    world.hub.broker().set_auth_backends(Arc::new(Tokens));
    let (alice, _) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    drop(alice);
    assert_eq!(connect_as(&mut world, MqttVersion::V5, "token-alice", 60).1, ["connack Not authorized"]);
    assert_eq!(connect_as(&mut world, MqttVersion::V5, "alice", 60).1, ["connack Success present"]);
}

#[test]
fn a_client_identifier_is_free_once_its_session_or_user_is_gone() {
    let mut world = World::new();
    make_users(&world);
    let (alice, _) = connect_as(&mut world, MqttVersion::V5, "alice", 0);
    drop(alice);
    assert_eq!(connect_as(&mut world, MqttVersion::V5, "bob", 0).1, ["connack Success"]);

    let (mut alice, _) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    alice.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(alice);
    assert_eq!(connect_as(&mut world, MqttVersion::V5, "bob", 60).1, ["connack Not authorized"]);
    assert!(world.hub.broker().delete_definition(Section::Users, &["alice"], Timestamp(1)));
    let (mut bob, answers) = connect_as(&mut world, MqttVersion::V5, "bob", 60);
    assert_eq!(answers, ["connack Success"], "a new session");
    assert!(
        bob.publish(&mut world, "t", QoS::AtMostOnce, 0).is_empty(),
        "without the deleted user's subscription"
    );
}

#[test]
fn a_session_without_a_recorded_user_goes_to_the_first_permitted_user() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    make_users(&world);
    let (mut alice, _) = connect_as(&mut world, MqttVersion::V311, "alice", 60);
    alice.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(alice);
    world.round();
    // In the format of the previous version.
    let catalogue = Arc::clone(world.hub.store().unwrap().catalogue());
    let mut found = Vec::new();
    catalogue.scan(Section::MqttSessions, |key, value| found.push((key.to_vec(), value.to_vec()))).unwrap();
    let (key, value) = found.pop().unwrap();
    let user = [&[0, 0, 0, 5][..], b"alice", &[0; 8]].concat();
    let at = value.windows(user.len()).position(|part| part == user).unwrap();
    let older = [&[2][..], &value[1..at], &value[at + user.len()..]].concat();
    assert_eq!(DetachedSession::decode(&older, Timestamp(1)).unwrap().user, None);
    catalogue.put(Section::MqttSessions, key, older);
    world.round();
    drop(world);

    let mut world = World::on(&disk);
    make_users(&world);
    permit(&world, "bob", &Permissions::default());
    assert_eq!(connect_as(&mut world, MqttVersion::V5, "bob", 0).1, ["connack Not authorized"]);
    let (alice, answers) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    assert_eq!(answers, ["connack Success present"]);
    drop(alice);
    permit(&world, "bob", &Permissions::all());
    assert_eq!(
        connect_as(&mut world, MqttVersion::V5, "bob", 60).1,
        ["connack Not authorized"],
        "the session is alice's now"
    );
}

/// The number of messages among some packets.
fn messages(packets: &[String]) -> usize {
    packets.iter().filter(|packet| packet.starts_with("publish ")).count()
}

#[test]
fn a_shared_subscription_that_is_refused_takes_nothing_from_its_group() {
    let mut world = World::new();
    make_users(&world);
    let topics =
        TopicPermissions { exchange: "amq.topic".into(), write: ".*".into(), read: r"^dev\.".into() };
    let vhost = world.hub.broker().vhost("/").unwrap();
    vhost.set_topic_permissions("alice", &topics).unwrap();
    let mut member = world.connected(MqttVersion::V5, "member", 60);
    member.subscribe_at(&mut world, "$share/g/secret/#", QoS::AtLeastOnce);
    let (mut alice, _) = connect_as(&mut world, MqttVersion::V5, "alice", 60);
    for filter in ["$share/g/secret/#", "$share/other/secret/#", "secret/#"] {
        let answers = alice.subscribe_at(&mut world, filter, QoS::AtLeastOnce);
        assert_eq!(answers, ["suback Not authorized"]);
    }
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    (1..=10).for_each(|packet_id| _ = writer.publish(&mut world, "secret/1", QoS::AtLeastOnce, packet_id));
    assert_eq!(messages(&alice.received(&mut world)), 0);
    assert_eq!(messages(&member.received(&mut world)), 10);
    assert_eq!(vhost.all_queues().len(), 1, "no queue was declared for the refused member");
    assert_eq!(alice.subscribe_at(&mut world, "$share/g/dev/#", QoS::AtLeastOnce), ["suback Granted QoS 1"]);
}

#[test]
fn a_client_whose_shared_subscription_has_failed_is_no_member_of_its_group() {
    const QUEUE: &str = "mqtt-shared-subscription-g/t";
    let mut world = World::new();
    let vhost = world.hub.broker().vhost("/").unwrap();
    let other = SessionId(1_000_000);
    let exclusive = QueueDeclare { name: QUEUE, exclusive: true, ..QueueDeclare::default() };
    vhost.declare_queue(other, &exclusive, Timestamp::default()).unwrap();
    let mut failed = world.connected(MqttVersion::V5, "failed", 60);
    let answers = failed.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    assert_eq!(answers, ["suback Implementation specific error"]);
    vhost.end_session(other);
    let mut member = world.connected(MqttVersion::V5, "member", 0);
    member.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    assert!(vhost.queue(SessionId(0), QUEUE).is_ok());
    drop(member);
    assert!(vhost.queue(SessionId(0), QUEUE).is_err(), "its last member has left");
}
