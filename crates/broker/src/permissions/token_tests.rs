//! Users with a token: permissions, expiry and renewal.

use std::sync::Arc;

use crate::message::Body;
use crate::{
    AuthorisedSession, Broker, BrokerConfig, BrokerError, Identity, Publish, Publisher, QueueDeclare,
    SessionId, Timestamp, TokenPermissions, WallOffset,
};

const NOW: Timestamp = Timestamp(1_000_000);
const END: Timestamp = Timestamp(1_060_000);
const ME: SessionId = SessionId(1);

fn token(scopes: &[&str], expires_at: Timestamp) -> Identity {
    let scopes = scopes.iter().map(|scope| Box::from(*scope)).collect();
    Identity::of_token("guest", TokenPermissions { scopes, tags: vec!["monitoring".into()], expires_at })
}

fn session(scopes: &[&str]) -> (Arc<Broker>, AuthorisedSession) {
    let broker = Broker::new(BrokerConfig::default());
    let session = broker.authorised(&token(scopes, END), "/").unwrap();
    (broker, session)
}

fn publish(publisher: &mut Publisher, exchange: &str, routing_key: &str) -> Result<bool, BrokerError> {
    publisher.publish(Publish { exchange, routing_key, properties: &[0, 0], body: Body::Copied(b"") }, NOW)
}

#[test]
fn a_token_has_its_own_rights_and_not_those_of_a_user_with_its_name() {
    let (broker, session) = session(&["configure:*/c", "write:*/amq.default"]);
    let declare =
        |name| session.declare_queue(ME, &QueueDeclare { name, ..QueueDeclare::default() }, NOW).map(drop);
    assert!(declare("c").is_ok());
    assert!(declare("d").is_err(), "guest of the broker's own list may");
    assert!(publish(&mut session.publisher(), "", "c").is_ok());
    assert!(publish(&mut session.publisher(), "amq.direct", "c").is_err());
    assert_eq!(broker.tags(session.identity()), ["monitoring"]);
    let stranger = token(&["read:other/*"], END);
    assert!(broker.authorised(&stranger, "/").is_err(), "no permission in this virtual host");
    assert!(broker.open(&stranger, "/").is_err());
}

#[test]
fn topic_exchanges_need_a_scope_with_a_routing_key() {
    let (_, session) = session(&["write:*/amq.*", "write:*/amq.topic/mine.*"]);
    let mut publisher = session.publisher();
    assert!(publish(&mut publisher, "amq.topic", "mine.a").is_ok());
    assert!(publish(&mut publisher, "amq.topic", "other").is_err());
    assert!(publish(&mut publisher, "amq.direct", "other").is_ok());
}

#[test]
fn an_expired_token_allows_nothing_until_it_is_renewed() {
    let scopes = ["write:*/*", "read:*/*", "configure:*/*"];
    let (_, mut session) = session(&scopes);
    let mut publisher = session.publisher();
    assert!(publish(&mut publisher, "amq.direct", "k").is_ok());
    session.check_expiry(NOW);
    assert_eq!(session.expires_at(), Some(END));
    session.check_expiry(END);
    assert_eq!(session.expires_at(), None, "nothing more to wait for");
    let refused = publish(&mut publisher, "amq.direct", "k").unwrap_err();
    assert_eq!(refused.reply_code().code(), 403);
    let why = "access to exchange 'amq.direct' in vhost '/' refused for user 'guest', backend \
               rabbit_auth_backend_oauth2 returned an error: \"Provided JWT token has expired at timestamp 1060 \
               (validated at 1060)\"";
    assert_eq!(refused.to_string().trim_start_matches("write "), why);
    assert!(session.check_read_queue("q").is_err());
    session.renew(token(&scopes, END.after(60_000)));
    assert!(publish(&mut publisher, "amq.direct", "k").is_ok(), "its publishers follow");
    session.check_expiry(END);
    assert!(session.check_read_queue("q").is_ok());
}

#[test]
fn a_refusal_names_the_expiry_of_a_token_in_wall_clock_time() {
    static BEHIND: WallOffset = WallOffset::new();
    BEHIND.set(-7_200_000);
    let broker = Broker::new(BrokerConfig { wall: &BEHIND, ..BrokerConfig::default() });
    let mut session = broker.authorised(&token(&["write:*/*"], END), "/").unwrap();
    let mut publisher = session.publisher();
    session.check_expiry(END.after(1_000));
    let refused = publish(&mut publisher, "amq.direct", "k").unwrap_err().to_string();
    assert!(refused.ends_with("has expired at timestamp 8260 (validated at 8261)\""), "{refused}");
}

#[test]
fn a_renewed_token_may_allow_less() {
    let (_, mut session) = session(&["write:*/*"]);
    let mut publisher = session.publisher();
    assert!(publish(&mut publisher, "amq.direct", "k").is_ok());
    session.renew(token(&["write:*/other"], END));
    assert!(publish(&mut publisher, "amq.direct", "k").is_err());
}

#[test]
fn impersonation_depends_on_the_current_token() {
    let tagged = |tags: &[&str]| {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        Identity::of_token(
            "guest",
            TokenPermissions { scopes: vec!["write:*/*".into()], tags, expires_at: END },
        )
    };
    let mut properties = Vec::new();
    amqp::Properties::default().with_user_id("other").encode(&mut properties);
    let broker = Broker::new(BrokerConfig::default());
    let mut session = broker.authorised(&tagged(&["impersonator"]), "/").unwrap();
    let mut publisher = session.publisher();
    let mut publish = || {
        let body = Body::Copied(b"");
        let message = Publish { exchange: "amq.direct", routing_key: "k", properties: &properties, body };
        publisher.publish(message, NOW).map_err(|error| error.reply_code().code())
    };
    assert_eq!(publish(), Ok(false));
    session.renew(tagged(&[]));
    assert_eq!(publish(), Err(406));
    session.renew(tagged(&["impersonator"]));
    assert_eq!(publish(), Ok(false));
}

#[test]
fn permissions_of_a_user_of_the_same_name_do_not_change_a_token() {
    let (broker, session) = session(&["read:*/q"]);
    broker.vhost("/").unwrap().set_permissions("guest", None).unwrap();
    assert!(session.check_read_queue("q").is_ok());
    broker.vhost("/").unwrap().set_permissions("guest", Some(&crate::Permissions::all())).unwrap();
    assert!(session.check_read_queue("other").is_err());
}
