use super::*;
use crate::message::Body;
use crate::users::{PasswordHash, UserLimits, UserSpec};
use crate::{Broker, BrokerConfig, Compatibility, Permissions, Publish, TopicPermissions, VirtualHostLimits};

const NOW: Timestamp = Timestamp(1_000);
const ME: SessionId = SessionId(1);

/// A broker with a user `u`, password `u`, with permissions to configure `c…`, write `w…` and read `r…`.
fn broker(limits: UserLimits) -> (Arc<Broker>, Identity) {
    broker_as(Compatibility::V3_10, limits)
}

fn broker_as(compatibility: Compatibility, limits: UserLimits) -> (Arc<Broker>, Identity) {
    let broker = Broker::new(BrokerConfig { compatibility, ..BrokerConfig::default() });
    let password = Some(PasswordHash::new(b"u"));
    broker.put_user(UserSpec { name: "u".into(), password, limits, ..UserSpec::guest() });
    let permissions = Permissions { configure: "^c".into(), write: "^w".into(), read: "^r".into() };
    broker.vhost("/").unwrap().set_permissions("u", Some(&permissions)).unwrap();
    let identity = broker.authenticate("u", b"u", true).unwrap();
    (broker, identity)
}

fn refusal<T>(result: Result<T, BrokerError>) -> (u16, String) {
    let error = result.err().unwrap();
    (error.reply_code().code(), error.to_string())
}

fn publish(publisher: &mut crate::Publisher, exchange: &str) -> Result<bool, BrokerError> {
    let message = Publish { exchange, routing_key: "k", properties: &[0, 0], body: Body::Copied(b"") };
    publisher.publish(message, NOW)
}

#[test]
fn each_operation_needs_its_own_permission() {
    let (broker, identity) = broker(UserLimits::default());
    let authorised = broker.authorised(&identity, "/").unwrap();
    declare_foreign(&authorised);
    let queue = |name| QueueDeclare { name, ..Default::default() };
    let exchange = |name| ExchangeDeclare { name, kind: "direct", ..Default::default() };
    let binding = |source, destination| Binding { source, destination, ..Default::default() };
    let declare = |queue| authorised.declare_queue(ME, &queue, NOW);
    assert!(declare(queue("c")).is_ok());
    assert!(declare(queue("r")).is_err());
    assert!(declare(QueueDeclare { passive: true, ..queue("r") }).is_ok());
    assert!(declare(queue("")).is_err(), "amq.gen- begins with a");
    assert!(authorised.check_delete_queue("c").is_ok() && authorised.check_delete_queue("w").is_err());
    assert!(authorised.check_read_queue("r").is_ok() && authorised.check_read_queue("w").is_err());
    assert!(authorised.declare_exchange(&exchange("c")).is_ok());
    assert!(authorised.declare_exchange(&exchange("w")).is_err());
    assert!(authorised.declare_exchange(&ExchangeDeclare { passive: true, ..exchange("w") }).is_ok());
    assert!(authorised.check_delete_exchange("c").is_ok() && authorised.check_delete_exchange("w").is_err());
    assert!(authorised.bind_queue(ME, &binding("r", "w")).is_ok());
    assert!(authorised.bind_queue(ME, &binding("r", "r")).is_err());
    assert!(authorised.bind_exchange(&binding("w", "w")).is_err());
    assert!(authorised.bind_exchange(&binding("r", "w")).is_ok());
}

/// Declares queues and exchanges `r` and `w`, which the user could not declare.
fn declare_foreign(authorised: &AuthorisedSession) {
    for name in ["r", "w"] {
        authorised.vhost().declare_queue(ME, &QueueDeclare { name, ..Default::default() }, NOW).unwrap();
        let exchange = ExchangeDeclare { name, kind: "topic", ..Default::default() };
        authorised.vhost().declare_exchange(&exchange).unwrap();
    }
}

#[test]
fn topic_permissions_apply_to_bindings_and_unbindings_of_topic_exchanges() {
    let (broker, identity) = broker(UserLimits::default());
    let authorised = broker.authorised(&identity, "/").unwrap();
    declare_foreign(&authorised);
    let topics = TopicPermissions { exchange: "r".into(), write: "".into(), read: "^open$".into() };
    authorised.vhost().set_topic_permissions("u", &topics).unwrap();
    let binding = |routing_key| Binding { source: "r", destination: "w", routing_key, ..Default::default() };
    let refused = "access to topic 'secret' in exchange 'r' in vhost '/' refused for user 'u'";
    assert!(authorised.bind_queue(ME, &binding("open")).is_ok());
    assert_eq!(refusal(authorised.bind_queue(ME, &binding("secret"))), (403, refused.to_owned()));
    assert_eq!(refusal(authorised.unbind_queue(ME, &binding("secret"))), (403, refused.to_owned()));
    assert_eq!(refusal(authorised.bind_exchange(&binding("secret"))), (403, refused.to_owned()));
    assert_eq!(refusal(authorised.unbind_exchange(&binding("secret"))), (403, refused.to_owned()));
}

#[test]
fn dead_letter_and_alternate_exchanges_need_more_permissions() {
    let (broker, identity) = broker(UserLimits::default());
    let all_but = |read: &str, write: &str| Permissions {
        configure: ".*".into(),
        read: read.into(),
        write: write.into(),
    };
    let authorised = broker.authorised(&identity, "/").unwrap();
    let arguments: amqp::FieldTable = ["x-dead-letter-exchange", "alternate-exchange"]
        .into_iter()
        .map(|key| (key, FieldValue::text("dead")))
        .collect();
    let bytes = arguments.encode();
    let arguments = amqp::RawTable::check(&bytes).unwrap();
    let queue = QueueDeclare { name: "q", arguments, ..Default::default() };
    let exchange = ExchangeDeclare { name: "e", kind: "direct", arguments, ..Default::default() };
    for (permissions, allowed) in
        [(all_but("^[qe]$", ""), false), (all_but("", "^dead$"), false), (all_but("^[qe]$", "^dead$"), true)]
    {
        authorised.vhost().set_permissions("u", Some(&permissions)).unwrap();
        assert_eq!(authorised.declare_queue(ME, &queue, NOW).is_ok(), allowed, "{permissions:?}");
        assert_eq!(authorised.declare_exchange(&exchange).is_ok(), allowed, "{permissions:?}");
    }
    authorised.vhost().set_permissions("u", Some(&all_but("", ""))).unwrap();
    assert!(authorised.declare_queue(ME, &queue, NOW).is_ok(), "nothing is created");
    assert!(authorised.declare_exchange(&exchange).is_ok(), "nothing is created");
}

#[test]
fn publishing_needs_write_and_a_revoked_permission_ends_it_at_once() {
    let (broker, identity) = broker(UserLimits::default());
    let vhost = broker.open(&identity, "/").unwrap();
    let mut publisher = vhost.publisher(&identity);
    let refused = (403, "access to exchange 'amq.fanout' in vhost '/' refused for user 'u'".to_owned());
    assert_eq!(refusal(publish(&mut publisher, "amq.fanout")), refused);
    vhost.set_permissions("u", Some(&Permissions::all())).unwrap();
    assert!(publish(&mut publisher, "amq.fanout").is_ok());
    vhost.set_permissions("u", Some(&Permissions::default())).unwrap();
    // Refused the second time as well, because an MQTT 5 client continues after a refusal.
    for _ in 0..2 {
        assert_eq!(refusal(publish(&mut publisher, "amq.fanout")), refused, "the route was cached");
    }
}

#[test]
fn connections_count_against_user_and_vhost_until_they_go() {
    let limits = UserLimits { max_connections: Some(1), ..Default::default() };
    let (broker, identity) = broker(limits);
    let authorised = broker.authorised(&identity, "/").unwrap();
    let text = "connection refused for user 'u': user connection limit (1) is reached";
    assert_eq!(refusal(broker.authorised(&identity, "/")), (530, text.to_owned()));
    drop(authorised);
    assert!(broker.authorised(&identity, "/").is_ok());
    broker.vhost("/").unwrap().set_limits(VirtualHostLimits { max_connections: Some(0), max_queues: None });
    let text = "access to vhost '/' refused for user 'u': connection limit (0) is reached";
    assert_eq!(refusal(broker.authorised(&identity, "/")), (530, text.to_owned()));
}

#[test]
fn channels_count_over_all_connections_of_a_user() {
    let limits = UserLimits { max_channels: Some(2), ..Default::default() };
    let (broker, identity) = broker(limits);
    let (one, other) =
        (broker.authorised(&identity, "/").unwrap(), broker.authorised(&identity, "/").unwrap());
    one.open_channel().unwrap();
    other.open_channel().unwrap();
    let text = "number of channels opened for user 'u' has reached the maximum allowed user limit of (2)";
    assert_eq!(refusal(one.open_channel()), (530, text.to_owned()));
    other.close_channel();
    one.open_channel().unwrap();
    drop(one);
    other.open_channel().unwrap();
    other.open_channel().unwrap();
}

#[test]
fn the_channel_limit_is_formatted_as_by_the_release() {
    for (compatibility, written) in [(Compatibility::V3_10, "(0)"), (Compatibility::V4, "0")] {
        let (broker, identity) =
            broker_as(compatibility, UserLimits { max_channels: Some(0), ..Default::default() });
        let (code, text) = refusal(broker.authorised(&identity, "/").unwrap().open_channel());
        assert_eq!((code, text.ends_with(&format!("user limit of {written}"))), (530, true), "{text}");
    }
}

#[test]
fn queues_of_a_vhost_are_limited_but_those_that_exist_can_be_redeclared() {
    let (broker, _) = broker(UserLimits::default());
    let vhost = broker.vhost("/").unwrap();
    vhost.set_limits(VirtualHostLimits { max_queues: Some(1), max_connections: None });
    let declare = |name| vhost.declare_queue(ME, &QueueDeclare { name, ..Default::default() }, NOW);
    declare("one").unwrap();
    declare("one").unwrap();
    let text = "cannot declare queue 'two': queue limit in vhost '/' (1) is reached";
    assert_eq!(refusal(declare("two")), (406, text.to_owned()));
}

#[test]
fn the_limit_of_queues_holds_though_another_is_created_meanwhile() {
    let (broker, _) = broker(UserLimits::default());
    let vhost = broker.vhost("/").unwrap();
    vhost.set_limits(VirtualHostLimits { max_queues: Some(1), max_connections: None });
    let declare = |name| QueueDeclare { name, ..Default::default() };
    let outcome = vhost.declare_queue_if(ME, &declare("one"), NOW, |_, _| {
        vhost.declare_queue(ME, &declare("two"), NOW).map(drop)
    });
    let text = "cannot declare queue 'one': queue limit in vhost '/' (1) is reached";
    assert_eq!(refusal(outcome), (406, text.to_owned()));
}

#[test]
fn a_session_needs_permissions_in_the_virtual_host() {
    let (broker, identity) = broker(UserLimits::default());
    broker.add_vhost("other");
    let text = "access to vhost 'other' refused for user 'u'";
    assert_eq!(refusal(broker.authorised(&identity, "other")), (530, text.to_owned()));
    assert_eq!(refusal(broker.authorised(&identity, "none")), (530, "vhost none not found".to_owned()));
}
