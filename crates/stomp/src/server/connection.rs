//! The connection: its state and its public methods.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{AckMode, ConnectRequest, StompEnd, StompEvent, TransactionId};
use super::heart_beat::{Due, HeartBeat};
use crate::decode::StompDecoder;
use crate::encode::FrameWriter;
use crate::fault::StompFault;
use crate::frame::StompFrame;
use crate::limits::MAX_CANCELLED;
use crate::version::StompVersion;

/// Settings that apply to all clients of a server.
#[derive(Debug, Clone)]
pub struct StompSettings {
    /// The largest body accepted, in bytes.
    pub body_limit: u64,
    /// The header `server` of CONNECTED: a name, a slash and a version.
    pub server: String,
}

/// The progress of one call of [`StompServerConnection::handle_input`].
#[derive(Debug)]
pub struct StompStep<'a> {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// The event that the consumed input led to, if any.
    pub event: Option<StompEvent<'a>>,
}

/// The server's end of one connection. See the [module](super) for the order of the calls.
#[derive(Debug)]
pub struct StompServerConnection {
    decoder: StompDecoder,
    core: Core,
}

/// Everything but the decoder, from which the current frame is borrowed.
#[derive(Debug)]
pub(super) struct Core {
    settings: Arc<StompSettings>,
    phase: Phase,
    pub(super) version: StompVersion,
    /// Random; part of the message identifiers.
    pub(super) session: Arc<str>,
    heart_beat: HeartBeat,
    /// Keyed by consumer tag.
    pub(super) subscriptions: HashMap<Box<str>, Subscription>,
    /// By consumer tag of a subscription that the server has cancelled: the first delivery tag after its own. The client
    /// may acknowledge its messages before it learns of the cancellation.
    pub(super) cancelled: HashMap<Box<str>, u64>,
    pub(super) transactions: Vec<(Box<str>, TransactionId)>,
    /// The number assigned last to a subscription or transaction.
    pub(super) next_number: u64,
}

/// The state of one subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) number: u64,
    pub(super) destination: Box<str>,
    pub(super) ack: AckMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No frame has been received.
    Start,
    /// The server is authenticating the client.
    Deciding,
    Connected,
    /// The client has sent DISCONNECT and waits for its receipt.
    Leaving,
    Ended,
}

impl StompServerConnection {
    /// Creates a connection that has not received anything.
    pub fn new(settings: Arc<StompSettings>, now: Instant) -> Self {
        Self {
            decoder: StompDecoder::of_clients(settings.body_limit),
            core: Core {
                settings,
                phase: Phase::Start,
                version: StompVersion::V10,
                session: "".into(),
                heart_beat: HeartBeat::none(now),
                subscriptions: HashMap::new(),
                cancelled: HashMap::new(),
                transactions: Vec::new(),
                next_number: 0,
            },
        }
    }

    /// Consumes input from the front of `input`, up to one event. Call it again with the rest until it
    /// consumes nothing.
    pub fn handle_input<'a>(&'a mut self, input: &'a [u8], now: Instant, out: &mut Vec<u8>) -> StompStep<'a> {
        match self.core.phase {
            Phase::Deciding => return StompStep { taken: 0, event: None },
            // Input after the end is ignored.
            Phase::Leaving | Phase::Ended => return StompStep { taken: input.len(), event: None },
            Phase::Start | Phase::Connected => {}
        }
        if !input.is_empty() {
            self.core.heart_beat.received(now);
        }
        let Self { decoder, core } = self;
        decoder.set_version(core.version);
        match decoder.decode(input) {
            Ok(step) => {
                let event = step.frame.and_then(|frame| core.frame(frame, now, out));
                StompStep { taken: step.taken, event }
            }
            Err(fault) => {
                let event = core.fail(fault, None, out).map(StompEvent::Ended);
                StompStep { taken: input.len(), event }
            }
        }
    }

    /// Accepts the login. `session` identifies this session and must not be guessable.
    pub fn accept(&mut self, session: Arc<str>, now: Instant, out: &mut Vec<u8>) {
        let core = &mut self.core;
        if core.phase != Phase::Deciding {
            return;
        }
        core.phase = Phase::Connected;
        core.session = session;
        core.heart_beat.received(now);
        core.heart_beat.sent(now);
        let (sends, expects) = core.heart_beat.answer();
        let mut frame = FrameWriter::new(out, core.version, "CONNECTED");
        frame.header("server", &core.settings.server).header("session", &core.session);
        frame
            .display("heart-beat", format_args!("{sends},{expects}"))
            .header("version", core.version.as_str());
        frame.end(b"");
    }

    /// Confirms a request that is complete.
    pub fn receipt(&self, id: &str, out: &mut Vec<u8>) {
        if matches!(self.core.phase, Phase::Connected | Phase::Leaving) {
            let mut frame = FrameWriter::new(out, self.core.version, "RECEIPT");
            frame.header("receipt-id", id);
            frame.end(b"");
        }
    }

    /// Ends the connection with an ERROR, which names the request's receipt if it has one.
    pub fn fail(&mut self, fault: StompFault, receipt: Option<&str>, out: &mut Vec<u8>) -> Option<StompEnd> {
        self.core.fail(fault, receipt, out)
    }

    /// Reports that a request was refused through no fault of the client, for example because a queue is
    /// full. The connection stays open.
    pub fn refused(&self, fault: &StompFault, receipt: &str, out: &mut Vec<u8>) {
        if self.core.phase == Phase::Connected {
            self.core.error(fault, &[("receipt-id", receipt)], out);
        }
    }

    /// Reports that the broker has cancelled the subscription with this tag and number because its queue is gone.
    /// As in RabbitMQ, the client receives an ERROR and the connection stays open: the client did nothing wrong. Messages with
    /// delivery tags below `next_delivery_tag` may still be acknowledged, without effect. Later messages of any subscription
    /// with this tag must have others.
    pub fn cancelled(&mut self, tag: &str, number: u64, next_delivery_tag: u64, out: &mut Vec<u8>) {
        let core = &mut self.core;
        if core.phase != Phase::Connected
            || core.subscriptions.get(tag).is_none_or(|own| own.number != number)
        {
            return;
        }
        let removed = core.subscriptions.remove(tag);
        if removed.is_some_and(|removed| removed.ack != AckMode::Auto) {
            core.record_cancelled(tag, next_delivery_tag);
        }
        let (id, description) = match tag.split_at_checked(2) {
            Some((super::form::TAG_OF_ID, id)) => (id, format!("id='{id}'")),
            Some((_, destination)) => (destination, format!("destination='{destination}'")),
            None => (tag, tag.to_owned()),
        };
        let detail = format!(
            "The server has canceled a subscription.\nNo more messages will be delivered for \"{description}\".\n"
        );
        let fault = StompFault::new("Server cancelled subscription", detail);
        core.error(&fault, &[("subscription", id)], out);
    }

    /// Ends the connection after DISCONNECT, once the receipt has been written.
    pub fn leave(&mut self) -> Option<StompEnd> {
        self.core.end(StompEnd::Disconnected)
    }

    /// Reports that the client closed its socket.
    pub fn handle_eof(&mut self) -> Option<StompEnd> {
        self.core.end(StompEnd::Eof)
    }

    /// Reports that bytes were sent, which postpones the next heart-beat.
    pub fn handle_sent(&mut self, now: Instant) {
        self.core.heart_beat.sent(now);
    }

    /// Reports that the server has stopped reading, so that the client's silence does not count.
    pub fn pause_heart_beat(&mut self, now: Instant) {
        self.core.heart_beat.received(now);
    }

    /// The latest time at which to call [`Self::handle_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.core.heart_beat.next_deadline().filter(|_| self.is_connected())
    }

    /// Sends a heart-beat if one is due, or ends the connection if the client's heart-beats have stopped.
    pub fn handle_deadline(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<StompEnd> {
        if !self.is_connected() {
            return None;
        }
        match self.core.heart_beat.poll(now) {
            Due::Nothing => None,
            Due::Beat => {
                out.push(b'\n');
                self.core.heart_beat.sent(now);
                None
            }
            Due::PeerDead => self.core.end(StompEnd::Silent),
        }
    }

    /// Whether the client was accepted and the connection has not ended.
    pub(crate) fn is_connected(&self) -> bool {
        self.core.phase == Phase::Connected
    }

    /// The negotiated version; 1.0 until then.
    pub fn version(&self) -> StompVersion {
        self.core.version
    }

    /// Number of the client's subscriptions.
    pub fn subscription_count(&self) -> usize {
        self.core.subscriptions.len()
    }

    /// The interval at which the client's heart-beats are expected; `None` if they are not.
    pub fn expected_heart_beat(&self) -> Option<Duration> {
        self.core.heart_beat.expected()
    }

    /// The identifier of this session; empty until [`Self::accept`].
    pub fn session(&self) -> &Arc<str> {
        &self.core.session
    }
}

impl Core {
    /// Handles one frame.
    fn frame<'a>(
        &mut self,
        frame: StompFrame<'a>,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Option<StompEvent<'a>> {
        let receipt = frame.headers.get("receipt").map(Box::<str>::from);
        let validated = match (self.phase, frame.command) {
            (Phase::Start, "CONNECT" | "STOMP") => self.connect(frame, now),
            (Phase::Start, _) => {
                Err(StompFault::new("Illegal command", "You must log in using CONNECT first"))
            }
            (_, "CONNECT" | "STOMP") => Err(StompFault::new("Illegal command", "You are connected already")),
            _ => self.request(frame).map(|request| StompEvent::Request(Box::new(request))),
        };
        match validated {
            Ok(event) => Some(event),
            Err(fault) => self.fail(fault, receipt.as_deref(), out).map(StompEvent::Ended),
        }
    }

    fn connect<'a>(&mut self, frame: StompFrame<'a>, now: Instant) -> Result<StompEvent<'a>, StompFault> {
        let Some(version) = StompVersion::negotiate(frame.headers.get("accept-version")) else {
            let detail = format!("Supported versions are {}\n", StompVersion::ALL);
            return Err(StompFault::new("Version mismatch", detail));
        };
        let connect = ConnectRequest { version, headers: frame.headers };
        self.version = version;
        self.heart_beat = HeartBeat::negotiate(connect.header("heart-beat"), now)?;
        self.phase = Phase::Deciding;
        Ok(StompEvent::Connect(Box::new(connect)))
    }

    /// Called on DISCONNECT; later input is ignored.
    pub(super) fn start_leaving(&mut self) {
        self.phase = Phase::Leaving;
    }

    pub(super) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Records a cancelled subscription. At the limit it replaces the one with the oldest messages.
    fn record_cancelled(&mut self, tag: &str, next_delivery_tag: u64) {
        if self.cancelled.len() >= MAX_CANCELLED && !self.cancelled.contains_key(tag) {
            let oldest = self.cancelled.values().copied().min().unwrap_or_default();
            self.cancelled.retain(|_, next| *next != oldest);
        }
        let next = self.cancelled.entry(tag.into()).or_default();
        *next = next_delivery_tag.max(*next);
    }

    fn fail(&mut self, fault: StompFault, receipt: Option<&str>, out: &mut Vec<u8>) -> Option<StompEnd> {
        if self.phase == Phase::Ended {
            return None;
        }
        let about: &[_] = &receipt.map(|receipt| ("receipt-id", receipt)).into_iter().collect::<Vec<_>>();
        self.error(&fault, about, out);
        self.end(StompEnd::Fault(fault))
    }

    /// Writes an ERROR in the form that RabbitMQ uses.
    fn error(&self, fault: &StompFault, about: &[(&str, &str)], out: &mut Vec<u8>) {
        let mut frame = FrameWriter::new(out, self.version, "ERROR");
        frame.header("message", &fault.message).header("content-type", "text/plain");
        frame.header("version", StompVersion::ALL);
        about.iter().for_each(|(name, value)| _ = frame.header(name, value));
        frame.end(fault.detail.as_bytes());
    }

    /// Ends the connection; returns `None` if it has already ended.
    fn end(&mut self, end: StompEnd) -> Option<StompEnd> {
        if self.phase == Phase::Ended {
            return None;
        }
        self.phase = Phase::Ended;
        self.subscriptions = HashMap::new();
        self.cancelled = HashMap::new();
        self.transactions = Vec::new();
        Some(end)
    }
}
