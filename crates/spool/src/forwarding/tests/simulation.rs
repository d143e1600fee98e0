//! Simulates a fault-injecting broker, and a process that is killed, with thousands of seeds.

use std::collections::{BTreeMap, BTreeSet};

use mutations::Random;

use super::*;

/// So small that messages move to backlogs, some of which are shared.
const SMALL: ForwardingLimits = ForwardingLimits {
    window: 16,
    window_bytes: 1 << 20,
    deferred: 10,
    deferred_bytes: 1 << 20,
    backlogs: 2,
    nacked_max: None,
};

const MESSAGES: u64 = 150;

/// Messages without a confirm with which the broker stops reading a connection.
const UNCONFIRMED_MAX: usize = 4;

/// The destinations of a simulation.
#[derive(Clone, Copy)]
struct Setting {
    exchanges: [&'static str; 5],
    keys: &'static [&'static str],
    caution: Caution,
    /// Whether queues stop confirming the messages that they accept.
    falls_silent: bool,
}

const USUAL: Setting = Setting {
    exchanges: ["one", "two", "mixed", "gone", "large"],
    keys: &["x", "y", "z"],
    caution: CAUTION,
    falls_silent: false,
};

const FALLING_SILENT: Setting = Setting { falls_silent: true, ..USUAL };

/// Nothing is refused.
const PLAIN: Setting =
    Setting { exchanges: ["one", "two", "three", "four", "five"], keys: &["x"], ..FALLING_SILENT };

/// Exchanges repeatedly become suspicious, even while messages of theirs are in flight.
const RELAPSING: Setting = Setting {
    exchanges: ["rare", "rare", "rare", "rare", "one"],
    keys: &["x", "y", "z", "u", "v", "w"],
    caution: Caution { confirms_to_clear: 2, confirms_to_grow: 1 },
    falls_silent: false,
};

/// A local queue: its messages by position, and those that have been fetched.
#[derive(Default)]
struct LocalQueue {
    messages: BTreeMap<u64, u64>,
    out: BTreeSet<u64>,
    next: u64,
}

impl LocalQueue {
    fn push(&mut self, number: u64) {
        self.messages.insert(self.next, number);
        self.next += 1;
    }

    fn fetch(&mut self) -> Option<(u64, u64)> {
        let (position, number) = self.messages.iter().find(|(position, _)| !self.out.contains(*position))?;
        let (position, number) = (*position, *number);
        self.out.insert(position);
        Some((position, number))
    }

    fn remove(&mut self, position: u64) -> u64 {
        assert!(self.out.remove(&position));
        self.messages.remove(&position).unwrap()
    }
}

/// A message, its queue, and its position there.
#[derive(Debug, Clone, Copy)]
struct Handle {
    backlog: Option<BacklogId>,
    position: u64,
    number: u64,
}

/// A broker that processes the messages of each channel in order.
#[derive(Default)]
struct Broker {
    /// Unanswered messages of the two channels, with their tags.
    received: [VecDeque<(u64, Envelope)>; 2],
    tags: [u64; 2],
    /// Messages that were ever published.
    published: u64,
    full: BTreeSet<String>,
    /// Destinations whose queues accept messages and confirm none.
    silent: BTreeSet<String>,
    /// The messages that those queues have accepted, with their channels and delivery tags.
    unconfirmed: Vec<(ForwardingChannel, u64, Envelope)>,
    /// All messages that it has accepted, in order, by destination.
    taken: BTreeMap<String, Vec<u64>>,
}

impl Broker {
    fn reads(&self) -> bool {
        self.unconfirmed.len() < UNCONFIRMED_MAX
    }

    fn take(&mut self, sent: &Envelope) {
        self.taken.entry(destination_of(sent)).or_default().push(number_of(sent));
    }
}

fn destination_of(envelope: &Envelope) -> String {
    format!("{}/{}", envelope.exchange(), envelope.routing_key())
}

fn refusal_of(envelope: &Envelope) -> Option<MessageRefusal> {
    match envelope.exchange() {
        "gone" => Some(no_exchange("gone")),
        "large" => Some(too_large()),
        "rare" if number_of(envelope) % 8 == 5 => Some(too_large()),
        "mixed" if number_of(envelope).is_multiple_of(4) => Some(too_large()),
        _ => None,
    }
}

struct Simulation {
    random: Random,
    broker: Broker,
    forwarding: Forwarding<Handle>,
    main: LocalQueue,
    backlogs: BTreeMap<String, (BacklogName, LocalQueue)>,
    envelopes: Vec<Envelope>,
    forwarded: BTreeSet<u64>,
    parked: BTreeSet<u64>,
    /// Messages that were ever read or loaded.
    read: usize,
    now: Instant,
    nacks: bool,
    setting: Setting,
    seed: u64,
}

fn text_of(name: &BacklogName) -> String {
    format!("{name:?}")
}

impl Simulation {
    fn new(seed: u64, nacks: bool, setting: Setting) -> Self {
        let mut random = Random::new(seed);
        let mut main = LocalQueue::default();
        let envelopes = (0..MESSAGES)
            .map(|number| {
                main.push(number);
                let key = setting.keys[random.below(setting.keys.len())];
                envelope(setting.exchanges[random.below(5)], key, number)
            })
            .collect();
        let mut forwarding = Forwarding::with_caution(SMALL, setting.caution);
        [Fast, Careful].into_iter().for_each(|channel| forwarding.opened(channel));
        let (broker, backlogs, forwarded, parked) = Default::default();
        let now = Instant::now();
        Self {
            random,
            broker,
            forwarding,
            main,
            backlogs,
            envelopes,
            forwarded,
            parked,
            read: 0,
            now,
            nacks,
            setting,
            seed,
        }
    }

    fn queue(&mut self, backlog: Option<BacklogId>) -> &mut LocalQueue {
        let Some(backlog) = backlog else { return &mut self.main };
        let name = self.forwarding.backlog(backlog).unwrap();
        &mut self.backlogs.get_mut(&text_of(name)).unwrap().1
    }

    /// Reads and loads messages, as many as possible or some; returns their number.
    fn fill(&mut self, is_whole: bool) -> usize {
        let before = self.read;
        while self.forwarding.wants_more()
            && (is_whole || self.random.below(4) > 0)
            && let Some((position, number)) = self.main.fetch()
        {
            let handle = Handle { backlog: None, position, number };
            self.forwarding.read(self.envelopes[number as usize].clone(), handle);
            self.read += 1;
        }
        while (is_whole || self.random.below(4) > 0)
            && let Some(backlog) = self.forwarding.poll_load()
        {
            let (position, number) =
                self.queue(Some(backlog)).fetch().expect("the backlog has another message");
            let handle = Handle { backlog: Some(backlog), position, number };
            self.forwarding.loaded(backlog, self.envelopes[number as usize].clone(), handle);
            self.read += 1;
        }
        self.read - before
    }

    /// Publishes the messages that are due; returns their number.
    fn publish(&mut self) -> u64 {
        let before = self.broker.published;
        for channel in ForwardingChannel::POLL_ORDER {
            while let Some(envelope) = self.forwarding.poll_publish(channel, self.now) {
                self.broker.tags[channel as usize] += 1;
                let tag = self.broker.tags[channel as usize];
                self.broker.received[channel as usize].push_back((tag, envelope));
                self.broker.published += 1;
            }
        }
        assert!(self.forwarding.in_flight_on(Fast) <= SMALL.window);
        self.broker.published - before
    }

    /// Does everything that needs no event: after that, an event must be pending.
    fn turn(&mut self) {
        self.forwarding.handle_deadline(self.now);
        while self.fill(true) as u64 + self.publish() + self.settle(usize::MAX) as u64 > 0 {}
        let (forwarding, seed) = (&self.forwarding, self.seed);
        let waits = forwarding.in_flight() > 0 || forwarding.next_deadline().is_some();
        assert!(waits || self.is_done(), "seed {seed}: no event is pending, and messages are left");
    }

    /// Carries out the settlements for the local queues, at most `limit`; returns their number.
    fn settle(&mut self, limit: usize) -> usize {
        for count in 0..limit {
            let Some(settled) = self.forwarding.poll_settled() else { return count };
            let seed = self.seed;
            match settled {
                Settled::Forwarded(handle) => {
                    self.leave(handle);
                    self.forwarded.insert(handle.number);
                }
                Settled::Parked(_, handle, _) => {
                    self.leave(handle);
                    assert!(self.parked.insert(handle.number), "seed {seed}: parked twice");
                }
                Settled::Released(handle) => {
                    assert!(self.queue(handle.backlog).out.remove(&handle.position), "seed {seed}");
                }
                Settled::Deferred(backlog, handle) => {
                    assert_eq!(handle.backlog, None, "seed {seed}");
                    let number = self.main.remove(handle.position);
                    let name = self.forwarding.backlog(backlog).unwrap().clone();
                    let entry =
                        self.backlogs.entry(text_of(&name)).or_insert_with(|| (name, LocalQueue::default()));
                    entry.1.push(number);
                }
                Settled::Emptied(_) => self.backlogs.retain(|_, (_, queue)| !queue.messages.is_empty()),
            }
        }
        limit
    }

    fn leave(&mut self, handle: Handle) {
        match handle.backlog {
            None => _ = self.main.remove(handle.position),
            // Its last message may have removed it from the forwarding's list.
            Some(_) => {
                let holding = self.backlogs.values_mut().find(|(_, queue)| {
                    queue.out.contains(&handle.position)
                        && queue.messages.get(&handle.position) == Some(&handle.number)
                });
                holding.expect("in a backlog").1.remove(handle.position);
            }
        }
    }

    /// Loses the connection after some of the messages in flight have arrived.
    fn lose_connection(&mut self) {
        for channel in [Fast, Careful] {
            for _ in 0..self.random.below(self.broker.received[channel as usize].len() + 1) {
                let Some((_, sent)) = self.broker.received[channel as usize].pop_front() else { break };
                if refusal_of(&sent).is_some() {
                    break;
                }
                // The messages before it at a silent queue do not arrive, either.
                if ![&self.broker.full, &self.broker.silent]
                    .iter()
                    .any(|no| no.contains(&destination_of(&sent)))
                {
                    self.broker.take(&sent);
                }
            }
        }
        (self.broker.received, self.broker.tags, self.broker.unconfirmed) = Default::default();
    }

    /// Gives the connection up, since the broker has stopped reading it.
    fn stall(&mut self, is_isolated: bool) {
        self.lose_connection();
        self.forwarding.stalled(is_isolated);
        self.forwarding.lost(None);
        self.settle(usize::MAX);
        [Fast, Careful].into_iter().for_each(|channel| self.forwarding.opened(channel));
    }

    /// Makes one queue stop confirming, or all confirm again.
    fn change_silence(&mut self) {
        if !self.broker.silent.is_empty() && self.random.below(2) == 0 {
            self.broker.silent.clear();
            for (channel, tag, sent) in std::mem::take(&mut self.broker.unconfirmed) {
                self.broker.take(&sent);
                self.forwarding.acked(channel, tag, false, self.now);
            }
            return;
        }
        let Setting { exchanges, keys, .. } = self.setting;
        let (exchange, key) = (exchanges[self.random.below(3)], keys[self.random.below(keys.len())]);
        self.broker.silent.insert(format!("{exchange}/{key}"));
    }

    /// Kills the process between two of its writes, and restarts it.
    fn kill(&mut self) {
        let some = self.random.below(20);
        self.settle(some);
        self.lose_connection();
        self.main.out.clear();
        self.forwarding = Forwarding::with_caution(SMALL, self.setting.caution);
        self.backlogs.retain(|_, (_, queue)| !queue.messages.is_empty());
        for (name, queue) in self.backlogs.values_mut() {
            queue.out.clear();
            self.forwarding.restore(name.clone(), queue.messages.len() as u64);
        }
        [Fast, Careful].into_iter().for_each(|channel| self.forwarding.opened(channel));
    }

    /// Handles some messages of a channel, and answers them together, one by one, or not at all yet.
    fn answer(&mut self, channel: ForwardingChannel) {
        let count = self.random.below(self.broker.received[channel as usize].len() + 1);
        let (mut acks, mut nacks) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if !self.broker.reads() {
                break;
            }
            let Some((tag, sent)) = self.broker.received[channel as usize].pop_front() else { break };
            if let Some(refusal) = refusal_of(&sent) {
                // Pending confirms are lost with the channel.
                if self.random.below(2) == 0 {
                    acks.iter().for_each(|tag| self.forwarding.acked(channel, *tag, false, self.now));
                    nacks
                        .iter()
                        .for_each(|tag| self.forwarding.nacked(channel, *tag, false, self.now, Some(0)));
                }
                self.broker.received[channel as usize].clear();
                self.broker.unconfirmed.retain(|(on, ..)| *on != channel);
                self.broker.tags[channel as usize] = 0;
                self.forwarding.refused(channel, refusal, self.now);
                self.forwarding.opened(channel);
                return;
            }
            if self.broker.full.contains(&destination_of(&sent)) {
                nacks.push(tag);
            } else if self.broker.silent.contains(&destination_of(&sent)) {
                self.broker.unconfirmed.push((channel, tag, sent));
            } else {
                self.broker.take(&sent);
                acks.push(tag);
            }
        }
        if nacks.is_empty() && self.broker.unconfirmed.is_empty() && self.random.below(2) == 0 {
            acks.last().into_iter().for_each(|tag| self.forwarding.acked(channel, *tag, true, self.now));
        } else {
            acks.iter().rev().for_each(|tag| self.forwarding.acked(channel, *tag, false, self.now));
            nacks.iter().for_each(|tag| self.forwarding.nacked(channel, *tag, false, self.now, Some(0)));
        }
    }

    /// Fills a queue, or frees it: not while messages for it are in flight, one of which might overtake earlier ones.
    fn change_capacity(&mut self) {
        let Setting { exchanges, keys, .. } = self.setting;
        let (exchange, key) = (exchanges[self.random.below(3)], keys[self.random.below(keys.len())]);
        let destination = format!("{exchange}/{key}");
        let is_under_way =
            self.broker.received.iter().flatten().any(|(_, sent)| destination_of(sent) == destination);
        if !is_under_way && !self.broker.full.remove(&destination) {
            self.broker.full.insert(destination);
        }
    }

    fn step(&mut self, is_calm: bool) {
        match self.random.below(10) {
            0 => self.turn(),
            1..4 => {
                self.fill(false);
                self.publish();
            }
            4..8 => {
                let channel = [Fast, Careful][self.random.below(2)];
                self.answer(channel);
                if self.random.below(4) == 0 {
                    self.forwarding.free_memory();
                }
            }
            8 if self.random.below(8) == 0 && !is_calm => {
                self.lose_connection();
                self.forwarding.lost(None);
                self.settle(usize::MAX);
                [Fast, Careful].into_iter().for_each(|channel| self.forwarding.opened(channel));
            }
            8 if self.random.below(12) == 0 && !is_calm => self.kill(),
            8 if !self.broker.reads() => {
                let is_isolated = self.random.below(2) == 0;
                self.stall(is_isolated);
            }
            8 if self.setting.falls_silent && self.random.below(3) == 0 && !is_calm => self.change_silence(),
            8 if self.nacks && self.random.below(3) == 0 && !is_calm => self.change_capacity(),
            _ => self.now += Duration::from_millis(self.random.below(100) as u64),
        }
        self.settle(usize::MAX);
    }

    fn is_done(&self) -> bool {
        self.main.messages.is_empty() && self.backlogs.is_empty()
    }

    fn play(mut self) -> usize {
        let (seed, mut most) = (self.seed, 0);
        for step in 0.. {
            assert!(step < 200_000, "seed {seed}: the simulation does not end");
            let is_calm = step > 3000;
            if is_calm && self.broker.received.iter().all(VecDeque::is_empty) {
                self.broker.full.clear();
            }
            while is_calm && !self.broker.silent.is_empty() {
                self.change_silence();
            }
            self.step(is_calm);
            most = most.max(self.backlogs.len());
            if self.is_done() {
                break;
            }
        }
        let forwarding = &self.forwarding;
        assert_eq!((forwarding.in_flight(), forwarding.deferred(), forwarding.oldest()), (0, 0, None));
        assert_eq!(forwarding.bytes(), 0, "seed {seed}");
        self.check_outcome();
        most
    }

    /// Checks that all messages have arrived, in order by destination at their first arrival, or were parked if they are
    /// refused.
    fn check_outcome(&self) {
        let seed = self.seed;
        for (number, envelope) in self.envelopes.iter().enumerate() {
            let is_refused = refusal_of(envelope).is_some();
            assert_eq!(self.parked.contains(&(number as u64)), is_refused, "seed {seed}: {number}");
        }
        let mut arrived = 0;
        for (destination, taken) in &self.broker.taken {
            let mut seen = BTreeSet::new();
            let firsts: Vec<_> = taken.iter().filter(|number| seen.insert(**number)).collect();
            assert!(firsts.is_sorted(), "seed {seed}: {destination}: {taken:?}");
            arrived += firsts.len();
        }
        assert_eq!(arrived + self.parked.len(), MESSAGES as usize, "seed {seed}");
    }
}

#[test]
fn nothing_is_lost_and_order_is_kept_for_any_broker_behaviour() {
    for seed in 1..600 {
        Simulation::new(seed, false, USUAL).play();
    }
}

#[test]
fn nothing_is_lost_and_order_is_kept_when_queues_are_full_and_messages_move_to_backlogs() {
    let most = (1..600).map(|seed| Simulation::new(seed, true, USUAL).play()).max();
    assert!(most > Some(3), "backlogs are shared in some of them: {most:?}");
}

#[test]
fn order_is_kept_when_exchanges_are_suspicious_again_and_again() {
    for seed in 1..600 {
        Simulation::new(seed, seed % 2 == 0, RELAPSING).play();
    }
}

#[test]
fn nothing_is_lost_and_order_is_kept_when_queues_confirm_nothing_and_connections_stall() {
    for seed in 1..600 {
        Simulation::new(seed, seed % 2 == 0, FALLING_SILENT).play();
    }
}

/// The broker stalls each connection as soon as it has read a few messages for silent queues.
#[test]
fn each_queue_that_confirms_nothing_stalls_at_most_one_connection() {
    for (silent, seed) in (1..=2).flat_map(|silent| (1..60).map(move |seed| (silent, seed))) {
        let mut simulation = Simulation::new(seed, false, PLAIN);
        let silent = &PLAIN.exchanges[..silent];
        silent.iter().for_each(|exchange| _ = simulation.broker.silent.insert(format!("{exchange}/x")));
        let is_other = |envelope: &&Envelope| !silent.contains(&envelope.exchange());
        let others = simulation.envelopes.iter().filter(is_other).count();
        let (mut stalls, mut steps) = (0, 0);
        while simulation.forwarded.len() < others {
            simulation.turn();
            [Fast, Careful].into_iter().for_each(|channel| simulation.answer(channel));
            simulation.settle(usize::MAX);
            if !simulation.broker.reads() {
                stalls += 1;
                simulation.stall(true);
            }
            steps += 1;
            assert!(steps < 10_000, "seed {seed}: the simulation does not end");
        }
        assert!(stalls <= silent.len(), "seed {seed}: {stalls} of {}", silent.len());
    }
}
