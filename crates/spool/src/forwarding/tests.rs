//! The rules for full destinations, one by one; those for refused messages are in `refusals`, those for destinations without an
//! answer in `silent`. `simulation` combines all of them.

mod refusals;
mod silent;
mod simulation;

use std::time::Duration;

use super::*;
use crate::deferred::MIN_PAUSE;
use crate::envelope::SpooledMessage;

use self::ForwardingChannel::{Careful, Fast};

const LIMITS: ForwardingLimits = ForwardingLimits {
    window: 16,
    window_bytes: 1 << 20,
    deferred: 1_000,
    deferred_bytes: 1 << 20,
    backlogs: 2,
    nacked_max: None,
};

fn envelope(exchange: &str, routing_key: &str, number: u64) -> Envelope {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    let message = SpooledMessage {
        vhost: "/",
        user: "guest",
        exchange,
        routing_key,
        accepted_at: number,
        id,
        properties: &[0, 0],
        body: &number.to_be_bytes(),
    };
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    Envelope::decode(bytes.into()).unwrap()
}

fn number_of(envelope: &Envelope) -> u64 {
    u64::from_be_bytes(envelope.body().try_into().unwrap())
}

fn no_exchange(name: &str) -> MessageRefusal {
    MessageRefusal { code: 404, text: format!("NOT_FOUND - no exchange '{name}' in vhost '/'") }
}

fn too_large() -> MessageRefusal {
    MessageRefusal { code: 406, text: "PRECONDITION_FAILED - message size 9 is larger than 8".into() }
}

/// Messages whose exchange is given, and whose numbers are their handles.
struct Bench {
    forwarding: Forwarding<u64>,
    now: Instant,
    /// The same in milliseconds since 1970. The acceptance time of a message is its number.
    at: u64,
    next: u64,
}

impl Bench {
    fn new(exchanges: &[&str]) -> Self {
        Self::with(LIMITS, exchanges)
    }

    fn with(limits: ForwardingLimits, exchanges: &[&str]) -> Self {
        let mut bench = Self { forwarding: Forwarding::new(limits), now: Instant::now(), at: 0, next: 0 };
        bench.forwarding.opened(Fast);
        bench.forwarding.opened(Careful);
        exchanges.iter().for_each(|exchange| bench.read(exchange));
        bench
    }

    /// After the first confirm, two messages may be in flight on the careful channel.
    fn with_confirms_to_clear(confirms_to_clear: u32) -> Self {
        let mut bench = Self::new(&[]);
        let caution = Caution { confirms_to_clear, confirms_to_grow: 1 };
        bench.forwarding = Forwarding::with_caution(LIMITS, caution);
        [Fast, Careful].into_iter().for_each(|channel| bench.forwarding.opened(channel));
        bench
    }

    fn read(&mut self, exchange: &str) {
        self.forwarding.read(envelope(exchange, "k", self.next), self.next);
        self.next += 1;
    }

    fn published_on(&mut self, channel: ForwardingChannel) -> Vec<u64> {
        std::iter::from_fn(|| self.forwarding.poll_publish(channel, self.now))
            .map(|sent| number_of(&sent))
            .collect()
    }

    fn published(&mut self) -> Vec<u64> {
        self.published_on(Fast)
    }

    fn acked(&mut self, delivery_tag: u64, multiple: bool) {
        self.forwarding.acked(Fast, delivery_tag, multiple, self.now);
    }

    fn nacked(&mut self, delivery_tag: u64, multiple: bool) {
        self.forwarding.nacked(Fast, delivery_tag, multiple, self.now, Some(self.at));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.at += time.as_millis() as u64;
    }

    fn refuse(&mut self, channel: ForwardingChannel, refusal: MessageRefusal) {
        self.forwarding.refused(channel, refusal, self.now);
        self.forwarding.opened(channel);
    }

    /// The numbers of the messages that were forwarded, and of those that were parked.
    fn settled(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut forwarded, mut parked) = (Vec::new(), Vec::new());
        while let Some(settled) = self.forwarding.poll_settled() {
            match settled {
                Settled::Forwarded(number) => forwarded.push(number),
                Settled::Parked(_, number, _) => parked.push(number),
                _ => {}
            }
        }
        (forwarded, parked)
    }

    /// The messages that are to move to a backlog, with the backlog's id.
    fn moved(&mut self) -> Vec<(u64, BacklogId)> {
        let forwarding = &mut self.forwarding;
        std::iter::from_fn(|| forwarding.poll_settled())
            .filter_map(|settled| match settled {
                Settled::Deferred(backlog, number) => Some((number, backlog)),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn a_full_destination_delays_only_its_own_messages_in_order() {
    let mut bench = Bench::new(&["full", "a", "full", "a", "full"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4]);
    bench.nacked(1, false);
    bench.acked(2, false);
    bench.nacked(3, false);
    bench.acked(4, false);
    bench.nacked(5, false);
    assert_eq!((bench.forwarding.deferred(), bench.settled()), (3, (vec![1, 3], vec![])));
    ["full", "a", "full"].into_iter().for_each(|exchange| bench.read(exchange));
    assert_eq!(bench.published(), [6], "other destinations continue");
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [0], "one attempt");
    bench.nacked(7, false);
    assert_eq!(bench.published(), []);
    let pause = bench.forwarding.next_deadline().unwrap() - bench.now;
    assert_eq!(pause, Duration::from_millis(200));
    bench.now += pause;
    assert_eq!(bench.published(), [0]);
    bench.acked(8, false);
    assert_eq!(bench.published(), [2, 4], "two at once");
    bench.acked(9, false);
    assert_eq!(bench.published(), [5, 7], "and one more for each confirm");
    bench.acked(0, true);
    assert_eq!((bench.forwarding.deferred(), bench.forwarding.in_flight()), (0, 0));
    bench.read("full");
    assert_eq!(bench.published(), [8], "the destination has no backoff any more");
}

#[test]
fn after_a_nack_its_destination_waits_until_all_in_flight_are_answered_and_the_pause_is_over() {
    let mut bench = Bench::with(ForwardingLimits { window: 8, ..LIMITS }, &["full"; 8]);
    assert_eq!(bench.published().len(), 8);
    bench.nacked(8, true);
    bench.now += MIN_PAUSE;
    assert_eq!(bench.published(), [0]);
    bench.acked(9, false);
    assert_eq!(bench.published(), [1, 2]);
    bench.nacked(10, false);
    assert_eq!(bench.published(), []);
    bench.acked(11, false);
    assert_eq!(bench.published(), []);
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [1]);
    bench.acked(12, false);
    assert_eq!(bench.published(), [3, 4]);
}

/// Nacks the message that is published at the end of each pause, until one is parked. Returns it and the number of attempts.
fn nack_until_parked(bench: &mut Bench, mut tag: u64) -> (u64, u64, u64) {
    for attempts in 1..1_000 {
        let end = bench.forwarding.next_deadline().unwrap();
        bench.pass(end - bench.now);
        assert_eq!(bench.published().len(), 1);
        bench.nacked(tag, false);
        tag += 1;
        if let [parked] = bench.settled().1[..] {
            return (parked, attempts, tag);
        }
    }
    panic!("nothing is parked");
}

#[test]
fn messages_nacked_too_long_are_parked_and_the_next_ones_are_attempted() {
    let max = Duration::from_secs(600);
    let mut bench = Bench::with(ForwardingLimits { nacked_max: Some(max), ..LIMITS }, &["full"; 3]);
    assert_eq!(bench.published(), [0, 1, 2]);
    bench.nacked(3, true);
    let begun = bench.now;
    let (parked, attempts, tag) = nack_until_parked(&mut bench, 4);
    assert_eq!(parked, 0);
    assert!((60..80).contains(&attempts) && bench.now - begun < max + Duration::from_secs(10), "{attempts}");
    assert_eq!(bench.published(), [1], "at once");
    bench.nacked(tag, false);
    assert_eq!((bench.settled().1, bench.published()), (vec![1], vec![2]));
    bench.nacked(tag + 1, false);
    assert_eq!((bench.settled().1, bench.forwarding.deferred()), (vec![2], 0));

    bench.next = bench.at;
    bench.read("full");
    assert_eq!(bench.published(), [bench.at]);
    bench.nacked(tag + 2, false);
    assert_eq!((bench.settled().1, bench.forwarding.deferred()), (vec![], 1), "it is not old enough");
    bench.pass(MIN_PAUSE);
    assert_eq!(bench.published().len(), 1);
    bench.acked(tag + 3, false);
    bench.pass(2 * max);
    bench.read("full");
    assert_eq!(bench.published().len(), 1);
    bench.nacked(tag + 4, false);
    assert_eq!((bench.settled().1, bench.forwarding.deferred()), (vec![], 1), "a confirm ends the count");
}

#[test]
fn unparkable_nacked_messages_wait_and_a_restart_keeps_their_nacked_time() {
    let max = Duration::from_secs(600);
    let mut bench = Bench::with(ForwardingLimits { nacked_max: Some(max), ..LIMITS }, &["full"]);
    assert_eq!(bench.published(), [0]);
    bench.nacked(1, false);
    let mut tag = 1;
    while bench.at < 2 * max.as_millis() as u64 {
        let end = bench.forwarding.next_deadline().unwrap();
        bench.pass(end - bench.now);
        assert_eq!(bench.published(), [0]);
        tag += 1;
        bench.forwarding.nacked(Fast, tag, false, bench.now, None);
    }
    assert_eq!(bench.settled(), (vec![], vec![]));
    bench.forwarding.lost(None);
    bench.settled();
    bench.forwarding = bench.forwarding.begin_anew();
    bench.forwarding.opened(Fast);
    bench.next = 0;
    bench.read("full");
    assert_eq!(bench.published(), [0]);
    bench.nacked(1, false);
    assert_eq!(bench.settled().1, [0]);
}

#[test]
fn nacked_messages_are_never_parked_without_a_limit() {
    let mut bench = Bench::new(&["full"]);
    assert_eq!(bench.published(), [0]);
    bench.nacked(1, false);
    for tag in 2..1_000 {
        let end = bench.forwarding.next_deadline().unwrap();
        bench.pass(end - bench.now);
        assert_eq!(bench.published(), [0]);
        bench.nacked(tag, false);
    }
    assert_eq!(bench.settled(), (vec![], vec![]));
}

#[test]
fn a_deadline_passes_also_while_nothing_can_be_published() {
    let mut bench = Bench::with(ForwardingLimits { window: 1, ..LIMITS }, &["full", "a"]);
    assert_eq!(bench.published(), [0]);
    bench.nacked(1, false);
    assert_eq!(bench.published(), [1]);
    bench.now = bench.forwarding.next_deadline().unwrap();
    bench.forwarding.handle_deadline(bench.now);
    assert_eq!((bench.forwarding.next_deadline(), bench.published()), (None, vec![]));
    bench.acked(2, false);
    assert_eq!(bench.published(), [0]);
}

#[test]
fn too_many_messages_for_a_full_destination_move_to_its_backlog_and_come_back_in_order() {
    let limits = ForwardingLimits { deferred: 4, ..LIMITS };
    let mut bench = Bench::with(limits, &["full"; 6]);
    assert_eq!(bench.published().len(), 6);
    bench.nacked(5, true);
    assert_eq!(bench.moved(), [], "a message in flight may return, and precedes those behind it");
    bench.nacked(6, false);
    let moved = bench.moved();
    let backlog = moved[0].1;
    assert_eq!(moved.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(
        bench.forwarding.backlog(backlog),
        Some(&BacklogName { exchange: "full".into(), routing_key: Some("k".into()) })
    );
    assert!(bench.forwarding.wants_more());
    bench.read("full");
    bench.read("a");
    assert_eq!(bench.published(), [7]);
    assert_eq!(bench.moved(), [(6, backlog)]);
    assert_eq!((bench.forwarding.deferred(), bench.forwarding.poll_load()), (7, None));
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), []);
    for number in 0..7 {
        assert_eq!(bench.forwarding.poll_load(), Some(backlog));
        bench.forwarding.loaded(backlog, envelope("full", "k", number), number);
        assert_eq!(bench.published(), [number]);
        bench.acked(0, true);
    }
    assert_eq!((bench.forwarding.poll_load(), bench.forwarding.deferred()), (None, 0));
    let emptied = std::iter::from_fn(|| bench.forwarding.poll_settled());
    assert_eq!(
        emptied.filter(|settled| matches!(settled, Settled::Emptied(of) if *of == backlog)).count(),
        1
    );
    bench.read("full");
    assert_eq!(bench.published(), [8]);
}

#[test]
fn a_restored_backlog_comes_before_the_main_queue() {
    let mut bench = Bench::new(&[]);
    let name = BacklogName { exchange: "full".into(), routing_key: None };
    let backlog = bench.forwarding.restore(name, 1);
    bench.next = 1;
    bench.read("full");
    bench.read("a");
    assert_eq!(bench.published(), [2]);
    assert_eq!(bench.moved(), [(1, backlog)]);
    bench.forwarding.loaded(backlog, envelope("full", "k", 0), 0);
    assert_eq!(bench.published(), [0]);
}

#[test]
fn the_loss_of_the_connection_releases_all_messages() {
    let mut bench = Bench::new(&["a", "b", "a", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3]);
    bench.nacked(2, false);
    assert!(!bench.forwarding.lost(None));
    let released = std::iter::from_fn(|| bench.forwarding.poll_settled());
    let mut released: Vec<_> = released
        .map(|settled| match settled {
            Settled::Released(number) => number,
            other => panic!("{other:?}"),
        })
        .collect();
    released.sort_unstable();
    assert_eq!(released, [0, 1, 2, 3]);
    assert_eq!(
        (bench.forwarding.bytes(), bench.forwarding.in_flight(), bench.forwarding.oldest()),
        (0, 0, None)
    );
    bench.read("a");
    assert_eq!(bench.published(), [], "without a channel");
}

#[test]
fn only_the_first_message_is_read_without_a_channel() {
    let mut forwarding = Forwarding::new(LIMITS);
    assert!(forwarding.wants_more());
    forwarding.read(envelope("a", "k", 7), 7);
    assert!(!forwarding.wants_more());
    assert_eq!((forwarding.oldest(), forwarding.poll_publish(Fast, Instant::now())), (Some(7), None));
}

#[test]
fn a_destination_with_capacity_again_leaves_memory_to_others() {
    let mut bench = Bench::with(ForwardingLimits { window: 8, ..LIMITS }, &["full"; 8]);
    assert_eq!(bench.published().len(), 8);
    bench.nacked(8, true);
    bench.now += MIN_PAUSE;
    assert_eq!(bench.published().len(), 1);
    bench.acked(0, true);
    for _ in 0..200 {
        bench.read("full");
    }
    assert_eq!(bench.published().len(), 2, "the others wait");
    for _ in 0..4 {
        bench.acked(0, true);
        assert!(bench.published().len() <= 6);
    }
    assert!(bench.forwarding.wants_more());
}

#[test]
fn the_memory_of_waiting_messages_is_freed_and_they_are_loaded_again_in_order() {
    let mut bench = Bench::new(&["full"; 3]);
    assert_eq!(bench.published(), [0, 1, 2]);
    bench.nacked(3, true);
    assert!(bench.forwarding.free_memory());
    let moved = bench.moved();
    let backlog = moved[0].1;
    assert_eq!(moved.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((bench.forwarding.bytes(), bench.forwarding.deferred()), (0, 3));
    assert!(!bench.forwarding.free_memory());
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), []);
    for number in 0..2 {
        assert_eq!(bench.forwarding.poll_load(), Some(backlog));
        bench.forwarding.loaded(backlog, envelope("full", "k", number), number);
    }
    assert!(!bench.forwarding.free_memory(), "these are about to be published");
    assert_eq!(bench.published(), [0]);
    bench.nacked(4, false);
    assert!(bench.forwarding.free_memory());
    let released = std::iter::from_fn(|| bench.forwarding.poll_settled());
    assert_eq!(released.filter(|settled| matches!(settled, Settled::Released(_))).count(), 2);
    assert_eq!((bench.forwarding.bytes(), bench.forwarding.poll_load()), (0, None), "not during the pause");
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), []);
    assert_eq!(bench.forwarding.poll_load(), Some(backlog));
    bench.forwarding.loaded(backlog, envelope("full", "k", 0), 0);
    assert_eq!(bench.published(), [0]);
}

#[test]
fn the_oldest_message_may_be_published_behind_newer_ones() {
    let mut bench = Bench::new(&["a", "full", "a"]);
    assert_eq!(bench.published(), [0, 1, 2]);
    bench.acked(1, false);
    bench.nacked(2, false);
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [1]);
    assert_eq!(bench.forwarding.oldest(), Some(1), "behind number 2");
    bench.acked(4, false);
    assert_eq!(bench.forwarding.oldest(), Some(2));
    bench.acked(3, false);
    assert_eq!(bench.forwarding.oldest(), None);
}

#[test]
fn messages_behind_ones_in_flight_stay_in_memory() {
    let mut bench = Bench::new(&[]);
    let name = BacklogName { exchange: "full".into(), routing_key: Some("k".into()) };
    let backlog = bench.forwarding.restore(name, 3);
    let load = |bench: &mut Bench, number| {
        assert_eq!(bench.forwarding.poll_load(), Some(backlog));
        bench.forwarding.loaded(backlog, envelope("full", "k", number), number);
    };
    load(&mut bench, 0);
    assert_eq!(bench.published(), [0]);
    bench.acked(1, false);
    load(&mut bench, 1);
    load(&mut bench, 2);
    assert_eq!(bench.published(), [1, 2]);
    bench.nacked(2, false);
    assert!(!bench.forwarding.free_memory(), "the later one may return");
    bench.nacked(3, false);
    assert!(bench.forwarding.free_memory());
    assert_eq!(bench.forwarding.oldest(), Some(1), "as old as before");
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), []);
    load(&mut bench, 1);
    assert_eq!(bench.published(), [1]);
}
