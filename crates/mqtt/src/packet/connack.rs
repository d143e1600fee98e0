//! CONNACK (section 3.2).

use super::{MqttVersion, framed};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::reason::ReasonCode;
use crate::wire::PacketReader;

/// The server's answer to a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// Whether the server had a session for the client; never set with a refusal.
    pub session_present: bool,
    /// Success or the reason of the refusal. It is mapped to one of five return codes before 5.0.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
}

impl<'a> ConnAck<'a> {
    pub(super) fn decode(version: MqttVersion, body: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(body);
        let session_present = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(MqttFault::malformed("reserved flags of CONNACK are set")),
        };
        // MQTT 3.1 does not have this flag.
        let session_present = session_present && version != MqttVersion::V31;
        let code = reader.u8()?;
        let (reason, properties) = if version.is_5() {
            let reason = ReasonCode::from_code(code).filter(|reason| reason.is_error() || code == 0);
            (reason, PacketProperties::read(&mut reader, Holder::ConnAck)?)
        } else {
            (REFUSALS.get(usize::from(code)).copied(), PacketProperties::NONE)
        };
        let reason = reason.ok_or(MqttFault::malformed("unknown reason code"))?;
        if session_present && reason.is_error() {
            return Err(MqttFault::protocol("session present in a refusal"));
        }
        reader.finish()?;
        Ok(Self { session_present, reason, properties })
    }

    pub(crate) fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
        framed(out, 0x20, |out| {
            // MQTT 3.1 keeps the first byte reserved.
            out.push(u8::from(self.session_present && version != MqttVersion::V31));
            if version.is_5() {
                out.push(self.reason.code());
                self.properties.put(out);
            } else {
                out.push(self.reason.connect_return_code());
            }
        });
    }
}

/// Indexed by the return code of the older versions.
const REFUSALS: [ReasonCode; 6] = [
    ReasonCode::Success,
    ReasonCode::UnsupportedProtocolVersion,
    ReasonCode::ClientIdentifierNotValid,
    ReasonCode::ServerUnavailable,
    ReasonCode::BadUserNameOrPassword,
    ReasonCode::NotAuthorized,
];
