//! An open connection's session in front of an upstream: its publishes, its answers, and its end.
//!
//! Subscriptions are in [`super::subscribing`], messages for the client in [`super::delivering`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use amqp::{Fault, ReplyCode};
use broker::{FrontEnd, Timestamp};
use mqtt::packet::PublishPacket;
use mqtt::server::{MqttEnd, ServerConnection as Engine};
use mqtt::session::Session;
use mqtt::{QoS, ReasonCode};
use sync::work;
use tokio::sync::oneshot;
use transport::Outbox;

use super::delivery_paths::DeliveryPaths;
use super::groups::Groups;
use super::hub::{DetachedUpstream, UpstreamClaim, UpstreamHub};
use super::live::LiveFilters;
use super::pending::{PendingEntries, PendingSubscribes};
use super::publishing::Unconfirmed;
use super::queue_requests::QueueRequest;
use super::retained::{BlindCopies, LogClient, RetainedSession};
use super::session_takeover::{TakenBy, Watched};
use super::state::{OutboundPublish, StateQueue, StateWork};
use super::teardown::{DelayedWill, SessionTeardown, note_accepted, publish_will};
use super::uplink::{Uplink, UplinkEvent};
use crate::backend::Backend;
use crate::mqtt::detached::lease;
use crate::mqtt::hub::queue_name;
use crate::mqtt::message::{Incoming, MessageMapping, check_length, to_amqp};
use crate::mqtt::on_demand::OnDemand;
use crate::mqtt::session::{
    ClientIdentity, CloseReason, MISSING_EXCHANGE, MqttSession, PendingReply, Refusal, Request, TAKEN_OVER,
};
use crate::mqtt::session_ownership::Owner;
use crate::mqtt::subscriptions::Subscriptions;
use crate::registry::OpenConnection;
use crate::server::Shared;
use crate::upstream::multiplexing::UpstreamLogin;

/// A client's session in front of an upstream.
pub(super) struct UpstreamSession {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Arc<UpstreamHub>,
    pub(super) owner: Arc<Owner>,
    claim: Arc<UpstreamClaim>,
    /// Its announcement to other servers, unless the client cannot connect to them with this session.
    watched: Option<Watched>,
    user: Box<str>,
    pub(super) outbox: Arc<Outbox>,
    /// Nudges the connection's outbox.
    waker: Waker,
    pub(super) uplink: Uplink,
    pub(super) live: LiveFilters,
    pub(super) subscriptions: Subscriptions,
    /// SUBSCRIBE and UNSUBSCRIBE packets that wait for the upstream.
    pub(super) pending: PendingSubscribes,
    pub(super) paths: DeliveryPaths,
    /// Its shared subscriptions.
    pub(super) groups: OnDemand<Groups>,
    /// The pending work for the state queue.
    pub(super) work: StateWork,
    pub(super) retained: RetainedSession,
    /// The session's queue for QoS 1 messages.
    pub(super) queue: SessionQueue,
    /// Whether QoS 1 subscriptions use that queue: the session outlives this connection or has outlived an earlier one.
    uses_queue: bool,
    /// Answers that are due.
    pub(super) answers: VecDeque<PendingReply>,
    pub(super) mapping: MessageMapping,
    /// Seconds that the session outlives the connection; 0 if it ends with the connection.
    expiry: u32,
    pub(super) is_bridge: bool,
    /// The next tag for a message that is not from the session's queue.
    pub(super) next_tag: u64,
    end: ConnectionEnd,
    /// The wall clock's time. Expiry times are on it, since other servers write them.
    pub(super) wall: Timestamp,
    pub(super) at: Instant,
}

/// Whether, and why, the connection has to close.
enum ConnectionEnd {
    None,
    /// A queue of the session was deleted. Closes at this time, unless another connection turns out to be the reason.
    QueueDeleted(Instant),
    Due(CloseReason),
}

/// The queue of a session.
pub(super) struct SessionQueue {
    pub(super) name: Box<str>,
    pub(super) state: QueueState,
    /// Whether the queue existed when the client connected.
    is_found: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueState {
    Absent,
    /// Requested, by the request with this number.
    Declaring(u64),
    Exists,
}

impl SessionQueue {
    pub(super) fn is_there(&self) -> bool {
        self.state == QueueState::Exists
    }

    pub(super) fn is_absent(&self) -> bool {
        self.state == QueueState::Absent
    }

    /// The request that deletes the queue, unless it is absent.
    fn into_delete(self) -> Option<QueueRequest> {
        let Self { name: queue, state, is_found } = self;
        match (state, is_found) {
            (QueueState::Absent, _) => None,
            // Another server may have declared it with any type.
            (_, true) => Some(QueueRequest::DeleteIdle { queue }),
            (_, false) => Some(QueueRequest::DeleteUnused { queue }),
        }
    }
}

/// The parameters of a client that was admitted.
pub(super) struct AdmittedUpstream {
    pub(super) owner: Arc<Owner>,
    pub(super) claim: Arc<UpstreamClaim>,
    pub(super) watched: Option<Watched>,
    pub(super) user: Box<str>,
    pub(super) uplink: Uplink,
    pub(super) shared_login: UpstreamLogin,
    pub(super) log: LogClient,
    pub(super) mapping: MessageMapping,
    /// Whether the session's queue exists.
    pub(super) has_queue: bool,
    /// Whether the session was found upstream, and so has outlived a connection.
    pub(super) is_found: bool,
    pub(super) expiry: u32,
    pub(super) is_bridge: bool,
}

impl UpstreamSession {
    pub(super) fn new(
        shared: &Arc<Shared>,
        hub: &Arc<UpstreamHub>,
        outbox: &Arc<Outbox>,
        admitted: AdmittedUpstream,
        now: Instant,
    ) -> Self {
        let AdmittedUpstream { owner, claim, watched, user, uplink, shared_login, log, .. } = admitted;
        let name = queue_name(&owner.client_id, 1).into();
        let state = if admitted.has_queue { QueueState::Exists } else { QueueState::Absent };
        Self {
            shared: Arc::clone(shared),
            hub: Arc::clone(hub),
            owner,
            claim,
            watched,
            user,
            outbox: Arc::clone(outbox),
            waker: outbox.nudging_waker(),
            uplink,
            live: LiveFilters::new(shared_login, &hub.config, admitted.mapping.form),
            subscriptions: Subscriptions::default(),
            pending: PendingSubscribes::default(),
            paths: DeliveryPaths::default(),
            groups: OnDemand::default(),
            work: StateWork::default(),
            retained: RetainedSession::new(log),
            queue: SessionQueue { name, state, is_found: admitted.has_queue },
            uses_queue: admitted.is_found || admitted.expiry > 0,
            answers: VecDeque::new(),
            mapping: admitted.mapping,
            expiry: admitted.expiry,
            is_bridge: admitted.is_bridge,
            next_tag: LIVE_TAGS,
            end: ConnectionEnd::None,
            wall: hub.clock.wall(now),
            at: now,
        }
    }

    /// Whether QoS 1 subscriptions use the session's queue.
    pub(super) fn uses_queue(&self) -> bool {
        self.uses_queue
    }

    /// Whether the session outlives its connection.
    pub(super) fn is_persistent_session(&self) -> bool {
        self.expiry > 0
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Whether the connection continues.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.end, ConnectionEnd::Due(_))
    }

    /// `x-expires` of the session's queues, in milliseconds; `None` for never. The queues of a resumed session that now
    /// ends with its connection are deleted then, so theirs is short.
    pub(super) fn queue_expires(&self) -> Option<u64> {
        let expires = if self.is_persistent_session() { lease(self.expiry) } else { Some(MIN_EXPIRES) };
        expires.map(|expires| expires.min(MAX_EXPIRES))
    }

    fn is_upstream_gone(&self) -> bool {
        matches!(&self.shared.backend, Backend::Upstream(pool) if !pool.is_reachable())
    }

    /// Closes the connection for this reason, unless it is closing already.
    pub(super) fn fail(&mut self, reason: ReasonCode, why: &Fault) {
        if self.is_open() {
            tracing::debug!(client = &*self.owner.client_id, user = &*self.user, %reason, %why, "session ends");
            self.end = ConnectionEnd::Due(CloseReason::new(reason, why.text.clone()));
            self.outbox.nudge();
        }
    }

    /// Called when a queue of the session was deleted: by an operator, or because the client has connected to another
    /// server. The announcement of that connection takes another path, and may arrive later.
    pub(super) fn queue_deleted(&mut self) {
        let wait = if self.watched.is_some() { ANNOUNCEMENT_TIMEOUT } else { Duration::ZERO };
        if matches!(self.end, ConnectionEnd::None) {
            self.end = ConnectionEnd::QueueDeleted(self.at + wait);
        }
    }

    /// Sends requests, and handles the upstream's answers.
    pub(super) fn take_turn(&mut self, engine: &mut Engine) {
        if let ConnectionEnd::QueueDeleted(at) = self.end
            && at <= self.at
        {
            let fault = Fault::new(ReplyCode::NotFound, "the session's queue was deleted");
            self.fail(ReasonCode::AdministrativeAction, &fault);
        }
        if !self.is_open() {
            return;
        }
        self.end_lingering();
        loop {
            self.keep_state(engine);
            if let Err(fault) = self.uplink.take_turn(&self.waker, self.at) {
                return self.fail(ReasonCode::ServerUnavailable, &fault);
            }
            self.handle_events(engine);
            if !self.handle_entries(engine) {
                return;
            }
        }
    }

    fn handle_events(&mut self, engine: &mut Engine) {
        while let Some(event) = self.uplink.next_event() {
            match event {
                UplinkEvent::Published(then) => self.answers.push_back(then),
                UplinkEvent::Recorded => self.recorded(engine),
                UplinkEvent::RecordRefused => self.record_refused(),
                // The subscription is in a list that has to be written again.
                UplinkEvent::Unrecorded => self.mark_list_stale(),
                UplinkEvent::State(event) => self.handle_state(event, engine),
                UplinkEvent::PublishRefused(fault, unconfirmed) => self.publish_refused(&fault, &unconfirmed),
                UplinkEvent::Answered(number, answer) => {
                    self.group_bound(number, &answer, engine);
                    self.answered(number, answer, engine);
                }
                UplinkEvent::Group(consumer, event) => self.handle_group(consumer, event, engine),
                UplinkEvent::ConsumerLost(fault) if fault.code == ReplyCode::NotFound => self.queue_deleted(),
                UplinkEvent::ConsumerLost(fault) => self.fail(of_fault(&fault), &fault),
            }
        }
        self.advance_subscribes();
    }

    /// The tag for the next message that is not from the session's queue.
    pub(super) fn own_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag - 1
    }

    /// Called if the upstream has refused a request. If `mqtt_exchange` is missing, disconnects the client, as RabbitMQ
    /// does, and returns true.
    pub(super) fn note_refused(&mut self, fault: &Fault) -> bool {
        let is_missing = self.hub.note_refused(&self.owner.vhost, fault);
        if is_missing {
            let fault = Fault::new(fault.code, MISSING_EXCHANGE);
            self.fail(of_fault(&fault), &fault);
        }
        is_missing
    }

    /// Handles the refusal of a message: answers it, if it is known which message it was, and otherwise disconnects the
    /// client.
    fn publish_refused(&mut self, fault: &Fault, unconfirmed: &Unconfirmed) {
        if self.note_refused(fault) {
            return;
        }
        let reason = of_fault(fault);
        match unconfirmed {
            Unconfirmed::One(packet_id) if *packet_id != 0 => {
                let text = "refused by the upstream";
                self.answers.push_back(PendingReply::Refuse { packet_id: *packet_id, reason, text });
            }
            Unconfirmed::None => {}
            Unconfirmed::One(_) | Unconfirmed::Several => self.fail(reason, fault),
        }
    }
}

impl MqttSession for UpstreamSession {
    fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity { user: &self.user, vhost: &self.owner.vhost, client_id: &self.owner.client_id }
    }

    fn opened(&mut self, _view: &Arc<OpenConnection>) {}

    fn set_time(&mut self, now: Instant) {
        self.at = now;
        self.wall = self.hub.clock.wall(now);
    }

    fn publish(&mut self, publish: &PublishPacket<'_>) -> Result<(), Refusal> {
        let message = Incoming {
            qos: publish.qos,
            dup: publish.dup,
            retain: publish.retain,
            properties: publish.properties,
            client_id: self.subscriptions.any_no_local().then_some(&*self.owner.client_id),
        };
        let key = self.mapping.routing_key(publish.topic)?;
        let properties = to_amqp(&message, self.mapping, self.wall)?;
        check_length(&properties, self.shared.config.most_properties())?;
        let mut copies = BlindCopies::default();
        if publish.retain {
            self.retained.log.retain(&message, &key, publish.payload.len(), &mut copies)?;
        }
        if publish.qos != QoS::AtMostOnce {
            self.shared.metrics.confirms(FrontEnd::Mqtt).wanted.add(1);
        } else if self.is_upstream_gone() {
            // A QoS 0 message is dropped, so that it does not take the space of messages that have to wait.
            self.shared.metrics.mqtt_messages_dropped.add(1);
            return Ok(());
        }
        self.publish_in_order(OutboundPublish {
            packet_id: publish.packet_id,
            retains: publish.retain,
            qos: publish.qos,
            dup: publish.dup,
            topic: publish.topic.into(),
            routing_key: key.into(),
            properties: copies.apply(properties),
            body: publish.payload.to_bytes(),
        });
        Ok(())
    }

    fn refuse(&mut self, packet_id: u16, refusal: Refusal) {
        let Refusal { reason, text } = refusal;
        self.refuse_in_order(PendingReply::Refuse { packet_id, reason, text });
    }

    fn released(&mut self, packet_id: u16) {
        self.release(packet_id);
    }

    fn delivered(&mut self, tag: u64, packet_id: u16, to_be_released: bool) {
        if tag < LIVE_TAGS {
            self.uplink.acknowledge(tag);
        } else {
            self.delivered_shared(tag);
        }
        if to_be_released {
            self.answers.push_back(PendingReply::Release { packet_id });
        }
    }

    fn completed(&mut self, _packet_id: u16) {}

    fn subscribe(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>) {
        self.pending.push(packet_id, PendingEntries::Subscribe(requests.into_iter()));
        self.handle_entries(engine);
    }

    fn unsubscribe(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>) {
        self.pending.push(packet_id, PendingEntries::Unsubscribe(filters.into_iter()));
        self.handle_entries(engine);
    }

    fn flush(&mut self, engine: &mut Engine) {
        self.take_turn(engine);
    }

    fn next_answer(&mut self) -> Option<PendingReply> {
        let then = self.answers.pop_front().or_else(|| self.pending.next_answer());
        match then {
            Some(PendingReply::Accept { .. }) => self.shared.metrics.confirms(FrontEnd::Mqtt).given.add(1),
            None => self.answers = VecDeque::new(),
            _ => {}
        }
        then
    }

    fn deliver(&mut self, engine: &mut Engine) {
        self.deliver_all(engine);
    }

    fn has_deliverable(&self, engine: &Engine) -> bool {
        let is_due = !self.answers.is_empty() || self.pending.is_due();
        let has_messages = engine.free_window() > 0
            && (self.uplink.has_messages() || self.live.holds() || self.retained.has_messages());
        self.is_open() && (is_due || has_messages) && !work::is_turn_over()
    }

    fn has_capacity(&self) -> bool {
        self.is_open()
            && self.uplink.has_capacity()
            && self.live.has_capacity()
            && self.pending.has_capacity()
            && self.work.has_capacity()
            && self.retained.has_capacity()
    }

    fn is_settled(&self) -> bool {
        !self.is_open()
            || (self.uplink.is_settled()
                && self.work.is_settled()
                && self.pending.is_empty()
                && self.answers.is_empty())
    }

    fn handle_nudge(&mut self) -> Option<CloseReason> {
        if self.claim.is_superseded() {
            return Some(CloseReason::new(ReasonCode::SessionTakenOver, TAKEN_OVER));
        }
        if let ConnectionEnd::Due(end) = &self.end { Some(end.clone()) } else { None }
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Without capacity in the outbox nothing could be sent at that time.
        let paths = self.paths.next_deadline().filter(|_| self.outbox.has_capacity());
        let close_at = if let ConnectionEnd::QueueDeleted(at) = self.end { Some(at) } else { None };
        let deadlines = [self.uplink.next_deadline(), self.pending.next_deadline(), paths, close_at];
        deadlines.into_iter().flatten().min()
    }

    fn end(mut self: Box<Self>, mut session: Session, end: MqttEnd) {
        self.publish_rest();
        let Self {
            retained,
            hub,
            owner,
            claim,
            watched,
            user,
            mut uplink,
            live,
            queue,
            groups,
            uses_queue,
            mapping,
            wall,
            at,
            answers,
            ..
        } = *self;
        drop(live);
        answers.iter().for_each(|then| note_accepted(&mut session, then));
        // Closing the consumer requeues the messages in flight.
        let in_flight: Vec<u64> = session.in_flight().map(|entry| entry.tag).collect();
        in_flight.into_iter().for_each(|tag| session.forget_in_flight(tag));
        uplink.stop_consuming();
        let state_queue = uplink.used_state().and_then(StateQueue::name).map(Box::from);
        let taken = watched.as_ref().and_then(Watched::taken);
        let (consumers, others) = {
            let marked = (uses_queue && queue.state != QueueState::Absent).then_some(&*queue.name);
            groups.into_inner().ends(end.session_expiry == 0, marked)
        };
        consumers.into_iter().for_each(|(consumer, then)| uplink.stop_shared(consumer, then));
        let is_over = matches!(taken, Some(TakenBy::Clean));
        let delay = end.will_delay().filter(|_| !is_over).unwrap_or_default();
        let mut will = end.will;
        // Above the limit of delayed wills, the will is published at once.
        let share = will.as_ref().filter(|_| !delay.is_zero()).and_then(|will| hub.wills.add(will));
        if share.is_none()
            && let Some(will) = will.take()
        {
            publish_will(&mut uplink, &retained.log, mapping, &will, wall);
        }
        let (expiry, has_queue) = (end.session_expiry, queue.state != QueueState::Absent);
        // If another server has taken the client over, the queue is that server's.
        let mut deletes = Vec::new();
        if expiry == 0 && taken.is_none() {
            deletes.extend(queue.into_delete());
            deletes.extend(state_queue.map(|queue| QueueRequest::DeleteUnused { queue }));
        }
        let (later, published) = match will.zip(share) {
            // The client has reconnected before its will was due.
            Some(_) if taken.is_some() => (None, None),
            Some((will, share)) => {
                let (publish_now, fate) = oneshot::channel();
                let log = retained.log;
                (Some(DelayedWill { due: at + delay, fate, will, mapping, share, log }), Some(publish_now))
            }
            None => (None, None),
        };
        let since = hub.clock.timestamp(at);
        let left = (expiry > 0).then(|| {
            Box::new(DetachedUpstream {
                user,
                session,
                has_queue,
                expiry,
                since,
                will: published,
                age: None,
                is_forgotten: false,
            })
        });
        SessionTeardown { hub, owner, claim, uplink, deletes, leaves: others, left, will: later, watched }
            .start(at);
    }
}

/// The reason code for an upstream's fault.
pub(super) fn of_fault(fault: &Fault) -> ReasonCode {
    match fault.code {
        ReplyCode::AccessRefused => ReasonCode::NotAuthorized,
        ReplyCode::ConnectionForced => ReasonCode::ServerUnavailable,
        _ => ReasonCode::ImplementationSpecificError,
    }
}

/// The shortest queue expiry, in milliseconds: RabbitMQ refuses 0, and the queue must outlast a consumer that reconnects
/// at once.
pub(super) const MIN_EXPIRES: u64 = 60_000;

/// The longest queue expiry that RabbitMQ accepts, in milliseconds.
const MAX_EXPIRES: u64 = u32::MAX as u64;

/// How long a client stays connected whose queue was deleted, in case another server's announcement explains the
/// deletion.
pub(super) const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Tags from here on are of messages from no session queue; lower tags are upstream delivery tags.
const LIVE_TAGS: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each client in front of an upstream has a session, even if idle. The allocator rounds its size up to a size class,
    /// the next of which has 1,792 bytes: state that few clients need belongs in an [`OnDemand`].
    #[test]
    fn a_session_fits_an_allocation_of_1536_bytes() {
        assert!(size_of::<UpstreamSession>() <= 1536, "{}", size_of::<UpstreamSession>());
    }
}
