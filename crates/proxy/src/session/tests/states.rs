//! The tables of states at the head of `channel`, checked with random frames of a client, legal and illegal, and random
//! events of brokers: a channel and its sides change only as the tables say, each line of the tables happens, and a model
//! of the frame order says which frames are refused. The broker's end checks that it only sees whole messages; and once
//! brokers have answered everything, no channel waits any more.

mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use amqp::method::{basic, confirm, queue};
use tables::Cause::*;
use tables::MessageState::*;
use tables::PlacementState::*;
use tables::{Cause, MESSAGES, MessageState, PlacementState, RARE, RARE_MESSAGES, SIDES};

use super::*;
use crate::refusal::Refusal;
use crate::session::channel::{ChannelPhase, DueContent};
use crate::session::side::SidePlacement;
use crate::test_random::TestRandom;
use crate::upstream::Peer;

const CHANNELS: u16 = 3;

struct World {
    random: TestRandom,
    session: ProxySession,
    peers: Vec<Peer>,
    now: Instant,
    /// Bytes of body that the client has still to send, by channel; `None` for a header. The model of the frame order.
    sending: BTreeMap<u16, Option<u64>>,
    messages: BTreeSet<(MessageState, Cause, MessageState)>,
    sides: BTreeSet<(PlacementState, Cause, PlacementState)>,
}

type States = BTreeMap<u16, (MessageState, PlacementState, Option<PlacementState>)>;

impl World {
    /// With `departed_is_full`, no frames of departed clients are kept.
    fn new(seed: u64, departed_is_full: bool) -> Self {
        let departed_total_max = if departed_is_full { 0 } else { 64 * 1024 * 1024 };
        let config = PoolConfig { departed_total_max, ..PoolConfig::new(Vec::new()) };
        Self {
            random: TestRandom::new(seed),
            session: session_of(Pool::new(config)),
            peers: Vec::new(),
            now: Instant::now(),
            sending: BTreeMap::new(),
            messages: BTreeSet::new(),
            sides: BTreeSet::new(),
        }
    }

    fn states(&self) -> States {
        let place = |side: &Side| match &side.place {
            SidePlacement::Unplaced => Unplaced,
            SidePlacement::Waiting { own: false, .. } => Waiting,
            SidePlacement::Waiting { own: true, .. } => WaitingOwn,
            SidePlacement::Placed(route) if route.own => PlacedOwn,
            SidePlacement::Placed(_) => Placed,
            SidePlacement::Leaving { .. } => Leaving,
            SidePlacement::Closing(_) => ClosingSide,
        };
        let message = |channel: &Channel| match &channel.phase {
            ChannelPhase::Open(None) => Between,
            ChannelPhase::Open(Some(message)) => match (message.due, message.is_streaming()) {
                (DueContent::Header { .. }, true) => HeaderStreamed,
                (DueContent::Header { .. }, false) => HeaderBuffered,
                (DueContent::Body { .. }, true) => BodyStreamed,
                (DueContent::Body { .. }, false) => BodyBuffered,
            },
            ChannelPhase::Closing { half_streamed: true } => ClosingHalf,
            ChannelPhase::Closing { half_streamed: false } => Closing,
        };
        let channels = self.session.channels.iter();
        let state = |channel: &Channel| {
            (message(channel), place(&channel.general), channel.publishing.as_deref().map(place))
        };
        channels.map(|(number, channel)| (number, state(channel))).collect()
    }

    /// Checks the combinations that the text after the second table excludes, and the sums that the session keeps.
    fn check(&self) {
        for (number, (message, general, publishing)) in self.states() {
            let is_closing = matches!(message, Closing | ClosingHalf);
            for side in [Some(general), publishing].into_iter().flatten() {
                assert!(side != ClosingSide || is_closing, "{number}: a side is closing, the channel is not");
            }
            assert!(general != PlacedOwn || publishing.is_none(), "{number}: {publishing:?} beside its own");
        }
        let sum =
            |of: fn(&Channel) -> usize| self.session.channels.iter().map(|(_, channel)| of(channel)).sum();
        assert_eq!(self.session.staged, sum(Channel::staged), "bytes of incomplete messages");
        assert_eq!(self.session.queued, sum(Channel::queued), "bytes that wait for placement");
    }

    /// Lets brokers answer everything, and connections become ready, until nothing changes. Then no channel may wait
    /// for anything but the rest of a message.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let is_ready = self.ready().is_some();
            let mut answered = 0;
            for peer in &mut self.peers {
                peer.read();
                answered += std::iter::from_fn(|| peer.deliver(self.now)).count();
                answered += std::iter::from_fn(|| peer.confirm(self.now)).count();
            }
            if self.session.handle_nudge(self.now).is_err() || self.session.is_closed() {
                return self.start_again();
            }
            if !is_ready && answered == 0 && !self.peers.iter_mut().any(Peer::read) {
                return self.check_settled();
            }
        }
        panic!("it never settles: {:?}", self.states());
    }

    fn check_settled(&self) {
        for (number, (message, general, publishing)) in self.states() {
            if !matches!(message, Between | Closing | ClosingHalf) {
                continue;
            }
            assert!(message == Between, "{number}: never closed; {general:?}, {publishing:?}");
            for side in [Some(general), publishing].into_iter().flatten() {
                assert!(matches!(side, Unplaced | Placed | PlacedOwn), "{number}: {side:?} for ever");
            }
        }
    }

    /// Performs one event, and checks the transitions.
    fn step(&mut self) {
        let before = self.states();
        self.now += Duration::from_millis(self.random.below(100));
        let Some((cause, result)) = self.act() else { return };
        let result = result.and_then(|()| self.session.handle_nudge(self.now));
        for peer in &mut self.peers {
            peer.read();
        }
        if result.is_err() || self.session.is_closed() {
            return self.start_again();
        }
        self.check();
        self.note(cause, &before);
        if self.random.chance(2) {
            self.settle();
        }
        let open: Vec<u16> = self.session.channels.iter().map(|(number, _)| number).collect();
        self.sending.retain(|number, _| open.contains(number));
    }

    fn note(&mut self, cause: Cause, before: &States) {
        let after = self.states();
        for number in 1..=CHANNELS {
            let (old, new) = (before.get(&number), after.get(&number));
            let message = |state: Option<&(MessageState, _, _)>| state.map_or(Gone, |(message, ..)| *message);
            note(MESSAGES, &mut self.messages, message(old), cause, message(new));
            let (Some((_, general, publishing)), Some((_, new_general, new_publishing))) = (old, new) else {
                continue;
            };
            note(SIDES, &mut self.sides, *general, cause, *new_general);
            if let Some(new_publishing) = new_publishing {
                note(SIDES, &mut self.sides, publishing.unwrap_or(Unplaced), cause, *new_publishing);
            }
        }
    }

    /// Lets the client or a broker do something that is possible now.
    fn act(&mut self) -> Option<(Cause, Result<(), Fault>)> {
        match self.random.below(100) {
            0..55 => self.client(),
            55..70 => self.ready(),
            70..93 => self.answer(),
            93..96 => {
                let at = self.pick_peer()?;
                let pick = self.random.next();
                self.peers[at].close_channel(pick).then_some(())?;
                while self.peers[at].deliver(self.now)? != "channel.close" {}
                Some((PeerCloses, Ok(())))
            }
            96..98 => {
                let at = self.pick_peer()?;
                let mut peer = self.peers.swap_remove(at);
                if self.random.chance(850) {
                    peer.cut();
                    return Some((Lost, Ok(())));
                }
                peer.close_connection(self.now);
                Some((Faulted, Ok(())))
            }
            98 => {
                let (channel, lease) = {
                    let mut channels = self.session.channels.iter();
                    let (number, channel) = channels.find(|(_, channel)| channel.general.is_placed())?;
                    (number, channel.general.lease)
                };
                self.session.link.notify(Event::DeliveriesOverflowed { channel, lease });
                Some((Overflow, Ok(())))
            }
            // The space is granted to other clients, and this client may stream.
            _ => Some((Granted, self.session.stream_largest())),
        }
    }

    fn pick_peer(&mut self) -> Option<usize> {
        let count = self.peers.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    fn answer(&mut self) -> Option<(Cause, Result<(), Fault>)> {
        let at = self.pick_peer()?;
        if self.random.chance(300) {
            return self.peers[at].confirm(self.now).map(|()| (Confirm, Ok(())));
        }
        let cause = if self.peers[at].deliver(self.now)? == "channel.close-ok" { CloseOk } else { Answer };
        Some((cause, Ok(())))
    }

    /// A connection that the session has asked for is ready.
    fn ready(&mut self) -> Option<(Cause, Result<(), Fault>)> {
        let session = &self.session;
        let wanted = [
            (true, Role::General, &session.own),
            (false, Role::General, &session.general),
            (false, Role::Publishing, &session.publishing),
        ];
        let (own, role, _) = wanted.into_iter().find(|(_, _, link)| matches!(link, UpstreamLink::Opening))?;
        let owner = own.then(|| session.link.clone());
        let peer = Peer::new(&session.pool, &session.credentials, owner, role, self.now);
        let result: Result<_, Refusal> = Ok(peer.connection.upstream.clone());
        self.session.link.notify(Event::Ready { own, role, result });
        self.peers.push(peer);
        Some((Ready, Ok(())))
    }

    /// A frame of the client, mostly a legal one.
    fn client(&mut self) -> Option<(Cause, Result<(), Fault>)> {
        let number = 1 + self.random.below(CHANNELS.into()) as u16;
        let is_open = self.session.channels.get(number).is_some();
        let is_closing = self.session.channels.get(number).is_some_and(|channel| channel.is_closing());
        let sending = self.sending.get(&number).copied();
        let legal = !self.random.chance(10);
        let mut bytes = Vec::new();
        let cause = match (is_open, sending) {
            _ if !legal => return self.illegal(number, is_open, is_closing, sending),
            _ if self.random.chance(6) => {
                self.session.close(self.now);
                return Some((CloseConnection, Ok(())));
            }
            _ if is_closing => return None,
            (false, _) => {
                // The session reserves the numbers of channels that it is closing.
                let is_gone = self.session.channels.len() == self.session.channels.iter().count();
                if !is_gone {
                    write_method(&mut bytes, number, channel_methods::CloseOk {});
                    // Refused if it is another one.
                    return self.feed(&bytes).ok().map(|()| (Answer, Ok(()))).or_else(|| {
                        self.start_again();
                        None
                    });
                }
                write_method(&mut bytes, number, channel_methods::Open::default());
                Open
            }
            (true, None) => self.method(number, &mut bytes)?,
            (true, Some(None)) => {
                let (size, cause) = match self.random.below(10) {
                    0 => (STAGING_LIMIT + 1, LargeHeader),
                    1 => (0, EmptyHeader),
                    _ => (4, Header),
                };
                write_content_header(&mut bytes, number, size, NO_PROPERTIES);
                self.sending.insert(number, Some(size));
                if size == 0 {
                    self.sending.remove(&number);
                }
                cause
            }
            (true, Some(Some(missing))) => {
                let is_rest = self.random.chance(500);
                let size = if is_rest { missing } else { missing / 2 };
                if size == 0 {
                    return None;
                }
                write_body(&mut bytes, number, size);
                self.sending.insert(number, Some(missing - size));
                if is_rest {
                    self.sending.remove(&number);
                }
                if is_rest { Rest } else { Part }
            }
        };
        Some((cause, self.feed(&bytes)))
    }

    /// A method on a channel between messages.
    fn method(&mut self, number: u16, bytes: &mut Vec<u8>) -> Option<Cause> {
        Some(match self.random.below(100) {
            0..70 => {
                let routing_key = if self.random.chance(4) { "amq.rabbitmq.reply-to.x.y" } else { "q" };
                write_method(bytes, number, basic::Publish { routing_key, ..Default::default() });
                self.sending.insert(number, None);
                Publish
            }
            70..76 => {
                write_method(
                    bytes,
                    number,
                    queue::Declare { queue: "q", durable: true, ..Default::default() },
                );
                Declare
            }
            80..83 => {
                let consumer_tag = &format!("{}", self.random.next());
                write_method(
                    bytes,
                    number,
                    basic::Consume { queue: "q", consumer_tag, ..Default::default() },
                );
                let channel = self.session.channels.get(number)?;
                let has_limit = channel.limits.each.is_some();
                if has_limit && !channel.is_own() { Consume } else { Own }
            }
            76..80 | 88..90 => {
                write_method(bytes, number, basic::Qos { prefetch_count: 1, ..Default::default() });
                Qos
            }
            83..88 => {
                write_method(bytes, number, confirm::Select { no_wait: false });
                Select
            }
            _ => {
                write_method(bytes, number, channel_methods::Close::default());
                Close
            }
        })
    }

    /// A frame that must be refused according to the model.
    fn illegal(
        &mut self,
        number: u16,
        is_open: bool,
        is_closing: bool,
        sending: Option<Option<u64>>,
    ) -> Option<(Cause, Result<(), Fault>)> {
        let mut bytes = Vec::new();
        let mut method = || write_method(&mut bytes, number, queue::Declare::default());
        let code = match (is_open, sending) {
            (false, _) => {
                method();
                ReplyCode::ChannelError
            }
            (true, None) if is_closing => {
                method();
                ReplyCode::ChannelError
            }
            (true, None) => {
                write_frame(&mut bytes, FrameKind::Body, number, |out| out.push(0));
                ReplyCode::UnexpectedFrame
            }
            (true, Some(None)) => {
                write_frame(&mut bytes, FrameKind::Body, number, |out| out.push(0));
                ReplyCode::UnexpectedFrame
            }
            (true, Some(Some(missing))) if missing < STAGING_LIMIT && self.random.chance(500) => {
                write_body(&mut bytes, number, missing + 1);
                ReplyCode::FrameError
            }
            (true, Some(Some(_))) => {
                method();
                ReplyCode::UnexpectedFrame
            }
        };
        if self.session.life != Life::Open {
            return None;
        }
        let is_discarded = !is_open && self.session.channels.len() > self.session.channels.iter().count();
        let result = self.feed(&bytes);
        if !is_discarded {
            assert_eq!(result.as_ref().map_err(|fault| fault.code), Err(code), "{sending:?}");
        }
        self.start_again();
        None
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let frame = Frame::parse(bytes, 0).unwrap().unwrap();
        let result = self.session.handle_frame(frame, &[], self.now);
        self.session.flush(self.now);
        result.map(drop)
    }

    /// The next client.
    fn start_again(&mut self) {
        let pool = self.session.pool.clone();
        self.session = session_of(pool);
        for peer in &mut self.peers {
            peer.read();
        }
        self.sending.clear();
    }
}

#[tokio::test]
async fn a_channel_changes_as_the_tables_say_and_every_line_of_them_happens() {
    let (mut messages, mut sides) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..400 {
        // In some runs, no frames of departed clients are kept.
        let departed_total_max = if seed % 4 == 0 { 0 } else { 64 * 1024 * 1024 };
        let session = session_of(Pool::new(PoolConfig { departed_total_max, ..PoolConfig::new(Vec::new()) }));
        let mut world = World {
            random: TestRandom::new(seed),
            session,
            peers: Vec::new(),
            now: Instant::now(),
            sending: BTreeMap::new(),
            messages,
            sides,
        };
        for _ in 0..1500 {
            world.step();
        }
        (messages, sides) = (world.messages, world.sides);
    }
    assert_eq!(missing(MESSAGES, &messages, RARE_MESSAGES), [""; 0]);
    assert_eq!(missing(SIDES, &sides, RARE), [""; 0]);
}

/// Too rare for the random test: the broker confirms late, and its fault ends the connection of the other side.
#[tokio::test]
async fn a_channel_that_is_closing_on_both_sides_moves_to_its_own_connection_and_closes() {
    let mut world = World::new(0, true);
    let send = |world: &mut World, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        world.feed(&bytes).unwrap();
        world.ready();
        world.session.handle_nudge(world.now).unwrap();
        for peer in &mut world.peers {
            peer.read();
        }
    };
    send(&mut world, &|out| write_method(out, 1, channel_methods::Open::default()));
    send(&mut world, &|out| write_method(out, 1, confirm::Select { no_wait: false }));
    send(&mut world, &|out| write_method(out, 1, basic::Publish::default()));
    send(&mut world, &|out| write_content_header(out, 1, 0, NO_PROPERTIES));
    send(&mut world, &|out| write_method(out, 1, queue::Declare { queue: "q", ..Default::default() }));
    // The broker has received the message but not confirmed it, and the declaration is sent.
    while world.peers[0].deliver(world.now).is_some() {}
    world.session.handle_nudge(world.now).unwrap();
    send(&mut world, &|out| write_method(out, 1, channel_methods::Close::default()));
    assert_eq!(world.states()[&1], (Closing, ClosingSide, Some(ClosingSide)));
    world.peers.pop().unwrap().close_connection(world.now);
    world.session.handle_nudge(world.now).unwrap();
    assert_eq!(world.states()[&1], (Closing, WaitingOwn, Some(Leaving)));
    world.settle();
    assert!(world.states().is_empty());
}

/// A body frame of this many zeros. They are copied from memory that the system has zeroed: filled one by one, without
/// optimisation, they take most of the test's time.
fn write_body(bytes: &mut Vec<u8>, number: u16, size: u64) {
    let zeros = vec![0; size as usize];
    write_frame(bytes, FrameKind::Body, number, |out| out.extend_from_slice(&zeros));
}

/// Checks a change against the table, and notes it.
fn note<S: Debug + Ord + Copy>(
    table: &[(S, Cause, &[S])],
    seen: &mut BTreeSet<(S, Cause, S)>,
    from: S,
    cause: Cause,
    to: S,
) {
    let line = table.iter().find(|(state, by, _)| (*state, *by) == (from, cause));
    // An event may concern another channel.
    let allowed = from == to || line.is_some_and(|(_, _, next)| next.contains(&to));
    assert!(allowed, "{cause:?} has turned {from:?} into {to:?}");
    seen.insert((from, cause, to));
}

/// The transitions of the table that have not occurred, except the rare ones.
fn missing<S: Debug + Ord + Copy>(
    table: &[(S, Cause, &[S])],
    seen: &BTreeSet<(S, Cause, S)>,
    rare: &[(S, Cause, S)],
) -> Vec<String> {
    let lines = table.iter().flat_map(|(from, cause, next)| next.iter().map(move |to| (*from, *cause, *to)));
    lines
        .filter(|line| !seen.contains(line) && !rare.contains(line))
        .map(|(from, cause, to)| format!("{cause:?} never turned {from:?} into {to:?}"))
        .collect()
}
