//! The work after a connection has ended: messages in flight are requeued, the upstream's answers to the client's
//! messages are awaited, the queues of an ended session are deleted, and a delayed will is published.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Timestamp;
use mqtt::server::StoredWill;
use mqtt::session::Session;
use tokio::sync::oneshot;

use super::delayed_wills::{TeardownGuard, WillShare};
use super::hub::{DetachedUpstream, UpstreamClaim, UpstreamHub};
use super::queue_requests::QueueRequest;
use super::retained::{BlindCopies, LogClient};
use super::session_takeover::Watched;
use super::uplink::{Uplink, UplinkEvent};
use crate::mqtt::message::{Incoming, MessageMapping, to_amqp};
use crate::mqtt::session::PendingReply;
use crate::mqtt::session_ownership::Owner;

/// Time limit for the upstream to confirm messages and to requeue those in flight. A reconnecting client waits for this,
/// and for an unresponsive upstream it should wait no longer than for its own login. The limit applies again to revoking
/// records.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses, in milliseconds, before a queue's consumers are counted again: a quorum queue of RabbitMQ 4 learns of a closed
/// channel some milliseconds after its client. A queue that still has consumers afterwards is left to expire.
const IN_USE_PAUSES: [u64; 5] = [10, 20, 40, 80, 160];

/// The remaining work of an ended connection.
pub(super) struct SessionTeardown {
    pub(super) hub: Arc<UpstreamHub>,
    pub(super) owner: Arc<Owner>,
    pub(super) claim: Arc<UpstreamClaim>,
    /// The client's upstream connection, whose consumers are stopped.
    pub(super) uplink: Uplink,
    /// Requests that delete the queues of a session that has ended.
    pub(super) deletes: Vec<QueueRequest>,
    /// Requests for the groups that the session leaves.
    pub(super) leaves: Vec<QueueRequest>,
    /// The session, if it outlives its connection.
    pub(super) left: Option<Box<DetachedUpstream>>,
    pub(super) will: Option<DelayedWill>,
    /// Its announcement, by which another server may take the client over until the session is released.
    pub(super) watched: Option<Watched>,
}

/// A will with a delay.
pub(super) struct DelayedWill {
    pub(super) due: Instant,
    /// Receives a message if the will has to be published now; closed if it is discarded.
    pub(super) fate: oneshot::Receiver<()>,
    pub(super) will: StoredWill,
    pub(super) mapping: MessageMapping,
    pub(super) share: WillShare,
    /// The log in which it is retained, if it is a retained message.
    pub(super) log: LogClient,
}

impl SessionTeardown {
    /// Does the work: at once if no answer of the upstream is needed, otherwise in its own task. The session is released
    /// when its messages are requeued, so that the next connection gets them in order, and when it is known which QoS 2
    /// messages the upstream has.
    pub(super) fn start(mut self, now: Instant) {
        while let Some(event) = self.uplink.next_event() {
            note(&mut self.left, event);
        }
        for request in std::mem::take(&mut self.leaves) {
            self.uplink.request(0, request);
        }
        let is_unconfirmed = self.left.is_some() && !self.uplink.is_settled();
        let waits = is_unconfirmed
            || self.uplink.has_requests()
            || !self.uplink.is_stopped()
            || !self.deletes.is_empty()
            || self.will.is_some();
        if waits {
            let unfinished = self.hub.wills.begin();
            tokio::spawn(self.run(unfinished));
        } else {
            self.uplink.end(now);
            release(&self.hub, &self.owner, &self.claim, (self.left, self.watched));
        }
    }

    async fn run(self, _unfinished: TeardownGuard) {
        let Self { hub, owner, claim, mut uplink, deletes, mut left, will, watched, .. } = self;
        let settled = uplink.settle(|event| note(&mut left, event));
        // Without an answer, closing the upstream connection soon does the same. Only unconfirmed messages are not
        // resolved: their client publishes them again. RabbitMQ may have lost them while their records are in another
        // queue: when a channel closes, it drops messages that a queue without a leader has not accepted.
        if tokio::time::timeout(SETTLE_TIMEOUT, settled).await.is_err() {
            let _ = tokio::time::timeout(SETTLE_TIMEOUT, uplink.revoke_unconfirmed()).await;
        }
        let is_taken = || watched.as_ref().and_then(Watched::taken).is_some();
        if !is_taken() {
            // If a queue has a consumer by now, that is the client's connection to another server.
            for delete in deletes {
                uplink.request(0, delete);
            }
        }
        // A deletion in flight must not hit the next connection's queue, however late it is carried out. If no answer
        // comes, the pool detects that the upstream is lost.
        let _ = uplink.settle_requests(|event| note(&mut left, event)).await;
        delete_once_unused(&mut uplink, is_taken, &mut left).await;
        // The will is discarded if the client resumes the session on another server at any time until it is due.
        let hold = will.as_ref().and(watched.as_ref()).map(Watched::hold);
        release(&hub, &owner, &claim, (left, watched));
        let Some(DelayedWill { due, fate, will, mapping, share: _share, log }) = will else { return };
        let is_due = tokio::select! {
            biased;
            fate = fate => fate.is_ok(),
            () = tokio::time::sleep_until(due.into()) => true,
            // Only this process knows the will.
            () = hub.wills.draining() => true,
        };
        drop(hold);
        hub.will_is_due(&owner);
        if is_due {
            publish_will(&mut uplink, &log, mapping, &will, hub.clock.wall(transport::now()));
            if !matches!(tokio::time::timeout(SETTLE_TIMEOUT, uplink.settle(drop)).await, Ok(Ok(()))) {
                tracing::warn!(
                    vhost = &*owner.vhost,
                    client = &*owner.client_id,
                    "will not confirmed by the upstream"
                );
            }
        }
    }
}

/// Deletes the queues that had consumers at the first attempt, if these are gone a moment later.
async fn delete_once_unused(
    uplink: &mut Uplink,
    is_taken: impl Fn() -> bool,
    left: &mut Option<Box<DetachedUpstream>>,
) {
    for pause in IN_USE_PAUSES {
        let in_use = uplink.take_in_use();
        if in_use.is_empty() || is_taken() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
        in_use.into_iter().for_each(|queue| uplink.request(0, QueueRequest::DeleteIdle { queue }));
        // An error means that the upstream is lost.
        let _ = uplink.settle_requests(|event| note(left, event)).await;
    }
}

/// Updates a session that outlives its connection by an event.
fn note(left: &mut Option<Box<DetachedUpstream>>, event: UplinkEvent) {
    if let UplinkEvent::Published(then) = event {
        left.iter_mut().for_each(|left| note_accepted(&mut left.session, &then));
    }
}

/// Records that the upstream has confirmed a message, if `then` is the answer that says so: a QoS 2 message is then not
/// published again.
pub(super) fn note_accepted(session: &mut Session, then: &PendingReply) {
    if let PendingReply::Accept { packet_id, .. } = then {
        session.accepted(*packet_id);
    }
}

/// Publishes the will of a client whose connection has ended. `now` is the wall clock's time.
pub(super) fn publish_will(
    uplink: &mut Uplink,
    log: &LogClient,
    mapping: MessageMapping,
    will: &StoredWill,
    now: Timestamp,
) {
    let properties = will.properties.as_properties();
    let message = Incoming { qos: will.qos, dup: false, retain: will.retain, properties, client_id: None };
    // Both were checked when the client connected.
    let Ok(key) = mapping.routing_key(&will.topic) else { return };
    let Ok(properties) = to_amqp(&message, mapping, now) else { return };
    let mut copies = BlindCopies::default();
    if will.retain
        && let Err(refusal) = log.retain(&message, &key, will.payload.len(), &mut copies)
    {
        tracing::warn!(topic = &*will.topic, why = refusal.text, "will not retained");
    }
    uplink.publish(0, &key, &copies.apply(properties), &will.payload, transport::now());
}

/// Releases the session; this process remembers nothing of it if another server has taken it over.
fn release(
    hub: &UpstreamHub,
    owner: &Arc<Owner>,
    claim: &Arc<UpstreamClaim>,
    (mut left, watched): (Option<Box<DetachedUpstream>>, Option<Watched>),
) {
    if let Some(by) = watched.as_ref().and_then(Watched::taken)
        && let Some(left) = left.take()
    {
        left.taken(by);
    }
    let user = left.as_ref().map(|left| left.user.clone());
    hub.release(owner, claim, left);
    leave(hub, owner, user.as_deref(), watched);
}

/// Removes the entry for takeovers after the hub has got the session that `user` leaves, if any. So an announcement is
/// noticed by the entry before this, and by the hub after it.
pub(super) fn leave(hub: &UpstreamHub, owner: &Owner, user: Option<&str>, watched: Option<Watched>) {
    if let Some(by) = watched.and_then(Watched::leave)
        && let Some(user) = user
    {
        hub.forget(owner, user, by);
    }
}
