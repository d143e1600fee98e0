//! A fake broker without a socket, the peer of one upstream connection: it checks what it receives, and its answers are
//! queued until the test delivers them.

mod deliveries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use amqp::frame::{write_content_header, write_method};
use amqp::method::{basic, channel, confirm, connection, exchange, queue, tx};
use amqp::properties::NO_PROPERTIES;
use amqp::{ContentHeader, Credentials, Frame, FrameKind, Method};
use transport::Protocol;

pub(crate) use self::deliveries::{ChannelDeliveries, Effect};
use super::handshake::TunedLimits;
use super::task::{UpstreamConnection, open};
use super::{Role, UpstreamIdentity};
use crate::UpstreamAddress;
use crate::link::ClientLink;
use crate::pool::{Endpoint, Pool};

/// The broker's end, and the connection.
pub(crate) struct Peer {
    pub(crate) connection: UpstreamConnection,
    /// Answers that are still to be delivered.
    pub(crate) answers: VecDeque<Answer>,
    /// Confirms, likewise: brokers answer methods before messages are on disk.
    confirms: VecDeque<Answer>,
    /// Answers to `basic.consume` and `basic.cancel`, likewise: RabbitMQ sends them behind answers to later methods, and
    /// not at all on a channel that is closed before.
    late: VecDeque<Answer>,
    /// Number of queues that it has named.
    named: u64,
    bodies: BTreeSet<u64>,
    channels: BTreeMap<u16, PeerChannel>,
    /// Whether its queues contain messages for `basic.get`.
    pub(crate) has_messages: bool,
}

/// An answer of the broker.
pub(crate) struct Answer {
    /// The name of its method.
    pub(crate) name: &'static str,
    pub(crate) channel: u16,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct PeerChannel {
    confirming: bool,
    /// Messages received since.
    confirmed: u64,
    /// Bytes of body to come; `None` for a header.
    content: Option<Option<u64>>,
    /// Whether it has sent `channel.close`, and waits for close-ok.
    closed: bool,
    /// Tags of its consumers.
    consumers: BTreeSet<String>,
    has_last_queue: bool,
    deliveries: ChannelDeliveries,
}

impl Peer {
    /// A connection that is open as of `now`, of a client alone or for a role.
    pub(crate) fn new(
        pool: &Arc<Pool>,
        credentials: &Arc<Credentials>,
        owner: Option<Arc<ClientLink>>,
        role: Role,
        now: Instant,
    ) -> Self {
        let limits = TunedLimits { channel_max: 8, frame_max: 131_072, heartbeat_secs: 0 };
        let address = UpstreamAddress { host: "broker".to_owned(), port: 5672, tls: false };
        let endpoint = Endpoint { address, socket: ([127, 0, 0, 1], 5672).into() };
        let access =
            UpstreamIdentity { endpoint, credentials: credentials.clone(), virtual_host: "/".into() };
        let role = owner.is_none().then_some(role);
        let connection = open(pool, limits, access, owner, role, now);
        Self {
            connection,
            answers: VecDeque::new(),
            confirms: VecDeque::new(),
            late: VecDeque::new(),
            named: 0,
            bodies: BTreeSet::new(),
            channels: BTreeMap::new(),
            has_messages: false,
        }
    }

    /// Reads all that the pool has sent; whether that was anything.
    pub(crate) fn read(&mut self) -> bool {
        let bytes = self.connection.upstream.outbox.read_all();
        let mut rest = &bytes[..];
        while let Some(frame) = Frame::parse(rest, 131_072).unwrap() {
            rest = &rest[frame.wire_len()..];
            self.take(&frame);
        }
        assert!(rest.is_empty(), "half a frame");
        !bytes.is_empty()
    }

    fn take(&mut self, frame: &Frame<'_>) {
        if frame.channel == 0 {
            if let Ok(Method::ConnectionClose(_)) = Method::decode(frame.payload) {
                self.answer(0, "connection.close-ok", connection::CloseOk {});
            }
            return;
        }
        if frame.kind != FrameKind::Method {
            return self.take_content(frame);
        }
        let method = Method::decode(frame.payload).unwrap();
        if let Method::ChannelOpen(_) = method {
            let before = self.channels.insert(frame.channel, PeerChannel::default());
            assert!(before.is_none(), "channel {} is open", frame.channel);
            return self.answer(frame.channel, "channel.open-ok", channel::OpenOk::default());
        }
        let Some(known) = self.channels.get_mut(&frame.channel) else {
            panic!("{} on channel {}, which is closed", method.name(), frame.channel)
        };
        assert_eq!(known.content, None, "{} in the middle of a message", method.name());
        let number = frame.channel;
        match method {
            Method::ChannelCloseOk(_) => {
                assert!(known.closed);
                self.channels.remove(&number);
            }
            Method::ChannelClose(_) => {
                // Both may close it at the same time: then close-ok is still to come.
                if !known.closed {
                    self.channels.remove(&number);
                }
                self.confirms.retain(|confirm| confirm.channel != number);
                self.late.retain(|late| late.channel != number);
                self.answer(number, "channel.close-ok", channel::CloseOk {});
            }
            Method::BasicPublish(_) => known.content = Some(None),
            _ if known.closed => {}
            Method::ConfirmSelect(select) => {
                known.confirming = true;
                if !select.no_wait {
                    self.answer(number, "confirm.select-ok", confirm::SelectOk {});
                }
            }
            Method::BasicConsume(_) | Method::BasicCancel(_) => self.take_late(number, &method),
            _ => self.take_plain(number, &method),
        }
    }

    /// A method that is answered at once, if at all.
    fn take_plain(&mut self, number: u16, method: &Method<'_>) {
        let Some(known) = self.channels.get_mut(&number) else { return };
        match method {
            Method::QueueDeclare(declare) => {
                known.has_last_queue = true;
                self.named += u64::from(declare.queue.is_empty());
                let name = format!("amq.gen-{}", self.named);
                let queue = if declare.queue.is_empty() { &*name } else { declare.queue };
                if !declare.no_wait {
                    self.answer(number, "queue.declare-ok", queue::DeclareOk { queue, ..Default::default() });
                }
            }
            Method::QueueBind(bind) => {
                assert!(known.has_last_queue || !bind.queue.is_empty(), "no last queue");
                self.answer(number, "queue.bind-ok", queue::BindOk {});
            }
            Method::ExchangeDeclare(_) => {
                self.answer(number, "exchange.declare-ok", exchange::DeclareOk {});
            }
            Method::BasicGet(get) if self.has_messages => {
                let delivery_tag = known.deliveries.deliver(get.no_ack);
                let mut bytes = Vec::new();
                write_method(&mut bytes, number, basic::GetOk { delivery_tag, ..Default::default() });
                write_content_header(&mut bytes, number, 0, NO_PROPERTIES);
                self.answers.push_back(Answer { name: "basic.get-ok", channel: number, bytes });
            }
            Method::BasicGet(_) => self.answer(number, "basic.get-empty", basic::GetEmpty::default()),
            Method::BasicRecover(_) => self.answer(number, "basic.recover-ok", basic::RecoverOk {}),
            Method::TxSelect(_) => self.answer(number, "tx.select-ok", tx::SelectOk {}),
            Method::TxRollback(_) => self.answer(number, "tx.rollback-ok", tx::RollbackOk {}),
            Method::BasicQos(_) => self.answer(number, "basic.qos-ok", basic::QosOk {}),
            Method::ChannelFlow(_) => {
                self.answer(number, "channel.flow-ok", channel::FlowOk { active: true });
            }
            _ => {}
        }
        if let Some(known) = self.channels.get_mut(&number) {
            known.deliveries.take(method);
        }
    }

    /// A method that is answered late.
    fn take_late(&mut self, number: u16, method: &Method<'_>) {
        let is_late = self.late.iter().any(|late| late.channel == number && late.name == "basic.consume-ok");
        let Some(known) = self.channels.get_mut(&number) else { return };
        match method {
            Method::BasicConsume(consume) => {
                assert!(known.consumers.insert(consume.consumer_tag.to_owned()), "530: {consume:?}");
                if !consume.no_wait {
                    let ok = basic::ConsumeOk { consumer_tag: consume.consumer_tag };
                    self.answer(number, "basic.consume-ok", ok);
                }
            }
            Method::BasicCancel(cancel) => {
                assert!(!is_late, "541: {cancel:?} before basic.consume-ok");
                known.consumers.remove(cancel.consumer_tag);
                if !cancel.no_wait {
                    let ok = basic::CancelOk { consumer_tag: cancel.consumer_tag };
                    self.answer(number, "basic.cancel-ok", ok);
                }
            }
            _ => {}
        }
    }

    fn take_content(&mut self, frame: &Frame<'_>) {
        let known = self.channels.get_mut(&frame.channel).expect("content on a closed channel");
        let missing = match (frame.kind, known.content.expect("content without a publish")) {
            (FrameKind::Header, None) => ContentHeader::decode(frame.payload).unwrap().body_size,
            (FrameKind::Body, Some(missing)) => missing - frame.payload.len() as u64,
            (kind, missing) => panic!("{kind:?} with {missing:?} bytes missing"),
        };
        known.content = (missing > 0).then_some(Some(missing));
        if known.closed {
            return;
        }
        if frame.kind == FrameKind::Body
            && let Ok(body) = frame.payload.try_into()
        {
            self.bodies.insert(u64::from_be_bytes(body));
        }
        if missing > 0 {
            return;
        }
        if known.confirming {
            known.confirmed += 1;
            let delivery_tag = known.confirmed;
            self.answer(frame.channel, "basic.ack", basic::Ack { delivery_tag, multiple: false });
        }
    }

    fn answer<'m>(&mut self, channel: u16, name: &'static str, method: impl Into<Method<'m>>) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        let queue = match name {
            "basic.ack" => &mut self.confirms,
            "basic.consume-ok" | "basic.cancel-ok" => &mut self.late,
            _ => &mut self.answers,
        };
        queue.push_back(Answer { name, channel, bytes });
    }

    /// Tags of the consumers on a channel.
    pub(crate) fn consumers(&self, channel: u16) -> BTreeSet<String> {
        self.channels.get(&channel).map(|known| known.consumers.clone()).unwrap_or_default()
    }

    /// Delivers an empty message to a consumer; `automatic` if it needs no acknowledgement.
    pub(crate) fn send_delivery(&mut self, number: u16, consumer_tag: &str, automatic: bool, now: Instant) {
        let Some(known) = self.channels.get_mut(&number) else { return };
        let delivery_tag = known.deliveries.deliver(automatic);
        let mut bytes = Vec::new();
        write_method(&mut bytes, number, basic::Deliver { consumer_tag, delivery_tag, ..Default::default() });
        write_content_header(&mut bytes, number, 0, NO_PROPERTIES);
        self.connection.handle_input(&bytes, now);
    }

    /// Cancels a consumer, as if its queue had been deleted.
    pub(crate) fn cancel(&mut self, number: u16, consumer_tag: &str, now: Instant) {
        let Some(known) = self.channels.get_mut(&number) else { return };
        known.consumers.remove(consumer_tag);
        let mut bytes = Vec::new();
        write_method(&mut bytes, number, basic::Cancel { consumer_tag, no_wait: true });
        self.connection.handle_input(&bytes, now);
    }

    /// The steps on a channel since the last call: how its deliveries were settled.
    pub(crate) fn effects(&mut self, number: u16) -> Vec<Effect> {
        let known = self.channels.get_mut(&number);
        known.map(|known| std::mem::take(&mut known.deliveries.effects)).unwrap_or_default()
    }

    /// Bodies of 8 bytes that have come, as numbers.
    pub(crate) fn bodies(&self) -> &BTreeSet<u64> {
        &self.bodies
    }

    /// Delivers the oldest late answer after those to the methods that were read by now.
    pub(crate) fn come_around(&mut self) {
        self.answers.extend(self.late.pop_front());
    }

    /// Delivers the oldest answer to a method, late ones last; returns its name.
    pub(crate) fn deliver(&mut self, now: Instant) -> Option<&'static str> {
        let Answer { name, bytes, .. } = self.answers.pop_front().or_else(|| self.late.pop_front())?;
        self.connection.handle_input(&bytes, now);
        Some(name)
    }

    /// Delivers the oldest confirm, if there is one.
    pub(crate) fn confirm(&mut self, now: Instant) -> Option<()> {
        let Answer { bytes, .. } = self.confirms.pop_front()?;
        self.connection.handle_input(&bytes, now);
        Some(())
    }

    /// Closes one of the open channels, if there is one, for a fault of the client, perhaps in the middle of a message.
    pub(crate) fn close_channel(&mut self, pick: u64) -> bool {
        let numbers: Vec<u16> =
            self.channels.iter().filter(|(_, known)| !known.closed).map(|(number, _)| *number).collect();
        let Some(number) = numbers.get(pick as usize % numbers.len().max(1)).copied() else { return false };
        self.answers.retain(|answer| answer.channel != number);
        self.confirms.retain(|confirm| confirm.channel != number);
        self.late.retain(|late| late.channel != number);
        if let Some(known) = self.channels.get_mut(&number) {
            known.closed = true;
        }
        let close =
            channel::Close { reply_code: 404, reply_text: "NOT_FOUND - no queue 'q'", ..Default::default() };
        self.answer(number, "channel.close", close);
        true
    }

    /// The broker closes the connection for a fault of one of the clients.
    pub(crate) fn close_connection(&mut self, now: Instant) {
        let mut bytes = Vec::new();
        let close =
            connection::Close { reply_code: 540, reply_text: "NOT_IMPLEMENTED", ..Default::default() };
        write_method(&mut bytes, 0, close);
        self.connection.handle_input(&bytes, now);
        self.channels.clear();
        self.answers.clear();
        self.confirms.clear();
        self.late.clear();
    }

    /// The connection is cut.
    pub(crate) fn cut(&mut self) {
        self.connection.handle_eof();
        self.channels.clear();
        self.answers.clear();
        self.confirms.clear();
        self.late.clear();
    }
}
