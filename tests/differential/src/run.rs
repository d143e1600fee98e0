//! Runs a program on one broker and writes down all that can be seen of it.

use std::collections::BTreeMap;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::event::Event;
use crate::link::Link;
use crate::names::Names;
use crate::program::{Op, Step};
use crate::quorum::wait_for_quorum_queues;
use crate::session::{Counts, Session};
use crate::users::{CONNECTIONS, user_of};

/// What was seen after each step, and at last what was left: lines of text, free of names and times of the run.
pub(crate) type Story = Vec<Vec<String>>;

/// How long to wait for a broker to come to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Until two round trips in a row have shown nothing new.
    Fast,
    /// With pauses before each round trip, for a machine under load.
    Careful,
}

/// Runs `program` at `address`; `prefix` must not have been used there before. `control` is a connection of the
/// caller's own that outlives the run.
///
/// # Errors
/// A broken stream, a broker that does not answer, or does not come to rest.
pub(crate) fn run(
    program: &[Step],
    address: &str,
    control: &mut Link,
    prefix: String,
    pace: Pace,
) -> io::Result<Story> {
    let mut run = Run {
        address,
        names: Names::new(prefix, program),
        sessions: BTreeMap::new(),
        control,
        watched: BTreeMap::new(),
        counts: Counts::new(),
        pace,
        has_quorum_queues: has_quorum_queues(program),
        step: 0,
        allowed: program.iter().any(|step| step.op == Op::Wait).then_some(MAX_BUSY),
    };
    let mut story = Story::new();
    for (n, step) in program.iter().enumerate() {
        run.step = n;
        let begin = Instant::now();
        story.push(run.step(step)?);
        if step.op != Op::Wait {
            run.spend(begin)?;
        }
    }
    let begin = Instant::now();
    story.push(run.finish(program)?);
    run.spend(begin)?;
    if run.has_quorum_queues {
        story.iter_mut().flatten().for_each(hide_consumers);
    }
    Ok(story)
}

#[derive(Debug)]
struct Run<'a> {
    address: &'a str,
    names: Names,
    sessions: BTreeMap<u8, Session>,
    control: &'a mut Link,
    /// Queues that may exist, by their names on the wire, with the connection that owns them if they are exclusive.
    watched: BTreeMap<String, Option<u8>>,
    /// Messages and consumers of each when last counted.
    counts: Counts,
    pace: Pace,
    has_quorum_queues: bool,
    step: usize,
    /// How long the steps to come may take together, if anything short-lived might be due before they are done.
    allowed: Option<Duration>,
}

impl Run<'_> {
    /// Fails once the steps have taken so long that it is open what is due and what is not.
    fn spend(&mut self, begin: Instant) -> io::Result<()> {
        if let Some(allowed) = self.allowed {
            let left = allowed.checked_sub(begin.elapsed());
            self.allowed = Some(left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, TOO_SLOW))?);
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        match step.op {
            Op::Wait => sleep(WAIT),
            Op::CloseConnection | Op::DropConnection => {
                self.close_channels(step.connection, 1, &mut lines)?;
                if let Some(mut session) = self.sessions.remove(&step.connection) {
                    if step.op == Op::CloseConnection {
                        session.link.close()?;
                    }
                    drop(session);
                    if step.op == Op::DropConnection {
                        sleep(HANG_UP);
                    }
                }
            }
            _ => {
                let session = match self.sessions.remove(&step.connection) {
                    Some(open) if !open.link.closed => open,
                    _ => Session::open(self.address, user_of(step.connection))?,
                };
                self.sessions.entry(step.connection).or_insert(session).perform(
                    step,
                    self.step,
                    &self.names,
                    &mut lines,
                )?;
                self.watch(step);
            }
        }
        self.settle(&mut lines)?;
        let counted = |(queue, (messages, consumers)): (&String, &(u32, u32))| {
            format!("{}: {messages} messages, {consumers} consumers", self.names.tidy(queue))
        };
        let mut counts: Vec<String> = self.counts.iter().map(counted).collect();
        counts.sort();
        lines.append(&mut counts);
        Ok(lines)
    }

    /// Takes note of queues that the step may make.
    fn watch(&mut self, step: &Step) {
        if let Op::DeclareQueue(declare) = &step.op
            && !declare.queue.is_empty()
        {
            let owner = declare.exclusive.then_some(step.connection);
            let entry = self.watched.entry(self.names.wire(&declare.queue)).or_insert(owner);
            *entry = entry.or(owner);
        }
    }

    /// Waits until nothing moves any more.
    ///
    /// A round trip on every channel, twice: the first one ends when the channels have handed everything to the queues,
    /// and the second one brings what the queues sent to the channels. Counting asks the queues themselves, though
    /// RabbitMQ's answer may overtake work that waits in the queue, and dead letters travel on: so it all goes on until
    /// nothing changes from one round to the next. Quorum queues are given the time that they take to write.
    fn settle(&mut self, lines: &mut Vec<String>) -> io::Result<()> {
        let mut counts = None;
        for _ in 0..MAX_ROUNDS {
            if self.pace == Pace::Careful {
                sleep(CAREFUL_PAUSE);
            }
            let mut quiet = true;
            for (id, session) in &mut self.sessions {
                session.link.sync()?;
                quiet &= session.link.events.is_empty();
                session.take_events(self.step, &mut self.names);
                if let Some(name) = session.declared.take() {
                    self.watched.entry(name).or_insert(Some(*id));
                }
                quiet &= session.all_confirmed();
            }
            if self.has_quorum_queues {
                wait_for_quorum_queues(self.control)?;
            }
            let now = self.count()?;
            if quiet && counts.as_ref() == Some(&now) {
                self.counts = now;
                for (id, session) in &mut self.sessions {
                    session.tell(*id, &self.names, lines);
                }
                self.sessions.retain(|_, session| !session.link.closed);
                return Ok(());
            }
            counts = Some(now);
        }
        Err(io::Error::other(format!("step {} has not come to rest", self.step)))
    }

    /// Messages and consumers of all queues. Queues that are gone are not watched any longer.
    fn count(&mut self) -> io::Result<Counts> {
        let mut counts = Counts::new();
        let mut gone = Vec::new();
        for owner in std::iter::once(None).chain((0..CONNECTIONS).map(Some)) {
            let queues: Vec<&str> =
                self.watched.iter().filter(|(_, of)| **of == owner).map(|(name, _)| name.as_str()).collect();
            if queues.is_empty() {
                continue;
            }
            let link = match owner.and_then(|id| self.sessions.get_mut(&id)) {
                Some(session) if !session.link.closed => &mut session.link,
                _ => &mut *self.control,
            };
            for queue in queues {
                match count_queue(link, queue)? {
                    Some(count) => drop(counts.insert(queue.to_owned(), count)),
                    None => gone.push(queue.to_owned()),
                }
            }
        }
        for queue in gone {
            self.watched.remove(&queue);
        }
        Ok(counts)
    }

    /// Takes what is left in the queues, then removes everything.
    fn finish(&mut self, program: &[Step]) -> io::Result<Vec<String>> {
        self.step += 1;
        let mut lines = Vec::new();
        for id in 0..CONNECTIONS {
            self.close_channels(id, 0, &mut lines)?;
        }
        self.settle(&mut lines)?;
        let counts = std::mem::take(&mut self.counts);
        let mut counts: Vec<_> =
            counts.into_iter().map(|(queue, count)| (self.names.tidy(&queue), queue, count)).collect();
        counts.sort();
        for (name, queue, (messages, consumers)) in counts {
            lines.push(format!("at last {name}: {messages} messages, {consumers} consumers"));
            let owner = self.watched.get(&queue).copied().flatten();
            let link = match owner.and_then(|id| self.sessions.get_mut(&id)) {
                Some(session) => &mut session.link,
                None => &mut *self.control,
            };
            for event in drain(link, &queue, messages)? {
                if let Event::Got { text, .. } = event {
                    lines.push(format!("left in {name}: {}", self.names.tidy(&text)));
                }
            }
        }
        for session in self.sessions.values_mut() {
            session.link.close()?;
        }
        self.remove_exchanges(program)?;
        Ok(lines)
    }

    /// Closes channels of a connection, all but the last `spared`, one after the other: what one gives back may go to
    /// consumers of another, and must not depend on which is closed first.
    fn close_channels(&mut self, connection: u8, spared: usize, lines: &mut Vec<String>) -> io::Result<()> {
        let open = self.sessions.get(&connection).map(Session::open_channels).unwrap_or_default();
        for &id in open.iter().take(open.len().saturating_sub(spared)) {
            if let Some(session) = self.sessions.get_mut(&connection) {
                session.link.close_channel(id);
            }
            self.settle(lines)?;
        }
        Ok(())
    }

    fn remove_exchanges(&mut self, program: &[Step]) -> io::Result<()> {
        ensure_channel(self.control, CONTROL_CHANNEL);
        for step in program {
            if let Op::DeclareExchange(declare) = &step.op
                && declare.exchange.starts_with('e')
            {
                let exchange = self.names.wire(&declare.exchange);
                let delete = amqp::method::exchange::Delete { exchange: &exchange, ..Default::default() };
                self.control.send(CONTROL_CHANNEL, delete);
            }
        }
        self.control.sync()?;
        self.control.events.clear();
        Ok(())
    }
}

/// Whether the program may make queues of type quorum.
pub(crate) fn has_quorum_queues(program: &[Step]) -> bool {
    program.iter().any(|step| match &step.op {
        Op::DeclareQueue(declare) => {
            declare.arguments.get("x-queue-type").and_then(Value::as_str) == Some("quorum")
        }
        _ => false,
    })
}

/// Takes the number of consumers out of a line: RabbitMQ counts whoever has got a message from a quorum queue and has
/// not settled it.
fn hide_consumers(line: &mut String) {
    if let Some(at) = line.rfind(" messages, ").filter(|_| line.ends_with(" consumers")) {
        line.truncate(at + " messages".len());
    }
}

/// Messages and consumers, or nothing when there is no such queue.
fn count_queue(link: &mut Link, queue: &str) -> io::Result<Option<(u32, u32)>> {
    ensure_channel(link, CONTROL_CHANNEL);
    let passive = amqp::method::queue::Declare { queue, passive: true, ..Default::default() };
    link.send(CONTROL_CHANNEL, passive);
    let answers = exchange(link)?;
    Ok(answers.iter().find_map(|event| match event {
        Event::Declared { messages, consumers, .. } => Some((*messages, *consumers)),
        _ => None,
    }))
}

/// Gets all messages of a queue and deletes it.
fn drain(link: &mut Link, queue: &str, messages: u32) -> io::Result<Vec<Event>> {
    ensure_channel(link, CONTROL_CHANNEL);
    for _ in 0..messages {
        let get = amqp::method::basic::Get { queue, no_ack: true, ..Default::default() };
        link.send(CONTROL_CHANNEL, get);
    }
    link.send(CONTROL_CHANNEL, amqp::method::queue::Delete { queue, ..Default::default() });
    exchange(link)
}

/// What comes in on the control channel until all sent there is answered; other channels' events stay.
fn exchange(link: &mut Link) -> io::Result<Vec<Event>> {
    link.sync()?;
    let (answers, rest) =
        std::mem::take(&mut link.events).into_iter().partition(|(id, _)| *id == CONTROL_CHANNEL);
    link.events = rest;
    let answers: Vec<(u16, Event)> = answers;
    Ok(answers.into_iter().map(|(_, event)| event).collect())
}

fn ensure_channel(link: &mut Link, channel: u16) {
    if !link.channels.contains(&channel) {
        link.open_channel(channel);
    }
}

/// The short time to live in programs that wait; as in `definitions.py`.
pub(crate) const SHORT_MILLISECONDS: u64 = 2000;
/// Outlasts the short time once, and not twice: what moved on when it ended has another one before it.
const WAIT: Duration = Duration::from_millis(SHORT_MILLISECONDS * 3 / 2);
/// What is left of either time for the steps.
const MAX_BUSY: Duration = Duration::from_millis(SHORT_MILLISECONDS * 9 / 20);
/// Why a run in which time passes says nothing.
pub(crate) const TOO_SLOW: &str = "the machine was too slow for the program's times to live";
/// The channel that counts queues; programs use lower ones.
pub(crate) const CONTROL_CHANNEL: u16 = 9;
/// How long a broker may take to notice that a socket was closed.
const HANG_UP: Duration = Duration::from_millis(25);
/// A pause that outlasts what may be on its way inside a busy broker.
const CAREFUL_PAUSE: Duration = Duration::from_millis(4);
/// More rounds than any chain of dead letters in a program takes.
const MAX_ROUNDS: usize = 500;
