//! The server's answers to a client's requests.

use super::connection::{Output, ServerConnection};
use super::event::{Cause, MqttEnd};
use crate::packet::{Ack, AckKind, QoS, Reasons, SubAck, UnsubAck};
use crate::properties::{PacketProperties, Property, PropertyList};
use crate::reason::ReasonCode;

impl ServerConnection {
    /// Acknowledges a message of QoS 1 or 2 that was published and, where required, stored. `matched` is
    /// whether it was routed to any queue.
    pub fn accepted(&mut self, packet_id: u16, matched: bool, out: &mut impl Output) {
        let core = &mut self.core;
        let Some(qos) = core.incoming.get(&packet_id).copied() else { return };
        let reason = if matched { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers };
        let kind = match qos {
            QoS::ExactlyOnce => {
                core.session.accepted(packet_id);
                AckKind::PubRec
            }
            _ => {
                core.incoming.remove(&packet_id);
                AckKind::PubAck
            }
        };
        if self.is_connected() {
            Ack::new(kind, packet_id, reason).encode(self.core.version, out.tail());
        }
    }

    /// Refuses a message of QoS 1 or 2. Clients of 5.0 receive the reason and stay connected; older ones have no way
    /// to receive it, and their connection ends (3.1.1, section 3.3.5.2 allows this or a false acknowledgement).
    pub fn refuse_publish(
        &mut self,
        packet_id: u16,
        reason: ReasonCode,
        text: &str,
        out: &mut impl Output,
    ) -> Option<MqttEnd> {
        let core = &mut self.core;
        let qos = core.incoming.remove(&packet_id)?;
        if qos == QoS::ExactlyOnce {
            core.session.forget_received(packet_id);
        }
        if !core.version.is_5() {
            return core.end(Cause::Server(reason));
        }
        let kind = if qos == QoS::ExactlyOnce { AckKind::PubRec } else { AckKind::PubAck };
        let reason = if kind.allows(reason) { reason } else { ReasonCode::UnspecifiedError };
        let mut properties = PropertyList::new();
        if core.problem_information && !text.is_empty() {
            properties.push(Property::ReasonString(text));
        }
        if self.is_connected() {
            let ack = Ack { kind, packet_id, reason, properties: properties.as_properties() };
            ack.encode(self.core.version, out.tail());
        }
        None
    }

    /// Refuses a message of QoS 1 or 2 that a full queue has rejected. Clients before 5.0 get no answer, as with RabbitMQ
    /// 4, and the message is discarded: if they send it again, it counts as a new one.
    pub fn refuse_for_full_queue(&mut self, packet_id: u16, text: &str, out: &mut impl Output) {
        let core = &mut self.core;
        if core.version.is_5() {
            self.refuse_publish(packet_id, ReasonCode::QuotaExceeded, text, out);
        } else if core.incoming.remove(&packet_id) == Some(QoS::ExactlyOnce) {
            core.session.forget_received(packet_id);
        }
    }

    /// Completes a message of QoS 2 from the client: its identifier is free.
    pub fn complete(&mut self, packet_id: u16, out: &mut impl Output) {
        let core = &mut self.core;
        core.incoming.remove(&packet_id);
        if core.session.forget_received(packet_id) && self.is_connected() {
            let ack = Ack::new(AckKind::PubComp, packet_id, ReasonCode::Success);
            ack.encode(self.core.version, out.tail());
        }
    }

    /// Answers a SUBSCRIBE with one reason code for each entry, a granted quality or a failure. The subscriptions
    /// must have been added to the [session](ServerConnection::session_mut) before. Retained messages are sent after it.
    pub fn subscribed(
        &mut self,
        packet_id: u16,
        reasons: impl IntoIterator<Item = ReasonCode>,
        out: &mut impl Output,
    ) {
        if self.is_connected() {
            let mut buffer = Vec::new();
            let reasons = Reasons::write(&mut buffer, reasons);
            SubAck { packet_id, properties: PacketProperties::NONE, reasons }
                .encode(self.core.version, out.tail());
        }
    }

    /// Answers an UNSUBSCRIBE with one reason code for each filter; older clients do not get these.
    pub fn unsubscribed(
        &mut self,
        packet_id: u16,
        reasons: impl IntoIterator<Item = ReasonCode>,
        out: &mut impl Output,
    ) {
        if self.is_connected() {
            let mut buffer = Vec::new();
            let reasons = Reasons::write(&mut buffer, reasons);
            UnsubAck { packet_id, properties: PacketProperties::NONE, reasons }
                .encode(self.core.version, out.tail());
        }
    }
}
