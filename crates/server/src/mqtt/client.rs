//! A connected client on the embedded broker: its publishes, and its session's lifetime.
//!
//! Subscriptions are in [`super::subscribing`], messages for the client in [`super::delivering`].
//!
//! # State on disk
//! A session that outlives its connection is a definition ([`broker::Section::MqttSessions`]) with its subscriptions; each
//! message of QoS 2 in flight is one of its own ([`super::in_flight`]). Messages of QoS 1 in flight stay in their queue until
//! acknowledged, and the topics of retained messages stay recorded until then ([`super::pending_retained`]). The receipt
//! of a QoS 2 message from the client is noted with the LSNs at which the message is in the message log. The note reaches
//! the disk before the message; after a crash it counts only if the log has the message ([`super::received`]).

use std::sync::Arc;
use std::time::Instant;

use amqp::ReplyCode;
use broker::{
    AuthorisedSession, Body, BrokerError, Change, DiskPoint, Flushed, FrontEnd, Lsn, MAX_INLINE_BODY,
    Publish, Publisher, Section, SessionId, Store, Ticket, Timestamp, Tracer, VirtualHost, Waiter,
};
use hashbrown::{HashMap, HashSet};
use mqtt::server::{MqttEnd, ServerConnection as Engine};
use mqtt::session::Session;
use mqtt::{QoS, ReasonCode, packet};
use sync::work;
use transport::Outbox;

use super::delivering::ConsumedQueue;
use super::detached::{DetachedSession, PendingWill, UnackedDelivery, WillAuthor, Written};
use super::disk;
use super::hub::{BrokerClaim, Hub, session_change};
use super::in_flight::InFlightOf;
use super::inbox::Inbox;
use super::message::{Incoming, MessageMapping, check_length, to_amqp};
use super::native;
use super::pending_retained::PendingRetained;
use super::received::{PartialMessages, ReceivedRecord};
use super::repeating::WaitingRequest;
use super::retained::Full;
use super::session::{
    ClientIdentity, CloseReason, MISSING_EXCHANGE, MqttSession, PendingReply, Refusal, Request, TAKEN_OVER,
};
use super::session_ownership::{Owner, SessionUser};
use super::subscriptions::Subscriptions;
use super::waiting::PendingAnswers;
use crate::amqp::publish_gate::PublishGate;
use crate::client::OutboxWaiter;
use crate::pending_authorisation::PendingAuthorisation;
use crate::registry::OpenConnection;
use crate::server::Shared;

/// A client's state on the broker after its CONNECT was accepted.
pub(super) struct MqttClient {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Arc<Hub>,
    pub(super) owner: Arc<Owner>,
    claim: Arc<BrokerClaim>,
    pub(super) authorised: AuthorisedSession,
    pub(super) session_id: SessionId,
    pub(super) outbox: Arc<Outbox>,
    pub(super) nudge: Arc<dyn Waiter>,
    pub(super) publisher: Publisher,
    /// The connection as operators see it. Set once it is open.
    pub(super) view: Option<Arc<OpenConnection>>,
    /// Publishes the client's deliveries to the firehose. Created for the first traced message, dropped once
    /// tracing has been switched off.
    pub(super) tracer: Option<Box<Tracer>>,
    /// Publishes since the last flush.
    published: Vec<Published>,
    pub(super) publish_gate: PublishGate,
    pub(super) inbox: Arc<Inbox>,
    pub(super) sources: Vec<ConsumedQueue>,
    /// Serial number of the next source.
    pub(super) next_serial: u64,
    pub(super) subscriptions: Subscriptions,
    pub(super) unacked: HashMap<u64, UnackedDelivery>,
    pub(super) restored: HashSet<u64>,
    pub(super) next_tag: u64,
    pub(super) groups: Vec<Box<str>>,
    pub(super) partial: PartialMessages,
    pub(super) moving: Vec<(u64, Lsn)>,
    /// The client's user, or `None` while a session without a recorded user has not been resumed yet.
    session_user: Option<SessionUser>,
    /// See [`DetachedSession::merged_below`].
    pub(super) merged_below: u64,
    /// See [`DetachedSession::owns`].
    pub(super) owns: [bool; 2],
    pub(super) pending_retained: PendingRetained,
    /// The end of the message log's records for the last acknowledgements to queues.
    pub(super) settled_until: Option<Lsn>,
    pub(super) waiting: PendingAnswers,
    /// Packet identifiers of QoS 2 messages that the client has received; PUBREL is sent once that is on disk.
    pub(super) to_release: Vec<u16>,
    /// Packet identifiers of QoS 2 messages to the client whose records have to be written at the next flush.
    pub(super) changed_in_flight: Vec<u16>,
    /// Seconds that the session outlives the connection; 0 if it ends with the connection.
    pub(super) expiry: u32,
    /// A bridge gets RETAIN as published, and never its own messages.
    pub(super) is_bridge: bool,
    /// Whether `mqtt_exchange` was missing when the client published or subscribed. As in RabbitMQ, the connection is
    /// then closed.
    misses_exchange: bool,
    /// Asks the user's auth backend about the request in `repeated`.
    pub(super) question: PendingAuthorisation,
    /// A request that waits for `question`, or that continues in the next turn. The client is not read meanwhile.
    pub(super) repeated: Option<WaitingRequest>,
    /// Set if the session could not be resumed. The connection is then closed.
    pub(super) not_resumed: Option<Refusal>,
    pub(super) now: Timestamp,
}

/// A publish that has not been flushed.
struct Published {
    /// The packet identifier; 0 at QoS 0.
    packet_id: u16,
    matched: bool,
    /// The change that stores the retained message.
    ticket: Option<Ticket>,
}

/// The parameters of a client that was admitted.
pub(super) struct Admitted {
    pub(super) owner: Arc<Owner>,
    pub(super) claim: Arc<BrokerClaim>,
    pub(super) authorised: AuthorisedSession,
    pub(super) connection: u64,
    pub(super) expiry: u32,
    pub(super) is_bridge: bool,
}

impl MqttClient {
    pub(super) fn new(
        shared: &Arc<Shared>,
        hub: &Arc<Hub>,
        outbox: &Arc<Outbox>,
        admitted: Admitted,
        now: Timestamp,
    ) -> Self {
        let Admitted { owner, claim, authorised, connection, expiry, is_bridge } = admitted;
        Self {
            shared: Arc::clone(shared),
            hub: Arc::clone(hub),
            owner,
            claim,
            session_id: SessionId(connection),
            outbox: Arc::clone(outbox),
            nudge: Arc::new(OutboxWaiter(Arc::clone(outbox))),
            publisher: native::publisher(authorised.publisher(), authorised.vhost())
                .in_session(SessionId(connection)),
            view: None,
            tracer: None,
            session_user: Some(SessionUser::of(authorised.identity())),
            authorised,
            published: Vec::new(),
            publish_gate: PublishGate::new(Arc::clone(outbox)),
            inbox: Inbox::new(outbox),
            sources: Vec::new(),
            next_serial: 0,
            subscriptions: Subscriptions::default(),
            unacked: HashMap::new(),
            restored: HashSet::new(),
            next_tag: super::detached::OWN_TAGS,
            groups: Vec::new(),
            partial: PartialMessages::new(),
            moving: Vec::new(),
            merged_below: 0,
            owns: [false; 2],
            pending_retained: PendingRetained::default(),
            settled_until: None,
            waiting: PendingAnswers::default(),
            to_release: Vec::new(),
            changed_in_flight: Vec::new(),
            expiry,
            is_bridge,
            misses_exchange: false,
            question: PendingAuthorisation::default(),
            repeated: None,
            not_resumed: None,
            now,
        }
    }

    pub(super) fn vhost(&self) -> &Arc<VirtualHost> {
        self.authorised.vhost()
    }

    /// How messages are mapped.
    pub(super) fn mapping(&self) -> MessageMapping {
        MessageMapping::of_broker(self.vhost().compatibility())
    }

    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.hub.store()
    }

    /// Whether the session outlives the connection.
    pub(super) fn is_persistent_session(&self) -> bool {
        self.expiry > 0
    }

    /// Takes over a detached session, except its subscriptions; returns the engine's part of it.
    pub(super) fn adopt(&mut self, detached_session: DetachedSession) -> Session {
        let DetachedSession {
            session,
            unacked,
            restored,
            next_tag,
            pending_retained,
            groups,
            partial,
            moving,
            user,
            merged_below,
            owns,
            ..
        } = detached_session;
        (self.unacked, self.restored, self.next_tag, self.groups) = (unacked, restored, next_tag, groups);
        (self.pending_retained, self.partial, self.moving, self.session_user) =
            (pending_retained, partial, moving, user);
        (self.merged_below, self.owns) = (merged_below, owns);
        session
    }

    /// Called once the session is resumed: from then on it belongs to this user.
    pub(super) fn own_session(&mut self) {
        self.session_user = Some(SessionUser::of(self.authorised.identity()));
    }

    /// Whether the session is stored on disk.
    pub(super) fn is_persistent(&self) -> bool {
        self.is_persistent_session() && self.store().is_some()
    }

    /// Defers an action until everything that it depends on is on disk.
    pub(super) fn wait(&mut self, then: PendingReply, until: DiskPoint) {
        let store = self.hub.store();
        self.waiting.push(then, until, store, &self.nudge);
    }

    /// Publishes a message. Changes nothing if the permission has not been asked for yet.
    fn publish_now(&mut self, publish: &packet::PublishPacket<'_>) -> Result<(), Refusal> {
        let owner = Arc::clone(&self.owner);
        let message = Incoming {
            qos: publish.qos,
            dup: publish.dup,
            retain: publish.retain,
            properties: publish.properties,
            client_id: self.subscriptions.any_no_local().then_some(&*owner.client_id),
        };
        // Nothing has changed yet if the message is refused here.
        let mapping = self.mapping();
        let key = mapping.routing_key(publish.topic)?;
        let properties = to_amqp(&message, mapping, self.shared.clock.wall_time(self.now))?;
        check_length(&properties, self.shared.config.most_properties())?;
        if publish.payload.len() as u64 > self.shared.config.max_message_size {
            return Err(Refusal { reason: ReasonCode::QuotaExceeded, text: "message too large" });
        }
        let exactly_once = publish.qos == QoS::ExactlyOnce && self.is_persistent();
        if exactly_once || publish.retain {
            self.flush_published();
        }
        let hub = Arc::clone(&self.hub);
        let retained = publish.retain.then(|| hub.retained(self.vhost()));
        let topic_guard = retained.as_ref().map(|retained| retained.begin_publish(publish.topic));
        // The note of a QoS 2 message must reach the disk no later than the message.
        let begin_ordered_round =
            hub.store().filter(|_| exactly_once).map(|store| store.begin_ordered_round());
        // A body that is large or also retained is shared; a small one is copied into the message.
        let payload =
            (publish.payload.len() > MAX_INLINE_BODY || publish.retain).then(|| [publish.payload.to_bytes()]);
        let body = match &payload {
            Some(payload) => Body::Chunks(payload),
            None => Body::Copied(publish.payload.bytes()),
        };
        let exchange = &*hub.config.exchange;
        let amqp = Publish { exchange, routing_key: &key, properties: &properties, body };
        let ticket = match (&payload, &retained) {
            (Some([payload]), Some(retained)) => {
                // A message that may not be published must not be retained either.
                let checked = self.publisher.check(amqp);
                checked.inspect_err(|error| self.note_refused(error))?;
                retained.replace(publish.topic, &message, payload.clone(), self.now)?
            }
            _ => None,
        };
        if exactly_once {
            self.publish_noted(publish, amqp, ticket)?;
        } else {
            let published = self.publisher.publish(amqp, self.now);
            let matched = published.inspect_err(|error| self.note_refused(error))?;
            self.published.push(Published { packet_id: publish.packet_id, matched, ticket });
            if publish.retain {
                // All queues must get it before the next message of its topic.
                self.flush_published();
            }
        }
        drop(begin_ordered_round);
        drop(topic_guard);
        if publish.retain && hub.store().is_some_and(|store| !store.has_capacity()) {
            // A QoS 0 publisher waits for no acknowledgement, so it is paused while the disk falls behind.
            self.publish_gate.pause(self.vhost());
        }
        Ok(())
    }

    /// Publishes a message and notes its receipt. The caller holds off the journal's rounds, so that the note reaches the
    /// disk before the message.
    fn publish_noted(
        &mut self,
        publish: &packet::PublishPacket<'_>,
        amqp: Publish<'_>,
        ticket: Option<Ticket>,
    ) -> Result<(), Refusal> {
        let packet_id = publish.packet_id;
        let before = self.partial.get(&packet_id).filter(|_| publish.dup).cloned().unwrap_or_default();
        // On an error, for example if the permission has yet to be asked for, `partial` stays as it was.
        let (matched, flushed, shares) = self.publisher.publish_exactly_once(amqp, &before, self.now)?;
        self.partial.remove(&packet_id);
        let until = flushed.until.unwrap_or_default();
        let key = disk::packet_key(&self.owner, packet_id);
        let refused = !flushed.refused.is_empty();
        let value = (!refused).then(|| ReceivedRecord::new(until.0, &before, &shares).encode());
        let noted = value.and_then(|value| {
            self.vhost().note(|catalogue| catalogue.put(Section::MqttReceived, key, value))
        });
        let then = if refused {
            PendingReply::QueueFull { packet_id }
        } else {
            PendingReply::Accept { packet_id, matched }
        };
        self.wait(then, DiskPoint { lsn: flushed.until, ticket: noted.max(ticket) });
        self.handed_over(&flushed);
        Ok(())
    }

    /// Flushes all publishes, even beyond the turn, since the next operation must see them.
    pub(super) fn flush_published(&mut self) {
        if !self.published.is_empty() {
            let flushed = self.publisher.flush_all(self.now);
            self.flushed(&flushed);
        }
    }

    /// Queues the acknowledgements of flushed messages.
    fn flushed(&mut self, flushed: &Flushed) {
        let mut refused = flushed.refused.iter().copied().peekable();
        for (at, published) in std::mem::take(&mut self.published).into_iter().enumerate() {
            let is_refused = refused.next_if_eq(&(at as u64)).is_some();
            let Published { packet_id, matched, ticket } = published;
            match (packet_id, is_refused) {
                (0, _) if ticket.is_none() => {}
                (0, _) => self.waiting.push_write(ticket.into(), self.hub.store(), &self.nudge),
                (_, true) => self.wait(PendingReply::QueueFull { packet_id }, ticket.into()),
                (_, false) => self.wait(
                    PendingReply::Accept { packet_id, matched },
                    DiskPoint { lsn: flushed.until, ticket },
                ),
            }
        }
        self.handed_over(flushed);
    }

    fn handed_over(&self, flushed: &Flushed) {
        if self.publish_gate.after(flushed, self.vhost(), self.now)
            && let Some(view) = &self.view
        {
            view.in_flow(self.now);
        }
    }

    /// Writes the session to disk, if it is stored.
    pub(super) fn persist(&self, session: &Session) -> Option<Ticket> {
        if !self.is_persistent() {
            return None;
        }
        self.persist_as(session, self.expiry)
    }

    /// Writes a session whose subscriptions alone have changed to disk, if it is stored: the records of its messages in flight
    /// are up to date.
    pub(super) fn persist_subscriptions(&self, session: &Session) -> Option<Ticket> {
        if !self.is_persistent() {
            return None;
        }
        let change = session_change(&self.owner, self.written(session, self.expiry));
        self.vhost().note(|catalogue| catalogue.note([change]))
    }

    /// Writes the records of some messages of QoS 2 to the client, if its session is stored, together with other changes that
    /// belong to them.
    pub(super) fn persist_in_flight(
        &self,
        session: &Session,
        packet_ids: Vec<u16>,
        mut changes: Vec<Change>,
    ) -> Option<Ticket> {
        if !self.is_persistent() {
            return None;
        }
        work::charge(WRITTEN_MESSAGE, packet_ids.len());
        let in_flight = self.in_flight(session);
        changes.extend(packet_ids.into_iter().map(|packet_id| in_flight.change(packet_id)));
        self.vhost().note(|catalogue| catalogue.note(changes))
    }

    fn in_flight<'a>(&'a self, session: &'a Session) -> InFlightOf<'a> {
        InFlightOf { owner: &self.owner, session, moving: &self.moving }
    }

    /// Writes a stored session as one that ends with this connection, so that a crash does not restore its earlier state.
    pub(super) fn persist_as_ending(&self, session: &Session) {
        self.persist_as(session, 0);
    }

    /// Writes the session of an open connection.
    fn persist_as(&self, session: &Session, expiry: u32) -> Option<Ticket> {
        self.hub.put_session(self.vhost(), self.written(session, expiry), self.in_flight(session))
    }

    /// The record of the session of an open connection.
    fn written(&self, session: &Session, expiry: u32) -> Vec<u8> {
        work::charge(WRITTEN_SUBSCRIPTION, session.subscription_count());
        let (user, merged_below) = (self.session_user.as_ref(), self.merged_below);
        Written { session, user, merged_below, expiry, since: None, will: None }.encode()
    }

    /// Called if the broker has refused a request. If `mqtt_exchange` is missing, the client is disconnected.
    pub(super) fn note_refused(&mut self, error: &BrokerError) {
        if self.hub.note_refused(self.vhost(), error) {
            self.misses_exchange = true;
            self.outbox.nudge();
        }
    }
}

/// Cost of each subscription of a session that is written to disk, in nanoseconds.
const WRITTEN_SUBSCRIPTION: u32 = 30;

/// Cost of each message in flight that is written to disk, in nanoseconds.
const WRITTEN_MESSAGE: u32 = 300;

/// Answers and retained messages waiting for the disk at which the client is no longer read. So one client's retained messages
/// lengthen a commit of the catalogue, for which other clients' confirms wait, by some milliseconds at most.
pub(super) const MAX_WAITING: usize = 1024;

impl MqttSession for MqttClient {
    fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity {
            user: self.authorised.identity().user(),
            vhost: self.vhost().name(),
            client_id: &self.owner.client_id,
        }
    }

    fn opened(&mut self, view: &Arc<OpenConnection>) {
        self.publisher.set_connection(Arc::<OpenConnection>::clone(view), 1);
        self.view = Some(Arc::clone(view));
    }

    fn set_time(&mut self, now: Instant) {
        self.now = self.shared.clock.timestamp(now);
    }

    fn publish(&mut self, publish: &packet::PublishPacket<'_>) -> Result<(), Refusal> {
        let outcome = self.publish_now(publish);
        if let Err(refusal) = outcome
            && self.question.ask(refusal == Refusal::UNASKED, self.authorised.identity(), &self.outbox)
        {
            self.repeated = Some(WaitingRequest::publish(publish));
            return Ok(());
        }
        self.question.over(self.authorised.identity());
        if outcome.is_ok() && publish.qos != QoS::AtMostOnce {
            self.shared.metrics.confirms(FrontEnd::Mqtt).wanted.add(1);
        }
        outcome
    }

    fn refuse(&mut self, packet_id: u16, refusal: Refusal) {
        let Refusal { reason, text } = refusal;
        self.flush_published();
        self.wait(PendingReply::Refuse { packet_id, reason, text }, DiskPoint::default());
    }

    fn released(&mut self, packet_id: u16) {
        let key = disk::packet_key(&self.owner, packet_id);
        let vhost = self.is_persistent().then(|| self.vhost());
        let ticket =
            vhost.and_then(|vhost| vhost.note(|catalogue| catalogue.delete(Section::MqttReceived, key)));
        self.wait(PendingReply::Complete { packet_id }, ticket.into());
    }

    fn delivered(&mut self, tag: u64, packet_id: u16, to_be_released: bool) {
        Self::delivered(self, tag, packet_id, to_be_released);
    }

    fn completed(&mut self, packet_id: u16) {
        self.changed_in_flight.push(packet_id);
    }

    fn subscribe(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>) {
        self.subscribe_all(engine, packet_id, requests);
    }

    fn unsubscribe(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>) {
        self.unsubscribe_all(engine, packet_id, filters);
    }

    fn flush(&mut self, engine: &mut Engine) {
        self.continue_request(engine);
        if !self.published.is_empty() {
            let flushed = self.publisher.flush(self.now);
            if flushed.unfinished {
                return self.publish_gate.pause_for_turn();
            }
            self.flushed(&flushed);
        }
        self.flush_settled();
        if self.changed_in_flight.is_empty() {
            return;
        }
        let packet_ids = std::mem::take(&mut self.changed_in_flight);
        let ticket = self.persist_in_flight(engine.session(), packet_ids, Vec::new());
        for packet_id in std::mem::take(&mut self.to_release) {
            // After PUBREL is answered the session forgets the message, so its queue must have released it on disk by
            // then.
            self.wait(PendingReply::Release { packet_id }, DiskPoint { lsn: self.settled_until, ticket });
        }
    }

    fn next_answer(&mut self) -> Option<PendingReply> {
        let then = self.waiting.next(self.hub.store())?;
        if let PendingReply::Accept { .. } = then {
            self.shared.metrics.confirms(FrontEnd::Mqtt).given.add(1);
        }
        Some(then)
    }

    fn deliver(&mut self, engine: &mut Engine) {
        Self::deliver(self, engine);
    }

    fn has_deliverable(&self, engine: &Engine) -> bool {
        self.has_arrivals(engine) && self.may_be_traced() && !work::is_turn_over()
    }

    fn has_capacity(&self) -> bool {
        self.publish_gate.is_open() && self.waiting.len() < MAX_WAITING && self.repeated.is_none()
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.repeated.is_none()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.authorised.expires_at().map(|end| self.shared.clock.instant(end))
    }

    fn handle_nudge(&mut self) -> Option<CloseReason> {
        if self.authorised.identity().is_expired(self.now) {
            // MQTT has no way to renew a token (RabbitMQ 4 ends the connection likewise).
            return Some(CloseReason::new(ReasonCode::MaximumConnectTime, "the token has expired"));
        }
        let is_superseded = self.claim.is_superseded();
        if is_superseded && !self.vhost().is_gone() {
            return Some(CloseReason::new(ReasonCode::SessionTakenOver, TAKEN_OVER));
        }
        if is_superseded {
            return Some(CloseReason::new(ReasonCode::AdministrativeAction, "the virtual host was deleted"));
        }
        if self.has_lost_a_queue() {
            let text = "a queue of the session was deleted";
            return Some(CloseReason::new(ReasonCode::AdministrativeAction, text));
        }
        if self.misses_exchange {
            return Some(CloseReason::new(ReasonCode::ImplementationSpecificError, MISSING_EXCHANGE));
        }
        if let Some(Refusal { reason, text }) = self.not_resumed {
            return Some(CloseReason::new(reason, format!("the session cannot be resumed: {text}")));
        }
        self.publish_gate.resume(self.vhost());
        self.repeat_publish()
    }

    fn end(mut self: Box<Self>, mut session: Session, end: MqttEnd) {
        // The results are not needed: acknowledgements can no longer be sent.
        self.publisher.flush_all(self.now);
        self.published.clear();
        for then in self.waiting.drain() {
            // The message was published, and must not be published again when the client resends it.
            if let PendingReply::Accept { packet_id, .. } = then {
                session.accepted(packet_id);
            }
        }
        if let Some(mut tracer) = self.tracer.take() {
            tracer.flush_all(self.now);
        }
        self.renew_lease(end.session_expiry);
        self.detach_all();
        // Deletes the queues that end with the connection.
        self.vhost().end_session(self.session_id);
        // A will without delay is published now; a delayed one stays with the session until it is due.
        let will_delay = end.will_delay().unwrap_or_default();
        let user: Box<str> = self.authorised.identity().user().into();
        let external = Some(self.authorised.identity()).filter(|identity| identity.is_external()).cloned();
        let mut will = end.will;
        if will_delay.is_zero()
            && let Some(will) = will.take()
        {
            let view = self.view.as_ref();
            let author = WillAuthor { user: &user, external: external.as_ref() };
            self.hub.publish_will(&self.owner, self.vhost(), author, &will, view, self.now);
        }
        let due = self.now.after(u64::try_from(will_delay.as_millis()).unwrap_or(u64::MAX));
        let until = self.waiting.until().and(self.settled_until.into());
        let mut detached_session = DetachedSession {
            session,
            unacked: std::mem::take(&mut self.unacked),
            restored: std::mem::take(&mut self.restored),
            next_tag: self.next_tag,
            pending_retained: std::mem::take(&mut self.pending_retained),
            groups: std::mem::take(&mut self.groups),
            partial: std::mem::take(&mut self.partial),
            moving: std::mem::take(&mut self.moving),
            user: self.session_user.take(),
            merged_below: self.merged_below,
            is_merged: false,
            owns: self.owns,
            is_found: false,
            until,
            expiry: end.session_expiry,
            since: self.now,
            will: will.map(|will| PendingWill { will, user, external, due }),
        };
        // Must precede the release, after which another connection may claim the session.
        let left = if detached_session.expiry == 0 {
            self.hub.end(&self.owner, self.vhost(), detached_session, self.now);
            None
        } else {
            let written = self.hub.persist(&self.owner, self.vhost(), &detached_session);
            detached_session.until = detached_session.until.and(written.into());
            Some(Box::new(detached_session))
        };
        self.hub.release(&self.owner, &self.claim, left);
    }
}

impl From<super::message::ConversionError> for Refusal {
    fn from(error: super::message::ConversionError) -> Self {
        Self { reason: error.reason, text: error.text }
    }
}

impl From<Full> for Refusal {
    fn from(_: Full) -> Self {
        Self { reason: ReasonCode::QuotaExceeded, text: "retained message limit reached" }
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        if error == BrokerError::Unasked {
            return Self::UNASKED;
        }
        tracing::debug!(%error, "refused");
        match error.reply_code() {
            ReplyCode::AccessRefused => Self { reason: ReasonCode::NotAuthorized, text: "access refused" },
            _ => Self { reason: ReasonCode::ImplementationSpecificError, text: "refused by the broker" },
        }
    }
}
