//! CONNECT and CONNACK (sections 3.1 and 3.2).

use std::time::Instant;

use super::alias::Sent;
use super::connection::{Core, Output, Phase, ServerConnection};
use super::event::{Cause, MqttEnd, MqttEvent};
use super::keep_alive::KeepAlive;
use super::{MqttSettings, StoredWill};
use crate::fault::MqttFault;
use crate::packet::{ConnAck, ConnectPacket, MqttVersion, QoS};
use crate::properties::{Property, PropertyList};
use crate::reason::ReasonCode;
use crate::session::Session;

impl Core {
    pub(super) fn connect<'a>(
        &mut self,
        connect: Box<ConnectPacket<'a>>,
        out: &mut impl Output,
    ) -> MqttEvent<'a> {
        self.version = connect.version;
        self.phase = Phase::Deciding;
        if let Err(fault) = self.validate(&connect) {
            return self.fail(fault, out);
        }
        self.clean_start = connect.clean_start;
        self.keep_alive_secs = connect.keep_alive;
        self.will = connect.will.as_ref().map(StoredWill::from).map(Box::new);
        let properties = &connect.properties;
        self.session_expiry = match (connect.version, connect.clean_start) {
            (MqttVersion::V5, _) => properties.session_expiry_interval().unwrap_or(0),
            (_, true) => 0,
            (_, false) => u32::MAX,
        };
        self.receive_maximum = properties.receive_maximum().unwrap_or(u16::MAX);
        self.maximum_packet_size = properties.maximum_packet_size().unwrap_or(u32::MAX);
        self.problem_information = properties.request_problem_information().unwrap_or(true);
        let aliases = properties.topic_alias_maximum().unwrap_or(0);
        self.sent_aliases = Sent::new(aliases.min(self.settings.send_topic_aliases));
        MqttEvent::Connect(connect)
    }

    fn validate(&self, connect: &ConnectPacket<'_>) -> Result<(), MqttFault> {
        // 3.1.1, MQTT-3.1.3-8: a client without an identifier has no session. In 3.1 every client has an identifier.
        let nameless_allowed = match connect.version {
            MqttVersion::V31 => false,
            MqttVersion::V311 => connect.clean_start,
            MqttVersion::V5 => true,
        };
        if connect.client_id.is_empty() && !nameless_allowed {
            return Err(MqttFault::new(ReasonCode::ClientIdentifierNotValid, "empty client identifier"));
        }
        if connect.properties.authentication_method().is_some() {
            return Err(MqttFault::new(
                ReasonCode::BadAuthenticationMethod,
                "enhanced authentication is not supported",
            ));
        }
        match &connect.will {
            Some(will) if will.qos > self.settings.maximum_qos => {
                Err(MqttFault::new(ReasonCode::QosNotSupported, "QoS of the will"))
            }
            Some(will) if will.retain && !self.settings.retain && self.version.is_5() => {
                Err(MqttFault::new(ReasonCode::RetainNotSupported, "retained will"))
            }
            _ => Ok(()),
        }
    }
}

impl ServerConnection {
    /// Whether the client, whose CONNECT awaits its answer, wants to resume a stored session. If not, the
    /// stored session has ended.
    pub fn wants_session(&self) -> bool {
        !self.core.clean_start
    }

    /// Accepts the client. `earlier` is its stored session, if it wants one and there is one; `assigned` is the identifier that
    /// the server gave to a client without one. Messages in flight are sent again, as far as the client's window allows.
    ///
    /// Returns the tags of messages that are now too large for the client's Maximum Packet Size: they count as delivered
    /// (section 3.1.2.11.4).
    pub fn accept(
        &mut self,
        earlier: Option<Session>,
        assigned: Option<&str>,
        now: Instant,
        out: &mut impl Output,
    ) -> Vec<u64> {
        let core = &mut self.core;
        if core.phase != Phase::Deciding {
            return Vec::new();
        }
        let asked = (core.keep_alive_secs, core.session_expiry);
        let settings = core.settings.clone();
        core.session_expiry = core.session_expiry.min(settings.session_expiry_maximum);
        // Older clients cannot be notified, so they keep theirs.
        let maximum = settings.keep_alive_maximum;
        if core.version.is_5() && maximum != 0 && (asked.0 == 0 || asked.0 > maximum) {
            core.keep_alive_secs = maximum;
        }
        // From here on the connection is open: the session continues, and the decoder expects the agreed version.
        let session_present = earlier.is_some();
        core.session = earlier.unwrap_or_default();
        core.session.resume();
        core.phase = Phase::Connected;
        core.keep_alive = Some(KeepAlive::new(core.keep_alive_secs, now));
        self.decoder.set(core.version, settings.maximum_packet_size);
        // CONNACK reports the server's limits, and those requested values that the server replaced (section 3.2.2.3).
        let mut properties = PropertyList::new();
        if core.version.is_5() {
            if core.session_expiry != asked.1 || settings.always_sends_session_expiry {
                properties.push(Property::SessionExpiryInterval(core.session_expiry));
            }
            if core.keep_alive_secs != asked.0 {
                properties.push(Property::ServerKeepAlive(core.keep_alive_secs));
            }
            if let Some(name) = assigned {
                properties.push(Property::AssignedClientIdentifier(name));
            }
            describe(&settings, &mut properties);
        }
        let properties = properties.as_properties();
        ConnAck { session_present, reason: ReasonCode::Success, properties }.encode(core.version, out.tail());
        // Nothing may precede CONNACK, so messages that the last connection left unacknowledged follow it; those that are
        // too large for this one are dropped.
        let (version, size) = (core.version, core.maximum_packet_size);
        let dropped = core
            .session
            .outgoing
            .resume(|message| super::deliver::fits(&message.as_publish(version, 1, true), version, size));
        core.send_again(out);
        dropped
    }

    /// Refuses a client that waits for its CONNACK, and ends the connection.
    pub fn refuse(&mut self, reason: ReasonCode, text: &str, out: &mut impl Output) -> Option<MqttEnd> {
        if self.core.phase == Phase::Deciding {
            let mut properties = PropertyList::new();
            if !text.is_empty() {
                properties.push(Property::ReasonString(text));
            }
            let properties = properties.as_properties();
            ConnAck { session_present: false, reason, properties }.encode(self.core.version, out.tail());
        }
        self.core.end(Cause::Server(reason))
    }
}

/// Adds the properties that differ from a client's defaults (section 3.2.2.3).
fn describe(settings: &MqttSettings, properties: &mut PropertyList) {
    properties.push(Property::ReceiveMaximum(settings.receive_maximum));
    properties.push(Property::MaximumPacketSize(settings.maximum_packet_size));
    if settings.topic_alias_maximum > 0 {
        properties.push(Property::TopicAliasMaximum(settings.topic_alias_maximum));
    }
    if settings.maximum_qos != QoS::ExactlyOnce {
        properties.push(Property::MaximumQos(settings.maximum_qos == QoS::AtLeastOnce));
    }
    let abilities = [
        (settings.retain, Property::RetainAvailable(false)),
        (settings.wildcards, Property::WildcardSubscriptionAvailable(false)),
        (settings.subscription_identifiers, Property::SubscriptionIdentifiersAvailable(false)),
        (settings.shared, Property::SharedSubscriptionAvailable(false)),
    ];
    abilities.into_iter().filter(|(able, _)| !able).for_each(|(_, property)| properties.push(property));
}
