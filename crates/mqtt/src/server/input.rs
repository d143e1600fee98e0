//! Handling of a client's packets.

use super::connection::{Core, Output, Phase};
use super::event::{Cause, MqttEvent, SubscribeEvent};
use crate::fault::MqttFault;
use crate::packet::{Ack, AckKind, Disconnect, Packet, PublishPacket, QoS, Subscribe};
use crate::reason::ReasonCode;
use crate::session::{ReceivedStage, Stage};

impl Core {
    /// Handles a packet: answers it if that needs no decision, and reports to the server otherwise.
    pub(super) fn packet<'a>(
        &'a mut self,
        packet: Packet<'a>,
        out: &mut impl Output,
    ) -> Option<MqttEvent<'a>> {
        let validated: Result<(), MqttFault> = match (self.phase, packet) {
            (Phase::Start, Packet::Connect(connect)) => return Some(self.connect(connect, out)),
            (Phase::Start, _) => Err(MqttFault::malformed("the first packet is not a CONNECT")),
            (_, Packet::Publish(publish)) => match self.validate_publish(&publish) {
                Ok(()) => return self.publish(publish, out),
                Err(fault) => Err(fault),
            },
            (_, Packet::Ack(ack)) => return self.ack(ack, out),
            (_, Packet::Subscribe(packet)) => match self.validate_subscribe(&packet) {
                Ok(()) => {
                    let (session, settings, is_5) = (&self.session, &*self.settings, self.version.is_5());
                    return Some(MqttEvent::Subscribe(SubscribeEvent { packet, session, settings, is_5 }));
                }
                Err(fault) => Err(fault),
            },
            (_, Packet::Unsubscribe(packet)) => return Some(MqttEvent::unsubscribe(packet)),
            (_, Packet::PingReq) => {
                Packet::PingResp.encode(self.version, out.tail());
                return None;
            }
            (_, Packet::Disconnect(packet)) => match self.disconnected(&packet) {
                Ok(event) => return event,
                Err(fault) => Err(fault),
            },
            (_, Packet::Connect(_)) => Err(MqttFault::protocol("second CONNECT")),
            (_, Packet::Auth(_)) => Err(MqttFault::protocol("AUTH without enhanced authentication")),
            (_, Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp) => {
                Err(MqttFault::protocol("packet that only servers send"))
            }
        };
        validated.err().map(|fault| self.fail(fault, out))
    }

    fn validate_publish(&mut self, publish: &PublishPacket<'_>) -> Result<(), MqttFault> {
        if publish.qos > self.settings.maximum_qos {
            return Err(MqttFault::new(ReasonCode::QosNotSupported, "QoS above the maximum"));
        }
        // Older clients cannot learn of this beforehand; their messages are routed without being retained.
        if publish.retain && !self.settings.retain && self.version.is_5() {
            return Err(MqttFault::new(ReasonCode::RetainNotSupported, "retained message"));
        }
        if publish.properties.subscription_identifier().is_some() {
            return Err(MqttFault::protocol("subscription identifier in a client's message"));
        }
        let is_new = publish.qos != QoS::AtMostOnce && !self.incoming.contains_key(&publish.packet_id);
        // Section 4.9. Older clients are limited by the number of packet identifiers.
        if is_new && self.version.is_5() && self.incoming.len() >= usize::from(self.settings.receive_maximum)
        {
            return Err(MqttFault::new(
                ReasonCode::ReceiveMaximumExceeded,
                "more messages than Receive Maximum",
            ));
        }
        // The alias applies even if the message is a duplicate.
        match publish.properties.topic_alias() {
            Some(alias) => {
                self.received_aliases.learn(self.settings.topic_alias_maximum, alias, publish.topic)
            }
            None => Ok(()),
        }
    }

    fn publish<'a>(
        &'a mut self,
        mut publish: PublishPacket<'a>,
        out: &mut impl Output,
    ) -> Option<MqttEvent<'a>> {
        let packet_id = publish.packet_id;
        if publish.topic.is_empty()
            && let Some(alias) = publish.properties.topic_alias()
        {
            publish.topic = self.received_aliases.find(alias)?;
        }
        match publish.qos {
            QoS::AtMostOnce => {}
            // A duplicate of an unanswered message: one answer serves both.
            QoS::AtLeastOnce => {
                if self.incoming.insert(packet_id, QoS::AtLeastOnce).is_some() {
                    return None;
                }
            }
            QoS::ExactlyOnce => match self.session.has_received(packet_id) {
                Some(ReceivedStage::Accepted) => {
                    self.incoming.insert(packet_id, QoS::ExactlyOnce);
                    Ack::new(AckKind::PubRec, packet_id, ReasonCode::Success)
                        .encode(self.version, out.tail());
                    return None;
                }
                Some(ReceivedStage::Unanswered) => return None,
                None | Some(ReceivedStage::Earlier) => {
                    self.incoming.insert(packet_id, QoS::ExactlyOnce);
                    self.session.receive(packet_id);
                }
            },
        }
        Some(MqttEvent::Publish(publish))
    }

    fn ack<'a>(&mut self, ack: Ack<'_>, out: &mut impl Output) -> Option<MqttEvent<'a>> {
        let packet_id = ack.packet_id;
        match ack.kind {
            AckKind::PubAck => {
                self.expect_stage(
                    packet_id,
                    |stage| matches!(stage, Stage::Published(message) if message.qos == QoS::AtLeastOnce),
                )?;
                let tag = self.session.outgoing.remove(packet_id)?.tag;
                self.send_again(out);
                Some(MqttEvent::Delivered { tag, packet_id, reason: ack.reason, to_be_released: false })
            }
            AckKind::PubRec => self.pubrec(ack, out),
            AckKind::PubComp => {
                self.expect_stage(packet_id, |stage| matches!(stage, Stage::Released))?;
                let tag = self.session.outgoing.remove(packet_id)?.tag;
                self.send_again(out);
                Some(MqttEvent::Completed { tag, packet_id })
            }
            AckKind::PubRel => {
                if self
                    .session
                    .has_received(packet_id)
                    .is_some_and(|received| received != ReceivedStage::Unanswered)
                {
                    return Some(MqttEvent::Released { packet_id });
                }
                // The message was completed before, or was never received.
                let reason = ReasonCode::PacketIdentifierNotFound;
                Ack::new(AckKind::PubComp, packet_id, reason).encode(self.version, out.tail());
                None
            }
        }
    }

    fn pubrec<'a>(&mut self, ack: Ack<'_>, out: &mut impl Output) -> Option<MqttEvent<'a>> {
        let packet_id = ack.packet_id;
        let Some(entry) = self.session.outgoing.find(packet_id) else {
            // Section 4.3.3: the client has to discard it, too.
            let reason = ReasonCode::PacketIdentifierNotFound;
            Ack::new(AckKind::PubRel, packet_id, reason).encode(self.version, out.tail());
            return None;
        };
        let tag = entry.tag;
        match &entry.stage {
            Stage::Published(message) if message.qos == QoS::ExactlyOnce => {
                if ack.reason.is_error() {
                    self.session.outgoing.remove(packet_id);
                    self.send_again(out);
                    return Some(MqttEvent::Delivered {
                        tag,
                        packet_id,
                        reason: ack.reason,
                        to_be_released: false,
                    });
                }
                entry.stage = Stage::Received;
                Some(MqttEvent::Delivered { tag, packet_id, reason: ack.reason, to_be_released: true })
            }
            // The client has not seen PUBREL yet; older clients repeat PUBREC.
            Stage::Released => {
                Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success).encode(self.version, out.tail());
                None
            }
            Stage::Received | Stage::Published(_) => None,
        }
    }

    fn expect_stage(&mut self, packet_id: u16, is_right: impl Fn(&Stage) -> bool) -> Option<()> {
        self.session.outgoing.find(packet_id).filter(|entry| is_right(&entry.stage)).map(drop)
    }

    fn validate_subscribe(&self, packet: &Subscribe<'_>) -> Result<(), MqttFault> {
        // MQTT-3.8.3-4.
        let is_bad = |request: crate::packet::SubscribeRequest<'_>| {
            request.options.no_local && request.filter.starts_with("$share/")
        };
        match packet.requests.iter().any(is_bad) {
            true => Err(MqttFault::protocol("No Local on a shared subscription")),
            false => Ok(()),
        }
    }

    fn disconnected<'a>(&mut self, packet: &Disconnect<'_>) -> Result<Option<MqttEvent<'a>>, MqttFault> {
        if packet.properties.server_reference().is_some() {
            return Err(MqttFault::protocol("server reference from a client"));
        }
        if let Some(expiry) = packet.properties.session_expiry_interval() {
            // Section 3.14.2.2.2.
            if self.session_expiry == 0 && expiry != 0 {
                return Err(MqttFault::protocol("session expiry interval changed from 0"));
            }
            self.session_expiry = expiry.min(self.settings.session_expiry_maximum);
        }
        Ok(self.end(Cause::Client(packet.reason)).map(MqttEvent::Ended))
    }
}
