//! The connection: its state and its public methods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::alias::{Received, Sent};
use super::event::{Cause, MqttEnd, MqttEvent};
use super::keep_alive::KeepAlive;
use super::{MqttSettings, StoredWill};
use crate::decode::PacketDecoder;
use crate::fault::MqttFault;
use crate::packet::{ConnAck, Disconnect, MqttVersion, QoS};
use crate::properties::{Property, PropertyList};
use crate::reason::ReasonCode;
use crate::session::Session;

/// The destination of packets for the client.
pub trait Output {
    /// A vector to append small pieces to.
    fn tail(&mut self) -> &mut Vec<u8>;

    /// Appends a payload, which may be stored by reference.
    fn push(&mut self, piece: Bytes);
}

impl Output for Vec<u8> {
    fn tail(&mut self) -> &mut Vec<u8> {
        self
    }

    fn push(&mut self, piece: Bytes) {
        self.extend_from_slice(&piece);
    }
}

/// The progress of one call of [`ServerConnection::handle_input`].
#[derive(Debug)]
pub struct MqttStep<'a> {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// The event that the consumed input led to, if any.
    pub event: Option<MqttEvent<'a>>,
}

/// The server's end of one connection. See the [module](super) for the order of the calls.
#[derive(Debug)]
pub struct ServerConnection {
    pub(super) decoder: PacketDecoder,
    pub(super) core: Core,
}

/// Everything but the decoder, from which the current packet is borrowed.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: Arc<MqttSettings>,
    pub(super) phase: Phase,
    pub(super) version: MqttVersion,
    pub(super) session: Session,
    pub(super) keep_alive: Option<KeepAlive>,
    /// As the client requested until it is accepted; in force from then on.
    pub(super) keep_alive_secs: u16,
    pub(super) session_expiry: u32,
    pub(super) clean_start: bool,
    pub(super) will: Option<Box<StoredWill>>,
    /// Messages of QoS 1 and 2 that the client sent on this connection and that are not complete: at QoS 1
    /// until PUBACK, at QoS 2 until PUBCOMP.
    pub(super) incoming: BTreeMap<u16, QoS>,
    pub(super) received_aliases: Received,
    pub(super) sent_aliases: Sent,
    /// The number of messages of QoS 1 and 2 that the client accepts at once.
    pub(super) receive_maximum: u16,
    /// The largest packet that the client accepts, in bytes.
    pub(super) maximum_packet_size: u32,
    /// Whether the client wants reason strings with every failure.
    pub(super) problem_information: bool,
    /// Messages that were sent to the client on this connection, repeated ones not included.
    pub(super) delivered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No packet has been received.
    Start,
    /// The server has yet to answer the CONNECT.
    Deciding,
    Connected,
    Ended,
}

impl ServerConnection {
    /// Creates a connection that has not received anything.
    pub fn new(settings: impl Into<Arc<MqttSettings>>) -> Self {
        let settings = settings.into();
        Self {
            // A CONNECT names its own version.
            decoder: PacketDecoder::new(MqttVersion::V5, settings.connect_packet_size),
            core: Core {
                settings,
                phase: Phase::Start,
                version: MqttVersion::V5,
                session: Session::new(),
                keep_alive: None,
                keep_alive_secs: 0,
                session_expiry: 0,
                clean_start: true,
                will: None,
                incoming: BTreeMap::new(),
                received_aliases: Received::default(),
                sent_aliases: Sent::default(),
                receive_maximum: u16::MAX,
                maximum_packet_size: u32::MAX,
                problem_information: true,
                delivered: 0,
            },
        }
    }

    /// Consumes input from the front of `input`, up to one event. Call it again with the rest until it
    /// consumes nothing.
    pub fn handle_input<'a>(
        &'a mut self,
        input: &'a [u8],
        now: Instant,
        out: &mut impl Output,
    ) -> MqttStep<'a> {
        match self.core.phase {
            Phase::Deciding => return MqttStep { taken: 0, event: None },
            // Input after the end is ignored.
            Phase::Ended => return MqttStep { taken: input.len(), event: None },
            Phase::Start | Phase::Connected => {}
        }
        if let Some(keep_alive) = &mut self.core.keep_alive
            && !input.is_empty()
        {
            keep_alive.received(now);
        }
        match self.decoder.decode(input) {
            Ok(step) => {
                let event = step.packet.and_then(|packet| self.core.packet(packet, out));
                MqttStep { taken: step.taken, event }
            }
            Err(fault) => {
                let event = self.core.unreadable(fault, input, out);
                MqttStep { taken: input.len(), event: Some(event) }
            }
        }
    }

    /// Reports that the client closed its socket.
    pub fn handle_eof(&mut self) -> Option<MqttEnd> {
        self.core.end(Cause::Eof)
    }

    /// The latest time at which to call [`Self::handle_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.core.keep_alive.as_ref().filter(|_| self.is_connected())?.deadline()
    }

    /// Reports that the server has stopped reading, so that the client's silence does not count.
    pub fn pause_keep_alive(&mut self, now: Instant) {
        if let Some(keep_alive) = &mut self.core.keep_alive {
            keep_alive.received(now);
        }
    }

    /// Ends the connection of a client that was silent for one and a half times its Keep Alive.
    pub fn handle_deadline(&mut self, now: Instant, out: &mut impl Output) -> Option<MqttEnd> {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        self.core.write_end_reason(ReasonCode::KeepAliveTimeout, "", out);
        self.core.end(Cause::KeepAlive)
    }

    /// Ends the connection; a client of 5.0 receives the reason, and `text` as its reason string unless that is empty.
    pub fn disconnect(&mut self, reason: ReasonCode, text: &str, out: &mut impl Output) -> Option<MqttEnd> {
        self.core.write_end_reason(reason, text, out);
        self.core.end(Cause::Server(reason))
    }

    /// Ends the connection for an error of the client that only the server can detect, such as a message that
    /// is too large for the broker.
    pub fn fail(&mut self, fault: MqttFault, out: &mut impl Output) -> Option<MqttEnd> {
        self.core.write_end_reason(fault.code, fault.text, out);
        self.core.end(Cause::Fault(fault))
    }

    /// Replaces the settings, for a client that has not been accepted yet.
    pub fn set_settings(&mut self, settings: Arc<MqttSettings>) {
        debug_assert!(!self.is_connected(), "the client knows the settings");
        self.core.settings = settings;
    }

    /// Whether the client was accepted and the connection has not ended.
    pub fn is_connected(&self) -> bool {
        self.core.phase == Phase::Connected
    }

    /// The client's version; 5.0 until it is known.
    pub fn version(&self) -> MqttVersion {
        self.core.version
    }

    /// The Keep Alive in seconds, once the client is accepted; 0 if there is none.
    pub fn keep_alive(&self) -> u16 {
        self.core.keep_alive_secs
    }

    /// Seconds that the session outlives its connection, once the client is accepted; `u32::MAX` forever.
    pub fn session_expiry(&self) -> u32 {
        self.core.session_expiry
    }

    /// Number of messages that were sent to the client on this connection. Those sent again are not counted.
    pub fn delivered(&self) -> u64 {
        self.core.delivered
    }

    /// The session state of the client.
    pub fn session(&self) -> &Session {
        &self.core.session
    }

    /// The client's session, for changes to its subscriptions.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.core.session
    }

    /// Takes the session out of the connection, to be stored after the connection's end.
    pub fn take_session(&mut self) -> Session {
        std::mem::take(&mut self.core.session)
    }
}

impl Core {
    /// Ends the connection; returns `None` if it has already ended.
    pub(super) fn end(&mut self, cause: Cause) -> Option<MqttEnd> {
        if self.phase == Phase::Ended {
            return None;
        }
        let was_connected = self.phase == Phase::Connected;
        self.phase = Phase::Ended;
        // Section 3.1.2.5: a normal disconnection discards the will. A client that was not accepted has none.
        let is_normal = cause == Cause::Client(ReasonCode::Success);
        let will = self.will.take().filter(|_| was_connected && !is_normal).map(|will| *will);
        let session_expiry = if was_connected { self.session_expiry } else { 0 };
        Some(MqttEnd { cause, will, session_expiry })
    }

    /// Ends the connection of a client that violated the protocol.
    pub(super) fn fail<'a>(&mut self, fault: MqttFault, out: &mut impl Output) -> MqttEvent<'a> {
        self.write_end_reason(fault.code, fault.text, out);
        MqttEvent::Ended(self.end(Cause::Fault(fault)).expect("the connection was open, for something came"))
    }

    /// Handles input that cannot be parsed. If it was a CONNECT, its version decides how the client is notified.
    fn unreadable<'a>(&mut self, fault: MqttFault, input: &[u8], out: &mut impl Output) -> MqttEvent<'a> {
        if self.phase == Phase::Start
            && let Some(version) = guess_version(input)
        {
            self.version = version;
            self.phase = Phase::Deciding;
        }
        self.fail(fault, out)
    }

    /// Writes a CONNACK or DISCONNECT with a reason, as far as the version has them (section 4.13).
    pub(super) fn write_end_reason(&mut self, reason: ReasonCode, text: &str, out: &mut impl Output) {
        let mut properties = PropertyList::new();
        // A packet must not be larger than the client takes for the sake of its text (section 3.14.2.2.3).
        let fits = text.len() + REASON_BYTES <= self.maximum_packet_size as usize;
        if !text.is_empty() && fits && self.version.is_5() {
            properties.push(Property::ReasonString(text));
        }
        let properties = properties.as_properties();
        match self.phase {
            Phase::Connected if self.version.is_5() => {
                Disconnect { reason, properties }.encode(self.version, out.tail());
            }
            // If an older version has no return code for the reason, the connection is closed without an answer.
            Phase::Deciding if self.version.is_5() || reason.connect_return_code() != 3 => {
                ConnAck { session_present: false, reason, properties }.encode(self.version, out.tail());
            }
            // A peer whose first packet is not a CONNECT gets no answer (section 4.13.1).
            Phase::Start | Phase::Deciding | Phase::Connected | Phase::Ended => {}
        }
    }
}

/// Bytes of a CONNACK or DISCONNECT besides its reason string, at most.
const REASON_BYTES: usize = 16;

/// Guesses the version of a CONNECT that cannot be parsed from its protocol level.
fn guess_version(input: &[u8]) -> Option<MqttVersion> {
    let header = crate::decode::FixedHeader::parse(input).ok().flatten()?;
    let body = input.get(header.len..)?;
    let rest = body.strip_prefix(b"\0\x04MQTT").or_else(|| body.strip_prefix(b"\0\x06MQIsdp"))?;
    Some(match rest.first()? & 0x7f {
        ..=3 => MqttVersion::V31,
        4 => MqttVersion::V311,
        _ => MqttVersion::V5,
    })
}
