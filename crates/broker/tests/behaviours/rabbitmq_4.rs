//! Answers of RabbitMQ 4 that differ from those of 3.10, with a broker that follows RabbitMQ 4.

use amqp::{FieldTable, FieldValue, Properties};
use broker::*;

use crate::disk_world::paging_as;
use crate::world::*;

pub(crate) fn rabbitmq_4() -> World {
    world_of(BrokerConfig { compatibility: Compatibility::V4, ..BrokerConfig::default() })
}

/// A queue that sends dead letters to the queue `dead`.
fn with_dead_letters(world: &World, arguments: &[(&str, FieldValue)]) -> std::sync::Arc<Queue> {
    let mut all = vec![
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    all.extend_from_slice(arguments);
    let arguments = table(&all);
    let declare = QueueDeclare { name: "q", durable: true, arguments: raw(&arguments), ..Default::default() };
    world.declare(declare).unwrap().queue
}

fn quorum(world: &World) -> std::sync::Arc<Queue> {
    with_dead_letters(world, &[("x-queue-type", FieldValue::text("quorum"))])
}

/// The headers x-acquired-count and x-delivery-count.
fn counts(queue: &Queue, delivery: &Delivery) -> (Option<i64>, Option<i64>) {
    let properties = delivery.properties(queue, true);
    let headers = Properties::decode(&properties).unwrap().headers.map(|headers| headers.decode());
    let headers = headers.unwrap_or_default();
    let count = |name| headers.get(name).and_then(FieldValue::as_integer);
    (count("x-acquired-count"), count("x-delivery-count"))
}

/// The names of the headers that a client sees.
fn names(queue: &Queue, delivery: &Delivery) -> Vec<String> {
    let properties = delivery.properties(queue, false);
    let headers = Properties::decode(&properties).unwrap().headers.map(|headers| headers.decode());
    headers.unwrap_or_default().iter().map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn an_annotation_is_seen_by_its_front_end_alone() {
    let world = rabbitmq_4();
    let (dead, queue) = (world.queue("dead"), with_dead_letters(&world, &[]));
    let headers: FieldTable =
        [(ANNOTATION, FieldValue::text("note")), ("a", FieldValue::text("1"))].into_iter().collect();
    let headers = headers.encode();
    let mut properties = Vec::new();
    Properties::default().with_headers(raw(&headers)).encode(&mut properties);
    let publish =
        Publish { exchange: "", routing_key: "q", properties: &properties, body: Body::Copied(b"m") };
    let identity = world.broker.authenticate_external("guest", true).unwrap();
    for (annotates, seen) in [(true, vec!["a"]), (false, vec![ANNOTATION, "a"])] {
        let publisher = world.vhost.publisher(&identity);
        let mut publisher = if annotates { publisher.with_mqtt_annotation() } else { publisher };
        publisher.publish(publish, world.now).unwrap();
        publisher.flush_all(world.now);
        let delivery = world.get(&queue);
        assert_eq!(names(&queue, &delivery), seen);
        assert_eq!(delivery.message().properties(), properties);
        queue.reject(vec![delivery], Returned::Failed, world.now);
        let letter = world.get(&dead);
        assert_eq!(letter.message().broker_properties().is_annotated, annotates);
        assert_eq!(names(&dead, &letter).iter().any(|name| name == ANNOTATION), !annotates);
    }
}

#[test]
fn a_released_message_has_not_failed() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world);
    world.publish("", "q", "m");
    let give_back = |returned| {
        let delivery = world.get(&queue);
        let counts = counts(&queue, &delivery);
        queue.requeue(vec![delivery], returned, world.now);
        counts
    };
    assert_eq!(give_back(Returned::Released), (None, None));
    assert_eq!(give_back(Returned::Failed), (Some(1), None));
    assert_eq!(give_back(Returned::Released), (Some(2), Some(1)));
    assert_eq!(give_back(Returned::Failed), (Some(3), Some(1)));
    assert_eq!(give_back(Returned::Failed), (Some(4), Some(2)));
    (0..100).for_each(|_| _ = give_back(Returned::Released));
    assert_eq!(queue.message_count(), 1, "however often");
}

fn publish_by_priority(world: &mut World, messages: &[(&str, Option<u8>)]) {
    for (body, priority) in messages {
        let properties = Properties { priority: *priority, ..Properties::default() };
        world.try_publish("", "q", body, properties).unwrap();
    }
}

#[test]
fn quorum_queues_deliver_by_priority() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world);
    let messages = [
        ("none", None),
        ("4", Some(4)),
        ("3", Some(3)),
        ("255", Some(255)),
        ("31", Some(31)),
        ("5", Some(5)),
    ];
    publish_by_priority(&mut world, &messages);
    let counts = queue.priorities().map(|counts| counts.by_priority);
    assert_eq!(counts, Some(vec![(3, 1), (4, 2), (5, 1), (31, 2)]));
    assert_eq!(world.drain(&queue), ["255", "31", "5", "none", "4", "3"]);
    let classic = world.queue("classic");
    assert_eq!(classic.priorities(), None);
}

#[test]
fn messages_returned_to_a_quorum_queue_lead_in_order_of_return() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world);
    publish_by_priority(&mut world, &[("low", Some(1)), ("high", Some(9)), ("highest", Some(31))]);
    let [highest, high, low] = std::array::from_fn(|_| world.get(&queue));
    queue.requeue(vec![low, high], Returned::Released, world.now);
    publish_by_priority(&mut world, &[("new", Some(31))]);
    queue.requeue(vec![highest], Returned::Failed, world.now);
    assert_eq!(queue.priorities().map(|counts| counts.returned), Some(3));
    assert_eq!(world.drain(&queue), ["low", "high", "highest", "new"]);
}

#[test]
fn a_full_quorum_queue_drops_the_message_it_would_deliver_next() {
    let mut world = rabbitmq_4();
    let dead = world.queue("dead");
    let limit = ("x-max-length", FieldValue::I32(2));
    let queue = with_dead_letters(&world, &[("x-queue-type", FieldValue::text("quorum")), limit]);
    publish_by_priority(&mut world, &[("9", Some(9)), ("1", Some(1)), ("5", Some(5)), ("31", Some(31))]);
    assert_eq!(
        (world.drain(&queue), world.drain(&dead)),
        (vec!["5".into(), "1".into()], vec!["9".into(), "31".into()])
    );
}

#[test]
fn messages_of_a_quorum_queue_expire_behind_those_of_a_higher_priority() {
    let mut world = rabbitmq_4();
    let queue = quorum(&world);
    publish_by_priority(&mut world, &[("high", Some(9))]);
    for (body, expiration) in [("low", Some("100")), ("behind", Some("50")), ("at the end", None)] {
        let properties = Properties { priority: Some(1), expiration, ..Properties::default() };
        world.try_publish("", "q", body, properties).unwrap();
    }
    world.wait(60);
    assert_eq!(queue.message_count(), 4, "the first of its priority has not expired");
    world.wait(40);
    assert_eq!(world.drain(&queue), ["high", "at the end"]);
}

#[test]
fn consumers_get_messages_requeued_to_a_full_quorum_queue() {
    let mut world = rabbitmq_4();
    let limit = ("x-max-length", FieldValue::I32(1));
    let queue = with_dead_letters(&world, &[("x-queue-type", FieldValue::text("quorum")), limit]);
    let taken: Vec<_> = ["1", "2", "3"]
        .into_iter()
        .map(|body| {
            world.publish("", "q", body);
            world.get(&queue)
        })
        .collect();
    let (_, recorder) = world.consume(&queue, 2, 0);
    queue.requeue(taken, Returned::Released, world.now);
    assert_eq!((recorder.bodies(), queue.message_count()), (vec!["1".into(), "2".into()], 1));
}

#[test]
fn a_message_may_fail_twenty_times() {
    let mut world = rabbitmq_4();
    let (dead, queue) = (world.queue("dead"), quorum(&world));
    world.publish("", "q", "m");
    for _ in 0..20 {
        queue.requeue(vec![world.get(&queue)], Returned::Failed, world.now);
    }
    assert_eq!((queue.message_count(), dead.message_count()), (1, 0));
    queue.requeue(vec![world.get(&queue)], Returned::Failed, world.now);
    assert_eq!((queue.message_count(), dead.message_count()), (0, 1));
}

#[test]
fn a_dead_letter_has_failed_as_often_as_the_message_it_was_made_from() {
    let mut world = rabbitmq_4();
    let limit = ("x-delivery-limit", FieldValue::I32(2));
    let arguments = table(&[("x-queue-type", FieldValue::text("quorum")), limit]);
    let declare =
        QueueDeclare { name: "dead", durable: true, arguments: raw(&arguments), ..Default::default() };
    let dead = world.declare(declare).unwrap().queue;
    let queue = quorum(&world);
    let mut letter_of = |failures: u32, rejected: Returned| {
        world.publish("", "q", "m");
        (0..failures).for_each(|_| queue.requeue(vec![world.get(&queue)], Returned::Failed, world.now));
        queue.reject(vec![world.get(&queue)], rejected, world.now);
        world.get(&dead)
    };
    let forgiven = letter_of(0, Returned::Released);
    assert_eq!((forgiven.redelivered(), counts(&dead, &forgiven)), (false, (None, None)));
    let rejected = letter_of(0, Returned::Failed);
    assert_eq!((rejected.redelivered(), counts(&dead, &rejected)), (true, (Some(1), Some(1))));
    let nacked_later = letter_of(1, Returned::Released);
    assert_eq!(counts(&dead, &nacked_later), (Some(1), Some(1)));
    let rejected_later = letter_of(1, Returned::Failed);
    assert_eq!(counts(&dead, &rejected_later), (Some(2), Some(2)));
    // These failures count towards the limit as well. From now on this queue's own deliveries are reported.
    dead.requeue(vec![forgiven, rejected], Returned::Failed, world.now);
    assert_eq!(dead.message_count(), 2);
    let [forgiven, rejected] = [world.get(&dead), world.get(&dead)];
    assert_eq!(counts(&dead, &forgiven), (Some(1), Some(1)));
    assert_eq!(counts(&dead, &rejected), (Some(1), Some(2)));
    dead.requeue(vec![forgiven, rejected], Returned::Released, world.now);
    dead.requeue(vec![rejected_later], Returned::Failed, world.now);
    assert_eq!(dead.message_count(), 2);
}

/// It was never delivered from its current queue: neither a restart nor paging counts as a failure there.
#[test]
fn a_dead_letter_that_failed_more_often_than_its_queue_allows_waits_there_for_its_next_failure() {
    let mut disk_world = paging_as(Compatibility::V4, 31, 0);
    let quorum = ("x-queue-type", FieldValue::text("quorum"));
    disk_world.durable("dead", &[quorum.clone(), ("x-delivery-limit", FieldValue::I32(1))]);
    let queue = with_dead_letters(&disk_world.world, &[quorum]);
    for body in ["first", "second", "third"] {
        disk_world.publish("", "q", body);
        for _ in 0..3 {
            queue.requeue(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
        }
        queue.reject(vec![disk_world.world.get(&queue)], Returned::Failed, disk_world.world.now);
    }
    disk_world.sync();
    disk_world.page();
    assert_eq!(disk_world.drain("dead"), ["first", "second", "third"]);
    // The deliveries are not recorded on disk.
    let disk_world = disk_world.crash();
    let dead = disk_world.queue("dead");
    let first = disk_world.fetch(&dead, false).expect("a dead letter");
    assert_eq!((text(&first).as_str(), dead.message_count()), ("first", 2));
    dead.requeue(vec![first], Returned::Failed, disk_world.world.now);
    assert_eq!(dead.message_count(), 2, "that was its next failure");
}

#[test]
fn dead_letters_have_headers_of_their_last_death_and_keep_cc() {
    let mut world = rabbitmq_4();
    let (dead, queue) = (world.queue("dead"), with_dead_letters(&world, &[]));
    let copies = FieldValue::Array(vec![FieldValue::text("elsewhere")]);
    let headers: FieldTable = [("CC", copies.clone())].into_iter().collect();
    world.try_publish("", "q", "m", Properties::default().with_headers(raw(&headers.encode()))).unwrap();
    queue.reject(vec![world.get(&queue)], Returned::Failed, world.now);
    let headers = headers_of(&world.get(&dead));
    for (name, text) in [("queue", "q"), ("reason", "rejected"), ("exchange", "")] {
        for which in ["first", "last"] {
            let name = format!("x-{which}-death-{name}");
            assert_eq!(headers.get(&name), Some(&FieldValue::text(text)), "{name}");
        }
    }
    assert_eq!(headers.get("CC"), Some(&copies));
}

#[test]
fn an_x_death_header_sent_by_a_client_is_ignored() {
    let mut world = rabbitmq_4();
    let (dead, queue) = (world.queue("dead"), with_dead_letters(&world, &[]));
    let death: FieldTable = [
        ("queue", FieldValue::text("q")),
        ("reason", FieldValue::text("rejected")),
        ("count", FieldValue::I64(5)),
    ]
    .into_iter()
    .collect();
    let headers: FieldTable = [
        ("x-death", FieldValue::Array(vec![FieldValue::Table(death)])),
        ("x-first-death-queue", FieldValue::text("made up")),
    ]
    .into_iter()
    .collect();
    let counts_and_first = |world: &World| {
        let headers = headers_of(&world.get(&dead));
        let Some(FieldValue::Array(deaths)) = headers.get("x-death") else { panic!("{headers:?}") };
        let counts: Vec<_> = deaths
            .iter()
            .map(|death| match death {
                FieldValue::Table(death) => death.get("count").and_then(FieldValue::as_integer),
                _ => None,
            })
            .collect();
        (counts, headers.get("x-first-death-queue").cloned())
    };
    world.try_publish("", "q", "m", Properties::default().with_headers(raw(&headers.encode()))).unwrap();
    queue.reject(vec![world.get(&queue)], Returned::Failed, world.now);
    assert_eq!(counts_and_first(&world), (vec![Some(1)], Some(FieldValue::text("q"))));
}

#[test]
fn a_refusal_names_the_permission_that_is_missing() {
    let world = rabbitmq_4();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    let authorised = world.broker.authorised(&guest, "/").unwrap();
    world.vhost.set_permissions("guest", None).unwrap();
    let declare = QueueDeclare { name: "q", ..Default::default() };
    let text = "configure access to queue 'q' in vhost '/' refused for user 'guest'".to_owned();
    assert_eq!(refusal(authorised.declare_queue(ME, &declare, world.now)), (403, text));
    let text = "read access to queue 'q' in vhost '/' refused for user 'guest'".to_owned();
    assert_eq!(refusal(authorised.check_read_queue("q")), (403, text));
}

#[test]
fn an_unknown_exchange_type_closes_the_channel_and_any_delivery_mode_is_accepted() {
    let mut world = rabbitmq_4();
    let declare = ExchangeDeclare { name: "e", kind: "nope", ..Default::default() };
    let text = "unknown exchange type 'nope'".to_owned();
    assert_eq!(refusal(world.vhost.declare_exchange(&declare)), (406, text));
    let queue = world.queue("q");
    world.try_publish("", "q", "m", Properties::default().with_delivery_mode(7)).unwrap();
    assert!(!world.get(&queue).message().broker_properties().persistent);
}

#[test]
fn a_policy_that_only_rabbitmq_4_knows_does_not_keep_a_broker_that_follows_3_10_from_its_start() {
    let mut disk_world = paging_as(Compatibility::V4, 1, u64::MAX);
    let policy = serde_json::json!({
        "vhost": "/", "name": "p", "pattern": "",
        "definition": {"delayed-retry-type": "all", "delayed-retry-min": 1000, "max-length": 1},
    });
    disk_world.world.broker.define(Section::Policies, policy.clone(), Timestamp(1)).unwrap();
    disk_world.durable("q", &[]);
    disk_world.sync();
    let mut disk_world = disk_world.crash_into(Compatibility::V3_10);
    for body in ["old", "new"] {
        disk_world.publish("", "q", body);
    }
    assert_eq!(disk_world.drain("q"), ["new"], "its other keys hold");
    let error = disk_world.world.broker.define(Section::Policies, policy, Timestamp(1)).unwrap_err();
    assert!(error.to_string().ends_with("not a recognised policy setting"), "{error}");
}

/// A broker with the virtual host `/`, whose queues are quorum queues unless they are declared otherwise.
fn quorum_by_default(compatibility: Compatibility) -> std::sync::Arc<VirtualHost> {
    let broker = Broker::new(BrokerConfig { compatibility, ..BrokerConfig::default() });
    let file = br#"{"vhosts": [{"name": "/", "metadata": {"default_queue_type": "quorum"}}]}"#;
    broker.load(&Definitions::from_json(file).unwrap(), Timestamp(1)).unwrap();
    broker.vhost("/").unwrap()
}

#[test]
fn a_virtual_host_has_a_default_queue_type() {
    let declare = |vhost: &std::sync::Arc<VirtualHost>, declare: QueueDeclare<'_>| {
        vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).map(|declared| declared.queue.kind())
    };
    let durable = QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() };
    let vhost = quorum_by_default(Compatibility::V4);
    assert_eq!(declare(&vhost, durable), Ok(QueueKind::Quorum));
    assert_eq!(declare(&vhost, durable), Ok(QueueKind::Quorum), "the same again");
    // These cannot be quorum queues.
    for other in [
        QueueDeclare { name: "transient", durable: false, ..durable },
        QueueDeclare { name: "exclusive", exclusive: true, ..durable },
        QueueDeclare { name: "auto-delete", auto_delete: true, ..durable },
    ] {
        assert_eq!(declare(&vhost, other), Ok(QueueKind::Classic), "{}", other.name);
    }
    let classic = table(&[("x-queue-type", FieldValue::text("classic"))]);
    let typed = QueueDeclare { name: "typed", arguments: raw(&classic), ..durable };
    assert_eq!(declare(&vhost, typed), Ok(QueueKind::Classic));
    let error = declare(&vhost, QueueDeclare { name: "typed", ..durable }).unwrap_err();
    assert!(error.to_string().contains("received 'quorum' but current is 'classic'"), "{error}");
    let before = quorum_by_default(Compatibility::V3_10);
    assert_eq!(declare(&before, durable), Ok(QueueKind::Classic), "3.10 has no default queue type");
}

#[test]
fn a_server_names_no_queues_where_the_default_is_a_quorum_queue() {
    for (compatibility, is_refused) in [(Compatibility::V4, true), (Compatibility::V3_10, false)] {
        let broker = Broker::new(BrokerConfig { compatibility, ..BrokerConfig::default() });
        let file = br#"{"vhosts": [{"name": "/", "metadata": {"default_queue_type": "quorum"}}]}"#;
        broker.load(&Definitions::from_json(file).unwrap(), Timestamp(1)).unwrap();
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let authorised = broker.authorised(&guest, "/").unwrap();
        let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
        let answer = authorised.declare_queue(ME, &durable, Timestamp(1));
        assert_eq!(answer.is_err(), is_refused);
        if is_refused {
            let text = "Cannot declare a server-named queue for type rabbit_quorum_queue".to_owned();
            assert_eq!(refusal(answer), (406, text));
        }
        // These are classic queues.
        for other in [
            QueueDeclare { exclusive: true, ..durable },
            QueueDeclare { auto_delete: true, ..durable },
            QueueDeclare { durable: false, ..durable },
        ] {
            assert!(authorised.declare_queue(ME, &other, Timestamp(1)).is_ok());
        }
    }
}

#[test]
fn a_policy_that_only_3_10_knows_does_not_keep_a_broker_that_follows_4_from_its_start() {
    let mut disk_world = paging_as(Compatibility::V3_10, 1, u64::MAX);
    let policy = serde_json::json!({
        "vhost": "/", "name": "p", "pattern": "", "definition": {"ha-mode": "all", "max-length": 1},
    });
    disk_world.world.broker.define(Section::Policies, policy.clone(), Timestamp(1)).unwrap();
    disk_world.durable("q", &[]);
    disk_world.sync();
    let mut disk_world = disk_world.crash_into(Compatibility::V4);
    for body in ["old", "new"] {
        disk_world.publish("", "q", body);
    }
    assert_eq!(disk_world.drain("q"), ["new"], "its other keys hold");
    let error = disk_world.world.broker.define(Section::Policies, policy, Timestamp(1)).unwrap_err();
    assert!(error.to_string().ends_with("ha-mode: not a recognised policy setting"), "{error}");
}

#[test]
fn policies_of_equal_priority_keep_their_order_over_a_restart() {
    let mut disk_world = paging_as(Compatibility::V4, 1, u64::MAX);
    for (name, most) in [("small", 1), ("generous", 9)] {
        let definition = serde_json::json!({"max-length": most});
        let policy = serde_json::json!({"vhost": "/", "name": name, "pattern": "", "definition": definition});
        disk_world.world.broker.define(Section::Policies, policy, Timestamp(1)).unwrap();
    }
    disk_world.durable("q", &[]);
    for body in ["old", "new"] {
        disk_world.publish("", "q", body);
    }
    disk_world.sync();
    let disk_world = disk_world.crash_into(Compatibility::V4);
    assert_eq!(disk_world.drain("q"), ["old", "new"]);
}
