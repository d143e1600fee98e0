//! The rest of a session's work when its connection has ended: messages in flight return to their queue, the queue of a
//! session that has ended is deleted, and a will with a delay is published.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Timestamp;
use mqtt::server::StoredWill;
use tokio::sync::oneshot;

use super::hub::{DetachedUpstream, UpstreamClaim, UpstreamHub};
use super::queue_requests::QueueRequest;
use super::retained::{BlindCopies, LogClient};
use super::takeover::Watched;
use super::uplink::Uplink;
use crate::mqtt::claims::Owner;
use crate::mqtt::message::{Incoming, MessageMapping, to_amqp};

/// Time limit for the upstream to answer: a client that comes back waits for it, and one that meets an upstream without
/// answers is not to wait for longer than for its own login.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The work that is left.
pub(super) struct Farewell {
    pub(super) hub: Arc<UpstreamHub>,
    pub(super) owner: Arc<Owner>,
    pub(super) claim: Arc<UpstreamClaim>,
    /// Its consumer is stopped.
    pub(super) uplink: Uplink,
    /// The queue of a session that has ended.
    pub(super) deletes: Option<Box<str>>,
    /// The session, if it outlives its connection.
    pub(super) left: Option<Box<DetachedUpstream>>,
    pub(super) will: Option<DelayedWill>,
    /// Until then another server may take the client over.
    pub(super) watched: Option<Watched>,
}

/// A will whose delay has not passed.
pub(super) struct DelayedWill {
    pub(super) due: Instant,
    /// A message if it is to be published now; closed if it is discarded.
    pub(super) fate: oneshot::Receiver<()>,
    pub(super) will: StoredWill,
    pub(super) mapping: MessageMapping,
    /// Where it is retained, if it is to be.
    pub(super) log: LogClient,
}

impl Farewell {
    /// Does everything: at once if the upstream is not to answer, otherwise in a task of its own. The session is released
    /// when its messages are back in their queue, so that another connection finds them in their order.
    pub(super) fn say(mut self, now: Instant) {
        let waits = !self.uplink.is_stopped() || self.deletes.is_some() || self.will.is_some();
        if let Some(queue) = self.deletes.take() {
            self.uplink.request(0, QueueRequest::Delete { queue });
        }
        if waits {
            tokio::spawn(self.run());
        } else {
            self.uplink.end(now);
            release(&self.hub, &self.owner, &self.claim, (self.left, self.watched));
        }
    }

    async fn run(self) {
        let Self { hub, owner, claim, mut uplink, left, will, watched, .. } = self;
        // Without an answer, the end of the connection upstream does the same a moment later.
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, uplink.settle()).await;
        release(&hub, &owner, &claim, (left, watched));
        let Some(DelayedWill { due, fate, will, mapping, log }) = will else { return };
        let is_due = tokio::select! {
            () = tokio::time::sleep_until(due.into()) => true,
            fate = fate => fate.is_ok(),
        };
        if is_due {
            publish_will(&mut uplink, &log, mapping, &will, hub.clock.timestamp(Instant::now()));
            if !matches!(tokio::time::timeout(SETTLE_TIMEOUT, uplink.settle()).await, Ok(Ok(()))) {
                tracing::warn!(
                    vhost = &*owner.vhost,
                    client = &*owner.client_id,
                    "the upstream has not confirmed a will"
                );
            }
        }
    }
}

/// Publishes the will of a client whose connection has ended.
pub(super) fn publish_will(
    uplink: &mut Uplink,
    log: &LogClient,
    mapping: MessageMapping,
    will: &StoredWill,
    now: Timestamp,
) {
    let properties = will.properties.as_properties();
    let message = Incoming { qos: will.qos, dup: false, retain: will.retain, properties, client_id: None };
    // They were checked when the client connected.
    let Ok(key) = mapping.routing_key(&will.topic) else { return };
    let Ok(properties) = to_amqp(&message, mapping, now) else { return };
    let mut copies = BlindCopies::default();
    if will.retain
        && log.is_available()
        && let Err(refusal) = log.retain(&message, &key, will.payload.len(), &mut copies)
    {
        tracing::warn!(topic = &*will.topic, why = refusal.text, "a will is not retained");
    }
    uplink.publish(0, &key, &copies.apply(properties), &will.payload, transport::now());
}

/// Releases the session, of which nothing is kept here if another server has it.
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
    hub.release(owner, claim, left);
}
