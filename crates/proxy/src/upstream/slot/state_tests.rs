//! The table of states at the head of `slot`, read from there and compared with the code: with random leases, answers and
//! closes of the broker, and time, a channel number changes only as the table says, and each line of it happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::{basic, confirm, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{Capabilities, Credentials, FrameKind};
use transport::{Outbox, Protocol};

use super::*;
use crate::PoolConfig;
use crate::pool::Pool;
use crate::test_random::TestRandom;
use crate::upstream::{MovedState, Peer, Phase, Placed, PrefetchState, Role};

/// The file with the table.
const SOURCE: &str = include_str!("../slot.rs");
const STATES: [&str; 7] = ["free", "resting", "leased", "leaving", "settling", "closing", "peer closed"];
const GONE: &str = "gone";

const LEASE: &str = "lease";
const TOO_OLD: &str = "too old for a lease";
const RESTED: &str = "rested for too long";
const NEEDED: &str = "its number is needed";
const PROBED: &str = "the connection is probed";
const ASKED_TO_CLOSE: &str = "the session asks for its close";
const RELEASE: &str = "release";
const RELEASE_TOUCHED: &str = "release after other use than publishing and declaring";
const CLOSE_OK: &str = "close-ok";
const PEER_CLOSES: &str = "the broker closes it";
const ANSWER: &str = "a reply or confirm";
const ENDS: &str = "the connection ends";
/// Events without a row in the table: the session sends something, and time passes.
const SENDS: &str = "the session sends something";
const TIME: &str = "time passes";

/// The next states by state and event.
type Table = BTreeMap<(&'static str, &'static str), Vec<&'static str>>;

fn table() -> Table {
    let mut table = Table::new();
    let rows = SOURCE.lines().filter_map(|line| line.strip_prefix("//! | ")).skip(1);
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [states, events, next, ..] = cells[..] else { panic!("a row of three cells: {row}") };
        let states = if states == "any" { STATES.to_vec() } else { states.split("; ").collect() };
        for state in states {
            for event in events.split("; ") {
                let before = table.insert((state, event), next.split(" or ").collect());
                assert_eq!(before, None, "two lines for {state} and {event}");
            }
        }
    }
    table
}

/// Channels of a client's own connection, as [`Peer`] offers them; shared ones have fewer.
const CHANNELS: u16 = 8;
const CHANNELS_SHARED: u16 = 3;
const AGE_MAX: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(20);

/// A session that uses a channel.
struct User {
    ledger: Arc<Ledger>,
    is_confirming: bool,
    usage: Usage,
}

struct World {
    random: TestRandom,
    pool: Arc<Pool>,
    link: Arc<ClientLink>,
    peer: Peer,
    now: Instant,
    next_id: u64,
    users: BTreeMap<u16, User>,
    /// When each channel was opened.
    opened_at: BTreeMap<u16, Instant>,
    table: Table,
    seen: BTreeSet<(&'static str, &'static str, &'static str)>,
}

fn link() -> Arc<ClientLink> {
    let outbox = Arc::new(Outbox::new(1024));
    Arc::new(ClientLink::new(1, outbox, 131_072, Capabilities::ALL, Arc::default(), Arc::default()))
}

fn peer(pool: &Arc<Pool>, link: &Arc<ClientLink>, own: bool, now: Instant) -> Peer {
    let credentials = Arc::new(Credentials::plain("user", "password"));
    Peer::new(pool, &credentials, own.then(|| link.clone()), Role::General, now)
}

impl World {
    fn new(seed: u64) -> Self {
        let pool = Pool::new(PoolConfig {
            max_channels_per_connection: CHANNELS_SHARED,
            auth_ttl: AGE_MAX,
            idle_timeout: IDLE,
            ..PoolConfig::new(Vec::new())
        });
        let (link, now) = (link(), Instant::now());
        World {
            random: TestRandom::new(seed),
            peer: peer(&pool, &link, seed.is_multiple_of(2), now),
            pool,
            link,
            now,
            next_id: 0,
            users: BTreeMap::new(),
            opened_at: BTreeMap::new(),
            table: table(),
            seen: BTreeSet::new(),
        }
    }

    fn states(&self) -> [&'static str; CHANNELS as usize] {
        let state = self.peer.connection.upstream.state.lock();
        let mut states = ["free"; CHANNELS as usize];
        if state.phase == Phase::Ended {
            return [GONE; CHANNELS as usize];
        }
        for (at, slot) in state.slots.iter().enumerate() {
            states[at] = match slot {
                Slot::Free => "free",
                Slot::IdleChannels(_) => "resting",
                Slot::Leased(lease) if lease.close_sent => "leaving",
                Slot::Leased(_) => "leased",
                Slot::Settling(_) => "settling",
                Slot::PeerClosed => "peer closed",
                Slot::Closing(_) => "closing",
            };
        }
        states
    }

    /// The sums and lists that the connection keeps of its slots.
    fn check(&self) {
        let state = self.peer.connection.upstream.state.lock();
        let count = |is: fn(&Slot) -> bool| state.slots.iter().filter(|slot| is(slot)).count();
        let (free, resting) =
            (count(|slot| matches!(slot, Slot::Free)), count(|slot| matches!(slot, Slot::IdleChannels(_))));
        assert_eq!((state.free.len(), state.resting.len()), (free, resting), "free and resting channels");
        assert_eq!(state.in_use, state.slots.len() - free - resting, "channels in use");
        let opening = count(|slot| match slot {
            Slot::Leased(lease) => lease.opening,
            Slot::Settling(settling) => settling.is_opening(),
            _ => false,
        });
        assert_eq!(state.opening, opening, "channels that are being opened");
        for answer in &self.peer.answers {
            let rests =
                matches!(state.slots.get(usize::from(answer.channel) - 1), Some(Slot::IdleChannels(_)));
            // P5: a channel rests only if no reply is due; only `channel.close` from the broker may follow.
            assert!(!rests || answer.name == "channel.close", "{} is due, and it rests", answer.name);
        }
    }

    fn step(&mut self) {
        let before = self.states();
        self.now += Duration::from_millis(self.random.below(1000));
        let Some((number, cause)) = self.act() else { return };
        let after = self.states();
        self.link.take_events();
        for at in 0..before.len() {
            let (from, to, is_it) =
                (before[at], after[at], number.is_none_or(|number| usize::from(number) == at + 1));
            let cause = match cause {
                // A lease also closes resting channels that are too old for it.
                LEASE if !is_it && from == "resting" && to == "closing" => self.why_closed(at as u16 + 1),
                LEASE if !is_it && from == "settling" && to == "closing" => NEEDED,
                _ if is_it => cause,
                _ => {
                    assert_eq!(from, to, "{} by {cause} of another", at + 1);
                    continue;
                }
            };
            self.note(from, cause, to);
        }
        if cause == ENDS {
            let is_own = self.random.chance(500);
            self.peer = peer(&self.pool, &self.link, is_own, self.now);
            self.users.clear();
            self.opened_at.clear();
            return;
        }
        self.peer.read();
        self.check();
    }

    fn note(&mut self, from: &'static str, cause: &'static str, to: &'static str) {
        if cause == RESTED && from == to {
            // Whether it has rested long enough is checked where the event happens.
            return;
        }
        match self.table.get(&(from, cause)) {
            Some(next) => assert!(next.contains(&to), "{cause} has turned {from} into {to}"),
            // An event of the whole connection that does not affect this number.
            None => assert_eq!(from, to, "{cause}"),
        }
        self.seen.insert((from, cause, to));
    }

    fn why_closed(&self, number: u16) -> &'static str {
        if self.now >= self.opened_at[&number] + AGE_MAX { TOO_OLD } else { NEEDED }
    }

    /// Performs a random event; returns the channel number that it concerns, or `None` if it may concern all, and the event.
    fn act(&mut self) -> Option<(Option<u16>, &'static str)> {
        match self.random.below(100) {
            0..25 => Some(self.lease()),
            25..45 => self.send(),
            45..50 => {
                let number = self.pick(&["leased"])?;
                self.peer.connection.upstream.close_channel(number);
                Some((Some(number), ASKED_TO_CLOSE))
            }
            50..65 => {
                let number = self.pick(&["leased", "leaving", "peer closed"])?;
                let User { mut usage, .. } = self.users.remove(&number)?;
                usage.touched = self.random.chance(200);
                assert!(self.peer.connection.upstream.release(number, usage, self.now));
                Some((Some(number), if usage.touched { RELEASE_TOUCHED } else { RELEASE }))
            }
            65..90 => self.deliver(),
            90..95 => {
                let pick = self.random.next();
                self.peer.close_channel(pick);
                Some((None, TIME))
            }
            95 => {
                let upstream = &self.peer.connection.upstream;
                let number = upstream.send_probe(&mut upstream.state.lock(), self.now)?;
                Some((Some(number), PROBED))
            }
            96 => {
                self.now += if self.random.chance(500) { AGE_MAX } else { IDLE };
                Some((None, TIME))
            }
            97..99 => {
                // An idle connection would be closed as a whole.
                self.peer.connection.upstream.state.lock().idle_since.is_none().then_some(())?;
                self.peer.connection.handle_deadline(self.now);
                let state = self.peer.connection.upstream.state.lock();
                assert!(state.resting.longest().is_none_or(|since| self.now < since + IDLE));
                drop(state);
                Some((None, RESTED))
            }
            _ => {
                self.random.chance(100).then_some(())?;
                self.peer.cut();
                Some((None, ENDS))
            }
        }
    }

    /// One of the channels in these states that a session uses.
    fn pick(&mut self, wanted: &[&str]) -> Option<u16> {
        let states = self.states();
        let is_it = |number: &u16| wanted.contains(&states[usize::from(*number) - 1]);
        let numbers: Vec<u16> = self.users.keys().copied().filter(is_it).collect();
        let pick = self.random.below(numbers.len().max(1) as u64) as usize;
        numbers.get(pick).copied()
    }

    fn lease(&mut self) -> (Option<u16>, &'static str) {
        let upstream = &self.peer.connection.upstream;
        let is_confirming = self.random.chance(500);
        let ledger = Ledger::new(&self.link, MovedState::default());
        self.next_id += 1;
        let lease = Lease::new(self.link.clone(), ledger.clone(), self.next_id, 1, self.now);
        let Placed::On(leased) = upstream.lease(lease, is_confirming, Role::General, true) else {
            // Nothing was leased, but a channel may have been closed to free a number.
            upstream.give_up_overdue(Role::General, self.now);
            return (Some(0), LEASE);
        };
        let mut bytes = Vec::new();
        if leased.fresh {
            write_method(&mut bytes, leased.channel, amqp::method::channel::Open::default());
            self.opened_at.insert(leased.channel, self.now);
        }
        if is_confirming && !leased.confirming {
            write_method(&mut bytes, leased.channel, confirm::Select { no_wait: true });
        }
        upstream.outbox.append(|buf| buf.tail().extend_from_slice(&bytes));
        self.users.insert(leased.channel, User { ledger, is_confirming, usage: Usage::default() });
        (Some(leased.channel), LEASE)
    }

    /// A session sends a message, or a method that is answered.
    fn send(&mut self) -> Option<(Option<u16>, &'static str)> {
        let number = self.pick(&["leased"])?;
        let is_method = self.random.chance(500);
        let (upstream, user) = (&self.peer.connection.upstream, self.users.get_mut(&number)?);
        let mut bytes = Vec::new();
        if is_method {
            let declare = queue::Declare { queue: "q", ..Default::default() };
            let mut payload = Vec::new();
            amqp::Method::from(declare).encode(&mut payload);
            upstream.expect_reply(number);
            user.ledger.method(&payload, true, PrefetchState::default());
            write_method(&mut bytes, number, declare);
        } else {
            write_method(&mut bytes, number, basic::Publish { routing_key: "q", ..Default::default() });
            write_content_header(&mut bytes, number, 4, NO_PROPERTIES);
            write_frame(&mut bytes, FrameKind::Body, number, |out| out.extend_from_slice(b"body"));
            if user.is_confirming {
                user.ledger.messages(&bytes, 1);
                user.usage.published += 1;
            } else {
                user.ledger.unconfirmed_messages(&bytes, 1);
                user.usage.unproven = true;
            }
        }
        upstream.outbox.append(|buf| buf.tail().extend_from_slice(&bytes));
        Some((Some(number), SENDS))
    }

    /// Delivers the oldest answer of the broker.
    fn deliver(&mut self) -> Option<(Option<u16>, &'static str)> {
        let number = self.peer.answers.front()?.channel;
        let cause = match self.peer.deliver(self.now)? {
            "channel.close-ok" => CLOSE_OK,
            "channel.close" => PEER_CLOSES,
            _ => ANSWER,
        };
        // The session has learned of the close. It has to release the channel only if it still has to send close-ok.
        if matches!(self.states()[usize::from(number) - 1], "free" | "closing") {
            self.users.remove(&number);
        }
        Some((Some(number), cause))
    }
}

#[tokio::test]
async fn a_channel_number_changes_as_the_table_says_and_every_line_of_it_happens() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step();
        }
        seen.append(&mut world.seen);
    }
    for ((from, cause), next) in table() {
        for to in next {
            assert!(seen.contains(&(from, cause, to)), "{cause} never turned {from} into {to}");
        }
    }
}
