//! Delivery of messages to the client.

use bytes::Bytes;

use super::alias::Sent;
use super::connection::{Core, Output, ServerConnection};
use crate::packet::{Ack, AckKind, MqttVersion, Payload, PublishPacket, QoS};
use crate::properties::{PacketProperties, Property, PropertyList};
use crate::reason::ReasonCode;
use crate::session::{OutgoingMessage, Stage};
use crate::wire::varint_len;

/// The reason why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undeliverable {
    /// The window is full or the connection is not open; the message may be sent later.
    NoCapacity,
    /// The client does not accept packets of this size. The message counts as delivered (section 3.1.2.11.4).
    TooLarge,
}

impl ServerConnection {
    /// The most messages of QoS 1 and 2 that may be in flight to the client: its Receive Maximum or the server's own
    /// limit, whichever is lower.
    pub fn window(&self) -> u16 {
        self.core.window()
    }

    /// The number of further messages of QoS 1 and 2 that may be sent now, within [`Self::window`].
    pub fn free_window(&self) -> usize {
        let core = &self.core;
        if !self.is_connected() || core.session.outgoing.unsent() > 0 {
            return 0;
        }
        usize::from(core.window()).saturating_sub(core.session.outgoing.sent())
    }

    /// Sends a message. At QoS 1 and 2 it gets a packet identifier, which is returned, and is stored until the
    /// client has acknowledged it; `tag` is the server's own name for it. At QoS 0 it is sent and not stored.
    ///
    /// # Errors
    /// The message was not sent and not stored.
    pub fn deliver(
        &mut self,
        message: OutgoingMessage,
        tag: u64,
        out: &mut impl Output,
    ) -> Result<Option<u16>, Undeliverable> {
        if !self.is_connected() {
            return Err(Undeliverable::NoCapacity);
        }
        let (version, size) = (self.core.version, self.core.maximum_packet_size);
        if !fits(&message.as_publish(version, 1, false), version, size) {
            return Err(Undeliverable::TooLarge);
        }
        if message.qos == QoS::AtMostOnce {
            let publish = message.as_publish(version, 0, false);
            send(version, &mut self.core.sent_aliases, size, &publish, &message.payload, out);
            self.core.delivered += 1;
            return Ok(None);
        }
        if self.free_window() == 0 {
            return Err(Undeliverable::NoCapacity);
        }
        let core = &mut self.core;
        let payload = message.payload.clone();
        let packet_id = core.session.outgoing.add(tag, message);
        if let Some(entry) = core.session.outgoing.find(packet_id)
            && let Stage::Published(message) = &entry.stage
        {
            let dup = message.redelivered && message.qos == QoS::AtLeastOnce;
            let publish = message.as_publish(version, packet_id, dup);
            send(version, &mut core.sent_aliases, size, &publish, &payload, out);
        }
        core.delivered += 1;
        Ok(Some(packet_id))
    }

    /// Sends a message of QoS 0 from borrowed parts, without an allocation of its own.
    ///
    /// # Errors
    /// The message was not sent.
    pub fn deliver_at_most_once(
        &mut self,
        topic: &str,
        retain: bool,
        properties: PacketProperties<'_>,
        payload: &Bytes,
        out: &mut impl Output,
    ) -> Result<(), Undeliverable> {
        if !self.is_connected() {
            return Err(Undeliverable::NoCapacity);
        }
        let core = &mut self.core;
        let properties = if core.version.is_5() { properties } else { PacketProperties::NONE };
        let qos = QoS::AtMostOnce;
        let payload_of = Payload::new(payload);
        let publish =
            PublishPacket { dup: false, qos, retain, topic, packet_id: 0, properties, payload: payload_of };
        if !fits(&publish, core.version, core.maximum_packet_size) {
            return Err(Undeliverable::TooLarge);
        }
        send(core.version, &mut core.sent_aliases, core.maximum_packet_size, &publish, payload, out);
        core.delivered += 1;
        Ok(())
    }

    /// Sends PUBREL, once the server has stored that the client has a message of QoS 2.
    pub fn release(&mut self, packet_id: u16, out: &mut impl Output) {
        let is_connected = self.is_connected();
        let Some(entry) = self.core.session.outgoing.find(packet_id) else { return };
        if entry.stage == Stage::Received {
            entry.stage = Stage::Released;
            if is_connected {
                let ack = Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success);
                ack.encode(self.core.version, out.tail());
            }
        }
    }
}

impl Core {
    fn window(&self) -> u16 {
        self.receive_maximum.min(self.settings.in_flight)
    }

    /// Sends messages that were in flight when the last connection ended (section 4.4), as far as the window allows.
    pub(super) fn send_again(&mut self, out: &mut impl Output) {
        let window = usize::from(self.window());
        while self.session.outgoing.sent() < window
            && let Some(entry) = self.session.outgoing.next_unsent()
        {
            match &entry.stage {
                Stage::Published(message) => {
                    let publish = message.as_publish(self.version, entry.packet_id, true);
                    let size = self.maximum_packet_size;
                    send(self.version, &mut self.sent_aliases, size, &publish, &message.payload, out);
                }
                // The server stores this state before it hands the session on.
                Stage::Received | Stage::Released => {
                    entry.stage = Stage::Released;
                    let ack = Ack::new(AckKind::PubRel, entry.packet_id, ReasonCode::Success);
                    ack.encode(self.version, out.tail());
                }
            }
        }
    }
}

/// Whether the packet is within the client's limit.
pub(super) fn fits(publish: &PublishPacket<'_>, version: MqttVersion, size: u32) -> bool {
    let len = publish.remaining_len(version);
    len <= crate::wire::MAX_VARINT as usize && 1 + varint_len(len as u32) + len <= size as usize
}

/// Appends a message, with a topic alias where that saves bytes.
fn send(
    version: MqttVersion,
    aliases: &mut Sent,
    size: u32,
    publish: &PublishPacket<'_>,
    payload: &Bytes,
    out: &mut impl Output,
) {
    let mut properties = PropertyList::new();
    let mut aliased = *publish;
    // The packet that introduces an alias is three bytes longer, which may exceed the limit.
    if version.is_5()
        && size as usize >= publish.remaining_len(version) + ALIAS_BYTES
        && let Some((alias, is_known)) = aliases.find(publish.topic)
    {
        publish.properties.iter().for_each(|property| properties.push(property));
        properties.push(Property::TopicAlias(alias));
        aliased.properties = properties.as_properties();
        if is_known {
            aliased.topic = "";
        }
        aliased.encode_head(version, out.tail());
    } else {
        aliased.encode_head(version, out.tail());
    }
    out.push(payload.clone());
}

/// Bytes of a fixed header, of an alias, and of the length fields that an alias may enlarge.
const ALIAS_BYTES: usize = 5 + 3 + 2;
