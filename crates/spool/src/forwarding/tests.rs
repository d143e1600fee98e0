//! The rules one by one; `simulation` plays them together.

mod simulation;

use std::time::Duration;

use super::*;
use crate::deferred::MIN_PAUSE;
use crate::envelope::SpooledMessage;
use crate::suspicions::REFUSAL_HOLDS;

use self::ForwardingChannel::{Careful, Fast};

const LIMITS: ForwardingLimits = ForwardingLimits {
    window: 16,
    window_bytes: 1 << 20,
    deferred: 1_000,
    deferred_bytes: 1 << 20,
    backlogs: 2,
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
    next: u64,
}

impl Bench {
    fn new(exchanges: &[&str]) -> Self {
        Self::with(LIMITS, exchanges)
    }

    fn with(limits: ForwardingLimits, exchanges: &[&str]) -> Self {
        let mut bench = Self { forwarding: Forwarding::new(limits), now: Instant::now(), next: 0 };
        bench.forwarding.opened(Fast);
        bench.forwarding.opened(Careful);
        exchanges.iter().for_each(|exchange| bench.read(exchange));
        bench
    }

    fn read(&mut self, exchange: &str) {
        self.forwarding.read(envelope(exchange, "k", self.next), self.next);
        self.next += 1;
    }

    fn published_on(&mut self, channel: ForwardingChannel) -> Vec<u64> {
        std::iter::from_fn(|| self.forwarding.poll_publish(channel, self.now)).map(|sent| number_of(&sent)).collect()
    }

    fn published(&mut self) -> Vec<u64> {
        self.published_on(Fast)
    }

    fn acked(&mut self, delivery_tag: u64, multiple: bool) {
        self.forwarding.acked(Fast, delivery_tag, multiple, self.now);
    }

    fn nacked(&mut self, delivery_tag: u64, multiple: bool) {
        self.forwarding.nacked(Fast, delivery_tag, multiple, self.now);
    }

    fn refuse(&mut self, channel: ForwardingChannel, refusal: MessageRefusal) {
        self.forwarding.refused(channel, refusal, self.now);
        self.forwarding.opened(channel);
    }

    /// Those that were forwarded, and those that were parked; the others are ignored.
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

    /// Those that are to move to a backlog, with its name.
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
fn a_named_exchange_costs_the_others_one_more_attempt() {
    let mut bench = Bench::new(&["a", "b", "a", "gone", "a", "gone", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4, 5, 6]);
    bench.refuse(Fast, no_exchange("gone"));
    assert_eq!(bench.published(), [0, 1, 2, 4, 6], "those of the suspicious exchange are set apart");
    assert_eq!(bench.published_on(Careful), [3], "alone");
    bench.refuse(Careful, no_exchange("gone"));
    assert_eq!(bench.published_on(Careful), [], "the refusal is known");
    bench.acked(0, true);
    assert_eq!(bench.settled(), (vec![0, 1, 2, 4, 6], vec![3, 5]));
    assert_eq!(bench.forwarding.deferred(), 0);
}

#[test]
fn a_refusal_is_asked_for_again_after_a_second() {
    let mut bench = Bench::new(&["gone"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, no_exchange("gone"));
    bench.now += REFUSAL_HOLDS;
    bench.read("gone");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    bench.forwarding.acked(Careful, 1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_refusal_can_be_forgotten() {
    let mut bench = Bench::new(&["gone"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, no_exchange("gone"));
    bench.forwarding.forget_refusals();
    bench.read("gone");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    bench.forwarding.acked(Careful, 1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_culprit_without_a_name_is_found_by_halves() {
    let mut bench = Bench::new(&["a"; 16]);
    let culprit = 11;
    let mut attempts = 0;
    let mut done = (Vec::new(), Vec::new());
    loop {
        let sent: Vec<_> = [Fast, Careful].map(|channel| bench.published_on(channel)).concat();
        attempts += sent.len();
        if sent.is_empty() {
            break;
        }
        for channel in [Fast, Careful] {
            if sent.contains(&culprit) && bench.forwarding.in_flight_on(channel) > 0 {
                bench.refuse(channel, too_large());
            } else {
                bench.forwarding.acked(channel, 0, true, bench.now);
            }
        }
        let (forwarded, parked) = bench.settled();
        done.0.extend(forwarded);
        done.1.extend(parked);
    }
    assert_eq!(done.1, [culprit]);
    assert_eq!(done.0, (0..16).filter(|number| *number != culprit).collect::<Vec<_>>());
    assert!(attempts < 60, "{attempts}");
}

/// 10,000 messages of four exchanges, of which every tenth is refused without a name: each of these costs only itself, but for
/// what is in flight when its exchange becomes suspicious.
#[test]
fn a_thousand_poison_messages_cost_hardly_more_than_themselves() {
    let total: u64 = 10_000;
    let limits = ForwardingLimits { window: 2_000, ..LIMITS };
    let mut bench = Bench::with(limits, &[]);
    let exchange_of = |number: u64| if number % 10 == 7 { "poisoned" } else { ["a", "b", "c"][number as usize % 3] };
    let (mut published, mut done, mut parked) = (0, 0, 0);
    while done + parked < total {
        let mut sent = Vec::new();
        loop {
            if let Some(envelope) = bench.forwarding.poll_publish(Fast, bench.now) {
                sent.push(envelope);
            } else if bench.next < total && bench.forwarding.wants_more() {
                bench.read(exchange_of(bench.next));
            } else {
                break;
            }
        }
        let careful: Vec<_> = std::iter::from_fn(|| bench.forwarding.poll_publish(Careful, bench.now)).collect();
        published += (sent.len() + careful.len()) as u64;
        for (channel, sent) in [(Fast, sent), (Careful, careful)] {
            if sent.iter().any(|envelope| envelope.exchange() == "poisoned") {
                bench.refuse(channel, too_large());
            } else {
                bench.forwarding.acked(channel, 0, true, bench.now);
            }
        }
        while let Some(settled) = bench.forwarding.poll_settled() {
            match settled {
                Settled::Forwarded(_) => done += 1,
                Settled::Parked(..) => parked += 1,
                Settled::Deferred(backlog, number) => bench.forwarding.loaded(
                    backlog,
                    envelope(exchange_of(number), "k", number),
                    number,
                ),
                _ => {}
            }
        }
        bench.now += MIN_PAUSE;
    }
    assert_eq!((done, parked), (9_000, 1_000));
    let again = published - total;
    assert!(again <= 2 * limits.window as u64 + 100, "{again} messages were published again");
}

#[test]
fn a_suspicion_ends_with_confirms() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, too_large());
    let mut careful = 0;
    loop {
        bench.read("a");
        if !bench.published().is_empty() {
            break;
        }
        careful += bench.published_on(Careful).len();
        bench.forwarding.acked(Careful, 0, true, bench.now);
    }
    assert_eq!(careful, 256);
}

#[test]
fn a_full_destination_waits_alone_and_in_order() {
    let mut bench = Bench::new(&["full", "a", "full", "a", "full"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4]);
    bench.nacked(1, false);
    bench.acked(2, false);
    bench.nacked(3, false);
    bench.acked(4, false);
    bench.nacked(5, false);
    assert_eq!((bench.forwarding.deferred(), bench.settled()), (3, (vec![1, 3], vec![])));
    ["full", "a", "full"].into_iter().for_each(|exchange| bench.read(exchange));
    assert_eq!(bench.published(), [6], "others go on");
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [0], "one is tried");
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
    assert_eq!(bench.published(), [8], "nothing is remembered");
}

#[test]
fn after_a_nack_nothing_of_its_destination_is_tried_until_all_are_answered_and_the_pause_is_over() {
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

#[test]
fn too_many_messages_for_a_full_destination_move_to_its_backlog_and_come_back_in_order() {
    let limits = ForwardingLimits { deferred: 4, ..LIMITS };
    let mut bench = Bench::with(limits, &["full"; 6]);
    assert_eq!(bench.published().len(), 6);
    bench.nacked(5, true);
    assert_eq!(bench.moved(), [], "one that is in flight may come back before those behind it");
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
    assert_eq!(emptied.filter(|settled| matches!(settled, Settled::Emptied(of) if *of == backlog)).count(), 1);
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
fn a_loss_releases_all_of_them() {
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
    assert_eq!((bench.forwarding.bytes(), bench.forwarding.in_flight(), bench.forwarding.oldest()), (0, 0, None));
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

/// The connection is closed whenever `culprit` is published. Returns the number of connections until it was parked.
fn connections_until_parked(code: u16, culprit: u64) -> Option<u32> {
    let close = MessageRefusal { code, text: "the end".into() };
    let mut forwarding = Forwarding::new(LIMITS);
    let mut ready: VecDeque<u64> = (0..16).collect();
    for connection in 1..50 {
        forwarding.opened(Fast);
        let mut is_closed = false;
        while !is_closed && (!ready.is_empty() || forwarding.in_flight() > 0) {
            while forwarding.wants_more()
                && let Some(number) = ready.pop_front()
            {
                forwarding.read(envelope("a", "k", number), number);
                while let Some(sent) = forwarding.poll_publish(Fast, Instant::now()) {
                    is_closed |= number_of(&sent) == culprit;
                }
            }
            if !is_closed {
                forwarding.acked(Fast, 0, true, Instant::now());
            }
        }
        let mut released = Vec::new();
        forwarding.lost(is_closed.then(|| close.clone()));
        while let Some(settled) = forwarding.poll_settled() {
            match settled {
                Settled::Parked(_, number, _) => {
                    assert_eq!(number, culprit);
                    return Some(connection);
                }
                Settled::Released(number) => released.push(number),
                _ => {}
            }
        }
        released.sort_unstable();
        released.into_iter().rev().for_each(|number| ready.push_front(number));
    }
    None
}

#[test]
fn a_message_that_costs_the_connection_is_found_and_parked() {
    assert!(connections_until_parked(501, 11).is_some_and(|connections| connections <= 12));
    assert!(connections_until_parked(504, 11).is_some_and(|connections| connections <= 15));
}

#[test]
fn an_upstream_that_shuts_down_or_refuses_the_login_parks_nothing() {
    for code in [320, 403, 506, 530, 541] {
        assert_eq!(connections_until_parked(code, 11), None);
    }
}

#[test]
fn a_destination_with_room_again_leaves_room_for_others() {
    let mut bench = Bench::with(ForwardingLimits { window: 8, ..LIMITS }, &["full"; 8]);
    assert_eq!(bench.published().len(), 8);
    bench.nacked(8, true);
    bench.now += MIN_PAUSE;
    assert_eq!(bench.published().len(), 1);
    bench.acked(0, true);
    for _ in 0..200 {
        bench.read("full");
    }
    assert_eq!(bench.published().len(), 2, "all others are in line");
    for _ in 0..4 {
        bench.acked(0, true);
        assert!(bench.published().len() <= 6);
    }
    assert!(bench.forwarding.wants_more());
}
