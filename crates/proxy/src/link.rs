//! The upstream connections' view of a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use amqp::frame::write_method;
use amqp::method::connection;
use amqp::{Credentials, Fault};
use sync::{Mutex, Rank};
use transport::{OutBuf, Outbox};

use crate::refusal::Refusal;
use crate::replay_buffer::{ReplayBuffer, ReplayTotals};
use crate::topology::{Consuming, Declarer};
use crate::upstream::{Role, Upstream};
use crate::waiting::{ALWAYS, Waiting};

/// The endpoint to which an upstream connection's task sends: the client's outbox for forwarded frames, and a queue of
/// events that change the session's state.
#[derive(Debug)]
pub(crate) struct ClientLink {
    /// The number of the client's connection; 0 for the links that stand for departed clients.
    pub(crate) client: u64,
    pub(crate) outbox: Arc<Outbox>,
    /// The backlog of all clients, including this one's outbox.
    pub(crate) waiting: Arc<Waiting>,
    /// The client's negotiated frame_max; 0 means no limit.
    pub(crate) frame_max: u32,
    /// Whether the client has the `consumer_cancel_notify` capability.
    pub(crate) cancel_notify: bool,
    /// Whether the client is notified of blocked connections. Set if it has the `connection.blocked` capability; cleared when
    /// it moves to another process, which sends the notifications from then on.
    blocked_notify: AtomicBool,
    /// How many of the upstream connections that the client publishes on are blocked.
    blocked: AtomicUsize,
    /// Bytes of this client's frames that are kept until the broker answers.
    pub(crate) replay_buffer: Arc<ReplayBuffer>,
    /// Remembers the client's declarations; `None` for a departed client.
    declarer: Option<Arc<Declarer>>,
    /// The cluster node to which the client's channels go, so that the client sees its own declarations as on a direct
    /// connection. Other nodes apply a declaration a moment later, and until then drop messages that are routed to it.
    home: Mutex<Option<SocketAddr>, { Rank::Leaf as u8 }>,
    /// Whether the client is moving to another process, which requires that the closes of its channels are read.
    is_leaving: AtomicBool,
    /// Whether `events` may be non-empty.
    has_events: AtomicBool,
    events: Mutex<Events, { Rank::UpstreamClient as u8 }>,
}

#[derive(Debug, Default)]
struct Events {
    queue: Vec<Event>,
    /// Whether the session has ended.
    gone: bool,
}

/// Something that happened upstream, for the session to act on.
#[derive(Debug)]
pub(crate) enum Event {
    /// The upstream closed a channel. `payload` is its `channel.close` method; `answered` is true if close-ok
    /// has been sent.
    ChannelClosed { channel: u16, lease: u64, payload: Box<[u8]>, answered: bool },
    /// The upstream confirmed a close. `last_queue` is what an empty queue name meant on the channel.
    CloseOk { channel: u16, lease: u64, last_queue: Option<Box<str>> },
    /// The pause is over before consumers are recreated that the broker refused because their queues had not started.
    Retry,
    /// A connection that had run out of channel numbers has one again.
    ChannelFree,
    /// The broker has processed what the next frames of a channel, or its move, were waiting for.
    Answered,
    /// All messages published on a channel are confirmed.
    Confirmed,
    /// An upstream connection is ready or failed to open: the client's own, or a shared one.
    Ready { own: bool, role: Role, result: Result<Arc<Upstream>, Refusal> },
    /// The broker's verdict on the client's new secret, the `number`th.
    SecretVerified { number: u64, result: Result<Arc<Credentials>, Refusal> },
    /// An upstream connection ended in the middle of a message that was being delivered to the client.
    BrokenOff { upstream: u64 },
    /// An upstream connection has ended. `is_suspect` if the connection was stalled, perhaps by this client.
    Lost { upstream: u64, fault: Fault, is_suspect: bool },
    /// The client's declarations are lost with their broker, and cannot be declared again for it.
    NotRestored { fault: Fault },
    /// The client's own connection is clean again and back in the pool.
    Returned,
    /// The client does not take its deliveries fast enough for a shared connection: nothing more is delivered
    /// on this channel.
    DeliveriesOverflowed { channel: u16, lease: u64 },
    /// The last messages of this channel are not followed by anything that has a reply.
    Unproven { channel: u16, lease: u64 },
    /// The session should request an answer on this channel, to find out whether the broker still reads the connection.
    AnswerWanted { channel: u16, lease: u64 },
    /// There is no buffer space for the client's incomplete messages.
    NoCapacity,
    /// Other clients wait for the buffer space, or the stream, that the client has used for long.
    GiveWay,
}

impl ClientLink {
    pub(crate) fn new(
        client: u64,
        outbox: Arc<Outbox>,
        frame_max: u32,
        capabilities: amqp::Capabilities,
        replay_totals: Arc<ReplayTotals>,
        waiting: Arc<Waiting>,
    ) -> Self {
        outbox.count_towards(waiting.tally());
        Self {
            client,
            replay_buffer: Arc::new(ReplayBuffer::new(replay_totals, &outbox)),
            outbox,
            waiting,
            frame_max,
            cancel_notify: capabilities.consumer_cancel_notify,
            blocked_notify: AtomicBool::new(capabilities.connection_blocked),
            blocked: AtomicUsize::new(0),
            declarer: None,
            home: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            has_events: AtomicBool::new(false),
            events: Mutex::default(),
        }
    }

    /// The node of the client's connections, if it uses any.
    pub(crate) fn home(&self) -> Option<SocketAddr> {
        *self.home.lock()
    }

    /// Called when the client uses a connection to this node, and none to its previous node.
    pub(crate) fn set_home(&self, node: SocketAddr) {
        *self.home.lock() = Some(node);
    }

    /// Sets the declarer, which remembers the client's declarations.
    pub(crate) fn with_declarer(self, declarer: Declarer) -> Self {
        Self { declarer: Some(Arc::new(declarer)), ..self }
    }

    pub(crate) fn declarer(&self) -> Option<&Arc<Declarer>> {
        self.declarer.as_ref()
    }

    /// The client's number in the topology; 0 without a declarer.
    pub(crate) fn declarer_id(&self) -> u64 {
        self.declarer.as_ref().map_or(0, |declarer| declarer.id)
    }

    /// Counts a consumer of the client, if its queue is remembered and is deleted with its last consumer.
    pub(crate) fn consuming(&self, queue: &str) -> Option<Consuming> {
        self.declarer.as_ref()?.consuming(queue)
    }

    /// A link that stands for a departed client and discards everything sent to it.
    pub(crate) fn nobody() -> Arc<Self> {
        let link = Self::departed(Arc::default());
        link.leave();
        link
    }

    /// A link for the task that hands over a departed client's leftovers; unlike [`Self::nobody`] it receives
    /// events.
    pub(crate) fn departed(replay_totals: Arc<ReplayTotals>) -> Arc<Self> {
        let outbox = Arc::new(Outbox::new(0));
        let link = Self::new(0, outbox, 0, amqp::Capabilities::default(), replay_totals, Arc::default());
        link.replay_buffer.depart();
        Arc::new(link)
    }

    /// Queues an event for the session; returns it if the session has ended.
    pub(crate) fn push(&self, event: Event) -> Result<(), Event> {
        let mut events = self.events.lock();
        if events.gone {
            return Err(event);
        }
        events.queue.push(event);
        self.has_events.store(true, Ordering::Release);
        drop(events);
        self.outbox.nudge();
        Ok(())
    }

    /// Like [`Self::push`], for events that an ended session can ignore.
    pub(crate) fn notify(&self, event: Event) {
        // An ended session has already given up its channels.
        let _ = self.push(event);
    }

    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Acquire)
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        let mut events = self.events.lock();
        self.has_events.store(false, Ordering::Release);
        std::mem::take(&mut events.queue)
    }

    /// Whether the session has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.events.lock().gone
    }

    /// Marks the session as ended; returns the events that were not handled.
    pub(crate) fn leave(&self) -> Vec<Event> {
        let mut events = self.events.lock();
        events.gone = true;
        self.replay_buffer.depart();
        std::mem::take(&mut events.queue)
    }

    /// Whether the client's own connection may be read. If not, [`crate::ProxySession::handle_capacity`] is called
    /// when it may.
    pub(crate) fn has_capacity(&self) -> bool {
        let allowance = self.waiting.allowance();
        let is_leaving = self.is_leaving.load(Ordering::Relaxed);
        self.outbox.has_capacity_below(if is_leaving {
            allowance
        } else {
            allowance.min(self.outbox.limit())
        })
    }

    /// Called when the client starts to move to another process. From now on its own connection is read beyond the outbox's
    /// limit, up to the client's share of the total backlog, so that the closes of its channels arrive even if the client
    /// does not read.
    pub(crate) fn begin_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the client may send more requests: replies to earlier ones have not used up the client's share
    /// of the total backlog. If not, [`crate::ProxySession::handle_capacity`] is called when it may.
    pub(crate) fn may_ask(&self) -> bool {
        self.outbox.has_capacity_below(self.waiting.allowance())
    }

    /// Passes on bytes that came from an upstream. A shared connection never waits for this client: deliveries
    /// end at its allowance, and no more answers come than to the unanswered methods in its replay buffer, because
    /// the client is not read at its allowance ([`Self::may_ask`]).
    pub(crate) fn deliver(&self, mut bytes: Vec<u8>) {
        if self.outbox.backlog() > ALWAYS {
            // The data may wait for a while, and only its length is counted, not its capacity.
            bytes.shrink_to_fit();
        }
        self.outbox.append(|buf| buf.push(bytes.into()));
    }

    /// An upstream connection that the client publishes on is blocked. The client is notified of the first.
    pub(crate) fn block(&self, reason: &str) {
        self.update_blocked(|blocked, buf| {
            if blocked.fetch_add(1, Ordering::AcqRel) == 0 {
                write_method(buf.tail(), 0, connection::Blocked { reason });
            }
        });
    }

    /// An upstream connection that the client publishes on is no longer blocked. The client is notified of
    /// the last.
    pub(crate) fn unblock(&self) {
        self.update_blocked(|blocked, buf| {
            if blocked.fetch_sub(1, Ordering::AcqRel) == 1 {
                write_method(buf.tail(), 0, connection::Unblocked {});
            }
        });
    }

    /// The client continues in another process, which does not know the connections that are blocked here, so the client is
    /// notified that none is. A [`BlockedNotice`] that ends later does not notify it, because its socket is gone.
    pub(crate) fn leave_blocked(&self) {
        self.outbox.append(|buf| {
            let is_notified = self.blocked_notify.swap(false, Ordering::AcqRel);
            if is_notified && self.blocked.load(Ordering::Acquire) > 0 {
                write_method(buf.tail(), 0, connection::Unblocked {});
            }
        });
    }

    /// Updates the count, and notifies the client, under the outbox's lock: connections are blocked and unblocked by tasks of
    /// their own, and the last notification must match the state.
    fn update_blocked(&self, count: impl FnOnce(&AtomicUsize, &mut OutBuf)) {
        if self.blocked_notify.load(Ordering::Acquire) {
            self.outbox.append(|buf| {
                if self.blocked_notify.load(Ordering::Acquire) {
                    count(&self.blocked, buf);
                }
            });
        }
    }
}

/// Notifies a client that a broker does not read publishers, until it is dropped.
#[derive(Debug)]
pub(crate) struct BlockedNotice(Arc<ClientLink>);

impl BlockedNotice {
    pub(crate) fn new(link: &Arc<ClientLink>, reason: &str) -> Self {
        link.block(reason);
        Self(link.clone())
    }
}

impl Drop for BlockedNotice {
    fn drop(&mut self) {
        self.0.unblock();
    }
}

#[cfg(test)]
mod tests {
    use amqp::Method;

    use super::*;

    #[test]
    fn the_last_blocked_or_unblocked_sent_to_a_client_matches_its_state() {
        let outbox = Arc::new(Outbox::new(usize::MAX));
        let capabilities = amqp::Capabilities::ALL;
        let link = ClientLink::new(1, Arc::clone(&outbox), 0, capabilities, Arc::default(), Arc::default());
        for _ in 0..200 {
            // One upstream connection stays blocked, two others are blocked and unblocked repeatedly.
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            link.block("low on memory");
                            link.unblock();
                        }
                    });
                }
                scope.spawn(|| link.block("low on memory"));
            });
            let received = outbox.read_all();
            let mut rest = &received[..];
            let mut last = None;
            while let Some(frame) = amqp::frame::Frame::parse(rest, 0).unwrap() {
                last = Some(matches!(Method::decode(frame.payload), Ok(Method::ConnectionBlocked(_))));
                rest = &rest[frame.wire_len()..];
            }
            assert_eq!(last, Some(true));
            link.unblock();
            outbox.read_all();
        }
    }
}
