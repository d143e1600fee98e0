//! A minimal broker with one queue, which drops, repeats, delays or refuses messages as a test demands.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use amqp::frame::{max_body_payload, write_body, write_content_header, write_method};
use amqp::handshake::{ServerEvent, ServerHandshake, ServerOffer};
use amqp::method::{basic, channel, confirm, connection, exchange, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::sasl::Mechanism;
use amqp::{FieldTable, FieldValue, Frame, FrameKind, Method};

/// The fate of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptedFate {
    Delivered,
    Dropped,
    Repeated,
    /// Delivered after the next one.
    Late,
    Nacked,
    /// Neither delivered nor confirmed.
    Forgotten,
    Returned,
    /// The broker closes the publisher's connection.
    Forced,
    /// The broker reads nothing more from the publisher.
    Stalled,
}

/// Decides by the number of the message, from 0 in the order of arrival, over all producers.
pub(crate) type Script = fn(u64) -> ScriptedFate;

/// A listening broker; its threads end with the process.
pub(crate) struct FakeBroker {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    script: Script,
    messages: u64,
    consumers: Vec<TcpStream>,
    /// Names of the queues and exchanges that exist.
    names: HashSet<String>,
    late: Option<Vec<u8>>,
    /// The last delivery tag of each consuming channel.
    delivery_tags: Vec<u64>,
    acks: u64,
}

impl FakeBroker {
    pub(crate) fn start(script: Script) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            script,
            messages: 0,
            consumers: Vec::new(),
            names: HashSet::new(),
            late: None,
            delivery_tags: Vec::new(),
            acks: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || Session::new(stream.unwrap(), state).run());
            }
        });
        Self { address, state }
    }

    pub(crate) fn uri(&self) -> String {
        format!("amqp://{}", self.address)
    }

    /// Messages that were published.
    pub(crate) fn messages(&self) -> u64 {
        self.state.lock().unwrap().messages
    }

    /// Creates a queue or an exchange, as if another client had declared it.
    pub(crate) fn create(&self, name: &str) {
        self.state.lock().unwrap().names.insert(name.to_owned());
    }

    /// Whether there is a queue or an exchange of this name.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.state.lock().unwrap().names.contains(name)
    }

    /// Methods basic.ack that consumers sent.
    pub(crate) fn acks(&self) -> u64 {
        self.state.lock().unwrap().acks
    }
}

struct Session {
    stream: TcpStream,
    state: Arc<Mutex<State>>,
    /// The channel of the current frame.
    channel: u16,
    confirming: bool,
    /// The last delivery tag of each publishing channel.
    publish_tags: HashMap<u16, u64>,
    body: Vec<u8>,
    body_left: u64,
    /// Output to this client, and to the consumer, that is written after the current read.
    replies: Vec<u8>,
    deliveries: Vec<u8>,
    closed: bool,
    stalled: bool,
}

impl Session {
    fn new(stream: TcpStream, state: Arc<Mutex<State>>) -> Self {
        let (replies, deliveries, body) = (Vec::new(), Vec::new(), Vec::new());
        let (confirming, closed, stalled) = (false, false, false);
        Self {
            stream,
            state,
            channel: 0,
            confirming,
            publish_tags: HashMap::new(),
            body,
            body_left: 0,
            replies,
            deliveries,
            closed,
            stalled,
        }
    }

    fn run(mut self) {
        let mut handshake = ServerHandshake::new(ServerOffer {
            server_properties: [("product", FieldValue::text("Fake"))].into_iter().collect::<FieldTable>(),
            mechanisms: vec![Mechanism::Plain],
            channel_max: 100,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        });
        let (mut input, mut chunk) = (Vec::new(), vec![0; 256 * 1024]);
        while !self.closed {
            if self.stalled {
                // Sleeps until the process ends.
                return thread::park();
            }
            // A reset is equivalent to an end: the client has left.
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(n) => input.extend_from_slice(&chunk[..n]),
            }
            while !handshake.is_open() {
                let taken = handshake.handle_input(&input);
                input.drain(..taken);
                match handshake.poll_event() {
                    Some(ServerEvent::Authenticate(_)) => handshake.accept_login(),
                    Some(ServerEvent::Open(_)) => handshake.accept_open(),
                    None if taken == 0 => break,
                    _ => {}
                }
            }
            handshake.poll_output(&mut self.replies);
            if handshake.is_open() {
                self.frames(&mut input);
            }
            if self.stream.write_all(&self.replies).is_err() {
                return;
            }
            self.replies.clear();
        }
    }

    fn frames(&mut self, input: &mut Vec<u8>) {
        let state = Arc::clone(&self.state);
        let mut state = state.lock().unwrap();
        let mut at = 0;
        while let Some(frame) = Frame::parse(&input[at..], FRAME_MAX).unwrap() {
            at += frame.wire_len();
            self.channel = frame.channel;
            match frame.kind {
                FrameKind::Method => self.method(&mut state, Method::decode(frame.payload).unwrap()),
                FrameKind::Header => {
                    self.body_left = amqp::ContentHeader::decode(frame.payload).unwrap().body_size;
                    self.body.clear();
                    self.complete(&mut state);
                }
                FrameKind::Body => {
                    self.body.extend_from_slice(frame.payload);
                    self.body_left -= frame.payload.len() as u64;
                    self.complete(&mut state);
                }
                FrameKind::Heartbeat => {}
            }
        }
        input.drain(..at);
        // There may be no consumer.
        let turn = state.messages as usize % state.consumers.len().max(1);
        if let Some(consumer) = state.consumers.get_mut(turn).filter(|_| !self.deliveries.is_empty()) {
            consumer.write_all(&self.deliveries).unwrap();
        }
        self.deliveries.clear();
    }

    fn method(&mut self, state: &mut State, method: Method<'_>) {
        match method {
            Method::ChannelOpen(_) => self.reply(self.channel, channel::OpenOk::default()),
            Method::QueueDeclare(queue::Declare { queue: name, passive: true, .. })
            | Method::ExchangeDeclare(exchange::Declare { exchange: name, passive: true, .. })
                if !name.starts_with("amq.") && !state.names.contains(name) =>
            {
                let reply_text = "NOT_FOUND - nothing of that name";
                let close = channel::Close { reply_code: 404, reply_text, ..Default::default() };
                self.reply(self.channel, close);
            }
            Method::ChannelCloseOk(_) => {}
            Method::QueueDeclare(q) => {
                state.names.insert(q.queue.to_owned());
                self.reply(self.channel, queue::DeclareOk { queue: q.queue, ..Default::default() })
            }
            Method::ExchangeDeclare(e) => {
                state.names.insert(e.exchange.to_owned());
                self.reply(self.channel, exchange::DeclareOk {});
            }
            Method::ExchangeDelete(e) => {
                state.names.remove(e.exchange);
                self.reply(self.channel, exchange::DeleteOk {});
            }
            Method::QueueBind(_) => self.reply(self.channel, queue::BindOk {}),
            Method::QueueUnbind(_) => self.reply(self.channel, queue::UnbindOk {}),
            Method::ChannelClose(_) => self.reply(self.channel, channel::CloseOk {}),
            Method::BasicCancel(c) => {
                state.consumers.clear();
                self.reply(self.channel, basic::CancelOk { consumer_tag: c.consumer_tag });
            }
            Method::QueuePurge(_) => self.reply(self.channel, queue::PurgeOk::default()),
            Method::QueueDelete(q) => {
                state.names.remove(q.queue);
                state.consumers.clear();
                self.reply(self.channel, queue::DeleteOk::default());
            }
            Method::BasicQos(_) => self.reply(self.channel, basic::QosOk {}),
            Method::BasicConsume(c) => {
                if !c.no_wait {
                    self.reply(self.channel, basic::ConsumeOk { consumer_tag: c.consumer_tag });
                    state.consumers.push(self.stream.try_clone().unwrap());
                }
                let channels = state.delivery_tags.len().max(self.channel.into());
                state.delivery_tags.resize(channels, 0);
            }
            Method::ConfirmSelect(_) => {
                self.confirming = true;
                self.reply(self.channel, confirm::SelectOk {});
            }
            Method::BasicAck(_) => state.acks += 1,
            Method::BasicPublish(_) => {}
            Method::ConnectionClose(_) => {
                self.reply(0, connection::CloseOk {});
                self.closed = true;
            }
            other => panic!("the load generator sent {}", other.name()),
        }
    }

    fn reply<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        write_method(&mut self.replies, channel, method);
    }

    fn complete(&mut self, state: &mut State) {
        if self.body_left > 0 {
            return;
        }
        let fate = (state.script)(state.messages);
        state.messages += 1;
        let tag = self.publish_tags.entry(self.channel).or_default();
        *tag += 1;
        let (delivery_tag, multiple) = (*tag, false);
        match fate {
            ScriptedFate::Delivered => self.deliver(state, 1),
            ScriptedFate::Repeated => self.deliver(state, 2),
            ScriptedFate::Late => state.late = Some(self.body.clone()),
            ScriptedFate::Returned => {
                self.reply(
                    self.channel,
                    basic::Return { reply_code: 312, reply_text: "NO_ROUTE", ..Default::default() },
                );
                write_content_header(&mut self.replies, self.channel, self.body.len() as u64, NO_PROPERTIES);
                write_body(&mut self.replies, self.channel, &self.body);
            }
            ScriptedFate::Forced => {
                let reply_text = "CONNECTION_FORCED - told to";
                self.reply(0, connection::Close { reply_code: 320, reply_text, ..Default::default() });
            }
            ScriptedFate::Stalled => self.stalled = true,
            ScriptedFate::Dropped | ScriptedFate::Nacked | ScriptedFate::Forgotten => {}
        }
        if !matches!(fate, ScriptedFate::Late)
            && let Some(late) = state.late.take()
        {
            self.body = late;
            self.deliver(state, 1);
        }
        match fate {
            _ if !self.confirming || fate == ScriptedFate::Forgotten => {}
            ScriptedFate::Nacked => {
                self.reply(self.channel, basic::Nack { delivery_tag, multiple, requeue: false })
            }
            _ => self.reply(self.channel, basic::Ack { delivery_tag, multiple }),
        }
    }

    fn deliver(&mut self, state: &mut State, times: u64) {
        for _ in 0..times {
            // Every consumer has all channels.
            let turn = state.messages as usize % state.delivery_tags.len().max(1);
            let Some(tag) = state.delivery_tags.get_mut(turn) else { return };
            *tag += 1;
            let (delivery_tag, channel) = (*tag, turn as u16 + 1);
            let deliver = basic::Deliver {
                consumer_tag: "c",
                delivery_tag,
                redelivered: false,
                exchange: "",
                routing_key: "q",
            };
            write_method(&mut self.deliveries, channel, deliver);
            write_content_header(&mut self.deliveries, channel, self.body.len() as u64, NO_PROPERTIES);
            for piece in self.body.chunks(max_body_payload(FRAME_MAX)) {
                write_body(&mut self.deliveries, channel, piece);
            }
        }
    }
}

const FRAME_MAX: u32 = 131_072;
