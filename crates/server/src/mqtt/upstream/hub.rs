//! The sessions of all MQTT clients in front of an upstream: their owners, and what this process knows of detached
//! sessions.

use std::sync::{Arc, Weak};

use amqp::Fault;
use broker::{Compatibility, Timestamp};
use mqtt::server::MqttSettings;
use mqtt::session::Session;
use sync::{Mutex, Rank};
use tokio::sync::oneshot;

use super::delayed_wills::{DelayedWills, WillTotals};
use super::detached_ages::{DetachedAge, DetachedAges};
use super::group_table::{GroupTable, GroupTotals};
use super::retained::RetainedLogs;
use super::session_takeover::{TakenBy, Takeovers};
use super::shown::{DetachedMqttSession, SESSIONS_AT_ONCE};
use super::state::{MAX_RECEIVED, StaleConsumers};
use crate::clock::Clock;
use crate::mqtt::MqttConfig;
use crate::mqtt::detached::lease;
use crate::mqtt::hub::ForeignSession;
use crate::mqtt::missing_exchange::MissingExchange;
use crate::mqtt::session_ownership::{Claim, Claims, Detached, Owner, SessionHolder, SessionUser};
use crate::upstream::client::misses_exchange;

/// A connection's claim to a session upstream.
pub(super) type UpstreamClaim = Claim<DetachedUpstream>;

/// All sessions of this process.
pub(crate) struct UpstreamHub {
    pub(crate) config: MqttConfig,
    /// The settings of MQTT 5.0 clients, indexed by RabbitMQ 3.10 or 4, then by whether the session outlives the
    /// connection, then by whether messages are retained.
    settings: [[[Arc<MqttSettings>; 2]; 2]; 2],
    pub(super) clock: Clock,
    sessions: Mutex<UpstreamSessions, { Rank::MqttSessions as u8 }>,
    pub(super) wills: Arc<DelayedWills>,
    pub(super) takeovers: Arc<Takeovers>,
    pub(super) retained: Arc<RetainedLogs>,
    pub(super) groups: Arc<GroupTable>,
    missing_exchange: MissingExchange,
    /// A reference to itself.
    pub(super) weak: Weak<Self>,
}

/// Totals of a server's MQTT clients in front of an upstream, including the state kept for disconnected clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MqttUpstreamTotals {
    /// Sessions whose connection has ended and that this process remembers.
    pub detached_sessions: usize,
    /// Approximate bytes of these sessions.
    pub detached_bytes: usize,
    /// Wills whose delay has not passed.
    pub delayed_wills: usize,
    /// Approximate bytes of these wills.
    pub delayed_will_bytes: usize,
    /// Shared-subscription groups with members connected to this server.
    pub groups: usize,
    /// Members connected to this server, counted once per group.
    pub group_members: u64,
    /// Messages sent to members since the start.
    pub group_delivered: u64,
    /// Topics with a retained message.
    pub retained_topics: usize,
    /// Bytes of their entries upstream.
    pub retained_bytes: u64,
}

#[derive(Default)]
struct UpstreamSessions {
    claims: Claims<DetachedUpstream>,
    /// The detached sessions, in the order in which they were detached.
    ages: DetachedAges,
    /// Clients that another consumer keeps from their state queue.
    stale_consumers: StaleConsumers,
}

/// A session whose connection has ended, as far as this process knows it. Its messages are in its queue upstream.
pub(super) struct DetachedUpstream {
    pub(super) user: Box<str>,
    /// The session's subscriptions.
    pub(super) session: Session,
    /// Whether it has a queue upstream. Only this process knows a session without one.
    pub(super) has_queue: bool,
    /// Seconds that the session outlives its connection; `u32::MAX` forever.
    pub(super) expiry: u32,
    /// When the connection ended.
    pub(super) since: Timestamp,
    /// A delayed will. Sending publishes it at once; dropping the sender discards it.
    pub(super) will: Option<oneshot::Sender<()>>,
    /// Its entry in [`DetachedAges`], while it has one.
    pub(super) age: Option<DetachedAge>,
    /// Whether the session was forgotten because of the memory limit: only its will is kept.
    pub(super) is_forgotten: bool,
}

impl DetachedUpstream {
    /// When the session expires, if ever.
    fn ends(&self) -> Option<Timestamp> {
        lease(self.expiry).map(|lease| self.since.after(lease))
    }

    /// Whether it has expired by `now`.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.ends().is_some_and(|end| end <= now)
    }

    /// Whether it has a will that is neither published nor discarded.
    fn has_will(&self) -> bool {
        self.will.as_ref().is_some_and(|will| !will.is_closed())
    }

    /// Called when another server has taken over the session, or has ended it and so made its will due.
    pub(super) fn taken(self, by: TakenBy) {
        match by {
            TakenBy::Resuming => drop(self),
            TakenBy::Clean => self.end(),
        }
    }

    /// Ends the session, which makes its will due.
    pub(super) fn end(mut self) {
        if let Some(will) = self.will.take() {
            // Fails if the will has been published already.
            let _ = will.send(());
        }
    }
}

impl Detached for DetachedUpstream {
    fn user(&self) -> Option<SessionUser> {
        Some(SessionUser::named(&self.user))
    }

    fn due(&self) -> Option<Timestamp> {
        self.ends()
    }
}

impl UpstreamHub {
    /// Without sessions.
    pub(crate) fn new(config: MqttConfig, clock: Clock) -> Arc<Self> {
        let maximum = config.settings.receive_maximum;
        let settings = [Compatibility::V3_10, Compatibility::V4].map(|compatibility| {
            // Bounded since the state queue keeps the messages of QoS 2 that a client has not released.
            [maximum, maximum.min(MAX_RECEIVED)].map(|receive_maximum| {
                [false, true].map(|retain| {
                    let always_sends_session_expiry = compatibility.always_sends_session_expiry();
                    let settings = (*config.settings).clone();
                    Arc::new(MqttSettings {
                        receive_maximum,
                        always_sends_session_expiry,
                        retain,
                        ..settings
                    })
                })
            })
        });
        let (sessions, wills, groups, missing_exchange) = Default::default();
        let (takeovers, retained) = (Takeovers::new(), RetainedLogs::new(clock, &config.exchange));
        Arc::new_cyclic(|hub| {
            let weak = Weak::clone(hub);
            Self {
                config,
                settings,
                clock,
                sessions,
                wills,
                takeovers,
                retained,
                groups,
                missing_exchange,
                weak,
            }
        })
    }

    /// Called if the upstream has refused a client's request. If that is because `mqtt_exchange` is missing, logs it and
    /// returns true.
    pub(super) fn note_refused(&self, vhost: &str, fault: &Fault) -> bool {
        let is_missing = misses_exchange(fault, &self.config.exchange);
        if is_missing {
            self.missing_exchange.found(vhost, &self.config.exchange);
        }
        is_missing
    }

    /// The settings of a client of 5.0.
    pub(super) fn settings(
        &self,
        compatibility: Compatibility,
        is_persistent: bool,
        retains: bool,
    ) -> &Arc<MqttSettings> {
        let of_release = &self.settings[usize::from(compatibility == Compatibility::V4)];
        &of_release[usize::from(is_persistent)][usize::from(retains)]
    }

    /// The longest session expiry, in milliseconds, as far as RabbitMQ accepts it for a queue.
    pub(super) fn longest_lease(&self) -> u64 {
        (u64::from(self.config.settings.session_expiry_maximum) * 1000).min(u64::from(u32::MAX))
    }

    /// Claims a session. The claim's outbox is nudged when it is granted, or superseded by another one.
    ///
    /// # Errors
    /// Fails if the session belongs to another user.
    pub(super) fn claim(&self, owner: &Arc<Owner>, claim: &Arc<UpstreamClaim>) -> Result<(), ForeignSession> {
        let mut sessions = self.sessions.lock();
        if matches!(sessions.claims.holder(owner), SessionHolder::User(user) if claim.is_foreign_to(&user)) {
            return Err(ForeignSession);
        }
        sessions.leaves(owner);
        sessions.claims.claim(owner, claim);
        Ok(())
    }

    /// Called when the client of a detached session has connected to another server: removes the session, which is
    /// outdated here.
    pub(super) fn forget(&self, owner: &Owner, user: &str, by: TakenBy) {
        let detached_session = self.sessions.lock().take(owner, user);
        if let Some(detached_session) = detached_session {
            detached_session.taken(by);
        }
    }

    /// Called when another connection consumes from a client's state queue and keeps it. Returns true if that has lasted
    /// for longer than a live connection would need to give it up.
    pub(super) fn note_state_in_use(&self, owner: &Arc<Owner>) -> bool {
        let now = self.clock.timestamp(transport::now());
        let is_stale = self.sessions.lock().stale_consumers.refuse(owner, now);
        if is_stale {
            tracing::warn!(
                vhost = &*owner.vhost,
                client = &*owner.client_id,
                "deleting a state queue: another connection consumes from it, and no server has given it up for minutes"
            );
        }
        is_stale
    }

    /// Called when a client is admitted, and so no longer kept from its state queue.
    pub(super) fn note_admitted(&self, owner: &Owner) {
        self.sessions.lock().stale_consumers.forget(owner);
    }

    /// Called at shutdown: publishes delayed wills, and ends what clients share upstream with the last client.
    pub(crate) fn drain(&self) {
        self.takeovers.drain();
        self.retained.drain();
        self.wills.drain();
    }

    /// Waits until all teardowns of ended connections are done.
    pub(crate) async fn finished(&self) {
        self.wills.finished().await;
    }

    /// Called when a connection that has claimed a session has ended. Also removes expired sessions, whose queues expire
    /// upstream and whose wills are due. Above the memory limit the oldest sessions are forgotten, except for their
    /// wills, since they have not ended.
    pub(super) fn release(
        &self,
        owner: &Arc<Owner>,
        claim: &Arc<UpstreamClaim>,
        left: Option<Box<DetachedUpstream>>,
    ) {
        let now = self.clock.timestamp(transport::now());
        let mut sessions = self.sessions.lock();
        sessions.claims.release(owner, claim, left);
        let mut forgotten: Vec<_> = sessions.detach(owner).into_iter().collect();
        let expired: Vec<_> = std::iter::from_fn(|| sessions.take_due(now)).take(MAX_EXPIRED).collect();
        forgotten.extend(std::iter::from_fn(|| sessions.take_excess()));
        drop(sessions);
        expired.into_iter().for_each(|detached_session| detached_session.end());
        // Freed after unlocking.
        drop(forgotten);
    }

    /// Called when the delay of a client's will has passed: drops the record of a forgotten session.
    pub(super) fn will_is_due(&self, owner: &Owner) {
        let mut sessions = self.sessions.lock();
        let is_of_no_use = |detached_session: &mut DetachedUpstream| {
            detached_session.is_forgotten && !detached_session.has_will()
        };
        if sessions.claims.detached(owner).is_some_and(is_of_no_use) {
            sessions.forget(owner);
        }
    }

    /// The detached sessions for operators, oldest first. The lock is released every [`SESSIONS_AT_ONCE`] of them.
    pub(crate) fn detached(&self) -> Vec<DetachedMqttSession> {
        let (mut all, mut last) = (Vec::new(), 0);
        loop {
            let mut sessions = self.sessions.lock();
            let UpstreamSessions { claims, ages, .. } = &mut *sessions;
            let before = last;
            for (number, owner) in ages.after(last).take(SESSIONS_AT_ONCE) {
                last = number;
                let detached_session = claims.detached(owner);
                all.extend(
                    detached_session
                        .map(|detached_session| DetachedMqttSession::of(owner, detached_session, self.clock)),
                );
            }
            if last == before {
                return all;
            }
        }
    }

    /// The totals of all clients, for operators.
    pub(crate) fn totals(&self) -> MqttUpstreamTotals {
        let (detached_sessions, detached_bytes) = self.sessions.lock().ages.totals();
        let WillTotals { wills: delayed_wills, bytes: delayed_will_bytes } = self.wills.totals();
        let GroupTotals { groups, members: group_members, delivered: group_delivered } = self.groups.totals();
        let retained = self.retained.status();
        MqttUpstreamTotals {
            detached_sessions,
            detached_bytes,
            delayed_wills,
            delayed_will_bytes,
            groups,
            group_members,
            group_delivered,
            retained_topics: retained.iter().map(|log| log.topics).sum(),
            retained_bytes: retained.iter().map(|log| log.bytes).sum(),
        }
    }
}

impl UpstreamSessions {
    /// Adds a session to the ages if it is detached now. Returns it if it is too large to be remembered.
    fn detach(&mut self, owner: &Arc<Owner>) -> Option<Session> {
        let Self { claims, ages, .. } = self;
        let detached_session =
            claims.detached(owner).filter(|detached_session| detached_session.age.is_none())?;
        if !detached_session.is_forgotten {
            detached_session.age = ages.add(owner, &detached_session.session);
        }
        detached_session.age.is_none().then(|| self.forget(owner)).flatten()
    }

    /// Forgets a detached session, except for its will.
    fn forget(&mut self, owner: &Owner) -> Option<Session> {
        let detached_session = self.claims.detached(owner)?;
        if !detached_session.has_will() {
            let user = detached_session.user.clone();
            return self.take(owner, &user).map(|detached_session| detached_session.session);
        }
        detached_session.is_forgotten = true;
        let (session, age) =
            (std::mem::replace(&mut detached_session.session, Session::new()), detached_session.age.take());
        age.into_iter().for_each(|age| self.ages.remove(age));
        Some(session)
    }

    /// Removes a detached session from the ages, as it is about to be granted.
    fn leaves(&mut self, owner: &Owner) {
        if let Some(age) =
            self.claims.detached(owner).and_then(|detached_session| detached_session.age.take())
        {
            self.ages.remove(age);
        }
    }

    fn take(&mut self, owner: &Owner, user: &str) -> Option<Box<DetachedUpstream>> {
        let detached_session = self.claims.take_detached(owner, &SessionUser::named(user))?;
        if let Some(age) = detached_session.age {
            self.ages.remove(age);
        }
        Some(detached_session)
    }

    fn take_due(&mut self, now: Timestamp) -> Option<Box<DetachedUpstream>> {
        let (_, detached_session) = self.claims.take_due(now)?;
        if let Some(age) = detached_session.age {
            self.ages.remove(age);
        }
        Some(detached_session)
    }

    /// Forgets the oldest session if the limit is exceeded.
    fn take_excess(&mut self) -> Option<Session> {
        let owner = Arc::clone(self.ages.excess()?);
        self.forget(&owner)
    }
}

/// The maximum of expired sessions removed per ended connection: more than expire in between.
const MAX_EXPIRED: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use transport::Outbox;

    use super::*;

    fn hub() -> Arc<UpstreamHub> {
        let settings = Arc::new(MqttSettings::default());
        let config = MqttConfig::of_test(settings);
        UpstreamHub::new(config, Clock::start())
    }

    fn claim(hub: &UpstreamHub, owner: &Arc<Owner>, user: &str) -> Option<Arc<UpstreamClaim>> {
        let claim = Claim::new(&Arc::new(Outbox::new(1)), Some(SessionUser::named(user)));
        hub.claim(owner, &claim).ok().map(|()| claim)
    }

    #[test]
    fn a_session_is_its_users_and_is_forgotten_when_it_has_expired() {
        let hub = hub();
        let owner = |name: &str| Arc::new(Owner { vhost: "/".into(), client_id: name.into() });
        let (mine, other) = (owner("mine"), owner("other"));
        let first = claim(&hub, &mine, "me").unwrap();
        assert!(first.take_granted().unwrap().is_none());
        let (will, mut published) = oneshot::channel();
        let since = hub.clock.timestamp(Instant::now());
        let detached_session = |expiry, will| {
            let (user, session) = ("me".into(), Session::new());
            Some(Box::new(DetachedUpstream {
                user,
                session,
                has_queue: true,
                expiry,
                since,
                will,
                age: None,
                is_forgotten: false,
            }))
        };
        hub.release(&mine, &first, detached_session(60, Some(will)));
        let reported: Vec<_> =
            hub.detached().iter().map(|each| (each.client_id.clone(), each.expiry)).collect();
        assert_eq!(reported, [("mine".to_owned(), 60)]);
        assert!(claim(&hub, &mine, "you").is_none());
        let second = claim(&hub, &mine, "me").unwrap();
        assert!(
            second.take_granted().flatten().is_some_and(|detached_session| !detached_session.is_over(since))
        );
        assert_eq!(hub.detached(), [], "its client is connected");
        assert!(published.try_recv() == Err(oneshot::error::TryRecvError::Closed), "client reconnected");
        // A session expiry of zero has passed.
        let (will, mut published) = oneshot::channel();
        hub.release(&mine, &second, detached_session(0, Some(will)));
        let others = claim(&hub, &other, "you").unwrap();
        hub.release(&other, &others, None);
        assert_eq!(published.try_recv(), Ok(()));
        assert!(claim(&hub, &mine, "you").is_some(), "the identifier is free for any user");
    }

    #[test]
    fn detached_sessions_are_listed_oldest_first_and_each_once() {
        let hub = hub();
        let count = 2 * SESSIONS_AT_ONCE + 1;
        let since = hub.clock.timestamp(Instant::now());
        for number in 0..count {
            let owner = Arc::new(Owner { vhost: "/".into(), client_id: number.to_string().into() });
            let claim = claim(&hub, &owner, "me").unwrap();
            claim.take_granted();
            let detached_session = DetachedUpstream {
                user: "me".into(),
                session: Session::new(),
                has_queue: true,
                expiry: u32::MAX,
                since,
                will: None,
                age: None,
                is_forgotten: false,
            };
            hub.release(&owner, &claim, Some(Box::new(detached_session)));
        }
        let listed: Vec<_> = hub.detached().into_iter().map(|each| each.client_id).collect();
        assert_eq!(listed, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    /// A hub whose limit fits one detached session.
    fn small_hub() -> Arc<UpstreamHub> {
        let hub = hub();
        hub.sessions.lock().ages = DetachedAges::with_limit(1000);
        hub
    }

    /// Detaches a client's session with a delayed will.
    fn leave(hub: &UpstreamHub, client_id: &str, expiry: u32) -> (Arc<Owner>, oneshot::Receiver<()>) {
        let owner = Arc::new(Owner { vhost: "/".into(), client_id: client_id.into() });
        let claim = claim(hub, &owner, "me").unwrap();
        claim.take_granted();
        let (will, published) = oneshot::channel();
        let detached_session = DetachedUpstream {
            user: "me".into(),
            session: Session::new(),
            has_queue: true,
            expiry,
            since: hub.clock.timestamp(transport::now()),
            will: Some(will),
            age: None,
            is_forgotten: false,
        };
        hub.release(&owner, &claim, Some(Box::new(detached_session)));
        (owner, published)
    }

    #[test]
    fn the_will_of_a_session_that_is_forgotten_for_lack_of_capacity_waits_on() {
        let waits = Err(oneshot::error::TryRecvError::Empty);
        let discarded = Err(oneshot::error::TryRecvError::Closed);
        for (by, fate) in [(TakenBy::Resuming, discarded), (TakenBy::Clean, Ok(()))] {
            let hub = small_hub();
            let (first, mut will) = leave(&hub, "first", 60);
            let (_second, _) = leave(&hub, "second", 60);
            let known: Vec<_> = hub.detached().into_iter().map(|each| each.client_id).collect();
            assert_eq!((known, will.try_recv()), (vec!["second".to_owned()], waits.clone()));
            hub.forget(&first, "me", by);
            assert_eq!(will.try_recv(), fate, "{by:?}");
            assert!(claim(&hub, &first, "you").is_some(), "the identifier is free for any user");
        }
        let hub = small_hub();
        let (first, mut will) = leave(&hub, "first", 60);
        leave(&hub, "second", 60);
        let back = claim(&hub, &first, "me").unwrap();
        let detached_session = back.take_granted().flatten().unwrap();
        assert!(detached_session.is_forgotten && will.try_recv() == waits);
        // The client disconnects before it is admitted, and its will is due then.
        hub.release(&first, &back, Some(detached_session));
        assert_eq!((hub.detached().len(), will.try_recv()), (1, waits));
        drop(will);
        hub.will_is_due(&first);
        assert!(claim(&hub, &first, "you").is_some(), "the session's record is dropped");
    }

    #[test]
    fn the_record_of_a_forgotten_session_is_dropped_with_its_will_or_expiry() {
        let hub = small_hub();
        let (first, will) = leave(&hub, "first", 60);
        leave(&hub, "second", 60);
        let back = claim(&hub, &first, "me").unwrap();
        let detached_session = back.take_granted().flatten();
        // The will is due while the client is being admitted.
        drop(will);
        hub.will_is_due(&first);
        hub.release(&first, &back, detached_session);
        assert!(claim(&hub, &first, "you").is_some(), "the session's record is dropped");
        // A delay of 0 seconds.
        let (_third, mut will) = leave(&hub, "third", 0);
        leave(&hub, "fourth", 60);
        assert_eq!(will.try_recv(), Ok(()));
    }
}
