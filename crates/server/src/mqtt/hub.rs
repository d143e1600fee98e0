//! The sessions of all MQTT clients of the embedded broker: their connections, and detached sessions.
//!
//! Connections [claim](super::session_ownership) sessions. A detached session is kept until it expires ([`Hub::expire`]). A
//! session belongs to a user: another user who connects with the same client name is refused, and the connection that has the
//! session continues.
//!
//! A deleted virtual host's sessions and retained messages are deleted with it ([`Hub::forget_vhost`]). Its connections
//! may exist for a moment longer, and another virtual host of that name may be created: so connections pass their
//! `VirtualHost`, and operations on a deleted one have no effect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use broker::{
    Body, Broker, BrokerError, CatalogueError, Change, Publish, Queue, Returned, Section, SessionId, Store,
    Ticket, Timestamp, VirtualHost,
};
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use mqtt::server::StoredWill;
use mqtt::topic::{TopicFilter, routing_key_to_topic};
use sync::{Mutex, Rank, RwLock, work};
use tokio::sync::Notify;

use super::MqttConfig;
use super::detached::{DetachedSession, WillAuthor, Written, lease};
use super::disk;
use super::error::{MqttRestoreError, WillError};
use super::in_flight::{self, InFlightOf};
use super::leftovers;
use super::message::{Incoming, MessageMapping, to_amqp};
use super::missing_exchange::MissingExchange;
use super::native;
use super::pending_retained;
use super::received::{AfterCrash, ReceivedRecord};
use super::retained::{self, Retained};
use super::session_ownership::{Claim, Claims, Owner, SessionHolder, SessionUser};
use super::subscriptions::Class;
use crate::clock::Clock;
use crate::registry::OpenConnection;

/// The hub's own session id. No connection has it, since their ids start at 1.
pub(super) const NOBODY: SessionId = SessionId(0);

/// A connection's claim to a session of the embedded broker.
pub(super) type BrokerClaim = Claim<DetachedSession>;

/// All sessions, and the retained messages.
pub(crate) struct Hub {
    /// A reference to itself, for the tasks that it starts.
    this: Weak<Self>,
    broker: Arc<Broker>,
    pub(super) config: MqttConfig,
    clock: Clock,
    sessions: Mutex<Sessions, { Rank::MqttSessions as u8 }>,
    retained: RwLock<HashMap<Arc<str>, Arc<Retained>>, { Rank::RetainedTrees as u8 }>,
    /// Notified when the next deadline has become earlier.
    changed: Notify,
    missing_exchange: MissingExchange,
    /// Set at shutdown: from then on no will is published, and no session expires.
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct Sessions {
    claims: Claims<DetachedSession>,
    /// The number of sessions that share each queue of a shared subscription.
    groups: HashMap<leftovers::GroupQueueKey, usize>,
}

/// The session belongs to another user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForeignSession;

impl Hub {
    pub(super) fn new(broker: Arc<Broker>, config: MqttConfig, clock: Clock) -> Arc<Self> {
        let (sessions, retained, changed, missing_exchange) = Default::default();
        let hub = Arc::new_cyclic(|this| {
            let (this, is_stopped) = (Weak::clone(this), AtomicBool::new(false));
            Self { this, broker, config, clock, sessions, retained, changed, missing_exchange, is_stopped }
        });
        let weak = Arc::downgrade(&hub);
        let forget = move |vhost: &str| {
            if let Some(hub) = weak.upgrade() {
                hub.forget_vhost(vhost);
            }
        };
        hub.broker.on_vhost_deleted(Box::new(forget));
        hub
    }

    /// Removes the sessions and retained messages of a deleted virtual host. Its records on disk are already deleted.
    fn forget_vhost(&self, vhost: &str) {
        let mut sessions = self.sessions.lock();
        sessions.groups.retain(|(of, _), _| **of != *vhost);
        let (claims, _detached) = sessions.claims.remove_vhost(vhost);
        drop(sessions);
        claims.iter().for_each(|claim| claim.supersede());
        self.retained.write().remove(vhost);
    }

    /// Called if the broker has refused a client's request. If that is because `mqtt_exchange` is missing, logs it and
    /// returns true.
    pub(super) fn note_refused(&self, vhost: &VirtualHost, error: &BrokerError) -> bool {
        let exchange = &*self.config.exchange;
        let is_missing = matches!(error, BrokerError::NoExchange { name, .. } if name == exchange);
        if is_missing {
            self.missing_exchange.found(vhost.name(), exchange);
        }
        is_missing
    }

    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.broker.store()
    }

    pub(super) fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// The retained messages of a virtual host; none if it is gone.
    pub(super) fn retained(&self, vhost: &Arc<VirtualHost>) -> Arc<Retained> {
        let retained = self.retained.read();
        let is_gone = vhost.is_gone();
        if let Some(found) = retained.get(vhost.name()).filter(|_| !is_gone) {
            return Arc::clone(found);
        }
        drop(retained);
        let new = || Arc::new(Retained::new(vhost));
        let mut retained = self.retained.write();
        if vhost.is_gone() {
            return new();
        }
        Arc::clone(retained.entry(vhost.name().into()).or_insert_with(new))
    }

    /// Claims a session. The claim's outbox is nudged when the claim is granted or superseded, at once if the virtual
    /// host is gone. `may_adopt` returns whether the user may take a session without a recorded user. A deleted user's
    /// session is granted to any claimant, who has to end it.
    ///
    /// # Errors
    /// Fails if the session belongs to another user.
    pub(super) fn claim(
        &self,
        owner: &Arc<Owner>,
        vhost: &VirtualHost,
        claim: &Arc<BrokerClaim>,
        may_adopt: impl Fn() -> bool,
    ) -> Result<(), ForeignSession> {
        let is_foreign =
            |holder: &SessionHolder| matches!(holder, SessionHolder::User(user) if claim.is_foreign_to(user));
        // Another auth backend cannot be asked here whether it still knows the user, so the session stays with its user.
        let may_come_back = |user: &SessionUser| user.is_external || self.broker.has_user(&user.name);
        // Users and permissions are checked before the list of sessions is locked (ARCHITECTURE.md, "Lock order").
        let holder = self.sessions.lock().claims.holder(owner);
        match &holder {
            SessionHolder::User(user) if is_foreign(&holder) && may_come_back(user) => {
                return Err(ForeignSession);
            }
            SessionHolder::Unknown if !may_adopt() => return Err(ForeignSession),
            _ => {}
        }
        let mut sessions = self.sessions.lock();
        if vhost.is_gone() {
            claim.supersede();
            return Ok(());
        }
        let current = sessions.claims.holder(owner);
        if current != holder && is_foreign(&current) {
            return Err(ForeignSession);
        }
        sessions.claims.claim(owner, claim);
        Ok(())
    }

    /// Whether there is a session whose user an earlier version did not record.
    pub(super) fn is_without_user(&self, owner: &Owner) -> bool {
        self.sessions.lock().claims.holder(owner) == SessionHolder::Unknown
    }

    /// Called when a connection that has claimed a session has ended. The session in `left`, if any, is granted to the
    /// connection that waits for it, or stays detached.
    pub(super) fn release(
        &self,
        owner: &Arc<Owner>,
        claim: &Arc<BrokerClaim>,
        left: Option<Box<DetachedSession>>,
    ) {
        let has_deadline = self.sessions.lock().claims.release(owner, claim, left);
        if has_deadline {
            self.changed.notify_one();
        }
    }

    /// The next time at which to call [`Hub::expire`].
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.sessions.lock().claims.next_deadline()
    }

    /// Publishes all due wills and ends all expired sessions.
    pub(super) fn expire(&self, now: Timestamp) {
        while self.expire_some(now) {}
    }

    /// Publishes due wills and ends expired sessions until the turn is over. Returns whether there may be more.
    pub(super) fn expire_some(&self, now: Timestamp) -> bool {
        let _turn = work::Turn::begin();
        while !work::is_turn_over() {
            let mut sessions = self.sessions.lock();
            if self.is_stopped.load(Ordering::Relaxed) {
                return false;
            }
            let Some((owner, mut detached_session)) = sessions.claims.take_due(now) else { return false };
            work::charge(DUE_SESSION, 1);
            work::charge(DUE_SUBSCRIPTION, detached_session.session.subscription_count());
            // A virtual host of the same name cannot exist while the deleted one's sessions are listed.
            let Some(vhost) = self.broker.vhost(&owner.vhost) else { continue };
            if detached_session.ends().is_some_and(|end| end <= now) {
                // Makes a client that connects meanwhile wait, so that its new queue is not deleted.
                let by = sessions.claims.ending(&owner, detached_session.user.clone());
                drop(sessions);
                self.end(&owner, &vhost, *detached_session, now);
                self.release(&owner, &by, None);
                continue;
            }
            let will = detached_session.will.take();
            self.persist(&owner, &vhost, &detached_session);
            sessions.claims.keep(&owner, detached_session);
            drop(sessions);
            if let Some(will) = will {
                self.publish_will(&owner, &vhost, will.author(), &will.will, None, now);
            }
        }
        true
    }

    /// Requeues the unacknowledged messages of detached sessions, at a shutdown after which no client returns to this
    /// process. From then on no session ends, and no will is published.
    pub(crate) fn release_deliveries(&self, now: Timestamp) {
        let mut sessions = self.sessions.lock();
        self.is_stopped.store(true, Ordering::Relaxed);
        let unacked: Vec<_> = sessions
            .claims
            .detached_mut()
            .flat_map(|detached_session| std::mem::take(&mut detached_session.unacked).into_values())
            .collect();
        drop(sessions);
        for unacked in unacked {
            unacked.queue.requeue(vec![unacked.delivery], Returned::Failed, now);
        }
    }

    /// Ends a session without a connection: deletes its queues and subscriptions, and publishes its will.
    pub(super) fn end(
        &self,
        owner: &Owner,
        vhost: &Arc<VirtualHost>,
        detached_session: DetachedSession,
        now: Timestamp,
    ) {
        let DetachedSession { unacked, pending_retained, groups, will, owns, .. } = detached_session;
        if let Some(will) = will {
            self.publish_will(owner, vhost, will.author(), &will.will, None, now);
        }
        for unacked in unacked.into_values() {
            unacked.queue.requeue(vec![unacked.delivery], Returned::Failed, now);
        }
        for class in Class::ALL.into_iter().filter(|class| owns[*class as usize]) {
            let queue = queue_name(&owner.client_id, class.queue());
            // The queue may not exist, or be owned by another client by now.
            let _ = vhost.delete_queue(NOBODY, &queue, false, false);
        }
        groups.iter().for_each(|queue| self.leave_group(owner, vhost, queue, false));
        vhost.note(|catalogue| {
            if !pending_retained.is_empty() {
                // Must precede the session: at the next start pending messages without a session are orphans.
                catalogue
                    .delete_all(Section::MqttPendingRetained, disk::key(&[&owner.vhost, &owner.client_id]));
            }
            // Includes records left by a connection whose session was to end with it.
            catalogue.delete_all(Section::MqttReceived, disk::key(&[&owner.vhost, &owner.client_id]));
            catalogue.note([in_flight::delete_all(owner)]);
            catalogue.delete(Section::MqttSessions, disk::key(&[&owner.vhost, &owner.client_id]))
        });
    }

    /// Writes a detached session to disk.
    pub(super) fn persist(
        &self,
        owner: &Owner,
        vhost: &VirtualHost,
        detached_session: &DetachedSession,
    ) -> Option<Ticket> {
        let written = Written {
            session: &detached_session.session,
            user: detached_session.user.as_ref(),
            merged_below: detached_session.merged_below,
            expiry: detached_session.expiry,
            since: Some(detached_session.since),
            will: detached_session.will.as_ref(),
        };
        let in_flight =
            InFlightOf { owner, session: &detached_session.session, moving: &detached_session.moving };
        self.put_session(vhost, written.encode(), in_flight)
    }

    /// Writes a session and the records of its QoS 2 messages in flight, in one transaction.
    pub(super) fn put_session(
        &self,
        vhost: &VirtualHost,
        value: Vec<u8>,
        in_flight: InFlightOf<'_>,
    ) -> Option<Ticket> {
        let mut changes = in_flight.all_changes();
        changes.push(session_change(in_flight.owner, value));
        vhost.note(|catalogue| catalogue.note(changes))
    }

    /// Counts a session as one that shares a queue.
    pub(super) fn join_group(&self, owner: &Owner, vhost: &VirtualHost, queue: &str) {
        let mut sessions = self.sessions.lock();
        if !vhost.is_gone() {
            *sessions.groups.entry((Arc::clone(&owner.vhost), queue.into())).or_default() += 1;
        }
    }

    /// Removes a session from the count of those that share a queue, and deletes the queue with the last one; with
    /// `if_empty` only if the queue has no messages.
    pub(super) fn leave_group(&self, owner: &Owner, vhost: &VirtualHost, queue: &str, if_empty: bool) {
        let mut sessions = self.sessions.lock();
        if vhost.is_gone() {
            return;
        }
        let key = (Arc::clone(&owner.vhost), queue.into());
        let Some(count) = sessions.groups.get_mut(&key) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        sessions.groups.remove(&key);
        drop(sessions);
        // Fails harmlessly if another session has joined meanwhile.
        let _ = vhost.delete_queue(NOBODY, queue, true, if_empty);
        let _sessions = self.sessions.lock();
        if vhost.queue(NOBODY, queue).is_err() {
            leftovers::forget_group(vhost, queue);
        }
    }

    /// Records that MQTT has declared the queue of a shared subscription. Locks the sessions, so that a concurrent
    /// deletion of a queue of the same name does not delete the new record.
    pub(super) fn note_group(&self, vhost: &VirtualHost, queue: &Queue) {
        let _sessions = self.sessions.lock();
        leftovers::note_group(vhost, queue);
    }

    /// Publishes the will of a disconnected client, unless its virtual host is gone. `shown` is its connection, if that
    /// has only just ended.
    pub(super) fn publish_will(
        &self,
        owner: &Owner,
        vhost: &Arc<VirtualHost>,
        author: WillAuthor<'_>,
        will: &StoredWill,
        view: Option<&Arc<OpenConnection>>,
        now: Timestamp,
    ) {
        if vhost.is_gone() {
            return;
        }
        let published = self.try_will(owner, vhost, author, will, view, now);
        let question =
            author.external.filter(|_| published.is_err()).and_then(broker::Identity::take_authz_request);
        if let (Some(question), Some(hub), Some(identity)) = (question, self.this.upgrade(), author.external)
        {
            let (owner, vhost, user) = (owner.clone(), Arc::clone(vhost), author.user.to_owned());
            let (will, view, identity) = (will.clone(), view.cloned(), identity.clone());
            tokio::spawn(async move {
                question.await;
                let author = WillAuthor { user: &user, external: Some(&identity) };
                let publish = || hub.try_will(&owner, &vhost, author, &will, view.as_ref(), now);
                report_will(&owner, &user, &will, identity.ask_for(publish).await);
            });
            return;
        }
        report_will(owner, author.user, will, published);
    }

    fn try_will(
        &self,
        owner: &Owner,
        vhost: &Arc<VirtualHost>,
        author: WillAuthor<'_>,
        will: &StoredWill,
        view: Option<&Arc<OpenConnection>>,
        now: Timestamp,
    ) -> Result<(), WillError> {
        // The user was authenticated when the client connected, so its address is not checked again.
        let identity = match author.external {
            Some(external) if external.is_expired(now) => return Err(WillError::Expired),
            Some(external) => external.clone(),
            None => self.broker.listed(author.user, true).map_err(WillError::Login)?,
        };
        let identity = identity.as_client(&owner.client_id);
        // The user may have lost permissions since the client connected.
        self.broker.open(&identity, &owner.vhost).map_err(WillError::Refused)?;
        let properties = will.properties.as_properties();
        let message =
            Incoming { qos: will.qos, dup: false, retain: will.retain, properties, client_id: None };
        let mapping = MessageMapping::of_broker(vhost.compatibility());
        let key = mapping.routing_key(&will.topic).map_err(WillError::ConversionError)?;
        let amqp =
            to_amqp(&message, mapping, self.clock.wall_time(now)).map_err(WillError::ConversionError)?;
        let mut publisher = native::publisher(vhost.publisher(&identity), vhost);
        if let Some(view) = view {
            publisher.set_connection(Arc::<OpenConnection>::clone(view), 1);
        }
        let body = [Bytes::copy_from_slice(&will.payload)];
        let exchange = &*self.config.exchange;
        let publish = Publish { exchange, routing_key: &key, properties: &amqp, body: Body::Chunks(&body) };
        let note_refused = |error: &BrokerError| _ = self.note_refused(vhost, error);
        let retained = will.retain.then(|| self.retained(vhost));
        let topic_guard = retained.as_ref().map(|retained| retained.begin_publish(&will.topic));
        let mut is_retained = true;
        if let Some(retained) = &retained {
            // A message that may not be published must not be retained either.
            publisher.check(publish).inspect_err(note_refused).map_err(WillError::Refused)?;
            let [payload] = &body;
            is_retained = retained.replace(&will.topic, &message, payload.clone(), now).is_ok();
            if !is_retained {
                // Subscribers get the will all the same, but the topic's earlier retained message must go (MQTT-3.3.1-5).
                retained.clear(&will.topic);
            }
        }
        publisher.publish(publish, now).inspect_err(note_refused).map_err(WillError::Refused)?;
        publisher.flush_all(now);
        drop(topic_guard);
        if is_retained { Ok(()) } else { Err(WillError::NotRetained) }
    }

    /// Restores sessions and retained messages from disk. Must be called once, before any client is served.
    ///
    /// # Errors
    /// Stored state cannot be read.
    pub(super) fn load(&self, now: Timestamp) -> Result<(), MqttRestoreError> {
        let Some(store) = self.store() else { return Ok(()) };
        let mut wrong = None;
        let mut found = HashMap::new();
        let mut changed = HashSet::new();
        // Records of deleted virtual hosts that an earlier version left behind.
        let mut orphans = Vec::new();
        let catalogue = store.catalogue();
        let scanned =
            catalogue.scan(Section::MqttRetained, |key, value| match retained::decode(key, value) {
                Some((vhost, message)) => match self.broker.vhost(vhost) {
                    Some(vhost) => self.retained(&vhost).restore(message),
                    None => orphans.push((Section::MqttRetained, key.to_vec())),
                },
                None => wrong = Some(key.to_vec()),
            });
        scanned?;
        let scanned = catalogue.scan(Section::MqttSessions, |key, value| {
            match disk::names::<2>(key).zip(DetachedSession::decode(value, now)) {
                Some(([vhost, _], _)) if self.broker.vhost(vhost).is_none() => {
                    orphans.push((Section::MqttSessions, key.to_vec()));
                }
                Some(([vhost, client_id], detached_session)) => {
                    let owner = Owner { vhost: vhost.into(), client_id: client_id.into() };
                    if detached_session.session.in_flight().next().is_some() {
                        // An earlier version has written its messages in flight with it.
                        changed.insert(owner.clone());
                    }
                    found.insert(owner, detached_session);
                }
                None => wrong = Some(key.to_vec()),
            }
        });
        scanned?;
        // Must precede every change: records whose session a later version has written are not orphans.
        refuse_unknown(wrong)?;
        refuse_unknown(in_flight::load(store, &mut found, &mut orphans)?)?;
        for (owner, detached_session) in &mut found {
            if detached_session.forget_unreleased(store.opened_at()) {
                changed.insert(owner.clone());
            }
        }
        let groups_before = self.separate_dots(&mut found, &mut changed, now);
        self.load_queues(&mut found, &mut changed, now);
        for owner in changed {
            if let Some((detached_session, vhost)) = found.get(&owner).zip(self.broker.vhost(&owner.vhost)) {
                self.persist(&owner, &vhost, detached_session);
            }
        }
        orphans.into_iter().for_each(|(section, key)| _ = catalogue.delete(section, key));
        self.load_received(store, &mut found)?;
        load_pending_retained(store, &mut found)?;
        self.list_loaded(found, &groups_before, leftovers::noted_groups(catalogue)?);
        // Must precede the first client, which could resume an expired session.
        self.expire(now);
        Ok(())
    }

    /// Matches loaded sessions and their queues to each other. Adds sessions that must be written to `changed`.
    fn load_queues(
        &self,
        found: &mut HashMap<Owner, DetachedSession>,
        changed: &mut HashSet<Owner>,
        now: Timestamp,
    ) {
        for (owner, detached_session) in found {
            let Some(vhost) = self.broker.vhost(&owner.vhost) else { continue };
            let queues = Class::ALL
                .map(|class| vhost.queue(NOBODY, &queue_name(&owner.client_id, class.queue())).ok());
            if detached_session.give_up_positions(queues[1].as_ref().map_or(0, |queue| queue.next_position()))
            {
                changed.insert(owner.clone());
            }
            if detached_session.expiry == 0 {
                continue;
            }
            self.declare_groups(&vhost, detached_session, now);
            // After a crash a queue may lack its session's expiry; earlier versions never set it.
            for queue in queues.iter().flatten() {
                vhost.set_queue_expires(queue, lease(detached_session.expiry), now);
            }
        }
    }

    /// Lists the loaded sessions, and deletes queues without a session. `groups_before` has the queues that an earlier
    /// version created for shared subscriptions, `noted` those that [`Hub::note_group`] has recorded, with their numbers.
    fn list_loaded(
        &self,
        found: HashMap<Owner, DetachedSession>,
        groups_before: &HashMap<Owner, Vec<Box<str>>>,
        noted: HashMap<leftovers::GroupQueueKey, u64>,
    ) {
        let names = found.keys().cloned().collect();
        let mut sessions = self.sessions.lock();
        for (owner, mut detached_session) in found {
            let shared = detached_session.session.shared_filters().filter_map(group_queue);
            detached_session.groups = shared.map(Into::into).collect();
            detached_session.groups.extend(groups_before.get(&owner).into_iter().flatten().cloned());
            for queue in &detached_session.groups {
                *sessions.groups.entry((Arc::clone(&owner.vhost), queue.clone())).or_default() += 1;
            }
            sessions.claims.keep(&Arc::new(owner), Box::new(detached_session));
        }
        let groups = sessions.groups.keys().cloned().collect();
        drop(sessions);
        leftovers::delete(&self.broker, &names, &groups, noted);
    }

    /// Loads the identifiers of QoS 2 messages whose log records reached the disk. The client will send the others again,
    /// so they are forgotten, except those that some of their queues have: these queues must not get them twice.
    fn load_received(
        &self,
        store: &Arc<Store>,
        found: &mut HashMap<Owner, DetachedSession>,
    ) -> Result<(), CatalogueError> {
        let end = store.opened_at();
        let catalogue = store.catalogue();
        let (mut lost, mut partial) = (Vec::new(), Vec::new());
        let scanned = catalogue.scan(Section::MqttReceived, |key, value| {
            let received = disk::read_packet_key(key).zip(ReceivedRecord::decode(value));
            let Some(((owner, packet_id), note)) = received else { return lost.push(key.to_vec()) };
            match (found.get_mut(&owner), note.after_crash(end.0)) {
                (Some(detached_session), AfterCrash::Complete) => {
                    detached_session.session.restore_received(packet_id)
                }
                (Some(detached_session), AfterCrash::InSome(queues)) => {
                    partial.push((key.to_vec(), ReceivedRecord::Partial(queues.clone()).encode()));
                    detached_session.partial.insert(packet_id, queues);
                }
                (None, _) | (Some(_), AfterCrash::Lost) => lost.push(key.to_vec()),
            }
        });
        scanned?;
        // Must precede the growth of the log, after which these records' log positions would seem to be reached.
        lost.into_iter().for_each(|key| _ = catalogue.delete(Section::MqttReceived, key));
        partial.into_iter().for_each(|(key, value)| _ = catalogue.put(Section::MqttReceived, key, value));
        Ok(())
    }

    /// Runs `expire` at every deadline, until deliveries are released.
    pub(super) async fn run_expiry(self: Arc<Self>) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            match self.next_deadline() {
                None => self.changed.notified().await,
                Some(due) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(self.clock.instant(due).into()) => {
                        let now = self.clock.timestamp(Instant::now());
                        while self.expire_some(now) {
                            // Very many sessions may be due at once: other tasks get their turn in between.
                            tokio::task::yield_now().await;
                        }
                    }
                },
            }
        }
    }
}

/// Cost of a session that is ended, or whose will is published, in nanoseconds: some definitions change.
const DUE_SESSION: u32 = 20_000;

/// Cost of each of its subscriptions, in nanoseconds.
const DUE_SUBSCRIPTION: u32 = 1_000;

/// Loads the topics of retained messages that are pending for sessions.
fn load_pending_retained(
    store: &Arc<Store>,
    found: &mut HashMap<Owner, DetachedSession>,
) -> Result<(), CatalogueError> {
    let mut nobodys = Vec::new();
    let scanned = store.catalogue().scan(Section::MqttPendingRetained, |key, _| {
        let read = pending_retained::read_key(key);
        match read.and_then(|(owner, topic)| Some((found.get_mut(&owner)?, topic))) {
            Some((detached_session, topic)) => detached_session.pending_retained.restore(topic),
            None => nobodys.push(key.to_vec()),
        }
    });
    scanned?;
    nobodys.into_iter().for_each(|key| _ = store.catalogue().delete(Section::MqttPendingRetained, key));
    Ok(())
}

/// The client's queue for messages of QoS 0, or of QoS 1 and 2, with RabbitMQ's name.
pub(super) fn queue_name(client_id: &str, qos: u8) -> String {
    format!("{QUEUE_PREFIX}{client_id}qos{qos}")
}

/// The queue of a shared subscription, named after its group and binding key: `g/a.*` for `$share/g/a/+`. A literal level
/// `*` in the filter is written `+`, so that each filter has a queue of its own. `None` if the filter is not shared.
pub(super) fn group_queue(filter: TopicFilter<'_>) -> Option<String> {
    let exchanged = |level| match level {
        "+" => "*",
        "*" => "+",
        other => other,
    };
    let levels: Vec<&str> = filter.filter().split('/').map(exchanged).collect();
    Some(group_queue_name(filter.group()?, &routing_key_to_topic(&levels.join("/"))))
}

/// The change that writes a session with this record, without its messages in flight.
pub(super) fn session_change(owner: &Owner, value: Vec<u8>) -> Change {
    Change::put(Section::MqttSessions, disk::key(&[&owner.vhost, &owner.client_id]), value)
}

/// Refuses a record of this key, if there is one, that no version so far has written.
fn refuse_unknown(key: Option<Vec<u8>>) -> Result<(), MqttRestoreError> {
    key.map_or(Ok(()), |key| Err(MqttRestoreError::UnknownForm(key.escape_ascii().to_string())))
}

/// Whether the name shows that a shared subscription's queue serves one filter alone. Earlier versions used one queue for
/// a filter with a literal level `*` and for the filter with `+` in its place.
pub(super) fn is_of_one_filter(queue: &str) -> bool {
    // Group names have no `+`, and in keys it stands for a literal `*` only.
    queue.contains('+')
}

/// The queue of a group's subscription with this key.
pub(super) fn group_queue_name(group: &str, key: &str) -> String {
    format!("{GROUP_PREFIX}{group}/{key}")
}

/// Prefix of the queue names of shared subscriptions.
pub(super) const GROUP_PREFIX: &str = "mqtt-shared-subscription-";

/// Prefix of the queue names of a client.
pub(super) const QUEUE_PREFIX: &str = "mqtt-subscription-";

/// Logs a will that was not published.
fn report_will(owner: &Owner, user: &str, will: &StoredWill, published: Result<(), WillError>) {
    if let Err(error) = published {
        tracing::warn!(vhost = &*owner.vhost, user, topic = &*will.topic, %error, "will not published");
    }
}
