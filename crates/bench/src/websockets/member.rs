//! One connection of a fleet: subscribes to its own topic, publishes to it now and then, and receives its messages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use super::arguments::WebSocketsSettings;
use super::error::MemberError;
use super::session::{SessionEvent, WebSocketSession, message_kind, session};
use super::tally::Tally;
use super::target::Target;
use super::wire::Wire;
use crate::random::Random;

/// How long a server may take to connect, upgrade, log in and subscribe a client.
const OPENING_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between a bystander's messages.
const BYSTANDER_INTERVAL: Duration = Duration::from_millis(20);

/// The current task of all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Publish and receive.
    Hold,
    /// All but the bystanders drop their connections.
    Drop,
    /// The bystanders drop theirs, too.
    End,
}

/// State shared by the members of a fleet.
pub(super) struct FleetState {
    pub(super) target: Target,
    pub(super) address: SocketAddr,
    pub(super) settings: WebSocketsSettings,
    /// Distinguishes the topics of this run from those of other runs.
    pub(super) run: u64,
    pub(super) start: Instant,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) open: AtomicUsize,
    pub(super) tally: Mutex<Tally>,
    /// The reason why the first connection was lost, and the number of lost connections.
    pub(super) lost: Mutex<(Option<String>, u64)>,
}

impl FleetState {
    /// Calls `work` with the tally and the time in nanoseconds, both read under the tally's lock.
    pub(super) fn tally<T>(&self, work: impl FnOnce(&mut Tally, u64) -> T) -> T {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut tally, self.start.elapsed().as_nanos() as u64)
    }

    /// The topic of the member with this number. Each bystander has its own, since it publishes much more than an
    /// ordinary member.
    fn topic(&self, number: u32, role: Role) -> String {
        match (self.settings.topics, role) {
            (Some(topics), Role::Ordinary) => self.name(number % topics),
            _ => self.name(number),
        }
    }

    /// A unique name of a client or topic.
    fn name(&self, number: u32) -> String {
        format!("leveret.bench.{:x}.{number}", self.run)
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// One of very many.
    Ordinary,
    /// Publishes continuously, to measure the effect of dropping the other connections.
    Bystander,
}

/// Opens the connection with this number.
///
/// # Errors
/// It cannot be opened, or not in time.
pub(super) async fn open(shared: Arc<FleetState>, number: u32, role: Role) -> Result<Member, MemberError> {
    match timeout(OPENING_TIMEOUT, Member::open(shared, number, role)).await {
        Ok(opened) => opened,
        Err(_) => Err(MemberError::TimedOut),
    }
}

/// An open connection.
pub(super) struct Member {
    shared: Arc<FleetState>,
    number: u32,
    role: Role,
    wire: Wire,
    session: Box<dyn WebSocketSession>,
    next_publish: Instant,
    next_heartbeat: Option<Instant>,
    random: Random,
    /// Whether it counts as open.
    subscribed: bool,
}

impl Member {
    async fn open(shared: Arc<FleetState>, number: u32, role: Role) -> Result<Self, MemberError> {
        let heartbeat = shared.settings.heartbeat;
        let source = shared.settings.source(shared.address, number);
        let wire = Wire::open(&shared.target, shared.address, source).await?;
        let (name, topic) = (shared.name(number), shared.topic(number, role));
        let session = session(&shared.target, &name, &topic, heartbeat);
        let now = Instant::now();
        let mut member = Self {
            next_publish: now,
            next_heartbeat: (!heartbeat.is_zero()).then(|| now + heartbeat / 2),
            random: Random::new(number.into()),
            subscribed: false,
            shared,
            number,
            role,
            wire,
            session,
        };
        let first = member.interval().mul_f64(member.fraction());
        member.next_publish += first;
        let mut out = Vec::new();
        member.session.begin(&mut out);
        loop {
            member.send(&out).await?;
            out.clear();
            match member.session.handle(&mut member.wire.payload, &mut out)? {
                Some(SessionEvent::Subscribed) => break,
                Some(SessionEvent::Delivery(_)) if member.shared.settings.topics.is_some() => {}
                Some(SessionEvent::Delivery(_)) => {
                    return Err(MemberError::Unexpected("unexpected message"));
                }
                None if out.is_empty() => member.wire.receive().await?,
                None => {}
            }
        }
        member.subscribed = true;
        member.shared.open.fetch_add(1, Relaxed);
        Ok(member)
    }

    /// Publishes, receives and sends heartbeats until the phase or the server ends it.
    pub(super) async fn run(mut self) {
        let mut phase = self.shared.phase.subscribe();
        let ended = loop {
            match (*phase.borrow_and_update(), self.role) {
                (Phase::Hold, _) | (Phase::Drop, Role::Bystander) => {}
                (Phase::Drop | Phase::End, _) => break None,
            }
            let due = self.next_heartbeat.map_or(self.next_publish, |beat| beat.min(self.next_publish));
            tokio::select! {
                changed = phase.changed() => if changed.is_err() { break None },
                received = self.wire.receive() => if let Err(why) = received.and_then(|()| self.take()) {
                    break Some(why);
                },
                () = sleep_until(due.into()) => if let Err(why) = self.act().await {
                    break Some(why);
                },
            }
        };
        if let Some(why) = ended
            && let Ok(mut lost) = self.shared.lost.lock()
        {
            lost.0.get_or_insert_with(|| why.to_string());
            lost.1 += 1;
        }
    }

    /// Handles the messages received.
    fn take(&mut self) -> Result<(), MemberError> {
        let mut out = Vec::new();
        while let Some(met) = self.session.handle(&mut self.wire.payload, &mut out)? {
            let SessionEvent::Delivery(body) = met else {
                return Err(MemberError::Unexpected("subscribed twice"));
            };
            let (sent, publisher) =
                parse(&body).ok_or(MemberError::Unexpected("a message that is not ours"))?;
            // Another subscriber of the topic has published it.
            if publisher != self.number {
                continue;
            }
            self.shared.tally(|tally, now| tally.receive(sent, now, self.role));
        }
        if self.wire.payload.is_empty() {
            self.wire.payload = Vec::new();
        }
        Ok(())
    }

    /// Sends the messages and heartbeats that are due.
    async fn act(&mut self) -> Result<(), MemberError> {
        let now = Instant::now();
        let mut out = Vec::new();
        if self.next_heartbeat.is_some_and(|due| due <= now) {
            self.session.heartbeat(&mut out);
            self.next_heartbeat = Some(now + self.shared.settings.heartbeat / 2);
            self.send(&out).await?;
            out.clear();
        }
        if self.next_publish <= now {
            // A tenth more or less, so that the members do not synchronise.
            self.next_publish = now + self.interval().mul_f64(0.9 + 0.2 * self.fraction());
            let sent = self.shared.tally(|tally, now| tally.publish(now, self.role));
            let body = format!("{sent} {}", self.number);
            self.session.publish(body.as_bytes(), &mut out);
        }
        self.send(&out).await
    }

    async fn send(&mut self, out: &[u8]) -> Result<(), MemberError> {
        if out.is_empty() {
            return Ok(());
        }
        self.wire.send(message_kind(self.shared.target.protocol), out).await
    }

    /// The interval between messages.
    fn interval(&self) -> Duration {
        match self.role {
            Role::Ordinary => self.shared.settings.interval,
            Role::Bystander => BYSTANDER_INTERVAL,
        }
    }

    /// A random number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.random.next() as f64 / u64::MAX as f64
    }
}

/// When a message was published, in nanoseconds, and the number of its publisher.
fn parse(body: &[u8]) -> Option<(u64, u32)> {
    let (sent, number) = std::str::from_utf8(body).ok()?.trim().split_once(' ')?;
    Some((sent.parse().ok()?, number.parse().ok()?))
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.subscribed {
            self.shared.open.fetch_sub(1, Relaxed);
        }
    }
}
