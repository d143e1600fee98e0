//! CONNECT (section 3.1).

use super::{MqttVersion, QoS, framed};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::reason::ReasonCode;
use crate::topic;
use crate::wire::{PacketReader, put_binary, put_string};

/// A client's request to be connected.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectPacket<'a> {
    /// The version, which applies to all packets that follow.
    pub version: MqttVersion,
    /// Whether to discard an earlier session; called Clean Session before 5.0, Clean Start from then on.
    pub clean_start: bool,
    /// Keep Alive in seconds; 0 turns it off (section 3.1.2.10).
    pub keep_alive: u16,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
    /// The client identifier; may be empty.
    pub client_id: &'a str,
    /// The message to publish if the connection ends without a DISCONNECT.
    pub will: Option<Will<'a>>,
    /// The user name that the client presents.
    pub user_name: Option<&'a str>,
    /// The password; never printed.
    pub password: Option<&'a [u8]>,
    /// Whether an MQTT 3.1 or 3.1.1 client is a bridge: by a convention of brokers, the high bit of the
    /// protocol level is set. Such a client wants RETAIN as the publisher set it.
    pub is_bridge: bool,
}

/// A will (section 3.1.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    /// The quality at which it is published.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
    /// The topic to which it is published.
    pub topic: &'a str,
    /// The payload of the message.
    pub payload: &'a [u8],
}

const WILL: u8 = 0b0000_0100;
const PASSWORD: u8 = 0b0100_0000;
const USER_NAME: u8 = 0b1000_0000;
/// Added to the protocol level.
const BRIDGE: u8 = 0x80;

impl<'a> ConnectPacket<'a> {
    /// Creates a CONNECT with Clean Start and a client identifier, and nothing else.
    pub fn new(version: MqttVersion, client_id: &'a str) -> Self {
        Self {
            version,
            clean_start: true,
            keep_alive: 0,
            properties: PacketProperties::NONE,
            client_id,
            will: None,
            user_name: None,
            password: None,
            is_bridge: false,
        }
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(body);
        let (version, is_bridge) = version(reader.binary()?, reader.u8()?)?;
        let flags = reader.u8()?;
        if flags & 1 != 0 {
            return Err(MqttFault::malformed("reserved flag of CONNECT is set"));
        }
        let keep_alive = reader.u16()?;
        let properties = match version {
            MqttVersion::V5 => PacketProperties::read(&mut reader, Holder::Connect)?,
            _ => PacketProperties::NONE,
        };
        let client_id = reader.string()?;
        let will = Will::decode(version, flags, &mut reader)?;
        // Before 5.0 a password requires a user name (3.1.1, MQTT-3.1.2-22).
        if flags & (USER_NAME | PASSWORD) == PASSWORD && version == MqttVersion::V311 {
            return Err(MqttFault::malformed("password without a user name"));
        }
        // MQTT 3.1 allows clients to set the flag and omit the field.
        let is_there = |flag, reader: &PacketReader<'_>| {
            flags & flag != 0 && (version != MqttVersion::V31 || !reader.is_empty())
        };
        let user_name = if is_there(USER_NAME, &reader) { Some(reader.string()?) } else { None };
        let password = if is_there(PASSWORD, &reader) { Some(reader.binary()?) } else { None };
        reader.finish()?;
        let clean_start = flags & 0b10 != 0;
        Ok(Self {
            version,
            clean_start,
            keep_alive,
            properties,
            client_id,
            will,
            user_name,
            password,
            is_bridge,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        framed(out, 0x10, |out| {
            let (name, level) = match self.version {
                MqttVersion::V31 => ("MQIsdp", 3),
                MqttVersion::V311 => ("MQTT", 4),
                MqttVersion::V5 => ("MQTT", 5),
            };
            put_string(out, name);
            out.push(level | if self.is_bridge { BRIDGE } else { 0 });
            out.push(self.flags());
            out.extend_from_slice(&self.keep_alive.to_be_bytes());
            if self.version.is_5() {
                self.properties.put(out);
            }
            put_string(out, self.client_id);
            if let Some(will) = &self.will {
                if self.version.is_5() {
                    will.properties.put(out);
                }
                put_string(out, will.topic);
                put_binary(out, will.payload);
            }
            if let Some(user_name) = self.user_name {
                put_string(out, user_name);
            }
            if let Some(password) = self.password {
                put_binary(out, password);
            }
        });
    }

    fn flags(&self) -> u8 {
        let will = self.will.map_or(0, |will| WILL | will.qos.level() << 3 | u8::from(will.retain) << 5);
        let user_name = if self.user_name.is_some() { USER_NAME } else { 0 };
        let password = if self.password.is_some() { PASSWORD } else { 0 };
        will | user_name | password | u8::from(self.clean_start) << 1
    }
}

impl std::fmt::Debug for ConnectPacket<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
            .field("clean_start", &self.clean_start)
            .field("keep_alive", &self.keep_alive)
            .field("properties", &self.properties)
            .field("client_id", &self.client_id)
            .field("will", &self.will)
            .field("user_name", &self.user_name)
            .field("has_password", &self.password.is_some())
            .finish_non_exhaustive()
    }
}

/// The version of a protocol name and level, and whether the client is a bridge.
fn version(name: &[u8], level: u8) -> Result<(MqttVersion, bool), MqttFault> {
    match (name, level) {
        (b"MQTT", 5) => Ok((MqttVersion::V5, false)),
        (b"MQTT", 4 | 0x84) => Ok((MqttVersion::V311, level & BRIDGE != 0)),
        (b"MQIsdp", 3 | 0x83) => Ok((MqttVersion::V31, level & BRIDGE != 0)),
        (b"MQTT" | b"MQIsdp", _) => Err(MqttFault::new(
            ReasonCode::UnsupportedProtocolVersion,
            "supported versions are 3.1, 3.1.1 and 5.0",
        )),
        _ => Err(MqttFault::malformed("not MQTT")),
    }
}

impl<'a> Will<'a> {
    fn decode(
        version: MqttVersion,
        flags: u8,
        reader: &mut PacketReader<'a>,
    ) -> Result<Option<Self>, MqttFault> {
        if flags & WILL == 0 {
            return match flags & 0b0011_1000 {
                0 => Ok(None),
                _ => Err(MqttFault::malformed("will flags without a will")),
            };
        }
        let qos = QoS::from_level(flags >> 3 & 0b11).ok_or(MqttFault::malformed("will of QoS 3"))?;
        let properties = match version {
            MqttVersion::V5 => PacketProperties::read(reader, Holder::Will)?,
            _ => PacketProperties::NONE,
        };
        let (topic, payload) = (reader.string()?, reader.binary()?);
        topic::check_name(topic)?;
        topic::check_response(&properties)?;
        Ok(Some(Self { qos, retain: flags & 0b10_0000 != 0, properties, topic, payload }))
    }
}
