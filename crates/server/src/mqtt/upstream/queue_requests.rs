//! Requests about a session's queues, on a channel that is open only while requests wait for their answers.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::method::{channel, exchange, queue};
use amqp::{Fault, FieldTable, FieldValue, Method, RawTable, ReplyCode};
use broker::QueueKind;

use crate::mqtt::MqttConfig;
use crate::upstream::client::{AmqpClient, announced, misses_exchange};

/// The channel's number.
pub(super) const REQUESTING: u16 = 3;

/// The number of a request whose answer is ignored.
const UNNUMBERED: u64 = 0;

/// How often a group's exchange is declared again because another client has left the group, and so deleted it, before a
/// queue is bound to it.
const MAX_REDECLARED: u32 = 5;

/// A request to the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QueueRequest {
    /// Passive declaration: whether the queue exists.
    Find {
        queue: Box<str>,
    },
    /// Deletes a queue if it exists.
    Delete {
        queue: Box<str>,
    },
    /// Deletes a queue if it exists and has no consumer.
    DeleteUnused {
        queue: Box<str>,
    },
    /// The same for a queue that may be a quorum queue, for which RabbitMQ answers if-unused with 540 and closes the
    /// connection. So the consumer count is read first; a consumer that starts in between loses its queue.
    DeleteIdle {
        queue: Box<str>,
    },
    /// Declares a durable queue. `expires` is its `x-expires`, in milliseconds.
    Declare {
        queue: Box<str>,
        expires: Option<u64>,
    },
    Bind {
        queue: Box<str>,
        key: Box<str>,
    },
    Unbind {
        queue: Box<str>,
        key: Box<str>,
    },
    /// Declares an auto-delete exchange, which exists for as long as queues are bound to it.
    DeclareMark {
        mark: Box<str>,
    },
    /// Binds a queue to such an exchange. If the exchange has been deleted since its declaration, because another client
    /// has removed the last binding, it is declared again.
    BindMark {
        queue: Box<str>,
        mark: Box<str>,
    },
    UnbindMark {
        queue: Box<str>,
        mark: Box<str>,
    },
    /// Deletes a group's queue if it has no consumer and the group's exchange does not exist.
    LeaveGroup {
        mark: Box<str>,
        queue: Box<str>,
    },
}

/// One client's requests, answered in order. A refused request closes the channel; the requests after it are sent again
/// on the next one.
pub(super) struct QueueRequests {
    /// The exchange that queues are bound to.
    exchange: Arc<str>,
    /// The type with which queues are declared.
    queue_type: QueueKind,
    /// Whether a declaration was refused as inequivalent, so that queues may be of another type.
    has_found_other: bool,
    /// Unanswered requests, each with its number.
    waiting: VecDeque<(u64, QueueRequest)>,
    /// The number of `waiting` requests that were sent on the open channel.
    sent: usize,
    channel: RequestChannel,
    /// The consumer count in the last queue.declare-ok.
    consumers: u32,
    /// Queues that [`QueueRequest::DeleteIdle`] did not delete because they had consumers, until they are taken.
    in_use: Vec<Box<str>>,
    /// How often the exchange of the first [`QueueRequest::BindMark`] was declared again.
    redeclared: u32,
}

#[derive(Default, PartialEq, Eq)]
enum RequestChannel {
    #[default]
    Closed,
    Open,
    /// Until channel.close-ok.
    Closing,
}

impl QueueRequests {
    /// Without requests.
    pub(super) fn new(config: &MqttConfig) -> Self {
        let (exchange, queue_type) = (Arc::clone(&config.exchange), config.durable_queue_type);
        let (waiting, channel, in_use) = Default::default();
        Self {
            exchange,
            queue_type,
            has_found_other: false,
            waiting,
            sent: 0,
            channel,
            consumers: 0,
            in_use,
            redeclared: 0,
        }
    }

    /// Adds a request, which [`Self::send`] sends.
    pub(super) fn push(&mut self, number: u64, request: QueueRequest) {
        self.waiting.push_back((number, request));
    }

    /// Number of requests without an answer.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The consumer count of the queue that was found or declared last.
    pub(super) fn consumers(&self) -> u32 {
        self.consumers
    }

    /// Takes the queues that were not deleted because they had consumers.
    pub(super) fn take_in_use(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.in_use)
    }

    /// Sends the requests that can be sent now.
    pub(super) fn send(&mut self, client: &mut AmqpClient) {
        match self.channel {
            RequestChannel::Open if self.waiting.is_empty() => {
                client.close_channel(REQUESTING);
                self.channel = RequestChannel::Closing;
                return;
            }
            RequestChannel::Closed if !self.waiting.is_empty() => {
                client.send(REQUESTING, channel::Open { reserved_1: "" });
                self.channel = RequestChannel::Open;
            }
            RequestChannel::Open => {}
            RequestChannel::Closed | RequestChannel::Closing => return,
        }
        while self.sent < self.waiting.len() && client.has_capacity() && !self.is_deciding() {
            let may_be_quorum = self.queue_type == QueueKind::Quorum || self.has_found_other;
            let (_, request) = &mut self.waiting[self.sent];
            if let QueueRequest::DeleteUnused { queue } = request
                && may_be_quorum
            {
                *request = QueueRequest::DeleteIdle { queue: std::mem::take(queue) };
            }
            self.send_one(client, &self.waiting[self.sent].1);
            self.sent += 1;
        }
    }

    /// Handles a method of the upstream on this channel. Returns the number of the request that it answers.
    pub(super) fn handle(&mut self, method: &Method<'_>) -> Option<(u64, Result<(), Fault>)> {
        let answer = match method {
            Method::QueueDeclareOk(declared) => {
                self.consumers = declared.consumer_count;
                if self.deletes_idle() {
                    return None;
                }
                Ok(())
            }
            Method::QueueDeleteOk(_)
            | Method::QueueBindOk(_)
            | Method::QueueUnbindOk(_)
            | Method::ExchangeDeclareOk(_) => Ok(()),
            Method::ChannelClose(close) => {
                // The requests after the refused one are sent again.
                (self.channel, self.sent) = (RequestChannel::Closed, usize::from(!self.waiting.is_empty()));
                let fault = announced(close);
                if fault.code == ReplyCode::NotFound && (self.leaves_unmarked() || self.marks_again(&fault)) {
                    return None;
                }
                self.has_found_other |= fault.code == ReplyCode::PreconditionFailed;
                Err(fault)
            }
            Method::ChannelCloseOk(_) => {
                self.channel = RequestChannel::Closed;
                return None;
            }
            _ => return None,
        };
        let (number, request) = self.waiting.pop_front()?;
        if matches!(request, QueueRequest::BindMark { .. }) {
            self.redeclared = 0;
        }
        self.sent = self.sent.saturating_sub(1);
        Some((number, answer))
    }

    /// Whether the next request depends on the answer to the last one that was sent.
    fn is_deciding(&self) -> bool {
        let last = self.sent.checked_sub(1).and_then(|last| self.waiting.get(last));
        matches!(last, Some((_, QueueRequest::DeleteIdle { .. })))
    }

    /// If the first request is [`QueueRequest::DeleteIdle`] and the queue has no consumer, turns it into the deletion.
    fn deletes_idle(&mut self) -> bool {
        let Some((_, request)) = self.waiting.front_mut() else { return false };
        let QueueRequest::DeleteIdle { queue } = request else { return false };
        if self.consumers > 0 {
            self.in_use.push(queue.clone());
            return false;
        }
        *request = QueueRequest::Delete { queue: std::mem::take(queue) };
        self.sent = 0;
        true
    }

    /// If the first request is [`QueueRequest::LeaveGroup`], turns it into the deletion of the queue. Called if the
    /// exchange does not exist.
    fn leaves_unmarked(&mut self) -> bool {
        let Some((_, request)) = self.waiting.front_mut() else { return false };
        let QueueRequest::LeaveGroup { queue, .. } = request else { return false };
        *request = QueueRequest::DeleteUnused { queue: std::mem::take(queue) };
        self.sent = 0;
        true
    }

    /// If the first request is to bind to an exchange that does not exist, puts the exchange's declaration before it, up
    /// to a limit.
    fn marks_again(&mut self, fault: &Fault) -> bool {
        let Some((_, QueueRequest::BindMark { mark, .. })) = self.waiting.front() else { return false };
        if self.redeclared == MAX_REDECLARED || !misses_exchange(fault, mark) {
            return false;
        }
        self.redeclared += 1;
        let declare = QueueRequest::DeclareMark { mark: mark.clone() };
        self.waiting.push_front((UNNUMBERED, declare));
        self.sent = 0;
        true
    }

    fn send_one(&self, client: &mut AmqpClient, request: &QueueRequest) {
        let exchange = &*self.exchange;
        match request {
            QueueRequest::Find { queue } | QueueRequest::DeleteIdle { queue } => {
                client.send(REQUESTING, queue::Declare { queue, passive: true, ..Default::default() });
            }
            QueueRequest::Delete { queue } => {
                client.send(REQUESTING, queue::Delete { queue, ..Default::default() });
            }
            QueueRequest::DeleteUnused { queue } => {
                client.send(REQUESTING, queue::Delete { queue, if_unused: true, ..Default::default() });
            }
            QueueRequest::Declare { queue, expires } => {
                let arguments = self.arguments(*expires).encode();
                let arguments = RawTable::check(&arguments).unwrap_or_default();
                client.send(
                    REQUESTING,
                    queue::Declare { queue, durable: true, arguments, ..Default::default() },
                );
            }
            QueueRequest::Bind { queue, key } => {
                client.send(
                    REQUESTING,
                    queue::Bind { queue, exchange, routing_key: key, ..Default::default() },
                );
            }
            QueueRequest::Unbind { queue, key } => {
                client.send(
                    REQUESTING,
                    queue::Unbind { queue, exchange, routing_key: key, ..Default::default() },
                );
            }
            QueueRequest::DeclareMark { mark } => {
                let declare = exchange::Declare {
                    exchange: mark,
                    kind: "fanout",
                    durable: true,
                    auto_delete: true,
                    internal: true,
                    ..Default::default()
                };
                client.send(REQUESTING, declare);
            }
            QueueRequest::BindMark { queue, mark } => {
                client.send(REQUESTING, queue::Bind { queue, exchange: mark, ..Default::default() });
            }
            QueueRequest::UnbindMark { queue, mark } => {
                client.send(REQUESTING, queue::Unbind { queue, exchange: mark, ..Default::default() });
            }
            QueueRequest::LeaveGroup { mark, .. } => {
                let kind = "fanout";
                client.send(
                    REQUESTING,
                    exchange::Declare { exchange: mark, kind, passive: true, ..Default::default() },
                );
            }
        }
    }

    /// The arguments with which RabbitMQ's MQTT plugin declares a queue.
    fn arguments(&self, expires: Option<u64>) -> FieldTable {
        let expires = expires.and_then(|expires| i64::try_from(expires).ok());
        let expires = expires.map(|expires| ("x-expires", FieldValue::I64(expires)));
        let is_classic = self.queue_type == QueueKind::Classic;
        let kind = (!is_classic).then(|| ("x-queue-type", FieldValue::text(self.queue_type.name())));
        expires.into_iter().chain(kind).collect()
    }
}
