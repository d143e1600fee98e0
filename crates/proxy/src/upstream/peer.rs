//! A broker without a socket, at the far end of one upstream connection: it checks what it is sent, and its answers
//! wait until the test delivers them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use amqp::frame::write_method;
use amqp::method::{basic, channel, confirm, connection, queue};
use amqp::{ContentHeader, Credentials, Frame, FrameKind, Method};
use transport::Protocol;

use super::handshake::TunedLimits;
use super::task::{UpstreamConnection, open};
use super::{Access, Role};
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
    channels: BTreeMap<u16, PeerChannel>,
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
        let access = Access { endpoint, credentials: credentials.clone(), virtual_host: "/".into() };
        let role = owner.is_none().then_some(role);
        let connection = open(pool, limits, access, owner, role, now);
        Self { connection, answers: VecDeque::new(), confirms: VecDeque::new(), channels: BTreeMap::new() }
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
                self.answer(number, "channel.close-ok", channel::CloseOk {});
            }
            _ if known.closed => {}
            Method::BasicPublish(_) => known.content = Some(None),
            Method::ConfirmSelect(select) => {
                known.confirming = true;
                if !select.no_wait {
                    self.answer(number, "confirm.select-ok", confirm::SelectOk {});
                }
            }
            Method::QueueDeclare(declare) => {
                let ok = queue::DeclareOk { queue: declare.queue, ..Default::default() };
                self.answer(number, "queue.declare-ok", ok);
            }
            Method::BasicConsume(consume) if !consume.no_wait => {
                let ok = basic::ConsumeOk { consumer_tag: consume.consumer_tag };
                self.answer(number, "basic.consume-ok", ok);
            }
            Method::BasicQos(_) => self.answer(number, "basic.qos-ok", basic::QosOk {}),
            Method::ChannelFlow(_) => {
                self.answer(number, "channel.flow-ok", channel::FlowOk { active: true });
            }
            _ => {}
        }
    }

    fn take_content(&mut self, frame: &Frame<'_>) {
        let known = self.channels.get_mut(&frame.channel).expect("content on a closed channel");
        if known.closed {
            return;
        }
        let missing = match (frame.kind, known.content.expect("content without a publish")) {
            (FrameKind::Header, None) => ContentHeader::decode(frame.payload).unwrap().body_size,
            (FrameKind::Body, Some(missing)) => missing - frame.payload.len() as u64,
            (kind, missing) => panic!("{kind:?} with {missing:?} bytes missing"),
        };
        known.content = (missing > 0).then_some(Some(missing));
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
        let queue = if name == "basic.ack" { &mut self.confirms } else { &mut self.answers };
        queue.push_back(Answer { name, channel, bytes });
    }

    /// Delivers the oldest answer to a method; returns its name.
    pub(crate) fn deliver(&mut self, now: Instant) -> Option<&'static str> {
        let Answer { name, bytes, .. } = self.answers.pop_front()?;
        self.connection.handle_input(&bytes, now);
        Some(name)
    }

    /// Delivers the oldest confirm, if there is one.
    pub(crate) fn confirm(&mut self, now: Instant) -> Option<()> {
        let Answer { bytes, .. } = self.confirms.pop_front()?;
        self.connection.handle_input(&bytes, now);
        Some(())
    }

    /// Closes one of the channels that are open and have no half message, if there is one, for a fault of the client.
    pub(crate) fn close_channel(&mut self, pick: u64) -> bool {
        let open = |known: &PeerChannel| !known.closed && known.content.is_none();
        let numbers: Vec<u16> =
            self.channels.iter().filter(|(_, known)| open(known)).map(|(number, _)| *number).collect();
        let Some(number) = numbers.get(pick as usize % numbers.len().max(1)).copied() else { return false };
        self.answers.retain(|answer| answer.channel != number);
        self.confirms.retain(|confirm| confirm.channel != number);
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
    }

    /// The connection is cut.
    pub(crate) fn cut(&mut self) {
        self.connection.handle_eof();
        self.channels.clear();
        self.answers.clear();
        self.confirms.clear();
    }
}
