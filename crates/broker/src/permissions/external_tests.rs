use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex as PlainMutex;

use super::*;
use crate::message::Body;
use crate::time::Timestamp;
use crate::vhost::QueueDeclare;
use crate::{
    AuthorisedSession, Binding, Broker, BrokerConfig, BrokerError, Compatibility, ExchangeDeclare, Publish,
    SessionId,
};

const NOW: Timestamp = Timestamp(1_000);
const ME: SessionId = SessionId(1);

/// Answers by a rule, and records the requests.
struct Oracle {
    rule: fn(&str) -> AuthzDecision,
    asked: PlainMutex<Vec<String>>,
    generation: AtomicU32,
    /// While it is true, no answer is given.
    waits: PlainMutex<Option<Arc<PlainMutex<bool>>>>,
}

impl AuthzBackend for Oracle {
    fn module(&self) -> &'static str {
        "rabbit_auth_backend_http"
    }

    fn ask(&self, question: AuthzRequest) -> AuthzFuture {
        let text = match question.about {
            AuthzTarget::VirtualHost { vhost } => format!("open {vhost}"),
            AuthzTarget::Resource { kind, name, permission, .. } => format!("{permission} {kind} {name}"),
            AuthzTarget::Topic { exchange, permission, routing_key, .. } => {
                format!("{permission} topic {exchange} {routing_key}")
            }
        };
        let verdict = (self.rule)(&text);
        self.asked.lock().push(text);
        let waits = self.waits.lock().clone();
        Box::pin(std::future::poll_fn(move |_| match &waits {
            Some(waits) if *waits.lock() => Poll::Pending,
            _ => Poll::Ready(verdict),
        }))
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }
}

fn user() -> AuthzSubject {
    AuthzSubject { name: "u".into(), tags: Vec::new(), from: None, client_id: None }
}

/// Runs a future that must not wait.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the future waits"),
    }
}

struct World {
    oracle: Arc<Oracle>,
    identity: Identity,
    broker: Arc<Broker>,
    session: AuthorisedSession,
}

impl World {
    fn new(rule: fn(&str) -> AuthzDecision) -> Self {
        let broker =
            Broker::new(BrokerConfig { compatibility: Compatibility::V4, ..BrokerConfig::default() });
        let oracle = Arc::new(Oracle {
            rule,
            asked: PlainMutex::default(),
            generation: AtomicU32::default(),
            waits: PlainMutex::default(),
        });
        let identity = Identity::of_authz_backend(user(), oracle.clone());
        run(broker.authorise_vhost(&identity, "/"));
        let session = broker.authorised(&identity, "/").unwrap();
        oracle.asked.lock().clear();
        Self { oracle, identity, broker, session }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.oracle.asked.lock())
    }

    fn repeat<T>(&self, operation: impl FnMut() -> Result<T, BrokerError>) -> Result<T, BrokerError> {
        run(self.identity.ask_for(operation))
    }
}

fn allow(_: &str) -> AuthzDecision {
    AuthzDecision::Allowed
}

#[test]
fn a_check_without_an_answer_queues_its_request_and_changes_nothing() {
    let world = World::new(allow);
    let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
    let refused = world.session.declare_queue(ME, &declare, NOW).map(drop);
    assert_eq!(refused, Err(BrokerError::Unasked));
    assert!(world.identity.take_authz_request().is_some() && world.session.vhost().queue(ME, "q").is_err());
    world.repeat(|| world.session.declare_queue(ME, &declare, NOW)).unwrap();
    assert_eq!(world.asked(), ["configure queue q"]);
    world.repeat(|| world.session.declare_queue(ME, &declare, NOW)).unwrap();
    assert_eq!(world.asked(), [""; 0], "the answer is cached");
}

#[test]
fn operations_check_permissions_in_rabbitmqs_order() {
    let world = World::new(allow);
    let topic = ExchangeDeclare { name: "t", kind: "topic", ..ExchangeDeclare::default() };
    world.repeat(|| world.session.declare_exchange(&topic)).unwrap();
    let declared = world.repeat(|| world.session.declare_queue(ME, &QueueDeclare::default(), NOW)).unwrap();
    let name = declared.queue.name().to_string();
    let binding = Binding { source: "t", destination: &name, routing_key: "k", ..Binding::default() };
    world.repeat(|| world.session.bind_queue(ME, &binding)).unwrap();
    let asked = ["configure exchange t", &format!("configure queue {name}"), &format!("write queue {name}")];
    assert_eq!(world.asked(), [&asked[..], &["read exchange t", "read topic t k"]].concat());
    let mut publisher = world.session.publisher();
    let publish = Publish { exchange: "t", routing_key: "k", properties: &[0, 0], body: Body::Copied(b"") };
    assert_eq!(world.repeat(|| publisher.publish(publish, NOW)), Ok(true));
    assert_eq!(world.asked(), ["write exchange t", "write topic t k"]);
}

#[test]
fn a_refusal_counts_for_one_operation_and_permission_until_the_cache_is_cleared() {
    let world =
        World::new(|text| if text.contains("q2") { AuthzDecision::Refused } else { AuthzDecision::Allowed });
    for _ in 0..2 {
        let error = world.repeat(|| world.session.check_read_queue("q2")).unwrap_err();
        assert_eq!(error.to_string(), "read access to queue 'q2' in vhost '/' refused for user 'u'");
        world.repeat(|| world.session.check_read_queue("q1")).unwrap();
    }
    assert_eq!(world.asked(), ["read queue q2", "read queue q1", "read queue q2"]);
    world.oracle.generation.fetch_add(1, Ordering::Relaxed);
    world.repeat(|| world.session.check_read_queue("q1")).unwrap();
    assert_eq!(world.asked(), ["read queue q1"]);
}

#[test]
fn a_publishers_routes_are_forgotten_with_the_answers() {
    let world = World::new(allow);
    let mut publisher = world.session.publisher();
    let publish =
        Publish { exchange: "amq.direct", routing_key: "k", properties: &[0, 0], body: Body::Copied(b"") };
    world.repeat(|| publisher.publish(publish, NOW)).unwrap();
    assert!(publisher.publish(publish, NOW).is_ok());
    world.oracle.generation.fetch_add(1, Ordering::Relaxed);
    assert_eq!(publisher.publish(publish, NOW), Err(BrokerError::Unasked));
}

#[test]
fn an_operation_is_decided_by_answers_of_one_generation() {
    let world = World::new(allow);
    let mut publisher = world.session.publisher();
    let publish =
        Publish { exchange: "amq.direct", routing_key: "k", properties: &[0, 0], body: Body::Copied(b"") };
    assert_eq!(publisher.check(publish), Err(BrokerError::Unasked));
    run(world.identity.take_authz_request().unwrap());
    world.oracle.generation.fetch_add(1, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(publisher.check(publish).is_ok(), "what was asked stays answered");
        assert!(publisher.publish(publish, NOW).is_ok());
    }
    world.identity.end_operation();
    assert_eq!(publisher.publish(publish, NOW), Err(BrokerError::Unasked), "nor is the route used again");
}

#[test]
fn opening_a_virtual_host_is_one_operation() {
    let world = World::new(allow);
    let identity = Identity::of_authz_backend(user(), world.oracle.clone());
    run(world.broker.authorise_vhost(&identity, "/"));
    world.oracle.generation.fetch_add(1, Ordering::Relaxed);
    let session = world.broker.begin_session(&identity, "/").unwrap();
    assert_eq!(session.check_read_queue("q"), Err(BrokerError::Unasked));
    run(identity.ask_for(|| session.check_read_queue("q"))).unwrap();
    world.oracle.generation.fetch_add(1, Ordering::Relaxed);
    assert_eq!(session.check_read_queue("q"), Err(BrokerError::Unasked), "the cache was cleared");
}

#[test]
fn an_answer_to_an_operation_that_was_given_up_counts_for_no_other() {
    for verdict in [allow as fn(&str) -> AuthzDecision, |text| {
        if text == "open /" { AuthzDecision::Allowed } else { AuthzDecision::Refused }
    }] {
        let world = World::new(verdict);
        assert_eq!(world.session.check_read_queue("q"), Err(BrokerError::Unasked));
        let question = world.identity.take_authz_request().unwrap();
        world.identity.end_operation();
        run(question);
        assert_eq!(world.session.check_read_queue("q"), Err(BrokerError::Unasked));
    }
}

#[test]
fn the_questions_of_an_operation_are_asked_a_few_at_once() {
    let world = World::new(allow);
    let questions = MAX_AT_ONCE * 3;
    for number in 0..questions {
        assert_eq!(world.session.check_read_queue(&number.to_string()), Err(BrokerError::Unasked));
    }
    let gate = Arc::new(PlainMutex::new(true));
    world.oracle.waits.lock().clone_from(&Some(gate.clone()));
    let mut question = world.identity.take_authz_request().unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(question.as_mut().poll(&mut context).is_pending());
    assert_eq!(world.asked().len(), MAX_AT_ONCE);
    *gate.lock() = false;
    assert!(question.as_mut().poll(&mut context).is_ready());
    assert_eq!(world.asked().len(), questions - MAX_AT_ONCE);
    assert!(world.session.check_read_queue("0").is_ok());
}

#[test]
fn a_backend_that_does_not_answer_refuses_everything() {
    let world =
        World::new(|text| if text == "open /" { AuthzDecision::Allowed } else { AuthzDecision::Unanswered });
    let error = world.repeat(|| world.session.check_read_queue("q")).unwrap_err();
    let text = "read access to queue 'q' in vhost '/' refused for user 'u', backend rabbit_auth_backend_http returned an \
                error";
    assert_eq!((error.reply_code(), error.to_string()), (amqp::ReplyCode::AccessRefused, text.to_owned()));
}

#[test]
fn a_virtual_host_is_asked_about_before_it_is_opened() {
    let world =
        World::new(|text| if text == "open /" { AuthzDecision::Allowed } else { AuthzDecision::Refused });
    world.broker.add_vhost("v");
    assert_eq!(world.broker.open(&world.identity, "v").err(), Some(BrokerError::Unasked));
    let error = world.repeat(|| world.broker.open(&world.identity, "v")).err().unwrap();
    assert_eq!(error.to_string(), "access to vhost 'v' refused for user 'u'");
    assert_eq!(world.asked(), ["open v"]);
    assert!(world.broker.open(&world.identity, "none").is_err());
    assert_eq!(world.asked(), [""; 0], "no request is sent about a missing virtual host");
}

#[test]
fn a_session_caches_few_answers_and_an_operation_asks_few_questions() {
    let world = World::new(allow);
    for number in 0..=MAX_CACHED + 10 {
        world.repeat(|| world.session.check_read_queue(&number.to_string())).unwrap();
    }
    assert_eq!(world.identity.asked().unwrap().answers.lock().allowed.len(), MAX_CACHED);
    world.asked();
    world.repeat(|| world.session.check_read_queue("0")).unwrap();
    assert_eq!(world.asked(), ["read queue 0"], "the oldest is forgotten first");
    let all = || {
        let checks = (0..MAX_OF_OPERATION + 10).map(|at| world.session.check_read_queue(&format!("b{at}")));
        // All checks run, not only those up to the first without an answer.
        checks.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
    };
    assert!(world.repeat(all).is_err());
    assert_eq!(world.asked().len(), MAX_OF_OPERATION);
}

#[test]
fn a_generated_name_is_that_of_one_operation() {
    let world = World::new(allow);
    let mut names = Vec::new();
    let one = || {
        names.push(world.session.generated_name(crate::names::generate_queue_name));
        world.session.check_read_queue("q")
    };
    world.repeat(one).unwrap();
    assert!(names.len() == 2 && names[0] == names[1], "it is repeated with the same");
    for name in ["a", "b"] {
        assert_eq!(world.session.generated_name(|| name.to_owned()), name, "nothing was asked in between");
    }
}

#[test]
fn an_mqtt_client_has_answers_of_its_own_once() {
    let world = World::new(allow);
    let client = world.identity.clone().as_client("c");
    run(world.broker.authorise_vhost(&client, "/"));
    assert!(world.broker.open(&client.clone().as_client("c"), "/").is_ok());
    assert_eq!(client.asked().unwrap().user().client_id.as_deref(), Some("c"));
    assert!(world.broker.open(&client.as_client("d"), "/").is_err());
}

#[test]
fn an_internal_user_keeps_its_limits_and_gets_the_permissions_of_the_authz_backend() {
    let world = World::new(allow);
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    let asked = guest.authorised_by(&world.broker, world.oracle.clone(), None).unwrap();
    assert!(asked.is_asked() && world.broker.tags(&asked) == ["administrator"]);
    assert!(asked.is_external() && asked.is_listed() && !world.identity.is_listed());
    assert_eq!(world.broker.open(&asked, "/").err(), Some(BrokerError::Unasked));
    let tagged = guest.with_tags(vec!["impersonator".into(), "administrator".into()]);
    assert_eq!(world.broker.tags(&tagged), ["administrator", "impersonator"]);
    assert!(tagged.may_impersonate() && world.broker.open(&tagged, "/").is_ok());
}
