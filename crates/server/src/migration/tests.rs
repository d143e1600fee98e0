//! Migrations between two embedded brokers, on tokio's paused clock.

use std::task::Waker;
use std::time::Duration;

use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::{Body, BrokerConfig, ExchangeDeclare, ForeignMessage, Publish, QueueDeclare, SessionId};
use sync::work;

use super::incoming::IncomingMove;
use super::outgoing::OutgoingMove;
use super::progress::EMPTY_PAUSE;
use super::run::{MAX_RUN, MoveTurns, RunEnd};
use super::*;
use crate::upstream::multiplexing::tests::{USER, Upstream};

/// This broker and the other one, each with a queue of the same name.
struct Brokers {
    context: Arc<MoveContext>,
    here: Arc<Queue>,
    there: Arc<Queue>,
    upstream: Upstream,
}

const QUEUE: &str = "q";

impl Brokers {
    fn new(direction: MoveDirection, arguments_there: &FieldTable) -> Self {
        Self::with(
            direction,
            &QueueDeclare { name: QUEUE, durable: true, ..QueueDeclare::default() },
            arguments_there,
        )
    }

    fn with(direction: MoveDirection, declare_here: &QueueDeclare<'_>, arguments_there: &FieldTable) -> Self {
        Self::with_record(direction, declare_here, arguments_there, ExchangeRecord::new(None, &[]))
    }

    fn with_record(
        direction: MoveDirection,
        declare_here: &QueueDeclare<'_>,
        arguments_there: &FieldTable,
        exchanges: ExchangeRecord,
    ) -> Self {
        let broker = Broker::new(BrokerConfig::default());
        let upstream = Upstream::new();
        let vhost = broker.vhost("/").unwrap();
        let here = vhost.declare_queue(SessionId(77), declare_here, Timestamp::default()).unwrap().queue;
        let there = declare(&upstream.vhost(), arguments_there);
        let of_context = upstream.clone();
        let connect = move |vhost: &str, _: bool| -> TargetConnectFuture {
            let (upstream, vhost) = (of_context.clone(), vhost.to_owned());
            Box::pin(async move { upstream.open_in(&vhost).await })
        };
        let context = MoveContext {
            broker,
            clock: Clock::start(),
            direction,
            alarms: Arc::default(),
            connect: Box::new(connect),
            user: USER.to_owned(),
            vhosts: None,
            skipped: Vec::new(),
            broker_id: "b".to_owned(),
            exchanges,
            progress: ProgressTable::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            retried: Notify::new(),
            is_stopped: AtomicBool::new(false),
            may_impersonate: AtomicBool::new(false),
        };
        let context = Arc::new(context);
        tokio::spawn(Arc::clone(&context).move_all());
        Self { context, here, there, upstream }
    }

    fn publish(vhost: &Arc<VirtualHost>, user: &str, numbers: std::ops::Range<u32>, properties: &[u8]) {
        // An identity with all rights.
        let broker = Broker::new(BrokerConfig::default());
        let identity = broker.authenticate_external(user, true).unwrap();
        let mut publisher = vhost.publisher(&identity);
        for number in numbers {
            let body = number.to_string();
            let body = Body::Copied(body.as_bytes());
            let publish = Publish { exchange: "", routing_key: QUEUE, properties, body };
            publisher.publish(publish, Timestamp(1)).unwrap();
        }
        publisher.flush_all(Timestamp(1));
    }

    fn publish_here(&self, numbers: std::ops::Range<u32>) {
        let vhost = self.context.broker.vhost("/").unwrap();
        Self::publish(&vhost, "guest", numbers, amqp::properties::NO_PROPERTIES);
    }

    /// Declares another queue on both sides, with this many messages here.
    fn add(&self, name: &str, messages: usize) -> Arc<Queue> {
        let declare = QueueDeclare { name, durable: true, ..QueueDeclare::default() };
        let vhost = self.context.broker.vhost("/").unwrap();
        self.upstream.vhost().declare_queue(SessionId(77), &declare, Timestamp::default()).unwrap();
        let queue = vhost.declare_queue(SessionId(77), &declare, Timestamp::default()).unwrap().queue;
        fill(&queue, messages);
        queue
    }

    /// The migration exchanges at the other broker.
    fn exchanges(&self) -> Vec<String> {
        let all = self.upstream.vhost().all_exchanges();
        all.iter()
            .map(|exchange| exchange.name.to_string())
            .filter(|name| name.starts_with("leveret."))
            .collect()
    }

    fn shown(&self) -> MovedQueue {
        let mut all = self.context.progress.all(&self.context.broker);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

fn declare(vhost: &Arc<VirtualHost>, arguments: &FieldTable) -> Arc<Queue> {
    let encoded = arguments.encode();
    let arguments = RawTable::check(&encoded).unwrap();
    let declare = QueueDeclare { name: QUEUE, durable: true, arguments, ..QueueDeclare::default() };
    vhost.declare_queue(SessionId(77), &declare, Timestamp::default()).unwrap().queue
}

fn fill(queue: &Arc<Queue>, messages: usize) {
    let message = || ForeignMessage::new("", queue.name(), amqp::properties::NO_PROPERTIES, b"x").unwrap();
    queue.take_in((0..messages).map(|_| message()).collect(), Timestamp(1));
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Takes a queue's messages, and returns their bodies.
fn take(queue: &Queue) -> Vec<String> {
    let got = std::iter::from_fn(|| queue.get(true, Timestamp::default()));
    got.map(|got| String::from_utf8(got.delivery.message().body().to_vec()).unwrap()).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

const LONG: Duration = Duration::from_secs(20);

/// Waits until `is_so`.
async fn until(is_so: impl Fn() -> bool) {
    let mut passed = Duration::ZERO;
    while !is_so() {
        assert!(passed < 1000 * LONG, "timed out");
        pass(LONG / 100).await;
        passed += LONG / 100;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_leave_in_order_and_are_forgotten_here() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    brokers.publish_here(0..5_000);
    pass(LONG).await;
    let got = brokers.there.get(false, Timestamp::default()).unwrap().delivery;
    let message = got.message();
    assert_eq!(message.routing_key(), QUEUE);
    let headers = Properties::decode(message.properties()).unwrap().headers.unwrap().decode();
    assert_eq!(headers.get("x-leveret-exchange"), Some(&FieldValue::text("")));
    brokers.there.requeue(vec![got], broker::Returned::Unseen, Timestamp::default());
    assert_eq!(take(&brokers.there), numbers(0..5_000));
    assert_eq!((brokers.here.message_count(), brokers.here.unacked_count()), (0, 0));
    let shown = brokers.shown();
    assert_eq!((shown.moved, shown.before, shown.maybe_twice), (5_000, Some(0), 0));
    // The exchange was deleted with the last message.
    assert_eq!(brokers.exchanges(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_costs_nothing_but_duplicates() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    for begin in [0, 5_000, 10_000, 15_000] {
        brokers.upstream.stop_confirming();
        brokers.publish_here(begin..begin + 5_000);
        until(|| brokers.here.unacked_count() > 0).await;
        brokers.upstream.lose();
        brokers.upstream.resume_confirming();
        until(|| brokers.here.message_count() + brokers.here.unacked_count() == 0).await;
    }
    let mut arrived = take(&brokers.there);
    let shown = brokers.shown();
    let most = shown.moved + shown.maybe_twice;
    assert!(shown.moved == 20_000 && arrived.len() as u64 <= most, "{} of {most}", arrived.len());
    let mut seen = std::collections::HashSet::new();
    arrived.retain(|number| seen.insert(number.clone()));
    assert_eq!(arrived, numbers(0..20_000));
}

#[tokio::test(start_paused = true)]
async fn exchanges_left_by_a_crash_are_deleted_by_the_next_move_to_that_broker() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("exchanges");
    let record = |other: &str| ExchangeRecord::new(Some(file.clone()), &[other.to_owned()]);
    let queue = QueueDeclare { name: QUEUE, durable: true, ..QueueDeclare::default() };
    let left = |number: u32| format!("leveret.move.b.{number}");
    record("there").record_new("/", (0..200).map(left).collect()).await;
    record("elsewhere").record_new("/", vec![left(300)]).await;
    record("there").record_new("gone", vec![left(400)]).await;
    let brokers = Brokers::with_record(MoveDirection::Out, &queue, &FieldTable::new(), record("there"));
    // Some no longer exist; one is another broker's.
    for name in [left(7), left(199), left(300), "leveret.move.c.7".to_owned()] {
        let declare = ExchangeDeclare { name: &name, kind: "fanout", ..ExchangeDeclare::default() };
        brokers.upstream.vhost().declare_exchange(&declare).unwrap();
    }
    exchanges::delete_left(&brokers.context).await;
    assert_eq!(brokers.exchanges(), ["leveret.move.b.300", "leveret.move.c.7"]);
    brokers.publish_here(0..10);
    until(|| brokers.there.message_count() == 10).await;
    let on_record = || std::fs::read_to_string(&file).unwrap_or_default();
    assert!(on_record().contains(&exchange_for("b", QUEUE)), "it is on record while the move lasts");
    exchanges::delete_own(&brokers.context).await;
    assert_eq!(on_record().lines().count(), 1, "{}", on_record());
    assert!(on_record().contains(&left(300)));
}

#[tokio::test(start_paused = true)]
async fn an_exchange_is_on_record_until_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("exchanges");
    let queue = QueueDeclare { name: QUEUE, durable: true, ..QueueDeclare::default() };
    let record = ExchangeRecord::new(Some(file.clone()), &["there".to_owned()]);
    let brokers = Brokers::with_record(MoveDirection::Out, &queue, &FieldTable::new(), record);
    exchanges::delete_left(&brokers.context).await;
    brokers.upstream.stop_confirming();
    brokers.publish_here(0..10);
    until(|| brokers.here.unacked_count() > 0).await;
    let name = exchange_for("b", QUEUE);
    assert_eq!(brokers.exchanges(), [&*name]);
    assert!(std::fs::read_to_string(&file).unwrap().contains(&name));
    brokers.upstream.resume_confirming();
    brokers.upstream.lose();
    until(|| brokers.there.message_count() == 10 && brokers.exchanges().is_empty()).await;
    exchanges::delete_own(&brokers.context).await;
    assert!(!file.exists());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_tried_until_there_is_capacity() {
    let limits = [("x-max-length", FieldValue::I64(10)), ("x-overflow", FieldValue::text("reject-publish"))];
    let brokers = Brokers::new(MoveDirection::Out, &limits.into_iter().collect());
    brokers.publish_here(0..35);
    let mut taken = Vec::new();
    for _ in 0..4 {
        pass(LONG).await;
        let some = take(&brokers.there);
        assert!(some.len() <= 10);
        taken.extend(some);
    }
    assert_eq!(taken, numbers(0..35), "in order, and none twice");
    let shown = brokers.shown();
    assert_eq!((shown.moved, shown.maybe_twice), (35, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_stays_with_those_behind_it() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    let vhost = brokers.context.broker.vhost("/").unwrap();
    brokers.publish_here(0..50);
    let mut signed = Vec::new();
    Properties::default().with_user_id("guest").encode(&mut signed);
    Brokers::publish(&vhost, "guest", 50..51, &signed);
    brokers.publish_here(51..60);
    pass(LONG).await;
    let shown = brokers.shown();
    assert_eq!((shown.state, shown.moved, shown.maybe_twice), (MovedQueueState::Refused, 50, 0));
    assert!(shown.trouble.is_some_and(|trouble| trouble.contains("user_id property set to 'guest'")));
    assert_eq!((take(&brokers.there), take(&brokers.here)), (numbers(0..50), numbers(50..60)));
}

#[tokio::test(start_paused = true)]
async fn messages_come_as_they_were_there() {
    let brokers = Brokers::new(MoveDirection::In, &FieldTable::new());
    let mut properties = Vec::new();
    Properties::default().with_priority(3).with_delivery_mode(2).encode(&mut properties);
    Brokers::publish(&brokers.upstream.vhost(), "guest", 0..5_000, &properties);
    pass(Duration::from_millis(130)).await;
    brokers.upstream.lose();
    pass(LONG).await;
    assert_eq!((brokers.there.message_count(), brokers.there.unacked_count()), (0, 0));
    let got = brokers.here.get(false, Timestamp::default()).unwrap().delivery;
    assert_eq!((got.message().properties(), got.message().routing_key()), (&*properties, QUEUE));
    brokers.here.requeue(vec![got], broker::Returned::Unseen, Timestamp::default());
    let mut arrived = take(&brokers.here);
    let mut seen = std::collections::HashSet::new();
    arrived.retain(|number| seen.insert(number.clone()));
    assert_eq!(arrived, numbers(0..5_000));
    assert_eq!(brokers.shown().state, MovedQueueState::Empty);
}

/// A queue here with these arguments.
fn with_arguments(encoded: &[u8]) -> QueueDeclare<'_> {
    let arguments = RawTable::check(encoded).unwrap();
    QueueDeclare { name: QUEUE, durable: true, arguments, ..QueueDeclare::default() }
}

#[tokio::test(start_paused = true)]
async fn messages_stay_that_would_be_deleted_with_their_queue() {
    let here = QueueDeclare { name: QUEUE, durable: true, auto_delete: true, ..QueueDeclare::default() };
    let brokers = Brokers::with(MoveDirection::In, &here, &FieldTable::new());
    pass(LONG).await;
    assert_eq!(brokers.shown().state, MovedQueueState::Empty, "nothing to move");
    Brokers::publish(&brokers.upstream.vhost(), "guest", 0..5, amqp::properties::NO_PROPERTIES);
    pass(LONG).await;
    let shown = brokers.shown();
    assert_eq!((shown.state, shown.cause), (MovedQueueState::Refused, Some("refused")));
    assert_eq!(take(&brokers.there), numbers(0..5));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_ends_when_nobody_uses_it_is_used_while_the_move_lasts() {
    let expires: FieldTable = [("x-expires", FieldValue::I64(600_000))].into_iter().collect();
    let encoded = expires.encode();
    let brokers = Brokers::with(MoveDirection::Out, &with_arguments(&encoded), &expires);
    brokers.publish_here(0..10);
    let vhost = brokers.upstream.vhost();
    let minutes_pass = async |minutes: u32| {
        for _ in 0..minutes {
            pass(Duration::from_secs(60)).await;
            brokers.upstream.expire();
        }
        vhost.queue(SessionId(1), QUEUE).is_ok()
    };
    assert!(minutes_pass(25).await, "no consumer keeps the queue alive yet");
    assert_eq!(brokers.there.message_count(), 10);
    brokers.context.is_stopped.store(true, Ordering::Release);
    assert!(!minutes_pass(20).await);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_used_there_while_others_have_their_turns() {
    let expires: FieldTable = [("x-expires", FieldValue::I64(60_000))].into_iter().collect();
    let encoded = expires.encode();
    let brokers = Brokers::with(MoveDirection::Out, &with_arguments(&encoded), &expires);
    brokers.publish_here(0..10);
    until(|| brokers.there.message_count() == 10).await;
    let _all = brokers.context.permits.acquire_many(AT_ONCE as u32).await.unwrap();
    for _ in 0..60 {
        pass(Duration::from_secs(10)).await;
        brokers.upstream.expire();
    }
    assert!(brokers.upstream.vhost().queue(SessionId(1), QUEUE).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_kept_alive_on_the_other_broker_though_others_are_refused() {
    let expires: FieldTable = [("x-expires", FieldValue::I64(60_000))].into_iter().collect();
    let encoded = expires.encode();
    let brokers = Brokers::with(MoveDirection::Out, &with_arguments(&encoded), &expires);
    for number in 0..20 {
        let name = &*format!("refused{number}");
        let here = QueueDeclare { name, ..with_arguments(&encoded) };
        brokers.context.broker.vhost("/").unwrap().declare_queue(SessionId(77), &here, Timestamp(1)).unwrap();
        let there = QueueDeclare { name, exclusive: true, ..QueueDeclare::default() };
        brokers.upstream.vhost().declare_queue(SessionId(78), &there, Timestamp(1)).unwrap();
    }
    for _ in 0..60 {
        pass(Duration::from_secs(10)).await;
        brokers.upstream.expire();
    }
    assert!(brokers.upstream.vhost().queue(SessionId(1), QUEUE).is_ok());
}

/// More queues than move at a time.
const MANY: usize = AT_ONCE + 1;

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_turn_delays_no_later_message() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    brokers.upstream.stop_confirming();
    let queues: Vec<_> = (0..MANY).map(|number| brokers.add(&number.to_string(), 10)).collect();
    pass(Duration::from_secs(60)).await;
    brokers.upstream.resume_confirming();
    let is_empty = |queue: &Queue| queue.message_count() + queue.unacked_count() == 0;
    until(|| queues.iter().all(|queue| is_empty(queue))).await;
    fill(&queues[0], 1);
    pass(EMPTY_PAUSE + 2 * MAX_SURVEY_PAUSE).await;
    assert!(is_empty(&queues[0]));
}

/// Takes turns at `now` until `is_so`; returns the end of the run if it comes before that.
fn turns(run: &mut impl MoveTurns, now: Instant, is_so: impl Fn() -> bool) -> Result<(), RunEnd> {
    for _ in 0..1_000 {
        if is_so() {
            return Ok(());
        }
        let turn = work::Turn::begin();
        let step = run.take_turn(Waker::noop(), now);
        drop(turn);
        step?;
    }
    panic!("timed out");
}

impl Brokers {
    /// The queue as for a run, while no other run is started.
    async fn moving(&self) -> MovingQueue {
        let all = Arc::clone(&self.context.permits).acquire_many_owned(AT_ONCE as u32).await.unwrap();
        let context = Arc::clone(&self.context);
        let vhost = context.broker.vhost("/").unwrap();
        MovingQueue { context, vhost, queue: Arc::clone(&self.here), _permit: all }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_so_that_other_queues_have_their_turns() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    let moving = brokers.moving().await;
    fill(&brokers.here, 10_000);
    let mut run = OutgoingMove::new(&moving, moving.connect().await.unwrap());
    run.begin();
    let now = transport::now();
    assert_eq!(turns(&mut run, now, || brokers.there.message_count() > 0), Ok(()));
    assert_eq!(turns(&mut run, now + MAX_RUN, || false), Err(RunEnd::Limited));
    let (here, there) = (brokers.here.message_count(), brokers.there.message_count());
    assert!(here > 0 && here + there == 10_000, "{here} and {there}");
    assert_eq!(brokers.here.unacked_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_on_the_way_in_ends_with_all_that_has_been_delivered() {
    let brokers = Brokers::new(MoveDirection::In, &FieldTable::new());
    let moving = brokers.moving().await;
    Brokers::publish(&brokers.upstream.vhost(), "guest", 0..10_000, amqp::properties::NO_PROPERTIES);
    let mut run = IncomingMove::new(&moving, moving.connect().await.unwrap());
    run.begin();
    let now = transport::now();
    assert_eq!(turns(&mut run, now, || brokers.here.message_count() > 0), Ok(()));
    assert_eq!(turns(&mut run, now + MAX_RUN, || false), Err(RunEnd::Limited));
    let (here, there) = (brokers.here.message_count(), brokers.there.message_count());
    assert!(there > 0 && here + there == 10_000, "{here} and {there}");
    assert_eq!(brokers.there.unacked_count(), 0, "none returns to its queue as failed");
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_at_once_and_ends_a_refusal() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    let vhost = brokers.context.broker.vhost("/").unwrap();
    let mut signed = Vec::new();
    Properties::default().with_user_id("guest").encode(&mut signed);
    Brokers::publish(&vhost, "guest", 0..1, &signed);
    until(|| {
        brokers.here.message_count() == 1 && brokers.context.progress.all(&brokers.context.broker).len() == 1
    })
    .await;
    pass(LONG / 10).await;
    assert_eq!(brokers.shown().state, MovedQueueState::Refused);
    brokers.context.progress.retry();
    assert_eq!(brokers.shown().state, MovedQueueState::Waiting, "the new state is not known yet");
    brokers.context.retried.notify_one();
    pass(MIN_SURVEY_PAUSE / 2).await;
    assert_eq!(brokers.shown().state, MovedQueueState::Refused, "and again");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_here_costs_no_message_its_deliveries() {
    let limits = [("x-max-length", FieldValue::I64(10)), ("x-overflow", FieldValue::text("reject-publish"))];
    let limits = limits.into_iter().collect::<FieldTable>().encode();
    let there = [("x-queue-type", FieldValue::text("quorum")), ("x-delivery-limit", FieldValue::I64(2))];
    let brokers = Brokers::with(MoveDirection::In, &with_arguments(&limits), &there.into_iter().collect());
    Brokers::publish(&brokers.upstream.vhost(), "guest", 0..105, amqp::properties::NO_PROPERTIES);
    let mut taken = Vec::new();
    for _ in 0..11 {
        pass(LONG).await;
        taken.extend(take(&brokers.here));
    }
    assert_eq!(taken, numbers(0..105));
    assert_eq!((brokers.there.message_count(), brokers.there.unacked_count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_during_an_alarm() {
    let brokers = Brokers::new(MoveDirection::In, &FieldTable::new());
    brokers.context.alarms.raise(crate::Resource::Memory);
    Brokers::publish(&brokers.upstream.vhost(), "guest", 0..50, amqp::properties::NO_PROPERTIES);
    pass(10 * LONG).await;
    assert_eq!(brokers.here.message_count(), 0);
    brokers.context.alarms.clear(crate::Resource::Memory);
    pass(LONG).await;
    assert_eq!(take(&brokers.here), numbers(0..50));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_that_makes_dead_letters_is_not_tried_again_and_again() {
    let limits = [
        ("x-max-length", FieldValue::I64(10)),
        ("x-overflow", FieldValue::text("reject-publish-dlx")),
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    let limits: FieldTable = limits.into_iter().collect();
    let encoded = limits.encode();
    let brokers = Brokers::with(MoveDirection::Out, &with_arguments(&encoded), &limits);
    let declare = QueueDeclare { name: "dead", ..QueueDeclare::default() };
    let vhost = brokers.upstream.vhost();
    let dead = vhost.declare_queue(SessionId(77), &declare, Timestamp::default()).unwrap().queue;
    Brokers::publish(&vhost, "guest", 100..110, amqp::properties::NO_PROPERTIES);
    brokers.publish_here(0..10);
    pass(LONG).await;
    let shown = brokers.shown();
    assert_eq!((shown.state, shown.moved), (MovedQueueState::Refused, 0));
    assert_eq!((dead.message_count(), brokers.here.message_count()), (10, 10), "one attempt");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_costs_the_connection_is_found() {
    let brokers = Brokers::new(MoveDirection::Out, &FieldTable::new());
    brokers.upstream.closes_for("poison", amqp::Fault::new(amqp::ReplyCode::FrameError, "too large"));
    brokers.publish_here(0..50);
    let poison = ForeignMessage::new("", "poison", amqp::properties::NO_PROPERTIES, b"50").unwrap();
    brokers.here.take_in(vec![poison], Timestamp(1));
    brokers.publish_here(51..60);
    pass(LONG).await;
    let shown = brokers.shown();
    assert_eq!((shown.state, shown.moved), (MovedQueueState::Refused, 50));
    assert_eq!(take(&brokers.here), numbers(50..60));
    let mut arrived = take(&brokers.there);
    let mut seen = std::collections::HashSet::new();
    arrived.retain(|number| seen.insert(number.clone()));
    assert_eq!(arrived, numbers(0..50));
}
