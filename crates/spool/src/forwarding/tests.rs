//! A broker that fails on purpose, under thousands of seeds.

use std::collections::{BTreeMap, BTreeSet};

use mutations::Random;

use super::*;
use crate::envelope::SpooledMessage;
use crate::held::MIN_PAUSE;

const LIMITS: ForwardingLimits =
    ForwardingLimits { window: 16, window_bytes: 1 << 20, held: 40, held_bytes: 1 << 20 };

fn envelope(exchange: &str, routing_key: &str, number: u64) -> Envelope {
    let message = SpooledMessage {
        vhost: "/",
        user: "guest",
        exchange,
        routing_key,
        accepted_at: number,
        id: [0; 16],
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

/// Reads `count` messages, whose exchange is named by `exchange`, and publishes what may be.
struct Bench {
    forwarding: Forwarding<u64>,
    now: Instant,
}

impl Bench {
    fn new(exchanges: &[&str]) -> Self {
        Self::with(ForwardingLimits { held: 1000, ..LIMITS }, exchanges)
    }

    fn with(limits: ForwardingLimits, exchanges: &[&str]) -> Self {
        let mut forwarding = Forwarding::new(limits);
        forwarding.opened();
        for (number, exchange) in exchanges.iter().enumerate() {
            forwarding.read(envelope(exchange, "k", number as u64), number as u64);
        }
        Self { forwarding, now: Instant::now() }
    }

    fn published(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.forwarding.poll_publish(self.now)).map(|sent| number_of(&sent)).collect()
    }

    fn settled(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut forwarded, mut parked) = (Vec::new(), Vec::new());
        while let Some(settled) = self.forwarding.poll_settled() {
            match settled {
                Settled::Forwarded(number) => forwarded.push(number),
                Settled::Parked(_, number, _) => parked.push(number),
            }
        }
        (forwarded, parked)
    }

    fn refuse(&mut self, refusal: MessageRefusal) {
        self.forwarding.refused(refusal, self.now);
        self.forwarding.opened();
    }
}

#[test]
fn the_named_exchange_costs_one_more_attempt_of_those_before_it() {
    let mut bench = Bench::new(&["a", "b", "a", "gone", "a", "gone", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4, 5, 6]);
    bench.refuse(no_exchange("gone"));
    assert_eq!(bench.published(), [0, 1, 2], "the suspect waits for them");
    bench.forwarding.acked(3, true, bench.now);
    assert_eq!(bench.published(), [3], "alone");
    bench.refuse(no_exchange("gone"));
    assert_eq!(bench.published(), [4, 6], "and the next for that exchange is known");
    bench.forwarding.acked(2, true, bench.now);
    assert_eq!(bench.settled(), (vec![0, 1, 2, 4, 6], vec![3, 5]));
}

#[test]
fn a_refusal_is_asked_for_again_after_a_second() {
    let mut bench = Bench::new(&["gone"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(no_exchange("gone"));
    bench.now += REFUSAL_HOLDS;
    bench.forwarding.read(envelope("gone", "k", 1), 1);
    assert_eq!(bench.published(), [1]);
    bench.forwarding.acked(1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_refusal_can_be_forgotten() {
    let mut bench = Bench::new(&["gone", "gone"]);
    assert_eq!(bench.published(), [0, 1]);
    bench.refuse(no_exchange("gone"));
    assert_eq!(bench.published(), [0]);
    bench.refuse(no_exchange("gone"));
    bench.forwarding.forget_refusals();
    assert_eq!(bench.published(), [1]);
    bench.forwarding.acked(1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_culprit_without_a_name_is_found_by_halves() {
    let mut bench = Bench::new(&["a"; 16]);
    let culprit = 11;
    let mut attempts = 0;
    let mut done = (Vec::new(), Vec::new());
    loop {
        let sent = bench.published();
        attempts += sent.len();
        if sent.is_empty() {
            break;
        }
        if sent.contains(&culprit) {
            bench.refuse(MessageRefusal { code: 406, text: "PRECONDITION_FAILED - message size".into() });
        } else {
            bench.forwarding.acked(0, true, bench.now);
        }
        let (forwarded, parked) = bench.settled();
        done.0.extend(forwarded);
        done.1.extend(parked);
    }
    assert_eq!(done.1, [culprit]);
    assert_eq!(done.0, (0..16).filter(|number| *number != culprit).collect::<Vec<_>>());
    assert!(attempts < 60, "{attempts}");
}

#[test]
fn a_full_destination_waits_alone_and_in_order() {
    let mut bench = Bench::new(&["full", "a", "full", "a", "full"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4]);
    bench.forwarding.nacked(1, false, bench.now);
    bench.forwarding.acked(2, false, bench.now);
    bench.forwarding.nacked(3, false, bench.now);
    bench.forwarding.acked(4, false, bench.now);
    bench.forwarding.nacked(5, false, bench.now);
    assert_eq!((bench.forwarding.held(), bench.settled()), (3, (vec![1, 3], vec![])));
    for number in 5..8 {
        bench.forwarding.read(envelope(if number == 6 { "a" } else { "full" }, "k", number), number);
    }
    assert_eq!(bench.published(), [6], "others go on");
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [0], "one is tried");
    bench.forwarding.nacked(7, false, bench.now);
    assert_eq!(bench.published(), []);
    let pause = bench.forwarding.next_deadline().unwrap() - bench.now;
    assert_eq!(pause, Duration::from_millis(200));
    bench.now += pause;
    assert_eq!(bench.published(), [0]);
    bench.forwarding.acked(8, false, bench.now);
    assert_eq!(bench.published(), [2, 4], "two at once");
    bench.forwarding.acked(10, true, bench.now);
    assert_eq!(bench.published(), [5, 7]);
    bench.forwarding.acked(0, true, bench.now);
    assert_eq!((bench.forwarding.held(), bench.forwarding.in_flight()), (0, 0));
    bench.forwarding.read(envelope("full", "k", 8), 8);
    assert_eq!(bench.published(), [8], "nothing is remembered");
}

#[test]
fn a_batch_ends_with_the_first_nack() {
    let limits = ForwardingLimits { window: 2, held: 1000, ..LIMITS };
    let mut bench = Bench::with(limits, &["full"; 8]);
    assert_eq!(bench.published(), [0, 1]);
    bench.forwarding.nacked(2, true, bench.now);
    assert_eq!(bench.published(), [], "those behind them wait as well");
    bench.now += MIN_PAUSE;
    assert_eq!(bench.published(), [0]);
    bench.forwarding.acked(3, false, bench.now);
    assert_eq!(bench.published(), [1, 2]);
    bench.forwarding.acked(5, true, bench.now);
    assert_eq!(bench.published(), [3, 4], "a batch of four, of which two have room");
    bench.forwarding.nacked(6, false, bench.now);
    assert_eq!(bench.published(), [], "neither the next of the batch nor the same one at once");
    bench.forwarding.acked(7, false, bench.now);
    bench.now = bench.forwarding.next_deadline().unwrap();
    assert_eq!(bench.published(), [3]);
    bench.forwarding.acked(8, false, bench.now);
    assert_eq!(bench.published(), [5, 6]);
}

#[test]
fn after_a_loss_all_are_published_again_in_order() {
    let mut bench = Bench::new(&["a", "b", "a", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3]);
    bench.forwarding.acked(2, false, bench.now);
    bench.forwarding.lost(bench.now);
    assert_eq!(bench.published(), [], "without a channel");
    bench.forwarding.opened();
    assert_eq!(bench.published(), [0, 2, 3]);
    bench.forwarding.acked(3, true, bench.now);
    assert_eq!(bench.settled(), (vec![1, 0, 2, 3], vec![]));
}

#[test]
fn only_the_first_message_is_read_without_a_channel() {
    let mut forwarding = Forwarding::new(LIMITS);
    assert!(forwarding.wants_more());
    forwarding.read(envelope("a", "k", 7), 7);
    assert!(!forwarding.wants_more());
    assert_eq!((forwarding.oldest(), forwarding.poll_publish(Instant::now())), (Some(7), None));
    assert_eq!(forwarding.into_unsettled().collect::<Vec<_>>(), [7]);
}

/// A broker that processes messages in order, and confirms, nacks, refuses and vanishes as the dice say.
struct Broker {
    random: Random,
    /// Unanswered messages of the channel, with their tags.
    received: VecDeque<(u64, Envelope)>,
    tag: u64,
    full: BTreeSet<String>,
    /// All messages that it has taken, in order, by exchange.
    taken: BTreeMap<String, Vec<u64>>,
    nacks: bool,
    losses: u64,
}

const EXCHANGES: [&str; 5] = ["one", "two", "three", "gone", "large"];

impl Broker {
    fn refusal(exchange: &str) -> Option<MessageRefusal> {
        match exchange {
            "gone" => Some(no_exchange("gone")),
            "large" => Some(MessageRefusal { code: 406, text: "PRECONDITION_FAILED - too large".into() }),
            _ => None,
        }
    }
}

fn play(seed: u64, nacks: bool) {
    let random = Random::new(seed);
    let (received, full, taken) = Default::default();
    let mut broker = Broker { random, received, tag: 0, full, taken, nacks, losses: 0 };
    let mut forwarding = Forwarding::new(LIMITS);
    let mut now = Instant::now();
    let (mut read, total) = (0, 120);
    let (mut forwarded, mut parked) = (BTreeSet::new(), BTreeSet::new());
    let mut exchange_of = Vec::new();
    forwarding.opened();
    for step in 0.. {
        assert!(step < 100_000, "seed {seed}: it does not end");
        let calm = step > 2000;
        if calm {
            broker.full.clear();
        }
        match broker.random.below(10) {
            0..4 => {
                while read < total && forwarding.wants_more() && broker.random.below(4) > 0 {
                    let exchange = EXCHANGES[broker.random.below(5)];
                    exchange_of.push(exchange);
                    forwarding.read(envelope(exchange, "k", read), read);
                    read += 1;
                }
                while let Some(envelope) = forwarding.poll_publish(now) {
                    broker.tag += 1;
                    broker.received.push_back((broker.tag, envelope));
                    assert!(forwarding.in_flight() <= LIMITS.window);
                }
            }
            4..8 => answer(&mut broker, &mut forwarding, now),
            8 if broker.random.below(8) == 0 && !calm => {
                broker.losses += 1;
                forwarding.lost(now);
                // Some had arrived.
                for _ in 0..broker.random.below(broker.received.len() + 1) {
                    let Some((_, sent)) = broker.received.pop_front() else { break };
                    if Broker::refusal(sent.exchange()).is_some() {
                        break;
                    }
                    broker.taken.entry(sent.exchange().into()).or_default().push(number_of(&sent));
                }
                (broker.received, broker.tag) = Default::default();
                forwarding.opened();
            }
            8 if broker.nacks && broker.random.below(4) == 0 => {
                let exchange = EXCHANGES[broker.random.below(3)].to_owned();
                if !broker.full.remove(&exchange) {
                    broker.full.insert(exchange);
                }
            }
            _ => now += Duration::from_millis(broker.random.below(100) as u64),
        }
        while let Some(settled) = forwarding.poll_settled() {
            let is_first = match settled {
                Settled::Forwarded(number) => forwarded.insert(number),
                Settled::Parked(_, number, _) => parked.insert(number),
            };
            assert!(is_first, "seed {seed}: settled twice");
        }
        if (forwarded.len() + parked.len()) as u64 == total {
            break;
        }
    }
    assert_eq!((forwarding.in_flight(), forwarding.held(), forwarding.oldest()), (0, 0, None));
    check_outcome(seed, nacks, &exchange_of, &parked, &broker.taken);
}

/// All messages that were read for an exchange have arrived there in order, or were parked if it refuses them.
fn check_outcome(
    seed: u64,
    nacks: bool,
    exchange_of: &[&str],
    parked: &BTreeSet<u64>,
    taken: &BTreeMap<String, Vec<u64>>,
) {
    for (number, exchange) in exchange_of.iter().enumerate() {
        let is_refused = Broker::refusal(exchange).is_some();
        assert_eq!(parked.contains(&(number as u64)), is_refused, "seed {seed}: {number} for {exchange}");
    }
    for (exchange, taken) in taken {
        let mut seen = BTreeSet::new();
        let firsts: Vec<_> = taken.iter().filter(|number| seen.insert(**number)).collect();
        // A nack between messages in flight lets later ones pass.
        assert!(nacks || firsts.is_sorted(), "seed {seed}: {exchange}: {taken:?}");
        let expected = exchange_of.iter().filter(|of| *of == exchange).count();
        assert_eq!(firsts.len(), expected, "seed {seed}: {exchange}");
    }
}

/// Handles some messages, and answers them together, one by one, or not at all yet.
fn answer(broker: &mut Broker, forwarding: &mut Forwarding<u64>, now: Instant) {
    let count = broker.random.below(broker.received.len() + 1);
    let (mut acks, mut nacks) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let Some((tag, sent)) = broker.received.pop_front() else { break };
        if let Some(refusal) = Broker::refusal(sent.exchange()) {
            // Confirms that it owes are lost with the channel.
            if broker.random.below(2) == 0 {
                acks.iter().for_each(|tag| forwarding.acked(*tag, false, now));
                nacks.iter().for_each(|tag| forwarding.nacked(*tag, false, now));
            }
            (broker.received, broker.tag) = Default::default();
            forwarding.refused(refusal, now);
            forwarding.opened();
            return;
        }
        if broker.full.contains(sent.exchange()) {
            nacks.push(tag);
        } else {
            broker.taken.entry(sent.exchange().into()).or_default().push(number_of(&sent));
            acks.push(tag);
        }
    }
    if nacks.is_empty() && broker.random.below(2) == 0 {
        acks.last().into_iter().for_each(|tag| forwarding.acked(*tag, true, now));
    } else {
        acks.iter().rev().for_each(|tag| forwarding.acked(*tag, false, now));
        nacks.iter().for_each(|tag| forwarding.nacked(*tag, false, now));
    }
}

#[test]
fn nothing_is_lost_and_order_is_kept_whatever_the_broker_does() {
    (1..3000).for_each(|seed| play(seed, false));
}

#[test]
fn nothing_is_lost_when_queues_are_full() {
    (1..500).for_each(|seed| play(seed, true));
}
