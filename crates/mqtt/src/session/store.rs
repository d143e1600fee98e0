//! The disk format of a session: a version byte, the subscriptions, the messages in flight, the identifiers received.
//!
//! Integers are big-endian; lengths have 32 bits.

use std::fmt;

use bytes::Bytes;

use super::{InFlight, OutgoingMessage, ReceivedStage, Session, Stage, Subscription};
use crate::packet::{MqttVersion, QoS, SubscribeOptions};
use crate::properties::PropertyList;
use crate::topic::TopicFilter;

/// The first byte; a later layout has a higher one.
const LAYOUT: u8 = 1;

/// The bytes are not a valid session, or message of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionDecodeError;

impl fmt::Display for SessionDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a stored session")
    }
}

impl std::error::Error for SessionDecodeError {}

impl Session {
    /// Appends the session in its disk format. Messages from the client that were not accepted are left out:
    /// the client will send them again.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_subscriptions(out);
        put_len(out, self.in_flight().count());
        self.in_flight().for_each(|entry| entry.encode(out));
        put_len(out, self.received().count());
        self.received().for_each(|id| out.extend(id.to_be_bytes()));
    }

    /// Like [`Session::encode`], for a server that stores the rest elsewhere: no messages in flight, which
    /// [`Session::restore_in_flight`] restores, and none of the identifiers received ([`Session::restore_received`]).
    pub fn encode_without_messages(&self, out: &mut Vec<u8>) {
        self.encode_subscriptions(out);
        put_len(out, 0);
        put_len(out, 0);
    }

    /// Restores a message in flight, behind those that were sent before it.
    pub fn restore_in_flight(&mut self, entry: InFlight) {
        self.outgoing.restore(entry);
    }

    /// Restores the identifier of a message of QoS 2 from the client that was accepted and has not been released.
    pub fn restore_received(&mut self, packet_id: u16) {
        self.received.insert(packet_id, ReceivedStage::Accepted);
    }

    fn encode_subscriptions(&self, out: &mut Vec<u8>) {
        out.push(LAYOUT);
        put_len(out, self.subscriptions.len());
        for (filter, subscription) in &self.subscriptions {
            put(out, filter.as_bytes());
            out.push(subscription.stored_byte(filter));
            out.extend(subscription.identifier.unwrap_or(0).to_be_bytes());
        }
    }

    /// Decodes a session written by [`Session::encode`].
    ///
    /// # Errors
    /// The bytes are not a valid session.
    pub fn decode(bytes: &[u8]) -> Result<Self, SessionDecodeError> {
        let mut reader = SessionReader(bytes);
        if reader.array::<1>()? != [LAYOUT] {
            return Err(SessionDecodeError);
        }
        let mut session = Self::new();
        for _ in 0..reader.u32()? {
            let filter = reader.text()?;
            let [byte] = reader.array()?;
            let identifier = Some(reader.u32()?).filter(|id| *id != 0);
            let subscription =
                Subscription::from_stored(filter, byte, identifier).ok_or(SessionDecodeError)?;
            session.subscribe(filter, subscription);
        }
        for sequence in 0..reader.u32()? {
            session.outgoing.restore(InFlight::read(&mut reader, sequence.into())?);
        }
        for _ in 0..reader.u32()? {
            session.restore_received(u16::from_be_bytes(reader.array()?));
        }
        if reader.0.is_empty() { Ok(session) } else { Err(SessionDecodeError) }
    }
}

impl Subscription {
    /// The byte of the options in a stored subscription with this filter.
    pub fn stored_byte(&self, filter: &str) -> u8 {
        let looks_shared = !self.is_shared && is_shared(filter);
        self.options.byte() | if looks_shared { ORDINARY } else { 0 }
    }

    /// The subscription of a stored filter and [byte](Self::stored_byte); `None` if that is invalid. The filter is not checked:
    /// an earlier version may have accepted others.
    pub fn from_stored(filter: &str, byte: u8, identifier: Option<u32>) -> Option<Self> {
        let options = SubscribeOptions::from_byte(MqttVersion::V5, byte & !ORDINARY).ok()?;
        let is_shared = byte & ORDINARY == 0 && is_shared(filter);
        Some(Self { options, identifier, is_shared })
    }
}

/// Whether a client of 5.0 subscribes to this filter as a shared one.
fn is_shared(filter: &str) -> bool {
    TopicFilter::parse(filter, true).is_ok_and(|filter| filter.group().is_some())
}

/// Bit of the options' byte, reserved on the wire: the filter looks like that of a shared subscription, but a client of 3.1.1
/// has subscribed to it as an ordinary one.
const ORDINARY: u8 = 0x80;

impl InFlight {
    /// Appends the message in its disk format, without its [`sequence`](Self::sequence).
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.packet_id.to_be_bytes());
        out.extend(self.tag.to_be_bytes());
        match &self.stage {
            Stage::Published(message) => {
                out.extend([PUBLISHED, message.qos.level(), u8::from(message.retain)]);
                put(out, message.topic.as_bytes());
                put(out, message.properties.as_properties().bytes());
                put(out, &message.payload);
            }
            // The server stores it before it sends PUBREL.
            Stage::Received | Stage::Released => out.push(RELEASED),
        }
    }

    /// Decodes a message written by [`Self::encode`].
    ///
    /// # Errors
    /// The bytes are not a valid message.
    pub fn decode(bytes: &[u8], sequence: u64) -> Result<Self, SessionDecodeError> {
        let mut reader = SessionReader(bytes);
        let entry = Self::read(&mut reader, sequence)?;
        if reader.0.is_empty() { Ok(entry) } else { Err(SessionDecodeError) }
    }

    fn read(reader: &mut SessionReader<'_>, sequence: u64) -> Result<Self, SessionDecodeError> {
        let packet_id = u16::from_be_bytes(reader.array()?);
        let tag = u64::from_be_bytes(reader.array()?);
        let stage = match reader.array()? {
            [PUBLISHED] => {
                let [qos, retain] = reader.array()?;
                Stage::Published(OutgoingMessage {
                    qos: QoS::from_level(qos)
                        .filter(|qos| *qos != QoS::AtMostOnce)
                        .ok_or(SessionDecodeError)?,
                    retain: retain != 0,
                    redelivered: false,
                    topic: reader.text()?.into(),
                    properties: PropertyList::from_bytes(reader.bytes()?).map_err(|_| SessionDecodeError)?,
                    payload: Bytes::copy_from_slice(reader.bytes()?),
                })
            }
            [RELEASED] => Stage::Released,
            _ => return Err(SessionDecodeError),
        };
        if packet_id == 0 {
            return Err(SessionDecodeError);
        }
        Ok(Self { packet_id, tag, sequence, stage })
    }
}

const PUBLISHED: u8 = 0;
const RELEASED: u8 = 1;

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u32).to_be_bytes());
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

struct SessionReader<'a>(&'a [u8]);

impl<'a> SessionReader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SessionDecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SessionDecodeError)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, SessionDecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], SessionDecodeError> {
        let len = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SessionDecodeError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<&'a str, SessionDecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| SessionDecodeError)
    }
}
